//! How a thread waits behind the delegate of its process.
//!
//! The thread sleeps until one of these happens. The first that is found in this order counts:
//!
//! 1. Another thread has taken it out of the queue, and sends it a signal.
//! 2. The call's token is cancelled.
//! 3. The manager is closed.
//! 4. The time is over.
//!
//! For 2 to 4 the thread leaves the queue. If it is not in the queue any more, another thread has taken it out, and its
//! signal is on the way: then the thread waits for the signal, however long that takes.

use std::time::Duration;

use crate::cancel::Cancel;
use crate::clock::Time;
use crate::core::attempt::Attempt;
use crate::engine::Engine;
use crate::engine::names::Last;
use crate::engine::process_lease::{Entry, Signal, Slot, State, Turn};
use crate::engine::request::{NotAcquired, Request};
use crate::error::{Error, Failure, FailureKind, Result};
use crate::store::LEAST;
use crate::sync::{Arc, thread};

/// The longest time for which a thread parks: parking does not run through suspend, the clock does.
const LONGEST_PARK: Duration = Duration::from_secs(1);

/// How a wait ended.
pub(super) enum Waited {
    /// The thread has its turn, since this time.
    Turn(Turn, Time),
    /// The thread is the delegate now, and goes on with this attempt.
    Delegate(Box<Attempt>),
}

impl Engine {
    /// Waits for a signal. `arrived` is when the call began.
    pub(super) fn wait(
        self: &Arc<Self>,
        request: &Request<'_>,
        entry: &Arc<Entry>,
        ticket: u64,
        slot: &Slot,
        arrived: Time,
    ) -> Result<Waited, NotAcquired> {
        match self.signal(request, entry, ticket, slot, arrived)? {
            Signal::Turn(turn, since) => Ok(Waited::Turn(turn, since)),
            Signal::Delegate(attempt) => {
                let attempt = attempt.and_then(|attempt| {
                    if attempt.is_for(request.units) {
                        return Some(attempt);
                    }
                    self.clean_up_after(entry, *attempt, request.options.terms().lease());
                    None
                });
                Ok(Waited::Delegate(attempt.unwrap_or_else(|| {
                    Box::new(self.attempt(request, Attempt::after_waiting))
                })))
            }
            Signal::AfterTry { waits } => {
                let begin = if waits {
                    Attempt::after_waiting
                } else {
                    Attempt::new
                };
                Ok(Waited::Delegate(Box::new(self.attempt(request, begin))))
            }
            Signal::Held => Err(self.held(entry)),
            Signal::Failed(failure) => Err(request.failed(failure)),
            Signal::Closed => Err(Error::Closed.into()),
        }
    }

    /// Sleeps until there is a signal, or leaves the queue and returns the reason.
    fn signal(
        &self,
        request: &Request<'_>,
        entry: &Entry,
        ticket: u64,
        slot: &Slot,
        arrived: Time,
    ) -> Result<Signal, NotAcquired> {
        // A try waits for one answer, which takes no longer than a request.
        let until = request.until.unwrap_or(arrived + self.settings.io_timeout);
        // `close` sets its flag before it looks into the queues. So either this thread sees the flag here, or `close` finds
        // this thread in the queue.
        let mut until = if self.is_closed() { self.now() } else { until };
        // From here on a cancel unparks this thread.
        let _registered = request.cancel.map(Cancel::register);
        let mut is_taken_out = false;
        loop {
            if let Some(signal) = slot.take() {
                return Ok(signal);
            }
            if request.is_cancelled() && !is_taken_out {
                if entry.lock().queue.leave(ticket) {
                    return Err(Error::Cancelled.into());
                }
                is_taken_out = true;
            }
            if is_taken_out || until == Time::NEVER {
                thread::park();
                continue;
            }
            let left = until.since(self.now());
            if !left.is_zero() {
                thread::park_timeout(left.min(LONGEST_PARK));
                continue;
            }
            let mut state = entry.lock();
            if self.is_closed() && state.queue.leave(ticket) {
                return Err(Error::Closed.into());
            }
            // The delegate's first request has this time at least, even if the wait behind it is shorter.
            if matches!(state.last(), Last::NoAnswer) && until < arrived + LEAST {
                until = arrived + LEAST;
                continue;
            }
            if state.queue.leave(ticket) {
                return Err(self.result_of_wait(request, &state, arrived));
            }
            is_taken_out = true;
        }
    }

    /// Returns the result of a wait whose time is over, by the last that this process knows of the lock.
    fn result_of_wait(&self, request: &Request<'_>, state: &State, arrived: Time) -> NotAcquired {
        match (state.last(), self.holder(state)) {
            (_, Some(holder)) => NotAcquired::Held(Some(holder)),
            // This process has the lock until its release has been sent.
            (_, None) if state.queue.is_ending() => NotAcquired::Held(None),
            (Last::Failed(failure), None) => request.failed(failure.clone()),
            // The request under way has no answer yet. An earlier request may have had one during this wait.
            (Last::NoAnswer | Last::Held(_), None) => match state.holder_since(arrived) {
                Some(holder) => NotAcquired::Held(Some(holder)),
                None => request.failed(Failure::plain(
                    FailureKind::Unavailable,
                    true,
                    "the wait ended before the server answered",
                )),
            },
        }
    }

    /// Makes an attempt for the calling thread.
    pub(super) fn attempt(
        &self,
        request: &Request<'_>,
        begin: impl FnOnce(&dyn crate::random::Rng, &str, u32) -> Attempt,
    ) -> Attempt {
        begin(&*self.rng, &self.settings.label, request.units)
    }
}
