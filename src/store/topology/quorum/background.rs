//! The work of the background thread: it probes nodes that are down, and sends them the releases that they have missed.
//!
//! | job | when | after a failure |
//! | --- | --- | --- |
//! | probe of a node: connect, and ask what it is | after the pause of the node ([`super::node`]) | again after a longer pause |
//! | release of the orphans of a node, by one write | a moment after the first of them came, or when a probe was answered; later again, if a request for the lock may still come ([`Orphan::repeated_after`]) | a second later, or with the next probe |
//!
//! The jobs hold the store weakly. They run one after another, on one thread.

use std::time::{Duration, Instant};

use crate::clock::{Clock, SystemClock};
use crate::error::{Failure, FailureKind, Outcome};
use crate::logging;
use crate::panics::survived;
use crate::random::{SystemRng, jittered};
use crate::script::quorum::{self as node_request, LockId};
use crate::store::topology::quorum::connection::NodeConnection;
use crate::store::topology::quorum::node::Orphan;
use crate::store::topology::quorum::round::{Enough, QuorumCall, Recipients};
use crate::store::topology::quorum::state::QuorumState;

/// How long orphans are gathered before they are released.
const GATHERED_FOR: Duration = Duration::from_millis(10);
/// How many orphans are released by one write.
const AT_A_TIME: usize = 100;

impl QuorumState {
    /// Notes that a node is down, and plans a probe.
    pub(super) fn node_is_down(&self, number: usize, failure: &Failure) {
        let node = &self.nodes[number];
        if let Some(pause) = node.note_down(failure) {
            let address = &node.route.server.address;
            let why = crate::error::Chain(&*failure.cause);
            logging::warning!("{address} is not asked for a while: {why}");
            self.plan(pause, move |state| state.probe(number));
        }
    }

    /// Keeps an owner to be released at a node.
    pub(super) fn keep_orphan(&self, number: usize, orphan: Orphan) {
        self.nodes[number].add_orphan(orphan);
        self.plan_orphans(number);
    }

    fn plan_orphans(&self, number: usize) {
        if let Some(pause) = self.nodes[number].plan_orphans(SystemClock.now()) {
            let pause = pause.max(GATHERED_FOR);
            self.plan(pause, move |state| state.release_orphans(number));
        }
    }

    fn plan(&self, pause: Duration, job: impl FnOnce(&Self) + Send + 'static) {
        let weak = self.weak_self.clone();
        let pause = jittered(&SystemRng::new(), pause);
        self.background.execute_after(pause, move || {
            if let Some(state) = weak.upgrade() {
                survived(|| job(&state));
            }
        });
    }

    /// Probes a node. If it answers, it is up.
    fn probe(&self, number: usize) {
        let Some(state) = self.weak_self.upgrade() else {
            return;
        };
        let node = &self.nodes[number];
        // A caller has no more time to connect either.
        let opened = survived(|| NodeConnection::new(state, number).open(self.node_timeout));
        let panicked = || {
            let words = "the probe panicked";
            Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words)
        };
        match opened.unwrap_or_else(|| Err(panicked())) {
            Ok(()) => {
                node.note_up();
                logging::info!("{} is asked again", node.route.server.address);
                self.release_orphans(number);
            }
            Err(failure) => {
                let pause = node.note_still_down(failure);
                self.plan(pause, move |state| state.probe(number));
            }
        }
    }

    /// Releases the orphans of a node. Keeps those that it did not answer for.
    fn release_orphans(&self, number: usize) {
        let Some(state) = self.weak_self.upgrade() else {
            return;
        };
        let orphans = self.nodes[number].take_orphans(SystemClock.now());
        let mut connections = [NodeConnection::new(state, number)];
        for some in orphans.chunks(AT_A_TIME) {
            let release = |orphan: &Orphan| {
                let lock = LockId {
                    kind: orphan.kind,
                    target: &orphan.target,
                };
                node_request::release(lock, (&orphan.owner, orphan.units), None, true)
            };
            let commands: Vec<_> = some.iter().map(release).collect();
            let mut answered = 0;
            let mut is_done = vec![false; some.len()];
            // A connect may take half of that, which is as long as in a probe.
            let until = Instant::now() + self.node_timeout * 2;
            let mut call = QuorumCall::new(self, &mut connections, until);
            call.round(Recipients::All, |_| Some(&commands), &mut |_, answer| {
                if let (Ok(value), Some(is_done)) = (answer, is_done.get_mut(answered)) {
                    // A server that is busy does it later. After another error, such as a key of another type, a
                    // repetition would not help.
                    *is_done = node_request::released(&value).is_some()
                        || !self.unexpected(number, value).is_transient();
                    answered += 1;
                }
                Enough::No
            });
            let now = SystemClock.now();
            for (orphan, is_done) in some.iter().zip(is_done) {
                if let Some(orphan) = orphan.clone().again(is_done, now) {
                    self.nodes[number].add_orphan(orphan);
                }
            }
        }
        self.plan_orphans(number);
    }
}
