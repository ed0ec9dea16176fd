//! The steps after a grant: a tenure is made, and its turns go to the threads that fit in.

use crate::clock::Time;
use crate::config::Terms;
use crate::core::attempt::Grant;
use crate::core::fence::Fences;
use crate::core::lease::Standing;
use crate::core::queue::{Begun, Granted, Health, Queue, Turn};
use crate::engine::Engine;
use crate::engine::holding::Holding;
use crate::engine::metrics::WaitMetrics;
use crate::engine::request::{NotAcquired, Request};
use crate::engine::tenure::{Entry, Signal, Slot, Tenure};
use crate::error::{Failure, FailureKind, Result};
use crate::sync::{Arc, Ordering};

impl Engine {
    /// Makes a tenure of a grant and hands out the turns in it.
    pub(super) fn granted(
        self: &Arc<Self>,
        request: &Request<'_>,
        entry: &Arc<Entry>,
        grant: Grant,
        metrics: &WaitMetrics<'_>,
    ) -> Result<Holding, NotAcquired> {
        let (terms, units) = (request.options.terms(), request.units);
        let tenure = match self.tenure(entry, terms, units, grant) {
            Ok(tenure) => tenure,
            Err(failure) => {
                let waiting = entry.lock().queue.failed();
                for slot in waiting {
                    slot.send(Signal::Failed(failure.clone()));
                }
                self.names.retire(entry);
                return Err(request.failed(failure));
            }
        };
        let now = self.now();
        let told = |turn: &Turn<_>| metrics.granted(turn, now, true);
        let turn = self.begin(entry, tenure, now, told, |queue, granted, now| {
            queue.granted(granted, now)
        });
        Ok(self.guard(request, turn, now))
    }

    /// A tenure of this process's that more threads could sit in if nobody else waits for the lock.
    pub(super) fn lease_to_share(
        self: &Arc<Self>,
        request: &Request<'_>,
        entry: &Entry,
    ) -> Option<Arc<Tenure>> {
        if !entry.kind.sharing().together {
            return None;
        }
        let (now, terms) = (self.now(), request.options.terms());
        let health = |tenure: &Arc<Tenure>| self.health(tenure, now);
        let state = entry.lock();
        state.queue.beside(request.units, terms, health).cloned()
    }

    /// Sits down in a tenure for which there is another quantum. Returns `None` if it has ended.
    pub(super) fn reopen(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        tenure: &Tenure,
        now: Time,
        metrics: &WaitMetrics<'_>,
    ) -> Option<Turn<Arc<Tenure>>> {
        if tenure.health(now) == Health::Lost {
            return None;
        }
        let quantum_over = now + self.settings.quantum;
        let begun = entry
            .lock()
            .queue
            .reopened(tenure.number, now, quantum_over)?;
        metrics.granted(&begun.turn, now, true);
        Some(hand_out(begun, now))
    }

    /// Makes the tenure of a grant, and has it watched and renewed before any thread gets a turn in it. If the threads for
    /// that cannot be started, releases the lock again.
    pub(super) fn tenure(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        terms: Terms,
        units: u32,
        grant: Grant,
    ) -> Result<(Arc<Tenure>, Fences), Failure> {
        let fences = Fences::granted(entry.kind, grant.fence, grant.fences);
        let sent = grant.sent;
        let number = self.next_tenure.fetch_add(1, Ordering::Relaxed);
        let tenure = Arc::new(Tenure::new(
            number,
            &self.settings.label,
            Arc::clone(entry),
            terms,
            units,
            grant,
        ));
        let registered = self
            .watch
            .register_lease(self, &tenure)
            .and_then(|()| self.renewal.register(self, &tenure, sent));
        if let Err(error) = registered {
            self.watch.deregister_lease(&tenure);
            tenure.cell.end(self.now());
            // Before anybody else may ask: it would find the lock held.
            let ending = self.ending(&tenure, None, self.now());
            self.send_ending(entry, ending, self.limits(None)).ok();
            let words = format!("a thread of leasehold could not be started: {error}");
            return Err(Failure::plain(FailureKind::Unavailable, false, words));
        }
        Ok((tenure, fences))
    }

    /// Puts a tenure into its queue, by `how`, and hands out the turns in it. Returns the first, which is `told` before
    /// the others have theirs.
    pub(super) fn begin(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        (tenure, fences): (Arc<Tenure>, Fences),
        now: Time,
        told: impl FnOnce(&Turn<Arc<Tenure>>),
        how: impl FnOnce(
            &mut Queue<Arc<Slot>, Arc<Tenure>>,
            Granted<Arc<Tenure>>,
            Time,
        ) -> Begun<Arc<Slot>, Arc<Tenure>>,
    ) -> Turn<Arc<Tenure>> {
        let granted = Granted {
            tenure: Arc::clone(&tenure),
            units: tenure.units,
            fences,
            quantum_over: now + self.settings.quantum,
        };
        let begun = {
            let mut state = entry.lock();
            // Where there may be more of it, somebody asks on; where there is not, the tenure says who holds it.
            state.forget_last();
            let begun = how(&mut state.queue, granted, now);
            if !state.queue.is_crowded() {
                state.forget_aside();
            }
            begun
        };
        told(&begun.turn);
        let turn = hand_out(begun, now);
        // Whoever found it lost before it was in the queue could not take it out.
        if let Standing::Lost(cause) = tenure.cell.standing(self.now()) {
            self.lost(&tenure, cause);
        }
        turn
    }
}

/// Tells everybody but the first what is theirs.
fn hand_out(begun: Begun<Arc<Slot>, Arc<Tenure>>, now: Time) -> Turn<Arc<Tenure>> {
    let (first, rest) = begun.beside;
    for (slot, turn) in first.into_iter().chain(rest) {
        slot.send(Signal::Turn(turn, now));
    }
    for slot in begun.tried {
        slot.send(Signal::Held);
    }
    if let Some(next) = begun.next {
        next.send(Signal::Delegate(None));
    }
    begun.turn
}
