//! What a background thread does for the callers: it probes nodes that are down, and releases what a node has missed.
//!
//! | job | when | after a failure |
//! | --- | --- | --- |
//! | probe of a node: connect, and ask what it is | after the pause of the node ([`super::node`]) | again after a longer pause |
//! | release of the leftovers of a node, by one write | a moment after the first of them came, or when a probe was answered | with the next probe |
//!
//! The jobs hold the store weakly. They run one after another, on one thread.

use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::logging;
use crate::random::{SystemRng, jittered};
use crate::script::quorum as node_request;
use crate::store::quorum::Shared;
use crate::store::quorum::line::Line;
use crate::store::quorum::node::Leftover;
use crate::store::quorum::round::{Enough, gather};

/// How long leftovers are gathered before they are released.
const GATHERED_FOR: Duration = Duration::from_millis(10);
/// How many leftovers are released by one write.
const AT_A_TIME: usize = 100;

impl Shared {
    /// Notes that a node is down, and plans a probe.
    pub(super) fn node_is_down(&self, number: usize, failure: &Failure) {
        let node = &self.nodes[number];
        if let Some(pause) = node.note_down(failure) {
            let address = &node.route.server.address;
            let why = crate::error::Chain(&*failure.cause);
            logging::warning!("{address} is not asked for a while: {why}");
            self.plan(pause, move |shared| shared.probe(number));
        }
    }

    /// Keeps an owner to be released at a node.
    pub(super) fn keep_leftover(&self, number: usize, leftover: Leftover) {
        let node = &self.nodes[number];
        let is_first = node.add_leftover(leftover);
        // If the node is down, the next probe that is answered releases it.
        if is_first && node.is_up() {
            self.plan(GATHERED_FOR, move |shared| shared.release_leftovers(number));
        }
    }

    fn plan(&self, pause: Duration, job: impl FnOnce(&Self) + Send + 'static) {
        let weak = self.weak_self.clone();
        let pause = jittered(&SystemRng::new(), pause);
        self.background.execute_after(pause, move || {
            if let Some(shared) = weak.upgrade() {
                job(&shared);
            }
        });
    }

    /// Probes a node. If it answers, it is up.
    fn probe(&self, number: usize) {
        let Some(shared) = self.weak_self.upgrade() else {
            return;
        };
        let node = &self.nodes[number];
        let limit = node.route.connect_timeout;
        match Line::new(shared, number).open(limit) {
            Ok(()) => {
                node.note_up();
                logging::info!("{} is asked again", node.route.server.address);
                self.release_leftovers(number);
            }
            Err(failure) => {
                let pause = node.note_still_down(failure);
                self.plan(pause, move |shared| shared.probe(number));
            }
        }
    }

    /// Releases the leftovers of a node. Keeps those that it did not answer for.
    fn release_leftovers(&self, number: usize) {
        let Some(shared) = self.weak_self.upgrade() else {
            return;
        };
        let leftovers = self.nodes[number].take_leftovers();
        if leftovers.is_empty() {
            return;
        }
        let mut lines = [Line::new(shared, number)];
        for some in leftovers.chunks(AT_A_TIME) {
            let mut packed = Vec::new();
            for leftover in some {
                let key = leftover.target.first();
                node_request::release(key, &leftover.owner, None, true)
                    .write_packed_command(&mut packed);
            }
            let mut answered = 0;
            if self.nodes[number].is_up() && lines[0].send(&packed, some.len()).is_ok() {
                let until = Instant::now() + self.node_timeout;
                gather(&mut lines, until, &mut |_, answer| {
                    answered += usize::from(answer.is_ok());
                    Enough::No
                });
            }
            for leftover in &some[answered..] {
                self.nodes[number].add_leftover(leftover.clone());
            }
        }
    }
}
