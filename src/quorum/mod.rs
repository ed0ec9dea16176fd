//! A lock over a majority of independent servers (Redlock).
//!
//! A caller's thread checks a connection to every node out of the pool, all of them together. It writes its request to all
//! nodes before it reads an answer, and counts the answers as they come: that is a *round*. The renewal thread does the same
//! on connections of its own. How a vote is counted stands at the top of [`votes`], and the rules are those of the models in
//! `tests/quorum_model`.
//!
//! | module | its subject |
//! | --- | --- |
//! | `votes` | how votes are counted, and what this process knows of them |
//! | `acquire` | rounds that ask for a lock, or give a detached mutex a new owner |
//! | `renew` | a round that renews leases, and lets nodes join that missed the grant |
//! | `release` | a round that gives locks up |
//! | `operators` | requests of operators, to all nodes |
//! | `connection` | a connection to each node, and a round: a request to several of them, and their answers as they come |
//! | `node` | one node: is it up, may it vote, and the connections that are made to it |
//! | `listen` | messages through any node |
//!
//! # Owners that got too few votes
//!
//! Such an owner is withdrawn here, on every node that may have it. It must never ask again ([`Reply::Outvoted`],
//! [`FailureKind::NoQuorum`]): a late copy of its release could end its next grant. The engine then asks what is left
//! ([`left_until`](crate::server::Votes::left_until)), as after a release: a node that has not confirmed the withdrawal gets
//! it again.

mod acquire;
mod connection;
mod listen;
mod node;
mod operators;
mod release;
mod renew;
mod votes;

use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;

use crate::config::{Server, Settings};
use crate::error::{Failure, FailureKind, NodeCounts, NodeFailure, Outcome, Unsupported};
use crate::name::RESTART_DELAY;
use crate::net::deadline::Deadline;
use crate::net::login::{Pinged, ping_all};
use crate::net::pool::{Pool, PoolThreads, Pooled};
use crate::net::pubsub::PubSubEvent;
use crate::net::refusal::refusal;
use crate::net::route::{DataLossSigns, NodeReport, route};
use crate::net::tasks::Tasks;
use crate::server::{self, Answer, DedicatedConnection, Store};
use crate::sys::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, Time, Weak};
#[cfg(feature = "seam")]
use crate::sys::{Machine, test_machine::MovedByTest};
use crate::wire::{self, LockKind, Reply, Request, ScriptSettings};

use connection::Connections;
use node::Node;
use votes::{Owners, majority};

/// The store of a quorum.
pub(crate) struct Quorum {
    pool: Arc<Pool<Connections>>,
    _threads: PoolThreads,
    state: Arc<QuorumState>,
}

