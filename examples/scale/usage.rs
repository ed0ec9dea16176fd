//! The figures that the system and the masters report.

use std::error::Error;
use std::fs;
use std::ops::Add;
use std::time::Duration;

use shared::Masters;

/// The work of this process, and of all masters together.
#[derive(Clone, Copy)]
pub struct Work {
    /// The CPU time of this process.
    pub client: Duration,
    /// The CPU time of the masters.
    pub server: Duration,
    /// The commands that the masters ran, also those in scripts.
    pub commands: u64,
}

impl Work {
    /// Returns the work so far.
    pub fn so_far(masters: &mut Masters) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let figures = masters.figures()?;
        Ok(Self {
            client: cpu()?,
            server: figures.cpu,
            commands: figures.commands,
        })
    }

    /// Returns the difference to earlier work.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            client: self.client.saturating_sub(earlier.client),
            server: self.server.saturating_sub(earlier.server),
            commands: self.commands.saturating_sub(earlier.commands),
        }
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            client: self.client + other.client,
            server: self.server + other.server,
            commands: self.commands + other.commands,
        }
    }
}

/// Returns the CPU time of this process so far, in user mode and in the kernel.
fn cpu() -> Result<Duration, Box<dyn Error + Send + Sync>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The second field is the program's name in parentheses, which may contain spaces. `utime` and `stime` are the
    // 14th and the 15th field (proc_pid_stat(5)).
    let rest = stat.rsplit_once(')').ok_or("no stat")?.1;
    let ticks: f64 = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum();
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_secs_f64(
        ticks / f64::from(u32::try_from(per_second)?),
    ))
}

/// Returns the memory that this process uses, in bytes.
pub fn memory() -> Result<usize, Box<dyn Error + Send + Sync>> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: usize = statm.split(' ').nth(1).ok_or("no statm")?.parse()?;
    Ok(pages * rustix::param::page_size())
}
