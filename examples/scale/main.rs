//! How many leases can one process hold, and what does each cost?
//!
//! `cargo run --release --example scale -- --leases 100000 --minutes 5`, with a Redis on this machine; `--help` lists
//! the options. A debug build warns, because its figures are too high.
//!
//! The example acquires N locks with N names, holds them for a while, and measures the cost of their renewal on both
//! sides. `--plot FILE` does so for 1,000 to 200,000 leases, each number in a new process. It draws CPU and memory
//! against the number. Both are straight lines if the cost of a lease does not depend on the number.
//!
//! - `options`: the command line
//! - `hold`: one run: acquires, holds and releases the locks, and measures
//! - `usage`: the figures that the system reports
//! - `report`: the result of a run, for people and as JSON
//! - `plot`: many runs, and the picture

mod hold;
mod options;
mod plot;
mod report;
mod usage;

use std::error::Error;
use std::process::ExitCode;

use crate::options::{Invocation, help};

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("scale: {error:#}");
            ExitCode::from(if is_usage(&*error) { 2 } else { 1 })
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    let invocation = Invocation::from_env()?;
    if cfg!(debug_assertions) && !matches!(invocation, Invocation::Help) {
        eprintln!(
            "scale: warning: this is a debug build, so its CPU figures are too high; use --release"
        );
    }
    let is_good = match invocation {
        Invocation::Help => {
            print!("{}", help());
            true
        }
        Invocation::Hold(options) => {
            let report = hold::run(&options)?;
            println!("{}", report.shown(options.json));
            report.is_good()
        }
        Invocation::Plot(options, file) => plot::run(&options, &file)?,
    };
    Ok(ExitCode::from(u8::from(!is_good)))
}

/// Returns whether the command line is wrong. The library may have found that, for example in a lease of a
/// millisecond.
fn is_usage(error: &(dyn Error + 'static)) -> bool {
    error.is::<lexopt::Error>()
        || matches!(error.downcast_ref(), Some(leasehold::Error::Config { .. }))
}
