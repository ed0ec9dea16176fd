//! `leader` prints what the leader of an election has published.

use std::io::{self, ErrorKind, Write};

use clap::Args;
use leasehold::Leader;
use serde_json::json;

use crate::exit::{Failure, LOST};
use crate::output::{complain, safe};
use crate::servers::Servers;

/// The status if nobody leads.
const NOBODY: u8 = 1;

/// Prints the value of the leader, such as its address
///
/// `leasehold elect`, or a program with the library, publishes it while it leads.
#[derive(Args)]
pub struct Options {
    /// Print who leads now, and then each change, a line each, until a signal ends this program. While nobody leads, or the servers
    /// cannot be reached for a lease, that is `-`
    #[arg(long)]
    watch: bool,
    /// Print a JSON object with value, fence and since, which are null if nobody leads
    #[arg(long)]
    json: bool,
    /// The name of the election
    #[arg(value_name = "NAME")]
    name: String,
}

pub fn main(servers: &Servers, options: &Options) -> Result<u8, Failure> {
    let locks = servers.connect()?;
    let election = locks.election(&options.name);
    if !options.watch {
        let leader = election.leader()?;
        if leader.is_some() || options.json {
            print(leader.as_ref(), options.json)?;
        }
        if leader.is_none() {
            complain(&format!("nobody leads {}", options.name));
        }
        return Ok(if leader.is_some() { 0 } else { NOBODY });
    }
    let mut last = None;
    for leader in election.observe()? {
        // The same state comes again each 30 s.
        if last.as_ref() == Some(&leader) {
            continue;
        }
        if !print(leader.as_ref(), options.json)? {
            return Ok(0);
        }
        last = Some(leader);
    }
    Err(Failure::new(LOST, "the leader is not observed any more"))
}

/// Prints a line. Returns whether somebody may read the next one.
fn print(leader: Option<&Leader>, as_json: bool) -> Result<bool, Failure> {
    let line = if as_json {
        let since = leader.map(|it| humantime::format_rfc3339_millis(it.since).to_string());
        let (value, fence) = leader.map(|it| (&it.value, it.fence)).unzip();
        json!({ "value": value, "fence": fence, "since": since }).to_string()
    } else {
        leader.map_or_else(|| "-".to_owned(), |it| safe(&it.value))
    };
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::system("cannot write", error)),
    }
}
