//! The files of `docs/evidence`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::record::{Run, Soak};

pub(super) struct Results {
    pub(super) simulated: Vec<Run>,
    pub(super) real: Vec<Run>,
    /// The newest line of each seeded bug.
    pub(super) mutants: Vec<Mutant>,
    pub(super) cargo_mutants: Option<CargoMutants>,
    pub(super) pauses: Vec<Paused>,
    pub(super) soak: Vec<Soak>,
}

/// A bug that was made on purpose, by a patch.
#[derive(Deserialize)]
pub(super) struct Mutant {
    pub(super) commit: String,
    pub(super) patch: String,
    pub(super) breaks: String,
    /// `simulator`, `test` or `nothing`.
    pub(super) killed_by: String,
    /// The topology or the test.
    pub(super) by: Option<String>,
    pub(super) schedules: Option<u64>,
    pub(super) what: Option<String>,
}

/// The result of cargo-mutants.
#[derive(Deserialize)]
pub(super) struct CargoMutants {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
    pub(super) mutants: u64,
    pub(super) caught: u64,
    pub(super) unviable: u64,
    pub(super) timeout: u64,
    pub(super) survivors: Vec<Survivor>,
}

#[derive(Deserialize)]
pub(super) struct Survivor {
    pub(super) mutant: String,
    pub(super) why: String,
}

/// The updates of the programs of one client whose processes pause.
#[derive(Deserialize)]
pub(super) struct Paused {
    pub(super) commit: String,
    pub(super) client: String,
    pub(super) server: String,
    pub(super) seconds: u64,
    pub(super) updates_acknowledged: u64,
    pub(super) updates_lost: u64,
    pub(super) pauses: u64,
    pub(super) updates_rejected: u64,
    /// How long after the next grant a late write was taken, at most. `None` if none was taken, or it was not measured.
    #[serde(default)]
    pub(super) latest_write_ms: Option<u64>,
}

impl Results {
    pub(super) fn read(folder: &Path) -> Result<Self, String> {
        let mut mutants: Vec<Mutant> = Vec::new();
        for mutant in lines::<Mutant>(&folder.join("mutants.jsonl"))? {
            mutants.retain(|earlier| earlier.patch != mutant.patch);
            mutants.push(mutant);
        }
        mutants.sort_by(|a, b| a.patch.cmp(&b.patch));
        let cargo_mutants = folder.join("cargo_mutants.json");
        Ok(Self {
            simulated: lines(&folder.join("simulator.jsonl"))?,
            real: lines(&folder.join("real.jsonl"))?,
            mutants,
            cargo_mutants: text(&cargo_mutants)?
                .filter(|text| !text.trim().is_empty())
                .map(|text| serde_json::from_str(&text))
                .transpose()
                .map_err(|error| format!("{}: {error}", cargo_mutants.display()))?,
            pauses: lines(&folder.join("pauses.jsonl"))?,
            soak: lines(&folder.join("soak.jsonl"))?,
        })
    }
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
