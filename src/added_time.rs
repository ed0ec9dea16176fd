//! The time that a test kit has added to the machine's clock.

use std::cell::RefCell;
use std::time::Duration;

use crate::sync::{Arc, AtomicU64, Ordering};

thread_local! {
    static OF_THREAD: RefCell<Option<AddedTime>> = const { RefCell::new(None) };
}

/// An amount of time that only grows. Clones are the same amount.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddedTime(Arc<AtomicU64>);

impl AddedTime {
    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    pub(crate) fn add(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let add = |added: u64| Some(added.saturating_add(nanos));
        // The function always returns a number.
        let added = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        added.ok();
    }

    /// Returns what is added to the machine's clock on this thread.
    pub(crate) fn here() -> Option<Self> {
        let here = OF_THREAD.try_with(|of_thread| of_thread.borrow().clone());
        here.ok().flatten()
    }

    /// Has the machine's clock show this time too on this thread, until the result is dropped.
    pub(crate) fn enter(&self) -> EnteredTime {
        EnteredTime(replace(Some(self.clone())))
    }
}

/// A call on the time of a test kit. Its drop has the thread's clock show what it showed before.
pub(crate) struct EnteredTime(Option<AddedTime>);

impl Drop for EnteredTime {
    fn drop(&mut self) {
        replace(self.0.take());
    }
}

/// Sets what is added on this thread, and returns what was. A guard may be dropped when the thread has ended so far that
/// this is over: then nothing is added.
fn replace(added: Option<AddedTime>) -> Option<AddedTime> {
    let before = OF_THREAD.try_with(|of_thread| of_thread.replace(added));
    before.ok().flatten()
}
