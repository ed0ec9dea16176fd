//! The requests of the renewal thread, on connections outside the pools: batches of renewals and of releases, and single
//! releases.
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
//!
//! A master may hang. So if a round has commands for several masters, each master's are sent on a short-lived thread, which
//! has the master's link meanwhile. Commands for one master alone, and those for which no thread can be started, are sent on
//! the renewal thread itself, within the limit of the round.
//!
//! | state of a link | event | next state |
//! | --- | --- | --- |
//! | free | a round has commands for the master | busy: the thread sends them, and connects before if it must |
//! | free, after a failure | the same | busy: the thread sends a PING only, and the commands fail as the last ones did |
//! | free, after a failure | another connection gets an answer of the master | free |
//! | busy | the same | busy; the commands fail |
//! | busy | the thread is done | free; the answers count if the round goes on |
//!
//! A round ends when all answers have come. It waits for a master for at most a *grace*: twice what the master took lately,
//! and at least [`SHORTEST_GRACE`]. It does not wait for a link after a failure. So a master that hangs delays the others once.
//! Too few replicas are no failure of a link: they change only the answers that would have counted.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError, bounded};
use redis::Value;

use super::call::{is_split, or_release_alone};
use super::master::{Address, Master};
use super::state::Shared;
use crate::error::{Failure, FailureKind, Outcome};
use crate::net::deadline::Deadline;
use crate::net::refusal::unavailable;
use crate::net::route::NodeReport;
use crate::server::link::Link;
use crate::server::{Answer, DedicatedConnection};
use crate::sys::hash::HashMap;
use crate::sys::thread::{self, Parker};
use crate::sys::{Arc, Machine, Ordering, Time};
use crate::wire::{self, Command, NotReleased, Renewed, Reply, Request};

/// How often the names of a slot are sent in one request.
const ROUNDS: u32 = 4;
/// The shortest grace of a master. It is twice as long if replicas must confirm the writes: a server may notice 100 ms late
/// that the time of a WAIT is over.
const SHORTEST_GRACE: Duration = Duration::from_millis(200);

/// The links of the renewal thread to the masters of a cluster.
pub(super) struct Renewals {
    shared: Arc<Shared>,
    connections: HashMap<Address, Connection>,
    /// Where the renewal thread waits for the threads that send.
    sleeps: Arc<Parker>,
}

struct Connection {
    master: Arc<Master>,
    /// `None` while a thread has it.
    link: Option<Link>,
    /// Brings the answers from that thread, and the link back.
    sent: Option<Receiver<Sent>>,
    /// Why the connection of the last request has failed.
    failure: Option<Failure>,
    /// How long the master took lately.
    took: Duration,
    /// The numbers of the parts in this round that have no answer yet.
    parts: Vec<usize>,
}

/// The link that a thread has used, and the answers.
type Sent = (Link, Answers);
type Answers = Result<Vec<Result<Value, Failure>>, Failure>;

/// Some names of one slot, by their numbers in the batch, and the node to which the slot is moving.
struct Group {
    slot: u16,
    numbers: Vec<usize>,
    moving_to: Option<Arc<Master>>,
}

/// The command about a group, for one master.
struct Part {
    group: Group,
    master: Arc<Master>,
    command: Command,
}

