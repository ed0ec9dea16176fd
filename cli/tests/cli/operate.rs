//! `status`, `list`, `release` and `request`, and the texts of `man`, `completions` and the help.

use std::fs::File;
use std::process::{Command, Stdio};

use leasehold::{LeaseState, LostCause};
use serde_json::Value;

use crate::support::{
    Answer, Hostile, Server, build, manager, name, secs, settings_of, wait_until,
};
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
        [
            &guard.fence().to_string(),
            "build 7",
            "1",
            guard.owner(),
            "1",
            "-"
        ]
    );
    assert_eq!(
        fields[1],
        ["free", "free", "-", "-", "-", "-", "-", "-", "-", "-", "-"]
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
    let name = "x\u{1b}[2Jy";
    let () = server.raw().ask(&["SET", name, "v", "PX", "60000"]);
    let mut command = leasehold(&server.url());
    command.args(["status", name]);
    let mut terminal = Terminal::start(command, 20, 150);
    assert!(terminal.wait().success());
    let screen = terminal.wait_for("the table", |screen| screen.contains("another client"));
    assert!(screen.starts_with("NAME    #  KIND"), "{screen}");
    assert!(screen.contains("x\u{fffd}[2Jy"), "{screen}");
}

#[test]
fn a_table_has_a_line_for_each_holder_on_any_terminal() {
    let server = Server::start();
    let note = "a note that is longer than a narrow terminal";
    let settings = || settings_of(&server.url()).note(note);
    let locks = [(); 2].map(|()| build(settings().label("a-host-with-a-long-name:12345")));
    let held = locks.each_ref().map(|it| it.rwlock("imports").read());
    assert!(held.iter().all(Result::is_ok), "{held:?}");
    for columns in [40, 80, 200] {
        let mut command = leasehold(&server.url());
        command.args(["list"]);
        let mut terminal = Terminal::start(command, 20, columns);
        assert!(terminal.wait().success());
        let screen = terminal.wait_for("the table", |screen| screen.lines().count() >= 3);
        let starts = screen.lines().map(|line| line.split_whitespace().next());
        let starts: Vec<_> = starts.flatten().collect();
        assert_eq!(starts, ["NAME", "imports", "imports"], "{screen}");
        // The screen joins a line that has wrapped.
        let fits = |line: &str| line.chars().count() <= usize::from(columns);
        assert!(screen.lines().all(fits), "{columns}: {screen}");
    }
}

#[test]
fn the_value_of_another_program_is_never_shown() {
    let server = Server::start();
    let value = "sesame-open-twenty-four!";
    let () = server.raw().ask(&["SET", "n", value, "PX", "60000"]);
    let all = |arguments: &[&str]| {
        let output = output(&server.url(), arguments);
        out(&output) + &err(&output)
    };
    let shown = all(&["status", "n"]);
    assert!(
        shown.contains("\tanother program's value, 24 bytes\t"),
        "{shown}"
    );
    let object = &objects(&server.url(), &["status", "--json", "n"])[0]["holders"][0];
    assert_eq!(
        (&object["owner"], &object["number"]),
        (&Value::Null, &1.into())
    );
    let shown = shown
        + &object.to_string()
        + &all(&["list", "n"])
        + &all(&["request", "n", "--why", "a drain"])
        + &all(&["release", "n"])
        + &all(&["run", "--no-wait", "n", "--", "true"]);
    assert!(!shown.contains("sesame"), "{shown}");
    // It can be released all the same.
    let taken = output(&server.url(), &["release", "n", "--holder", "1", "--yes"]);
    assert_eq!(
        (taken.status.code(), out(&taken)),
        (Some(0), "n was released\n".to_owned())
    );
    assert_eq!(server.raw().get("n"), None);
}

