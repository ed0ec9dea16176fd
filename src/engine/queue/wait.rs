//! How a thread waits behind the delegate of its process.
//!
//! The thread sleeps until one of these has happened. If several have, the first row counts:
//!
//! | event | the thread |
//! | --- | --- |
//! | another thread has sent it a signal | follows the signal |
//! | the call's token is cancelled | leaves the queue; the call returns [`Error::Cancelled`] |
//! | the manager is closed | leaves the queue; the call returns [`Error::Closed`] |
//! | the time is over | leaves the queue; the call returns the last known state of the lock |
//! | it has waited for `warn_wait_after` | warns, and waits on |
//!
//! If the thread is not in the queue when it wants to leave, another thread has taken it out to send it a signal. Then
//! the thread must wait for that signal, without a time limit: the signal may bring the lock, or the task of the
//! delegate.

use std::ops::ControlFlow;

use crate::engine::attempt::rules::Attempt;
use crate::engine::lease::guard_inner::GuardInner;
use crate::engine::lease::leases::CountedBusy;
use crate::engine::lease::notes::LastReply;
use crate::engine::lease::process_lease::{Entry, NameState, Signal, WaitingThread};
use crate::engine::way_in::{NotAcquired, WayIn};
use crate::error::{Error, Failure, FailureKind, Outcome, Result};
use crate::net::deadline::LEAST;
use crate::sys::{Arc, Rng, Time};

impl<'a> WayIn<'a> {
    /// Blocks until a signal comes, or the call must end. Breaks with the guard that another thread gave, or continues with
    /// the attempt of the delegate, which this thread is now.
    pub(crate) fn wait(
        &mut self,
        entry: &Arc<Entry>,
        number: u64,
        waiter: &WaitingThread,
    ) -> Result<ControlFlow<GuardInner, (Box<Attempt>, CountedBusy<'a>)>, NotAcquired> {
        match self.signal(entry, number, waiter)? {
            Signal::Hold(hold, since) => {
                self.count_granted(&hold, since, false);
                Ok(ControlFlow::Break(self.guard(hold, since)))
            }
            Signal::Delegate(None) => Ok(self.begins(Attempt::after_waiting)),
            Signal::Delegate(Some(attempt)) => {
                let counted = self.leases.counted_already();
                if attempt.is_for(self.call.units, self.tail()) {
                    return Ok(ControlFlow::Continue((attempt, counted)));
                }
                self.clean_up_after(entry, *attempt);
                Ok(self.begins(Attempt::after_waiting))
            }
            Signal::AfterTry { waits } => {
                let begin = if waits {
                    Attempt::after_waiting
                } else {
                    Attempt::new
                };
                Ok(self.begins(begin))
            }
            Signal::Held => Err(self.held(entry)),
            Signal::Failed(failure) => Err(self.call.failed(failure)),
            Signal::Closed => Err(Error::Closed.into()),
        }
    }

    /// Makes the thread a delegate with a new attempt.
    fn begins<G>(
        &self,
        begin: impl FnOnce(&dyn Rng, &str, u32) -> Attempt,
    ) -> ControlFlow<G, (Box<Attempt>, CountedBusy<'a>)> {
        ControlFlow::Continue((Box::new(self.attempt(begin)), self.leases.count_busy()))
    }

    /// Sleeps until there is a signal, or leaves the queue and returns the reason.
    fn signal(
        &mut self,
        entry: &Entry,
        number: u64,
        waiter: &WaitingThread,
    ) -> Result<Signal, NotAcquired> {
        let (call, arrived) = (self.call, self.arrived);
        // A try waits for one reply to the delegate, so for at most the time limit of a request.
        let until = call
            .until
            .unwrap_or(arrived + self.client.settings.io_timeout);
        // `close` sets its flag before it takes the threads out of the queues. So either this thread sees the flag
        // here, or `close` finds this thread in the queue.
        let mut until = if self.client.is_closed() {
            self.client.now()
        } else {
            until
        };
        // From here on, a cancel wakes this thread.
        let _registered = call.cancel.map(|token| token.register(&waiter.parker));
        let mut is_taken_out = false;
        loop {
            // 1. A signal decides, if there is one.
            if let Some(signal) = waiter.take() {
                return Ok(signal);
            }
            // 2. A cancelled thread leaves the queue. If it cannot, its signal is on the way.
            if call.is_cancelled() && !is_taken_out {
                if entry.lock().queue.leave(number) {
                    return Err(Error::Cancelled.into());
                }
                is_taken_out = true;
            }
            // 3. Sleep. If a signal is on the way, only the signal ends this.
            let wakes_at = if is_taken_out {
                Time::NEVER
            } else {
                until.min(self.long_at)
            };
            let now = self.client.now();
            if wakes_at > now {
                waiter.parker.sleep_until(self.client.machine(), wakes_at);
                continue;
            }
            if until > now {
                self.warn_if_long(entry, false);
                continue;
            }
            // 4. The time is over, or the manager was closed: leave the queue.
            let mut state = entry.lock();
            if self.client.is_closed() && state.queue.leave(number) {
                return Err(Error::Closed.into());
            }
            // Any request may take `LEAST`. So give the delegate's first request that time: without its reply, the
            // result of this wait would be an error, unless this process has the lock itself.
            let is_unknown = matches!(state.notes.last(), LastReply::NoAnswer)
                && self.leases.holder(&state).is_none();
            if is_unknown && until < arrived + LEAST {
                until = arrived + LEAST;
                continue;
            }
            if state.queue.leave(number) {
                return Err(self.result_of_wait(&state));
            }
            is_taken_out = true;
        }
    }

    /// Returns the result of a wait whose time is over: the last state of the lock that this process knows.
    fn result_of_wait(&self, state: &NameState) -> NotAcquired {
        match (state.notes.last(), self.leases.holder(state)) {
            (_, Some(holder)) => NotAcquired::Held(Some(holder)),
            // This process holds the lock until Redis has executed the release.
            (_, None) if state.queue.is_releasing() => NotAcquired::Held(None),
            (LastReply::Failed(failure), None) => self.call.failed(failure.clone()),
            // The request in flight has no reply yet. But an earlier one may have got a reply during this wait.
            (LastReply::NoAnswer | LastReply::Held(_), None) => {
                match state.notes.holder_since(self.arrived) {
                    Some(holder) => NotAcquired::Held(Some(holder)),
                    None => self.call.failed(Failure::plain(
                        FailureKind::Unavailable,
                        Outcome::Unknown,
                        "the wait ended before the server answered",
                    )),
                }
            }
        }
    }
}
