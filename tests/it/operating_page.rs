//! Runs the commands of docs/operating.md. The documentation tests compile its Rust.

use std::fs;
use std::path::Path;

use crate::support::{Server, manager, secs};

/// Returns what stands behind `redis-cli` in each command of the page.
fn commands() -> Vec<String> {
    let path = Path::new(crate::ROOT).join("docs/operating.md");
    let page = fs::read_to_string(path).expect("it is text");
    // A command may stand on two lines.
    let page = page.replace('\n', " ");
    let inline = page.split('`').skip(1).step_by(2);
    let commands = inline.filter_map(|code| code.strip_prefix("redis-cli "));
    commands.map(str::to_owned).collect()
}

#[test]
fn the_commands_of_the_runbook_show_what_it_says() {
    let server = Server::start();
    let locks = manager(&server.url());
    let guard = locks.lock("orders:42").expect("it is free");
    let mut run = Vec::new();
    for command in commands() {
        let words: Vec<_> = command.split(' ').collect();
        match words[..] {
            // A mode of redis-cli, which runs without end.
            ["--latency"] => {}
            ["GET", _] => {
                let shown: String = server.raw().ask(&words);
                assert_eq!(shown, guard.owner());
            }
            ["PTTL", _] => {
                let left: u64 = server.raw().ask(&words);
                assert!(left > 0 && left <= 30_000, "{left}");
            }
            ["SLOWLOG", "GET"] => {
                let _: Vec<redis::Value> = server.raw().ask(&words);
            }
            _ => panic!("an unknown command: {command}"),
        }
        run.push(words[0].to_owned());
    }
    assert_eq!(run, ["GET", "PTTL", "--latency", "SLOWLOG"]);
    assert!(guard.remaining() <= secs(30));
}
