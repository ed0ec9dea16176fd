//! Thousands of threads in several processes, all after one lock: does it exclude, how fast, and how fairly?
//!
//! `cargo run --release --example stress`, with a Redis on this machine; `--help` lists the options.
//!
//! Every guard adds one to a plain counter in a shared file by reading it and then writing it. Nothing but the
//! lock keeps two threads from reading the same number, so a lock that fails loses updates, and the sums at the
//! end tell. Any of the processes may be killed meanwhile, to see the others go on.
//!
//! - `options`: the command line
//! - `parent`: the process that was started: it starts the others, measures and reports
//! - `fleet`: the processes as the parent sees them, and the protocol it speaks with them
//! - `child`: the other end of that protocol
//! - `load`: the threads of one process, the same in parent and child
//! - `ledger`: the file that the lock protects
//! - `share`, `waits`: what one process did, and how long its threads waited
//! - `commands`: the server's own count of commands
//! - `progress`, `report`: what a person sees
//! - `clock`: one clock for all processes

mod child;
mod clock;
mod commands;
mod fleet;
mod ledger;
mod load;
mod options;
mod parent;
mod progress;
mod report;
mod share;
mod waits;

use std::error::Error;
use std::process::ExitCode;

use crate::options::{HELP, Invocation, Role};

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("stress: {error}");
        ExitCode::from(if is_usage(&*error) { 2 } else { 1 })
    })
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let options = match Invocation::from_env()? {
        Invocation::Help => {
            print!("{HELP}");
            return Ok(ExitCode::SUCCESS);
        }
        Invocation::Run(options) => options,
    };
    match &options.role {
        Role::Parent => parent::run(&options),
        Role::Child { process, run } => child::run(&options, *process, run),
    }
}

/// Whether the command line is at fault, be it that only the library found out (a lease of a millisecond).
fn is_usage(error: &(dyn Error + 'static)) -> bool {
    error.is::<lexopt::Error>()
        || matches!(error.downcast_ref(), Some(leasehold::Error::Config { .. }))
}
