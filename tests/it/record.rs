//! Checks docs/FAULTS.md, the record of faults: each fault has at least one test, and each test exists.

use std::collections::{HashMap, HashSet};
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns the cells of all table rows of a page, without the headings.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let mut rows = Vec::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let is_head = lines.peek().is_some_and(|next| next.starts_with("| ---"));
        if line.starts_with("| ") && !line.starts_with("| ---") && !is_head {
            rows.push(line.trim_matches('|').split(" | ").map(str::trim).collect());
        }
    }
    rows
}

/// Returns the texts between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns the names of the tests in this binary, also of those that are ignored by default.
fn tests() -> HashSet<String> {
    let listing = Command::new(env::current_exe().expect("this binary"))
        .args(["--list", "--format=terse"])
        .output()
        .expect("this binary runs");
    let listing = String::from_utf8(listing.stdout).expect("names of tests");
    let names = listing
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    names.map(str::to_owned).collect()
}

/// Returns all Rust code below a directory as one text.
fn code(directory: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(directory).expect("it is there") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            text += &code(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &fs::read_to_string(&path).expect("it is text");
        }
    }
    text
}

/// Where the tests are that begin with one of these, and are not in this binary.
const ELSEWHERE: [(&str, &str); 6] = [
    ("crate::", "src"),
    ("cli::", "cli/tests/cli"),
    ("fuzz::", "testkit/tests"),
    ("metrics::", "testkit/tests/metrics"),
    ("testing::", "testkit/tests/kit"),
    ("tls::", "tests/tls"),
];

/// Returns whether a test exists. `*` stands for any part of its path. `elsewhere` has the code of the tests outside of this
/// binary, by the begin of their names.
fn is_there(test: &str, tests: &HashSet<String>, elsewhere: &HashMap<&str, String>) -> bool {
    for (begin, code) in elsewhere {
        if test.starts_with(begin) {
            let name = test.rsplit("::").next().unwrap_or_default();
            return code.contains(&format!("fn {name}("));
        }
    }
    let mut parts = test.split('*');
    let head = parts.next().unwrap_or_default();
    let parts: Vec<_> = parts.collect();
    let Some((tail, middle)) = parts.split_last() else {
        return tests.contains(test);
    };
    tests.iter().any(|name| {
        let whole = name.strip_prefix(head);
        let mut rest = whole.and_then(|rest| rest.strip_suffix(tail));
        for part in middle {
            rest = rest.and_then(|rest| Some(rest.split_once(part)?.1));
        }
        rest.is_some()
    })
}

#[test]
fn every_fault_has_an_existing_test() {
    let root = Path::new(crate::ROOT);
    let page = fs::read_to_string(root.join("docs/FAULTS.md")).expect("the record");
    let elsewhere = ELSEWHERE.map(|(begin, folder)| (begin, code(&root.join(folder))));
    let elsewhere = HashMap::from(elsewhere);
    let tests = tests();
    // The check itself can fail.
    assert!(is_there(
        "record::every_*_existing_test",
        &tests,
        &elsewhere
    ));
    assert!(!is_there("record::another", &tests, &elsewhere));
    assert!(!is_there("crate::record::another", &tests, &elsewhere));
    assert!(is_there("testing::an_outage_ends", &tests, &elsewhere));

    let rows = rows(&page);
    assert!(rows.len() > 50, "{} rows", rows.len());
    for row in rows {
        let [fault, _, _, named] = &row[..] else {
            panic!("a row is a fault, how it is made, what happens, and its tests: {row:?}");
        };
        assert!(quoted(named).next().is_some(), "no test of {fault}");
        for test in quoted(named) {
            assert!(
                is_there(test, &tests, &elsewhere),
                "{fault}: no test {test}"
            );
        }
    }
}
