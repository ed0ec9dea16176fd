//! The workers of a schedule: each process has a manager and several threads, which run their programs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use leasehold::seam::sleep;
use leasehold::{
    Admission, Builder, Cancel, Error, Event, EventKind, Leader, Leadership, Lease, LeaseState,
    Listener, Lock, LockManager, OnceGuard, Ran, Receiver, ReentrantGuard, Reply, Result,
    TryRecvError, Write,
};

use crate::checks::{Asked, Checks, Committed, Guard, register_of};
use crate::elections::Shown;
use crate::history::{self, Answer, Object};
use crate::process::{Child, Process};
use crate::programs::{Choice, EXCLUSIVE, End, LED, NAMES, Operation, UNFENCED, What};
use crate::random::Random;
use crate::registers::Read;
use crate::schedule::Topology;
use crate::world::{Place, World, locked};

const PERMITS: u32 = 2;
/// How many places a rate limiter has in which time.
const LIMIT: u32 = 3;
const LIMITS_PER: Duration = Duration::from_secs(1);
/// The time between two fires of a job.
const FIRES_EVERY: Duration = Duration::from_secs(2);
/// For how many thirds of a lease, or of 2 s, a thread holds several mutexes.
const SEVERAL_FOR: u32 = 7;
/// How many times as long as a lock a leader leads that stays.
const LONG_TERM: u64 = 6;
/// For how long a thread observes.
const OBSERVED_FOR: std::ops::Range<Duration> = Duration::from_millis(10)..Duration::from_secs(8);
/// The longest extension of a lease, in leases.
pub(crate) const LONGEST_EXTENSION: u32 = 3;
/// The units of a reader-writer lock: a reader has one, and a writer all.
const UNITS: u32 = 1_000;
/// The time for which a process waits when it closes.
const CLOSE_WITHIN: Duration = Duration::from_secs(20);
/// The longest time for which a loss may stay untold after the last fault. After a jump of its clock a thread sleeps on for
/// at most a second, and so does one that has read the clock just before a pause.
const TOLD_WITHIN: Duration = Duration::from_millis(1_500);
/// The same if no thread has paused within the last [`TOLD_WITHIN`]: the 50 ms that are promised, and a few hiccups of up to 20 ms.
const TOLD_AT_ONCE_WITHIN: Duration = Duration::from_millis(150);
/// After the last fault, how long the messages of before are on their way.
pub(crate) const SETTLES_WITHIN: Duration = Duration::from_secs(2);
/// The longest time after which the server answers if nothing is wrong, also on a new connection.
const ANSWERED_WITHIN: Duration = Duration::from_millis(50);
/// For how long a call may wait after the last fault.
const WAIT_WITHIN: Duration = Duration::from_secs(120);
/// For how long a call may go on after its cancel and the last fault.
const CANCELLED_WITHIN: Duration = Duration::from_secs(10);
/// The limit of a closure that would wait without end.
const LONGEST_LIMIT: Duration = Duration::from_secs(60);
/// How long a request to a register, or its answer, is on its way.
const TRAVEL: std::ops::Range<Duration> = Duration::from_micros(10)..Duration::from_millis(5);

/// The settings of all processes of a schedule.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) hold: Duration,
    /// When the last fault has ended.
    pub(crate) healed_at: Duration,
    pub(crate) topology: Topology,
    /// The longest lease.
    pub(crate) lease: Duration,
    /// Whether each process has another lease.
    pub(crate) leases_differ: bool,
    pub(crate) io_timeout: Duration,
    pub(crate) background_release: bool,
    /// How many replicas must confirm a grant.
    pub(crate) replicas: u32,
    pub(crate) tuning: Tuning,
}

/// The other settings of all processes: those of the library, or what a third of the schedules has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    pub(crate) quantum: Option<Duration>,
    pub(crate) poller_gap: Option<Duration>,
    pub(crate) fence_memory: Option<Duration>,
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) outage_limit: Option<Duration>,
    pub(crate) waits_through_outages: bool,
    pub(crate) pool_size: Option<u32>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) is_unrenewed: bool,
}

type Setter = fn(Builder, Duration) -> Builder;

impl Tuning {
    pub(crate) fn pick(random: &mut Random, lease: Duration, topology: Topology) -> Self {
        let ms = Duration::from_millis;
        let mut some = |few: &[u64]| random.one_in(3).then(|| ms(*random.pick(few)));
        let (quantum, poller_gap) = (some(&[10, 50]), some(&[0, 5]));
        let (fence_memory, node_timeout) = (some(&[3_000, 60_000]), some(&[50, 100]));
        let (outage_limit, few) = (some(&[500, 20_000]), some(&[1, 2]));
        Self {
            quantum,
            // A quorum hands no lock over, so that it needs no gap.
            poller_gap: poller_gap.filter(|_| topology != Topology::Quorum),
            fence_memory,
            node_timeout,
            outage_limit,
            waits_through_outages: random.one_in(3),
            pool_size: few.map(|few| few.as_millis() as u32),
            max_hold: random.one_in(12).then_some(lease / 2),
            min_hold: random.one_in(12).then_some(lease / 4),
            is_unrenewed: random.one_in(24),
        }
    }

    /// Returns a builder with these settings.
    fn of(self, mut builder: Builder) -> Builder {
        let lengths: [(_, Setter); 6] = [
            (self.quantum, Builder::quantum),
            (self.poller_gap, Builder::poller_gap),
            (self.fence_memory, Builder::fence_memory),
            (self.node_timeout, Builder::node_timeout),
            (self.outage_limit, Builder::outage_limit),
            (self.min_hold, Builder::min_hold),
        ];
        for (length, set) in lengths {
            builder = match length {
                Some(length) => set(builder, length),
                None => builder,
            };
        }
        if let Some(size) = self.pool_size {
            builder = builder.pool_size(size);
        }
        builder
            .wait_through_outages(self.waits_through_outages)
            .max_hold(self.max_hold)
            .renew(!self.is_unrenewed)
            .warn_after(self.max_hold)
            .warn_wait_after(self.outage_limit)
    }
}

impl Settings {
    /// Returns the lease of a process. The last process has the shortest one.
    pub(crate) fn lease_of(&self, process: usize) -> Duration {
        if self.leases_differ {
            self.lease / (process as u32 + 1)
        } else {
            self.lease
        }
    }

    /// Returns the shortest pickup window of a process, as the documentation of `io_timeout` promises it.
    pub(crate) fn pickup_window(&self, processes: usize) -> Duration {
        let longest = Duration::from_secs(1).max(self.io_timeout * 2);
        let lease = self.lease_of(processes - 1);
        lease.clamp(Duration::from_millis(250), longest)
    }
}

