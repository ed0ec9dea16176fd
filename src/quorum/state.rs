//! The state that all connections of a quorum share: its nodes, and the votes for the owners of this process.

use std::time::Duration;

use redis::Value;

use crate::config::{Server, Settings};
use crate::error::{Failure, FailureKind, NodeCounts, NodeFailure, Outcome};
use crate::name::RESTART_DELAY;
use crate::net::refusal::refusal;
use crate::net::route::{NodeReport, route};
use crate::net::tasks::Tasks;
use crate::quorum::node::QuorumNode;
use crate::quorum::opener::Openers;
use crate::quorum::rules::majority;
use crate::quorum::votes::Votes;
use crate::sys::time::ms_rounded_up;
use crate::sys::{Arc, AtomicBool, Mutex, Time, Weak};
#[cfg(feature = "seam")]
use crate::sys::{Machine, test_machine::MovedByTest};
use crate::wire::{self, Command, Reply, Request, ScriptSettings};

/// The note about the restart delay is renewed after this number of restart delays.
const NOTE_RENEWED_AFTER: u32 = 5;
/// The same time for a note of zero.
const ZERO_RENEWED_AFTER: Duration = Duration::from_secs(300);
/// A node keeps the note for this many times the time after which it is renewed.
const NOTE_KEPT_FOR: u32 = 2;
/// The time after which it is tried again to make a note at a node that had no memory for one.
const NOTE_TRIED_AFTER: Duration = Duration::from_secs(1);

/// The state that all connections of a quorum share.
pub(super) struct QuorumState {
    pub(super) nodes: Box<[QuorumNode]>,
    /// How many nodes are a majority.
    pub(super) needed: usize,
    pub(super) node_timeout: Duration,
    restart_delay: Duration,
    /// The key of the note about the restart delay.
    delay_key: String,
    pub(super) script_settings: Arc<ScriptSettings>,
    pub(super) votes: Votes,
    /// Whether a majority of the nodes has answered once, and the settings are right for each node that is not down.
    pub(super) is_checked: AtomicBool,
    /// Held while a node's server is compared with those of the other nodes.
    identifying: Mutex<()>,
    pub(super) openers: Openers,
    /// The tasks of the pool's thread.
    pub(super) background: Arc<Tasks>,
    pub(super) weak_self: Weak<QuorumState>,
}

