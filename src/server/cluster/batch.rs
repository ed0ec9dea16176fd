//! The requests of the renewal thread: batches of renewals and of releases, and single releases.
//!
//! A script may use keys of one slot only. So a batch has one command for each slot, and all commands for a master go in
//! one write.
//!
//! | the answer about a slot | its names |
//! | --- | --- |
//! | a reply | have their results |
//! | `MOVED` | are sent to the new owner |
//! | `ASK` or `TRYAGAIN`, for several names | are sent one by one: while a slot moves, each name works alone |
//! | `ASK`, for one name | is sent to the named node after `ASKING` |
//! | a refusal, for several names | are sent one by one: the user may be denied one name of them |
//! | a refusal, for one name | is refused |
//! | none, or another error | have no result, and are sent again in their own time |
//!
//! All that takes at most [`ROUNDS`] rounds within the limit of the request. The request has failed only if no name has a
//! result, and the last request to each master has failed.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;

use super::call::{is_split, or_release_alone};
use super::connection::Part;
use super::connections::MasterConnections;
use super::master::Master;
use super::state::ClusterState;
use crate::error::{Failure, FailureKind, Outcome};
use crate::name::LockKey;
use crate::net::deadline::Deadline;
use crate::net::route::NodeReport;
use crate::server::{Answer, DedicatedConnection};
use crate::sys::Arc;
use crate::wire::{self, Command, NotReleased, PlainRelease, Renewal, Renewed, Reply, Request};

/// How often the names of a slot are sent in one request.
const ROUNDS: u32 = 4;

/// The connections of the renewal thread to the masters of a cluster.
pub(super) struct ClusterConnection {
    shared: Arc<ClusterState>,
    /// Empty before the first request.
    connections: Option<MasterConnections>,
}

/// Some names of one slot, by their numbers in the batch, and the node to which the slot is moving.
struct Group {
    slot: u16,
    numbers: Vec<usize>,
    moving_to: Option<Arc<Master>>,
}

/// The result of one name: `None` if the server refused it.
type Answered<R> = Option<R>;

/// The results of a batch.
struct Results<R> {
    /// For each name its result; `None` without an answer.
    names: Vec<Option<Answered<R>>>,
    /// The first failure.
    failure: Option<Failure>,
    is_resent: bool,
}

/// A batch of requests about single names.
trait Batch {
    type Result;

    fn names(&self) -> usize;

    fn key(&self, number: usize) -> &LockKey;

