//! Past a rate limiter: one request, and a sleep until its time.

use std::time::Duration;

use crate::cancel::Cancel;
use crate::engine::Engine;
use crate::error::{Error, Failure, Result};
use crate::message::{Call, RateRequest, Reply};
use crate::name::LockKey;
use crate::owner;
use crate::store::Limits;
use crate::sync::Arc;

impl Engine {
    /// Asks once, and waits for the time that was given. Returns after how long there is a place where none was
    /// taken.
    pub(crate) fn ask_rate_limiter(
        self: &Arc<Self>,
        key: &LockKey,
        request: RateRequest,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Duration>> {
        self.check_open()?;
        if cancel.is_some_and(Cancel::is_cancelled) {
            return Err(Error::Cancelled);
        }
        let is_over = || self.is_closed() || cancel.is_some_and(Cancel::is_cancelled);
        let limits = Limits {
            is_over: Some(&is_over),
            ..self.limits(None)
        };
        let answer = match self.send(&Call::RateLimit { key, request }, limits) {
            Ok(answer) => answer,
            // The call stopped waiting for a connection.
            Err(failure) if is_over() && failure.was_not_sent() => {
                self.check_open()?;
                return Err(Error::Cancelled);
            }
            Err(failure) => return Err(failure.into_error(Some(key.name()))),
        };
        match answer.reply {
            Reply::Admitted(wait) if wait.is_zero() => Ok(None),
            Reply::Admitted(wait) => self.sleep(wait, cancel).map(|()| None),
            Reply::NotAdmitted(wait) => Ok(Some(wait)),
            _ => Err(Failure::another_question().into_error(Some(key.name()))),
        }
    }

    /// Sleeps for `length`, or until the manager is closed or the call is cancelled.
    fn sleep(self: &Arc<Self>, length: Duration, cancel: Option<&Cancel>) -> Result<()> {
        let _registered = cancel.map(Cancel::register);
        let until = self.now() + length;
        // Nobody sends this owner a message; but whoever closes wakes all.
        let mut waker = None;
        let waker = self
            .wakeup
            .register(&mut waker, &owner::generate(&*self.rng, "sleeps"));
        loop {
            // Whoever closes sets the flag before it wakes all: one of us sees the other.
            if self.is_closed() {
                return Err(Error::Closed);
            }
            let left = until.since(self.now());
            if left.is_zero() {
                return Ok(());
            }
            if cancel.is_some_and(Cancel::is_cancelled) {
                return Err(Error::Cancelled);
            }
            waker.wait(left);
        }
    }
}
