//! A schedule: all that a seed decides.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use leasehold::{Builder, LockManager};

use crate::checks::Counts;
use crate::clock::{ASSUMED_DRIFT, Clock};
use crate::cluster::Cluster;
use crate::failover::{Group, MASTER};
use crate::faults::{Bug, Fault, FaultKind, KINDS, KINDS_OF_CLUSTERS, KINDS_OF_GROUPS};
use crate::history::History;
use crate::network::host;
use crate::programs::{CALM, Style, What, crowd, elect};
use crate::random::Random;
use crate::replication::{Links, PORT};
use crate::scenario::{FIRST_STREAM, Scenario};
use crate::workload::{SETTLES_WITHIN, Settings, Tuning};
use crate::world::World;

const PROCESSES: usize = 3;
/// The threads of each process.
const THREADS: usize = 2;
/// The time of day at the begin of each schedule.
pub(crate) const BEGAN_AT: Duration = Duration::from_secs(1_795_514_000);
/// The largest drift of a clock, in millionths.
const DRIFT: u32 = ASSUMED_DRIFT / 2 - 50;
/// The largest difference of two clocks' time of day.
const OFFSET: Duration = Duration::from_millis(400);
/// On a quorum: how long a node that has restarted does not vote.
pub(crate) const RESTART_DELAY: Duration = Duration::from_secs(12);
/// The longest time from the begin of a schedule to its last fault.
const LONGEST_SPREAD: Duration = Duration::from_secs(6);
/// The kinds of operations. One that is there twice is twice as likely.
const ALL_KINDS: [What; 19] = [
    // These three are not those of a quorum.
    What::Permit,
    What::Once,
    What::Limited,
    What::Unfenced,
    What::Several,
    What::Operator,
    What::Mutex,
    What::Mutex,
    What::Mutex,
    What::Mutex,
    What::Mutex,
    What::Closure,
    What::Reentrant,
    What::Multi,
    What::Multi,
    What::Writer,
    What::Reader,
    What::Adoption,
    What::Close,
];

/// The same if the key of a lease may be taken: then others are renewed with it.
const HELD_TOGETHER: [What; 4] = [What::Several, What::Mutex, What::Reader, What::Writer];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    Single,
    Sentinel,
    Cluster,
    Quorum,
}

/// The replicas of a Sentinel set, and its sentinels. In some schedules, the last replica follows nobody.
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
/// The masters of a cluster. Each has one replica.
const MASTERS: usize = 3;
/// After the last fault, the time until each server has learned its role.
const ROLES_WITHIN: Duration = Duration::from_secs(8);

/// By how much a late pause is shorter than the pickup window of the process, at least: it takes a while to answer.
const SHORTER_THAN_A_WINDOW: Duration = Duration::from_millis(100);

/// The plan of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub topology: Topology,
    /// The bug that the checks must find.
    pub bug: Option<Bug>,
    /// Whether to keep a line for each event.
    pub keeps_trace: bool,
}

/// The result of a schedule.
#[derive(Clone, Debug)]
pub struct Report {
    /// The first broken rule, or `None`.
    pub failure: Option<String>,
    pub counts: Counts,
    pub history: History,
    pub faults: BTreeMap<FaultKind, u32>,
    /// A hash of all events, their times and their order.
    pub hash: u64,
    /// A line for each event, if they were kept.
    pub trace: Vec<String>,
    /// The time that passed in the schedule.
    pub took: Duration,
    pub steps: u64,
}

impl Plan {
    /// Runs the schedule.
    #[must_use]
    pub fn run(self) -> Report {
        self.scenario().run()
    }

