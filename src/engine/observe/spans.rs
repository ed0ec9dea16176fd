//! The spans of the feature `tracing`, which docs/metrics.md lists. Their parent is the span that the calling thread is in. No
//! thread enters them, because a guard may go to another thread.

use tracing::field::Empty;
use tracing::{Span, info_span};

use crate::engine::lease::rules::LeaseStatus;
use crate::error::{Error, Result};
use crate::stats::exported::label_of;

pub(crate) fn wait(name: &str) -> Span {
    info_span!(target: "leasehold", "leasehold.wait", name, fence = Empty, outcome = Empty)
}

pub(crate) fn hold(name: &str, fence: u64) -> Span {
    info_span!(target: "leasehold", "leasehold.hold", name, fence, outcome = Empty)
}

/// Records the end of a guard by a release.
pub(crate) fn released(hold: &Span, result: &Result<()>) {
    let outcome = match result {
        Ok(()) => "released",
        Err(Error::Lost(lost)) => label_of(lost.cause),
        // In a forked child, a mutex of the subscriber may stay locked without end.
        Err(Error::Forked) => return,
        Err(_) => "release_failed",
    };
    hold.record("outcome", outcome);
}

/// Records the end of a guard whose lock stays in Redis.
pub(crate) fn detached(hold: &Span, status: LeaseStatus) {
    let outcome = match status {
        LeaseStatus::Lost(cause) => label_of(cause),
        _ => "detached",
    };
    hold.record("outcome", outcome);
}
