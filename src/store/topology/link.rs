//! A request's way over a connection. The connection opens when it is first used, and closes after an error of input or
//! output.
//!
//! 1. Without an open connection, the link connects and logs in (`login`). A link of the pool first enters a connection
//!    that other threads use too, or takes a place for one (`shared`).
//! 2. It sends the request, naming the script by its digest. If the server does not have the script, it sends the text.
//!    A mutex without a fence is first asked for by a plain command, and by the script only if that did not get it.
//! 3. If a connection of an earlier request turns out to be closed, it does steps 1 and 2 once more, on a connection
//!    that was opened after that (`shared`). Every request may be repeated. The answer then says that it was sent twice.
//!    If another caller has ended a shared connection before the request was written, it does step 1 once more.
//! 4. If replicas must confirm a grant or renewal, it asks for that (`Link::confirm`).
//!
//! After an error of input or output, nothing more is sent on a connection that one caller has alone: the next request
//! could get a late answer to the request before it, or follow half of that request. On a shared connection each answer
//! has its place, also that to a caller whose time is over. So there the other callers go on after a timeout.
//!
//! Two sorts of links keep time differently:
//!
//! | link | connecting | a request |
//! | --- | --- | --- |
//! | a caller's, by the pool | is part of the time limit, because a thread waits for the reply | has the rest of that limit |
//! | the renewal thread's | has `connect_timeout`, and `io_timeout` for the login, because no lease can be renewed before | has its limit, or two round trips if those take longer |
//!
//! No request takes longer than `io_timeout`. The round trip is measured on the last requests. A request that reached
//! its limit counts with the time that it took. Otherwise the link could give up again and again just before the answer
//! comes: a new connection costs more round trips.
//!
//! A link notes each sign that the server may have lost its data ([`Route::cuts`]). The signs are a connection that the
//! other side closed or refused, and a server that is loading or has become a replica.

use std::time::{Duration, Instant};

use redis::Value;

use crate::error::{Failure, FailureKind, Outcome};
use crate::message::{Cursor, Renewed, Reply, Request, Verb};
use crate::script::{self, Command};
use crate::store::server::errors::{RequestError, is_late};
use crate::store::server::login::connect;
use crate::store::server::places::PlaceWait;
use crate::store::server::refusal::{refusal, says};
use crate::store::server::route::{Budget, Route};
use crate::store::server::shared::{Connections, PooledConnection};
use crate::store::topology::sentinel::{Discovery, check_role};
use crate::store::transport::socket::{Socket, TransportError};
use crate::store::{Answer, Limits, NodeReport};
use crate::sync::Arc;

mod connection;

use connection::LinkConnection;

/// How late the server may answer a WAIT after its time is over: the server's timer runs every 100 ms.
const LATE_ANSWER: Duration = Duration::from_millis(110);

/// A connection, or the means to open one.
pub(crate) struct Link<'a> {
    /// Finds the master behind sentinels. `None` if the address is fixed.
    discovery: Option<Arc<Discovery>>,
    /// The number of the master to which `route` leads.
    master: u64,
    route: Arc<Route>,
    connection: LinkConnection<'a>,
    /// Whether ASKING goes before the request: a node of a cluster then serves a slot that is moving to it.
    is_asking: bool,
    /// The measured round trip. `None` for a link of the pool, because each of its callers has a time limit.
    round_trip: Option<Duration>,
    /// Reports of the server by the renewal thread's requests, until that thread takes them.
    reports: Vec<NodeReport>,
}

impl<'a> Link<'a> {
    /// Makes a link for a single thread, which sends all requests on it.
    pub(crate) fn dedicated(route: Route, discovery: Option<Arc<Discovery>>) -> Self {
        Self {
            discovery,
            master: 0,
            route: Arc::new(route),
            connection: LinkConnection::Own(None),
            is_asking: false,
            round_trip: Some(Duration::ZERO),
            reports: Vec::new(),
        }
    }

