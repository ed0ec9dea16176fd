//! A lock over a majority of independent servers (Redlock).
//!
//! The rules are those of the models in `tests/quorum_model`, and the decisions stand in [`crate::core::quorum`]. This
//! module sends the requests, and keeps the votes.
//!
//! | module | its subject |
//! | --- | --- |
//! | `acquire` | rounds that ask for a lock |
//! | `adopt` | a round that gives a detached mutex a new owner |
//! | `release` | a round that gives locks up |
//! | `renew` | a round that renews leases |
//! | `operators` | requests of operators, to all nodes |
//! | `votes` | the votes for the owners of this process |
//! | `round` | a request to several nodes, and their answers as they come |
//! | `connection` | one connection to one node |
//! | `node` | one node: is it up, and may it vote? |
//! | `background` | probes of nodes that are down, and releases that a node has missed |
//! | `listen` | messages through any node |
//!
//! A thread takes a connection to every node out of the pool together. It writes its request to all nodes before it
//! reads an answer, on its own thread. The renewal thread has its own connection to every node.
//!
//! # What the engine need not know
//!
//! An owner that got too few votes is withdrawn here, on every node that may have it. If a node cannot be reached, a
//! background thread does so later. So a failed request leaves nothing for the engine to release. But that owner must
//! never ask again ([`Reply::Outvoted`], [`FailureKind::NoQuorum`]): a late copy of its release could end its next
//! grant.

mod acquire;
mod adopt;
mod background;
mod connection;
mod listen;
mod node;
mod operators;
mod release;
mod renew;
mod round;
mod votes;

use std::time::{Duration, Instant};

use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};
use smallvec::SmallVec;

use crate::clock::{Clock, SystemClock, Time};
use crate::config::{Server, Settings};
use crate::core::quorum::majority;
use crate::error::{Failure, FailureKind, NodeFailure, Outcome};
use crate::message::{LockKind, Reply, Request, Verb};
use crate::script::quorum::Lock;
use crate::script::{Command, ScriptSettings};
use crate::store::places::Pooled;
use crate::store::pool::Pool;
use crate::store::route::route;
use crate::store::{Answer, DedicatedConnection, LEAST, Limits, NodeReport, PubSubEvent, Store};
use crate::sync::{Arc, Mutex, Weak, thread};

use connection::NodeConnection;
use node::QuorumNode;
use release::OwnerRelease;
use round::{Enough, Waits, gather};
use votes::Votes;

/// Longer than any call takes, and short enough to add to a time of the system's clock.
const LONGEST_CALL: Duration = Duration::from_secs(24 * 60 * 60);

/// The store of a quorum.
pub(crate) struct Quorum {
    pool: Pool<NodeConnections>,
    shared: Arc<Shared>,
}

/// The state that all connections of a quorum share.
struct Shared {
    nodes: Box<[QuorumNode]>,
    /// How many nodes are a majority.
    needed: usize,
    node_timeout: Duration,
    restart_delay: Duration,
    script_settings: Arc<ScriptSettings>,
    votes: Votes,
    /// Held while a node's server is compared with those of the other nodes.
    identifying: Mutex<()>,
    background: ScheduledThreadPool,
    weak_self: Weak<Shared>,
}

/// A connection to every node.
struct NodeConnections(Box<[NodeConnection]>);

impl Quorum {
    pub(crate) fn new(servers: Vec<Server>, settings: &Settings) -> Self {
        let routes: Vec<_> = servers
            .into_iter()
            .map(|server| route(server, settings))
            .collect();
        let script_settings = Arc::clone(&routes[0].script_settings);
        let nodes: Box<[_]> = routes
            .into_iter()
            .enumerate()
            .map(|(number, route)| QuorumNode::new(number, route))
            .collect();
        let background = ScheduledThreadPool::builder()
            .num_threads(1)
            .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled)
            .thread_name_pattern("leasehold-nodes-{}")
            .build();
        let shared = Arc::new_cyclic(|weak_self| Shared {
            needed: majority(nodes.len()),
            nodes,
            node_timeout: settings.node_timeout,
            restart_delay: settings.restart_delay(),
            script_settings,
            votes: Votes::default(),
            identifying: Mutex::new(()),
            background,
            weak_self: weak_self.clone(),
        });
        let of_pool = Arc::downgrade(&shared);
        let connections = move || {
            of_pool
                .upgrade()
                .map(|shared| NodeConnections::new(&shared))
        };
        Self {
            pool: Pool::new(connections, settings.pool_size),
            shared,
        }
    }
}

impl NodeConnections {
    fn new(shared: &Arc<Shared>) -> Self {
        let connection = |number| NodeConnection::new(Arc::clone(shared), number);
        Self((0..shared.nodes.len()).map(connection).collect())
    }
}

impl Pooled for NodeConnections {
    fn close_if_idle(&mut self, idle: Duration) {
        for connection in &mut self.0 {
            connection.close_if_idle(idle);
        }
    }
}

