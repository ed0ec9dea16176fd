//! A lease of this process, from a grant to its end. The guards of its threads have it one after another, or share it.

use std::mem;
use std::time::Duration;

use crossbeam_channel::Sender;
use once_cell::race::OnceBox;

use crate::config::Terms;
use crate::engine::attempt::Grant;
use crate::engine::lease::rules::{AtomicLease, LeaseStatus};
use crate::engine::queue::Entry;
use crate::engine::queue::rules::{Health, HeldLease, HoldOf};
use crate::engine::timer_queue::at_risk_below;
use crate::error::{Lost, LostCause};
use crate::event::ReleaseRequest;
use crate::name::LockKey;
use crate::owner::Owner;
use crate::sys::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, Time};
use crate::wire::Renewed;
use crate::wire::lifetime::{sent_for, valid_until};

/// How many channels for requests a lease has. A further one replaces the oldest.
const MOST_REQUEST_LISTENERS: usize = 64;

/// A guard's part in a lease of this process.
pub(crate) type Hold = HoldOf<Arc<ProcessLease>>;

/// A lease of this process on one name; on several names for a multi-lock.
pub(crate) struct ProcessLease {
    /// The number of the lease, unique in its engine.
    pub(crate) number: u64,
    pub(crate) entry: Arc<Entry>,
    pub(crate) owner: Owner,
    /// The units of the lock that the lease has.
    pub(crate) units: u32,
    pub(crate) terms: Terms,
    /// The deadline of the lease, or how it ended.
    pub(crate) validity: AtomicLease,
    /// The first deadline of a lease that was granted by message, in nanoseconds; 0 for other leases. Until a renewal, the
    /// lease has this deadline, and lasts for the pickup window only.
    pickup_deadline_ns: u64,
    pickup_window_ms: u32,
    /// Whether Redis has answered that other processes wait for the lock.
    contended: AtomicBool,
    /// The time in the renewal thread's timer queue, in nanoseconds. Guarded by that queue's mutex.
    pub(crate) renewal_due_ns: AtomicU64,
    /// The time in the watch thread's timer queue, in nanoseconds. Guarded by that queue's mutex.
    pub(crate) watch_due_ns: AtomicU64,
    /// Whether its renewal was overdue when the watch thread last looked, which tells of that once.
    was_overdue: AtomicBool,
    /// Whether a release task was made for the keys that a lost lease may have left in Redis.
    is_cleaned_up: AtomicBool,
    /// The number for the next guard.
    pub(crate) guards: AtomicU32,
    /// Whether the metrics count the lease as at risk.
    #[cfg(feature = "metrics")]
    counted_at_risk: Mutex<bool>,
    /// Fields that most leases do not need. Those lock no mutex for them.
    cold: OnceBox<Mutex<ColdState>>,
}

impl HeldLease for Arc<ProcessLease> {
    fn number(&self) -> u64 {
        self.number
    }

    fn terms(&self) -> Terms {
        self.terms
    }

    fn units(&self) -> u32 {
        self.units
    }
}

impl ProcessLease {
    pub(crate) fn new(number: u64, tail: &str, entry: Arc<Entry>, grant: Grant) -> Self {
        let (terms, owner) = (grant.terms, Owner::new(&grant.owner, tail));
        let (rest, uncertain_until) = (grant.rest, grant.uncertain_until);
        // Note this time only if it is later than the end of this grant's own lease.
        let key_gone_at = grant
            .key_gone_at
            .filter(|until| *until > grant.sent + terms.lease());
        let process_lease = Self {
            number,
            entry,
            owner,
            units: grant.units,
            terms,
            validity: AtomicLease::new(grant.deadline),
            pickup_deadline_ns: grant.pickup_window.map_or(0, |_| grant.deadline.as_nanos()),
            // A window is at most twice as long as a time limit of a request, and shorter than the lease.
            pickup_window_ms: grant
                .pickup_window
                .map_or(0, |window| window.as_millis() as u32),
            contended: AtomicBool::new(grant.contended),
            renewal_due_ns: AtomicU64::new(0),
            watch_due_ns: AtomicU64::new(0),
            was_overdue: AtomicBool::new(false),
            is_cleaned_up: AtomicBool::new(false),
            guards: AtomicU32::new(0),
            #[cfg(feature = "metrics")]
            counted_at_risk: Mutex::default(),
            cold: OnceBox::new(),
        };
        if uncertain_until.is_some() || key_gone_at.is_some() || !rest.is_empty() {
            let mut cold = process_lease.cold();
            (cold.rest, cold.uncertain_until, cold.key_gone_at) =
                (rest, uncertain_until, key_gone_at);
        }
        process_lease
    }