    /// Returns what the seed decides.
    #[must_use]
    pub fn scenario(self) -> Scenario {
        let mut random = Random::new(self.seed, 0);
        let servers = self.topology.servers();
        let mut server_clocks: Vec<_> =
            (0..servers).map(|_| clock(&mut random, BEGAN_AT)).collect();
        let replication = ReplicationPlan::new(self.topology, self.bug, &mut random);
        if replication.has_one_time {
            let one = server_clocks[0].clone();
            server_clocks.fill(one);
        }
        let process_clocks = (0..PROCESSES).map(|number| {
            let shown = Duration::from_secs(1_000 * (number as u64 + 1));
            let began_at = BEGAN_AT + random.length(Duration::from_micros(1)..OFFSET);
            let mut clock = clock(&mut random, shown);
            if self.bug == Some(Bug::SlowClocks) {
                clock.slow_down();
            }
            (clock, began_at)
        });
        let process_clocks = process_clocks.collect();
        let lease = *random.pick(&[300, 1_000, 2_000, 10_000]);
        let lease = Duration::from_millis(lease);
        let mut faults = Self::faults(self.topology, lease, &mut random);
        let healed_at = healed_at(&faults, lease, self.topology);
        let settings = Settings {
            hold: lease.min(Duration::from_secs(2)) / 2,
            healed_at,
            topology: self.topology,
            lease,
            leases_differ: Random::new(self.seed, 2).one_in(3),
            io_timeout: Duration::from_millis(*random.pick(&[200, 1_000])),
            background_release: random.one_in(4),
            replicas: replication.confirming(self.bug),
            tuning: Tuning::pick(&mut Random::new(self.seed, 3), lease, self.topology),
        };
        let has_foreign = (faults.iter()).any(|(_, fault)| fault.kind() == FaultKind::Foreign);
        let style = Style {
            kinds: match self.topology {
                _ if random.one_in(3) => &[What::Mutex],
                _ if has_foreign && random.one_in(2) => &HELD_TOGETHER,
                Topology::Single | Topology::Sentinel | Topology::Cluster => &ALL_KINDS,
                Topology::Quorum => &ALL_KINDS[3..],
            },
            lease: settings.lease_of(PROCESSES - 1),
            waiting: if random.one_in(3) { 4 } else { 2 },
            last_fault_at: faults.iter().map(|(at, _)| *at).max().unwrap_or_default(),
            healed_at,
            idle: (faults.iter())
                .find(|(_, fault)| fault.kind() == FaultKind::Idle)
                .map(|(at, fault)| (*at, fault.length())),
        };
        let link_delay = Links::pick_delay(&mut random, settings.replicas > 0);
        let mut elections = Random::new(self.seed, 6);
        let has_election = elections.one_in(4);
        let mut late = Random::new(self.seed, 7);
        let has_crowd = late.one_in(3);
        if has_crowd {
            let dead = faults.iter().find_map(|(_, fault)| fault.crashes());
            let living: Vec<_> = (0..PROCESSES).filter(|it| Some(*it) != dead).collect();
            let process = *late.pick(&living);
            let at = healed_at + SETTLES_WITHIN + CALM * late.within(0..1_000) as u32 / 1_000;
            let fault = if dead.is_none() && late.one_in(2) {
                Fault::late(FaultKind::Crash, process, Duration::ZERO)
            } else {
                let window = settings.pickup_window(PROCESSES);
                let most = window.saturating_sub(SHORTER_THAN_A_WINDOW);
                let length = most * late.within(500..1_000) as u32 / 1_000;
                Fault::late(FaultKind::Pause, process, length)
            };
            faults.push((at, fault));
        }
        let programs = (0..PROCESSES * THREADS).map(|thread| {
            let mut random = Random::new(self.seed, thread as u64 + 10);
            let mut program = style.program(&mut random);
            if has_election {
                elect(&mut program, &mut elections);
            }
            if has_crowd {
                crowd(&mut program, healed_at);
            }
            program
        });
        Scenario {
            plan: self,
            server_clocks,
            replication,
            link_delay,
            process_clocks,
            settings,
            threads_each: THREADS,
            faults,
            programs: programs.collect(),
            stream: FIRST_STREAM,
            is_unchecked: false,
        }
    }

