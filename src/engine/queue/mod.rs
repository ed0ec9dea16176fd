//! The threads of this process that want one name, and the table of the names in use.
//!
//! Three threads of a process lock `orders:42`. The first one makes the entry of the name, and is the *delegate*, which asks
//! Redis. The other two sleep in the queue. When the first one drops its guard, the second one gets the same lease in memory,
//! without a request, and then the third: until the quantum is over, or something casts doubt on the lease. Then the next
//! thread is the delegate, and asks Redis, so that other processes get their turn. The last thread that leaves takes the entry
//! out of the table.
//!
//! | module | its subject |
//! | --- | --- |
//! | [`rules`] | the queue of a name: which thread asks Redis, which ones wait, and which one gets the lease next |
//! | [`quantum`] | for how long threads hand a lock on in memory |
//!
//! | event | the entry of the name |
//! | --- | --- |
//! | a thread wants the name, and there is no entry | the thread makes it |
//! | the last thread or lease has left | the thread that notices retires it, and takes it out of the table |
//! | it was retired after a thread looked it up, and before that thread locked it | that thread looks the name up again |

pub(crate) mod quantum;
pub(crate) mod rules;

use std::mem;
use std::time::Duration;

use hashbrown::HashTable;
use hashbrown::hash_table::OccupiedEntry;

use crate::engine::attempt::Attempt;
use crate::engine::lease::process_lease::{Hold, ProcessLease};
use crate::error::Failure;
use crate::name::{Fingerprint, Target};
use crate::owner::Owner;
use crate::sys::thread::Parker;
use crate::sys::{Arc, Mutex, MutexGuard, Time};
use crate::wire::{LockId, LockKind};

use rules::Queue;

/// The number of shards: enough that threads with different names seldom lock the same shard.
const SHARDS: usize = 32;

/// All names in use by this engine. An entry has its own key, so each name takes up less memory than in a map.
pub(crate) struct Names {
    shards: [Mutex<HashTable<Arc<Entry>>>; SHARDS],
}

/// One name in use.
pub(crate) struct Entry {
    pub(crate) kind: LockKind,
    pub(crate) target: Target,
    state: Mutex<NameState>,
}

/// The state of one name, guarded by the mutex of its entry.
pub(crate) struct NameState {
    pub(crate) queue: Queue<Arc<WaitingThread>, Arc<ProcessLease>>,
    /// Most names are only held, and have none.
    notes: Option<Box<Notes>>,
}

/// The memory of a name beside its queue.
#[derive(Debug, Default)]
struct Notes {
    last: LastReply,
    /// The number of [`Names::pin`] calls without their [`Names::unpin`].
    pins: u32,
    /// The time of the last notice that `force_release` has removed an owner for which this process had no lease.
    forced_release: Option<Time>,
    /// The time of the last warning of a long wait.
    warned_of_wait: Option<Time>,
}

/// The last reply about a lock that this process does not hold.
#[derive(Debug, Default)]
pub(crate) enum LastReply {
    /// No reply yet, or none that may still be true.
    #[default]
    NoAnswer,
    /// This owner holds the lock.
    Held(Arc<str>),
    /// The same until this time. It may have lost the lock since. A wait that had begun by then may still end with this reply.
    WasHeld(Time, Arc<str>),
    /// The request failed.
    Failed(Failure),
}

/// A thread that waits in the queue of a name, and the signal to it.
pub(crate) struct WaitingThread {
    /// Where the thread sleeps.
    pub(crate) parker: Arc<Parker>,
    /// The tail of its owners.
    pub(crate) tail: Arc<str>,
    signal: Mutex<Option<Signal>>,
}

/// The message to a thread that was taken out of the queue.
pub(crate) enum Signal {
    Hold(Hold),
    /// The thread is the delegate now. It continues this attempt, and is counted as busy already.
    Delegate(Box<Attempt>),
    /// The thread is the delegate now, and begins an attempt. `has_waited`: its wait has begun, so failures are waited out. Not
    /// so behind a try that has failed without an answer.
    Ask {
        has_waited: bool,
    },
    /// The lock is held, and the thread only tried.
    Held,
    /// The request of the delegate failed.
    Failed(Failure),
    /// The manager is closed.
    Closed,
}

