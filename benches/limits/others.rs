//! What else the machine did meanwhile. A row that goes to the server and back for each step loses far more by a busy
//! core than one that stays in memory, so the figures of a busy machine are worth little, and mostly flatter us.

use std::fs;

/// What was used of all cores up to now, in the system's ticks.
pub struct Watch {
    /// By anybody, the machine below a virtual one included.
    busy: i64,
    /// By this process and those it has started and waited for.
    own: i64,
    /// By anybody or nobody, on one core.
    time: i64,
}

impl Watch {
    /// None where the system does not say.
    pub fn start() -> Option<Self> {
        let system = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        // Some of a process's are negative, and count by their place.
        let numbers = |text: &str| -> Vec<i64> {
            let words = text.split_whitespace();
            words.filter_map(|word| word.parse().ok()).collect()
        };
        let cores = system
            .lines()
            .filter(|line| line.starts_with("cpu"))
            .count()
            - 1;
        // user, nice, system, idle, waiting for disks, interrupts of two kinds, stolen.
        let [user, nice, kernel, idle, disk, hard, soft, stolen, ..] =
            numbers(system.lines().next()?)[..]
        else {
            return None;
        };
        let busy = user + nice + kernel + hard + soft + stolen;
        // After the name, which may hold anything: the state, and ten numbers before the times.
        let own = numbers(own.rsplit_once(") ")?.1);
        Some(Self {
            busy,
            own: own.get(10..14)?.iter().sum(),
            time: (busy + idle + disk) / i64::try_from(cores).ok()?,
        })
    }

    /// What others have used since, as a percentage of one core. Only processes that have ended count as our own.
    pub fn percent(&self) -> Option<f64> {
        let now = Self::start()?;
        let others = (now.busy - self.busy) - (now.own - self.own);
        Some(100.0 * others.max(0) as f64 / (now.time - self.time) as f64)
    }
}
