//! A lease of this process on one name: from a grant to its end, for all guards that it is passed through.

use std::mem;
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::clock::Time;
use crate::config::Terms;
use crate::core::attempt::Grant;
use crate::core::lease::{AtomicLease, LeaseStatus, sent_for, valid_until};
use crate::core::queue::{self, Health, HeldLease};
use crate::core::timer_queue::{Numbered, at_risk_below};
use crate::engine::Engine;
use crate::engine::names;
use crate::error::{Lost, LostCause};
use crate::message::{Gone, Renewal, Renewed};
use crate::name::LockKey;
use crate::owner::Owner;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};

/// The names of this engine, and their parts.
pub(crate) type Names = names::Names<Arc<ProcessLease>>;
pub(crate) type Entry = names::Entry<Arc<ProcessLease>>;
pub(crate) type State = names::State<Arc<ProcessLease>>;
pub(crate) type Slot = names::Slot<Arc<ProcessLease>>;
pub(crate) type Signal = names::Signal<Arc<ProcessLease>>;
/// A guard's part in a lease of this process.
pub(crate) type Turn = queue::Turn<Arc<ProcessLease>>;

/// This process's holding of one name, from a grant to its end.
pub(crate) struct ProcessLease {
    /// Unique in its engine.
    pub(crate) number: u64,
    pub(crate) entry: Arc<Entry>,
    pub(super) owner: Owner,
    /// How much of the lock it has.
    pub(crate) units: u32,
    pub(crate) terms: Terms,
    pub(crate) validity: AtomicLease,
    /// Whether processes are known to wait for it.
    contended: AtomicBool,
    /// Its places in the timetables, each changed only under that timetable's mutex.
    pub(crate) renewal_place: AtomicU64,
    pub(crate) watch_place: AtomicU64,
    /// Whether what may be left of it in Redis after its loss is being released.
    is_cleaned_up: AtomicBool,
    /// Numbers its holdings.
    pub(super) guards: AtomicU32,
    /// Whether Redis may keep it past its lease, so that there is more to be known of it.
    is_extended: AtomicBool,
    /// Whether a guard of it had a `min_hold`.
    has_min_hold: AtomicBool,
    /// What most leases do not have.
    cold: Mutex<Option<Box<ColdState>>>,
}

#[derive(Default)]
struct ColdState {
    /// The fences of the names after the first, where there are several.
    rest: Vec<u64>,
    /// Until when a request of this owner may still be carried out unbidden.
    uncertain_until: Option<Time>,
    /// Until when Redis may keep the key, going by what it was asked for: an extension whose answer was lost may
    /// have been granted, and a request in doubt may be carried out.
    kept_until: Option<Time>,
    /// When the last renewal that was confirmed was sent. Kept from the first extension on: the deadline of an extended
    /// lease does not tell.
    confirmed: Option<Time>,
    /// Until when it is kept from everybody, even after its last guard.
    min_hold_until: Option<Time>,
    /// Those who want to hear of its loss.
    listeners: Vec<LossListener>,
}

impl HeldLease for Arc<ProcessLease> {
    fn number(&self) -> u64 {
        self.number
    }

    fn terms(&self) -> Terms {
        self.terms
    }
}

impl Numbered for Arc<ProcessLease> {
    fn number(&self) -> u64 {
        self.number
    }
}

/// Somebody who wants to hear of the loss of one holding.
pub(super) struct LossListener {
    pub(super) guard_inner: u32,
    pub(super) sender: Sender<Lost>,
    /// What it is told, but for the cause.
    pub(super) lost: Lost,
}

impl LossListener {
    pub(super) fn notify(self, cause: LostCause) {
        // A full or abandoned channel has nobody left to tell.
        self.sender.try_send(Lost { cause, ..self.lost }).ok();
    }
}

