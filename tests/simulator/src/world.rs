//! The world of a schedule: its time, its threads, its processes, its network and its servers.
//!
//! The threads are threads of the operating system, and pass a baton: only the thread that has it runs. A thread passes the
//! baton on in these cases:
//!
//! | the thread | and then |
//! | --- | --- |
//! | waits | another thread runs. If none can run, the time jumps to the next event |
//! | is at a step | goes on; or any thread that can run does; or this one stands still for a moment |
//! | has ended | as if it waited without end |
//!
//! The seed decides each choice. A schedule fails if no thread can run and no event will come, and if a thread runs on and on
//! without a wait.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::cluster::ClusterEvent;
use crate::failover::FailoverEvent;
use crate::faults::{Fault, FaultKind};
use crate::network::{Flow, Network};
use crate::random::Random;
use crate::replication::LinkEvent;
use crate::trace::Trace;

/// How many steps a thread may make without a wait.
const MOST_BUSY_STEPS: u32 = 10_000;
/// A wait that is shorter is no wait.
const SHORTEST_WAIT: Duration = Duration::from_micros(1);
/// How many steps a schedule may have.
const MOST_STEPS: u64 = 5_000_000;
/// The longest schedule.
const LONGEST: Duration = Duration::from_secs(12 * 3_600);
/// The longest real time for which no thread passes the baton on. A machine that starves this process takes far less.
const PATIENCE: Duration = Duration::from_secs(600);
/// This is longer than a lease.
const THREADS_END_WITHIN: Duration = Duration::from_secs(120);
/// For how long a thread may stand still at a step.
const HICCUP: std::ops::Range<Duration> = Duration::from_micros(1)..Duration::from_millis(20);

thread_local! {
    /// The number of this thread.
    static OWN_NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    /// Counts the lines that the threads of its world write to the log.
    static LOG_LINES: RefCell<Option<Arc<AtomicU64>>> = const { RefCell::new(None) };
    /// Whether this thread looks at the guards of all threads. Nothing else happens meanwhile.
    static IS_CHECKING: Cell<bool> = const { Cell::new(false) };
}

/// Where threads wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At a place of the library.
    Address(usize),
    /// For one of these streams.
    Streams(Vec<u64>),
    /// Only for a time.
    Nowhere,
    /// Until time has passed, and no other thread can run at that moment.
    Quiet,
}

/// Notes that the calling thread has written a line to the log.
pub fn note_log_line() {
    LOG_LINES.with_borrow(|lines| {
        if let Some(lines) = lines {
            lines.fetch_add(1, Ordering::Relaxed);
        }
    });
}

type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

pub(crate) struct World {
    /// What the clock of programs shows at the begin.
    pub(crate) began_at: Instant,
    state: Mutex<WorldState>,
    /// Notified when the schedule is over.
    over: Condvar,
    /// Looks at the guards whenever the baton may pass on.
    check: OnceLock<Check>,
    pub(crate) log_lines: Arc<AtomicU64>,
}

/// The state of the world, which only the thread with the baton changes.
pub(crate) struct WorldState {
    /// The true time, since the begin of the schedule.
    pub(crate) now: Duration,
    pub(crate) random: Random,
    pub(crate) trace: Trace,
    pub(crate) processes: Vec<ProcessState>,
    pub(crate) network: Network,
    pub(crate) faults: BTreeMap<FaultKind, u32>,
    /// The commands that a server has refused.
    pub(crate) refused: BTreeSet<&'static str>,
    /// The keys that servers have evicted, or that another client has taken for itself.
    pub(crate) evictions: Vec<(Duration, String)>,
    /// When the last fault has ended. From then on, no message takes long.
    pub(crate) healed_at: Duration,
    /// When the last fault beyond the assumptions has ended: for single names, and with `None` for all of them.
    pub(crate) beyond_ended_at: BTreeMap<Option<String>, Duration>,
    /// The processes whose clock jumped ahead, when, and how far.
    pub(crate) clock_jumps: Vec<(usize, Duration, Duration)>,
    /// Until when a fault keeps threads from running.
    pub(crate) paused_until: Duration,
    /// Whether threads stand still for a moment now and then, as on a busy machine.
    pub(crate) has_hiccups: bool,
    /// The time in which the threads of the library end after the programs.
    pub(crate) threads_end_within: Duration,
    threads: Vec<SimulatedThread>,
    /// The numbers of the threads that have not ended.
    alive: Vec<usize>,
    /// The numbers of the threads that can run, while one is chosen.
    can_run: Vec<usize>,
    agenda: BTreeMap<(Duration, u64), Event>,
    next_event: u64,
    steps: u64,
    failure: Option<String>,
    is_over: bool,
}

