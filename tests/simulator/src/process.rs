//! The world as one process sees it.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use leasehold::testing::simulation::{TestScheduler, TestStream, World as Seen};

use crate::echo::Echo;
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

pub(crate) struct ProcessWorld {
    pub(crate) world: Arc<World>,
    pub(crate) process: usize,
}

impl Seen for ProcessWorld {
    fn scheduler(&self) -> &dyn TestScheduler {
        self
    }

    fn now(&self) -> Duration {
        self.world.step();
        let state = self.world.state();
        state.processes[self.process].clock.read(state.now)
    }

    fn since_1970(&self) -> Duration {
        let state = self.world.state();
        state.processes[self.process].began_at + state.now
    }

    fn connect(&self, address: &str, limit: Duration) -> io::Result<Box<dyn TestStream>> {
        let server = server_at(address).ok_or(io::ErrorKind::NotFound)?;
        let end = ProcessEnd::connect(&self.world, self.process, server, limit)?;
        Ok(Box::new(end))
    }

    fn echo(&self) -> Box<dyn TestStream> {
        Box::new(Echo::new(&self.world))
    }

    fn wait_for_input(&self, streams: &[&dyn TestStream], limit: Duration) {
        let numbers = streams.iter().map(|stream| stream.number()).collect();
        self.world.wait(Place::Streams(numbers), Some(limit));
    }
}

impl TestScheduler for ProcessWorld {
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
        self.world.thread_planned(self.process)
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
