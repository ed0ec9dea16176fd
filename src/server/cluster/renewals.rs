//! The requests of the renewal thread, on connections outside the pools: batches of renewals and of releases, and single
//! releases.
//!
//! A script may use keys of one slot only, and while a slot moves, each name works alone. So each name of a batch has its own
//! command, and all commands for a master go in one write.
//!
//! | the answer about a name | the name |
//! | --- | --- |
//! | a reply | has its result |
//! | `MOVED` | is sent to the new owner, if the map knows that |
//! | `ASK` | is sent to the named node after `ASKING` |
//! | a refusal | is refused: the user may be denied this one name |
//! | none, or another error | has no result, and is sent again in its own time |
//!
//! All that takes at most [`ROUNDS`] rounds within the limit of the request. The request has failed only if no name has a
//! result, and the last request to each master has failed.
//!
//! A master may hang. So each master's commands are sent on a short-lived thread, which has the master's link meanwhile. Only
//! if no thread can be started, they are sent on the renewal thread itself, within the limit of the round.
//!
//! What a round does with the commands for a master depends on its link. If two rows fit, the later one counts:
//!
//! | the link is | the commands | the round |
//! | --- | --- | --- |
//! | free | are sent by a thread, which connects first if it must | waits for the master for at most a *grace*: twice what it took lately, and at least [`SHORTEST_GRACE`] |
//! | free, and the cluster has no other master whose leases may be due | the same | waits until the limit, or for two round trips if those take longer |
//! | free, but its last request has failed, and no other connection has had an answer of the master since | the same | does not wait. The answers count if they come before those of other masters |
//! | busy: a thread still has it | fail | does not wait |
//!
//! So a master that hangs delays the others once. Too few replicas are no failure of a link: they change only the answers
//! that would have counted.

use std::mem;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use redis::Value;

use super::Shared;
use super::call::{no_more, or_release_alone, uncertain};
use super::master::{Address, Master};
use crate::error::{Failure, FailureKind, Outcome};
use crate::net::deadline::Deadline;
use crate::net::refusal::unavailable;
use crate::net::route::NodeReport;
use crate::panics::survived;
use crate::server::link::Link;
use crate::server::{Answer, DedicatedConnection};
use crate::sys::hash::HashMap;
use crate::sys::thread::{self, Parker};
use crate::sys::{Arc, Machine, Ordering, Time};
use crate::wire::{self, Command, NotReleased, Renewed, Reply, Request};

/// How often a name is sent in one request.
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
    /// Whether its last request has failed.
    has_failed: bool,
    /// How long the master took lately.
    took: Duration,
    /// How long the round waits for it.
    grace: Duration,
    /// The numbers of the parts in this round that have no answer yet.
    parts: Vec<usize>,
}

/// The link that a thread has used, and the answers.
type Sent = (Link, Answers);
type Answers = Result<Vec<Result<Value, Failure>>, Failure>;

/// The command about one name, for one master.
struct Part {
    /// The number of the name in the batch.
    number: usize,
    master: Arc<Master>,
    /// Whether its slot is moving to that master.
    is_asking: bool,
    command: Command,
}

