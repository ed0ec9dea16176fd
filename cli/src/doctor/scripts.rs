//! Scripts: whether they run and are atomic, and whether they may publish. Also whether a key lives for as long as it
//! should.
//!
//! Whether scripts are atomic is found by a race. Several connections run a script that reads a counter, computes for a
//! while, and writes the counter plus one. If no script runs in the middle of another, each of them returns another
//! number.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;

use super::facts::Facts;
use super::finding::Finding;
use super::{TTL_MS, new_key};
use crate::server::{Answer, Problem, Server};

const COUNT: &str = "
local n = tonumber(redis.call('GET', KEYS[1]) or '0') + 1
for _ = 1, 5000 do end
redis.call('SET', KEYS[1], n, 'PX', ARGV[1])
return n
";
const RACING: usize = 4;
const SCRIPTS_EACH: usize = 25;

/// The commands with channels that the scripts of a contended lock use.
const NOTIFY: &str = "
redis.call('PUBLISH', ARGV[1], '')
return redis.call('PUBSUB', 'NUMSUB', ARGV[1])[2]
";
const CHANNEL: &str = "leasehold:doctor";

/// The time to live that a key gets. It is no whole number of seconds.
const TTL: Duration = Duration::from_millis(1_500);
/// How much the server may round it.
const ROUNDED: Duration = Duration::from_millis(100);

pub fn check(server: &Server<'_>, facts: &Facts) -> Vec<Finding> {
    match server.ask(&["EVAL", "return 1", "0"]) {
        Ok(Value::Int(1)) => {}
        answer => return vec![cannot_run(&answer, facts)],
    }
    let key = new_key(server);
    let mut findings = vec![atomic(server, &key, facts)];
    findings.extend(notify(server));
    findings.push(expiry(server, &key));
    findings
}

fn cannot_run(answer: &Answer, facts: &Facts) -> Finding {
    const CHECK: &str = "scripts";
    const MEANS: &str = "leasehold acquires and releases locks by scripts. So locks do not work.";
    let found = match answer {
        Err(problem) => format!("EVAL fails: {problem}"),
        Ok(_) => "EVAL does not return what the script returns".to_owned(),
    };
    let mend = match (facts.program().0, answer) {
        ("Garnet", _) => {
            "Start Garnet with EnableLua and LuaTransactionMode (--lua --lua-transaction-mode)."
        }
        (_, Err(Problem::Denied(_))) => "Give the user the rights +eval and +evalsha.",
        _ => {
            "Allow EVAL and EVALSHA: undo a rename-command, or connect without a proxy that refuses them."
        }
    };
    Finding::bad(CHECK, found, MEANS, mend)
}

fn atomic(server: &Server<'_>, key: &str, facts: &Facts) -> Finding {
    const CHECK: &str = "scripts";
    let script: &[&str] = &["EVAL", COUNT, "1", key, TTL_MS];
    let scripts = [script; SCRIPTS_EACH];
    let answers = thread::scope(|scope| {
        let racing = [(); RACING].map(|()| scope.spawn(|| server.session()?.ask_at_once(&scripts)));
        racing.map(|thread| thread.join().expect("a check does not panic"))
    });
    // If this fails, the key expires.
    let _ = server.ask(&["DEL", key]);
    let mut numbers = HashSet::new();
    for answer in answers {
        let numbered: Result<Vec<Value>, Problem> =
            answer.and_then(|answers| answers.into_iter().collect());
        let numbered = match numbered {
            Ok(numbered) => numbered,
            Err(problem) => {
                let mend = "Mend the other findings first.";
                return Finding::skip(
                    CHECK,
                    format!("they run; whether they are atomic was not found: {problem}"),
                    mend,
                );
            }
        };
        numbers.extend(numbered.iter().filter_map(|reply| match reply {
            Value::Int(number) => Some(*number),
            _ => None,
        }));
    }
    let all = RACING * SCRIPTS_EACH;
    if numbers.len() == all {
        return Finding::ok(CHECK, format!("they run, and {all} in a race were atomic"));
    }
    let mend = match facts.program().0 {
        "Garnet" => "Start Garnet with LuaTransactionMode (--lua-transaction-mode).",
        "Dragonfly" => "Start Dragonfly without disable-atomicity in default_lua_flags.",
        _ => "Use a server that runs each script alone, such as Redis or Valkey.",
    };
    Finding::bad(
        CHECK,
        format!(
            "they run, but {} of {all} ran in the middle of another",
            all - numbers.len()
        ),
        "Two processes can acquire one lock at the same moment.",
        mend,
    )
}

/// Returns a finding if scripts may not publish. That a right is missing is a finding of `rights`.
fn notify(server: &Server<'_>) -> Option<Finding> {
    let Err(Problem::Refused(text)) = server.ask(&["EVAL", NOTIFY, "0", CHANNEL]) else {
        return None;
    };
    // A script reports a missing right by another code.
    let is_right = [
        "NOPERM",
        "ACL failure",
        "executing the script",
        "permission",
    ];
    if is_right.iter().any(|words| text.contains(words)) {
        return None;
    }
    Some(Finding::warn(
        "messages",
        format!("a script may not use PUBLISH or PUBSUB: {text}"),
        "A waiting process is not told when the lock comes free. It polls, so it waits for up to 1 s longer.",
        "Use a server whose scripts may use both, such as Redis or Valkey.",
    ))
}

fn expiry(server: &Server<'_>, key: &str) -> Finding {
    const CHECK: &str = "expiry";
    let ttl = TTL.as_millis().to_string();
    let begun = Instant::now();
    let commands: [&[&str]; 3] = [&["SET", key, "", "PX", &ttl], &["PTTL", key], &["DEL", key]];
    let answers = server.ask_all(&commands);
    let took = begun.elapsed();
    let skip = |why: String| Finding::skip(CHECK, why, "Mend the other findings first.");
    let mut answers = match answers {
        Ok(answers) => answers.into_iter().map(|(answer, _)| answer),
        Err(problem) => return skip(problem.to_string()),
    };
    let left = match (answers.next(), answers.next()) {
        (Some(Ok(_)), Some(Ok(Value::Int(left)))) => left,
        (Some(Err(problem)), _) | (_, Some(Err(problem))) => return skip(problem.to_string()),
        _ => return skip("the answer to PTTL is no number".to_owned()),
    };
    let found = format!("a key that should live for {ttl} ms lives for {left} ms");
    let Ok(left) = u64::try_from(left).map(Duration::from_millis) else {
        // It has expired already if the link is slow.
        if left == -2 && took >= TTL {
            return skip("the link is too slow to tell".to_owned());
        }
        return Finding::bad(
            CHECK,
            found,
            "Keys do not expire as they should. A crashed process can keep a lock for ever, or lose one too early.",
            "Use a server with times to live in milliseconds, such as Redis or Valkey.",
        );
    };
    if left + took + ROUNDED < TTL {
        return Finding::bad(
            CHECK,
            found,
            "A lock comes free in Redis before its holder expects it. Then two processes can hold one lock.",
            "Let the server keep times to live in milliseconds. Kvrocks does so with redis-encoding-version 1 or later.",
        );
    }
    if left > TTL + ROUNDED {
        return Finding::warn(
            CHECK,
            found,
            "The lock of a crashed process is kept for longer than its lease.",
            "Let the server keep times to live in milliseconds.",
        );
    }
    Finding::ok(CHECK, "keys expire to the millisecond")
}
