//! The parameters of a call, and the reasons for which it gets no guard.

use crate::cancel::Cancel;
use crate::config::Options;
use crate::core::queue::AcquireParams;
use crate::error::{Error, Failure};
use crate::message::LockKind;
use crate::name::Target;
use crate::sys::{Arc, Time};

/// The outcomes of calls, as labels.
#[cfg(feature = "metrics")]
pub(super) const OUTCOMES: [&str; 6] = [
    "acquired",
    "passed_on",
    "held",
    "timed_out",
    "cancelled",
    "failed",
];
/// The causes of losses, as labels, in the order of [`LostCause`](crate::error::LostCause).
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub(super) const CAUSES: [&str; 4] = ["expired", "taken", "removed", "max_hold"];

/// The parameters of one call.
pub(crate) struct Call<'a> {
    pub(crate) kind: LockKind,
    pub(crate) target: &'a Target,
    pub(crate) options: Options,
    /// The tail of its owners, if the handle has its own note.
    pub(crate) tail: Option<&'a Arc<str>>,
    /// The number of units.
    pub(crate) units: u32,
    /// The end of the wait. `None` for a try, which does not wait for the lock.
    pub(crate) until: Option<Time>,
    /// The token that may end the call early.
    pub(crate) cancel: Option<&'a Cancel>,
}

impl Call<'_> {
    /// Returns the part of the lock that the call wants, and its terms.
    pub(super) fn params(&self) -> AcquireParams {
        AcquireParams {
            units: self.units,
            terms: self.options.terms(),
            waits: self.until.is_some(),
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(Cancel::is_cancelled)
    }

    /// Converts the failure of a request into the error that the caller gets.
    pub(super) fn failed(&self, failure: Failure) -> NotAcquired {
        NotAcquired::Failed(failure.into_error(Some(self.target.name())))
    }
}

/// The reason for which a call got no guard.
pub(crate) enum NotAcquired {
    /// The lock was held until the call ended. The owner is `None` if this process does not know it.
    Held(Option<Arc<str>>),
    Failed(Error),
}

impl From<Error> for NotAcquired {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
