//! Thousands of threads in several processes want one lock. Does it exclude, how fast is it, and how fair?
//!
//! `cargo run --release --example stress`, with a Redis on this machine; `--help` lists the options.
//!
//! Every guard adds one to a plain counter in a shared file: it reads the counter and then writes it. Only the lock
//! keeps two threads from reading the same number. So a lock that fails loses updates, and the sums at the end show
//! it. Any process may be killed meanwhile. The others go on.
//!
//! - `options`: the command line
//! - `parent`: the first process. It starts the others, measures and reports
//! - `fleet`: the processes as the parent sees them, and the protocol between them
//! - `child`: the other end of that protocol
//! - `load`: the threads of one process, the same in parent and child
//! - `ledger`: the file that the lock protects
//! - `share`, `waits`: the result of one process, and the waits of its threads
//! - `progress`, `report`: the output
//! - `clock`: one clock for all processes

mod child;
mod clock;
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

use crate::options::{Invocation, Role, help};

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("stress: {error:#}");
        ExitCode::from(if is_usage(&*error) { 2 } else { 1 })
    })
}

fn run() -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    let options = match Invocation::from_env()? {
        Invocation::Help => {
            print!("{}", help());
            return Ok(ExitCode::SUCCESS);
        }
        Invocation::Run(options) => options,
    };
    match &options.role {
        Role::Parent => parent::run(&options),
        Role::Child { process, run } => child::run(&options, *process, run),
    }
}

/// Returns whether the command line is wrong. The library may have found that, for example in a lease of a
/// millisecond.
fn is_usage(error: &(dyn Error + 'static)) -> bool {
    error.is::<lexopt::Error>()
        || matches!(error.downcast_ref(), Some(leasehold::Error::Config { .. }))
}
