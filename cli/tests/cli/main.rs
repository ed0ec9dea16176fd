//! The command line `leasehold`, as processes beside real servers.

#![allow(
    clippy::incompatible_msrv,
    reason = "only the library is compiled with the oldest Rust"
)]

use leasehold_test_support as support;

mod bench;
mod doctor;
mod elect;
mod operate;
mod page;
mod run;
mod settings;
mod terminal;
mod watch;
mod work;

use std::process::{Command, Output};

/// Returns the command line with these servers, and no other setting. `env` ends the ignoring of signals, which a test in the
/// background of a script inherits.
fn leasehold(url: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_leasehold")]);
    command.env_remove("REDIS_URL").env("LEASEHOLD_URL", url);
    command
}

/// Runs a subcommand to its end, and returns its output.
#[track_caller]
fn output(url: &str, arguments: &[&str]) -> Output {
    leasehold(url)
        .args(arguments)
        .output()
        .expect("the program was built")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
