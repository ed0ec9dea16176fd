//! The names in use, each with its queue of threads.
//!
//! | event | the entry of the name |
//! | --- | --- |
//! | a thread wants the name, and there is no entry | the thread makes it |
//! | the last thread or lease has left | the thread that notices retires it, and takes it out of the table |
//! | it was retired after a thread looked it up, and before that thread locked it | that thread looks the name up again |
//!
//! `L` is the type of a lease of this process. It is a parameter because a lease itself refers to the entry of its
//! name.

use hashbrown::HashTable;
use hashbrown::hash_table::OccupiedEntry;

use crate::clock::Time;
use crate::core::attempt::Attempt;
use crate::core::queue::{HeldLease, Queue, Turn};
use crate::error::Failure;
use crate::message::{LockKind, Request, Verb};
use crate::name::{self, Fingerprint, Target};
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, Thread, thread};

/// The number of shards: enough that threads with different names seldom lock the same shard.
const SHARDS: usize = 32;

/// All names in use by this engine. An entry has its own key, so each name takes up less memory than in a map.
pub(crate) struct Names<L> {
    shards: [Mutex<HashTable<Arc<Entry<L>>>>; SHARDS],
}

/// One name in use.
pub(crate) struct Entry<L> {
    pub(crate) kind: LockKind,
    pub(crate) target: Target,
    state: Mutex<State<L>>,
}

/// The state of one name, guarded by the mutex of its entry.
pub(crate) struct State<L> {
    pub(crate) queue: Queue<Arc<Mailbox<L>>, L>,
    /// The last replies and the pins, if there are any. Most names are only held, and have none.
    contention: Option<Box<ContentionInfo>>,
}

/// The last reply about a lock that this process does not hold.
#[derive(Clone, Debug, Default)]
pub(crate) enum LastReply {
    /// No reply yet, or none that may still be true.
    #[default]
    NoAnswer,
    /// This owner holds the lock.
    Held(Arc<str>),
    /// The request failed.
    Failed(Failure),
}

#[derive(Debug, Default)]
struct ContentionInfo {
    /// The last reply.
    last: LastReply,
    /// The time and the holder of the last reply that the lock is held.
    last_held: Option<(Time, Arc<str>)>,
    /// The number of [`pin`](Names::pin) calls without their [`unpin`](Names::unpin).
    pins: u32,
    /// The time of the last notice that `force_release` has removed an owner for which this process had no lease.
    forced_release: Option<Time>,
}

impl ContentionInfo {
    /// Returns whether the entry must stay in the table.
    fn is_kept(&self) -> bool {
        self.pins > 0
    }
}

/// The place where a waiting thread receives its signal.
pub(crate) struct Mailbox<L> {
    thread: Thread,
    /// Whether the signal was sent, so that a thread that wakes without one locks no mutex.
    ready: AtomicBool,
    signal: Mutex<Option<Signal<L>>>,
}

/// The message to a waiting thread that was taken out of the queue.
pub(crate) enum Signal<L> {
    /// The thread holds the lock, since this time.
    Turn(Turn<L>, Time),
    /// The thread is the delegate now. It continues this attempt, or begins one.
    Delegate(Option<Box<Attempt>>),
    /// The thread is the delegate now, because the try before it failed.
    AfterTry {
        /// Whether the attempt of the failed try counted as waiting.
        waits: bool,
    },
    /// The lock is held, and the thread only tried.
    Held,
    /// The request of the delegate failed.
    Failed(Failure),
    /// The manager is closed.
    Closed,
}

impl<L: HeldLease> Names<L> {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    fn shard(&self, fingerprint: Fingerprint) -> &Mutex<HashTable<Arc<Entry<L>>>> {
        &self.shards[fingerprint as usize % SHARDS]
    }

