//! `status`, `list`, `release` and `request`, and the texts of `man`, `completions` and the help.

use std::fs::File;
use std::process::{Command, Stdio};

use leasehold::{LeaseState, LostCause};
use serde_json::Value;

use crate::support::{Server, build, manager, secs, settings_of, wait_until};
use crate::terminal::Terminal;
use crate::{err, leasehold, out, output};

fn objects(url: &str, arguments: &[&str]) -> Vec<Value> {
    let output = output(url, arguments);
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    let objects = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line));
    objects.collect()
}

#[test]
fn status_shows_holder_and_waiters() {
    let server = Server::start();
    let holder = build(settings_of(&server.url()).label("db1:7").note("build 7"));
    let guard = holder.lock("n").expect("it is free");
    let waiter = build(settings_of(&server.url()).label("db2:8"));
    let waits = std::thread::spawn(move || waiter.lock("n").map(drop));
    server.raw().wait_until_queued("n", 1);

    let shown = &objects(&server.url(), &["status", "--json", "n", "free"]);
    let holder = &shown[0]["holders"][0];
    assert_eq!(
        (&shown[0]["name"], &shown[0]["kind"]),
        (&"n".into(), &"mutex".into())
    );
    assert_eq!(
        (&holder["label"], &holder["note"]),
        (&"db1:7".into(), &"build 7".into())
    );
    assert_eq!(
        (&holder["owner"], &holder["fence"]),
        (&guard.owner().into(), &guard.fence().into())
    );
    assert_eq!(
        (&holder["mode"], &holder["kept"]),
        (&"exclusive".into(), &false.into())
    );
    let seconds = |value: &Value| value.as_f64().expect("a time in seconds");
    assert!(
        seconds(&holder["ttl"]) > 1.0 && seconds(&holder["held_for"]) >= 0.0,
        "{holder}"
    );
    assert_eq!(shown[0]["waiters"], 1);
    assert_eq!(shown[0]["waiting"][0]["label"], "db2:8");
    assert_eq!(
        (&shown[1]["name"], &shown[1]["kind"]),
        (&"free".into(), &Value::Null)
    );

    let lines = out(&output(&server.url(), &["status", "n", "free"]));
    let fields: Vec<Vec<&str>> = lines
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    assert_eq!(fields[0][..3], ["n", "mutex", "db1:7"]);
    assert_eq!(
        fields[0][5..],
        [&guard.fence().to_string(), "build 7", "1", guard.owner()]
    );
    assert_eq!(
        fields[1],
        ["free", "free", "-", "-", "-", "-", "-", "-", "-"]
    );
    guard.release().expect("it is held");
    waits.join().expect("no panic").expect("it is granted");
}

#[test]
fn list_shows_each_kind_with_its_holders() {
    let server = Server::start();
    let locks = manager(&server.url());
    let _mutex = locks.lock("a:mutex").expect("it is free");
    let _reads = [
        locks.rwlock("b:rw").read(),
        manager(&server.url()).rwlock("b:rw").read(),
    ];
    let _permits = locks
        .semaphore("c:sem", 3)
        .acquire_many(2)
        .expect("it is free");
    let shown = objects(&server.url(), &["list", "--json"]);
    let names: Vec<_> = shown
        .iter()
        .map(|it| it["name"].as_str().expect("a text"))
        .collect();
    assert_eq!(names, ["a:mutex", "b:rw", "c:sem"]);
    assert_eq!(shown[1]["holders"].as_array().map(Vec::len), Some(2));
    assert_eq!(shown[1]["holders"][0]["mode"], "read");
    assert_eq!(
        (&shown[2]["permits"], &shown[2]["holders"][0]["permits"]),
        (&3.into(), &2.into())
    );
    let names = out(&output(&server.url(), &["list", "*:rw"]));
    assert_eq!(names.lines().count(), 2, "a line for each holder: {names}");
    let limited = locks.rate_limiter("limit", 5, secs(60)).try_acquire();
    let _ = limited.expect("it answers");
    let shown = objects(&server.url(), &["status", "--json", "limit"]);
    assert_eq!(
        (&shown[0]["kind"], &shown[0]["per"]),
        (&"rate_limiter".into(), &60.0.into())
    );
}

#[test]
fn a_table_on_a_terminal_has_no_control_characters_of_others() {
    let server = Server::start();
    let () = server
        .raw()
        .ask(&["SET", "foreign", "x\u{1b}[2Jy", "PX", "60000"]);
    let mut command = leasehold(&server.url());
    command.args(["status", "foreign"]);
    let mut terminal = Terminal::start(command, 20, 150);
    assert!(terminal.wait().success());
    let screen = terminal.wait_for("the table", |screen| screen.contains("another client"));
    assert!(screen.starts_with("NAME     KIND"), "{screen}");
    assert!(screen.contains("x\u{fffd}[2Jy"), "{screen}");
}

