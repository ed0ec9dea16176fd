//! The connections of the renewal thread to the masters of a cluster, outside the pools.
//!
//! The state table of one of them is at the top of [`connection`](super::connection).
//!
//! An exchange ends when all answers have come, or at its limit. It waits for a master for at most a *grace*: twice what
//! the master took lately, and at least [`SHORTEST_GRACE`]. It does not wait for a connection that opens after a failure.
//! So a master that hangs delays the others once, by its grace.

use std::time::Duration;

use redis::Value;

use super::connection::{
    ConnectionState, MasterConnection, Part, PartAnswers, SHORTEST_GRACE, SentPart,
};
use super::master::{Address, Master};
use super::state::ClusterState;
use crate::error::{Failure, FailureKind, Outcome};
use crate::net::exchange::{self, Exchange, Pipeline};
use crate::net::refusal::unavailable;
use crate::sys::hash::HashMap;
use crate::sys::net::{WakingEnd, WokenEnd, readable, waking_pair};
use crate::sys::{Arc, Ordering, Time};
use crate::wire::Command;

/// The answer to each part, and whether one was sent twice.
pub(super) struct Exchanged {
    pub(super) answers: Vec<Result<Value, Failure>>,
    pub(super) is_resent: bool,
}

pub(super) struct MasterConnections {
    by_address: HashMap<Address, MasterConnection>,
    /// Wakes this thread when a connection was opened.
    waker: Arc<WakingEnd>,
    woken: WokenEnd,
}

/// An exchange whose parts were given to the connections.
struct MasterExchange<'a, 'p> {
    connections: &'a mut HashMap<Address, MasterConnection>,
    answers: PartAnswers<'p>,
    begun: Time,
}

impl MasterConnections {
    pub(super) fn new() -> Result<Self, Failure> {
        let failed = |error| unavailable(format!("no pair of sockets: {error}"));
        let (waker, woken) = waking_pair().map_err(failed)?;
        Ok(Self {
            by_address: HashMap::default(),
            waker: Arc::new(waker),
            woken,
        })
    }

    /// Connects to each of these masters. Waits for at most `limit`, and once one connection is open, only for a grace.
    pub(super) fn open(&mut self, masters: &[Arc<Master>], limit: Duration) {
        let mut until = Time::now() + limit;
        for master in masters {
            self.to(master).open_if_due();
        }
        loop {
            let (mut is_opening, mut is_open) = (false, false);
            for connection in self.by_address.values_mut() {
                connection.take_opened();
                is_opening |= matches!(connection.state, ConnectionState::Opening(_));
                is_open |= matches!(connection.state, ConnectionState::Open(_));
            }
            let now = Time::now();
            if is_open {
                until = until.min(now + SHORTEST_GRACE);
            }
            if !is_opening || now >= until {
                return;
            }
            readable([], Some(&self.woken), until);
        }
    }

    /// Sends a PING on each open connection. Closes those on which no answer comes within a grace.
    pub(super) fn check(&mut self, shared: &ClusterState) {
        let connections = self.by_address.values();
        let open = connections.filter(|it| matches!(it.state, ConnectionState::Open(_)));
        let ping = |connection: &MasterConnection| Part {
            master: Arc::clone(&connection.master),
            is_asking: false,
            command: Command::new("PING"),
        };
        let parts: Vec<_> = open.map(ping).collect();
        let exchanged = self.exchange(shared, &parts, SHORTEST_GRACE, false);
        for (part, answer) in parts.iter().zip(exchanged.answers) {
            if answer.is_err() {
                self.close(&part.master);
            }
        }
    }

    /// Closes the connection to a master, because its last answer made no sense, or has not come.
    pub(super) fn close(&mut self, master: &Master) {
        self.by_address.remove(&master.address);
    }

    fn to(&mut self, master: &Arc<Master>) -> &mut MasterConnection {
        let new = || MasterConnection::new(master, &self.waker);
        self.by_address
            .entry(master.address.clone())
            .or_insert_with(new)
    }