impl Renewals {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            connections: HashMap::default(),
            sleeps: Arc::default(),
        }
    }

    /// Sends a request: the first table at the top.
    fn send(&mut self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure> {
        let mut deadline = Deadline::after(limit);
        let shared = Arc::clone(&self.shared);
        shared.map(&mut deadline)?;
        let (slots, mut results) = match (batch_of(request), request) {
            (Some((slots, results)), _) => (slots, Some(results)),
            (None, request) => {
                let lock = request.lock().ok_or_else(Failure::another_question)?;
                (vec![lock.target.first().slot()], None)
            }
        };
        let mut groups = by_slot(slots);
        let (mut has_results, mut resent) = (false, false);
        let mut first_failure = None;
        for _ in 0..ROUNDS {
            let left = deadline.left();
            if groups.is_empty() || left.is_zero() {
                break;
            }
            let mut parts = Vec::with_capacity(groups.len());
            for group in mem::take(&mut groups) {
                let owner = || shared.owner(group.slot, &mut deadline);
                match group.moving_to.clone().map_or_else(owner, Ok) {
                    Ok(master) => parts.push(Part {
                        command: about(request, &group.numbers, |request| {
                            wire::encode(request, &shared.routes.first.script_settings)
                        }),
                        group,
                        master,
                    }),
                    Err(failure) => drop(first_failure.get_or_insert(failure)),
                }
            }
            let is_gain = matches!(results, Some(Reply::Renewed(_)));
            let answers = self.exchange(&parts, left, is_gain, &mut resent);
            for (Part { group, master, .. }, answer) in parts.into_iter().zip(answers) {
                let answer = answer.and_then(|value| checked(&shared, &master, value));
                let reply = answer.and_then(|value| {
                    about(request, &group.numbers, |request| {
                        wire::decode(request, value)
                    })
                });
                match (&mut results, reply) {
                    (None, Ok(reply)) => return Ok(Answer { reply, resent }),
                    (Some(results), Ok(reply)) => {
                        has_results = true;
                        take_results(results, &group.numbers, reply)?;
                    }
                    (results, Err(failure)) => {
                        if failure.kind == FailureKind::Protocol
                            && failure.outcome == Outcome::Unknown
                        {
                            // The answer may belong to another request.
                            self.connections.remove(&master.address);
                        }
                        match (group.after(&shared, &master, &failure), results) {
                            (Some(next), _) => groups.extend(next),
                            (None, Some(results)) if is_refusal(&failure) => {
                                has_results = true;
                                refuse(results, &group.numbers);
                            }
                            (None, _) => {}
                        }
                        first_failure.get_or_insert(failure);
                    }
                }
            }
        }
        match (first_failure, results) {
            (Some(failure), None) => Err(transient(failure)),
            (Some(failure), Some(_)) if !has_results && shared.is_lost() => Err(transient(failure)),
            (_, results) => Ok(Answer {
                reply: results.ok_or_else(Failure::another_question)?,
                resent,
            }),
        }
    }

    /// Sends each part to its master, and waits for the answers: the second table at the top. Suspects the masters that have
    /// not answered. With `is_gain` replicas must confirm the writes, if the settings name any.
    fn exchange(
        &mut self,
        parts: &[Part],
        limit: Duration,
        is_gain: bool,
        resent: &mut bool,
    ) -> Vec<Result<Value, Failure>> {
        let begun = Time::now();
        self.connections
            .retain(|_, connection| !connection.master.is_retired.load(Ordering::Acquire));
        let mut answers = vec![None; parts.len()];
        for (number, part) in parts.iter().enumerate() {
            // Redirections of the same batch may have retired it. It gets no connection any more.
            match part.master.check_in_use() {
                Ok(()) => self.to(&part.master).parts.push(number),
                Err(failure) => answers[number] = Some(Err(failure.with(Outcome::NotExecuted))),
            }
        }
        let shared = Arc::clone(&self.shared);
        let longest = shared.routes.settings.io_timeout;
        let asked = self.connections.values();
        let is_alone = asked.filter(|it| !it.parts.is_empty()).count() == 1;
        for connection in self.connections.values_mut() {
            connection.take();
            if connection.parts.is_empty() {
                continue;
            }
            let is_busy = connection.link.is_none();
            if !connection.master.is_suspected.load(Ordering::Relaxed) {
                connection.failure = None;
            }
            let failure = connection
                .failure
                .clone()
                .map(|failure| failure.with(Outcome::NotExecuted));
            if is_busy || failure.is_some() {
                shared.suspect(&connection.master);
                let address = &connection.master.route.server.address;
                let words = "the node has not answered an earlier request";
                let failure = failure.unwrap_or_else(|| unavailable(format!("{address}: {words}")));
                for number in connection.parts.drain(..) {
                    answers[number] = Some(Err(failure.clone()));
                }
                let ping = [Command::new("PING")];
                let ping = move |link: &mut Link, limit| link.batch(&ping, None, limit);
                connection.begin(&self.sleeps, false, (longest, limit), ping);
                continue;
            }
            let mut commands = Vec::new();
            for part in connection.parts.iter().map(|number| &parts[*number]) {
                if part.group.moving_to.is_some() {
                    // ASKING and its command are one unit. So the server must not answer the command with `NOSCRIPT`.
                    commands.extend([Command::new("ASKING"), part.command.by_text()]);
                } else {
                    commands.push(part.command.clone());
                }
            }
            let within = is_gain.then(|| connection.grace(is_gain, limit));
            let send = move |link: &mut Link, limit| link.batch(&commands, within, limit);
            connection.begin(&self.sleeps, is_alone, (longest, limit), send);
        }
        loop {
            let mut grace = None;
            for connection in self.connections.values_mut() {
                if connection.parts.is_empty() {
                    continue;
                }
                let Some((done, was_resent)) = connection.take() else {
                    grace = grace.max(Some(connection.grace(is_gain, limit)));
                    continue;
                };
                *resent |= was_resent;
                let mut done = done.map(Vec::into_iter);
                if connection.failure.is_some() {
                    shared.suspect(&connection.master);
                }
                for number in connection.parts.drain(..) {
                    if let (Ok(values), Some(_)) = (&mut done, &parts[number].group.moving_to) {
                        // The answer to ASKING.
                        values.next();
                    }
                    answers[number] = match &mut done {
                        Ok(values) => values.next(),
                        Err(failure) => Some(Err(failure.clone())),
                    };
                }
            }
            let Some(until) = grace.map(|grace| begun + grace) else {
                break;
            };
            if Time::now() >= until {
                break;
            }
            self.sleeps.sleep_until(&Machine::here(), until);
        }
        // A master that has not answered by now is late.
        for connection in self.connections.values_mut() {
            if !mem::take(&mut connection.parts).is_empty() {
                shared.suspect(&connection.master);
            }
        }
        let late = || {
            let words = "the node has not answered in time";
            Failure {
                timed_out: true,
                ..Failure::plain(FailureKind::Unavailable, Outcome::Unknown, words)
            }
        };
        let of_part = |answer: Option<_>| answer.unwrap_or_else(|| Err(late()));
        answers.into_iter().map(of_part).collect()
    }

    fn to(&mut self, master: &Arc<Master>) -> &mut Connection {
        let new = || Connection {
            master: Arc::clone(master),
            link: Some(link_to(master)),
            sent: None,
            failure: None,
            took: Duration::ZERO,
            parts: Vec::new(),
        };
        self.connections
            .entry(master.address.clone())
            .or_insert_with(new)
    }
}

