//! Checks docs/FAULTS.md, the record of faults: each fault has at least one test, and each test exists.

use std::fs;
use std::path::Path;

/// Where tests are.
const FOLDERS: [&str; 5] = [
    "src",
    "tests",
    "testkit/tests",
    "cli/tests",
    "examples/async",
];

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

/// Returns whether the code has the function of a test. A macro may make the name, so the name alone counts. `*` stands for
/// any other part of its path.
fn is_there(test: &str, code: &str) -> bool {
    let name = test.rsplit("::").next().unwrap_or_default();
    let parts = name.split('*').filter(|part| !part.is_empty());
    parts.into_iter().all(|part| code.contains(part))
}

#[test]
fn every_fault_has_an_existing_test() {
    let root = Path::new(crate::ROOT);
    let page = fs::read_to_string(root.join("docs/FAULTS.md")).expect("the record");
    let code: String = FOLDERS.map(|folder| code(&root.join(folder))).concat();
    // The check itself can fail.
    assert!(!is_there(&["record::another", "test"].concat(), &code));

    let rows = rows(&page);
    assert!(rows.len() > 50, "{} rows", rows.len());
    for row in rows {
        let [fault, _, _, named] = &row[..] else {
            panic!("a row is a fault, how it is made, what happens, and its tests: {row:?}");
        };
        assert!(quoted(named).next().is_some(), "no test of {fault}");
        for test in quoted(named) {
            assert!(is_there(test, &code), "{fault}: no test {test}");
        }
    }
}
