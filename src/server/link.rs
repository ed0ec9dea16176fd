//! A request's way over a connection that one thread has alone. The connection opens when it is first used, and closes
//! after an error of input or output: the next request could get a late answer to the request before it, or follow half of
//! that request. Requests of calls that wait for a connection may go along in the same write: see
//! [`line`](crate::net::line).
//!
//! 1. Without an open connection, the link connects and logs in (`login`).
//! 2. It sends the request, naming the script by its digest. If the server does not have the script, it sends the text.
//!    A mutex without a fence is first asked for by a plain command, and by the script only if that did not get it.
//! 3. If the connection of an earlier request turns out to be closed, or to have something unread, the link does steps 1
//!    and 2 once more. If the request had been written, the answer then reports that it was sent twice. Every request may be
//!    sent twice, except a commit; a commit that was cut off has an unknown outcome.
//! 4. If replicas must confirm a grant or renewal, it asks for that (`Link::confirm`).
//!
//! If the last attempt to connect has failed, by whichever link, step 1 may fail at once: see
//! [`login`](crate::net::login).
//!
//! Two sorts of links keep time differently:
//!
//! | link | connecting | a request |
//! | --- | --- | --- |
//! | a caller's, by the pool | is part of the time limit, because a thread waits for the reply | has the rest of that limit |
//! | the renewal thread's | has `connect_timeout`, and `io_timeout` for the login, because no lease can be renewed before | has its limit, or two round trips if those take longer |
//!
//! No request takes longer than `io_timeout`. The round trip is measured on the last requests. One that reached its limit
//! counts with the time that it took, because a new connection costs more round trips, and otherwise the link could give up
//! again and again just before the answer comes.
//!
//! The first request after a SUBSCRIBE goes behind the question whether it reaches the same server: see
//! [`route`](crate::net::route). A link notes each sign that the server may have lost its data
//! ([`Route::data_loss_signs`]).

use std::time::Duration;
use std::{io, mem};

use redis::Value;

use crate::error::{Failure, FailureKind, Outcome};
use crate::net::deadline::{Deadline, Phase};
use crate::net::line::{Along, Line, Turn};
use crate::net::login::connect_in_turn;
use crate::net::pool::{Pool, Pooled};
use crate::net::refusal::says;
use crate::net::route::{Known, NodeReport, Route};
use crate::net::socket::{Socket, TransportError};
use crate::server::sentinel::{Discovery, check_role};
use crate::server::{Answer, DedicatedConnection};
use crate::sys::{Arc, Time};
use crate::wire::{self, Command, Cursor, Reader, Renewed, Reply, Request};

/// How late the server may answer a WAIT after its time is over: the server's timer runs every 100 ms.
const LATE_ANSWER: Duration = Duration::from_millis(110);

/// The shortest life of a connection that a denied request closes.
const CLOSED_EVERY: Duration = Duration::from_secs(1);

/// The time for a look whether the server still answers, or two round trips if those take longer.
const LOOK_WITHIN: Duration = Duration::from_millis(500);

/// A connection, or the means to open one.
pub(crate) struct Link {
    /// Finds the master behind sentinels. `None` if the address is fixed.
    discovery: Option<Arc<Discovery>>,
    /// The number of the master to which `route` leads.
    master: u64,
    route: Arc<Route>,
    /// The calls that wait for a link of the same pool. `None` if it takes none along.
    line: Option<Arc<Line>>,
    /// `None` before it is open, while a thread uses it, and after a fault.
    socket: Option<Socket>,
    /// When the connection was opened.
    opened: Time,
    /// The state of the other connections along the route, as this one knows it.
    known: Known,
    /// When a request was last made.
    used: Time,
    /// Whether ASKING goes before the request: a node of a cluster then serves a slot that is moving to it.
    pub(crate) is_asking: bool,
    /// Whether the current request may be executed twice.
    may_repeat: bool,
    /// Whether the current request was written twice.
    pub(super) resent: bool,
    /// How to read the answer to the next write, if that takes requests of the line along.
    reads: Option<Reader>,
    /// The measured round trip. `None` for a link of the pool, because each of its callers has a time limit.
    round_trip: Option<Duration>,
    /// Reports of the server by the renewal thread's requests, until that thread takes them.
    reports: Vec<NodeReport>,
}

