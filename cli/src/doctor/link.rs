//! The way to a server: its clock, what stands in between, and how long a round trip takes.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Value;

use crate::figures::{Figures, brief};
use crate::output;
use crate::server::{Problem, Server, Session, text};

use super::finding::Finding;

/// How far apart clocks may be. NTP keeps them far closer.
pub const CLOCKS_APART: Duration = Duration::from_millis(500);
/// How often the clock is read. The reading that took the least time counts.
const READINGS: usize = 5;
/// How many round trips are measured, and for how long at most.
const REQUESTS: u64 = 100;
const MEASURING: Duration = Duration::from_secs(2);
/// How many connections are compared.
const CONNECTIONS: usize = 4;

/// How far a server's clock is ahead of this machine's, in ms, and the bound of the error.
#[derive(Clone, Copy, Debug)]
pub struct Offset {
    pub ms: i64,
    pub error_ms: i64,
}

/// Compares the server's clock with that of this machine. Half of the round trip counts for each way.
pub fn clock(server: &Server<'_>) -> (Finding, Option<Offset>) {
    const CHECK: &str = "clock";
    let mut best: Option<(Duration, Offset)> = None;
    let mut session = server.session();
    for _ in 0..READINGS {
        match session.as_mut().map_err(|it| it.clone()).and_then(reading) {
            Ok(found) if best.is_none_or(|(took, _)| found.0 < took) => best = Some(found),
            Ok(_) => {}
            Err(Problem::Denied(_)) => {
                let found = "this user may not send TIME";
                return (
                    Finding::skip(CHECK, found, "Give the user the right +time."),
                    None,
                );
            }
            Err(problem) => {
                let mend = "Locks need TIME: see the other findings.";
                return (
                    Finding::skip(CHECK, format!("TIME has no answer: {problem}"), mend),
                    None,
                );
            }
        }
    }
    let Some((_, offset)) = best else {
        return (Finding::skip(CHECK, "TIME was not read", ""), None);
    };
    let (apart, error) = (length(offset.ms), length(offset.error_ms));
    let found = match offset.ms {
        ms if ms.abs() <= offset.error_ms => format!("that of this machine, to within {error}"),
        ..0 => format!("{apart} behind this machine's, to within {error}"),
        _ => format!("{apart} ahead of this machine's, to within {error}"),
    };
    let finding = if is_apart(offset.ms, offset.error_ms) {
        Finding::warn(
            CHECK,
            found,
            "One of the two clocks is wrong. Leases and fences follow the server's clock: if it is put right in one \
             step, forward ends leases early, and back keeps the locks of crashed processes for longer.",
            "Let NTP slew the clocks of both machines (chrony, systemd-timesyncd), and never step them.",
        )
    } else {
        Finding::ok(CHECK, found)
    };
    (finding, Some(offset))
}

/// Returns whether two clocks are apart for certain.
pub fn is_apart(ms: i64, error_ms: i64) -> bool {
    u128::from(ms.abs().saturating_sub(error_ms).max(0).unsigned_abs()) > CLOCKS_APART.as_millis()
}

/// Returns the length of a difference in ms, for people.
pub fn length(ms: i64) -> String {
    output::span(Duration::from_millis(ms.unsigned_abs()))
}

/// Reads the server's clock. Returns the time of the round trip, too.
fn reading(session: &mut Session<'_>) -> Result<(Duration, Offset), Problem> {
    let no_time = || Problem::Failed("its answer is no time".to_owned());
    let (answer, round_trip) = session.ask(&["TIME"])?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let Value::Array(parts) = answer? else {
        return Err(no_time());
    };
    let part = |number: usize| parts.get(number).and_then(text)?.parse::<u64>().ok();
    let (seconds, micros) = part(0).zip(part(1)).ok_or_else(no_time)?;
    let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
    let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let ours = now.saturating_sub(round_trip / 2);
    let offset = Offset {
        ms: ms(theirs) - ms(ours),
        error_ms: ms(round_trip / 2) + 1,
    };
    Ok((round_trip, offset))
}

