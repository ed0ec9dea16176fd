//! A soak: one process uses the whole library for long on real servers with faults. Its memory, its descriptors and its threads
//! must not grow. glibc's allocator has one arena ([`use_one_arena`]).
//!
//! | part | what it does |
//! | --- | --- |
//! | workers | Two managers for each topology, with three threads each, use all kinds of locks on old and new names. |
//! | churn | A thread makes a manager of one topology after the other, uses it, and closes it. |
//! | faults | A thread stalls a server, restarts it without data, or cuts its connections. |
//! | samples | Every 5 s a line in `docs/evidence/soak.jsonl`. |
//! | verdict | A line through the samples after the warm-up, by least squares: see [`Trend`]. |

mod servers;
pub(crate) mod trend;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs, io};

use leasehold::{LockManager, Result};

use crate::random::Random;
use crate::record::{self, Sample};
use servers::Deployment;
use trend::Trend;

const SAMPLE_EVERY: Duration = Duration::from_secs(5);
const MANAGERS: u64 = 2;
const WORKERS: u64 = 3;
const LEASE: Duration = Duration::from_secs(2);
/// Old names, which all workers use.
const NAMES: u64 = 8;

/// What the parts share.
#[derive(Default)]
struct Soak {
    is_over: AtomicBool,
    grants: AtomicU64,
    faults: AtomicU64,
    new_names: AtomicU64,
}

/// Runs the soak. The words are those after `soak`.
#[must_use]
pub fn main(words: &[String]) -> ExitCode {
    let minutes = match words {
        [option, minutes] if option == "--minutes" => minutes.parse::<u64>().ok(),
        _ => None,
    };
    let Some(minutes) = minutes else {
        eprintln!("leasehold-simulator soak --minutes M");
        return ExitCode::from(2);
    };
    if let Err(error) = use_one_arena() {
        eprintln!("the program cannot be started again: {error}");
        return ExitCode::from(2);
    }
    let commit = match record::commit() {
        Ok(commit) => commit,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
    };
    let samples = Soak::default().run(&commit, Duration::from_secs(60 * minutes));
    let trends = Trend::of(&samples.iter().collect::<Vec<_>>());
    for trend in &trends {
        println!("{trend}");
    }
    if trends.iter().any(Trend::grows) {
        println!("verdict: it grows");
        return ExitCode::FAILURE;
    }
    println!("verdict: nothing grows");
    ExitCode::SUCCESS
}

/// Starts this program again with one arena, unless it has one.
///
/// glibc gives threads that allocate at the same time an arena each, up to eight for each CPU. The threads of the workers and
/// of the churn fill them in turn: the memory rose for an hour although nothing leaked.
fn use_one_arena() -> io::Result<()> {
    const ARENAS: &str = "MALLOC_ARENA_MAX";
    if env::var_os(ARENAS).is_some_and(|arenas| arenas == "1") {
        return Ok(());
    }
    let mut again = Command::new(env::current_exe()?);
    Err(again.args(env::args_os().skip(1)).env(ARENAS, "1").exec())
}

impl Soak {
    fn run(&self, commit: &str, length: Duration) -> Vec<Sample> {
        let mut deployments = Deployment::start_all();
        let managers: Vec<_> = deployments
            .iter()
            .flat_map(|it| (0..MANAGERS).map(|_| manager(it)))
            .collect();
        let kinds: Vec<_> = deployments
            .iter()
            .flat_map(|it| (0..MANAGERS).map(|_| it.name))
            .collect();
        let builders: Vec<_> = deployments.iter().map(Deployment::builder).collect();
        let samples = thread::scope(|scope| {
            for (number, (locks, topology)) in managers.iter().zip(kinds).enumerate() {
                for worker in 0..WORKERS {
                    let stream = 10 * number as u64 + worker;
                    scope.spawn(move || self.work(locks, topology, Random::new(1, stream)));
                }
            }
            scope.spawn(move || {
                for builder in builders.iter().cycle() {
                    if self.is_over.load(Relaxed) {
                        return;
                    }
                    self.churn(builder.clone().lease(LEASE).build_lazy());
                }
            });
            scope.spawn(|| self.trouble(&mut deployments, Random::new(1, 1_000)));
            let samples = self.sample(commit, length);
            self.is_over.store(true, Relaxed);
            samples
        });
        for locks in managers {
            if !locks.close(Duration::from_secs(60)) {
                println!("a manager has not released all in time");
            }
        }
        samples
    }

    /// Acquires and releases locks of all kinds.
    fn work(&self, locks: &LockManager, topology: &str, mut random: Random) {
        while !self.is_over.load(Relaxed) {
            let name = if random.one_in(4) {
                format!("new:{}", self.new_names.fetch_add(1, Relaxed))
            } else {
                format!("old:{}", random.within(0..NAMES))
            };
            let hold = if random.one_in(50) {
                3_000
            } else {
                random.within(0..10)
            };
            let hold = Duration::from_millis(hold);
            // An error is a server with a fault.
            if operate(locks, topology, &name, hold, &mut random).unwrap_or(false) {
                self.grants.fetch_add(1, Relaxed);
            }
            thread::sleep(Duration::from_millis(random.within(5..30)));
        }
    }