    /// Writes each part to its master, and reads the answers. Suspects the masters that have not answered. With
    /// `is_gain` replicas must confirm the writes, if the settings name any.
    pub(super) fn exchange(
        &mut self,
        shared: &ClusterState,
        parts: &[Part],
        limit: Duration,
        is_gain: bool,
    ) -> Exchanged {
        let begun = Time::now();
        self.by_address
            .retain(|_, connection| !connection.master.is_retired.load(Ordering::Acquire));
        let mut answers = PartAnswers {
            parts,
            shared,
            limit,
            is_gain,
            answers: vec![None; parts.len()],
            is_resent: false,
        };
        for (number, part) in parts.iter().enumerate() {
            // Redirections of the same batch may have retired it. It gets no connection any more.
            match part.master.check_in_use() {
                Ok(()) => self.to(&part.master).parts.push(number),
                Err(failure) => {
                    let failure = failure.with(Outcome::NotExecuted);
                    answers.answers[number] = Some(Err(failure));
                }
            }
        }
        // Write on each connection that is open and misses no answer. Open those that are closed.
        for connection in self.by_address.values_mut() {
            if !connection.parts.is_empty() {
                connection.is_reused = matches!(connection.state, ConnectionState::Open(_));
                connection.look(&mut answers);
                connection.open_if_due();
                connection.begin(&mut answers);
            }
        }
        let mut exchange = MasterExchange {
            connections: &mut self.by_address,
            answers,
            begun,
        };
        exchange::run(&mut exchange, Some(&self.woken));
        let mut answers = exchange.answers;
        // A master that has not answered by now is late.
        for connection in self.by_address.values_mut() {
            if connection.is_waited_for() {
                shared.suspect(&connection.master);
            }
            connection.end(&mut answers);
        }
        let late = || {
            let words = "the node has not answered in time";
            Failure {
                timed_out: true,
                ..Failure::plain(FailureKind::Unavailable, Outcome::Unknown, words)
            }
        };
        let of_part = |answer: Option<_>| answer.unwrap_or_else(|| Err(late()));
        Exchanged {
            answers: answers.answers.into_iter().map(of_part).collect(),
            is_resent: answers.is_resent,
        }
    }
}

impl Exchange for MasterExchange<'_, '_> {
    type About = SentPart;

    fn take_in(&mut self) -> Option<Time> {
        for connection in self.connections.values_mut() {
            if connection.take_opened() {
                connection.begin(&mut self.answers);
            } else {
                connection.take_answers(&mut self.answers);
            }
        }
        let waiting = self.connections.values().filter(|it| it.is_waited_for());
        // A link that takes longer than the limit has two round trips.
        let shortest = SHORTEST_GRACE.min(self.answers.limit);
        let grace = waiting.map(|connection| (connection.took * 2).max(shortest));
        let longest = self.answers.shared.routes.settings.io_timeout;
        grace.max().map(|grace| self.begun + grace.min(longest))
    }

    fn asked(&mut self) -> impl Iterator<Item = &mut Pipeline<SentPart>> {
        let connections = self.connections.values_mut();
        connections.filter_map(|connection| match &mut connection.state {
            ConnectionState::Open(pipeline) if pipeline.is_asked() => Some(&mut **pipeline),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClusterNodes, Settings};
    use crate::server::cluster::Cluster;

    /// Otherwise a batch of names that are redirected to ever-new addresses would connect to all of them.
    #[test]
    fn a_master_that_is_retired_gets_no_connection() {
        let settings = Settings::default();
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let nodes = ClusterNodes::new(&urls, &settings).expect("a URL");
        let shared = Arc::clone(&Cluster::new(nodes, &settings).expect("threads").shared);
        let mut connections = MasterConnections::new().expect("a pair");
        let part = |port, is_retired| {
            let host = "127.0.0.1".into();
            let master = shared.routes.new_master(&Address { host, port });
            master.is_retired.store(is_retired, Ordering::SeqCst);
            Part {
                master,
                is_asking: true,
                command: Command::new("PING"),
            }
        };
        let parts: Vec<_> = (1..=100).map(|port| part(port, port > 1)).collect();
        let exchanged = connections.exchange(&shared, &parts, Duration::from_secs(20), false);
        assert_eq!(exchanged.answers.len(), parts.len());
        for answer in &exchanged.answers[1..] {
            let failure = answer.as_ref().expect_err("it is retired");
            let kind = (failure.kind, failure.outcome);
            assert_eq!(kind, (FailureKind::Unavailable, Outcome::NotExecuted));
        }
        assert!(exchanged.answers[0].is_err(), "nobody listens there");
        assert_eq!(connections.by_address.len(), 1);
    }
}
