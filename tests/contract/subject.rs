//! Locks of every kind behind one interface, so that one test covers all kinds.

use std::slice;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use leasehold::{
    Error, Lease, Lock, LockGuard, Lost, MultiGuard, Permit, Ran, ReadGuard, ReentrantGuard,
    Result, Semaphore, WriteGuard,
};

use crate::world::{Flag, Locks, World, locked};

/// A kind of lock, with the number of units that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    Reentrant,
    Reader,
    Writer,
    /// One permit of one.
    OnlyPermit,
    /// One permit of three.
    Permit,
    /// Two permits of three. They keep out another owner that wants two.
    Permits,
    /// Three permits of three. They keep out an owner that wants one.
    AllPermits,
    /// A multi-lock of three names.
    Multi,
    /// A mutex without fences.
    Unfenced,
}

impl Kind {
    pub(crate) const NAMES: [(Self, &str); 10] = [
        (Self::Mutex, "mutex"),
        (Self::Reentrant, "reentrant"),
        (Self::Reader, "reader"),
        (Self::Writer, "writer"),
        (Self::OnlyPermit, "only_permit"),
        (Self::Permit, "permit"),
        (Self::Permits, "permits"),
        (Self::AllPermits, "all_permits"),
        (Self::Multi, "multi"),
        (Self::Unfenced, "unfenced"),
    ];

    pub(crate) fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(kind, _)| *kind == self);
        found.expect("each has a name").1
    }

    /// Returns the first of the kinds that may use one name at the same time.
    pub(crate) fn family(self) -> Self {
        match self {
            Self::Mutex | Self::Reentrant | Self::Multi | Self::Unfenced => Self::Mutex,
            Self::Reader | Self::Writer => Self::Reader,
            Self::OnlyPermit | Self::Permit | Self::Permits | Self::AllPermits => Self::Permit,
        }
    }

    /// Returns the kind that excludes this one.
    pub(crate) fn rival(self) -> Self {
        match self {
            Self::Reader => Self::Writer,
            Self::Permit => Self::AllPermits,
            itself => itself,
        }
    }

    /// Returns a kind that leaves room for just one guard of this kind, if several guards of this kind have room.
    pub(crate) fn crowd(self) -> Option<Self> {
        (self == Self::Permit).then_some(Self::Permits)
    }

    /// Returns whether guards have fences.
    pub(crate) fn has_fences(self) -> bool {
        self != Self::Unfenced
    }

    /// Returns whether two guards that held the lock one after the other may have these fences.
    pub(crate) fn rises(self, earlier: u64, later: u64) -> bool {
        if self.has_fences() {
            earlier < later
        } else {
            (earlier, later) == (0, 0)
        }
    }

    /// Returns the keys of a lock of this name. The first is its name. They have one slot, so one request has them all,
    /// unless the name has braces or comes after them.
    pub(crate) fn keys(self, name: &str) -> Vec<String> {
        let has_tag = !name.contains(['{', '}']) && name < "{";
        match self {
            Self::Multi if has_tag => [
                name.to_owned(),
                format!("{{{name}}}:2"),
                format!("{{{name}}}:3"),
            ]
            .into(),
            Self::Multi => ["", ":2", ":3"].map(|end| format!("{name}{end}")).into(),
            _ => vec![name.to_owned()],
        }
    }

    /// Returns a lock of this kind for one manager.
    pub(crate) fn of(self, locks: &Locks, name: &str) -> Subject {
        Subject {
            kind: self,
            locks: locks.clone(),
            name: name.to_owned(),
            lease: None,
            renew: true,
            max_hold: None,
            min_hold: Duration::ZERO,
        }
    }
}

/// Code that is generic over the kind of lock. A closure cannot be generic.
pub(crate) trait WithLock {
    type Output;

    fn call<L: Lock>(self, lock: &L) -> Self::Output;
}

/// A lock of any kind for one manager, and the options of its handle.
#[derive(Clone)]
pub(crate) struct Subject {
    kind: Kind,
    locks: Locks,
    name: String,
    lease: Option<Duration>,
    renew: bool,
    max_hold: Option<Duration>,
    min_hold: Duration,
}

#[derive(Clone, Copy)]
enum Wait {
    Until(Instant),
    Endless,
    For(Duration),
    Not,
}