impl Connection {
    /// Returns how long a round with this limit waits for the master.
    fn grace(&self, is_gain: bool, limit: Duration) -> Duration {
        let route = &self.master.route;
        let shortest = if is_gain && route.replicas > 0 {
            SHORTEST_GRACE * 2
        } else {
            SHORTEST_GRACE
        };
        // A link that takes longer than the limit has two round trips.
        let its = (self.took * 2).max(shortest.min(limit));
        its.min(route.io_timeout)
    }

    /// free: does `work`. A thread does it within the first limit. Without a thread, because it `is_alone` or none can be
    /// started, it is done here within the second limit.
    fn begin(
        &mut self,
        sleeps: &Arc<Parker>,
        is_alone: bool,
        limits: (Duration, Duration),
        work: impl FnOnce(&mut Link, Duration) -> Answers + Send + 'static,
    ) {
        let Some(link) = self.link.take() else {
            return;
        };
        // A thread that cannot be started drops what it was given. So the link and the work wait in this channel for the thread
        // that does the work.
        let (give, work_to_do) = bounded(1);
        give.send((link, work)).ok();
        let (sender, sent) = bounded(1);
        self.sent = Some(sent);
        let sleeps = Arc::clone(sleeps);
        let run = move |limit| {
            if let Ok((mut link, work)) = work_to_do.try_recv() {
                let done = work(&mut link, limit);
                // If nobody receives it, the link is not needed any more.
                sender.send((link, done)).ok();
                sleeps.wake();
            }
        };
        let by_thread = run.clone();
        if is_alone || thread::spawn("", move || by_thread(limits.0)).is_err() {
            run(limits.1);
        }
    }