impl Quorum {
    pub(crate) fn new(servers: Vec<Server>, settings: &Settings) -> Result<Self, Failure> {
        let threads = PoolThreads::start()?;
        let state = QuorumState::new(servers, settings, Arc::clone(threads.tasks()));
        let of_pool = Arc::clone(&state);
        let connections = move || Connections::new(&of_pool, None);
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

impl Pooled for Connections {
    fn close_if_idle(&mut self, idle: Duration) {
        self.close_unused(idle);
    }
}

impl Store for Quorum {
    fn call(&self, request: &Request<'_>, mut deadline: Deadline<'_>) -> Result<Answer, Failure> {
        let mut connections = self.pool.check_out(&mut deadline)?;
        connections.answer(request, deadline)
    }

    fn ping(&self, _: Deadline<'_>) -> Result<Vec<Pinged>, Failure> {
        let routes = self.state.nodes.iter().map(|node| node.route.clone());
        Ok(ping_all(routes.collect()))
    }

    fn votes(&self) -> Option<&dyn server::Votes> {
        Some(&*self.state)
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        let pool = Arc::downgrade(&self.pool);
        Box::new(Connections::new(&self.state, Some(pool)))
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

/// The state that all connections of a quorum share.
struct QuorumState {
    nodes: Box<[Node]>,
    /// How many nodes are a majority.
    needed: usize,
    node_timeout: Duration,
    restart_delay: Duration,
    /// The key of the note about the restart delay.
    delay_key: String,
    script_settings: Arc<ScriptSettings>,
    owners: Owners,
    /// Whether a majority of the nodes has answered once, and the settings are right for each node that is not down.
    is_checked: AtomicBool,
    /// Held while a node's server is compared with those of the other nodes.
    identifying: Mutex<()>,
    /// How often a connect to a node has ended. `connected` is notified then.
    connects: Mutex<u64>,
    connected: Condvar,
    next_connection: AtomicU64,
    /// The tasks of the pool's thread.
    background: Arc<Tasks>,
    weak_self: Weak<QuorumState>,
}

impl QuorumState {
    fn new(servers: Vec<Server>, settings: &Settings, background: Arc<Tasks>) -> Arc<Self> {
        let nodes: Box<[_]> = servers
            .into_iter()
            .enumerate()
            .map(|(number, server)| Node::new(number, route(server, settings)))
            .collect();
        let script_settings = Arc::clone(&nodes[0].route.script_settings);
        // If all processes have one delay, no lease is longer, unless the delay is turned off.
        let longest_lease = settings.restart_delay.max(settings.options.lease);
        let state = Arc::new_cyclic(|weak_self| Self {
            needed: majority(nodes.len()),
            nodes,
            node_timeout: settings.node_timeout,
            restart_delay: settings.restart_delay,
            delay_key: [&settings.prefix, RESTART_DELAY].concat(),
            script_settings,
            owners: Owners::new(longest_lease),
            is_checked: AtomicBool::new(false),
            identifying: Mutex::new(()),
            connects: Mutex::new(0),
            connected: Condvar::new(),
            next_connection: AtomicU64::new(1),
            background,
            weak_self: weak_self.clone(),
        });
        #[cfg(feature = "seam")]
        {
            let weak = Arc::downgrade(&state);
            Machine::here().register(weak);
        }
        state
    }

    /// Returns a report of each node, and of the quorum as a whole.
    fn report_all(&self) -> Vec<NodeReport> {
        let nodes = self.nodes.iter();
        let failures: Vec<_> = nodes.map(|node| node.check_up().err()).collect();
        let up = failures.iter().filter(|failure| failure.is_none()).count();
        let nodes = self.nodes.iter().zip(&failures);
        let mut reports: Vec<_> = nodes
            .map(|(node, failure)| node.report(failure.clone()))
            .collect();
        let whole = (up < self.needed).then(|| self.no_quorum(up, failures));
        reports.push(self.report(whole));
        reports
    }

    /// Returns a report of the quorum as a whole.
    fn report(&self, failure: Option<Failure>) -> NodeReport {
        NodeReport {
            place: self.nodes.len(),
            node: None,
            failure,
        }
    }

    /// Reads the answer of a node to a request.
    fn decode(&self, number: usize, request: &Request<'_>, value: Value) -> Result<Reply, Failure> {
        match value {
            Value::ServerError(_) => Err(self.unexpected(number, value)),
            value => wire::decode(request, value),
        }
    }

    /// Returns the failure of an answer that is an error, or makes no sense.
    fn unexpected(&self, number: usize, value: Value) -> Failure {
        let route = &self.nodes[number].route;
        if let Value::ServerError(error) = value {
            route.data_loss_signs.note_answer(&error);
            return refusal(&route.server, error);
        }
        let words = "the answer does not have the form of a reply to this request";
        Failure::plain(FailureKind::Protocol, Outcome::Unknown, words)
    }

    /// Returns the failure of a request that too few nodes granted, with the failures of the others.
    fn no_quorum(&self, granted: usize, failures: Vec<Option<Failure>>) -> Failure {
        let mut permanent = failures
            .iter()
            .flatten()
            .filter(|failure| !failure.is_transient());
        let spare = self.nodes.len() - self.needed;
        // If these failures leave no majority, waiting is of no use: return one of them.
        if let Some(failure) = permanent
            .clone()
            .find(|failure| failure.kind == FailureKind::Config("nodes"))
            .or_else(|| permanent.nth(spare))
        {
            return Failure {
                outcome: Outcome::NotExecuted,
                ..failure.clone()
            };
        }
        let failures: Vec<_> = failures
            .into_iter()
            .zip(&self.nodes)
            .filter_map(|(failure, node)| {
                Some(NodeFailure {
                    node: Arc::clone(&node.route.server.address),
                    error: failure?.into_error(None),
                })
            })
            .collect();
        Failure::no_quorum(self.counts(granted), failures)
    }

    fn counts(&self, granted: usize) -> NodeCounts {
        let number = |number| u32::try_from(number).unwrap_or(u32::MAX);
        NodeCounts {
            nodes: number(self.nodes.len()),
            needed: number(self.needed),
            granted: number(granted),
        }
    }
}

/// The connects of a manager of the test kit, whose clock a test moves.
#[cfg(feature = "seam")]
impl MovedByTest for QuorumState {
    // A connect does not sleep.
    fn look_at_the_clock(&self) {}

    fn busy_part(&self) -> Option<&'static str> {
        self.sends_by_itself().then_some("a connect to a node")
    }

    fn sends_by_itself(&self) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| node.connecting_since().is_some())
    }
}

impl server::Votes for QuorumState {
    fn left_until(&self, owner: &str) -> Option<Time> {
        self.owners.left_until(owner, Time::now())
    }

