//! Connecting and logging in, and whether servers answer, each on a new connection.
//!
//! 1. The socket connects.
//! 2. AUTH and SELECT go out in one write, which is one round trip. Each is left out if it is not needed. If both are,
//!    TLS needs a PING: see `log_in_once`.
//! 3. The first connection of a route asks the server about itself: see `ask_about_itself`.
//!
//! No request was sent yet, so after a failure in any of these steps nothing was executed for certain. It is no answer to the
//! request either, and marked as such ([`Failure::of_connecting`]).
//!
//! # A server that refuses
//!
//! All that share a [`Route`] also share the failure ([`Connecting`]).
//!
//! A server that is down, or rejects the password, does so for everybody. If each lease, release and waiter of a process
//! tried for itself, a thousand of them would make thousands of logins a second.
//!
//! | the last attempt | who needs a connection | result |
//! | --- | --- | --- |
//! | succeeded, or there was none | | connects |
//! | failed | a thread of the library, before the pause is over | gets the failure of that attempt at once, and sends nothing |
//! | failed | the same, after the pause | connects, and the next pause begins |
//! | failed | a call of the program that began before the failure | gets this failure |
//! | failed | a call that began later | connects, because the server may be back |
//!
//! A pause is a quarter of the time for which the server has refused by then, and at most a second. So an outage costs a lease
//! at most a quarter more than the outage itself. The calls do not move the pauses of the library: a program that calls all
//! the time must not keep its leases from being renewed.
//!
//! A connection that fails at its first request counts as refused: a server without a login says only then that it has
//! too many clients, or that it wants a password. A timed-out attempt starts no pause: its limit may be one caller's, and it
//! limits its own rate.

use std::time::Duration;

use redis::Value;

use crate::config::Server;
use crate::error::{Failure, FailureKind, Outcome, Unsupported};
use crate::logging;
use crate::net::deadline::{Deadline, Phase};
use crate::net::refusal::{refusal, refused_database, refused_login, unavailable};
use crate::net::route::Route;
use crate::net::socket::{Socket, TransportError};
use crate::panics::survived;
use crate::sys::thread::{self, BlockingQueue};
use crate::sys::{Arc, Mutex, Ordering, Time};
use crate::wire::Command;

/// The longest pause between two attempts of the library.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Reads an error answer to a step of the login.
type Refused = fn(&Server, redis::ServerError) -> Failure;

/// Connects as [`connect`] does, unless the last attempt along the route has failed and its pause goes on: see
/// [`Connecting::attempt`].
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
    // By TLS 1.3, a server refuses the certificate of this side only in place of its first answer.
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

/// The attempts to connect along a route.
#[derive(Debug, Default)]
pub(crate) struct Connecting(Mutex<Option<Outage>>);

#[derive(Debug)]
struct Outage {
    since: Time,
    /// When a thread of the library last tried, or the outage began.
    tried_at: Time,
    failed_at: Time,
    failure: Failure,
    /// Whether an attempt has succeeded since. The outage goes on if that connection fails at its first request.
    is_over: bool,
}

impl Outage {
    /// Returns whether the pause goes on for the threads of the library. If not, the next attempt begins now.
    fn pauses(&mut self) -> bool {
        let now = Time::now();
        let pause = (self.tried_at.since(self.since) / 4).min(LONGEST_PAUSE);
        if now < self.tried_at + pause {
            return true;
        }
        self.tried_at = now;
        false
    }
}

impl Connecting {
    /// Connects by `connect`, unless the caller gets the last failure: see the table at the top. `begun` is when the call of a
    /// program began, and `None` for a thread of the library.
    pub(crate) fn attempt<T>(
        &self,
        begun: Option<Time>,
        connect: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if let Some(failure) = self.shared(begun) {
            return Err(failure);
        }
        let connected = connect().map_err(Failure::of_connecting);
        match &connected {
            Ok(_) => self.0.lock().iter_mut().for_each(|it| it.is_over = true),
            Err(failure) => self.note(failure),
        }
        connected
    }

