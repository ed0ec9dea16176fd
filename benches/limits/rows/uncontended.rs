//! A lock that nobody else wants.

use std::time::{Duration, Instant};

use leasehold::{Builder, LockManager};

use crate::Result;
use crate::bare::Pairs;
use crate::row::{Bench, Measured};
use crate::team::{Team, per_second, turns};

/// How long a manager may take to send what it has queued; far more than it does.
const FLUSH: Duration = Duration::from_secs(30);
const THREADS: usize = 8;

/// One thread locks and releases, one name or a new one each time. What a manager sends later is part of the time.
pub fn pairs(bench: &Bench, renames: bool, settings: fn(Builder) -> Builder) -> Result<Measured> {
    let pairs = bench.count(6_000);
    let names = |round| {
        let names = if renames { pairs } else { 1 };
        (0..names).map(move |i| format!("{}:{i}", bench.name(round)))
    };
    let mut observer = bench.server.observer()?;
    let mut commands = 0;
    let ours = |round| {
        let locks = settings(LockManager::single(bench.url())).build()?;
        drop(locks.lock("warm-up")?);
        let mutexes: Vec<_> = names(round).map(|name| locks.mutex(name)).collect();
        let before = observer.commands()?;
        let start = Instant::now();
        for pair in 0..pairs {
            drop(mutexes[pair % mutexes.len()].lock()?);
        }
        if !locks.close(FLUSH) {
            return Err("a release did not get through".into());
        }
        let time = start.elapsed();
        commands += observer.commands()? - before;
        Ok(per_second(pairs as u64, time))
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
    let guards = (rounds.len() as u64 + 1) * pairs as u64;
    Ok(Measured::new(rounds).beside("commands_per_guard", commands as f64 / guards as f64))
}

/// Several threads, each with a name of its own.
pub fn parallel(bench: &Bench) -> Result<Measured> {
    let time = bench.time(Duration::from_millis(400));
    let ours = |round| {
        let locks = LockManager::connect(bench.url())?;
        let name = bench.name(round);
        let team = Team::ready(THREADS, move |thread| {
            let mutex = locks.mutex(format!("{name}:{thread}"));
            // Its connection is made before the clock starts.
            mutex.lock()?.release()?;
            Ok(move |start| turns(start, time, || Ok(mutex.lock()?.release()?)))
        })?;
        Ok(team.run()?.1)
    };
    let limit = |round| {
        let (url, name) = (bench.url().to_owned(), bench.name(round));
        let team = Team::ready(THREADS, move |thread| {
            let mut bare = Pairs::new(&url, &[format!("bare:{name}:{thread}")])?;
            bare.pair(0)?;
            Ok(move |start| turns(start, time, || bare.pair(0)))
        })?;
        Ok(team.run()?.1)
    };
    Ok(Measured::new(bench.interleave(ours, limit)?))
}
