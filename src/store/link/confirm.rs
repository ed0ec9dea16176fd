//! The confirmation of a write by replicas.

use std::time::Duration;

use redis::Value;

use super::Link;
use crate::error::{Failure, FailureKind, Outcome};
use crate::script::Command;
use crate::store::errors::{RequestError, is_late};
use crate::store::refusal::refusal;
use crate::store::route::Budget;
use crate::store::socket::TransportError;

/// How late the server may answer a WAIT after its time is over: the server's timer runs every 100 ms.
const LATE_ANSWER: Duration = Duration::from_millis(110);

impl Link<'_> {
    /// Waits until enough replicas have the last write on this connection. Every script that grants or renews writes,
    /// even if it is repeated. A write that they have not confirmed in time counts as not replicated.
    pub(super) fn confirm(&mut self, budget: &Budget) -> Result<(), Failure> {
        let (route, wanted) = (self.route.clone(), self.route.replicas);
        let server = &route.server;
        let time = budget.step(self.route.io_timeout);
        let limit = time.limit;
        // A count is worth more than no answer, so the server's time for the WAIT is shorter than the limit here. The
        // server notices the end of a WAIT up to 100 ms late.
        let patience = limit.saturating_sub(LATE_ANSWER).max(limit / 2);
        let patience = patience.max(Duration::from_millis(1));
        let too_few = |confirmed| {
            let kind = FailureKind::NotReplicated { wanted, confirmed };
            let words =
                format!("{confirmed} of {wanted} replicas confirmed it within {patience:?}");
            Failure::plain(kind, Outcome::PartlyExecuted, words)
        };
        let mut wait = Command::new("WAIT");
        wait.arg(wanted).arg(patience.as_millis() as u64);
        let answer = self.connection.request(&wait, false, time);
        let confirmed = match answer.map_err(RequestError::of) {
            Ok(Value::Int(count)) => u32::try_from(count).unwrap_or(0),
            Ok(Value::ServerError(error)) => {
                return Err(Failure {
                    outcome: Outcome::Unknown,
                    ..refusal(server, error)
                });
            }
            Ok(_) => {
                let words = "the answer to WAIT is not a number";
                return Err(Failure::plain(
                    FailureKind::Protocol,
                    Outcome::Unknown,
                    words,
                ));
            }
            // The server has just answered the script on this connection, so only the replicas can be late.
            Err(RequestError::Broken(TransportError::Io(error))) if is_late(&error) => {
                return Err(too_few(0));
            }
            Err(trouble) => {
                self.suspect();
                return Err(Failure {
                    outcome: Outcome::Unknown,
                    ..trouble.into_failure(&route)
                });
            }
        };
        if confirmed >= wanted {
            return Ok(());
        }
        Err(too_few(confirmed))
    }
}