    /// Calls `act` with the locked entry of a name. Makes the entry if there is none.
    pub(crate) fn with<T>(
        &self,
        kind: LockKind,
        target: &Target,
        mut act: impl FnMut(&Arc<Entry<L>>, &mut State<L>) -> T,
    ) -> T {
        let fingerprint = target.fingerprint();
        let is_meant = |entry: &Arc<Entry<L>>| entry.is(kind, target.id());
        let hash_of = |entry: &Arc<Entry<L>>| hash(entry.target.fingerprint());
        loop {
            let entry = {
                let mut shard = self.shard(fingerprint).lock();
                let found = shard.entry(hash(fingerprint), is_meant, hash_of);
                let found = found.or_insert_with(|| Arc::new(Entry::new(kind, target.clone())));
                Arc::clone(found.get())
            };
            let mut state = entry.lock();
            if !state.queue.is_retired() {
                return act(&entry, &mut state);
            }
        }
    }

    /// Returns the entry of a name, if there is one. `id` is the text of [`Target::id`].
    pub(crate) fn find(&self, kind: LockKind, id: &str) -> Option<Arc<Entry<L>>> {
        let fingerprint = name::fingerprint(id);
        let shard = self.shard(fingerprint).lock();
        let found = shard.find(hash(fingerprint), |entry| entry.is(kind, id));
        found.cloned()
    }

    /// Returns the entry of a name, and keeps it in the table until [`unpin`](Names::unpin).
    pub(crate) fn pin(&self, kind: LockKind, target: &Target) -> Arc<Entry<L>> {
        self.with(kind, target, |entry, state| {
            state.contention.get_or_insert_default().pins += 1;
            Arc::clone(entry)
        })
    }

    /// Ends a [`pin`](Names::pin), and takes the entry out of the table if it is not in use.
    pub(crate) fn unpin(&self, entry: &Entry<L>) {
        if let Some(contention) = &mut entry.lock().contention {
            contention.pins -= 1;
        }
        self.retire(entry);
    }

    /// Takes the entry out of the table if it is not in use: no lease, no delegate, no waiting thread, no pin.
    pub(crate) fn retire(&self, entry: &Entry<L>) {
        let fingerprint = entry.target.fingerprint();
        let mut shard = self.shard(fingerprint).lock();
        let mut state = entry.lock();
        if state.is_idle() && !state.queue.is_retired() {
            state.queue.retire();
            let found = shard.find_entry(hash(fingerprint), |other| other.is_of(entry));
            found.map(OccupiedEntry::remove).ok();
        }
    }

    /// Returns the entries of all names in use.
    pub(crate) fn all(&self) -> Vec<Arc<Entry<L>>> {
        self.shards
            .iter()
            .flat_map(|shard| {
                let shard = shard.lock();
                shard.iter().cloned().collect::<Vec<_>>()
            })
            .collect()
    }
}

impl<L: HeldLease> Entry<L> {
    fn new(kind: LockKind, target: Target) -> Self {
        Self {
            kind,
            target,
            state: Mutex::new(State {
                queue: Queue::new(kind.sharing()),
                contention: None,
            }),
        }
    }
}

impl<L> Entry<L> {
    /// Returns whether the entry has this identity: two kinds of lock have separate queues, even for the same name. `id` is
    /// the text of [`Target::id`].
    fn is(&self, kind: LockKind, id: &str) -> bool {
        self.kind == kind && **self.target.id() == *id
    }

    /// Returns the request `verb` for this lock.
    pub(crate) fn request<'a>(&'a self, verb: &'a Verb) -> Request<'a> {
        Request::Lock {
            kind: self.kind,
            target: &self.target,
            verb,
        }
    }

    /// Returns whether both are the same kind of lock on the same name.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.is(other.kind, other.target.id())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock()
    }
}

/// Returns the hash of an entry with this fingerprint. All entries of a shard share the bits that choose the shard, so the
/// hash leaves them out. The factor spreads the other bits, because a table reads the highest and the lowest ones.
fn hash(fingerprint: Fingerprint) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    u64::from(fingerprint / SHARDS as u32).wrapping_mul(FACTOR)
}

