//! The command line.

use std::env;
use std::ffi::OsString;
use std::io;
use std::num::{NonZeroU32, NonZeroU64};
use std::process::Command;
use std::time::Duration;

use leasehold::LockManager;
use lexopt::prelude::*;
use shared::{TOPOLOGY_HELP, Topology};

use crate::clock;

pub fn help() -> String {
    format!(
        "\
Thousands of threads in several processes want one lock. Each guard adds one to a plain counter in a shared
file: it reads the counter and then writes it. So a lock that fails loses updates.

Usage: stress [--threads N] [--processes P] [--increments K | --seconds S] [OPTIONS]

  --threads N     threads in each process [default: 1000]
  --processes P   processes, with this one [default: 2]
  --increments K  each thread takes K guards
  --seconds S     each thread takes guards until S seconds have passed; a thread that waits then
                  still gets one [default: 5]
  --names M       rotate over M locks [default: 1]
  --hold-us U     hold each guard for U microseconds [default: 0]
  --lease-ms L    lease in milliseconds; a killed holder delays the others by at most one lease
                  [default: 30000]
  --io-timeout-ms T
                  time limit of a request in milliseconds [default: 1000]
{TOPOLOGY_HELP}  --json          print one line of JSON and show no progress
  -h, --help      print this

REDIS_URL is the server [default: redis://127.0.0.1/], unless an option names others. The masters count the
commands, so commands of other clients count too, and each master of a quorum counts.

Any process may be killed; the others go on. A fence violation is a guard that believes it holds the lock
although the file has a fence as new as its own. A lost lease is a guard that knew it had lost the lock.
Neither writes, and neither counts as a guard.

Exit status: 0 if no update was lost, no fence was violated and no call failed; 1 otherwise; 2 for an invalid
command line.
"
    )
}

pub enum Invocation {
    Help,
    Run(Options),
}

pub struct Options {
    /// The threads of each process.
    pub threads: u32,
    pub processes: u32,
    pub work: Work,
    pub names: u32,
    pub hold: Duration,
    /// The lease. If it is `None`, the library's default counts.
    pub lease: Option<Duration>,
    /// The time limit of a request. If it is `None`, the library's default counts.
    pub io_timeout: Option<Duration>,
    pub json: bool,
    /// If it is `None`, the library's default counts.
    pub restart_delay: Option<Duration>,
    pub topology: Topology,
    pub role: Role,
}

/// The work of a thread.
#[derive(Clone, Copy)]
pub enum Work {
    Increments(u64),
    Seconds(Duration),
}

pub enum Role {
    Parent,
    /// A process that the parent starts. The help does not show the options that start it.
    Child {
        process: u32,
        run: String,
    },
}

impl Invocation {
    pub fn from_env() -> Result<Self, lexopt::Error> {
        let mut options = Options {
            threads: 1_000,
            processes: 2,
            work: Work::Seconds(Duration::from_secs(5)),
            names: 1,
            hold: Duration::ZERO,
            lease: None,
            io_timeout: None,
            json: false,
            restart_delay: None,
            topology: Topology::from_env(),
            role: Role::Parent,
        };
        let (mut increments, mut seconds) = (None, None);
        let (mut child, mut run) = (None, None);

        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("threads") => options.threads = at_least_one(&mut parser)?,
                Long("processes") => options.processes = at_least_one(&mut parser)?,
                Long("names") => options.names = at_least_one(&mut parser)?,
                Long("increments") => increments = Some(parser.value()?.parse::<NonZeroU64>()?),
                Long("seconds") => seconds = Some(parser.value()?.parse_with(parse_seconds)?),
                Long("hold-us") => options.hold = Duration::from_micros(parser.value()?.parse()?),
                Long("lease-ms") => {
                    options.lease = Some(Duration::from_millis(parser.value()?.parse()?));
                }
                Long("io-timeout-ms") => {
                    options.io_timeout = Some(Duration::from_millis(parser.value()?.parse()?));
                }
                Long("restart-delay-ms") => {
                    let delay = Duration::from_millis(parser.value()?.parse()?);
                    options.restart_delay = Some(delay);
                }
                Long(option @ ("sentinel" | "cluster" | "quorum")) => {
                    let option = option.to_owned();
                    options.topology.set(&option, parser.value()?)?;
                }
                Long("json") => options.json = true,
                Long("child") => child = Some(parser.value()?.parse()?),
                Long("run") => run = Some(parser.value()?.string()?),
                Short('h') | Long("help") => return Ok(Self::Help),
                _ => return Err(argument.unexpected()),
            }
        }

        match (increments, seconds) {
            (Some(_), Some(_)) => {
                return Err("--increments and --seconds exclude each other".into());
            }
            (Some(increments), None) => options.work = Work::Increments(increments.get()),
            (None, Some(seconds)) => options.work = Work::Seconds(seconds),
            (None, None) => {}
        }
        if let (Some(process), Some(run)) = (child, run) {
            options.role = Role::Child { process, run };
        }
        Ok(Self::Run(options))
    }
}

impl Options {
    pub fn connect(&self) -> leasehold::Result<LockManager> {
        let mut builder = self.topology.builder();
        if let Some(lease) = self.lease {
            builder = builder.lease(lease);
        }
        if let Some(limit) = self.io_timeout {
            builder = builder.io_timeout(limit);
        }
        if let Some(delay) = self.restart_delay {
            builder = builder.restart_delay(delay);
        }
        builder.build()
    }

    /// Returns a command that starts another process of this run: this program, with the same options and a role.
    pub fn child_command(process: u32, run: &str) -> io::Result<Command> {
        let same: Vec<OsString> = env::args_os().skip(1).collect();
        let mut command = Command::new(env::current_exe()?);
        command
            .args(same)
            .args(["--child", &process.to_string(), "--run", run]);
        Ok(command)
    }
}

impl Work {
    /// Returns whether a thread that has had `turns` turns since `start` must stop.
    pub fn is_done(self, turns: u64, start: Duration) -> bool {
        match self {
            Self::Increments(increments) => turns >= increments,
            Self::Seconds(seconds) => clock::now() >= start.saturating_add(seconds),
        }
    }
}

fn at_least_one(parser: &mut lexopt::Parser) -> Result<u32, lexopt::Error> {
    Ok(parser.value()?.parse::<NonZeroU32>()?.get())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "not a number".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) => Err("it must be more than zero".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