/// Makes a handle with the options of the subject.
macro_rules! with_options {
    ($subject:expr, $handle:expr) => {{
        let handle = $handle.renew($subject.renew).max_hold($subject.max_hold);
        let handle = handle.min_hold($subject.min_hold);
        match $subject.lease {
            Some(lease) => handle.lease(lease),
            None => handle,
        }
    }};
}

/// Makes such a handle, and locks it in one of three ways.
macro_rules! acquire {
    ($subject:expr, $wait:expr, $guard:path,
     $handle:expr, $lock:ident, $try_lock:ident, $try_lock_for:ident, $try_lock_until:ident
     $(, $many:expr)?) => {{
        let handle = with_options!($subject, $handle);
        match $wait {
            Wait::Endless => handle.$lock($($many)?).map(Some),
            Wait::Not => handle.$try_lock($($many)?),
            Wait::For(wait) => handle.$try_lock_for($($many,)? wait),
            Wait::Until(deadline) => handle.$try_lock_until($($many,)? deadline),
        }
        .map(|guard| guard.map($guard))
    }};
}

impl Subject {
    pub(crate) fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    pub(crate) fn unrenewed(mut self) -> Self {
        self.renew = false;
        self
    }

    pub(crate) fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    pub(crate) fn min_hold(mut self, length: Duration) -> Self {
        self.min_hold = length;
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn lock(&self) -> Result<Guard> {
        let guard = self.acquire(Wait::Endless)?;
        Ok(guard.expect("a wait without an end ends with a guard"))
    }

    pub(crate) fn try_lock(&self) -> Result<Option<Guard>> {
        self.acquire(Wait::Not)
    }

    pub(crate) fn try_lock_for(&self, wait: Duration) -> Result<Option<Guard>> {
        self.acquire(Wait::For(wait))
    }

    pub(crate) fn try_lock_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        self.acquire(Wait::Until(deadline))
    }

    /// Runs `f` under the lock.
    pub(crate) fn with<T>(&self, wait: Duration, f: impl FnOnce(&[Lease]) -> T) -> Result<T> {
        let (locks, name) = (&self.locks, &self.name);
        if self.kind == Kind::Multi {
            return with_options!(self, locks.multi(self.kind.keys(name))).with(wait, f);
        }
        let one = |lease: &Lease| f(slice::from_ref(lease));
        match self.kind {
            Kind::Mutex => with_options!(self, locks.mutex(name)).with(wait, one),
            Kind::Unfenced => with_options!(self, locks.mutex(name).fencing(false)).with(wait, one),
            Kind::Reentrant => with_options!(self, locks.reentrant_mutex(name)).with(wait, one),
            Kind::Reader => with_options!(self, locks.rwlock(name)).with_read(wait, one),
            Kind::Writer => with_options!(self, locks.rwlock(name)).with_write(wait, one),
            Kind::OnlyPermit | Kind::Permit => {
                with_options!(self, self.semaphore()).with_permit(wait, one)
            }
            Kind::Permits | Kind::AllPermits => {
                with_options!(self, self.semaphore()).with_permits(self.many(), wait, one)
            }
            Kind::Multi => unreachable!("its closure takes several leases"),
        }
    }

    /// Runs `f` under the lock, and returns its result beside the loss.
    pub(crate) fn run<T>(&self, wait: Duration, f: impl FnOnce(&[Lease]) -> T) -> Result<Ran<T>> {
        let (locks, name) = (&self.locks, &self.name);
        if self.kind == Kind::Multi {
            return with_options!(self, locks.multi(self.kind.keys(name))).run(wait, f);
        }
        let one = |lease: &Lease| f(slice::from_ref(lease));
        match self.kind {
            Kind::Mutex => with_options!(self, locks.mutex(name)).run(wait, one),
            Kind::Unfenced => with_options!(self, locks.mutex(name).fencing(false)).run(wait, one),
            Kind::Reentrant => with_options!(self, locks.reentrant_mutex(name)).run(wait, one),
            Kind::Reader => with_options!(self, locks.rwlock(name)).run_read(wait, one),
            Kind::Writer => with_options!(self, locks.rwlock(name)).run_write(wait, one),
            Kind::OnlyPermit | Kind::Permit => {
                with_options!(self, self.semaphore()).run_permit(wait, one)
            }
            Kind::Permits | Kind::AllPermits => {
                with_options!(self, self.semaphore()).run_permits(self.many(), wait, one)
            }
            Kind::Multi => unreachable!("its closure takes several leases"),
        }
    }

