//! Rules of the library that neither the compiler nor clippy checks. They are for the code in `src/` that users run, without
//! test code.
//!
//! 1. A folder uses only its own layer and lower layers: see `layer`.
//! 2. Only `sys/` touches the machine: time, threads, shared memory, random numbers, hashes, connections and processes.
//!    Clippy cannot check that: it does not distinguish `std::sync::Arc` from the re-export `crate::sys::Arc`.
//! 3. Each Lua script says why it may be repeated.
//! 4. A Lua script uses the keys of `KEYS` alone, and makes no name of a key. Otherwise it would fail in a cluster.

use std::fs;
use std::path::Path;

/// The folders of test code: the fuzzer, and the machines of tests.
const TEST_CODE: [&str; 4] = ["moved_by_test", "of_test", "seam", "test_machine"];

/// Returns the layer of a module right below the root. What `lib.rs` itself defines or re-exports is in the last one.
fn layer(module: &str) -> u32 {
    match module {
        "error" | "name" | "owner" | "sys" | "logging" | "panics" => 1,
        "config" | "event" | "stats" | "claim" | "cancel" | "wire" | "write" => 2,
        "net" => 3,
        "server" => 4,
        "quorum" => 5,
        "engine" => 6,
        "guard" => 7,
        "lock" => 8,
        "manager" | "builder" | "admin" => 9,
        _ => 10,
    }
}

/// Returns whether a path is not for this file, although the layers would allow it: only the connections know the redis crate.
fn is_kept_from(file: &str, used: &str) -> bool {
    let knows = ["config", "wire", "net", "server", "quorum"];
    is_below(used, "redis") && !knows.iter().any(|folder| file.starts_with(folder))
}

/// The ways by which code reaches the machine: crates, modules, and items of modules that have other items too.
const OF_THE_MACHINE: [&str; 15] = [
    "forkguard",
    "rustix",
    "scheduled_thread_pool",
    "socket2",
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::env",
    "std::hash",
    "std::net",
    "std::os",
    "std::process",
    "std::sync",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
];
/// Calls that draw random numbers, or block on a channel of another crate: inside, threads wait on what `sys` has.
const CALLS: [&str; 4] = [
    "Uuid::new_v4",
    ".recv()",
    ".recv_deadline(",
    ".recv_timeout(",
];
/// Plain data, and where a module may use the machine all the same: r2d2 needs a thread of that crate, and the deadline of a
/// program is an `Instant`.
const MAY_USE: [(&str, &str); 6] = [
    ("", "std::hash::Hash"),
    ("", "std::hash::Hasher"),
    ("", "std::net::IpAddr"),
    ("", "std::net::SocketAddr"),
    ("net/pool", "scheduled_thread_pool"),
    ("lock/", "std::time::Instant"),
];

#[test]
fn a_folder_uses_its_own_layer_and_lower_ones() {
    let bad = "
// use crate::manager;
use crate::engine::{Engine, names::Entry as E};
fn f(_: crate::Error) -> Vec<crate::sys::Time> { $crate::builder::b!() }
#[cfg(test)]
fn g() {
    crate::manager::m();
}
use crate::guard::Lease;
#[cfg(test)]
mod tests {
    use crate::admin::A;
}
";
    let higher = |path| uses_of_higher_layers(path, bad);
    assert_eq!(higher("guard/mod.rs"), ["crate::Error"]);
    assert_eq!(higher("wire/lock.rs").len(), 4);
    assert_eq!(
        uses_of_higher_layers("engine/client.rs", "use redis::Value;").len(),
        1
    );
    for (path, text) in library() {
        assert_eq!(uses_of_higher_layers(&path, &text), [""; 0], "{path}");
    }
}

fn uses_of_higher_layers(path: &str, text: &str) -> Vec<String> {
    let first = |path: &str| path.split(['/', '.', ':']).next().map_or(0, layer);
    let is_higher = |used: &String| {
        let module = used.strip_prefix("crate::");
        module.is_some_and(|module| first(module) > first(path))
    };
    let code = code(text);
    let used = ["crate", "redis"].map(|first| paths_from(first, &code));
    used.into_iter()
        .flatten()
        .filter(|used| is_higher(used) || is_kept_from(path, used))
        .collect()
}