    /// Makes a link for a request. Enters a connection of the pool, or takes a place for one, within `wait`.
    pub(in crate::store) fn pooled(
        connections: &'a Connections,
        discovery: Option<&Arc<Discovery>>,
        request: &Request<'_>,
        limits: Limits<'a>,
        wait: &mut PlaceWait<'_>,
    ) -> Result<Self, Failure> {
        let mut pooled = PooledConnection::new(connections, request, limits);
        let (master, route) = pooled.enter(wait)?;
        Ok(Self {
            discovery: discovery.cloned(),
            master,
            route,
            connection: LinkConnection::Pooled(pooled),
            is_asking: false,
            round_trip: None,
            reports: Vec::new(),
        })
    }

    /// Makes `route` the way to the master. Closes a connection to another server.
    fn find(&mut self, limit: Duration) -> Result<(), Failure> {
        let Some(discovery) = &self.discovery else {
            return Ok(());
        };
        if discovery.is_current(self.master) {
            return Ok(());
        }
        let (number, route) = discovery.master(limit)?;
        if number != self.master {
            self.connection.end(PooledConnection::close);
            (self.master, self.route) = (number, Arc::new(route));
            if let LinkConnection::Pooled(pooled) = &self.connection {
                pooled.note_master(self.master, &self.route);
            }
        }
        Ok(())
    }

    /// Makes the thread check the master, because it may not be one any more.
    fn suspect(&self) {
        if let Some(discovery) = &self.discovery {
            discovery.suspect(self.master);
        }
    }

    /// Connects. A master that cannot be reached is suspected.
    fn connect(&self, budget: &Budget) -> Result<Socket, Failure> {
        let open = connect(&self.route, budget);
        if matches!(&open, Err(failure) if failure.is_transient()) {
            self.suspect();
        }
        open
    }

    /// Returns the meaning of a fault of the connection, and suspects the master. A caller that has left shows no fault.
    fn failed(&self, fault: TransportError) -> RequestError {
        if let TransportError::CallerLeft | TransportError::NotSent = fault {
            return RequestError::of(fault);
        }
        self.suspect();
        RequestError::of(fault)
    }

    /// Connects, logs in, and makes the server load the script of renewals. Each of these steps has its own time limit.
    /// Does nothing if the connection is open.
    pub(crate) fn open_for_renewals(&mut self) -> Result<(), Failure> {
        self.find(self.route.connect_timeout)?;
        if self.connection.is_open() {
            return Ok(());
        }
        self.connect_for_renewals()
    }

    fn connect_for_renewals(&mut self) -> Result<(), Failure> {
        let mut open = self.connect(&Budget::unlimited())?;
        // An empty renewal by digest, and in the same write by text, which loads the script. On a slow link the first
        // lease would have no time for another round trip.
        let renewal = Request::Renew(&[]);
        let by_digest = script::encode(&renewal, &self.route.script_settings);
        let by_text = by_digest.by_text();
        let begun = Instant::now();
        let heard = |number, answer| match answer {
            Value::ServerError(error) if number > 0 => {
                self.route.cuts.note_answer(&error);
                Err(refusal(&self.route.server, error))
            }
            _ => Ok(()),
        };
        let asked = open.requests(&[by_digest, by_text], self.route.io_timeout, heard);
        asked.map_err(|fault| self.failed(fault).into_failure(&self.route))??;
        self.round_trip = self.round_trip.max(Some(begun.elapsed()));
        self.connection.open(open, self.master);
        Ok(())
    }

    /// Sends a request of the renewal thread, and returns the reply, within `limit`, or within two round trips if those
    /// take longer.
    pub(crate) fn call_and_measure(
        &mut self,
        request: &Request<'_>,
        limit: Duration,
    ) -> Result<Answer, Failure> {
        let master = self.master;
        let two_round_trips = self.round_trip.unwrap_or_default() * 2;
        let mut budget = Budget::new(limit.max(two_round_trips));
        let answer = self.call(request, &mut budget);
        let took = budget.started.elapsed();
        let is_unknown = |failure: &Failure| failure.outcome == Outcome::Unknown;
        match &answer {
            Ok(_) => self.note_round_trip(took, false),
            Err(failure) if is_unknown(failure) && !self.connection.is_open() && took >= limit => {
                self.note_round_trip(took, true);
            }
            Err(_) => {}
        }
        // A failure because the master has changed says nothing about the new one.
        if answer.is_ok() || master == self.master {
            let failure = answer.as_ref().err();
            let failure = failure.filter(|failure| failure.is_of_the_connection());
            self.reports.push(self.route.report(failure));
        }
        answer
    }

