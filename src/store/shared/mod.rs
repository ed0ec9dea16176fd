//! The connections of one server's pool, which threads that call at the same moment share.
//!
//! Each connection has a place of the r2d2 pool while a thread uses it. A thread that makes a call *enters* a connection:
//!
//! | request | enters |
//! | --- | --- |
//! | short, of one key | the fullest connection that has room, once [`FEW`] threads are in calls. If there is none, or it answers slowly, a connection of its own while the pool has a place |
//! | any other | a connection that no other thread enters |
//!
//! A connection has room for [`MOST_IN_FLIGHT`] threads, each with one request at a time. Two threads in calls have a
//! connection each. Up to 127 more enter the fullest of them. Each further connection costs each side a system call for
//! each write and each read that is not shared: with 64 threads, one connection was measured to be 10 % faster than two,
//! and twice as fast as sixteen.
//!
//! A connection that its last thread has left keeps its place, and counts as free: the next thread takes it as it is, or
//! takes its place. So a thread that calls alone asks the r2d2 pool for no place.
//!
//! A thread waits only if the pool has no place and no connection has room. Requests with priority wait before all
//! others, and have room on a connection for twice as many. So a thousand threads that ask for locks do not keep a holder
//! from its release. While a thread waits for a connection of its own, no other enters the first one, so that its place
//! becomes free.
//!
//! If the other side closes a connection, it may have closed others too: the server was started again, or something on the
//! way ends connections that were not used for a while. So no thread enters a connection that was opened before one was
//! last found closed (the *cut*), and none is kept. A caller whose request failed by that sends it again on a connection
//! that was opened after the cut.
//!
//! On a connection, [`combiner`] decides who writes and who reads. A thread that is alone writes and reads at once, as if
//! the connection was its own. Where there are more than eight, requests that follow the answers of one read are written
//! together. A `sched_yield` before each write was measured to be worse: the whole connection then waits for its slowest
//! thread, and client and server wait for each other in turn.
//!
//! # Failures
//!
//! | event | the caller | the other callers | the connection |
//! | --- | --- | --- | --- |
//! | a caller's time or call is over | leaves, with an unknown outcome | go on | takes no new caller until the overdue answer has come. It closes if the last caller leaves before. |
//! | input or output fails | gets the failure | each gets it too, once | closes |
//! | an answer cannot be read, or is no reply to its request | `Protocol` | a transient failure of unknown outcome, once: their answers may be those of other requests. Answers before it have reached their callers | closes |
//! | the connection fails before a request is written | | | its caller goes to another connection |
//! | a server says that it is a replica, or denies the request | gets the failure | go on | takes no new caller |
//! | a caller panics | leaves | go on | as if its time was over |
//!
//! TCP loses no bytes in the middle. So answers come in the order of the requests, and a check of their type is the only
//! one: an ECHO before each request would cost a command each.
//!
//! No input or output happens under the mutex, with TLS too. A half of the socket belongs to the thread that writes or
//! reads, and goes back when that thread is done, or leaves by a panic. A forked child makes no calls, so it neither
//! writes nor reads.

mod combiner;
mod member;
mod seat;

use std::mem;
use std::time::{Duration, Instant};

use redis::Value;

use crate::error::Failure;
use crate::message::{LockKind, Request};
use crate::name::{Fingerprint, LockKey};
use crate::store::places::{Places, TakenPlace, Wait};
use crate::store::route::Route;
use crate::store::socket::{Reading, Socket, Stream, TransportError, Writing};
use crate::sync::{Arc, Condvar, Mutex, Thread};

use combiner::Combiner;
pub(crate) use member::Member;
use seat::Place;
pub(crate) use seat::Seat;

/// With fewer threads in calls than this, each has a connection. Two threads on one would have to pass the reader's role
/// at each answer, which costs more than a write for each.
const FEW: usize = 2;
/// How many threads without priority may be on a connection. Each has at most one request in flight.
const MOST_IN_FLIGHT: usize = 128;
/// After this time without an answer, other threads prefer other connections.
const SLOW: Duration = Duration::from_millis(50);

