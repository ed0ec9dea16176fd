//! The connections to one sentinel, and its last answer.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | closed | the pause is over | opening, on a short-lived thread |
//! | opening | both connections are open, and one is subscribed | open |
//! | opening | a failure | closed; each further pause is twice as long, until both answers have come once |
//! | open | a check begins | asked |
//! | asked | both answers have come | open |
//! | asked | another check begins | asked; it is asked again after the answers |
//! | asked | no answer has come for a whole step when a check begins | closed |
//! | open | a connection fails | closed |

use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};
use redis::Value;

use crate::error::{Failure, FailureKind, Outcome};
use crate::net::deadline::{Deadline, Phase};
use crate::net::login::log_in;
use crate::net::pubsub::PushMessage;
use crate::net::refusal::{refusal, unavailable};
use crate::net::route::Route;
use crate::net::socket::{Socket, TransportError};
use crate::server::finder::FinderThread;
use crate::server::sentinel::opinion::Opinion;
use crate::sys::Time;
use crate::wire::Command;

/// The pause before a connection is opened again. It doubles up to the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub(super) struct Sentinel {
    route: Route,
    connection: SentinelConnection,
    /// The answer to the current check.
    pub(super) opinion: Option<Opinion>,
    /// Why there is no answer.
    pub(super) failure: Option<Failure>,
    pause: Duration,
}

enum SentinelConnection {
    /// It is opened at this time.
    Closed(Time),
    Opening(Receiver<Result<Sockets, Failure>>),
    Open(Box<Sockets>),
}

pub(super) struct Sockets {
    pub(super) asks: Socket,
    /// It is subscribed to `+switch-master`.
    pub(super) listens: Socket,
    /// The questions that the sentinel has not answered.
    asked: Option<Questions>,
    /// The check in which it was asked last.
    asked_in: u64,
}

/// Two questions on their way, see [`Opinion::of`].
struct Questions {
    check: u64,
    at: Time,
    /// The answer to the first.
    address: Option<Value>,
}

