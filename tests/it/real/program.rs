//! The program of a process: two threads acquire locks, work, and release, until the standard input ends.

use std::env;
use std::fmt::Write;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{ErrorKind, LockManager};

use super::Task;
use super::plan::{Plan, THREADS, pick};
use super::record::{Hold, Micros, NO_GRANT, Recorder, is_exclusive, now};
use super::register::Register;
use crate::support::{Guard, Kind, PATIENCE, Random, ms, secs};

/// The names of mutexes and multi-locks, of a reader-writer lock, and of a semaphore.
const MUTEXES: [&str; 2] = ["a", "b"];
const RWLOCK: &str = "rw";
const SEMAPHORE: &str = "s";
/// The names with a register.
pub(super) const REGISTERS: [&str; 3] = [MUTEXES[0], MUTEXES[1], RWLOCK];

/// How often a holder notes that it holds.
const GLANCE: Duration = ms(10);

struct Process {
    plan: Plan,
    number: u32,
    register: String,
    recorder: Recorder,
    locks: LockManager,
    guards: AtomicU32,
    is_over: AtomicBool,
}

struct Worker<'a> {
    process: &'a Process,
    register: Register,
    random: Random,
}

/// Runs the program of a process. Does nothing if this process has no task.
#[test]
fn program() {
    let Some(task) = Task::of_this_process() else {
        return;
    };
    let plan = Plan::new(task.topology, task.seed);
    let label = format!("p{}", task.number);
    let built = plan.builder(&task.url).label(label).build_lazy();
    let process = Process {
        number: task.number,
        register: task.register,
        recorder: Recorder::open(&PathBuf::from(task.record)),
        locks: built.expect("nothing is sent yet"),
        guards: AtomicU32::new(0),
        is_over: AtomicBool::new(false),
        plan,
    };
    process.run();
}

impl Process {
    fn run(&self) {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut worker = Worker::new(self, thread);
                    while !self.is_over.load(Ordering::SeqCst) {
                        worker.operate();
                    }
                });
            }
            // The end of the input is the end of the faults.
            io::stdin().read_to_end(&mut Vec::new()).ok();
            self.is_over.store(true, Ordering::SeqCst);
        });
        let mut last = Worker::new(self, THREADS);
        for name in REGISTERS {
            last.acquire_at_last(name);
        }
        drop(last);
        if !self.locks.close(PATIENCE) {
            // A machine that is too busy answers no release in time. Then the lock ends with its lease.
            self.recorder.note("unclosed");
        }
    }

    fn is_wrong(&self, what: &str) {
        let number = self.number;
        self.recorder
            .note(format_args!("wrong process {number}: {what}"));
    }
}

impl<'a> Worker<'a> {
    fn new(process: &'a Process, thread: u64) -> Self {
        let stream = u64::from(process.number) * 10 + thread;
        Self {
            process,
            register: Register::at(&process.register),
            random: Random(process.plan.seed * 1_000 + stream),
        }
    }

    /// Acquires a lock, works, and releases it.
    fn operate(&mut self) {
        let plan = &self.process.plan;
        let kind = pick(&mut self.random, plan.kinds);
        let name = match kind.family() {
            Kind::Reader => RWLOCK,
            Kind::Permit => SEMAPHORE,
            _ => pick(&mut self.random, &MUTEXES),
        };
        let wait = if self.random.below(8) < plan.waiting {
            (self.random.below(2) == 0).then(|| self.random.ms_below(3_000))
        } else {
            Some(Duration::ZERO)
        };
        let is_answered = self.acquire(kind, name, wait).is_some();
        let most = if is_answered { 60 } else { 150 };
        thread::sleep(self.random.ms_below(most));
    }

