//! The record of runs: lines of JSON that are appended to files in `docs/evidence`.
//!
//! | rule | reason |
//! | --- | --- |
//! | A run appends its lines, and changes no earlier one. | The record of an earlier commit stays as it was. |
//! | A line has the commit of its run. | A schedule replays by its seed and its commit. |
//! | A run is refused if the code differs from its commit. | Nobody could replay it. |

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The paths of the code that a run consists of.
const CODE: [&str; 5] = [
    "src",
    "tests/simulator",
    "tests/judge",
    "Cargo.toml",
    "Cargo.lock",
];

/// A file that gets a line for each run of this process.
pub struct Recorder {
    file: PathBuf,
    commit: String,
}

/// The result of the schedules of a range of seeds, in one topology.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Run {
    /// The first 12 digits of the commit.
    pub commit: String,
    /// The version of the servers. `None` if they were simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    pub topology: String,
    pub first_seed: u64,
    /// The seed after the last one.
    pub end_seed: u64,
    pub schedules: u64,
    pub grants: u64,
    /// Those of them that were granted while exclusion was not promised. `None` if they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpromised_grants: Option<u64>,
    pub hand_overs: u64,
    pub refusals: u64,
    /// Calls after the last fault that must not fail. `None` if they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calm_calls: Option<u64>,
    pub losses: u64,
    pub rejected_writes: u64,
    /// `None` if there were none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commits: Option<u64>,
    pub unfenced_corruptions: u64,
    pub schedules_with_pauses: u64,
    pub corrupted_with_pauses: u64,
    pub longest_wait_ms: u64,
    pub errors: BTreeMap<String, u64>,
    pub faults: BTreeMap<String, u64>,
    pub exceptions: BTreeMap<String, u64>,
    /// `None` on real servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// The simulated time. `None` on real servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_s: Option<u64>,
    pub took_s: u64,
    pub violations: Vec<Violation>,
}

/// A schedule that broke a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Violation {
    pub seed: u64,
    pub what: String,
}

/// A soak: what its process used.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Soak {
    /// The first 12 digits of the commit.
    pub commit: String,
    /// The version of the servers.
    pub server: String,
    /// How long it took.
    pub seconds: u64,
    pub grants: u64,
    pub faults: u64,
    /// The points, at equal distances from the begin to the end. Each is the mean of several looks. The memory is that which
    /// no file has: pages of the program come and go as the system likes.
    pub memory_kib: Vec<f64>,
    pub descriptors: Vec<f64>,
    pub threads: Vec<f64>,
}

impl Recorder {
    /// Returns a recorder.
    ///
    /// # Errors
    ///
    /// The code differs from its commit, or git cannot tell.
    pub fn new(file: PathBuf) -> Result<Self, String> {
        let commit = commit()?;
        Ok(Self { file, commit })
    }

    /// Appends the line of a run.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn append(&self, run: &Run) -> Result<(), String> {
        let run = Run {
            commit: self.commit.clone(),
            ..run.clone()
        };
        append(&self.file, &run)
    }
}

/// Appends a line in one write, because other processes may append to the same file.
///
/// # Errors
///
/// The file cannot be written.
pub fn append(path: &Path, line: &impl Serialize) -> Result<(), String> {
    let line = serde_json::to_string(line).map_err(|error| error.to_string())? + "\n";
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the first 12 digits of the commit that is checked out.
///
/// # Errors
///
/// The code differs from its commit, or git cannot tell.
pub fn commit() -> Result<String, String> {
    let root = root();
    let changed = git(
        &root,
        &[&["status", "--porcelain", "--"], &CODE[..]].concat(),
    )?;
    if !changed.is_empty() {
        return Err(format!(
            "nobody could replay this run: commit these changes first\n{changed}"
        ));
    }
    git(&root, &["rev-parse", "--short=12", "HEAD"])
}

/// Returns the top directory of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn git(directory: &Path, words: &[&str]) -> Result<String, String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(words)
        .output()
        .map_err(|error| format!("git cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned())
}
