//! A scenario: what a seed decides about a schedule, as data. It can be printed, made smaller, and run.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::checks::{Checks, is_register};
use crate::clock::Clock;
use crate::faults::Fault;
use crate::network::Network;
use crate::process::Process;
use crate::programs::Operation;
use crate::random::Random;
use crate::replication::Links;
use crate::schedule::{Plan, ReplicationPlan, Report, healed_at};
use crate::trace::Trace;
use crate::workload::{self, Settings};
use crate::world::{Event, ProcessState, World};

/// The time after the end of a schedule at which no key of a lock is left.
const KEYS_END_WITHIN: Duration = Duration::from_secs(60);
/// The stream of random numbers that decides the order of the threads and the delays of messages.
pub(crate) const FIRST_STREAM: u64 = 1;

#[derive(Clone, Debug)]
pub struct Scenario {
    pub(crate) plan: Plan,
    pub(crate) server_clocks: Vec<Clock>,
    pub(crate) replication: ReplicationPlan,
    pub(crate) link_delay: Range<Duration>,
    /// The clock of leases of each process, and its time of day at the begin.
    pub(crate) process_clocks: Vec<(Clock, Duration)>,
    pub(crate) settings: Settings,
    pub(crate) threads_each: usize,
    pub(crate) faults: Vec<(Duration, Fault)>,
    /// What the threads of all processes do.
    pub(crate) programs: Vec<Vec<Operation>>,
    pub(crate) stream: u64,
    /// See [`unchecked`](Self::unchecked).
    pub(crate) is_unchecked: bool,
}

/// The parts of a scenario that are run. The others are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The numbers of the faults.
    pub faults: Vec<usize>,
    /// The numbers of threads, each with the number of an operation.
    pub operations: Vec<(usize, usize)>,
    /// The stream of random numbers that decides the order of the threads and the delays of messages.
    pub stream: u64,
}

impl Scenario {
    /// Returns what is kept if nothing is left out.
    #[must_use]
    pub fn all(&self) -> Kept {
        let threads = self.programs.iter().enumerate();
        let operations = threads
            .flat_map(|(thread, program)| (0..program.len()).map(move |number| (thread, number)));
        Kept {
            faults: (0..self.faults.len()).collect(),
            operations: operations.collect(),
            stream: self.stream,
        }
    }

    /// Leaves everything else out.
    #[must_use]
    pub fn keep(&self, kept: &Kept) -> Self {
        let mut smaller = self.clone();
        let faults = self.faults.iter().enumerate();
        let faults = faults.filter(|(number, _)| kept.faults.contains(number));
        smaller.faults = faults.map(|(_, fault)| fault.clone()).collect();
        for (thread, program) in smaller.programs.iter_mut().enumerate() {
            let operations = program.iter().enumerate();
            let is_kept = |number| kept.operations.contains(&(thread, number));
            let operations = operations.filter(|(number, _)| is_kept(*number));
            *program = operations.map(|(_, it)| it.clone()).collect();
        }
        smaller.settings.healed_at =
            healed_at(&smaller.faults, self.settings.lease, self.plan.topology);
        smaller.stream = kept.stream;
        smaller
    }

    /// Leaves the verdict to a judge of the histories: breaks of rules do not end the schedule.
    #[must_use]
    pub fn unchecked(self) -> Self {
        Self {
            is_unchecked: true,
            ..self
        }
    }

    /// Runs the schedule.
    #[must_use]
    pub fn run(&self) -> Report {
        let clocks = self.process_clocks.iter().cloned();
        let processes = clocks.map(|(clock, began_at)| ProcessState::new(clock, began_at));
        let world = Arc::new(World::new(
            Random::new(self.plan.seed, self.stream),
            Trace::new(self.plan.keeps_trace),
            processes.collect(),
            Network::new(
                self.server_clocks.clone(),
                Links::new(self.link_delay.clone()),
                self.plan.bug,
            ),
        ));
        world.state().healed_at = self.settings.healed_at;
        self.replication.begin(self.plan.topology, &world);
        world.note(format_args!("{:?}", self.settings));
        for (at, fault) in &self.faults {
            world.state().plan(*at, Event::Fault(fault.clone()));
        }
        let checks = Checks::new(&world, self);
        for process in 0..self.process_clocks.len() {
            self.start(process, &world, &checks);
        }
        let mut course = world.run();
        if course.failure.is_none() {
            let delay = self.faults.iter().map(|(_, fault)| fault.delays_by());
            let shortest_lease = self.settings.lease_of(self.process_clocks.len() - 1);
            // A request that arrives after a whole lease may grant the lock to an owner that nobody releases any more.
            let has_failed_over = world.state().network.has_failed_over();
            let owners = || {
                if delay.sum::<Duration>() < shortest_lease && !has_failed_over {
                    checks.check_owners()
                } else {
                    Ok(())
                }
            };
            let kept = checks.check_keys().and_then(|()| owners());
            let broken = kept.err().or_else(|| left_keys(&world));
            course.failure = broken.filter(|_| !self.is_unchecked);
            // After a failure, threads are still there.
            world.state().network.end();
        }
        Report {
            failure: course.failure,
            counts: checks.counts(),
            history: checks.history(),
            faults: course.faults,
            hash: course.hash,
            trace: course.lines,
            took: course.took,
            steps: course.steps,
        }
    }

    /// Starts a process, if it has something to do.
    fn start(&self, process: usize, world: &Arc<World>, checks: &Arc<Checks>) {
        let first = process * self.threads_each;
        let threads = first..first + self.threads_each;
        let programs = threads.map(|thread| (thread, self.programs[thread].clone()));
        let programs: Vec<_> = programs
            .filter(|(_, program)| !program.is_empty())
            .collect();
        if programs.is_empty() {
            return world.process_finished(process);
        }
        let process = Process {
            world: Arc::clone(world),
            number: process,
        };
        workload::start(&process, programs, &self.settings, checks);
    }
}

/// Returns a key of a lock that is still there long after the end.
fn left_keys(world: &World) -> Option<String> {
    let mut state = world.state();
    let later = state.now + KEYS_END_WITHIN;
    let servers = &mut state.network.servers;
    let keys: Vec<_> = servers
        .iter_mut()
        .flat_map(|server| server.execute(&["KEYS", "*"], later))
        .collect();
    let is_kept = |key: &String| {
        state.may_live_for_ever(key)
            || key.ends_with(":lh:fence")
            || key.ends_with(":lh:once")
            || key.ends_with(":lh:leader")
            || key == "leasehold:restart_delay"
            || is_register(key)
    };
    let mut left = keys.into_iter().filter(|key| !is_kept(key));
    left.next().map(|key| format!("{key} is left in Redis"))
}

/// Shows the faults, and the program of each thread.
impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.settings)?;
        for (at, fault) in &self.faults {
            writeln!(f, "at {at:?}: {fault:?}")?;
        }
        for (thread, program) in self.programs.iter().enumerate() {
            for operation in program {
                let process = thread / self.threads_each;
                writeln!(f, "p{process}, thread {thread}: {operation:?}")?;
            }
        }
        Ok(())
    }
}
