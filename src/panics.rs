//! Containment of panics. A panic must not end a thread that other threads rely on. In the drop of a guard, a second
//! panic would abort the process.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a closure that may panic, and returns its result. Returns `None` if it panicked. The caller must make sure that
/// work which the closure left half done does no harm.
pub(crate) fn survived<T>(run: impl FnOnce() -> T) -> Option<T> {
    let payload = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => return Some(done),
        Err(payload) => payload,
    };
    // The payload is foreign code too, so its drop may panic. The payload of that second panic is never dropped.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(second);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    struct Spiteful(u32);

    impl Drop for Spiteful {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Self(self.0 - 1));
            }
        }
    }

    #[test]
    fn a_panic_is_survived_with_what_it_throws() {
        assert_eq!(survived(|| 1), Some(1));
        assert_eq!(survived(|| panic!("on purpose")), None::<()>);
        for depth in 0..3 {
            assert_eq!(survived(|| panic_any(Spiteful(depth))), None::<()>);
        }
    }
}
