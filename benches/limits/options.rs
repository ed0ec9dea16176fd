//! The command line.

use std::num::NonZeroU32;

use lexopt::prelude::*;

use crate::cores::Placement;
use crate::fleet::Job;

pub const HELP: &str = "\
Measures leasehold against what the machine can do: each row is one piece of work, done by the library and
by the fastest bare means there is, in turns.

Usage: cargo bench --bench limits -- [OPTIONS]

  --only NAME    measure one row
  --json         print one line of JSON a row instead of a table
  --rounds N     rounds of each side [default: 9 or more, by row]
  --quick        3 short rounds: whether it works, not how fast it is
  --cores WHERE  apart: the server on one core, all else on the others [default]
                 together: everything on one core
                 free: wherever the system puts it
  --list         name the rows
  -h, --help     print this

It starts servers of its own (redis-server must be in PATH) and stops them; REDIS_URL is not looked at.

A line of JSON has work, ours, limit, ratio, must, met, commands_per_guard where it applies, and further
figures of its row. `ours` and `limit` are medians in the row's `unit`; `ratio` is the median of the rounds'
ratios, and `ratio_quartiles` are what half of them lie between; `must` is what the ratio is to reach, as
`bound` says: at least or at most. `met` is true if that and the row's further bounds hold. What others used
of the machine meanwhile is `others_percent_of_a_core`; on a busy machine the figures are worth little.

Exit status: 0 if everything was measured, met or not; 1 if something could not be; 2 for a command line that
makes no sense.
";

pub enum Invocation {
    Help,
    Idle,
    Run(Options),
    /// One of the processes that a row starts, by options that the help keeps to itself.
    Child(Job),
}

#[derive(Default)]
pub struct Options {
    pub only: Option<String>,
    pub list: bool,
    pub json: bool,
    /// The row's own number where there is none.
    pub rounds: Option<u32>,
    pub quick: bool,
    pub placement: Placement,
}

impl Invocation {
    pub fn from_env() -> Result<Self, lexopt::Error> {
        let mut options = Options::default();
        let mut measures = false;
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("bench") => measures = true,
                Long("only") => options.only = Some(parser.value()?.string()?),
                Long("list") => options.list = true,
                Long("json") => options.json = true,
                Long("rounds") => {
                    options.rounds = Some(parser.value()?.parse::<NonZeroU32>()?.get());
                }
                Long("quick") => options.quick = true,
                Long("cores") => options.placement = parser.value()?.parse()?,
                Long("child") => {
                    let words = parser.values()?.map(ValueExt::string);
                    let words = words.collect::<Result<Vec<_>, _>>()?;
                    return Ok(Self::Child(Job::from_words(&words)?));
                }
                Short('h') | Long("help") => return Ok(Self::Help),
                // What `cargo test` hands to a harness says nothing to this one.
                _ if !measures => return Ok(Self::Idle),
                _ => return Err(argument.unexpected()),
            }
        }
        // `cargo bench` puts its own option last.
        Ok(if measures {
            Self::Run(options)
        } else {
            Self::Idle
        })
    }
}
