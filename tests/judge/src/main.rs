//! Judges the histories of schedules, or of files.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use leasehold_judge::history::History;
use leasehold_judge::verdict::{Verdict, judge};
use leasehold_judge::{Verdicts, plan};
use leasehold_simulator::{Topology, processor, record};
use serde::Serialize;

const HELP: &str = "\
Judges what threads did with locks and registers, by stateright's search.

leasehold-judge [--seeds FROM..TO] [--topology single|sentinel|cluster|quorum] [--alone] [--record FILE]
leasehold-judge FILE...

--seeds     the seeds of simulated schedules; 0..10 if it is left out
--topology  all four if it is left out
--alone     the simulator looks at no rule that a judge could see broken
--record    appends a line for each topology to FILE, such as docs/evidence/judge.jsonl
FILE        a history, in the form of docs/evidence/README.md

The exit code is 1 if a history is not accepted, or a corrupted copy of one is not rejected.";

#[derive(Default)]
struct Asked {
    seeds: Range<u64>,
    topologies: Vec<Topology>,
    is_alone: bool,
    record: Option<PathBuf>,
    files: Vec<PathBuf>,
}

/// A line of the record.
#[derive(Serialize)]
struct Line {
    commit: String,
    topology: String,
    first_seed: u64,
    end_seed: u64,
    #[serde(flatten)]
    verdicts: Verdicts,
    took_s: u64,
}

fn main() -> ExitCode {
    let done = asked(std::env::args().skip(1)).and_then(|asked| match &asked.files[..] {
        [] => judge_schedules(&asked),
        files => judge_files(files),
    });
    match done {
        Ok(is_right) => ExitCode::from(u8::from(!is_right)),
        Err(what) => {
            eprintln!("{what}");
            ExitCode::from(2)
        }
    }
}

fn asked(mut words: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked {
        seeds: 0..10,
        topologies: Topology::ALL.to_vec(),
        ..Asked::default()
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--seeds" => {
                let value = value()?;
                let seeds = value.split_once("..");
                let seeds = seeds.and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
                asked.seeds = seeds.ok_or("seeds are FROM..TO")?;
            }
            "--topology" => asked.topologies = vec![value()?.parse()?],
            "--alone" => asked.is_alone = true,
            "--record" => asked.record = Some(PathBuf::from(value()?)),
            _ if word.starts_with('-') => return Err(HELP.to_owned()),
            file => asked.files.push(PathBuf::from(file)),
        }
    }
    Ok(asked)
}

/// Returns whether all verdicts are as they must be.
fn judge_schedules(asked: &Asked) -> Result<bool, String> {
    processor::stay();
    let mut is_right = true;
    let commit = asked
        .record
        .as_ref()
        .map(|_| record::commit())
        .transpose()?;
    for topology in &asked.topologies {
        let mut verdicts = Verdicts::default();
        for seed in asked.seeds.clone() {
            verdicts.add(plan(*topology, seed), asked.is_alone)?;
        }
        for what in &verdicts.wrong {
            println!("{what}");
        }
        is_right &= verdicts.wrong.is_empty();
        println!("{topology}: {verdicts:?}");
        if let (Some(file), Some(commit)) = (&asked.record, &commit) {
            let line = Line {
                commit: commit.clone(),
                topology: topology.to_string(),
                first_seed: asked.seeds.start,
                end_seed: asked.seeds.end,
                took_s: verdicts.took.as_secs(),
                verdicts,
            };
            record::append(file, &line)?;
        }
    }
    Ok(is_right)
}

/// Returns whether all files are accepted.
fn judge_files(files: &[PathBuf]) -> Result<bool, String> {
    let mut is_right = true;
    for file in files {
        let read = fs::read_to_string(file).map_err(|error| error.to_string());
        let judged = read.and_then(|text| judge(&History::parse(&text)?));
        let verdict = judged.map_err(|what| format!("{}: {what}", file.display()))?;
        println!("{}: {verdict:?}", file.display());
        is_right &= verdict == Verdict::Accepted;
    }
    Ok(is_right)
}
