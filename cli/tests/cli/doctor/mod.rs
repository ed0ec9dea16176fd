//! `doctor`.

mod fakes;
mod rights;
mod several;
mod ways;

use std::process::Output;

use crossbeam_channel::bounded;
use serde_json::Value;

use crate::support::{Answer, Fault, Hostile, Proxy, Raw, Server, unused_url};
use crate::terminal::Terminal;
use crate::{err, leasehold, out, output};

/// Settings for a busy machine: no latency is too long for it.
const CALM: &str = "io_timeout=60s&connect_timeout=20s";
const PASSWORD: &str = "s3cret";
/// Runs `doctor` for a server, with further parameters of the URL.
fn doctor(url: &str, parameters: &str) -> Output {
    output(&format!("{url}?{CALM}{parameters}"), &["doctor"])
}

/// Returns the lines of a check: its finding, and what follows from it.
fn lines_of(output: &Output, check: &str) -> Vec<String> {
    let text = out(output);
    let mut lines = text
        .lines()
        .skip_while(|line| line.starts_with(' ') || line.split_whitespace().nth(2) != Some(check))
        .map(str::to_owned);
    let first = lines.next().unwrap_or_else(|| panic!("no {check}: {text}"));
    let rest = lines.take_while(|line| line.starts_with(' '));
    [first].into_iter().chain(rest).collect()
}

/// Checks that the finding of a check has this level, and that it says these words, in this order.
#[track_caller]
fn says(output: &Output, check: &str, level: &str, words: &[&str]) {
    let lines = lines_of(output, check);
    assert!(lines[0].starts_with(level), "{}", out(output));
    let text = lines.join("\n");
    let mut rest = &*text;
    for word in words {
        let found = rest.split_once(word);
        (_, rest) = found.unwrap_or_else(|| panic!("no {word:?} in {text}"));
    }
    let is_well = level == "ok";
    let has = |what: &str| lines.iter().any(|line| line.trim_start().starts_with(what));
    assert_eq!(
        (has("means "), has("mend ")),
        (!is_well, !is_well),
        "{text}"
    );
}

#[track_caller]
fn ends_with(output: &Output, status: i32) {
    let said = out(output) + &err(output);
    assert_eq!(output.status.code(), Some(status), "{said}");
}

#[track_caller]
fn has_no_keys(server: &Raw) {
    let keys: Vec<String> = server.ask(&["KEYS", "*"]);
    assert_eq!(keys, [""; 0]);
}

/// Starts a server with nothing wrong.
fn healthy() -> Server {
    Server::keeping_data(&[])
}

#[test]
fn nothing_is_wrong_with_a_healthy_server_and_no_key_stays() {
    let server = healthy();
    let output = doctor(&server.url(), "&prefix=billing:");
    ends_with(&output, 0);
    let text = out(&output);
    assert!(text.lines().all(|line| line.starts_with("ok ")), "{text}");
    for check in [
        "server",
        "mode",
        "eviction",
        "persistence",
        "replicas",
        "clock",
        "rights",
        "scripts",
        "expiry",
        "proxy",
        "latency",
        "lock",
        "messages",
    ] {
        says(&output, check, "ok", &[]);
    }
    assert!(!text.contains('\u{1b}'), "a pipe has no colours");
    has_no_keys(&server.raw());
}

#[test]
fn each_finding_is_an_object_of_json() {
    let server = Server::start();
    let url = format!("{}?{CALM}", server.url());
    let output = output(&url, &["doctor", "--json"]);
    ends_with(&output, 1);
    let text = out(&output);
    let objects = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"));
    let objects: Vec<Value> = objects.collect();
    let of = |check: &str| {
        let found = objects.iter().find(|object| object["check"] == check);
        found.unwrap_or_else(|| panic!("no {check}: {text}"))
    };
    // The server forgets its locks at a restart.
    let address = format!("127.0.0.1:{}", server.port());
    let persistence = of("persistence");
    assert_eq!(
        (&persistence["level"], &persistence["server"]),
        (&"warn".into(), &address.into())
    );
    for (field, words) in [
        ("found", "none"),
        ("means", "forgets all locks"),
        ("mend", "appendonly yes"),
    ] {
        let text = persistence[field].as_str();
        assert!(
            text.is_some_and(|text| text.contains(words)),
            "{persistence}"
        );
    }
    assert_eq!(of("lock")["server"], "all");
    for field in ["found", "means", "mend"] {
        assert!(
            objects.iter().all(|object| object[field].is_string()),
            "{field}"
        );
    }
}