impl Names {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Calls `act` with the locked entry of a name. Makes the entry if there is none.
    pub(crate) fn with<T>(
        &self,
        kind: LockKind,
        target: &Target,
        mut act: impl FnMut(&Arc<Entry>, &mut NameState) -> T,
    ) -> T {
        let fingerprint = target.fingerprint();
        let is_meant = |entry: &Arc<Entry>| entry.is(kind, target);
        let hash_of = |entry: &Arc<Entry>| hash(entry.target.fingerprint());
        loop {
            let entry = {
                let mut shard = self.shards[fingerprint as usize % SHARDS].lock();
                let found = shard.entry(hash(fingerprint), is_meant, hash_of);
                let found = found.or_insert_with(|| {
                    Arc::new(Entry {
                        kind,
                        target: target.clone(),
                        state: Mutex::new(NameState {
                            queue: Queue::new(kind.sharing()),
                            notes: None,
                        }),
                    })
                });
                Arc::clone(found.get())
            };
            let mut state = entry.lock();
            if !state.queue.is_retired() {
                return act(&entry, &mut state);
            }
        }
    }

    /// Returns the entry of a name, and keeps it in the table until [`unpin`](Names::unpin).
    pub(crate) fn pin(&self, kind: LockKind, target: &Target) -> Arc<Entry> {
        self.with(kind, target, |entry, state| {
            state.notes().pins += 1;
            Arc::clone(entry)
        })
    }

    /// Ends a [`pin`](Names::pin).
    pub(crate) fn unpin(&self, entry: &Entry) {
        self.leave(entry, |state| state.notes().pins -= 1);
    }

    /// Calls `act` with the locked entry. Then takes the entry out of the table if it is not in use: no lease, no delegate, no
    /// waiting thread, no pin.
    pub(crate) fn leave<T>(&self, entry: &Entry, act: impl FnOnce(&mut NameState) -> T) -> T {
        let fingerprint = entry.target.fingerprint();
        let mut shard = self.shards[fingerprint as usize % SHARDS].lock();
        let mut state = entry.lock();
        let result = act(&mut state);
        if state.queue.is_unused() && !state.is_pinned() && !state.queue.is_retired() {
            state.queue.retire();
            let is_it = |other: &Arc<Entry>| other.is(entry.kind, &entry.target);
            let found = shard.find_entry(hash(fingerprint), is_it);
            found.map(OccupiedEntry::remove).ok();
        }
        result
    }

    /// Returns the entries of all names in use.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.shards
            .iter()
            .flat_map(|shard| {
                let shard = shard.lock();
                shard.iter().cloned().collect::<Vec<_>>()
            })
            .collect()
    }
}

/// Returns the hash of an entry with this fingerprint. All entries of a shard share the bits that choose the shard, so the
/// hash leaves them out. The factor spreads the other bits, because a table reads the highest and the lowest ones.
fn hash(fingerprint: Fingerprint) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    u64::from(fingerprint / SHARDS as u32).wrapping_mul(FACTOR)
}

impl Entry {
    /// Two kinds of lock have separate queues, even for the same name.
    fn is(&self, kind: LockKind, target: &Target) -> bool {
        self.kind == kind && self.target.id() == target.id()
    }

    /// Returns the lock, as requests name it.
    pub(crate) fn id(&self) -> LockId<'_> {
        LockId {
            kind: self.kind,
            target: &self.target,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, NameState> {
        self.state.lock()
    }
}

impl NameState {
    fn notes(&mut self) -> &mut Notes {
        self.notes.get_or_insert_default()
    }

    fn is_pinned(&self) -> bool {
        self.notes.as_ref().is_some_and(|notes| notes.pins > 0)
    }

    /// Returns the lease of this owner.
    pub(crate) fn lease_of(&self, owner: &Owner) -> Option<&Arc<ProcessLease>> {
        let mut leases = self.queue.process_leases();
        leases.find(|lease| lease.owner == *owner)
    }

