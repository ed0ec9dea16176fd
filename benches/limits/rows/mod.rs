//! The rows, in the order of the table.

mod failover;
mod handover;
mod held;
mod kinds;
mod lone;
mod polled;
mod processes;
mod quorum;
mod threads;
mod topologies;
mod uncontended;

use leasehold::LockManager;

use crate::Result;
use crate::cores::{Cores, Placement};
use crate::fleet::{self, Job};
use crate::options::Options;
use crate::others::Watch;
use crate::report;
use crate::row::Must::{AtLeast, AtMost};
use crate::row::{Bench, Must, Row};
use crate::server::Server;

/// Rounds that are quick.
const MANY: u32 = 15;
const SOME: u32 = 9;
/// Failovers.
const FAILOVERS: u32 = 20;
const QUICK: u32 = 3;

const ROWS: &[Row] = &[
    Row {
        work: "uncontended",
        limit: "SET NX PX and a compare-and-delete by EVALSHA, on one connection",
        unit: "pairs/s",
        must: AtLeast(0.85),
        rounds: MANY,
        measure: |bench| uncontended::pairs(bench, false, |builder| builder),
    },
    Row {
        work: "fence_cost",
        limit: "SET NX PX and a compare-and-delete by EVALSHA, on one connection",
        unit: "pairs/s",
        must: AtLeast(0.84),
        rounds: MANY,
        measure: uncontended::fence_cost,
    },
    Row {
        work: "client_cost",
        limit: "the scripts of leasehold, on a bare connection",
        unit: "pairs/s",
        must: AtLeast(0.93),
        rounds: MANY,
        measure: uncontended::client_cost,
    },
    Row {
        work: "uncontended_unfenced",
        limit: "SET NX PX and a compare-and-delete by EVALSHA, on one connection",
        unit: "pairs/s",
        must: AtLeast(0.93),
        rounds: MANY,
        measure: |bench| uncontended::pairs(bench, false, |builder| builder.fencing(false)),
    },
    Row {
        work: "uncontended_background",
        limit: "the bare pair, a new name each time",
        unit: "pairs/s",
        must: AtLeast(1.25),
        rounds: MANY,
        measure: |bench| {
            uncontended::pairs(bench, true, |builder| builder.background_release(true))
        },
    },
    Row {
        work: "read_uncontended",
        limit: "SET NX PX and a compare-and-delete by EVALSHA, on one connection",
        unit: "pairs/s",
        must: AtLeast(0.7),
        rounds: MANY,
        measure: |bench| uncontended::kind(bench, |locks, name| locks.rwlock(name).reader()),
    },
    Row {
        work: "write_uncontended",
        limit: "SET NX PX and a compare-and-delete by EVALSHA, on one connection",
        unit: "pairs/s",
        must: AtLeast(0.7),
        rounds: MANY,
        measure: |bench| uncontended::kind(bench, |locks, name| locks.rwlock(name).writer()),
    },
    Row {
        work: "semaphore_uncontended",
        limit: "SET NX PX and a compare-and-delete by EVALSHA, on one connection",
        unit: "pairs/s",
        must: AtLeast(0.7),
        rounds: MANY,
        measure: |bench| {
            uncontended::kind(bench, |locks, name| locks.semaphore(name, 4).permits(1))
        },
    },
    Row {
        work: "multi_1",
        limit: "a mutex of leasehold",
        unit: "pairs/s",
        must: AtLeast(0.95),
        rounds: MANY,
        measure: |bench| uncontended::kind_beside_mutex(bench, |locks, name| locks.multi([name])),
    },
    Row {
        work: "reentrant_outer",
        limit: "a mutex of leasehold",
        unit: "pairs/s",
        must: AtLeast(0.95),
        rounds: MANY,
        measure: |bench| uncontended::kind_beside_mutex(bench, LockManager::reentrant_mutex),
    },
    Row {
        work: "parallel_8",
        limit: "8 bare connections, each with its own name",
        unit: "pairs/s",
        must: AtLeast(0.8),
        rounds: MANY,
        measure: |bench| uncontended::parallel(bench, 8, |builder| builder),
    },
    Row {
        work: "parallel_64",
        limit: "64 bare connections, each with its own name",
        unit: "pairs/s",
        must: AtLeast(0.8),
        rounds: MANY,
        measure: |bench| uncontended::parallel(bench, 64, |builder| builder),
    },
    Row {
        work: "parallel_64_unfenced",
        limit: "64 bare connections, each with its own name",
        unit: "pairs/s",
        must: AtLeast(0.8),
        rounds: MANY,
        measure: |bench| uncontended::parallel(bench, 64, |builder| builder.fencing(false)),
    },
    Row {
        work: "parallel_1000_far",
        limit: "32 bare connections, each with its own name; 1 ms of round trip",
        unit: "pairs/s",
        must: AtLeast(0.8),
        rounds: SOME,
        measure: uncontended::parallel_far,
    },
    Row {
        work: "threads_1000",
        limit: "a fair queue of parked threads in this process, without a lease",
        unit: "guards/s",
        must: AtLeast(0.7),
        rounds: SOME,
        measure: threads::measure,
    },
    Row {
        work: "processes_4x8",
        limit: "a token in a list, BLPOP and RPUSH, a connection for each thread",
        unit: "guards/s",
        must: AtLeast(3.0),
        rounds: SOME,
        measure: processes::mutex,
    },
    Row {
        work: "workers_4x1",
        limit: "a token in a list, BLPOP and RPUSH, a connection for each process",
        unit: "guards/s",
        must: AtLeast(0.4),
        rounds: SOME,
        measure: processes::workers,
    },
    Row {
        work: "lone_thread",
        limit: "15 ms for the median wait of one thread, beside two processes of 10 busy threads",
        unit: "ms",
        must: AtMost(1.0),
        rounds: SOME,
        measure: lone::measure,
    },
    Row {
        work: "handover_p50",
        limit: "a token in a list, BLPOP and RPUSH",
        unit: "µs",
        must: AtMost(1.5),
        rounds: SOME,
        measure: |bench| handover::near(bench, 0.5),
    },
    Row {
        work: "handover_p99",
        limit: "a token in a list, BLPOP and RPUSH",
        unit: "µs",
        must: AtMost(1.75),
        rounds: SOME,
        measure: |bench| handover::near(bench, 0.99),
    },
    Row {
        work: "handover_far",
        limit: "a PING over the same link, of 10 ms each way",
        unit: "ms",
        must: AtMost(1.2),
        rounds: SOME,
        measure: handover::far,
    },
    Row {
        work: "held_100k",
        limit: "a loop that renews by EVALSHA in pipelines of 1,000, each key after a third of its lease",
        unit: "% of a core",
        must: AtMost(2.0),
        rounds: SOME,
        measure: held::measure,
    },
    Row {
        work: "reentrant_inner",
        limit: "a reading of CLOCK_BOOTTIME and an uncontended std::sync::Mutex",
        unit: "ns",
        must: AtMost(2.0),
        rounds: MANY,
        measure: kinds::reentrant_inner,
    },
    Row {
        work: "rwlock_readers",
        limit: "64 threads, each with a connection, GET",
        unit: "reads/s",
        must: AtLeast(20.0),
        rounds: MANY,
        measure: kinds::rwlock_readers,
    },
    Row {
        work: "rwlock_mixed",
        limit: "300 ms for the longest wait of a writer",
        unit: "ms",
        must: AtMost(1.0),
        rounds: SOME,
        measure: processes::rwlock,
    },
    Row {
        work: "semaphore",
        limit: "8 tokens in a list, BLPOP and RPUSH, a connection for each thread",
        unit: "permits/s",
        must: AtLeast(5.0),
        rounds: MANY,
        measure: kinds::semaphore,
    },
    Row {
        work: "multi_3",
        limit: "three bare pairs in a row",
        unit: "sets/s",
        must: AtLeast(1.5),
        rounds: MANY,
        measure: kinds::multi_3,
    },
    Row {
        work: "rate_limiter",
        limit: "the same script by EVALSHA on one bare connection",
        unit: "admissions/s",
        must: AtLeast(0.8),
        rounds: MANY,
        measure: kinds::rate_limiter,
    },
    Row {
        work: "quorum_5",
        limit: "the bare pair on five connections, each command done when three have replied",
        unit: "pairs/s",
        must: AtLeast(0.8),
        rounds: MANY,
        measure: quorum::pairs,
    },
    Row {
        work: "quorum_5_one_hung",
        limit: "leasehold on five nodes that are well",
        unit: "pairs/s",
        must: AtLeast(0.8),
        rounds: MANY,
        measure: quorum::one_hung,
    },
    Row {
        work: "quorum_5_threads_1000",
        limit: "leasehold on one server",
        unit: "guards/s",
        must: AtLeast(0.5),
        rounds: SOME,
        measure: threads::quorum,
    },
    Row {
        work: "quorum_5_4x8",
        limit: "half of the mean for the process with the fewest guards",
        unit: "of the mean",
        must: AtLeast(1.0),
        rounds: SOME,
        measure: processes::quorum,
    },
    Row {
        work: "quorum_5_held_10k",
        limit: "leasehold on one server",
        unit: "% of a core",
        must: AtMost(6.0),
        rounds: SOME,
        measure: held::quorum,
    },
    Row {
        work: "sentinel",
        limit: "leasehold on the same server, without the sentinels",
        unit: "pairs/s",
        must: AtLeast(0.95),
        rounds: MANY,
        measure: topologies::sentinel,
    },
    Row {
        work: "sentinel_failover",
        limit: "1 s after a majority of the sentinels named the new master",
        unit: "s",
        must: AtMost(1.0),
        rounds: FAILOVERS,
        measure: failover::sentinel,
    },
    Row {
        work: "cluster_3",
        limit: "leasehold on one server",
        unit: "pairs/s",
        must: AtLeast(0.9),
        rounds: MANY,
        measure: topologies::cluster,
    },
    Row {
        work: "cluster_3_threads_8",
        limit: "leasehold on one server",
        unit: "pairs/s",
        must: AtLeast(0.9),
        rounds: MANY,
        measure: topologies::cluster_threads,
    },
    Row {
        work: "cluster_failover",
        limit: "1 s after the replica took a write",
        unit: "s",
        must: AtMost(1.0),
        rounds: FAILOVERS,
        measure: failover::cluster,
    },
];

