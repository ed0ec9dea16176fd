//! The probes of nodes that are down: the thread of the pool connects to a node, and asks it what it is.
//!
//! It does so after the pause of the node ([`super::node`]), and after a longer pause if the probe fails. The probes hold
//! the store weakly. They run one after another, on one thread.

use std::time::Duration;

use crate::error::{Failure, FailureKind, Outcome};
use crate::logging;
use crate::panics::survived;
use crate::store::topology::quorum::connection::NodeConnection;
use crate::store::topology::quorum::state::QuorumState;
use crate::sys::{Arc, Machine, random::jittered};

impl QuorumState {
    /// Notes that a node is down, and plans a probe.
    pub(super) fn node_is_down(&self, number: usize, failure: &Failure) {
        let node = &self.nodes[number];
        if let Some(pause) = node.note_down(failure) {
            let address = &node.route.server.address;
            let why = crate::error::Chain(&*failure.cause);
            logging::warning!("{address} is not asked for a while: {why}");
            self.plan_probe(number, pause);
        }
    }

    fn plan_probe(&self, number: usize, pause: Duration) {
        let weak = self.weak_self.clone();
        let pause = jittered(&Machine::here(), pause);
        self.background.after(pause, move || {
            if let Some(state) = weak.upgrade() {
                state.probe(number);
            }
        });
    }

    /// Probes a node. If it answers, it is up.
    fn probe(self: &Arc<Self>, number: usize) {
        let state = Arc::clone(self);
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
            }
            Err(failure) => {
                let pause = node.note_still_down(failure);
                self.plan_probe(number, pause);
            }
        }
    }
}