    /// Returns the last failure, if it is for this caller too.
    fn shared(&self, begun: Option<Time>) -> Option<Failure> {
        let mut outage = self.0.lock();
        let outage = outage.as_mut().filter(|outage| !outage.is_over)?;
        let is_shared = match begun {
            Some(begun) => outage.failed_at > begun,
            None => outage.pauses(),
        };
        is_shared.then(|| outage.failure.clone())
    }

    /// Notes that the server has refused a connection.
    pub(crate) fn note(&self, failure: &Failure) {
        if failure.timed_out {
            return;
        }
        let mut outage = self.0.lock();
        let now = Time::now();
        let before = outage.take();
        let goes_on = |it: &Outage| !it.is_over || now < it.failed_at + LONGEST_PAUSE * 2;
        let before = before.filter(goes_on);
        *outage = Some(Outage {
            since: before.as_ref().map_or(now, |it| it.since),
            tried_at: before.as_ref().map_or(now, |it| it.tried_at),
            failed_at: now,
            failure: failure.clone().of_connecting(),
            is_over: false,
        });
    }

    /// Returns why the server could not be connected to last, if no later attempt has succeeded.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let outage = self.0.lock();
        let outage = outage.as_ref().filter(|outage| !outage.is_over)?;
        Some(outage.failure.clone())
    }
}

/// The address of a server, and the time of a round trip or its failure.
pub(crate) type Pinged = (Arc<str>, Result<Duration, Failure>);

/// Pings servers. Returns the results in the order of the servers.
pub(crate) fn ping_all(routes: Vec<Route>) -> Vec<Pinged> {
    let mut pings: Vec<_> = ping_as_they_answer(routes).collect();
    pings.sort_by_key(|(number, _)| *number);
    pings.into_iter().map(|(_, pinged)| pinged).collect()
}

/// Pings servers, all at the same time, each on a short-lived thread, because it may hang. Returns the results as they come,
/// with the numbers of the servers.
pub(crate) fn ping_as_they_answer(routes: Vec<Route>) -> impl Iterator<Item = (usize, Pinged)> {
    let results = Arc::new(BlockingQueue::new(routes.len()));
    let all = routes.len();
    for (number, route) in routes.into_iter().enumerate() {
        let (server, of_thread) = (Arc::clone(&route.server.address), Arc::clone(&results));
        let started = thread::spawn("", move || {
            let panicked = || Err(unavailable("the ping panicked"));
            let result = survived(|| ping(&route)).unwrap_or_else(panicked);
            of_thread.push((number, (Arc::clone(&route.server.address), result)));
        });
        if let Err(error) = started {
            let words = format!("no thread could be started to ask it: {error}");
            results.push((number, (server, Err(unavailable(words)))));
        }
    }
    (0..all).map_while(move |_| results.pop())
}