impl ProcessLease {
    pub(crate) fn new(
        number: u64,
        label: &str,
        entry: Arc<Entry>,
        terms: Terms,
        units: u32,
        grant: Grant,
    ) -> Self {
        let (rest, uncertain_until) = (grant.rest, grant.uncertain_until);
        // Only where a request in doubt asked for more than this grant brings.
        let kept_until = grant
            .kept_until
            .filter(|until| *until > grant.sent + terms.lease());
        let is_rare = uncertain_until.is_some() || kept_until.is_some() || !rest.is_empty();
        Self {
            number,
            entry,
            owner: Owner::new(&grant.owner, label),
            units,
            terms,
            validity: AtomicLease::new(grant.deadline),
            contended: AtomicBool::new(grant.contended),
            renewal_place: AtomicU64::new(0),
            watch_place: AtomicU64::new(0),
            is_cleaned_up: AtomicBool::new(false),
            guards: AtomicU32::new(0),
            is_extended: AtomicBool::new(kept_until.is_some()),
            has_min_hold: AtomicBool::new(false),
            cold: Mutex::new(is_rare.then(|| {
                Box::new(ColdState {
                    rest,
                    uncertain_until,
                    kept_until,
                    ..ColdState::default()
                })
            })),
        }
    }

    /// Its keys, more than one only in a multi-lock.
    pub(crate) fn keys(&self) -> &[LockKey] {
        self.entry.target.keys()
    }

    /// The fences of the names after the first, where there are several.
    pub(super) fn further_fences(&self) -> Vec<u64> {
        self.cold(|cold| cold.rest.clone())
    }

    /// What `of` says of what most leases do not have.
    fn cold<T: Default>(&self, of: impl FnOnce(&ColdState) -> T) -> T {
        self.cold.lock().as_deref().map_or_else(T::default, of)
    }

    /// It is about to be asked for until then.
    pub(super) fn note_extension(&self, until: Time) {
        let mut cold = self.cold.lock();
        let kept_until = &mut cold.get_or_insert_default().kept_until;
        *kept_until = Some(until).max(*kept_until);
        self.is_extended.store(true, Ordering::Release);
    }

    /// Keeps it from everybody until then at least.
    pub(super) fn note_min_hold(&self, until: Time) {
        let mut cold = self.cold.lock();
        let min_hold_until = &mut cold.get_or_insert_default().min_hold_until;
        *min_hold_until = Some(until).max(*min_hold_until);
        self.has_min_hold.store(true, Ordering::Release);
    }

    /// Returns until when it is kept from everybody, if that is after `now`.
    pub(super) fn min_hold_until(&self, now: Time) -> Option<Time> {
        let has_min_hold = self.has_min_hold.load(Ordering::Acquire);
        let until = has_min_hold.then(|| self.cold(|cold| cold.min_hold_until));
        until.flatten().filter(|until| *until > now)
    }

    /// Until when Redis may keep the key past its lease.
    pub(super) fn kept_until(&self) -> Option<Time> {
        let is_extended = self.is_extended.load(Ordering::Acquire);
        is_extended
            .then(|| self.cold(|cold| cold.kept_until))
            .flatten()
    }

    /// Returns until when a request of this owner may still be carried out.
    pub(super) fn uncertain_until(&self) -> Option<Time> {
        self.cold(|cold| cold.uncertain_until)
    }

    /// Returns whether processes are known to wait for the lock.
    pub(super) fn is_contended(&self) -> bool {
        self.contended.load(Ordering::Relaxed)
    }

    /// Returns true once: to the thread that releases what is left of a lost lease.
    pub(super) fn begin_clean_up(&self) -> bool {
        !self.is_cleaned_up.swap(true, Ordering::Relaxed)
    }

    /// Whether it may be passed on at `now`.
    pub(crate) fn health(&self, now: Time) -> Health {
        match self.validity.status(now) {
            LeaseStatus::Live(left)
                if self.terms.renew && !self.is_late(left) && !self.is_extended(now) =>
            {
                Health::Good
            }
            LeaseStatus::Live(_) => Health::Poor,
            LeaseStatus::Ended | LeaseStatus::Lost(_) => Health::Lost,
        }
    }

    /// Whether Redis may keep it for longer than its terms say: a crash of the next thread would cost as much.
    fn is_extended(&self, now: Time) -> bool {
        self.kept_until()
            .is_some_and(|until| until > now + self.terms.lease())
    }

    /// Returns whether the server has confirmed it by a request that was sent after `cut`.
    fn is_confirmed_after(&self, cut: Time) -> bool {
        if self.is_extended.load(Ordering::Acquire) {
            let confirmed = self.cold(|cold| cold.confirmed);
            return confirmed.is_some_and(|sent| sent > cut);
        }
        let sent = |deadline| sent_for(deadline, self.terms.lease());
        self.validity.deadline().is_some_and(|at| sent(at) > cut)
    }