/// An event that is planned.
#[derive(Debug)]
pub(crate) enum Event {
    /// The next piece of a flow arrives.
    Arrival(Flow),
    Fault(Fault),
    /// A process notices that a connection is dead.
    DeathSeen(Flow),
    /// The servers notice that the process has crashed.
    CrashSeen(usize),
    OfLink(LinkEvent),
    OfFailover(FailoverEvent),
    OfCluster(ClusterEvent),
    /// A server allows a command again.
    Allow(usize, &'static str),
    /// Another client deletes what it has written under a key, to this server or to the masters of the key.
    ForeignEnds(String, usize),
    /// The programs begin again after an idle time.
    IdleEnds,
    /// The threads of the library must have ended.
    ThreadsEnded,
}

pub(crate) struct ProcessState {
    pub(crate) clock: Clock,
    /// The time of day, at the begin of the schedule.
    pub(crate) began_at: Duration,
    /// When its last pause began, or when it crashed.
    pub(crate) paused_at: Duration,
    pub(crate) paused_until: Duration,
    /// The pause that begins at a step of one of its threads.
    pub(crate) planned_pause: Option<PlannedPause>,
    /// Whether its threads never run again, until the schedule is over and they must end.
    pub(crate) is_crashed: bool,
    /// Whether it crashed earlier, and its threads run only to end.
    pub(crate) is_revived: bool,
    is_finished: bool,
    /// How many threads it may still start, if there is a limit.
    pub(crate) threads_left: Option<u64>,
}

/// A pause that begins after this number of steps: so it begins where the library acts, and not where it sleeps.
#[derive(Clone, Copy)]
pub(crate) struct PlannedPause {
    pub(crate) steps: u64,
    pub(crate) until: Duration,
    /// Whether all threads of the process stand still, or only the one that makes the step.
    pub(crate) is_of_process: bool,
}

struct SimulatedThread {
    process: usize,
    status: Status,
    /// When it began to wait.
    waits_since: Duration,
    paused_until: Duration,
    /// How many steps it has made since its last wait.
    busy_steps: u32,
    turn: Arc<Turn>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Status {
    Ready,
    Waiting { place: Place, until: Duration },
    Ended,
}

/// Whether a thread has the baton.
#[derive(Default)]
struct Turn {
    has_come: Mutex<bool>,
    changed: Condvar,
}

/// How a schedule went.
#[derive(Debug)]
pub(crate) struct Course {
    pub(crate) failure: Option<String>,
    pub(crate) hash: u64,
    pub(crate) lines: Vec<String>,
    pub(crate) faults: BTreeMap<FaultKind, u32>,
    pub(crate) took: Duration,
    pub(crate) steps: u64,
}

impl Turn {
    fn give(&self) {
        *locked(&self.has_come) = true;
        self.changed.notify_one();
    }

    fn take(&self) {
        let mut has_come = locked(&self.has_come);
        while !*has_come {
            has_come = (self.changed.wait(has_come)).unwrap_or_else(PoisonError::into_inner);
        }
        *has_come = false;
    }
}

/// Locks a mutex that no thread keeps while it passes the baton on.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(crate) fn new(
        random: Random,
        trace: Trace,
        processes: Vec<ProcessState>,
        network: Network,
    ) -> Self {
        Self {
            began_at: Instant::now(),
            state: Mutex::new(WorldState {
                now: Duration::ZERO,
                random,
                trace,
                processes,
                network,
                faults: BTreeMap::new(),
                refused: BTreeSet::new(),
                evictions: Vec::new(),
                healed_at: Duration::ZERO,
                beyond_ended_at: BTreeMap::new(),
                clock_jumps: Vec::new(),
                paused_until: Duration::ZERO,
                has_hiccups: true,
                threads_end_within: THREADS_END_WITHIN,
                threads: Vec::new(),
                alive: Vec::new(),
                can_run: Vec::new(),
                agenda: BTreeMap::new(),
                next_event: 0,
                steps: 0,
                failure: None,
                is_over: false,
            }),
            over: Condvar::new(),
            check: OnceLock::new(),
            log_lines: Arc::default(),
        }
    }

