//! The CPU time that other programs used meanwhile. A busy core slows a row with a round trip for each step far more
//! than a row that stays in memory. So the figures of a busy machine are worth little, and mostly favour ours.

use std::fs;

/// The CPU time used so far on all cores, in ticks of the system.
pub struct Watch {
    /// The time used by all programs, also by the machine below a virtual one.
    busy: i64,
    /// The time used by this process, and by the processes that it started and waited for.
    own: i64,
    /// The time that has passed, on one core.
    time: i64,
}

impl Watch {
    /// Returns `None` if the system does not report the times.
    pub fn start() -> Option<Self> {
        let system = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        // Some fields are negative. They count as fields too.
        let numbers = |text: &str| -> Vec<i64> {
            let words = text.split_whitespace();
            words.filter_map(|word| word.parse().ok()).collect()
        };
        let cores = system
            .lines()
            .filter(|line| line.starts_with("cpu"))
            .count()
            - 1;
        // user, nice, system, idle, waiting for disks, two kinds of interrupts, stolen.
        let [user, nice, kernel, idle, disk, hard, soft, stolen, ..] =
            numbers(system.lines().next()?)[..]
        else {
            return None;
        };
        let busy = user + nice + kernel + hard + soft + stolen;
        // The state and ten numbers come before the times. The name of the program may contain anything.
        let own = numbers(own.rsplit_once(") ")?.1);
        Some(Self {
            busy,
            own: own.get(10..14)?.iter().sum(),
            time: (busy + idle + disk) / i64::try_from(cores).ok()?,
        })
    }

    /// Returns the time that others have used since, as a percentage of one core. Time of this program's processes
    /// counts as its own only if they have ended.
    pub fn percent(&self) -> Option<f64> {
        let now = Self::start()?;
        let others = (now.busy - self.busy) - (now.own - self.own);
        Some(100.0 * others.max(0) as f64 / (now.time - self.time) as f64)
    }
}
