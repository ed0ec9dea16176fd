//! Faults: their kinds, and their begin.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::programs::{EXCLUSIVE, NAMES};
use crate::random::Random;
use crate::workload::LONGEST_EXTENSION;
use crate::world::{Event, PlannedPause, WorldState};

/// The length of most faults.
const LENGTH: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(8);
/// After how many steps of its process a pause begins that begins at a step.
const PAUSE_AFTER_STEPS: u64 = 200;
/// When the connections of a crashed process end.
const CRASH_SEEN_AFTER: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(5);
/// The length of an idle time.
const IDLE: Range<Duration> = Duration::from_secs(3_600)..Duration::from_secs(6 * 3_600);
/// For how long a jump of a process's clock may delay the threads that look at it.
const JUMP_SEEN_WITHIN: Duration = Duration::from_secs(2);
/// The commands that a server may refuse. Without the last two, nothing is renewed.
const RIGHTS: [&str; 8] = [
    "evalsha",
    "publish",
    "subscribe",
    "set",
    "del",
    "zadd",
    "pexpire",
    "pttl",
];
/// The keys of a lock that another client takes for itself, one of two the lock.
const FOREIGN: [&str; 6] = ["", "", "", ":lh:fence", ":lh:queue", ":lh:waiters"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// No thread of a process runs. Its clock goes on.
    Pause,
    /// No thread of a process ever runs again.
    Crash,
    /// One thread of a process does not run.
    PauseThread,
    /// The clock of a process jumps forward, as after a suspend.
    ClockJump,
    /// Nothing arrives between a process and a server.
    Block,
    /// The connections between a process and a server end.
    Cut,
    /// The connections between a process and a server are dead, and nobody knows.
    Kill,
    /// A server does nothing.
    Stall,
    /// A server restarts with its data.
    Restart,
    /// A server restarts without its data.
    RestartEmpty,
    /// A replica lags.
    Lag,
    /// A replica becomes the master, perhaps without the last writes.
    Failover,
    /// A slot moves to another master.
    MoveSlot,
    /// The requests on the open connections between a process and a server come late. Those on new ones do not.
    Late,
    /// A server evicts a key.
    Evict,
    /// Another client writes a hash under the name of a lock or a companion, and deletes it later.
    Foreign,
    /// A server loses its scripts.
    FlushScripts,
    /// A server refuses a command for a while.
    Deny,
    /// The clock of a server jumps forward, so keys end early.
    ServerClock,
    /// The clock of a server is set back, so keys end late.
    ServerClockBack,
    /// No program does anything for hours. Then all connections are dead, and nobody knows.
    Idle,
}

pub const KINDS: [FaultKind; 18] = [
    FaultKind::Pause,
    FaultKind::Crash,
    FaultKind::PauseThread,
    FaultKind::ClockJump,
    FaultKind::Block,
    FaultKind::Cut,
    FaultKind::Kill,
    FaultKind::Stall,
    FaultKind::Restart,
    FaultKind::RestartEmpty,
    FaultKind::Late,
    FaultKind::Evict,
    FaultKind::Foreign,
    FaultKind::FlushScripts,
    FaultKind::Deny,
    FaultKind::ServerClock,
    FaultKind::ServerClockBack,
    FaultKind::Idle,
];

/// The kinds of faults of servers with replicas.
pub const KINDS_OF_GROUPS: [FaultKind; 18] = [
    FaultKind::Pause,
    FaultKind::Crash,
    FaultKind::PauseThread,
    FaultKind::ClockJump,
    FaultKind::Block,
    FaultKind::Cut,
    FaultKind::Kill,
    FaultKind::Stall,
    FaultKind::Restart,
    FaultKind::RestartEmpty,
    FaultKind::Late,
    FaultKind::Foreign,
    FaultKind::Deny,
    FaultKind::Lag,
    FaultKind::Lag,
    FaultKind::Failover,
    FaultKind::Failover,
    FaultKind::Failover,
];

/// The kinds of faults of a cluster.
pub const KINDS_OF_CLUSTERS: [FaultKind; 20] = [
    FaultKind::Pause,
    FaultKind::Crash,
    FaultKind::PauseThread,
    FaultKind::ClockJump,
    FaultKind::Block,
    FaultKind::Cut,
    FaultKind::Kill,
    FaultKind::Stall,
    FaultKind::Restart,
    FaultKind::RestartEmpty,
    FaultKind::Late,
    FaultKind::Foreign,
    FaultKind::Deny,
    FaultKind::Lag,
    FaultKind::Failover,
    FaultKind::Failover,
    FaultKind::MoveSlot,
    FaultKind::MoveSlot,
    FaultKind::MoveSlot,
    FaultKind::MoveSlot,
];

/// A fault beyond the assumptions, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The plain release of a mutex deletes the key of any owner.
    ReleaseIgnoresOwner,
    /// The clocks of leases are slow by a fifth.
    SlowClocks,
    /// A renewal lets the key live for a millisecond.
    RenewalsShorten,
    /// No replica must confirm a grant, although the checks expect it.
    SkipsReplicas,
    /// The fenced registers take each write.
    StaleWrites,
    /// A server looks at no record of the last fence. So fences fall when its clock is set back.
    FencesFollowTheClock,
}