    /// Returns the keys: one, or several for a multi-lock.
    pub(crate) fn keys(&self) -> &[LockKey] {
        self.entry.target.keys()
    }

    /// Returns the rare fields, locked. Makes them if there are none.
    fn cold(&self) -> MutexGuard<'_, ColdState> {
        self.cold.get_or_init(Box::default).lock()
    }

    /// Returns the rare fields, locked, if there are any.
    fn cold_if_any(&self) -> Option<MutexGuard<'_, ColdState>> {
        self.cold.get().map(Mutex::lock)
    }

    /// Returns the fences of a multi-lock's names after the first.
    pub(crate) fn further_fences(&self) -> Vec<u64> {
        self.cold_if_any()
            .map_or_else(Vec::new, |cold| cold.rest.clone())
    }

    /// Notes that an extension until then will be sent.
    pub(crate) fn note_extension(&self, until: Time) {
        let key_gone_at = &mut self.cold().key_gone_at;
        *key_gone_at = Some(until).max(*key_gone_at);
    }

    /// Makes Redis keep the lock until then at least, even after the last guard.
    pub(crate) fn note_min_hold(&self, until: Time) {
        let min_hold_until = &mut self.cold().min_hold_until;
        *min_hold_until = Some(until).max(*min_hold_until);
    }

    /// Makes Redis keep the lock no longer than its guards.
    pub(crate) fn forget_min_hold(&self) {
        self.cold().min_hold_until = None;
    }

    /// Returns the end of the longest `min_hold` of the guards, if that is after `now`.
    pub(crate) fn min_hold_until(&self, now: Time) -> Option<Time> {
        let until = self.cold_if_any()?.min_hold_until;
        until.filter(|until| *until > now)
    }

    /// Returns the time until which Redis may keep the key, if that may be longer than `terms` say.
    pub(crate) fn key_gone_at(&self) -> Option<Time> {
        self.cold_if_any()?.key_gone_at
    }

    /// Returns the time until which Redis may still execute an earlier request of this owner.
    pub(crate) fn uncertain_until(&self) -> Option<Time> {
        self.cold_if_any()?.uncertain_until
    }

    /// Notes that Redis may execute a commit of this owner later. So no other guard gets the lock under this owner, and a claim
    /// gets a new one.
    pub(crate) fn note_late_commit(&self, until: Time) {
        let mut cold = self.cold();
        cold.is_of_one_guard = true;
        cold.uncertain_until = Some(until).max(cold.uncertain_until);
    }

    /// Makes the lease go to no other guard in memory, so that its owner stands for one guard.
    pub(crate) fn keep_to_one_guard(&self) {
        self.cold().is_of_one_guard = true;
    }

    fn is_of_one_guard(&self) -> bool {
        self.cold_if_any().is_some_and(|cold| cold.is_of_one_guard)
    }

    /// Returns whether Redis has answered that other processes wait for the lock.
    pub(crate) fn is_contended(&self) -> bool {
        self.contended.load(Ordering::Relaxed)
    }

    /// Returns true for the first call: that caller must have the keys of the lost lease released.
    pub(crate) fn begin_clean_up(&self) -> bool {
        !self.is_cleaned_up.swap(true, Ordering::Relaxed)
    }

    /// Returns whether the lease is held at `now`, and may go to the next thread in memory.
    pub(crate) fn health(&self, now: Time) -> Health {
        match self.validity.status(now) {
            LeaseStatus::Live(left)
                if self.terms.renew
                    && !self.is_overdue(now, now + left)
                    && !self.is_extended(now)
                    && !self.is_of_one_guard() =>
            {
                Health::Good
            }
            LeaseStatus::Live(_) => Health::Poor,
            LeaseStatus::Ended | LeaseStatus::Lost(_) => Health::Lost,
        }
    }

    /// Returns whether Redis may keep the key for longer than `terms` say. If the process crashed with such a lease in
    /// the next thread, other processes would wait for that longer time.
    fn is_extended(&self, now: Time) -> bool {
        self.key_gone_at()
            .is_some_and(|until| until > now + self.terms.lease())
    }

    /// Returns whether Redis has confirmed the lease by a reply to a request that was sent after `then`.
    pub(crate) fn is_confirmed_after(&self, then: Time) -> bool {
        let cold = self.cold_if_any();
        if let Some(cold) = cold.filter(|cold| cold.key_gone_at.is_some()) {
            return cold.confirmed.is_some_and(|sent| sent > then);
        }
        let sent = |deadline| sent_for(deadline, self.confirmed_for(deadline));
        self.validity.deadline().is_some_and(|at| sent(at) > then)
    }

    /// Returns the length of the lease that Redis has confirmed, if it has this deadline.
    fn confirmed_for(&self, deadline: Time) -> Duration {
        if deadline.as_nanos() == self.pickup_deadline_ns {
            Duration::from_millis(self.pickup_window_ms.into())
        } else {
            self.terms.lease()
        }
    }

    /// Returns the length of the lease that Redis has confirmed last. A lease that has ended had its full length.
    pub(crate) fn confirmed_length(&self) -> Duration {
        let deadline = self.validity.deadline();
        deadline.map_or(self.terms.lease(), |deadline| self.confirmed_for(deadline))
    }

    /// Returns whether Redis keeps the lock only for the pickup window, so that a renewal must follow at once.
    pub(crate) fn is_in_pickup_window(&self) -> bool {
        let deadline = self.validity.deadline();
        deadline.is_some_and(|deadline| deadline.as_nanos() == self.pickup_deadline_ns)
    }

    /// Returns when a lease with this deadline is at risk, because its renewal is overdue.
    pub(crate) fn at_risk_from(&self, deadline: Time) -> Time {
        deadline - at_risk_below(self.confirmed_for(deadline))
    }

    /// Notes whether the renewal is overdue, for the watch thread. Returns whether that is new.
    pub(crate) fn note_risk(&self, is_overdue: bool) -> bool {
        self.was_overdue.swap(is_overdue, Ordering::Relaxed) != is_overdue
    }

    /// Returns whether the renewal of a lease with this deadline is overdue at `now`.
    pub(crate) fn is_overdue(&self, now: Time, deadline: Time) -> bool {
        self.terms.renew && self.at_risk_from(deadline) <= now
    }

    /// Returns the lease that a renewal asks for. For a lease without renewal that is zero: such a request only looks
    /// whether the lock is still held.
    pub(crate) fn renewed_for(&self) -> Duration {
        if self.terms.renew {
            self.terms.lease()
        } else {
            Duration::ZERO
        }
    }

    /// Applies the replies to a renewal for `lease` that was sent at `sent`, one reply for each key:
    ///
    /// | replies | the lease |
    /// | --- | --- |
    /// | one key is gone, or has another owner | is lost |
    /// | the server refused one key, or did not answer for it | keeps its deadline |
    /// | a quorum has voted | lasts as long as the votes, which may be shorter than before; must be retried unless a majority confirmed it |
    /// | all keys were renewed | gets a later deadline, unless it has ended or was lost before |
    ///
    /// Returns the status at `now`, and whether the lease ends earlier than before.
    pub(crate) fn renewed(
        &self,
        sent: Time,
        now: Time,
        lease: Duration,
        replies: &[Renewed],
    ) -> (LeaseStatus, bool) {
        // All keys of a lease have the same votes.
        let mut votes = None;
        for reply in replies {
            match reply {
                Renewed::Done { contended: false } | Renewed::Refused | Renewed::Unanswered => {}
                Renewed::Done { contended: true } => self.contended.store(true, Ordering::Relaxed),
                Renewed::Gone(gone) => {
                    self.validity.lose((*gone).into());
                }
                Renewed::Voted {
                    contended,
                    until,
                    version,
                    ..
                } => {
                    if *contended {
                        self.contended.store(true, Ordering::Relaxed);
                    }
                    votes = Some((*until, *version));
                }
            }
        }
        let mut ends_earlier = false;
        if let Some((until, version)) = votes {
            // Under the mutex, because a later vote may end the lease earlier.
            let mut cold = self.cold();
            if version > cold.votes_version {
                cold.votes_version = version;
                ends_earlier = self.validity.move_to(now, until);
            }
        }
        if !replies.iter().all(Renewed::is_confirmed) {
            return (self.validity.status(now), ends_earlier);
        }
        let cold = self.cold_if_any();
        if let Some(mut cold) = cold.filter(|cold| cold.key_gone_at.is_some()) {
            cold.confirmed = Some(sent).max(cold.confirmed);
        }
        let status = match votes {
            Some(_) => self.validity.status(now),
            // This changes nothing if the lease was lost.
            None => self.validity.renew(now, valid_until(sent, lease)),
        };
        (status, ends_earlier)
    }

    /// Counts the lease as at risk if it is at risk at `now`, and as not at risk otherwise.
    #[cfg(feature = "metrics")]
    pub(crate) fn export_risk(&self, now: Time, gauge: &crate::stats::exported::Gauge) {
        // The deadline is read under the mutex, so that the last call has the last word.
        let mut was_at_risk = self.counted_at_risk.lock();
        let deadline = self.validity.deadline();
        let is_at_risk = deadline.is_some_and(|deadline| self.is_overdue(now, deadline));
        if is_at_risk != *was_at_risk {
            *was_at_risk = is_at_risk;
            gauge.increment(if is_at_risk { 1 } else { -1 });
        }
    }

    /// Sends the loss to all channels. The caller must hold no mutex.
    pub(crate) fn announce(&self, cause: LostCause) {
        for listener in self.take_listeners(|_| true) {
            listener.notify(cause);
        }
        self.end_requests(None);
    }

    /// Adds a channel for the loss.
    pub(crate) fn enlist(&self, listener: LossListener) {
        self.cold().listeners.push(listener);
    }

    /// Removes and returns the channels for the loss of one guard. Ends its channels for requests.
    pub(crate) fn remove_listeners(&self, guard_number: u32) -> Vec<LossListener> {
        self.end_requests(Some(guard_number));
        self.take_listeners(|listener| listener.guard_number == guard_number)
    }

    /// Ends the channels of one guard for requests; of all guards without a number.
    pub(crate) fn end_requests(&self, guard_number: Option<u32>) {
        let others = |number| guard_number.is_some_and(|ended| ended != number);
        (self.cold().request_listeners).retain(|(number, _)| others(*number));
    }

    fn take_listeners(&self, is_meant: impl Fn(&LossListener) -> bool) -> Vec<LossListener> {
        // Makes the fields if there are none. A thread that enlists at the same time has the same mutex so, and learns of
        // the loss if it is the later one.
        let mut cold = self.cold();
        let all = mem::take(&mut cold.listeners).into_iter();
        let (taken, kept) = all.partition(is_meant);
        cold.listeners = kept;
        taken
    }

    /// Adds a channel for requests to release the lock. It receives the last request at once, if there was one.
    pub(crate) fn listen_to_requests(&self, guard_number: u32, sender: Sender<ReleaseRequest>) {
        let mut cold = self.cold();
        if let Some(request) = &cold.requested {
            sender.try_send(request.clone()).ok();
        }
        if cold.request_listeners.len() == MOST_REQUEST_LISTENERS {
            cold.request_listeners.remove(0);
        }
        cold.request_listeners.push((guard_number, sender));
    }

    /// Tells the channels of a request to release the lock. Returns false if it has come before: the nodes of a quorum all send
    /// it.
    pub(crate) fn note_request(&self, request: &ReleaseRequest) -> bool {
        let mut cold = self.cold();
        if cold.requested.as_ref() == Some(request) {
            return false;
        }
        cold.requested = Some(request.clone());
        for (_, sender) in &cold.request_listeners {
            // A program that does not read them needs no more of them.
            sender.try_send(request.clone()).ok();
        }
        true
    }
}

