//! One connection, opened when it is first used and dropped at the first sign of trouble.
//!
//! After an error of input or output nothing more is sent on a connection: a reply that was given up on could
//! be read as the answer to the next request, and a request that was written in part has put the two sides out
//! of step.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use redis::Value;

use crate::config::Server;
use crate::error::{Failure, FailureKind, Mode, on_a_line};
use crate::script::{By, Call, Wire};
use crate::store::socket::{Fault, Socket};
use crate::store::{Answer, Heard, memory};
use crate::sync::{Arc, AtomicBool, Ordering};

/// How long a listener waits for a message before it looks up.
const SILENCE: Duration = Duration::from_secs(1);
/// How late the server may answer a WAIT whose time is over: its timer runs every 100 ms.
const LATE_ANSWER: Duration = Duration::from_millis(110);
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
}

/// A connection, or the means to make one.
pub(crate) struct Link {
    route: Route,
    open: Option<Socket>,
    /// When it was last called.
    used: Instant,
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
        }
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
        let budget = Budget::new(limit);
        self.used = budget.started;
        let reused = self.open.is_some();
        let server = &Arc::clone(&self.route.server);
        let (value, resent) = match self.once(call, &budget) {
            Err(Trouble::Closed(_)) if reused => {
                let value = self.once(call, &budget).map_err(|trouble| Failure {
                    unknown: true,
                    ..trouble.into_failure(server)
                })?;
                (value, true)
            }
            first => (
                first.map_err(|trouble| trouble.into_failure(server))?,
                false,
            ),
        };
        let reply = call.reply(value).inspect_err(|_| {
            // It may be the answer to something else: nothing on this connection can be trusted any more.
            self.open = None;
        })?;
        if self.route.replicas > 0 && reply.is_gain() {
            // The server has carried it out, and if it was sent once, nothing of it is to come.
            self.confirm(&budget).map_err(|failure| Failure {
                unknown: failure.unknown || resent,
                half_done: true,
                ..failure
            })?;
        }
        Ok(Answer { reply, resent })
    }

    /// Waits until the replicas have what was written on this connection last; every script that grants or renews
    /// writes, repeated or not. What they have not confirmed in time is as if it were not known.
    fn confirm(&mut self, budget: &Budget) -> Result<(), Failure> {
        let (server, wanted) = (&Arc::clone(&self.route.server), self.route.replicas);
        let words = "the connection closed before the replicas were asked";
        let lost = || Failure::plain(FailureKind::Unavailable, true, words);
        let mut open = self.open.take().ok_or_else(lost)?;
        let limit = budget.left(self.route.io_timeout);
        // A count is worth more than no answer, so the server gives up before this side does. It notices the end of a WAIT
        // only up to 100 ms later, by its own timer.
        let patience = limit.saturating_sub(LATE_ANSWER).max(limit / 2);
        let patience = patience.max(Duration::from_millis(1));
        let too_few = |confirmed| {
            let kind = FailureKind::NotReplicated { wanted, confirmed };
            let words =
                format!("{confirmed} of {wanted} replicas confirmed it within {patience:?}");
            Failure::plain(kind, false, words)
        };
        let mut wait = redis::cmd("WAIT");
        wait.arg(wanted).arg(patience.as_millis() as u64);
        let confirmed = match open.request(&wait, limit).map_err(Trouble::of) {
            Ok(Value::Int(count)) => u32::try_from(count).unwrap_or(0),
            Ok(Value::ServerError(error)) => {
                return Err(Failure {
                    unknown: true,
                    ..refusal(server, error)
                });
            }
            Ok(_) => {
                let words = "the answer to WAIT is not a number";
                return Err(Failure::plain(FailureKind::Protocol, true, words));
            }
            // The server has just answered the script on this connection: it waits for its replicas.
            Err(Trouble::Broken(Fault::Io(error))) if is_late(&error) => return Err(too_few(0)),
            Err(trouble) => {
                return Err(Failure {
                    unknown: true,
                    ..trouble.into_failure(server)
                });
            }
        };
        self.open = Some(open);
        if confirmed >= wanted {
            return Ok(());
        }
        Err(too_few(confirmed))
    }

    fn once(&mut self, call: &Call<'_>, budget: &Budget) -> Result<Value, Trouble> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => connect(&self.route, budget).map_err(Trouble::Certain)?,
        };
        let (wire, io_timeout) = (&self.route.wire, self.route.io_timeout);
        let command = call.command(By::Digest, wire);
        let mut value = open
            .request(&command, budget.left(io_timeout))
            .map_err(Trouble::of)?;
        if let Value::ServerError(error) = &value
            && error.code() == "NOSCRIPT"
        {
            let command = call.command(By::Text, wire);
            value = open
                .request(&command, budget.left(io_timeout))
                .map_err(Trouble::of)?;
        }
        if let Value::ServerError(error) = value {
            let moved = says(&error, &["READONLY"]);
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
        let broken = |fault| broken(server, fault);
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
        const CLOSED: [io::ErrorKind; 5] = [
            io::ErrorKind::BrokenPipe,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::ConnectionAborted,
            io::ErrorKind::NotConnected,
            io::ErrorKind::UnexpectedEof,
        ];
        match fault {
            Fault::Io(error) if CLOSED.contains(&error.kind()) => Self::Closed(error),
            fault => Self::Broken(fault),
        }
    }

    fn into_failure(self, server: &Server) -> Failure {
        match self {
            Self::Certain(failure) => failure,
            Self::Closed(error) => broken(server, Fault::Io(error)),
            Self::Broken(fault) => broken(server, fault),
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

/// What a server's error answer means. The request was not carried out: the scripts do first what can fail. Only what no
/// script expects may strike one that is half done, such as a command that this user is not allowed.
///
/// The words are the server's, its code first. A server or proxy may quote the password in them, long after the login.
#[allow(
    clippy::needless_pass_by_value,
    reason = "an answer is used up by its meaning, as by the two below"
)]
fn refusal(server: &Server, error: redis::ServerError) -> Failure {
    const ELSEWHERE: [&str; 3] = ["MOVED", "ASK", "CROSSSLOT"];
    const DENIED: [&str; 3] = ["NOAUTH", "WRONGPASS", "NOPERM"];
    // A right that is missing for a command of a script: Redis 7.0 and older, then Redis 7.2, Valkey, and newer.
    const NOT_ALLOWED: [&str; 2] = ["The user executing the script", "ACL failure in script:"];
    const PASSING: [&str; 11] = [
        "LOADING",
        "BUSY",
        "READONLY",
        "MISCONF",
        "OOM",
        "NOREPLICAS",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "UNKILLABLE",
        "MAXCLIENTS",
    ];
    let text = error.details().unwrap_or_default();
    // A command of more than 10 parts is refused to a stranger before it is looked at.
    let stranger = text.starts_with("Protocol error: unauthenticated")
        || NOT_ALLOWED
            .iter()
            .any(|words| text.starts_with(words) || (is_wrapped(&error) && text.contains(words)));
    let kind = if says(&error, &DENIED) || stranger {
        FailureKind::Denied
    } else if says(&error, &ELSEWHERE) {
        return Failure::unsupported(Mode::Cluster);
    } else if says(&error, &["WRONGTYPE"]) {
        FailureKind::WrongType
    } else if says(&error, &PASSING) || text.starts_with("max number of clients") {
        FailureKind::Unavailable
    } else {
        FailureKind::Protocol
    };
    let raised = is_wrapped(&error) || text.contains("@user_script:");
    let code = error.code();
    // Where in which script it happened says nothing to a user.
    let text = text.split(" script: ").next().unwrap_or_default();
    let mut words = on_a_line(&server.without_password(&format!("{code} {text}")));
    if code == "ERR" && text.starts_with("unknown command") {
        words += " (leasehold needs this command: the server may be a sentinel, or the command is renamed)";
    }
    Failure {
        half_done: raised && matches!(kind, FailureKind::Denied | FailureKind::Protocol),
        ..Failure::plain(kind, false, words)
    }
}

