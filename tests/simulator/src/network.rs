//! The network: streams of bytes between processes and servers, and the servers.
//!
//! A connection has two flows. A flow delivers its pieces in their order, each after a delay. An end is a piece too.
//!
//! | event | in the model |
//! | --- | --- |
//! | a link is blocked | no piece arrives on it until the end of the block, and nobody connects |
//! | a connection is cut | both sides notice at once, and all pieces are lost |
//! | a connection is late | its requests arrive later than those on newer connections. It may have ended for the process |
//! | a connection is dead | all pieces are lost. The process notices after a while, as by keepalive |
//! | a server stalls | it takes no piece until then. Processes connect to it all the same |
//! | a server is down | it refuses to connect. Its connections end |

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io::{self, Read};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use leasehold::seam::TestStream;
use leasehold_testing::memory::MemoryServer;

use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::failover::Group;
use crate::faults::Bug;
use crate::programs::NAMES;
use crate::replication::{Links, PORT};
use crate::schedule::RESTART_DELAY;
use crate::world::{Event, Place, World, WorldState, locked};

/// The delay of most pieces.
const DELAY: std::ops::Range<Duration> = Duration::from_micros(30)..Duration::from_millis(3);
/// The delay of a few of them.
const LONG_DELAY: std::ops::Range<Duration> = Duration::from_millis(3)..Duration::from_millis(300);
/// When a process notices that a connection is dead.
const DEAD_AFTER: std::ops::Range<Duration> = Duration::from_secs(5)..Duration::from_secs(60);

/// When a server notices that a connection with late requests has ended, after these.
const SEEN_AFTER: Duration = Duration::from_millis(10);

/// In how many pieces bytes come at most that drip, and the time between these.
const DROPS: usize = 64;
const DROP_EVERY: Duration = Duration::from_millis(1);

/// How much longer than meant a key of another client may live.
const FOREIGN_LIVES_ON: Duration = Duration::from_secs(1);

/// What the other client does, in one change.
const WRITE_FOREIGN: &str = "redis.call('DEL',KEYS[1]) redis.call('HSET',KEYS[1],'field','value') \
     redis.call('PEXPIRE',KEYS[1],ARGV[1])";

/// For how long the servers are up at the begin of a schedule.
const UP_FOR: Duration = Duration::from_secs(3_600);

/// The script of renewals, by its digest and by its text. A quorum loads its text without executing it.
static RENEWAL: LazyLock<[String; 2]> = LazyLock::new(|| {
    let text = leasehold::seam::script("renew");
    let digest = sha1_smol::Sha1::from(text).digest().to_string();
    [digest, format!("EVAL\r\n${}\r\n{text}", text.len())]
});

/// Servers of schedules that are over. A new one would compile all scripts again. The next schedule restarts them without
/// their data.
static IDLE_SERVERS: Mutex<Vec<MemoryServer>> = Mutex::new(Vec::new());

/// Which connection, and whether to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flow {
    connection: u64,
    is_up: bool,
}

pub(crate) struct Network {
    pub(crate) servers: Vec<SimulatedServer>,
    /// Until when the link between a process and a server is blocked.
    blocked: BTreeMap<(usize, usize), Duration>,
    /// What the links of a process lose, by what it uses them for.
    losses: BTreeMap<(usize, Role), Losses>,
    /// The servers that learn of no failover.
    pub(crate) cut_off: BTreeSet<usize>,
    /// What the links between a process and a server lose.
    losses_at: BTreeMap<(usize, usize), Losses>,
    /// The server to which the address of another one leads.
    pub(crate) leads_to: BTreeMap<usize, usize>,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    /// How often a server has lost data of a name, or a replica that may lack some has become its master.
    pub(crate) data_losses: BTreeMap<&'static str, u64>,
    /// The longest time that a request was on its way.
    longest_way: Duration,
    bug: Option<Bug>,
    /// The masters with their replicas. Empty if the servers have none.
    pub(crate) groups: Vec<Group>,
    pub(crate) links: Links,
    /// The slots, if the servers are a cluster.
    pub(crate) cluster: Option<Cluster>,
    /// Whether a lock that counts is on each replica, and the servers have one time.
    pub(crate) is_kept_by_replicas: bool,
}

/// What a process uses a connection for, as its first request shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It publishes an empty message, to see whether it may, and then subscribes.
    Listener,
    /// It renews leases, or none, so that the server loads the script.
    Renewal,
    /// Anything else. On a quorum there is no other role, because each connection first asks about the server.
    Pool,
}

/// What the links of a process lose from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFault {
    LoseRequests,
    LoseAnswers,
    /// Both, and nobody learns of it.
    LoseAll,
    /// Each connection is reset at once, and a new one at its first request.
    Reset,
    /// The same, but the connection is closed.
    Close,
    /// Both requests and answers are lost, and the server learns that the connection has ended. The process learns it
    /// after the fault, at its next request.
    HalfOpen,
    /// Each piece takes so much longer.
    Late(Duration),
    /// Bytes come in small pieces.
    Drip,
}

struct Losses {
    fault: LinkFault,
    /// How many pieces were lost or late, and connections ended.
    count: u64,
}