    /// busy: takes what the thread brings, if it is done, and whether a request was written twice.
    fn take(&mut self) -> Option<(Answers, bool)> {
        let (link, done) = match self.sent.as_ref()?.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Ok(sent) => sent,
            Err(TryRecvError::Disconnected) => {
                let failure = unavailable("sending to a master panicked");
                (link_to(&self.master), Err(failure))
            }
        };
        let failure = match &done {
            Err(failure) => Some(failure),
            // After too few replicas the connection is as good as before.
            Ok(_) if link.is_open() => None,
            Ok(answers) => answers.iter().find_map(|answer| answer.as_ref().err()),
        };
        self.failure = failure.cloned();
        // An answer that replicas have not confirmed is one too.
        let is_answer = |answer: &_| !matches!(answer, Ok(Value::ServerError(_)));
        let has_answered = |answers: &Vec<_>| answers.iter().any(is_answer);
        if self.failure.is_none() && done.as_ref().is_ok_and(has_answered) {
            self.master.note_answer();
        }
        self.took = link.round_trip();
        let was_resent = link.resent;
        (self.link, self.sent) = (Some(link), None);
        Some((done, was_resent))
    }
}

fn link_to(master: &Master) -> Link {
    Link::dedicated(master.route.clone(), None)
}

impl DedicatedConnection for Renewals {
    /// Connects to all masters. Waits for at most `connect_timeout`, and once one connection is open, only for a grace.
    fn open(&mut self, is_silent: bool) -> Result<(), Failure> {
        let limit = self.shared.routes.settings.connect_timeout;
        let mut until = Time::now() + limit;
        let map = self.shared.map(&mut Deadline::after(limit))?;
        for master in map.masters() {
            let sleeps = Arc::clone(&self.sleeps);
            let connection = self.to(&master);
            connection.take();
            let open = move |link: &mut Link, _| link.open(is_silent).map(|()| Vec::new());
            connection.begin(&sleeps, false, (limit, limit), open);
        }
        loop {
            for connection in self.connections.values_mut() {
                match connection.take() {
                    Some((Ok(_), _)) => until = until.min(Time::now() + SHORTEST_GRACE),
                    Some((Err(_), _)) => self.shared.suspect(&connection.master),
                    None => {}
                }
            }
            let is_opening = self.connections.values().any(|it| it.sent.is_some());
            if !is_opening || Time::now() >= until {
                return Ok(());
            }
            self.sleeps.sleep_until(&Machine::here(), until);
        }
    }