/// The connections to one server.
pub(crate) struct Connections {
    places: Places<Place>,
    size: usize,
    state: Mutex<State>,
    /// Notified when a thread of this class may enter a connection: see [`CLASSES`].
    changed: [Condvar; CLASSES.len()],
}

/// The connections that threads may share, guarded by the mutex.
#[allow(
    clippy::vec_box,
    reason = "they move between the lists at each call of a thread alone"
)]
struct State {
    /// The connections that may be shared, by their numbers.
    shared: Vec<Option<Box<Shared>>>,
    /// The connections that their last threads have left, with their places. The last one was left last.
    unused: Vec<Box<Shared>>,
    /// How many places are taken.
    in_use: usize,
    /// How many threads of each class wait.
    waiting: [usize; CLASSES.len()],
    /// The master to which the last call went, and its way.
    master: (u64, Arc<Route>),
    /// When a connection was last found closed by the other side. All that were opened before may be closed too.
    cut: Option<Instant>,
}

/// A connection that threads share.
struct Shared {
    combiner: Combiner<Thread, Value, Arc<TransportError>>,
    /// `None` while a thread reads.
    reading: Option<Box<Reading>>,
    /// `None` while a thread writes.
    writing: Option<Box<Writing>>,
    stream: Arc<Stream>,
    place: TakenPlace<Place>,
    /// The number of threads on the connection.
    members: usize,
    /// Whether no thread may enter any more.
    is_retired: bool,
    /// The master to which it leads.
    master: u64,
    /// The time at which answers came last while others were missing. If none was missing, the time of the first request
    /// after that.
    answered: Instant,
}

/// The class of a thread: whether it has priority, and whether it wants a connection alone.
type Class = (bool, bool);

/// The classes, in the order in which their threads enter.
const CLASSES: [Class; 4] = [(true, true), (true, false), (false, true), (false, false)];

/// The properties of a call.
#[derive(Clone, Copy)]
pub(crate) struct CallTerms {
    /// A fingerprint of the key. `None` if no other thread may use the connection.
    key: Option<Fingerprint>,
    has_priority: bool,
}

impl CallTerms {
    /// Returns the terms of a call. `is_confirmed` means that replicas must confirm what it gains.
    pub(crate) fn of(request: &Request<'_>, has_priority: bool, is_confirmed: bool) -> Self {
        let key = match request {
            Request::Lock { target, kind, verb } => {
                let gains = verb.asks() && is_confirmed;
                let is_of_one = *kind != LockKind::Multi || target.keys().len() == 1;
                (is_of_one && !gains).then(|| target.first())
            }
            Request::RateLimit { key, .. } => Some(*key),
            Request::Adopt { key, .. } => Some(*key).filter(|_| !is_confirmed),
            Request::Ping
            | Request::Renew(_)
            | Request::Release(_)
            | Request::Inspect { .. }
            | Request::Scan { .. }
            | Request::ForceRelease { .. } => None,
        };
        Self {
            key: key.map(LockKey::fingerprint),
            has_priority: has_priority || request.is_of_a_holder(),
        }
    }

    fn class(self) -> Class {
        (self.has_priority, self.key.is_none())
    }
}

/// The connection that a thread has entered.
pub(crate) enum Entered {
    Member(Member),
    /// A place for a connection of its own, or for the first thread of one to share.
    Seat(Seat),
}

/// The choice of a connection.
enum Choice {
    Shared(usize),
    /// A place. A connection in it that was opened before the last cut must not be used.
    Place {
        cut: Option<Instant>,
    },
}

/// The choice, once the thread was counted.
enum Chosen {
    Shared(usize),
    /// A place, and the unused connection in it, if it has one. A connection that was opened before the last cut must not
    /// be used.
    Place {
        cut: Option<Instant>,
        unused: Option<Box<Shared>>,
    },
}

impl Connections {
    /// Makes the connections to one server. `way` has the number of the master to which it leads.
    pub(crate) fn new(way: (u64, Arc<Route>), size: u32) -> Arc<Self> {
        Self::with_places(way, size, Places::new(|| Some(Place::new()), size))
    }