    /// Calls code that is generic over the kind of lock.
    pub(crate) fn as_lock<C: WithLock>(&self, code: C) -> C::Output {
        let (locks, name) = (&self.locks, &self.name);
        match self.kind {
            Kind::Mutex => code.call(&with_options!(self, locks.mutex(name))),
            Kind::Unfenced => code.call(&with_options!(self, locks.mutex(name).fencing(false))),
            Kind::Reentrant => code.call(&with_options!(self, locks.reentrant_mutex(name))),
            Kind::Reader => code.call(&with_options!(self, locks.rwlock(name)).reader()),
            Kind::Writer => code.call(&with_options!(self, locks.rwlock(name)).writer()),
            Kind::OnlyPermit | Kind::Permit | Kind::Permits | Kind::AllPermits => {
                code.call(&with_options!(self, self.semaphore()).permits(self.many()))
            }
            Kind::Multi => code.call(&with_options!(self, locks.multi(self.kind.keys(name)))),
        }
    }

    fn semaphore(&self) -> Semaphore {
        let permits = if self.kind == Kind::OnlyPermit { 1 } else { 3 };
        self.locks.semaphore(&self.name, permits)
    }

    /// Returns the number of permits that a guard of this kind has.
    fn many(&self) -> u32 {
        match self.kind {
            Kind::Permits => 2,
            Kind::AllPermits => 3,
            _ => 1,
        }
    }

    /// Locks on a thread, which keeps the guard until the test releases it. Returns when the thread holds the
    /// lock.
    #[track_caller]
    pub(crate) fn hold(&self) -> Holder {
        let holder = self.locking();
        holder.locked();
        holder
    }

    /// Does the same, but returns at once.
    #[track_caller]
    pub(crate) fn locking(&self) -> Holder {
        Holder::start(self.clone())
    }

    /// Does the same, but returns when the thread waits.
    #[track_caller]
    pub(crate) fn locking_asleep(&self) -> Holder {
        let before = self.locks.stats().waiting;
        let holder = self.locking();
        let waits = || self.locks.stats().waiting > before;
        self.locks.world().until("the thread waits", waits);
        holder
    }

    fn acquire(&self, wait: Wait) -> Result<Option<Guard>> {
        let (locks, name) = (&self.locks, &self.name);
        let permits = |of| locks.semaphore(name, of);
        match self.kind {
            Kind::Mutex => acquire!(
                self,
                wait,
                Guard::Mutex,
                locks.mutex(name),
                lock,
                try_lock,
                try_lock_for,
                try_lock_until
            ),
            Kind::Unfenced => acquire!(
                self,
                wait,
                Guard::Mutex,
                locks.mutex(name).fencing(false),
                lock,
                try_lock,
                try_lock_for,
                try_lock_until
            ),
            Kind::Reentrant => acquire!(
                self,
                wait,
                Guard::Reentrant,
                locks.reentrant_mutex(name),
                lock,
                try_lock,
                try_lock_for,
                try_lock_until
            ),
            Kind::Reader => acquire!(
                self,
                wait,
                Guard::Reader,
                locks.rwlock(name),
                read,
                try_read,
                try_read_for,
                try_read_until
            ),
            Kind::Writer => acquire!(
                self,
                wait,
                Guard::Writer,
                locks.rwlock(name),
                write,
                try_write,
                try_write_for,
                try_write_until
            ),
            Kind::OnlyPermit | Kind::Permit => acquire!(
                self,
                wait,
                Guard::Permit,
                permits(if self.kind == Kind::Permit { 3 } else { 1 }),
                acquire,
                try_acquire,
                try_acquire_for,
                try_acquire_until
            ),
            Kind::Permits | Kind::AllPermits => acquire!(
                self,
                wait,
                Guard::Permit,
                permits(3),
                acquire_many,
                try_acquire_many,
                try_acquire_many_for,
                try_acquire_many_until,
                if self.kind == Kind::Permits { 2 } else { 3 }
            ),
            Kind::Multi => acquire!(
                self,
                wait,
                Guard::Multi,
                // The order of the names does not matter.
                locks.multi(self.kind.keys(name).iter().rev()),
                lock,
                try_lock,
                try_lock_for,
                try_lock_until
            ),
        }
    }
}

/// A guard of any kind. It is not `Send`, because one of the kinds is not.
#[derive(Debug)]
pub(crate) enum Guard {
    Mutex(LockGuard),
    Reentrant(ReentrantGuard),
    Reader(ReadGuard),
    Writer(WriteGuard),
    Permit(Permit),
    Multi(MultiGuard),
}

