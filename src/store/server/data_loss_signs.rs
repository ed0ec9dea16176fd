//! Signs that a server may have lost its data.
//!
//! A connection that the other side closed or refused is such a sign. So is a server that is loading or has become a
//! replica. A server that does not answer may only be slow. All links along a route note their signs in one place, and
//! the layers above ask when the last one was seen.
//!
//! An answer without a request is another sign: an earlier caller may have taken such an answer for its own. So every
//! lease that was confirmed before must be confirmed again.

use std::io;

use crate::store::server::refusal::says;
use crate::store::transport::socket::CLOSED;
use crate::sys::{AtomicU64, Ordering, Time};

/// The times of the last sign, and of the last answer without a request, in nanoseconds of the machine's clock.
#[derive(Debug, Default)]
pub(crate) struct DataLossSigns {
    last: AtomicU64,
    last_surplus: AtomicU64,
}

impl DataLossSigns {
    /// Returns when a sign was last seen. Returns the clock's zero if there was none.
    pub(crate) fn last(&self) -> Time {
        Time::from_nanos(self.last.load(Ordering::Acquire))
    }

    /// Returns when an answer without a request was last seen. Returns the clock's zero if there was none.
    pub(crate) fn last_surplus(&self) -> Time {
        Time::from_nanos(self.last_surplus.load(Ordering::Acquire))
    }

    /// Notes an answer without a request.
    pub(crate) fn note_surplus(&self) {
        self.note();
        self.last_surplus
            .fetch_max(self.last().as_nanos(), Ordering::AcqRel);
    }

    /// Notes an error of a connection.
    pub(crate) fn note_error(&self, error: &io::Error) {
        if CLOSED.contains(&error.kind()) || error.kind() == io::ErrorKind::ConnectionRefused {
            self.note();
        }
    }

    /// Notes an error answer.
    pub(crate) fn note_answer(&self, error: &redis::ServerError) {
        if says(error, &["LOADING", "READONLY", "MASTERDOWN"]) {
            self.note();
        }
    }

    /// Notes a sign.
    pub(crate) fn note(&self) {
        let now = Time::now().as_nanos();
        self.last.fetch_max(now, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_a_sign(note: impl FnOnce(&DataLossSigns)) -> bool {
        let signs = DataLossSigns::default();
        note(&signs);
        signs.last() > Time::from_nanos(0)
    }

    #[test]
    fn a_closed_or_refused_connection_is_a_sign_and_a_slow_one_is_not() {
        let error = |kind: io::ErrorKind| is_a_sign(|signs| signs.note_error(&kind.into()));
        assert!(CLOSED.iter().all(|kind| error(*kind)));
        assert!(error(io::ErrorKind::ConnectionRefused));
        assert!(!error(io::ErrorKind::TimedOut));
    }

    #[test]
    fn a_server_that_loads_or_is_a_replica_is_a_sign() {
        let answer = |line: &str| match redis::parse_redis_value(line.as_bytes()) {
            Ok(redis::Value::ServerError(error)) => is_a_sign(|signs| signs.note_answer(&error)),
            other => panic!("{other:?}"),
        };
        assert!(answer("-LOADING Redis is loading\r\n"));
        assert!(answer("-READONLY You can't write\r\n"));
        assert!(!answer("-OOM command not allowed\r\n"));
    }
}
