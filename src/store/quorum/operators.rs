//! The requests of operators, to all nodes.
//!
//! | request | the reply |
//! | --- | --- |
//! | inspect | the holders that any node names, each with the nodes that name it: a lock whose holder has a minority is free for the next caller, or about to be lost |
//! | scan | the keys of one node after another. The caller drops the names that come again |
//! | force release | released, if a node took the lock from the owner, and the owner cannot have a majority any more |
//!
//! Inspecting and scanning need a majority of the nodes. With fewer, nobody could tell whether a lock is held.

use std::time::Instant;

use crate::error::Failure;
use crate::message::{Cursor, Gone, Reply, Request, Seen};
use crate::name::LockKey;
use crate::script::{self, Command};
use crate::store::quorum::Shared;
use crate::store::quorum::connection::NodeConnection;
use crate::store::quorum::round::{Enough, gather};
use crate::sync::Arc;

impl Shared {
    /// Sends the same request to every node, and returns the reply of each, or its failure.
    fn ask_all(
        &self,
        connections: &mut [NodeConnection],
        request: &Request<'_>,
        command: &Command,
        until: Instant,
    ) -> Vec<Result<Reply, Failure>> {
        let commands = std::slice::from_ref(command);
        let failures = self.ask_each(connections, false, until, |_| Some(commands));
        let mut replies: Vec<_> = failures
            .into_iter()
            .map(|failure| failure.map(Err))
            .collect();
        gather(connections, self.within(until), &mut |number, answer| {
            replies[number] = Some(answer.and_then(|value| match value {
                redis::Value::ServerError(_) => Err(self.unexpected(number, value)),
                value => script::decode(request, value),
            }));
            Enough::No
        });
        replies
            .into_iter()
            .map(|reply| reply.unwrap_or_else(|| Err(Failure::another_question())))
            .collect()
    }

    /// Inspects locks at every node.
    pub(super) fn inspect(
        &self,
        connections: &mut [NodeConnection],
        request: &Request<'_>,
        until: Instant,
    ) -> Result<Reply, Failure> {
        let mut failures = vec![None; connections.len()];
        let mut merged: Option<Vec<Option<Seen>>> = None;
        let mut answered = 0;
        // By its text, because a connection loads only the scripts of locks.
        let command = script::encode(request, &self.script_settings).by_text();
        let replies = self.ask_all(connections, request, &command, until);
        for (number, reply) in replies.into_iter().enumerate() {
            match reply {
                Ok(Reply::Inspected(seen)) => {
                    answered += 1;
                    let address = &self.nodes[number].route.server.address;
                    let seen = seen
                        .into_iter()
                        .map(|seen| seen.map(|seen| at(seen, address)));
                    merged = Some(match merged {
                        None => seen.collect(),
                        // A node may answer about the first keys only.
                        Some(all) => all.into_iter().zip(seen).map(merge).collect(),
                    });
                }
                Ok(_) => failures[number] = Some(Failure::another_question()),
                Err(failure) => failures[number] = Some(failure),
            }
        }
        match merged {
            Some(merged) if answered >= self.needed => Ok(Reply::Inspected(merged)),
            _ => Err(self.no_quorum(answered, failures)),
        }
    }

    /// Lists some keys of one node. If the node fails, goes on with the next one.
    pub(super) fn scan(
        &self,
        connections: &mut [NodeConnection],
        (from, prefix, pattern): (Cursor, &str, &str),
        until: Instant,
    ) -> Result<Reply, Failure> {
        let node = from.node as usize;
        let request = Request::Scan {
            from,
            prefix,
            pattern,
        };
        let commands = [script::encode(&request, &self.script_settings)];
        let asked = |number| (number == node).then_some(&commands[..]);
        let mut failures = self.ask_each(connections, false, until, asked);
        let failure = failures.get_mut(node).and_then(Option::take);
        let mut answer = Err(failure.unwrap_or_else(Failure::another_question));
        gather(connections, self.within(until), &mut |_, value| {
            answer = value.and_then(|value| match value {
                redis::Value::ServerError(_) => Err(self.unexpected(node, value)),
                value => script::decode(&request, value),
            });
            Enough::Yes
        });
        let next_node = Cursor {
            node: from.node + 1,
            failed: from.failed + u32::from(answer.is_err()),
            ..Cursor::START
        };
        let next_node = Some(next_node).filter(|next| (next.node as usize) < self.nodes.len());
        match answer {
            Ok(Reply::Page { keys, next }) => Ok(Reply::Page {
                keys,
                next: next.or(next_node),
            }),
            Ok(_) => Err(Failure::another_question()),
            Err(failure) => {
                let failed = from.failed as usize + 1;
                if failed > self.nodes.len() - self.needed {
                    let mut failures = vec![None; self.nodes.len()];
                    failures[node] = Some(failure);
                    return Err(self.no_quorum(self.nodes.len() - failed, failures));
                }
                Ok(Reply::Page {
                    keys: Vec::new(),
                    next: next_node,
                })
            }
        }
    }

    /// Takes a lock from an owner at every node.
    pub(super) fn force_release(
        &self,
        connections: &mut [NodeConnection],
        key: &LockKey,
        owner: &str,
        until: Instant,
    ) -> Result<Reply, Failure> {
        let request = Request::ForceRelease { key, owner };
        let command = script::quorum::force_release(key, owner);
        let mut failures = vec![None; connections.len()];
        let (mut released, mut answered) = (false, 0);
        let replies = self.ask_all(connections, &request, &command, until);
        for (number, reply) in replies.into_iter().enumerate() {
            match reply {
                Ok(Reply::Released) => {
                    released = true;
                    answered += 1;
                }
                Ok(Reply::NotOwner(_)) => answered += 1,
                Ok(_) => failures[number] = Some(Failure::another_question()),
                Err(failure) => failures[number] = Some(failure),
            }
        }
        // The nodes that did not answer may all still have the owner.
        if connections.len() - answered >= self.needed {
            return Err(self.no_quorum(answered, failures));
        }
        Ok(if released {
            Reply::Released
        } else {
            Reply::NotOwner(Gone::Removed)
        })
    }
}

/// Returns what one node has seen, with the node's address at each holder.
fn at(seen: Seen, address: &Arc<str>) -> Seen {
    let mut seen = seen;
    for holder in &mut seen.holders {
        holder.nodes.push(Arc::clone(address));
    }
    seen
}

/// Returns what two nodes have seen of one lock.
fn merge((one, other): (Option<Seen>, Option<Seen>)) -> Option<Seen> {
    let (mut one, other) = match (one, other) {
        (Some(one), Some(other)) => (one, other),
        (one, other) => return one.or(other),
    };
    one.total_units = one.total_units.or(other.total_units);
    one.fence = one.fence.max(other.fence);
    one.waiters = one.waiters.max(other.waiters);
    for holder in other.holders {
        let mut known = one.holders.iter_mut();
        match known.find(|known| known.owner == holder.owner && known.units == holder.units) {
            Some(known) => {
                known.ttl = known.ttl.zip(holder.ttl).map(|(one, other)| one.max(other));
                known.nodes.extend(holder.nodes);
            }
            None => one.holders.push(holder),
        }
    }
    Some(one)
}
