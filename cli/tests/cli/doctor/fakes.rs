//! Servers and proxies that are not here, by a server of the test that answers as they do.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::out;
use crate::support::{Answer, Hostile, Server, Words, is_script};

use super::{doctor, ends_with, healthy, says};

/// Checks that `doctor` ends with this status before a fake that answers by these rules, and that the finding of each check has
/// this level and these words.
#[track_caller]
fn finds(
    server: &Server,
    answers: impl Fn(&Words) -> Answer + Send + Sync + 'static,
    status: i32,
    findings: &[(&str, &str, &[&str])],
) {
    let fake = Hostile::before(server);
    fake.answers(answers);
    let output = doctor(&fake.url(), "");
    ends_with(&output, status);
    for (check, level, words) in findings {
        says(&output, check, level, words);
    }
    // What a server says cannot move the cursor.
    assert!(!out(&output).contains('\u{1b}'));
}

fn is(words: &Words, verb: &str) -> bool {
    words.first().is_some_and(|first| first == verb.as_bytes())
}

/// Returns whether a word contains a text.
fn has(word: Option<&Vec<u8>>, text: &str) -> bool {
    word.is_some_and(|word| word.windows(text.len()).any(|it| it == text.as_bytes()))
}

fn say(text: &str) -> Answer {
    Answer::Say(format!("{text}\r\n").into_bytes())
}

fn when(is_so: bool, answer: impl FnOnce() -> Answer) -> Answer {
    if is_so { answer() } else { Answer::Pass }
}

/// Says this to INFO.
fn info(lines: &str) -> Answer {
    say(&format!("${}\r\n{lines}", lines.len()))
}

#[test]
fn what_a_server_lacks_is_found() {
    let server = healthy();
    let garnet = |words: &Words| {
        if is_script(words) {
            return say("-ERR This instance has Lua scripting support disabled");
        }
        when(is(words, "INFO"), || {
            info("garnet_version:1.0.84\r\nredis_mode:standalone\r\nrole:master\r\n")
        })
    };
    let lacks_lua = ["support disabled", "EnableLua and LuaTransactionMode"];
    finds(
        &server,
        garnet,
        2,
        &[
            ("server", "warn", &["Garnet 1.0.84"]),
            ("scripts", "bad", &lacks_lua),
        ],
    );
    // Each script reads the counter before any other has written it.
    let races = |words: &Words| {
        let is_race = is_script(words) && has(words.get(1), "5000");
        when(is_race, || say(":1"))
    };
    let at_once = ["99 of 100", "at the same moment"];
    finds(&server, races, 2, &[("scripts", "bad", &at_once)]);
    let kvrocks = |words: &Words| {
        let is_notify = is_script(words) && has(words.get(1), "NUMSUB");
        when(
            is_notify && words.get(2).is_some_and(|keys| keys == b"0"),
            || say("-ERR This Redis command is not allowed from script"),
        )
    };
    let polls = ["PUBSUB", "polls"];
    finds(&server, kvrocks, 1, &[("messages", "warn", &polls)]);
    let keeps_all = |words: &Words| when(is(words, "PTTL"), || say(":-1"));
    let stay = ["do not expire"];
    finds(&server, keeps_all, 2, &[("expiry", "bad", &stay)]);
    let keydb = |words: &Words| {
        let lines = "redis_version:6.3.4\u{1b}[2J\r\nredis_mode:standalone\r\nexecutable:/usr/bin/keydb-server\r\n\
                     role:active-replica\r\n";
        when(is(words, "INFO"), || info(lines))
    };
    let two_masters = ["Two masters", "active-replica no"];
    finds(
        &server,
        keydb,
        2,
        &[
            ("server", "warn", &["KeyDB 6.3.4\u{fffd}[2J"]),
            ("active-active", "bad", &two_masters),
        ],
    );
}

#[test]
fn a_proxy_in_between_is_found() {
    let server = healthy();
    let connections = AtomicU64::new(0);
    let balancer = move |words: &Words| {
        when(is(words, "INFO"), || {
            let number = connections.fetch_add(1, Ordering::Relaxed);
            info(&format!("redis_version:7.0.0\r\nrun_id:{number}\r\n"))
        })
    };
    let several = ["servers answer at this address", "redis+quorum"];
    finds(&server, balancer, 2, &[("proxy", "bad", &several)]);
    let shares = |words: &Words| when(is(words, "CLIENT"), || say(":7"));
    let as_one = ["reach the server as one", "WAIT"];
    finds(&server, shares, 1, &[("proxy", "warn", &as_one)]);
    let asked = AtomicU64::new(0);
    let splits = move |words: &Words| {
        when(is(words, "CLIENT"), || {
            say(&format!(":{}", asked.fetch_add(1, Ordering::Relaxed)))
        })
    };
    let split = ["commands of one connection"];
    finds(&server, splits, 1, &[("proxy", "warn", &split)]);
    let twemproxy = |words: &Words| when(is(words, "INFO"), || Answer::Close(Vec::new()));
    finds(
        &server,
        twemproxy,
        1,
        &[
            ("server", "warn", &["INFO has no answer", "twemproxy"]),
            ("proxy", "warn", &["a connection ends"]),
            ("lock", "ok", &[]),
        ],
    );
}
