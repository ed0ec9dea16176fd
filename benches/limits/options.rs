//! The command line.

use std::num::NonZeroU32;

use lexopt::prelude::*;

use crate::cores::Placement;
use crate::fleet::Job;

pub const HELP: &str = "\
Measures leasehold beside the least that its work can cost on this machine. Each row is one piece of work. The
library and the fastest bare program do it in turns.

Usage: cargo bench --bench limits -- [OPTIONS]

  --only NAME    measure one row
  --json         print one line of JSON for each row instead of a table
  --rounds N     rounds of each side [default: 9 or 15, by row]
  --quick        3 short rounds, which show that it works but not how fast
  --cores WHERE  apart: the server on one core, everything else on the others [default]
                 together: everything on one core
                 free: as the system decides
  --list         print the names of the rows
  -h, --help     print this

The bench starts and stops its own servers, and ignores REDIS_URL. redis-server must be in PATH.

A line of JSON has work, ours, limit, ratio, must, met, sometimes commands_per_guard, and further figures of
its row. `ours` and `limit` are medians in the row's `unit`. `ratio` is the median of the rounds' ratios; half
of them lie between the two `ratio_quartiles`. `must` is the mark of the ratio, and `bound` says whether it is
the least or the most. `met` is true if the row meets this mark and its further bounds.
`others_percent_of_a_core` is the CPU time that other programs used meanwhile; on a busy machine the figures
are worth little.

Exit status: 0 if every row was measured, even if a mark was missed; 1 if a row could not be measured; 2 for an
invalid command line.
";

pub enum Invocation {
    Help,
    Idle,
    Run(Options),
    /// A process of a row. The help does not show the option that starts it.
    Child(Job),
}

#[derive(Default)]
pub struct Options {
    pub only: Option<String>,
    pub list: bool,
    pub json: bool,
    /// The number of rounds. If it is `None`, the row's own number counts.
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
                // `cargo test` passes options for its own test harness.
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
