//! The long runs on real servers.

use super::picture::{Lines, Panel};
use super::table::{code, number, table, time};
use super::{NOT_RUN, Part};
use crate::record::Soak;
use crate::soak::trend::{Trend, Verdict};

pub(super) fn part(runs: &[Soak]) -> Part {
    if runs.is_empty() {
        return super::text(NOT_RUN.to_owned());
    }
    let rows: Vec<_> = runs
        .iter()
        .map(|run| {
            let ends = [
                code(&run.commit),
                run.server.clone(),
                time(run.seconds),
                number(run.grants),
                number(run.faults),
            ];
            let slopes =
                Trend::all(run).map(|it| format!("{:+.2} ± {:.2}", it.a_minute, it.within));
            let verdict = [Verdict::of(run).to_string()];
            ends.into_iter().chain(slopes).chain(verdict).collect()
        })
        .collect();
    let heads = [
        "commit",
        "servers",
        "time",
        "grants",
        "faults",
        "memory, KiB a minute",
        "descriptors a minute",
        "threads a minute",
        "verdict",
    ];
    let panel = |unit, figures: fn(&Soak) -> Vec<f64>| {
        let lines = runs.iter().map(|run| {
            let figures = figures(run);
            let step = run.seconds as f64 / 60.0 / figures.len() as f64;
            let figures = figures.into_iter().enumerate();
            figures
                .map(|(at, figure)| (at as f64 * step, figure))
                .collect()
        });
        Panel {
            unit,
            lines: lines.collect(),
        }
    };
    let mib = |run: &Soak| run.memory_kib.iter().map(|kib| kib / 1_024.0).collect();
    let lines = Lines {
        title: "The soak: a process on real servers with faults",
        about: "Lines: the memory, the descriptors and the threads of the process over the time, for each run.".to_owned(),
        time_unit: "minutes",
        panels: vec![
            panel("memory, MiB", mib),
            panel("descriptors", |run| run.descriptors.clone()),
            panel("threads", |run| run.threads.clone()),
        ],
        series: (1..=runs.len()).map(|run| format!("run {run}")).collect(),
        caption: "docs/evidence/soak.jsonl",
    };
    Part {
        text: format!(
            "Each slope is that of a line through the second half of a run, with the bounds within which it is with 95 %. A run is \
             *steady* if all slopes are, by these bounds, below half of the smallest leak that must be found: 60 KiB, one \
             descriptor or one thread a minute.\n\n{}",
            table(&heads, &rows)
        ),
        picture: Some(("soak", lines.draw())),
    }
}
