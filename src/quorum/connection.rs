//! The connections of a call, one to each node, and the round that it does over them.
//!
//! # A connection
//!
//! Several requests may be on their way, so a caller need not wait for an answer that it does not need. A server answers
//! its commands in their order. So a connection notes which commands have no answer yet, and which of these answers are
//! *late*: their round has ended, and nobody waits for them. Late answers are dropped when they come, and none is taken for
//! the answer to a later command. So a release that follows an acquire on the same connection is executed after it,
//! whether or not the acquire was answered. A vote in a late answer must count although nobody waits for it any more, so
//! votes are noted here too ([`About`]).
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | idle | commands are written | asked |
//! | idle | before the next use anything is unread: the end of the connection, or all or a part of an answer | closed |
//! | asked | an answer that is not the last | asked |
//! | asked | the last answer | idle |
//! | asked | `NOSCRIPT`: the server does not know the digest of a script | asked: this command and those after it are written again, with the texts of their scripts. The answers to the first copies are late |
//! | asked | the round ends | late |
//! | late | the last answer: it is dropped | idle |
//! | late | commands are written: a release must follow its acquire | asked; the late answers come first |
//! | late | before the next use the oldest answer is overdue | closed |
//! | any | the socket fails | closed: nothing more is read or written |
//! | closed | before the next use there is a spare connection, made in the background ([`super::node`]) | idle |
//!
//! A new connection asks the server which process it is, for how long it has been up, and whether it is a master. The same
//! write loads the scripts, and notes the restart delay.
//!
//! # A round
//!
//! 1. Connections that are closed are replaced. With connections to a majority the round goes on at once, but for the
//!    table below. With fewer it waits for half of its time, if the connects under way could still make a majority.
//!    Otherwise it asks the few at once.
//! 2. The request is written to each node, before any answer is read. A node that is down, has no connection, or has too
//!    many answers missing, is skipped.
//! 3. The answers are read as they come, so a node that fails or hangs delays no answer of another. After each of them the
//!    caller says whether it has enough. Nodes that are alike answer at almost the same time, and to wake a thread takes
//!    longer than to read an answer. So the thread first waits, for at most a millisecond, for the answer that is probably
//!    the last that it needs.
//! 4. If the result is certain, the round waits for the other nodes, as this table says.
//! 5. A node that does not answer for `node_timeout` is down, unless it shows that it is well ([`super::node`]).
//!
//! *A grace* is as long as the majority took: at least `node_timeout / 200`, at most `node_timeout / 4`. So a node that
//! hangs costs each caller little, until it is down. A connect is waited for until it has taken `node_timeout / 4`, so that
//! the first locks of a program get the votes of all nodes. An extension waits for `node_timeout`, because the lease may need
//! the vote of that node. The renewal thread waits for no connect if it has a majority, because it renews again soon.
//!
//! | the round | with a majority a call waits for connects | with a certain result it waits for answers |
//! | --- | --- | --- |
//! | asks for a lock | yes | for a grace |
//! | renews | yes, for longer | for the whole `node_timeout`: each node moves its own vote |
//! | repeats a release of which the result is certain | no | for `node_timeout / 4` |
//! | any other | yes | for `node_timeout / 4`, if it wants more answers |

use std::collections::VecDeque;
use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;

use crate::error::{Failure, FailureKind, Outcome};
use crate::net::deadline::{Deadline, Phase};
use crate::net::login;
use crate::net::pool::Pool;
use crate::net::socket::{Socket, TransportError};
use crate::quorum::QuorumState;
use crate::quorum::node::Admission;
use crate::quorum::votes::ConnectionId;
use crate::sys::net::readable;
use crate::sys::{Arc, Ordering, Time, Weak};
use crate::wire::{Command, quorum as node_request};

/// The largest number of answers that may be missing on a connection before it is left out.
const MOST_MISSING: usize = 32;
/// After this pause a connection on which answers are late looks for them before it is used. An idle one always looks.
const LOOKS_AFTER: Duration = Duration::from_millis(10);
/// The time limit of a read on a socket that has something to read. The operating system may be wrong about that.
pub(super) const READ_WITHIN: Duration = Duration::from_millis(1);
/// For how long a round waits for one answer alone.
const TOGETHER: Duration = Duration::from_millis(1);
/// The longest grace is `node_timeout` divided by this, and the shortest by the next.
const LONGEST_GRACE: u32 = 4;
const SHORTEST_GRACE: u32 = 200;

