//! A database behind a program that reads SQL, such as `psql`.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::Outcome;

pub trait Database {
    /// Runs the first statement of `sql`, which checks the fence. If the check changes a row, the rest runs in the same
    /// transaction, and the result is what the rest selects. Otherwise the result is `None`.
    ///
    /// A value is the number that stands for `:name` in the SQL.
    fn run(&self, sql: &str, values: &[(&str, i64)]) -> Outcome<Option<String>>;
}

/// Returns what a program prints that reads `input`.
pub fn pipe(program: &mut Command, input: &str) -> Outcome<String> {
    let name = program.get_program().display().to_string();
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let started = program.stderr(Stdio::piped()).spawn();
    let mut child = started.map_err(|error| format!("{name} does not start: {error}"))?;
    // A program that fails early closes its input. Its own message says why.
    let stdin = child.stdin.take();
    let written = stdin.map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name}: {}: {message}", output.status).into());
    }
    written.transpose()?;
    Ok(String::from_utf8(output.stdout)?)
}

/// Reads the output of SQL: the selected rows, and then whether the check changed a row.
pub fn answer(output: &str) -> Outcome<Option<String>> {
    match output.strip_suffix("accepted\n") {
        Some(selected) => Ok(Some(selected.to_owned())),
        None if output == "rejected\n" => Ok(None),
        None => Err(format!("not an answer of a database: {output:?}").into()),
    }
}