    fn call(&mut self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure> {
        let limit = limit.min(self.shared.routes.settings.io_timeout);
        or_release_alone(request, &mut |request| self.send(request, limit))
    }

    fn take_reports(&mut self) -> Vec<NodeReport> {
        self.shared.reports()
    }
}

impl Group {
    /// Returns the groups to send after a failure. Returns `None` if nothing more can be sent now.
    fn after(&self, shared: &Shared, from: &Arc<Master>, failure: &Failure) -> Option<Vec<Self>> {
        let group = |numbers, moving_to| Self {
            slot: self.slot,
            numbers,
            moving_to,
        };
        let is_single = self.numbers.len() == 1;
        match (failure.kind, failure.redirect()) {
            (FailureKind::Moved, Some(to)) => {
                shared.redirected(from, to, true);
                Some(vec![group(self.numbers.clone(), None)])
            }
            (FailureKind::Ask, Some(to)) if is_single => {
                let to = shared.redirected(from, to, false);
                Some(vec![group(self.numbers.clone(), Some(to))])
            }
            _ if is_split(failure, self.numbers.len()) || (is_refusal(failure) && !is_single) => {
                let one = |number: &usize| group(vec![*number], None);
                Some(self.numbers.iter().map(one).collect())
            }
            _ => None,
        }
    }
}

/// Returns the names of a batch by their slots.
fn by_slot(slots_of_names: Vec<u16>) -> Vec<Group> {
    let mut slots = BTreeMap::<u16, Vec<usize>>::new();
    for (number, slot) in slots_of_names.into_iter().enumerate() {
        slots.entry(slot).or_default().push(number);
    }
    let group = |(slot, numbers)| Group {
        slot,
        numbers,
        moving_to: None,
    };
    slots.into_iter().map(group).collect()
}

/// Returns the slots of the names of a batch, and its results before any answer.
pub(super) fn batch_of(request: &Request<'_>) -> Option<(Vec<u16>, Reply)> {
    let (slots, results): (Vec<_>, _) = match request {
        Request::Renew(batch) | Request::KeepRecords(batch) => (
            batch.iter().map(|renewal| renewal.key.slot()).collect(),
            Reply::Renewed(vec![Renewed::Unanswered; batch.len()]),
        ),
        Request::Release(batch) => (
            batch
                .iter()
                .map(|(lock, _)| lock.target.first().slot())
                .collect(),
            Reply::Each(vec![Err(NotReleased::Unanswered); batch.len()]),
        ),
        _ => return None,
    };
    Some((slots, results))
}

/// Calls `f` with a request about these names of a batch.
pub(super) fn about<T>(
    request: &Request<'_>,
    numbers: &[usize],
    f: impl FnOnce(&Request<'_>) -> T,
) -> T {
    fn some<N: Clone>(batch: &[N], numbers: &[usize]) -> Vec<N> {
        numbers.iter().map(|it| batch[*it].clone()).collect()
    }
    match request {
        Request::Renew(batch) => f(&Request::Renew(&some(batch, numbers))),
        Request::KeepRecords(batch) => f(&Request::KeepRecords(&some(batch, numbers))),
        Request::Release(batch) => f(&Request::Release(&some(batch, numbers))),
        single => f(single),
    }
}

/// Takes the results of some names of a batch.
pub(super) fn take_results(all: &mut Reply, numbers: &[usize], some: Reply) -> Result<(), Failure> {
    match (all, some) {
        (Reply::Renewed(all), Reply::Renewed(some)) => {
            for (number, one) in numbers.iter().zip(some) {
                all[*number] = one;
            }
        }
        (Reply::Each(all), Reply::Each(some)) => {
            for (number, one) in numbers.iter().zip(some) {
                all[*number] = one;
            }
        }
        _ => return Err(Failure::another_question()),
    }
    Ok(())
}

/// Notes that the server has refused these names.
fn refuse(all: &mut Reply, numbers: &[usize]) {
    for number in numbers.iter().copied() {
        match all {
            Reply::Renewed(all) => all[number] = Renewed::Refused,
            Reply::Each(all) => all[number] = Err(NotReleased::Refused),
            _ => {}
        }
    }
}

/// Returns an answer that is no error, of a master that the map still has.
fn checked(shared: &Shared, master: &Master, value: Value) -> Result<Value, Failure> {
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
        let mut renewals = Renewals::new(Arc::clone(&shared));
        let part = |port, is_retired| {
            let host = "127.0.0.1".into();
            let master = shared.routes.new_master(&Address { host, port });
            master.is_retired.store(is_retired, Ordering::SeqCst);
            let group = Group {
                slot: 0,
                numbers: vec![0],
                moving_to: Some(Arc::clone(&master)),
            };
            Part {
                group,
                master,
                command: Command::new("PING"),
            }
        };
        let parts: Vec<_> = (1..=100).map(|port| part(port, port > 1)).collect();
        let limit = Duration::from_secs(20);
        let answers = renewals.exchange(&parts, limit, false, &mut false);
        assert_eq!(answers.len(), parts.len());
        for answer in &answers[1..] {
            let failure = answer.as_ref().expect_err("it is retired");
            let kind = (failure.kind, failure.outcome);
            assert_eq!(kind, (FailureKind::Unavailable, Outcome::NotExecuted));
        }
        assert!(answers[0].is_err(), "nobody listens there");
        assert_eq!(renewals.connections.len(), 1);
    }
}
