//! Locks on a Sentinel set and on a Cluster. The limit is leasehold on one server.

use std::time::{Duration, Instant};

use leasehold::{Builder, LockManager, Mutex};
use shared::{Cluster, MASTER, Sentinels};

use crate::Result;
use crate::bare::ClusterPairs;
use crate::row::{Bench, Measured, Round};
use crate::team::{Team, per_second, turns};

const PAIRS: usize = 4_000;
const THREADS: usize = 8;
/// The names of each thread. They are spread over the slots of all masters.
const NAMES: usize = 100;
/// The ratio of bare clients: what three servers on the cores of one cost any client.
const BARE: &str = "bare_ratio";
/// No master fails here, and a busy machine must not look like a dead master.
const DOWN_AFTER: Duration = Duration::from_secs(30);

/// Measures one thread on a Sentinel set. The limit is the same server without the sentinels. The set has no replicas:
/// they would slow down both sides, and so bring the ratio nearer to 1.
pub fn sentinel(bench: &Bench) -> Result<Measured> {
    let set = bench.cores.start(|| Sentinels::start(0, DOWN_AFTER))?;
    let builder = || LockManager::sentinel(set.urls(), MASTER);
    let rounds = uncontended(bench, builder, &set.servers()[0].url())?;
    Ok(Measured::new(rounds))
}

/// Measures one thread on a Cluster of three masters, which share the cores for servers.
pub fn cluster(bench: &Bench) -> Result<Measured> {
    let cluster = bench.cores.start(|| Cluster::start(0, DOWN_AFTER))?;
    let rounds = uncontended(bench, || LockManager::cluster(cluster.urls()), bench.url())?;
    let pairs = bench.count(PAIRS);
    let bare = |urls: &[String], name: &str| {
        let mut bare = ClusterPairs::new(urls, &names(name))?;
        let start = Instant::now();
        for pair in 0..pairs {
            bare.pair(pair % NAMES)?;
        }
        Ok(per_second(pairs as u64, start.elapsed()))
    };
    with_bare_ratio(bench, &cluster, rounds, bare)
}

fn uncontended(bench: &Bench, ours: impl Fn() -> Builder, single: &str) -> Result<Vec<Round>> {
    let pairs = bench.count(PAIRS);
    let rate = |builder: Builder, name: &str| {
        let mutexes = mutexes(&builder.build()?, name)?;
        let start = Instant::now();
        for mutex in mutexes.iter().cycle().take(pairs) {
            mutex.lock()?.release()?;
        }
        Ok(per_second(pairs as u64, start.elapsed()))
    };
    bench.interleave(
        |round| rate(ours(), &bench.name(round)),
        |round| rate(LockManager::single(single), &bench.bare_name(round)),
    )
}

/// Measures several threads on a Cluster of three masters, which share the cores for servers.
pub fn cluster_threads(bench: &Bench) -> Result<Measured> {
    let cluster = bench.cores.start(|| Cluster::start(0, DOWN_AFTER))?;
    let time = bench.time(Duration::from_millis(400));
    let rate = |builder: Builder, name: String| {
        let locks = builder.build()?;
        let team = Team::ready(THREADS, move |thread| {
            let mutexes = mutexes(&locks, &format!("{name}:{thread}"))?;
            let mut next = (0..NAMES).cycle();
            Ok(move |start| {
                turns(start, time, || {
                    let mutex = &mutexes[next.next().unwrap_or(0)];
                    Ok(mutex.lock()?.release()?)
                })
            })
        })?;
        Ok(team.run()?.1)
    };
    let rounds = bench.interleave(
        |round| rate(LockManager::cluster(cluster.urls()), bench.name(round)),
        |round| rate(LockManager::single(bench.url()), bench.bare_name(round)),
    )?;
    let bare = |urls: &[String], name: &str| {
        let (urls, name) = (urls.to_vec(), name.to_owned());
        let team = Team::ready(THREADS, move |thread| {
            let mut bare = ClusterPairs::new(&urls, &names(&format!("{name}:{thread}")))?;
            let mut next = (0..NAMES).cycle();
            Ok(move |start| turns(start, time, || bare.pair(next.next().unwrap_or(0))))
        })?;
        Ok(team.run()?.1)
    };
    with_bare_ratio(bench, &cluster, rounds, bare)
}

/// Adds the ratio of bare clients, which `rate` measures on the servers with these URLs: the masters of the Cluster, and
/// the one server.
fn with_bare_ratio(
    bench: &Bench,
    cluster: &Cluster,
    rounds: Vec<Round>,
    rate: impl Fn(&[String], &str) -> Result<f64>,
) -> Result<Measured> {
    let single = [bench.url().to_owned()];
    let bare = bench.interleave(
        |round| rate(&cluster.urls(), &format!("bare:{}", bench.name(round))),
        |round| rate(&single, &format!("bare:{}", bench.bare_name(round))),
    )?;
    let [_, ratio, _] = Measured::new(bare).ratios();
    Ok(Measured::new(rounds).beside(BARE, ratio))
}

/// Returns the names of a thread.
fn names(name: &str) -> Vec<String> {
    let names = (0..NAMES).map(|number| format!("{name}:{number}"));
    names.collect()
}

/// Returns the mutexes of a thread. Locks each of them once, so that the pools open their connections.
fn mutexes(locks: &LockManager, name: &str) -> Result<Vec<Mutex>> {
    let mutexes = names(name).into_iter().map(|name| {
        let mutex = locks.mutex(name);
        mutex.lock()?.release()?;
        Ok(mutex)
    });
    mutexes.collect()
}