/// Measures the selected rows, and prints each when it is done.
pub fn measure(options: &Options) -> Result<()> {
    if options.list {
        for row in ROWS {
            println!("{}", row.work);
        }
        return Ok(());
    }
    let is_wanted = |row: &&Row| options.only.as_deref().is_none_or(|only| row.work == only);
    let wanted: Vec<_> = ROWS.iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        return Err("there is no such row; --list prints their names".into());
    }
    let cores = Cores::new(options.placement)?;
    if !options.json {
        report::head(&cores.describe());
    }
    let mut failed = 0;
    for row in wanted {
        if let Err(error) = measure_row(row, &cores, options) {
            failed += 1;
            eprintln!("{}: {error}", row.work);
        }
    }
    if failed > 0 {
        return Err(format!("{failed} rows could not be measured").into());
    }
    Ok(())
}

/// The marks of rows in another placement, where the cost of a wake-up or of the server's core differs.
const ELSEWHERE: &[(&str, Placement, Must)] = &[
    ("fence_cost", Placement::Together, AtLeast(0.75)),
    ("client_cost", Placement::Together, AtLeast(0.88)),
    ("uncontended_unfenced", Placement::Together, AtLeast(0.88)),
    ("uncontended_background", Placement::Together, AtLeast(0.6)),
];

