//! A schedule: all that a seed decides.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use leasehold::testing::simulation::Process;
use leasehold::{Builder, LockManager};

use crate::checks::{Checks, Counts};
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::failover::{Group, MASTER};
use crate::faults::{Bug, Fault, FaultKind, KINDS, KINDS_OF_CLUSTERS, KINDS_OF_GROUPS};
use crate::network::{Network, host};
use crate::process::ProcessWorld;
use crate::random::Random;
use crate::replication::{Links, PORT};
use crate::trace::Trace;
use crate::workload::{self, Asked, LONGEST_EXTENSION, Settings};
use crate::world::{Event, ProcessState, World};

const PROCESSES: usize = 3;
/// The time of day at the begin of each schedule.
const BEGAN_AT: Duration = Duration::from_secs(1_795_514_000);
/// The largest drift of a clock, in millionths: two clocks differ by less than 1 %.
const DRIFT: u32 = 4_500;
/// The largest difference of two clocks' time of day.
const OFFSET: Duration = Duration::from_millis(400);
/// On a quorum: how long a node that has restarted does not vote.
pub(crate) const RESTART_DELAY: Duration = Duration::from_secs(12);
/// The longest time from the begin of a schedule to its last fault.
const LONGEST_SPREAD: Duration = Duration::from_secs(6);
/// The time after the end of a schedule at which no key of a lock is left.
const KEYS_END_WITHIN: Duration = Duration::from_secs(60);

const ALL_KINDS: [Asked; 8] = [
    Asked::Permit,
    Asked::Mutex,
    Asked::Mutex,
    Asked::Mutex,
    Asked::Reentrant,
    Asked::Multi,
    Asked::Writer,
    Asked::Reader,
];

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
        let mut random = Random::new(self.seed, 0);
        let servers = self.topology.servers();
        let mut server_clocks: Vec<_> =
            (0..servers).map(|_| clock(&mut random, BEGAN_AT)).collect();
        let replication = ReplicationPlan::new(self.topology, self.bug, &mut random);
        if replication.has_one_time {
            let one = server_clocks[0].clone();
            server_clocks.fill(one);
        }
        let processes = (0..PROCESSES).map(|number| {
            let shown = Duration::from_secs(1_000 * (number as u64 + 1));
            let began_at = BEGAN_AT + random.length(Duration::from_micros(1)..OFFSET);
            let mut clock = clock(&mut random, shown);
            if self.bug == Some(Bug::SlowClocks) {
                clock.slow_down();
            }
            ProcessState::new(clock, began_at)
        });
        let processes = processes.collect();
        let lease = *random.pick(&[300, 1_000, 2_000, 10_000]);
        let lease = Duration::from_millis(lease);
        let (faults, healed_at) = Self::faults(self.topology, lease, &mut random);
        let delay = faults
            .iter()
            .map(|(_, fault)| fault.length())
            .sum::<Duration>();
        let settings = Settings {
            workers: 2,
            operations: 9,
            waiting: if random.one_in(3) { 4 } else { 2 },
            kinds: match self.topology {
                _ if random.one_in(3) => &[Asked::Mutex],
                Topology::Single | Topology::Sentinel | Topology::Cluster => &ALL_KINDS,
                // A quorum has no semaphores.
                Topology::Quorum => &ALL_KINDS[1..],
            },
            hold: lease.min(Duration::from_secs(2)) / 2,
            last_fault_at: faults.iter().map(|(at, _)| *at).max().unwrap_or_default(),
            healed_at,
            topology: self.topology,
            lease,
            leases_differ: Random::new(self.seed, 2).one_in(3),
            io_timeout: Duration::from_millis(*random.pick(&[200, 1_000])),
            linger: self.topology != Topology::Quorum && random.one_in(4),
            background_release: random.one_in(4),
            replicas: replication.confirming(self.bug),
        };
        let world = Arc::new(World::new(
            Random::new(self.seed, 1),
            Trace::new(self.keeps_trace),
            processes,
            Network::new(
                server_clocks,
                Links::new(&mut random, settings.replicas > 0),
                self.bug,
            ),
        ));
        replication.begin(self.topology, &world);
        world.note(format_args!("{settings:?}"));
        for (at, fault) in faults {
            world.state().plan(at, Event::Fault(fault));
        }
        let checks = Checks::new(&world, self.topology == Topology::Quorum, lease);
        for process in 0..PROCESSES {
            let seen = ProcessWorld {
                world: Arc::clone(&world),
                process,
            };
            workload::start(
                &Process::new(Arc::new(seen)),
                process,
                self.seed,
                &settings,
                &checks,
            );
        }
        let mut course = world.run();
        if course.failure.is_none() {
            // A request that arrives after a whole lease may grant the lock to an owner that nobody releases any more.
            let has_failed_over = world.state().network.has_failed_over();
            let owners = || {
                if delay < lease && !has_failed_over {
                    checks.check_owners()
                } else {
                    Ok(())
                }
            };
            let kept = checks.check_keys().and_then(|()| owners());
            course.failure = kept.err().or_else(|| left_keys(&world));
            // After a failure, threads are still there.
            world.state().network.end();
        }
        Report {
            failure: course.failure,
            counts: checks.counts(),
            faults: course.faults,
            hash: course.hash,
            trace: course.lines,
            took: course.took,
            steps: course.steps,
        }
    }

    /// Returns the faults with their times, and when the last one has ended. A crash has ended when the leases of the process
    /// are over.
    fn faults(
        topology: Topology,
        lease: Duration,
        random: &mut Random,
    ) -> (Vec<(Duration, Fault)>, Duration) {
        let spread = lease.min(LONGEST_SPREAD / 3) * 3;
        let servers = topology.servers();
        let kinds: &[_] = match topology {
            Topology::Single | Topology::Quorum => &KINDS,
            Topology::Sentinel => &KINDS_OF_GROUPS,
            Topology::Cluster => &KINDS_OF_CLUSTERS,
        };
        let count = random.within(2..6);
        let (mut faults, mut healed_at) = (Vec::new(), Duration::ZERO);
        let mut has_crashed = false;
        for _ in 0..count {
            let mut kind = *random.pick(kinds);
            // The data of one server are seldom lost: little can be checked afterwards.
            if kind == FaultKind::RestartEmpty && topology != Topology::Quorum && !random.one_in(4)
                || kind == FaultKind::Crash && has_crashed
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
            let fault = Fault::new(kind, PROCESSES, servers, random);
            let length = match kind {
                FaultKind::Crash => lease * LONGEST_EXTENSION,
                _ => fault.length(),
            };
            healed_at = healed_at.max(at + length);
            faults.push((at, fault));
        }
        let is_restart = |kind| matches!(kind, FaultKind::Restart | FaultKind::RestartEmpty);
        let has_restarts = faults.iter().any(|(_, fault)| is_restart(fault.kind()));
        match topology {
            Topology::Sentinel | Topology::Cluster => healed_at += ROLES_WITHIN,
            Topology::Quorum if has_restarts => {
                healed_at += RESTART_DELAY + Duration::from_secs(1);
            }
            Topology::Single | Topology::Quorum => {}
        }
        (faults, healed_at)
    }
}

