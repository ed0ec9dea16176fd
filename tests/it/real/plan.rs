//! The plan of a seed: the settings of the processes, and each fault with its target and its times.

use std::fmt;
use std::time::Duration;

use leasehold::Builder;

use super::PREFIX;
use crate::support::{Fault, Kind, Random, Topology, ms, secs, settings_of};

pub(super) const PROCESSES: u64 = 3;
pub(super) const THREADS: u64 = 2;
/// How long a node of a quorum does not vote after its start.
const RESTART_DELAY: Duration = secs(3);

/// The odd number that makes the random numbers of neighbouring seeds unlike: the golden ratio.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The kinds of locks in a schedule. A kind that is there twice is twice as likely.
const ALL_KINDS: [Kind; 8] = [
    Kind::Permit,
    Kind::Permits,
    Kind::Mutex,
    Kind::Mutex,
    Kind::Reentrant,
    Kind::Multi,
    Kind::Writer,
    Kind::Reader,
];
/// A quorum has no semaphores.
const KINDS_OF_QUORUM: &[Kind] = ALL_KINDS.split_at(2).1;

/// The faults of links. They need a proxy.
const LINK_FAULTS: [Fault; 8] = [
    Fault::Delay,
    Fault::Late(20),
    Fault::Drip,
    Fault::Close,
    Fault::Reset,
    Fault::HalfOpen,
    Fault::LoseRequests,
    Fault::LoseAnswers,
];

/// A fault of servers, or of the links to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerFault {
    /// The process of a server is stopped.
    Stop,
    /// A server is killed, and starts again with its data.
    Restart,
    /// A server is killed, and starts again without data.
    RestartEmpty,
    /// All servers start again, one after the other. Those of a quorum start without data.
    Rolling,
    /// A master is killed. Its replica takes its place, and it comes back as a replica.
    KillMaster,
    /// A replica takes the place of its master, because an operator wants that.
    FailOver,
    /// The slot of a name moves to another master.
    Reshard,
    /// All servers forget their scripts.
    FlushScripts,
    /// The servers close all connections of clients.
    KillClients,
    /// A server answers no client.
    PauseClients,
    /// The wall clock of a server is ahead for a while.
    Clock,
    /// A link fails.
    Link(Fault),
    /// A router forgets its connections.
    Forget,
}

/// The number of the server that a fault hits, and the times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strike<K> {
    pub(super) kind: K,
    pub(super) target: u64,
    /// The time since the last fault ended.
    pub(super) after: Duration,
    pub(super) length: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessFault {
    /// A process is stopped.
    Pause,
    /// A process is killed. Another one takes its place.
    Kill,
}

/// A schedule.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) topology: Topology,
    pub(super) seed: u64,
    pub(super) lease: Duration,
    io_timeout: Duration,
    background_release: bool,
    /// Of eight calls, how many wait.
    pub(super) waiting: u64,
    pub(super) kinds: &'static [Kind],
    pub(super) server_faults: Vec<Strike<ServerFault>>,
    pub(super) process_faults: Vec<Strike<ProcessFault>>,
}

impl Plan {
    pub(super) fn new(topology: Topology, seed: u64) -> Self {
        let mut random = Random((4 * seed + topology as u64).wrapping_mul(SCATTER));
        let kinds = match topology {
            _ if random.below(3) == 0 => &[Kind::Mutex],
            Topology::Quorum => KINDS_OF_QUORUM,
            _ => &ALL_KINDS[..],
        };
        let mut plan = Self {
            topology,
            seed,
            lease: pick(&mut random, &[ms(500), secs(1), secs(2)]),
            io_timeout: pick(&mut random, &[ms(500), secs(1)]),
            background_release: random.below(4) == 0,
            waiting: if random.below(3) == 0 { 4 } else { 2 },
            kinds,
            server_faults: Vec::new(),
            process_faults: Vec::new(),
        };
        let mut possible = plan.possible_faults();
        // Two exceptions at once: a clock that is set back, and a loss of the fences.
        let unwanted = pick(
            &mut random,
            &[ServerFault::Clock, ServerFault::RestartEmpty],
        );
        if topology == Topology::Single {
            possible.retain(|fault| *fault != unwanted);
        }
        for _ in 0..2 + random.below(2) {
            let kind = pick(&mut random, &possible);
            plan.server_faults.push(strike(&mut random, kind));
            if kind.takes_long() {
                // It takes as long as several others.
                break;
            }
        }
        for _ in 0..=random.below(2) {
            let kinds = [ProcessFault::Pause, ProcessFault::Pause, ProcessFault::Kill];
            let kind = pick(&mut random, &kinds);
            plan.process_faults.push(strike(&mut random, kind));
        }
        plan
    }

