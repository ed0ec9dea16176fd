//! The delegate: the one thread of a process that asks Redis for a name, for itself and for all threads behind it.
//!
//! It drives an [`Attempt`], which decides without clock, thread or connection:
//!
//! 1. Releases that this process has not sent yet go first ([`super::settle`]).
//! 2. If the manager is closed, all threads that wait end with the delegate. If the call is cancelled, or its time is over,
//!    the next thread goes on with the attempt, and keeps its place in the queue in Redis.
//! 3. The attempt says what to do: send a request, sleep, or end.
//! 4. The delegate does so, and tells the attempt what happened. Then it goes on with 2.
//!
//! | how the attempt ends | the delegate | the threads behind it |
//! | --- | --- | --- |
//! | granted | gets a guard ([`super::grant`]) | get guards if they fit in, else wait |
//! | the lease of this process is open for more readers | gets a guard in it, or goes on with a new attempt if the lease has ended | the same |
//! | time over | gets no guard | the next one becomes the delegate |
//! | failed, in a wait | gets the error | get the error |
//! | failed, in a try | gets the error | tries get the error; the next thread that waits becomes the delegate |

use std::mem;
use std::time::Duration;

use crate::cancel::Cancel;
use crate::clock::Time;
use crate::core::attempt::{Attempt, Input, Outcome, Step, StepContext};
use crate::core::fence;
use crate::engine::Engine;
use crate::engine::guard_inner::GuardInner;
use crate::engine::metrics::WaitMetrics;
use crate::engine::names::Last;
use crate::engine::process_lease::{Entry, ProcessLease, Signal, Turn};
use crate::engine::request::{NotAcquired, Request};
use crate::engine::wakeup::Waker;
use crate::error::{Error, Failure, Result};
use crate::message::{Reply, Verb};
use crate::store::Limits;
use crate::sync::Arc;

impl Engine {
    /// Asks Redis with `attempt` until there is a guard, or the call has ended without one.
    pub(super) fn ask_redis(
        self: &Arc<Self>,
        request: &Request<'_>,
        entry: &Arc<Entry>,
        mut attempt: Box<Attempt>,
        metrics: &mut WaitMetrics<'_>,
    ) -> Result<GuardInner, NotAcquired> {
        let _counted = self.count_delegate();
        // 1. Redis must not find the lock held by this process only because a release has not been sent.
        if !request.is_over(self) {
            self.settle_releases(request, entry, &mut attempt);
        }
        let delegate = Delegate {
            engine: self,
            request,
            entry,
            attempt,
            metrics,
            waker: None,
            has_message: false,
        };
        delegate.run()
    }

    /// Returns what the attempt of a call that arrived at `arrived` must know for its next step.
    fn step_context<'c>(
        &'c self,
        request: &Request<'_>,
        entry: &Entry,
        arrived: Time,
        lease_to_share: Option<&ProcessLease>,
    ) -> StepContext<'c> {
        let now = self.now();
        StepContext {
            now,
            arrived,
            terms: request.options.terms(),
            until: request.until,
            subscription: self.wakeup.subscription(now),
            // A lease with a `min_hold` is not handed to another thread before that has passed.
            block: if request.options.min_hold.is_zero() {
                fence::block(entry.kind, self.settings.quantum)
            } else {
                1
            },
            total_units: entry.kind.total_units(),
            shareable_lease: lease_to_share.map(|process_lease| self.owner_of(process_lease)),
            crowded: entry.lock().queue.is_crowded(),
            delegates: self.delegates(),
            outage_limit: self.settings.outage_limit,
            waits_through_outages: self.settings.wait_through_outages,
            label: &self.settings.label,
            rng: &*self.rng,
        }
    }
}

/// A delegate at work.
struct Delegate<'a, 'm> {
    engine: &'a Arc<Engine>,
    request: &'a Request<'a>,
    entry: &'a Arc<Entry>,
    attempt: Box<Attempt>,
    metrics: &'a mut WaitMetrics<'m>,
    /// The registration for messages to the attempt's owner.
    waker: Option<Waker>,
    /// Whether a message has come: Redis has handed the lock to this owner, and waits for its next request.
    has_message: bool,
}

