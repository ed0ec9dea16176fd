//! One connection, opened when it is first used and dropped at the first sign of trouble.
//!
//! After an error of input or output nothing more is sent on a connection: a reply that was given up on could
//! be read as the answer to the next request, and a request that was written in part has put the two sides out
//! of step. What the redis crate calls open says nothing about either.

use std::fmt;
use std::time::{Duration, Instant};

use redis::{Connection, ConnectionLike, RedisConnectionInfo, RedisError, Value};

use crate::config::Server;
use crate::error::{Failure, FailureKind};
use crate::script::{By, Call, Wire};
use crate::store::{Answer, Heard};
use crate::sync::Arc;

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
}

/// A connection, or the means to make one.
pub(crate) struct Link {
    route: Route,
    open: Option<Open>,
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

struct Open {
    connection: Connection,
    /// The time limit that is set on the socket.
    limit: Duration,
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
        let address = &Arc::clone(&self.route.server.address);
        let (value, resent) = match self.once(call, &budget) {
            Err(Trouble::Closed(_)) if reused => {
                let value = self.once(call, &budget).map_err(|trouble| Failure {
                    unknown: true,
                    ..trouble.into_failure(address)
                })?;
                (value, true)
            }
            first => (
                first.map_err(|trouble| trouble.into_failure(address))?,
                false,
            ),
        };
        let reply = call.reply(value).inspect_err(|_| {
            // It may be the answer to something else: nothing on this connection can be trusted any more.
            self.open = None;
        })?;
        if self.route.replicas > 0 && reply.is_gain() {
            self.confirm(&budget)?;
        }
        Ok(Answer { reply, resent })
    }

    /// Waits until the replicas have what was written on this connection last; every script that grants or renews
    /// writes, repeated or not. What they have not confirmed in time is as if it were not known.
    fn confirm(&mut self, budget: &Budget) -> Result<(), Failure> {
        let (address, wanted) = (&Arc::clone(&self.route.server.address), self.route.replicas);
        let words = "the connection that wrote it is gone";
        let lost = || Failure::plain(FailureKind::Unavailable, true, words);
        let mut open = self.open.take().ok_or_else(lost)?;
        let limit = budget.left(self.route.io_timeout);
        // A count is worth more than no answer, so the server gives up before this side does.
        let patience = (limit * 3 / 4).max(Duration::from_millis(1));
        let mut wait = redis::cmd("WAIT");
        wait.arg(wanted).arg(patience.as_millis() as u64);
        let confirmed = match open.request(&wait, limit) {
            Ok(Value::Int(count)) => u32::try_from(count).unwrap_or(0),
            Ok(Value::ServerError(error)) => {
                return Err(Failure {
                    unknown: true,
                    ..refusal(error)
                });
            }
            Ok(_) => {
                let words = "no answer to a WAIT";
                return Err(Failure::plain(FailureKind::Protocol, true, words));
            }
            Err(trouble) => {
                return Err(Failure {
                    unknown: true,
                    ..trouble.into_failure(address)
                });
            }
        };
        self.open = Some(open);
        if confirmed >= wanted {
            return Ok(());
        }
        let kind = FailureKind::NotReplicated { wanted, confirmed };
        let words = format!("{confirmed} of {wanted} replicas confirmed it within {patience:?}");
        Err(Failure::plain(kind, true, words))
    }

    fn once(&mut self, call: &Call<'_>, budget: &Budget) -> Result<Value, Trouble> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => connect(&self.route, budget).map_err(Trouble::Certain)?,
        };
        let (wire, io_timeout) = (&self.route.wire, self.route.io_timeout);
        let mut value = open.request(&call.command(By::Digest, wire), budget.left(io_timeout))?;
        if let Value::ServerError(error) = &value
            && error.code() == "NOSCRIPT"
        {
            value = open.request(&call.command(By::Text, wire), budget.left(io_timeout))?;
        }
        if let Value::ServerError(error) = value {
            let moved = says(&error, &["READONLY"]);
            let failure = refusal(error);
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
        let broken = |error| broken(&route.server.address, error);
        let subscribe = redis::cmd("SUBSCRIBE").arg(channels).to_owned();
        // By hand, because the redis crate takes a refusal for a confirmation. The first channel's answer stands for
        // all: an access list is asked about them together, and the inbox passes over the further confirmations.
        if let Value::ServerError(error) = open
            .request(&subscribe, route.io_timeout)
            .map_err(|trouble| trouble.into_failure(&route.server.address))?
        {
            return Err(refusal(error));
        }
        if !hear(Heard::Subscribed) {
            return Ok(());
        }
        let mut inbox = open.connection.as_pubsub();
        inbox.set_read_timeout(Some(SILENCE)).map_err(broken)?;
        let mut silences = 0;
        loop {
            let go_on = match inbox.get_message() {
                Ok(message) => {
                    silences = 0;
                    hear(Heard::Message {
                        channel: message.get_channel_name(),
                        payload: message.get_payload_bytes(),
                    })
                }
                Err(error) if error.is_timeout() => {
                    silences += 1;
                    hear(Heard::Silence)
                }
                Err(error) => return Err(broken(error)),
            };
            if !go_on {
                return Ok(());
            }
            if silences == SILENCES_TO_PING {
                silences = 0;
                inbox
                    .set_read_timeout(Some(route.io_timeout))
                    .map_err(broken)?;
                inbox.ping::<Value>().map_err(broken)?;
                inbox.set_read_timeout(Some(SILENCE)).map_err(broken)?;
            }
        }
    }
}