    /// Calls for a lock, and holds it. Returns whether it held the lock, or `None` after an error.
    fn acquire(&mut self, kind: Kind, name: &str, wait: Option<Duration>) -> Option<bool> {
        let process = self.process;
        let subject = kind.of(&process.locks, &process.plan.name(name));
        let called = now();
        let got = match wait {
            None => subject.lock().map(Some),
            Some(wait) => subject.try_lock_for(wait),
        };
        let ended = now();
        match got {
            Ok(Some(guard)) => {
                self.hold(kind, &guard, (called, ended));
                if self.random.below(2) == 0 {
                    // The guard knows whether it was lost, and so does the record.
                    guard.release().ok();
                }
                Some(true)
            }
            Ok(None) => {
                process
                    .recorder
                    .note(format_args!("refused {called} {ended}"));
                Some(false)
            }
            Err(error) => {
                let kind = error.kind();
                process
                    .recorder
                    .note(format_args!("failed {kind:?} {called} {ended}"));
                let may_fail = [
                    ErrorKind::Unavailable,
                    ErrorKind::NoQuorum,
                    ErrorKind::Lost,
                    ErrorKind::Timeout,
                ];
                if !may_fail.contains(&kind) {
                    process.is_wrong(&format!("{error:?}"));
                }
                None
            }
        }
    }

    /// Acquires a lock after the faults, which must be possible.
    fn acquire_at_last(&mut self, name: &str) {
        let kind = if name == RWLOCK {
            Kind::Writer
        } else {
            Kind::Mutex
        };
        let begun = now();
        while self.acquire(kind, name, Some(secs(10))) != Some(true) {
            if now() - begun > micros(PATIENCE) {
                return self.process.is_wrong(NO_GRANT);
            }
            thread::sleep(ms(20));
        }
    }

    /// Works while a guard is held, mostly for less than the lease.
    fn hold(&mut self, kind: Kind, guard: &Guard, (called, granted): (Micros, Micros)) {
        let process = self.process;
        let number = process.guards.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}:{number}", process.number);
        let mut grants = String::new();
        for lease in guard.leases() {
            let hold = Hold {
                guard: id.clone(),
                process: process.number,
                kind,
                name: lease.name().to_owned(),
                called,
                granted,
                fence: lease.fence(),
                valid: Vec::new(),
            };
            writeln!(grants, "{hold}").expect("a write to a string succeeds");
        }
        process.recorder.note(grants.trim_end());
        let told = guard.on_lost();
        let (name, fence) = (guard.lease().name(), guard.fence());
        let read = is_exclusive(kind).then(|| self.register.read(name, fence));
        let longest = if self.random.below(8) == 0 {
            micros(process.plan.lease) / 1_000 * 2
        } else {
            30
        };
        let until = now() + micros(self.random.ms_below(longest));
        let mut is_lost = !self.note_whether_held(&id, guard);
        while !is_lost && now() < until {
            thread::sleep(GLANCE);
            if self.random.below(16) == 0 {
                // An error says no more than the next look.
                guard.lease().extend(process.plan.lease).ok();
            }
            is_lost = !self.note_whether_held(&id, guard);
        }
        // Careless: a lost guard writes too.
        if let Some(read) = read {
            self.register.write(name, fence, &read);
        }
        if is_lost {
            if told.recv_timeout(PATIENCE).is_err() {
                process.is_wrong(&format!("the loss of {id} is not told"));
            }
            if guard.check().is_ok() {
                process.is_wrong(&format!("{id} was lost, and is held again"));
            }
        } else {
            self.note_whether_held(&id, guard);
        }
    }

    /// Returns whether a guard is held.
    fn note_whether_held(&self, id: &str, guard: &Guard) -> bool {
        let at = now();
        let is_held = guard.check().is_ok();
        let what = if is_held { "valid" } else { "lost" };
        self.process.recorder.note(format_args!("{what} {id} {at}"));
        is_held
    }
}

fn micros(length: Duration) -> Micros {
    u64::try_from(length.as_micros()).expect("it is short")
}

impl Task {
    /// Returns the task of this process, if it has one.
    fn of_this_process() -> Option<Self> {
        let text = env::var(super::TASK).ok()?;
        Some(Self::parse(&text))
    }
}
