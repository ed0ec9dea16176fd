//! Blocks of fences.
//!
//! A lease that may be passed between threads reserves a block of fences with one script, so that the
//! passing itself needs no server: one for each guard, at most one for each microsecond of its quantum.
//! The fences of one node follow its clock in microseconds, so a block that is used up no faster than one
//! a microsecond never runs ahead of that clock, and the fences given after a loss of all data (when only
//! the clock is left) are still larger. What a block has left at the end is given back for the same reason.

use std::time::Duration;

use crate::message::{GiveBack, Kind};

/// So many fences from `next` on, and the one given last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fences {
    next: u64,
    left: u32,
    /// Whether all guards have the first.
    is_common: bool,
}

impl Fences {
    /// A block of `count` fences from `first` on.
    pub(crate) fn new(first: u64, count: u64) -> Self {
        Self {
            next: first,
            // A quantum is an hour at the most, and so its fences are fewer.
            left: u32::try_from(count).unwrap_or(u32::MAX),
            is_common: false,
        }
    }

    /// What a grant of `count` fences brings to a lease of this kind: the readers all have the last writer's.
    pub(crate) fn granted(kind: Kind, first: u64, count: u64) -> Self {
        Self {
            is_common: kind == Kind::Read,
            ..Self::new(first, count)
        }
    }

    /// The fence of the next guard; none when the block is used up.
    pub(crate) fn take(&mut self) -> Option<u64> {
        let (fence, is_own) = (self.next, !self.is_common);
        if self.is_empty() {
            return None;
        }
        self.next += u64::from(is_own);
        self.left -= u32::from(is_own);
        Some(fence)
    }

    /// The fence given last, once one was.
    pub(crate) fn last(&self) -> u64 {
        self.next - u64::from(!self.is_common)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// None where nothing is left, or nothing was used: a fence is given with the block or not at all.
    pub(crate) fn give_back(&self) -> Option<GiveBack> {
        (!self.is_empty() && !self.is_common).then(|| GiveBack {
            used: self.last(),
            last: self.next + u64::from(self.left) - 1,
        })
    }
}

/// How many fences to reserve where guards are going to be passed on: a quantum's worth. The leases that a name
/// may have beside each other share it.
pub(crate) fn block(kind: Kind, quantum: Duration) -> u64 {
    let worth = u64::try_from(quantum.as_micros()).unwrap_or(u64::MAX);
    match kind {
        Kind::Mutex | Kind::Write => worth.max(1),
        Kind::Semaphore { total_units } => (worth / u64::from(total_units)).max(1),
        // One fence for all readers; and the names of a set are not passed on, because each would want a block.
        Kind::Read | Kind::Multi => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_given_out_in_order_and_once() {
        let mut fences = Fences::new(7, 3);
        assert_eq!(fences.take(), Some(7));
        assert_eq!(fences.last(), 7);
        assert_eq!(fences.give_back(), Some(GiveBack { used: 7, last: 9 }));
        assert_eq!(
            [fences.take(), fences.take(), fences.take()],
            [Some(8), Some(9), None]
        );
        assert_eq!(fences.give_back(), None);
    }

    #[test]
    fn a_block_never_outruns_the_clock() {
        let quantum = Duration::from_millis(50);
        assert_eq!(block(Kind::Mutex, quantum), 50_000);
        assert_eq!(block(Kind::Mutex, Duration::from_nanos(1)), 1);
        assert_eq!(block(Kind::Semaphore { total_units: 8 }, quantum), 6_250);
        assert_eq!(
            block(
                Kind::Semaphore {
                    total_units: u32::MAX
                },
                quantum
            ),
            1
        );
        assert_eq!(block(Kind::Read, quantum), 1);
    }

    #[test]
    fn readers_share_one_fence_and_give_none_back() {
        let mut fences = Fences::granted(Kind::Read, 7, 1);
        assert_eq!([fences.take(), fences.take()], [Some(7); 2]);
        assert_eq!(fences.last(), 7);
        assert_eq!(fences.give_back(), None);
    }
}