#[test]
fn only_one_folder_touches_the_machine() {
    for bad in [
        "use std::sync::Arc;",
        "use std::{fmt, thread};",
        "fn f() { assert!(std::thread::panicking()) }",
        "use std::collections::{BTreeMap, HashMap};",
        "use std::time::{Duration, Instant};",
        "use std::time;",
        "use rustix::event::poll;",
        "fn f(_: std::net::TcpStream) {}",
        "fn f() { lost.recv().ok(); }",
        "fn f() { uuid::Uuid::new_v4(); }",
    ] {
        assert_eq!(
            uses_of_the_machine("engine/queue/rules.rs", bad).len(),
            1,
            "{bad}"
        );
        assert_eq!(uses_of_the_machine("sys/thread.rs", bad), [""; 0], "{bad}");
    }
    let good = "use crate::sys::{Arc, thread}; use std::time::Duration; use std::net::IpAddr;";
    assert_eq!(uses_of_the_machine("guard/mod.rs", good), [""; 0]);
    for (path, text) in library() {
        assert_eq!(uses_of_the_machine(&path, &text), [""; 0], "{path}");
    }
}

fn uses_of_the_machine(path: &str, text: &str) -> Vec<String> {
    if path.starts_with("sys/") {
        return Vec::new();
    }
    let code = code(text);
    let first = [
        "forkguard",
        "rustix",
        "scheduled_thread_pool",
        "socket2",
        "std",
    ];
    let used = first.into_iter().flat_map(|first| paths_from(first, &code));
    let used = used.filter(|used| {
        // An import of a whole module would hide what is used of it.
        let is_whole = ["std::collections", "std::time"].contains(&&**used);
        let touches = OF_THE_MACHINE.iter().any(|of_it| is_below(used, of_it));
        let mut allowed = MAY_USE.iter();
        let may_use = allowed.any(|(by, what)| path.starts_with(by) && is_below(used, what));
        (is_whole || touches) && !may_use
    });
    // The thread of r2d2 runs on the real machine, and is waited for when a pool is made.
    let may_wait = path == "net/pool.rs";
    let called = CALLS.into_iter().filter(|call| code.contains(call));
    let called = called.filter(|call| !(may_wait && *call == ".recv()"));
    used.chain(called.map(str::to_owned)).collect()
}

#[test]
fn every_script_says_why_it_may_be_repeated() {
    for (path, text) in files("lua") {
        let head = text.lines().take_while(|line| line.starts_with("--"));
        let head = head.collect::<Vec<_>>().join("\n");
        // A part of several scripts is repeated with them. Of a script in two files the first one has the reason.
        let is_said = head.starts_with("-- Shared: ")
            || head.contains("KEYS, ARGV and reply as in ")
            || head.contains("dempotent because");
        assert!(is_said, "{path}");
    }
}

/// Commands whose first argument is no key.
const WITHOUT_KEYS: [&str; 3] = ["TIME", "PUBLISH", "PUBSUB"];

#[test]
fn every_key_of_a_script_is_passed_in_keys() {
    for bad in [
        "redis.call('GET', KEYS[1] .. ':fence')",
        "redis.pcall('GET', 'leasehold:' .. lock)",
        "redis.call('GET', ARGV[1])",
        "redis.call('GET', name_of(lock))",
        "local fence = lock .. ':fence' redis.call('GET', lock)",
        "local fence = 'fence:' .. KEYS[2]",
    ] {
        assert_ne!(keys_that_are_made(bad), [""; 0], "{bad}");
    }
    let good = "redis.call('GET', KEYS[i + 1]) redis.call('PUBLISH', 'a:' .. b) redis.call('DEL', unpack(keys))";
    assert_eq!(keys_that_are_made(good), [""; 0]);
    for (path, text) in files("lua") {
        assert_eq!(keys_that_are_made(&text), [""; 0], "{path}");
    }
}

