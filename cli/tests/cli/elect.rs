//! `elect` and `leader`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Server, manager, name, unused_url, wait_until};
use crate::work::{Running, Work, start, take};
use crate::{err, leasehold, out, output};

const FOREVER: &str = "echo $LEASEHOLD_FENCE >fence; here it; while :; do sleep 1; done";

/// Starts a candidate. It is killed when the value is dropped.
fn elect(work: &Work, value: &str, script: &str) -> Running {
    start(&mut work.by("elect", &["--value", value], script))
}

/// Returns the status of `leader`, and what it prints to both outputs.
fn leader(work: &Work, options: &[&str]) -> (Option<i32>, String, String) {
    let options = [&["leader"], options, &[&*work.lock]].concat();
    let output = output(work.url(), &options);
    (output.status.code(), out(&output), err(&output))
}

/// Starts `leader --watch`, which writes to a file.
fn watch(work: &Work, options: &[&str], file: &str) -> Running {
    let file = File::create_new(work.dir.join(file)).expect("the directory exists");
    let options = [&["leader", "--watch"], options, &[&*work.lock]].concat();
    start(leasehold(work.url()).args(options).stdout(file))
}

/// Returns the lines of such a file.
fn lines(work: &Work, file: &str) -> Vec<String> {
    let text = fs::read_to_string(work.dir.join(file)).expect("it was made");
    text.lines().map(str::to_owned).collect()
}

/// Returns such lines as objects. The last one may not be whole yet.
fn objects(work: &Work) -> Vec<Value> {
    let lines = lines(work, "objects");
    let parsed = lines.iter().map(|line| serde_json::from_str(line));
    parsed.map_while(Result::ok).collect()
}

#[test]
fn the_command_runs_while_its_process_leads() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let mut leads = elect(&work, "10.0.0.7:8080", FOREVER);
    work.pid("it");
    let printed = (Some(0), "10.0.0.7:8080\n".to_owned(), String::new());
    assert_eq!(leader(&work, &[]), printed);
    let (status, line, _) = leader(&work, &["--json"]);
    let object: Value = serde_json::from_str(&line).expect("an object");
    assert_eq!(status, Some(0));
    assert_eq!(object["value"], "10.0.0.7:8080");
    assert_eq!(object["fence"].to_string(), work.text("fence"));
    assert!(object["since"].is_string());

    leads.signal(Signal::TERM);
    assert_eq!(leads.status(), 143);
    let nobody = format!("leasehold: nobody leads {}\n", work.lock);
    assert_eq!(leader(&work, &[]), (Some(1), String::new(), nobody.clone()));
    let (status, line, said) = leader(&work, &["--json"]);
    let object: Value = serde_json::from_str(&line).expect("an object");
    let nulls = json!({ "value": null, "fence": null, "since": null });
    assert_eq!((status, object, said), (Some(1), nulls, nobody));
}

#[test]
fn the_next_candidate_leads_when_the_command_has_ended() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let mut watches = watch(&work, &[], "lines");
    let mut watches_json = watch(&work, &["--json"], "objects");
    // A watch that is slow is shown the last leader only.
    let wait_until_shown = |value: Option<&str>| {
        wait_until(&format!("{value:?} is shown"), || {
            let line = lines(&work, "lines").pop();
            let object = objects(&work).pop();
            line.as_deref() == Some(value.unwrap_or("-"))
                && object.is_some_and(|it| {
                    it["value"].as_str() == value && it["fence"].is_null() == value.is_none()
                })
        });
    };
    wait_until_shown(None);
    let script = "here it; until [ -e go ]; do sleep 0.01; done; exit 3";
    let mut first = elect(&work, "first", script);
    work.pid("it");
    wait_until_shown(Some("first"));
    let mut second = elect(&work, "second", "here second; while :; do sleep 1; done");
    server.raw().wait_until_queued(&work.lock, 1);
    assert!(!work.has("second"));
    File::create_new(work.dir.join("go")).expect("the directory exists");
    assert_eq!(first.status(), 3);
    work.pid("second");
    wait_until_shown(Some("second"));
    second.signal(Signal::TERM);
    assert_eq!(second.status(), 143);
    wait_until_shown(None);
    for watches in [&mut watches, &mut watches_json] {
        watches.signal(Signal::TERM);
        assert_eq!(watches.end().signal(), Some(15));
    }

    // Between the two nobody leads for a moment, which may be too short to be shown.
    let mut lines = lines(&work, "lines");
    if lines[2] == "-" {
        lines.remove(2);
    }
    assert_eq!(lines, ["-", "first", "second", "-"]);
    let objects = objects(&work);
    let fences: Vec<_> = objects
        .iter()
        .filter_map(|it| it["fence"].as_u64())
        .collect();
    assert!(fences.len() == 2 && fences[0] < fences[1], "{objects:?}");
}

