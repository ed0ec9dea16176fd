//! A tenure, and the way out.
//!
//! A guard that ends finishes its turn in this order:
//!
//! 1. it is settled who ends it: the guard, or the watch thread at `max_hold`;
//! 2. under the name's mutex the queue decides: pass on, take over, or release; in the last two cases the
//!    lease is ended here, *before* anything is sent that may give the lock away;
//! 3. with no mutex held, the next thread is told, or one release is sent;
//! 4. what failed of the release goes to the renewal thread; then the queue's next thread, if any, may ask.

use std::time::Duration;

use crossbeam_channel::Sender;

use crate::clock::Time;
use crate::config::Terms;
use crate::core::attempt::{Attempt, Grant, Leftover};
use crate::core::ending::{Ending, Next};
use crate::core::lease::{LeaseCell, Standing, valid_until};
use crate::core::queue::{Finish, Health, Tenancy};
use crate::core::schedule::{Place, at_risk_below};
use crate::engine::Engine;
use crate::engine::names::{Entry, Last, Signal};
use crate::error::{Failure, Lost, LostCause};
use crate::name::LockKey;
use crate::script::{GiveBack, Gone, Renewal, Renewed};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};

/// Earlier than every doubt.
const LONG_AGO: Time = Time::from_nanos(0);

/// This process's holding of one name, from a grant to its end.
pub(crate) struct Tenure {
    /// Unique in its engine.
    pub(crate) number: u64,
    pub(crate) entry: Arc<Entry>,
    pub(crate) owner: Arc<str>,
    /// How much of the lock it has.
    pub(crate) units: u32,
    /// The fences of the names after the first, where there are several.
    pub(super) rest: Box<[u64]>,
    pub(crate) terms: Terms,
    pub(crate) cell: LeaseCell,
    /// Whether processes are known to wait for it.
    contended: AtomicBool,
    /// Until when a request of this owner may still be carried out unbidden; long ago where none is.
    doubt: Time,
    /// Until when Redis may keep the key, going by what it was asked for: an extension whose answer was lost may
    /// have been granted.
    pub(super) kept_until: AtomicU64,
    /// Its places in the timetables, each changed only under that timetable's mutex.
    pub(crate) renewal_place: AtomicU64,
    pub(crate) watch_place: AtomicU64,
    /// Whether what may be left of it in Redis after its loss is being released.
    is_cleaned_up: AtomicBool,
    /// Numbers its holdings.
    pub(super) holdings: AtomicU32,
    /// Those who want to hear of its loss; most leases have none.
    listeners: Mutex<Option<Box<LossListeners>>>,
}

#[derive(Default)]
struct LossListeners(Vec<LossListener>);

impl Tenancy for Arc<Tenure> {
    fn number(&self) -> u64 {
        self.number
    }

    fn terms(&self) -> Terms {
        self.terms
    }
}

/// Somebody who wants to hear of the loss of one holding.
pub(super) struct LossListener {
    pub(super) holding: u32,
    pub(super) sender: Sender<Lost>,
    /// What it is told, but for the cause.
    pub(super) lost: Lost,
}

impl LossListener {
    pub(super) fn tell(self, cause: LostCause) {
        // A full or abandoned channel has nobody left to tell.
        self.sender.try_send(Lost { cause, ..self.lost }).ok();
    }
}

impl Tenure {
    pub(crate) fn new(
        number: u64,
        entry: Arc<Entry>,
        terms: Terms,
        units: u32,
        grant: Grant,
    ) -> Self {
        Self {
            number,
            entry,
            owner: grant.owner,
            units,
            rest: grant.rest.into(),
            terms,
            cell: LeaseCell::new(grant.deadline),
            contended: AtomicBool::new(grant.contended),
            doubt: grant.doubt.unwrap_or(LONG_AGO),
            kept_until: AtomicU64::new(0),
            renewal_place: AtomicU64::new(0),
            watch_place: AtomicU64::new(0),
            is_cleaned_up: AtomicBool::new(false),
            holdings: AtomicU32::new(0),
            listeners: Mutex::default(),
        }
    }

    /// Its keys, more than one only in a multi-lock.
    pub(crate) fn keys(&self) -> &[LockKey] {
        self.entry.target.keys()
    }

    /// Whether it may be passed on at `now`.
    pub(crate) fn health(&self, now: Time) -> Health {
        match self.cell.standing(now) {
            Standing::Live(left)
                if self.terms.renew && !self.is_late(left) && !self.is_extended(now) =>
            {
                Health::Good
            }
            Standing::Live(_) => Health::Poor,
            Standing::Ended | Standing::Lost(_) => Health::Lost,
        }
    }