    /// Has the world call this whenever the baton may pass on.
    pub(crate) fn check_by(&self, check: Check) {
        self.check.set(check).ok();
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, WorldState> {
        locked(&self.state)
    }

    /// Runs the planned threads, and returns when all of them have ended, or the schedule has failed.
    pub(crate) fn run(&self) -> Course {
        let mut state = self.state();
        match state.choose() {
            Ok(first) => state.threads[first].turn.give(),
            Err(what) => state.failure = Some(what),
        }
        let mut steps = 0;
        while !state.is_over && state.failure.is_none() {
            let (woken, waited) =
                (self.over.wait_timeout(state, PATIENCE)).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if waited.timed_out() && state.steps == steps {
                state.failure = Some("a thread waits outside of the scheduler".into());
            }
            steps = state.steps;
        }
        let trace = std::mem::replace(&mut state.trace, Trace::new(false));
        Course {
            failure: state.failure.clone(),
            hash: trace.hash(),
            lines: trace.lines().to_vec(),
            faults: std::mem::take(&mut state.faults),
            took: state.now,
            steps: state.steps,
        }
    }

    /// Ends the schedule with a failure, and never returns.
    pub(crate) fn fail(&self, what: String) -> ! {
        self.fail_with(self.state(), what)
    }

    fn fail_with(&self, mut state: MutexGuard<'_, WorldState>, what: String) -> ! {
        let now = state.now;
        state.trace.note(now, format_args!("failure: {what}"));
        state.failure.get_or_insert(what);
        drop(state);
        self.over.notify_all();
        loop {
            std::thread::park();
        }
    }

    pub(crate) fn note(&self, event: fmt::Arguments<'_>) {
        let mut state = self.state();
        let now = state.now;
        state.trace.note(now, event);
    }

    /// Looks at the guards of all threads.
    fn look(&self) {
        if let Some(check) = self.check.get() {
            if let Err(what) = Self::while_all_stand_still(check) {
                self.fail(what);
            }
        }
    }

    /// Calls a check that no other thread interrupts, although it calls the library.
    pub(crate) fn while_all_stand_still<T>(check: impl FnOnce() -> T) -> T {
        IS_CHECKING.set(true);
        let result = check();
        IS_CHECKING.set(false);
        result
    }

    /// Has the calling thread wait, for at most `limit` of its process's clock.
    pub(crate) fn wait(&self, place: Place, limit: Option<Duration>) {
        assert!(!IS_CHECKING.get(), "a check must not wait");
        let own = own_number();
        self.look();
        let mut state = self.state();
        if limit.is_some_and(|limit| limit < SHORTEST_WAIT) {
            state.threads[own].busy_steps += 1;
        } else {
            state.threads[own].busy_steps = 0;
        }
        let clock = &state.processes[state.threads[own].process].clock;
        let length = limit.map_or(Duration::MAX, |limit| clock.true_length(limit));
        let until = state.now.saturating_add(length);
        state.threads[own].status = Status::Waiting { place, until };
        state.threads[own].waits_since = state.now;
        self.pass_on(state, own);
    }

    /// Passes the baton on, perhaps.
    pub(crate) fn step(&self) {
        if IS_CHECKING.get() || OWN_NUMBER.get().is_none() {
            return;
        }
        let own = own_number();
        let mut state = self.state();
        state.steps += 1;
        state.threads[own].busy_steps += 1;
        state.begin_planned_pause(own);
        let choice = state.random.within(0..256);
        let is_busy = state.threads[own].busy_steps > MOST_BUSY_STEPS;
        if choice >= 48 && state.may_run(own) && !is_busy {
            return;
        }
        drop(state);
        self.look();
        let mut state = self.state();
        if choice == 0 && state.has_hiccups {
            let length = state.random.length(HICCUP);
            let (place, until) = (Place::Nowhere, state.now + length);
            state.threads[own].status = Status::Waiting { place, until };
        }
        self.pass_on(state, own);
    }

    fn pass_on(&self, mut state: MutexGuard<'_, WorldState>, own: usize) {
        if state.threads[own].busy_steps > MOST_BUSY_STEPS {
            self.fail_with(state, format!("thread {own} runs on and on"));
        }
        let next = match state.choose() {
            Ok(next) if next == own => return,
            Ok(next) => next,
            Err(what) => self.fail_with(state, what),
        };
        let turns = [next, own].map(|thread| Arc::clone(&state.threads[thread].turn));
        drop(state);
        turns[0].give();
        turns[1].take();
    }

    pub(crate) fn thread_planned(&self, process: usize) -> u64 {
        let mut state = self.state();
        state.threads.push(SimulatedThread {
            process,
            status: Status::Ready,
            waits_since: Duration::ZERO,
            paused_until: Duration::ZERO,
            busy_steps: 0,
            turn: Arc::default(),
        });
        let number = state.threads.len() - 1;
        state.alive.push(number);
        let now = state.now;
        state
            .trace
            .note(now, format_args!("thread {number} of {process}"));
        number as u64
    }

    pub(crate) fn thread_begins(&self, number: u64) {
        let number = number as usize;
        OWN_NUMBER.set(Some(number));
        LOG_LINES.set(Some(Arc::clone(&self.log_lines)));
        let turn = Arc::clone(&self.state().threads[number].turn);
        turn.take();
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        self.note(format_args!("thread {number} begins: {name}"));
    }

    pub(crate) fn thread_ends(&self, number: u64) {
        let number = number as usize;
        let mut state = self.state();
        let now = state.now;
        state.trace.note(now, format_args!("thread {number} ends"));
        state.threads[number].status = Status::Ended;
        state.alive.retain(|alive| *alive != number);
        if OWN_NUMBER.get() != Some(number) {
            // The system has refused it.
            return;
        }
        OWN_NUMBER.set(None);
        if state.alive.is_empty() {
            state.is_over = true;
            drop(state);
            self.over.notify_all();
            return;
        }
        match state.choose() {
            Ok(next) => state.threads[next].turn.give(),
            Err(what) => {
                state.trace.note(now, format_args!("failure: {what}"));
                state.failure.get_or_insert(what);
                drop(state);
                self.over.notify_all();
            }
        }
    }

    /// Notes that the program of a process has ended. After the last one, the threads of crashed processes end too.
    pub(crate) fn process_finished(&self, process: usize) {
        let mut state = self.state();
        state.processes[process].is_finished = true;
        state.revive();
    }

    pub(crate) fn wake(&self, place: usize, all: bool) {
        self.state().wake(place, all);
    }
}

fn own_number() -> usize {
    (OWN_NUMBER.get()).expect("only threads of processes wait")
}

impl ProcessState {
    pub(crate) fn new(clock: Clock, began_at: Duration) -> Self {
        Self {
            clock,
            began_at,
            paused_at: Duration::ZERO,
            paused_until: Duration::ZERO,
            planned_pause: None,
            is_crashed: false,
            is_revived: false,
            is_finished: false,
            threads_left: None,
        }
    }