/// Pings a server on a new connection. Returns the time of the round trip.
fn ping(route: &Route) -> Result<Duration, Failure> {
    let mut open = log_in(route, &mut Deadline::default())?;
    let begun = Time::now();
    let answer = open.request(&Command::new("PING"), Deadline::after(route.io_timeout));
    let took = begun.elapsed();
    route.accepted(answer.map_err(|fault| route.broken(fault))?)?;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Machine;
    use crate::sys::test_machine::manual::ManualClock;

    const MS: Duration = Duration::from_millis(1);

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

    /// Tries every millisecond for this long. Returns how many attempts were made.
    fn attempts_within(
        clock: &ManualClock,
        connecting: &Connecting,
        time: Duration,
        mut connect: impl FnMut() -> Result<(), Failure>,
    ) -> u32 {
        let mut made = 0;
        for _ in 0..time.as_millis() {
            clock.advance(MS);
            let mut connect = || {
                made += 1;
                connect()
            };
            connecting.attempt(None, &mut connect).ok();
        }
        made
    }

    fn refused() -> Failure {
        let words = "the server rejects the login";
        Failure::plain(FailureKind::Denied, Outcome::NotExecuted, words)
    }

    #[test]
    fn an_hour_of_refusal_takes_an_attempt_a_second_and_a_caller_soon_sees_its_end() {
        let clock = Arc::new(ManualClock::starting_at(Time::now()));
        let _entered = Machine::new(Arc::clone(&clock) as Arc<_>).enter();
        let connecting = Connecting::default();
        let hour = Duration::from_hours(1);
        let refuse = || Err(refused());
        let made = attempts_within(&clock, &connecting, hour, refuse);
        assert!((3_590..3_640).contains(&made), "{made}");
        let failure = connecting.attempt(None, || -> Result<(), _> { panic!("the pause goes on") });
        let failure = failure.expect_err("the last failure");
        assert_eq!(failure.kind, FailureKind::Denied);
        assert!(failure.is_of_the_connection(), "it is no answer");
        let connected = connecting.attempt(Some(Time::now()), || Ok(()));
        connected.expect("the server is back");
        assert!(connecting.failure().is_none());
        connecting.attempt(None, || Ok(())).expect("for all");
    }

    #[test]
    fn an_outage_costs_at_most_a_quarter_more() {
        let clock = Arc::new(ManualClock::starting_at(Time::now()));
        let _entered = Machine::new(Arc::clone(&clock) as Arc<_>).enter();
        for outage in [8, 80, 800].map(|ms| MS * ms) {
            let connecting = Connecting::default();
            let refuse = || Err(refused());
            attempts_within(&clock, &connecting, outage, refuse);
            let quarter = outage / 4 + MS;
            let made = attempts_within(&clock, &connecting, quarter, || Ok(()));
            assert!(made > 0, "{outage:?}");
        }
    }

    /// They may have too little time to connect, so that none of them sees that the server is back.
    #[test]
    fn calls_without_end_do_not_lengthen_an_outage_for_the_leases() {
        let clock = Arc::new(ManualClock::starting_at(Time::now()));
        let _entered = Machine::new(Arc::clone(&clock) as Arc<_>).enter();
        let connecting = Connecting::default();
        let refuse = || Err(refused());
        attempts_within(&clock, &connecting, LONGEST_PAUSE * 8, refuse);
        let is_back = Time::now();
        while connecting.attempt(None, || Ok(())).is_err() {
            assert!(is_back.elapsed() <= LONGEST_PAUSE, "the pause is moved");
            clock.advance(MS);
            let late = Failure {
                timed_out: true,
                ..refused()
            };
            let call = connecting.attempt(Some(Time::now()), || Err::<(), _>(late));
            assert!(
                call.is_err_and(|failure| failure.timed_out),
                "it tries itself"
            );
        }
        // A call that began before another failed has this failure.
        let begun = Time::now();
        clock.advance(MS);
        connecting.note(&refused());
        let shared = connecting.attempt(Some(begun), || -> Result<(), _> { panic!("it is down") });
        assert!(shared.is_err());
    }

    /// A server without a login, behind which nothing is.
    #[test]
    fn a_connection_that_fails_at_its_first_request_continues_the_outage() {
        let clock = Arc::new(ManualClock::starting_at(Time::now()));
        let _entered = Machine::new(Arc::clone(&clock) as Arc<_>).enter();
        let connecting = Connecting::default();
        let mut made = 0;
        for _ in 0..60_000 {
            clock.advance(MS);
            if connecting.attempt(None, || Ok(())).is_ok() {
                made += 1;
                connecting.note(&refused());
            }
        }
        assert!((50..120).contains(&made), "{made}");
        // An attempt that ran out of time is none.
        let connecting = Connecting::default();
        let late = Failure {
            timed_out: true,
            ..refused()
        };
        connecting.note(&late);
        assert!(connecting.failure().is_none());
    }
}