#[test]
fn a_server_that_may_evict_locks_is_bad() {
    let server =
        Server::keeping_data(&["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"]);
    let output = doctor(&server.url(), "");
    ends_with(&output, 2);
    says(
        &output,
        "eviction",
        "bad",
        &["volatile-lru", "free for others", "noeviction"],
    );
    let () = server
        .raw()
        .ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    ends_with(&doctor(&server.url(), ""), 0);
    let () = server.raw().ask(&["CONFIG", "SET", "maxmemory", "900kb"]);
    says(
        &doctor(&server.url(), ""),
        "eviction",
        "warn",
        &["nearly full"],
    );
}

#[test]
fn a_server_that_cannot_be_reached_is_bad() {
    let unread = output(&format!("redis://:{PASSWORD}@h/?lease=x"), &["doctor"]);
    ends_with(&unread, 64);
    assert!(!err(&unread).contains(PASSWORD));
    let output = doctor(&unused_url(), "");
    ends_with(&output, 2);
    says(
        &output,
        "connection",
        "bad",
        &["connection", "Locks do not work"],
    );
}

#[test]
fn a_wrong_password_is_bad_and_is_not_shown() {
    let server = healthy();
    let url = server.url().replace("://", &format!("://app:{PASSWORD}@"));
    let output = doctor(&url, "");
    ends_with(&output, 2);
    says(&output, "connection", "bad", &["WRONGPASS"]);
    assert!(!out(&output).contains(PASSWORD));
}

#[test]
fn a_server_without_scripts_is_bad() {
    let server = Server::keeping_data(&["--rename-command", "EVAL", ""]);
    let output = doctor(&server.url(), "");
    ends_with(&output, 2);
    says(
        &output,
        "scripts",
        "bad",
        &["EVAL", "locks do not work", "rename-command"],
    );
    assert!(lines_of(&output, "lock")[0].starts_with("skip"));
    has_no_keys(&server.raw());
}

#[test]
fn a_clock_that_is_ahead_is_a_warning() {
    let server = Server::with_clock();
    let well = doctor(&server.url(), "");
    says(&well, "clock", "ok", &["to within"]);
    server.set_clock_ahead(3_600);
    let output = doctor(&server.url(), "");
    ends_with(&output, 1);
    says(
        &output,
        "clock",
        "warn",
        &["ahead of this machine's", "NTP"],
    );
    server.set_clock_ahead(-3_600);
    says(
        &doctor(&server.url(), ""),
        "clock",
        "warn",
        &["behind this machine's"],
    );
}

#[test]
fn a_person_sees_the_step_that_takes_long() {
    let server = healthy();
    let fake = Hostile::before(&server);
    let (go, gate) = bounded::<()>(0);
    fake.answers(move |words| {
        if words.first().is_some_and(|verb| verb == b"INFO") {
            // Until the test has seen the step.
            let _ = gate.recv();
        }
        Answer::Pass
    });
    let mut command = leasehold(&format!("{}?{CALM}", fake.url()));
    command.arg("doctor");
    let mut terminal = Terminal::start(command, 40, 60);
    terminal.wait_for("the step", |screen| {
        screen.contains("checking the settings")
    });
    drop(go);
    assert_eq!(terminal.wait().code(), Some(0));
    let screen = terminal.wait_for("the end", |screen| screen.contains("a message reached"));
    assert!(!screen.contains("checking"), "{screen}");
    // Nobody reads a pipe meanwhile.
    let piped = output(&format!("{}?{CALM}", server.url()), &["doctor"]);
    assert_eq!(err(&piped), "");
}

#[test]
fn a_long_way_to_the_server_takes_fewer_measurements() {
    let server = healthy();
    let proxy = Proxy::to(&server);
    proxy.strike_all(Fault::Late(30));
    let output = doctor(&proxy.url(), "");
    let latency = lines_of(&output, "latency").join("\n");
    // 2 s are over after at most 34 round trips.
    let count = latency
        .split(" of ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let count: u32 = count
        .and_then(|count| count.parse().ok())
        .expect("a number");
    assert!((1..=34).contains(&count), "{latency}");
    ends_with(&output, 0);
}