    pub(crate) fn take_reports(&mut self) -> Vec<NodeReport> {
        std::mem::take(&mut self.reports)
    }

    /// Sends a request to the master, and returns the reply. See [`Self::call_server`].
    pub(crate) fn call(
        &mut self,
        request: &Request<'_>,
        budget: &mut Budget,
    ) -> Result<Answer, Failure> {
        if self.discovery.is_none() {
            return self.call_server(request, budget);
        }
        self.find(budget.left(self.route.connect_timeout))?;
        if self.round_trip.is_some() {
            // For this link, finding the master is no part of the limit, like connecting.
            budget.started = Instant::now();
        }
        if let Request::Scan { from, .. } = request {
            if from.at != 0 && from.run != self.master {
                // The cursor is that of another master. The caller drops the locks that come again.
                let next = Some(Cursor::START);
                let keys = Vec::new();
                return Ok(Answer {
                    reply: Reply::Page { keys, next },
                    resent: false,
                });
            }
        }
        let mut answer = self.call_server(request, budget)?;
        // The server has executed the request, whatever comes now.
        let checked = self.check_master(request, &answer.reply, budget);
        checked.map_err(|failure| Failure {
            outcome: Outcome::Unknown,
            timed_out: false,
            ..failure
        })?;
        if let Reply::Page {
            next: Some(next), ..
        } = &mut answer.reply
        {
            next.run = self.master;
        }
        Ok(answer)
    }

    /// Sends a request to a node of a cluster to which its slot is moving. See [`Self::call`].
    pub(crate) fn call_asking(
        &mut self,
        request: &Request<'_>,
        budget: &mut Budget,
    ) -> Result<Answer, Failure> {
        self.is_asking = true;
        let answer = self.call(request, budget);
        self.is_asking = false;
        answer
    }

    /// Checks that a reply is that of the master.
    fn check_master(
        &mut self,
        request: &Request<'_>,
        reply: &Reply,
        budget: &Budget,
    ) -> Result<(), Failure> {
        if may_come_from_a_replica(request, reply) {
            let role = self.ask(&Command::new("ROLE"), budget);
            let role = role.map_err(|trouble| trouble.into_failure(&self.route))?;
            if let Err(failure) = check_role(&self.route, role) {
                self.suspect();
                self.connection.end(PooledConnection::retire);
                return Err(failure);
            }
        }
        let number = self.master;
        self.find(budget.left(self.route.connect_timeout))?;
        if self.master == number {
            return Ok(());
        }
        let words = "the master has changed during the request";
        Err(Failure::plain(
            FailureKind::Unavailable,
            Outcome::Unknown,
            words,
        ))
    }

    /// Sends a request, and returns the reply. Sends it once more if a connection of an earlier request turns out to be
    /// closed. Asks the replicas to confirm a grant or renewal, if that is needed.
    fn call_server(
        &mut self,
        request: &Request<'_>,
        budget: &mut Budget,
    ) -> Result<Answer, Failure> {
        let (mut resent, mut was_moved) = (false, false);
        let failed = |failure: Failure, resent: bool| Failure {
            outcome: if resent {
                Outcome::Unknown
            } else {
                failure.outcome
            },
            ..failure
        };
        let value = loop {
            let entered = self.enter_again(budget);
            entered.map_err(|failure| failed(failure, resent))?;
            let reused = self.connection.is_open();
            match self.once(request, budget) {
                Ok(value) => break value,
                // Another caller has ended the connection before anything of this request was written.
                Err(RequestError::NotSent) if !was_moved => was_moved = true,
                Err(RequestError::Closed(error)) if reused && !resent => {
                    self.route.cuts.note_error(&error);
                    resent = true;
                    let found = self.find(budget.left(self.route.connect_timeout));
                    found.map_err(|failure| failed(failure, resent))?;
                }
                Err(trouble) => return Err(failed(trouble.into_failure(&self.route), resent)),
            }
        };
        let reply = script::decode(request, value).inspect_err(|_| {
            // This may be the answer to another request, so nothing on this connection can be trusted any more.
            self.connection.end(PooledConnection::distrust);
        })?;
        if self.route.replicas > 0 && reply.is_gain() {
            // The server has executed the request. If it was sent twice, the server may execute it once more, later.
            self.confirm(budget).map_err(|failure| Failure {
                outcome: if resent {
                    Outcome::Unknown
                } else {
                    failure.outcome
                },
                ..failure
            })?;
        }
        Ok(Answer { reply, resent })
    }

