//! `run`: its options, its exit statuses, and what the command finds. The modules are about its end and its terminal.

mod ends;
mod exits;
mod once;
mod options;
mod service;
mod shells;
mod situations;
mod terminal;
mod waits;

use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use leasehold::{Kind, LockManager, Mode};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Server, manager, name, secs, unused_url, wait_until};
use crate::work::{Work, state};
use crate::{err, leasehold, out, output};

const FOREVER: &str = "here it; while :; do sleep 1; done";

#[test]
fn the_status_is_that_of_the_command_or_128_and_its_signal() {
    let server = Server::start();
    let work = Work::new(&server.url());
    for status in [0, 1, 75, 255] {
        assert_eq!(work.start(&[], &format!("exit {status}")).status(), status);
    }
    // The keeper blocks all signals, and the command must not.
    for signal in [1, 2, 3, 9, 13, 15, 34, 64] {
        let status = work.start(&[], &format!("kill -{signal} $$")).status();
        assert_eq!(status, 128 + signal);
    }
}

#[test]
fn a_command_that_cannot_be_started_has_the_status_of_a_shell() {
    let server = Server::start();
    let run = |command| output(&server.url(), &["run", &name("n"), "--", command]);
    let missing = run("no-such-command");
    assert_eq!(missing.status.code(), Some(127));
    assert!(
        err(&missing).contains("cannot run no-such-command"),
        "{}",
        err(&missing)
    );
    assert_eq!(run("/etc/passwd").status.code(), Some(126));
}

#[test]
fn nothing_runs_if_others_hold_the_lock() {
    let server = Server::start();
    let locks = manager(&server.url());
    let work = Work::new(&server.url());
    let _guard = locks.lock(&work.lock).expect("it is free");
    assert_eq!(work.start(&["--no-wait"], "here it").status(), 75);
    assert_eq!(work.start(&["--wait", "50ms"], "here it").status(), 75);
    assert_eq!(
        work.start(&["--no-wait", "--busy-status", "3"], "here it")
            .status(),
        3
    );
    assert!(!work.has("it"));
}

#[test]
fn each_error_has_its_own_status_and_nothing_runs() {
    let server = Server::start();
    let wrong = server.url().replace("//", "//app:wrong-s3cret@");
    let () = server.raw().ask(&["LPUSH", "list", "x"]);
    for (url, lock, status) in [
        (&unused_url(), "n", 69),
        (&wrong, "n", 77),
        (&server.url(), "list", 65),
    ] {
        let output = output(url, &["run", lock, "--", "echo", "ran"]);
        assert_eq!(output.status.code(), Some(status), "{}", err(&output));
        assert_eq!(out(&output), "");
        assert!(!err(&output).contains("s3cret"), "{}", err(&output));
    }
}

#[test]
fn a_wrong_command_line_has_its_own_status() {
    let server = Server::start();
    let bad: [&[&str]; 14] = [
        &["run", "--max", "20y", "n", "--", "true"],
        &["run", "--max", "0s", "n", "--", "true"],
        &[
            "run",
            "--max",
            "1s",
            "--on-loss",
            "ignore",
            "n",
            "--",
            "true",
        ],
        &["run", "--max", "9s", "--grace", "9s", "n", "--", "true"],
        &["run", "two\nlines", "--", "true"],
        &["run", "", "--", "true"],
        &["run", "n"],
        &["run", "--", "true"],
        &["run", "--wait", "soon", "n", "--", "true"],
        &["run", "--wait", "1s", "--no-wait", "n", "--", "true"],
        &["run", "--permits", "3/2", "n", "--", "true"],
        &["run", "--shared", "a", "b", "--", "true"],
        &["run", "--lease", "1ns", "n", "--", "true"],
        &["run", "a}b", "--", "true"],
    ];
    for arguments in bad {
        let output = output(&server.url(), arguments);
        assert_eq!(
            output.status.code(),
            Some(64),
            "{arguments:?}: {}",
            err(&output)
        );
        assert_ne!(err(&output), "", "{arguments:?}");
    }
    let no_url = leasehold("")
        .args(["run", "n", "--", "true"])
        .output()
        .expect("it runs");
    assert_eq!(no_url.status.code(), Some(64));
    assert!(err(&no_url).contains("LEASEHOLD_URL"), "{}", err(&no_url));
}

