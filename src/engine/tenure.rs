//! A tenure, a thread's holding in it, and the way out.
//!
//! A guard that ends finishes its turn in this order:
//!
//! 1. it is settled who ends it: the guard, or the watch thread at `max_hold`;
//! 2. under the name's mutex the queue decides: pass on, take over, or release; in the last two cases the
//!    lease is ended here, *before* anything is sent that may give the lock away;
//! 3. with no mutex held, the next thread is told, or one release is sent;
//! 4. what failed of the release goes to the renewal thread; then the queue's next thread, if any, may ask.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use crate::clock::Time;
use crate::config::{MAX_LEASE, Terms};
use crate::core::attempt::{Attempt, Grant, Leftover};
use crate::core::ending::{Ending, Next};
use crate::core::lease::{LeaseCell, Standing, drift, valid_until};
use crate::core::queue::{Demand, Finish, Health};
use crate::core::schedule::at_risk_below;
use crate::engine::Engine;
use crate::engine::names::{Entry, Signal};
use crate::error::{Error, Failure, FailureKind, Lost, LostCause, Result};
use crate::name::LockKey;
use crate::script::{Call, GiveBack, Gone, Renewal, Renewed, Reply};
use crate::sync::{Arc, AtomicBool, AtomicU8, AtomicU64, Mutex, Ordering};

/// This process's holding of one name, from a grant to its end.
pub(crate) struct Tenure {
    /// Unique in its engine.
    pub(crate) number: u64,
    pub(crate) entry: Arc<Entry>,
    pub(crate) owner: Arc<str>,
    pub(crate) terms: Terms,
    pub(crate) cell: LeaseCell,
    /// Whether processes are known to wait for it.
    contended: AtomicBool,
    /// Until when a request of this owner may still be carried out unbidden.
    doubt: Option<Time>,
    /// Until when Redis may keep the key, going by what it was asked for: an extension whose answer was lost may
    /// have been granted.
    kept_until: AtomicU64,
    /// Its places in the timetables, each changed only under that timetable's mutex.
    pub(crate) renewal_place: AtomicU64,
    pub(crate) watch_place: AtomicU64,
    /// Numbers its holdings.
    holdings: AtomicU64,
    /// Those who want to hear of its loss.
    listeners: Mutex<Vec<LossListener>>,
}

/// Somebody who wants to hear of the loss of one holding.
struct LossListener {
    holding: u64,
    sender: Sender<Lost>,
    /// What it is told, but for the cause.
    lost: Lost,
}

impl LossListener {
    fn tell(self, cause: LostCause) {
        // A full or abandoned channel has nobody left to tell.
        self.sender.try_send(Lost { cause, ..self.lost }).ok();
    }
}

impl Tenure {
    pub(crate) fn new(number: u64, entry: Arc<Entry>, terms: Terms, grant: Grant) -> Self {
        Self {
            number,
            entry,
            owner: grant.owner,
            terms,
            cell: LeaseCell::new(grant.deadline),
            contended: AtomicBool::new(grant.contended),
            doubt: grant.doubt,
            kept_until: AtomicU64::new(0),
            renewal_place: AtomicU64::new(0),
            watch_place: AtomicU64::new(0),
            holdings: AtomicU64::new(0),
            listeners: Mutex::default(),
        }
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.entry.key
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
        kept_until > now + self.terms.lease
    }

    /// Whether a renewal is overdue, going by what is left of the lease.
    pub(crate) fn is_late(&self, left: Duration) -> bool {
        self.terms.renew && left < at_risk_below(self.terms.lease)
    }

    pub(crate) fn renewal(&self) -> Renewal {
        Renewal {
            key: self.key().clone(),
            owner: Arc::clone(&self.owner),
            lease: self.terms.lease,
        }
    }

