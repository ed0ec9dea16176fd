//! One run: acquires, holds and releases the locks, and measures.

// The counts are far below the largest integer of an `f64`.
#![allow(clippy::cast_precision_loss)]

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{LockGuard, LockManager};
use shared::Masters;

use crate::options::Options;
use crate::report::Report;
use crate::usage::{Work, memory};

pub fn run(options: &Options) -> Result<Report, Box<dyn Error + Send + Sync>> {
    let mut locks = options.topology.builder();
    if let Some(delay) = options.restart_delay {
        locks = locks.restart_delay(delay);
    }
    let locks = locks
        .lease(options.lease)
        .prefix(format!("scale:{}:", std::process::id()))
        .build_lazy()?;
    let mut masters = Masters::connect(&options.topology)?;
    let others = masters.figures()?.connections;
    // The first lock starts threads, allocates buffers and opens a connection. That is not part of the cost of a
    // lease.
    drop(locks.lock("first")?);
    let before = memory()?;
    let empty = masters.figures()?.memory;

    let start = Work::so_far(&mut masters)?;
    let begun = Instant::now();
    let mut guards = take(&locks, options)?;
    let taking = begun.elapsed();
    let taken = Work::so_far(&mut masters)?;
    say(
        options,
        &format!("{} leases taken in {taking:.1?}", guards.len()),
    );
    let before_holding = memory()?;

    let begun = Instant::now();
    while begun.elapsed() < options.time {
        // The run prints a line now and then, to show that it is alive.
        let left = options.time.saturating_sub(begun.elapsed());
        thread::sleep(left.min(Duration::from_secs(10)));
        let lost = guards.iter().filter(|guard| guard.check().is_err()).count();
        say(
            options,
            &format!("held for {:.0?}, {lost} lost", begun.elapsed()),
        );
    }
    let time = begun.elapsed().as_secs_f64();
    let held = Work::so_far(&mut masters)?;
    let figures = masters.figures()?;
    let lost = guards.iter().filter(|guard| guard.check().is_err()).count();
    let peak = before_holding.max(memory()?);
    release(&mut guards, options.threads);
    let released = Work::so_far(&mut masters)?;

    let leases = options.leases;
    let renewals = held.since(taken);
    let pairs = taken.since(start) + released.since(held);
    let each = |time: Duration| 1e6 * time.as_secs_f64() / leases as f64;
    Ok(Report {
        leases,
        seconds: time,
        taken_per_second: leases as f64 / taking.as_secs_f64(),
        client_cpu_percent: 100.0 * renewals.client.as_secs_f64() / time,
        server_cpu_percent: 100.0 * renewals.server.as_secs_f64() / time,
        memory_per_lease: peak.saturating_sub(before) / leases,
        memory: peak,
        server_memory_per_lease: figures.memory.saturating_sub(empty) / leases as u64,
        commands_per_second: renewals.commands as f64 / time,
        client_us_per_pair: each(pairs.client),
        server_us_per_pair: each(pairs.server),
        commands_per_pair: pairs.commands as f64 / leases as f64,
        masters: masters.count(),
        connections: figures.connections.saturating_sub(others),
        lost,
    })
}

/// Acquires the locks by several threads.
fn take(locks: &LockManager, options: &Options) -> leasehold::Result<Vec<LockGuard>> {
    let share = options.leases.div_ceil(options.threads);
    let mut guards = Vec::with_capacity(options.leases);
    thread::scope(|scope| {
        let takers: Vec<_> = (0..options.threads)
            .map(|taker| {
                let names = taker * share..options.leases.min((taker + 1) * share);
                scope.spawn(move || {
                    names
                        .map(|name| locks.lock(format!("{name:08}")))
                        .collect::<leasehold::Result<Vec<_>>>()
                })
            })
            .collect();
        for taker in takers {
            guards.extend(taker.join().expect("a taker does not panic")?);
        }
        Ok(guards)
    })
}

/// Releases the locks by several threads, so that nothing stays in Redis.
fn release(guards: &mut Vec<LockGuard>, threads: usize) {
    let share = guards.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        while !guards.is_empty() {
            let part = guards.split_off(guards.len().saturating_sub(share));
            scope.spawn(move || drop(part));
        }
    });
}

fn say(options: &Options, what: &str) {
    if !options.json {
        println!("{what}");
    }
}
