//! The programs of a schedule: each process has a manager and several threads, which acquire locks, work, and release.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::testing::simulation::{Process, sleep};
use leasehold::{LeaseState, LockManager, Receiver, ReentrantGuard, Result, TryRecvError};

use crate::checks::{Checks, Guard};
use crate::random::Random;
use crate::schedule::Topology;
use crate::world::World;

/// The names of exclusive locks. Each may be a mutex, a reentrant mutex, or one of the names of a multi-lock.
const EXCLUSIVE: [&str; 3] = ["a", "b", "c"];
const RWLOCK: &str = "rw";
const SEMAPHORE: &str = "s";
const PERMITS: u32 = 2;
/// The longest extension of a lease, in leases.
pub(crate) const LONGEST_EXTENSION: u32 = 3;
/// The units of a reader-writer lock: a reader has one, and a writer all.
const UNITS: u32 = 1_000;
/// The time for which a process waits when it closes.
const CLOSE_WITHIN: Duration = Duration::from_secs(20);
/// The longest time for which a loss may stay untold after the last fault. After a jump of its clock a thread sleeps on for
/// at most a second.
const TOLD_WITHIN: Duration = Duration::from_millis(1_500);
/// For how long a call may wait after the last fault.
const WAIT_WITHIN: Duration = Duration::from_secs(120);

/// The settings of all processes of a schedule.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) workers: usize,
    pub(crate) operations: usize,
    /// Of eight calls, how many wait for the lock.
    pub(crate) waiting: u64,
    /// The kinds of locks. One that is there twice is twice as likely.
    pub(crate) kinds: &'static [Asked],
    pub(crate) hold: Duration,
    /// When the last fault begins. Operations go on until then.
    pub(crate) last_fault_at: Duration,
    /// When the last fault has ended.
    pub(crate) healed_at: Duration,
    pub(crate) topology: Topology,
    /// The longest lease.
    pub(crate) lease: Duration,
    /// Whether each process has another lease.
    pub(crate) leases_differ: bool,
    pub(crate) io_timeout: Duration,
    pub(crate) linger: bool,
    pub(crate) background_release: bool,
    /// How many replicas must confirm a grant.
    pub(crate) replicas: u32,
}

struct Program {
    process: Process,
    number: usize,
    seed: u64,
    settings: Settings,
    checks: Arc<Checks>,
    running: AtomicUsize,
}

struct Worker {
    program: Arc<Program>,
    manager: LockManager,
    random: Random,
}

/// Which lock a call asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    Mutex,
    Reentrant,
    Multi,
    Writer,
    Reader,
    Permit,
}

/// Plans the first thread of a process.
pub(crate) fn start(
    process: &Process,
    number: usize,
    seed: u64,
    settings: &Settings,
    checks: &Arc<Checks>,
) {
    let program = Arc::new(Program {
        process: process.clone(),
        number,
        seed,
        settings: settings.clone(),
        checks: Arc::clone(checks),
        running: AtomicUsize::new(settings.workers),
    });
    let run = move || program.guarded(|| program.run());
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
        if let Err(what) = result {
            self.world().fail(what);
        }
    }

    fn is_revived(&self) -> bool {
        self.world().state().processes[self.number].is_revived
    }

    fn lease(&self) -> Duration {
        let Settings {
            lease,
            leases_differ,
            ..
        } = self.settings;
        if leases_differ {
            lease / (self.number as u32 + 1)
        } else {
            lease
        }
    }

    fn run(self: &Arc<Self>) {
        let label = format!("p{}", self.number);
        let builder = (self.settings.topology.builder())
            .label(&label)
            .lease(self.lease())
            .io_timeout(self.settings.io_timeout)
            .connect_timeout(self.settings.io_timeout)
            .background_release(self.settings.background_release)
            .replicas(self.settings.replicas)
            .linger(if self.settings.linger {
                self.settings.lease / 4
            } else {
                Duration::ZERO
            });
        let manager = self.process.builder(builder).build_unchecked();
        let manager = manager.expect("the settings are good");
        for number in 0..self.settings.workers {
            let stream = (self.number * 100 + number + 10) as u64;
            let mut worker = Worker {
                program: Arc::clone(self),
                manager: manager.clone(),
                random: Random::new(self.seed, stream),
            };
            let run = move || {
                let program = Arc::clone(&worker.program);
                program.guarded(|| worker.run());
                drop(worker);
                program.running.fetch_sub(1, Ordering::SeqCst);
            };
            let started = self.process.spawn(&format!("worker {number}"), run);
            started.expect("the system starts a thread");
        }
        while self.running.load(Ordering::SeqCst) > 0 {
            sleep(Duration::from_millis(100));
        }
        let begun = self.world().state().now;
        let has_closed = manager.close(CLOSE_WITHIN);
        if !self.is_revived() {
            self.world()
                .note(format_args!("{label} has closed: {has_closed}"));
            self.must(self.checks.check_keys());
            if has_closed {
                let repeats = manager.stats().endings_repeated > 0;
                self.must(self.checks.closed(&label, repeats));
            }
            // Otherwise the renewal thread has given a release up.
            let has_waited = self.world().state().now > begun + CLOSE_WITHIN / 2;
            if !has_closed && has_waited && begun > self.settings.healed_at {
                self.world().fail(format!("{label} does not close"));
            }
        }
        drop(manager);
        self.world().process_finished(self.number);
    }
}

