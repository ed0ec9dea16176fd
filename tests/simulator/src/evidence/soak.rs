//! The long run on real servers.

use super::picture::{Lines, Panel};
use super::results::Sample;
use super::table::{code, number, table, time};
use super::{NOT_RUN, Part};

/// The part of a run that is not looked at for growth: the process fills its pools and tables.
const WARM_UP: f64 = 0.2;
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
            let both = |figure: fn(&Sample) -> u64| {
                format!("{} to {}", number(figure(first)), number(figure(last)))
            };
            Some(vec![
                code(run),
                time(last.seconds),
                number(last.grants),
                number(last.faults),
                format!("{} KiB", both(|sample| sample.resident_kb)),
                format!("{:+.1} KiB", growth(samples, |sample| sample.resident_kb)),
                both(|sample| sample.descriptors),
                format!("{:+.2}", growth(samples, |sample| sample.descriptors)),
                both(|sample| sample.threads),
                format!("{:+.2}", growth(samples, |sample| sample.threads)),
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
            "{} in all. The columns \"a minute\" have the slope of a straight line through the samples after the first fifth of a run.\n\n{}",
            time(seconds),
            table(&heads, &rows)
        ),
        picture: Some(("soak", lines.draw())),
    }
}

/// Returns the slope of a figure over a run, for each minute: the straight line with the least squares.
fn growth(samples: &[&Sample], figure: fn(&Sample) -> u64) -> f64 {
    let end = samples.last().map_or(0.0, |last| last.seconds as f64);
    let points: Vec<_> = samples
        .iter()
        .map(|sample| (sample.seconds as f64, figure(sample) as f64))
        .filter(|(at, _)| *at >= end * WARM_UP)
        .collect();
    let count = points.len().max(1) as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (at, value) = (mean(|point| point.0), mean(|point| point.1));
    let (mut above, mut below) = (0.0, 0.0);
    for (x, y) in points {
        above += (x - at) * (y - value);
        below += (x - at) * (x - at);
    }
    if below == 0.0 {
        0.0
    } else {
        above / below * 60.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_that_after_the_first_fifth() {
        let samples: Vec<_> = (0..=10)
            .map(|at| Sample {
                run: "a".to_owned(),
                seconds: at * 60,
                resident_kb: if at < 2 { 1_000 * at } else { 3_000 + 5 * at },
                descriptors: 7,
                threads: 0,
                grants: 0,
                faults: 0,
            })
            .collect();
        let samples: Vec<_> = samples.iter().collect();
        let slope = growth(&samples, |sample| sample.resident_kb);
        assert!((slope - 5.0).abs() < 1e-6, "{slope}");
        let slope = growth(&samples, |sample| sample.descriptors);
        assert!(slope.abs() < 1e-6, "{slope}");
    }
}
