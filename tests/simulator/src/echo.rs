//! Streams by which a thread of a process wakes another one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::seam::TestStream;

use crate::world::World;

/// A stream that gives back what is written to it, as one byte.
pub(crate) struct Echo {
    world: Arc<World>,
    number: u64,
    has_input: AtomicBool,
}

impl Echo {
    pub(crate) fn new(world: &Arc<World>) -> Self {
        Self {
            world: Arc::clone(world),
            number: world.state().network.next_stream(),
            has_input: AtomicBool::new(false),
        }
    }
}

impl TestStream for Echo {
    fn number(&self) -> u64 {
        self.number
    }

    fn has_input(&self) -> bool {
        self.has_input.load(Ordering::SeqCst)
    }

    fn read_now(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        let has_input = self.has_input.swap(false, Ordering::SeqCst);
        Ok(to.first_mut().filter(|_| has_input).map(|byte| {
            *byte = 0;
            1
        }))
    }

    fn write_now(&self, from: &[u8]) -> io::Result<usize> {
        self.has_input.store(true, Ordering::SeqCst);
        self.world.state().wake_reader(self.number);
        Ok(from.len())
    }
}

impl std::fmt::Debug for Echo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Echo").field(&self.number).finish()
    }
}
