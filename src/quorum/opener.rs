//! The connections to the nodes are opened in the background. Each node has an *opener*: at most one thread, which lives
//! only while it connects. A caller waits for it only if the caller cannot go on ([`super::round`]).
//!
//! | the node is | event | the opener |
//! | --- | --- | --- |
//! | up | a connection is closed, and its owner looks for a spare one | gives it a spare. If there is none, it connects: for each owner once |
//! | up | it has connected | keeps the connection as a spare |
//! | up | it cannot connect within `connect_timeout` | the node is down, and nobody waits for a connection to it any more. If the failure is transient, those that are open are used |
//! | down | the pause is over ([`super::node`]) | probes the node: it connects |
//! | down | the probe succeeds | the node is up. The other nodes that are down are probed at once |
//! | down | the probe fails | pauses again, for longer |
//! | down, and no majority is up | a caller wants a majority | pauses for at most 50 ms, until nobody has wanted one for 3 s |
//!
//! The thread of the pool begins the probes. The openers hold the store weakly while they pause.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{Chain, Failure};
use crate::logging;
use crate::net::exchange::Pipeline;
use crate::net::refusal::unavailable;
use crate::panics::survived;
use crate::quorum::connection::open;
use crate::quorum::state::QuorumState;
use crate::quorum::vote::ConnectionId;
use crate::quorum::votes::LateAbout;
use crate::sys::random::jittered;
use crate::sys::{Arc, AtomicU64, Condvar, Machine, Mutex, Ordering, Time, Weak, thread};

/// The longest pause between two probes while no majority is up and somebody wants one.
const HURRIED: Duration = Duration::from_millis(50);
/// For how long somebody wants a majority after a request. A wait asks each second at least.
const WANTED_FOR: Duration = Duration::from_secs(3);

impl QuorumState {
    /// Returns a spare connection to a node. If there is none, the opener makes one for this owner.
    pub(super) fn spare(&self, number: usize, owner: u64) -> Option<Spare> {
        let mut state = self.openers.state.lock();
        let opener = &mut state.nodes[number];
        let spare = opener.spares.pop();
        if spare.is_some() {
            opener.wishes.retain(|other| *other != owner);
            return spare;
        }
        if !opener.wishes.contains(&owner) {
            opener.wishes.push_back(owner);
        }
        let starts = opener.begun.is_none();
        if starts {
            opener.begun = Some(Time::now());
        }
        drop(state);
        if starts {
            self.start_opener(number);
        }
        None
    }

    /// Starts the thread of an opener, which was noted as begun.
    fn start_opener(&self, number: usize) {
        let weak = self.weak_self.clone();
        let run = move || while weak.upgrade().is_some_and(|state| state.connect(number)) {};
        if let Err(error) = thread::spawn("leasehold-connect", run) {
            let words = format!("no thread could be started to connect: {error}");
            self.connect_failed(number, unavailable(words));
        }
    }

    /// Connects to a node once. Returns whether another connection is wanted.
    fn connect(&self, number: usize) -> bool {
        let opened = survived(|| open(self, number));
        let spare = match opened.unwrap_or_else(|| Err(unavailable("the connect panicked"))) {
            Ok(spare) => spare,
            Err(failure) => {
                self.connect_failed(number, failure.of_connecting());
                return false;
            }
        };
        let node = &self.nodes[number];
        if node.note_up() {
            logging::info!("{} is asked again", node.route.server.address);
            for other in &self.nodes {
                if !other.is_up() {
                    self.plan_probe(other.number, Duration::ZERO);
                }
            }
        }
        self.openers.ended(number, |opener| {
            opener.spares.push(spare);
            opener.wishes.pop_front();
            let now = Time::now();
            opener.took = now.since(opener.begun.unwrap_or(now));
            opener.begun = (!opener.wishes.is_empty()).then_some(now);
            // Its probe may have been due while this connect was under way.
            if opener.begun.is_none() && !node.is_up() {
                self.plan_probe_of(opener, number, HURRIED);
            }
            opener.begun.is_some()
        })
    }

    fn connect_failed(&self, number: usize, failure: Failure) {
        let node = &self.nodes[number];
        let hurries = !self.has_majority_up() && self.openers.is_wanted();
        let pause = match node.note_down(&failure, !failure.is_transient()) {
            Some(pause) => {
                self.warn_of(number, &failure);
                pause
            }
            None => node.note_still_down(failure, hurries),
        };
        let pause = if hurries { pause.min(HURRIED) } else { pause };
        self.openers.ended(number, |opener| {
            opener.wishes.clear();
            opener.begun = None;
            self.plan_probe_of(opener, number, pause);
        });
    }

    /// Notes that a node does not answer, and plans a probe.
    pub(super) fn node_is_down(&self, number: usize, failure: &Failure) {
        if let Some(pause) = self.nodes[number].note_down(failure, true) {
            self.warn_of(number, failure);
            self.plan_probe(number, pause);
        }
    }

    fn warn_of(&self, number: usize, failure: &Failure) {
        let address = &self.nodes[number].route.server.address;
        let why = Chain(&*failure.cause);
        logging::warning!("{address} is not asked for a while: {why}");
    }

    pub(super) fn has_majority_up(&self) -> bool {
        let up = self.nodes.iter().filter(|node| node.is_up());
        up.count() >= self.needed
    }