    /// Whether a renewal is overdue, going by what is left of the lease.
    pub(crate) fn is_late(&self, left: Duration) -> bool {
        self.terms.renew && left < at_risk_below(self.terms.lease())
    }

    /// What its renewals ask for. Where its terms say not to renew, one is sent only to hear whether the lock is still
    /// there: it asks for so little that it lengthens nothing.
    pub(crate) fn renewed_for(&self) -> Duration {
        if self.terms.renew {
            self.terms.lease()
        } else {
            Duration::from_millis(1)
        }
    }

    /// Takes in what the server said to its renewals, which were sent at `sent` for `lease`: it is lost where one
    /// key is, and lasts longer where all do.
    pub(crate) fn renewed(
        &self,
        sent: Time,
        now: Time,
        lease: Duration,
        said: &[Renewed],
    ) -> LeaseStatus {
        let mut is_refused = false;
        for said in said {
            match said {
                Renewed::Done { contended: false } => {}
                Renewed::Done { contended: true } => self.contended.store(true, Ordering::Relaxed),
                Renewed::Gone(gone) => {
                    self.validity.lose(match gone {
                        Gone::Removed => LostCause::Removed,
                        Gone::Taken => LostCause::Taken,
                    });
                }
                Renewed::Refused => is_refused = true,
            }
        }
        if is_refused {
            return self.validity.status(now);
        }
        if self.is_extended.load(Ordering::Acquire) {
            let mut cold = self.cold.lock();
            let confirmed = &mut cold.get_or_insert_default().confirmed;
            *confirmed = Some(sent).max(*confirmed);
        }
        // A lost one stays lost.
        self.validity.renew(now, valid_until(sent, lease))
    }

    /// Tells everybody who asked for it that the lease was lost. Called with no mutex held.
    pub(crate) fn announce(&self, cause: LostCause) {
        let listeners = match &mut *self.cold.lock() {
            Some(cold) => mem::take(&mut cold.listeners),
            None => return,
        };
        for listener in listeners {
            listener.notify(cause);
        }
    }

    pub(super) fn enlist(&self, listener: LossListener) {
        let mut cold = self.cold.lock();
        cold.get_or_insert_default().listeners.push(listener);
    }

    /// Takes out who listens for the loss of one holding.
    pub(super) fn withdraw(&self, guard_inner: u32) -> Vec<LossListener> {
        match &mut *self.cold.lock() {
            Some(cold) => {
                let all = mem::take(&mut cold.listeners).into_iter();
                let (withdrawn, kept) =
                    all.partition(|listener| listener.guard_inner == guard_inner);
                cold.listeners = kept;
                withdrawn
            }
            None => Vec::new(),
        }
    }
}

impl Engine {
    /// The owner of a lease, as it stands in Redis.
    pub(super) fn owner_of(&self, process_lease: &ProcessLease) -> Arc<str> {
        process_lease.owner.text(&self.settings.label).into()
    }

    /// What to ask for so that a lease lasts for `lease` from then on: one renewal for each of its keys.
    pub(super) fn renewals<'a>(
        &'a self,
        process_lease: &'a ProcessLease,
        lease: Duration,
    ) -> impl Iterator<Item = Renewal<'a>> + use<'a> {
        let label: &'a str = &self.settings.label;
        process_lease.keys().iter().map(move |key| Renewal {
            kind: process_lease.entry.kind,
            key,
            owner: process_lease.owner.text(label),
            units: process_lease.units,
            lease,
        })
    }

    /// Returns who holds the lock, as far as this process knows.
    pub(super) fn holder(&self, state: &State) -> Option<Arc<str>> {
        state.holder(|process_lease| self.owner_of(process_lease))
    }

    /// Returns whether a lease may be passed on in memory at `now`.
    ///
    /// A connection that the server closed is a sign that the server was started again, perhaps without its data. A lease
    /// that was confirmed last before such a sign is not passed on: the next thread asks.
    pub(super) fn health(self: &Arc<Self>, process_lease: &Arc<ProcessLease>, now: Time) -> Health {
        let health = process_lease.health(now);
        let cut = self.store.last_cut();
        if health != Health::Good
            || cut == Time::from_nanos(0)
            || process_lease.is_confirmed_after(cut)
        {
            return health;
        }
        if process_lease.entry.kind.sharing().together {
            // It goes on beside those who ask, so they ask only until it is confirmed.
            self.renewal.renew_now(self, process_lease);
        }
        Health::Poor
    }
}