#[test]
fn an_output_that_is_closed_or_full_ends_no_command_with_a_panic() {
    let server = Server::start();
    let _guard = manager(&server.url()).lock("n").expect("it is free");
    let full = File::options()
        .write(true)
        .open("/dev/full")
        .expect("a Linux");
    let mut list = leasehold(&server.url());
    let output = list
        .arg("list")
        .stdout(full)
        .stderr(Stdio::piped())
        .output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(71));
    assert!(err(&output).contains("No space left"), "{}", err(&output));

    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut list = leasehold(&server.url());
    let output = list
        .arg("list")
        .stdout(writer)
        .stderr(Stdio::piped())
        .output();
    let output = output.expect("it runs");
    assert_eq!(
        (output.status.code(), err(&output)),
        (Some(0), String::new())
    );
}

#[test]
fn a_release_takes_the_lock_from_this_owner_alone_after_a_yes() {
    let server = Server::start();
    let locks = manager(&server.url());
    let guard = locks.mutex("n").lease(secs(10)).lock().expect("it is free");
    let release = |owner: &str, yes: &[&str]| {
        let arguments = [&["release", "n", "--owner", owner], yes].concat();
        output(&server.url(), &arguments).status.code()
    };
    assert_eq!(release("another", &["--yes"]), Some(1));
    // There is no terminal to ask on.
    assert_eq!(release(guard.owner(), &[]), Some(64));
    let lost = guard.on_lost();
    for (answer, status) in [("y\r", 1), ("\r", 1), ("yes\r", 0)] {
        let mut command = leasehold(&server.url());
        command.args(["release", "n", "--owner", guard.owner()]);
        let mut terminal = Terminal::start(command, 20, 150);
        terminal.wait_for("the question", |screen| screen.ends_with("Type yes:"));
        assert_ne!(guard.state(), LeaseState::Lost);
        terminal.send(answer);
        assert_eq!(terminal.wait().code(), Some(status));
    }
    assert_eq!(release(guard.owner(), &["--yes"]), Some(1));
    assert_eq!(lost.recv().map(|it| it.cause), Ok(LostCause::Removed));
    drop(guard);
    let next = locks.lock("n").expect("it is free");
    assert_eq!(release(next.owner(), &["--yes"]), Some(0));
}

#[test]
fn a_request_reaches_the_holder() {
    let server = Server::start();
    let locks = manager(&server.url());
    let request = || {
        output(&server.url(), &["request", "n", "--why", "a drain"])
            .status
            .code()
    };
    assert_eq!(request(), Some(1));
    let guard = locks.lock("n").expect("it is free");
    let requests = guard.on_requested();
    wait_until("the holder has heard it", || {
        assert_eq!(request(), Some(0));
        requests.try_recv().is_ok_and(|it| it.why == "a drain")
    });
}

#[test]
fn each_help_fits_a_screen_and_the_generated_texts_name_each_subcommand() {
    let help = |arguments: &[&str]| out(&output("", arguments));
    let all = help(&["--help"]);
    let commands = [
        "run",
        "status",
        "list",
        "watch",
        "release",
        "request",
        "doctor",
        "bench",
        "completions",
        "man",
    ];
    for command in commands {
        assert!(all.contains(&format!("\n  {command} ")), "{all}");
        let short = help(&[command, "-h"]);
        assert!(short.lines().count() <= 30, "{short}");
        let page = help(&["man", command]);
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
        for shell in ["bash", "fish", "zsh"] {
            assert!(help(&["completions", shell]).contains(command), "{shell}");
        }
    }
    assert!(all.lines().count() <= 24, "{all}");
    assert!(help(&["--version"]).starts_with("leasehold 0."));
    assert!(!all.contains("keeper"), "{all}");
}

/// The process may start no further thread, or open no further socket: strace refuses the n-th call and all after it.
#[test]
fn a_limit_of_the_system_is_an_error_and_no_panic() {
    let mut tried = Command::new("strace");
    tried
        .args(["-o", "/dev/null", "true"])
        .stderr(Stdio::null());
    if !tried.status().is_ok_and(|status| status.success()) {
        println!("this machine has no strace, so its refusals are not tried");
        return;
    }
    let server = Server::start();
    // Not the third one: that thread is r2d2's own. r2d2 panics if strace refuses it alone.
    let threads = ("clone,clone3", "EAGAIN", &[1, 2, 4, 5, 6][..]);
    let sockets = ("socket", "EMFILE", &[1, 2, 3, 4][..]);
    for (calls, error, numbers) in [threads, sockets] {
        let mut refused = 0;
        for number in numbers {
            let refusal = format!("inject={calls}:error={error}:when={number}+");
            let mut command = Command::new("strace");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &refusal]);
            command.arg(env!("CARGO_BIN_EXE_leasehold"));
            command.args(["list", "job:7", "--url", &server.url()]);
            let output = command.output().expect("strace is there");
            let said = err(&output);
            assert!(!said.contains("panicked"), "{refusal}: {said}");
            let code = output.status.code().expect("no signal ends it");
            if code != 0 {
                assert!(said.contains("unavailable"), "{refusal}: {code}: {said}");
                refused += 1;
            }
        }
        assert!(refused > 0, "{calls} was never refused");
    }
}
