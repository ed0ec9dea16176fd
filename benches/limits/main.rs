//! The figures. Each row measures a piece of work beside the least that it can cost on this machine.
//!
//! A row has two sides. *Ours* is leasehold. The *limit* is the fastest way to do the same by hand. The limit may
//! leave out whatever makes a lock safe or fair, if this work does not need it. These rules make a row meaningful on
//! a noisy machine:
//!
//! * The sides take turns in one run, and the side that begins changes with every round. So a drift affects both.
//! * Each pair of rounds has a ratio. The row's ratio is the median of these, and the quartiles show the noise.
//! * Both sides are bound to the same cores ([`cores`]), use the same server, and check every reply.
//! * Both sides create connections, threads, processes and names before the clock starts.
//! * The server counts the commands, also those inside of scripts.
//! * Each row shows what other programs used of the machine meanwhile ([`others`]).
//!
//! [`rows`] has the rows in the order of the table. [`options::HELP`] has the command line.

#![allow(
    clippy::incompatible_msrv,
    reason = "only the library is compiled with the oldest Rust"
)]
#![allow(
    clippy::cast_precision_loss,
    reason = "figures of three digits, of counts that a float has exactly"
)]

mod bare;
mod cores;
mod fleet;
mod link;
mod nodes;
mod options;
mod others;
mod report;
mod row;
mod rows;
mod server;
mod team;

use std::error::Error;
use std::process::ExitCode;

use options::Invocation;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let done = match Invocation::from_env() {
        Ok(Invocation::Help) => {
            print!("{}", options::HELP);
            Ok(())
        }
        // `cargo test --all-targets` runs benches too, and must not take minutes.
        Ok(Invocation::Idle) => {
            println!("limits: without --bench, which `cargo bench` passes, nothing is measured");
            Ok(())
        }
        Ok(Invocation::Child(job)) => rows::serve(&job),
        Ok(Invocation::Run(options)) => rows::measure(&options),
        Err(error) => {
            eprintln!("limits: {error}\nTry --help.");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("limits: {error}");
            ExitCode::FAILURE
        }
    }
}