    /// Returns whether its program has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Has its threads stand still from now on.
    pub(crate) fn stands_still(&mut self, now: Duration, until: Duration) {
        if until < now {
            return;
        }
        if now > self.paused_until {
            self.paused_at = now;
        }
        self.paused_until = until.max(self.paused_until);
    }

    /// Returns from when on its threads may run.
    fn runs_from(&self) -> Duration {
        if self.is_crashed {
            Duration::MAX
        } else {
            self.paused_until
        }
    }
}

impl WorldState {
    /// Plans an event after this time.
    pub(crate) fn plan(&mut self, after: Duration, event: Event) {
        self.agenda
            .insert((self.now + after, self.next_event), event);
        self.next_event += 1;
    }

    /// Has the threads of crashed processes end, if all other programs have ended.
    pub(crate) fn revive(&mut self) {
        if (self.processes.iter()).any(|it| !it.is_finished && !it.is_crashed) {
            return;
        }
        for process in 0..self.processes.len() {
            let state = &mut self.processes[process];
            if state.is_crashed {
                (state.is_crashed, state.is_revived) = (false, true);
                self.end_connections_of(process);
            }
        }
        if self.processes.iter().all(|it| it.is_finished) {
            self.plan(self.threads_end_within, Event::ThreadsEnded);
        }
    }

