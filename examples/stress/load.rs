//! The threads of one process.
//!
//! 1. [`Load::prepare`] starts the threads. Each counts itself as ready and waits at the gate, a [`OnceLock`].
//! 2. `prepare` returns when all threads are ready, and the process can report that.
//! 3. [`Load::run`] opens the gate with the start, which is the same instant in all processes.
//! 4. A thread takes guards until its work is done or a call fails. `run` joins it.

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use leasehold::{LockManager, Mutex};

use crate::clock;
use crate::ledger::Ledger;
use crate::options::{Options, Work};
use crate::share::Share;
use crate::waits::{Recorder, SharedWaits};

/// Small stacks, so that ten thousand threads fit. The library and the redis crate need less than this.
const STACK_BYTES: usize = 128 * 1024;

pub struct Load {
    team: Arc<Team>,
    threads: Vec<JoinHandle<()>>,
}

/// The data that the threads share.
struct Team {
    process: u32,
    /// A handle for each name, which all threads use.
    locks: Vec<Mutex>,
    ledger: Arc<Ledger>,
    work: Work,
    hold: Duration,
    /// The thread that waits until all threads are ready.
    preparer: Thread,
    ready: AtomicU32,
    gate: OnceLock<Duration>,
    /// The updates that this process has made of each name.
    updates: Vec<AtomicU64>,
    fence_violations: AtomicU64,
    lost_leases: AtomicU64,
    errors: AtomicU64,
    ended_us: AtomicU64,
    waits: SharedWaits,
}

impl Load {
    pub fn prepare(
        options: &Options,
        locks: &LockManager,
        ledger: Arc<Ledger>,
        run: &str,
        process: u32,
    ) -> io::Result<Self> {
        let team = Arc::new(Team {
            process,
            // The prefix is unique to the run, so other users of this server are not affected.
            locks: (0..options.names)
                .map(|name| locks.mutex(format!("stress:{run}:{name}")))
                .collect(),
            ledger,
            work: options.work,
            hold: options.hold,
            preparer: thread::current(),
            ready: AtomicU32::new(0),
            gate: OnceLock::new(),
            updates: (0..options.names).map(|_| AtomicU64::new(0)).collect(),
            fence_violations: AtomicU64::new(0),
            lost_leases: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            ended_us: AtomicU64::new(0),
            waits: SharedWaits::default(),
        });
        let start = |index| {
            let team = team.clone();
            thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn(move || team.work(index))
        };
        let threads = (0..options.threads)
            .map(start)
            .collect::<io::Result<Vec<_>>>()
            .map_err(|error| io::Error::new(error.kind(), format!("no more threads: {error}")))?;
        while team.ready.load(Ordering::Acquire) < options.threads {
            thread::park();
        }
        Ok(Self { team, threads })
    }

    /// Lets the threads go, and waits until all have ended.
    pub fn run(self, start: Duration) -> Share {
        let Self { team, threads } = self;
        team.gate
            .set(start)
            .expect("`run` takes the load, so the gate is opened once");
        for thread in threads {
            if thread.join().is_err() {
                // The panic has printed its own message.
                team.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
        // All threads were joined, so this thread sees all that they stored.
        Share {
            guards: team.updates.iter().map(read).sum(),
            fence_violations: read(&team.fence_violations),
            lost_leases: read(&team.lost_leases),
            errors: read(&team.errors),
            ended: Duration::from_micros(read(&team.ended_us)),
            waits: team.waits.take(),
        }
    }
}

impl Team {
    /// Runs one thread.
    fn work(&self, index: u32) {
        self.ready.fetch_add(1, Ordering::Release);
        self.preparer.unpark();
        let start = *self.gate.wait();

        let mut waits = self.waits.recorder();
        // Each thread begins with another name, and goes round all names.
        let names = (0..self.names())
            .cycle()
            .skip((index % self.names()) as usize);
        for (turns, name) in (0..).zip(names) {
            if self.work.is_done(turns, start) {
                return;
            }
            if let Err(error) = self.take_turn(name, &mut waits) {
                if self.errors.fetch_add(1, Ordering::Relaxed) == 0 {
                    eprintln!(
                        "stress: a thread of process {} stops: {error:#}",
                        std::process::id()
                    );
                }
                return;
            }
        }
    }

    /// Takes one guard and makes one update.
    fn take_turn(&self, name: u32, waits: &mut Recorder<'_>) -> Result<(), Box<dyn Error>> {
        let asked = clock::now();
        let guard = self.locks[name as usize].lock()?;
        let waited = clock::now().saturating_sub(asked);

        let entry = self.ledger.read(name)?;
        if !self.hold.is_zero() {
            // A second holder between the read and the write would do the most harm.
            thread::sleep(self.hold);
        }
        // The check comes before the fences are compared. A guard that knows of its loss is no violation.
        let lost = guard.check().is_err();
        if lost {
            self.lost_leases.fetch_add(1, Ordering::Relaxed);
        } else if guard.fence() <= entry.fence {
            self.fence_violations.fetch_add(1, Ordering::Relaxed);
        } else {
            let own = self.updates[name as usize].fetch_add(1, Ordering::Relaxed) + 1;
            self.ledger
                .write(name, &entry, guard.fence(), self.process, own)?;
        }

        match guard.release() {
            Err(leasehold::Error::Lost(_)) if !lost => {
                self.lost_leases.fetch_add(1, Ordering::Relaxed);
            }
            Err(leasehold::Error::Lost(_)) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
        waits.record(waited);
        let ended_us = clock::now().as_micros() as u64;
        self.ended_us.fetch_max(ended_us, Ordering::Relaxed);
        Ok(())
    }

    fn names(&self) -> u32 {
        self.locks.len() as u32
    }
}

fn read(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}
