//! The loss of a lock.

use std::fmt;

use crate::sys::Arc;

/// The loss of a lock: its lease ended before its guard did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// The name of the lock.
    pub name: Arc<str>,
    /// The fence of the guard that lost the lock.
    pub fence: u64,
    /// The cause of the loss.
    pub cause: LostCause,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.cause {
            LostCause::Expired => "its lease expired before it was renewed",
            LostCause::Taken => "another owner holds it",
            LostCause::Removed => "its key was removed from Redis",
            LostCause::MaxHold => "the guard was held for longer than max_hold",
        };
        write!(f, "lock {:?} was lost: {why}", self.name)
    }
}

/// The cause of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostCause {
    /// The deadline of the lease passed, by this process's clock.
    Expired,
    /// Redis replied that another owner holds the lock.
    Taken,
    /// Redis replied that the key of the lock, or this owner's part of it, does not exist.
    Removed,
    /// The guard was held for longer than its `max_hold`.
    MaxHold,
}
