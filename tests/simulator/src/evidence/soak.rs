//! The long run on real servers.

use super::picture::{Lines, Panel};
use super::table::{code, number, table, time};
use super::{NOT_RUN, Part};
use crate::record::Sample;
use crate::soak::trend::Trend;

/// The most points of a line in the picture.
const MOST_POINTS: usize = 200;

pub(super) fn part(samples: &[Sample]) -> Part {
    if samples.is_empty() {
        return super::text(NOT_RUN.to_owned());
    }
    let mut runs: Vec<(&str, Vec<&Sample>)> = Vec::new();
    for sample in samples {
        match runs.iter_mut().find(|(run, _)| *run == sample.run) {
            Some((_, samples)) => samples.push(sample),
            None => runs.push((&sample.run, vec![sample])),
        }
    }
    let rows: Vec<_> = runs
        .iter()
        .filter_map(|(run, samples)| {
            let (first, last) = (samples.first()?, samples.last()?);
            let [memory, descriptors, threads] = Trend::of(samples);
            let both = |figure: fn(&Sample) -> u64| {
                format!("{} to {}", number(figure(first)), number(figure(last)))
            };
            Some(vec![
                code(run),
                time(last.seconds),
                number(last.grants),
                number(last.faults),
                format!("{} KiB", both(|sample| sample.resident_kb)),
                format!("{:+.1} KiB", memory.a_minute()),
                both(|sample| sample.descriptors),
                format!("{:+.2}", descriptors.a_minute()),
                both(|sample| sample.threads),
                format!("{:+.2}", threads.a_minute()),
            ])
        })
        .collect();
    let heads = [
        "run",
        "time",
        "grants",
        "faults",
        "memory",
        "a minute",
        "descriptors",
        "a minute",
        "threads",
        "a minute",
    ];
    let panel = |unit, figure: fn(&Sample) -> f64| {
        let lines = runs.iter().map(|(_, samples)| {
            let points = samples
                .iter()
                .step_by(samples.len().div_ceil(MOST_POINTS))
                .map(|sample| (sample.seconds as f64 / 60.0, figure(sample)));
            points.collect()
        });
        Panel {
            unit,
            lines: lines.collect(),
        }
    };
    let lines = Lines {
        title: "The soak: a process on real servers with faults",
        about: "Lines: the memory, the descriptors and the threads of the process over the time, for each run.".to_owned(),
        time_unit: "minutes",
        panels: vec![
            panel("memory, MiB", |sample| sample.resident_kb as f64 / 1_024.0),
            panel("descriptors", |sample| sample.descriptors as f64),
            panel("threads", |sample| sample.threads as f64),
        ],
        series: (1..=runs.len()).map(|run| format!("run {run}")).collect(),
        caption: "docs/evidence/soak.jsonl",
    };
    let seconds: u64 = runs
        .iter()
        .filter_map(|(_, samples)| Some(samples.last()?.seconds))
        .sum();
    Part {
        text: format!(
            "{} in all. The columns \"a minute\" have the slope of a straight line through the samples after the first quarter of a run.\n\n{}",
            time(seconds),
            table(&heads, &rows)
        ),
        picture: Some(("soak", lines.draw())),
    }
}