pub(crate) struct SimulatedServer {
    pub(crate) server: MemoryServer,
    pub(crate) clock: Clock,
    pub(crate) stalled_until: Duration,
    pub(crate) down_until: Duration,
    /// The master, if it is a replica.
    pub(crate) follows: Option<usize>,
    /// The epoch of the master that it names, if it is a sentinel. Otherwise 0.
    pub(crate) knows_epoch: u64,
    /// When it looks for each `WAIT` whose time is over.
    pub(crate) looks_at: Option<Duration>,
    /// How many writes it has received whole.
    pub(crate) received: u64,
    /// How often a process has tried to connect.
    pub(crate) connects: u64,
    /// What it says to each new client before it closes the connection. `None` if it admits clients.
    pub(crate) greeting: Option<&'static [u8]>,
    restarts: u64,
    /// When it was last up again without its data.
    lost_data_at: Option<Duration>,
    /// When it last evicted a key, or its clock jumped ahead and ended keys early.
    lost_keys_at: Option<Duration>,
    /// Until when keys live longer than they may, because its clock was set back.
    lengthens_until: Duration,
}

/// A connection, until its process has closed it.
struct Connection {
    process: usize,
    server: usize,
    /// `None` before its first request.
    role: Option<Role>,
    /// The server's number of it. `None` after the server has ended it.
    at_server: Option<u64>,
    up: Pieces,
    down: Pieces,
    inbox: VecDeque<u8>,
    end: Option<End>,
    is_dead: bool,
    /// Whether the server has ended it, and the process does not know that.
    is_half_open: bool,
    /// Until when nothing arrives at the server.
    late_until: Duration,
}

/// How a connection has ended for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Reset,
}

/// The pieces that are on their way in one direction.
#[derive(Default)]
struct Pieces {
    waiting: VecDeque<WaitingPiece>,
    last: Duration,
    /// Whether bytes were lost, so that none behind them arrive either.
    has_gap: bool,
}

struct WaitingPiece {
    sent: Duration,
    /// When it arrives, if nothing is in its way.
    at: Duration,
    piece: Piece,
}

enum Piece {
    /// Bytes, and whether they are the last of one write.
    Bytes(Vec<u8>, bool),
    End,
}

/// The end of a stream that a process has.
pub(crate) struct ProcessEnd {
    world: Arc<World>,
    number: u64,
}

impl Network {
    pub(crate) fn new(clocks: Vec<Clock>, links: Links, bug: Option<Bug>) -> Self {
        let server = |(number, clock)| SimulatedServer::new(number, clock);
        Self {
            servers: clocks.into_iter().enumerate().map(server).collect(),
            blocked: BTreeMap::new(),
            losses: BTreeMap::new(),
            cut_off: BTreeSet::new(),
            losses_at: BTreeMap::new(),
            leads_to: BTreeMap::new(),
            connections: BTreeMap::new(),
            next_connection: 0,
            data_losses: BTreeMap::new(),
            longest_way: Duration::ZERO,
            bug,
            groups: Vec::new(),
            links,
            cluster: None,
            is_kept_by_replicas: false,
        }
    }

    /// Returns whether a request has arrived about a lease after it was sent, or later. The clocks of processes drift.
    pub(crate) fn was_late(&self, lease: Duration) -> bool {
        self.longest_way >= lease * 9 / 10
    }

    /// Returns the longest time that a request was on its way.
    pub(crate) fn longest_way(&self) -> Duration {
        self.longest_way
    }

    /// Keeps the servers for the next schedule. Nothing happens on the network any more.
    pub(crate) fn end(&mut self) {
        let servers = self.servers.drain(..).map(|server| server.server);
        locked(&IDLE_SERVERS).extend(servers);
    }

    /// Returns a number that no other stream has.
    pub(crate) fn next_stream(&mut self) -> u64 {
        self.next_connection += 1;
        self.next_connection - 1
    }

    /// Returns the group that has the key of a name, and the one to which the key moves.
    pub(crate) fn groups_of(&self, name: &str) -> Vec<usize> {
        match &self.cluster {
            Some(cluster) => {
                let (group, other) = cluster.groups_of(name);
                [group].into_iter().chain(other).collect()
            }
            None => vec![0],
        }
    }

    /// Returns the server that has the key of a name, and the one to which the key moves. On a quorum there are several.
    pub(crate) fn masters_of(&self, name: &str) -> Vec<usize> {
        let master = |group: usize| self.groups.get(group).map_or(0, |group| group.master);
        self.groups_of(name).into_iter().map(master).collect()
    }

    /// Notes that data of names may be lost.
    pub(crate) fn loses_data_of(&mut self, names: impl IntoIterator<Item = &'static str>) {
        for name in names {
            *self.data_losses.entry(name).or_default() += 1;
        }
    }

    /// Returns how often data of a name was lost.
    pub(crate) fn data_losses_of(&self, name: &str) -> u64 {
        self.data_losses.get(name).copied().unwrap_or_default()
    }

    /// Returns the servers to which another client writes a key of a name: on a quorum this one.
    pub(crate) fn servers_of(&self, name: &str, server: usize) -> Vec<usize> {
        if self.groups.is_empty() {
            vec![server]
        } else {
            self.masters_of(name)
        }
    }

    /// Returns the servers whose keys count, and how many of them must have a lock.
    pub(crate) fn deciding(&self) -> (Vec<usize>, usize) {
        if self.groups.is_empty() {
            let count = self.servers.len();
            return ((0..count).collect(), count / 2 + 1);
        }
        let masters = self.groups.iter().map(|group| group.master);
        (masters.collect(), 1)
    }

