//! The figures: each piece of work measured against the least that it could cost on this machine.
//!
//! A row has two sides, *ours* and its *limit*: the fastest way in which somebody who knows Redis would do the same by
//! hand, for this one case, without what makes a lock safe or fair where the work does not need it. So that a row says
//! something on a machine that is noisy and unlike others:
//!
//! * the sides take turns in one run, and the one that begins changes with every round, so drift meets both;
//! * each pair of rounds has its ratio, and the median of these is the row's; the quartiles show the noise;
//! * both sides are bound to the same cores ([`cores`]), use the same server, started for the row, and check all that
//!   is answered;
//! * connections, threads, processes and names are made before the clock starts, on both sides;
//! * commands are counted by the server, those inside of scripts included;
//! * each row says what others used of the machine meanwhile ([`others`]).
//!
//! The rows stand in [`rows`], in the order of the table; [`options::HELP`] has the command line.

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
        // `cargo test --all-targets` runs benches too, and does not want to wait for minutes.
        Ok(Invocation::Idle) => {
            println!("limits: nothing is measured without --bench, which `cargo bench` gives");
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