    /// Returns a name of this schedule.
    pub(super) fn name(&self, name: &str) -> String {
        let Self { topology, seed, .. } = self;
        format!("{PREFIX}{topology:?}:{seed}:{name}")
    }

    fn possible_faults(&self) -> Vec<ServerFault> {
        use ServerFault::{
            Clock, FailOver, FlushScripts, Forget, KillClients, KillMaster, Link, PauseClients,
            Reshard, Restart, RestartEmpty, Rolling, Stop,
        };
        let mut possible = vec![Stop, Stop, FlushScripts, KillClients, PauseClients];
        match self.topology {
            Topology::Single => possible.extend([Restart, Restart, RestartEmpty, Clock]),
            Topology::Quorum => possible.extend([RestartEmpty, RestartEmpty, Rolling]),
            Topology::Sentinel => possible.extend([FailOver, FailOver, KillMaster]),
            Topology::Cluster => {
                possible.extend([FailOver, KillMaster, Reshard, Reshard, Reshard, Rolling]);
            }
        }
        if matches!(self.topology, Topology::Single | Topology::Quorum) {
            possible.push(Forget);
            possible.extend(LINK_FAULTS.map(Link));
        }
        possible
    }

    /// Returns the settings of a process.
    pub(super) fn builder(&self, url: &str) -> Builder {
        let builder = settings_of(url)
            .lease(self.lease)
            .connect_timeout(self.io_timeout)
            .io_timeout(self.io_timeout)
            .background_release(self.background_release);
        match self.topology {
            Topology::Quorum => builder
                .node_timeout(self.io_timeout)
                .restart_delay(RESTART_DELAY),
            _ => builder,
        }
    }
}

fn strike<K>(random: &mut Random, kind: K) -> Strike<K> {
    // A third is longer than each lease.
    let longest = if random.below(3) == 0 { 2_600 } else { 800 };
    Strike {
        kind,
        target: random.below(1_000),
        after: ms(50) + random.ms_below(600),
        length: ms(20) + random.ms_below(longest),
    }
}

pub(super) fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    let number = random.below(from.len() as u64);
    from[usize::try_from(number).expect("small")]
}

impl ServerFault {
    /// Returns whether the servers need seconds to recover.
    fn takes_long(self) -> bool {
        matches!(self, Self::Rolling | Self::KillMaster | Self::FailOver)
    }

    /// Returns whether the servers may forget a lock.
    pub(super) fn loses_data(self, topology: Topology) -> bool {
        match self {
            Self::RestartEmpty | Self::KillMaster => topology != Topology::Quorum,
            // The nodes of a Cluster hand all data over.
            Self::FailOver => topology == Topology::Sentinel,
            _ => false,
        }
    }
}

impl fmt::Display for ServerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stop => "stalls of a server",
            Self::Restart => "restarts with data",
            Self::RestartEmpty => "restarts without data",
            Self::Rolling => "rolling restarts",
            Self::KillMaster => "killed masters",
            Self::FailOver => "failovers by hand",
            Self::Reshard => "moved slots",
            Self::FlushScripts => "lost scripts",
            Self::KillClients => "closed connections",
            Self::PauseClients => "pauses of clients",
            Self::Clock => "jumps of a server's clock",
            Self::Forget => "dead connections",
            Self::Link(Fault::Delay | Fault::Late(_)) => "late links",
            Self::Link(Fault::Drip) => "dripping links",
            Self::Link(Fault::Close | Fault::Reset) => "cut links",
            Self::Link(Fault::HalfOpen) => "half-open links",
            Self::Link(Fault::LoseRequests | Fault::LoseAnswers) => "links that lose data",
        })
    }
}

impl fmt::Display for ProcessFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pause => "pauses",
            Self::Kill => "crashes",
        })
    }
}
