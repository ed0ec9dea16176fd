//! The names in use: for each a queue of threads, for as long as anybody holds, asks or waits.
//!
//! A name's entry is made by the first thread that wants it and retired by the last that leaves it. A thread
//! that finds an entry retired between looking it up and locking it looks again.
//!
//! `L` stands for a lease of this process, which itself holds the entry of its name.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use crate::clock::Time;
use crate::core::attempt::Attempt;
use crate::core::queue::{HeldLease, Queue, Turn};
use crate::error::Failure;
use crate::message::{Call, Kind, Verb};
use crate::name::Target;
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, Thread, thread};

/// Enough that threads on names of their own seldom meet.
const SHARDS: usize = 32;

/// What tells one entry from another.
type Id<'a> = (Kind, &'a str);

/// All names in use by this engine.
pub(crate) struct Names<L> {
    hasher: RandomState,
    shards: [Mutex<HashSet<Named<L>>>; SHARDS],
}

/// An entry in the table, found by its identity: to hold that beside it would cost each name as much again.
struct Named<L>(Arc<Entry<L>>);

/// What has an identity: an entry, or what one is looked up by.
trait Identity {
    fn id(&self) -> Id<'_>;
}

impl<L> Identity for Named<L> {
    fn id(&self) -> Id<'_> {
        self.0.id()
    }
}

impl Identity for Id<'_> {
    fn id(&self) -> Id<'_> {
        *self
    }
}

impl PartialEq for dyn Identity + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for dyn Identity + '_ {}

impl Hash for dyn Identity + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl<L> PartialEq for Named<L> {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl<L> Eq for Named<L> {}

impl<L> Hash for Named<L> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl<'a, L: 'a> Borrow<dyn Identity + 'a> for Named<L> {
    fn borrow(&self) -> &(dyn Identity + 'a) {
        self
    }
}

/// One name in use.
pub(crate) struct Entry<L> {
    pub(crate) kind: Kind,
    pub(crate) target: Target,
    state: Mutex<State<L>>,
}

/// Guarded by the entry's mutex.
pub(crate) struct State<L> {
    pub(crate) queue: Queue<Arc<Slot<L>>, L>,
    /// What a name has only while somebody asks or waits: most are just held.
    contention: Option<Box<ContentionInfo>>,
}

/// The last thing known of a lock that this process does not hold.
#[derive(Clone, Debug, Default)]
pub(crate) enum Last {
    #[default]
    NoAnswer,
    /// Held by this owner.
    Held(Arc<str>),
    Failed(Failure),
}

#[derive(Debug, Default)]
struct ContentionInfo {
    /// What this process was last told of the lock.
    last: Last,
    /// When and by whom it was last said to be held.
    last_held: Option<(Time, Arc<str>)>,
    /// How many keep the entry in the table for what they are about to do with it.
    pins: u32,
}

impl ContentionInfo {
    /// Whether the entry must stay for it.
    fn is_kept(&self) -> bool {
        self.pins > 0
    }
}

/// Where a parked thread is told what to do.
pub(crate) struct Slot<L> {
    thread: Thread,
    ready: AtomicBool,
    signal: Mutex<Option<Signal<L>>>,
}

/// What a parked thread is told.
pub(crate) enum Signal<L> {
    /// It is its turn, from this time on.
    Turn(Turn<L>, Time),
    /// It is the delegate now, and carries on this attempt or begins one.
    Delegate(Option<Box<Attempt>>),
    /// It is the delegate now: the try before it failed. `waits`: a wait had begun.
    AfterTry {
        waits: bool,
    },
    /// The answer that it waited for: held.
    Held,
    Failed(Failure),
    Closed,
}

impl<L: HeldLease> Names<L> {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    fn shard(&self, id: Id<'_>) -> &Mutex<HashSet<Named<L>>> {
        let hash = self.hasher.hash_one(id);
        // The low bits: the map inside uses the high ones.
        &self.shards[hash as usize % SHARDS]
    }

    /// Does something with the name's entry, locked; it is made where there is none.
    pub(crate) fn with<T>(
        &self,
        kind: Kind,
        target: &Target,
        mut act: impl FnMut(&Arc<Entry<L>>, &mut State<L>) -> T,
    ) -> T {
        let id: Id<'_> = (kind, target.id());
        loop {
            let entry = {
                let mut shard = self.shard(id).lock();
                if let Some(Named(entry)) = shard.get(&id as &dyn Identity) {
                    Arc::clone(entry)
                } else {
                    let entry = Arc::new(Entry::new(kind, target.clone()));
                    shard.insert(Named(Arc::clone(&entry)));
                    entry
                }
            };
            let mut state = entry.lock();
            if !state.queue.is_retired() {
                return act(&entry, &mut state);
            }
        }
    }

