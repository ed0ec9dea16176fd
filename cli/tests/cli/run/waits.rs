//! What `run` says while it waits and after it, and waits that cannot end or begin without a server.

use std::fs::File;

use leasehold::{LockManager, Permit};
use serde_json::Value;

use crate::support::{Server, build, manager, secs, settings_of, wait_until};
use crate::work::{Running, Work, start};
use crate::{err, leasehold, out, output};

const WEB: &str = r#"held by web-1:17281 ("deploy of build 7") for "#;

/// Returns a manager that holds locks as the process of another host.
fn web(server: &Server) -> LockManager {
    let settings = settings_of(&server.url());
    build(settings.label("web-1:17281").note("deploy of build 7"))
}

/// Starts a `run` whose standard error is the file `log`, so it is not a terminal.
fn start_logged(work: &Work, options: &[&str], script: &str) -> Running {
    let log = File::create_new(work.dir.join("log")).expect("the directory exists");
    start(work.run(options, script).stderr(log))
}

/// Returns the first event with this name.
fn event(text: &str, name: &str) -> Value {
    let events = text
        .lines()
        .map(|line| -> Value { serde_json::from_str(line).expect(line) });
    let mut found = events.filter(|event| event["event"] == name);
    found.next().unwrap_or_else(|| panic!("{name}: {text}"))
}

#[test]
fn a_wait_without_a_terminal_says_who_holds_the_lock() {
    let server = Server::start();
    let [text, json, quiet] = [(); 3].map(|()| Work::new(&server.url()));
    let locks = web(&server);
    let guards = [&text, &json, &quiet].map(|work| locks.lock(&work.lock).expect("it is free"));
    let mut runs = [
        start_logged(&text, &[], "exit 3"),
        start_logged(&json, &["--json"], "exit 3"),
        start_logged(&quiet, &["--quiet"], "exit 3"),
    ];
    let begin = format!("leasehold: waiting for {}, {WEB}", text.lock);
    for (work, said) in [(&text, &*begin), (&json, "\"waiting\"")] {
        wait_until("the wait is told", || work.text("log").contains(said));
    }
    let line = text.text("log");
    // On a busy machine it may not be in the queue yet.
    assert!(line.contains("; waited "), "{line}");
    let event = event(&json.text("log"), "waiting");
    let holder = &event["locks"][0]["holders"][0];
    assert_eq!(event["locks"][0]["name"], json.lock.as_str());
    assert_eq!(holder["label"], "web-1:17281");
    assert_eq!(holder["note"], "deploy of build 7");
    assert!(holder["held_for"].as_f64().is_some(), "{event}");
    assert!(event["waited"].as_f64().is_some(), "{event}");
    drop(guards);
    assert_eq!(runs.each_mut().map(Running::status), [3; 3]);
    assert_eq!(quiet.text("log"), "");
}

/// Runs a command that does not get its locks, and returns what it says.
#[track_caller]
fn said(server: &Server, options: &[&str], names: &[&str]) -> String {
    let arguments = [
        &["run", "--no-wait"],
        options,
        names,
        &["--", "echo", "ran"],
    ]
    .concat();
    let output = output(&server.url(), &arguments);
    assert_eq!(output.status.code(), Some(75), "{}", err(&output));
    assert_eq!(out(&output), "");
    err(&output)
}

