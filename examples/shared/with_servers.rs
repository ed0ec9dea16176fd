//! Runs a command on a throwaway Sentinel set or Cluster, without redis-cli.
//!
//! `cargo run --package leasehold-shared -- cluster COMMAND…` runs `COMMAND… --cluster URL,URL,…`, and `sentinel` in
//! place of `cluster` runs `COMMAND… --sentinel MASTER=URL,URL,…`. A Sentinel set has one master, two replicas and three
//! sentinels. A Cluster has three masters without replicas. The exit status is that of the command.

use std::env;
use std::process::{self, Command, ExitCode};
use std::time::Duration;

use shared::{Cluster, MASTER, Result, Sentinels};

/// The time after which the servers take a server for dead.
const DOWN_AFTER: Duration = Duration::from_secs(5);

fn main() -> Result<ExitCode> {
    let words: Vec<_> = env::args_os().skip(1).collect();
    let [topology, program, arguments @ ..] = &words[..] else {
        eprintln!("usage: with-servers sentinel|cluster COMMAND [ARGUMENT...]");
        process::exit(64);
    };
    let mut command = Command::new(program);
    command.args(arguments);
    let status = if topology == "sentinel" {
        let set = Sentinels::start(2, DOWN_AFTER)?;
        let servers = format!("{MASTER}={}", set.urls().join(","));
        command.args(["--sentinel", &servers]).status()?
    } else if topology == "cluster" {
        let cluster = Cluster::start(0, DOWN_AFTER)?;
        let servers = cluster.urls().join(",");
        command.args(["--cluster", &servers]).status()?
    } else {
        return Err("the servers are `sentinel` or `cluster`".into());
    };
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