    /// The name's entry, kept in the table until [`unpin`](Names::unpin).
    pub(crate) fn pin(&self, kind: Kind, target: &Target) -> Arc<Entry<L>> {
        self.with(kind, target, |entry, state| {
            state.contention.get_or_insert_default().pins += 1;
            Arc::clone(entry)
        })
    }

    pub(crate) fn unpin(&self, entry: &Entry<L>) {
        if let Some(contention) = &mut entry.lock().contention {
            contention.pins -= 1;
        }
        self.retire(entry);
    }

    /// Takes the entry out of the table if nobody wants it any more.
    pub(crate) fn retire(&self, entry: &Entry<L>) {
        let id = entry.id();
        let mut shard = self.shard(id).lock();
        let mut state = entry.lock();
        if state.is_idle() && !state.queue.is_retired() {
            state.queue.retire();
            shard.remove(&id as &dyn Identity);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry<L>>> {
        self.shards
            .iter()
            .flat_map(|shard| {
                let shard = shard.lock();
                let entries = shard.iter().map(|Named(entry)| Arc::clone(entry));
                entries.collect::<Vec<_>>()
            })
            .collect()
    }
}

impl<L: HeldLease> Entry<L> {
    fn new(kind: Kind, target: Target) -> Self {
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
    fn id(&self) -> Id<'_> {
        (self.kind, self.target.id())
    }

    /// Returns the request that asks `verb` of this lock.
    pub(crate) fn call<'a>(&'a self, verb: &'a Verb) -> Call<'a> {
        Call::Lock {
            kind: self.kind,
            target: &self.target,
            verb,
        }
    }

    /// Returns whether it is the same lock.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.id() == other.id()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock()
    }
}

impl<L: HeldLease> State<L> {
    fn is_idle(&self) -> bool {
        self.queue.is_idle()
            && !self
                .contention
                .as_deref()
                .is_some_and(ContentionInfo::is_kept)
    }

    /// What this process was last told of the lock.
    pub(crate) fn last(&self) -> &Last {
        self.contention
            .as_ref()
            .map_or(&Last::NoAnswer, |contention| &contention.last)
    }

    /// What was said before says nothing now.
    pub(crate) fn forget_last(&mut self) {
        if let Some(contention) = &mut self.contention {
            contention.last = Last::NoAnswer;
        }
    }

    pub(crate) fn note_last(&mut self, last: Last) {
        self.contention.get_or_insert_default().last = last;
    }

    /// It was said at `now` to be held by this owner.
    pub(crate) fn note_held(&mut self, now: Time, holder: &Arc<str>) {
        let contention = self.contention.get_or_insert_default();
        contention.last = Last::Held(Arc::clone(holder));
        contention.last_held = Some((now, Arc::clone(holder)));
    }

    /// It was granted and nobody waits, so all that was said of it is old.
    pub(crate) fn forget_contention(&mut self) {
        self.contention.take_if(|contention| !contention.is_kept());
    }

    /// Who held the lock at the last answer, where there was one after `since`.
    pub(crate) fn holder_since(&self, since: Time) -> Option<Arc<str>> {
        let (at, holder) = self.contention.as_ref()?.last_held.as_ref()?;
        (*at >= since).then(|| Arc::clone(holder))
    }

    /// Returns who holds the lock, as far as this process knows. `owner` gives the owner of a lease.
    pub(crate) fn holder(&self, owner: impl FnOnce(&L) -> Arc<str>) -> Option<Arc<str>> {
        match (self.queue.process_lease(), self.last()) {
            (Some(lease), _) => Some(owner(lease)),
            (None, Last::Held(holder)) => Some(Arc::clone(holder)),
            (None, _) => None,
        }
    }
}

impl<L> Slot<L> {
    /// A slot of the calling thread.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            thread: thread::current(),
            ready: AtomicBool::new(false),
            signal: Mutex::new(None),
        })
    }

    /// Tells the thread what to do. Called once, by whoever took the slot out of the queue.
    pub(crate) fn send(&self, signal: Signal<L>) {
        *self.signal.lock() = Some(signal);
        self.ready.store(true, Ordering::Release);
        self.thread.unpark();
    }

    /// What the thread was told, if it was.
    pub(crate) fn take(&self) -> Option<Signal<L>> {
        if !self.ready.load(Ordering::Acquire) {
            return None;
        }
        self.signal.lock().take()
    }
}