/// The vote that the answer to a command may change.
#[derive(Clone, Default)]
pub(super) enum About {
    #[default]
    Nothing,
    /// The end of this owner.
    End {
        owner: Arc<str>,
        /// The connection on which the node executes the end after every request for the lock, if there is one.
        asked_on: Option<ConnectionId>,
    },
    /// A request of this owner for the lock. Only a late answer is noted here.
    Ask {
        owner: Arc<str>,
        /// Whether the node may have the owner although it does not grant the lock: in its queue, or by a join.
        may_have_owner: bool,
    },
}

/// The commands of a round to one node, and what their answers are about.
pub(super) type Commands = Vec<(Command, About)>;

/// A connection to one node, and the commands on it that have no answer yet.
pub(super) struct Connection {
    pub(super) number: usize,
    /// `None` if the connection is closed.
    socket: Option<Socket>,
    /// The name of the connection that is open, or was open last.
    pub(super) id: ConnectionId,
    /// The number of the server's process to which it leads, or led last.
    pub(super) process: u32,
    /// The time limit of a write.
    write_within: Duration,
    /// In the order in which they were written.
    unanswered: VecDeque<Unanswered>,
    /// Why the last read has failed. It counts after the answers that came before.
    fault: Option<TransportError>,
    /// The time from the last request whose answer the caller waited for until it took that answer.
    took: Duration,
    pub(super) used: Time,
}

/// A command that has no answer yet, or has just been answered.
struct Unanswered {
    command: Command,
    sent: Time,
    /// Whether nobody waits for the answer.
    is_late: bool,
    about: About,
}

impl Connection {
    fn new(number: usize, socket: Option<Socket>, write_within: Duration) -> Self {
        Self {
            number,
            socket,
            id: ConnectionId::default(),
            process: 0,
            write_within,
            unanswered: VecDeque::new(),
            fault: None,
            took: Duration::ZERO,
            used: Time::now(),
        }
    }

