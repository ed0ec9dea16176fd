//! A chart as SVG. A page shows it as an image: so it has its own background, and no style sheet.

use std::fmt::Write;

const TEXT: &str = "#1f2328";
const FAINT: &str = "#57606a";
const GRID: &str = "#d0d7de";
const PAPER: &str = "#ffffff";
const COLOURS: [&str; 6] = [
    "#0969da", "#bc4c00", "#1a7f37", "#8250df", "#9a6700", "#57606a",
];
const WIDTH: f64 = 800.0;
/// The width of a letter.
const LETTER: f64 = 7.0;
const TOP: f64 = 66.0;

/// Lines over the time, in panels beside each other.
pub(super) struct Lines {
    pub(super) title: &'static str,
    pub(super) about: String,
    pub(super) time_unit: &'static str,
    pub(super) panels: Vec<Panel>,
    /// The meaning of each line of a panel.
    pub(super) series: Vec<String>,
    pub(super) caption: &'static str,
}

pub(super) struct Panel {
    pub(super) unit: &'static str,
    /// For each line its points, from left to right.
    pub(super) lines: Vec<Vec<(f64, f64)>>,
}

struct Picture(String);

impl Lines {
    pub(super) fn draw(&self) -> String {
        const HEIGHT: f64 = 200.0;
        let bottom = TOP + 20.0 + HEIGHT;
        let mut picture = Picture::new(bottom + 66.0, self.title, &self.about, self.caption);
        picture.legend(&self.series);
        let width = (WIDTH - 28.0) / self.panels.len().max(1) as f64;
        for (at, panel) in self.panels.iter().enumerate() {
            let (left, right) = (
                14.0 + width * at as f64 + 44.0,
                14.0 + width * (at + 1) as f64 - 14.0,
            );
            let points = || panel.lines.iter().flatten();
            let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
            let (across, up) = (ticks(most(|point| point.0)), ticks(most(|point| point.1)));
            let far = |ticks: &[f64]| ticks.last().copied().unwrap_or(1.0);
            let x = |value: f64| left + (right - left) * value / far(&across);
            let y = |value: f64| bottom - HEIGHT * value / far(&up);
            picture.text(left - 36.0, TOP + 6.0, panel.unit, "start", TEXT, 12);
            for tick in &up {
                picture.line(left, y(*tick), right, y(*tick), GRID);
                picture.text(left - 5.0, y(*tick) + 4.0, &plain(*tick), "end", FAINT, 11);
            }
            for tick in &across {
                picture.line(x(*tick), bottom, x(*tick), bottom + 4.0, FAINT);
                picture.text(x(*tick), bottom + 16.0, &plain(*tick), "middle", FAINT, 11);
            }
            picture.line(left, bottom, right, bottom, FAINT);
            picture.line(left, TOP + 20.0, left, bottom, FAINT);
            picture.text(
                f64::midpoint(left, right),
                bottom + 34.0,
                self.time_unit,
                "middle",
                TEXT,
                12,
            );
            for (row, points) in panel.lines.iter().enumerate() {
                let points = points.iter().map(|(at, value)| (x(*at), y(*value)));
                picture.path(points, colour(row));
            }
        }
        picture.end()
    }
}

/// Returns the ticks of an axis, from zero to a round number that is not below `most`.
fn ticks(most: f64) -> Vec<f64> {
    let rough = most.max(1e-9) / 4.0;
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    let step = steps
        .into_iter()
        .map(|step| step * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(rough);
    let count = (most / step).ceil().max(1.0) as u32;
    (0..=count).map(|tick| f64::from(tick) * step).collect()
}

impl Picture {
    fn new(height: f64, title: &str, about: &str, caption: &str) -> Self {
        let mut picture = Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"{TEXT}\">\n\
             <title>{}</title>\n<desc>{}</desc>\n",
            escaped(title),
            escaped(about)
        ));
        picture.add(format_args!(
            "<rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" fill=\"{PAPER}\" stroke=\"{GRID}\" rx=\"8\"/>",
            WIDTH - 1.0,
            height - 1.0
        ));
        picture.add(format_args!(
            "<text x=\"14\" y=\"27\" font-size=\"15\" font-weight=\"bold\">{}</text>",
            escaped(title)
        ));
        picture.text(14.0, height - 12.0, caption, "start", FAINT, 12);
        picture
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // A string takes each text.
        writeln!(self.0, "{element}").ok();
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
        ));
    }

    fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, stroke: &str) {
        self.add(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{stroke}\"/>"
        ));
    }

    fn text(&mut self, x: f64, y: f64, text: &str, anchor: &str, fill: &str, size: u32) {
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{fill}\">{}</text>",
            escaped(text)
        ));
    }

    fn path(&mut self, points: impl Iterator<Item = (f64, f64)>, stroke: &str) {
        let mut path = String::new();
        for (at, (x, y)) in points.enumerate() {
            write!(path, "{}{x:.1} {y:.1}", if at == 0 { "M" } else { "L" }).ok();
        }
        self.add(format_args!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"2\"/>"
        ));
    }

    /// Draws the colours and their meaning, below the title.
    fn legend(&mut self, series: &[String]) {
        let mut x = 14.0;
        for (row, name) in series.iter().enumerate() {
            self.rect(x, 38.0, 11.0, 11.0, colour(row));
            self.text(x + 16.0, 48.0, name, "start", TEXT, 12);
            x += 36.0 + LETTER * name.chars().count() as f64;
        }
    }

    fn end(self) -> String {
        self.0 + "</svg>\n"
    }
}

/// Returns the words of a chart, for those who do not see it.
pub(super) fn about(picture: &str) -> &str {
    let about = picture.split_once("<desc>");
    about
        .and_then(|(_, rest)| rest.split_once("</desc>"))
        .map_or("", |(about, _)| about)
}

fn colour(row: usize) -> &'static str {
    COLOURS[row % COLOURS.len()]
}

/// Returns a number of an axis.
fn plain(value: f64) -> String {
    if value >= 10.0 || value.fract() < 1e-9 {
        super::table::number(value.round() as u64)
    } else {
        format!("{value:.2}").trim_end_matches('0').to_owned()
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_behind_its_largest_value() {
        for most in [0.0, 0.3, 1.0, 7.0, 18.4, 99.0, 1_234.0, 1e6] {
            let ticks = ticks(most);
            assert!(
                ticks[ticks.len() - 1] >= most && ticks.len() <= 8,
                "{most}: {ticks:?}"
            );
        }
    }
}