    /// Takes in what the server said to a renewal that was sent at `sent` for `lease`.
    pub(crate) fn renewed(
        &self,
        sent: Time,
        now: Time,
        lease: Duration,
        said: Renewed,
    ) -> Standing {
        match said {
            Renewed::Done { contended } => {
                if contended {
                    self.contended.store(true, Ordering::Relaxed);
                }
                self.cell.renew(now, valid_until(sent, lease))
            }
            Renewed::Gone(gone) => {
                self.cell.lose(match gone {
                    Gone::Removed => LostCause::Removed,
                    Gone::Taken => LostCause::Taken,
                });
                self.cell.standing(now)
            }
            Renewed::Refused => self.cell.standing(now),
        }
    }

    /// How it is ended in Redis.
    pub(crate) fn ending(&self, give_back: Option<GiveBack>, now: Time) -> Ending {
        let contended = self.contended.load(Ordering::Relaxed);
        Ending::of_tenure(
            Arc::clone(&self.owner),
            contended,
            give_back,
            self.doubt,
            now,
            self.ttl(now),
        )
    }

    /// How long Redis may still keep the key.
    fn ttl(&self, now: Time) -> Duration {
        let kept_until = Time::from_nanos(self.kept_until.load(Ordering::Relaxed));
        self.terms.lease.max(kept_until.since(now))
    }

    fn leftover(&self) -> Leftover {
        Leftover {
            owner: Arc::clone(&self.owner),
            doubt: self.doubt,
        }
    }

    /// Tells everybody who asked for it that the lease was lost. Called with no mutex held.
    pub(crate) fn announce(&self, cause: LostCause) {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        for listener in listeners {
            listener.tell(cause);
        }
    }

    /// Takes out who listens for the loss of one holding.
    fn withdraw(&self, holding: u64) -> Vec<LossListener> {
        self.listeners
            .lock()
            .extract_if(.., |listener| listener.holding == holding)
            .collect()
    }
}

/// A guard's turn in a tenure, while it lasts. Dropping it ends it.
pub(crate) struct Holding {
    engine: Arc<Engine>,
    tenure: Arc<Tenure>,
    /// Tells it from the tenure's other holdings.
    number: u64,
    fence: u64,
    demand: Demand,
    /// Where the guard may be held for so long only.
    limit: Option<Arc<HoldLimit>>,
    /// Whether anybody was given a receiver.
    is_listened_to: AtomicBool,
    finished: bool,
}

/// What the guard and the watch thread settle between them where there is a `max_hold`.
pub(crate) struct HoldLimit {
    pub(crate) tenure: Arc<Tenure>,
    demand: Demand,
    holding: u64,
    pub(crate) due: Time,
    /// Its place in the watch thread's timetable.
    pub(crate) place: AtomicU64,
    state: AtomicU8,
}

const OPEN: u8 = 0;
const FINISHED: u8 = 1;
const EXCEEDED: u8 = 2;

