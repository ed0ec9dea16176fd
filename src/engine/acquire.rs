//! The way in: from a call to a guard.
//!
//! 1. The thread enters the queue of the name ([`crate::core::queue`]). If this process has a lease with room for the
//!    thread, the thread gets its guard, and sends no request. A lease that lingers, but does not fit, ends
//!    ([`super::linger`]).
//! 2. If another thread of this process asks Redis, this thread waits ([`super::wait`]). It also waits if this process
//!    holds or is releasing the lock, and the kind allows a process only one lease.
//! 3. Otherwise this thread is the *delegate* and asks Redis for all threads of this process ([`super::delegate`]).
//! 4. A grant begins a lease of this process. The delegate gets the first guard of the lease. If the kind of lock
//!    allows several guards at a time, threads that wait get guards too ([`super::grant`]).
//!
//! [`super::metrics`] counts each step.

use crate::config::no_linger_on_a_quorum;
use crate::core::attempt::Attempt;
use crate::core::queue::Arrival;
use crate::engine::Engine;
use crate::engine::call::{AcquireCall, NotAcquired};
use crate::engine::delegate::Delegate;
use crate::engine::guard_inner::GuardInner;
use crate::engine::metrics::WaitMetrics;
use crate::engine::process_lease::{Entry, Mailbox};
use crate::engine::wait::Waited;
use crate::error::{Error, Result};
use crate::sync::Arc;

impl Engine {
    /// Acquires the lock. Blocks until the thread has a guard, the time is over, the token is cancelled, the manager is
    /// closed, or a request has failed.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        call: &AcquireCall<'_>,
    ) -> Result<GuardInner, NotAcquired> {
        self.check_open()?;
        call.options.check()?;
        self.settings.check_lease("lease", call.options.lease)?;
        if !call.options.linger.is_zero() && self.store.is_quorum() {
            return Err(no_linger_on_a_quorum().into());
        }
        let min_hold = call.options.min_hold;
        self.settings.check_lease("min_hold", min_hold)?;
        if call.is_cancelled() {
            return Err(Error::Cancelled.into());
        }
        let mut metrics = WaitMetrics::new(self, self.now());
        let acquired = self.enter(call, &mut metrics);
        if let Err(why) = &acquired {
            metrics.refused(call, why);
        }
        acquired
    }

    /// Enters the queue of the name, and does what its place there requires.
    fn enter(
        self: &Arc<Self>,
        call: &AcquireCall<'_>,
        metrics: &mut WaitMetrics<'_>,
    ) -> Result<GuardInner, NotAcquired> {
        let arrived = metrics.arrived;
        let mut mailbox = None;
        let (entry, arrival, counted) = self.names.with(call.kind, call.target, |entry, state| {
            let arrival = state.queue.arrive(
                call.params(),
                arrived,
                |process_lease| self.health(process_lease, arrived),
                || Arc::clone(mailbox.insert(Mailbox::new())),
            );
            // `close` looks at the name after this, and then waits for busy threads.
            let counted = matches!(arrival, Arrival::Delegate(_)).then(|| {
                state.contention.forget_last_reply();
                self.count_busy()
            });
            (Arc::clone(entry), arrival, counted)
        });
        let guard = |turn, since| GuardInner::new(Arc::clone(self), turn, since, &call.options);
        let attempt = match (arrival, mailbox) {
            (Arrival::Turn(turn), _) => {
                if turn.process_lease.linger.is_some() {
                    self.was_idle(&turn.process_lease);
                }
                metrics.granted(&turn, arrived, false);
                return Ok(guard(turn, arrived));
            }
            (Arrival::Held, _) => return Err(self.held(&entry)),
            (Arrival::Queued(ticket), Some(mailbox)) => {
                metrics.waits(call, || self.holder(&entry.lock()));
                match self.wait(call, &entry, ticket, &mailbox, arrived)? {
                    Waited::Turn(turn, since) => {
                        metrics.granted(&turn, since, false);
                        return Ok(guard(turn, since));
                    }
                    Waited::Delegate(attempt) => attempt,
                }
            }
            (Arrival::Queued(_), None) => unreachable!("a queued thread has its mailbox"),
            (Arrival::Delegate(None), _) => Box::new(self.attempt(call, Attempt::new)),
            (Arrival::Delegate(Some(idle)), _) => {
                Box::new(self.take_over_idle(call, &idle, arrived))
            }
        };
        let _counted = counted.unwrap_or_else(|| self.count_busy());
        Delegate::new(self, call, &entry, attempt, metrics).run()
    }

    /// Returns the result of a call that ends while another owner holds the lock.
    pub(super) fn held(&self, entry: &Entry) -> NotAcquired {
        NotAcquired::Held(self.holder(&entry.lock()))
    }
}