    /// Returns whether a fence may be older than a loss of data or keys, and its lease may go on at `at`.
    pub(crate) fn is_of_before_a_loss(&self, fence: u64, at: Duration, lease: Duration) -> bool {
        let granted_at = Duration::from_micros(fence);
        self.servers.iter().any(|server| {
            let lost_at = server.lost_data_at.max(server.lost_keys_at);
            lost_at.is_some_and(|lost_at| {
                granted_at <= server.clock.read(lost_at) && at <= lost_at + lease
            })
        })
    }

    /// Returns until when nothing arrives on the way of a flow, if that is later than `now`.
    fn obstacle(
        &self,
        process: usize,
        server: usize,
        is_up: bool,
        now: Duration,
    ) -> Option<Duration> {
        let blocked = self.blocked.get(&(process, server)).copied();
        let stalled = is_up.then(|| self.servers[server].stalled_until);
        blocked
            .into_iter()
            .chain(stalled)
            .max()
            .filter(|until| *until > now)
    }
}

impl Role {
    const ALL: [Self; 3] = [Self::Listener, Self::Renewal, Self::Pool];

    fn of(first_request: &[u8]) -> Self {
        let text = String::from_utf8_lossy(first_request);
        if first_request.starts_with(b"*3\r\n$7\r\nPUBLISH\r\n") {
            Self::Listener
        } else if RENEWAL.iter().any(|script| text.contains(script)) {
            Self::Renewal
        } else {
            Self::Pool
        }
    }
}

impl SimulatedServer {
    pub(crate) fn new(number: usize, clock: Clock) -> Self {
        let began = clock.read(Duration::ZERO).saturating_sub(UP_FOR);
        let idle = locked(&IDLE_SERVERS).pop();
        let server = match idle {
            None => MemoryServer::start(run_id(number, 0), began),
            Some(mut server) => {
                server.restart_empty(run_id(number, 0), began);
                server
            }
        };
        Self {
            server,
            clock,
            stalled_until: Duration::ZERO,
            down_until: Duration::ZERO,
            follows: None,
            knows_epoch: 0,
            looks_at: None,
            received: 0,
            connects: 0,
            greeting: None,
            restarts: 0,
            lost_data_at: None,
            lost_keys_at: None,
            lengthens_until: Duration::ZERO,
        }
    }

    /// Returns whether it has lost its data so lately that no process counts its vote, if it is a node of a quorum.
    pub(crate) fn may_not_vote(&self, now: Duration) -> bool {
        let lost_at = self.lost_data_at;
        lost_at.is_some_and(|lost_at| now < lost_at + RESTART_DELAY)
    }

    /// Returns whether it is a master.
    pub(crate) fn leads(&self) -> bool {
        self.follows.is_none() && !self.is_sentinel()
    }

    fn is_sentinel(&self) -> bool {
        self.knows_epoch > 0
    }

    pub(crate) fn stalls(&self, now: Duration) -> bool {
        self.stalled_until > now
    }

    /// Returns the owners that have a lock here, each with the time that its lease lasts, in true time. The server counts in
    /// milliseconds, and a key lives through its last one.
    pub(crate) fn leases(&mut self, name: &str, now: Duration) -> Vec<(String, Duration)> {
        let time = self.clock.read(now);
        let entries = self.server.state().entries(name.as_bytes(), time);
        let lease = |(entry, ends_at): (Vec<u8>, i64)| {
            let entry = String::from_utf8_lossy(&entry).into_owned();
            // `=of` and `=used` are counts. What `min_hold` keeps belongs to nobody any more.
            let owner = entry.split(' ').next_back()?;
            let owner = owner.strip_suffix('!').unwrap_or(owner);
            let ends_at = Duration::from_millis(u64::try_from(ends_at).ok()? + 1);
            let left = ends_at.saturating_sub(time);
            (!owner.ends_with('~')).then(|| (owner.to_owned(), self.clock.true_length(left)))
        };
        entries.into_iter().filter_map(lease).collect()
    }

    /// Executes a command at once, as an operator on the machine of the server does. Returns the words of the answer.
    pub(crate) fn execute(&mut self, command: &[&str], now: Duration) -> Vec<String> {
        let answer = self.server.execute(command, self.clock.read(now));
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let is_data = |line: &&str| !line.starts_with(['*', '$']);
        answer.lines().filter(is_data).map(str::to_owned).collect()
    }

    /// Sets the clock forward.
    pub(crate) fn jump(&mut self, now: Duration, by: Duration) {
        self.clock.jump(now, by);
        self.lost_keys_at = Some(now);
    }

    /// Notes that keys are lost until then.
    pub(crate) fn loses_keys(&mut self, at: Duration) {
        self.lost_keys_at = self.lost_keys_at.max(Some(at));
    }

    /// Sets the clock back. Returns until when its keys live longer than they may: each time lengthens a key once more.
    pub(crate) fn set_back(&mut self, now: Duration, by: Duration) -> Duration {
        self.clock.set_back(now, by);
        self.lengthens_until = self.lengthens_until.max(now) + by;
        self.lengthens_until
    }
}

