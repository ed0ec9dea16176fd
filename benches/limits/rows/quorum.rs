//! A lock on five servers that no other thread wants.

use std::time::{Duration, Instant};

use leasehold::{LockManager, Mutex};

use crate::Result;
use crate::bare::QuorumPairs;
use crate::nodes;
use crate::row::{Bench, Measured, Must};
use crate::server::Server;
use crate::team::per_second;

const PAIRS: usize = 2_000;
/// The time that a node gets for an answer if one of them hangs.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time in which one acquire may take longer than that, because a node hangs.
const WINDOW: Duration = Duration::from_secs(5);

/// Measures one thread that locks and releases one name.
pub fn pairs(bench: &Bench) -> Result<Measured> {
    let pairs = bench.count(PAIRS);
    let nodes = nodes::start(bench.cores)?;
    let mut tally = nodes[0].tally()?;
    let ours = |round| {
        let locks = nodes::builder(&nodes::urls(&nodes)).build()?;
        tally.count(|| {
            let rate = rate(&locks.mutex(bench.name(round)), pairs, &mut Vec::new())?;
            Ok((pairs as u64, rate))
        })
    };
    let limit = |round| {
        let urls = nodes.iter().map(Server::url);
        let mut bare = QuorumPairs::new(urls, &bench.bare_name(round))?;
        bare.pair()?;
        let start = Instant::now();
        for _ in 0..pairs {
            bare.pair()?;
        }
        bare.finish()?;
        Ok(per_second(pairs as u64, start.elapsed()))
    };
    let rounds = bench.interleave(ours, limit)?;
    Ok(Measured::new(rounds).beside("commands_of_a_node_per_guard", tally.commands_per_guard()))
}

/// Measures the same with one node that hangs. The limit is a quorum whose nodes are all well.
pub fn one_hung(bench: &Bench) -> Result<Measured> {
    let pairs = bench.count(PAIRS);
    let nodes = nodes::start(bench.cores)?;
    let (ours, all_well) = (
        manager(&nodes)?,
        manager(nodes[1..].iter().chain([bench.server]))?,
    );
    let mut slow = Vec::new();
    // The manager is connected to the node, so it has to find out.
    ours.lock(bench.name(0))?.release()?;
    nodes[0].hang()?;
    let rounds = bench.interleave(
        |round| rate(&ours.mutex(bench.name(round)), pairs, &mut slow),
        |round| {
            let mutex = all_well.mutex(bench.bare_name(round));
            rate(&mutex, pairs, &mut Vec::new())
        },
    )?;
    let most = most_within(&slow, WINDOW);
    Ok(Measured::new(rounds)
        .bounded("most_slow_acquires_in_5_s", most as f64, Must::AtMost(1.0))
        .beside("slow_acquires", slow.len() as f64))
}

fn manager<'a>(nodes: impl IntoIterator<Item = &'a Server>) -> Result<LockManager> {
    let builder = nodes::builder(&nodes::urls(nodes));
    Ok(builder.node_timeout(NODE_TIMEOUT).build()?)
}

/// Returns the number of pairs in a second. Adds the begin of each acquire that took longer than a node may to `slow`.
fn rate(mutex: &Mutex, pairs: usize, slow: &mut Vec<Instant>) -> Result<f64> {
    mutex.lock()?.release()?;
    let start = Instant::now();
    for _ in 0..pairs {
        let asked = Instant::now();
        let guard = mutex.lock()?;
        if asked.elapsed() > NODE_TIMEOUT {
            slow.push(asked);
        }
        guard.release()?;
    }
    Ok(per_second(pairs as u64, start.elapsed()))
}

/// Returns the largest number of these instants that lie within `window`.
fn most_within(instants: &[Instant], window: Duration) -> usize {
    let within = |first: usize| {
        let rest = instants[first..].iter();
        rest.take_while(|later| later.duration_since(instants[first]) < window)
            .count()
    };
    (0..instants.len()).map(within).max().unwrap_or(0)
}
