//! `bench`: how fast locks are with these servers, from this machine.
//!
//! | part | threads | names |
//! | --- | --- | --- |
//! | uncontended | N threads of one manager | each thread has its own share of M names |
//! | contended | N threads of one manager | one name for all |
//! | two managers | one thread of each of two managers, which are to a lock like two processes | one name for both |
//!
//! A thread acquires a lock and releases it, again and again. In the first two parts the time of such a pair counts. In
//! the last part the time of a hand-over counts: from just before the release in one manager until the other manager
//! holds the lock.
//!
//! 1. `bench` names the servers and the keys, and asks before it writes.
//! 2. It measures the three parts, each for the same time. The leases are short, so a `bench` that is killed leaves locks
//!    for a few seconds only.
//! 3. It removes the keys. The fence of a name would otherwise stay for the `fence_memory`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use leasehold::{Builder, Error, LockGuard, LockManager};
use serde_json::json;
use uuid::Uuid;

use crate::deployment::{Deployment, beside};
use crate::exit::{Failure, UNREACHABLE, USAGE};
use crate::figures::Figures;
use crate::output;
use crate::server::Server;
use crate::servers::Servers;

const LEASE: Duration = Duration::from_secs(5);
/// How long a thread may wait for the lock. Longer than a lease, so that a lost release ends no measurement.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many keys one connection removes.
const KEYS_AT_ONCE: usize = 500;
/// How long the last releases may take.
const CLOSING: Duration = Duration::from_secs(5);

/// Measures how fast locks are with these servers, and asks before it writes
///
/// It measures three parts: threads with their own names, threads that want one name, and two managers that want one
/// name, as two processes do. Each takes --seconds. Other programs notice the load.
///
/// The names are random and begin with `leasehold-bench:`. No key is left at the end.
#[derive(Args)]
pub struct Options {
    /// The number of threads
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    threads: u32,
    /// The number of names of the first part, at least one for each thread
    #[arg(long, value_name = "M", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    names: u32,
    /// The length of each part
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Write without asking
    #[arg(long)]
    yes: bool,
    /// Print one object of JSON
    #[arg(long)]
    json: bool,
}

/// A part that was measured.
struct Part {
    name: &'static str,
    /// The name of one that is counted.
    unit: &'static str,
    what: String,
    took: Duration,
    measured: Measured,
}

/// The measurements of a thread, or of all threads of a part.
struct Measured {
    figures: Figures,
    /// How many locks were lost before their release. A machine without free CPU time loses some.
    lost: u64,
}

impl Measured {
    fn new() -> Self {
        Self {
            figures: Figures::new(),
            lost: 0,
        }
    }

