//! A lock over a majority of independent servers (Redlock).
//!
//! The rules are those of the models in `tests/quorum_model`, and the decisions stand in [`crate::quorum::rules`]. This
//! module sends the requests, and keeps the votes.
//!
//! | module | its subject |
//! | --- | --- |
//! | `acquire` | rounds that ask for a lock |
//! | `adopt` | a round that gives a detached mutex a new owner |
//! | `release` | a round that gives locks up |
//! | `renew` | a round that renews leases |
//! | `join` | nodes that give a lock to its owner after the grant |
//! | `operators` | requests of operators, to all nodes |
//! | `votes`, `vote` | the votes for the owners of this process, and the nodes that may have each owner; the vote of one node |
//! | `state` | the data that all connections of a quorum share |
//! | `round` | a call under way, and its rounds: a request to several nodes, and their answers as they come |
//! | `connection` | one connection to one node |
//! | `node` | one node: is it up, and may it vote? |
//! | `opener` | connects to the nodes in the background, and probes those that are down; the spare connections, and the wishes for more |
//! | `listen` | messages through any node |
//!
//! A thread takes a connection to every node out of the pool together. It writes its request to all nodes before it
//! reads an answer, on its own thread. The renewal thread has its own connection to every node.
//!
//! # Owners that got too few votes
//!
//! Such an owner is withdrawn here, on every node that may have it. It must never ask again ([`Reply::Outvoted`],
//! [`FailureKind::NoQuorum`]): a late copy of its release could end its next grant. The engine then asks what is left
//! ([`Votes::left_until`]), as after a release: a node that has not confirmed the withdrawal gets it again.

mod acquire;
mod adopt;
mod connection;
mod join;
mod listen;
mod node;
mod opener;
mod operators;
mod release;
mod renew;
mod round;
pub(crate) mod rules;
mod state;
mod vote;
mod votes;

use std::time::Duration;

use smallvec::SmallVec;

use crate::config::{Server, Settings};
use crate::error::{Failure, FailureKind, Outcome};
use crate::net::deadline::Deadline;
use crate::net::ping::{self, Pinged};
use crate::net::pool::{Pool, PoolThreads, Pooled};
use crate::net::pubsub::PubSubEvent;
use crate::net::route::{DataLossSigns, NodeReport};
use crate::server::{Answer, DedicatedConnection, Store, Votes};
use crate::sys::{Arc, Time, Weak};
use crate::wire::quorum::LockId;
use crate::wire::{LockKind, Reply, Request, Verb};

use connection::NodeConnection;
use release::OwnerRelease;
use round::QuorumCall;
use state::QuorumState;

/// The store of a quorum.
pub(crate) struct Quorum {
    pool: Arc<Pool<NodeConnections>>,
    _threads: PoolThreads,
    state: Arc<QuorumState>,
}

/// A connection to every node.
struct NodeConnections {
    connections: Box<[NodeConnection]>,
    /// As in [`QuorumCall`].
    is_of_renewals: bool,
}

impl Quorum {
    pub(crate) fn new(servers: Vec<Server>, settings: &Settings) -> Result<Self, Failure> {
        let threads = PoolThreads::start()?;
        let state = QuorumState::new(servers, settings, Arc::clone(threads.tasks()));
        let of_pool = Arc::clone(&state);
        let connections = move || NodeConnections::new(&of_pool, false);
        let counters = Arc::clone(&settings.pools);
        Ok(Self {
            pool: Pool::new(connections, settings.pool_size, &threads, counters)?,
            _threads: threads,
            state,
        })
    }

    /// Returns the last time at which enough nodes had shown such a sign: without them a majority is not certain.
    fn last_of_enough(&self, last: impl Fn(&DataLossSigns) -> Time) -> Time {
        let nodes = self.state.nodes.iter();
        let mut signs: SmallVec<[Time; 8]> = nodes
            .map(|node| last(&node.route.data_loss_signs))
            .collect();
        signs.sort_unstable();
        // Fewer nodes than a majority have shown none since then.
        signs[self.state.needed - 1]
    }
}

impl NodeConnections {
    fn new(state: &Arc<QuorumState>, is_of_renewals: bool) -> Self {
        let connection = |number| NodeConnection::new(Arc::clone(state), number);
        Self {
            connections: (0..state.nodes.len()).map(connection).collect(),
            is_of_renewals,
        }
    }

    fn begin<'a>(&'a mut self, state: &'a QuorumState, until: Time) -> QuorumCall<'a> {
        QuorumCall::new(state, &mut self.connections, until, self.is_of_renewals)
    }

    /// Sends a request to the nodes, and returns the reply of the majority.
    fn call(
        &mut self,
        state: &QuorumState,
        request: &Request<'_>,
        mut deadline: Deadline<'_>,
    ) -> Result<Answer, Failure> {
        let until = deadline.now() + deadline.left();
        let reply = self.begin(state, until).send(request)?;
        Ok(Answer {
            reply,
            resent: false,
        })
    }
}

impl Pooled for NodeConnections {
    fn close_if_idle(&mut self, idle: Duration) {
        for connection in &mut self.connections {
            connection.close_if_idle(idle);
        }
    }
}

impl Store for Quorum {
    fn call(&self, request: &Request<'_>, mut deadline: Deadline<'_>) -> Result<Answer, Failure> {
        let mut connections = self.pool.check_out(&mut deadline)?;
        connections.call(&self.state, request, deadline)
    }