impl Part {
    fn commands(&self) -> Vec<Command> {
        if self.is_asking {
            // ASKING and its command are one unit. So the server must not answer the command with `NOSCRIPT`.
            vec![Command::new("ASKING"), self.command.by_text()]
        } else {
            vec![self.command.clone()]
        }
    }
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
        let mut map = shared.map(&mut deadline)?;
        let (slots, mut results) = match (batch_of(request), request.lock()) {
            (Some((slots, results)), _) => (slots, Some(results)),
            (None, Some(lock)) => (vec![lock.target.first().slot()], None),
            (None, None) => return Err(Failure::another_question()),
        };
        let is_gain = matches!(results, Some(Reply::Renewed(_)));
        // The names to send, and the nodes to which their slots are moving.
        let mut names: Vec<_> = (0..slots.len()).map(|number| (number, None)).collect();
        let (mut has_results, mut resent) = (false, false);
        let mut last_failure = None;
        for _ in 0..ROUNDS {
            let left = deadline.left();
            if names.is_empty() || left.is_zero() {
                break;
            }
            map = shared.map(&mut deadline)?;
            let mut parts = Vec::with_capacity(names.len());
            for (number, moving_to) in mem::take(&mut names) {
                let is_asking = moving_to.is_some();
                let owner = || shared.owner(&map, slots[number]);
                let settings = &shared.routes.first.script_settings;
                match moving_to.map_or_else(owner, Ok) {
                    Ok(master) => parts.push(Part {
                        number,
                        master,
                        is_asking,
                        command: wire::encode(&one_of(request, number), settings),
                    }),
                    Err(failure) => last_failure = Some(failure),
                }
            }
            let answers = self.exchange(&parts, left, is_gain, &mut resent);
            for (Part { number, master, .. }, answer) in parts.into_iter().zip(answers) {
                let answer = answer.and_then(|value| checked(&shared, &master, value));
                let reply = answer.and_then(|value| wire::decode(&one_of(request, number), value));
                let failure = match (&mut results, reply) {
                    (None, Ok(reply)) => return Ok(Answer { reply, resent }),
                    (Some(results), Ok(reply)) => {
                        has_results = true;
                        take_result(results, number, reply)?;
                        continue;
                    }
                    (_, Err(failure)) => failure,
                };
                if let Some(to) = failure.redirect() {
                    names.push((number, shared.redirected(&master, failure.kind, to)));
                } else if failure.kind == FailureKind::Protocol
                    && failure.outcome == Outcome::Unknown
                {
                    // The answer may belong to another request.
                    self.connections.remove(&master.address);
                } else if let Some(results) = results.as_mut().filter(|_| is_refusal(&failure)) {
                    has_results = true;
                    refuse(results, number);
                }
                last_failure = Some(failure);
            }
        }
        let failure = last_failure.map(|failure| uncertain(transient(failure), resent));
        let is_suspected = |it: &Arc<Master>| it.is_suspected.load(Ordering::Relaxed);
        let is_lost = !has_results && map.masters().iter().all(is_suspected);
        match (failure, results) {
            (Some(failure), None) => Err(failure),
            (Some(failure), Some(_)) if is_lost => Err(failure),
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
        let shared = Arc::clone(&self.shared);
        let route = &shared.routes.first;
        let confirms = is_gain && route.replicas > 0;
        let shortest = SHORTEST_GRACE * if confirms { 2 } else { 1 };
        let mut answers = vec![None; parts.len()];
        let is_retired = |it: &Connection| it.master.is_retired.load(Ordering::Acquire);
        self.connections.retain(|_, it| !is_retired(it));
        for (number, part) in parts.iter().enumerate() {
            // Redirections of the same batch may have retired it. It gets no connection any more.
            match part.master.check_in_use() {
                Ok(()) => self.to(&part.master).parts.push(number),
                Err(failure) => answers[number] = Some(Err(failure.with(Outcome::NotExecuted))),
            }
        }
        let map = shared.finder.found();
        let is_only = map.is_some_and(|map| map.all().count() == 1);
        for connection in self.connections.values_mut() {
            connection.take();
            if connection.parts.is_empty() {
                continue;
            }
            if connection.link.is_none() {
                shared.suspect(&connection.master);
                for number in connection.parts.drain(..) {
                    answers[number] = Some(Err(connection.master.why_suspected()));
                }
                continue;
            }
            let its = connection.parts.iter().map(|number| &parts[*number]);
            let commands: Vec<_> = its.flat_map(Part::commands).collect();
            connection.grace = connection.at_least(shortest.min(limit));
            let within = confirms.then_some(connection.grace);
            let mut longest = route.io_timeout;
            if is_only {
                connection.grace = connection.at_least(limit);
                longest = limit;
            }
            let send = move |link: &mut Link, limit| link.batch(&commands, within, limit);
            connection.begin(&self.sleeps, (longest, limit), send);
        }
        self.gather(Some(begun), limit, |connection, done, was_resent| {
            *resent |= was_resent;
            let mut done = done.map(Vec::into_iter);
            for number in connection.parts.drain(..) {
                if let (Ok(values), true) = (&mut done, parts[number].is_asking) {
                    // The answer to ASKING.
                    values.next();
                }
                answers[number] = match &mut done {
                    Ok(values) => values.next(),
                    Err(failure) => Some(Err(failure.clone())),
                };
            }
        });
        // A master that has not answered by now is late.
        for connection in self.connections.values_mut() {
            if !mem::take(&mut connection.parts).is_empty() {
                shared.suspect(&connection.master);
            }
        }
        let late = |part: &Part| part.master.late().with(Outcome::Unknown);
        let of_part = |(answer, part): (Option<_>, _)| answer.unwrap_or_else(|| Err(late(part)));
        answers.into_iter().zip(parts).map(of_part).collect()
    }

