//! A process that the parent starts. `fleet` has the protocol.

use std::error::Error;
use std::io::{self, Write};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::fleet::{GO, READY};
use crate::ledger::{self, Ledger};
use crate::load::Load;
use crate::options::Options;

pub fn run(
    options: &Options,
    process: u32,
    run: &str,
) -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    let locks = options.connect()?;
    let ledger = Arc::new(Ledger::open(run, options.names)?);
    let load = Load::prepare(options, &locks, ledger, run, process)?;

    let Ok(Some(start)) = say(READY).and_then(|()| hear_start()) else {
        // The parent has ended, so this process removes the ledger.
        ledger::remove(run);
        return Ok(ExitCode::FAILURE);
    };
    thread::spawn(end_with_parent);
    let share = load.run(start);
    say(&share.to_json().to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// Returns the start, or `None` if the parent has ended before it.
fn hear_start() -> io::Result<Option<Duration>> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let start_us = line.trim_end().strip_prefix(GO).map(str::trim);
    Ok(start_us
        .and_then(|start_us| start_us.parse().ok())
        .map(Duration::from_micros))
}

/// Ends this process as soon as the parent has ended, because no process reads the result then. The locks expire with
/// their leases. No other program uses their names.
fn end_with_parent() {
    // A broken pipe means the same as an end.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    process::exit(1);
}