#[test]
fn a_leader_that_has_lost_the_lock_ends_its_command() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let mut leads = elect(&work, "a", FOREVER);
    let command = work.pid("it");
    take(&manager(&server.url()), &work.lock);
    assert_eq!(leads.status(), 70);
    assert_eq!(crate::work::state(command), None);
    assert_eq!(leader(&work, &[]).0, Some(1));
}

#[test]
fn nothing_runs_if_somebody_else_leads() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let locks = manager(&server.url());
    let leads = locks.election(&work.lock).campaign("of the library");
    let leads = leads.expect("nobody else leads");
    for (options, status) in [
        (&["--no-wait"][..], 75),
        (&["--wait", "50ms"], 75),
        (&["--no-wait", "-E", "3"], 3),
    ] {
        let options = [&["--value", "a"], options].concat();
        assert_eq!(
            start(&mut work.by("elect", &options, "here it")).status(),
            status
        );
    }
    assert!(!work.has("it"));
    assert_eq!(leader(&work, &[]).1, "of the library\n");
    leads.resign().expect("it leads");
    let options = ["--value", "a", "--max", "1h", "--grace", "3599s"];
    let mut too_long = start(&mut work.by("elect", &options, FOREVER));
    assert_eq!(too_long.status(), 78);
}

/// The value is that of any program, so it must not move the cursor of a terminal.
#[test]
fn a_value_is_shown_without_control_characters() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let locks = manager(&server.url());
    let election = locks.election(&work.lock);
    let _leads = election.campaign("a\n\u{1b}[2J").expect("nobody leads");
    assert_eq!(leader(&work, &[]).1, "a\u{fffd}\u{fffd}[2J\n");
    let object: Value = serde_json::from_str(&leader(&work, &["--json"]).1).expect("an object");
    assert_eq!(object["value"], "a\n\u{1b}[2J");
}

#[test]
fn a_watch_ends_when_nobody_reads_it() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let mut watches = leasehold(work.url());
    watches
        .args(["leader", "--watch", &work.lock])
        .stdout(Stdio::piped());
    let mut watches = watches.spawn().expect("it is built");
    let mut first = String::new();
    let lines = watches.stdout.take().expect("it is a pipe");
    BufReader::new(lines)
        .read_line(&mut first)
        .expect("it can be read");
    assert_eq!(first, "-\n");
    let mut watches = Running::from(watches);
    let locks = manager(&server.url());
    let leads = locks.election(&work.lock).campaign("a");
    let mut leads = leads.expect("nobody leads");
    // A child that another test is about to start has the pipe too, until its `exec`. So one change may not be enough.
    let mut changes = 0;
    wait_until("the watch has ended", || {
        changes += 1;
        leads.proclaim(&changes.to_string()).expect("it leads");
        watches.has_ended()
    });
    assert_eq!(watches.status(), 0);
}

#[test]
fn each_error_has_its_own_status() {
    let server = Server::start();
    let () = server.raw().ask(&["LPUSH", "list", "x"]);
    let (unused, long) = (unused_url(), "x".repeat(201));
    let url = &server.url();
    let n = &*name("n");
    for (url, arguments, status, said) in [
        (url, &["elect", n, "--", "true"][..], 64, "--value"),
        (
            url,
            &["elect", n, "--value", &long, "--", "true"],
            64,
            "200 bytes",
        ),
        (
            url,
            &["elect", n, "--value", "a", "--shared", "--", "true"],
            64,
            "--shared",
        ),
        (
            url,
            &["elect", n, "--value", "a", "true"],
            64,
            "leasehold elect NAME -- COMMAND",
        ),
        (
            url,
            &["elect", "list", "--value", "a", "--", "true"],
            65,
            "list",
        ),
        (&unused, &["elect", n, "--value", "a", "--", "true"], 69, ""),
        (url, &["leader", "list"], 65, "list"),
        (url, &["leader", "--watch", "list"], 65, "list"),
        (&unused, &["leader", "--watch", n], 69, ""),
    ] {
        let output = output(url, arguments);
        let err = err(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {err}");
        assert!(
            err.contains(said) && !err.is_empty(),
            "{arguments:?}: {err}"
        );
        assert_eq!(out(&output), "", "{arguments:?}");
    }
}
