//! The openers of the nodes and the callers share this: the spare connections, the wishes for more, and the planned
//! probes. See [`super::opener`].

use std::collections::VecDeque;
use std::time::Duration;

use crate::store::topology::quorum::vote::ConnectionId;
use crate::store::topology::quorum::votes::LateAbout;
use crate::store::transport::exchange::Pipeline;
use crate::sys::{AtomicU64, Condvar, Mutex, Ordering, Time};

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
    #[cfg(feature = "testing")]
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
