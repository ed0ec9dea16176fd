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

use std::time::Duration;

use crate::error::{Chain, Failure};
use crate::logging;
use crate::panics::survived;
use crate::store::server::errors::unavailable;
use crate::store::topology::quorum::connection::open;
use crate::store::topology::quorum::spares::{Opener, Spare};
use crate::store::topology::quorum::state::QuorumState;
use crate::sys::random::jittered;
use crate::sys::{Arc, Machine, Ordering, Time, Weak, thread};

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
                self.connect_failed(number, failure);
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