/// What an error answer to AUTH means, in the server's words only where they are known word for word: a server that does
/// not know the command says back what it was sent, and so may whatever else listens there, whichever code it puts before.
fn refused_login(server: &Server, error: redis::ServerError) -> Failure {
    const KNOWN: [(&str, &str); 8] = [
        (
            "WRONGPASS",
            "invalid username-password pair or user is disabled.",
        ),
        ("ERR", "invalid password"),
        (
            "ERR",
            "AUTH <password> called without any password configured for the default user. Are you sure your configuration \
             is correct?",
        ),
        ("ERR", "Client sent AUTH, but no password is set"),
        ("ERR", "wrong number of arguments for 'auth' command"),
        ("ERR", "max number of clients reached"),
        ("LOADING", "Redis is loading the dataset in memory"),
        ("LOADING", "Valkey is loading the dataset in memory"),
    ];
    let is_known = KNOWN.contains(&(error.code(), error.details().unwrap_or_default()));
    let failure = refusal(server, error);
    if is_known || matches!(failure.kind, FailureKind::Unsupported(_)) {
        return failure;
    }
    let words = match failure.kind {
        FailureKind::Denied => "the server refuses the login",
        FailureKind::Unavailable => "the server takes no login now",
        _ => "the server does not understand AUTH",
    };
    Failure::plain(failure.kind, false, words)
}