impl WorldState {
    fn delay(&mut self) -> Duration {
        if self.random.one_in(200) && self.now < self.healed_at {
            self.random.length(LONG_DELAY)
        } else {
            self.random.length(DELAY)
        }
    }

    /// Sends a piece.
    fn send(&mut self, flow: Flow, piece: Piece) {
        let now = self.now;
        let delay = self.delay();
        let (late, apart) = match self.fault_of(flow.connection) {
            Some(LinkFault::Late(by)) => (by, Duration::ZERO),
            Some(LinkFault::Drip) => (Duration::ZERO, DROP_EVERY),
            _ => (Duration::ZERO, Duration::ZERO),
        };
        let Some(connection) = self.network.connections.get_mut(&flow.connection) else {
            return;
        };
        let pieces = connection.pieces(flow.is_up);
        pieces.last = (pieces.last + apart).max(now + delay + late);
        let at = pieces.last;
        pieces.waiting.push_back(WaitingPiece {
            sent: now,
            at,
            piece,
        });
        if pieces.waiting.len() == 1 {
            self.plan(at.saturating_sub(now), Event::Arrival(flow));
        }
    }

    /// Sends bytes, perhaps in several pieces.
    fn send_bytes(&mut self, flow: Flow, mut bytes: Vec<u8>) {
        if self.fault_of(flow.connection) == Some(LinkFault::Drip) {
            let mut drops = bytes.chunks(bytes.len().div_ceil(DROPS)).peekable();
            while let Some(drop) = drops.next() {
                self.send(flow, Piece::Bytes(drop.to_vec(), drops.peek().is_none()));
            }
            return;
        }
        while bytes.len() > 1 && self.random.one_in(8) {
            let rest = bytes.split_off(self.random.within(1..bytes.len() as u64) as usize);
            self.send(flow, Piece::Bytes(bytes, false));
            bytes = rest;
        }
        self.send(flow, Piece::Bytes(bytes, true));
    }

    /// Has the next piece of a flow arrive, unless something is in its way.
    pub(crate) fn arrive(&mut self, flow: Flow) {
        let now = self.now;
        let Some(connection) = self.network.connections.get(&flow.connection) else {
            return;
        };
        let (process, server) = (connection.process, connection.server);
        let late_until = Some(connection.late_until).filter(|until| flow.is_up && *until > now);
        let obstacle = self.network.obstacle(process, server, flow.is_up, now);
        if let Some(until) = obstacle.max(late_until) {
            self.plan(until.saturating_sub(now), Event::Arrival(flow));
            return;
        }
        let Some(connection) = self.network.connections.get_mut(&flow.connection) else {
            return;
        };
        let (is_dead, is_half_open) = (connection.is_dead, connection.is_half_open);
        let at_server = connection.at_server;
        let pieces = connection.pieces(flow.is_up);
        // The event may be that of a piece that was lost.
        if pieces.waiting.front().is_none_or(|first| first.at > now) {
            return;
        }
        let Some(WaitingPiece { sent, piece, .. }) = pieces.waiting.pop_front() else {
            return;
        };
        let is_behind_a_gap = pieces.has_gap && matches!(piece, Piece::Bytes(..));
        if let Some(next) = pieces.waiting.front() {
            let wait = next.at.saturating_sub(now);
            self.plan(wait, Event::Arrival(flow));
        }
        if is_dead || self.loses(flow) || is_behind_a_gap {
            return;
        }
        if flow.is_up {
            let longest = &mut self.network.longest_way;
            *longest = now.saturating_sub(sent).max(*longest);
        }
        match (flow.is_up, piece) {
            (true, Piece::Bytes(bytes, is_last)) => {
                let Some(at_server) = at_server else {
                    if is_half_open {
                        self.end_at_process(flow.connection, End::Reset);
                    }
                    return;
                };
                let number = flow.connection;
                let way = format_args!("{process} to {server}, connection {number}");
                self.trace.note_bytes(now, way, &bytes);
                let receiver = &mut self.network.servers[server];
                receiver.received += u64::from(is_last);
                let time = receiver.clock.read(now);
                receiver.server.receive(at_server, &bytes, time);
                self.server_has_run(server);
            }
            (true, Piece::End) => self.end_at_server(flow.connection),
            (false, Piece::Bytes(bytes, _)) => {
                let number = flow.connection;
                let way = format_args!("{server} to {process}, connection {number}");
                self.trace.note_bytes(now, way, &bytes);
                if let Some(connection) = self.network.connections.get_mut(&flow.connection) {
                    connection.inbox.extend(bytes);
                }
                self.wake_reader(flow.connection);
            }
            (false, Piece::End) => self.end_at_process(flow.connection, End::Closed),
        }
    }

    /// Returns what the link of a connection loses.
    fn fault_of(&self, connection: u64) -> Option<LinkFault> {
        let connection = self.network.connections.get(&connection)?;
        let at = (self.network.losses_at).get(&(connection.process, connection.server));
        let losses = match at {
            Some(losses) => losses,
            None => (self.network.losses).get(&(connection.process, connection.role?))?,
        };
        Some(losses.fault)
    }