    fn has_unconfirmed(&self) -> bool {
        self.owners.has_unconfirmed(Time::now())
    }

    fn forget(&self, owner: &str) {
        self.owners.forget(owner);
    }

    fn lacks_votes(&self, owner: &str) -> bool {
        let now = Time::now();
        let may_join = |number: usize| self.nodes[number].may_join(now);
        self.owners.has_misses(owner, may_join)
    }

    fn missing_nodes(&self, owner: &str) -> Vec<Arc<str>> {
        let now = Time::now();
        let nodes = self.nodes.iter().enumerate();
        let missing = nodes.filter(|(number, _)| !self.owners.counts(owner, *number, now));
        let addresses = missing.map(|(_, node)| Arc::clone(&node.route.server.address));
        addresses.collect()
    }
}

/// Connections of the renewal thread, outside of the pool.
impl DedicatedConnection for Connections {
    fn open(&mut self, _is_silent: bool) -> Result<(), Failure> {
        let limit = self.state.nodes[0].route.connect_timeout + self.state.node_timeout;
        self.begin(Time::now() + limit).ping().map(drop)
    }

    fn call(&mut self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure> {
        let pool = self.renews_beside.as_ref().and_then(Weak::upgrade);
        if let (Request::Renew(_), Some(pool)) = (request, pool) {
            // A node may join when its late answer to the request for the lock has been read.
            pool.for_each_free(Connections::read_late);
        }
        self.answer(request, Deadline::after(limit))
    }

    fn take_reports(&mut self) -> Vec<NodeReport> {
        self.state.report_all()
    }
}

impl Connections {
    /// Sends a request to the nodes, and returns the reply of the majority.
    fn answer(
        &mut self,
        request: &Request<'_>,
        mut deadline: Deadline<'_>,
    ) -> Result<Answer, Failure> {
        let until = deadline.now() + deadline.left();
        let reply = self.begin(until).send(request)?;
        Ok(Answer {
            reply,
            resent: false,
        })
    }

    fn send(&mut self, request: &Request<'_>) -> Result<Reply, Failure> {
        let is_semaphore = |kind| matches!(kind, LockKind::Semaphore { .. });
        match request {
            Request::Ping => self.ping(),
            Request::Renew(batch) => Ok(Reply::Renewed(self.renew(batch)?)),
            Request::Release(batch) => self.release_many(batch),
            Request::Ask(lock, ask) if !is_semaphore(lock.kind) => self.acquire(*lock, ask),
            Request::End(lock, end) if !is_semaphore(lock.kind) => self.end_one(*lock, end),
            Request::Inspect { .. } => self.inspect(request),
            Request::Scan { from, .. } => self.scan(*from, request),
            Request::Adopt { key, adopt } => self.adopt(key, adopt),
            Request::ForceRelease { key, owner } => self.force_release(request, key, owner),
            Request::Publish { .. } | Request::KeepRecords(_) => self.tell_all(request),
            Request::Leader { lead, .. } if lead.is_read() => self.read_leader(request),
            Request::Leader { .. } => self.write_leader(request),
            Request::Once { .. } => Err(Failure::unsupported(Unsupported::RECORDED_BY_VOTES)),
            Request::Commit(_) => Err(Failure::unsupported(Unsupported::WRITTEN_BY_VOTES)),
            Request::Ask(..) | Request::End(..) | Request::RateLimit { .. } => {
                Err(Failure::unsupported(Unsupported::COUNTED_BY_VOTES))
            }
        }
    }
}
