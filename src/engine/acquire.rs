//! The way in: from a call to a guard.
//!
//! 1. The thread enters the queue of the name ([`crate::core::queue`]). If this process has a lease with room for the
//!    thread, the thread gets its guard, and sends no request.
//! 2. If another thread of this process asks Redis, this thread waits ([`super::wait`]). It also waits if this process
//!    holds or is releasing the lock, and the kind allows a process only one lease.
//! 3. Otherwise this thread is the *delegate* and asks Redis for all threads of this process ([`super::delegate`]).
//! 4. A grant begins a lease of this process. The delegate gets the first guard of the lease. If the kind of lock
//!    allows several guards at a time, threads that wait get guards too ([`super::grant`]).
//!
//! [`super::metrics`] counts each step.

use std::ops::ControlFlow;

use crate::core::attempt::Attempt;
use crate::core::queue::Arrival;
use crate::engine::call::{Call, NotAcquired};
use crate::engine::delegate::Delegate;
use crate::engine::guard_inner::GuardInner;
use crate::engine::leases::Leases;
use crate::engine::process_lease::WaitingThread;
use crate::engine::way_in::WayIn;
use crate::error::{Error, Result};
use crate::sys::{Arc, Time};

impl<'a> WayIn<'a> {
    /// Acquires the lock. Blocks until the thread has a guard, the time is over, the token is cancelled, the manager is
    /// closed, or a request has failed.
    pub(crate) fn acquire(
        leases: &'a Arc<Leases>,
        call: &'a Call<'a>,
    ) -> Result<GuardInner, NotAcquired> {
        let client = &*leases.client;
        client.check_open()?;
        call.options.check()?;
        client.settings.check_lease("lease", call.options.lease)?;
        let min_hold = call.options.min_hold;
        client.settings.check_lease("min_hold", min_hold)?;
        if call.is_cancelled() {
            return Err(Error::Cancelled.into());
        }
        let arrived = client.now();
        let long_after = client
            .settings
            .warn_wait_after
            .filter(|_| call.until.is_some());
        let mut way_in = Self {
            leases,
            client,
            call,
            arrived,
            waits: false,
            long_at: long_after.map_or(Time::NEVER, |after| arrived + after),
            has_warned: false,
            #[cfg(feature = "tracing")]
            span: crate::engine::spans::wait(call.target.name()),
        };
        let acquired = way_in.enter();
        if let Err(why) = &acquired {
            way_in.count_refused(why);
        }
        acquired
    }

    /// Enters the queue of the name, and does what its place there requires.
    fn enter(&mut self) -> Result<GuardInner, NotAcquired> {
        let (leases, call, arrived) = (self.leases, self.call, self.arrived);
        let mut waiter = None;
        let (entry, arrival, counted) =
            leases.names.with(call.kind, call.target, |entry, state| {
                let arrival = state.queue.arrive(
                    call.params(),
                    arrived,
                    |process_lease| leases.health(process_lease, arrived),
                    || Arc::clone(waiter.insert(WaitingThread::new(call.tail))),
                );
                // `close` looks at the name after this, and then waits for busy threads.
                let counted = matches!(arrival, Arrival::Delegate).then(|| {
                    state.notes.forget_last_reply();
                    leases.count_busy()
                });
                (Arc::clone(entry), arrival, counted)
            });
        let (attempt, _counted) = match (arrival, waiter) {
            (Arrival::Hold(hold), _) => {
                self.count_granted(&hold, arrived, false);
                return Ok(self.guard(hold, arrived));
            }
            (Arrival::Held, _) => return Err(self.held(&entry)),
            (Arrival::Queued(number), Some(waiter)) => {
                self.count_wait(|| leases.holder(&entry.lock()));
                match self.wait(&entry, number, &waiter)? {
                    ControlFlow::Break(guard) => return Ok(guard),
                    ControlFlow::Continue((attempt, counted)) => (attempt, Some(counted)),
                }
            }
            (Arrival::Queued(_), None) => unreachable!("a queued thread has its waiter"),
            (Arrival::Delegate, _) => (Box::new(self.attempt(Attempt::new)), counted),
        };
        let context = self.call_context(&entry);
        Delegate::new(self, &entry, attempt, &context).run()
    }
}