impl Worker {
    fn world(&self) -> &World {
        self.program.world()
    }

    fn run(&mut self) {
        let mut operations = 0;
        let settings = &self.program.settings;
        let (least, last_fault_at) = (settings.operations, settings.last_fault_at);
        while operations < least || self.world().state().now < last_fault_at {
            operations += 1;
            if self.program.is_revived() {
                return;
            }
            let most = if self.operate() { 10 } else { 500 };
            sleep(Duration::from_micros(self.random.within(0..most * 1_000)));
        }
    }

    /// Acquires a lock, works, and releases it. Returns false after an error.
    fn operate(&mut self) -> bool {
        let asked = *self.random.pick(self.program.settings.kinds);
        let first = self.random.index(EXCLUSIVE.len());
        let mut names = match asked {
            Asked::Mutex | Asked::Reentrant => vec![EXCLUSIVE[first]],
            Asked::Multi => vec![EXCLUSIVE[first], EXCLUSIVE[(first + 1) % EXCLUSIVE.len()]],
            Asked::Writer | Asked::Reader => vec![RWLOCK],
            Asked::Permit => vec![SEMAPHORE],
        };
        // The leases of a multi-lock have this order.
        names.sort_unstable();
        let waits = self.random.within(0..8) < self.program.settings.waiting;
        let wait = match (waits, self.random.one_in(2)) {
            (false, _) => Some(Duration::ZERO),
            (true, false) => None,
            (true, true) => Some(
                self.random
                    .length(Duration::from_millis(1)..Duration::from_secs(5)),
            ),
        };
        let known = names
            .iter()
            .map(|name| self.program.checks.last_fence(name))
            .collect::<Vec<_>>();
        let begun = self.world().state().now;
        self.world().note(format_args!(
            "p{} asks for {asked:?} {names:?} within {wait:?}",
            self.program.number
        ));
        if let Asked::Reentrant = asked {
            let mutex = self.manager.reentrant_mutex(names[0]);
            let got = acquire(wait, || mutex.lock(), |wait| mutex.try_lock_for(wait));
            let is_answered = got.is_ok();
            if let Some(guard) = self.result(begun, got) {
                self.hold_reentrant(names[0], guard, (known[0], begun));
            }
            return is_answered;
        }
        let got = self.acquire(asked, &names, wait);
        let is_answered = got.is_ok();
        if let Some(guard) = self.result(begun, got) {
            self.hold(asked, &names, guard, &known, begun);
        }
        is_answered
    }

    fn acquire(
        &self,
        asked: Asked,
        names: &[&str],
        wait: Option<Duration>,
    ) -> Result<Option<Guard>> {
        let (manager, name) = (&self.manager, names[0]);
        Ok(match asked {
            Asked::Mutex | Asked::Reentrant => {
                let it = manager.mutex(name);
                acquire(wait, || it.lock(), |wait| it.try_lock_for(wait))?.map(Guard::Lock)
            }
            Asked::Multi => {
                let it = manager.multi(names);
                acquire(wait, || it.lock(), |wait| it.try_lock_for(wait))?.map(Guard::Multi)
            }
            Asked::Writer => {
                let it = manager.rwlock(name);
                acquire(wait, || it.write(), |wait| it.try_write_for(wait))?.map(Guard::Write)
            }
            Asked::Reader => {
                let it = manager.rwlock(name);
                acquire(wait, || it.read(), |wait| it.try_read_for(wait))?.map(Guard::Read)
            }
            Asked::Permit => {
                let it = manager.semaphore(name, PERMITS);
                acquire(wait, || it.acquire(), |wait| it.try_acquire_for(wait))?.map(Guard::Permit)
            }
        })
    }

    /// Counts the result of a call.
    fn result<G>(&self, begun: Duration, got: Result<Option<G>>) -> Option<G> {
        let now = self.world().state().now;
        let waited = now.saturating_sub(begun.max(self.program.settings.healed_at));
        let (checks, is_revived) = (&self.program.checks, self.program.is_revived());
        let words = match &got {
            Ok(Some(_)) => "gets it".into(),
            Ok(None) => "does not get it".into(),
            Err(error) => error.to_string(),
        };
        self.world()
            .note(format_args!("p{}: {words}", self.program.number));
        if !is_revived {
            if waited > WAIT_WITHIN {
                self.world().fail(format!(
                    "a call has waited for {waited:?} after the last fault"
                ));
            }
            checks.count(|counts| {
                counts.longest_wait = waited.max(counts.longest_wait);
                match &got {
                    Ok(Some(_)) => counts.grants += 1,
                    Ok(None) => counts.refusals += 1,
                    Err(error) => {
                        let kind = format!("{:?}", error.kind());
                        *counts.errors.entry(kind).or_default() += 1;
                    }
                }
            });
        }
        got.ok().flatten()
    }

