//! The figures that the system reports.

use std::error::Error;
use std::fs;
use std::time::Duration;

/// Returns the CPU time of this process so far, in user mode and in the kernel.
pub fn cpu() -> Result<Duration, Box<dyn Error + Send + Sync>> {
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
