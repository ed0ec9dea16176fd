//! EVIDENCE.md and its picture are what the files in `docs/evidence` say.

use std::fs;
use std::path::{Path, PathBuf};

use leasehold_simulator::evidence::files;
use leasehold_simulator::record::root;

/// Some result files, in a folder below the target directory.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str, results: &[(&str, &str)]) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(folder.join("docs/evidence")).expect("a folder");
        for (name, text) in results {
            fs::write(folder.join("docs/evidence").join(name), text).expect("a file");
        }
        Self(folder)
    }

    fn file(&self, path: &str) -> String {
        let files = files(&self.0).expect("the page");
        files.get(path).cloned().unwrap_or_default()
    }
}

const RUN: &str = r#"{"commit":"0123456789ab","topology":"quorum","first_seed":0,"end_seed":1200,"schedules":1200,
    "grants":34567,"hand_overs":2,"refusals":3,"losses":4,"rejected_writes":5,"unfenced_corruptions":6,
    "schedules_with_pauses":200,"corrupted_with_pauses":50,"longest_wait_ms":7890,"errors":{"unavailable":8},
    "faults":{"pauses":9,"cut links":10},"exceptions":{},"steps":11,"simulated_s":12,"took_s":13,"violations":[VIOLATIONS]}"#;

fn run(violations: &str) -> String {
    let line = RUN.replace('\n', "").replace("VIOLATIONS", violations);
    line + "\n"
}

#[test]
fn the_page_and_its_picture_are_what_the_command_writes() {
    for (path, wanted) in files(&root()).expect("the page") {
        let found = fs::read_to_string(root().join(&path)).unwrap_or_default();
        assert!(
            found == wanted,
            "{path} is not what the results say: cargo run -p leasehold-simulator -- evidence"
        );
    }
}

#[test]
fn a_page_without_results_says_so_in_each_place() {
    let copy = Copy::new("evidence-none", &[]);
    let page = copy.file("EVIDENCE.md");
    assert!(page.matches("Not run yet.").count() >= 6, "{page}");
    assert!(!page.contains("{{") && !page.contains(".svg"), "{page}");
}

#[test]
fn a_broken_rule_that_nobody_has_explained_is_open() {
    let violation = r#"{"seed":7,"what":"guards have 2 of the 1 units of a"}"#;
    let copy = Copy::new("evidence-broken", &[("simulator.jsonl", &run(violation))]);
    let page = copy.file("EVIDENCE.md");
    for text in [
        "1 of 1,200 recorded schedules [broke a rule](#findings). 1 **are not explained yet**.",
        "| **schedules that broke a rule** | – | – | – | 1 |",
        "| guards have 2 of the 1 units of a | open | a run; quorum 7 on `0123456789ab` | – | – |",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
}

#[test]
fn the_longest_wait_is_rounded_up() {
    let copy = Copy::new("evidence-run", &[("simulator.jsonl", &run(""))]);
    let page = copy.file("EVIDENCE.md");
    assert!(
        page.contains("On simulated machines at most 7.9 s"),
        "{page}"
    );
}

#[test]
fn a_seed_that_stands_twice_is_an_error() {
    let copy = Copy::new("evidence-twice", &[("simulator.jsonl", &run("").repeat(2))]);
    let error = files(&copy.0).expect_err("each seed was run once");
    assert!(
        error.contains("quorum seed 0 of 0123456789ab stands twice"),
        "{error}"
    );
}

#[test]
fn a_line_that_cannot_be_read_is_an_error_with_its_place() {
    let copy = Copy::new("evidence-bad", &[("soak.jsonl", "{\"run\":\"a\"}\n")]);
    let error = files(&copy.0).expect_err("a line without its keys");
    assert!(error.contains("soak.jsonl: line 1"), "{error}");
}
