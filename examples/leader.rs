//! Three processes, of which one leads. The others print whom to ask: while it leads, after it has resigned at TERM, and after
//! the next leader was killed.
//!
//! `cargo run --example leader`, with a Redis on this machine; `REDIS_URL` names another. The parent starts the processes, prints
//! what they say, and ends one leader after the other.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use std::{env, error::Error, thread};

use leasehold::{Leader, LockManager};
use rustix::process::{Pid, Signal, kill_process};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// For how long nobody leads after a leader has died.
const LEASE: Duration = Duration::from_secs(3);
/// The longest time until all know the next leader, on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A process that leads if nobody else does, until it gets TERM.
fn stand(locks: &LockManager, name: &str, me: &'static str) -> Outcome {
    let election = locks.election(name).lease(LEASE);
    let leaders = election.observe()?;
    thread::spawn(move || {
        for leader in leaders {
            println!("{}", line(leader, me));
        }
    });
    let ends = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(Signal::TERM.as_raw(), Arc::clone(&ends))?;
    loop {
        let leadership = election.campaign(me)?;
        // A leader that was paused for longer than its lease leads no more. Then it waits again.
        while leadership.check().is_ok() {
            if ends.load(Ordering::SeqCst) {
                return Ok(leadership.resign()?);
            }
            thread::sleep(Duration::from_millis(10)); // its work, in steps that take less than a lease
        }
    }
}

fn line(leader: Option<Leader>, me: &str) -> String {
    match leader {
        Some(leader) if leader.value == me => format!("I lead by fence {}", leader.fence),
        Some(leader) => format!("ask {}", leader.value),
        None => "nobody leads".to_owned(),
    }
}

fn main() -> Outcome {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    if let [name, me] = &env::args().skip(1).collect::<Vec<_>>()[..] {
        thread::spawn(end_with_parent);
        return stand(&LockManager::connect(&url)?, name, me.clone().leak());
    }
    let name = format!("leader:{}", process::id());
    let (tell, told) = channel();
    let mut living = BTreeMap::new();
    for me in ["A", "B", "C"] {
        living.insert(me, start(&name, me, tell.clone())?);
    }
    let mut said = BTreeMap::new();
    let mut last_fence = 0;
    for signal in [Signal::TERM, Signal::KILL, Signal::TERM] {
        let (leader, fence) = wait_until_agreed(&told, &mut said, &living)?;
        if fence <= last_fence {
            return Err("a later leader has no larger fence".into());
        }
        last_fence = fence;
        let is_term = signal == Signal::TERM;
        let end = if is_term { "gets TERM" } else { "is killed" };
        println!("{:4.1} s  {leader} {end}", BEGUN.elapsed().as_secs_f64());
        let mut process = living.remove(leader).ok_or("it is not alive")?;
        let _open = process.stdin.take(); // `wait` would close it, which ends the process.
        kill_process(Pid::from_child(&process), signal)?;
        if process.wait()?.success() != is_term {
            return Err("the leader ended in another way".into());
        }
        said.remove(leader);
    }
    println!("Each leader had a larger fence than the last, and the others knew whom to ask.");
    Ok(())
}

/// Starts a process, and a thread that tells what it says.
fn start(name: &str, me: &'static str, tell: Sender<(&'static str, String)>) -> Outcome<Child> {
    let mut process = Command::new(env::current_exe()?);
    process.args([name, me]).stdin(Stdio::piped());
    let mut process = process.stdout(Stdio::piped()).spawn()?;
    let said = BufReader::new(process.stdout.take().ok_or("no output")?);
    thread::spawn(move || {
        for line in said.lines().map_while(Result::ok) {
            tell.send((me, line)).ok();
        }
    });
    Ok(process)
}

/// When the parent ends, this process's standard input ends too.
fn end_with_parent() {
    io::copy(&mut io::stdin(), &mut io::sink()).ok();
    process::exit(1);
}

/// Blocks until a living process leads, and all others name it as the leader. Returns its name and its fence.
fn wait_until_agreed(
    told: &Receiver<(&'static str, String)>,
    said: &mut BTreeMap<&'static str, String>,
    living: &BTreeMap<&'static str, Child>,
) -> Outcome<(&'static str, u64)> {
    loop {
        let leads = |me: &&str| said.get(me)?.strip_prefix("I lead by fence ")?.parse().ok();
        let leader = living.keys().find_map(|me| Some((*me, leads(me)?)));
        if let Some((leader, fence)) = leader {
            let ask = format!("ask {leader}");
            let mut others = living.keys().filter(|me| **me != leader);
            if others.all(|me| said.get(me) == Some(&ask)) {
                return Ok((leader, fence));
            }
        }
        let (me, line) = told.recv_timeout(PATIENCE)?;
        println!("{:4.1} s  {me}: {line}", BEGUN.elapsed().as_secs_f64());
        said.insert(me, line);
    }
}