    /// Returns whether the link loses the next piece of a flow, and notes that.
    fn loses(&mut self, flow: Flow) -> bool {
        let Some(fault) = self.fault_of(flow.connection) else {
            return false;
        };
        let (is_lost, is_struck) = match fault {
            LinkFault::LoseRequests => (flow.is_up, flow.is_up),
            LinkFault::LoseAnswers => (!flow.is_up, !flow.is_up),
            LinkFault::Late(_) | LinkFault::Drip => (false, true),
            LinkFault::LoseAll | LinkFault::Reset | LinkFault::Close | LinkFault::HalfOpen => {
                (true, true)
            }
        };
        if is_struck {
            self.strike(flow.connection, fault);
        }
        if let Some(connection) = self.network.connections.get_mut(&flow.connection) {
            // The server answers by a reset on a connection that it has ended.
            connection.pieces(flow.is_up).has_gap |= is_lost && fault != LinkFault::HalfOpen;
        }
        is_lost
    }

    /// Notes that a fault strikes a connection, which it may end.
    fn strike(&mut self, number: u64, fault: LinkFault) {
        let connection = self.network.connections.get(&number);
        let at = connection.map(|it| (it.process, it.server));
        let link = connection.and_then(|it| Some((it.process, it.role?)));
        let at = at.and_then(|at| self.network.losses_at.get_mut(&at));
        let of_role = link.and_then(|link| self.network.losses.get_mut(&link));
        if let Some(losses) = at.or(of_role) {
            losses.count += 1;
        }
        let end = match fault {
            LinkFault::Reset => Some(End::Reset),
            LinkFault::Close => Some(End::Closed),
            LinkFault::HalfOpen => None,
            _ => return,
        };
        if let Some(connection) = self.network.connections.get_mut(&number) {
            connection.is_half_open = end.is_none();
        }
        self.end_at_server(number);
        if let Some(end) = end {
            self.end_at_process(number, end);
        }
    }

    /// Makes the links that a process uses for something, or all of them, lose something, or no longer.
    pub(crate) fn lose(&mut self, process: usize, role: Option<Role>, fault: Option<LinkFault>) {
        let meant = |its: &Role| role.is_none_or(|role| role == *its);
        for role in Role::ALL.into_iter().filter(meant) {
            let Some(fault) = fault else {
                self.network.losses.remove(&(process, role));
                continue;
            };
            (self.network.losses).insert((process, role), Losses { fault, count: 0 });
            if matches!(
                fault,
                LinkFault::Reset | LinkFault::Close | LinkFault::HalfOpen
            ) {
                for number in self.numbers(|it| it.process == process && it.role == Some(role)) {
                    self.strike(number, fault);
                }
            }
        }
    }

    /// Returns how much such links of a process have lost since then.
    pub(crate) fn lost_by(&self, process: usize, role: Option<Role>) -> u64 {
        let of_process = self
            .network
            .losses
            .range((process, Role::Listener)..=(process, Role::Pool));
        let meant = of_process.filter(|((_, its), _)| role.is_none_or(|role| role == *its));
        meant.map(|(_, losses)| losses.count).sum()
    }

    /// Makes the links between a process and a server lose something. Without a fault they are whole again, but not the
    /// connections of which something may be lost: these end.
    pub(crate) fn lose_at(&mut self, process: usize, server: usize, fault: Option<LinkFault>) {
        let Some(fault) = fault else {
            self.network.losses_at.remove(&(process, server));
            for number in
                self.numbers(|it| it.process == process && it.server == server && it.end.is_none())
            {
                self.cut_connection(number);
            }
            return;
        };
        let losses = Losses { fault, count: 0 };
        self.network.losses_at.insert((process, server), losses);
        if matches!(
            fault,
            LinkFault::Reset | LinkFault::Close | LinkFault::HalfOpen
        ) {
            for number in self.numbers(|it| it.process == process && it.server == server) {
                self.strike(number, fault);
            }
        }
    }

    /// Returns how much the links between a process and a server have lost since then.
    pub(crate) fn lost_at(&self, process: usize, server: usize) -> u64 {
        let losses = self.network.losses_at.get(&(process, server));
        losses.map_or(0, |losses| losses.count)
    }

    /// Makes all servers and links do their work again.
    pub(crate) fn heal_all(&mut self) {
        self.network.losses.clear();
        self.network.losses_at.clear();
        for server in 0..self.network.servers.len() {
            let its = &mut self.network.servers[server];
            let (is_down, stalls) = (its.down_until > self.now, its.stalls(self.now));
            its.greeting = None;
            its.server.state().refuse(None);
            if is_down {
                self.restart(server, self.now, true);
                self.network.servers[server].down_until = self.now;
            }
            if stalls {
                self.end_stall(server);
            }
        }
    }

    /// Ends the connections between a process and a server for the process alone. What it has sent still arrives.
    pub(crate) fn abandon(&mut self, process: usize, server: usize) {
        for number in self.numbers(|it| it.process == process && it.server == server) {
            self.end_at_process(number, End::Reset);
        }
    }

    /// Sends what a server has for its clients.
    pub(crate) fn send_output_of(&mut self, server: usize) {
        let with_output = self.network.servers[server].server.with_output();
        let its = self.network.connections.iter();
        let its = its.filter(|(_, connection)| connection.server == server);
        let its: Vec<_> = its
            .filter_map(|(number, it)| Some((*number, it.at_server?)))
            .filter(|(_, at_server)| with_output.contains(at_server))
            .collect();
        for (connection, at_server) in its {
            let flow = Flow {
                connection,
                is_up: false,
            };
            let server = &mut self.network.servers[server].server;
            if let Some(output) = server.take_output(at_server) {
                self.send_bytes(flow, output);
                continue;
            }
            if let Some(connection) = self.network.connections.get_mut(&connection) {
                connection.at_server = None;
            }
            self.send(flow, Piece::End);
        }
    }