    fn ping(&self, _: Deadline<'_>) -> Result<Vec<Pinged>, Failure> {
        let routes = self.state.nodes.iter().map(|node| node.route.clone());
        Ok(ping::all(routes.collect()))
    }

    fn votes(&self) -> Option<&dyn Votes> {
        Some(&*self.state)
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        Box::new(DedicatedNodeConnections {
            connections: NodeConnections::new(&self.state, true),
            pool: Arc::downgrade(&self.pool),
            state: Arc::clone(&self.state),
            reports: Vec::new(),
        })
    }

    fn last_data_loss_sign(&self) -> Time {
        self.last_of_enough(DataLossSigns::last)
    }

    fn last_surplus(&self) -> Time {
        self.last_of_enough(DataLossSigns::last_surplus)
    }

    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        listen::listen(&self.state, channels, hear)
    }
}

impl Votes for QuorumState {
    fn left_until(&self, owner: &str) -> Option<Time> {
        self.votes.left_until(owner, Time::now())
    }

    fn has_unconfirmed(&self) -> bool {
        self.votes.has_unconfirmed(Time::now())
    }

    fn forget(&self, owner: &str) {
        self.votes.forget(owner);
    }

    fn lacks_votes(&self, owner: &str) -> bool {
        let now = Time::now();
        let may_join = |number| self.may_join(number, now);
        self.votes.has_misses(owner, may_join)
    }

    fn missing_nodes(&self, owner: &str) -> Vec<Arc<str>> {
        let now = Time::now();
        let nodes = self.nodes.iter().enumerate();
        let missing = nodes.filter(|(number, _)| !self.votes.counts(owner, *number, now));
        let addresses = missing.map(|(_, node)| Arc::clone(&node.route.server.address));
        addresses.collect()
    }
}

/// Connections to every node outside of the pool.
struct DedicatedNodeConnections {
    connections: NodeConnections,
    pool: Weak<Pool<NodeConnections>>,
    state: Arc<QuorumState>,
    /// Reports of the nodes, until the renewal thread takes them.
    reports: Vec<NodeReport>,
}

impl DedicatedConnection for DedicatedNodeConnections {
    fn open(&mut self, _is_silent: bool) -> Result<(), Failure> {
        let node_timeout = self.state.node_timeout;
        let connect_timeout = self.state.nodes[0].route.connect_timeout;
        let until = Time::now() + connect_timeout + node_timeout;
        self.connections.begin(&self.state, until).ping().map(drop)
    }

    fn call(&mut self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure> {
        if let (Request::Renew(_), Some(pool)) = (request, self.pool.upgrade()) {
            // A node may join when its late answer to the request for the lock has been read.
            let read = |free: &mut NodeConnections| {
                let connections = free.connections.iter_mut();
                connections.for_each(NodeConnection::read_late);
            };
            pool.for_each_free(read);
        }
        let deadline = Deadline::after(limit);
        let answer = self.connections.call(&self.state, request, deadline);
        self.reports.extend(self.state.report_all());
        answer
    }

    fn take_reports(&mut self) -> Vec<NodeReport> {
        std::mem::take(&mut self.reports)
    }
}

impl QuorumCall<'_> {
    /// Sends a request to the nodes, and returns the reply of the majority.
    fn send(&mut self, request: &Request<'_>) -> Result<Reply, Failure> {
        match request {
            Request::Ping => self.ping(),
            Request::Renew(batch) => Ok(Reply::Renewed(self.renew(batch)?)),
            Request::Release(batch) => self.release_many(batch),
            Request::Lock {
                kind: kind @ (LockKind::Mutex | LockKind::Read | LockKind::Write | LockKind::Multi),
                target,
                verb,
            } => {
                let lock = LockId {
                    kind: *kind,
                    target,
                };
                self.ask_about(lock, verb)
            }
            Request::Inspect { .. } => self.inspect(request),
            Request::Scan { from, .. } => self.scan(*from, request),
            Request::Adopt { key, adopt } => self.adopt(key, adopt),
            Request::ForceRelease { key, owner } => self.force_release(request, key, owner),
            Request::Publish { .. } | Request::KeepRecords(_) => self.tell_all(request),
            Request::Lock {
                kind: LockKind::Semaphore { .. },
                ..
            }
            | Request::RateLimit { .. } => {
                let what =
                    "the votes of several nodes would admit more than one server that counts";
                let kind = FailureKind::NotOnAQuorum { what };
                Err(Failure::plain(kind, Outcome::NotExecuted, what))
            }
        }
    }

    /// Sends a request about one lock.
    fn ask_about(&mut self, lock: LockId<'_>, verb: &Verb) -> Result<Reply, Failure> {
        match (verb, OwnerRelease::of(lock, verb)) {
            (_, Some(release)) => self.end_one(release),
            (
                Verb::TakeOver {
                    ask,
                    from,
                    give_back,
                },
                None,
            ) => {
                // A reader may take over from a writer, whose units are another number.
                let units = self.state.votes.units_of(from).unwrap_or(ask.units);
                let release = OwnerRelease::of_lease(lock, from, units, *give_back);
                self.acquire(lock, ask, Some(&release))
            }
            (Verb::Acquire { ask, .. }, None) => self.acquire(lock, ask, None),
            (_, None) => Err(Failure::another_question()),
        }
    }
}
