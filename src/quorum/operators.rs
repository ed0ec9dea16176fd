//! The requests of operators, the question whether the nodes answer, and that about records of fences, to all nodes.
//!
//! | request | the reply |
//! | --- | --- |
//! | inspect | the holders that any node names, each with the nodes that name it: a lock whose holder has a minority is free for the next caller, or about to be lost |
//! | scan | the keys of one node after another. The caller drops the names that come again |
//! | publish, keep records | published, if a majority has done so |
//! | who leads | the holder that a majority names. It lasts for as long as a majority of them says, and its value is the one that it wrote last at any of those nodes: a node that joined later has none. Nobody, if no holder could have a majority whatever the other nodes say; otherwise it is unknown |
//! | a leader's value | recorded, if a majority holds the lock for it; lost, if so many nodes do not that no majority can |
//! | force release | released, if the nodes that took the lock from the owner, and those that did not answer, are a majority. The round is repeated until no node has to do that any more, because a node may join meanwhile. The nodes that did not answer then are too few for a majority |
//!
//! Inspecting and scanning need a majority of the nodes. With fewer, nobody could tell whether a lock is held.

use crate::error::{Failure, FailureKind, Outcome};
use crate::name::LockKey;
use crate::quorum::connection::{Connections, Enough, Recipients};
use crate::quorum::node::Node;
use crate::sys::{Arc, Ordering, Time};
use crate::wire::{self, Command, Cursor, Gone, Reply, Request, Seen, SeenLeader};

impl Connections {
    /// Asks every node whether it answers. Returns an error unless a majority does, and if the settings are wrong for any
    /// node.
    pub(super) fn ping(&mut self) -> Result<Reply, Failure> {
        let (state, ping) = (Arc::clone(&self.state), Command::new("PING"));
        let heard = |_, _| Ok(());
        let (answered, failures) = self.ask_all(&Request::Ping, &ping, state.needed, heard);
        // A manager is not built if the settings are wrong for any node.
        let is_of_settings = |failure: &&Failure| {
            matches!(failure.kind, FailureKind::Config("nodes" | "restart_delay"))
        };
        if let Some(failure) = failures.iter().flatten().find(is_of_settings) {
            return Err(failure.clone());
        }
        if answered < state.needed {
            return Err(state.no_quorum(answered, failures));
        }
        if state.nodes.iter().all(Node::is_checked) {
            state.is_checked.store(true, Ordering::Relaxed);
        }
        Ok(Reply::Pong)
    }

    /// Pings once, before the first request that may grant a lock: the manager may have been built without it. Goes on
    /// with each such request until each node was compared or is down.
    pub(super) fn check_once(&mut self) -> Result<(), Failure> {
        if self.state.is_checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let checked = self.ping().map(drop);
        checked.map_err(|failure| Failure {
            outcome: Outcome::NotExecuted,
            timed_out: failure.is_transient() && Time::now() >= self.until,
            ..failure
        })
    }

    /// Sends the same request to every node, and gives each reply to `heard`, in the order of the nodes. Returns how many
    /// nodes have replied, and the failures of the others. After `certain_at` replies it waits for the others only briefly.
    fn ask_all(
        &mut self,
        request: &Request<'_>,
        command: &Command,
        certain_at: usize,
        mut heard: impl FnMut(usize, Reply) -> Result<(), Failure>,
    ) -> (usize, Vec<Option<Failure>>) {
        let (state, commands) = (Arc::clone(&self.state), self.to_all(command));
        let mut replies: Vec<_> = self.each.iter().map(|_| None).collect();
        let mut count = 0;
        self.round(Recipients::All, commands, &mut |number, answer| {
            let reply = answer.and_then(|value| state.decode(number, request, value));
            count += usize::from(reply.is_ok());
            replies[number] = Some(reply);
            Enough::certain_if(count >= certain_at)
        });
        let mut failures = vec![None; replies.len()];
        for (number, reply) in replies.into_iter().enumerate() {
            let reply = reply.unwrap_or_else(|| Err(Failure::another_question()));
            failures[number] = reply.and_then(|reply| heard(number, reply)).err();
        }
        let answered = failures.iter().filter(|failure| failure.is_none()).count();
        (answered, failures)
    }

