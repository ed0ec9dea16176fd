//! Commands that run once for each time of a schedule.

use crate::support::{Server, manager};
use crate::work::Work;
use crate::{err, leasehold, out, output};

const NIGHT: &str = "2026-11-28T03:00:00Z";

#[test]
fn a_command_that_fails_runs_again_and_one_that_succeeds_does_not() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let run = |options: &[&str], script| {
        let output = work.run(options, script).output().expect("it is built");
        (output.status.code(), out(&output), err(&output))
    };
    let of_night = ["--no-wait", "--fire", NIGHT];
    let failed = run(&of_night, "echo ran; exit 3");
    assert_eq!(failed, (Some(3), "ran\n".to_owned(), String::new()));
    let killed = run(&of_night, "kill -KILL $$");
    assert_eq!(killed.0, Some(137));
    let done = run(&of_night, "echo ran");
    assert_eq!(done, (Some(0), "ran\n".to_owned(), String::new()));
    for moment in [NIGHT, "1795834800", "1795834799"] {
        let (status, ran, said) = run(&["--fire", moment], "echo ran");
        assert_eq!((status, &*ran), (Some(0), ""), "{moment}");
        let shown = format!("{} of {NIGHT} was done by ", work.lock);
        assert!(said.contains(&shown), "{said}");
        assert!(said.ends_with("Z, and nothing ran\n"), "{said}");
    }
    let silent = run(&["--quiet", "--fire", NIGHT], "echo ran");
    assert_eq!(silent, (Some(0), String::new(), String::new()));
    let (status, _, said) = run(&["--json", "--fire", NIGHT], "echo ran");
    assert_eq!(status, Some(0));
    let shown = format!(r#""event":"done","fire":"{NIGHT}""#);
    assert!(said.contains(&shown), "{said}");
    let next = run(&["--fire", "2026-11-29T03:00:00Z"], "echo ran");
    assert_eq!(next.1, "ran\n");
    let shown = output(&server.url(), &["status", "--json", &work.lock]);
    let shown: serde_json::Value = serde_json::from_str(&out(&shown)).expect("an object");
    assert_eq!(shown["last_fire"]["fire"], "2026-11-29T03:00:00.000Z");
    assert!(shown["last_fire"]["label"].is_string());
    let line = out(&output(&server.url(), &["status", &work.lock]));
    assert!(
        line.trim_end().ends_with("\t2026-11-29T03:00:00Z"),
        "{line}"
    );
}

/// Nobody knows what the processes that were ended had still to do.
#[test]
fn a_command_whose_processes_were_ended_records_nothing() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let leaves = "sleep 2 >left 2>&1 &";
    for (options, status) in [(&[][..], 73), (&["--let-live"], 0)] {
        let options = [&["--fire", NIGHT], options].concat();
        assert_eq!(work.start(&options, leaves).status(), status);
        let last = manager(&server.url()).once(&work.lock).last();
        assert_eq!(last.expect("it answers").is_some(), status == 0);
    }
}

#[test]
fn a_command_of_a_period_runs_once_in_it() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let every_day = ["--no-wait", "--once-every", "1d"];
    assert_eq!(work.start(&every_day, "exit 1").status(), 1);
    assert_eq!(work.start(&every_day, "here first").status(), 0);
    assert!(work.has("first"));
    assert_eq!(work.start(&every_day, "here second").status(), 0);
    assert!(!work.has("second"));
    // Yesterday's was the last.
    let yesterday = std::time::SystemTime::now() - std::time::Duration::from_secs(86_000);
    let record = format!("{{{}}}:lh:once", work.lock);
    let us = yesterday.duration_since(std::time::UNIX_EPOCH);
    let us = us.expect("it is after 1970").as_micros().to_string();
    let () = server.raw().ask(&["HSET", &record, "fire", &us]);
    assert_eq!(work.start(&every_day, "here second").status(), 0);
    assert!(work.has("second"));
}

