//! The connection of the renewal thread to one master of a cluster.
//!
//! | state of a connection to a master | event | next state |
//! | --- | --- | --- |
//! | closed | an exchange needs it, and its pause is over | opening, on a short-lived thread |
//! | opening | it is open: logged in, and the script of renewals is loaded | open; the commands of a waiting exchange are written |
//! | opening | a failure | closed, and the master is suspected; each further pause is twice as long |
//! | open | an exchange needs it, and late answers are missing | open; the exchange goes on without it |
//! | open, since an earlier exchange | before the commands are written, the server has closed it, or something is unread | opening |
//! | open, since an earlier exchange | the server has closed it | opening; the commands are written once more |
//! | open | any other failure, or no answer for `io_timeout` | closed, and the master is suspected |
//!
//! The table at the top of [`crate::net::exchange`] shows what happens on an open one. Nothing is written while an answer
//! is missing.

use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError, bounded};
use redis::Value;

use super::master::Master;
use super::state::ClusterState;
use crate::error::{Failure, FailureKind, Outcome};
use crate::net::exchange::Pipeline;
use crate::net::login::connect_for_renewals;
use crate::net::refusal::unavailable;
use crate::net::socket::{Socket, TransportError};
use crate::sys::net::WakingEnd;
use crate::sys::{Arc, Time, thread};
use crate::wire::Command;

/// The shortest grace of a master, and the time limit of a write.
pub(super) const SHORTEST_GRACE: Duration = Duration::from_millis(200);
/// The pause before a connection is opened again. It doubles up to the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How much earlier than the exchange a wait for replicas ends: the server's timer runs every 100 ms.
const LATE_ANSWER: Duration = Duration::from_millis(110);

/// A command for one master.
pub(super) struct Part {
    pub(super) master: Arc<Master>,
    /// Whether the slot is moving to this master.
    pub(super) is_asking: bool,
    pub(super) command: Command,
}

pub(super) struct MasterConnection {
    pub(super) master: Arc<Master>,
    pub(super) state: ConnectionState,
    /// The pause after the next failure.
    pause: Duration,
    /// The time of the last answers.
    pub(super) took: Duration,
    /// The numbers of the parts to write in this exchange.
    pub(super) parts: Vec<usize>,
    /// Whether it was opened before this exchange.
    pub(super) is_reused: bool,
    /// Why it was closed last, until it is open.
    pub(super) failure: Option<Failure>,
    waker: Arc<WakingEnd>,
}

pub(super) enum ConnectionState {
    /// It may be opened at this time.
    Closed(Time),
    /// Receives the connection, and the time that the last step of opening it took.
    Opening(Receiver<Result<(Socket, Duration), Failure>>),
    Open(Box<Pipeline<SentPart>>),
}

/// The part of an exchange to which a command belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SentPart {
    /// The part of this number.
    Number(usize),
    /// The next command, whose slot is moving.
    #[default]
    Asking,
    /// The number of replicas that have the writes.
    Replicas,
}

/// The parts of an exchange, and their answers so far.
pub(super) struct PartAnswers<'a> {
    pub(super) parts: &'a [Part],
    pub(super) shared: &'a ClusterState,
    pub(super) limit: Duration,
    /// Whether replicas must confirm the writes, if the settings name any.
    pub(super) is_gain: bool,
    pub(super) answers: Vec<Option<Result<Value, Failure>>>,
    pub(super) is_resent: bool,
}

impl MasterConnection {
    /// Makes a connection that is closed. `waker` wakes its thread when the connection was opened.
    pub(super) fn new(master: &Arc<Master>, waker: &Arc<WakingEnd>) -> Self {
        Self {
            master: Arc::clone(master),
            state: ConnectionState::Closed(Time::now()),
            pause: FIRST_PAUSE,
            took: Duration::ZERO,
            parts: Vec::new(),
            is_reused: false,
            failure: None,
            waker: Arc::clone(waker),
        }
    }

    /// closed: begins to open the connection if its pause is over, or the master accepts connections again.
    pub(super) fn open_if_due(&mut self) {
        let ConnectionState::Closed(due) = self.state else {
            return;
        };
        if due > Time::now() && !self.is_accepted_again() {
            return;
        }
        let (sender, opened) = bounded(1);
        let (route, waker) = (self.master.route.clone(), Arc::clone(&self.waker));
        let started = thread::spawn("", move || {
            // If nobody receives it, the connection is not needed any more.
            sender.send(connect_for_renewals(&route)).ok();
            waker.wake();
        });
        match started {
            Ok(()) => self.state = ConnectionState::Opening(opened),
            Err(error) => self.close(unavailable(format!("no thread could be started: {error}"))),
        }
    }

