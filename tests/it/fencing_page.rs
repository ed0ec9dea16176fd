//! Checks docs/fencing.md: its SQL and its output are those of the example `fencing`, and its script runs in Redis. The
//! documentation tests run its Rust.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use crate::support::{name, shared};

static PAGE: LazyLock<String> = LazyLock::new(|| read("docs/fencing.md"));

fn read(path: &str) -> String {
    let path = Path::new(crate::ROOT).join(path);
    fs::read_to_string(path).expect("it is text")
}

/// Returns the first code block of a language on the page.
#[track_caller]
fn code(language: &str) -> &'static str {
    let (_, rest) = PAGE
        .split_once(&format!("```{language}\n"))
        .expect("there is such a block");
    rest.split_once("```").expect("the block ends").0
}

/// Returns whether the example printed what the page shows, but for the fences, which follow the time.
pub(crate) fn shows(stdout: &str) -> bool {
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines();
        let without_fences = lines.map(|line| line.split(" Its fence is ").next());
        without_fences.flatten().map(str::to_owned).collect()
    };
    lines(stdout) == lines(code("text"))
}

#[test]
fn the_sql_is_that_of_the_example() {
    let files = ["tables", "write", "read", "append"];
    let files = files.map(|file| read(&format!("examples/fencing/{file}.sql")));
    assert_eq!(code("sql"), files.join("\n"));
}

#[test]
fn the_script_for_redis_rejects_an_older_fence() {
    let (redis, key) = (shared(), name("fenced"));
    let write = |value: &str, fence: u64| -> bool {
        redis.ask(&["EVAL", code("lua"), "1", &key, value, &fence.to_string()])
    };
    let largest = (1 << 53) - 1;
    assert!(write("first", 1));
    assert!(write("second", largest - 1));
    // A number of Lua has each fence exactly.
    assert!(write("third", largest));
    assert!(!write("late", largest - 1));
    assert!(write("fourth", largest));
    let kept: Vec<String> = redis.ask(&["HMGET", &key, "value", "fence"]);
    let () = redis.ask(&["DEL", &key]);
    assert_eq!(kept, ["fourth", &largest.to_string()]);
}
