//! One connection, opened when it is first used and dropped at the first sign of trouble.
//!
//! After an error of input or output nothing more is sent on a connection: a reply that was given up on could
//! be read as the answer to the next request, and a request that was written in part has put the two sides out
//! of step.
//!
//! Two sorts of links keep time differently:
//!
//! | link | connecting | a request |
//! | --- | --- | --- |
//! | the pool's | is part of the call's time limit, since somebody waits for the call | has what is left of that limit |
//! | the renewal thread's | has `connect_timeout`, and `io_timeout` for the login: nothing else can be done before | has the call's limit, or two round trips where those take longer |
//!
//! The round trip is that of the last requests. A request that was cut counts with the time that it had. So a request is
//! not cut again and again just before its answer comes: a new connection costs more round trips than waiting.
//!
//! A link notes each sign that the server may have lost its data for the floors above ([`Route::cuts`]). The signs are a
//! connection that the other side closed or refused, and a server that is loading or has become a replica.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use redis::Value;

use crate::config::Server;
use crate::error::{Failure, FailureKind, on_a_line};
use crate::message::Call;
use crate::script::{self, By, Wire};
use crate::store::cuts::{CLOSED, Cuts};
use crate::store::refusal::{refusal, refused_database, refused_login, says};
use crate::store::socket::{Fault, Socket};
use crate::store::{Answer, Heard, memory};
use crate::sync::{Arc, AtomicBool, Ordering};

mod confirm;

/// How long a listener waits for a message before it looks up.
const SILENCE: Duration = Duration::from_secs(1);
/// After how many silences a listener asks whether the server is still there: a dead peer sends nothing.
const SILENCES_TO_PING: u32 = 3;

/// Where links lead and how long they may take to get there.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) server: Arc<Server>,
    pub(crate) wire: Arc<Wire>,
    pub(crate) connect_timeout: Duration,
    pub(crate) io_timeout: Duration,
    /// How many replicas must confirm what a call gained.
    pub(crate) replicas: u32,
    /// Whether the server was asked in which mode it runs and what it does when its memory is full. One link of all on
    /// this route asks.
    pub(crate) asked_about_itself: Arc<AtomicBool>,
    /// Signs that the server may have lost its data.
    pub(crate) cuts: Arc<Cuts>,
}

/// A connection, or the means to make one.
pub(crate) struct Link {
    route: Route,
    open: Option<Socket>,
    /// When it was last called.
    used: Instant,
    /// The measured length of a call. `None` for a link of the pool, whose callers have time limits of their own.
    round_trip: Option<Duration>,
}

/// What is left of the time for one call.
struct Budget {
    started: Instant,
    whole: Duration,
}

impl Budget {
    fn new(whole: Duration) -> Self {
        Self {
            started: Instant::now(),
            whole,
        }
    }

    /// The time for a step that may take `limit` by itself; never nothing, which would mean no limit at all.
    fn left(&self, limit: Duration) -> Duration {
        let left = self.whole.saturating_sub(self.started.elapsed());
        limit.min(left).max(Duration::from_millis(1))
    }
}

impl Link {
    pub(crate) fn new(route: Route) -> Self {
        Self {
            route,
            open: None,
            used: Instant::now(),
            round_trip: None,
        }
    }

    /// Makes a link for the one thread that calls it.
    pub(crate) fn dedicated(route: Route) -> Self {
        Self {
            round_trip: Some(Duration::ZERO),
            ..Self::new(route)
        }
    }

    /// Connects, logs in, and has the server load the script of renewals, unless it is connected. Each of these has its own
    /// time limit.
    pub(crate) fn open_for_renewals(&mut self) -> Result<(), Failure> {
        if self.open.is_some() {
            return Ok(());
        }
        let mut open = connect(&self.route, &Budget::new(Duration::MAX))?;
        // By digest, and in the same write by text: the first lease on a slow link has no time for another round trip if
        // the server does not have the script.
        let renewal = Call::Renew(&[]);
        let commands =
            [By::Digest, By::Text].map(|by| script::encode(&renewal, by, &self.route.wire));
        let begun = Instant::now();
        let heard = |number, answer| match answer {
            Value::ServerError(error) if number > 0 => {
                self.route.cuts.note_answer(&error);
                Err(refusal(&self.route.server, error))
            }
            _ => Ok(()),
        };
        open.requests(&commands, self.route.io_timeout, heard)
            .map_err(|fault| self.route.broken(fault))??;
        self.round_trip = self.round_trip.max(Some(begun.elapsed()));
        self.open = Some(open);
        Ok(())
    }

