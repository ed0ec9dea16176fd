//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;
use shared::{TOPOLOGY_HELP, Topology};

pub fn help() -> String {
    format!(
        "\
Acquires many locks, holds them for a while, and measures the cost of their renewal.

Usage: scale [--leases N] [--minutes M | --seconds S] [OPTIONS]
       scale --plot FILE.svg [--seconds S] [OPTIONS]

  --leases N      number of locks [default: 100000]
  --minutes M     time for which to hold them all [default: 1]
  --seconds S     the same in seconds
  --lease-ms L    lease in milliseconds [default: 30000]
  --threads T     threads that acquire and release them [default: 4]
  --plot FILE     hold 1,000 to 200,000 leases in several runs, each for the given time
                  [default: 30 s], and draw CPU and memory
{TOPOLOGY_HELP}  --json          print one line of JSON and show no progress
  -h, --help      print this

REDIS_URL is the server [default: redis://127.0.0.1/], unless an option names others. The figures of the
server are those of all masters together. Each counts its CPU and its commands, so the work of other clients
counts too. The cost of an acquire and a release is exact if the run ends before the first renewal, which
comes after a third of the lease.

Exit status: 0 if no lease was lost; 1 if one was lost, or a call failed; 2 for an invalid command line.
"
    )
}

pub enum Invocation {
    Help,
    Hold(Options),
    Plot(Options, PathBuf),
}

#[derive(Clone)]
pub struct Options {
    pub leases: usize,
    pub time: Duration,
    pub lease: Duration,
    pub threads: usize,
    pub json: bool,
    /// If it is `None`, the library's default counts.
    pub restart_delay: Option<Duration>,
    pub topology: Topology,
}

impl Invocation {
    pub fn from_env() -> Result<Self, lexopt::Error> {
        let mut options = Options {
            leases: 100_000,
            time: Duration::ZERO,
            lease: Duration::from_secs(30),
            threads: 4,
            json: false,
            restart_delay: None,
            topology: Topology::from_env(),
        };
        let (mut time, mut plot) = (None, None);
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("leases") => options.leases = parser.value()?.parse()?,
                Long("minutes") => time = Some(seconds(parser.value()?.parse::<f64>()? * 60.0)?),
                Long("seconds") => time = Some(seconds(parser.value()?.parse()?)?),
                Long("lease-ms") => {
                    options.lease = Duration::from_millis(parser.value()?.parse()?);
                }
                Long("threads") => options.threads = parser.value()?.parse()?,
                Long("plot") => plot = Some(parser.value()?.into()),
                Long("restart-delay-ms") => {
                    let delay = Duration::from_millis(parser.value()?.parse()?);
                    options.restart_delay = Some(delay);
                }
                Long(option @ ("sentinel" | "cluster" | "quorum")) => {
                    let option = option.to_owned();
                    options.topology.set(&option, parser.value()?)?;
                }
                Long("json") => options.json = true,
                Short('h') | Long("help") => return Ok(Self::Help),
                _ => return Err(argument.unexpected()),
            }
        }
        if options.leases == 0 || options.threads == 0 {
            return Err("there must be at least one lease and one thread".into());
        }
        let default = Duration::from_secs(if plot.is_some() { 30 } else { 60 });
        options.time = time.unwrap_or(default);
        Ok(match plot {
            Some(file) => Self::Plot(options, file),
            None => Self::Hold(options),
        })
    }
}

fn seconds(number: f64) -> Result<Duration, lexopt::Error> {
    Duration::try_from_secs_f64(number)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "it must be a time of more than zero".into())
}
