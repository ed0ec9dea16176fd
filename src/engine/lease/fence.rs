//! Blocks of fences.
//!
//! A lease that may go from thread to thread reserves a block of fences with one script, so that a hand-over in memory needs
//! no request. A block has one fence for each microsecond of the quantum at the time of the request. The lease ends with the
//! quantum of the time at which it begins: if that is shorter, fences are given back, and if it is longer, the next thread asks.
//!
//! The fences of a node follow its clock in microseconds. A block that is used no faster than one fence a microsecond never
//! runs ahead of that clock, so fences still rise after a loss of all data, when only the clock is left. For the same reason
//! the end of a lease gives back the unused fences of its block.

use std::time::Duration;

use crate::wire::{GiveBack, LockKind};

/// The `left` fences from `next` on, and the fence that was given last. Without padding, because every lease in the
/// process has this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(4))]
pub(crate) struct Fences {
    next: u64,
    /// [`COMMON`] if all guards have the first fence, or have none, which is the fence 0.
    left: u32,
}

/// The value of `left` if all guards have the same fence. A quantum lasts at most an hour, so no block is as large.
const COMMON: u32 = u32::MAX;

impl Fences {
    /// Returns a block of `count` fences from `first` on.
    pub(crate) fn new(first: u64, count: u64) -> Self {
        Self {
            next: first,
            left: u32::try_from(count).unwrap_or(COMMON).min(COMMON - 1),
        }
    }

    /// Returns the fences of a lease of this kind after a grant of `count` fences. All readers have one fence. If `count`
    /// is 0, the guards have no fence.
    pub(crate) fn granted(kind: LockKind, first: u64, count: u64) -> Self {
        match (kind, count) {
            (_, 0) => Self {
                next: 0,
                left: COMMON,
            },
            (LockKind::Read, _) => Self {
                next: first,
                left: COMMON,
            },
            _ => Self::new(first, count),
        }
    }

    /// Returns the fence of the next guard; `None` if the block is used up.
    pub(crate) fn take(&mut self) -> Option<u64> {
        let (fence, is_own) = (self.next, !self.is_common());
        if self.is_empty() {
            return None;
        }
        self.next += u64::from(is_own);
        self.left -= u32::from(is_own);
        Some(fence)
    }

    /// Returns the fence that was given last. Before the first [`Self::take`] there is none.
    pub(crate) fn last(&self) -> u64 {
        self.next - u64::from(!self.is_common())
    }

    fn is_common(&self) -> bool {
        self.left == COMMON
    }

    fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Returns the unused part of the block. Returns `None` if nothing is left of it, or if all guards have one fence.
    pub(crate) fn give_back(&self) -> Option<GiveBack> {
        (!self.is_empty() && !self.is_common()).then(|| GiveBack {
            used: self.last(),
            last: self.next + u64::from(self.left) - 1,
        })
    }
}

/// Returns how many fences to reserve for a lease that may go from thread to thread: one for each microsecond of a
/// quantum. The leases that a name may have at the same time share this number.
pub(crate) fn block(kind: LockKind, quantum: Duration) -> u64 {
    let worth = u64::try_from(quantum.as_micros()).unwrap_or(u64::MAX);
    match kind {
        LockKind::Mutex | LockKind::Write => worth.max(1),
        LockKind::Semaphore { total_units } => (worth / u64::from(total_units)).max(1),
        // All readers have one fence. The lease of a multi-lock serves one guard, because each name would need a block.
        LockKind::Read | LockKind::Multi => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_without_fences_have_the_fence_0_and_give_nothing_back() {
        let mut fences = Fences::granted(LockKind::Mutex, 0, 0);
        assert_eq!([fences.take(), fences.take()], [Some(0), Some(0)]);
        assert_eq!((fences.last(), fences.give_back()), (0, None));
        assert!(!fences.is_empty());
    }

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
        assert_eq!(block(LockKind::Mutex, quantum), 50_000);
        assert_eq!(block(LockKind::Mutex, Duration::from_nanos(1)), 1);
        assert_eq!(
            block(LockKind::Semaphore { total_units: 8 }, quantum),
            6_250
        );
        assert_eq!(
            block(
                LockKind::Semaphore {
                    total_units: u32::MAX
                },
                quantum
            ),
            1
        );
        assert_eq!(block(LockKind::Read, quantum), 1);
    }

    #[test]
    fn readers_share_one_fence_and_give_none_back() {
        let mut fences = Fences::granted(LockKind::Read, 7, 1);
        assert_eq!([fences.take(), fences.take()], [Some(7); 2]);
        assert_eq!(fences.last(), 7);
        assert_eq!(fences.give_back(), None);
    }
}