    fn end_at_server(&mut self, number: u64) {
        let Some(connection) = self.network.connections.get_mut(&number) else {
            return;
        };
        if let Some(at_server) = connection.at_server.take() {
            self.network.servers[connection.server]
                .server
                .disconnect(at_server);
        }
        if connection.is_closed_by_process() {
            self.network.connections.remove(&number);
        }
    }

    fn end_at_process(&mut self, number: u64, end: End) {
        let Some(connection) = self.network.connections.get_mut(&number) else {
            return;
        };
        let process = connection.process;
        connection.end.get_or_insert(end);
        self.trace
            .note(self.now, format_args!("end of {number} at {process}"));
        self.wake_reader(number);
    }

    fn numbers(&self, is_meant: impl Fn(&Connection) -> bool) -> Vec<u64> {
        let all = self.network.connections.iter();
        let meant = all.filter(|(_, connection)| is_meant(connection));
        meant.map(|(number, _)| *number).collect()
    }

    /// Cuts the connections between a process and a server. Both sides notice.
    pub(crate) fn cut(&mut self, process: usize, server: usize) {
        for number in self.numbers(|it| it.process == process && it.server == server) {
            self.cut_connection(number);
        }
    }

    /// Cuts one of the connections of a process that are open: the first, the second, and so on, and then again the first.
    pub(crate) fn cut_one(&mut self, process: usize, which: usize) {
        let open = self.numbers(|it| it.process == process && it.end.is_none());
        if let Some(at) = which.checked_rem(open.len()) {
            self.cut_connection(open[at]);
        }
    }

    fn cut_connection(&mut self, number: u64) {
        self.end_at_server(number);
        let end = if self.random.one_in(2) {
            End::Reset
        } else {
            End::Closed
        };
        if let Some(connection) = self.network.connections.get_mut(&number) {
            connection.up.waiting.clear();
            connection.down.waiting.clear();
        }
        self.end_at_process(number, end);
    }

    /// Returns whether a process has connections that are dead, and has not noticed it.
    pub(crate) fn has_dead_connections(&self, process: usize) -> bool {
        let mut connections = self.network.connections.values();
        connections.any(|it| it.process == process && it.is_dead && it.end.is_none())
    }

    /// Has the connections between a process and a server die. Nobody notices before a while has passed.
    pub(crate) fn kill(&mut self, process: usize, server: usize) {
        for number in self.numbers(|it| it.process == process && it.server == server) {
            if let Some(connection) = self.network.connections.get_mut(&number) {
                connection.is_dead = true;
            }
            let noticed_after = self.random.length(DEAD_AFTER);
            let flow = Flow {
                connection: number,
                is_up: false,
            };
            self.plan(noticed_after, Event::DeathSeen(flow));
        }
    }

    /// Makes the open connections of a process dead. It notices that by itself, or not at all.
    pub(crate) fn forget(&mut self, process: usize) {
        for number in self.numbers(|it| it.process == process) {
            if let Some(connection) = self.network.connections.get_mut(&number) {
                connection.is_dead = true;
            }
        }
    }

    /// Has the requests on the open connections between a process and a server come late. Some of the connections have ended
    /// for the process by then.
    pub(crate) fn delay_requests(&mut self, process: usize, server: usize, until: Duration) {
        for number in self.numbers(|it| it.process == process && it.server == server) {
            if let Some(connection) = self.network.connections.get_mut(&number) {
                connection.late_until = until.max(connection.late_until);
            }
            if self.random.one_in(2) {
                self.end_at_process(number, End::Reset);
                let flow = Flow {
                    connection: number,
                    is_up: false,
                };
                let ends_after = until.saturating_sub(self.now) + SEEN_AFTER;
                self.plan(ends_after, Event::DeathSeen(flow));
            }
        }
    }

    /// Ends a dead connection on both sides.
    pub(crate) fn end_dead(&mut self, flow: Flow) {
        self.end_at_server(flow.connection);
        self.end_at_process(flow.connection, End::Reset);
    }

    pub(crate) fn block(&mut self, process: usize, server: usize, until: Duration) {
        let blocked = self.network.blocked.entry((process, server)).or_default();
        *blocked = until.max(*blocked);
    }

    pub(crate) fn unblock(&mut self, process: usize, server: usize) {
        self.network.blocked.remove(&(process, server));
        for connection in self.numbers(|it| it.process == process && it.server == server) {
            for is_up in [true, false] {
                self.plan(Duration::ZERO, Event::Arrival(Flow { connection, is_up }));
            }
        }
    }

    pub(crate) fn stall(&mut self, server: usize, until: Duration) {
        let stalled = &mut self.network.servers[server].stalled_until;
        *stalled = until.max(*stalled);
    }

    /// Ends the stall of a server.
    pub(crate) fn end_stall(&mut self, server: usize) {
        self.network.servers[server].stalled_until = self.now;
        for connection in self.numbers(|it| it.server == server && !it.up.waiting.is_empty()) {
            let flow = Flow {
                connection,
                is_up: true,
            };
            self.plan(Duration::ZERO, Event::Arrival(flow));
        }
        self.go_on_with_links_of(server);
    }