/// Compares several connections. On a real server each connection has its own number, which stays the same.
pub fn proxies(server: &Server<'_>) -> Finding {
    const CHECK: &str = "proxy";
    const MEND: &str = "Connect to the server itself. For several servers, name them in a redis+sentinel, redis+cluster or \
                        redis+quorum URL.";
    let (mut servers, mut numbers) = (HashSet::new(), HashSet::new());
    let (mut is_split, mut asked) = (false, 0);
    let commands: &[&[&str]] = &[&["CLIENT", "ID"], &["INFO", "server"], &["CLIENT", "ID"]];
    let connections = thread::scope(|scope| {
        let asking = [(); CONNECTIONS].map(|()| scope.spawn(|| server.ask_all(commands)));
        asking.map(|thread| thread.join().expect("a check does not panic"))
    });
    for answers in connections {
        let answers = match answers {
            Ok(answers) => answers,
            Err(problem) => {
                return Finding::warn(
                    CHECK,
                    format!("a connection ends at CLIENT ID or INFO: {problem}"),
                    "A proxy may stand in between. It may not carry subscriptions, so waits poll.",
                    MEND,
                );
            }
        };
        let number = |place: usize| match answers.get(place) {
            Some((Ok(Value::Int(number)), _)) => Some(*number),
            _ => None,
        };
        if let (Some(first), Some(second)) = (number(0), number(2)) {
            is_split |= first != second;
            numbers.insert(first);
            asked += 1;
        }
        if let Some((Ok(reply), _)) = answers.get(1) {
            let info = text(reply).unwrap_or_default();
            let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
            servers.extend(run_id.map(|id| id.trim().to_owned()));
        }
    }
    if servers.len() > 1 {
        return Finding::bad(
            CHECK,
            format!("{} servers answer at this address", servers.len()),
            "A lock that was acquired at one of them is free at the others.",
            MEND,
        );
    }
    if is_split || asked > numbers.len() {
        let found = if is_split {
            "the commands of one connection reach the server on several connections"
        } else {
            "several connections reach the server as one"
        };
        let means =
            "A proxy stands in between. WAIT confirms nothing there, and messages may not arrive.";
        return if server.deployment.replicas > 0 {
            Finding::bad(CHECK, found, means, MEND)
        } else {
            Finding::warn(CHECK, found, means, MEND)
        };
    }
    match (asked, servers.len()) {
        (0, 0) => Finding::skip(
            CHECK,
            "neither CLIENT ID nor INFO has an answer",
            "Give the user the rights +client|id and +info.",
        ),
        _ => Finding::ok(
            CHECK,
            format!("no sign of one: {CONNECTIONS} connections reach one server"),
        ),
    }
}

/// Measures the round trips of many requests on one connection.
pub fn latency(server: &Server<'_>) -> Finding {
    const CHECK: &str = "latency";
    let figures = match round_trips(server) {
        Ok(figures) => figures,
        Err(problem) => {
            return Finding::bad(
                CHECK,
                format!("a connection of up to {REQUESTS} requests broke: {problem}"),
                "Renewals fail in the same way. A lease that cannot be renewed is lost.",
                "Look at the network, and at what else the server does at the time.",
            );
        }
    };
    // The slowest of a few requests may be an accident.
    let percent = if figures.count() < REQUESTS { 90 } else { 99 };
    let slow = figures.percentile(percent);
    let found = format!(
        "p50 {}, p{percent} {} of {} requests",
        brief(figures.percentile(50)),
        brief(slow),
        figures.count()
    );
    let limit = server.deployment.io_timeout;
    if slow > limit / 10 {
        return Finding::warn(
            CHECK,
            found,
            format!(
                "A request fails after io_timeout, {}: little time is left for a slow answer.",
                brief(limit)
            ),
            "Set io_timeout in the URL to ten times the slowest answer, or look for slow commands by SLOWLOG GET.",
        );
    }
    Finding::ok(CHECK, found)
}

fn round_trips(server: &Server<'_>) -> Result<Figures, Problem> {
    let mut session = server.session()?;
    let mut figures = Figures::new();
    let begun = Instant::now();
    while figures.count() < REQUESTS && begun.elapsed() < MEASURING {
        let (_, took) = session.ask(&["PING"])?;
        figures.add(took);
    }
    Ok(figures)
}