#[test]
fn a_command_finds_its_own_locks_in_the_environment() {
    let server = Server::start();
    let program = env!("CARGO_BIN_EXE_leasehold");
    let show = r"echo $LEASEHOLD_NAME: $LEASEHOLD_FENCE; env | grep -c LEASEHOLD_FENCE=";
    let script = format!("{show}; {program} run inner -- sh -c '{show}'");
    // Several names are locked at once.
    let run = ["run", "one", "two", "--", "sh", "-c", &script];
    let output = output(&server.url(), &run);
    let text = out(&output);
    let lines: Vec<_> = text.lines().collect();
    let [outer, "1", inner, "1"] = lines[..] else {
        panic!("{text}");
    };
    let fences = |line: &str, names: &str| -> Vec<u64> {
        let fences = line.strip_prefix(names).expect(line).split_whitespace();
        fences
            .map(|fence| fence.parse().expect("a fence"))
            .collect()
    };
    assert_eq!(fences(outer, "one two:").len(), 2);
    assert_eq!(fences(inner, "inner:").len(), 1);
}

#[test]
fn the_command_has_the_standard_input_and_the_other_descriptors() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let mut file = File::create_new(work.dir.join("input")).expect("the directory exists");
    writeln!(file, "one\ntwo").expect("it can be written");
    let script = "read -r first; echo $first; cat; yes | head -n 1";
    let output = work
        .run(&[], script)
        .stdin(File::open(work.dir.join("input")).expect("it exists"))
        .output()
        .expect("it runs");
    assert_eq!(out(&output), "one\ntwo\ny\n");
}

#[test]
fn a_command_runs_with_closed_standard_streams() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let program = env!("CARGO_BIN_EXE_leasehold");
    let script = format!(
        "{program} run {} -- sh -c 'echo $$ >pid; exit 4' <&- >&- 2>&-",
        work.lock
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(&work.dir);
    command.env("LEASEHOLD_URL", server.url());
    let status = command.status().expect("a shell");
    assert_eq!(status.code(), Some(4));
    assert!(work.has("pid"));
}

#[test]
fn each_option_takes_its_kind_of_lock() {
    let server = Server::start();
    let locks = manager(&server.url());
    let cases: [(&[&str], Kind, Mode); 4] = [
        (&[], Kind::Mutex, Mode::Exclusive),
        (&["--shared"], Kind::RwLock, Mode::Read),
        (&["--exclusive"], Kind::RwLock, Mode::Exclusive),
        (
            &["--permits", "2/3"],
            Kind::Semaphore { permits: 3 },
            Mode::Permits(2),
        ),
    ];
    for (options, kind, mode) in cases {
        let work = Work::new(&server.url());
        let options = [options, &["--note", "build 7", "--lease", "20s"]].concat();
        let mut running = work.start(&options, FOREVER);
        work.pid("it");
        let info = locks
            .inspect(&work.lock)
            .expect("it answers")
            .expect("it is held");
        let holder = &info.holders[0];
        assert_eq!((info.kind, holder.mode), (kind, mode));
        assert_eq!(holder.note.as_deref(), Some("build 7"));
        assert!(holder.ttl.is_some_and(|ttl| ttl <= secs(20)));
        running.signal(Signal::TERM);
        assert_eq!(running.status(), 143);
        assert_eq!(locks.inspect(&work.lock).expect("it answers"), None);
    }
}

#[test]
fn a_short_command_keeps_the_lock_for_at_least_the_time_asked_for() {
    let server = Server::start();
    let work = Work::new(&server.url());
    assert_eq!(work.start(&["--at-least", "1h"], "true").status(), 0);
    let info = manager(&server.url())
        .inspect(&work.lock)
        .expect("it answers");
    assert!(info.expect("it is kept").holders[0].kept);
    assert_eq!(work.start(&["--no-wait"], "true").status(), 75);
}

#[test]
fn a_command_that_fails_keeps_no_lock_for_at_least_on_success() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let run = |command: &str| {
        let options = ["--no-wait", "--at-least-on-success", "1h"];
        work.start(&options, command).status()
    };
    assert_eq!(run("exit 3"), 3);
    assert_eq!(run("kill -TERM $$"), 143);
    assert_eq!(run("true"), 0);
    assert_eq!(run("true"), 75);
}

