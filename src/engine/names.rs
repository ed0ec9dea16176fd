//! The names in use: for each a queue of threads, for as long as anybody holds, asks or waits.
//!
//! A name's entry is made by the first thread that wants it and retired by the last that leaves it. A thread
//! that finds an entry retired between looking it up and locking it looks again.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::clock::Time;
use crate::core::attempt::Attempt;
use crate::core::queue::{Queue, Turn};
use crate::core::schedule::Place;
use crate::engine::tenure::Tenure;
use crate::error::Failure;
use crate::name::Target;
use crate::script::Kind;
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, Thread, thread};

/// Enough that threads on names of their own seldom meet.
const SHARDS: usize = 32;

type Id = (Kind, Arc<str>);

/// All names in use by this engine.
pub(crate) struct Names {
    hasher: RandomState,
    shards: [Mutex<HashMap<Id, Arc<Entry>>>; SHARDS],
}

/// One name in use.
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) target: Target,
    state: Mutex<State>,
}

/// Guarded by the entry's mutex.
pub(crate) struct State {
    pub(crate) queue: Queue<Arc<Slot>, Arc<Tenure>>,
    /// What this process was last told of the lock.
    pub(crate) last: Last,
    /// When and by whom it was last said to be held.
    pub(crate) last_held: Option<(Time, Arc<str>)>,
    /// The places of its releases that guards left to the renewal thread, until their first request is over.
    pub(crate) outgoing: Vec<Place>,
    /// How many keep the entry in the table for what they are about to do with it.
    pins: u32,
    /// Whether the entry has left the table.
    retired: bool,
}

/// The last thing known of a lock that this process does not hold.
#[derive(Debug)]
pub(crate) enum Last {
    NoAnswer,
    /// Held by this owner.
    Held(Arc<str>),
    Failed(Failure),
}

/// Where a parked thread is told what to do.
pub(crate) struct Slot {
    thread: Thread,
    ready: AtomicBool,
    signal: Mutex<Option<Signal>>,
}

/// What a parked thread is told.
pub(crate) enum Signal {
    /// It is its turn.
    Turn(Turn<Arc<Tenure>>),
    /// It is the delegate now, and carries on this attempt or begins one.
    Delegate(Option<Box<Attempt>>),
    /// The answer that it waited for: held.
    Held,
    Failed(Failure),
    Closed,
}

impl Names {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    fn shard(&self, id: &Id) -> &Mutex<HashMap<Id, Arc<Entry>>> {
        let hash = self.hasher.hash_one(id);
        // The low bits: the map inside uses the high ones.
        &self.shards[hash as usize % SHARDS]
    }

    /// Does something with the name's entry, locked; it is made where there is none.
    pub(crate) fn with<T>(
        &self,
        kind: Kind,
        target: &Target,
        mut act: impl FnMut(&Arc<Entry>, &mut State) -> T,
    ) -> T {
        let id = (kind, Arc::clone(target.id()));
        loop {
            let entry = {
                let mut shard = self.shard(&id).lock();
                let entry = shard
                    .entry(id.clone())
                    .or_insert_with(|| Arc::new(Entry::new(kind, target.clone())));
                Arc::clone(entry)
            };
            let mut state = entry.lock();
            if !state.retired {
                return act(&entry, &mut state);
            }
        }
    }

    /// The name's entry, kept in the table until [`unpin`](Names::unpin).
    pub(crate) fn pin(&self, kind: Kind, target: &Target) -> Arc<Entry> {
        self.with(kind, target, |entry, state| {
            state.pins += 1;
            Arc::clone(entry)
        })
    }

    pub(crate) fn unpin(&self, entry: &Entry) {
        entry.lock().pins -= 1;
        self.retire(entry);
    }

    /// Takes the entry out of the table if nobody wants it any more.
    pub(crate) fn retire(&self, entry: &Entry) {
        let id = (entry.kind, Arc::clone(entry.target.id()));
        let mut shard = self.shard(&id).lock();
        let mut state = entry.lock();
        if state.is_idle() && !state.retired {
            state.retired = true;
            shard.remove(&id);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>())
            .collect()
    }
}

impl Entry {
    fn new(kind: Kind, target: Target) -> Self {
        Self {
            kind,
            target,
            state: Mutex::new(State {
                queue: Queue::new(kind.sharing()),
                last: Last::NoAnswer,
                last_held: None,
                outgoing: Vec::new(),
                pins: 0,
                retired: false,
            }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.queue.is_idle() && self.outgoing.is_empty() && self.pins == 0
    }

    /// Who held the lock at the last answer, where there was one after `since`.
    pub(crate) fn holder_since(&self, since: Time) -> Option<Arc<str>> {
        let (at, holder) = self.last_held.as_ref()?;
        (*at >= since).then(|| Arc::clone(holder))
    }

    /// Who holds the lock, as far as this process knows.
    pub(crate) fn holder(&self) -> Option<Arc<str>> {
        match (self.queue.tenure(), &self.last) {
            (Some(tenure), _) => Some(Arc::clone(&tenure.owner)),
            (None, Last::Held(holder)) => Some(Arc::clone(holder)),
            (None, _) => None,
        }
    }
}

impl Slot {
    /// A slot of the calling thread.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            thread: thread::current(),
            ready: AtomicBool::new(false),
            signal: Mutex::new(None),
        })
    }

    /// Tells the thread what to do. Called once, by whoever took the slot out of the queue.
    pub(crate) fn send(&self, signal: Signal) {
        *self.signal.lock() = Some(signal);
        self.ready.store(true, Ordering::Release);
        self.thread.unpark();
    }

    /// What the thread was told, if it was.
    pub(crate) fn take(&self) -> Option<Signal> {
        if !self.ready.load(Ordering::Acquire) {
            return None;
        }
        self.signal.lock().take()
    }
}
