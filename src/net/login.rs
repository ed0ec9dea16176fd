//! Connecting and logging in.
//!
//! 1. The socket connects.
//! 2. AUTH and SELECT go out in one write, which is one round trip. Each is left out if it is not needed. If both are,
//!    TLS needs a PING: see `log_in_once`.
//! 3. The first connection of a route asks the server about itself: see `ask_about_itself`.
//!
//! No request was sent yet. So a failure in any of these steps is certain: nothing was executed. It is no answer to the
//! request either, and marked as such ([`Failure::of_connecting`]).

use std::time::Duration;

use redis::Value;

use crate::config::Server;
use crate::error::{Failure, FailureKind, Outcome, Unsupported};
use crate::logging;
use crate::net::deadline::{Deadline, Phase};
use crate::net::refusal::{refusal, refused_database, refused_login, unavailable};
use crate::net::route::Route;
use crate::net::socket::{Socket, TransportError};
use crate::sys::{Ordering, Time};
use crate::wire::{self, Command, Request};

/// Reads an error answer to a step of the login.
type Refused = fn(&Server, redis::ServerError) -> Failure;

/// Connects as [`connect`] does, unless the last attempt along the route has failed and its pause goes on: see
/// [`Connecting::attempt`](crate::net::connecting::Connecting::attempt).
pub(crate) fn connect_in_turn(
    route: &Route,
    deadline: &mut Deadline<'_>,
    begun: Option<Time>,
) -> Result<Socket, Failure> {
    let named = |failure: Failure| failure.at(&route.server.address);
    let connect = || connect(route, deadline).map_err(named);
    route.connecting.attempt(begun, connect)
}

/// Connects and logs in. The first connection of a route asks the server about itself.
///
/// A server may leave that question without an answer, if something on the way swallows it. If such a server answers a
/// PING on a new connection, nobody asks it again. If it does not, the next connection asks.
pub(crate) fn connect(route: &Route, deadline: &mut Deadline<'_>) -> Result<Socket, Failure> {
    let mut open = log_in(route, deadline)?;
    if route.asked_about_itself.swap(true, Ordering::Relaxed) {
        return Ok(open);
    }
    let mut ask = |command: &Command| {
        // The other half of the time is for a new connection, if there is no answer.
        let half = deadline.phase(Phase::LogIn, route.io_timeout).left() / 2;
        let answered = open.request(command, deadline.phase(Phase::LogIn, half));
        let is_refused = |fault| match fault {
            TransportError::Greeting(..) => Some(route.broken(fault)),
            _ => None,
        };
        match answered.map_err(is_refused)? {
            // In such a state, such as loading, the server answers no request.
            Value::ServerError(error) => match refusal(&route.server, error.clone()) {
                failure if failure.is_transient() => Err(Some(failure)),
                _ => Ok(Value::ServerError(error)),
            },
            value => Ok(value),
        }
    };
    let connected = match ask_about_itself(&route.server.address, &mut ask) {
        Ok(None) => Ok(open),
        Ok(Some(Unsupported::CLUSTER)) if route.is_of_a_cluster => Ok(open),
        Ok(Some(_)) if route.is_of_a_cluster => Err(Failure::unsupported(Unsupported::NO_CLUSTER)),
        Ok(Some(mode)) => Err(Failure::unsupported(mode)),
        Err(Some(failure)) => Err(failure),
        // No answer came.
        Err(None) => log_in_to_a_server(route, deadline),
    };
    if connected.is_err() {
        route.asked_about_itself.store(false, Ordering::Relaxed);
    }
    connected
}

/// Connects, logs in, and sends a PING to find out whether the server answers.
fn log_in_to_a_server(route: &Route, deadline: &mut Deadline<'_>) -> Result<Socket, Failure> {
    let mut open = log_in(route, deadline)?;
    let time = deadline.phase(Phase::LogIn, route.io_timeout);
    let answered = open.request(&Command::new("PING"), time);
    answered.map_err(|fault| route.broken(fault).with(Outcome::NotExecuted))?;
    Ok(open)
}

