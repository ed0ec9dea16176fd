//! EVIDENCE.md and its pictures are what the files in `docs/evidence` say.

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
fn the_page_and_the_pictures_have_the_figures_of_the_result_files() {
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
    assert!(page.matches("Not run yet.").count() >= 10, "{page}");
    assert!(!page.contains("{{") && !page.contains(".svg"), "{page}");
}

#[test]
fn the_page_has_the_figures_of_a_run() {
    let copy = Copy::new("evidence-run", &[("simulator.jsonl", &run(""))]);
    let page = copy.file("EVIDENCE.md");
    for row in [
        "| schedules | not run yet | not run yet | not run yet | 1,200 | 1,200 |",
        "| longest wait after the last fault | not run yet | not run yet | not run yet | 7.8 s | 7.8 s |",
        "| quorum, simulated | 200 | 50 | 25.0 % | 0 | 5 |",
        "| `0123456789ab` | quorum | 0..1200 | 1,200 | 19 | 34,567 | 4 | 0 |",
    ] {
        assert!(page.contains(row), "{row}\n{page}");
    }
    assert!(
        copy.file("docs/evidence/faults.svg")
            .contains(">cut links</text>")
    );
}

#[test]
fn the_page_shows_that_a_rule_was_broken() {
    let violation = r#"{"seed":7,"what":"guards have 2 of the 1 units of a"}"#;
    let copy = Copy::new("evidence-broken", &[("simulator.jsonl", &run(violation))]);
    let page = copy.file("EVIDENCE.md");
    assert!(
        page.contains("| **rules broken** | not run yet | not run yet | not run yet | **1** |")
    );
    assert!(page.contains("| guards have … of the … units of a | 1 | 7 | 0 |"));
    assert!(!page.contains("Each schedule kept"));
}

#[test]
fn a_line_that_cannot_be_read_is_an_error_with_its_place() {
    let copy = Copy::new("evidence-bad", &[("soak.jsonl", "{\"run\":\"a\"}\n")]);
    let error = files(&copy.0).expect_err("a line without its keys");
    assert!(error.contains("soak.jsonl: line 1"), "{error}");
}

#[test]
fn each_fault_that_was_counted_has_an_outcome_on_the_page() {
    let page = fs::read_to_string(root().join("EVIDENCE.md")).expect("EVIDENCE.md");
    let heading = "\n### Faults and topologies\n";
    let (_, section) = page.split_once(heading).expect("the table");
    let rows = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|'));
    let without: Vec<_> = rows.filter(|row| row.ends_with("| – |")).collect();
    assert_eq!(
        without, [""; 0],
        "OUTCOMES in src/evidence/runs.rs has no text for these"
    );
}
