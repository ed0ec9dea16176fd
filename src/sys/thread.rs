//! Threads. Each runs on the machine of the one that has started it.

use std::io;
use std::thread::Builder;
use std::time::Duration;

pub(crate) use std::thread::{Thread, current, park};

use super::machine::Machine;

/// Starts a thread with this name, or with none if it is empty.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    Machine::here().spawn(name, run)
}

impl Machine {
    /// Starts a thread on this machine.
    pub(crate) fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut thread = Builder::new();
        if !name.is_empty() {
            thread = thread.name(name.to_owned());
        }
        thread.spawn(self.running(run)).map(drop)
    }

    /// Has a function run on this machine, on whatever thread it is called.
    pub(crate) fn running<F: FnOnce()>(&self, run: F) -> impl FnOnce() + use<F> {
        let machine = self.clone();
        move || {
            let _entered = machine.enter();
            run();
        }
    }
}

/// Blocks until the thread is unparked, for at most this time. May return earlier.
pub(crate) fn park_for(limit: Duration) {
    std::thread::park_timeout(limit);
}

/// Blocks for this time.
pub(crate) fn sleep(time: Duration) {
    std::thread::sleep(time);
}