/// Reads an error answer to SELECT.
fn refused_database(server: &Server, error: redis::ServerError) -> Failure {
    let text = error.details().unwrap_or_default();
    let is_too_large = text.contains("DB index") || text.contains("out of range");
    let kind = if error.code() == "ERR" && is_too_large {
        FailureKind::NoSuchDatabase(server.info.redis_settings().db())
    } else if text.contains("not allowed in cluster mode") {
        FailureKind::Unsupported(Mode::Cluster)
    } else {
        return refusal(server, error);
    };
    Failure {
        kind,
        ..refusal(server, error)
    }
}

/// Whether an error is one of these.
///
/// Servers before 7.0 wrap the errors of a script's commands: `ERR Error running script (call to f_…):
/// @user_script:1: -OOM command …`, or, where the script passes the error on, `@user_script: 1: -OOM command …`.
fn says(error: &redis::ServerError, codes: &[&str]) -> bool {
    let (code, text) = (error.code(), error.details().unwrap_or_default());
    let mut words = text
        .split([' ', ':'])
        .map(|word| word.trim_start_matches('-'));
    codes.contains(&code) || (is_wrapped(error) && words.any(|word| codes.contains(&word)))
}

/// Whether it is a script's error, in the form of servers before 7.0.
fn is_wrapped(error: &redis::ServerError) -> bool {
    let text = error.details().unwrap_or_default();
    error.code().starts_with("@user_script") || text.starts_with("Error running script")
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
        Err(fault) => Err(certain(broken(&route.server, fault))),
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
    let server = &route.server;
    let login = route.server.info.redis_settings();
    let mut open = Socket::connect(route.server.info.addr(), budget.left(route.connect_timeout))
        .map_err(|error| certain(broken(server, Fault::Io(error))))?;
    let mut say = |command: &redis::Cmd, refused: Refused| match open
        .request(command, budget.left(route.io_timeout))
    {
        Ok(Value::Okay) => Ok(()),
        Ok(Value::ServerError(error)) => Err(refused(server, error)),
        Ok(_) => {
            let words = "the answer to the login is not OK";
            Err(Failure::plain(FailureKind::Protocol, false, words))
        }
        Err(fault) => Err(certain(broken(server, fault))),
    };
    if login.password().is_some() || login.username().is_some() {
        let mut auth = redis::cmd("AUTH");
        if let Some(user) = login.username() {
            auth.arg(user);
        }
        // A user may have none; without AUTH the connection would be the user `default`'s.
        say(
            auth.arg(login.password().unwrap_or_default()),
            refused_login,
        )?;
    }
    if login.db() != 0 {
        say(redis::cmd("SELECT").arg(login.db()), refused_database)?;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> redis::ServerError {
        let line = format!("-{line}\r\n");
        match redis::parse_redis_value(line.as_bytes()).expect("an error line") {
            Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    fn server() -> Server {
        Server::parse("redis://:s3cret@h/16", None).expect("a URL")
    }

    fn kind(code: &str, text: &str) -> FailureKind {
        refusal(&server(), error(&format!("{code} {text}"))).kind
    }

    #[test]
    fn an_answer_is_quoted_with_its_code_and_without_the_password() {
        for (line, words) in [
            ("NOPERM not this", "NOPERM not this"),
            (
                "WRONGTYPE not this script: d827f2, on @user_script:163.",
                "WRONGTYPE not this",
            ),
            ("LOADING as s3cret said", "LOADING as <password> said"),
            ("s3cret", "<password>"),
            (
                "ERR @user_script:1: s3cret",
                "ERR @user_script:1: <password>",
            ),
        ] {
            assert_eq!(refusal(&server(), error(line)).cause.to_string(), words);
        }
        let long = format!("ERR {}s3cret", "x".repeat(493));
        let cut = refusal(&server(), error(&long)).cause.to_string();
        assert!(!cut.contains("s3"), "no part of it either: {cut}");
    }

    #[test]
    fn a_database_that_is_not_there_is_told_from_other_errors() {
        let kind = |line: &str| refused_database(&server(), error(line)).kind;
        let range = kind("ERR DB index is out of range");
        assert_eq!(range, FailureKind::NoSuchDatabase(16));
        assert_eq!(kind("ERR invalid DB index"), range);
        let cluster = kind("ERR SELECT is not allowed in cluster mode");
        assert_eq!(cluster, FailureKind::Unsupported(Mode::Cluster));
        assert_eq!(kind("NOPERM this user"), FailureKind::Denied);
    }

    #[test]
    fn an_answer_to_auth_is_quoted_only_where_it_is_known() {
        const WRONG: &str = "invalid username-password pair or user is disabled.";
        let said = |line: &str| refused_login(&server(), error(line)).cause.to_string();
        assert!(said(&format!("WRONGPASS {WRONG}")).contains(WRONG));
        for code in [
            "ERR",
            "WRONGPASS",
            "NOPERM",
            "NOAUTH",
            "LOADING",
            "OOM",
            "WRONGTYPE",
            "WHAT",
        ] {
            for text in ["", WRONG, "wrong number of arguments for 'auth' command"] {
                let said = said(&format!("{code} {text} AUTH s3cret"));
                assert!(!said.contains("s3cret"), "{said}");
            }
        }
        assert!(!said(&format!("s3cret {WRONG}")).contains("s3cret"));
    }

    #[test]
    fn every_answer_of_the_table_has_its_kind() {
        use FailureKind::{Denied, Protocol, Unavailable, Unsupported, WrongType};
        for (code, text, expected) in [
            ("NOAUTH", "Authentication required.", Denied),
            ("WRONGPASS", "invalid username-password pair", Denied),
            ("NOPERM", "this user has no permissions", Denied),
            (
                "ERR",
                "The user executing the script can't access at least one of the keys",
                Denied,
            ),
            (
                "ERR",
                "Error running script (call to f_1): @user_script:12: The user executing the script can't run this command",
                Denied,
            ),
            (
                "@user_script:",
                "12: The user executing the script can't run this command or subcommand",
                Denied,
            ),
            (
                "ERR",
                "ACL failure in script: User user has no permissions to run the 'set' command script: 82e7, on @user_script:1.",
                Denied,
            ),
            (
                "ERR",
                "ACL failure in script: No permissions to access a key",
                Denied,
            ),
            (
                "ERR",
                "Protocol error: unauthenticated multibulk length",
                Denied,
            ),
            ("WRONGTYPE", "Operation against a key", WrongType),
            (
                "ERR",
                "Error running script (call to f_1): @user_script:1: WRONGTYPE Operation",
                WrongType,
            ),
            (
                "ERR",
                "Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not allowed",
                Unavailable,
            ),
            ("@user_script:", "3: -READONLY You can't write", Unavailable),
            (
                "ERR",
                "unknown command 'x', with args beginning with: 'OOM'",
                Protocol,
            ),
            (
                "ERR",
                "unknown command 'x', with args beginning with: 'The user executing the script'",
                Protocol,
            ),
            (
                "ERR",
                "unknown command 'x', with args beginning with: 'ACL failure in script:'",
                Protocol,
            ),
            ("LOADING", "Redis is loading", Unavailable),
            ("BUSY", "Redis is busy", Unavailable),
            ("READONLY", "You can't write", Unavailable),
            ("MISCONF", "Errors writing", Unavailable),
            ("OOM", "command not allowed", Unavailable),
            ("NOREPLICAS", "Not enough good replicas", Unavailable),
            ("CLUSTERDOWN", "The cluster is down", Unavailable),
            ("ERR", "max number of clients reached", Unavailable),
            ("MOVED", "1234 127.0.0.1:7001", Unsupported(Mode::Cluster)),
            ("ASK", "1234 127.0.0.1:7001", Unsupported(Mode::Cluster)),
            ("CROSSSLOT", "Keys in request", Unsupported(Mode::Cluster)),
            ("ERR", "unknown command", Protocol),
        ] {
            assert_eq!(kind(code, text), expected, "{code} {text}");
        }
    }
}