#[test]
fn a_name_that_cannot_be_shown_hides_no_other() {
    let server = Server::start();
    let _guard = manager(&server.url()).lock("n").expect("it is free");
    let () = server.raw().ask(&["HSET", "hash", "field", "value"]);
    let names = ["hash", "n", "a}b", "free"];
    let shown = output(&server.url(), &[&["status"], &names[..]].concat());
    // That of the first.
    assert_eq!(shown.status.code(), Some(65), "{}", err(&shown));
    assert_eq!(err(&shown).lines().count(), 2, "{}", err(&shown));
    let lines = out(&shown);
    let fields = lines.lines().map(|line| line.split('\t').take(2).collect());
    let fields: Vec<Vec<_>> = fields.collect();
    let kinds = ["no lock", "mutex", "unknown", "free"];
    let expected: Vec<_> = names.iter().zip(kinds).map(|(n, k)| vec![*n, k]).collect();
    assert_eq!(fields, expected);
    let shown = output(&server.url(), &[&["status", "--json"], &names[..]].concat());
    let object: Value =
        serde_json::from_str(out(&shown).lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        (&object["kind"], &object["holders"]),
        (&"no_lock".into(), &Value::Array(Vec::new()))
    );
    assert!(
        object["error"]
            .as_str()
            .is_some_and(|it| it.contains("hash")),
        "{object}"
    );
}

#[test]
fn a_list_that_breaks_off_shows_what_it_has() {
    let server = Server::start();
    let _guard = manager(&server.url()).lock("n").expect("it is free");
    let fake = Hostile::before(&server);
    fake.answers(|words| {
        let is =
            |place: usize, word: &str| words.get(place).is_some_and(|it| it == word.as_bytes());
        match (is(0, "SCAN"), is(1, "0")) {
            (true, true) => Answer::Say(b"*2\r\n$1\r\n7\r\n*1\r\n$1\r\nn\r\n".to_vec()),
            (true, false) => Answer::Say(b"-NOPERM no more of it\r\n".to_vec()),
            _ => Answer::Pass,
        }
    });
    let listed = output(&fake.url(), &["list"]);
    assert_eq!(listed.status.code(), Some(77), "{}", err(&listed));
    assert!(out(&listed).starts_with("n\tmutex\t"), "{}", out(&listed));
    assert!(err(&listed).contains("no more of it"), "{}", err(&listed));
}

#[test]
fn a_check_tells_a_script_whether_all_locks_are_taken() {
    let server = Server::start();
    let locks = manager(&server.url());
    let _guard = locks.lock("n").expect("it is free");
    let _read = locks.rwlock("read").read().expect("it is free");
    let check = |names: &[&str]| {
        let output = output(&server.url(), &[&["status", "--check"], names].concat());
        assert_eq!(out(&output) + &err(&output), "");
        output.status.code()
    };
    assert_eq!(check(&["n", "read"]), Some(0));
    assert_eq!(check(&["free"]), Some(1));
    assert_eq!(check(&["n", "free", "read"]), Some(1));
    let limiter = locks.rate_limiter("limit", 1, secs(600));
    let _ = limiter.try_acquire().expect("it answers");
    assert_eq!(check(&["limit"]), Some(0));
    // An error is neither of the two.
    let () = server.raw().ask(&["HSET", "hash", "field", "value"]);
    let no_lock = output(&server.url(), &["status", "--check", "free", "hash"]);
    assert_eq!(no_lock.status.code(), Some(65));
}