/// Returns the keys in a script that are not simply keys of `KEYS`, and the texts that are made of a key: they may name
/// another one.
fn keys_that_are_made(text: &str) -> Vec<&str> {
    let lines = || {
        text.lines()
            .filter(|line| !line.trim_start().starts_with("--"))
    };
    let calls = lines().flat_map(|line| line.split("call('").skip(1));
    let keys = calls.filter_map(|call| {
        let (command, rest) = call.split_once('\'')?;
        let key = rest.strip_prefix(", ")?.split([',', ')']).next()?;
        (!WITHOUT_KEYS.contains(&command)).then(|| key.trim_start_matches("unpack("))
    });
    let (names, mut made): (Vec<_>, Vec<_>) = keys.partition(|key| key.chars().all(is_name));
    made.retain(|key| !(key.starts_with("KEYS[") && key.ends_with(']')));
    let words: Vec<_> = lines().flat_map(str::split_whitespace).collect();
    made.extend(words.windows(2).filter_map(|words| {
        let word = match words {
            [word, ".."] | ["..", word] => *word,
            _ => return None,
        };
        let mut parts = word.split(|letter| !is_name(letter));
        parts
            .any(|part| part == "KEYS" || names.contains(&part))
            .then_some(word)
    }));
    made
}

/// Returns the code of a Rust file without comments, texts and tests. `rustfmt` has formatted the file: what a test has to itself
/// ends at the first line that is indented as its attribute is and ends an item.
fn code(text: &str) -> String {
    let (mut code, mut skipped) = (String::new(), None);
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        if line.trim() == "#[cfg(test)]" {
            skipped = Some(indent);
        } else if let Some(item) = skipped {
            if indent == item && line.ends_with(['}', ';', ',']) {
                skipped = None;
            }
        } else {
            let line = line.split("//").next().unwrap_or_default();
            // Without texts, which may name anything.
            code.extend(line.split('"').step_by(2));
            code.push('\n');
        }
    }
    code
}

/// Returns the paths in a code that begin with this name. An import of several items has several paths.
fn paths_from(first: &str, code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&format!("{first}::")) {
        // Another name, or a part of one.
        if code[..at].ends_with(|it: char| is_name(it) || it == '$' || it == ':') {
            continue;
        }
        let end = code[at..].find(|it: char| !is_name(it) && it != ':');
        let (path, rest) = code[at..].split_at(end.unwrap_or(code.len() - at));
        let path = path.trim_end_matches(':');
        match rest
            .strip_prefix('{')
            .and_then(|group| group.split_once('}'))
        {
            Some((group, _)) => {
                let items = group
                    .split(',')
                    .filter_map(|item| item.split_whitespace().next());
                found.extend(items.map(|item| format!("{path}::{item}")));
            }
            None => found.push(path.to_owned()),
        }
    }
    found
}

fn is_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn is_below(path: &str, above: &str) -> bool {
    let rest = path.strip_prefix(above);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Returns the Rust files of the library that are no test code.
fn library() -> Vec<(String, String)> {
    let is_of_tests = |path: &str| {
        let mut parts = path.split(['/', '.']);
        parts.any(|part| TEST_CODE.contains(&part) || part == "tests")
    };
    let mut files = files("rs");
    files.retain(|(path, _)| !is_of_tests(path));
    files
}

/// Returns the files in `src/` with this extension, each by its path there.
fn files(extension: &str) -> Vec<(String, String)> {
    let root = Path::new(crate::ROOT).join("src");
    let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == extension) {
                let text = fs::read_to_string(&path).expect("a source is text");
                let path = path.strip_prefix(&root).expect("it is below the folder");
                found.push((path.to_string_lossy().into_owned(), text));
            }
        }
    }
    assert!(!found.is_empty(), "no .{extension} in {}", root.display());
    found
}