impl Sentinel {
    pub(super) fn new(route: Route) -> Self {
        Self {
            route,
            connection: SentinelConnection::Closed(Time::now()),
            opinion: None,
            failure: None,
            pause: FIRST_PAUSE,
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.route.server.address
    }

    /// Returns the connections, if they are open.
    pub(super) fn sockets(&self) -> Option<&Sockets> {
        match &self.connection {
            SentinelConnection::Open(sockets) => Some(sockets),
            SentinelConnection::Closed(_) | SentinelConnection::Opening(_) => None,
        }
    }

    /// Returns when the connections must be opened.
    pub(super) fn opens_at(&self) -> Option<Time> {
        match &self.connection {
            SentinelConnection::Closed(at) => Some(*at),
            SentinelConnection::Opening(_) | SentinelConnection::Open(_) => None,
        }
    }

    /// Returns whether an answer to the current check may still come.
    pub(super) fn may_answer(&self) -> bool {
        match &self.connection {
            SentinelConnection::Open(sockets) => sockets.asked.is_some(),
            SentinelConnection::Opening(_) => true,
            SentinelConnection::Closed(_) => false,
        }
    }

    /// Opens the connection if it is time, or takes it if it was opened.
    pub(super) fn connect(&mut self, thread: &FinderThread<impl Clone + Send + 'static>) {
        match &self.connection {
            SentinelConnection::Closed(at) if Time::now() >= *at => {
                let route = self.route.clone();
                match thread.aside(move || open(&route)) {
                    Ok(opened) => self.connection = SentinelConnection::Opening(opened),
                    Err(failure) => self.failed(failure),
                }
            }
            SentinelConnection::Opening(opened) => match opened.try_recv() {
                Ok(Ok(sockets)) => {
                    self.failure = None;
                    self.connection = SentinelConnection::Open(Box::new(sockets));
                }
                Ok(Err(failure)) => self.failed(failure),
                Err(TryRecvError::Disconnected) => {
                    self.failed(unavailable("connecting panicked"));
                }
                Err(TryRecvError::Empty) => {}
            },
            SentinelConnection::Closed(_) | SentinelConnection::Open(_) => {}
        }
    }

    /// Asks the sentinel, unless it was asked in this check.
    pub(super) fn ask(&mut self, master: &str, check: u64, step: Duration) {
        let SentinelConnection::Open(sockets) = &mut self.connection else {
            return;
        };
        if sockets.asked_in == check {
            return;
        }
        let sent = match &sockets.asked {
            // It is asked again after this answer.
            Some(asked) if asked.at.elapsed() < step => return,
            Some(_) => Err(Phase::Request.timed_out().into()),
            None => {
                let questions = ["GET-MASTER-ADDR-BY-NAME", "MASTER"]
                    .map(|what| Command::new("SENTINEL").arg(what).arg(master).clone());
                sockets.asks.send(&questions, &mut Deadline::after(step))
            }
        };
        sockets.asked_in = check;
        sockets.asked = Some(Questions {
            check,
            at: Time::now(),
            address: None,
        });
        if let Err(fault) = sent {
            let failure = self.route.broken(fault);
            self.failed(failure);
        }
    }

    /// Reads the answers, which count if they are those of the current check.
    pub(super) fn read_answers(&mut self, current: Option<u64>, step: Duration) {
        let SentinelConnection::Open(sockets) = &mut self.connection else {
            return;
        };
        let mut read = sockets.asks.read(Deadline::after(step));
        while read.is_ok() {
            match sockets.asks.take() {
                Ok(None) => return,
                Ok(Some(answer)) => match (&mut sockets.asked, answer) {
                    (Some(asked), answer) if asked.address.is_none() => {
                        asked.address = Some(answer);
                    }
                    (Some(asked), facts) => {
                        let is_current = current == Some(asked.check);
                        let address = asked.address.take().unwrap_or(Value::Nil);
                        sockets.asked = None;
                        self.pause = FIRST_PAUSE;
                        let opinion = opinion(&self.route, address, facts);
                        let opinion = opinion.map_err(|failure| failure.at(self.address()));
                        self.failure = opinion.as_ref().err().cloned();
                        if is_current {
                            self.opinion = opinion.ok();
                        }
                        return;
                    }
                    (None, _) => {
                        let words = "more answers than questions".to_owned();
                        read = Err(TransportError::Malformed(words));
                    }
                },
                Err(fault) => read = Err(fault),
            }
        }
        if let Err(fault) = read {
            let failure = self.route.broken(fault);
            self.failed(failure);
        }
    }

    /// Reads the messages. Returns whether one says that the master has changed.
    pub(super) fn read_messages(&mut self, master: &str, step: Duration) -> bool {
        let SentinelConnection::Open(sockets) = &mut self.connection else {
            return false;
        };
        let mut has_switched = false;
        let mut read = sockets
            .listens
            .read(Deadline::after(step))
            .map_err(|fault| self.route.broken(fault));
        while read.is_ok() {
            match sockets.listens.take() {
                Ok(Some(value)) => match PushMessage::of(&self.route.server, value) {
                    // `<name> <old host> <old port> <new host> <new port>`, perhaps of another master.
                    Ok(PushMessage::Message { payload, .. }) => {
                        let name = payload.split(|byte| *byte == b' ').next();
                        has_switched |= name == Some(master.as_bytes());
                    }
                    Ok(_) => {}
                    Err(failure) => read = Err(failure),
                },
                Ok(None) => break,
                Err(fault) => read = Err(self.route.broken(fault)),
            }
        }
        if let Err(failure) = read {
            self.failed(failure);
        }
        has_switched
    }

    fn failed(&mut self, failure: Failure) {
        self.failure = Some(failure.at(self.address()));
        self.connection = SentinelConnection::Closed(Time::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

/// Reads the answers of a sentinel.
fn opinion(route: &Route, address: Value, facts: Value) -> Result<Opinion, Failure> {
    let opinion = Opinion::of(&address, &facts);
    let ((Value::ServerError(error), _) | (_, Value::ServerError(error))) = (address, facts) else {
        let words = || format!("{} does not answer as a sentinel", route.server.address);
        return opinion.ok_or_else(|| unavailable(words()));
    };
    let text = error.details().unwrap_or_default();
    let (option, words) = if text.starts_with("No such master") {
        let words = "the sentinels do not watch a master of this name";
        ("master", words.to_owned())
    } else if text.starts_with("unknown command") {
        let words = format!("{} is not a sentinel", route.server.address);
        ("sentinels", words)
    } else {
        return Err(refusal(&route.server, error));
    };
    let kind = FailureKind::Config(option);
    Err(Failure::plain(kind, Outcome::NotExecuted, words))
}

/// Opens both connections to a sentinel. Each step has its own time limit.
fn open(route: &Route) -> Result<Sockets, Failure> {
    let request = |socket: &mut Socket, command: &Command| {
        let answer = socket.request(command, Deadline::after(route.io_timeout));
        match answer.map_err(|fault| route.broken(fault))? {
            Value::ServerError(error) => Err(refusal(&route.server, error)),
            _ => Ok(()),
        }
    };
    let mut asks = log_in(route, &mut Deadline::default())?;
    // With TLS the first request ends the handshake.
    request(&mut asks, &Command::new("PING"))?;
    let mut listens = log_in(route, &mut Deadline::default())?;
    let subscribe = Command::new("SUBSCRIBE").arg("+switch-master").to_owned();
    request(&mut listens, &subscribe)?;
    Ok(Sockets {
        asks,
        listens,
        asked: None,
        asked_in: 0,
    })
}