    /// Enters a connection again, if the one that it had entered has ended. The wait counts from when the request was
    /// first sent.
    fn enter_again(&mut self, budget: &Budget) -> Result<(), Failure> {
        if let LinkConnection::Pooled(pooled) = &mut self.connection {
            if pooled.has_left() {
                let limits = pooled.limits;
                let left = limits.checkout.saturating_sub(budget.started.elapsed());
                let mut wait = PlaceWait::new(Instant::now(), budget.left(left), limits.is_over);
                (self.master, self.route) = pooled.enter(&mut wait)?;
            }
        }
        Ok(())
    }

    /// Sends the request and reads the answer, connecting first if needed.
    fn once(&mut self, request: &Request<'_>, budget: &mut Budget) -> Result<Value, RequestError> {
        if !self.connection.is_open() {
            self.open(budget).map_err(RequestError::Answered)?;
        }
        let settings = Arc::clone(&self.route.script_settings);
        let mut value = Value::Nil;
        if let Some(command) = script::encode_plain(request, &settings) {
            value = match self.ask(&command, budget)? {
                Value::Okay => script::TAKEN_WITHOUT_A_FENCE,
                value @ (Value::Nil | Value::ServerError(_)) => value,
                _ => {
                    self.connection.end(PooledConnection::distrust);
                    return Err(RequestError::Answered(Failure::another_question()));
                }
            };
        }
        if value == Value::Nil {
            let command = script::encode(request, &settings);
            value = self.ask(&command, budget)?;
            if matches!(&value, Value::ServerError(error) if error.code() == "NOSCRIPT") {
                value = self.ask(&command.by_text(), budget)?;
            }
        }
        if let Value::ServerError(error) = value {
            let moved = says(&error, &["READONLY"]);
            if moved || says(&error, &["LOADING", "MASTERDOWN"]) {
                self.suspect();
            }
            self.route.cuts.note_answer(&error);
            let failure = refusal(&self.route.server, error);
            // A server that has become a replica stays one, but its name may lead to the new master by now. And a user
            // whose request is denied may have more rights on a new connection.
            if moved || failure.kind == FailureKind::Denied {
                self.connection.end(PooledConnection::retire);
            }
            return Err(RequestError::Answered(failure));
        }
        Ok(value)
    }

    /// Sends a command, and returns its answer.
    fn ask(&mut self, command: &Command, budget: &Budget) -> Result<Value, RequestError> {
        let time = budget.step(self.route.io_timeout);
        match self.connection.request(command, self.is_asking, time) {
            Ok(value) => Ok(value),
            Err(fault) => Err(self.failed(fault)),
        }
    }

    /// Opens the connection.
    fn open(&mut self, budget: &mut Budget) -> Result<(), Failure> {
        let socket = if self.round_trip.is_some() {
            let socket = self.connect(&Budget::unlimited());
            budget.started = Instant::now();
            socket?
        } else {
            self.connect(budget)?
        };
        self.connection.open(socket, self.master);
        Ok(())
    }

