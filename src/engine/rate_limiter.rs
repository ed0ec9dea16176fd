//! Calls of a rate limiter: one request, and a sleep until the reserved time.

use std::time::Duration;

use crate::cancel::Cancel;
use crate::engine::Engine;
use crate::error::{Error, Failure, Result};
use crate::message::{RateRequest, Reply, Request};
use crate::name::LockKey;
use crate::owner;
use crate::store::Limits;
use crate::sync::Arc;

impl Engine {
    /// Sends one request, and blocks until the reserved time. Returns `None` then. If Redis reserved nothing, returns
    /// the time until the next request can succeed.
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
        self.release_lingering_on(std::slice::from_ref(key), self.limits(None));
        let is_over = || self.is_closed() || cancel.is_some_and(Cancel::is_cancelled);
        let limits = Limits {
            is_over: Some(&is_over),
            ..self.limits(None)
        };
        let answer = match self.send(&Request::RateLimit { key, request }, limits) {
            Ok(answer) => answer,
            // The thread stopped waiting, because the call must end. An admission that Redis has booked stays booked.
            Err(failure) if is_over() && failure.is_transient() => {
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
        // No message is sent to this owner, but `close` wakes all registered threads.
        let mut waker = None;
        let waker = self
            .wakeup
            .register(&mut waker, &owner::generate(&*self.rng, "sleeps"));
        loop {
            // `close` sets its flag before it wakes all registered threads. So either this thread sees the flag, or
            // `close` wakes it.
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
