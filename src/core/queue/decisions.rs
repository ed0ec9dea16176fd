//! The decisions of the queue. The calling thread executes them.

use super::lease::HoldOf;
use crate::message::GiveBack;

/// Whether a lease may go to the next thread in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Held, renewed, on time.
    Good,
    /// Still held, but not renewed, late, extended beyond its terms, detached, or not confirmed since a sign of lost
    /// data: the next thread asks Redis.
    Poor,
    /// Still held, but kept from all threads for a while (`min_hold`): it is released, and then the next thread asks.
    KeptBack,
    Lost,
}

/// The role of a thread that arrived.
#[derive(Debug)]
pub(crate) enum Arrival<T> {
    /// It asks Redis.
    Delegate,
    /// It waits, under this number.
    Queued(u64),
    /// It shares a lease that this process has.
    Hold(HoldOf<T>),
    /// It only tried, and the lock is held.
    Held,
}

/// A thread that waited and now has its hold.
pub(crate) type Admitted<W, T> = (W, HoldOf<T>);

/// The threads that come in at one moment. Mostly it is one, so the first is kept apart from the allocation.
pub(crate) type Entrants<W, T> = (Option<Admitted<W, T>>, Vec<Admitted<W, T>>);

/// The thread whose request brought a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantedTo {
    Delegate,
    /// A thread that adopts, or downgrades. There may be a delegate too.
    OtherThread,
}

/// The tasks after a grant.
#[derive(Debug)]
pub(crate) struct Begun<W, T> {
    /// The hold of the thread that asked.
    pub(crate) hold: HoldOf<T>,
    /// The waiting threads that share the lease.
    pub(crate) admitted: Entrants<W, T>,
    /// Threads that only tried, and now know that the lock is held.
    pub(crate) tried: Vec<W>,
    /// The thread that asks next.
    pub(crate) next: Option<W>,
}

/// The tasks after a hold has ended.
#[derive(Debug)]
pub(crate) enum Finish<W, T> {
    /// The lease was over before.
    Stale,
    /// The lease goes on: in the guards that share it still, and in these threads.
    GoesOn(Entrants<W, T>),
    /// The lease has ended here. This thread is the delegate, and its request takes the lease over. If that is not possible,
    /// because the lock was detached or is kept for a `min_hold`, the caller releases it first.
    TakeOver(W, Option<GiveBack>),
    /// The lease has ended here, and no thread may ask yet: release it, then call [`Queue::ended`](super::Queue::ended).
    Release(Option<GiveBack>),
    /// The lease was lost; this thread, if any, asks anew.
    Lost(Option<W>),
}