    /// Wakes a thread that waits at a place of the library, or all of them.
    fn wake(&mut self, place: usize, all: bool) {
        let place = Place::Address(place);
        let waits = |thread: &SimulatedThread| match &thread.status {
            Status::Waiting { place: at, .. } => *at == place,
            Status::Ready | Status::Ended => false,
        };
        let waiting = self.alive.iter();
        let count = waiting.filter(|it| waits(&self.threads[**it])).count();
        let one = (!all && count > 1).then(|| self.random.index(count));
        let mut found = 0;
        for number in &self.alive {
            let thread = &mut self.threads[*number];
            if found < count && waits(thread) {
                if one.is_none_or(|one| one == found) {
                    thread.status = Status::Ready;
                }
                found += 1;
            }
        }
    }

    /// Wakes the threads that wait for a stream.
    pub(crate) fn wake_reader(&mut self, stream: u64) {
        for number in &self.alive {
            let thread = &mut self.threads[*number];
            if let Status::Waiting {
                place: Place::Streams(streams),
                ..
            } = &thread.status
            {
                if streams.contains(&stream) {
                    thread.status = Status::Ready;
                }
            }
        }
    }

    /// Has a thread of a process stand still. Returns false if the process has none.
    pub(crate) fn pause_thread(&mut self, process: usize, until: Duration) -> bool {
        let its = self.alive.iter();
        let its = its.filter(|number| self.threads[**number].process == process);
        let its: Vec<_> = its.copied().collect();
        if its.is_empty() {
            return false;
        }
        let number = self.random.index(its.len());
        self.threads[its[number]].paused_until = until;
        true
    }

    /// Begins the pause that was planned for a step of this thread's process, if it is due.
    fn begin_planned_pause(&mut self, thread: usize) {
        let process = &mut self.processes[self.threads[thread].process];
        let Some(pause) = &mut process.planned_pause else {
            return;
        };
        if pause.steps > 0 {
            pause.steps -= 1;
            return;
        }
        let until = pause.until;
        if pause.is_of_process {
            process.stands_still(self.now, until);
        } else {
            self.threads[thread].paused_until = until;
        }
        process.planned_pause = None;
    }

    /// Returns from when on a thread can run, or `Duration::MAX`.
    fn runs_from(&self, thread: &SimulatedThread) -> Duration {
        let ready_at = match thread.status {
            Status::Ready => self.now,
            Status::Waiting { until, .. } => until,
            Status::Ended => return Duration::MAX,
        };
        let process = self.processes[thread.process].runs_from();
        ready_at.max(thread.paused_until).max(process)
    }

    fn may_run(&self, thread: usize) -> bool {
        self.runs_from(&self.threads[thread]) <= self.now
    }

    /// Chooses the thread that runs next. If none can run, the time jumps to the next event.
    fn choose(&mut self) -> Result<usize, String> {
        loop {
            self.happen()?;
            let mut next_at = Duration::MAX;
            self.can_run.clear();
            for number in &self.alive {
                let at = self.runs_from(&self.threads[*number]);
                next_at = next_at.min(at);
                if at <= self.now {
                    self.can_run.push(*number);
                }
            }
            if self.can_run.is_empty() {
                self.wake_quiet();
            }
            if !self.can_run.is_empty() {
                self.steps += 1;
                if self.steps > MOST_STEPS {
                    return Err("the schedule has no end".into());
                }
                let next = match self.can_run[..] {
                    [only] => only,
                    _ => *self.random.pick(&self.can_run),
                };
                self.threads[next].status = Status::Ready;
                self.trace.note_thread(self.now, next);
                return Ok(next);
            }
            let event_at = self.agenda.keys().next().map(|(at, _)| *at);
            let next = event_at.map_or(next_at, |at| at.min(next_at));
            if next > LONGEST {
                let waiting = self.waiting();
                return Err(format!(
                    "no thread can run, and no event will come: {waiting}"
                ));
            }
            self.now = next;
        }
    }