/// Connects and logs in. If a certificate is refused, and the program's files of certificates have others by now, it does
/// so once more: the server and the files are never replaced at the same moment.
pub(crate) fn log_in(route: &Route, deadline: &mut Deadline<'_>) -> Result<Socket, Failure> {
    let begun = Time::now();
    let result = log_in_once(route, deadline);
    let refused = |failure: &Failure| failure.kind == FailureKind::CertificateRefused;
    if result.as_ref().is_err_and(refused) && route.server.certificates_have_changed_since(begun) {
        return log_in_once(route, deadline);
    }
    result
}

fn log_in_once(route: &Route, deadline: &mut Deadline<'_>) -> Result<Socket, Failure> {
    let certain = |fault| route.broken(fault).with(Outcome::NotExecuted);
    let [user, password] = route.server.login().map_err(unavailable)?;
    let time = deadline.phase(Phase::Connect, route.connect_timeout);
    let mut open = Socket::connect(&route.server, &route.resolver, time).map_err(certain)?;
    let (mut commands, mut refused) = (Vec::new(), Vec::<Refused>::new());
    if password.is_some() || user.is_some() {
        let mut auth = Command::new("AUTH");
        if let Some(user) = user {
            auth.arg(user);
        }
        // A user may have no password. Without AUTH, the server would treat this connection as the user `default`.
        commands.push(auth.arg(password.unwrap_or_default()).to_owned());
        refused.push(refused_login);
    }
    let database = route.server.info.redis_settings().db();
    if database != 0 {
        commands.push(Command::new("SELECT").arg(database).to_owned());
        refused.push(refused_database);
    }
    // By TLS 1.3, a server that refuses this side's certificate says so only in place of the first answer.
    if commands.is_empty() && route.server.speaks_tls() {
        commands.push(Command::new("PING"));
        refused.push(refusal);
    }
    let time = deadline.phase(Phase::LogIn, route.io_timeout);
    let answers = open.requests(&commands, time).map_err(certain)?;
    // If the server rejects AUTH, it rejects SELECT too, so the first error answer counts.
    for (answer, refused) in answers.into_iter().zip(refused) {
        match answer {
            Value::Okay | Value::SimpleString(_) => {}
            Value::ServerError(error) => {
                route.data_loss_signs.note_answer(&error);
                return Err(refused(&route.server, error));
            }
            _ => {
                let words = "the answer to the login is not OK";
                return Err(Failure::plain(
                    FailureKind::Protocol,
                    Outcome::NotExecuted,
                    words,
                ));
            }
        }
    }
    Ok(open)
}

/// Connects, logs in, and has the server load the script of renewals. Each of these steps has its own time limit. Returns
/// what the last step took.
pub(crate) fn connect_for_renewals(route: &Route) -> Result<(Socket, Duration), Failure> {
    let mut open = connect_in_turn(route, &mut Deadline::default(), None)?;
    // An empty renewal by digest, and in the same write by text, which loads the script. On a slow link the first lease
    // would have no time for another round trip.
    let by_digest = wire::encode(&Request::Renew(&[]), &route.script_settings);
    let by_text = by_digest.by_text();
    let begun = Time::now();
    let asked = open.requests(&[by_digest, by_text], Deadline::after(route.io_timeout));
    let asked = asked.map_err(|fault| route.broken(fault));
    let answers = asked.inspect_err(|failure| route.connecting.note(failure))?;
    for answer in answers.into_iter().skip(1) {
        route.accepted(answer)?;
    }
    Ok((open, begun.elapsed()))
}

/// Asks the server about itself, with one INFO, and warns in the log if it may evict locks. Returns its mode if that is
/// not one master with all keys.
///
/// A manager of a single server needs one master that holds all keys. A node of a Redis Cluster holds some of them, and
/// a sentinel holds none. So the first connection fails on both. A manager of a cluster needs nodes of one.
///
/// Every key of a lock has a time to live, so each policy but `noeviction` may evict it. That costs exclusion, and no
/// process notices it in time. So the first connection writes one warning to the log.
///
/// If INFO is forbidden or renamed, the mode stays unknown, and CONFIG GET reports on the memory. If that is forbidden
/// too, there is no warning.
///
/// # Errors
///
/// Returns the errors of `ask`.
fn ask_about_itself<E>(
    address: &str,
    ask: &mut dyn FnMut(&Command) -> Result<Value, E>,
) -> Result<Option<Unsupported>, E> {
    // INFO without a section, because a server before 7.0 accepts one section only, and this needs two.
    let report = ask(&Command::new("INFO"))?;
    let mode = mode(&report);
    if mode == Some(Unsupported::SENTINEL) {
        return Ok(mode);
    }
    let mut found = read(&report);
    if found.is_none() {
        // CONFIG GET with a pattern, because a server before 7.0 accepts one parameter only.
        found = read(&ask(Command::new("CONFIG").arg("GET").arg("maxmemory*"))?);
    }
    let evicts = |memory: &Memory| memory.most != "0" && memory.policy != "noeviction";
    if let Some(Memory { most, policy }) = found.filter(evicts) {
        logging::warning!(
            "{address} may evict locks when its memory is full (maxmemory {most}, maxmemory-policy {policy}): \
             an evicted lock is lost, and free for others before its holder knows; use noeviction"
        );
    }
    Ok(mode)
}