    /// Returns the last reply about the lock.
    pub(crate) fn last_reply(&self) -> &LastReply {
        let notes = self.notes.as_ref();
        notes.map_or(&LastReply::NoAnswer, |notes| &notes.last)
    }

    /// Notes that a request has failed. No answer before it counts any more.
    pub(crate) fn note_failed(&mut self, failure: Failure) {
        self.notes().last = LastReply::Failed(failure);
    }

    /// Notes that this owner holds the lock.
    pub(crate) fn note_held(&mut self, holder: Arc<str>) {
        self.notes().last = LastReply::Held(holder);
    }

    /// Notes that the last reply may not be true any more from `now` on.
    pub(crate) fn forget_last_reply(&mut self, now: Time) {
        if let Some(notes) = &mut self.notes {
            notes.last = match mem::take(&mut notes.last) {
                LastReply::Held(holder) => LastReply::WasHeld(now, holder),
                LastReply::WasHeld(at, holder) => LastReply::WasHeld(at, holder),
                LastReply::NoAnswer | LastReply::Failed(_) => LastReply::NoAnswer,
            };
        }
    }

    /// Notes, at `now`, that `force_release` has removed an owner for which this process has no lease. Does nothing if no
    /// grant of this name can be on its way: no delegate asks, and no thread has pinned the entry to adopt or downgrade. The
    /// message does not name the lock, so the owner may belong to another name.
    pub(crate) fn note_forced_release(&mut self, now: Time) {
        if self.queue.is_asking() || self.is_pinned() {
            self.notes().forced_release = Some(now);
        }
    }

    /// Returns whether the lease that begins now, and was asked for at `sent`, may have been released by force already.
    pub(crate) fn may_have_been_released_by_force(&self, sent: Time) -> bool {
        let noted = self.notes.as_ref().and_then(|notes| notes.forced_release);
        noted.is_some_and(|noted| noted >= sent)
    }

    /// Forgets all replies, because this process holds the lock from `now` on, unless threads wait: only a delegate for more of
    /// the lock needs them.
    pub(crate) fn forget_replies(&mut self, now: Time) {
        let is_used = self.queue.is_crowded() || self.is_pinned();
        self.notes.take_if(|_| !is_used);
        match &mut self.notes {
            // The kind has no other lease, so the lock is not as that reply said.
            Some(notes) if self.queue.process_lease().is_some() => notes.last = LastReply::NoAnswer,
            _ => self.forget_last_reply(now),
        }
    }

    /// Notes that a call warns of its long wait at `now`. Returns when it may do so, if another has within `limit`.
    pub(crate) fn begin_warning(&mut self, now: Time, limit: Duration) -> Result<(), Time> {
        let last = &mut self.notes().warned_of_wait;
        match *last {
            Some(last) if now < last + limit => Err(last + limit),
            _ => {
                *last = Some(now);
                Ok(())
            }
        }
    }
}

impl WaitingThread {
    /// Returns the calling thread, without a signal.
    pub(crate) fn new(tail: &Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            parker: Arc::default(),
            tail: Arc::clone(tail),
            signal: Mutex::new(None),
        })
    }

    /// Sends the signal and wakes the thread. The thread that took this one out of the queue must call this, once.
    pub(crate) fn send(&self, signal: Signal) {
        *self.signal.lock() = Some(signal);
        self.parker.wake();
    }

    /// Returns the signal, if it was sent.
    pub(crate) fn take(&self) -> Option<Signal> {
        self.signal.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_wait_for_one_name_warn_once_in_a_while() {
        let limit = Duration::from_secs(30);
        let first = Time::from_nanos(1 << 50);
        let next = first + limit;
        let mut state = NameState {
            queue: Queue::new(LockKind::Mutex.sharing()),
            notes: None,
        };
        assert_eq!(state.begin_warning(first, limit), Ok(()));
        let moment = Duration::from_nanos(1);
        for at in [first, first + moment, next - moment] {
            assert_eq!(state.begin_warning(at, limit), Err(next));
        }
        assert_eq!(state.begin_warning(next, limit), Ok(()));
    }
}