/// The fields of a lease that most leases do not need: the fences of a multi-lock, requests of unknown outcome, extensions,
/// and loss listeners. They are apart, so that a lease takes up little memory.
#[derive(Default)]
struct ColdState {
    /// The fences of a multi-lock's names after the first.
    rest: Vec<u64>,
    /// The time until which Redis may still execute an earlier request of this owner.
    uncertain_until: Option<Time>,
    /// Whether the lease goes to no other guard in memory.
    is_of_one_guard: bool,
    /// The time until which Redis may keep the key. It covers extensions without a reply, and requests of unknown
    /// outcome.
    key_gone_at: Option<Time>,
    /// The time at which the last confirmed renewal was sent. Noted from the first extension on. Before that, the
    /// deadline shows this time.
    confirmed: Option<Time>,
    /// The end of the longest `min_hold` of the guards. Redis keeps the lock until then, even after the last guard.
    min_hold_until: Option<Time>,
    /// The number of the last votes of a quorum that were applied.
    votes_version: u32,
    /// The channels that receive the loss.
    listeners: Vec<LossListener>,
    /// The last request to release the lock.
    requested: Option<ReleaseRequest>,
    /// The channels that receive such requests, each with the number of its guard.
    request_listeners: Vec<(u32, Sender<ReleaseRequest>)>,
}

/// A channel for the loss of one guard.
pub(crate) struct LossListener {
    pub(crate) guard_number: u32,
    pub(crate) sender: Sender<Lost>,
    /// The message. Its cause is a placeholder.
    pub(crate) lost: Lost,
}

impl LossListener {
    /// Sends the loss with its cause.
    pub(crate) fn notify(self, cause: LostCause) {
        // A full channel has the loss already. A channel without a receiver needs no message.
        self.sender.try_send(Lost { cause, ..self.lost }).ok();
    }
}