#[test]
fn no_error_speaks_of_functions_of_the_library() {
    let nodes = std::env::temp_dir().join(name("nodes").replace(':', "-"));
    let nodes = nodes.to_str().expect("a plain path");
    let cluster = Server::of_cluster(&["--cluster-config-file", nodes]);
    let single = Server::start();
    let as_cluster = single.url().replace("redis://", "redis+cluster://");
    for (url, instead) in [
        (&cluster.url(), "redis+cluster://"),
        (&as_cluster, "redis://"),
    ] {
        let output = output(url, &["run", "n", "--", "true"]);
        assert_eq!(output.status.code(), Some(64), "{}", err(&output));
        let said = err(&output);
        assert!(said.contains(instead) && !said.contains("::"), "{said}");
    }
    let why = out(&output("", &["help"]));
    assert!(!why.contains("::"), "{why}");
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
fn a_release_takes_the_lock_from_one_of_its_holders_or_from_all() {
    let server = Server::start();
    let labels = ["c:3", "a:1", "b:2"];
    // They hear of a loss at a renewal.
    let settings = |label| {
        settings_of(&server.url())
            .label(label)
            .note("build 7")
            .lease(secs(10))
    };
    let locks = labels.map(|label| build(settings(label)));
    let permits = locks.each_ref().map(|it| it.semaphore("n", 3).acquire());
    let [c, a, b] = permits.map(|permit| permit.expect("it is free"));
    let release = |options: &[&str]| {
        let output = output(&server.url(), &[&["release", "n"], options].concat());
        (output.status.code(), out(&output) + &err(&output))
    };
    // Nobody is meant.
    let (status, said) = release(&["--yes"]);
    assert_eq!(status, Some(64));
    assert!(said.contains("2 is b:2 (\"build 7\""), "{said}");
    let (status, said) = release(&["--holder", "4", "--yes"]);
    assert_eq!(
        (status, &*said),
        (Some(1), "leasehold: n has no holder 4\n")
    );
    assert_eq!(release(&["--holder", "0", "--yes"]).0, Some(64));
    assert_eq!(release(&["--holder", "1", "--all"]).0, Some(64));
    // They are in the order of their labels, and numbered so in `status`.
    let lines = out(&output(&server.url(), &["status", "n"]));
    let numbered = lines.lines().map(|line| {
        let fields: Vec<_> = line.split('\t').collect();
        (fields[2], fields[9])
    });
    let numbered: Vec<_> = numbered.collect();
    assert_eq!(numbered, [("a:1", "1"), ("b:2", "2"), ("c:3", "3")]);

    let losses = [&a, &b, &c].map(|permit| permit.on_lost());
    let mut command = leasehold(&server.url());
    command.args(["release", "n", "--holder", "2"]);
    let mut terminal = Terminal::start(command, 20, 150);
    let screen = terminal.wait_for("the question", |screen| screen.ends_with("Type yes:"));
    assert!(screen.contains("Take n from b:2 (\"build 7\""), "{screen}");
    terminal.send("yes\r");
    assert_eq!(terminal.wait().code(), Some(0));
    assert_eq!(losses[1].recv().map(|it| it.cause), Ok(LostCause::Removed));
    let held = || {
        locks[0]
            .inspect("n")
            .expect("it answers")
            .map_or(0, |it| it.holders.len())
    };
    assert_eq!(held(), 2);

    let mut command = leasehold(&server.url());
    command.args(["release", "n", "--all"]);
    let mut terminal = Terminal::start(command, 20, 150);
    let screen = terminal.wait_for("the question", |screen| screen.ends_with("Type yes:"));
    assert!(
        screen.contains("from 2 holders: a:1 (") && screen.contains(", c:3 ("),
        "{screen}"
    );
    terminal.send("yes\r");
    assert_eq!(terminal.wait().code(), Some(0));
    assert_eq!(losses[0].recv().map(|it| it.cause), Ok(LostCause::Removed));
    assert_eq!(losses[2].recv().map(|it| it.cause), Ok(LostCause::Removed));
    let (status, said) = release(&["--all", "--yes"]);
    assert_eq!((status, &*said), (Some(1), "leasehold: nobody holds n\n"));
    drop((a, b, c));
    // The only holder need not be named.
    let _guard = locks[0].lock("alone").expect("it is free");
    let alone = output(&server.url(), &["release", "alone", "--yes"]);
    assert_eq!(alone.status.code(), Some(0), "{}", err(&alone));
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
        "elect",
        "leader",
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
        // Examples come first.
        let [examples, usage] = ["Examples:\n  ", "Usage:"].map(|part| short.find(part));
        assert!(examples.is_some() && examples < usage, "{short}");
        assert_eq!(help(&["help", command]), help(&[command, "--help"]));
        let page = help(&["man", command]);
        assert!(
            !page.contains("\n\n.TP"),
            "an option without a text: {page}"
        );
        let sections = [
            ".SH SYNOPSIS",
            ".SH EXAMPLES",
            ".SH DESCRIPTION",
            ".SH \"ENVIRONMENT\"",
            ".SH \"EXIT STATUS\"",
        ];
        let places = sections.map(|section| page.find(section));
        assert!(places.is_sorted() && places[0].is_some(), "{page}");
        for shell in ["bash", "fish", "zsh"] {
            assert!(help(&["completions", shell]).contains(command), "{shell}");
        }
    }
    assert!(all.lines().count() <= 28, "{all}");
    assert!(help(&["--version"]).starts_with("leasehold 0."));
    assert!(!all.contains("keeper"), "{all}");
    for variable in ["LEASEHOLD_URL", "REDIS_URL", "LEASEHOLD_FENCE", "NO_COLOR"] {
        assert!(help(&["man"]).contains(variable), "{variable}");
    }
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