impl Open {
    /// Sends a command and reads its answer; an error drops the connection with `self` in the caller.
    fn request(&mut self, command: &redis::Cmd, io: Duration) -> Result<Value, Trouble> {
        if self.limit != io {
            self.set_limit(io).map_err(Trouble::of)?;
        }
        self.connection.req_command(command).map_err(Trouble::of)
    }

    fn set_limit(&mut self, limit: Duration) -> Result<(), RedisError> {
        self.connection.set_read_timeout(Some(limit))?;
        self.connection.set_write_timeout(Some(limit))?;
        self.limit = limit;
        Ok(())
    }
}

/// What may go wrong with one request.
enum Trouble {
    /// The server has certainly not carried it out.
    Certain(Failure),
    /// The connection was closed by the other side.
    Closed(RedisError),
    /// Anything else on the way; whether it was carried out is unknown.
    Broken(RedisError),
}

impl Trouble {
    fn of(error: RedisError) -> Self {
        if error.is_connection_dropped() {
            Self::Closed(error)
        } else {
            Self::Broken(error)
        }
    }

    fn into_failure(self, address: &Arc<str>) -> Failure {
        match self {
            Self::Certain(failure) => failure,
            Self::Closed(error) | Self::Broken(error) => broken(address, error),
        }
    }
}

fn broken(address: &Arc<str>, error: RedisError) -> Failure {
    // What cannot be parsed is no server of ours; everything else may pass.
    let kind = if error.is_io_error() {
        FailureKind::Unavailable
    } else {
        FailureKind::Protocol
    };
    Failure {
        kind,
        unknown: true,
        cause: Arc::new(At {
            address: Arc::clone(address),
            error,
        }),
    }
}

/// An error of a connection, and where it leads.
#[derive(Debug)]
struct At {
    address: Arc<str>,
    error: RedisError,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.address, self.error)
    }
}

impl std::error::Error for At {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// What a server's error answer means. The request was not carried out: the scripts do first what can fail.
fn refusal(error: redis::ServerError) -> Failure {
    const DENIED: [&str; 3] = ["NOAUTH", "WRONGPASS", "NOPERM"];
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
        || text.starts_with("The user executing the script");
    let kind = if says(&error, &DENIED) || stranger {
        FailureKind::Denied
    } else if says(&error, &["WRONGTYPE"]) {
        FailureKind::WrongType
    } else if says(&error, &PASSING) || text.starts_with("max number of clients") {
        FailureKind::Unavailable
    } else {
        FailureKind::Protocol
    };
    Failure::certain(kind, Arc::new(RedisError::from(error)))
}

/// Whether an error is one of these.
///
/// Servers before 7.0 wrap the errors of a script's commands: `ERR Error running script (call to f_…):
/// @user_script:1: -OOM command …`, or, where the script passes the error on, `@user_script: 1: -OOM command …`.
fn says(error: &redis::ServerError, codes: &[&str]) -> bool {
    let (code, text) = (error.code(), error.details().unwrap_or_default());
    let wrapped = code.starts_with("@user_script") || text.starts_with("Error running script");
    let mut words = text
        .split([' ', ':'])
        .map(|word| word.trim_start_matches('-'));
    codes.contains(&code) || (wrapped && words.any(|word| codes.contains(&word)))
}

/// Connects and logs in. Whatever fails here, nothing was asked of the server yet.
fn connect(route: &Route, budget: &Budget) -> Result<Open, Failure> {
    let certain = |failure: Failure| Failure {
        unknown: false,
        ..failure
    };
    let address = &route.server.address;
    let login = route.server.info.redis_settings();
    // Without its credentials: the redis crate would hide what the server says of them.
    let bare = RedisConnectionInfo::default().set_skip_set_lib_name();
    let info = route.server.info.clone().set_redis_settings(bare);
    let connection = redis::Client::open(info)
        .and_then(|client| client.get_connection_with_timeout(budget.left(route.connect_timeout)))
        .map_err(|error| certain(broken(address, error)))?;
    let mut open = Open {
        connection,
        limit: Duration::ZERO,
    };
    let mut say = |command: &redis::Cmd| match open.request(command, budget.left(route.io_timeout))
    {
        Ok(Value::ServerError(error)) => Err(refusal(error)),
        Ok(_) => Ok(()),
        Err(trouble) => Err(certain(trouble.into_failure(address))),
    };
    if let Some(password) = login.password() {
        let mut auth = redis::cmd("AUTH");
        if let Some(user) = login.username() {
            auth.arg(user);
        }
        say(auth.arg(password))?;
    }
    if login.db() != 0 {
        say(redis::cmd("SELECT").arg(login.db()))?;
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

    fn kind(code: &str, text: &str) -> FailureKind {
        let line = format!("{code} {text}");
        let error =
            redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an error line");
        match error {
            Value::ServerError(error) => refusal(error).kind,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_answer_of_the_table_has_its_kind() {
        use FailureKind::{Denied, Protocol, Unavailable, WrongType};
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
            ("LOADING", "Redis is loading", Unavailable),
            ("BUSY", "Redis is busy", Unavailable),
            ("READONLY", "You can't write", Unavailable),
            ("MISCONF", "Errors writing", Unavailable),
            ("OOM", "command not allowed", Unavailable),
            ("NOREPLICAS", "Not enough good replicas", Unavailable),
            ("CLUSTERDOWN", "The cluster is down", Unavailable),
            ("ERR", "max number of clients reached", Unavailable),
            ("ERR", "unknown command", Protocol),
        ] {
            assert_eq!(kind(code, text), expected, "{code} {text}");
        }
    }
}