    /// Releases the lock. Returns whether it was held until now.
    fn release(&mut self, guard: LockGuard) -> Result<bool, Failure> {
        match guard.release() {
            Ok(()) => Ok(true),
            Err(Error::Lost(_)) => {
                self.lost += 1;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns what all threads have measured, or the failure of one.
    fn of_all(threads: impl IntoIterator<Item = Result<Self, Failure>>) -> Result<Self, Failure> {
        let mut all = Self::new();
        for thread in threads {
            let Self { figures, lost } = thread?;
            all.figures.add_all(&figures);
            all.lost += lost;
        }
        Ok(all)
    }
}

pub fn main(servers: &Servers, options: &Options) -> Result<u8, Failure> {
    if options.names < options.threads {
        let text = "--names must be at least --threads: each thread has names of its own";
        return Err(Failure::new(USAGE, text));
    }
    if !options.yes && !is_interactive() {
        let text = "bench writes to the servers, and there is no terminal to ask: pass --yes";
        return Err(Failure::new(USAGE, text));
    }
    let manager = || Ok::<_, Failure>(settings(servers.builder()?).build()?);
    let locks = manager()?;
    if !options.yes && !is_wanted(&locks, options)? {
        return Err(Failure::new(USAGE, "nothing was written"));
    }
    let run = Run {
        name: format!("leasehold-bench:{}", Uuid::new_v4()),
        deployment: Deployment::read(servers.url()?),
        options,
    };
    let other = manager()?;
    let measured = run.measure(&locks, &other);
    for locks in [&locks, &other] {
        let _ = locks.close(CLOSING);
    }
    // A closed manager sends nothing.
    let removed = manager().and_then(|locks| run.remove_keys(&locks));
    let parts = measured?;
    let text = if options.json {
        json_of(&parts, options)
    } else {
        parts.iter().map(Part::text).collect()
    };
    output::print(&text).map_err(|error| Failure::system("cannot write", error))?;
    removed.map(|()| 0)
}

/// Returns the settings of the URL, without those that keep a lock after its release.
fn settings(builder: Builder) -> Builder {
    builder.lease(LEASE).min_hold(Duration::ZERO)
}

fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Says what will be written, and asks.
fn is_wanted(locks: &LockManager, options: &Options) -> Result<bool, Failure> {
    let servers: Vec<_> = locks
        .ping()?
        .iter()
        .map(|ping| output::safe(&ping.server))
        .collect();
    let mut err = io::stderr().lock();
    let asked = write!(
        err,
        "This writes locks to {} for about {} s, with {} threads, as fast as they can. Other programs notice the load.\n\
         The {} names begin with leasehold-bench: and are removed at the end. Go on? [y/N] ",
        servers.join(", "),
        options.seconds * 3,
        options.threads,
        options.names,
    );
    asked
        .and_then(|()| err.flush())
        .map_err(|error| Failure::system("cannot ask", error))?;
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::system("cannot read the answer", error))?;
    Ok(["y", "yes"].contains(&&*answer.trim().to_ascii_lowercase()))
}

/// One run of `bench`.
struct Run<'a> {
    /// The beginning of all names, which no other run has.
    name: String,
    deployment: Deployment,
    options: &'a Options,
}

impl Run<'_> {
    fn measure(&self, locks: &LockManager, other: &LockManager) -> Result<Vec<Part>, Failure> {
        let (threads, names) = (self.options.threads, self.options.names);
        let own_names = |thread: u32| {
            let numbers = (thread..names).step_by(threads as usize);
            numbers
                .map(|number| format!("{}:{number}", self.name))
                .collect()
        };
        let shared = |_: u32| vec![self.shared_name()];
        let uncontended = self.pairs(locks, &own_names)?;
        let contended = self.pairs(locks, &shared)?;
        let handed_over = self.hand_overs(&[locks, other])?;
        let part = |name, unit, what, (took, measured)| Part {
            name,
            unit,
            what,
            took,
            measured,
        };
        Ok(vec![
            part(
                "uncontended",
                "pairs",
                format!("{threads} threads, {names} names"),
                uncontended,
            ),
            part(
                "contended",
                "pairs",
                format!("{threads} threads of one process, one name"),
                contended,
            ),
            part(
                "two managers",
                "hand-overs",
                "one name, as between two processes".to_owned(),
                handed_over,
            ),
        ])
    }

    fn shared_name(&self) -> String {
        format!("{}:shared", self.name)
    }