impl Link {
    /// Makes a link for a single thread, which sends all requests on it.
    pub(crate) fn dedicated(route: Route, discovery: Option<Arc<Discovery>>) -> Self {
        Self {
            round_trip: Some(Duration::ZERO),
            ..Self::pooled(Arc::new(route), discovery)
        }
    }

    /// Makes a link for a pool.
    pub(in crate::server) fn pooled(route: Arc<Route>, discovery: Option<Arc<Discovery>>) -> Self {
        Self {
            discovery,
            master: 0,
            route,
            line: None,
            socket: None,
            opened: Time::now(),
            known: Known::default(),
            used: Time::now(),
            is_asking: false,
            may_repeat: true,
            resent: false,
            reads: None,
            round_trip: None,
            reports: Vec::new(),
        }
    }

    /// Sends a request on a link of `pool`, which leads along this route, or lets the call of another thread take it along.
    /// Returns the reply.
    pub(in crate::server) fn call_in_turn(
        pool: &Pool<Self>,
        route: &Route,
        request: &Request<'_>,
        is_asking: bool,
        deadline: &mut Deadline<'_>,
    ) -> Result<Answer, Failure> {
        let offer = || {
            let reads = wire::reader(request).filter(|_| !is_asking && route.replicas == 0)?;
            Some((wire::encode(request, &route.script_settings), reads))
        };
        match pool.turn(deadline, offer)? {
            Turn::Along(reply) => {
                let (reply, resent) = (reply?, false);
                route.script_settings.note_holder(request, &reply);
                Ok(Answer { reply, resent })
            }
            Turn::Own(mut link, outcome) => {
                link.is_asking = is_asking;
                link.line.get_or_insert_with(|| Arc::clone(&pool.line));
                let answer = link.call(request, deadline);
                link.resent |= outcome == Outcome::Unknown;
                let reply = answer.map_err(|failure| link.or_unknown(failure))?.reply;
                let resent = link.resent;
                Ok(Answer { reply, resent })
            }
        }
    }

    /// Makes `route` the way to the master. Closes a connection to another server.
    fn find(&mut self, deadline: &mut Deadline<'_>) -> Result<(), Failure> {
        let Some(discovery) = &self.discovery else {
            return Ok(());
        };
        if discovery.finder.is_trusted(self.master) {
            return Ok(());
        }
        let begun = deadline.now();
        let found = discovery.master(deadline.phase(Phase::Master, self.route.connect_timeout));
        if self.round_trip.is_some() {
            deadline.leave_out(begun);
        }
        let (number, route) = found?;
        if number == self.master {
            return Ok(());
        }
        self.socket = None;
        (self.master, self.route) = (number, Arc::new(route));
        Ok(())
    }

    /// Makes the thread check the master, because it may not be one any more.
    fn suspect(&self) {
        if let Some(discovery) = &self.discovery {
            discovery.finder.suspect(self.master);
        }
    }

    /// Returns the meaning of a fault of the connection, and suspects the master.
    fn failed(&self, fault: TransportError) -> Failure {
        self.suspect();
        self.route.broken(fault)
    }

    /// Sends a request to the master, and returns the reply: the steps at the top. Behind sentinels a server may be demoted at
    /// any time, and still answer. So the link finds the master before the request, and checks after the reply that the server
    /// still is that master.
    pub(crate) fn call(
        &mut self,
        request: &Request<'_>,
        deadline: &mut Deadline<'_>,
    ) -> Result<Answer, Failure> {
        self.used = deadline.now();
        self.may_repeat = request.may_repeat();
        (self.resent, self.reads) = (false, None);
        if self.discovery.is_some() {
            self.find(deadline)?;
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
        }
        let replied = self.reply(request, deadline);
        let mut reply = replied.map_err(|failure| self.or_unknown(failure))?;
        if self.discovery.is_some() {
            // The server has executed the request, whatever comes now.
            let checked = self.check_master(request, &reply, deadline);
            checked.map_err(|failure| Failure {
                timed_out: false,
                ..failure.with(Outcome::Unknown)
            })?;
            if let Reply::Page {
                next: Some(next), ..
            } = &mut reply
            {
                next.run = self.master;
            }
        }
        Ok(Answer {
            reply,
            resent: self.resent,
        })
    }