    /// Whether Redis may keep it for longer than its terms say: a crash of the next thread would cost as much.
    fn is_extended(&self, now: Time) -> bool {
        let kept_until = Time::from_nanos(self.kept_until.load(Ordering::Relaxed));
        kept_until > now + self.terms.lease()
    }

    /// Whether a renewal is overdue, going by what is left of the lease.
    pub(crate) fn is_late(&self, left: Duration) -> bool {
        self.terms.renew && left < at_risk_below(self.terms.lease())
    }

    /// What to ask for so that it lasts for `lease` from then on: one renewal for each of its keys.
    pub(crate) fn renewals(&self, lease: Duration) -> impl Iterator<Item = Renewal> {
        self.keys().iter().map(move |key| Renewal {
            kind: self.entry.kind,
            key: key.clone(),
            owner: Arc::clone(&self.owner),
            units: self.units,
            lease,
        })
    }

    /// Takes in what the server said to its renewals, which were sent at `sent` for `lease`: it is lost where one
    /// key is, and lasts longer where all do.
    pub(crate) fn renewed(
        &self,
        sent: Time,
        now: Time,
        lease: Duration,
        said: &[Renewed],
    ) -> Standing {
        let mut is_refused = false;
        for said in said {
            match said {
                Renewed::Done { contended: false } => {}
                Renewed::Done { contended: true } => self.contended.store(true, Ordering::Relaxed),
                Renewed::Gone(gone) => {
                    self.cell.lose(match gone {
                        Gone::Removed => LostCause::Removed,
                        Gone::Taken => LostCause::Taken,
                    });
                }
                Renewed::Refused => is_refused = true,
            }
        }
        if is_refused {
            return self.cell.standing(now);
        }
        // A lost one stays lost.
        self.cell.renew(now, valid_until(sent, lease))
    }

    /// How it is ended in Redis.
    pub(crate) fn ending(&self, give_back: Option<GiveBack>, now: Time) -> Ending {
        let contended = self.contended.load(Ordering::Relaxed);
        Ending::of_tenure(self.leftover(), contended, give_back, now, self.ttl(now))
    }

    /// How long Redis may still keep the key.
    pub(super) fn ttl(&self, now: Time) -> Duration {
        let kept_until = Time::from_nanos(self.kept_until.load(Ordering::Relaxed));
        self.terms.lease().max(kept_until.since(now))
    }

    pub(super) fn leftover(&self) -> Leftover {
        Leftover {
            owner: Arc::clone(&self.owner),
            units: self.units,
            doubt: Some(self.doubt).filter(|doubt| *doubt > LONG_AGO),
        }
    }

    /// Tells everybody who asked for it that the lease was lost. Called with no mutex held.
    pub(crate) fn announce(&self, cause: LostCause) {
        let listeners = self.listeners.lock().take();
        for listener in listeners.into_iter().flat_map(|listeners| listeners.0) {
            listener.tell(cause);
        }
    }

    pub(super) fn enlist(&self, listener: LossListener) {
        let mut listeners = self.listeners.lock();
        listeners.get_or_insert_default().0.push(listener);
    }

    /// Takes out who listens for the loss of one holding.
    pub(super) fn withdraw(&self, holding: u32) -> Vec<LossListener> {
        let mut listeners = self.listeners.lock();
        let all = listeners.iter_mut().flat_map(|listeners| {
            listeners
                .0
                .extract_if(.., |listener| listener.holding == holding)
        });
        all.collect()
    }
}

impl Engine {
    /// Ends one turn of a tenure. Returns what the lease was, and what is to be sent to Redis, if anything.
    pub(crate) fn finish(self: &Arc<Self>, tenure: &Arc<Tenure>) -> (Standing, Option<Ending>) {
        let now = self.now();
        let (standing, finish) = {
            let mut state = tenure.entry.lock();
            let health = tenure.health(now);
            let finish = state.queue.finish(tenure.number, now, health);
            let standing = match finish {
                Finish::Passed(..) => tenure.cell.standing(now),
                // Before anything is sent: from here on nobody in this process holds it.
                _ => tenure.cell.end(now),
            };
            if let Finish::TakeOver(..) = finish {
                // Until the next thread has asked.
                state.note_last(Last::Held(Arc::clone(&tenure.owner)));
            }
            (standing, finish)
        };
        match finish {
            Finish::Passed((first, rest)) => {
                for (slot, turn) in first.into_iter().chain(rest) {
                    slot.send(Signal::Turn(turn));
                }
                (standing, None)
            }
            Finish::TakeOver(slot, give_back) => {
                self.deregister(tenure);
                let from = tenure.leftover();
                let label = &self.settings.label;
                let attempt = Attempt::take_over(&*self.chance, label, from, give_back);
                slot.send(Signal::Delegate(Some(Box::new(attempt))));
                (standing, None)
            }
            Finish::Release(give_back) => {
                self.deregister(tenure);
                (standing, Some(tenure.ending(give_back, now)))
            }
            Finish::Lost(next) => {
                self.hand_on(&tenure.entry, next);
                self.after_loss(tenure, standing);
                (standing, None)
            }
            Finish::Stale => {
                self.after_loss(tenure, standing);
                (standing, None)
            }
        }
    }

