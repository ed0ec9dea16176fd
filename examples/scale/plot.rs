//! Many runs, and the picture.

use std::env::current_exe;
use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::Value;

use crate::options::Options;

/// The number of leases of each run.
const LEASES: [u32; 9] = [
    1_000, 10_000, 25_000, 50_000, 75_000, 100_000, 125_000, 150_000, 200_000,
];

type Points = Vec<(f64, f64)>;

/// A line of the picture.
struct Line {
    label: &'static str,
    color: RGBColor,
    points: Points,
}

/// Runs and draws. Returns whether no lease was lost.
pub fn run(options: &Options, file: &Path) -> Result<bool, Box<dyn Error + Send + Sync>> {
    let mut reports = Vec::new();
    for leases in LEASES {
        let report = measured(options, leases)?;
        println!("{report}");
        reports.push(report);
    }
    let points = |field: &str, scale: f64| -> Points {
        let number = |report: &Value, field: &str| report[field].as_f64().unwrap_or(f64::NAN);
        reports
            .iter()
            .map(|report| (number(report, "leases"), number(report, field) * scale))
            .collect()
    };
    let picture = SVGBackend::new(file, (900, 380)).into_drawing_area();
    picture.fill(&WHITE)?;
    let (left, right) = picture.split_horizontally(450);
    let client = Line {
        label: "client",
        color: BLUE,
        points: points("client_cpu_percent", 1.0),
    };
    let server = Line {
        label: "server",
        color: RED,
        points: points("server_cpu_percent", 1.0),
    };
    draw(&left, "CPU, % of a core", &[client, server])?;
    let memory = Line {
        label: "client",
        color: BLUE,
        points: points("memory", 1.0 / f64::from(1 << 20)),
    };
    draw(&right, "memory, MiB", &[memory])?;
    picture.present()?;
    Ok(reports.iter().all(|report| report["lost"] == 0))
}

/// Does one run in a new process, whose memory no other run has used.
fn measured(options: &Options, leases: u32) -> Result<Value, Box<dyn Error + Send + Sync>> {
    let run = Command::new(current_exe()?)
        .args(["--json", "--leases", &leases.to_string()])
        .args(["--seconds", &options.time.as_secs_f64().to_string()])
        .args(["--lease-ms", &options.lease.as_millis().to_string()])
        .args(["--threads", &options.threads.to_string()])
        .args(options.topology.arguments())
        .stderr(Stdio::inherit())
        .output()?;
    serde_json::from_slice(&run.stdout)
        .map_err(|_| format!("the run ended with {}", run.status).into())
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    lines: &[Line],
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let far = |along: fn(&(f64, f64)) -> f64| -> Range<f64> {
        let all = lines.iter().flat_map(|line| &line.points);
        0.0..all.map(along).fold(0.0, f64::max) * 1.05
    };
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(title, ("sans-serif", 16))
        .x_label_area_size(36)
        .y_label_area_size(44)
        .build_cartesian_2d(far(|point| point.0), far(|point| point.1))?;
    chart
        .configure_mesh()
        .x_desc("leases held")
        .x_labels(5)
        .x_label_formatter(&|leases| format!("{leases:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for line in lines {
        let color = line.color;
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), &color).point_size(3))?
            .label(line.label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    Ok(())
}