impl QuorumState {
    pub(super) fn new(
        servers: Vec<Server>,
        settings: &Settings,
        background: Arc<Tasks>,
    ) -> Arc<Self> {
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
        // If all processes have one delay, no lease is longer, unless the delay is turned off.
        let longest_lease = settings.restart_delay.max(settings.options.lease);
        let state = Arc::new_cyclic(|weak_self| Self {
            needed: majority(nodes.len()),
            openers: Openers::new(nodes.len()),
            nodes,
            node_timeout: settings.node_timeout,
            restart_delay: settings.restart_delay,
            delay_key: [&settings.prefix, RESTART_DELAY].concat(),
            script_settings,
            votes: Votes::new(longest_lease),
            is_checked: AtomicBool::new(false),
            identifying: Mutex::new(()),
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

    /// Returns for how long a caller waits for a node of which it can do without.
    pub(super) fn grace(&self) -> Duration {
        self.node_timeout / 4
    }

    /// Returns a report of each node, and of the quorum as a whole.
    pub(super) fn report_all(&self) -> Vec<NodeReport> {
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
    pub(super) fn report(&self, failure: Option<Failure>) -> NodeReport {
        NodeReport {
            place: self.nodes.len(),
            node: None,
            failure,
        }
    }

    /// Reads the answer of a node to a request.
    pub(super) fn decode(
        &self,
        number: usize,
        request: &Request<'_>,
        value: Value,
    ) -> Result<Reply, Failure> {
        match value {
            Value::ServerError(_) => Err(self.unexpected(number, value)),
            value => wire::decode(request, value),
        }
    }

    /// Returns the failure of an answer that is an error, or makes no sense.
    pub(super) fn unexpected(&self, number: usize, value: Value) -> Failure {
        let route = &self.nodes[number].route;
        if let Value::ServerError(error) = value {
            route.data_loss_signs.note_answer(&error);
            return refusal(&route.server, error);
        }
        let words = "the answer does not have the form of a reply to this request";
        Failure::plain(FailureKind::Protocol, Outcome::Unknown, words)
    }

    /// Returns the failure of a request that too few nodes granted, with the failures of the others.
    pub(super) fn no_quorum(&self, granted: usize, failures: Vec<Option<Failure>>) -> Failure {
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

    pub(super) fn counts(&self, granted: usize) -> NodeCounts {
        let number = |number| u32::try_from(number).unwrap_or(u32::MAX);
        NodeCounts {
            nodes: number(self.nodes.len()),
            needed: number(self.needed),
            granted: number(granted),
        }
    }

    /// Takes in what a server says of itself on a new connection. Returns the number of its process.
    pub(super) fn identify(&self, number: usize, report: &str) -> Result<u32, Failure> {
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
            return refused(FailureKind::Config("nodes"), words);
        }
        Ok(node.identified(run_id, Duration::from_secs(uptime), self.restart_delay))
    }

    /// Returns whether a node can be asked to join, as far as this process knows.
    pub(super) fn may_join(&self, number: usize, now: Time) -> bool {
        let node = &self.nodes[number];
        node.is_up() && node.check_may_grant(now).is_ok()
    }

    /// Returns the command that notes the restart delay at a node: see the section on it in [`super::node`].
    pub(super) fn note_restart_delay(&self) -> Command {
        let kept = self.note_renewed_after() * NOTE_KEPT_FOR;
        wire::quorum::note_restart_delay(&self.delay_key, self.restart_delay, kept)
    }

    /// Compares the note of a node with the restart delay of this process.
    pub(super) fn compare_restart_delay(
        &self,
        number: usize,
        answer: Value,
    ) -> Result<(), Failure> {
        let node = &self.nodes[number];
        let noted_ms: Option<u64> = match node.route.accepted(answer)? {
            Value::BulkString(ms) => String::from_utf8_lossy(&ms).parse().ok(),
            Value::Nil => {
                node.compared(false, Time::now() + NOTE_TRIED_AFTER);
                return Ok(());
            }
            _ => None,
        };
        if noted_ms == Some(ms_rounded_up(self.restart_delay)) {
            node.compared(true, Time::now() + self.note_renewed_after());
            return Ok(());
        }
        let others = noted_ms.map_or("another value".to_owned(), |noted_ms| {
            format!("{:?}", Duration::from_millis(noted_ms))
        });
        let (address, own) = (&node.route.server.address, self.restart_delay);
        let words = format!(
            "{address}: other clients use {others}, and this one uses {own:?}; all clients of a quorum need one value; \
             to change it, stop them all, wait for the longer time, delete the key {:?} at each node, and start them",
            self.delay_key
        );
        let kind = FailureKind::Config("restart_delay");
        Err(Failure::plain(kind, Outcome::NotExecuted, words))
    }

    /// Returns whether the note at a node must be renewed, and compared again.
    pub(super) fn must_note_again(&self, number: usize) -> bool {
        Time::now() >= self.nodes[number].note_due_at()
    }

    fn note_renewed_after(&self) -> Duration {
        if self.restart_delay.is_zero() {
            ZERO_RENEWED_AFTER
        } else {
            self.restart_delay * NOTE_RENEWED_AFTER
        }
    }
}

/// The openers of a manager of the test kit, whose clock a test moves.
#[cfg(feature = "seam")]
impl MovedByTest for QuorumState {
    // A connect does not sleep.
    fn look_at_the_clock(&self) {}

    fn busy_part(&self) -> Option<&'static str> {
        self.sends_by_itself().then_some("a connect to a node")
    }

    fn sends_by_itself(&self) -> bool {
        self.openers.are_connecting()
    }
}