/// How the servers of a schedule replicate.
struct ReplicationPlan {
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

    /// Returns how many replicas the library has to wait for.
    fn confirming(&self, bug: Option<Bug>) -> u32 {
        match bug {
            Some(Bug::SkipsReplicas) => 0,
            _ => u32::try_from(self.confirming).unwrap_or(u32::MAX),
        }
    }

    fn begin(&self, topology: Topology, world: &World) {
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

/// Returns a clock that differs from the true time.
fn clock(random: &mut Random, shown: Duration) -> Clock {
    let drift = i64::from(random.within(0..2 * u64::from(DRIFT)) as u32) - i64::from(DRIFT);
    Clock::new(
        shown + random.length(Duration::from_micros(1)..OFFSET),
        drift,
    )
}

/// Returns a key of a lock that is still there long after the end.
fn left_keys(world: &World) -> Option<String> {
    let mut state = world.state();
    let later = state.now + KEYS_END_WITHIN;
    let servers = state.network.servers.iter_mut();
    let keys = servers.flat_map(|server| server.execute(&["KEYS", "*"], later));
    let is_kept = |key: &String| key.ends_with(":lh:fence") || key == "leasehold:restart_delay";
    let mut left = keys.filter(|key| !is_kept(key));
    left.next().map(|key| format!("{key} is left in Redis"))
}

impl Topology {
    pub const ALL: [Self; 4] = [Self::Single, Self::Sentinel, Self::Cluster, Self::Quorum];

    fn has_replicas(self) -> bool {
        matches!(self, Self::Sentinel | Self::Cluster)
    }

    fn servers(self) -> usize {
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
            Self::Quorum => {
                let nodes = (0..self.servers()).map(|number| format!("unix:///{number}"));
                LockManager::quorum(nodes).restart_delay(RESTART_DELAY)
            }
        }
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