struct Program {
    process: Process,
    number: usize,
    settings: Settings,
    checks: Arc<Checks>,
    running: AtomicUsize,
    managers: AtomicUsize,
    manager: Mutex<Option<LabelledManager>>,
}

/// A manager, and the label of its owners.
#[derive(Clone)]
struct LabelledManager {
    manager: LockManager,
    label: String,
}

/// Receives the events of a manager.
struct Events {
    checks: Arc<Checks>,
    process: usize,
}

impl Listener for Events {
    fn on_event(&self, event: &Event<'_>) {
        let kind = event.kind.as_str();
        let world = &self.checks.world;
        world.note(format_args!("p{} is told: {kind}", self.process));
        self.checks
            .count(|counts| *counts.events.entry(kind).or_default() += 1);
        if let (EventKind::Lost { cause, fence, .. }, Some(name)) = (&event.kind, &event.name) {
            self.checks.lost(self.process, name, *cause, *fence);
        }
    }
}

struct Worker {
    program: Arc<Program>,
    /// Among all threads of all processes.
    number: usize,
    /// The moments of the operation that runs.
    random: Random,
}

/// A call to the library.
struct Call {
    begun: Duration,
    /// The number of the call in the queues of the checks.
    ticket: u64,
    /// For each name, if the lock is exclusive.
    asked: Vec<Asked>,
    /// When the closure began to run.
    answered_at: Option<Duration>,
    cancel: Option<Cancel>,
    /// When the token was cancelled, in nanoseconds, or 0.
    cancelled_at: Arc<AtomicU64>,
    /// How many managers the process had before the call.
    managers: usize,
    /// Whether it must not fail.
    must_not_fail: bool,
}

/// Has a handle of any kind use the token of a call, and the option of an operation.
macro_rules! configured {
    ($handle:expr, $operation:expr, $call:expr) => {{
        let handle = $handle;
        let handle = match $operation.choice {
            Some(Choice::Unrenewed) => handle.renew(false),
            Some(Choice::Lease(length)) => handle.lease(length),
            Some(Choice::MinHold(length)) => handle.min_hold(length),
            Some(Choice::MaxHold(length)) => handle.max_hold(Some(length)),
            None => handle,
        };
        match &$call.cancel {
            Some(cancel) => handle.cancel_with(cancel),
            None => handle,
        }
    }};
}

/// Plans the first thread of a process. Each program is for a thread, which has the number beside it.
pub(crate) fn start(
    process: &Process,
    programs: Vec<(usize, Vec<Operation>)>,
    settings: &Settings,
    checks: &Arc<Checks>,
) {
    let program = Arc::new(Program {
        process: process.clone(),
        number: process.number,
        settings: settings.clone(),
        checks: Arc::clone(checks),
        running: AtomicUsize::new(programs.len()),
        managers: AtomicUsize::new(0),
        manager: Mutex::new(None),
    });
    let run = move || program.guarded(|| program.run(programs));
    process
        .spawn("main", run)
        .expect("the system starts a thread");
}

impl Program {
    fn world(&self) -> &World {
        &self.checks.world
    }

    /// Ends the schedule if this panics.
    fn guarded(&self, run: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            self.world()
                .fail("a thread of a program has panicked".into());
        }
    }

    fn must(&self, result: std::result::Result<(), String>) {
        match result {
            Err(what) if !self.checks.are_off => self.world().fail(what),
            _ => {}
        }
    }

    fn is_revived(&self) -> bool {
        self.world().state().processes[self.number].is_revived
    }

    fn now(&self) -> Duration {
        self.world().state().now
    }

    fn run(self: &Arc<Self>, programs: Vec<(usize, Vec<Operation>)>) {
        self.replace_manager();
        for (number, operations) in programs {
            let mut worker = Worker {
                program: Arc::clone(self),
                number,
                random: Random::new(0, 0),
            };
            let run = move || {
                let program = Arc::clone(&worker.program);
                program.guarded(|| worker.run(&operations));
                drop(worker);
                program.running.fetch_sub(1, Ordering::SeqCst);
                program.world().wake(program.place(), true);
            };
            let started = self.process.spawn(&format!("worker {number}"), run);
            started.expect("the system starts a thread");
        }
        while self.running.load(Ordering::SeqCst) > 0 {
            self.world().wait(Place::Address(self.place()), None);
        }
        let last = locked(&self.manager).take();
        self.close(last.expect("it was made at first"), true);
        self.world().process_finished(self.number);
    }

    /// Returns where the first thread waits for the others.
    fn place(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// Makes a manager, and returns the one before.
    fn replace_manager(&self) -> Option<LabelledManager> {
        let number = self.managers.fetch_add(1, Ordering::SeqCst);
        let label = format!("p{}.{number}", self.number);
        let builder = (self.settings.topology.builder())
            .label(&label)
            .lease(self.settings.lease_of(self.number))
            .io_timeout(self.settings.io_timeout)
            .connect_timeout(self.settings.io_timeout)
            .background_release(self.settings.background_release)
            .replicas(self.settings.replicas)
            .listener(Events {
                checks: Arc::clone(&self.checks),
                process: self.number,
            });
        let builder = self.settings.tuning.of(builder);
        let manager = self.process.builder(builder).build_lazy();
        let manager = manager.expect("the settings are good");
        locked(&self.manager).replace(LabelledManager { manager, label })
    }

    fn manager(&self) -> LabelledManager {
        let manager = locked(&self.manager).clone();
        manager.expect("it lives as long as the workers")
    }

    /// Closes a manager. Other threads may have guards of it, unless it `is_last`.
    fn close(&self, LabelledManager { manager, label }: LabelledManager, is_last: bool) {
        let begun = self.now();
        let has_closed = manager.close(CLOSE_WITHIN);
        if self.is_revived() {
            return;
        }
        self.world()
            .note(format_args!("{label} has closed: {has_closed}"));
        self.must(self.checks.check_keys());
        if has_closed {
            self.checks.note_closed(&label);
            if is_last {
                let repeats = manager.stats().endings_repeated > 0;
                let lease = self.settings.lease_of(self.number);
                self.must(self.checks.check_closed(&label, repeats, lease));
            }
        }
        // Otherwise the renewal thread has given a release up.
        let has_waited = self.now() > begun + CLOSE_WITHIN / 2;
        if !has_closed && has_waited && begun > self.settings.healed_at {
            self.world().fail(format!("{label} does not close"));
        }
        if !matches!(manager.try_lock("a"), Err(Error::Closed)) {
            self.world().fail("a closed manager takes a call".into());
        }
    }
}

impl Worker {
    fn world(&self) -> &World {
        self.program.world()
    }