    /// Returns the failure of a request. If it was sent twice, the server may execute it once more, later.
    fn or_unknown(&self, failure: Failure) -> Failure {
        if self.resent {
            failure.with(Outcome::Unknown)
        } else {
            failure
        }
    }

    /// Asks for a mutex without a fence by a plain command first, and otherwise by the request's script. Asks the replicas to
    /// confirm a grant or renewal, if that is needed.
    fn reply(
        &mut self,
        request: &Request<'_>,
        deadline: &mut Deadline<'_>,
    ) -> Result<Reply, Failure> {
        let mut value = Value::Nil;
        let plain = wire::encode_plain(request, &self.route.script_settings);
        // The plain command would go alone, while others wait to go along.
        let takes_along = self.line.as_ref().is_some_and(|line| line.is_there());
        if let Some(plain) = plain.filter(|_| !self.is_asking && !takes_along) {
            value = match self.exchange(&[plain], deadline)?.pop() {
                Some(Value::Okay) => wire::TAKEN_WITHOUT_A_FENCE,
                Some(other @ (Value::Nil | Value::ServerError(_))) => other,
                _ => {
                    self.distrust();
                    let words = "the reply belongs to another request".to_owned();
                    return Err(self.failed(TransportError::Malformed(words)));
                }
            };
        }
        if value == Value::Nil {
            let command = wire::encode(request, &self.route.script_settings);
            let answers = if self.is_asking {
                // ASKING and its command are one unit. So the server must not answer the command with `NOSCRIPT`.
                self.exchange(&[Command::new("ASKING"), command.by_text()], deadline)
            } else {
                self.reads = wire::reader(request).filter(|_| self.route.replicas == 0);
                self.exchange(&[command], deadline)
            };
            value = answers?.pop().unwrap_or(Value::Nil);
        }
        if let Value::ServerError(error) = value {
            return Err(self.refused(error));
        }
        let reply = wire::decode(request, value).inspect_err(|_| self.distrust())?;
        self.route.script_settings.note_holder(request, &reply);
        if self.route.replicas > 0 && reply.is_gain() && !request.is_a_look() {
            self.confirm(deadline, Duration::MAX)?;
        }
        Ok(reply)
    }

    /// Closes the connection after an answer that may be that to another request: nothing on it can be trusted any more.
    fn distrust(&mut self) {
        self.route.data_loss_signs.note_surplus();
        self.socket = None;
    }