impl Guard {
    /// Returns the lease of each name.
    pub(crate) fn leases(&self) -> &[Lease] {
        match self {
            Self::Mutex(guard) => slice::from_ref(guard),
            Self::Reentrant(guard) => slice::from_ref(guard),
            Self::Reader(guard) => slice::from_ref(guard),
            Self::Writer(guard) => slice::from_ref(guard),
            Self::Permit(guard) => slice::from_ref(guard),
            Self::Multi(guard) => guard.leases(),
        }
    }

    /// Returns the lease of the first name. All names share one deadline.
    pub(crate) fn lease(&self) -> &Lease {
        &self.leases()[0]
    }

    pub(crate) fn fence(&self) -> u64 {
        self.lease().fence()
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Multi(guard) => guard.check(),
            _ => self.lease().check(),
        }
    }

    pub(crate) fn on_lost(&self) -> Receiver<Lost> {
        match self {
            Self::Multi(guard) => guard.on_lost(),
            _ => self.lease().on_lost(),
        }
    }

    pub(crate) fn release(self) -> Result<()> {
        match self {
            Self::Mutex(guard) => guard.release(),
            Self::Reentrant(guard) => guard.release(),
            Self::Reader(guard) => guard.release(),
            Self::Writer(guard) => guard.release(),
            Self::Permit(guard) => guard.release(),
            Self::Multi(guard) => guard.release(),
        }
    }
}

/// Returns the loss in a result that must be `Err(Lost)`.
#[track_caller]
pub(crate) fn lost<T: std::fmt::Debug>(result: Result<T>) -> Lost {
    match result {
        Err(Error::Lost(lost)) => lost,
        other => panic!("not lost: {other:?}"),
    }
}

/// A thread that locks, and keeps the guard until the test releases it or this is dropped.
pub(crate) struct Holder {
    state: Arc<Mutex<HolderState>>,
    release: Flag,
    world: World,
}

#[derive(Default)]
struct HolderState {
    /// The fence, or why there is none.
    locked: Option<Result<u64>>,
    /// When that was known.
    locked_at: Duration,
    released: Option<Result<()>>,
}

impl Holder {
    fn start(subject: Subject) -> Self {
        let world = subject.locks.world().clone();
        let (state, release) = (Arc::<Mutex<HolderState>>::default(), world.flag());
        let (told, told_to_release) = (Arc::clone(&state), release.clone());
        let (locks, clock) = (subject.locks.clone(), world.clone());
        locks.thread(move || {
            let guard = subject.lock();
            {
                let mut state = locked(&told);
                state.locked_at = clock.now();
                state.locked = Some(guard.as_ref().map(Guard::fence).map_err(Clone::clone));
            }
            if let Ok(guard) = guard {
                told_to_release.wait();
                let released = guard.release();
                locked(&told).released = Some(released);
            }
        });
        Self {
            state,
            release,
            world,
        }
    }

    /// Blocks until the call ends, and returns the fence or the error.
    #[track_caller]
    pub(crate) fn outcome(&self) -> Result<u64> {
        self.world.until("the call ends", || !self.waits());
        let mut state = locked(&self.state);
        let fence = state
            .locked
            .as_ref()
            .and_then(|it| it.as_ref().ok())
            .copied();
        match fence {
            Some(fence) => Ok(fence),
            None => state.locked.take().expect("the call has ended once"),
        }
    }

    /// Blocks until the thread holds the lock, and returns its fence.
    #[track_caller]
    pub(crate) fn locked(&self) -> u64 {
        self.outcome().expect("it becomes free")
    }

    /// Blocks until the thread holds the lock, and returns since when.
    #[track_caller]
    pub(crate) fn locked_at(&self) -> Duration {
        self.locked();
        locked(&self.state).locked_at
    }

    /// Returns whether the call still waits.
    pub(crate) fn waits(&self) -> bool {
        locked(&self.state).locked.is_none()
    }

    #[track_caller]
    pub(crate) fn release(self) {
        self.release.raise();
        self.world
            .until("it is released", || locked(&self.state).released.is_some());
        let released = locked(&self.state).released.take();
        released
            .expect("it was waited for")
            .expect("it was held until now");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.release.raise();
    }
}

/// Returns whether a call got no answer from its server, or from too few nodes.
pub(crate) fn is_unreachable(error: &Error) -> bool {
    matches!(error, Error::Unavailable { .. } | Error::NoQuorum { .. })
}