    /// Inspects locks at every node.
    pub(super) fn inspect(&mut self, request: &Request<'_>) -> Result<Reply, Failure> {
        let state = Arc::clone(&self.state);
        // By its text, because a connection loads only the scripts of locks.
        let command = wire::encode(request, &state.script_settings).by_text();
        let mut merged: Option<Vec<Option<Seen>>> = None;
        let (answered, failures) = self.ask_all(request, &command, usize::MAX, |number, reply| {
            let Reply::Inspected(seen) = reply else {
                return Err(Failure::another_question());
            };
            let address = &state.nodes[number].route.server.address;
            let seen = seen
                .into_iter()
                .map(|seen| seen.map(|seen| at(seen, address)));
            merged = Some(match merged.take() {
                None => seen.collect(),
                // A node may answer about the first keys only.
                Some(all) => all.into_iter().zip(seen).map(merge).collect(),
            });
            Ok(())
        });
        match merged {
            Some(merged) if answered >= state.needed => Ok(Reply::Inspected(merged)),
            _ => Err(state.no_quorum(answered, failures)),
        }
    }

    /// Publishes a message at every node, because a process may have a subscription at some of them only. Or keeps the
    /// records of fences at every node.
    pub(super) fn tell_all(&mut self, request: &Request<'_>) -> Result<Reply, Failure> {
        // By its text, because a connection loads only the scripts of locks.
        let command = wire::encode(request, &self.state.script_settings).by_text();
        let (answered, failures) = self.ask_all(request, &command, usize::MAX, |_, _| Ok(()));
        if answered < self.state.needed {
            return Err(self.state.no_quorum(answered, failures));
        }
        Ok(Reply::Published)
    }

    /// Lists some keys of one node. If the node fails, goes on with the next one.
    pub(super) fn scan(&mut self, from: Cursor, request: &Request<'_>) -> Result<Reply, Failure> {
        let (state, node) = (Arc::clone(&self.state), from.node as usize);
        let command = wire::encode(request, &state.script_settings).by_text();
        let commands = self.to_some(&command, |number| number == node);
        let mut answer = Err(Failure::another_question());
        self.round(Recipients::All, commands, &mut |_, value| {
            answer = value.and_then(|value| state.decode(node, request, value));
            Enough::Yes
        });
        let next_node = Cursor {
            node: from.node + 1,
            failed: from.failed + u32::from(answer.is_err()),
            ..Cursor::START
        };
        let nodes = state.nodes.len();
        let next_node = Some(next_node).filter(|next| (next.node as usize) < nodes);
        match answer {
            Ok(Reply::Page { keys, next }) => Ok(Reply::Page {
                keys,
                next: next.or(next_node),
            }),
            Ok(_) => Err(Failure::another_question()),
            Err(failure) => {
                let failed = from.failed as usize + 1;
                if failed > nodes - state.needed {
                    let mut failures = vec![None; nodes];
                    failures[node] = Some(failure);
                    return Err(state.no_quorum(nodes - failed, failures));
                }
                Ok(Reply::Page {
                    keys: Vec::new(),
                    next: next_node,
                })
            }
        }
    }

    /// Reads who leads at every node.
    pub(super) fn read_leader(&mut self, request: &Request<'_>) -> Result<Reply, Failure> {
        let state = Arc::clone(&self.state);
        let (needed, nodes) = (state.needed, state.nodes.len());
        let commands = self.to_all(&wire::encode(request, &state.script_settings));
        let (mut seen, mut failures) = (Vec::new(), vec![None; nodes]);
        self.round(Recipients::All, commands, &mut |number, answer| {
            match answer.and_then(|value| state.decode(number, request, value)) {
                Ok(Reply::Leader(holder)) => seen.push(holder),
                Ok(_) => failures[number] = Some(Failure::another_question()),
                Err(failure) => failures[number] = Some(failure),
            }
            Enough::certain_if(leader_of(&seen, needed, nodes).is_some())
        });
        match leader_of(&seen, needed, nodes) {
            Some(reply) => Ok(reply),
            None => Err(state.no_quorum(seen.len(), failures)),
        }
    }

