//! Calls of a rate limiter: one request, and a sleep until the reserved time.

use std::time::Duration;

use crate::cancel::Cancel;
use crate::engine::Engine;
use crate::error::{Error, Failure, Result};
use crate::name::LockKey;
use crate::owner;
use crate::wire::{RateRequest, Reply, Request};

/// Sends one request, and blocks until the reserved time. Returns `None` then. If Redis reserved nothing, returns
/// the time until the next request can succeed.
pub(crate) fn ask(
    engine: &Engine,
    key: &LockKey,
    request: RateRequest,
    cancel: Option<&Cancel>,
) -> Result<Option<Duration>> {
    let client = &engine.client;
    client.check_open()?;
    let arrived = client.now();
    if cancel.is_some_and(Cancel::is_cancelled) {
        return Err(Error::Cancelled);
    }
    let is_over = || client.is_closed() || cancel.is_some_and(Cancel::is_cancelled);
    let deadline = client.deadline(None).ended_by(&is_over);
    let answer = match client.send(&Request::RateLimit { key, request }, deadline) {
        Ok(answer) => answer,
        // The thread stopped waiting, because the call must end. An admission that Redis has booked stays booked.
        Err(failure) if is_over() && failure.is_transient() => {
            client.check_open()?;
            return Err(Error::Cancelled);
        }
        Err(failure) => return Err(failure.into_error(Some(key.name()))),
    };
    let refused = match answer.reply {
        Reply::Admitted(wait) if wait.is_zero() => None,
        Reply::Admitted(wait) => sleep(engine, wait, cancel).map(|()| None)?,
        Reply::NotAdmitted(wait) => Some(wait),
        _ => return Err(Failure::another_question().into_error(Some(key.name()))),
    };
    let waited = client.now().since(arrived);
    client.count_rate(key.name(), waited, refused.is_none());
    Ok(refused)
}

/// Sleeps for `length`, or until the manager is closed or the call is cancelled.
fn sleep(engine: &Engine, length: Duration, cancel: Option<&Cancel>) -> Result<()> {
    let client = &engine.client;
    let until = client.now() + length;
    // No message is sent to this owner, but `close` wakes all registered threads.
    let mut waker = None;
    let waker = engine
        .wakeup
        .register(&mut waker, &owner::generate(client.machine(), "sleeps"));
    let _registered = cancel.map(|token| token.register(waker.parker()));
    loop {
        // `close` sets its flag before it wakes all registered threads. So either this thread sees the flag, or
        // `close` wakes it.
        if client.is_closed() {
            return Err(Error::Closed);
        }
        if until <= client.now() {
            return Ok(());
        }
        if cancel.is_some_and(Cancel::is_cancelled) {
            return Err(Error::Cancelled);
        }
        waker.wait(client.machine(), until);
    }
}