    fn with_places(master: (u64, Arc<Route>), size: u32, places: Places<Place>) -> Arc<Self> {
        let connections = Arc::new(Self {
            places,
            size: size as usize,
            state: Mutex::new(State {
                shared: Vec::new(),
                unused: Vec::new(),
                in_use: 0,
                waiting: [0; CLASSES.len()],
                master,
                cut: None,
            }),
            changed: [const { Condvar::new() }; CLASSES.len()],
        });
        let weak = Arc::downgrade(&connections);
        connections.places.look_after(weak, Self::close_idle);
        connections
    }

    /// Closes the connections that no thread has used for `idle`, and gives their places back.
    fn close_idle(&self, idle: Duration) {
        let mut state = self.state.lock();
        let unused = mem::take(&mut state.unused).into_iter();
        let (idle, kept): (Vec<_>, _) =
            unused.partition(|unused| unused.answered.elapsed() >= idle);
        state.unused = kept;
        drop(state);
        drop(idle);
    }

    /// Returns the master to which the last call went, and its way.
    pub(crate) fn master(&self) -> (u64, Arc<Route>) {
        let state = self.state.lock();
        (state.master.0, Arc::clone(&state.master.1))
    }

    /// Notes the way to a later master.
    pub(crate) fn note_master(&self, number: u64, route: &Arc<Route>) {
        let mut state = self.state.lock();
        if state.master.0 < number {
            state.master = (number, Arc::clone(route));
        }
    }

    /// Enters a connection to the master of this number, or takes a place for one.
    ///
    /// # Errors
    ///
    /// Returns [`FailureKind::Unavailable`](crate::error::FailureKind) if there was no room before the wait was over.
    pub(crate) fn enter(
        self: &Arc<Self>,
        terms: CallTerms,
        master: u64,
        wait: &Wait<'_>,
    ) -> Result<Entered, Failure> {
        let choice = self.choose(terms, master, wait);
        match choice.ok_or_else(|| wait.failure())? {
            Chosen::Shared(number) => {
                let member = Member::new(Arc::clone(self), number, terms);
                Ok(Entered::Member(member))
            }
            Chosen::Place { cut, unused } => {
                let mut seat = Seat::new(Arc::clone(self), cut);
                let place = match unused {
                    Some(unused) => Some(unused.into_place()),
                    // The thread that gives the place back, or looks for unused connections, may still have it.
                    None => self.places.try_take(),
                };
                let place = place.or_else(|| self.places.take(wait.left()));
                seat.fill(place.ok_or_else(|| wait.failure())?);
                Ok(Entered::Seat(seat))
            }
        }
    }

    fn choose(&self, terms: CallTerms, master: u64, wait: &Wait<'_>) -> Option<Chosen> {
        let class = terms.class();
        let mut state = self.state.lock();
        let mut choice = state.choose(class, master, self.size, wait.now());
        if choice.is_none() {
            let number = CLASSES.iter().position(|other| *other == class)?;
            while let (None, Some(slice)) = (&choice, wait.slice()) {
                state.waiting[number] += 1;
                state = self.changed[number].wait_for(state, slice);
                state.waiting[number] -= 1;
                choice = state.choose(class, master, self.size, wait.read());
            }
        }
        let chosen = match choice {
            // One more look, so that no request of a call that is over delays others.
            _ if (wait.is_over)() => None,
            Some(Choice::Shared(number)) => {
                state.member(number).members += 1;
                Some(Chosen::Shared(number))
            }
            Some(Choice::Place { cut }) => {
                state.in_use += 1;
                let unused = state.unused.pop();
                // The usual case of a thread that calls alone: the connection is as it left it.
                match unused {
                    Some(unused)
                        if terms.key.is_some()
                            && unused.master == master
                            && is_newer(&unused.stream, cut) =>
                    {
                        Some(Chosen::Shared(state.add(unused)))
                    }
                    unused => Some(Chosen::Place { cut, unused }),
                }
            }
            None => None,
        };
        // Only this thread was notified. If there is more room, another may enter.
        self.notify(&state);
        chosen
    }