    fn hold(
        &mut self,
        asked: Asked,
        names: &[&'static str],
        guard: Guard,
        known: &[u64],
        begun: Duration,
    ) {
        let checks = Arc::clone(&self.program.checks);
        let guard = Arc::new(guard);
        let (units, total) = match asked {
            Asked::Reader => (1, UNITS),
            Asked::Writer => (UNITS, UNITS),
            Asked::Permit => (1, PERMITS),
            _ => (1, 1),
        };
        let hold = checks.hold(names, (units, total), &guard);
        let is_exclusive = units == total;
        let lost = guard.on_lost();
        let fences: Vec<_> = guard.leases().iter().map(|lease| lease.fence()).collect();
        if is_exclusive {
            for ((name, lease), known) in names.iter().zip(guard.leases()).zip(known) {
                let granted = checks.granted(name, self.program.number, lease, (*known, begun));
                self.program.must(granted);
            }
        }
        for _ in 0..self.random.within(1..4) {
            let read = is_exclusive.then(|| checks.read(names[0], fences[0]));
            self.work();
            if let Some(read) = read {
                self.program.must(checks.write(names[0], fences[0], read));
            }
            if matches!(*guard, Guard::Lock(_) | Guard::Multi(_)) {
                for lease in guard.leases() {
                    self.program.must(checks.check_key(lease));
                }
            }
            if guard.state() == LeaseState::Lost {
                self.check_loss(&lost, || guard.state());
                break;
            }
            if self.random.one_in(8) {
                let times = self.random.within(1..u64::from(LONGEST_EXTENSION) + 1) as u32;
                let length = self.program.settings.lease * times;
                let extended = guard.leases()[0].extend(length);
                self.world()
                    .note(format_args!("extend: {:?}", extended.is_ok()));
            }
        }
        checks.end_hold(hold);
        let guard = Arc::into_inner(guard).expect("no check runs now");
        if self.random.one_in(2) {
            return drop(guard);
        }
        let released = match guard {
            Guard::Lock(guard) => guard.release(),
            Guard::Write(guard) => guard.release(),
            Guard::Read(guard) => guard.release(),
            Guard::Permit(guard) => guard.release(),
            Guard::Multi(guard) => guard.release(),
        };
        self.world().note(format_args!(
            "p{} releases: {:?}",
            self.program.number,
            released.is_ok()
        ));
    }

    /// Does the same for a guard that other threads may not look at.
    fn hold_reentrant(
        &mut self,
        name: &'static str,
        guard: ReentrantGuard,
        known: (u64, Duration),
    ) {
        let checks = Arc::clone(&self.program.checks);
        let (lost, fence) = (guard.on_lost(), guard.fence());
        self.program
            .must(checks.granted(name, self.program.number, &guard, known));
        let read = checks.read(name, fence);
        self.work();
        self.program.must(checks.write(name, fence, read));
        self.program.must(checks.check_key(&guard));
        if guard.state() == LeaseState::Lost {
            self.check_loss(&lost, || guard.state());
        }
        drop(guard);
    }

    /// Works for a while, mostly for less than a lease.
    fn work(&mut self) {
        let most = self.program.settings.hold;
        let time = self.random.length(Duration::from_micros(10)..most);
        sleep(time);
    }

    /// Checks that the channel of a guard tells of its loss, and that the guard stays lost.
    fn check_loss(&self, lost: &Receiver<leasehold::Lost>, state: impl Fn() -> LeaseState) {
        self.world()
            .note(format_args!("p{} has lost it", self.program.number));
        self.program.checks.count(|counts| counts.losses += 1);
        let begun = self.world().state().now;
        loop {
            match lost.try_recv() {
                Ok(_) => break,
                Err(TryRecvError::Disconnected) => self.world().fail("a loss is not told".into()),
                Err(TryRecvError::Empty) => {}
            }
            let now = self.world().state().now;
            if now > begun.max(self.program.settings.healed_at) + TOLD_WITHIN {
                self.world().fail("a loss is told late".into());
            }
            sleep(Duration::from_millis(50));
        }
        if state() != LeaseState::Lost {
            self.world()
                .fail("a lost guard holds its lock again".into());
        }
    }
}

/// Acquires a lock, within a time or without a limit.
fn acquire<G>(
    wait: Option<Duration>,
    lock: impl FnOnce() -> Result<G>,
    try_for: impl FnOnce(Duration) -> Result<Option<G>>,
) -> Result<Option<G>> {
    match wait {
        None => lock().map(Some),
        Some(wait) => try_for(wait),
    }
}
