//! Threads that stand ready before the clock starts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::Result;

/// Small stacks, so that a thousand threads fit. The work needs no more.
const STACK_BYTES: usize = 256 * 1024;

/// Threads behind a gate. `T` is the result of each.
pub struct Team<T> {
    gate: Arc<OnceLock<Instant>>,
    threads: Vec<JoinHandle<Result<T>>>,
}

impl<T: Send + 'static> Team<T> {
    /// Starts threads, each of which prepares its work, and returns when all are ready. The work gets the instant at
    /// which the gate opened.
    pub fn ready<W>(
        threads: usize,
        prepare: impl Fn(usize) -> Result<W> + Send + Sync + 'static,
    ) -> Result<Self>
    where
        W: FnOnce(Instant) -> Result<T>,
    {
        let gate = Arc::new(OnceLock::new());
        let ready = Arc::new(AtomicUsize::new(0));
        let prepare = Arc::new(prepare);
        let start = |index| {
            let (gate, prepare) = (Arc::clone(&gate), Arc::clone(&prepare));
            let here = Here {
                ready: Arc::clone(&ready),
                waits: thread::current(),
            };
            thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    let work = prepare(index);
                    drop(here);
                    work?(*gate.wait())
                })
        };
        let threads = (0..threads).map(start).collect::<Result<Vec<_>, _>>()?;
        while ready.load(Ordering::Acquire) < threads.len() {
            thread::park();
        }
        Ok(Self { gate, threads })
    }

    /// Lets the threads go.
    pub fn open(&self) {
        // A gate that is open stays open.
        self.gate.set(Instant::now()).ok();
    }

    /// Waits until all threads have ended.
    pub fn join(self) -> Result<Vec<T>> {
        let ends: Vec<_> = self.threads.into_iter().map(JoinHandle::join).collect();
        ends.into_iter()
            .map(|end| end.unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    }
}

impl Team<u64> {
    /// Lets the threads go. Returns how much they did together, and how much in a second.
    pub fn run(self) -> Result<(u64, f64)> {
        let start = Instant::now();
        self.open();
        let done = self.join()?.iter().sum();
        Ok((done, per_second(done, start.elapsed())))
    }
}

/// A thread on its way to the gate. Its drop counts it as ready, also after a panic.
struct Here {
    ready: Arc<AtomicUsize>,
    waits: Thread,
}

impl Drop for Here {
    fn drop(&mut self) {
        self.ready.fetch_add(1, Ordering::Release);
        self.waits.unpark();
    }
}

pub fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// Takes turns until `time` has passed, and returns their number.
pub fn turns(start: Instant, time: Duration, mut turn: impl FnMut() -> Result<()>) -> Result<u64> {
    let mut turns = 0;
    while start.elapsed() < time {
        turn()?;
        turns += 1;
    }
    Ok(turns)
}
