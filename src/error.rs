//! Errors: those that callers see, and failures, as the inside of the crate works with them.

// By their paths, because benches include this file from elsewhere.
#[path = "error/failure.rs"]
mod failure;
#[path = "error/public.rs"]
mod public;

pub use public::{Error, ErrorKind, Lost, LostCause, NodeFailure, Result};

pub(crate) use failure::{
    Failure, FailureKind, NodeCounts, Outcome, Redirect, ServerMode, on_a_line,
};
pub(crate) use public::Chain;

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn an_error_is_small() {
        assert!(size_of::<Error>() < 128, "{}", size_of::<Error>());
    }

    #[test]
    fn messages_name_the_lock_and_escape_it() {
        let error = Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, "gone")
            .into_error(Some("a\nb"));
        assert_eq!(
            error.to_string(),
            "lock \"a\\nb\": the server is unavailable"
        );
        assert_eq!(format!("{error:#}"), format!("{error}: gone"));
        assert_eq!(error.source().expect("it has a cause").to_string(), "gone");
        assert!(error.is_retryable());
    }
}