    /// Returns whether the master refused the last connection here, and has accepted one of a call since.
    fn is_accepted_again(&self) -> bool {
        let is_noted = |failure: &Failure| failure.of_connecting && !failure.timed_out;
        let was_refused = self.failure.as_ref().is_some_and(is_noted);
        was_refused && self.master.route.connecting.failure().is_none()
    }

    /// opening: takes the connection if it was opened. Returns whether it has just been opened, or has failed to open.
    pub(super) fn take_opened(&mut self) -> bool {
        let ConnectionState::Opening(opened) = &self.state else {
            return false;
        };
        let opened = match opened.try_recv() {
            Err(TryRecvError::Empty) => return false,
            Ok(opened) => opened,
            Err(TryRecvError::Disconnected) => Err(unavailable("connecting panicked")),
        };
        match opened {
            Ok((socket, took)) => {
                self.pause = FIRST_PAUSE;
                self.failure = None;
                self.took = self.took.max(took);
                let pipeline = Box::new(Pipeline::new(socket, SHORTEST_GRACE));
                self.state = ConnectionState::Open(pipeline);
            }
            Err(failure) => self.close(failure.of_connecting()),
        }
        true
    }

    fn close(&mut self, failure: Failure) {
        self.failure = Some(failure);
        self.state = ConnectionState::Closed(Time::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Returns whether the exchange waits for this connection: it is being opened, or answers are missing.
    pub(super) fn is_waited_for(&self) -> bool {
        match &self.state {
            _ if self.parts.is_empty() => false,
            ConnectionState::Closed(_) => false,
            // A master that has failed may hang.
            ConnectionState::Opening(_) => self.failure.is_none(),
            ConnectionState::Open(pipeline) => pipeline.is_asked(),
        }
    }

    /// open: drops the late answers that have come.
    pub(super) fn look(&mut self, answers: &mut PartAnswers<'_>) {
        let ConnectionState::Open(pipeline) = &mut self.state else {
            return;
        };
        let mut waited = None;
        let looked = pipeline.look(self.master.route.io_timeout, |_, late| {
            waited = Some(Time::now().since(late.sent));
        });
        match looked {
            // An answer is overdue, so the master may hang.
            Err(fault) if fault.is_timeout() => return self.broken(fault, answers),
            // Nothing of this exchange was written, so another connection can take it.
            Err(fault) => {
                self.master.route.broken(fault);
                return self.reopen();
            }
            Ok(()) => {}
        }
        if let (Some(waited), true) = (waited, pipeline.is_idle()) {
            // It may have come at any time until now.
            self.took = self.took.max(waited.min(SHORTEST_GRACE * 2));
            self.master.note_answer();
        }
    }

    /// Writes the parts, if the connection is open and misses no answer. If it cannot take them, they have failed.
    pub(super) fn begin(&mut self, answers: &mut PartAnswers<'_>) {
        let words = match &self.state {
            _ if self.parts.is_empty() => return,
            ConnectionState::Opening(_) if self.failure.is_none() => return,
            ConnectionState::Opening(_) => "the connection is being opened after a failure",
            ConnectionState::Open(pipeline) if pipeline.is_idle() => return self.write(answers),
            ConnectionState::Open(_) => "the node has not answered an earlier request",
            ConnectionState::Closed(_) => "the connection to the node could not be opened",
        };
        let failure = match &self.failure {
            Some(failure) => {
                if !self.is_accepted_again() {
                    answers.shared.suspect(&self.master);
                }
                failure.clone().with(Outcome::NotExecuted)
            }
            None => unavailable(format!("{}: {words}", self.master.route.server.address)),
        };
        self.fail(&failure, answers);
    }

    /// open: writes the parts that have no answer.
    fn write(&mut self, answers: &mut PartAnswers<'_>) {
        let ConnectionState::Open(pipeline) = &mut self.state else {
            return;
        };
        let mut commands = Vec::new();
        for number in self.parts.iter().copied() {
            let part = &answers.parts[number];
            if answers.answers[number].is_some() {
                continue;
            }
            let about = SentPart::Number(number);
            if part.is_asking {
                // ASKING and its command are one unit. So the server must not answer the command with `NOSCRIPT`.
                commands.push((Command::new("ASKING"), SentPart::Asking));
                commands.push((part.command.by_text(), about));
            } else {
                commands.push((part.command.clone(), about));
            }
        }
        let replicas = self.master.route.replicas;
        if answers.is_gain && replicas > 0 {
            let limit = answers.limit;
            let patience = limit.saturating_sub(LATE_ANSWER).max(limit / 2);
            let patience = patience.as_millis().max(1) as u64;
            let mut wait = Command::new("WAIT");
            wait.arg(replicas).arg(patience);
            commands.push((wait, SentPart::Replicas));
        }
        if let Err(fault) = pipeline.ask(commands) {
            self.broken(fault, answers);
        }
    }

    /// open: takes in the answers that have come.
    pub(super) fn take_answers(&mut self, answers: &mut PartAnswers<'_>) {
        let ConnectionState::Open(pipeline) = &mut self.state else {
            return;
        };
        if self.parts.is_empty() || !pipeline.is_asked() {
            return;
        }
        let mut is_served = false;
        let mut sent = None;
        let fault = loop {
            let (value, answered) = match pipeline.take() {
                Ok(Some(answer)) => answer,
                Ok(None) => break None,
                Err(fault) => break Some(fault),
            };
            sent = Some(answered.sent);
            match answered.about {
                // The scripts were flushed. A later part may have been executed already, and is sent once more.
                _ if answered.is_late => answers.is_resent |= self.parts.len() > 1,
                SentPart::Number(number) => {
                    is_served |= !matches!(value, Value::ServerError(_));
                    answers.answers[number] = Some(Ok(value));
                }
                SentPart::Asking => {}
                SentPart::Replicas => {
                    let confirmed = match value {
                        Value::Int(count) => u32::try_from(count).unwrap_or(0),
                        _ => 0,
                    };
                    answers.confirmed(&self.parts, self.master.route.replicas, confirmed);
                }
            }
        };
        if let Some(fault) = fault {
            return self.broken(fault, answers);
        }
        if let (Some(sent), false) = (sent, pipeline.is_asked()) {
            let took = Time::now().since(sent);
            self.took = if took >= self.took {
                took
            } else {
                // One fast answer does not make a fast link.
                (self.took * 3 + took) / 4
            };
        }
        if is_served {
            self.master.note_answer();
        }
    }

    /// Closes the connection. If the server has just closed a connection of an earlier exchange, opens it again for the
    /// same parts.
    fn broken(&mut self, fault: TransportError, answers: &mut PartAnswers<'_>) {
        let route = &self.master.route;
        if let TransportError::Malformed(_) = &fault {
            // Any of the answers may belong to another request.
            answers.forget(&self.parts);
        }
        let is_closed = fault.is_closed();
        let failure = route.broken(fault);
        if is_closed && self.is_reused {
            if answers.is_gain && route.replicas > 0 {
                // Replicas are counted on the connection of the writes, so all are written once more.
                answers.forget(&self.parts);
            }
            answers.is_resent = true;
            return self.reopen();
        }
        answers.shared.suspect(&self.master);
        self.fail(&failure, answers);
        self.close(failure);
    }

    /// Opens another connection at once.
    fn reopen(&mut self) {
        self.is_reused = false;
        self.state = ConnectionState::Closed(Time::now());
        self.open_if_due();
    }

    /// Gives this failure to the parts that have no answer. The exchange goes on without the connection.
    fn fail(&mut self, failure: &Failure, answers: &mut PartAnswers<'_>) {
        let outcome = if answers.is_resent {
            Outcome::Unknown
        } else {
            failure.outcome
        };
        for number in &self.parts {
            answers.answers[*number].get_or_insert_with(|| Err(failure.clone().with(outcome)));
        }
        self.end(answers);
    }

    /// Ends the exchange for this connection. Writes whose replicas have not been counted are not confirmed.
    pub(super) fn end(&mut self, answers: &mut PartAnswers<'_>) {
        // The number of replicas is the last answer.
        let is_counted =
            matches!(&self.state, ConnectionState::Open(pipeline) if !pipeline.is_asked());
        if answers.is_gain && !is_counted {
            answers.confirmed(&self.parts, self.master.route.replicas, 0);
        }
        self.parts.clear();
        if let ConnectionState::Open(pipeline) = &mut self.state {
            pipeline.give_up();
        }
    }
}

impl PartAnswers<'_> {
    /// Forgets the answers to these parts.
    fn forget(&mut self, parts: &[usize]) {
        for number in parts {
            self.answers[*number] = None;
        }
    }

    /// Takes in how many replicas have the writes of these parts.
    fn confirmed(&mut self, parts: &[usize], wanted: u32, confirmed: u32) {
        if confirmed >= wanted {
            return;
        }
        let kind = FailureKind::NotReplicated { wanted, confirmed };
        let words = format!("{confirmed} of {wanted} replicas confirmed it in time");
        let failure = Failure::plain(kind, Outcome::PartlyExecuted, words);
        for number in parts {
            if matches!(&self.answers[*number], Some(Ok(Value::Array(_)))) {
                self.answers[*number] = Some(Err(failure.clone()));
            }
        }
    }
}