impl Store for Quorum {
    fn call(&self, request: &Request<'_>, limits: Limits<'_>) -> Result<Answer, Failure> {
        let started = Instant::now();
        let wait = limits.checkout.min(limits.whole);
        let is_over = || limits.is_over();
        let has_priority = limits.has_priority || request.is_of_a_holder();
        let mut connections = self.pool.take(wait, has_priority, &is_over)?;
        let left = limits.whole.saturating_sub(started.elapsed());
        self.shared
            .call(&mut connections.0, request, left.max(LEAST))
    }

    fn is_quorum(&self) -> bool {
        true
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        Box::new(DedicatedNodeConnections {
            connections: NodeConnections::new(&self.shared),
            shared: Arc::clone(&self.shared),
            reports: Vec::new(),
        })
    }

    /// Returns the last time at which enough nodes had seen such a sign: without them a majority is not certain.
    fn last_cut(&self) -> Time {
        let nodes = self.shared.nodes.iter();
        let mut cuts: Vec<_> = nodes.map(|node| node.route.cuts.last()).collect();
        cuts.sort_unstable();
        // Fewer nodes than a majority have seen no sign since then.
        cuts[self.shared.needed - 1]
    }

    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        listen::listen(&self.shared, channels, hear)
    }
}

/// Connections to every node outside of the pool.
struct DedicatedNodeConnections {
    connections: NodeConnections,
    shared: Arc<Shared>,
    /// Reports of the nodes, until the renewal thread takes them.
    reports: Vec<NodeReport>,
}

impl DedicatedConnection for DedicatedNodeConnections {
    fn open(&mut self) -> Result<(), Failure> {
        // A connect may take half of that.
        let until = Instant::now() + self.shared.node_timeout * 2;
        self.shared.ping(&mut self.connections.0, until).map(drop)
    }

    fn call(&mut self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure> {
        let answer = self.shared.call(&mut self.connections.0, request, limit);
        self.reports.extend(self.shared.report_all());
        answer
    }

    fn take_reports(&mut self) -> Vec<NodeReport> {
        std::mem::take(&mut self.reports)
    }
}

impl Shared {
    /// Sends a request to the nodes, and returns the reply of the majority.
    fn call(
        &self,
        connections: &mut [NodeConnection],
        request: &Request<'_>,
        limit: Duration,
    ) -> Result<Answer, Failure> {
        // A panic may have left a connection that waits.
        connections.iter_mut().for_each(NodeConnection::give_up);
        let until = Instant::now() + limit.min(LONGEST_CALL);
        let reply = match request {
            Request::Ping => self.ping(connections, until)?,
            Request::Renew(batch) => Reply::Renewed(self.renew(connections, batch, until)?),
            Request::Release(batch) => self.release_many(connections, batch, until)?,
            Request::Lock {
                kind: kind @ (LockKind::Mutex | LockKind::Read | LockKind::Write | LockKind::Multi),
                target,
                verb,
            } => {
                let lock = Lock {
                    kind: *kind,
                    target,
                };
                self.ask_about(connections, lock, verb, until)?
            }
            Request::Inspect { .. } => self.inspect(connections, request, until)?,
            Request::Scan {
                from,
                prefix,
                pattern,
            } => self.scan(connections, (*from, prefix, pattern), until)?,
            Request::Adopt { key, adopt } => self.adopt(connections, key, adopt, until)?,
            Request::ForceRelease { key, owner } => {
                self.force_release(connections, key, owner, until)?
            }
            Request::Lock {
                kind: LockKind::Semaphore { .. },
                ..
            }
            | Request::RateLimit { .. } => {
                let what =
                    "the votes of several nodes would admit more than one server that counts";
                let kind = FailureKind::NotOnAQuorum { what };
                return Err(Failure::plain(kind, Outcome::NotExecuted, what));
            }
        };
        Ok(Answer {
            reply,
            resent: false,
        })
    }