    /// Notes how long a call took that was given `limit`.
    fn note_round_trip(&mut self, took: Duration, is_cut: bool) {
        let Some(round_trip) = &mut self.round_trip else {
            return;
        };
        *round_trip = if is_cut || took >= *round_trip {
            took.max(*round_trip)
        } else {
            // One fast answer does not make a fast link.
            (*round_trip * 3 + took) / 4
        };
    }

    /// Tells it from others that were made at other moments.
    #[cfg(test)]
    pub(super) fn used(&self) -> Instant {
        self.used
    }

    /// Closes the connection if it has not been used for so long.
    pub(crate) fn close_if_idle(&mut self, idle: Duration) {
        if self.used.elapsed() >= idle {
            self.open = None;
        }
    }

    /// Carries out a call.
    ///
    /// A connection that was opened for an earlier call may have been closed since by the server: that shows
    /// only when it is used. The call is then sent once more on a new one, which every call's being idempotent
    /// allows.
    pub(crate) fn call(&mut self, call: &Call<'_>, limit: Duration) -> Result<Answer, Failure> {
        let two_round_trips = self.round_trip.unwrap_or_default() * 2;
        let mut budget = Budget::new(limit.max(two_round_trips));
        self.used = budget.started;
        let answer = self.ask(call, &mut budget);
        let took = budget.started.elapsed();
        match &answer {
            Ok(_) => self.note_round_trip(took, false),
            Err(failure) if failure.unknown && self.open.is_none() && took >= limit => {
                self.note_round_trip(took, true);
            }
            Err(_) => {}
        }
        answer
    }

    fn ask(&mut self, call: &Call<'_>, budget: &mut Budget) -> Result<Answer, Failure> {
        let reused = self.open.is_some();
        let route = self.route.clone();
        let (value, resent) = match self.once(call, budget) {
            Err(Trouble::Closed(error)) if reused => {
                route.cuts.note_error(&error);
                let value = self.once(call, budget).map_err(|trouble| Failure {
                    unknown: true,
                    ..trouble.into_failure(&route)
                })?;
                (value, true)
            }
            first => (
                first.map_err(|trouble| trouble.into_failure(&route))?,
                false,
            ),
        };
        let reply = script::decode(call, value).inspect_err(|_| {
            // It may be the answer to something else: nothing on this connection can be trusted any more.
            self.open = None;
        })?;
        if self.route.replicas > 0 && reply.is_gain() {
            // The server has carried it out. If it was sent once, it cannot be carried out later.
            self.confirm(budget).map_err(|failure| Failure {
                unknown: failure.unknown || resent,
                half_done: true,
                ..failure
            })?;
        }
        Ok(Answer { reply, resent })
    }

    fn once(&mut self, call: &Call<'_>, budget: &mut Budget) -> Result<Value, Trouble> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None if self.round_trip.is_some() => {
                let open = connect(&self.route, &Budget::new(Duration::MAX));
                budget.started = Instant::now();
                open.map_err(Trouble::Certain)?
            }
            None => connect(&self.route, budget).map_err(Trouble::Certain)?,
        };
        let (wire, io_timeout) = (&self.route.wire, self.route.io_timeout);
        let command = script::encode(call, By::Digest, wire);
        let mut value = open
            .request(&command, budget.left(io_timeout))
            .map_err(Trouble::of)?;
        if matches!(&value, Value::ServerError(error) if error.code() == "NOSCRIPT") {
            let command = script::encode(call, By::Text, wire);
            value = open
                .request(&command, budget.left(io_timeout))
                .map_err(Trouble::of)?;
        }
        if let Value::ServerError(error) = value {
            let moved = says(&error, &["READONLY"]);
            self.route.cuts.note_answer(&error);
            let failure = refusal(&self.route.server, error);
            // A server that has become a replica stays one: its name may lead elsewhere by now. And who is
            // refused may have been given other rights since this connection logged in.
            if !moved && failure.kind != FailureKind::Denied {
                self.open = Some(open);
            }
            return Err(Trouble::Certain(failure));
        }
        self.open = Some(open);
        Ok(value)
    }

    /// See [`crate::store::Store::listen`].
    pub(crate) fn listen(
        route: &Route,
        channels: &[&str],
        hear: &mut dyn FnMut(Heard<'_>) -> bool,
    ) -> Result<(), Failure> {
        let mut open = connect(route, &Budget::new(Duration::MAX))?;
        let server = &route.server;
        let broken = |fault| route.broken(fault);
        let late = || broken(Fault::Io(io::ErrorKind::TimedOut.into()));
        // Scripts publish, and pass over a refusal; so it is here that it is noticed. Nobody hears this message yet, and
        // once they do, the connection publishes nothing.
        let publish = redis::cmd("PUBLISH").arg(channels[0]).arg("").to_owned();
        let published = open.request(&publish, route.io_timeout).map_err(broken)?;
        let subscribe = redis::cmd("SUBSCRIBE").arg(channels).to_owned();
        open.send(&subscribe, route.io_timeout).map_err(broken)?;
        // The first channel's answer stands for all: an access list is asked about them together, and the further
        // confirmations are passed over.
        let said = open.next(route.io_timeout).map_err(broken)?;
        if !matches!(
            Said::of(server, said.ok_or_else(late)?)?,
            Said::Confirmation
        ) {
            return Err(nonsense());
        }
        if let Value::ServerError(error) = published {
            let failure = refusal(server, error);
            if failure.passes() {
                return Err(failure);
            }
            hear(Heard::Muted(&failure));
        }
        if !hear(Heard::Subscribed) {
            return Ok(());
        }
        let mut silences = 0;
        loop {
            let said = open.next(SILENCE).map_err(broken)?;
            silences = if said.is_some() { 0 } else { silences + 1 };
            let said = said.map(|said| Said::of(server, said));
            let go_on = match said.transpose()? {
                Some(Said::Message { channel, payload }) => hear(Heard::Message {
                    channel: &String::from_utf8_lossy(&channel),
                    payload: &payload,
                }),
                Some(Said::Confirmation | Said::Pong) | None => hear(Heard::Silence),
            };
            if !go_on {
                return Ok(());
            }
            if silences == SILENCES_TO_PING {
                open.send(&redis::cmd("PING"), route.io_timeout)
                    .map_err(broken)?;
            } else if silences > SILENCES_TO_PING
                && SILENCE * (silences - SILENCES_TO_PING) >= route.io_timeout
            {
                return Err(late());
            }
        }
    }
}