    /// Measures pairs of acquire and release. Each thread takes its names in turn.
    fn pairs(
        &self,
        locks: &LockManager,
        names: &dyn Fn(u32) -> Vec<String>,
    ) -> Result<(Duration, Measured), Failure> {
        let length = Duration::from_secs(self.options.seconds);
        let begun = Instant::now();
        let work = |names: Vec<String>| {
            let mut measured = Measured::new();
            let mutexes: Vec<_> = names.iter().map(|name| locks.mutex(name)).collect();
            for mutex in mutexes.iter().cycle() {
                let start = Instant::now();
                if start - begun >= length {
                    break;
                }
                let guard = mutex.try_lock_for(PATIENCE)?.ok_or_else(no_lock)?;
                if measured.release(guard)? {
                    measured.figures.add(start.elapsed());
                }
            }
            Ok::<_, Failure>(measured)
        };
        let results: Vec<_> = thread::scope(|scope| {
            let threads = (0..self.options.threads).map(|thread| {
                let names = names(thread);
                scope.spawn(move || work(names))
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(joined).collect()
        });
        Ok((begun.elapsed(), Measured::of_all(results)?))
    }

    /// Measures the times from a release in one manager to the grant in the other.
    fn hand_overs(&self, managers: &[&LockManager; 2]) -> Result<(Duration, Measured), Failure> {
        /// No manager has held the lock yet.
        const NONE: u64 = u64::MAX;
        let length = Duration::from_secs(self.options.seconds);
        let begun = Instant::now();
        // The lock itself guards both: the manager that held it last, and when it began to release.
        let (last, released) = (AtomicU64::new(NONE), Mutex::new(begun));
        let work = |own: u64| {
            let mut measured = Measured::new();
            let mutex = managers[own as usize].mutex(self.shared_name());
            while begun.elapsed() < length {
                let guard = mutex.try_lock_for(PATIENCE)?.ok_or_else(no_lock)?;
                let now = Instant::now();
                let mut since = released.lock().expect("no thread panics with it");
                if ![own, NONE].contains(&last.swap(own, Ordering::Relaxed)) {
                    measured.figures.add(now.saturating_duration_since(*since));
                }
                *since = Instant::now();
                drop(since);
                measured.release(guard)?;
            }
            Ok::<_, Failure>(measured)
        };
        let results = thread::scope(|scope| {
            let threads = [0, 1].map(|own| {
                let work = &work;
                scope.spawn(move || work(own))
            });
            threads.map(joined)
        });
        Ok((begun.elapsed(), Measured::of_all(results)?))
    }

    /// Removes the keys that stand beside the locks, at each server. The locks were released.
    fn remove_keys(&self, locks: &LockManager) -> Result<(), Failure> {
        let key = |name: &str| format!("{}{name}", self.deployment.prefix);
        let names = (0..self.options.names).map(|number| format!("{}:{number}", self.name));
        let mut keys: Vec<_> = names.map(|name| beside(&key(&name), "fence")).collect();
        let shared = key(&self.shared_name());
        keys.extend(["fence", "queue", "waiters"].map(|what| beside(&shared, what)));
        let pings = locks.ping()?;
        for ping in pings.iter().filter(|ping| ping.result.is_ok()) {
            let server = Server {
                address: &ping.server,
                deployment: &self.deployment,
            };
            for keys in keys.chunks(KEYS_AT_ONCE) {
                let commands: Vec<[&str; 2]> = keys.iter().map(|key| ["DEL", key]).collect();
                let commands: Vec<&[&str]> = commands.iter().map(<[_; 2]>::as_slice).collect();
                // A master of a cluster rejects the keys of others.
                let removed = server
                    .session()
                    .and_then(|mut session| session.ask_at_once(&commands));
                removed.map_err(|problem| Failure::new(UNREACHABLE, problem.to_string()))?;
            }
        }
        Ok(())
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().expect("a thread of the bench does not panic")
}

fn no_lock() -> Failure {
    let text = format!("no thread got the lock within {} s", PATIENCE.as_secs());
    Failure::new(UNREACHABLE, text)
}

impl Part {
    fn rate(&self) -> f64 {
        let count = u32::try_from(self.measured.figures.count()).unwrap_or(u32::MAX);
        f64::from(count) / self.took.as_secs_f64()
    }

    fn text(&self) -> String {
        let figures = &self.measured.figures;
        let lost = match self.measured.lost {
            0 => String::new(),
            lost => format!("  {lost} locks were lost: this machine or the server stood still\n"),
        };
        format!(
            "{}: {}\n  {:.0} {}/s   {}\n{lost}{}\n",
            self.name,
            self.what,
            self.rate(),
            self.unit,
            figures.summary(),
            figures.histogram()
        )
    }
}

fn json_of(parts: &[Part], options: &Options) -> String {
    let part = |part: &Part| {
        json!({
            "part": part.name,
            "unit": part.unit,
            "per_second": part.rate(),
            "seconds": part.took.as_secs_f64(),
            "lost": part.measured.lost,
            "times": part.measured.figures.json(),
        })
    };
    let parts: Vec<_> = parts.iter().map(part).collect();
    let object = json!({"threads": options.threads, "names": options.names, "parts": parts});
    format!("{object}\n")
}