/// A fault of a schedule.
#[derive(Clone, Debug)]
pub struct Fault {
    kind: FaultKind,
    process: usize,
    server: usize,
    length: Duration,
    /// Whether it is a crash or a pause of a process after the other faults have ended, for which `healed_at` does not wait.
    pub(crate) is_late: bool,
}

impl Bug {
    /// Returns a part of a script, and a wrong one of the same length.
    pub(crate) fn of_script(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::ReleaseIgnoresOwner => Some((
                "if value == ARGV[1] then return redis.call('DEL'",
                "if value ~= ''      then return redis.call('DEL'",
            )),
            Self::RenewalsShorten => Some((
                "redis.pcall('PEXPIRE', key, lease)",
                "redis.pcall('PEXPIRE', key, 1    )",
            )),
            Self::FencesFollowTheClock => Some((
                "last >= 0 and last < 9000000000000000 and last or 0",
                "last >= 0 and last < 0                and last or 0",
            )),
            Self::SlowClocks | Self::SkipsReplicas | Self::StaleWrites => None,
        }
    }
}

impl FaultKind {
    /// Returns whether two guards may hold a name after it.
    pub(crate) fn is_beyond_the_assumptions(self, on_quorum: bool) -> bool {
        match self {
            Self::RestartEmpty => !on_quorum,
            Self::Evict | Self::Foreign | Self::ServerClock | Self::ServerClockBack => true,
            _ => false,
        }
    }
}

impl Fault {
    pub(crate) fn new(
        kind: FaultKind,
        processes: usize,
        servers: usize,
        random: &mut Random,
    ) -> Self {
        Self {
            kind,
            process: random.index(processes),
            server: random.index(servers),
            length: random.length(match kind {
                FaultKind::Idle => IDLE,
                _ => LENGTH,
            }),
            is_late: false,
        }
    }

    /// Returns a crash of a process after the other faults have ended, or a pause of this length.
    pub(crate) fn late(kind: FaultKind, process: usize, length: Duration) -> Self {
        Self {
            kind,
            process,
            server: 0,
            length,
            is_late: true,
        }
    }

    /// Returns the process that crashes by the fault.
    pub(crate) fn crashes(&self) -> Option<usize> {
        (self.kind == FaultKind::Crash).then_some(self.process)
    }

    pub(crate) fn kind(&self) -> FaultKind {
        self.kind
    }

    pub(crate) fn length(&self) -> Duration {
        self.length
    }

    /// Returns for how long the fault disturbs calls. A crash does so until the leases of the process are over.
    pub(crate) fn disturbs_for(&self, lease: Duration) -> Duration {
        match self.kind {
            FaultKind::Crash | FaultKind::Evict | FaultKind::ServerClockBack => {
                lease * LONGEST_EXTENSION
            }
            FaultKind::Foreign => lease * LONGEST_EXTENSION + self.length,
            _ => self.length,
        }
    }

    /// Returns by how long the fault may delay a request.
    pub(crate) fn delays_by(&self) -> Duration {
        match self.kind {
            FaultKind::Crash
            | FaultKind::Idle
            | FaultKind::Evict
            | FaultKind::Foreign
            | FaultKind::FlushScripts => Duration::ZERO,
            _ => self.length,
        }
    }
}

impl WorldState {
    pub(crate) fn begin_fault(&mut self, fault: &Fault) {
        let Fault {
            kind,
            process,
            server,
            length,
            ..
        } = *fault;
        self.trace.note(self.now, format_args!("{fault:?}"));
        if kind == FaultKind::Failover {
            let group = server % self.network.groups.len();
            if !self.fail_over(group, length) {
                return;
            }
        }
        if kind == FaultKind::MoveSlot {
            let name = *self.random.pick(&NAMES);
            if !self.move_slot(name, length) {
                return;
            }
        }
        if kind == FaultKind::Evict && !self.evict(server) {
            return;
        }
        *self.faults.entry(kind).or_default() += 1;
        let until = self.now + length;
        if matches!(kind, FaultKind::Pause | FaultKind::PauseThread) {
            self.paused_until = until.max(self.paused_until);
        }
        if kind == FaultKind::ClockJump {
            self.paused_until = self.paused_until.max(self.now + JUMP_SEEN_WITHIN);
        }
        let state = &mut self.processes[process];
        match kind {
            FaultKind::Pause | FaultKind::PauseThread if self.random.one_in(2) => {
                state.planned_pause = Some(PlannedPause {
                    steps: self.random.within(0..PAUSE_AFTER_STEPS),
                    until,
                    is_of_process: kind == FaultKind::Pause,
                });
            }
            FaultKind::Pause => state.stands_still(self.now, until),
            FaultKind::Crash => {
                state.is_crashed = !state.is_finished();
                state.stands_still(self.now, self.now);
                let seen_after = self.random.length(CRASH_SEEN_AFTER);
                self.plan(seen_after, Event::CrashSeen(process));
                self.revive();
            }
            FaultKind::PauseThread => {
                self.pause_thread(process, until);
            }
            FaultKind::ClockJump => {
                state.clock.jump(self.now, length);
                self.clock_jumps.push((process, self.now, length));
            }
            FaultKind::Block => self.block(process, server, until),
            FaultKind::Cut => self.cut(process, server),
            FaultKind::Kill => self.kill(process, server),
            FaultKind::Stall => self.stall(server, until),
            FaultKind::Restart => self.restart(server, until, true),
            FaultKind::RestartEmpty => self.restart(server, until, false),
            FaultKind::Lag => self.lag(server, until),
            // They have begun.
            FaultKind::Failover | FaultKind::MoveSlot | FaultKind::Evict => {}
            FaultKind::Foreign => self.begin_foreign(server, length),
            FaultKind::Late => self.delay_requests(process, server, until),
            FaultKind::FlushScripts => {
                self.execute(server, &["SCRIPT", "FLUSH"]);
            }
            FaultKind::Deny => {
                let right = *self.random.pick(&RIGHTS);
                self.execute(server, &["ACL", "SETUSER", "default", &format!("-{right}")]);
                self.refused.insert(right);
                self.plan(length, Event::Allow(server, right));
            }
            FaultKind::ServerClock => {
                self.network.servers[server].jump(self.now, length);
                self.ends_beyond_the_assumptions(None, self.now);
            }
            FaultKind::ServerClockBack => {
                let until = self.network.servers[server].set_back(self.now, length);
                self.ends_beyond_the_assumptions(None, until);
            }
            FaultKind::Idle => self.plan(length, Event::IdleEnds),
        }
    }