    /// Notes that somebody wants a majority. If none is up, the nodes that are down are probed soon.
    pub(super) fn want_majority(&self) {
        if self.has_majority_up() {
            return;
        }
        let now = Time::now();
        let until = (now + WANTED_FOR).as_nanos();
        self.openers.wanted_until.store(until, Ordering::Relaxed);
        for node in self.nodes.iter().filter(|node| !node.is_up()) {
            let is_far = {
                let state = self.openers.state.lock();
                let opener = &state.nodes[node.number];
                opener.begun.is_none() && opener.probe_at > Some(now + HURRIED)
            };
            if is_far {
                self.plan_probe(node.number, HURRIED);
            }
        }
    }

    /// Plans a probe of a node that is down, instead of any that was planned.
    fn plan_probe(&self, number: usize, pause: Duration) {
        let mut state = self.openers.state.lock();
        self.plan_probe_of(&mut state.nodes[number], number, pause);
    }

    /// Does the same under the mutex of the openers: a connect that has ended leaves no moment without a probe.
    fn plan_probe_of(&self, opener: &mut Opener, number: usize, pause: Duration) {
        let pause = jittered(&Machine::here(), pause);
        opener.probe += 1;
        opener.probe_at = Some(Time::now() + pause);
        let probe = opener.probe;
        let weak = Weak::clone(&self.weak_self);
        self.background.after(pause, move || {
            if let Some(state) = weak.upgrade() {
                state.begin_probe(number, probe);
            }
        });
    }

    /// Begins a planned probe, unless the opener connects already: then the end of that connect plans the next probe.
    fn begin_probe(self: &Arc<Self>, number: usize, probe: u64) {
        let starts = {
            let mut state = self.openers.state.lock();
            let opener = &mut state.nodes[number];
            let starts =
                opener.probe == probe && opener.begun.is_none() && !self.nodes[number].is_up();
            if starts {
                opener.begun = Some(Time::now());
            }
            starts
        };
        if starts {
            self.start_opener(number);
        }
    }
}

/// The openers of all nodes.
pub(super) struct Openers {
    pub(super) state: Mutex<OpenersState>,
    /// Notified when an opener has connected, or has failed.
    changed: Condvar,
    next_number: AtomicU64,
    /// Until when somebody wants a majority, in nanoseconds of the clock.
    pub(super) wanted_until: AtomicU64,
}

pub(super) struct OpenersState {
    pub(super) nodes: Box<[Opener]>,
    /// How often an opener has connected, or has failed.
    changes: u64,
}

/// The opener of one node.
#[derive(Default)]
pub(super) struct Opener {
    /// When the connect began that is under way.
    pub(super) begun: Option<Time>,
    /// The time that the last connect took.
    pub(super) took: Duration,
    /// The owners of closed connections that want one, each once.
    pub(super) wishes: VecDeque<u64>,
    pub(super) spares: Vec<Spare>,
    /// The number of the last probe that was planned, and when it is due. Earlier ones are void.
    pub(super) probe: u64,
    pub(super) probe_at: Option<Time>,
}

/// A connection that nobody has used yet.
pub(super) struct Spare {
    pub(super) pipeline: Pipeline<LateAbout>,
    pub(super) id: ConnectionId,
    /// The number of the server's process to which it leads.
    pub(super) process: u32,
    pub(super) opened: Time,
}

impl Openers {
    pub(super) fn new(nodes: usize) -> Self {
        let nodes = (0..nodes).map(|_| Opener::default()).collect();
        Self {
            state: Mutex::new(OpenersState { nodes, changes: 0 }),
            changed: Condvar::new(),
            next_number: AtomicU64::new(1),
            wanted_until: AtomicU64::new(0),
        }
    }

    /// Returns a number that no other connection, and no other owner of one, has.
    pub(super) fn new_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns how often an opener has connected, or has failed.
    pub(super) fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// Blocks until that number is not `seen` any more, at most until then.
    pub(super) fn await_change(&self, seen: u64, until: Time) {
        let mut state = self.state.lock();
        while state.changes == seen {
            let left = until.since(Time::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_for(state, left);
        }
    }

    /// Returns until when a caller may expect the connect to this node that is under way, if it takes at most `grace`.
    /// Returns `None` if the last connect took longer.
    pub(super) fn expected(&self, number: usize, grace: Duration) -> Option<Time> {
        let opener = &self.state.lock().nodes[number];
        let begun = opener.begun.filter(|_| opener.took <= grace);
        begun.map(|begun| begun + grace)
    }

    /// Returns whether an opener connects.
    #[cfg(feature = "seam")]
    pub(super) fn are_connecting(&self) -> bool {
        let state = self.state.lock();
        state.nodes.iter().any(|opener| opener.begun.is_some())
    }

    /// Closes the spare connections to a node that nobody has used for `idle`.
    pub(super) fn close_idle(&self, number: usize, idle: Duration) {
        let is_used = |spare: &Spare| spare.opened.elapsed() < idle;
        let mut state = self.state.lock();
        state.nodes[number].spares.retain(is_used);
    }

    /// Notes the end of a connect, under the mutex.
    pub(super) fn ended<R>(&self, number: usize, note: impl FnOnce(&mut Opener) -> R) -> R {
        let mut state = self.state.lock();
        state.changes += 1;
        let result = note(&mut state.nodes[number]);
        drop(state);
        self.changed.notify_all();
        result
    }

    pub(super) fn is_wanted(&self) -> bool {
        Time::now().as_nanos() < self.wanted_until.load(Ordering::Relaxed)
    }
}
