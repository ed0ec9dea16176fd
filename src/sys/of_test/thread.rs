//! Threads that a scheduler of a test may run. On a machine without one they are the standard library's.
//!
//! | a thread | on a machine with a scheduler |
//! | --- | --- |
//! | parks | takes its token, or waits at the place of the token |
//! | unparks another | gives it the token, and wakes it |
//! | starts another | tells the scheduler first. So the new thread has its number before it exists |

use std::time::Duration;

use super::locks::place;
use crate::sys::machine::Machine;
use crate::sys::{Arc, AtomicBool, Ordering};

thread_local! {
    static TOKEN: Token = Token::default();
}

/// Whether a thread was unparked since it last parked.
type Token = Arc<AtomicBool>;

/// A thread.
#[derive(Clone)]
pub(crate) struct Thread {
    real: std::thread::Thread,
    /// Its machine and token, if a scheduler runs it.
    scheduled: Option<(Machine, Token)>,
}

/// A thread that the scheduler knows. Its drop is the end of the thread.
pub(in crate::sys) struct ScheduledThread {
    machine: Machine,
    number: u64,
}

/// Returns the calling thread.
pub(crate) fn current() -> Thread {
    let machine = Machine::here();
    let is_scheduled = machine.scheduler().is_some();
    Thread {
        real: std::thread::current(),
        scheduled: is_scheduled.then(|| (machine, TOKEN.with(Token::clone))),
    }
}

impl Thread {
    pub(crate) fn unpark(&self) {
        match &self.scheduled {
            None => self.real.unpark(),
            Some((machine, token)) => {
                token.store(true, Ordering::SeqCst);
                if let Some(scheduler) = machine.scheduler() {
                    scheduler.wake(place(&**token), true);
                }
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn name(&self) -> Option<&str> {
        self.real.name()
    }
}

/// Blocks until the thread is unparked. May return earlier.
pub(crate) fn park() {
    if !park_scheduled(None) {
        std::thread::park();
    }
}

/// Blocks until the thread is unparked, for at most this time. May return earlier.
pub fn park_for(limit: Duration) {
    if !park_scheduled(Some(limit)) {
        std::thread::park_timeout(limit);
    }
}

/// Returns false if no scheduler runs this thread.
fn park_scheduled(limit: Option<Duration>) -> bool {
    let machine = Machine::here();
    let Some(scheduler) = machine.scheduler() else {
        return false;
    };
    let token = TOKEN.with(Token::clone);
    scheduler.step();
    if !token.swap(false, Ordering::SeqCst) {
        scheduler.wait(place(&*token), limit);
        token.store(false, Ordering::SeqCst);
    }
    true
}

/// Blocks for this time.
pub fn sleep(time: Duration) {
    match Machine::here().scheduler() {
        None => std::thread::sleep(time),
        // No other thread knows this place.
        Some(scheduler) => scheduler.wait(place(&time), Some(time)),
    }
}

impl ScheduledThread {
    /// Plans a thread, if the machine has a scheduler.
    pub(in crate::sys) fn plan(machine: &Machine) -> Option<Self> {
        let number = machine.scheduler()?.thread_planned();
        let machine = machine.clone();
        Some(Self { machine, number })
    }

    /// Blocks the calling thread, which is this one, until it may run.
    pub(in crate::sys) fn begin(&self) {
        if let Some(scheduler) = self.machine.scheduler() {
            scheduler.thread_begins(self.number);
        }
    }
}

impl Drop for ScheduledThread {
    fn drop(&mut self) {
        if let Some(scheduler) = self.machine.scheduler() {
            scheduler.thread_ends(self.number);
        }
    }
}