    /// Waits for the threads that have parts, and hands what they bring to `take`: the second table at the top. The graces
    /// begin at this time. Without one they begin with the first success, for which it waits until the limit.
    fn gather(
        &mut self,
        mut begun: Option<Time>,
        limit: Duration,
        mut take: impl FnMut(&mut Connection, Answers, bool),
    ) {
        let first_until = Time::now() + limit;
        loop {
            let asked = self.connections.values_mut();
            for connection in asked.filter(|it| !it.parts.is_empty()) {
                if let Some((done, was_resent)) = connection.take() {
                    take(connection, done, was_resent);
                    if connection.has_failed {
                        self.shared.suspect(&connection.master);
                    } else {
                        begun.get_or_insert_with(Time::now);
                    }
                }
            }
            let asked = self.connections.values().filter(|it| !it.parts.is_empty());
            let awaited = asked.filter(|it| it.is_awaited());
            let until = awaited.map(|it| match begun {
                Some(begun) => begun + it.grace,
                None => first_until,
            });
            let Some(until) = until.max().filter(|until| Time::now() < *until) else {
                return;
            };
            self.sleeps.sleep_until(&Machine::here(), until);
        }
    }

    /// Returns the connection to a master.
    fn to(&mut self, master: &Arc<Master>) -> &mut Connection {
        let new = || Connection {
            master: Arc::clone(master),
            link: Some(Link::dedicated(master.route.clone(), None)),
            sent: None,
            has_failed: false,
            took: Duration::ZERO,
            grace: Duration::ZERO,
            parts: Vec::new(),
        };
        let connection = self.connections.entry(master.address.clone());
        connection.or_insert_with(new)
    }
}

impl Connection {
    /// Returns whether a round waits for the master.
    fn is_awaited(&self) -> bool {
        let is_suspected = self.master.is_suspected.load(Ordering::Relaxed);
        !(self.has_failed && is_suspected)
    }

    /// Returns this time, or twice what the master took lately if that is longer.
    fn at_least(&self, shortest: Duration) -> Duration {
        let its = (self.took * 2).max(shortest);
        its.min(self.master.route.io_timeout)
    }

    /// free: does `work`. A thread does it within the first limit. If none can be started, it is done here within the second
    /// limit.
    fn begin(
        &mut self,
        sleeps: &Arc<Parker>,
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
                let panicked = || Err(unavailable("sending to a master panicked"));
                let done = survived(|| work(&mut link, limit)).unwrap_or_else(panicked);
                // If nobody receives it, the link is not needed any more.
                sender.send((link, done)).ok();
                sleeps.wake();
            }
        };
        let by_thread = run.clone();
        if thread::spawn("", move || by_thread(limits.0)).is_err() {
            run(limits.1);
        }
    }

    /// busy: takes what the thread brings, if it is done, and whether a request was written twice.
    fn take(&mut self) -> Option<(Answers, bool)> {
        let (link, done) = self.sent.as_ref()?.try_recv().ok()?;
        self.has_failed = match &done {
            Err(_) => true,
            // After too few replicas the connection is as good as before.
            Ok(answers) => !link.is_open() && answers.iter().any(Result::is_err),
        };
        // An answer that replicas have not confirmed is one too.
        let is_answer = |answer: &_| !matches!(answer, Ok(Value::ServerError(_)));
        let has_answered = |answers: &Vec<_>| answers.iter().any(is_answer);
        if !self.has_failed && done.as_ref().is_ok_and(has_answered) {
            self.master.note_answer();
        }
        self.took = link.round_trip();
        let was_resent = link.resent;
        (self.link, self.sent) = (Some(link), None);
        Some((done, was_resent))
    }
}

