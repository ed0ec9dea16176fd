//! The descriptor for events.

use std::fs::File;
use std::process::Command;

use serde_json::Value;

use crate::support::Server;
use crate::work::Work;
use crate::{err, out};

#[test]
fn events_go_to_another_descriptor_than_those_of_the_command() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let program = env!("CARGO_BIN_EXE_leasehold");
    let run = |redirection: &str| {
        let script = format!("{program} run --json-fd 7 n -- sh -c 'echo said >&2' {redirection}");
        let mut command = Command::new("sh");
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