/// Reads the mode from the answer to INFO. Returns `None` for one master, and if the answer does not name the mode.
fn mode(answer: &Value) -> Option<Unsupported> {
    let Value::BulkString(report) = answer else {
        return None;
    };
    let report = String::from_utf8_lossy(report);
    let mut fields = report.lines().filter_map(|line| line.split_once(':'));
    // Valkey may use the second name.
    let (_, mode) = fields.find(|(name, _)| ["redis_mode", "server_mode"].contains(name))?;
    match mode.trim() {
        "cluster" => Some(Unsupported::CLUSTER),
        "sentinel" => Some(Unsupported::SENTINEL),
        _ => None,
    }
}

/// The memory limit of a server, and its policy when the memory is full.
#[derive(Debug, PartialEq, Eq)]
struct Memory {
    most: String,
    policy: String,
}

/// Reads the answer to INFO or to CONFIG GET. Returns `None` if the answer does not have both facts.
fn read(answer: &Value) -> Option<Memory> {
    let words: Vec<String> = match answer {
        Value::BulkString(report) => String::from_utf8_lossy(report)
            .lines()
            .filter_map(|line| line.split_once(':'))
            .flat_map(|(name, value)| [name.replace('_', "-"), value.to_owned()])
            .collect(),
        Value::Array(parts) => parts
            .iter()
            .map(|part| match part {
                Value::BulkString(word) => String::from_utf8_lossy(word).into_owned(),
                _ => String::new(),
            })
            .collect(),
        _ => return None,
    };
    let value = |name: &str| {
        let mut pairs = words.chunks_exact(2);
        let pair = pairs.find(|pair| pair[0] == name)?;
        Some(pair[1].trim().to_owned())
    };
    let found = value("maxmemory").zip(value("maxmemory-policy"));
    found.map(|(most, policy)| Memory { most, policy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_read_under_both_of_its_names() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let of = |line: &str| {
            mode(&bulk(&format!(
                "# Server\r\nredis_version:7\r\n{line}\r\nos:x\r\n"
            )))
        };
        assert_eq!(of("redis_mode:standalone"), None);
        assert_eq!(of("redis_mode:cluster"), Some(Unsupported::CLUSTER));
        assert_eq!(of("server_mode:sentinel"), Some(Unsupported::SENTINEL));
        assert_eq!(of("what:cluster"), None);
        assert_eq!(mode(&Value::Nil), None);
    }

    #[test]
    fn both_answers_are_read_and_others_passed_over() {
        let memory = || Memory {
            most: "100".into(),
            policy: "allkeys-lru".into(),
        };
        let bulk = |text: &str| Value::BulkString(text.into());
        let words = [
            "maxmemory-samples",
            "5",
            "maxmemory-policy",
            "allkeys-lru",
            "maxmemory",
            "100",
        ];
        let settings = Value::Array(words.map(bulk).into());
        assert_eq!(read(&settings), Some(memory()));
        let report = bulk(
            "# Memory\r\nmaxmemory:100\r\nmaxmemory_human:100B\r\nmaxmemory_policy:allkeys-lru\r\n",
        );
        assert_eq!(read(&report), Some(memory()));
        for other in [
            Value::Okay,
            Value::Nil,
            Value::Array(Vec::new()),
            bulk(""),
            bulk("maxmemory:100"),
        ] {
            assert_eq!(read(&other), None);
        }
    }
}