    /// Lets the threads run that wait until no other can.
    fn wake_quiet(&mut self) {
        for number in &self.alive {
            let thread = &self.threads[*number];
            let waits =
                matches!(&thread.status, Status::Waiting { place, .. } if *place == Place::Quiet);
            let process = self.processes[thread.process].runs_from();
            if waits && thread.waits_since < self.now && process <= self.now {
                self.can_run.push(*number);
            }
        }
    }

    fn waiting(&self) -> String {
        let process = |number: &usize| self.threads[*number].process;
        let words = (self.alive.iter()).map(|number| format!("{number} of {}", process(number)));
        words.collect::<Vec<_>>().join(", ")
    }

    /// Does what is due.
    fn happen(&mut self) -> Result<(), String> {
        while let Some(entry) = self.agenda.first_entry() {
            if entry.key().0 > self.now {
                return Ok(());
            }
            match entry.remove() {
                Event::Arrival(flow) => self.arrive(flow),
                Event::Fault(fault) => self.begin_fault(&fault),
                Event::DeathSeen(flow) => self.end_dead(flow),
                Event::CrashSeen(process) => self.end_connections_of(process),
                Event::OfLink(event) => self.link_event(event),
                Event::OfFailover(event) => self.failover_event(event),
                Event::OfCluster(event) => self.cluster_event(event),
                Event::Allow(server, right) => self.allow(server, right),
                Event::ForeignEnds(key, server) => self.delete_foreign(&key, server),
                Event::IdleEnds => self.end_idle(),
                Event::ThreadsEnded => {
                    let waiting = self.waiting();
                    return Err(format!("threads of the library do not end: {waiting}"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;
    use crate::replication::Links;

    /// Returns how a schedule goes whose only process runs these threads.
    fn course(threads: Vec<fn(&World)>) -> Course {
        let process = ProcessState::new(Clock::new(Duration::ZERO, 0), Duration::ZERO);
        let links = Links::new(Links::pick_delay(&mut Random::new(1, 1), false));
        let network = Network::new(Vec::new(), links, None);
        let (random, trace) = (Random::new(1, 1), Trace::new(false));
        let world = Arc::new(World::new(random, trace, vec![process], network));
        let process = Process {
            world: Arc::clone(&world),
            number: 0,
        };
        for run in threads {
            let world = Arc::clone(&world);
            let started = process.spawn("", move || run(&world));
            started.expect("the system starts a thread");
        }
        world.run()
    }

    fn sleep(world: &World, seconds: u64) {
        world.wait(Place::Nowhere, Some(Duration::from_secs(seconds)));
    }

    #[test]
    fn the_time_jumps_to_the_next_wake_up() {
        let course = course(vec![|world| sleep(world, 600), |world| sleep(world, 7)]);
        assert_eq!(course.failure, None);
        assert!((600..601).contains(&course.took.as_secs()));
    }

    #[test]
    fn threads_that_wait_without_end_are_a_failure() {
        let course = course(vec![|world| sleep(world, 1), |world| {
            world.wait(Place::Address(1), None);
        }]);
        let failure = course.failure.expect("a failure");
        assert!(failure.contains("no thread can run"), "{failure}");
    }

    #[test]
    fn a_thread_that_runs_on_and_on_is_a_failure() {
        let spins: [fn(&World); 2] = [
            |world| loop {
                world.step();
            },
            |world| loop {
                world.wait(Place::Nowhere, Some(Duration::ZERO));
            },
        ];
        for spin in spins {
            let course = course(vec![spin, |world| sleep(world, 1)]);
            let failure = course.failure.expect("a failure");
            assert!(failure.contains("runs on and on"), "{failure}");
        }
    }

    #[test]
    fn a_thread_that_is_woken_runs_at_once() {
        let course = course(vec![
            |world| {
                world.wait(Place::Address(1), Some(Duration::from_secs(60)));
            },
            |world| {
                sleep(world, 1);
                world.wake(1, false);
            },
        ]);
        assert_eq!(course.failure, None);
        assert!(course.took < Duration::from_secs(2));
    }
}
