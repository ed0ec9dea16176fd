//! Locks of every kind behind one interface, so that one test covers all kinds.

use std::borrow::Borrow;
use std::slice;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use leasehold::{
    Cancel, Lease, Lock, LockGuard, LockManager, Lost, MultiGuard, Permit, Ran, ReadGuard,
    ReentrantGuard, Reply, Result, Semaphore, Write, WriteGuard,
};

use super::threads;

/// A kind of lock, with the number of units that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    /// All kinds but [`Kind::Unfenced`], which is a mutex with another option.
    pub const ALL: [Self; 9] = [
        Self::Mutex,
        Self::Reentrant,
        Self::Reader,
        Self::Writer,
        Self::OnlyPermit,
        Self::Permit,
        Self::Permits,
        Self::AllPermits,
        Self::Multi,
    ];

    pub const NAMES: [(Self, &str); 10] = [
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

    pub fn named(name: &str) -> Self {
        let found = Self::NAMES.iter().find(|(_, own)| *own == name);
        found.expect("a kind").0
    }

    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(kind, _)| *kind == self);
        found.expect("each has a name").1
    }

    /// Returns the first of the kinds that may use one name at the same time.
    pub fn family(self) -> Self {
        match self {
            Self::Mutex | Self::Reentrant | Self::Multi | Self::Unfenced => Self::Mutex,
            Self::Reader | Self::Writer => Self::Reader,
            Self::OnlyPermit | Self::Permit | Self::Permits | Self::AllPermits => Self::Permit,
        }
    }

    /// Returns the kind that excludes this one.
    pub fn rival(self) -> Self {
        match self {
            Self::Reader => Self::Writer,
            Self::Permit => Self::AllPermits,
            itself => itself,
        }
    }

    /// Returns a kind that leaves room for just one guard of this kind, if several guards of this kind have room.
    pub fn crowd(self) -> Option<Self> {
        (self == Self::Permit).then_some(Self::Permits)
    }

    /// Returns whether guards have fences.
    pub fn has_fences(self) -> bool {
        self != Self::Unfenced
    }

    /// Returns whether two guards that held the lock one after the other may have these fences.
    pub fn rises(self, earlier: u64, later: u64) -> bool {
        if self.has_fences() {
            earlier < later
        } else {
            (earlier, later) == (0, 0)
        }
    }

    /// Returns the keys of a lock of this name. The first is its name. They have one slot, so one request has them all,
    /// unless the name has braces or comes after them.
    pub fn keys(self, name: &str) -> Vec<String> {
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
    pub fn of<L: Locks>(self, locks: &L, name: &str) -> Subject<L> {
        Subject {
            kind: self,
            locks: locks.clone(),
            name: name.to_owned(),
            lease: None,
            renew: true,
            max_hold: None,
            min_hold: Duration::ZERO,
            cancel: None,
        }
    }
}

/// Code that is generic over the kind of lock. A closure cannot be generic.
pub trait WithLock {
    type Output;

    fn call<L: Lock>(self, lock: &L) -> Self::Output;
}

/// A manager whose locks the threads of a test hold.
pub trait Locks: Borrow<LockManager> + Clone {
    /// A thread that locks, and keeps the guard until the test releases it.
    type Holder;

    /// Starts such a thread.
    fn locking(subject: Subject<Self>) -> Self::Holder;

    /// Does the same, and returns when the thread waits.
    fn locking_asleep(subject: Subject<Self>) -> Self::Holder;

    /// Blocks until the thread holds the lock.
    fn wait_until_locked(holder: &Self::Holder);
}

/// A lock of any kind for one manager, and the options of its handle.
#[derive(Clone)]
pub struct Subject<L = LockManager> {
    kind: Kind,
    locks: L,
    name: String,
    lease: Option<Duration>,
    renew: bool,
    max_hold: Option<Duration>,
    min_hold: Duration,
    cancel: Option<Cancel>,
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
        let handle = match &$subject.cancel {
            Some(token) => handle.cancel_with(token),
            None => handle,
        };
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

impl<L: Locks> Subject<L> {
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    pub fn unrenewed(mut self) -> Self {
        self.renew = false;
        self
    }

    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    pub fn min_hold(mut self, length: Duration) -> Self {
        self.min_hold = length;
        self
    }

    pub fn cancel_with(mut self, token: &Cancel) -> Self {
        self.cancel = Some(token.clone());
        self
    }

    pub fn locks(&self) -> &L {
        &self.locks
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn lock(&self) -> Result<Guard> {
        let guard = self.acquire(Wait::Endless)?;
        Ok(guard.expect("a wait without an end ends with a guard"))
    }

    pub fn try_lock(&self) -> Result<Option<Guard>> {
        self.acquire(Wait::Not)
    }

    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<Guard>> {
        self.acquire(Wait::For(wait))
    }

    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        self.acquire(Wait::Until(deadline))
    }

