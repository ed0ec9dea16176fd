//! Threads that a scheduler of a test may run. On a machine without one they are the standard library's. A thread that starts
//! another one tells the scheduler first, so that the new thread has its number before it exists.

use std::time::Duration;

use super::locks::place;
use crate::sys::machine::Machine;

/// A thread that the scheduler knows. Its drop is the end of the thread.
pub(in crate::sys) struct ScheduledThread {
    machine: Machine,
    number: u64,
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