    /// Writes the value of a leader at every node.
    pub(super) fn write_leader(&mut self, request: &Request<'_>) -> Result<Reply, Failure> {
        let state = Arc::clone(&self.state);
        let (needed, nodes) = (state.needed, state.nodes.len());
        let commands = self.to_all(&wire::encode(request, &state.script_settings));
        let (mut recorded, mut gone, mut failures) = (0, Vec::new(), vec![None; nodes]);
        self.round(Recipients::All, commands, &mut |number, answer| {
            match answer.and_then(|value| state.decode(number, request, value)) {
                Ok(Reply::NotOwner(why)) => gone.push(why),
                Ok(_) => recorded += 1,
                Err(failure) => failures[number] = Some(failure),
            }
            if recorded >= needed || gone.len() > nodes - needed {
                return Enough::Yes;
            }
            Enough::No
        });
        if recorded >= needed {
            Ok(Reply::Recorded)
        } else if gone.len() > nodes - needed {
            Ok(Reply::NotOwner(Gone::of_all(gone.into_iter())))
        } else {
            let failure = state.no_quorum(recorded, failures);
            Err(failure.with(Outcome::Unknown))
        }
    }

    /// Takes a lock from an owner at every node.
    pub(super) fn force_release(
        &mut self,
        request: &Request<'_>,
        key: &LockKey,
        owner: &str,
    ) -> Result<Reply, Failure> {
        let command = wire::quorum::force_release(key, owner, &self.state.script_settings);
        let mut removed = vec![false; self.each.len()];
        loop {
            let mut has_removed = false;
            let (answered, failures) =
                self.ask_all(request, &command, usize::MAX, |number, reply| {
                    has_removed |= reply == Reply::Released;
                    removed[number] |= reply == Reply::Released;
                    match reply {
                        Reply::Released | Reply::NotOwner(_) => Ok(()),
                        _ => Err(Failure::another_question()),
                    }
                });
            // The nodes that did not answer may all still have the owner.
            let unanswered = failures.len() - answered;
            if unanswered >= self.state.needed {
                return Err(self.state.no_quorum(answered, failures));
            }
            if has_removed {
                continue;
            }
            // An owner without a majority did not hold the lock: an earlier call may have left it at a few nodes.
            let votes = removed.iter().filter(|removed| **removed).count();
            if votes > 0 && votes + unanswered >= self.state.needed {
                return Ok(Reply::Released);
            }
            return Ok(Reply::NotOwner(Gone::Removed));
        }
    }
}

/// Returns the holder that a majority of the nodes names: see the top. `None` if the nodes that have not answered may decide.
fn leader_of(seen: &[Option<SeenLeader>], needed: usize, nodes: usize) -> Option<Reply> {
    let holders = || seen.iter().flatten();
    let votes = |owner: &str| holders().filter(|one| one.owner == owner).count();
    let most = holders().map(|one| votes(&one.owner)).max().unwrap_or(0);
    if most < needed {
        let is_nobody = most + (nodes - seen.len()) < needed;
        return is_nobody.then_some(Reply::Leader(None));
    }
    let mut named: Vec<_> = holders().filter(|one| votes(&one.owner) == most).collect();
    named.sort_unstable_by_key(|one| std::cmp::Reverse(one.left));
    let left = named[needed - 1].left;
    let last = named.into_iter().max_by_key(|one| one.number)?.clone();
    Some(Reply::Leader(Some(SeenLeader { left, ..last })))
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
    if other.waiters > one.waiters {
        (one.waiters, one.waiting) = (other.waiters, other.waiting);
    }
    for holder in other.holders {
        let mut known = one.holders.iter_mut();
        match known.find(|known| known.owner == holder.owner && known.units == holder.units) {
            Some(known) => {
                known.ttl = known.ttl.zip(holder.ttl).map(|(one, other)| one.max(other));
                // Only a release writes this, so one node that has it is right.
                known.is_kept |= holder.is_kept;
                known.nodes.extend(holder.nodes);
            }
            None => one.holders.push(holder),
        }
    }
    Some(one)
}