    /// Calls `f` with a request about these names.
    fn with<T>(&self, numbers: &[usize], f: impl FnOnce(&Request<'_>) -> T) -> T;

    /// Returns the result of each name in a reply.
    fn results(reply: Reply) -> Result<Vec<Answered<Self::Result>>, Failure>;

    /// Whether the caller relies on the writes.
    const IS_GAIN: bool;
}

/// The leases, and whether the request keeps the records of their fences.
struct Renewals<'a>(&'a [Renewal<'a>], bool);

impl Batch for Renewals<'_> {
    type Result = Renewed;
    const IS_GAIN: bool = true;

    fn names(&self) -> usize {
        self.0.len()
    }

    fn key(&self, number: usize) -> &LockKey {
        self.0[number].key
    }

    fn with<T>(&self, numbers: &[usize], f: impl FnOnce(&Request<'_>) -> T) -> T {
        let some: Vec<_> = numbers.iter().map(|it| self.0[*it].clone()).collect();
        f(&if self.1 {
            Request::KeepRecords(&some)
        } else {
            Request::Renew(&some)
        })
    }

    fn results(reply: Reply) -> Result<Vec<Answered<Renewed>>, Failure> {
        Ok(reply.renewed()?.into_iter().map(Some).collect())
    }
}

struct Releases<'a>(&'a [PlainRelease<'a>]);

impl Batch for Releases<'_> {
    type Result = Reply;
    const IS_GAIN: bool = false;

    fn names(&self) -> usize {
        self.0.len()
    }

    fn key(&self, number: usize) -> &LockKey {
        self.0[number].target.first()
    }

    fn with<T>(&self, numbers: &[usize], f: impl FnOnce(&Request<'_>) -> T) -> T {
        let some: Vec<_> = numbers.iter().map(|it| self.0[*it]).collect();
        f(&Request::Release(&some))
    }

    fn results(reply: Reply) -> Result<Vec<Answered<Reply>>, Failure> {
        match reply {
            Reply::Each(each) => Ok(each.into_iter().map(Result::ok).collect()),
            _ => Err(Failure::another_question()),
        }
    }
}

impl ClusterConnection {
    pub(super) fn new(shared: Arc<ClusterState>) -> Self {
        Self {
            shared,
            connections: None,
        }
    }

    /// Sends a batch: the table at the top.
    fn send<B: Batch>(
        &mut self,
        batch: &B,
        limit: Duration,
    ) -> Result<Results<B::Result>, Failure> {
        let mut deadline = Deadline::after(limit);
        let shared = Arc::clone(&self.shared);
        shared.map(&mut deadline)?;
        let connections = opened(&mut self.connections)?;
        let mut results = Results {
            names: (0..batch.names()).map(|_| None).collect(),
            failure: None,
            is_resent: false,
        };
        let mut groups = by_slot(batch);
        for _ in 0..ROUNDS {
            let left = deadline.left();
            if groups.is_empty() || left.is_zero() {
                break;
            }
            let parts = parts(&shared, batch, &mut groups, &mut results, &mut deadline);
            let exchanged = connections.exchange(&shared, &parts, left, B::IS_GAIN);
            results.is_resent |= exchanged.is_resent;
            let mut again = Vec::new();
            for ((group, part), answer) in groups.iter().zip(&parts).zip(exchanged.answers) {
                let reply = reply_of(&shared, batch, group, part, answer);
                match reply {
                    Ok(replies) => {
                        for (number, reply) in group.numbers.iter().zip(replies) {
                            results.names[*number] = Some(reply);
                        }
                    }
                    Err(failure) => {
                        if is_nonsense(&failure) {
                            connections.close(&part.master);
                        }
                        let next = group.after(&shared, &part.master, &failure);
                        if let (None, [only], true) = (&next, &*group.numbers, is_refusal(&failure))
                        {
                            results.names[*only] = Some(None);
                        }
                        again.extend(next.into_iter().flatten());
                        results.failure.get_or_insert(failure);
                    }
                }
            }
            groups = again;
        }
        match results.failure.take() {
            Some(failure) if results.names.iter().all(Option::is_none) && shared.is_lost() => {
                Err(transient(failure))
            }
            _ => Ok(results),
        }
    }

    /// Sends one request about names of one slot.
    fn ask(
        &mut self,
        slot: u16,
        request: &Request<'_>,
        deadline: &mut Deadline<'_>,
    ) -> Result<Answer, Failure> {
        let shared = Arc::clone(&self.shared);
        let connections = opened(&mut self.connections)?;
        let (mut moving_to, mut is_resent) = (None, false);
        let mut rounds = 0;
        loop {
            rounds += 1;
            let left = deadline.left();
            let is_asking = moving_to.is_some();
            let master = match moving_to.take() {
                Some(master) => master,
                None => shared.owner(slot, deadline)?,
            };
            let parts = [Part {
                master,
                is_asking,
                command: command(&shared, request),
            }];
            let exchanged = connections.exchange(&shared, &parts, left, false);
            is_resent |= exchanged.is_resent;
            let answer = exchanged.answers.into_iter().next();
            let answer = answer.unwrap_or_else(|| Err(Failure::another_question()));
            let master = &parts[0].master;
            let reply = answer
                .and_then(|value| checked(&shared, master, value))
                .and_then(|value| wire::decode(request, value));
            let failure = match reply {
                Ok(reply) => {
                    return Ok(Answer {
                        reply,
                        resent: is_resent,
                    });
                }
                Err(failure) => failure,
            };
            if is_nonsense(&failure) {
                connections.close(master);
            }
            match (failure.kind, failure.redirect()) {
                (FailureKind::Moved, Some(to)) if rounds < ROUNDS => {
                    shared.redirected(master, to, true);
                }
                (FailureKind::Ask, Some(to)) if rounds < ROUNDS => {
                    moving_to = Some(shared.redirected(master, to, false));
                }
                _ => return Err(transient(failure)),
            }
        }
    }
}

/// Returns the connections, which need a pair of sockets from the start.
fn opened(connections: &mut Option<MasterConnections>) -> Result<&mut MasterConnections, Failure> {
    match connections {
        Some(connections) => Ok(connections),
        none => Ok(none.insert(MasterConnections::new()?)),
    }
}

impl DedicatedConnection for ClusterConnection {
    fn open(&mut self, is_silent: bool) -> Result<(), Failure> {
        let limit = self.shared.routes.settings.connect_timeout;
        let masters = self.shared.map(&mut Deadline::after(limit))?.masters();
        let connections = opened(&mut self.connections)?;
        if is_silent {
            connections.check(&self.shared);
        }
        connections.open(&masters, limit);
        Ok(())
    }

    fn call(&mut self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure> {
        let limit = limit.min(self.shared.routes.settings.io_timeout);
        let (reply, resent) = match request {
            Request::Renew(batch) | Request::KeepRecords(batch) => {
                let keeps_records = matches!(request, Request::KeepRecords(_));
                let results = self.send(&Renewals(batch, keeps_records), limit)?;
                let renewed = results.names.into_iter().map(|answer| match answer {
                    None => Renewed::Unanswered,
                    Some(None) => Renewed::Refused,
                    Some(Some(renewed)) => renewed,
                });
                (Reply::Renewed(renewed.collect()), results.is_resent)
            }
            Request::Release(batch) => {
                let results = self.send(&Releases(batch), limit)?;
                let released = results.names.into_iter().map(|answer| match answer {
                    None => Err(NotReleased::Unanswered),
                    Some(None) => Err(NotReleased::Refused),
                    Some(Some(reply)) => Ok(reply),
                });
                (Reply::Each(released.collect()), results.is_resent)
            }
            Request::Lock { target, .. } => {
                let (slot, mut deadline) = (target.first().slot(), Deadline::after(limit));
                return or_release_alone(request, &mut |request| {
                    self.ask(slot, request, &mut deadline)
                });
            }
            _ => return Err(Failure::another_question()),
        };
        Ok(Answer { reply, resent })
    }

    fn take_reports(&mut self) -> Vec<NodeReport> {
        self.shared.reports()
    }
}

impl Group {
    /// Returns the groups to send after a failure. Returns `None` if nothing more can be sent now.
    fn after(
        &self,
        shared: &ClusterState,
        from: &Arc<Master>,
        failure: &Failure,
    ) -> Option<Vec<Self>> {
        let moved = |moving_to| Self {
            slot: self.slot,
            numbers: self.numbers.clone(),
            moving_to,
        };
        match (failure.kind, failure.redirect()) {
            (FailureKind::Moved, Some(to)) => {
                shared.redirected(from, to, true);
                Some(vec![moved(None)])
            }
            (FailureKind::Ask, Some(to)) if self.numbers.len() == 1 => {
                let to = shared.redirected(from, to, false);
                Some(vec![moved(Some(to))])
            }
            _ if is_split(failure, self.numbers.len())
                || (is_refusal(failure) && self.numbers.len() > 1) =>
            {
                let one = |number: &usize| Self {
                    slot: self.slot,
                    numbers: vec![*number],
                    moving_to: None,
                };
                Some(self.numbers.iter().map(one).collect())
            }
            _ => None,
        }
    }
}

/// Returns the names of a batch, by slot.
fn by_slot<B: Batch>(batch: &B) -> Vec<Group> {
    let mut slots = BTreeMap::<u16, Vec<usize>>::new();
    for number in 0..batch.names() {
        let slot = batch.key(number).slot();
        slots.entry(slot).or_default().push(number);
    }
    let group = |(slot, numbers)| Group {
        slot,
        numbers,
        moving_to: None,
    };
    slots.into_iter().map(group).collect()
}

/// Returns the part of each group. Removes the groups whose slots nobody has.
fn parts<B: Batch>(
    shared: &Arc<ClusterState>,
    batch: &B,
    groups: &mut Vec<Group>,
    results: &mut Results<B::Result>,
    deadline: &mut Deadline<'_>,
) -> Vec<Part> {
    let mut parts = Vec::with_capacity(groups.len());
    groups.retain(|group| {
        let is_asking = group.moving_to.is_some();
        let master = match &group.moving_to {
            Some(master) => Ok(Arc::clone(master)),
            None => shared.owner(group.slot, deadline),
        };
        match master {
            Ok(master) => {
                parts.push(Part {
                    master,
                    is_asking,
                    command: batch.with(&group.numbers, |request| command(shared, request)),
                });
                true
            }
            Err(failure) => {
                results.failure.get_or_insert(failure);
                false
            }
        }
    });
    parts
}

fn command(shared: &ClusterState, request: &Request<'_>) -> Command {
    wire::encode(request, &shared.routes.first.script_settings)
}

/// Reads the answer about a group.
fn reply_of<B: Batch>(
    shared: &ClusterState,
    batch: &B,
    group: &Group,
    part: &Part,
    answer: Result<Value, Failure>,
) -> Result<Vec<Answered<B::Result>>, Failure> {
    let value = checked(shared, &part.master, answer?)?;
    let reply = batch.with(&group.numbers, |request| wire::decode(request, value))?;
    B::results(reply)
}

/// Returns an answer that is no error, of a master that the map still has.
fn checked(shared: &ClusterState, master: &Master, value: Value) -> Result<Value, Failure> {
    match value {
        Value::ServerError(error) => {
            let failure = master.route.refused(error);
            if failure.is_transient() && failure.kind != FailureKind::TryAgain {
                shared.suspect(master);
            }
            Err(failure)
        }
        value => master.check_in_use().map(|()| value),
    }
}

/// Returns whether the answer may belong to another request.
fn is_nonsense(failure: &Failure) -> bool {
    failure.kind == FailureKind::Protocol && failure.outcome == Outcome::Unknown
}

/// Returns whether the server has rejected the request, and would do so again.
fn is_refusal(failure: &Failure) -> bool {
    let is_redirected = matches!(failure.kind, FailureKind::Moved | FailureKind::Ask);
    let is_an_answer = failure.outcome != Outcome::Unknown && !failure.of_connecting;
    !failure.is_transient() && !is_redirected && is_an_answer
}

/// Returns a failure of the connection: the renewal thread repeats the request.
fn transient(failure: Failure) -> Failure {
    match failure.kind {
        FailureKind::Moved | FailureKind::Ask => Failure {
            kind: FailureKind::Unavailable,
            ..failure
        },
        FailureKind::TryAgain => Failure {
            kind: FailureKind::SlotMoves,
            ..failure
        },
        _ => failure,
    }
}