    /// Connects to a node within `connect_timeout`, and asks the server what it is.
    pub(super) fn open(state: &QuorumState, number: usize) -> Result<Self, Failure> {
        let node = &state.nodes[number];
        let route = &node.route;
        let mut deadline = Deadline::after(route.connect_timeout);
        let mut socket = login::connect(route, &mut deadline)?;
        let info =
            ["server", "replication"].map(|section| Command::new("INFO").arg(section).to_owned());
        let restart_delay = state.note_restart_delay();
        let commands: Vec<_> = info
            .iter()
            .chain(node_request::load())
            .chain([&restart_delay])
            .collect();
        let sent = Time::now();
        let asked = socket.requests(commands.iter().copied(), deadline);
        let mut answers = asked.map_err(|fault| route.broken(fault))?;
        // A server may close the connection after one error.
        let has_all = answers.len() == commands.len();
        let noted = if has_all { answers.pop() } else { None };
        let noted = noted.unwrap_or(Value::Nil);
        let mut report = String::new();
        for answer in answers {
            if let Value::BulkString(bytes) = route.accepted(answer)? {
                report.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
        let process = state.identify(number, &report)?;
        state.compare_restart_delay(number, noted)?;
        node.heard(sent, Time::now());
        Ok(Self {
            id: ConnectionId(state.next_connection.fetch_add(1, Ordering::Relaxed)),
            process,
            ..Self::new(number, Some(socket), state.node_timeout)
        })
    }

    pub(super) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Returns whether this connection was closed. The node may execute a request on it at any later time.
    pub(super) fn is_closed(&self, id: ConnectionId) -> bool {
        !self.is_open() || self.id != id
    }

    /// Returns whether no answer is missing.
    pub(super) fn is_idle(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Returns whether the caller waits for an answer.
    fn is_asked(&self) -> bool {
        self.unanswered.iter().rev().any(|missing| !missing.is_late)
    }

    /// Returns whether an answer has been missing for this time.
    fn is_overdue(&self, after: Duration) -> bool {
        let oldest = self.unanswered.front();
        oldest.is_some_and(|oldest| Time::now().since(oldest.sent) >= after)
    }

    /// Returns the socket of a spare connection. If there is none, one is made in the background.
    ///
    /// # Errors
    ///
    /// Returns the reason why the node is down.
    pub(super) fn spare_socket(
        state: &QuorumState,
        number: usize,
    ) -> Result<Option<Socket>, Failure> {
        let mut spare = Self::new(number, None, state.node_timeout);
        spare.look(state, Recipients::All)?;
        Ok(spare.socket)
    }

    fn close(&mut self, state: &QuorumState) {
        (self.socket, self.fault) = (None, None);
        for missing in std::mem::take(&mut self.unanswered) {
            if let About::Ask { owner, .. } = missing.about {
                state.owners.note(&owner, self.number, |at_node| {
                    at_node.no_late_answer(self.id);
                });
            }
        }
    }

    /// Looks at the connection before a request: reads late answers, and closes the connection if its end has come. Takes a
    /// spare for a closed connection. If there is none, the connection stays closed, and one is made in the background.
    /// Returns whether the connection is open.
    ///
    /// # Errors
    ///
    /// Returns the reason why the node is not asked by such a request.
    pub(super) fn look(
        &mut self,
        state: &QuorumState,
        recipients: Recipients,
    ) -> Result<bool, Failure> {
        loop {
            let node = &state.nodes[self.number];
            let misses_many = self.unanswered.len() >= MOST_MISSING;
            let is_overdue = self.is_overdue(state.node_timeout);
            let is_long_ago = self.used.elapsed() >= LOOKS_AFTER;
            if self.is_idle() || is_long_ago || misses_many || is_overdue {
                // What a silent node still has to answer may come.
                let overdue_after = if is_overdue && node.is_silent() {
                    Duration::MAX
                } else {
                    state.node_timeout
                };
                self.read_late(state, overdue_after);
            }
            // The end of the connection may have shown that the node is down.
            match node.admit(self, recipients)? {
                Admission::Spare(spare) => *self = *spare,
                Admission::Renew => self.socket = None,
                Admission::Connect => {
                    state.begin_to_connect(self.number, |_| true);
                    return Ok(false);
                }
                Admission::Ask if self.unanswered.len() < MOST_MISSING => return Ok(true),
                Admission::Ask => {
                    let address = &node.route.server.address;
                    let words = format!("{address}: too many answers are missing");
                    let kind = FailureKind::Unavailable;
                    return Err(Failure::plain(kind, Outcome::NotExecuted, words));
                }
            }
        }
    }

    /// Reads and drops the late answers that have come. Closes the connection if it has failed, or an answer has been
    /// missing for `overdue_after`.
    fn read_late(&mut self, state: &QuorumState, overdue_after: Duration) {
        loop {
            match self.next_late(overdue_after) {
                Ok(Some((value, answered))) => {
                    self.heard(state, value, answered);
                }
                Ok(None) => return,
                Err(fault) => {
                    self.broken(state, fault);
                    return;
                }
            }
        }
    }

    /// Returns the next late answer, if it has come. If none is missing, nothing may be unread.
    fn next_late(
        &mut self,
        overdue_after: Duration,
    ) -> Result<Option<(Value, Unanswered)>, TransportError> {
        loop {
            if let Some(answer) = self.take()? {
                return Ok(Some(answer));
            }
            let Some(socket) = &mut self.socket else {
                return Ok(None);
            };
            if self.unanswered.is_empty() {
                return socket.look().map(|()| None);
            }
            if readable([socket.bytes()], Time::now())[0] {
                self.read();
            } else if self.is_overdue(overdue_after) {
                return Err(Phase::Request.timed_out().into());
            } else {
                return Ok(None);
            }
        }
    }

    /// Sends commands on an open connection. Their answers come from [`Self::answer`].
    fn send(&mut self, state: &QuorumState, commands: Commands) -> Result<(), Failure> {
        self.used = Time::now();
        let written = self.write(commands, false);
        written.map_err(|fault| self.broken(state, fault))
    }

    /// Sends a command for whose answer nobody waits. Does nothing if the connection is closed.
    pub(super) fn tell(&mut self, state: &QuorumState, command: Command, about: About) {
        if let Err(fault) = self.write([(command, about)], true) {
            self.broken(state, fault);
        }
    }

    fn write(
        &mut self,
        commands: impl IntoIterator<Item = (Command, About)>,
        is_late: bool,
    ) -> Result<(), TransportError> {
        let Some(socket) = &mut self.socket else {
            return Ok(());
        };
        let (sent, asked) = (Time::now(), self.unanswered.len());
        let unanswered = |(command, about)| Unanswered {
            command,
            sent,
            is_late,
            about,
        };
        self.unanswered.extend(commands.into_iter().map(unanswered));
        let new = self.unanswered.range(asked..).map(|new| &new.command);
        socket.send(new, &mut Deadline::after(self.write_within))
    }

    /// Returns the next answer that the caller waits for, if it was read.
    fn answer(&mut self, state: &QuorumState) -> Result<Option<Value>, Failure> {
        while self.is_asked() {
            let taken = self.take().map_err(|fault| self.broken(state, fault))?;
            let Some((value, answered)) = taken else {
                break;
            };
            if let Some(value) = self.heard(state, value, answered) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Returns the next answer that was read, and its command.
    fn take(&mut self) -> Result<Option<(Value, Unanswered)>, TransportError> {
        let Some(socket) = &mut self.socket else {
            return Ok(None);
        };
        let Some(value) = socket.take()? else {
            return self.fault.take().map_or(Ok(None), Err);
        };
        let Some(mut answered) = self.unanswered.pop_front() else {
            let words = "an answer without a command".to_owned();
            return Err(TransportError::Malformed(words));
        };
        // asked: `NOSCRIPT`. A text gets no such answer, so this happens once.
        if !answered.is_late && answered.command.is_by_digest() && is_no_script(&value) {
            let again: Vec<_> = std::iter::once(&mut answered)
                .chain(&mut self.unanswered)
                .filter(|first| !first.is_late)
                .map(|first| {
                    first.is_late = true;
                    (first.command.by_text(), std::mem::take(&mut first.about))
                })
                .collect();
            self.write(again, false)?;
        }
        Ok(Some((value, answered)))
    }

    /// Reads a piece of the answers.
    fn read(&mut self) {
        if let Some(socket) = &mut self.socket {
            match socket.read(&mut Deadline::after(READ_WITHIN)) {
                Err(fault) if !fault.is_timeout() => self.fault = Some(fault),
                _ => {}
            }
        }
    }

    /// Notes an answer. Returns it unless it is late.
    fn heard(&mut self, state: &QuorumState, value: Value, answered: Unanswered) -> Option<Value> {
        let (sent, now) = (answered.sent, Time::now());
        state.nodes[self.number].heard(sent, now);
        match answered.about {
            About::End { owner, asked_on } if node_request::released(&value).is_some() => {
                let is_ordered = asked_on == Some(self.id);
                state.owners.note(&owner, self.number, |vote| {
                    vote.confirm_end(is_ordered, sent, now);
                });
            }
            About::Ask {
                owner,
                may_have_owner,
            } if answered.is_late && !self.is_asked_again(&owner) => {
                let has_owner = may_have_owner || node_request::may_have_granted(&value);
                state.owners.note(&owner, self.number, |vote| {
                    vote.late_answer(self.id, has_owner, now);
                });
            }
            _ => {}
        }
        if answered.is_late {
            return None;
        }
        self.took = now.since(sent);
        Some(value)
    }

    /// Returns whether a later request of this owner is on its way here.
    fn is_asked_again(&self, owner: &str) -> bool {
        let is_of_owner =
            |about: &About| matches!(about, About::Ask { owner: asks, .. } if **asks == *owner);
        self.unanswered.iter().any(|it| is_of_owner(&it.about))
    }

    /// asked: the round ends. The answers that are missing are late from now on.
    fn give_up(&mut self) {
        for missing in &mut self.unanswered {
            missing.is_late = true;
        }
    }

    /// Stops waiting after `waited`, because the time is over. If that was `node_timeout`, and the node does not show that
    /// it is well, the node is down. The connection stays open, because the node executes the next request on it after
    /// this one.
    fn timed_out(&mut self, state: &QuorumState, waited: Duration) -> Failure {
        self.give_up();
        let timeout = Phase::Request.timed_out();
        let failure = state.nodes[self.number].route.broken(timeout.into());
        if waited >= state.node_timeout && self.seems_down(state) {
            state.note_down(self.number, &failure, true);
        }
        failure
    }

    /// Returns whether a command here has no answer, and the node does not show that it is well.
    fn seems_down(&self, state: &QuorumState) -> bool {
        self.unanswered.front().is_some_and(|oldest| {
            let heard_since = Time::now() - state.node_timeout / 2;
            !state.nodes[self.number].is_well(oldest.sent, heard_since)
        })
    }

    /// Ends the connection. If a request here has no answer, the server has not just closed the connection, and does not
    /// show that it is well, the node is down.
    fn broken(&mut self, state: &QuorumState, fault: TransportError) -> Failure {
        let is_closed = fault.is_closed();
        let failure = state.nodes[self.number].route.broken(fault);
        let seems_down = self.seems_down(state);
        self.close(state);
        // If the server is gone, the next connection is refused, and then the node is down.
        if !is_closed && seems_down {
            state.note_down(self.number, &failure, true);
        }
        failure
    }
}

/// Returns whether the server does not know the digest of a script.
fn is_no_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// A connection to each node, and the call that uses them.
pub(super) struct Connections {
    pub(super) state: Arc<QuorumState>,
    pub(super) each: Box<[Connection]>,
    /// When the call ends.
    pub(super) until: Time,
    /// The pool, if the renewal thread calls. It waits for no connect if it has a majority, and asks nodes to join.
    pub(super) renews_beside: Option<Weak<Pool<Connections>>>,
}

/// The nodes that a round asks, of those that are up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipients {
    All,
    /// The nodes that may vote.
    Voters,
    /// The nodes that may vote for a new owner.
    Granters,
    /// All, and the result is certain without them.
    Rest,
}

/// The verdict of a caller on the answers so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enough {
    No,
    /// The result is certain, but further answers would be of use.
    Certain,
    Yes,
}

impl Enough {
    /// Returns `Certain` if the result is certain.
    pub(super) fn certain_if(is_certain: bool) -> Self {
        if is_certain { Self::Certain } else { Self::No }
    }
}

/// A round whose requests are written.
struct Round<'a> {
    heard: &'a mut dyn FnMut(usize, Result<Value, Failure>) -> Enough,
    enough: Enough,
    begun: Time,
    until: Time,
    /// The times for which the round waits after a certain result: the least and the most.
    grace: (Duration, Duration),
}

impl Connections {
    pub(super) fn new(
        state: &Arc<QuorumState>,
        renews_beside: Option<Weak<Pool<Connections>>>,
    ) -> Self {
        let connection = |number| Connection::new(number, None, state.node_timeout);
        Self {
            state: Arc::clone(state),
            each: (0..state.nodes.len()).map(connection).collect(),
            until: Time::now(),
            renews_beside,
        }
    }

    /// Begins a call that ends then.
    pub(super) fn begin(&mut self, until: Time) -> &mut Self {
        // A panic may have left a connection that waits.
        self.each.iter_mut().for_each(Connection::give_up);
        self.until = until;
        self
    }

    pub(super) fn close_unused(&mut self, idle: Duration) {
        for connection in &mut self.each {
            if connection.used.elapsed() >= idle {
                connection.close(&self.state);
            }
            self.state.nodes[connection.number].close_idle(idle);
        }
    }

    /// Reads the late answers that have come. One that is overdue may still come.
    pub(super) fn read_late(&mut self) {
        let late = self.each.iter_mut().filter(|it| !it.is_idle());
        late.for_each(|connection| connection.read_late(&self.state, Duration::MAX));
    }

    /// Returns the shortest grace and the longest.
    fn graces(&self) -> (Duration, Duration) {
        let node_timeout = self.state.node_timeout;
        (node_timeout / SHORTEST_GRACE, node_timeout / LONGEST_GRACE)
    }

    /// Returns the same command for each node.
    pub(super) fn to_all(&self, command: &Command) -> Vec<Commands> {
        self.to_some(command, |_| true)
    }

    /// Returns the same command for some of the nodes, and none for the others.
    pub(super) fn to_some(
        &self,
        command: &Command,
        is_asked: impl Fn(usize) -> bool,
    ) -> Vec<Commands> {
        let to = |number| is_asked(number).then(|| (command.clone(), About::Nothing));
        (0..self.each.len())
            .map(|number| to(number).into_iter().collect())
            .collect()
    }

    /// Does a round with these commands for each connection. One without commands is left out. Gives each answer to
    /// `heard`, with the number of its connection. The same for a failure: one of a node that was not asked has the
    /// outcome [`NotExecuted`](Outcome::NotExecuted), and no other one has. Afterwards no connection waits for anything.
    pub(super) fn round(
        &mut self,
        recipients: Recipients,
        commands: Vec<Commands>,
        heard: &mut dyn FnMut(usize, Result<Value, Failure>) -> Enough,
    ) {
        // 1 and 2.
        let mut unasked = self.look(recipients, &commands);
        let (shortest, longest) = self.graces();
        let (state, connections) = (&*self.state, &mut *self.each);
        for (connection, commands) in connections.iter_mut().zip(commands) {
            let unasked = &mut unasked[connection.number];
            if unasked.is_none() && !commands.is_empty() {
                *unasked = connection.send(state, commands).err();
            }
        }
        let (begun, node_timeout) = (Time::now(), state.node_timeout);
        let (enough, limit, grace) = match recipients {
            Recipients::Granters => (Enough::No, node_timeout, (shortest, longest)),
            Recipients::Voters => (Enough::No, node_timeout, (node_timeout, node_timeout)),
            Recipients::All => (Enough::No, node_timeout, (longest, longest)),
            Recipients::Rest => (Enough::Certain, longest, (longest, longest)),
        };
        let mut round = Round {
            heard,
            enough,
            begun,
            until: self.until.min(begun + limit),
            grace,
        };
        for (number, failure) in unasked.into_iter().enumerate() {
            if let Some(failure) = failure {
                round.hear(number, Err(failure.with(Outcome::NotExecuted)));
            }
        }
        // 3 and 4.
        read_ready(slowest(connections), round.until.min(begun + TOGETHER));
        gather(connections, |connections| {
            for connection in connections.iter_mut() {
                while round.enough != Enough::Yes {
                    let Some(answer) = connection.answer(state).transpose() else {
                        break;
                    };
                    round.hear(connection.number, answer);
                }
            }
            let is_asked = connections.iter().any(Connection::is_asked);
            (is_asked && round.enough != Enough::Yes).then_some(round.until)
        });
        // 5.
        let waited = begun.elapsed();
        for connection in connections {
            if connection.is_asked() && round.enough == Enough::No {
                let failure = connection.timed_out(state, waited);
                (round.heard)(connection.number, Err(failure));
            } else {
                connection.give_up();
            }
        }
    }

    /// Does step 1 for the nodes that have commands. Returns for each the reason why it is not asked.
    fn look(&mut self, recipients: Recipients, commands: &[Commands]) -> Vec<Option<Failure>> {
        let state = &*self.state;
        // The renewal thread asks again soon.
        let is_patient = self.renews_beside.is_none() && recipients != Recipients::Rest;
        let longest = match recipients {
            // Each node that is left out may be one whose vote the lease needs.
            Recipients::Voters => state.node_timeout,
            _ => state.node_timeout / LONGEST_GRACE,
        };
        // The rest of the time is for the request: with few connections too, an answer may show that a vote is gone.
        let begun = Time::now();
        let left = self.until.since(begun);
        let (few_until, latest) = (begun + left / 2, begun + left / 4);
        let wanted = commands.iter().filter(|commands| !commands.is_empty());
        let needed = state.needed.min(wanted.count());
        loop {
            let seen = state.connects();
            let mut failures = vec![None; commands.len()];
            let (mut open, mut opening) = (0, 0);
            let now = Time::now();
            // When the connects are over for which a round with a majority waits.
            let mut all_until = now;
            for connection in &mut self.each {
                let number = connection.number;
                if commands[number].is_empty() {
                    continue;
                }
                failures[number] = match connection.look(state, recipients) {
                    Ok(true) => {
                        open += 1;
                        None
                    }
                    Ok(false) => {
                        opening += 1;
                        let node = &state.nodes[number];
                        let since = node.connecting_since().unwrap_or(now);
                        all_until = all_until.max(since + longest);
                        Some(node.being_opened())
                    }
                    Err(failure) => Some(failure),
                };
            }
            if open + opening < needed {
                state.probe_all();
            }
            let until = if open < needed {
                let may_be_enough = open + opening >= needed && recipients != Recipients::Rest;
                if may_be_enough { few_until } else { now }
            } else if is_patient && opening > 0 {
                all_until.min(latest)
            } else {
                now
            };
            if now >= until {
                return failures;
            }
            state.await_connect(seen, until);
        }
    }
}

impl Round<'_> {
    fn hear(&mut self, number: usize, answer: Result<Value, Failure>) {
        let before = self.enough;
        self.enough = (self.heard)(number, answer);
        if (before, self.enough) == (Enough::No, Enough::Certain) {
            let (now, (least, most)) = (Time::now(), self.grace);
            let grace = now.since(self.begun).clamp(least, most);
            self.until = self.until.min(now + grace);
        }
    }
}

/// Reads answers until `take_in` has enough of them, or the time is over that it returns.
fn gather(
    connections: &mut [Connection],
    mut take_in: impl FnMut(&mut [Connection]) -> Option<Time>,
) {
    let mut is_last = false;
    while let Some(until) = take_in(connections) {
        if is_last {
            break;
        }
        // This thread may have had no CPU time until now, so it looks once more after the time.
        is_last = Time::now() >= until;
        read_ready(connections.iter_mut().filter(|it| it.is_asked()), until);
    }
}

/// Waits until there is something to read on one of these connections, or until then. Reads what has come. Without
/// connections there is nothing to wait for.
fn read_ready<'c>(connections: impl IntoIterator<Item = &'c mut Connection>, until: Time) {
    let mut connections: SmallVec<[_; 8]> = connections
        .into_iter()
        .filter(|connection| connection.is_open())
        .collect();
    if connections.is_empty() {
        return;
    }
    let sockets = connections.iter().flat_map(|it| &it.socket);
    let ready = readable(sockets.map(Socket::bytes), until);
    for (connection, is_ready) in connections.iter_mut().zip(ready) {
        if is_ready {
            connection.read();
        }
    }
}