    fn run(&mut self, operations: &[Operation]) {
        for operation in operations {
            let left = operation.at.saturating_sub(self.program.now());
            if !left.is_zero() {
                // The library's sleep would wake each second of an idle time.
                self.world().wait(Place::Nowhere, Some(left));
            }
            if self.program.is_revived() {
                return;
            }
            self.random = Random::new(operation.seed, 0);
            let is_answered = self.operate(operation);
            let (checks, number) = (&self.program.checks, self.program.number);
            checks.ended((number, self.number), &operation.names);
            self.program.must(checks.check_keys());
            sleep(operation.pause * if is_answered { 1 } else { 50 });
        }
    }

    /// Does an operation. Returns false after an error.
    fn operate(&mut self, operation: &Operation) -> bool {
        self.world()
            .note(format_args!("p{}: {operation:?}", self.program.number));
        match operation.what {
            What::Close => {
                let before = self.program.replace_manager();
                self.program
                    .close(before.expect("it was made at first"), false);
                true
            }
            What::Adoption => self.adopt(operation),
            What::Closure => self.run_closure(operation),
            What::Reentrant => self.lock_reentrant(operation),
            What::Several => self.hold_several(operation),
            What::Limited => self.ask_limiter(operation),
            What::Operator => self.look_as_operator(operation),
            What::Campaign => self.campaign(operation),
            What::Observe => self.observe(operation),
            _ => {
                let call = self.begin(operation);
                let got = self.acquire(operation, &call);
                let is_answered = got.is_ok();
                if let Some(guard) = self.result(operation, &call, got) {
                    self.hold(operation, guard, &call);
                }
                is_answered
            }
        }
    }

