//! Threads of several processes after one name.

use std::time::{Duration, Instant};

use leasehold::LockManager;

use crate::Result;
use crate::bare::{self, Token};
use crate::fleet::{Answer, Fleet, Job, Side};
use crate::row::{Bench, Measured, Must, median};
use crate::team::{Team, per_second};

use super::polled::{Draw, Polled};

const PROCESSES: usize = 4;
const THREADS: usize = 8;
const TIME: Duration = Duration::from_secs(5);
/// Six times the default quantum.
const LONGEST_WAIT_MS: f64 = 300.0;
/// Of a hundred turns at a reader-writer lock, so many are a writer's.
const WRITES: u64 = 5;

/// What one round of one side came to.
struct Run {
    guards: u64,
    per_second: f64,
    longest_wait_ms: f64,
    /// What the least and the most served process got, of the mean.
    least: f64,
    most: f64,
}

pub fn mutex(bench: &Bench) -> Result<Measured> {
    let mut observer = bench.server.observer()?;
    let mut tokens = bench.server.observer()?;
    let (mut runs, mut bare) = (Vec::new(), Vec::new());
    let (mut commands, mut guards) = (0, 0);
    let ours = |round| {
        let before = observer.commands()?;
        let run = run(bench, Side::Ours, bench.name(round))?;
        commands += observer.commands()? - before;
        guards += run.guards;
        runs.push(run);
        Ok(runs[runs.len() - 1].per_second)
    };
    let limit = |round| {
        let name = format!("bare:{}", bench.name(round));
        tokens.ask::<u32>(&bare::put(&name, 1))?;
        bare.push(run(bench, Side::Limit, name)?);
        Ok(bare[bare.len() - 1].per_second)
    };
    let rounds = bench.interleave(ours, limit)?;
    let each = commands as f64 / guards as f64;
    let wait = of(&runs, |run| run.longest_wait_ms);
    Ok(Measured::new(rounds)
        .bounded("commands_per_guard", each, Must::AtMost(0.1))
        .bounded(
            "least_process",
            of(&runs, |run| run.least),
            Must::AtLeast(0.8),
        )
        .bounded("most_process", of(&runs, |run| run.most), Must::AtMost(1.2))
        .bounded("longest_wait_ms", wait, Must::AtMost(LONGEST_WAIT_MS))
        .beside("longest_wait_ms_of_all_rounds", longest(&runs))
        .beside(
            "limit_longest_wait_ms",
            of(&bare, |run| run.longest_wait_ms),
        ))
}

pub fn rwlock(bench: &Bench) -> Result<Measured> {
    let (mut runs, mut bare) = (Vec::new(), Vec::new());
    let ours = |round| {
        runs.push(run(bench, Side::Ours, bench.name(round))?);
        Ok(runs[runs.len() - 1].longest_wait_ms)
    };
    // A reader-writer lock that is polled: it has no say in what is to be reached, and shows what that is worth.
    let polled = |round| {
        bare.push(run(
            bench,
            Side::Limit,
            format!("bare:{}", bench.name(round)),
        )?);
        Ok(LONGEST_WAIT_MS)
    };
    let rounds = bench.interleave(ours, polled)?;
    Ok(Measured::new(rounds)
        .bounded(
            "least_process",
            of(&runs, |run| run.least),
            Must::AtLeast(0.8),
        )
        .beside("longest_wait_ms_of_all_rounds", longest(&runs))
        .beside("guards_per_second", of(&runs, |run| run.per_second))
        .beside(
            "polled_longest_wait_ms",
            of(&bare, |run| run.longest_wait_ms),
        )
        .beside("polled_least_process", of(&bare, |run| run.least))
        .beside("polled_guards_per_second", of(&bare, |run| run.per_second)))
}

/// The median of a figure, without the round that warmed up.
fn of(runs: &[Run], figure: fn(&Run) -> f64) -> f64 {
    median(runs.iter().skip(1).map(figure))
}

fn longest(runs: &[Run]) -> f64 {
    runs.iter()
        .map(|run| run.longest_wait_ms)
        .fold(0.0, f64::max)
}

