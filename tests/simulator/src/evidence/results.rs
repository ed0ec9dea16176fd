//! The files of `docs/evidence`, and the seeded bugs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::bugs::Bug;
use super::findings::Finding;
use super::judge::Judged;
use super::pauses::Paused;
use crate::record::{Run, Soak};

/// A line with fewer schedules replays a finding. It is no run of its commit.
const LEAST_SCHEDULES: u64 = 10;

pub(super) struct Results {
    pub(super) simulated: Runs,
    pub(super) real: Runs,
    pub(super) findings: Vec<Finding>,
    pub(super) judge: Vec<Judged>,
    /// Each seeded bug, with its last verdict.
    pub(super) bugs: Vec<Bug>,
    /// The last verdict on the tree without a bug.
    pub(super) control: Option<Verdict>,
    pub(super) pauses: Vec<Paused>,
    soak: Vec<Soak>,
}

/// The lines of a file of runs, in their order.
pub(super) struct Runs(pub(super) Vec<Run>);

/// What has found a seeded bug.
#[derive(Clone, Deserialize)]
pub(super) struct Verdict {
    pub(super) commit: String,
    /// The name of the bug, or `none`.
    patch: String,
    /// `simulator`, `test` or `nothing`.
    pub(super) killed_by: String,
    pub(super) schedules: u64,
}

impl Results {
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let folder = root.join("docs/evidence");
        let verdicts: Vec<Verdict> = lines(&folder.join("mutants.jsonl"))?;
        let mut verdicts: BTreeMap<_, _> = verdicts
            .into_iter()
            .map(|it| (it.patch.clone(), it))
            .collect();
        Ok(Self {
            simulated: Runs::read(&folder.join("simulator.jsonl"))?,
            real: Runs::read(&folder.join("real.jsonl"))?,
            findings: lines(&folder.join("findings.jsonl"))?,
            judge: lines(&folder.join("judge.jsonl"))?,
            control: verdicts.remove("none"),
            bugs: bugs(&root.join("tests/simulator/mutants"), &verdicts)?,
            pauses: lines(&folder.join("pauses.jsonl"))?,
            soak: lines(&folder.join("soak.jsonl"))?,
        })
    }

    pub(super) fn newest_soak_commit(&self) -> Option<&str> {
        self.soak.last().map(|run| &*run.commit)
    }

    pub(super) fn newest_soak(&self) -> Vec<Soak> {
        let newest = self.newest_soak_commit();
        let runs = self.soak.iter().filter(|run| Some(&*run.commit) == newest);
        runs.cloned().collect()
    }
}

impl Runs {
    fn read(path: &Path) -> Result<Self, String> {
        let runs: Vec<Run> = lines(path)?;
        let mut seen = BTreeSet::new();
        for run in &runs {
            for seed in run.first_seed..run.end_seed {
                if !seen.insert((&run.commit, &run.server, &run.topology, seed)) {
                    let Run {
                        commit, topology, ..
                    } = run;
                    let path = path.display();
                    return Err(format!(
                        "{path}: {topology} seed {seed} of {commit} stands twice"
                    ));
                }
            }
        }
        Ok(Self(runs))
    }

    pub(super) fn newest_commit(&self) -> Option<&str> {
        let run = self.0.iter().rfind(|run| run.schedules >= LEAST_SCHEDULES);
        run.map(|run| &*run.commit)
    }

    /// Returns the runs of the newest commit.
    pub(super) fn newest(&self) -> Vec<&Run> {
        let newest = self.newest_commit();
        let runs = self.0.iter().filter(|run| Some(&*run.commit) == newest);
        runs.collect()
    }
}

fn bugs(folder: &Path, verdicts: &BTreeMap<String, Verdict>) -> Result<Vec<Bug>, String> {
    let mut bugs = Vec::new();
    let Ok(patches) = fs::read_dir(folder) else {
        return Ok(bugs);
    };
    for patch in patches {
        let path = patch.map_err(|error| error.to_string())?.path();
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let promise = text(&path)?.unwrap_or_default();
        let promise = promise
            .lines()
            .find_map(|line| line.strip_prefix("Promise: "));
        bugs.push(Bug {
            promise: promise
                .ok_or(format!("{name} has no line \"Promise: …\""))?
                .to_owned(),
            verdict: verdicts.get(&name).cloned(),
            name,
        });
    }
    bugs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(bugs)
}

/// Returns the values of the lines of a file. A file that does not exist has none.
fn lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, String> {
    let text = text(path)?.unwrap_or_default();
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(number, line)| {
            serde_json::from_str(line)
                .map_err(|error| format!("{}: line {}: {error}", path.display(), number + 1))
        })
        .collect()
}

fn text(path: &Path) -> Result<Option<String>, String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}