impl Delegate<'_, '_> {
    fn run(mut self) -> Result<GuardInner, NotAcquired> {
        let engine = self.engine;
        let mut input = Input::Go;
        // The lease that the last request offered to share.
        let mut offered = None;
        let outcome = loop {
            // 2. End a call that must end. But first the attempt must take in the result of a request: if the result is
            //    unknown, the attempt remembers that Redis may still carry the request out.
            let has_result = matches!(input, Input::Replied { .. } | Input::Failed { .. });
            if !has_result && engine.is_closed() {
                self.end_all(&Signal::Closed);
                return Err(Error::Closed.into());
            }
            if !has_result && self.request.is_cancelled() {
                self.hand_on();
                return Err(Error::Cancelled.into());
            }

            // 3. Let the attempt decide. It may leave an owner behind that may have something in Redis.
            let lease_to_share = engine.lease_to_share(self.request, self.entry);
            let (request, entry) = (self.request, self.entry);
            let arrived = self.metrics.arrived;
            let context = engine.step_context(request, entry, arrived, lease_to_share.as_deref());
            let step = self.attempt.step(input, &context);
            for orphaned_owner in self.attempt.orphaned_owners() {
                engine.clean_up(self.entry, orphaned_owner, self.lease());
            }

            // 4. Do what it says.
            input = match step {
                Step::Send(verb) => {
                    offered = lease_to_share;
                    self.send(&verb)
                }
                Step::Sleep(until) => {
                    self.sleep(until);
                    Input::Woken
                }
                Step::Done(Outcome::Shared) => match self.share(offered.take()) {
                    Some(guard) => return Ok(guard),
                    // The lease has ended since: ask again.
                    None => Input::Go,
                },
                Step::Done(outcome) => break outcome,
            };
        };
        match outcome {
            Outcome::Granted(grant) => {
                // A message that still comes for this owner means nothing any more.
                drop(self.waker);
                engine.granted(self.request, self.entry, grant, self.metrics)
            }
            Outcome::Shared => unreachable!("the loop deals with it"),
            Outcome::TimeOver(failure) => {
                let why = match failure {
                    Some(failure) => self.request.failed(failure),
                    None => engine.held(self.entry),
                };
                self.hand_on();
                Err(why)
            }
            Outcome::Failed(failure) => {
                let why = self.request.failed(failure.clone());
                if self.request.until.is_none() {
                    self.end_tries(&failure);
                } else {
                    self.end_all(&Signal::Failed(failure));
                }
                Err(why)
            }
        }
    }

    fn lease(&self) -> Duration {
        self.request.options.terms().lease()
    }

    /// Sends a request of the attempt. Threads that wait behind the delegate learn from its reply too.
    fn send(&mut self, verb: &Verb) -> Input {
        let (engine, request, entry) = (self.engine, self.request, self.entry);
        if verb.queues() {
            // Redis may send the message before it sends its reply.
            engine
                .wakeup
                .register(&mut self.waker, self.attempt.owner());
        }
        let sent = engine.now();
        let is_over = || request.is_over(engine);
        let limits = Limits {
            // Redis waits for the request of an owner that it has handed the lock to.
            has_priority: mem::take(&mut self.has_message),
            is_over: Some(&is_over),
            ..engine.limits(request.until)
        };
        match engine.send(&entry.call(verb), limits) {
            Ok(answer) => {
                if let Reply::Held { holder, .. } = &answer.reply {
                    if !self.attempt.is_former_owner(holder) {
                        note_held(entry, engine.now(), holder, verb.queues());
                        self.metrics.waits(request, || Some(Arc::clone(holder)));
                    }
                }
                Input::Replied {
                    sent,
                    reply: answer.reply,
                    resent: answer.resent,
                }
            }
            // The thread stopped waiting for a connection. Nothing was sent, so there is no result.
            Err(failure) if is_over() && failure.was_not_sent() => Input::Woken,
            Err(failure) => {
                let cut_short = self.is_cut_short(sent, &failure);
                if !cut_short {
                    note_failed(entry, &failure);
                }
                Input::Failed {
                    sent,
                    failure,
                    cut_short,
                }
            }
        }
    }

