//! The time from a release in one process until a waiter in another process holds the lock.
//!
//! Two processes hold one name in turn. Each holds it for a while, so that the other is asleep in the queue again. A
//! turn for which the other was not in the queue does not count. Both read the machine's clock, so their times can be
//! compared.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::LockManager;
use rustix::time::{ClockId, clock_gettime};

use crate::Result;
use crate::bare::{self, Token};
use crate::fleet::{Answer, Fleet, Job, Side};
use crate::link::Link;
use crate::row::{Bench, Measured, median, quantile};

/// How two processes take turns.
struct Pace {
    /// The turns of each process.
    turns: u64,
    hold: Duration,
    /// A process that asked this long before the release is in the queue by then: this is several times the time that
    /// it needs.
    waits_after: Duration,
    /// The number of first turns of each process that do not count, because code and connections are still cold.
    cold: usize,
}

/// The time that a packet needs in one direction of a long link.
const FAR: Duration = Duration::from_millis(10);
/// The number of PINGs in a round.
const PINGS: usize = 20;

/// Measures hand-overs beside a token in a list. `part` is the part of them that is faster than the result: 0.5 for the
/// median.
pub fn near(bench: &Bench, part: f64) -> Result<Measured> {
    let pace = Pace {
        turns: bench.count(400) as u64,
        hold: Duration::from_millis(2),
        waits_after: Duration::from_micros(500),
        cold: 20,
    };
    let latency = |side, name| {
        let latencies = latencies(bench, side, bench.url(), name, &pace)?;
        Ok(quantile(latencies, part) * 1e6)
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

/// Measures the median of hand-overs over a long link, beside one round trip.
pub fn far(bench: &Bench) -> Result<Measured> {
    // A process needs up to two round trips to be in the queue.
    let pace = Pace {
        turns: bench.count(30) as u64,
        hold: FAR * 10,
        waits_after: FAR * 8,
        cold: 3,
    };
    let link = Link::to(bench.url(), FAR)?;
    let ours = |round| {
        let latencies = latencies(bench, Side::Ours, link.url(), bench.name(round), &pace)?;
        Ok(median(latencies) * 1e3)
    };
    let limit = |_| {
        let mut connection = bare::connect(link.url())?;
        let pings = (0..PINGS).map(|_| {
            let asked = Instant::now();
            redis::cmd("PING").exec(&mut connection)?;
            Ok(asked.elapsed().as_secs_f64() * 1e3)
        });
        Ok(median(pings.collect::<Result<Vec<_>>>()?))
    };
    Ok(Measured::new(bench.interleave(ours, limit)?))
}

/// Lets two processes take turns. Returns the times in seconds from each release to the next turn.
fn latencies(bench: &Bench, side: Side, url: &str, name: String, pace: &Pace) -> Result<Vec<f64>> {
    let job = Job {
        work: bench.work.to_owned(),
        side,
        url: url.to_owned(),
        name,
        count: pace.turns,
        ms: pace.hold.as_millis() as u64,
    };
    let times = Fleet::start(&job, 2)?.ask("go")?;
    let latencies = of_turns(&times, pace);
    if latencies.len() < pace.turns as usize - pace.cold {
        return Err("too few hand-overs found the other process waiting".into());
    }
    Ok(latencies)
}

/// Returns the times in seconds from each release to the next turn, from the turns of two processes.
fn of_turns(times: &[Vec<u64>], pace: &Pace) -> Vec<f64> {
    let mut turns: Vec<_> = times
        .iter()
        .enumerate()
        .flat_map(|(process, times)| {
            let turns = times.chunks_exact(3).skip(pace.cold);
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
            let waited = Duration::from_nanos(released.saturating_sub(*asked)) > pace.waits_after;
            let time = Duration::from_nanos(held.saturating_sub(*released));
            (waited && before != process).then_some(time.as_secs_f64())
        })
        .collect()
}

/// Serves a process. For each turn it reports when it asked, when it was granted, and when it began to release, in
/// ns.
pub fn serve(job: &Job) -> Result<Answer> {
    let (count, hold) = (job.count, Duration::from_millis(job.ms));
    Ok(match job.side {
        Side::Ours => {
            let mutex = LockManager::connect(&job.url)?.mutex(&job.name);
            Box::new(move |_| {
                let mut times = Vec::new();
                for _ in 0..count {
                    times.push(now());
                    let guard = mutex.lock()?;
                    times.push(now());
                    thread::sleep(hold);
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
                    thread::sleep(hold);
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
