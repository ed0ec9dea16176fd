//! The time from the end of the servers' own failover until a thread has a lock again.
//!
//! Each round has new servers, and kills a master while a lock on it is held. One thread asks for another lock on it
//! from then on. Meanwhile bare connections ask the servers every few milliseconds whether their failover is done.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::LockManager;
use rustix::process::Signal;
use shared::{Cluster, MASTER, Poller, Sentinels, Server, wait_until};

use crate::Result;
use crate::row::{Bench, Measured, Round, median};

/// The time after which the servers take a master for dead.
const DOWN_AFTER: Duration = Duration::from_secs(1);

/// The times from the death of a master to these events.
struct Times {
    /// The first time that a replica took a write.
    write: Duration,
    /// The end of the servers' own failover.
    servers: Duration,
    /// The first lock.
    lock: Duration,
}

/// The failover of a Sentinel set is done when a majority of the sentinels names the new master, and it answers as a
/// master.
pub fn sentinel(bench: &Bench) -> Result<Measured> {
    measure(bench, |round| {
        let set = bench.cores.start(|| Sentinels::start(2, DOWN_AFTER))?;
        let (old, replicas) = (&set.servers()[0], &set.servers()[1..]);
        let locks = LockManager::sentinel(set.urls(), MASTER).wait_through_outages(true);
        times(&locks.build()?, &bench.name(round), old, replicas, || {
            set.wait_for_new_master(old).map(drop)
        })
    })
}

/// The failover of a Cluster is done when the replica takes a write.
pub fn cluster(bench: &Bench) -> Result<Measured> {
    measure(bench, |round| {
        let cluster = bench.cores.start(|| Cluster::start(1, DOWN_AFTER))?;
        let (old, replica) = (&cluster.masters()[0], &cluster.replicas()[..1]);
        let locks = LockManager::cluster(cluster.urls()).wait_through_outages(true);
        let mut asked = Poller::new(old);
        // The master redirects requests for names of the others.
        let name = (0..1_000)
            .map(|number| format!("{}:{number}", bench.name(round)))
            .find(|name| asked.ask::<bool>(redis::cmd("EXISTS").arg(name)).is_some())
            .ok_or("the master has no name")?;
        let name = format!("{{{name}}}");
        times(&locks.build()?, &name, old, replica, || {
            wait_for_write(&name, replica)
        })
    })
}

/// Kills a master, and waits for everything to go on. `failover` returns when the servers' own failover is done.
fn times(
    locks: &LockManager,
    name: &str,
    old: &Server,
    replicas: &[Server],
    failover: impl FnOnce() -> Result<()> + Send,
) -> Result<Times> {
    let held = locks.lock(format!("{name}:held"))?;
    old.signal(Signal::KILL)?;
    let killed = Instant::now();
    let times = thread::scope(|scope| {
        let write = scope.spawn(|| wait_for_write(name, replicas).map(|()| killed.elapsed()));
        let servers = scope.spawn(|| failover().map(|()| killed.elapsed()));
        let guard = locks.lock(format!("{name}:new"))?;
        let lock = killed.elapsed();
        drop(guard);
        let [write, servers] =
            [write, servers].map(|thread| thread.join().expect("it does not panic"));
        Ok(Times {
            write: write?,
            servers: servers?,
            lock,
        })
    });
    drop(held);
    times
}

/// Blocks until one of the replicas takes a write.
fn wait_for_write(name: &str, replicas: &[Server]) -> Result<()> {
    let mut replicas: Vec<_> = replicas.iter().map(Poller::new).collect();
    let mut write = redis::cmd("SET");
    write.arg(format!("{name}:write")).arg(1);
    wait_until("a replica takes a write", || {
        let mut replicas = replicas.iter_mut();
        Ok(replicas.any(|replica| replica.ask::<()>(&write).is_some()))
    })
}

/// Prints each round, because there are few.
fn measure(bench: &Bench, run: impl Fn(u32) -> Result<Times>) -> Result<Measured> {
    let (mut rounds, mut all) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        let times = run(round)?;
        let after = times.lock.saturating_sub(times.servers);
        eprintln!(
            "{} {round}: a replica took a write after {:.3} s, the servers were done after {:.3} s, \
             the first lock came {:.3} s later",
            bench.work,
            times.write.as_secs_f64(),
            times.servers.as_secs_f64(),
            after.as_secs_f64(),
        );
        rounds.push(Round {
            ours: after.as_secs_f64(),
            limit: 1.0,
        });
        all.push(times);
    }
    let median =
        |time: fn(&Times) -> Duration| median(all.iter().map(|times| time(times).as_secs_f64()));
    let longest = rounds.iter().map(|round| round.ours).fold(0.0, f64::max);
    Ok(Measured::new(rounds)
        .beside("longest_s", longest)
        .beside("replica_took_a_write_s", median(|times| times.write))
        .beside("servers_failover_s", median(|times| times.servers))
        .beside("first_lock_s", median(|times| times.lock)))
}
