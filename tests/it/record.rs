//! Checks docs/FAULTS.md, the record of faults: each row names a place of tests, and each place and test that it names exists.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the files of the page may begin. The page explains the last four.
const FOLDERS: [&str; 5] = ["", "tests/contract", "tests", "cli/tests", "testkit/tests"];

/// Returns the last cell of each row of the tables, without their headings.
fn last_cells(page: &str) -> Vec<&str> {
    let lines: Vec<_> = page.lines().collect();
    let rows = lines.windows(2).filter_map(|pair| {
        let is_head = pair[1].starts_with("| ---");
        let is_row = pair[0].starts_with("| ") && !pair[0].starts_with("| ---");
        let cells = pair[0].trim_end_matches(" |").rsplit_once(" | ")?;
        (is_row && !is_head).then_some(cells.1)
    });
    rows.collect()
}

/// Returns the first file or folder of this name.
fn find(root: &Path, name: &str) -> Option<PathBuf> {
    let mut places = FOLDERS.iter().map(|folder| root.join(folder).join(name));
    places.find(|place| place.exists())
}

/// Returns what a row names and nobody has. A name without a slash and a dot is a function in one of the row's files.
fn missing<'a>(root: &Path, cell: &'a str) -> Vec<&'a str> {
    let named = || cell.split('`').skip(1).step_by(2);
    let is_file = |name: &&str| name.contains(['/', '.']);
    let files = named().filter(is_file).filter_map(|name| find(root, name));
    let code: String = files
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect();
    let is_missing = |name: &&str| {
        if is_file(name) {
            find(root, name).is_none()
        } else {
            !code.contains(&format!("fn {name}("))
        }
    };
    named().filter(is_missing).collect()
}

#[test]
fn every_row_names_tests_that_exist() {
    let root = Path::new(crate::ROOT);
    // The check itself can fail.
    assert_eq!(
        missing(root, "`none.rs` `links.rs` `no_test`"),
        ["none.rs", "no_test"]
    );

    let page = fs::read_to_string(root.join("docs/FAULTS.md")).expect("the record");
    let cells = last_cells(&page);
    assert!(cells.len() > 50, "{} rows", cells.len());
    for cell in cells {
        assert!(cell.contains(['/', '.']), "no file: {cell}");
        assert_eq!(missing(root, cell), [""; 0], "{cell}");
    }
}