    /// Returns the faults with their times.
    fn faults(topology: Topology, lease: Duration, random: &mut Random) -> Vec<(Duration, Fault)> {
        let spread = lease.min(LONGEST_SPREAD / 3) * 3;
        let servers = topology.servers();
        let kinds: &[_] = match topology {
            Topology::Single | Topology::Quorum => &KINDS,
            Topology::Sentinel => &KINDS_OF_GROUPS,
            Topology::Cluster => &KINDS_OF_CLUSTERS,
        };
        // Two faults of a few kinds meet more often than two of many kinds (swarm testing, Groce et al. 2012).
        let few = [*random.pick(kinds), *random.pick(kinds)];
        let kinds = if random.one_in(2) { &few } else { kinds };
        let count = random.within(2..6);
        let mut faults = Vec::new();
        let mut has_crashed = false;
        for _ in 0..count {
            let mut kind = *random.pick(kinds);
            // Exclusion is not promised for a while after a fault beyond the assumptions. So these are seldom, unless they meet
            // one name alone.
            if kind.is_beyond_the_assumptions(topology == Topology::Quorum)
                && kind != FaultKind::Foreign
                && !random.one_in(4)
                || kind == FaultKind::Crash && has_crashed
                || kind == FaultKind::Idle && !random.one_in(8)
            {
                kind = FaultKind::Pause;
            }
            has_crashed |= kind == FaultKind::Crash;
            let at = spread * random.within(0..1_000) as u32 / 1_000;
            let servers = match topology {
                // Most faults are those of the master and its replicas.
                Topology::Sentinel if !random.one_in(4) => 1 + REPLICAS,
                _ => servers,
            };
            faults.push((at, Fault::new(kind, PROCESSES, servers, random)));
        }
        faults
    }
}

/// How the servers of a schedule replicate.
#[derive(Clone, Debug)]
pub(crate) struct ReplicationPlan {
    replicas: usize,
    /// How many replicas must confirm a grant.
    confirming: usize,
    /// Whether the clocks of the servers agree.
    has_one_time: bool,
}

impl ReplicationPlan {
    fn new(topology: Topology, bug: Option<Bug>, random: &mut Random) -> Self {
        if !topology.has_replicas() {
            return Self {
                replicas: 0,
                confirming: 0,
                has_one_time: false,
            };
        }
        let replicas = match topology {
            Topology::Cluster => 1,
            _ => 1 + random.index(REPLICAS),
        };
        let confirming = *random.pick(&[0, 0, 1, replicas]);
        let is_sought = bug == Some(Bug::SkipsReplicas);
        Self {
            replicas,
            confirming: if is_sought { replicas } else { confirming },
            has_one_time: is_sought || random.one_in(2),
        }
    }

    /// Returns the plan with all replicas. The library waits for none.
    pub(crate) fn of_all(topology: Topology) -> Self {
        Self {
            replicas: REPLICAS,
            confirming: 0,
            has_one_time: topology.has_replicas(),
        }
    }

    /// Returns how many replicas the library has to wait for.
    fn confirming(&self, bug: Option<Bug>) -> u32 {
        match bug {
            Some(Bug::SkipsReplicas) => 0,
            _ => u32::try_from(self.confirming).unwrap_or(u32::MAX),
        }
    }

    pub(crate) fn begin(&self, topology: Topology, world: &World) {
        if !topology.has_replicas() {
            return;
        }
        let mut state = world.state();
        let network = &mut state.network;
        network.is_kept_by_replicas = self.has_one_time && self.confirming == self.replicas;
        if topology == Topology::Sentinel {
            let members = (0..=self.replicas).collect();
            let sentinels = Topology::sentinels().collect();
            network.groups.push(Group::new(members, sentinels));
        } else {
            let groups = (0..MASTERS).map(|master| vec![master, master + MASTERS]);
            let groups = groups.map(|members| Group::new(members, Vec::new()));
            network.groups.extend(groups);
            network.cluster = Some(Cluster::new(MASTERS, topology.servers()));
        }
        for group in 0..state.network.groups.len() {
            state.begin_group(group);
        }
        state.begin_cluster();
    }
}

