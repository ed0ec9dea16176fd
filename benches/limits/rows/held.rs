//! Leases that are held, and nothing else.
//!
//! Each side is a process that holds all leases on its own server. Both hold at the same time, so both meet the same
//! noise in the minute and a half that this takes. A round is a third of a lease, in which each lease is due once.
//! The round compares the CPU time of the processes. The time that they spent on taking the leases does not count.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{LeaseState, LockGuard};
use redis::Connection;
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

use crate::Result;
use crate::bare;
use crate::fleet::{Answer, Fleet, Job, Side};
use crate::nodes;
use crate::row::{Bench, Measured, Must, Round};
use crate::server::{Observer, Server};
use crate::team::Team;

const LEASES: usize = 100_000;
/// The number of leases on a quorum.
const QUORUM_LEASES: usize = 10_000;
const LEASE: Duration = Duration::from_secs(30);
/// The bound of the client's CPU: five hundredths of a core.
const MOST_PERCENT: f64 = 5.0;
/// Of these bytes, about 20 are the places of a lease in two timer queues, which store the number of each lease beside its
/// time.
const MOST_BYTES: f64 = 544.0;
/// The number of keys in a pipeline of the bare loop.
const PIPELINE: usize = 1_000;
const RENEW: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
     return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end";
/// The threads that take the leases, so that all are held before the first is due.
const TAKERS: usize = 8;

pub fn measure(bench: &Bench) -> Result<Measured> {
    let bare_server = Server::start(bench.cores)?;
    let held = hold(bench, LEASES, &[bench.server], &bare_server)?;
    let measured = held.measured();
    let client = measured.ours();
    Ok(measured
        .bounded(
            "client_percent_of_a_core",
            client,
            Must::AtMost(MOST_PERCENT),
        )
        .bounded("connections", held.connections as f64, Must::AtMost(1.0))
        .bounded("lost", held.lost as f64, Must::AtMost(0.0))
        .bounded(
            "bytes_per_lease",
            held.bytes_per_lease as f64,
            Must::AtMost(MOST_BYTES),
        )
        .beside("seconds", held.seconds)
        .beside("server_percent_of_a_core", held.server_percent)
        .beside("limit_server_percent_of_a_core", held.limit_server_percent))
}

/// Measures leases on a quorum. The limit is leasehold on one server.
pub fn quorum(bench: &Bench) -> Result<Measured> {
    let nodes = nodes::start(bench.cores)?;
    let nodes: Vec<_> = nodes.iter().collect();
    let held = hold(bench, QUORUM_LEASES, &nodes, bench.server)?;
    let connections = held.connections as f64;
    Ok(held
        .measured()
        .bounded("connections_of_a_node", connections, Must::AtMost(1.0))
        .bounded("lost", held.lost as f64, Must::AtMost(0.0))
        .beside("bytes_per_lease", held.bytes_per_lease as f64)
        .beside("seconds", held.seconds)
        .beside("servers_percent_of_a_core", held.server_percent)
        .beside("limit_server_percent_of_a_core", held.limit_server_percent))
}

/// The figures of both sides.
struct Held {
    /// The CPU time of the clients, as a percentage of a core.
    rounds: Vec<Round>,
    /// The largest number of connections of ours to one server.
    connections: usize,
    lost: u64,
    bytes_per_lease: u64,
    seconds: f64,
    /// The CPU time of all servers of ours.
    server_percent: f64,
    limit_server_percent: f64,
}

impl Held {
    fn measured(&self) -> Measured {
        Measured::new(self.rounds.clone())
    }
}

/// Lets both sides hold this number of leases, ours on all of `servers` and the limit on another.
fn hold(bench: &Bench, leases: usize, servers: &[&Server], limit_server: &Server) -> Result<Held> {
    let lease = bench.time(LEASE);
    let start = |side, url: &str| {
        let job = Job {
            work: bench.work.to_owned(),
            side,
            url: url.to_owned(),
            name: bench.work.to_owned(),
            // The rate is the same in a quick run, so that it sees the same load.
            count: bench.count(leases) as u64,
            ms: lease.as_millis() as u64,
        };
        Fleet::start(&job, 1)
    };
    let mut limit = start(Side::Limit, limit_server.url())?;
    let mut ours = start(Side::Ours, &nodes::urls(servers.iter().copied()))?;
    let observers = servers.iter().map(|server| server.observer());
    let mut observers = observers.collect::<Result<Vec<_>>>()?;
    let mut limit_observer = [limit_server.observer()?];

    let window = lease / 3;
    let mut before = [cpu(&mut ours)?, cpu(&mut limit)?];
    let servers_before = [
        servers_cpu(&mut observers)?,
        servers_cpu(&mut limit_observer)?,
    ];
    let began = Instant::now();
    let mut rounds = Vec::new();
    for round in 1..=bench.rounds {
        thread::sleep((window * round).saturating_sub(began.elapsed()));
        let now = [cpu(&mut ours)?, cpu(&mut limit)?];
        rounds.push(Round {
            ours: percent(now[0].saturating_sub(before[0]), window),
            limit: percent(now[1].saturating_sub(before[1]), window),
        });
        before = now;
    }
    let time = began.elapsed();
    let now = [
        servers_cpu(&mut observers)?,
        servers_cpu(&mut limit_observer)?,
    ];
    // The connections that took the leases have been idle since.
    let recent = time.as_secs().saturating_sub(1);
    let connections = observers
        .iter_mut()
        .map(|observer| observer.connections(recent))
        .collect::<Result<Vec<_>>>()?;
    let [lost, bytes_per_lease] = check(&mut ours)?;
    let [limit_lost, _] = check(&mut limit)?;
    if limit_lost > 0 {
        return Err("the limit has lost some, so it is no limit".into());
    }
    Ok(Held {
        rounds,
        connections: connections.into_iter().max().unwrap_or(0),
        lost,
        bytes_per_lease,
        seconds: time.as_secs_f64(),
        server_percent: percent(now[0].saturating_sub(servers_before[0]), time),
        limit_server_percent: percent(now[1].saturating_sub(servers_before[1]), time),
    })
}