impl DedicatedConnection for Renewals {
    /// Connects to all masters. Waits for the first one for at most `connect_timeout`, and then for the others for their graces.
    fn open(&mut self, is_silent: bool) -> Result<(), Failure> {
        let limit = self.shared.routes.first.connect_timeout;
        let map = self.shared.map(&mut Deadline::after(limit))?;
        let sleeps = Arc::clone(&self.sleeps);
        for master in map.masters() {
            let connection = self.to(master);
            connection.take();
            if connection.link.is_some() {
                connection.parts.push(0);
            }
            connection.grace = connection.at_least(SHORTEST_GRACE.min(limit));
            let open = move |link: &mut Link, _| link.open(is_silent).map(|()| Vec::new());
            connection.begin(&sleeps, (limit, limit), open);
        }
        self.gather(None, limit, |it, _, _| it.parts.clear());
        // Those that are late go on connecting.
        self.connections
            .values_mut()
            .for_each(|it| it.parts.clear());
        Ok(())
    }

    fn call(&mut self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure> {
        let limit = limit.min(self.shared.routes.first.io_timeout);
        or_release_alone(request, &mut |request| self.send(request, limit))
    }

    /// Reports each master. Its place is that of its slots, so a replica that is promoted has the same.
    fn take_reports(&mut self) -> Vec<NodeReport> {
        let report = |(place, master): (usize, &Arc<Master>)| {
            let is_suspected = master.is_suspected.load(Ordering::Relaxed);
            NodeReport {
                place,
                node: Some(Arc::clone(&master.route.server.address)),
                failure: is_suspected.then(|| master.why_suspected()),
            }
        };
        let map = self.shared.finder.found();
        let masters = map.iter().flat_map(|map| map.masters());
        masters.enumerate().map(report).collect()
    }
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

/// Returns a request about one name of a batch. A request about one lock is the same.
pub(super) fn one_of<'a>(request: &Request<'a>, number: usize) -> Request<'a> {
    match *request {
        Request::Renew(batch) => Request::Renew(&batch[number..=number]),
        Request::KeepRecords(batch) => Request::KeepRecords(&batch[number..=number]),
        Request::Release(batch) => Request::Release(&batch[number..=number]),
        single => single,
    }
}

/// Takes the result of one name of a batch.
pub(super) fn take_result(all: &mut Reply, number: usize, one: Reply) -> Result<(), Failure> {
    let is_taken = match (all, one) {
        (Reply::Renewed(all), Reply::Renewed(mut one)) => one.pop().map(|it| all[number] = it),
        (Reply::Each(all), Reply::Each(mut one)) => one.pop().map(|it| all[number] = it),
        _ => None,
    };
    is_taken.ok_or_else(Failure::another_question)
}

/// Notes that the server has refused a name.
fn refuse(all: &mut Reply, number: usize) {
    match all {
        Reply::Renewed(all) => all[number] = Renewed::Refused,
        Reply::Each(all) => all[number] = Err(NotReleased::Refused),
        _ => {}
    }
}