impl<L: HeldLease> State<L> {
    fn is_idle(&self) -> bool {
        self.queue.is_idle()
            && !self
                .contention
                .as_deref()
                .is_some_and(ContentionInfo::is_kept)
    }

    /// Returns the last reply about the lock.
    pub(crate) fn last(&self) -> &LastReply {
        self.contention
            .as_ref()
            .map_or(&LastReply::NoAnswer, |contention| &contention.last)
    }

    /// Forgets the last reply, because it may not be true any more.
    pub(crate) fn forget_last_reply(&mut self) {
        if let Some(contention) = &mut self.contention {
            contention.last = LastReply::NoAnswer;
        }
    }

    pub(crate) fn note_last_reply(&mut self, last: LastReply) {
        self.contention.get_or_insert_default().last = last;
    }

    /// Notes the reply, at `now`, that this owner holds the lock.
    pub(crate) fn note_held(&mut self, now: Time, holder: &Arc<str>) {
        let contention = self.contention.get_or_insert_default();
        contention.last = LastReply::Held(Arc::clone(holder));
        contention.last_held = Some((now, Arc::clone(holder)));
    }

    /// Notes, at `now`, that `force_release` has removed an owner for which this process has no lease. Does nothing if no
    /// grant of this name can be on its way: no delegate asks, and no thread has pinned the entry to adopt or downgrade. The
    /// message does not name the lock, so the owner may belong to another name.
    pub(crate) fn note_forced_release(&mut self, now: Time) {
        let contention = self.contention.as_deref();
        if self.queue.is_asking() || contention.is_some_and(ContentionInfo::is_kept) {
            self.contention.get_or_insert_default().forced_release = Some(now);
        }
    }

    /// Returns whether the lease that begins now, and was asked for at `sent`, may have been released by force already.
    pub(crate) fn may_have_been_released_by_force(&self, sent: Time) -> bool {
        let last = self
            .contention
            .as_deref()
            .and_then(|contention| contention.forced_release);
        last.is_some_and(|noted| noted >= sent)
    }

    /// Forgets all replies, because this process holds the lock now and no thread waits.
    pub(crate) fn forget_contention(&mut self) {
        self.contention.take_if(|contention| !contention.is_kept());
    }

    /// Returns the holder of the last "held" reply, if that reply came at `since` or later.
    pub(crate) fn holder_since(&self, since: Time) -> Option<Arc<str>> {
        let (at, holder) = self.contention.as_ref()?.last_held.as_ref()?;
        (*at >= since).then(|| Arc::clone(holder))
    }

    /// Returns the holder of the lock, as far as this process knows. `owner` returns the owner of a lease of this
    /// process.
    pub(crate) fn holder(&self, owner: impl FnOnce(&L) -> Arc<str>) -> Option<Arc<str>> {
        match (self.queue.process_lease(), self.last()) {
            (Some(lease), _) => Some(owner(lease)),
            (None, LastReply::Held(holder)) => Some(Arc::clone(holder)),
            (None, _) => None,
        }
    }
}

impl<L> Mailbox<L> {
    /// Makes a slot for the calling thread.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            thread: thread::current(),
            ready: AtomicBool::new(false),
            signal: Mutex::new(None),
        })
    }

    /// Sends the signal and unparks the thread. The thread that took the slot out of the queue must call this, once.
    pub(crate) fn send(&self, signal: Signal<L>) {
        *self.signal.lock() = Some(signal);
        self.ready.store(true, Ordering::Release);
        self.thread.unpark();
    }

    /// Returns the signal, if it was sent.
    pub(crate) fn take(&self) -> Option<Signal<L>> {
        if !self.ready.load(Ordering::Acquire) {
            return None;
        }
        self.signal.lock().take()
    }
}
