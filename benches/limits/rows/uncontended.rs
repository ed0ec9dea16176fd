//! A lock that no other thread wants.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use leasehold::{Builder, Guard, Lock, LockManager};

use crate::Result;
use crate::bare::{OurScripts, Pairs};
use crate::link::Link;
use crate::row::{Bench, Measured, Must, quantile};
use crate::team::{Team, per_second};

/// With this number of threads or more, a call must take no longer than with a connection for each thread.
const MANY: usize = 64;
/// The number of places of the default pool.
const PLACES: usize = 32;
/// The time of a packet in one direction, if the server is far away.
const FAR: Duration = Duration::from_micros(500);
/// The time limit for a manager to send its queued releases. It needs far less.
const FLUSH: Duration = Duration::from_secs(30);

/// Measures one thread that locks and releases one name, or a new name each time. The time includes requests that the
/// manager sends later.
pub fn pairs(bench: &Bench, renames: bool, settings: fn(Builder) -> Builder) -> Result<Measured> {
    let pairs = bench.count(4_000);
    let names = |round| {
        let names = if renames { pairs } else { 1 };
        (0..names).map(move |i| format!("{}:{i}", bench.name(round)))
    };
    let mut tally = bench.server.tally()?;
    let ours = |round| {
        let locks = settings(LockManager::single(bench.url())).build()?;
        drop(locks.lock("warm-up")?);
        let mutexes: Vec<_> = names(round).map(|name| locks.mutex(name)).collect();
        tally.count(|| {
            let start = Instant::now();
            for pair in 0..pairs {
                drop(mutexes[pair % mutexes.len()].lock()?);
            }
            if !locks.close(FLUSH) {
                return Err("a release did not get through".into());
            }
            Ok((pairs as u64, per_second(pairs as u64, start.elapsed())))
        })
    };
    let limit = |round| {
        let names: Vec<_> = names(round).map(|name| format!("bare:{name}")).collect();
        let mut bare = Pairs::new(bench.url(), &names)?;
        bare.pair(0)?;
        let start = Instant::now();
        for pair in 0..pairs {
            bare.pair(pair % names.len())?;
        }
        Ok(per_second(pairs as u64, start.elapsed()))
    };
    let rounds = bench.interleave(ours, limit)?;
    Ok(Measured::new(rounds).counted(&tally))
}

/// Measures leasehold's two scripts, sent by a bare connection. The bare pair is the limit.
pub fn fence_cost(bench: &Bench) -> Result<Measured> {
    let pairs = bench.count(4_000);
    let ours = |round| our_scripts(bench, round, pairs);
    let rounds = bench.interleave(ours, |round| bare_pairs(bench, round, pairs))?;
    Ok(Measured::new(rounds))
}

/// Measures leasehold beside its two scripts, sent by a bare connection.
pub fn client_cost(bench: &Bench) -> Result<Measured> {
    let mutex = |locks: &LockManager, name| locks.mutex(name);
    beside(bench, mutex, |round, pairs| {
        our_scripts(bench, round, pairs)
    })
}

fn our_scripts(bench: &Bench, round: u32, pairs: usize) -> Result<f64> {
    let mut scripts = OurScripts::new(bench.url(), &format!("scripts:{}", bench.name(round)))?;
    rate(pairs, || scripts.pair())
}

fn bare_pairs(bench: &Bench, round: u32, pairs: usize) -> Result<f64> {
    let mut bare = Pairs::new(bench.url(), &[bench.bare_name(round)])?;
    rate(pairs, || bare.pair(0))
}

/// Does the work once, and then this number of times. Returns how often that is in a second.
fn rate(times: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    work()?;
    let start = Instant::now();
    for _ in 0..times {
        work()?;
    }
    Ok(per_second(times as u64, start.elapsed()))
}

/// Measures one thread that locks and releases one name of any kind, beside bare pairs.
pub fn kind<L: Lock>(bench: &Bench, lock: fn(&LockManager, String) -> L) -> Result<Measured> {
    beside(bench, lock, |round, pairs| bare_pairs(bench, round, pairs))
}

/// Measures the same beside a mutex of this crate.
pub fn kind_beside_mutex<L: Lock>(
    bench: &Bench,
    lock: fn(&LockManager, String) -> L,
) -> Result<Measured> {
    beside(bench, lock, |round, pairs| {
        let locks = LockManager::connect(bench.url())?;
        locked(&locks.mutex(bench.bare_name(round)), pairs)
    })
}