    /// Wakes a thread that waits, if it may enter a connection.
    fn notify(&self, state: &State) {
        for (number, class) in CLASSES.into_iter().enumerate() {
            if state.waiting[number] == 0 {
                continue;
            }
            let choice = state.choose(class, state.master.0, self.size, Instant::now());
            if choice.is_some() {
                self.changed[number].notify_one();
                return;
            }
        }
    }
}

impl State {
    /// Chooses a connection for a thread of this class: the table at the top of this module.
    fn choose(&self, class: Class, master: u64, size: usize, now: Instant) -> Option<Choice> {
        let (has_priority, is_alone) = class;
        let waits = |wanted: fn(&Class) -> bool| {
            let mut counts = self.waiting.iter().zip(&CLASSES);
            counts.any(|(count, class)| *count > 0 && wanted(class))
        };
        if !has_priority && waits(|(has_priority, _)| *has_priority) {
            return None;
        }
        let has_place = self.in_use < size;
        let place = Choice::Place { cut: self.cut };
        if is_alone {
            return has_place.then_some(place);
        }
        let most = MOST_IN_FLIGHT << u32::from(has_priority);
        let shared = || self.shared.iter().enumerate();
        let shared = || shared().filter_map(|(number, shared)| Some((number, shared.as_deref()?)));
        let count = shared().count();
        // This one is for a thread that waits for a place.
        let kept = (!has_place && waits(|(_, is_alone)| *is_alone)).then(|| shared().next());
        let kept = kept.flatten().map(|(number, _)| number);
        let kept = kept.filter(|_| !has_priority || count > 1);
        let is_slow = |shared: &Shared| {
            shared.combiner.load() > 0 && now.saturating_duration_since(shared.answered) > SLOW
        };
        let best = shared()
            .filter(|(number, shared)| Some(*number) != kept && shared.master == master)
            .filter(|(_, shared)| shared.is_open(self.cut) && shared.members < most)
            .max_by_key(|(_, shared)| (!is_slow(shared), shared.members));
        let callers: usize = shared().map(|(_, shared)| shared.members).sum();
        match best {
            Some((number, best)) if callers >= FEW && !is_slow(best) => {
                Some(Choice::Shared(number))
            }
            _ if has_place => Some(place),
            best => best.map(|(number, _)| Choice::Shared(number)),
        }
    }

    /// Notes that a connection was found closed by the other side.
    fn note_cut(&mut self) {
        self.cut = Some(Instant::now());
    }

    /// Adds a connection that has one member. Returns its number.
    fn add(&mut self, mut shared: Box<Shared>) -> usize {
        shared.members = 1;
        let free = self.shared.iter().position(Option::is_none);
        let number = free.unwrap_or(self.shared.len());
        if free.is_none() {
            self.shared.push(None);
        }
        self.shared[number] = Some(shared);
        number
    }

    /// Returns a connection that a thread has entered.
    fn member(&mut self, number: usize) -> &mut Shared {
        // It stays until its last thread leaves.
        self.shared[number].as_mut().expect("a thread is on it")
    }
}

impl Shared {
    /// Returns whether a thread may enter.
    fn is_open(&self, cut: Option<Instant>) -> bool {
        let is_sound = !self.combiner.has_failed() && is_newer(&self.stream, cut);
        is_sound && !self.is_retired && !self.combiner.is_overdue()
    }

    /// Returns whether other threads can use the connection after its last thread has left.
    fn is_usable(&self) -> bool {
        !self.is_retired && self.combiner.is_clean()
    }

    /// Returns the place, with the unused connection.
    fn into_place(self) -> TakenPlace<Place> {
        let mut place = self.place;
        if let (Some(reading), Some(writing)) = (self.reading, self.writing) {
            place.keep(Socket { reading, writing }, self.master);
        }
        place
    }
}

/// Returns whether a connection was opened after the last cut.
fn is_newer(stream: &Stream, cut: Option<Instant>) -> bool {
    cut.is_none_or(|cut| stream.opened() > cut)
}

#[cfg(test)]
mod tests;
