//! The time from a release in one process until a waiter in another process holds the lock.
//!
//! Two processes hold one name in turn. Each holds it for a while, so that the other is asleep in the queue again. A
//! turn for which the other was not in the queue does not count. Both read the machine's clock, so their times can be
//! compared.

use std::thread;
use std::time::Duration;

use leasehold::LockManager;
use rustix::time::{ClockId, clock_gettime};

use crate::Result;
use crate::bare::{self, Token};
use crate::fleet::{Answer, Fleet, Job, Side};
use crate::row::{Bench, Measured, quantile};

const HOLD: Duration = Duration::from_millis(2);
/// A process that asked this long before the release is in the queue by then: this is several times the time that it
/// needs.
const WAITS_AFTER_NS: u64 = 500_000;
/// The number of first turns that do not count, because code and connections are still cold.
const COLD: usize = 20;

/// Measures hand-overs. `part` is the part of them that is faster than the result: 0.5 for the median.
pub fn measure(bench: &Bench, part: f64) -> Result<Measured> {
    let turns = bench.count(400) as u64;
    let latency = |side, name: String| {
        let job = Job {
            work: bench.work.to_owned(),
            side,
            url: bench.url().to_owned(),
            name,
            count: turns,
            ms: 0,
        };
        let times = Fleet::start(&job, 2)?.ask("go")?;
        let latencies = latencies(&times);
        if latencies.len() < bench.count(400) {
            return Err("too few hand-overs found the other process waiting".into());
        }
        Ok(quantile(latencies, part))
    };
    let mut observer = bench.server.observer()?;
    let ours = |round| latency(Side::Ours, bench.name(round));
    let limit = |round| {
        let name = bench.bare_name(round);
        observer.ask::<u32>(&bare::put(&name, 1))?;
        latency(Side::Limit, name)
    };
    Ok(Measured::new(bench.interleave(ours, limit)?))
}

/// Returns the times in µs from each release to the next turn, from the turns of two processes.
fn latencies(times: &[Vec<u64>]) -> Vec<f64> {
    let mut turns: Vec<_> = times
        .iter()
        .enumerate()
        .flat_map(|(process, times)| {
            let turns = times.chunks_exact(3).skip(COLD);
            turns.map(move |turn| (turn[1], turn[0], turn[2], process))
        })
        .collect();
    turns.sort_unstable();
    turns
        .windows(2)
        .filter_map(|pair| {
            let [(_, _, released, before), (held, asked, _, process)] = pair else {
                return None;
            };
            let waited = asked + WAITS_AFTER_NS < *released;
            (waited && before != process).then(|| held.saturating_sub(*released) as f64 / 1_000.0)
        })
        .collect()
}

/// Serves a process. For each turn it reports when it asked, when it was granted, and when it began to release, in
/// ns.
pub fn serve(job: &Job) -> Result<Answer> {
    let count = job.count;
    Ok(match job.side {
        Side::Ours => {
            let mutex = LockManager::connect(&job.url)?.mutex(&job.name);
            Box::new(move |_| {
                let mut times = Vec::new();
                for _ in 0..count {
                    times.push(now());
                    let guard = mutex.lock()?;
                    times.push(now());
                    thread::sleep(HOLD);
                    times.push(now());
                    guard.release()?;
                }
                Ok(times)
            })
        }
        Side::Limit => {
            let mut token = Token::new(&job.url, &job.name)?;
            Box::new(move |_| {
                let mut times = Vec::new();
                for _ in 0..count {
                    times.push(now());
                    token.take()?;
                    times.push(now());
                    thread::sleep(HOLD);
                    times.push(now());
                    token.put()?;
                }
                Ok(times)
            })
        }
    })
}

/// Returns the machine's clock, which is the same in every process.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