    /// Notes how long a request took. `is_cut` means that it reached its limit without an answer.
    fn note_round_trip(&mut self, took: Duration, is_cut: bool) {
        let Some(round_trip) = &mut self.round_trip else {
            return;
        };
        *round_trip = if is_cut || took >= *round_trip {
            took.max(*round_trip)
        } else {
            // One fast answer does not make a fast link, so the average falls slowly.
            (*round_trip * 3 + took) / 4
        };
    }

    /// Waits until enough replicas have the last write on this connection. Every script that grants or renews writes,
    /// even if it is repeated. A write that they have not confirmed in time counts as not replicated.
    fn confirm(&mut self, budget: &Budget) -> Result<(), Failure> {
        let (route, wanted) = (self.route.clone(), self.route.replicas);
        let server = &route.server;
        let time = budget.step(self.route.io_timeout);
        let limit = time.limit;
        // A count is worth more than no answer, so the server's time for the WAIT is shorter than the limit here. The
        // server notices the end of a WAIT up to 100 ms late.
        let patience = limit.saturating_sub(LATE_ANSWER).max(limit / 2);
        let patience = patience.max(Duration::from_millis(1));
        let too_few = |confirmed| {
            let kind = FailureKind::NotReplicated { wanted, confirmed };
            let words =
                format!("{confirmed} of {wanted} replicas confirmed it within {patience:?}");
            Failure::plain(kind, Outcome::PartlyExecuted, words)
        };
        let mut wait = Command::new("WAIT");
        wait.arg(wanted).arg(patience.as_millis() as u64);
        let answer = self.connection.request(&wait, false, time);
        let confirmed = match answer.map_err(RequestError::of) {
            Ok(Value::Int(count)) => u32::try_from(count).unwrap_or(0),
            Ok(Value::ServerError(error)) => {
                return Err(Failure {
                    outcome: Outcome::Unknown,
                    ..refusal(server, error)
                });
            }
            Ok(_) => {
                let words = "the answer to WAIT is not a number";
                return Err(Failure::plain(
                    FailureKind::Protocol,
                    Outcome::Unknown,
                    words,
                ));
            }
            // The server has just answered the script on this connection, so only the replicas can be late.
            Err(RequestError::Broken(TransportError::Io(error))) if is_late(&error) => {
                return Err(too_few(0));
            }
            Err(trouble) => {
                self.suspect();
                return Err(Failure {
                    outcome: Outcome::Unknown,
                    ..trouble.into_failure(&route)
                });
            }
        };
        if confirmed >= wanted {
            return Ok(());
        }
        Err(too_few(confirmed))
    }

    /// Sends a request, and returns the reply of a master, and the number of its process: the first 16 digits of its
    /// `run_id`.
    ///
    /// A command without keys, such as SCAN, is executed by each node of a cluster, also by a replica. And a cursor of SCAN
    /// has a meaning only for the process that gave it.
    pub(crate) fn call_identified(
        &mut self,
        request: &Request<'_>,
        budget: &Budget,
    ) -> Result<(Reply, u64), Failure> {
        let (route, reused) = (Arc::clone(&self.route), self.connection.is_open());
        let commands = [
            Command::new("INFO").arg("server").to_owned(),
            Command::new("ROLE"),
            script::encode(request, &route.script_settings).by_text(),
        ];
        if !reused {
            let socket = self.connect(budget)?;
            self.connection.open(socket, self.master);
        }
        let mut answers = Vec::new();
        let heard = |_, answer| match answer {
            Value::ServerError(error) => {
                route.cuts.note_answer(&error);
                Err(refusal(&route.server, error))
            }
            answer => {
                answers.push(answer);
                Ok(())
            }
        };
        match self
            .connection
            .requests(&commands, budget.left(route.io_timeout), heard)
        {
            // The request only reads.
            Err(_) if reused => return self.call_identified(request, budget),
            Err(fault) => return Err(route.broken(fault)),
            Ok(answered) => answered?,
        }
        let identified = || {
            let answers = <[Value; 3]>::try_from(answers);
            let [report, role, value] = answers.map_err(|_| Failure::another_question())?;
            let run = run(&report).ok_or_else(|| {
                let words = "the server does not report its run_id";
                Failure::plain(FailureKind::Protocol, Outcome::NotExecuted, words)
            })?;
            Ok((role, script::decode(request, value)?, run))
        };
        // An answer that cannot be read may be that of another request.
        let (role, reply, run) =
            identified().inspect_err(|_| self.connection.end(PooledConnection::distrust))?;
        check_role(&route, role).inspect_err(|_| self.connection.end(PooledConnection::retire))?;
        Ok((reply, run))
    }
}