/// What a server says to who listens.
pub(crate) enum Said {
    Message {
        channel: Vec<u8>,
        payload: Vec<u8>,
    },
    /// That a channel is listened to.
    Confirmation,
    Pong,
}

impl Said {
    /// # Errors
    ///
    /// What the server refuses; or that it says something else, so that nothing on this connection can be trusted.
    pub(crate) fn of(server: &Server, value: Value) -> Result<Self, Failure> {
        let parts = match value {
            Value::Array(parts) => parts,
            Value::ServerError(error) => return Err(refusal(server, error)),
            _ => return Err(nonsense()),
        };
        let mut parts = parts.into_iter();
        let Some(Value::BulkString(what)) = parts.next() else {
            return Err(nonsense());
        };
        match (what.as_slice(), parts.next(), parts.next(), parts.next()) {
            (
                b"message",
                Some(Value::BulkString(channel)),
                Some(Value::BulkString(payload)),
                None,
            ) => Ok(Self::Message { channel, payload }),
            (b"subscribe", Some(Value::BulkString(_)), Some(Value::Int(_)), None) => {
                Ok(Self::Confirmation)
            }
            (b"pong", Some(Value::BulkString(_)), None, None) => Ok(Self::Pong),
            _ => Err(nonsense()),
        }
    }
}

/// What is no part of listening.
fn nonsense() -> Failure {
    let words = "the server sent something other than messages to a subscriber";
    Failure::plain(FailureKind::Protocol, false, words)
}

/// What may go wrong with one request.
enum Trouble {
    /// The server has certainly not carried it out.
    Certain(Failure),
    /// The connection was closed by the other side.
    Closed(io::Error),
    /// Anything else on the way; whether it was carried out is unknown.
    Broken(Fault),
}

impl Trouble {
    fn of(fault: Fault) -> Self {
        match fault {
            Fault::Io(error) if CLOSED.contains(&error.kind()) => Self::Closed(error),
            fault => Self::Broken(fault),
        }
    }

    fn into_failure(self, route: &Route) -> Failure {
        match self {
            Self::Certain(failure) => failure,
            Self::Closed(error) => route.broken(Fault::Io(error)),
            Self::Broken(fault) => route.broken(fault),
        }
    }
}

/// Whether an error says that the time was over, and no more.
fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    )
}

impl Route {
    /// Returns what a fault means, and notes it where the server may have lost its data.
    fn broken(&self, fault: Fault) -> Failure {
        if let Fault::Io(error) = &fault {
            self.cuts.note_error(error);
        }
        broken(&self.server, fault)
    }
}