    /// Sends a request about one lock.
    fn ask_about(
        &self,
        connections: &mut [NodeConnection],
        lock: Lock<'_>,
        verb: &Verb,
        until: Instant,
    ) -> Result<Reply, Failure> {
        match (verb, OwnerRelease::of(lock, verb)) {
            (_, Some(release)) => self.end_one(connections, release, until),
            (
                Verb::TakeOver {
                    ask,
                    from,
                    give_back,
                },
                None,
            ) => {
                // A reader may take over from a writer, whose units are another number.
                let units = self.votes.units_of(from).unwrap_or(ask.units);
                let release = OwnerRelease::of_lease(lock, from, units, *give_back);
                self.acquire(connections, lock, ask, Some(&release), until)
            }
            (Verb::Acquire { ask, .. }, None) => self.acquire(connections, lock, ask, None, until),
            (_, None) => Err(Failure::another_question()),
        }
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

    /// Returns how long a round waits that needs all nodes, in a call that ends at `until`.
    fn within(&self, until: Instant) -> Waits {
        let left = until.saturating_duration_since(Instant::now());
        Waits {
            limit: left.min(self.node_timeout),
            grace: self.node_timeout / 4,
            nodes: self.nodes.len(),
        }
    }

    fn ping(&self, connections: &mut [NodeConnection], until: Instant) -> Result<Reply, Failure> {
        let ping = [Command::new("PING")];
        let mut failures = self.ask_each(connections, false, until, |_| Some(&ping[..]));
        let mut answered = 0;
        gather(connections, self.within(until), &mut |number, answer| {
            match answer {
                Ok(redis::Value::SimpleString(_) | redis::Value::BulkString(_)) => answered += 1,
                Ok(value) => failures[number] = Some(self.unexpected(number, value)),
                Err(failure) => failures[number] = Some(failure),
            }
            if answered >= self.needed {
                Enough::Almost
            } else {
                Enough::No
            }
        });
        let is_same = |failure: &Failure| failure.kind == FailureKind::SameServer;
        if answered >= self.needed && !failures.iter().flatten().any(is_same) {
            return Ok(Reply::Pong);
        }
        Err(self.no_quorum(answered, failures))
    }

    /// Writes to each node the packed commands that `commands` returns, with their number, for a call that ends at
    /// `until`. With `votes` it leaves out the nodes that may not vote. Returns for each node the reason why it was not
    /// asked.
    ///
    /// A connection that is closed is opened first. Several are opened at the same time, each on its own thread.
    /// Otherwise the time that a caller waits for nodes that hang would be a sum.
    fn ask_each<'p>(
        &self,
        connections: &mut [NodeConnection],
        votes: bool,
        until: Instant,
        commands: impl Fn(usize) -> Option<&'p [Command]> + Sync,
    ) -> Vec<Option<Failure>> {
        let ask = |number: usize, connection: &mut NodeConnection, commands| {
            // Only a new connection shows that the node has restarted.
            let asked = connection.connect(until).and_then(|()| {
                if votes {
                    self.nodes[number].check_may_vote(SystemClock.now())?;
                }
                connection.send(commands)
            });
            asked.err()
        };
        let mut failures = vec![None; connections.len()];
        let mut closed = SmallVec::<[_; 5]>::new();
        // The open connections come first: to connect to a node that hangs takes a while.
        for (number, (connection, failure)) in connections.iter_mut().zip(&mut failures).enumerate()
        {
            let Some(request) = commands(number) else {
                continue;
            };
            *failure = connection.look().err();
            if failure.is_some() {
                continue;
            }
            if connection.socket().is_some() {
                *failure = ask(number, connection, request);
            } else {
                closed.push((number, connection, failure, request));
            }
        }
        if closed.len() <= 1 {
            for (number, connection, failure, request) in closed {
                *failure = ask(number, connection, request);
            }
            return failures;
        }
        let ask = &ask;
        thread::scope(|scope| {
            for (number, connection, failure, request) in closed {
                let words = "no thread could be started to connect";
                let unasked = Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words);
                *failure = Some(unasked);
                thread::Builder::new()
                    .spawn_scoped(scope, move || *failure = ask(number, connection, request))
                    .ok();
            }
        });
        failures
    }

    /// Returns the failure of an answer that is an error, or makes no sense.
    fn unexpected(&self, number: usize, value: redis::Value) -> Failure {
        let route = &self.nodes[number].route;
        if let redis::Value::ServerError(error) = value {
            route.cuts.note_answer(&error);
            return crate::store::refusal::refusal(&route.server, error);
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
            .find(|failure| failure.kind == FailureKind::SameServer)
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
        Failure::no_quorum(self.needed, granted, failures)
    }

    /// Takes in what a server says of itself on a new connection.
    fn identify(&self, number: usize, report: &str) -> Result<(), Failure> {
        let field = |name: &str| {
            let mut fields = report.lines().filter_map(|line| line.split_once(':'));
            fields.find_map(|(field, value)| (field == name).then(|| value.trim()))
        };
        let node = &self.nodes[number];
        let address = &node.route.server.address;
        let refused = |kind, words: String| Err(Failure::plain(kind, Outcome::NotExecuted, words));
        if field("role") != Some("master") {
            return refused(
                FailureKind::Unavailable,
                format!("{address}: it is not a master"),
            );
        }
        // Of a server whose clock was set back since its start, the number is negative.
        let uptime = field("uptime_in_seconds").and_then(|seconds| seconds.parse::<i64>().ok());
        let uptime = uptime.map(|seconds| u64::try_from(seconds).unwrap_or(0));
        let Some((run_id, uptime)) = field("run_id").zip(uptime) else {
            let words = format!("{address}: INFO does not tell its run_id and its uptime");
            return refused(FailureKind::Protocol, words);
        };
        // Two nodes may connect at the same time.
        let _one_at_a_time = self.identifying.lock();
        let same = self
            .nodes
            .iter()
            .find(|other| other.number != number && other.is(run_id));
        if let Some(same) = same {
            let words = format!("{address} and {} are one server", same.route.server.address);
            return refused(FailureKind::SameServer, words);
        }
        node.identified(run_id, Duration::from_secs(uptime), self.restart_delay);
        Ok(())
    }
}
