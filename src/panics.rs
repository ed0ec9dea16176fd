//! What a panic must not end: a thread that others rely on, or, in a guard's drop, the process.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs what may panic; none where it did. The caller sees to it that what was half done then does no harm.
pub(crate) fn survived<T>(run: impl FnOnce() -> T) -> Option<T> {
    let payload = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => return Some(done),
        Err(payload) => payload,
    };
    // It is foreign too: its drop may panic as well, and what comes of that is let alone.
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