fn run(bench: &Bench, side: Side, name: String) -> Result<Run> {
    let time = bench.time(TIME);
    let job = Job {
        work: bench.work.to_owned(),
        side,
        url: bench.url().to_owned(),
        name,
        count: THREADS as u64,
        ms: time.as_millis() as u64,
    };
    let shares = Fleet::start(&job, PROCESSES)?.ask("go")?;
    let guards: u64 = shares.iter().map(|share| share[0]).sum();
    let mean = guards as f64 / PROCESSES as f64;
    let of_mean = || shares.iter().map(|share| share[0] as f64 / mean);
    let longest_wait_us = shares
        .iter()
        .map(|share| share[1])
        .max()
        .unwrap_or_default();
    Ok(Run {
        guards,
        per_second: per_second(guards, time),
        longest_wait_ms: longest_wait_us as f64 / 1_000.0,
        least: of_mean().fold(f64::INFINITY, f64::min),
        most: of_mean().fold(0.0, f64::max),
    })
}

/// One thread's turn, as a writer or not: it takes and gives back, and returns how long it waited.
type Turn = Box<dyn FnMut(bool) -> Result<Duration>>;

pub fn serve_mutex(job: &Job) -> Result<Answer> {
    match job.side {
        Side::Ours => {
            let mutex = LockManager::connect(&job.url)?.mutex(&job.name);
            contend(job, 100, move |_| {
                let mutex = mutex.clone();
                Ok(Box::new(move |_| {
                    let asked = Instant::now();
                    let guard = mutex.lock()?;
                    let waited = asked.elapsed();
                    guard.release()?;
                    Ok(waited)
                }))
            })
        }
        Side::Limit => {
            let of_thread = job.clone();
            contend(job, 100, move |_| {
                let mut token = Token::new(&of_thread.url, &of_thread.name)?;
                Ok(Box::new(move |_| {
                    let asked = Instant::now();
                    token.take()?;
                    let waited = asked.elapsed();
                    token.put()?;
                    Ok(waited)
                }))
            })
        }
    }
}

pub fn serve_rwlock(job: &Job) -> Result<Answer> {
    match job.side {
        Side::Ours => {
            let rwlock = LockManager::connect(&job.url)?.rwlock(&job.name);
            contend(job, WRITES, move |_| {
                let rwlock = rwlock.clone();
                Ok(Box::new(move |writes| {
                    let asked = Instant::now();
                    let waited = if writes {
                        let guard = rwlock.write()?;
                        let waited = asked.elapsed();
                        guard.release()?;
                        waited
                    } else {
                        let guard = rwlock.read()?;
                        let waited = asked.elapsed();
                        guard.release()?;
                        waited
                    };
                    Ok(waited)
                }))
            })
        }
        Side::Limit => {
            let of_thread = job.clone();
            contend(job, WRITES, move |thread| {
                let draw = Draw::new(thread);
                let mut polled = Polled::new(&of_thread.url, &of_thread.name, draw)?;
                Ok(Box::new(move |writes| {
                    let asked = Instant::now();
                    polled.take(writes)?;
                    let waited = asked.elapsed();
                    polled.put(writes)?;
                    Ok(waited)
                }))
            })
        }
    }
}

/// A process's end: threads that take turns for the job's time, so many of a hundred as writers. The answer is how many
/// turns there were, and the longest wait of a writer in µs.
fn contend(
    job: &Job,
    writes: u64,
    turn: impl Fn(usize) -> Result<Turn> + Send + Sync + 'static,
) -> Result<Answer> {
    let (threads, time) = (job.count as usize, Duration::from_millis(job.ms));
    let team = Team::ready(threads, move |thread| {
        let mut turn = turn(thread)?;
        let mut draw = Draw::new(thread);
        Ok(move |start: Instant| {
            let (mut turns, mut longest) = (0, Duration::ZERO);
            while start.elapsed() < time {
                let writes = draw.below(100) < writes;
                let waited = turn(writes)?;
                turns += 1;
                if writes {
                    longest = longest.max(waited);
                }
            }
            Ok((turns, longest))
        })
    })?;
    let mut team = Some(team);
    Ok(Box::new(move |_| {
        let team = team.take().ok_or("the threads have had their turns")?;
        team.open();
        let shares = team.join()?;
        let turns = shares.iter().map(|(turns, _)| turns).sum();
        let longest = shares.iter().map(|(_, longest)| *longest).max();
        Ok(vec![turns, longest.unwrap_or_default().as_micros() as u64])
    }))
}
