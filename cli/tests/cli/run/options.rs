//! The options that people know from `flock`, the shell's text, and the descriptor for events.

use std::fs::File;
use std::io::Read as _;
use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::support::{Server, manager};
use crate::work::Work;
use crate::{err, out, output};

#[test]
fn short_options_are_those_of_flock() {
    let server = Server::start();
    let run = |options: &[&str]| {
        let arguments = [&["run"], options, &["n", "--", "echo", "ran"]].concat();
        let output = output(&server.url(), &arguments);
        (output.status.code(), out(&output), err(&output))
    };
    let guard = manager(&server.url()).lock("n").expect("it is free");
    let (status, ran, said) = run(&["-n"]);
    assert_eq!((status, &*ran), (Some(75), ""));
    assert_ne!(said, "");
    assert_eq!(run(&["-qn"]), (Some(75), String::new(), String::new()));
    let busy = (Some(3), String::new(), String::new());
    assert_eq!(run(&["-q", "-n", "-E", "3"]), busy);
    assert_eq!(run(&["-q", "-n", "-E3"]), busy);
    for wrong in ["-1", "1e30", "nan", "soon"] {
        assert_eq!(run(&["-w", wrong]).0, Some(64), "{wrong}");
    }
    guard.release().expect("it is held");
    assert_eq!(
        run(&["-w", "60"]),
        (Some(0), "ran\n".to_owned(), String::new())
    );
}

#[test]
fn a_text_is_run_by_the_shell() {
    let server = Server::start();
    let run = |arguments: &[&str]| {
        let output = output(&server.url(), &[&["run", "n"], arguments].concat());
        (output.status.code(), out(&output))
    };
    let text = "echo a b | tr a-z A-Z; echo $LEASEHOLD_NAME; exit 7";
    assert_eq!(run(&["-c", text]), (Some(7), "A B\nn\n".to_owned()));
    // One command, and not two.
    assert_eq!(run(&["-c", "true", "--", "true"]).0, Some(64));
}

#[test]
fn a_command_without_its_separator_is_told_of_it() {
    for arguments in [&["n", "true"][..], &["n", "ls", "-l"], &["n"]] {
        let output = output("", &[&["run"], arguments].concat());
        assert_eq!(output.status.code(), Some(64));
        let said = err(&output);
        assert!(said.contains("leasehold run NAME -- COMMAND"), "{said}");
    }
    // Here it is not what is wrong.
    let output = output("", &["run", "--wrong", "n", "--", "true"]);
    assert!(
        !err(&output).contains("NAME -- COMMAND"),
        "{}",
        err(&output)
    );
}

#[test]
fn events_go_to_another_descriptor_than_those_of_the_command() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let program = env!("CARGO_BIN_EXE_leasehold");
    let run = |redirection: &str| {
        let script = format!("{program} run --json-fd 7 n -- sh -c 'echo said >&2' {redirection}");
        // bash opens sockets.
        let mut command = Command::new("bash");
        command.args(["-c", &script]).current_dir(&work.dir);
        let output = command.env("LEASEHOLD_URL", server.url()).output();
        output.expect("a shell")
    };
    let events = |text: &str| {
        let events = text.lines().map(|line| {
            let event: Value = serde_json::from_str(line).expect(line);
            event["event"].as_str().expect("a text").to_owned()
        });
        events.collect::<Vec<_>>()
    };
    let all = ["acquired", "started", "ended"];
    File::create_new(work.dir.join("file")).expect("the directory exists");
    let to_file = run("7>>file");
    assert_eq!(err(&to_file), "said\n");
    assert_eq!(events(&work.text("file")), all);
    let to_pipe = run("7>&1");
    assert_eq!(err(&to_pipe), "said\n");
    assert_eq!(events(&out(&to_pipe)), all);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let to_socket = run(&format!("7<>/dev/tcp/127.0.0.1/{port}"));
    assert_eq!(err(&to_socket), "said\n");
    let mut received = String::new();
    let (mut socket, _) = listener.accept().expect("the shell has connected");
    socket
        .read_to_string(&mut received)
        .expect("all are closed");
    assert_eq!(events(&received), all);
    for redirection in ["7>&-", "7<file"] {
        let closed = run(redirection);
        assert_eq!(closed.status.code(), Some(64), "{redirection}");
        let said = err(&closed);
        assert!(
            said.contains("--json-fd") && !said.contains("said\n"),
            "{said}"
        );
    }
}
