//! The output: a table, or a line of JSON for each row.

use serde_json::{Map, Value, json};

use crate::row::{Measured, Must, Row};

const WIDTH: usize = 24;
/// The percentage of a core above which the table mentions other programs. The system's work on our packets counts as
/// theirs.
const QUIET: f64 = 15.0;

/// Prints the head of the table.
pub fn head(cores: &str) {
    println!("{cores}");
    println!(
        "The ratio is the median of the rounds' ratios; half of them lie within the brackets.\n"
    );
    println!(
        "{:WIDTH$} {:>10} {:>10}  {:<15} {:>22}  {:>8}",
        "work", "ours", "limit", "unit", "ratio", "must"
    );
}

/// Prints a row of the table, and its further figures below.
pub fn table_row(row: &Row, measured: &Measured, others: Option<f64>) {
    let [low, ratio, high] = measured.ratios();
    println!(
        "{:WIDTH$} {:>10} {:>10}  {:<15} {:>22}  {:>8}  {}",
        row.work,
        short(measured.ours()),
        short(measured.limit()),
        row.unit,
        format!("{} ({}…{})", short(ratio), short(low), short(high)),
        must(row.must),
        if measured.meets(row.must) {
            "met"
        } else {
            "MISSED"
        },
    );
    println!("{:WIDTH$}   limit: {}", "", row.limit);
    if let Some(others) = others.filter(|others| *others > QUIET) {
        println!(
            "{:WIDTH$}   NOISE: other programs used {others:.0} % of a core meanwhile",
            ""
        );
    }
    for figure in &measured.figures {
        let bound = figure.must.map_or(String::new(), |bound| {
            let word = if bound.is_met(figure.value) {
                "met"
            } else {
                "MISSED"
            };
            format!(", must be {}: {word}", must(bound))
        });
        println!(
            "{:WIDTH$}   {}: {}{bound}",
            "",
            figure.name,
            short(figure.value)
        );
    }
}

/// Prints a row as a line of JSON.
pub fn json_row(row: &Row, measured: &Measured, others: Option<f64>) {
    let [low, ratio, high] = measured.ratios();
    let mut line = Map::new();
    let mut put = |name: &str, value| line.insert(name.to_owned(), value);
    put("work", json!(row.work));
    put("ours", number(measured.ours()));
    put("limit", number(measured.limit()));
    put("unit", json!(row.unit));
    put("ratio", number(ratio));
    put("ratio_quartiles", json!([number(low), number(high)]));
    put("must", number(row.must.mark()));
    let bound = match row.must {
        Must::AtLeast(_) => "at least",
        Must::AtMost(_) => "at most",
    };
    put("bound", json!(bound));
    put("met", json!(measured.meets(row.must)));
    put("rounds", json!(measured.rounds.len()));
    put(
        "others_percent_of_a_core",
        others.map_or(Value::Null, number),
    );
    for figure in &measured.figures {
        put(figure.name, number(figure.value));
    }
    println!("{}", Value::Object(line));
}

fn must(must: Must) -> String {
    match must {
        Must::AtLeast(mark) => format!("≥ {mark}"),
        Must::AtMost(mark) => format!("≤ {mark}"),
    }
}

/// More than four digits would only show noise.
fn number(value: f64) -> Value {
    json!(format!("{value:.3e}").parse::<f64>().ok())
}

fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
