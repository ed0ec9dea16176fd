//! Servers and proxies that are not here, by a server of the test that answers as they do.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::out;
use crate::support::{Answer, Hostile, Words, is_script};

use super::{doctor, ends_with, healthy, says};

/// Returns a rule that changes the answer to INFO: it gets these lines in front.
fn info_with(lines: &'static str) -> impl Fn(&Words) -> Answer + Send + Sync {
    move |words| {
        if words.first().is_some_and(|verb| verb == b"INFO") {
            return Answer::Say(format!("${}\r\n{lines}\r\n", lines.len()).into_bytes());
        }
        Answer::Pass
    }
}

#[test]
fn a_garnet_without_lua_is_bad() {
    let server = healthy();
    let garnet = Hostile::before(&server);
    let info = info_with("garnet_version:1.0.84\r\nredis_mode:standalone\r\nrole:master\r\n");
    garnet.answers(move |words| {
        if is_script(words) {
            let text = "-ERR This instance has Lua scripting support disabled\r\n";
            return Answer::Say(text.as_bytes().to_vec());
        }
        info(words)
    });
    let output = doctor(&garnet.url(), "");
    ends_with(&output, 2);
    says(&output, "server", "warn", &["Garnet 1.0.84"]);
    says(
        &output,
        "scripts",
        "bad",
        &["support disabled", "EnableLua and LuaTransactionMode"],
    );
}

#[test]
fn scripts_that_are_not_atomic_are_bad() {
    let server = healthy();
    let fake = Hostile::before(&server);
    // Each script reads the counter before any other has written it.
    fake.answers(|words| {
        let is_race = words
            .get(1)
            .is_some_and(|text| text.windows(4).any(|it| it == b"5000"));
        if is_script(words) && is_race {
            return Answer::Say(b":1\r\n".to_vec());
        }
        Answer::Pass
    });
    let output = doctor(&fake.url(), "");
    ends_with(&output, 2);
    says(
        &output,
        "scripts",
        "bad",
        &["99 of 100", "at the same moment"],
    );
}

#[test]
fn scripts_that_may_not_publish_are_a_warning() {
    let server = healthy();
    let kvrocks = Hostile::before(&server);
    kvrocks.answers(|words| {
        let is_notify = words
            .get(1)
            .is_some_and(|text| text.windows(6).any(|it| it == b"NUMSUB"));
        if is_script(words) && is_notify && words.get(2).is_some_and(|keys| keys == b"0") {
            let text = "-ERR This Redis command is not allowed from script\r\n";
            return Answer::Say(text.as_bytes().to_vec());
        }
        Answer::Pass
    });
    let output = doctor(&kvrocks.url(), "");
    ends_with(&output, 1);
    says(&output, "messages", "warn", &["PUBSUB", "polls"]);
}

#[test]
fn keys_that_do_not_expire_are_bad() {
    let server = healthy();
    let fake = Hostile::before(&server);
    fake.answers(|words| {
        if words.first().is_some_and(|verb| verb == b"PTTL") {
            return Answer::Say(b":-1\r\n".to_vec());
        }
        Answer::Pass
    });
    let output = doctor(&fake.url(), "");
    ends_with(&output, 2);
    says(&output, "expiry", "bad", &["do not expire"]);
}

#[test]
fn two_masters_of_keydb_are_bad() {
    let server = healthy();
    let keydb = Hostile::before(&server);
    keydb.answers(info_with(
        "redis_version:6.3.4\r\nredis_mode:standalone\r\nexecutable:/usr/bin/keydb-server\r\nrole:active-replica\r\n",
    ));
    let output = doctor(&keydb.url(), "");
    ends_with(&output, 2);
    says(&output, "server", "warn", &["KeyDB 6.3.4"]);
    says(
        &output,
        "active-active",
        "bad",
        &["Two masters", "active-replica no"],
    );
}

#[test]
fn several_servers_at_one_address_are_bad() {
    let server = healthy();
    let balancer = Hostile::before(&server);
    let connections = AtomicU64::new(0);
    balancer.answers(move |words| {
        if words.first().is_some_and(|verb| verb == b"INFO") {
            let number = connections.fetch_add(1, Ordering::Relaxed);
            let text = format!("redis_version:7.0.0\r\nrun_id:{number}\r\n");
            return Answer::Say(format!("${}\r\n{text}\r\n", text.len()).into_bytes());
        }
        Answer::Pass
    });
    let output = doctor(&balancer.url(), "");
    ends_with(&output, 2);
    says(
        &output,
        "proxy",
        "bad",
        &["servers answer at this address", "redis+quorum"],
    );
}

#[test]
fn a_proxy_that_splits_or_shares_connections_is_a_warning() {
    let server = healthy();
    let proxy = Hostile::before(&server);
    let is_of_client = |words: &Words| words.first().is_some_and(|verb| verb == b"CLIENT");
    proxy.answers(move |words| {
        if is_of_client(words) {
            return Answer::Say(b":7\r\n".to_vec());
        }
        Answer::Pass
    });
    let shared = doctor(&proxy.url(), "");
    ends_with(&shared, 1);
    says(
        &shared,
        "proxy",
        "warn",
        &["reach the server as one", "WAIT"],
    );
    let asked = AtomicU64::new(0);
    proxy.answers(move |words| {
        if is_of_client(words) {
            let number = asked.fetch_add(1, Ordering::Relaxed);
            return Answer::Say(format!(":{number}\r\n").into_bytes());
        }
        Answer::Pass
    });
    says(
        &doctor(&proxy.url(), ""),
        "proxy",
        "warn",
        &["commands of one connection"],
    );
}

#[test]
fn a_proxy_that_knows_no_info_is_a_warning() {
    let server = healthy();
    let proxy = Hostile::before(&server);
    proxy.answers(|words| {
        if words.first().is_some_and(|verb| verb == b"INFO") {
            return Answer::Close(Vec::new());
        }
        Answer::Pass
    });
    let output = doctor(&proxy.url(), "");
    ends_with(&output, 1);
    says(
        &output,
        "server",
        "warn",
        &["INFO has no answer", "twemproxy"],
    );
    says(&output, "proxy", "warn", &["a connection ends"]);
    says(&output, "lock", "ok", &[]);
}

#[test]
fn what_a_server_says_cannot_move_the_cursor() {
    let server = healthy();
    let fake = Hostile::before(&server);
    fake.answers(info_with(
        "redis_version:7.0\u{1b}[2J\r\nredis_mode:standalone\r\nrole:master\r\n",
    ));
    let output = doctor(&fake.url(), "");
    says(&output, "server", "ok", &["7.0\u{fffd}[2J"]);
    assert!(!out(&output).contains('\u{1b}'));
}