/// Reads the first 16 digits of the `run_id`.
fn run(report: &Value) -> Option<u64> {
    let Value::BulkString(report) = report else {
        return None;
    };
    let report = String::from_utf8_lossy(report);
    let id = report.lines().find_map(|line| line.strip_prefix("run_id:"));
    u64::from_str_radix(id?.get(..16)?, 16).ok()
}

/// Returns whether a replica could have given this reply from old data, because the request wrote nothing. A replica
/// rejects each write.
fn may_come_from_a_replica(request: &Request<'_>, reply: &Reply) -> bool {
    let is_gone = |renewed: &Renewed| matches!(renewed, Renewed::Gone(_));
    let waits = match request {
        // A waiter is entered in the queue.
        Request::Lock {
            verb: Verb::Acquire { ask, .. },
            ..
        } => ask.channel.is_some(),
        _ => true,
    };
    match reply {
        Reply::Granted { .. } | Reply::Released | Reply::HandedOver | Reply::Admitted(_) => false,
        Reply::Held { .. } => !waits,
        Reply::Renewed(all) => all.iter().any(is_gone),
        Reply::Each(all) => all.iter().flatten().any(|reply| *reply != Reply::Released),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{AcquireMode, Ask, Gone, LockKind, NotReleased};
    use crate::name::{LockKey, Target};

    fn acquire(channel: Option<&str>) -> Verb {
        Verb::Acquire {
            ask: Ask {
                owner: "o".into(),
                units: 1,
                lease: Duration::from_secs(1),
                fences: 1,
                shareable_owner: None,
                channel: channel.map(Into::into),
                nonce: None,
            },
            mode: AcquireMode::TakeFree,
        }
    }

    /// A replica rejects each write. So only a reply to a request that wrote nothing may come from one.
    #[test]
    fn a_reply_that_proves_a_write_is_that_of_a_master() {
        let target = Target::from(LockKey::new("", "n").expect("a name"));
        let release = Verb::Release {
            owner: "o".into(),
            units: 1,
        };
        let (waits, tries) = (acquire(Some("c")), acquire(None));
        let about = |verb| Request::Lock {
            kind: LockKind::Mutex,
            target: &target,
            verb,
        };
        let granted = Reply::Granted {
            fence: 1,
            count: None,
            rest: Vec::new(),
            contended: false,
        };
        let held = Reply::Held {
            ttl: None,
            holder: "h".into(),
        };
        let done = Renewed::Done { contended: false };
        let gone = Renewed::Gone(Gone::Removed);
        let not_owner = Reply::NotOwner(Gone::Taken);
        for (request, reply, expected) in [
            (about(&tries), granted, false),
            (about(&tries), held.clone(), true),
            // The script enters a waiter in the queue.
            (about(&waits), held, false),
            (about(&release), Reply::Released, false),
            (about(&release), Reply::HandedOver, false),
            (about(&release), Reply::Contended, true),
            (about(&release), not_owner.clone(), true),
            (Request::Renew(&[]), Reply::Renewed(vec![done, done]), false),
            (Request::Renew(&[]), Reply::Renewed(vec![done, gone]), true),
            (
                Request::Release(&[]),
                Reply::Each(vec![Ok(Reply::Released), Err(NotReleased::Refused)]),
                false,
            ),
            (
                Request::Release(&[]),
                Reply::Each(vec![Ok(not_owner)]),
                true,
            ),
            (Request::Ping, Reply::Pong, true),
        ] {
            let found = may_come_from_a_replica(&request, &reply);
            assert_eq!(found, expected, "{request:?}: {reply:?}");
        }
    }
}