fn broken(server: &Server, fault: Fault) -> Failure {
    let address = &server.address;
    match fault {
        Fault::Io(error) => Failure {
            kind: FailureKind::Unavailable,
            unknown: true,
            half_done: false,
            timed_out: is_late(&error),
            cause: Arc::new(At {
                address: Arc::clone(address),
                error,
            }),
        },
        // What cannot be read is no server of ours; everything else may pass.
        Fault::Malformed(what) => {
            let words = format!("{address}: {}", on_a_line(&server.without_password(&what)));
            Failure::plain(FailureKind::Protocol, true, words)
        }
    }
}

/// An error of a connection, and where it leads.
#[derive(Debug)]
struct At {
    address: Arc<str>,
    error: io::Error,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the connection to {} failed", self.address)
    }
}

impl std::error::Error for At {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Connects and logs in. The first connection of all asks the server about itself: see `memory`.
///
/// A server that does not answer the question, because something on the way swallows it, is not asked again if it answers
/// a PING. Otherwise the next connection asks.
fn connect(route: &Route, budget: &Budget) -> Result<Socket, Failure> {
    let mut open = log_in(route, budget)?;
    if route.asked_about_itself.swap(true, Ordering::Relaxed) {
        return Ok(open);
    }
    let mut ask = |command: &redis::Cmd| {
        // Half of the time is for going on without an answer.
        let answered = open.request(command, budget.left(route.io_timeout) / 2);
        match answered.map_err(Trouble::of)? {
            // It would answer nothing else now.
            Value::ServerError(error) => match refusal(&route.server, error.clone()) {
                failure if failure.passes() => Err(Trouble::Certain(failure)),
                _ => Ok(Value::ServerError(error)),
            },
            value => Ok(value),
        }
    };
    let connected = match memory::ask_about_itself(&route.server.address, &mut ask) {
        Ok(None) => Ok(open),
        Ok(Some(mode)) => Err(Failure::unsupported(mode)),
        Err(Trouble::Certain(failure)) => Err(failure),
        Err(Trouble::Closed(_) | Trouble::Broken(_)) => log_in_to_a_server(route, budget),
    };
    if connected.is_err() {
        route.asked_about_itself.store(false, Ordering::Relaxed);
    }
    connected
}

/// Connects, logs in, and makes sure that somebody answers.
fn log_in_to_a_server(route: &Route, budget: &Budget) -> Result<Socket, Failure> {
    let mut open = log_in(route, budget)?;
    match open.request(&redis::cmd("PING"), budget.left(route.io_timeout)) {
        Ok(_) => Ok(open),
        Err(fault) => Err(certain(route.broken(fault))),
    }
}

/// Of a connection over which nothing has been asked for yet.
fn certain(failure: Failure) -> Failure {
    Failure {
        unknown: false,
        ..failure
    }
}

/// Reads an error answer to a step of the login.
type Refused = fn(&Server, redis::ServerError) -> Failure;

/// Connects and logs in. Whatever fails here, nothing was asked of the server yet.
fn log_in(route: &Route, budget: &Budget) -> Result<Socket, Failure> {
    let login = route.server.info.redis_settings();
    let mut open = Socket::connect(route.server.info.addr(), budget.left(route.connect_timeout))
        .map_err(|error| certain(route.broken(Fault::Io(error))))?;
    let (mut commands, mut refused) = (Vec::new(), Vec::<Refused>::new());
    if login.password().is_some() || login.username().is_some() {
        let mut auth = redis::cmd("AUTH");
        if let Some(user) = login.username() {
            auth.arg(user);
        }
        // A user may have none; without AUTH the connection would be the user `default`'s.
        let password = login.password().unwrap_or_default();
        commands.push(auth.arg(password).to_owned());
        refused.push(refused_login);
    }
    if login.db() != 0 {
        commands.push(redis::cmd("SELECT").arg(login.db()).to_owned());
        refused.push(refused_database);
    }
    // In one piece, which is one round trip. If the server refuses AUTH, it refuses SELECT too.
    let heard = |number: usize, answer| match answer {
        Value::Okay => Ok(()),
        Value::ServerError(error) => {
            route.cuts.note_answer(&error);
            Err(refused[number](&route.server, error))
        }
        _ => {
            let words = "the answer to the login is not OK";
            Err(Failure::plain(FailureKind::Protocol, false, words))
        }
    };
    open.requests(&commands, budget.left(route.io_timeout), heard)
        .map_err(|fault| certain(route.broken(fault)))??;
    Ok(open)
}

/// TLS wants a provider of cryptography for the process: the program's, or else ring.
#[cfg(feature = "tls")]
pub(crate) fn provide_crypto() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Lost only to the program's own, installed at the same moment: that is as good.
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
    }
}