    /// Notes that a call begins, and plans its cancel.
    fn begin(&self, operation: &Operation) -> Call {
        let (program, checks) = (&self.program, &self.program.checks);
        let names = operation.names.iter();
        let is_exclusive = |name: &&&str| operation.what.is_exclusive() && **name != UNFENCED;
        let names = names.filter(is_exclusive);
        let asked = names.map(|name| checks.asks_for(self.number, name));
        let asked = asked.collect();
        let begun = program.now();
        let ticket = checks.asks(
            operation,
            (program.number, self.number),
            begun,
            &program.settings,
        );
        let cancelled_at = Arc::new(AtomicU64::new(0));
        let cancel = operation.cancelled_after.map(|after| {
            let cancel = Cancel::new();
            let (token, noted) = (cancel.clone(), Arc::clone(&cancelled_at));
            let program = Arc::clone(program);
            let run = move || {
                sleep(after);
                let now = program.now().as_nanos();
                noted.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::SeqCst);
                token.cancel();
            };
            let started = self.program.process.spawn("canceller", run);
            started.expect("the system starts a thread");
            cancel
        });
        Call {
            begun,
            ticket,
            asked,
            answered_at: None,
            cancel,
            cancelled_at,
            managers: program.managers.load(Ordering::SeqCst),
            must_not_fail: self.is_calm(),
        }
    }

    /// Returns whether nothing disturbs a call that begins now.
    fn is_calm(&self) -> bool {
        let state = self.world().state();
        let number = self.program.number;
        state.now > state.healed_at + SETTLES_WITHIN && !state.has_dead_connections(number)
    }

    /// Returns whether the whole process has stood still since then, or just before.
    fn stood_still_since(&self, since: Duration) -> bool {
        let until = self.world().state().processes[self.program.number].paused_until;
        until + SETTLES_WITHIN > since && !until.is_zero()
    }

    fn acquire(&self, operation: &Operation, call: &Call) -> Result<Option<Guard>> {
        let manager = self.program.manager().manager;
        let (names, wait) = (&operation.names, operation.wait);
        Ok(match operation.what {
            What::Multi => {
                let it = configured!(manager.multi(names), operation, call);
                acquire(&it, wait)?.map(Guard::Multi)
            }
            What::Writer => {
                let it = configured!(manager.rwlock(names[0]), operation, call);
                acquire(&it.writer(), wait)?.map(Guard::Write)
            }
            What::Reader => {
                let it = configured!(manager.rwlock(names[0]), operation, call);
                acquire(&it.reader(), wait)?.map(Guard::Read)
            }
            What::Permit => {
                let it = manager.semaphore(names[0], PERMITS);
                let it = configured!(it.fencing(operation.way % 2 == 0), operation, call);
                acquire(&it.permits(units_of(operation)), wait)?.map(Guard::Permit)
            }
            What::Once => {
                let it = configured!(manager.once(names[0]), operation, call);
                let wait = wait.unwrap_or(LONGEST_LIMIT);
                let fire = SystemTime::UNIX_EPOCH + self.fire_of(names[0]);
                let claimed = match operation.way % 3 {
                    0 => it.claim_every(FIRES_EVERY, wait)?,
                    _ if wait.is_zero() => it.claim(fire)?,
                    _ => it.claim_for(fire, wait)?,
                };
                claimed.map(Guard::Once)
            }
            What::Mutex if operation.choice.is_none() && call.cancel.is_none() => match wait {
                None => Some(manager.lock(names[0])?),
                Some(Duration::ZERO) => manager.try_lock(names[0])?,
                Some(wait) => manager.try_lock_for(names[0], wait)?,
            }
            .map(Guard::Lock),
            _ => {
                let it = manager.mutex(names[0]);
                let it = it.fencing(operation.what != What::Unfenced);
                let it = configured!(it, operation, call);
                acquire(&it, wait)?.map(Guard::Lock)
            }
        })
    }

    /// Counts the result of a call.
    fn result<G>(&self, operation: &Operation, call: &Call, got: Result<Option<G>>) -> Option<G> {
        let (program, checks) = (&self.program, &self.program.checks);
        let now = call.answered_at.unwrap_or_else(|| program.now());
        let healed_at = program.settings.healed_at;
        let words = match &got {
            Ok(Some(_)) => "gets it".into(),
            Ok(None) => "does not get it".into(),
            Err(error) => error.to_string(),
        };
        self.world()
            .note(format_args!("p{}: {words}", program.number));
        let is_granted = matches!(got, Ok(Some(_)));
        if !is_granted && call.answered_at.is_none() {
            for asked in &call.asked {
                checks.is_refused(*asked, got.is_err());
            }
        }
        let kept = checks.answered(call.ticket, program.number, is_granted);
        if program.is_revived() {
            return got.ok().flatten();
        }
        program.must(kept);
        let waited = now.saturating_sub(call.begun.max(healed_at));
        if waited > WAIT_WITHIN {
            self.world().fail(format!(
                "a call has waited for {waited:?} after the last fault"
            ));
        }
        let cancelled_at = Duration::from_nanos(call.cancelled_at.load(Ordering::SeqCst));
        let is_cancelled = !cancelled_at.is_zero();
        if is_cancelled && now > cancelled_at.max(healed_at) + CANCELLED_WITHIN {
            self.world().fail("a call goes on after its cancel".into());
        }
        if matches!(got, Err(Error::Cancelled)) && !is_cancelled {
            self.world().fail("a call ends without its cancel".into());
        }
        // Another thread has cancelled the call, closed the manager, or adopted the claim, or others have some of the votes; or
        // the wait was over before an answer could come.
        let is_of_another = |error: &&Error| match error {
            Error::Cancelled => true,
            Error::NoQuorum { failures, .. } => failures.is_empty() && operation.wait.is_some(),
            Error::Closed => program.managers.load(Ordering::SeqCst) > call.managers,
            Error::Lost(_) => matches!(operation.what, What::Adoption | What::Campaign),
            Error::Unavailable { .. } => {
                operation.what != What::Adoption
                    && operation
                        .wait
                        .is_some_and(|wait| wait < ANSWERED_WITHIN && !wait.is_zero())
            }
            _ => false,
        };
        let failed = got.as_ref().err().filter(|error| !is_of_another(error));
        let was_calm = call.must_not_fail && !self.stood_still_since(call.begun);
        if let Some(error) = failed.filter(|_| was_calm) {
            let what = format!("a call fails after the last fault: {error:?}");
            self.world().fail(what);
        }
        let is_promised = |name: &&str| checks.is_promised(name, None);
        let is_promised = operation.names.iter().all(is_promised);
        checks.count(|counts| {
            counts.longest_wait = waited.max(counts.longest_wait);
            counts.calm_calls += u64::from(was_calm);
            match &got {
                Ok(Some(_)) => {
                    counts.grants += 1;
                    counts.unpromised_grants += u64::from(!is_promised);
                    *counts.kinds.entry(operation.what).or_default() += 1;
                }
                Ok(None) => counts.refusals += 1,
                Err(error) => {
                    let kind = format!("{:?}", error.kind());
                    *counts.errors.entry(kind).or_default() += 1;
                }
            }
        });
        got.ok().flatten()
    }

    fn granted(&self, name: &'static str, lease: &Lease, asked: Asked) {
        let granted = (self.program.checks).granted(name, self.program.number, lease, asked);
        self.program.must(granted);
    }

    fn hold(&mut self, operation: &Operation, guard: Guard, call: &Call) {
        let checks = Arc::clone(&self.program.checks);
        let guard = Arc::new(guard);
        let names = &operation.names;
        let (units, total) = match *guard {
            Guard::Read(_) => (1, UNITS),
            Guard::Write(_) => (UNITS, UNITS),
            Guard::Permit(ref permit) => (permit.count(), PERMITS),
            Guard::Lock(_) | Guard::Multi(_) | Guard::Once(_) => (1, 1),
        };
        let hold = checks.hold(names, (units, total), (self.program.number, &guard));
        let is_exclusive = matches!(
            *guard,
            Guard::Lock(_) | Guard::Multi(_) | Guard::Write(_) | Guard::Once(_)
        ) && names[0] != UNFENCED;
        let lost = guard.on_lost();
        let asked_to_go = (operation.way < 3).then(|| guard.leases()[0].on_requested());
        let fences: Vec<_> = guard.leases().iter().map(|lease| lease.fence()).collect();
        if is_exclusive {
            for ((name, lease), asked) in names.iter().zip(guard.leases()).zip(&call.asked) {
                self.granted(name, lease, *asked);
            }
        }
        let its = names.iter().copied().zip(fences.iter().copied());
        let its: Vec<_> = its.filter(|_| is_exclusive).collect();
        let has_commit = match self.program.settings.topology {
            Topology::Quorum => false,
            // The slots of the names differ.
            Topology::Cluster => names.len() == 1,
            Topology::Single | Topology::Sentinel => true,
        };
        let is_job = matches!(*guard, Guard::Once(_));
        let mut commits = is_exclusive && has_commit && !is_job && self.random.one_in(2);
        for round in 0..operation.rounds {
            let read = is_exclusive.then(|| self.read(names[0], fences[0]));
            let committed = if commits {
                self.read_committed(names[0], fences[0], &guard)
            } else {
                None
            };
            self.work();
            if let Some(read) = read {
                self.write(names[0], fences[0], read);
            }
            if let Some(committed) = committed {
                commits = self.commit(names[0], fences[0], &guard, committed);
            }
            if matches!(*guard, Guard::Lock(_) | Guard::Multi(_) | Guard::Once(_)) {
                for lease in guard.leases() {
                    self.program
                        .must(checks.check_key(lease, self.program.number));
                }
            }
            let is_lost = guard.state() == LeaseState::Lost;
            let seen = World::while_all_stand_still(|| guard.state());
            checks.sees(Some(self.number), &its, seen);
            if is_lost {
                self.check_loss(&its, &lost, || guard.state());
                break;
            }
            if operation.forks && round == 0 {
                self.fork(&guard);
            }
            let is_asked = asked_to_go.as_ref().map(Receiver::try_recv);
            if matches!(is_asked, Some(Ok(_))) {
                break;
            }
            if self.random.one_in(8) {
                let times = self.random.within(1..u64::from(LONGEST_EXTENSION) + 1) as u32;
                let length = self.program.settings.lease * times;
                for name in names {
                    checks.extends(name);
                }
                let extended = match &*guard {
                    Guard::Multi(guard) => guard.extend(length),
                    guard => guard.leases()[0].extend(length),
                };
                // The last requests may have been sent just now.
                for name in names {
                    checks.extends(name);
                }
                self.world()
                    .note(format_args!("extend: {:?}", extended.is_ok()));
            }
        }
        checks.end_hold(hold);
        checks.ended((self.program.number, self.number), names);
        let guard = Arc::into_inner(guard).expect("no check runs now");
        self.releasing(&its, |worker| worker.end(operation, guard, call));
    }

    /// Notes the release of an exclusive guard with these fences.
    fn releasing<T>(
        &mut self,
        its: &[(&'static str, u64)],
        release: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let begin = |(name, fence): &(&'static str, u64)| {
            let call = history::Call::Release(*fence);
            (self.program.checks).begin(Some(self.number), (name, Object::Lock), call)
        };
        let calls: Vec<_> = its.iter().map(begin).collect();
        let released = release(self);
        for call in calls {
            self.program.checks.end(call, Answer::Done);
        }
        released
    }

    /// Ends a guard, as the operation says.
    fn end(&mut self, operation: &Operation, guard: Guard, call: &Call) {
        let released = match (operation.end, guard) {
            (End::Drop, guard) => return drop(guard),
            (End::PassOn, Guard::Lock(guard)) => {
                let claim = guard.detach();
                let times = self.random.within(1..3);
                return self.program.checks.leave(operation.names[0], &claim, times);
            }
            (End::PassOn, Guard::Write(guard)) => match guard.downgrade() {
                Err(error) => Err(error),
                Ok(reader) => {
                    self.program.checks.downgrades(operation.names[0]);
                    let reader = Guard::Read(reader);
                    let last = Operation {
                        rounds: 1,
                        end: End::Release,
                        ..operation.clone()
                    };
                    return self.hold(&last, reader, call);
                }
            },
            (_, Guard::Lock(guard)) => guard.release(),
            (_, Guard::Write(guard)) => guard.release(),
            (_, Guard::Read(guard)) => guard.release(),
            (_, Guard::Permit(guard)) => guard.release(),
            (_, Guard::Multi(guard)) => guard.release(),
            (_, Guard::Once(guard)) => self.done(operation.names[0], guard),
        };
        self.world().note(format_args!(
            "p{} releases: {:?}",
            self.program.number,
            released.is_ok()
        ));
    }

    /// Holds all mutexes that are free, so that their leases are renewed together.
    fn hold_several(&mut self, operation: &Operation) -> bool {
        let checks = Arc::clone(&self.program.checks);
        let number = self.program.number;
        let (mut names, mut holds, mut guards) = (Vec::new(), Vec::new(), Vec::new());
        for name in EXCLUSIVE {
            let one = Operation {
                what: What::Mutex,
                names: vec![name],
                wait: Some(Duration::ZERO),
                cancelled_after: None,
                ..operation.clone()
            };
            let call = self.begin(&one);
            let got = self.program.manager().manager.try_lock(name);
            if let Some(guard) = self.result(&one, &call, got) {
                let guard = Arc::new(Guard::Lock(guard));
                names.push(name);
                holds.push(checks.hold(&one.names, (1, 1), (number, &guard)));
                self.granted(name, guard.leases()[0], call.asked[0]);
                guards.push(guard);
            }
        }
        let part = self.program.settings.hold * 2 / 3;
        for _ in 0..SEVERAL_FOR {
            sleep(part);
            for guard in &guards {
                let lease = guard.leases()[0];
                self.program.must(checks.check_key(lease, number));
            }
        }
        let fences = guards.iter().map(|guard| guard.leases()[0].fence());
        let its: Vec<_> = names.into_iter().zip(fences).collect();
        for hold in holds {
            checks.end_hold(hold);
        }
        checks.ended((number, self.number), &EXCLUSIVE);
        self.releasing(&its, |_| drop(guards));
        true
    }

    /// Returns the last fire of a job by its server's clock. In an idle time, the true time goes too far from it.
    fn fire_of(&self, name: &str) -> Duration {
        let state = self.world().state();
        let server = state.network.masters_of(name)[0];
        let now = state.network.servers[server].clock.read(state.now);
        now.saturating_sub(Duration::from_nanos(
            (now.as_nanos() % FIRES_EVERY.as_nanos()) as u64,
        ))
    }

    /// Notes that the fire of a job was done.
    fn done(&self, name: &'static str, guard: OnceGuard) -> Result<()> {
        let fire = guard.fire();
        let known = self.program.checks.data_losses_of(name);
        guard.done()?;
        self.program
            .must(self.program.checks.has_done(name, fire, known));
        Ok(())
    }

    /// Asks the rate limiter, or looks at the job.
    fn ask_limiter(&mut self, operation: &Operation) -> bool {
        let call = self.begin(operation);
        let manager = self.program.manager().manager;
        let limiter = manager.rate_limiter(operation.names[0], LIMIT, LIMITS_PER);
        let limiter = match &call.cancel {
            Some(cancel) => limiter.cancel_with(cancel),
            None => limiter,
        };
        let places = units_of(operation);
        let admitted = match (operation.wait, places) {
            (None, 1) => limiter.acquire().map(|()| Admission::Admitted),
            (None, places) => limiter.acquire_many(places).map(|()| Admission::Admitted),
            (Some(Duration::ZERO), 1) => limiter.try_acquire(),
            (Some(Duration::ZERO), places) => limiter.try_acquire_many(places),
            (Some(wait), 1) => limiter.try_acquire_for(wait),
            (Some(wait), places) => limiter.try_acquire_many_for(places, wait),
        };
        let is_answered = admitted.is_ok();
        let got = admitted.map(|it| matches!(it, Admission::Admitted).then_some(()));
        if self.result(operation, &call, got).is_some() && !self.program.is_revived() {
            let name = operation.names[0];
            let most = (LIMIT, LIMITS_PER);
            let (checks, number) = (&self.program.checks, self.program.number);
            let admitted = checks.admitted(number, name, call.begun, places, most);
            self.program.must(admitted);
        }
        is_answered
    }

    /// Looks at a lock, asks its holder to go, or takes it away.
    fn look_as_operator(&mut self, operation: &Operation) -> bool {
        let call = self.begin(operation);
        let manager = self.program.manager().manager;
        let name = *self.random.pick(&NAMES);
        let got = match operation.way {
            0..3 => manager.list("*").collect::<Result<Vec<_>>>().map(|_| ()),
            3 => manager.ping().map(|_| ()),
            4 => manager.once(name).last().map(|_| ()),
            5..8 => manager.request_release(name, "a schedule").map(|_| ()),
            8 if operation.seed % 4 == 0 => self.take_away(&manager, name),
            _ => manager.inspect(name).map(|_| ()),
        };
        let _ = manager.stats().granted();
        let is_answered = got.is_ok();
        // On a quorum there is no record of a job.
        let got = match got {
            Err(Error::Unsupported { .. } | Error::WrongType { .. }) => Ok(None),
            got => got.map(|()| None::<()>),
        };
        self.result(operation, &call, got);
        is_answered
    }

    /// Takes a lock away from its holder. No promise holds then, until the request has surely arrived.
    fn take_away(&self, manager: &LockManager, name: &'static str) -> Result<()> {
        let Some(info) = manager.inspect(name)? else {
            return Ok(());
        };
        {
            let mut state = self.world().state();
            let at = state.now.max(state.healed_at) + Duration::from_secs(1);
            state.ends_beyond_the_assumptions(Some(name), at);
            for server in &mut state.network.servers {
                server.loses_keys(at);
            }
        }
        for holder in info.holders {
            manager.force_release(name, &holder.owner)?;
        }
        Ok(())
    }

    /// Makes a guard of a claim that another thread has left.
    fn adopt(&mut self, operation: &Operation) -> bool {
        let Some((name, claim)) = self.program.checks.take_claim() else {
            return true;
        };
        let operation = Operation {
            names: vec![name],
            ..operation.clone()
        };
        let call = self.begin(&operation);
        // The adopter has the time that the lock has left.
        self.program.checks.extends(name);
        let LabelledManager { manager, label } = self.program.manager();
        let got = if operation.way % 2 == 0 {
            manager.adopt(&claim)
        } else {
            configured!(manager.mutex(name), operation, call).adopt(&claim)
        };
        let got = got.map(Some);
        let is_answered = matches!(got, Ok(_) | Err(Error::Lost(_)));
        if !is_answered {
            self.program.checks.has_not_adopted(name);
        }
        if let Some(guard) = self.result(&operation, &call, got) {
            let adopted = self.program.checks.adopted(&claim, &label, guard.fence());
            self.program.must(adopted);
            self.hold(&operation, Guard::Lock(guard), &call);
        }
        is_answered
    }

    /// Locks a mutex whose guard other threads may not look at.
    fn lock_reentrant(&mut self, operation: &Operation) -> bool {
        let call = self.begin(operation);
        let manager = self.program.manager().manager;
        let name = operation.names[0];
        let mutex = configured!(manager.reentrant_mutex(name), operation, call);
        let got = acquire(&mutex, operation.wait);
        let is_answered = got.is_ok();
        if let Some(guard) = self.result(operation, &call, got) {
            let again = || mutex.try_lock();
            self.hold_reentrant(name, guard, call.asked[0], again);
        }
        is_answered
    }

    fn hold_reentrant(
        &mut self,
        name: &'static str,
        guard: ReentrantGuard,
        asked: Asked,
        again: impl FnOnce() -> Result<Option<ReentrantGuard>>,
    ) {
        let lost = guard.on_lost();
        self.granted(name, &guard, asked);
        let second = again();
        let is_again = match &second {
            Ok(Some(second)) => second.owner() == guard.owner() && second.fence() == guard.fence(),
            Ok(None) => false,
            Err(Error::Lost(_)) => guard.state() == LeaseState::Lost,
            Err(error) => matches!(error, Error::Cancelled | Error::Closed),
        };
        if !is_again && !self.program.is_revived() {
            let fence = guard.fence();
            self.world().fail(format!(
                "the holder of {fence} locks {name} again: {second:?}"
            ));
        }
        self.use_lease(name, &guard);
        drop(second);
        let its = [(name, guard.fence())];
        if guard.state() == LeaseState::Lost {
            self.check_loss(&its, &lost, || guard.state());
        }
        self.releasing(&its, |_| drop(guard));
    }

    /// Campaigns, and leads for a while.
    fn campaign(&mut self, operation: &Operation) -> bool {
        let (call, checks) = (self.begin(operation), Arc::clone(&self.program.checks));
        let number = self.program.number;
        let election = self.program.manager().manager.election(operation.names[0]);
        let (election, lease) = match operation.choice {
            Some(Choice::Lease(length)) => (election.lease(length), length),
            _ => (election, self.program.settings.lease_of(number)),
        };
        let election = match &call.cancel {
            Some(cancel) => election.cancel_with(cancel),
            None => election,
        };
        let (term, value) = checks.elections(|elections, _| {
            let term = elections.campaigns(number, lease);
            (term, elections.value_of(term))
        });
        let got = match operation.wait {
            None => election.campaign(&value).map(Some),
            Some(Duration::ZERO) => election.try_campaign(&value),
            Some(wait) => election.campaign_for(&value, wait),
        };
        let is_answered = got.is_ok();
        checks.elections(|elections, now| match &got {
            Ok(Some(leadership)) => elections.written(&value, leadership.fence(), now),
            _ => elections.ended(term, false, now),
        });
        if let Some(leadership) = self.result(operation, &call, got) {
            self.lead(operation, leadership, (term, &call));
        }
        is_answered
    }

    fn lead(
        &mut self,
        operation: &Operation,
        mut leadership: Leadership,
        (term, call): (usize, &Call),
    ) {
        let (checks, name) = (Arc::clone(&self.program.checks), operation.names[0]);
        let lost = leadership.on_lost();
        self.granted(name, &leadership, call.asked[0]);
        let its = [(name, leadership.fence())];
        let times = if operation.way == 0 { LONG_TERM } else { 1 };
        for _ in 0..operation.rounds * times {
            self.use_lease(name, &leadership);
            if leadership.state() == LeaseState::Lost {
                self.check_loss(&its, &lost, || leadership.state());
                break;
            }
            if self.random.one_in(2) {
                self.proclaim(&mut leadership, term);
            }
        }
        checks.elections(|elections, _| elections.may_change(term));
        let has_resigned = self.releasing(&its, |_| match operation.end {
            End::Drop => {
                drop(leadership);
                false
            }
            End::Release | End::PassOn => leadership.resign().is_ok(),
        });
        checks.elections(|elections, now| elections.ended(term, has_resigned, now));
    }

    /// Proclaims another value.
    fn proclaim(&self, leadership: &mut Leadership, term: usize) {
        let (checks, must_not_fail) = (&self.program.checks, self.is_calm());
        let begun = self.program.now();
        let value = checks.elections(|elections, _| elections.value_of(term));
        let proclaimed = leadership.proclaim(&value);
        self.world().note(format_args!("{value}: {proclaimed:?}"));
        if proclaimed.is_ok() {
            checks.elections(|it, now| it.written(&value, leadership.fence(), now));
        } else if must_not_fail
            && !self.stood_still_since(begun)
            && leadership.state() != LeaseState::Lost
            && !self.program.is_revived()
        {
            self.world().fail(format!(
                "a value is refused after the last fault: {proclaimed:?}"
            ));
        }
    }

    /// Looks who leads, once or for a while.
    fn observe(&mut self, operation: &Operation) -> bool {
        let call = self.begin(operation);
        let election = self.program.manager().manager.election(LED);
        let checks = Arc::clone(&self.program.checks);
        let number = self.program.number;
        if operation.way < 4 {
            let got = election.leader();
            if let Ok(leader) = &got {
                self.world().note(format_args!("p{number} sees {leader:?}"));
                let mut shown = Shown::once(leader.clone().map(|it| (it.value, it.fence)));
                let kept = checks.check_shown(number, &mut shown, call.begun);
                self.program.must(kept);
            }
            return self.has_looked(operation, &call, got.map(drop));
        }
        let got = election.observe();
        let is_answered = self.has_looked(
            operation,
            &call,
            got.as_ref().map(drop).map_err(Clone::clone),
        );
        if let Ok(states) = got {
            self.watch(&states);
        }
        is_answered
    }

    /// Counts a call that gives no lock. Returns false after an error.
    fn has_looked(&self, operation: &Operation, call: &Call, got: Result<()>) -> bool {
        let is_answered = got.is_ok();
        self.result(operation, call, got.map(|()| None::<()>));
        is_answered
    }

    /// Receives for a while who leads.
    fn watch(&mut self, states: &Receiver<Option<Leader>>) {
        let number = self.program.number;
        let until = self.program.now() + self.random.length(OBSERVED_FOR);
        let pause = Duration::from_millis(*self.random.pick(&[5, 20, 100, 1_500]));
        let mut shown = Shown::new(self.program.now());
        while self.program.now() < until && !self.program.is_revived() {
            let got = match states.try_recv() {
                Ok(state) => Some(state),
                Err(TryRecvError::Empty) => None,
                // The manager is closed.
                Err(TryRecvError::Disconnected) => return,
            };
            let (checks, now) = (&self.program.checks, self.program.now());
            shown.look(now);
            if let Some(state) = got {
                self.world()
                    .note(format_args!("p{number} is shown {state:?}"));
                shown.got(state.map(|it| (it.value, it.fence)));
            }
            let kept = checks.check_shown(number, &mut shown, now);
            self.program.must(kept);
            sleep(pause);
        }
    }

    /// Runs a closure under a mutex.
    fn run_closure(&mut self, operation: &Operation) -> bool {
        let mut call = self.begin(operation);
        let call_is_cancellable = call.cancel.is_some();
        let manager = self.program.manager().manager;
        let name = operation.names[0];
        let mutex = configured!(manager.mutex(name), operation, call);
        let wait = operation.wait.unwrap_or(LONGEST_LIMIT);
        let way = operation.way;
        let checks = Arc::clone(&self.program.checks);
        let mut releasing = None;
        let run = |lease: &Lease| {
            call.answered_at = Some(self.program.now());
            let number = self.program.number;
            self.program
                .must(checks.answered(call.ticket, number, true));
            self.granted(name, lease, call.asked[0]);
            self.use_lease(name, lease);
            let release = history::Call::Release(lease.fence());
            releasing = checks.begin(Some(self.number), (name, Object::Lock), release);
        };
        let ran = match way % 4 {
            0 => mutex.with(wait, run),
            1 => mutex.run(wait, run).and_then(Ran::into_result),
            _ if operation.choice.is_some() || call_is_cancellable => mutex.with(wait, run),
            2 => manager.with_lock(name, wait, run),
            _ => manager.run(name, wait, run).and_then(Ran::into_result),
        };
        checks.end(releasing, Answer::Done);
        let has_run = call.answered_at.is_some();
        let must_have_run = matches!(ran, Ok(()) | Err(Error::Lost(_)));
        if has_run != must_have_run && !self.program.is_revived() {
            self.world().fail(format!(
                "a closure that has run: {has_run}, ended with {ran:?}"
            ));
        }
        let got = match ran {
            Err(Error::Lost(_)) => {
                self.program.checks.count(|counts| counts.losses += 1);
                Ok(Some(()))
            }
            Err(Error::Timeout { .. }) if operation.wait.is_some() => Ok(None),
            ran => ran.map(Some),
        };
        let is_answered = got.is_ok();
        self.result(operation, &call, got);
        is_answered
    }

    /// Works once with an exclusive lease.
    fn use_lease(&mut self, name: &'static str, lease: &Lease) {
        let checks = Arc::clone(&self.program.checks);
        let grants = checks.exclusive_grants(name);
        self.program.must(checks.check_alone(name, lease, grants));
        let fence = lease.fence();
        let read = self.read(name, fence);
        self.work();
        self.write(name, fence, read);
        self.program
            .must(checks.check_key(lease, self.program.number));
        self.program.must(checks.check_alone(name, lease, grants));
        let state = World::while_all_stand_still(|| lease.state());
        checks.sees(Some(self.number), &[(name, fence)], state);
    }

    /// Reads the registers of a name.
    fn read(&mut self, name: &'static str, fence: u64) -> Option<Read> {
        let checks = Arc::clone(&self.program.checks);
        let calls = self.begin_at_registers(name, [history::Call::Read; 2]);
        self.travel();
        let read = checks.read(name, fence);
        self.travel();
        let is_answered = !self.random.one_in(16);
        let answers = [Some(read.plain), read.fenced].map(|value| match value {
            _ if !is_answered => Answer::Unknown,
            Some(value) => Answer::Value(value),
            None => Answer::Failed,
        });
        for (call, answer) in calls.into_iter().zip(answers) {
            checks.end(call, answer);
        }
        is_answered.then_some(read)
    }

    /// Writes one more than was read to the registers of a name. A holder whose read was rejected tries all the same.
    fn write(&mut self, name: &'static str, fence: u64, read: Option<Read>) {
        let Some(read) = read else {
            return;
        };
        let checks = Arc::clone(&self.program.checks);
        let writes = [read.plain, read.value()].map(|it| history::Call::Write(it, it + 1));
        let calls = self.begin_at_registers(name, writes);
        self.travel();
        let arrives = !self.random.one_in(32);
        let written = arrives.then(|| checks.write(name, fence, read));
        self.travel();
        let is_answered = arrives && !self.random.one_in(32);
        let is_taken = matches!(written, Some(Ok(true) | Err(_)));
        for (call, is_taken) in calls.into_iter().zip([true, is_taken]) {
            let answer = if !is_answered {
                Answer::Unknown
            } else if is_taken {
                Answer::Done
            } else {
                Answer::Failed
            };
            checks.end(call, answer);
        }
        let written = written.transpose();
        self.program.must(written.map(|_| ()));
    }

    /// Notes that this thread begins a call at the plain register of a name, and one at the fenced register.
    fn begin_at_registers(
        &self,
        name: &'static str,
        calls: [history::Call; 2],
    ) -> [Option<history::Number>; 2] {
        let begin =
            |object, call| (self.program.checks).begin(Some(self.number), (name, object), call);
        let [plain, fenced] = calls;
        [begin(Object::Plain, plain), begin(Object::Fenced, fenced)]
    }

    /// Reads the register of a name in Redis by a commit that changes nothing.
    fn read_committed(&self, name: &'static str, fence: u64, guard: &Guard) -> Option<Committed> {
        let checks = &self.program.checks;
        let last = checks.last_committed(name);
        let read = Write::new("INCRBY", register_of(name)).arg(0);
        let value = match self.committed(name, history::Call::Read, guard, read)? {
            Reply::Integer(value) => value,
            other => self.world().fail(format!("INCRBY gives {other:?}")),
        };
        match checks.has_read(name, fence, last, value) {
            Ok(read) => Some(read),
            Err(what) => self.world().fail(what),
        }
    }

    /// Commits one more than was read. Returns false if the holder does not know what the register has now.
    fn commit(&self, name: &'static str, fence: u64, guard: &Guard, read: Committed) -> bool {
        let write = Write::new("SET", register_of(name));
        let write = write.arg(read.value + 1).arg("GET");
        let value = read.value.unsigned_abs();
        let call = history::Call::Write(value, value + 1);
        let Some(before) = self.committed(name, call, guard, write) else {
            return false;
        };
        let before = match before {
            Reply::Bytes(text) => String::from_utf8_lossy(&text).parse().ok(),
            _ => None,
        };
        let checks = &self.program.checks;
        self.program
            .must(checks.has_committed(name, fence, read, before));
        true
    }

    /// Commits one write, and returns its reply.
    fn committed(
        &self,
        name: &'static str,
        call: history::Call,
        guard: &Guard,
        write: Write,
    ) -> Option<Reply> {
        let (must_not_fail, begun) = (self.is_calm(), self.program.now());
        let writes = [write];
        let checks = &self.program.checks;
        let call = checks.begin(Some(self.number), (name, Object::Committed), call);
        let committed = match guard {
            Guard::Lock(guard) => guard.commit(&writes),
            Guard::Write(guard) => guard.commit(&writes),
            Guard::Multi(guard) => guard.commit(&writes),
            Guard::Read(_) | Guard::Permit(_) | Guard::Once(_) => return None,
        };
        let answer = match &committed {
            Ok(replies) => match replies[..] {
                [Reply::Integer(value)] => Answer::Value(value.unsigned_abs()),
                _ => Answer::Done,
            },
            Err(Error::Lost(_)) => Answer::Failed,
            Err(_) => Answer::Unknown,
        };
        checks.end(call, answer);
        let is_lost = guard.state() == LeaseState::Lost;
        match committed {
            Ok(mut replies) => return replies.pop(),
            Err(Error::Lost(_)) if !is_lost => {
                self.world()
                    .fail("a guard holds the lock without which a commit was refused".into());
            }
            Err(error)
                if must_not_fail
                    && !self.stood_still_since(begun)
                    && !is_lost
                    && !self.program.is_revived() =>
            {
                self.world()
                    .fail(format!("a commit fails after the last fault: {error:?}"));
            }
            Err(error) => self.world().note(format_args!("commit: {error}")),
        }
        None
    }

    /// Waits while a request or its answer is on its way.
    fn travel(&mut self) {
        if self.random.one_in(2) {
            sleep(self.random.length(TRAVEL));
        }
    }

    /// Works for a while, mostly for less than a lease.
    fn work(&mut self) {
        let most = self.program.settings.hold;
        let time = self.random.length(Duration::from_micros(10)..most);
        sleep(time);
    }

    /// Has a forked child of the process use a guard.
    fn fork(&self, guard: &Arc<Guard>) {
        let (program, guard) = (Arc::clone(&self.program), Arc::clone(guard));
        let has_ended = Arc::new(AtomicBool::new(false));
        let place = Arc::as_ptr(&has_ended).addr();
        let ended = Arc::clone(&has_ended);
        let run = move || {
            let manager = program.manager().manager;
            let found = {
                let _child = Child::begin();
                check_in_child(&guard, &manager)
            };
            drop((guard, manager));
            program.must(found);
            ended.store(true, Ordering::SeqCst);
            program.world().wake(place, true);
        };
        let started = self.program.process.spawn("child", run);
        started.expect("the system starts a thread");
        while !has_ended.load(Ordering::SeqCst) {
            self.world().wait(Place::Address(place), None);
        }
    }

    /// Checks that the channel of a guard with these fences tells of its loss, and that the guard stays lost.
    fn check_loss(
        &self,
        its: &[(&'static str, u64)],
        lost: &Receiver<leasehold::Lost>,
        state: impl Fn() -> LeaseState,
    ) {
        self.world()
            .note(format_args!("p{} has lost it", self.program.number));
        self.program.checks.count(|counts| counts.losses += 1);
        let begun = self.program.now();
        // A thread of a process that has crashed runs again only to end.
        while !self.program.is_revived() {
            match lost.try_recv() {
                Ok(_) => break,
                Err(TryRecvError::Disconnected) => self.world().fail("a loss is not told".into()),
                Err(TryRecvError::Empty) => {}
            }
            let (now, paused_until) = {
                let state = self.world().state();
                (state.now, state.paused_until)
            };
            let told_by = if begun > paused_until {
                (begun + TOLD_AT_ONCE_WITHIN).max(paused_until + TOLD_WITHIN)
            } else {
                let healed_at = self.program.settings.healed_at;
                begun.max(healed_at).max(paused_until) + TOLD_WITHIN
            };
            if now > told_by {
                self.world().fail("a loss is told late".into());
            }
            sleep(Duration::from_millis(10));
        }
        for (name, fence) in its {
            let call = history::Call::Told(*fence);
            let call = (self.program.checks).begin(Some(self.number), (name, Object::Lock), call);
            self.program.checks.end(call, Answer::Done);
        }
        if state() != LeaseState::Lost {
            self.world()
                .fail("a lost guard holds its lock again".into());
        }
    }
}

/// Checks in a forked child that a guard of the parent holds nothing, and that the manager takes no call.
fn check_in_child(guard: &Guard, manager: &LockManager) -> std::result::Result<(), String> {
    let is_inert = |lease: &&Lease| {
        lease.state() == LeaseState::Lost
            && lease.check().is_err()
            && lease.remaining().is_zero()
            && lease.extend(Duration::from_secs(1)).is_err()
    };
    if !guard.leases().iter().all(is_inert) {
        return Err("a guard holds its lock in a forked child".into());
    }
    let takes_calls = !matches!(manager.try_lock("a"), Err(Error::Forked));
    if takes_calls || manager.close(Duration::from_secs(1)) {
        return Err("a manager takes a call in a forked child".into());
    }
    Ok(())
}

/// Acquires a lock of any kind, at once, within a time or without a limit.
fn acquire<L: Lock>(lock: &L, wait: Option<Duration>) -> Result<Option<L::Guard>> {
    match wait {
        None => lock.lock().map(Some),
        Some(Duration::ZERO) => lock.try_lock(),
        Some(wait) => lock.try_lock_for(wait),
    }
}

/// Returns how many permits an operation wants.
fn units_of(operation: &Operation) -> u32 {
    if operation.way < 3 { PERMITS } else { 1 }
}