    /// Returns whether a request failed only because the wait ended before `io_timeout` had passed. Such a failure says
    /// nothing about the server.
    fn is_cut_short(&self, sent: Time, failure: &Failure) -> bool {
        let engine = self.engine;
        failure.timed_out
            && self.request.until.is_some_and(|until| {
                engine.now() >= until && until < sent + engine.settings.io_timeout
            })
    }

    /// Sleeps until a message comes, the time is over, or the call must end.
    fn sleep(&mut self, until: Time) {
        let (engine, request) = (self.engine, self.request);
        // From here on a cancel unparks this thread.
        let _registered = request.cancel.map(Cancel::register);
        engine.wakeup.start(engine);
        let waker = engine
            .wakeup
            .register(&mut self.waker, self.attempt.owner());
        // `close` sets its flag before it wakes all sleepers. So either this thread sees the flag, or it is woken.
        if !request.is_over(engine) {
            self.has_message |= waker.wait(until.since(engine.now()));
        }
    }

    /// Takes a turn in the lease that was offered, for another quantum. Returns `None` if the lease has ended.
    fn share(&mut self, offered: Option<Arc<ProcessLease>>) -> Option<GuardInner> {
        let (engine, request) = (self.engine, self.request);
        let new = engine.attempt(request, Attempt::after_waiting);
        let used = mem::replace(&mut *self.attempt, new);
        engine.clean_up_after(self.entry, used, self.lease());
        let now = engine.now();
        let turn: Turn = engine.reopen(self.entry, &*offered?, now, self.metrics)?;
        Some(engine.guard(request, turn, now))
    }

    /// Hands the attempt to the next thread. If there is none, leaves the queue in Redis.
    fn hand_on(self) {
        drop(self.waker);
        let next = self.entry.lock().queue.delegate_left();
        match next {
            Some(slot) => slot.send(Signal::Delegate(Some(self.attempt))),
            None => self.engine.abandon(self.request, self.entry, *self.attempt),
        }
    }

    /// Ends the attempt, and the wait of every thread behind it.
    fn end_all(self, why: &Signal) {
        drop(self.waker);
        let waiting = self.entry.lock().queue.failed();
        for slot in waiting {
            slot.send(match why {
                Signal::Failed(failure) => Signal::Failed(failure.clone()),
                _ => Signal::Closed,
            });
        }
        self.engine.abandon(self.request, self.entry, *self.attempt);
    }

    /// Ends the attempt of a try, and the tries behind it. A thread that waits becomes the delegate: its wait does not end
    /// with the failure of a try.
    fn end_tries(self, why: &Failure) {
        let (engine, lease) = (self.engine, self.lease());
        drop(self.waker);
        let (tries, next) = {
            let mut state = self.entry.lock();
            let (tries, next) = state.queue.try_failed();
            if next.is_some() {
                state.forget_last();
            }
            (tries, next)
        };
        for slot in tries {
            slot.send(Signal::Failed(why.clone()));
        }
        let waits = self.attempt.waits();
        engine.clean_up_after(self.entry, *self.attempt, lease);
        match next {
            Some(slot) => slot.send(Signal::AfterTry { waits }),
            None => engine.names.retire(self.entry),
        }
    }
}

/// Notes that a request got no answer.
fn note_failed(entry: &Entry, failure: &Failure) {
    let mut state = entry.lock();
    state.note_last(Last::Failed(failure.clone()));
    state.queue.not_answered();
}

/// Notes that another owner holds the lock. Tries that wait behind the delegate end with that.
fn note_held(entry: &Entry, now: Time, holder: &Arc<str>, is_queued: bool) {
    let tries = {
        let mut state = entry.lock();
        state.note_held(now, holder);
        state.queue.answered_held(is_queued)
    };
    for slot in tries {
        slot.send(Signal::Held);
    }
}