    /// Runs `f` under the lock.
    pub fn with<T>(&self, wait: Duration, f: impl FnOnce(&[Lease]) -> T) -> Result<T> {
        let (locks, name) = (self.manager(), &self.name);
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
    pub fn run<T>(&self, wait: Duration, f: impl FnOnce(&[Lease]) -> T) -> Result<Ran<T>> {
        let (locks, name) = (self.manager(), &self.name);
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
    pub fn as_lock<C: WithLock>(&self, code: C) -> C::Output {
        let (locks, name) = (self.manager(), &self.name);
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
        self.manager().semaphore(&self.name, permits)
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
    pub fn hold(&self) -> L::Holder {
        let holder = self.locking();
        L::wait_until_locked(&holder);
        holder
    }

    /// Does the same, but returns at once.
    #[track_caller]
    pub fn locking(&self) -> L::Holder {
        L::locking(self.clone())
    }

    /// Does the same, but returns when the thread waits.
    #[track_caller]
    pub fn locking_asleep(&self) -> L::Holder {
        L::locking_asleep(self.clone())
    }

    fn manager(&self) -> &LockManager {
        self.locks.borrow()
    }

    fn acquire(&self, wait: Wait) -> Result<Option<Guard>> {
        let (locks, name) = (self.manager(), &self.name);
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
pub enum Guard {
    Mutex(LockGuard),
    Reentrant(ReentrantGuard),
    Reader(ReadGuard),
    Writer(WriteGuard),
    Permit(Permit),
    Multi(MultiGuard),
}

impl Guard {
    /// Returns the lease of each name.
    pub fn leases(&self) -> &[Lease] {
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
    pub fn lease(&self) -> &Lease {
        &self.leases()[0]
    }

    pub fn fence(&self) -> u64 {
        self.lease().fence()
    }

    pub fn check(&self) -> Result<()> {
        match self {
            Self::Multi(guard) => guard.check(),
            _ => self.lease().check(),
        }
    }

    /// Commits, if the kind can.
    pub fn commit(&self, writes: &[Write]) -> Result<Vec<Reply>> {
        match self {
            Self::Mutex(guard) => guard.commit(writes),
            Self::Reentrant(guard) => guard.commit(writes),
            Self::Writer(guard) => guard.commit(writes),
            Self::Multi(guard) => guard.commit(writes),
            Self::Reader(_) | Self::Permit(_) => panic!("it is not exclusive"),
        }
    }

    pub fn on_lost(&self) -> Receiver<Lost> {
        match self {
            Self::Multi(guard) => guard.on_lost(),
            _ => self.lease().on_lost(),
        }
    }

    pub fn release(self) -> Result<()> {
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

impl Locks for LockManager {
    type Holder = Holder;

    #[track_caller]
    fn locking(subject: Subject) -> Holder {
        Holder::start(|work| drop(threads::task(work)), subject)
    }

    #[track_caller]
    fn locking_asleep(subject: Subject) -> Holder {
        Holder::start(|work| drop(threads::task_asleep(work)), subject)
    }

    #[track_caller]
    fn wait_until_locked(holder: &Holder) {
        holder.locked();
    }
}

/// A thread that locks, and keeps the guard until the test releases it or this is dropped.
pub struct Holder {
    locked: Receiver<Result<u64>>,
    release: Sender<()>,
    released: Receiver<Result<()>>,
}

impl Holder {
    #[track_caller]
    fn start(spawn: impl FnOnce(Box<dyn FnOnce() + Send>), subject: Subject) -> Self {
        let (tell_locked, locked) = unbounded();
        let (release, told_to_release) = unbounded();
        let (tell_released, released) = unbounded();
        spawn(Box::new(move || {
            let guard = match subject.lock() {
                Ok(guard) => guard,
                Err(error) => return drop(tell_locked.send(Err(error))),
            };
            tell_locked.send(Ok(guard.fence())).ok();
            if told_to_release.recv().is_ok() {
                tell_released.send(guard.release()).ok();
            }
        }));
        Self {
            locked,
            release,
            released,
        }
    }

    /// Blocks until the call ends, and returns the fence or the error.
    #[track_caller]
    pub fn outcome(&self) -> Result<u64> {
        threads::received(&self.locked, "the thread panicked, or waits for ever")
    }

    /// Blocks until the thread holds the lock, and returns its fence.
    #[track_caller]
    pub fn locked(&self) -> u64 {
        self.outcome().expect("it becomes free")
    }

    /// Returns whether the call still waits.
    #[track_caller]
    pub fn waits(&self) -> bool {
        self.locked.is_empty()
    }

    #[track_caller]
    pub fn release(self) {
        self.release.send(()).expect("the thread holds it");
        threads::received(&self.released, "the thread panicked, or never ends")
            .expect("it was held until now");
    }
}