impl HoldLimit {
    /// True for the first to settle it.
    fn settle(&self, how: u8) -> bool {
        self.state
            .compare_exchange(OPEN, how, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    fn is_exceeded(&self) -> bool {
        self.state.load(Ordering::Acquire) == EXCEEDED
    }

    /// The time is over: the guard reads lost from here on, and its turn is ended for it.
    pub(crate) fn exceed(&self, engine: &Arc<Engine>) {
        if !self.settle(EXCEEDED) {
            return;
        }
        for listener in self.tenure.withdraw(self.holding) {
            listener.tell(LostCause::MaxHold);
        }
        if let Some(ending) = engine.finish(&self.tenure, self.demand).1 {
            engine.end_in_background(&self.tenure.entry, ending, true);
        }
    }
}

impl Holding {
    pub(crate) fn new(
        engine: Arc<Engine>,
        tenure: Arc<Tenure>,
        fence: u64,
        demand: Demand,
        max_hold: Option<Duration>,
    ) -> Self {
        let number = tenure.holdings.fetch_add(1, Ordering::Relaxed);
        let limit = max_hold.map(|max_hold| {
            let limit = Arc::new(HoldLimit {
                tenure: Arc::clone(&tenure),
                demand,
                holding: number,
                due: engine.now() + max_hold,
                place: AtomicU64::new(0),
                state: AtomicU8::new(OPEN),
            });
            engine.watch.register_hold(&limit);
            limit
        });
        Self {
            engine,
            tenure,
            number,
            fence,
            demand,
            limit,
            is_listened_to: AtomicBool::new(false),
            finished: false,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.tenure.key().name()
    }

    pub(crate) fn owner(&self) -> &str {
        &self.tenure.owner
    }

    pub(crate) fn fence(&self) -> u64 {
        self.fence
    }

    /// How long the lease may be believed, and whether its renewal is overdue.
    pub(crate) fn standing(&self) -> Result<(Duration, bool), Lost> {
        // A child of a fork has a copy of the guard and none of the lock.
        if self.engine.is_forked() {
            return Err(self.lost(LostCause::Taken));
        }
        if self.limit.as_ref().is_some_and(|limit| limit.is_exceeded()) {
            return Err(self.lost(LostCause::MaxHold));
        }
        match self.tenure.cell.standing(self.engine.now()) {
            Standing::Live(left) => Ok((left, self.tenure.is_late(left))),
            Standing::Lost(cause) => Err(self.lost(cause)),
            // A tenure ends with its last guard, so a guard that can still ask was outlived by a loss.
            Standing::Ended => Err(self.lost(LostCause::Expired)),
        }
    }

    pub(crate) fn lost(&self, cause: LostCause) -> Lost {
        Lost {
            name: Arc::clone(self.tenure.key().name()),
            fence: self.fence,
            cause,
        }
    }

    pub(crate) fn on_lost(&self) -> Receiver<Lost> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        // The causes stand in for each other here; whoever announces the loss puts the true one in.
        let lost = self.lost(LostCause::Expired);
        if self.engine.is_forked() {
            sender.try_send(lost).ok();
            return receiver;
        }
        self.is_listened_to.store(true, Ordering::Relaxed);
        self.tenure.listeners.lock().push(LossListener {
            holding: self.number,
            sender: sender.clone(),
            lost,
        });
        // A loss that was announced before we stood in the list is told here; told twice, the second finds the
        // channel full.
        if let Err(lost) = self.standing() {
            sender.try_send(lost).ok();
        }
        receiver
    }

    pub(crate) fn extend(&self, at_least: Duration) -> Result<()> {
        let (left, _) = self.standing().map_err(Error::Lost)?;
        if at_least > MAX_LEASE {
            return Err(Error::config("at_least", "it is longer than 24 h"));
        }
        if left >= at_least {
            return Ok(());
        }
        // What drift takes off at this end is put on at the other.
        let lease = at_least + drift(at_least) * 2;
        let renewal = Renewal {
            lease,
            ..self.tenure.renewal()
        };
        let sent = self.engine.now();
        let kept_until = (sent + lease).as_nanos();
        self.tenure
            .kept_until
            .fetch_max(kept_until, Ordering::Relaxed);
        let limits = self.engine.limits(Some(sent + left));
        let name = Some(self.tenure.key().name());
        let answer = self
            .engine
            .store
            .call(&Call::Renew(&[renewal]), limits)
            .map_err(|failure| failure.into_error(name))?;
        let Reply::Renewed(said) = answer.reply else {
            let words = "no answer to a renewal";
            return Err(Failure::plain(FailureKind::Protocol, true, words).into_error(name));
        };
        for said in said {
            if said == Renewed::Refused {
                let words = "it may not renew this lock";
                return Err(Failure::plain(FailureKind::Denied, false, words).into_error(name));
            }
            let now = self.engine.now();
            if let Standing::Lost(_) = self.tenure.renewed(sent, now, lease, said) {
                self.engine.watch.hurry(&self.tenure);
            }
        }
        self.standing().map(drop).map_err(Error::Lost)
    }

    /// Ends the turn, and says whether the lease lasted until then.
    pub(crate) fn release(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        if self.engine.is_forked() {
            // Counted up for good, so that this copy of the engine is never dropped.
            std::mem::forget(Arc::clone(&self.engine));
            return Err(Error::Closed);
        }
        if let Some(limit) = &self.limit {
            self.engine.watch.deregister_hold(limit);
            if !limit.settle(FINISHED) {
                return Err(Error::Lost(self.lost(LostCause::MaxHold)));
            }
        }
        // Taken out before the turn passes on: what becomes of the tenure then is not this guard's loss.
        let listeners = if self.is_listened_to.load(Ordering::Relaxed) {
            self.tenure.withdraw(self.number)
        } else {
            Vec::new()
        };
        let (standing, ending) = self.engine.finish(&self.tenure, self.demand);
        for listener in listeners {
            match standing {
                Standing::Lost(cause) => listener.tell(cause),
                // Dropped, it disconnects: a healthy end.
                Standing::Live(_) | Standing::Ended => drop(listener),
            }
        }
        let entry = &self.tenure.entry;
        let ended = match ending {
            Some(ending) => self.engine.run_ending(entry, ending),
            None => Ok(None),
        };
        match (standing, ended) {
            (Standing::Lost(cause), _) => Err(Error::Lost(self.lost(cause))),
            (_, Ok(Some(gone))) => Err(Error::Lost(self.lost(match gone {
                Gone::Removed => LostCause::Removed,
                Gone::Taken => LostCause::Taken,
            }))),
            (_, Ok(None)) => Ok(()),
            (_, Err(failure)) => Err(failure.into_error(Some(entry.key.name()))),
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            match error {
                Error::Closed => {}
                error => log::warn!("on release: {error}"),
            }
        }
    }
}

impl Engine {
    /// Ends one turn of a tenure. Returns what the lease was, and what is to be sent to Redis, if anything.
    pub(crate) fn finish(
        self: &Arc<Self>,
        tenure: &Arc<Tenure>,
        demand: Demand,
    ) -> (Standing, Option<Ending>) {
        let now = self.now();
        let (standing, finish) = {
            let mut state = tenure.entry.lock();
            let health = tenure.health(now);
            let finish = state.queue.finish(tenure.number, demand, now, health);
            let standing = match finish {
                Finish::Passed(..) => tenure.cell.standing(now),
                // Before anything is sent: from here on nobody in this process holds it.
                _ => tenure.cell.end(now),
            };
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
    fn after_loss(&self, tenure: &Arc<Tenure>, standing: Standing) {
        if let Standing::Lost(cause) = standing {
            self.deregister(tenure);
            tenure.announce(cause);
            if cause == LostCause::Expired {
                let ttl = tenure.ttl(self.now());
                self.clean_up(&tenure.entry, tenure.leftover(), ttl);
            }
        }
    }

    fn deregister(&self, tenure: &Arc<Tenure>) {
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
            Some(slot) => slot.send(Signal::Delegate(None)),
            None => self.names.retire(entry),
        }
    }

    /// Sends the release of a name's tenure; then who waits here may ask. As [`Engine::send_ending`].
    fn run_ending(&self, entry: &Arc<Entry>, ending: Ending) -> Result<Option<Gone>, Failure> {
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
            let next = match self.call(entry.kind, &entry.key, ending.verb(), limits) {
                Ok(answer) => ending.replied(self.now(), &answer.reply, answer.resent),
                Err(failure) => {
                    ending.failed(self.now(), &*self.chance);
                    self.end_in_background(entry, ending, false);
                    return Err(failure);
                }
            };
            match next {
                Next::Send => {}
                Next::Later(_) => {
                    let gone = ending.gone();
                    self.end_in_background(entry, ending, false);
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

    /// Gives an ending to the renewal thread. `releases`: the name's queue waits for its first request.
    pub(crate) fn end_in_background(&self, entry: &Arc<Entry>, ending: Ending, releases: bool) {
        self.renewal.end(self, entry, ending, releases);
    }
}