/// Returns an answer that is no error, of a master that the map still has.
fn checked(shared: &Shared, master: &Arc<Master>, value: Value) -> Result<Value, Failure> {
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

/// Returns a failure that the renewal thread repeats later.
fn transient(failure: Failure) -> Failure {
    match failure.kind {
        FailureKind::Moved | FailureKind::Ask => Failure {
            kind: FailureKind::Unavailable,
            ..failure
        },
        _ => no_more(failure),
    }
}

/// Returns whether the server has rejected the request, and would do so again.
fn is_refusal(failure: &Failure) -> bool {
    let is_an_answer = failure.outcome != Outcome::Unknown && !failure.of_connecting;
    !failure.is_transient() && is_an_answer
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use crate::config::Settings;
    use crate::server::cluster::tests::{at_two_servers, shared};
    use crate::sys::test_machine::manual::ManualClock;
    use crate::wire::{End, How, LockId, LockKind};

    /// Otherwise a batch of names that are redirected to ever-new addresses would connect to all of them.
    #[test]
    fn a_master_that_is_retired_gets_no_connection() {
        let shared = shared(&Settings::default());
        let mut renewals = Renewals::new(Arc::clone(&shared));
        let part = |port, is_retired| {
            let host = "127.0.0.1".into();
            let master = shared.routes.new_master(&Address { host, port });
            master.is_retired.store(is_retired, Ordering::SeqCst);
            Part {
                number: 0,
                master,
                is_asking: true,
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

    /// What a server does with a request.
    #[derive(Clone, Copy)]
    enum Does {
        Release,
        Close,
        /// The other server has the slot.
        Move,
        TryAgain,
    }

    /// Sends a release twice, and returns the failure of the second. The two servers read a copy each in this order.
    fn failed(copies: &[(usize, Does)]) -> Failure {
        let (servers, shared, target) = at_two_servers();
        let slot = target.first().slot();
        let serve = || {
            let mut lines = [None, None];
            for (number, does) in copies {
                let accept = || servers[*number].accept().expect("it connects").0;
                let line: &mut TcpStream = lines[*number].get_or_insert_with(accept);
                assert!(line.read(&mut [0; 16 << 10]).expect("a request") > 0);
                let to = servers[1 - number].local_addr().expect("it is bound");
                let answer = match does {
                    Does::Release => ":1\r\n".to_owned(),
                    Does::Close => {
                        lines[*number] = None;
                        continue;
                    }
                    Does::Move => format!("-MOVED {slot} {to}\r\n"),
                    Does::TryAgain => "-TRYAGAIN the slot moves\r\n".to_owned(),
                };
                line.write_all(answer.as_bytes()).expect("it is open");
            }
        };
        // No time passes, so no grace ends on a busy machine.
        let clock = Arc::new(ManualClock::starting_at(Time::now()));
        let _entered = Machine::new(clock as Arc<_>).enter();
        let mut renewals = Renewals::new(shared);
        let release = End::new("o".into(), 1, How::Release);
        let lock = LockId {
            kind: LockKind::Mutex,
            target: &target,
        };
        std::thread::scope(|scope| {
            scope.spawn(serve);
            let mut call = || renewals.call(&Request::End(lock, &release), Duration::MAX);
            assert_eq!(call().expect("it is answered").reply, Reply::Released);
            call().expect_err("it has no answer")
        })
    }

    #[test]
    fn a_release_that_is_redirected_may_still_be_executed_where_it_was_before() {
        use Does::{Close, Move, Release, TryAgain};
        for (copies, kind, outcome) in [
            (
                // The link sends it again, because the connection was open before.
                &[(0, Release), (0, Close), (0, Move), (1, TryAgain)][..],
                FailureKind::SlotMoves,
                Outcome::Unknown,
            ),
            (
                &[(0, Release), (0, Move), (1, Close)],
                FailureKind::Unavailable,
                Outcome::Unknown,
            ),
            (
                // The renewal thread repeats it.
                &[(0, Release), (0, Move), (1, Move), (0, Move), (1, Move)],
                FailureKind::Unavailable,
                Outcome::NotExecuted,
            ),
        ] {
            let failure = failed(copies);
            assert_eq!((failure.kind, failure.outcome), (kind, outcome));
        }
    }
}
