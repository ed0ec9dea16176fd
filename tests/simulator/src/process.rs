//! The world as one process sees it: the machine of its managers and threads.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Builder;
use leasehold::seam::{self, TestMachine, TestNetwork, TestScheduler, TestStream, Time};

use crate::network::{ProcessEnd, server_at};
use crate::world::{Place, World};

thread_local! {
    /// Whether this thread is that of a forked child.
    static IS_CHILD: Cell<bool> = const { Cell::new(false) };
}

/// Has the calling thread be that of a forked child, until this is dropped.
pub(crate) struct Child(());

impl Child {
    pub(crate) fn begin() -> Self {
        IS_CHILD.set(true);
        Self(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        IS_CHILD.set(false);
    }
}

/// A process of the simulator.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) world: Arc<World>,
    pub(crate) number: usize,
}

impl Process {
    /// Runs the manager of this builder in this process.
    pub(crate) fn builder(&self, builder: Builder) -> Builder {
        builder.on(Arc::new(self.clone()))
    }

    /// Starts a thread of the process.
    pub(crate) fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        seam::spawn(Arc::new(self.clone()), name, run)
    }
}

impl TestMachine for Process {
    fn now(&self) -> Time {
        self.world.step();
        let state = self.world.state();
        Time::from_nanos(0) + state.processes[self.number].clock.read(state.now)
    }

    fn instant(&self) -> Instant {
        self.world.began_at + self.world.state().now
    }

    fn wall_us(&self) -> u64 {
        let state = self.world.state();
        let since_1970 = state.processes[self.number].began_at + state.now;
        u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
    }

    fn may_start_thread(&self) -> io::Result<()> {
        match &mut self.world.state().processes[self.number].threads_left {
            // As a system does whose limit is reached.
            Some(0) => Err(io::ErrorKind::WouldBlock.into()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn network(&self) -> Option<Arc<dyn TestNetwork>> {
        Some(Arc::new(self.clone()))
    }

    fn scheduler(&self) -> Option<&dyn TestScheduler> {
        Some(self)
    }
}

impl TestNetwork for Process {
    fn connect(&self, address: &str, until: Time) -> io::Result<Box<dyn TestStream>> {
        let limit = until.since(self.now());
        let server = server_at(address).ok_or(io::ErrorKind::NotFound)?;
        let end = ProcessEnd::connect(&self.world, self.number, server, limit)?;
        Ok(Box::new(end))
    }

    fn wait(&self, streams: &[&dyn TestStream], until: Time) {
        loop {
            let left = until.since(self.now());
            if streams.iter().any(|stream| stream.has_input()) || left.is_zero() {
                return;
            }
            let numbers = streams.iter().map(|stream| stream.number()).collect();
            self.world.wait(Place::Streams(numbers), Some(left));
        }
    }

    /// The world itself wakes the threads that wait.
    fn notify(&self) {}
}

impl TestScheduler for Process {
    fn step(&self) {
        self.world.step();
    }

    fn wait(&self, place: usize, limit: Option<Duration>) {
        self.world.wait(Place::Address(place), limit);
    }

    fn wake(&self, place: usize, all: bool) {
        self.world.wake(place, all);
    }

    fn thread_planned(&self) -> u64 {
        self.world.thread_planned(self.number)
    }

    fn thread_begins(&self, number: u64) {
        self.world.thread_begins(number);
    }

    fn thread_ends(&self, number: u64) {
        self.world.thread_ends(number);
    }

    fn random(&self) -> u64 {
        self.world.state().random.bits()
    }

    fn is_in_child(&self) -> bool {
        IS_CHILD.get()
    }
}
