//! Blocks of fences.
//!
//! A tenure that may be passed between threads reserves a block of fences with one script, so that the
//! passing itself needs no server: one for each guard, at most one for each microsecond of its quantum.
//! The fences of one node follow its clock in microseconds, so a block that is used up no faster than one
//! a microsecond never runs ahead of that clock, and the fences given after a loss of all data (when only
//! the clock is left) are still larger. What a block has left at the end is given back for the same reason.

use std::time::Duration;

use crate::script::GiveBack;

/// The fences `next..end`, and the one given last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fences {
    next: u64,
    end: u64,
}

impl Fences {
    /// A block of `count` fences from `first` on.
    pub(crate) fn new(first: u64, count: u64) -> Self {
        Self {
            next: first,
            end: first.saturating_add(count),
        }
    }

    /// The fence of the next guard; none when the block is used up.
    pub(crate) fn take(&mut self) -> Option<u64> {
        if self.next == self.end {
            return None;
        }
        let fence = self.next;
        self.next += 1;
        Some(fence)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.end
    }

    /// None where nothing is left, or nothing was used: a fence is given with the block or not at all.
    pub(crate) fn give_back(&self) -> Option<GiveBack> {
        (!self.is_empty()).then(|| GiveBack {
            used: self.next - 1,
            last: self.end - 1,
        })
    }
}

/// How many fences to reserve: a quantum's worth where guards are going to be passed on, else one.
pub(crate) fn block(quantum: Duration, crowded: bool) -> u64 {
    if crowded {
        u64::try_from(quantum.as_micros())
            .unwrap_or(u64::MAX)
            .max(1)
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_given_out_in_order_and_once() {
        let mut fences = Fences::new(7, 3);
        assert_eq!(fences.take(), Some(7));
        assert_eq!(fences.give_back(), Some(GiveBack { used: 7, last: 9 }));
        assert_eq!(
            [fences.take(), fences.take(), fences.take()],
            [Some(8), Some(9), None]
        );
        assert_eq!(fences.give_back(), None);
    }

    #[test]
    fn a_block_never_outruns_the_clock() {
        assert_eq!(block(Duration::from_millis(50), true), 50_000);
        assert_eq!(block(Duration::from_nanos(1), true), 1);
        assert_eq!(block(Duration::from_millis(50), false), 1);
    }
}
