//! Threads of several processes that want one name.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::LockManager;

use crate::Result;
use crate::bare::{self, Token};
use crate::fleet::{Answer, Fleet, Job, Side};
use crate::nodes;
use crate::row::{Bench, Measured, Must, Round, median};
use crate::team::{Team, per_second};

use super::polled::{Draw, Polled};

const PROCESSES: usize = 4;
const THREADS: usize = 8;
const TIME: Duration = Duration::from_secs(5);
/// The longest wait for a mutex. A process waits for the quanta of three others, and a thread for its turn after that.
const LONGEST_WAIT_MS: f64 = 60.0;
/// The longest wait of a writer.
const LONGEST_WRITERS_WAIT_MS: f64 = 300.0;
/// The shares of the processes on a quorum, over the mean.
const LEAST_ON_QUORUM: f64 = 0.5;
const MOST_ON_QUORUM: f64 = 1.5;
/// The number of writers in a hundred turns of a reader-writer lock.
const WRITES: u64 = 5;

/// The result of one side in one round.
struct Run {
    per_second: f64,
    longest_wait_ms: f64,
    /// The share of the process that got the fewest turns, and of the one that got the most, over the mean.
    least: f64,
    most: f64,
}

/// All rounds of one side.
#[derive(Default)]
struct Runs(Vec<Run>);

impl Runs {
    /// Returns the median of a figure, without the round that warms up.
    fn median(&self, figure: fn(&Run) -> f64) -> f64 {
        median(self.0.iter().skip(1).map(figure))
    }

    fn longest_wait_ms(&self) -> f64 {
        let waits = self.0.iter().map(|run| run.longest_wait_ms);
        waits.fold(0.0, f64::max)
    }
}

/// Measures processes of many threads.
pub fn mutex(bench: &Bench) -> Result<Measured> {
    let (measured, wait) = beside_token(bench, THREADS, 0.1, [0.8, 1.2])?;
    Ok(measured.bounded("longest_wait_ms", wait, Must::AtMost(LONGEST_WAIT_MS)))
}

/// Measures processes of one thread. So each guard goes to another process.
pub fn workers(bench: &Bench) -> Result<Measured> {
    let (measured, wait) = beside_token(bench, 1, 19.0, [0.9, 1.1])?;
    Ok(measured.beside("longest_wait_ms", wait))
}

/// Measures processes of this number of threads, beside a token in a list. `commands` bounds the commands for each
/// guard, and `shares` the shares of the processes, over the mean. Returns the longest wait in ms too.
fn beside_token(
    bench: &Bench,
    threads: usize,
    commands: f64,
    [least, most]: [f64; 2],
) -> Result<(Measured, f64)> {
    let (mut ours, mut bare) = (Runs::default(), Runs::default());
    let mut tally = bench.server.tally()?;
    let mut observer = bench.server.observer()?;
    let rounds = bench.interleave(
        |round| tally.count(|| run(bench, Side::Ours, threads, round, &mut ours)),
        |round| {
            observer.ask::<u32>(&bare::put(&bench.bare_name(round), 1))?;
            Ok(run(bench, Side::Limit, threads, round, &mut bare)?.1)
        },
    )?;
    let measured = Measured::new(rounds)
        .counted_to(&tally, commands)
        .bounded(
            "least_process",
            ours.median(|run| run.least),
            Must::AtLeast(least),
        )
        .bounded(
            "most_process",
            ours.median(|run| run.most),
            Must::AtMost(most),
        )
        .beside("longest_wait_ms_of_all_rounds", ours.longest_wait_ms())
        .beside(
            "limit_longest_wait_ms",
            bare.median(|run| run.longest_wait_ms),
        );
    Ok((measured, ours.median(|run| run.longest_wait_ms)))
}

/// Measures the longest wait of a writer. A figure beside it shows a lock that is polled.
pub fn rwlock(bench: &Bench) -> Result<Measured> {
    let (mut ours, mut polled) = (Runs::default(), Runs::default());
    let mut tally = bench.server.tally()?;
    bench.interleave(
        |round| tally.count(|| run(bench, Side::Ours, THREADS, round, &mut ours)),
        |round| Ok(run(bench, Side::Limit, THREADS, round, &mut polled)?.1),
    )?;
    let rounds = ours.0.iter().skip(1).map(|run| Round {
        ours: run.longest_wait_ms,
        limit: LONGEST_WRITERS_WAIT_MS,
    });
    let least = ours.median(|run| run.least);
    Ok(Measured::new(rounds.collect())
        .bounded("least_process", least, Must::AtLeast(0.8))
        .counted(&tally)
        .beside("longest_wait_ms_of_all_rounds", ours.longest_wait_ms())
        .beside("guards_per_second", ours.median(|run| run.per_second))
        .beside(
            "polled_longest_wait_ms",
            polled.median(|run| run.longest_wait_ms),
        )
        .beside("polled_least_process", polled.median(|run| run.least))
        .beside(
            "polled_guards_per_second",
            polled.median(|run| run.per_second),
        ))
}