/// Returns the mark of a row in a placement.
fn mark(row: &Row, placement: Placement) -> Must {
    let mut elsewhere = ELSEWHERE.iter();
    let found = elsewhere.find(|(work, place, _)| *work == row.work && *place == placement);
    found.map_or(row.must, |(_, _, must)| *must)
}

fn measure_row(row: &Row, cores: &Cores, options: &Options) -> Result<()> {
    let row = &Row {
        must: mark(row, options.placement),
        ..*row
    };
    let watch = Watch::start();
    // Each row has its own server, so that no row finds what another has left behind.
    let server = Server::start(cores)?;
    let rounds = if options.quick { QUICK } else { row.rounds };
    let bench = Bench {
        work: row.work,
        server: &server,
        cores,
        rounds: options.rounds.unwrap_or(rounds),
        quick: options.quick,
    };
    let measured = (row.measure)(&bench)?;
    drop(server);
    let others = watch.and_then(|watch| watch.percent());
    if options.json {
        report::json_row(row, &measured, others);
    } else {
        report::table_row(row, &measured, others);
    }
    Ok(())
}

/// Serves a child process.
pub fn serve(job: &Job) -> Result<()> {
    let answer = match job.work.as_str() {
        "processes_4x8" | "workers_4x1" => processes::serve_mutex(job)?,
        "lone_thread" => lone::serve(job)?,
        "rwlock_mixed" => processes::serve_rwlock(job)?,
        "handover_p50" | "handover_p99" | "handover_far" => handover::serve(job)?,
        "held_100k" => held::serve(job)?,
        "quorum_5_4x8" => processes::serve_quorum(job)?,
        "quorum_5_held_10k" => held::serve_quorum(job)?,
        other => return Err(format!("no row {other:?} has processes").into()),
    };
    fleet::serve(answer)
}