    /// Stops a server, which is up again at `until`, with its data or without.
    pub(crate) fn restart(&mut self, server: usize, until: Duration, has_data: bool) {
        for number in self.numbers(|it| it.server == server) {
            if let Some(connection) = self.network.connections.get_mut(&number) {
                connection.at_server = None;
                connection.up.waiting.clear();
            }
            let flow = Flow {
                connection: number,
                is_up: false,
            };
            self.send(flow, Piece::End);
        }
        self.end_links_of(server);
        let restarted = &mut self.network.servers[server];
        restarted.restarts += 1;
        let run_id = run_id(server, restarted.restarts);
        let up_at = restarted.clock.read(until);
        // A sentinel has its state in its configuration file.
        if has_data || restarted.is_sentinel() {
            restarted.server.restart(run_id, up_at);
        } else {
            restarted.server.restart_empty(run_id, up_at);
            if let Some(master) = restarted.follows {
                restarted.server.state().follow((host(master), PORT), up_at);
            } else {
                restarted.lost_data_at = Some(until);
                let groups = &self.network.groups;
                let group = groups
                    .iter()
                    .position(|group| group.members.contains(&server));
                let is_its = |name: &&str| {
                    group.is_none_or(|group| self.network.groups_of(name).contains(&group))
                };
                let names: Vec<_> = NAMES.into_iter().filter(is_its).collect();
                self.network.loses_data_of(names.iter().copied());
                // A node of a quorum may lose its data.
                if group.is_some() || self.network.servers.len() == 1 {
                    for name in names {
                        self.ends_beyond_the_assumptions(Some(name), until);
                    }
                }
            }
        }
        let restarted = &mut self.network.servers[server];
        restarted.down_until = until.max(restarted.down_until);
        self.restart_node(server, until);
    }

    /// Executes a command on a server at once, and returns the bytes of the answer.
    pub(crate) fn operate(&mut self, server: usize, command: &[&str]) -> Vec<u8> {
        let its = &mut self.network.servers[server];
        let answer = its.server.execute(command, its.clock.read(self.now));
        self.trace
            .note(self.now, format_args!("{command:?} at {server}"));
        self.server_has_run(server);
        answer
    }

    /// Executes a command on a server at once.
    pub(crate) fn execute(&mut self, server: usize, command: &[&str]) -> Vec<String> {
        let words = self.network.servers[server].execute(command, self.now);
        self.trace
            .note(self.now, format_args!("{command:?} at {server}: {words:?}"));
        words
    }

    /// Has a server evict a key. Returns false if it has none.
    pub(crate) fn evict(&mut self, server: usize) -> bool {
        let mut keys = self.execute(server, &["KEYS", "*"]);
        if keys.is_empty() {
            return false;
        }
        keys.sort();
        let key = keys.swap_remove(self.random.index(keys.len()));
        self.execute(server, &["DEL", &key]);
        let evicting = &mut self.network.servers[server];
        evicting.lost_keys_at = Some(self.now);
        let its = NAMES.into_iter().filter(|name| name_of(&key) == Some(name));
        self.network.loses_data_of(its);
        self.ends_beyond_the_assumptions(name_of(&key), self.now);
        self.evictions.push((self.now, key));
        true
    }

    /// Returns whether a key of a lock was evicted, or overwritten by another client.
    pub(crate) fn has_lost_a_key(&self, name: &str) -> bool {
        (self.evictions.iter()).any(|(_, key)| name_of(key) == Some(name))
    }

    /// Has another client write a hash under a key of a lock.
    pub(crate) fn write_foreign(&mut self, key: &str, server: usize, length: Duration) {
        let name = name_of(key).expect("a key of a lock");
        for server in self.network.servers_of(name, server) {
            // A failover may lose the end of it.
            let at_most_ms = (length + FOREIGN_LIVES_ON).as_millis().to_string();
            self.operate(server, &["EVAL", WRITE_FOREIGN, "1", key, &at_most_ms]);
            self.network.servers[server].lost_keys_at = Some(self.now);
        }
        self.ends_beyond_the_assumptions(Some(name), self.now);
        self.evictions.push((self.now, key.to_owned()));
    }

    /// Has the other client delete what it has written.
    pub(crate) fn delete_foreign(&mut self, key: &str, server: usize) {
        let name = name_of(key).expect("a key of a lock");
        for server in self.network.servers_of(name, server) {
            if self.execute(server, &["TYPE", key]) == ["+hash"] {
                self.operate(server, &["DEL", key]);
            }
        }
    }

    /// Ends the connections of a process that has crashed.
    pub(crate) fn end_connections_of(&mut self, process: usize) {
        for number in self.numbers(|it| it.process == process) {
            self.end_at_server(number);
            self.end_at_process(number, End::Reset);
        }
    }

    /// Notes that a process closes a stream, or has dropped it.
    fn close(&mut self, number: u64, is_dropped: bool) {
        let Some(connection) = self.network.connections.get_mut(&number) else {
            return;
        };
        let is_open = connection.end.is_none();
        connection.end.get_or_insert(End::Closed);
        if is_dropped && connection.at_server.is_none() {
            self.network.connections.remove(&number);
        } else if is_open {
            let flow = Flow {
                connection: number,
                is_up: true,
            };
            self.send(flow, Piece::End);
        }
    }
}