/// Returns the connection whose answer is probably the last of those that come almost at the same time, by what each node
/// took the last time.
fn slowest(connections: &mut [Connection]) -> Option<&mut Connection> {
    let asked = connections.iter_mut();
    let fast = asked.filter(|connection| connection.is_asked() && connection.took <= TOGETHER);
    fast.max_by_key(|connection| connection.took)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use crate::config::Server;

    use super::*;
    use crate::config::Settings;
    use crate::sys::Arc;
    use crate::wire::{self, Request, ScriptSettings};

    const SOON: Duration = Duration::from_secs(60 * 60);

    /// Returns a connection, and its other end.
    fn connection() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let server = Server::parse(&format!("redis://127.0.0.1:{port}/")).expect("a URL");
        let socket = Socket::connect(&server, &Arc::default(), Deadline::after(SOON));
        let socket = socket.expect("it listens");
        let (server, _) = listener.accept().expect("it has connected");
        (Connection::new(0, Some(socket), SOON), server)
    }

    fn ping() -> Command {
        Command::new("PING")
    }

    /// Returns a note at a command, with its number.
    fn note(number: u32) -> About {
        About::End {
            owner: number.to_string().into(),
            asked_on: None,
        }
    }

    fn ask(connection: &mut Connection, number: u32) {
        let asked = connection.write([(ping(), note(number))], false);
        asked.expect("it is open");
    }

    /// Waits for the next answer. Returns the number of its command, and whether it is late.
    fn next(connection: &mut Connection) -> (u32, bool) {
        loop {
            if let Some((_, answered)) = connection.take().expect("it is open") {
                let number = match answered.about {
                    About::End { owner, .. } => owner.parse().expect("a number"),
                    _ => 0,
                };
                return (number, answered.is_late);
            }
            read_ready([&mut *connection], Time::now() + SOON);
        }
    }

    /// Reads these commands.
    fn expect(server: &mut TcpStream, commands: &[Command]) {
        let mut expected = Vec::new();
        for command in commands {
            command.pack(&mut expected);
        }
        let mut received = vec![0; expected.len()];
        server.read_exact(&mut received).expect("it is open");
        assert!(received == expected, "other commands");
    }

    #[test]
    fn a_late_answer_is_not_taken_for_that_to_a_later_command() {
        let (mut connection, mut server) = connection();
        ask(&mut connection, 1);
        connection.give_up();
        assert!(!connection.is_asked() && !connection.is_idle());
        ask(&mut connection, 2);
        let told = connection.write([(ping(), note(3))], true);
        told.expect("it is open");
        server.write_all(b"+1\r\n+2\r\n+3\r\n").expect("it is open");
        let answers = [(); 3].map(|()| next(&mut connection));
        assert_eq!(answers, [(1, true), (2, false), (3, true)]);
        assert!(connection.is_idle());
    }

    #[test]
    fn after_noscript_that_command_and_those_behind_it_are_written_with_texts() {
        let (mut connection, mut server) = connection();
        let settings = ScriptSettings::new(&Settings::default());
        let digest = || wire::encode(&Request::Renew(&[]), &settings);
        let commands = [(ping(), note(1)), (digest(), note(2)), (digest(), note(3))];
        connection.write(commands, false).expect("it is open");
        expect(&mut server, &[ping(), digest(), digest()]);
        let answers = b"+1\r\n-NOSCRIPT none\r\n+first copy\r\n";
        server.write_all(answers).expect("it is open");
        assert_eq!(next(&mut connection), (1, false));
        assert!(
            next(&mut connection).1 && next(&mut connection).1,
            "dropped"
        );
        let text = digest().by_text();
        expect(&mut server, &[text.clone(), text]);
        server.write_all(b"+2\r\n+3\r\n").expect("it is open");
        assert_eq!(next(&mut connection), (2, false));
        assert_eq!(next(&mut connection), (3, false));
    }

    #[test]
    fn a_look_finds_an_overdue_answer_and_what_nobody_asked_for() {
        let (mut first, mut server) = connection();
        let look = |connection: &mut Connection, after| {
            while connection.next_late(after)?.is_some() {}
            Ok::<_, TransportError>(())
        };
        let fault_of = |connection: &mut Connection| {
            std::iter::repeat_with(|| look(connection, SOON)).find_map(Result::err)
        };
        assert!(look(&mut first, Duration::ZERO).is_ok(), "it is idle");
        ask(&mut first, 1);
        first.give_up();
        assert!(look(&mut first, SOON).is_ok());
        let overdue = look(&mut first, Duration::ZERO).expect_err("no answer");
        assert!(overdue.is_timeout());
        server.write_all(b"+1\r\n+more\r\n").expect("it is open");
        let fault = fault_of(&mut first);
        assert!(matches!(fault, Some(TransportError::Malformed(_))));
        // A part of an answer is enough.
        let (mut second, mut server) = connection();
        server.write_all(b"+").expect("it is open");
        let fault = fault_of(&mut second);
        assert!(matches!(fault, Some(TransportError::Surplus)));
        let (mut third, server) = connection();
        drop(server);
        let ended = fault_of(&mut third);
        assert!(matches!(ended, Some(TransportError::NotSent)));
    }

    /// Waits for one answer on a connection alone.
    fn gather_one(connection: &mut Connection, until: Time) {
        gather(std::slice::from_mut(connection), |connections| {
            let is_answered = connections[0].take().expect("it is open").is_some();
            (!is_answered).then_some(until)
        });
    }

    #[test]
    fn a_server_that_sends_byte_by_byte_gets_no_more_time() {
        let (mut connection, mut server) = connection();
        ask(&mut connection, 1);
        let sending = std::thread::spawn(move || {
            server.write_all(b"$8000000\r\n").expect("it is open");
            while server.write_all(b"x").is_ok() {}
        });
        let until = Time::now() + Duration::from_millis(50);
        gather_one(&mut connection, until);
        assert!(connection.is_asked() && Time::now() >= until);
        drop(connection);
        sending.join().expect("no panic");
    }

    #[test]
    fn an_answer_that_has_come_by_the_end_counts() {
        let (mut connection, mut server) = connection();
        ask(&mut connection, 1);
        server.write_all(b"+1\r\n").expect("it is open");
        let socket = connection.socket.as_ref().expect("it is open");
        while !readable([socket.bytes()], Time::now() + SOON)[0] {}
        gather_one(&mut connection, Time::now());
        assert!(connection.is_idle());
    }
}