/// Measures how a quorum shares a mutex among processes. Each guard adds one to a number in a file, so a broken lock
/// loses updates. Figures beside it show the same work on one server.
pub fn quorum(bench: &Bench) -> Result<Measured> {
    let nodes = nodes::start(bench.cores)?;
    let urls = nodes::urls(&nodes);
    let (mut ours, mut of_one) = (Runs::default(), Runs::default());
    let mut tally = nodes[0].tally()?;
    let lost = Cell::new(0);
    bench.interleave(
        |round| tally.count(|| count_in_file(bench, &urls, round, &mut ours, &lost)),
        |round| Ok(count_in_file(bench, bench.url(), round, &mut of_one, &lost)?.1),
    )?;
    let rounds = ours.0.iter().skip(1).map(|run| Round {
        ours: run.least,
        limit: LEAST_ON_QUORUM,
    });
    let most = ours.median(|run| run.most);
    Ok(Measured::new(rounds.collect())
        .bounded("most_process", most, Must::AtMost(MOST_ON_QUORUM))
        .bounded("lost_updates", lost.get() as f64, Must::AtMost(0.0))
        .beside("guards_per_second", ours.median(|run| run.per_second))
        .beside("longest_wait_ms", ours.median(|run| run.longest_wait_ms))
        .beside("longest_wait_ms_of_all_rounds", ours.longest_wait_ms())
        .beside("commands_of_a_node_per_guard", tally.commands_per_guard())
        .beside(
            "one_server_guards_per_second",
            of_one.median(|run| run.per_second),
        )
        .beside("one_server_least_process", of_one.median(|run| run.least))
        .beside(
            "one_server_longest_wait_ms",
            of_one.median(|run| run.longest_wait_ms),
        ))
}

/// Runs one round of processes that count in a file. The path of the file is the name of the lock. Adds the number of
/// lost updates to `lost`.
fn count_in_file(
    bench: &Bench,
    urls: &str,
    round: u32,
    runs: &mut Runs,
    lost: &Cell<u64>,
) -> Result<(u64, f64)> {
    let path = bench.server.dir().join(format!("number-{round}"));
    fs::write(&path, 0_u64.to_le_bytes())?;
    let name = path.to_str().ok_or("a directory that is not in UTF-8")?;
    let job = job(bench, Side::Ours, THREADS, urls, name.to_owned());
    let (guards, rate) = run_job(bench, &job, runs)?;
    let counted = u64::from_le_bytes(fs::read(&path)?.as_slice().try_into()?);
    lost.set(lost.get() + guards.saturating_sub(counted));
    Ok((guards, rate))
}

/// Runs one side of one round. Returns the number of guards, and the number in a second.
fn run(
    bench: &Bench,
    side: Side,
    threads: usize,
    round: u32,
    runs: &mut Runs,
) -> Result<(u64, f64)> {
    let name = match side {
        Side::Ours => bench.name(round),
        Side::Limit => bench.bare_name(round),
    };
    run_job(bench, &job(bench, side, threads, bench.url(), name), runs)
}

fn job(bench: &Bench, side: Side, threads: usize, url: &str, name: String) -> Job {
    Job {
        work: bench.work.to_owned(),
        side,
        url: url.to_owned(),
        name,
        count: threads as u64,
        ms: bench.time(TIME).as_millis() as u64,
    }
}

/// Runs a job in several processes. Returns the number of guards, and the number in a second.
fn run_job(bench: &Bench, job: &Job, runs: &mut Runs) -> Result<(u64, f64)> {
    let time = bench.time(TIME);
    let shares = Fleet::start(job, PROCESSES)?.ask("go")?;
    let guards: u64 = shares.iter().map(|share| share[0]).sum();
    let mean = guards as f64 / PROCESSES as f64;
    let of_mean = || shares.iter().map(|share| share[0] as f64 / mean);
    let longest_wait_us = shares.iter().map(|share| share[1]).max();
    let run = Run {
        per_second: per_second(guards, time),
        longest_wait_ms: longest_wait_us.unwrap_or_default() as f64 / 1_000.0,
        least: of_mean().fold(f64::INFINITY, f64::min),
        most: of_mean().fold(0.0, f64::max),
    };
    let rate = run.per_second;
    runs.0.push(run);
    Ok((guards, rate))
}

/// One turn of a thread, as a writer or not. It acquires, releases, and returns its wait.
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

/// Serves a process on either side of the row of the quorum.
pub fn serve_quorum(job: &Job) -> Result<Answer> {
    let mutex = nodes::builder(&job.url).build()?.mutex(&job.name);
    let number = Arc::new(File::options().read(true).write(true).open(&job.name)?);
    contend(job, 100, move |_| {
        let (mutex, number) = (mutex.clone(), Arc::clone(&number));
        Ok(Box::new(move |_| {
            let asked = Instant::now();
            let guard = mutex.lock()?;
            let waited = asked.elapsed();
            add_one(&number)?;
            guard.release()?;
            Ok(waited)
        }))
    })
}

/// Adds one to the number in a file, by a read and a write.
fn add_one(number: &File) -> Result<()> {
    let mut bytes = [0; 8];
    number.read_exact_at(&mut bytes, 0)?;
    let next = u64::from_le_bytes(bytes) + 1;
    Ok(number.write_all_at(&next.to_le_bytes(), 0)?)
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

/// Serves a process whose threads take turns for the job's time. `writes` turns of a hundred are writers. It reports
/// the number of turns, and the longest wait of a writer in µs.
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