/// Replaces a text by another one of its length.
fn replace(bytes: &mut [u8], from: &str, to: &str) {
    let at = bytes
        .windows(from.len())
        .position(|window| window == from.as_bytes());
    if let Some(at) = at {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
}

/// Returns the name of the lock to which a key belongs, or `None` if it belongs to none.
pub(crate) fn name_of(key: &str) -> Option<&str> {
    match key.strip_prefix('{') {
        Some(rest) => rest.split('}').next(),
        None => Some(key).filter(|key| !key.starts_with("leasehold:")),
    }
}

/// Returns the host of a server, whose port is always the same.
pub(crate) fn host(server: usize) -> String {
    format!("10.0.0.{}", server + 1)
}

/// Returns the server at an address: the path of a Unix socket, or a host with a port.
pub(crate) fn server_at(address: &str) -> Option<usize> {
    if let Some(path) = address.strip_prefix('/') {
        return path.parse().ok();
    }
    let host = address.strip_suffix(&format!(":{PORT}"))?;
    host.strip_prefix("10.0.0.")?
        .parse::<usize>()
        .ok()?
        .checked_sub(1)
}

fn run_id(server: usize, restarts: u64) -> String {
    format!("{server:020x}{restarts:020x}")
}

impl Connection {
    fn pieces(&mut self, is_up: bool) -> &mut Pieces {
        if is_up { &mut self.up } else { &mut self.down }
    }

    fn is_closed_by_process(&self) -> bool {
        self.end.is_some() && self.inbox.is_empty()
    }
}

impl ProcessEnd {
    /// Connects a process to a server.
    pub(crate) fn connect(
        world: &Arc<World>,
        process: usize,
        server: usize,
        limit: Duration,
    ) -> io::Result<Self> {
        world.step();
        let (server, delay, obstacle, is_revived) = {
            let mut state = world.state();
            let server = *state.network.leads_to.get(&server).unwrap_or(&server);
            let delay = state.delay() * 2;
            let obstacle = state.network.obstacle(process, server, false, state.now);
            (
                server,
                delay,
                obstacle.is_some(),
                state.processes[process].is_revived,
            )
        };
        if obstacle || delay > limit {
            world.wait(Place::Nowhere, Some(limit));
            return Err(io::ErrorKind::TimedOut.into());
        }
        world.wait(Place::Nowhere, Some(delay));
        let mut state = world.state();
        let state = &mut *state;
        let now = state.now;
        let Some(accepting) = state.network.servers.get_mut(server) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        accepting.connects += 1;
        if is_revived || accepting.down_until > now {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let greeting = accepting.greeting;
        let at_server = greeting.is_none().then(|| accepting.server.connect());
        let number = state.network.next_stream();
        let connection = Connection {
            process,
            server,
            role: None,
            at_server,
            up: Pieces::default(),
            down: Pieces::default(),
            inbox: VecDeque::new(),
            end: None,
            is_dead: false,
            is_half_open: false,
            late_until: Duration::ZERO,
        };
        state.network.connections.insert(number, connection);
        state
            .trace
            .note(now, format_args!("{process} connects to {server}"));
        if let Some(greeting) = greeting {
            let flow = Flow {
                connection: number,
                is_up: false,
            };
            state.send(flow, Piece::Bytes(greeting.to_vec(), true));
            state.send(flow, Piece::End);
        }
        Ok(Self {
            world: Arc::clone(world),
            number,
        })
    }
}

impl TestStream for ProcessEnd {
    fn number(&self) -> u64 {
        self.number
    }

    fn has_input(&self) -> bool {
        let state = self.world.state();
        let connection = state.network.connections.get(&self.number);
        connection.is_none_or(|it| it.end.is_some() || !it.inbox.is_empty())
    }

    fn read_now(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        self.world.step();
        let mut state = self.world.state();
        let Some(connection) = state.network.connections.get_mut(&self.number) else {
            return Ok(Some(0));
        };
        let length = connection.inbox.len().min(to.len());
        if length > 0 {
            connection.inbox.read_exact(&mut to[..length])?;
            return Ok(Some(length));
        }
        match connection.end {
            None => Ok(None),
            Some(End::Closed) => Ok(Some(0)),
            Some(End::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    fn write_now(&self, from: &[u8]) -> io::Result<usize> {
        self.world.step();
        let mut state = self.world.state();
        let connection = state.network.connections.get_mut(&self.number);
        let Some(connection) = connection.filter(|it| it.end.is_none()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        connection.role.get_or_insert_with(|| Role::of(from));
        let is_part = from.len() > 1 && state.random.one_in(16);
        let length = if is_part {
            state.random.within(1..from.len() as u64) as usize
        } else {
            from.len()
        };
        let flow = Flow {
            connection: self.number,
            is_up: true,
        };
        let mut bytes = from[..length].to_vec();
        if let Some((right, wrong)) = state.network.bug.and_then(Bug::of_script) {
            replace(&mut bytes, right, wrong);
        }
        state.send_bytes(flow, bytes);
        Ok(length)
    }
}

impl Drop for ProcessEnd {
    fn drop(&mut self) {
        self.world.state().close(self.number, true);
    }
}

impl fmt::Debug for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProcessEnd").field(&self.number).finish()
    }
}