/// It was reported as <https://github.com/kubernetes-retired/bootkube/issues/502> and <https://github.com/tiian/flom/issues/14>.
#[test]
fn signals_are_passed_on_to_the_whole_group() {
    let server = Server::start();
    for (signal, number) in [(Signal::USR1, 10), (Signal::HUP, 1), (Signal::TERM, 15)] {
        let work = Work::new(&server.url());
        let script = format!(
            "sh -c 'trap \"echo x >child; exit\" {number}; echo x >ready; while :; do sleep 0.01; done' & \
            trap 'echo x >parent; wait; exit 5' {number}; here it; wait"
        );
        let mut running = work.start(&[], &script);
        work.pid("it");
        work.text("ready");
        running.signal(signal);
        assert_eq!(running.status(), 5);
        work.text("parent");
        work.text("child");
    }
}

/// It was reported as <https://github.com/hashicorp/consul/issues/4439>.
#[test]
fn a_signal_ends_the_wait_for_the_lock() {
    let server = Server::start();
    let locks = manager(&server.url());
    let work = Work::new(&server.url());
    let _guard = locks.lock(&work.lock).expect("it is free");
    let mut running = work.start(&[], "here it");
    server.raw().wait_until_queued(&work.lock, 1);
    running.signal(Signal::TERM);
    assert_eq!(running.status(), 143);
    server.raw().wait_until_queued(&work.lock, 0);
    assert!(!work.has("it"));
}

/// A shell goes on after the status 130, and ends its loop or script if INT killed its child.
#[test]
fn an_interrupt_that_ends_the_wait_or_the_command_ends_this_process() {
    let server = Server::start();
    let locks = manager(&server.url());
    for (signal, number) in [(Signal::INT, 2), (Signal::QUIT, 3)] {
        let work = Work::new(&server.url());
        let mut running = work.start(&[], "here it; exec sleep 1000");
        work.pid("it");
        running.signal(signal);
        assert_eq!(running.end().signal(), Some(number));
        assert_eq!(locks.inspect(&work.lock).expect("it answers"), None);

        let _guard = locks.lock(&work.lock).expect("it is free");
        let mut waits = work.start(&[], "here late");
        server.raw().wait_until_queued(&work.lock, 1);
        waits.signal(signal);
        assert_eq!(waits.end().signal(), Some(number));
        assert!(!work.has("late"));
    }
}

#[test]
fn an_interrupt_that_the_command_catches_leaves_its_status() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let script = "trap 'exit 130' INT; here it; while :; do sleep 0.01; done";
    let mut running = work.start(&[], script);
    work.pid("it");
    running.signal(Signal::INT);
    assert_eq!(running.status(), 130);
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let inside = work.run(
        &[],
        "grep SigIgn /proc/$$/status >ignored; here it; exec sleep 1000",
    );
    // Without `env`, which would end the ignoring.
    let mut command = std::process::Command::new("nohup");
    command.args(inside.get_args().skip(1));
    command
        .current_dir(&work.dir)
        .env("LEASEHOLD_URL", server.url());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut running = crate::work::start(&mut command);
    let it = work.pid("it");
    running.signal(Signal::HUP);
    running.signal(Signal::TERM);
    assert_eq!(running.status(), 143);
    assert!(state(it).is_none());
    let ignored = work.text("ignored");
    let is_ignored = ignored.ends_with(['1', '3', '5', '7']);
    assert!(is_ignored, "HUP is the last bit of {ignored}");
}

#[test]
fn events_are_json_objects_on_standard_error() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let output = work.run(&["--json"], "exit 3").output().expect("it runs");
    let text = err(&output);
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str()).collect();
    assert_eq!(names, [Some("acquired"), Some("started"), Some("ended")]);
    assert!(
        events
            .iter()
            .all(|event| event["names"][0] == work.lock.as_str())
    );
    assert!(events[0]["fences"][0].as_u64().is_some());
    assert_eq!(events[2]["status"], 3);
}

#[test]
fn a_request_to_release_is_told() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let log = File::create_new(work.dir.join("log")).expect("the directory exists");
    let mut command = work.run(&[], FOREVER);
    let mut running = crate::work::start(command.stderr(log));
    work.pid("it");
    let locks: LockManager = manager(&server.url());
    wait_until("the holder has heard it", || {
        assert!(
            locks
                .request_release(&work.lock, "a drain\u{1b}[2J")
                .expect("it answers")
        );
        work.text("log").contains("a drain\u{fffd}[2J")
    });
    running.signal(Signal::TERM);
    running.status();
}
