//! rslock, whose values are random bytes and no text.

use std::time::Duration;

use rslock::{Lock, LockError, LockManager};
use tokio::runtime::{Builder, Runtime};

use super::{Foreign, each};
use crate::support::{Raw, ms};

struct Rslock {
    runtime: Runtime,
    locks: LockManager,
    name: String,
    held: Option<Lock>,
}

impl Foreign for Rslock {
    fn new(redis: &Raw, name: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build();
        let mut locks = LockManager::new(vec![redis.url()]);
        locks.set_retry(1, ms(1));
        Self {
            runtime: runtime.expect("a runtime"),
            locks,
            name: name.into(),
            held: None,
        }
    }

    fn try_acquire(&mut self, ttl: Option<Duration>) -> bool {
        let ttl = ttl.expect("its locks all have one");
        let locked = self.locks.lock(self.name.as_str(), ttl);
        match self.runtime.block_on(locked) {
            Ok(lock) => {
                self.held = Some(lock);
                true
            }
            // The second where a busy machine took longer for the answer than the lock lasts.
            Err(LockError::Unavailable | LockError::TtlExceeded) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn extend(&mut self, ttl: Duration) -> bool {
        let held = self.held.as_ref().expect("it has had one");
        self.runtime.block_on(self.locks.extend(held, ttl)).is_ok()
    }

    fn release(&mut self) -> bool {
        let held = self.held.take().expect("it has had one");
        // It does not say what came of a release.
        let is_its_own = self.runtime.block_on(self.locks.is_freed(&held)).is_ok();
        self.runtime.block_on(held.release());
        is_its_own
    }
}

macro_rules! test {
    ($behaviour:ident) => {
        #[test]
        fn $behaviour() {
            super::$behaviour::<Rslock>();
        }
    };
}

each!(test);
