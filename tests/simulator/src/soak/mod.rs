//! A soak: one process uses the whole library for long on real servers with faults. Its memory, its descriptors and its threads
//! must not grow. glibc's allocator keeps no memory for each thread ([`use_one_heap`]).
//!
//! | part | what it does |
//! | --- | --- |
//! | workers | Two managers for each topology, with three threads each, use all kinds of locks on old and new names. |
//! | churn | A thread makes a manager of one topology after the other, uses it, and closes it. |
//! | faults | A thread stalls a server, restarts it without data, or cuts its connections. |
//! | points | What the process uses, at 120 times. |
//! | verdict | A line through the points of the second half: see [`trend`]. A topology without grants, or a manager that does not close, fails the run. |

mod servers;
pub(crate) mod trend;

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use leasehold::{LockManager, Result};

use crate::random::Random;
use crate::record;
use servers::Deployment;
use trend::{Trend, Verdict};

/// The number of points of a run, and of looks at the process for each of them.
const POINTS: u32 = 120;
const LOOKS: u32 = 6;
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

/// What is asked for.
#[derive(Default)]
struct Asked {
    length: Duration,
    /// The file that gets the line of the run.
    record: Option<PathBuf>,
    /// How many KiB a second, and descriptors a minute, leak on purpose.
    leak: usize,
}

/// Runs the soak. The words are those after `soak`.
#[must_use]
pub fn main(words: &[String]) -> ExitCode {
    let one_heap = use_one_heap();
    let one_heap =
        one_heap.map_err(|error| format!("the program cannot be started again: {error}"));
    match one_heap.and_then(|()| Asked::new(words)?.run()) {
        Ok(Verdict::Steady) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(what) => {
            eprintln!("{what}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

const USAGE: &str = "leasehold-simulator soak --minutes M [--record FILE] [--leak N]";

impl Asked {
    fn new(words: &[String]) -> std::result::Result<Self, String> {
        let mut asked = Self::default();
        let mut words = words.iter();
        while let Some(option) = words.next() {
            let value = words.next().ok_or(format!("{option} has no value"))?;
            let number = || {
                value
                    .parse::<u32>()
                    .map_err(|_| format!("{value} is no number"))
            };
            match option.as_str() {
                "--minutes" => asked.length = Duration::from_secs(60) * number()?,
                "--record" => asked.record = Some(value.into()),
                "--leak" => asked.leak = number()? as usize,
                _ => return Err(format!("there is no {option}")),
            }
        }
        if asked.length.is_zero() {
            return Err("how long?".to_owned());
        }
        if asked.leak > 0 && asked.record.is_some() {
            return Err("a run that leaks on purpose is no record".to_owned());
        }
        Ok(asked)
    }

    fn run(&self) -> std::result::Result<Verdict, String> {
        let mut run = record::Soak {
            server: servers::version(),
            ..record::Soak::default()
        };
        if self.record.is_some() {
            run.commit = record::commit()?;
        }
        let ended = Soak::default().run(self, &mut run);
        println!(
            "{} s on {}: {} grants, {} faults",
            run.seconds, run.server, run.grants, run.faults
        );
        for trend in Trend::all(&run) {
            println!("{trend}");
        }
        let verdict = Verdict::of(&run);
        println!("verdict: {verdict}");
        ended?;
        if let Some(file) = &self.record {
            record::append(file, &run)?;
        }
        Ok(verdict)
    }
}

/// Starts this program again with one heap for all threads, unless it has one.
///
/// By default, glibc gives threads that allocate at the same time an arena each, up to eight for each CPU. It also keeps up to
/// seven freed pieces of each size for each thread. The threads of the workers and of the churn fill both for hours, so the
/// memory rises although nothing leaks: a heap profile shows that the library has as much allocated as in the first minute.
fn use_one_heap() -> io::Result<()> {
    const ARENAS: &str = "MALLOC_ARENA_MAX";
    const TUNABLES: &str = "GLIBC_TUNABLES";
    const NO_CACHES: &str = "glibc.malloc.tcache_count=0";
    let is_set = |name, value| env::var_os(name).is_some_and(|it| it == value);
    if is_set(ARENAS, "1") && is_set(TUNABLES, NO_CACHES) {
        return Ok(());
    }
    let mut again = Command::new(env::current_exe()?);
    again.args(env::args_os().skip(1));
    Err(again.env(ARENAS, "1").env(TUNABLES, NO_CACHES).exec())
}

impl Soak {
    fn run(&self, asked: &Asked, run: &mut record::Soak) -> std::result::Result<(), String> {
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
        thread::scope(|scope| {
            for (number, (locks, topology)) in managers.iter().zip(kinds.clone()).enumerate() {
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
            scope.spawn(|| self.leak(asked.leak));
            self.look(asked.length, run);
            self.is_over.store(true, Relaxed);
        });
        for (locks, topology) in managers.into_iter().zip(kinds) {
            if locks.stats().acquired == 0 {
                return Err(format!("a manager of the {topology} has got no lock"));
            }
            if !locks.close(Duration::from_secs(60)) {
                return Err(format!("a manager of the {topology} has not closed"));
            }
        }
        Ok(())
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

    /// Leaks so many KiB a second, and descriptors a minute, to show that the verdict finds a leak.
    fn leak(&self, leak: usize) {
        let (mut memory, mut files) = (Vec::new(), Vec::new());
        while leak > 0 && !self.is_over.load(Relaxed) {
            thread::sleep(Duration::from_secs(1));
            memory.push(vec![1_u8; leak * 1_024]);
            if memory.len() * leak / 60 > files.len() {
                files.push(File::open("/dev/null"));
            }
        }
    }

    /// Notes what the process uses.
    fn look(&self, length: Duration, run: &mut record::Soak) {
        let begun = Instant::now();
        for _ in 0..POINTS {
            let mut sums = [0.0; 3];
            for _ in 0..LOOKS {
                thread::sleep(length / (POINTS * LOOKS));
                let descriptors = fs::read_dir("/proc/self/fd");
                sums[0] += status("RssAnon:");
                sums[1] += descriptors.map_or(0.0, |open| open.map(|_| 1.0).sum());
                sums[2] += status("Threads:");
            }
            // Hundredths are enough.
            let [memory, descriptors, threads] =
                sums.map(|sum: f64| (sum * 100.0 / f64::from(LOOKS)).round() / 100.0);
            run.memory_kib.push(memory);
            run.descriptors.push(descriptors);
            run.threads.push(threads);
        }
        run.seconds = begun.elapsed().as_secs();
        run.grants = self.grants.load(Relaxed);
        run.faults = self.faults.load(Relaxed);
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
fn status(field: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("the process's own status");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .expect("a number")
}
