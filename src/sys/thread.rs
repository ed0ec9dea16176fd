//! Threads. Each runs on the machine of the one that has started it.

use std::io;
use std::thread::Builder;

#[cfg(not(feature = "testing"))]
pub(crate) use std::thread::{Thread, current, park, sleep};

use super::machine::Machine;
#[cfg(feature = "testing")]
pub(crate) use super::of_test::thread::{Thread, current, park, park_for, sleep};

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
        #[cfg(feature = "testing")]
        let scheduled = super::of_test::thread::ScheduledThread::plan(self);
        move || {
            let _entered = machine.enter();
            #[cfg(feature = "testing")]
            if let Some(scheduled) = &scheduled {
                scheduled.begin();
            }
            run();
            #[cfg(feature = "testing")]
            drop(scheduled);
        }
    }
}