/// Measures one thread that locks and releases one name, beside `limit`. That gets the round and the number of pairs,
/// and returns the pairs in a second.
fn beside<L: Lock>(
    bench: &Bench,
    lock: fn(&LockManager, String) -> L,
    limit: impl Fn(u32, usize) -> Result<f64>,
) -> Result<Measured> {
    let pairs = bench.count(4_000);
    let mut tally = bench.server.tally()?;
    let ours = |round| {
        let lock = lock(&LockManager::connect(bench.url())?, bench.name(round));
        tally.count(|| Ok((pairs as u64, locked(&lock, pairs)?)))
    };
    let rounds = bench.interleave(ours, |round| limit(round, pairs))?;
    Ok(Measured::new(rounds).counted(&tally))
}

fn locked<L: Lock>(lock: &L, pairs: usize) -> Result<f64> {
    rate(pairs, || Ok(lock.lock()?.release()?))
}

/// Measures several threads, each with its own name, and the 99th percentile of the times of their calls. Beside each of
/// them, the limit has a bare connection.
pub fn parallel(
    bench: &Bench,
    threads: usize,
    settings: fn(Builder) -> Builder,
) -> Result<Measured> {
    let (measured, ratio) = beside_connections(bench, bench.url(), (threads, threads), settings)?;
    let name = "call_p99_ratio";
    Ok(if threads >= MANY {
        measured.bounded(name, ratio, Must::AtMost(1.0))
    } else {
        measured.beside(name, ratio)
    })
}

/// Measures a thousand threads, each with its own name, whose server is far away. The limit has as many bare connections as
/// the pool has places, each used by one thread.
pub fn parallel_far(bench: &Bench) -> Result<Measured> {
    let link = Link::to(bench.url(), FAR)?;
    let (measured, ratio) = beside_connections(bench, link.url(), (1_000, PLACES), |it| it)?;
    Ok(measured.beside("call_p99_ratio", ratio))
}

/// Measures threads of leasehold beside threads that have a bare connection each. Returns the ratio of the 99th percentiles
/// too.
fn beside_connections(
    bench: &Bench,
    url: &str,
    (our_threads, bare_threads): (usize, usize),
    settings: fn(Builder) -> Builder,
) -> Result<(Measured, f64)> {
    let time = bench.time(Duration::from_millis(400));
    let mut tally = bench.server.tally()?;
    let (mut our_calls, mut bare_calls) = (Vec::new(), Vec::new());
    let ours = |round| {
        let locks = settings(LockManager::single(url)).build()?;
        let name = bench.name(round);
        let team = Team::ready(our_threads, move |thread| {
            let mutex = locks.mutex(format!("{name}:{thread}"));
            // The pool opens the connection before the clock starts.
            mutex.lock()?.release()?;
            Ok(move |start| {
                calls(
                    start,
                    time,
                    || Ok(mutex.lock()?),
                    |guard| Ok(guard.release()?),
                )
            })
        })?;
        tally.count(|| run(team, &mut our_calls))
    };
    let limit = |round| {
        let (url, name) = (url.to_owned(), bench.bare_name(round));
        let team = Team::ready(bare_threads, move |thread| {
            let bare = Pairs::new(&url, &[format!("{name}:{thread}")])?;
            let bare = RefCell::new(bare);
            bare.borrow_mut().pair(0)?;
            Ok(move |start| {
                let take = || bare.borrow_mut().take(0);
                calls(start, time, take, |()| bare.borrow_mut().release(0))
            })
        })?;
        Ok(run(team, &mut bare_calls)?.1)
    };
    let rounds = bench.interleave(ours, limit)?;
    let [ours, bare] = [our_calls, bare_calls].map(|calls| quantile(calls, 0.99));
    let measured = Measured::new(rounds)
        .counted(&tally)
        .beside("call_p99_us", ours)
        .beside("bare_call_p99_us", bare);
    Ok((measured, ours / bare))
}

/// Takes and releases a lock until `time` has passed. Returns the time of each call, in microseconds.
fn calls<G>(
    start: Instant,
    time: Duration,
    mut take: impl FnMut() -> Result<G>,
    mut release: impl FnMut(G) -> Result<()>,
) -> Result<Vec<f64>> {
    let mut calls = Vec::new();
    let mut last = Instant::now();
    while last.duration_since(start) < time {
        let guard = take()?;
        let taken = Instant::now();
        release(guard)?;
        let released = Instant::now();
        let both = [taken.duration_since(last), released.duration_since(taken)];
        calls.extend(both.map(|call| call.as_secs_f64() * 1e6));
        last = released;
    }
    Ok(calls)
}

/// Lets the threads go. Adds the times of their calls to `all`. Returns the number of their pairs, and the pairs of a
/// second.
fn run(team: Team<Vec<f64>>, all: &mut Vec<f64>) -> Result<(u64, f64)> {
    let start = Instant::now();
    team.open();
    let done = team.join()?;
    let time = start.elapsed();
    let before = all.len();
    all.extend(done.into_iter().flatten());
    let pairs = (all.len() - before) as u64 / 2;
    Ok((pairs, per_second(pairs, time)))
}