#[test]
fn a_busy_lock_is_told_with_its_holder() {
    let server = Server::start();
    let locks = web(&server);
    let _a = locks.lock("a").expect("it is free");
    let said_of = |options: &[&str], names: &[&str]| said(&server, options, names);
    let waited = output(
        &server.url(),
        &["run", "--wait", "50ms", "a", "--", "echo", "ran"],
    );
    for text in [err(&waited), said_of(&[], &["a"])] {
        assert!(
            text.starts_with(&format!("leasehold: a is {WEB}")),
            "{text}"
        );
        assert!(text.ends_with(", and nothing ran\n"), "{text}");
    }
    let text = said_of(&["--json"], &["a"]);
    let busy = event(&text, "busy");
    assert_eq!(busy["locks"][0]["holders"][0]["label"], "web-1:17281");
    assert_eq!(said_of(&["--quiet"], &["a"]), "");

    // Of several names, only those that others hold.
    let text = said_of(&[], &["free", "a", "free-too"]);
    assert!(
        text.starts_with(&format!("leasehold: a is {WEB}")),
        "{text}"
    );
    let _b = locks.lock("b").expect("it is free");
    let text = said_of(&[], &["a", "b"]);
    assert!(text.contains(&format!("leasehold: a is {WEB}")), "{text}");
    assert!(text.contains(&format!("; b is {WEB}")), "{text}");

    // Nobody holds a lock that is only kept.
    let kept = locks.mutex("kept").min_hold(secs(3600)).lock();
    kept.expect("it is free").release().expect("it is held");
    let text = said_of(&[], &["kept"]);
    assert!(
        text.starts_with("leasehold: kept is kept from others for "),
        "{text}"
    );
    let by = "although web-1:17281 (\"deploy of build 7\") has released it";
    assert!(text.contains(by), "{text}");

    // Three processes have a permit each.
    let processes = [(); 3].map(|()| manager(&server.url()));
    let permits: Vec<Permit> = processes
        .iter()
        .map(|locks| locks.semaphore("s", 3).acquire().expect("one is free"))
        .collect();
    let text = said_of(&["--permits", "1/3"], &["s"]);
    assert!(text.contains("s is held by "), "{text}");
    assert!(text.contains(" and by 2 others, and nothing ran"), "{text}");
    drop(permits);

    let () = server.raw().ask(&["SET", "theirs", "secret-of-theirs"]);
    let text = said_of(&[], &["theirs"]);
    assert_eq!(
        text,
        "leasehold: theirs is held by another client, and nothing ran\n"
    );
}

#[test]
fn a_wait_for_a_lock_of_a_run_around_it_is_an_error() {
    let server = Server::start();
    let url = server.url();
    let program = env!("CARGO_BIN_EXE_leasehold");
    let run = |arguments: &[&str]| {
        // If the wait were not noticed, the outermost would end it, with the status 78.
        let arguments = [&["run", "--max", "60s", "--grace", "1s"], arguments].concat();
        leasehold(&url).args(arguments).output().expect("it runs")
    };
    let nests = "is held by the `leasehold run` around this one";
    let in_itself = run(&["a", "--", program, "run", "a", "--", "echo", "ran"]);
    let for_a_time = run(&[
        "a", "--", program, "run", "--wait", "1h", "a", "--", "echo", "ran",
    ]);
    let below_another = run(&[
        "a", "--", program, "run", "b", "--", program, "run", "a", "--", "echo", "ran",
    ]);
    let one_of_several = run(&[
        "a", "b", "--", program, "run", "c", "b", "--", "echo", "ran",
    ]);
    for output in [in_itself, for_a_time, below_another, one_of_several] {
        assert_eq!(output.status.code(), Some(64), "{}", err(&output));
        assert_eq!(out(&output), "");
        assert!(err(&output).contains(nests), "{}", err(&output));
    }

    // No wait has an end, and what is not the same lock can be had.
    let no_wait = run(&[
        "a",
        "--",
        program,
        "run",
        "--no-wait",
        "a",
        "--",
        "echo",
        "ran",
    ]);
    assert_eq!(no_wait.status.code(), Some(75), "{}", err(&no_wait));
    let elsewhere = format!("--url={url}?prefix=other:");
    let other_prefix = run(&[
        "a", "--", program, &elsewhere, "run", "a", "--", "echo", "ran",
    ]);
    let reads = run(&[
        "--shared", "r", "--", program, "run", "--shared", "r", "--", "echo", "ran",
    ]);
    for output in [other_prefix, reads] {
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        assert_eq!(out(&output), "ran\n");
    }
}

#[test]
fn a_wait_covers_a_server_that_is_down_at_the_start() {
    let server = Server::keeping_data(&[]);
    server.kill_for_now();
    let work = Work::new(&format!("{}?wait_through_outages=true", server.url()));
    let mut running = start_logged(&work, &["--wait", "1h"], "here it; exit 3");
    let begin = format!("leasehold: waiting for {}: ", work.lock);
    wait_until("the outage is told", || work.text("log").contains(&begin));
    server.start_again();
    assert_eq!(running.status(), 3);

    // The wait is over before the server is back, or has never begun.
    server.kill_for_now();
    for (work, options) in [
        (Work::new(work.url()), &["--wait", "50ms"][..]),
        (Work::new(work.url()), &["--no-wait"]),
        (Work::new(&server.url()), &["--wait", "1h"]),
    ] {
        assert_eq!(work.start(options, "here it").status(), 69);
        assert!(!work.has("it"));
    }
}
