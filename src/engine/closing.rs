//! Whether a manager is closed, and how many of its threads `close` waits for.
//!
//! `close` sets the flag before it reads the count, and a thread that was busy lowers the count before it reads the flag. So at
//! least one of the two sees the other's change, and `close` does not sleep past the last busy thread. Each side writes one word
//! and then reads the other, so only `SeqCst` will do.

use crate::sys::{AtomicBool, AtomicU32, Ordering};

#[derive(Default)]
pub(crate) struct Closing {
    closed: AtomicBool,
    busy_threads: AtomicU32,
}

impl Closing {
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(super) fn note_closed(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Returns the number of busy threads: delegates, which ask Redis or sleep before they ask again, and threads that end a
    /// lease.
    pub(super) fn busy_threads(&self) -> u32 {
        self.busy_threads.load(Ordering::SeqCst)
    }

    /// Counts one more busy thread.
    pub(super) fn add_busy(&self) {
        self.busy_threads.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts one less. Returns whether `close` may wait for that, and must be woken.
    pub(super) fn remove_busy(&self) -> bool {
        self.busy_threads.fetch_sub(1, Ordering::SeqCst);
        self.is_closed()
    }
}