    /// The lease was lost: whoever waits behind it may ask, and whoever wants to know is told.
    pub(crate) fn lost(&self, tenure: &Arc<Tenure>, cause: LostCause) {
        let next = tenure.entry.lock().queue.lost(tenure.number);
        self.hand_on(&tenure.entry, next);
        self.renewal.deregister(tenure);
        tenure.announce(cause);
    }

    /// The guard of a lost tenure is gone too, so nothing relies any more on what may be left of it in Redis.
    pub(super) fn after_loss(&self, tenure: &Arc<Tenure>, standing: Standing) {
        if let Standing::Lost(cause) = standing {
            self.deregister(tenure);
            tenure.announce(cause);
            // A key that the server says is gone needs no release; the others of its set do.
            let may_be_left = cause == LostCause::Expired || tenure.keys().len() > 1;
            // Once for all that sit in it.
            if may_be_left && !tenure.is_cleaned_up.swap(true, Ordering::Relaxed) {
                let ttl = tenure.ttl(self.now());
                self.clean_up(&tenure.entry, tenure.leftover(), ttl);
            }
        }
    }

    pub(super) fn deregister(&self, tenure: &Arc<Tenure>) {
        self.renewal.deregister(tenure);
        self.watch.deregister_lease(tenure);
    }

    /// Makes the next thread the delegate, or retires the name.
    pub(crate) fn hand_on(
        &self,
        entry: &Arc<Entry>,
        next: Option<Arc<crate::engine::names::Slot>>,
    ) {
        match next {
            Some(slot) => {
                // It asks afresh: whatever was answered before says nothing now.
                entry.lock().forget_last();
                slot.send(Signal::Delegate(None));
            }
            None => self.names.retire(entry),
        }
    }

    /// Sends the release of a name's tenure; then who waits here may ask. As [`Engine::send_ending`].
    pub(super) fn run_ending(
        &self,
        entry: &Arc<Entry>,
        ending: Ending,
    ) -> Result<Option<Gone>, Failure> {
        let result = self.send_ending(entry, ending);
        self.release_over(entry);
        result
    }

    /// Sends a release, once, and leaves what fails to the renewal thread. Returns where the lock had gone if it
    /// was not ours any more.
    pub(crate) fn send_ending(
        &self,
        entry: &Arc<Entry>,
        mut ending: Ending,
    ) -> Result<Option<Gone>, Failure> {
        let limits = self.limits(None);
        loop {
            let next = match self.call(entry, ending.verb(), limits) {
                Ok(answer) => ending.replied(self.now(), &answer.reply, answer.resent),
                Err(failure) => {
                    ending.failed(self.now(), &*self.chance);
                    self.renewal.end(self, entry, ending);
                    return Err(failure);
                }
            };
            match next {
                Next::Send => {}
                Next::Later(_) => {
                    let gone = ending.gone();
                    self.renewal.end(self, entry, ending);
                    return Ok(gone);
                }
                Next::Done => return Ok(ending.gone()),
            }
        }
    }

    /// The release of a name's tenure was sent: who waits here may ask.
    pub(crate) fn release_over(&self, entry: &Arc<Entry>) {
        let next = entry.lock().queue.ended();
        self.hand_on(entry, next);
    }

    /// Leaves the release of a name's tenure to the renewal thread, and with it the wait for its answer to whoever
    /// asks for the name next.
    pub(crate) fn leave_release(&self, entry: &Arc<Entry>, ending: Ending) {
        let place = self.renewal.reserve(self.now(), entry, &ending);
        let next = {
            let mut state = entry.lock();
            state.note_outgoing(place);
            state.queue.ended()
        };
        self.hand_on(entry, next);
        self.renewal.leave(self, entry, ending, place);
    }

    /// The first request of a release that was left to the renewal thread is over.
    pub(crate) fn sent(&self, entry: &Arc<Entry>, place: Place) {
        entry.lock().forget_outgoing(place);
        self.names.retire(entry);
    }
}