    /// Checks that a reply is that of the master.
    fn check_master(
        &mut self,
        request: &Request<'_>,
        reply: &Reply,
        deadline: &mut Deadline<'_>,
    ) -> Result<(), Failure> {
        if may_come_from_a_replica(request, reply) {
            let role = self.once(&[Command::new("ROLE")], deadline);
            let role = role.map_err(|fault| self.failed(fault))?.pop();
            if let Err(failure) = check_role(&self.route, role.unwrap_or(Value::Nil)) {
                self.suspect();
                self.socket = None;
                return Err(failure);
            }
        }
        let number = self.master;
        self.find(deadline)?;
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

    /// Sends commands in one write, and returns their answers. Connects if it has to. Sends them once more if a connection of
    /// an earlier request turns out to be closed, or to have something unread.
    fn exchange(
        &mut self,
        commands: &[Command],
        deadline: &mut Deadline<'_>,
    ) -> Result<Vec<Value>, Failure> {
        loop {
            if !self.route.together.is_latest(&self.known) {
                let before = mem::replace(&mut self.known, self.route.together.look());
                if before.era != self.known.era {
                    self.socket = None;
                }
            }
            let is_reused = self.socket.is_some();
            if !is_reused {
                self.connect(deadline)?;
            }
            let fault = match self.once(commands, deadline) {
                Ok(answers) => return Ok(answers),
                Err(fault) => fault,
            };
            let was_written = fault.is_closed();
            let is_harmless = was_written && self.may_repeat || fault.is_before_the_request();
            let repeats = is_reused && is_harmless;
            let failure = self.failed(fault);
            if !repeats {
                if !is_reused && failure.is_transient() {
                    self.route.connecting.note(&failure);
                }
                return Err(failure);
            }
            self.resent |= was_written;
            self.find(deadline)?;
        }
    }

    /// Sends commands on the open connection, and returns their answers. Sends the text of each script that the server does
    /// not have.
    fn once(
        &mut self,
        commands: &[Command],
        deadline: &mut Deadline<'_>,
    ) -> Result<Vec<Value>, TransportError> {
        let is_unknown = |answer: &Value| matches!(answer, Value::ServerError(error) if error.code() == "NOSCRIPT");
        let mut answers = self.write(commands, deadline)?;
        if answers.iter().any(is_unknown) {
            let asked = commands.iter().zip(&answers);
            let texts = asked.filter(|(_, answer)| is_unknown(answer));
            let texts: Vec<_> = texts.map(|(command, _)| command.by_text()).collect();
            let again = self.write(&texts, deadline).map_err(|fault| {
                // The other commands have been executed.
                if fault.is_before_the_request() && texts.len() < commands.len() {
                    self.route.broken(fault);
                    return cut();
                }
                fault
            });
            let unknown = answers.iter_mut().filter(|answer| is_unknown(answer));
            for (answer, again) in unknown.zip(again?) {
                *answer = again;
            }
        }
        Ok(answers)
    }

    /// Writes commands on the open connection, and returns their answers. The question whether this connection leads to the
    /// same server as the others goes before the commands, if it is open. Requests of the line go behind them, and their
    /// callers are told what becomes of them. After a fault, and after a panic, the connection is closed.
    fn write(
        &mut self,
        commands: &[Command],
        deadline: &mut Deadline<'_>,
    ) -> Result<Vec<Value>, TransportError> {
        let mut socket = self.socket.take().ok_or(TransportError::NotSent)?;
        // Whatever is written after this, such as the text of a script, goes alone.
        let reads = self.reads.take();
        let mut along = reads.and_then(|_| self.take_along(&commands[0], deadline));
        let question = self.known.question.as_ref();
        let theirs = along.iter().flat_map(Along::commands);
        let all = question.into_iter().chain(commands).chain(theirs);
        let time = deadline.phase(Phase::Request, self.route.io_timeout);
        let least = question.iter().len() + commands.len();
        let answered = socket
            .requests(all, time)
            .and_then(|answers| (answers.len() >= least).then_some(answers).ok_or_else(cut));
        let mut answers = answered.inspect_err(|fault| {
            if let Some(along) = along.take() {
                along.failed(fault, &self.route);
            }
        })?;
        let first = question.map(|_| answers.remove(0));
        self.socket = Some(socket);
        if first.is_some_and(|first| self.route.together.is_confirmed_by(&first)) {
            self.known.question = None;
        }
        if let Some(along) = along {
            let theirs = answers.split_off(commands.len());
            let own = &answers[0];
            let is_own = matches!(own, Value::ServerError(_))
                || reads.is_some_and(|read| read(own).is_some());
            let told = along.answered(is_own, theirs, |error| self.refused(error));
            told.inspect_err(|_| self.distrust())?;
        }
        Ok(answers)
    }

    /// Takes requests of the line along behind this command, if there is time for them.
    fn take_along(&self, own: &Command, deadline: &mut Deadline<'_>) -> Option<Along> {
        let now = deadline.now();
        let until = now + self.route.io_timeout;
        let has_time = deadline.end() >= until;
        let line = self
            .line
            .as_ref()
            .filter(|line| has_time && line.is_there())?;
        let along = line.take(own, now, until);
        // Without CPU time in between, this thread may be late by now. Then it must not write for callers that have left.
        deadline.now = None;
        if !self.route.together.is_latest(&self.known) {
            // Some of them may have come after the sign for which this connection is to be closed.
            along.failed(&TransportError::NotSent, &self.route);
            return None;
        }
        Some(along)
    }

    /// Returns the meaning of an error answer.
    fn refused(&mut self, error: redis::ServerError) -> Failure {
        let moved = says(&error, &["READONLY"]);
        if moved || says(&error, &["LOADING", "MASTERDOWN"]) {
            self.suspect();
        }
        let failure = self.route.refused(error);
        if moved {
            self.route.together.read_only();
        }
        // A server that has become a replica stays one, but its name may lead to the new master by now. And a user whose
        // request is denied may have more rights on a new connection, but not on each of a thousand in a second.
        let is_old = self.opened.elapsed() >= CLOSED_EVERY;
        let is_denied = failure.kind == FailureKind::Denied && is_old;
        if moved || is_denied || failure.of_connecting {
            self.socket = None;
        }
        failure
    }

    /// Connects, and logs in. On the renewal thread's link that is no part of the time limit. Suspects the master if it cannot
    /// be reached.
    fn connect(&mut self, deadline: &mut Deadline<'_>) -> Result<(), Failure> {
        self.known = self.route.together.look();
        let connected = if self.round_trip.is_none() {
            connect_in_turn(&self.route, deadline, Some(self.used))
        } else {
            let begun = deadline.now();
            let connected = connect_in_turn(&self.route, &mut Deadline::default(), None);
            deadline.leave_out(begun);
            connected
        };
        let socket = connected.inspect_err(|failure| {
            if failure.is_transient() {
                self.suspect();
            }
        })?;
        self.socket = Some(socket);
        self.opened = Time::now();
        Ok(())
    }

    /// Sends commands about several names in one write, and returns their answers. With `confirmed_within` replicas must
    /// confirm the writes: otherwise each answer that is no error is that failure. This time is shorter than the limit,
    /// because the link can be used again only after the answer to WAIT.
    pub(super) fn batch(
        &mut self,
        commands: &[Command],
        confirmed_within: Option<Duration>,
        limit: Duration,
    ) -> Result<Vec<Result<Value, Failure>>, Failure> {
        (self.may_repeat, self.resent) = (true, false);
        self.measured(limit, |link, deadline| {
            let begun = Time::now();
            let answers = link.exchange(commands, deadline);
            let answers = answers.map_err(|failure| link.or_unknown(failure))?;
            let confirmed = match confirmed_within {
                Some(within) => {
                    // The commands have taken a round trip of this time, and WAIT takes another.
                    let left = within.saturating_sub(begun.elapsed() * 2);
                    link.confirm(deadline, left.max(within / 2))
                }
                None => Ok(()),
            };
            let answer = |answer| match (&confirmed, answer) {
                (_, error @ Value::ServerError(_)) => Ok(error),
                (Ok(()), value) => Ok(value),
                (Err(failure), _) => Err(failure.clone()),
            };
            Ok(answers.into_iter().map(answer).collect())
        })
    }

    /// Looks by an empty renewal whether the server answers. By its text that loads the script too, because on a slow link the
    /// first lease would have no time for another round trip. A demoted master answers it as well: the next renewal shows that.
    fn look(&mut self, limit: Duration) -> Result<(), Failure> {
        let request = Request::Renew(&[]);
        let text = wire::encode(&request, &self.route.script_settings).by_text();
        let round_trip = self.round_trip;
        let answer = self
            .batch(&[text], None, limit)
            .and_then(|mut answers| answers.remove(0));
        let looked = answer.and_then(|value| match value {
            Value::ServerError(error) => Err(self.refused(error)),
            value => wire::decode(&request, value).inspect_err(|_| self.distrust()),
        });
        if looked.is_err() {
            self.socket = None;
            // A request would have had its own limit.
            self.round_trip = round_trip;
        }
        looked.map(drop)
    }

    /// Returns whether the last request has left the connection open.
    pub(super) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Does `work` within this time, or within two round trips if those take longer. Measures the round trip.
    fn measured<T>(
        &mut self,
        limit: Duration,
        work: impl FnOnce(&mut Self, &mut Deadline<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let before = self.round_trip();
        let mut deadline = Deadline::after(limit.max(before * 2));
        let whole = deadline.left();
        let done = work(self, &mut deadline);
        let took = whole.saturating_sub(deadline.left());
        let last = self.round_trip();
        let is_cut = |failure: &Failure| {
            failure.outcome == Outcome::Unknown && self.socket.is_none() && took >= limit
        };
        match &done {
            // One fast answer does not make a fast link, so the average falls slowly.
            Ok(_) if took < last => self.round_trip = Some((last * 3 + took) / 4),
            Ok(_) => self.round_trip = Some(took),
            Err(failure) if is_cut(failure) => self.round_trip = Some(took.max(last)),
            Err(_) => {}
        }
        done
    }

    /// Returns the measured round trip.
    pub(super) fn round_trip(&self) -> Duration {
        self.round_trip.unwrap_or_default()
    }

    /// Waits for at most `within` until enough replicas have the last write on this connection. Every script that grants or
    /// renews writes, even if it is repeated. A write that they have not confirmed in time counts as not replicated.
    fn confirm(&mut self, deadline: &mut Deadline<'_>, within: Duration) -> Result<(), Failure> {
        let wanted = self.route.replicas;
        let limit = within.min(self.route.io_timeout);
        let limit = deadline.phase(Phase::Request, limit).left();
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
        let answer = self.once(&[wait], deadline);
        let confirmed = match answer.map(|mut answers| answers.pop()) {
            Ok(Some(Value::Int(count))) => u32::try_from(count).unwrap_or(0),
            Ok(Some(Value::ServerError(error))) => {
                return Err(self.route.refused(error).with(Outcome::Unknown));
            }
            Ok(_) => {
                self.distrust();
                let words = "the answer to WAIT is not a number";
                return Err(Failure::plain(
                    FailureKind::Protocol,
                    Outcome::Unknown,
                    words,
                ));
            }
            // The server has just answered the script on this connection, so only the replicas can be late.
            Err(fault) if fault.is_timeout() => return Err(too_few(0)),
            Err(fault) => return Err(self.failed(fault).with(Outcome::Unknown)),
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
        deadline: &mut Deadline<'_>,
    ) -> Result<(Reply, u64), Failure> {
        let reply = self.call(request, deadline)?.reply;
        // Only this thread uses the connection, so the same process answers.
        let commands = [
            Command::new("ROLE"),
            Command::new("INFO").arg("server").to_owned(),
        ];
        let answers = self.once(&commands, deadline);
        let answers = answers.map_err(|fault| self.failed(fault))?.into_iter();
        let answers = answers.map(|answer| self.route.accepted(answer));
        let answers = answers.collect::<Result<Vec<_>, _>>()?;
        let [role, report] =
            <[_; 2]>::try_from(answers).map_err(|_| Failure::another_question())?;
        check_role(&self.route, role).inspect_err(|_| self.socket = None)?;
        let run = run(&report).ok_or_else(|| {
            // This may be the answer to another request.
            self.socket = None;
            let words = "the server does not report its run_id";
            Failure::plain(FailureKind::Protocol, Outcome::NotExecuted, words)
        })?;
        Ok((reply, run))
    }
}

impl Pooled for Link {
    fn close_if_idle(&mut self, idle: Duration) {
        if self.used.elapsed() < idle {
            return;
        }
        // An answer that nobody has asked for would otherwise be closed unread.
        let seen = self.socket.take().map(|mut socket| socket.look());
        if let Some(Err(TransportError::Surplus)) = seen {
            self.route.broken(TransportError::Surplus);
        }
    }
}

/// The requests of the renewal thread. They have time limits of their own: the table at the top.
impl DedicatedConnection for Link {
    fn open(&mut self, is_silent: bool) -> Result<(), Failure> {
        self.find(&mut Deadline::default())?;
        let is_open = self.socket.is_some();
        if is_open && (!is_silent || self.look(LOOK_WITHIN).is_ok()) {
            return Ok(());
        }
        self.look(self.route.io_timeout)
    }

    fn call(&mut self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure> {
        let master = self.master;
        let answer = self.measured(limit, |link, deadline| Link::call(link, request, deadline));
        // A failure because the master has changed says nothing about the new one.
        if answer.is_ok() || master == self.master {
            let failure = answer.as_ref().err();
            let failure = failure.filter(|failure| failure.is_of_the_connection());
            self.reports.push(self.route.report(failure));
        }
        answer
    }

    fn take_reports(&mut self) -> Vec<NodeReport> {
        mem::take(&mut self.reports)
    }
}

/// Returns the fault of a connection that has ended before an answer. Nobody knows whether the command was executed.
fn cut() -> TransportError {
    TransportError::Io(io::ErrorKind::UnexpectedEof.into())
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
        Request::Ask(_, ask) => ask.queues() || ask.ending.is_some(),
        _ => true,
    };
    match reply {
        Reply::Granted { .. }
        | Reply::Released
        | Reply::HandedOver
        | Reply::Committed(_)
        | Reply::Stopped { .. }
        | Reply::Recorded
        | Reply::Admitted(_) => false,
        Reply::Held { .. } => !waits,
        Reply::Differs { reply, .. } => may_come_from_a_replica(request, reply),
        Reply::Renewed(all) => all.iter().any(is_gone),
        Reply::Each(all) => all.iter().flatten().any(|reply| *reply != Reply::Released),
        _ => true,
    }
}

#[cfg(test)]
mod tests;
