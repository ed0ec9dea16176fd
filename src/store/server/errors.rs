//! The failures of a connection, and their meaning for the request that was on its way.
//!
//! | event | the request | noted as a sign of lost data |
//! | --- | --- | --- |
//! | the server answers with an error: see `refusal` | was not executed, or in part; the server will do no more of it | for some codes |
//! | the other side closes the connection | unknown; sent once more if the connection was opened for an earlier call | yes |
//! | any other error of input or output, such as a timeout | unknown | no |
//! | an answer cannot be read | unknown | no |
//! | an answer is no reply to its request | unknown | yes, and all leases are confirmed again |
//! | something is unread before the request is written | was not executed; sent on another connection | the same |
//! | the connection has ended before the request is written | was not executed; sent on another connection | yes |

use std::fmt;
use std::io;

use redis::Value;

use crate::error::{Failure, FailureKind, Outcome, on_a_line};
use crate::store::server::refusal::refusal;
use crate::store::server::route::Route;
use crate::store::transport::socket::TransportError;
use crate::sys::Arc;

impl Route {
    /// Returns the failure that a fault means for a request. Notes the fault if the server may have lost its data.
    pub(crate) fn broken(&self, fault: TransportError) -> Failure {
        let address = &self.server.address;
        let kind = if fault.is_of_a_certificate() {
            FailureKind::CertificateRefused
        } else {
            FailureKind::Unavailable
        };
        match fault {
            TransportError::Io(error) => {
                self.data_loss_signs.note_error(&error);
                Failure {
                    kind,
                    outcome: Outcome::Unknown,
                    timed_out: error.kind() == io::ErrorKind::TimedOut,
                    cause: Arc::new(At {
                        address: Arc::clone(address),
                        error,
                    }),
                }
            }
            TransportError::NotSent => {
                self.data_loss_signs.note();
                let words = format!("{address}: the connection ended before the request was sent");
                Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words)
            }
            TransportError::Surplus => {
                self.data_loss_signs.note_surplus();
                let words = format!("{address}: an answer came before the request was sent");
                Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words)
            }
            // No Redis server sends such an answer, so a retry would not help.
            TransportError::Malformed(what) => {
                let words = format!(
                    "{address}: {}",
                    on_a_line(&self.server.without_password(&what))
                );
                Failure::plain(FailureKind::Protocol, Outcome::Unknown, words)
            }
        }
    }

    /// Returns the failure that an error answer means for a request. Notes the answer if the server may have lost its
    /// data.
    pub(crate) fn refused(&self, error: redis::ServerError) -> Failure {
        self.data_loss_signs.note_answer(&error);
        refusal(&self.server, error)
    }

    /// Returns an answer that is no error.
    pub(crate) fn accepted(&self, answer: Value) -> Result<Value, Failure> {
        match answer {
            Value::ServerError(error) => Err(self.refused(error)),
            answer => Ok(answer),
        }
    }
}

/// Returns the transient failure of a request that was not sent.
pub(crate) fn unavailable(words: impl Into<String>) -> Failure {
    Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words)
}

/// Returns whether a request failed because the connection broke, or could not be opened, while time was left.
pub(crate) fn was_cut(failure: &Failure) -> bool {
    !failure.timed_out && matches!(failure.cause.source(), Some(error) if error.is::<io::Error>())
}

/// An error of a connection, and the address at the other end.
#[derive(Debug)]
struct At {
    address: Arc<str>,
    error: io::Error,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the connection to {} failed", self.address)
    }
}

impl std::error::Error for At {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