    /// Uses a new manager for a moment, and closes it.
    fn churn(&self, locks: Result<LockManager>) {
        let locks = locks.expect("the settings are good");
        for number in 0..20 {
            if locks
                .try_lock(format!("old:{number}"))
                .is_ok_and(|it| it.is_some())
            {
                self.grants.fetch_add(1, Relaxed);
            }
            thread::sleep(Duration::from_millis(50));
        }
        // A server may have a fault for so long that a release is given up.
        let _ = locks.close(Duration::from_secs(20));
    }

    fn trouble(&self, deployments: &mut [Deployment], mut random: Random) {
        while !self.is_over.load(Relaxed) {
            thread::sleep(Duration::from_millis(random.within(500..2_000)));
            let chosen = random.index(deployments.len());
            let servers = deployments[chosen].servers();
            let number = random.index(servers.len());
            let server = &mut servers[number];
            let length = Duration::from_millis(random.within(10..3_000));
            match random.within(0..4) {
                0 => server.restart(length),
                1 => server.stall(length),
                _ => {
                    server.ask("CLIENT KILL TYPE normal");
                    server.ask("CLIENT KILL TYPE pubsub");
                }
            }
            self.faults.fetch_add(1, Relaxed);
        }
    }

    /// Samples what the process uses.
    fn sample(&self, commit: &str, length: Duration) -> Vec<Sample> {
        let file = record::root().join("docs/evidence/soak.jsonl");
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let run = format!("{commit}-{}", now.expect("it is past 1970").as_secs());
        let (begun, mut samples) = (Instant::now(), Vec::new());
        while begun.elapsed() < length {
            thread::sleep(SAMPLE_EVERY);
            let sample = Sample {
                run: run.clone(),
                seconds: begun.elapsed().as_secs(),
                resident_kb: status("VmRSS:"),
                descriptors: fs::read_dir("/proc/self/fd").map_or(0, |it| it.count() as u64),
                threads: status("Threads:"),
                grants: self.grants.load(Relaxed),
                faults: self.faults.load(Relaxed),
            };
            record::append(&file, &sample).expect("it can be written");
            samples.push(sample);
        }
        println!(
            "{} minutes, {} grants, {} faults, {} samples",
            length.as_secs() / 60,
            self.grants.load(Relaxed),
            self.faults.load(Relaxed),
            samples.len()
        );
        samples
    }
}

/// Uses a lock of some kind. Returns whether it was granted.
fn operate(
    locks: &LockManager,
    topology: &str,
    name: &str,
    hold: Duration,
    random: &mut Random,
) -> Result<bool> {
    let wait = Duration::from_millis(*random.pick(&[0, 50, 1_000]));
    // A quorum has neither semaphores nor rate limiters.
    let kinds = if topology == "quorum" { 6 } else { 8 };
    let work = || thread::sleep(hold);
    Ok(match random.within(0..kinds) {
        0 => {
            let guard = locks.try_lock_for(name, wait)?;
            work();
            guard.is_some()
        }
        1 => {
            let Some(guard) = locks.mutex(name).try_lock_for(wait)? else {
                return Ok(false);
            };
            let told = guard.on_lost();
            work();
            guard.extend(LEASE).ok();
            drop(told);
            guard.release()?;
            true
        }
        2 => {
            let guard = locks.reentrant_mutex(name).try_lock_for(wait)?;
            work();
            guard.is_some()
        }
        3 => {
            let guard = locks.rwlock(format!("rw:{name}")).try_read_for(wait)?;
            work();
            guard.is_some()
        }
        4 => {
            let guard = locks.rwlock(format!("rw:{name}")).try_write_for(wait)?;
            work();
            guard.is_some()
        }
        5 => {
            let names = [name.to_owned(), format!("{{{name}}}:2")];
            let guard = locks.multi(names).try_lock_for(wait)?;
            work();
            guard.is_some()
        }
        6 => {
            let permit = locks
                .semaphore(format!("s:{name}"), 2)
                .try_acquire_for(wait)?;
            work();
            permit.is_some()
        }
        _ => {
            let limiter = locks.rate_limiter(format!("r:{name}"), 100, Duration::from_secs(1));
            limiter.try_acquire().is_ok()
        }
    })
}

fn manager(deployment: &Deployment) -> LockManager {
    let built = deployment.builder().lease(LEASE).build_lazy();
    built.expect("the settings are good")
}

/// Returns a number of this process from `/proc`.
fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the process's own status");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .expect("a number")
}
