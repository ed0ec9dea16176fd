//! The lines of results in `docs/evidence/`. A run appends lines, and leaves the old ones alone.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use super::server::version_of_servers;

/// Appends a line to a file of results.
pub fn append_evidence(file: &str, line: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence");
    fs::create_dir_all(&folder).expect("a directory");
    let opened = File::options()
        .append(true)
        .create(true)
        .open(folder.join(file));
    let mut file = opened.expect("the file of results");
    // One write, because several runs may append.
    let written = file.write_all(format!("{line}\n").as_bytes());
    written.expect("it can be written");
}

/// Returns the first 12 digits of the commit that is checked out. A test with results calls this first.
///
/// Panics if the code differs from that commit, because nobody could run it again.
pub fn commit() -> String {
    let git = |words: &[&str]| {
        let git = Command::new("git")
            .args(words)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .output()
            .expect("git");
        assert!(git.status.success(), "{git:?}");
        String::from_utf8(git.stdout)
            .expect("text")
            .trim()
            .to_owned()
    };
    let changed = git(&[
        "status",
        "--porcelain",
        "--",
        "src",
        "tests",
        "Cargo.toml",
        "Cargo.lock",
    ]);
    assert_eq!(changed, "", "commit these changes first");
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// Returns a JSON object of these counts. The names have no quotes or backslashes.
pub fn counts_in_json<K: Display, V: Display>(counts: &BTreeMap<K, V>) -> String {
    let pairs = counts
        .iter()
        .map(|(name, count)| format!(r#""{name}": {count}"#));
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
}

/// Returns a text in JSON.
pub fn text_in_json(text: &str) -> String {
    let escaped = text.chars().map(|letter| match letter {
        '"' | '\\' => format!("\\{letter}"),
        _ if letter.is_control() => " ".to_owned(),
        _ => letter.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Returns the kind and the version of the servers, such as `redis 7.0.15`.
pub fn server_in_evidence() -> String {
    let mut words = version_of_servers().split_whitespace();
    let kind = words.next().unwrap_or("unknown").to_lowercase();
    let number = words.find_map(|word| word.strip_prefix("v="));
    format!("{kind} {}", number.unwrap_or("unknown"))
}