    /// Notes when a fault beyond the assumptions ends, for one name or for all.
    pub(crate) fn ends_beyond_the_assumptions(&mut self, name: Option<&str>, at: Duration) {
        let ended_at = self.beyond_ended_at.entry(name.map(str::to_owned));
        let ended_at = ended_at.or_default();
        *ended_at = at.max(*ended_at);
    }

    /// Returns whether something was beyond the assumptions for a name within this time.
    pub(crate) fn was_beyond_the_assumptions(&self, name: &str, within: Duration) -> bool {
        let ended_at = self.beyond_ended_at.iter();
        let mut its = ended_at.filter(|(of, _)| of.as_ref().is_none_or(|of| of == name));
        its.any(|(_, ended_at)| self.now <= *ended_at + within)
    }

    /// Returns whether the queue of a lock may have no time to live: a server has refused what gives it one.
    pub(crate) fn may_live_for_ever(&self, key: &str) -> bool {
        let is_refused = ["pexpire", "pttl"]
            .iter()
            .any(|it| self.refused.contains(it));
        is_refused && (key.ends_with(":lh:queue") || key.ends_with(":lh:waiters"))
    }

    /// Returns the first mutex that somebody holds.
    fn first_held(&mut self, server: usize) -> Option<&'static str> {
        let now = self.now;
        EXCLUSIVE.into_iter().find(|name| {
            let servers = self.network.servers_of(name, server);
            let mut servers = servers.into_iter();
            servers.any(|it| !self.network.servers[it].leases(name, now).is_empty())
        })
    }

    fn begin_foreign(&mut self, server: usize, length: Duration) {
        let (name, companion) = (*self.random.pick(&NAMES), *self.random.pick(&FOREIGN));
        let key = match (self.first_held(server), companion) {
            // Its process may hold others too, which are renewed with it.
            (Some(held), _) if self.random.one_in(2) => held.to_owned(),
            (_, "") => name.to_owned(),
            _ => format!("{{{name}}}{companion}"),
        };
        self.write_foreign(&key, server, length);
        self.plan(length, Event::ForeignEnds(key, server));
    }

    /// Has a server allow a command again.
    pub(crate) fn allow(&mut self, server: usize, right: &str) {
        self.execute(server, &["ACL", "SETUSER", "default", &format!("+{right}")]);
    }

    /// Has all connections be dead after an idle time.
    pub(crate) fn end_idle(&mut self) {
        for process in 0..self.processes.len() {
            for server in 0..self.network.servers.len() {
                self.kill(process, server);
            }
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pause => "pauses",
            Self::Crash => "crashes",
            Self::PauseThread => "pauses of a thread",
            Self::ClockJump => "jumps of a clock",
            Self::Block => "blocked links",
            Self::Cut => "cut links",
            Self::Kill => "dead connections",
            Self::Stall => "stalls of a server",
            Self::Restart => "restarts with data",
            Self::RestartEmpty => "restarts without data",
            Self::Lag => "replicas that lag",
            Self::Failover => "failovers",
            Self::MoveSlot => "moves of a slot",
            Self::Late => "late requests",
            Self::Evict => "evicted keys",
            Self::Foreign => "keys of another type",
            Self::FlushScripts => "lost scripts",
            Self::Deny => "refused rights",
            Self::ServerClock => "jumps of a server's clock",
            Self::ServerClockBack => "server clocks set back",
            Self::Idle => "idle times",
        })
    }
}
