//! Locks of every kind for a manager of a world.

use std::borrow::Borrow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{LockManager, Result};
pub(crate) use leasehold_test_support::{Guard, Kind, WithLock, is_unreachable, lost};

use crate::world::{Flag, Locks, World, locked};

/// A lock of any kind for one manager, and the options of its handle.
pub(crate) type Subject = leasehold_test_support::Subject<Locks>;

impl Borrow<LockManager> for Locks {
    fn borrow(&self) -> &LockManager {
        self
    }
}

impl leasehold_test_support::Locks for Locks {
    type Holder = Holder;

    fn locking(subject: Subject) -> Holder {
        Holder::start(subject)
    }

    #[track_caller]
    fn locking_asleep(subject: Subject) -> Holder {
        let locks = subject.locks().clone();
        let before = locks.stats().waiting;
        let holder = Holder::start(subject);
        let waits = || locks.stats().waiting > before;
        locks.world().until("the thread waits", waits);
        holder
    }

    #[track_caller]
    fn wait_until_locked(holder: &Holder) {
        holder.locked();
    }
}

/// A thread that locks, and keeps the guard until the test releases it or this is dropped.
pub(crate) struct Holder {
    state: Arc<Mutex<HolderState>>,
    release: Flag,
    world: World,
}

#[derive(Default)]
struct HolderState {
    /// The fence, or why there is none.
    locked: Option<Result<u64>>,
    /// When that was known.
    locked_at: Duration,
    released: Option<Result<()>>,
}

impl Holder {
    fn start(subject: Subject) -> Self {
        let locks = subject.locks().clone();
        let world = locks.world().clone();
        let (state, release) = (Arc::<Mutex<HolderState>>::default(), world.flag());
        let (told, told_to_release) = (Arc::clone(&state), release.clone());
        let clock = world.clone();
        locks.thread(move || {
            let guard = subject.lock();
            {
                let mut state = locked(&told);
                state.locked_at = clock.now();
                state.locked = Some(guard.as_ref().map(Guard::fence).map_err(Clone::clone));
            }
            if let Ok(guard) = guard {
                told_to_release.wait();
                let released = guard.release();
                locked(&told).released = Some(released);
            }
        });
        Self {
            state,
            release,
            world,
        }
    }

    /// Blocks until the call ends, and returns the fence or the error.
    #[track_caller]
    pub(crate) fn outcome(&self) -> Result<u64> {
        self.world.until("the call ends", || !self.waits());
        let mut state = locked(&self.state);
        let fence = state
            .locked
            .as_ref()
            .and_then(|it| it.as_ref().ok())
            .copied();
        match fence {
            Some(fence) => Ok(fence),
            None => state.locked.take().expect("the call has ended once"),
        }
    }

    /// Blocks until the thread holds the lock, and returns its fence.
    #[track_caller]
    pub(crate) fn locked(&self) -> u64 {
        self.outcome().expect("it becomes free")
    }

    /// Blocks until the thread holds the lock, and returns since when.
    #[track_caller]
    pub(crate) fn locked_at(&self) -> Duration {
        self.locked();
        locked(&self.state).locked_at
    }

    /// Returns whether the call still waits.
    pub(crate) fn waits(&self) -> bool {
        locked(&self.state).locked.is_none()
    }

    #[track_caller]
    pub(crate) fn release(self) {
        self.release.raise();
        self.world
            .until("it is released", || locked(&self.state).released.is_some());
        let released = locked(&self.state).released.take();
        released
            .expect("it was waited for")
            .expect("it was held until now");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.release.raise();
    }
}