/// Returns when the last fault has ended.
pub(crate) fn healed_at(
    faults: &[(Duration, Fault)],
    lease: Duration,
    topology: Topology,
) -> Duration {
    let faults = faults.iter().filter(|(_, fault)| !fault.is_late);
    let ends = (faults.clone()).map(|(at, fault)| *at + fault.disturbs_for(lease));
    // Each clock that is set back lengthens what lives then, and clocks may be so one after another.
    let set_back = faults
        .clone()
        .filter(|(_, fault)| fault.kind() == FaultKind::ServerClockBack);
    let set_back: Duration = set_back.map(|(_, fault)| fault.length()).sum();
    let mut healed_at = ends.max().unwrap_or_default() + set_back;
    let is_restart = |kind| matches!(kind, FaultKind::Restart | FaultKind::RestartEmpty);
    let mut kinds = faults.map(|(_, fault)| fault.kind());
    match topology {
        Topology::Sentinel | Topology::Cluster => healed_at += ROLES_WITHIN,
        Topology::Quorum if kinds.any(is_restart) => {
            healed_at += RESTART_DELAY + Duration::from_secs(1);
        }
        Topology::Single | Topology::Quorum => {}
    }
    healed_at
}

/// Returns a clock that differs from the true time.
fn clock(random: &mut Random, shown: Duration) -> Clock {
    // The largest difference is the one that matters.
    let drift = match random.within(0..4) {
        0 => i64::from(DRIFT),
        1 => -i64::from(DRIFT),
        _ => i64::from(random.within(0..2 * u64::from(DRIFT)) as u32) - i64::from(DRIFT),
    };
    Clock::new(
        shown + random.length(Duration::from_micros(1)..OFFSET),
        drift,
    )
}

impl Topology {
    pub const ALL: [Self; 4] = [Self::Single, Self::Sentinel, Self::Cluster, Self::Quorum];

    fn has_replicas(self) -> bool {
        matches!(self, Self::Sentinel | Self::Cluster)
    }

    pub(crate) fn servers(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Sentinel => 1 + REPLICAS + SENTINELS,
            Self::Cluster => 2 * MASTERS,
            Self::Quorum => 3,
        }
    }

    /// Returns the sentinels of a Sentinel set.
    fn sentinels() -> Range<usize> {
        1 + REPLICAS..1 + REPLICAS + SENTINELS
    }

    pub(crate) fn builder(self) -> Builder {
        match self {
            Self::Single => LockManager::single("unix:///0"),
            Self::Sentinel => {
                let urls =
                    Self::sentinels().map(|number| format!("redis://{}:{PORT}", host(number)));
                LockManager::sentinel(urls, MASTER)
            }
            Self::Cluster => {
                let urls = (0..MASTERS).map(|number| format!("redis://{}:{PORT}", host(number)));
                LockManager::cluster(urls)
            }
            Self::Quorum => Self::quorum_of(self.servers()).restart_delay(RESTART_DELAY),
        }
    }

    pub(crate) fn quorum_of(nodes: usize) -> Builder {
        let nodes = (0..nodes).map(|number| format!("unix:///{number}"));
        LockManager::quorum(nodes)
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "single" => Ok(Self::Single),
            "sentinel" => Ok(Self::Sentinel),
            "cluster" => Ok(Self::Cluster),
            "quorum" => Ok(Self::Quorum),
            _ => Err(format!(
                "{word} is no topology: single, sentinel, cluster, quorum"
            )),
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::Quorum => "quorum",
        })
    }
}
