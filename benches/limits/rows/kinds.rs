//! The other kinds of lock.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::{Admission, LockManager, seam};
use redis::Value;
use rustix::time::{ClockId, clock_gettime};

use crate::Result;
use crate::bare::{self, Pairs, Token};
use crate::row::{Bench, Measured};
use crate::team::{Team, per_second, turns};

const THREADS: usize = 64;
const PERMITS: u32 = 8;
const TIME: Duration = Duration::from_millis(500);
/// The clock of leases: see `src/clock.rs`.
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Measures a thread that locks again what it holds.
pub fn reentrant_inner(bench: &Bench) -> Result<Measured> {
    let turns = bench.count(1_000_000);
    let mut tally = bench.server.tally()?;
    let locks = LockManager::connect(bench.url())?;
    let ours = |round| {
        let mutex = locks.reentrant_mutex(bench.name(round));
        // The lease is fresh, so that no renewal is due before the round is over.
        let outer = mutex.lock()?;
        let each = tally.count(|| {
            let start = Instant::now();
            for _ in 0..turns {
                black_box(mutex.lock()?).release()?;
            }
            Ok((turns as u64, ns_each(start.elapsed(), turns)))
        })?;
        outer.release()?;
        Ok(each)
    };
    // A lease must be checked by the clock that counts through suspend, and threads must be told apart.
    let limit = |_| {
        let mutex = Mutex::new(0);
        let start = Instant::now();
        for _ in 0..turns {
            let now = clock_gettime(CLOCK).tv_nsec;
            *black_box(&mutex)
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = now;
        }
        Ok(ns_each(start.elapsed(), turns))
    };
    let rounds = bench.interleave(ours, limit)?;
    Ok(Measured::new(rounds).counted_to(&tally, 0.0))
}

fn ns_each(time: Duration, turns: usize) -> f64 {
    time.as_nanos() as f64 / turns as f64
}

/// Measures readers in the threads of one process.
pub fn rwlock_readers(bench: &Bench) -> Result<Measured> {
    let time = bench.time(TIME);
    let mut tally = bench.server.tally()?;
    let ours = |round| {
        let rwlock = LockManager::connect(bench.url())?.rwlock(bench.name(round));
        let team = Team::ready(THREADS, move |_| {
            let rwlock = rwlock.clone();
            // The pool opens its connections before the clock starts.
            rwlock.read()?.release()?;
            Ok(move |start| turns(start, time, || Ok(rwlock.read()?.release()?)))
        })?;
        tally.count(|| team.run())
    };
    let limit = |round| {
        let (url, name) = (bench.url().to_owned(), bench.bare_name(round));
        let mut first = bare::connect(&url)?;
        redis::cmd("SET").arg(&name).arg("value").exec(&mut first)?;
        let team = Team::ready(THREADS, move |_| {
            let mut connection = bare::connect(&url)?;
            let get = redis::cmd("GET").arg(&name).get_packed_command();
            let is_there = |value: &Value| matches!(value, Value::BulkString(_));
            Ok(move |start| turns(start, time, || bare::ask(&mut connection, &get, is_there)))
        })?;
        Ok(team.run()?.1)
    };
    let rounds = bench.interleave(ours, limit)?;
    Ok(Measured::new(rounds).counted_to(&tally, 0.01))
}

/// Measures the threads of one process, which take few permits.
pub fn semaphore(bench: &Bench) -> Result<Measured> {
    let time = bench.time(TIME);
    let mut tally = bench.server.tally()?;
    let mut tokens = bench.server.observer()?;
    let ours = |round| {
        let semaphore = LockManager::connect(bench.url())?.semaphore(bench.name(round), PERMITS);
        let team = Team::ready(THREADS, move |_| {
            let semaphore = semaphore.clone();
            semaphore.acquire()?.release()?;
            Ok(move |start| turns(start, time, || Ok(semaphore.acquire()?.release()?)))
        })?;
        tally.count(|| team.run())
    };
    let limit = |round| {
        let (url, name) = (bench.url().to_owned(), bench.bare_name(round));
        tokens.ask::<u32>(&bare::put(&name, PERMITS as usize))?;
        let team = Team::ready(THREADS, move |_| {
            let mut token = Token::new(&url, &name)?;
            Ok(move |start| {
                turns(start, time, || {
                    token.take()?;
                    token.put()
                })
            })
        })?;
        Ok(team.run()?.1)
    };
    let rounds = bench.interleave(ours, limit)?;
    Ok(Measured::new(rounds).counted(&tally))
}

/// Measures one thread that locks three names at once.
pub fn multi_3(bench: &Bench) -> Result<Measured> {
    let sets = bench.count(3_000);
    let mut tally = bench.server.tally()?;
    let names = |round| [0, 1, 2].map(|i| format!("{}:{i}", bench.name(round)));
    let ours = |round| {
        let multi = LockManager::connect(bench.url())?.multi(names(round));
        multi.lock()?.release()?;
        tally.count(|| {
            let start = Instant::now();
            for _ in 0..sets {
                multi.lock()?.release()?;
            }
            Ok((sets as u64, per_second(sets as u64, start.elapsed())))
        })
    };
    let limit = |round| {
        let mut bare = Pairs::new(
            bench.url(),
            &names(round).map(|name| format!("bare:{name}")),
        )?;
        bare.pair(0)?;
        let start = Instant::now();
        for _ in 0..sets {
            for name in 0..3 {
                bare.pair(name)?;
            }
        }
        Ok(per_second(sets as u64, start.elapsed()))
    };
    let rounds = bench.interleave(ours, limit)?;
    Ok(Measured::new(rounds).counted(&tally))
}

/// Measures one thread and a limiter that admits every call.
pub fn rate_limiter(bench: &Bench) -> Result<Measured> {
    /// The window has more places than one thread can use, so that every reply is the same.
    const PLACES: u32 = 200;
    const PER: Duration = Duration::from_millis(1);
    let is_transient = bench.count(12_000);
    let mut tally = bench.server.tally()?;
    let ours = |round| {
        let limiter =
            LockManager::connect(bench.url())?.rate_limiter(bench.name(round), PLACES, PER);
        limiter.acquire()?;
        tally.count(|| {
            let start = Instant::now();
            for _ in 0..is_transient {
                if limiter.try_acquire()? != Admission::Admitted {
                    return Err("there were not enough places".into());
                }
            }
            Ok((
                is_transient as u64,
                per_second(is_transient as u64, start.elapsed()),
            ))
        })
    };
    let limit = |round| {
        let mut connection = bare::connect(bench.url())?;
        let mut pass = bare::load(&mut connection, seam::script("rate_limiter"), 1)?;
        pass.arg(bench.bare_name(round));
        let pass = pass
            .arg(PLACES)
            .arg(PER.as_micros() as u64)
            .arg(0)
            .arg(1)
            .get_packed_command();
        let is_past = |value: &Value| *value == Value::Array(vec![Value::Int(1), Value::Int(0)]);
        bare::ask(&mut connection, &pass, is_past)?;
        let start = Instant::now();
        for _ in 0..is_transient {
            bare::ask(&mut connection, &pass, is_past)?;
        }
        Ok(per_second(is_transient as u64, start.elapsed()))
    };
    let rounds = bench.interleave(ours, limit)?;
    Ok(Measured::new(rounds).counted(&tally))
}