/// Returns the CPU time of several servers together.
fn servers_cpu(observers: &mut [Observer]) -> Result<Duration> {
    observers.iter_mut().map(Observer::cpu).sum()
}

fn percent(part: Duration, whole: Duration) -> f64 {
    100.0 * part.as_secs_f64() / whole.as_secs_f64()
}

/// Returns the CPU time of a process.
fn cpu(process: &mut Fleet) -> Result<Duration> {
    match process.ask_one("cpu")?.as_slice() {
        &[ns] => Ok(Duration::from_nanos(ns)),
        other => Err(format!("no time: {other:?}").into()),
    }
}

/// Returns the number of lost leases of a process, and the memory of each lease.
fn check(process: &mut Fleet) -> Result<[u64; 2]> {
    let numbers = process.ask_one("check")?;
    Ok(numbers
        .try_into()
        .map_err(|other| format!("not two numbers: {other:?}"))?)
}

/// Returns the number of lost leases, and the memory of each lease.
type Check = Box<dyn FnMut() -> Result<Vec<u64>>>;

/// Serves a process.
pub fn serve(job: &Job) -> Result<Answer> {
    Ok(answer(match job.side {
        Side::Ours => serve_ours(job)?,
        Side::Limit => serve_bare(job)?,
    }))
}

/// Serves a process of the row of the quorum, on either side.
pub fn serve_quorum(job: &Job) -> Result<Answer> {
    Ok(answer(serve_ours(job)?))
}

fn answer(mut check: Check) -> Answer {
    Box::new(move |question| match question {
        "cpu" => {
            let used = clock_gettime(ClockId::ProcessCPUTime);
            Ok(vec![
                used.tv_sec.unsigned_abs() * 1_000_000_000 + used.tv_nsec.unsigned_abs(),
            ])
        }
        _ => check(),
    })
}

fn serve_ours(job: &Job) -> Result<Check> {
    let lease = Duration::from_millis(job.ms);
    let locks = nodes::builder(&job.url).lease(lease).build()?;
    // A manager's first lease starts its threads. Later leases do not.
    let first = locks.lock(format!("{}:first", job.name))?;
    let without = memory()?;
    let (count, name) = (job.count as usize, job.name.clone());
    let team = Team::ready(TAKERS, move |taker| {
        let (locks, name) = (locks.clone(), name.clone());
        Ok(move |_| {
            let mine = (taker..count).step_by(TAKERS);
            let guards = mine.map(|number| locks.lock(format!("{name}:{number}")));
            Ok(guards.collect::<leasehold::Result<Vec<_>>>()?)
        })
    })?;
    team.open();
    let mut guards = team.join()?;
    guards.push(vec![first]);
    Ok(Box::new(move || {
        let each = memory()?.saturating_sub(without) / count as u64;
        let is_lost = |guard: &&LockGuard| guard.state() == LeaseState::Lost;
        let lost = guards.iter().flatten().filter(is_lost).count();
        Ok(vec![lost as u64, each])
    }))
}

/// Returns the memory that this process uses.
fn memory() -> Result<u64> {
    let statistics = fs::read_to_string("/proc/self/status")?;
    let line = statistics
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.ok_or("the system does not say how much memory this process has")? * 1024)
}

fn serve_bare(job: &Job) -> Result<Check> {
    let mut connection = bare::connect(&job.url)?;
    let owner = Uuid::new_v4().to_string();
    let renew = bare::load(&mut connection, RENEW, 1)?;
    let names = (0..job.count).map(|number| format!("{}:{number}", job.name));
    let names: Vec<_> = names.collect();
    for names in names.chunks(PIPELINE) {
        let mut take = redis::pipe();
        for name in names {
            let set = take.cmd("SET").arg(name).arg(&owner);
            set.arg("NX").arg("PX").arg(job.ms);
        }
        take.exec(&mut connection)?;
    }
    let ms = job.ms;
    let renewing =
        thread::spawn(move || renew_for_ever(&mut connection, &renew, &names, &owner, ms));
    Ok(Box::new(move || {
        Ok(vec![u64::from(renewing.is_finished()), 0])
    }))
}

/// Runs the limit: pipelines one after the other, all of them within a third of a lease. They are not packed
/// beforehand, unlike the other commands here: a real loop would not keep 15 MB of requests from which no lease can
/// be removed. Ends with the first error, or the first lost key.
fn renew_for_ever(
    connection: &mut Connection,
    renew: &redis::Cmd,
    names: &[String],
    owner: &str,
    ms: u64,
) -> Result<()> {
    let pipelines = names.chunks(PIPELINE);
    let pause = Duration::from_millis(ms) / 3 / u32::try_from(pipelines.len())?;
    let began = Instant::now();
    for (turn, names) in (1..).zip(pipelines.cycle()) {
        thread::sleep((pause * turn).saturating_sub(began.elapsed()));
        let mut pipeline = redis::Pipeline::with_capacity(PIPELINE);
        for name in names {
            let renew = pipeline.add_command(renew.clone());
            renew.arg(name).arg(owner).arg(ms);
        }
        let renewed: Vec<u8> = pipeline.query(connection)?;
        if renewed.iter().any(|renewed| *renewed != 1) {
            return Err("a key is lost".into());
        }
    }
    Ok(())
}
