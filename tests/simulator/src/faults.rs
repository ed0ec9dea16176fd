//! Faults: their kinds, and their begin.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::cluster::key_to_move;
use crate::random::Random;
use crate::world::{Event, PlannedPause, WorldState};

/// The length of most faults.
const LENGTH: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(8);
/// After how many steps of its process a pause begins that begins at a step.
const PAUSE_AFTER_STEPS: u64 = 200;
/// When the connections of a crashed process end.
const CRASH_SEEN_AFTER: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(5);

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
}

pub const KINDS: [FaultKind; 11] = [
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
];

/// The kinds of faults of servers with replicas.
pub const KINDS_OF_GROUPS: [FaultKind; 16] = [
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
    FaultKind::Lag,
    FaultKind::Lag,
    FaultKind::Failover,
    FaultKind::Failover,
    FaultKind::Failover,
];

/// The kinds of faults of a cluster.
pub const KINDS_OF_CLUSTERS: [FaultKind; 18] = [
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
    /// Fences are a counter, and do not follow the servers' time.
    FencesCount,
    /// No replica must confirm a grant, although the checks expect it.
    SkipsReplicas,
}

#[derive(Clone, Debug)]
pub(crate) struct Fault {
    kind: FaultKind,
    process: usize,
    server: usize,
    length: Duration,
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
            Self::FencesCount => Some((
                "time[1] .. string.sub('00000' .. time[2], -6)",
                "'1'     .. string.sub('00000' .. '1'    , -6)",
            )),
            Self::SlowClocks | Self::SkipsReplicas => None,
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
            length: random.length(LENGTH),
        }
    }

    pub(crate) fn kind(&self) -> FaultKind {
        self.kind
    }

    pub(crate) fn length(&self) -> Duration {
        self.length
    }
}

impl WorldState {
    pub(crate) fn begin_fault(&mut self, fault: &Fault) {
        let Fault {
            kind,
            process,
            server,
            length,
        } = *fault;
        self.trace.note(self.now, format_args!("{fault:?}"));
        if kind == FaultKind::Failover {
            let group = server % self.network.groups.len();
            if !self.fail_over(group, length) {
                return;
            }
        }
        if kind == FaultKind::MoveSlot {
            let key = key_to_move(&mut self.random);
            if !self.move_slot(key, length) {
                return;
            }
        }
        *self.faults.entry(kind).or_default() += 1;
        let until = self.now + length;
        let state = &mut self.processes[process];
        match kind {
            FaultKind::Pause | FaultKind::PauseThread if self.random.one_in(2) => {
                state.planned_pause = Some(PlannedPause {
                    steps: self.random.within(0..PAUSE_AFTER_STEPS),
                    until,
                    is_of_process: kind == FaultKind::Pause,
                });
            }
            FaultKind::Pause => state.paused_until = until.max(state.paused_until),
            FaultKind::Crash => {
                state.is_crashed = !state.is_finished();
                let seen_after = self.random.length(CRASH_SEEN_AFTER);
                self.plan(seen_after, Event::CrashSeen(process));
                self.revive();
            }
            FaultKind::PauseThread => {
                self.pause_thread(process, until);
            }
            FaultKind::ClockJump => state.clock.jump(self.now, length),
            FaultKind::Block => self.block(process, server, until),
            FaultKind::Cut => self.cut(process, server),
            FaultKind::Kill => self.kill(process, server),
            FaultKind::Stall => self.stall(server, until),
            FaultKind::Restart => self.restart(server, until, true),
            FaultKind::RestartEmpty => self.restart(server, until, false),
            FaultKind::Lag => self.lag(server, until),
            // They have begun.
            FaultKind::Failover | FaultKind::MoveSlot => {}
            FaultKind::Late => self.delay_requests(process, server, until),
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
        })
    }
}