#[test]
fn a_command_that_runs_elsewhere_is_busy_or_waited_for() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let other = manager(&server.url()).once(&work.lock);
    let fire = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_795_834_800);
    let guard = other.claim(fire).expect("it answers").expect("it is free");
    for schedule in [["--fire", NIGHT], ["--once-every", "1d"]] {
        let options = [&["--no-wait"], &schedule[..]].concat();
        assert_eq!(work.start(&options, "here it").status(), 75);
        let options = [&["--wait", "50ms", "-E", "3"], &schedule[..]].concat();
        assert_eq!(work.start(&options, "here it").status(), 3);
    }
    let mut waiting = work.start(&["--fire", NIGHT], "here it");
    server.raw().wait_until_queued(&work.lock, 1);
    guard.done().expect("it is held");
    assert_eq!(waiting.status(), 0);
    assert!(!work.has("it"));
    let guard = other.claim(fire + std::time::Duration::from_secs(1));
    let guard = guard.expect("it answers").expect("it is free");
    let mut waiting = work.start(&["--fire", "1795834801"], "here it");
    server.raw().wait_until_queued(&work.lock, 1);
    drop(guard);
    assert_eq!(waiting.status(), 0);
    assert!(work.has("it"));
}

/// The lock is lost while the command runs, so its success is not known to count.
#[test]
fn a_command_that_loses_its_lock_records_nothing() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let options = ["--on-loss", "ignore", "--fire", NIGHT];
    let mut running = work.start(&options, "here it; until [ -e go ]; do sleep 0.01; done");
    work.pid("it");
    let () = server.raw().ask(&["DEL", &work.lock]);
    std::fs::write(work.dir.join("go"), "").expect("it can be written");
    assert_eq!(running.status(), 70);
    assert_eq!(work.start(&["--fire", NIGHT], "here again").status(), 0);
    assert!(work.has("again"));
}

#[test]
fn what_makes_no_sense_with_a_schedule_is_refused() {
    let server = Server::start();
    for (options, said) in [
        (&["--fire", "tonight"][..], "expected a time such as"),
        (&["--fire", "99999999999"], "after 2255"),
        (&["--once-every", "1ms"], "between a second and"),
        (&["--once-every", "800d"], "between a second and"),
        (
            &["--once-every", "1d", "--fire", NIGHT],
            "cannot be used with",
        ),
        (
            &["--once-every", "1d", "--at-least", "1h"],
            "cannot be used with",
        ),
        (&["--fire", NIGHT, "--shared"], "cannot be used with"),
        (
            &["--fire", NIGHT, "--permits", "1/2"],
            "cannot be used with",
        ),
        (&["--fire", NIGHT, "other"], "are for one name"),
    ] {
        let arguments = [&["run", "n"], options, &["--", "true"]].concat();
        let output = leasehold(&server.url())
            .args(&arguments)
            .output()
            .expect("the program was built");
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(err(&output).contains(said), "{}", err(&output));
    }
}

#[test]
fn a_record_that_cannot_be_read_or_written_is_told() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let record = format!("{{{}}}:lh:once", work.lock);
    let () = server.raw().ask(&["SET", &record, "x"]);
    let status = |options: &[&str]| {
        let options = [&["status"], options, &[&*work.lock]].concat();
        let output = output(&server.url(), &options);
        (output.status.code(), out(&output), err(&output))
    };
    let (code, line, said) = status(&[]);
    assert_eq!(code, Some(65), "{said}");
    assert!(line.ends_with("\tunknown\n"), "{line}");
    assert!(said.contains("WRONGTYPE"), "{said}");
    let object: serde_json::Value =
        serde_json::from_str(&status(&["--json"]).1).expect("an object");
    assert!(object["kind"].is_null());
    assert!(object["last_fire"]["error"].is_string());
    // Whether it is taken does not depend on the record.
    assert_eq!(
        status(&["--check"]),
        (Some(1), String::new(), String::new())
    );
    let () = server.raw().ask(&["DEL", &record]);
    let script = "here it; until [ -e go ]; do sleep 0.01; done";
    let mut running = work.run(&["--fire", NIGHT], script);
    let running = running.stderr(std::process::Stdio::piped()).spawn();
    let running = running.expect("it is built");
    work.pid("it");
    let () = server.raw().ask(&["SET", &record, "x"]);
    std::fs::write(work.dir.join("go"), "").expect("it can be written");
    let output = running.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(70), "{}", err(&output));
    let said = err(&output);
    assert!(said.contains("the fire is not recorded: "), "{said}");
}
