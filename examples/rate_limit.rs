//! A quota that several processes share: 20 a minute, exact over any minute, by one script in Redis.
//!
//! `cargo run --example rate_limit`, with a Redis on this machine; `REDIS_URL` names another. The parent starts three
//! children of this program. First each tries to send as many mails as it can; then, by a quota of 20 a second so
//! that nobody has to wait for minutes, each waits for its turn.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, error::Error};

use leasehold::{Admission, LockManager};

const PROCESSES: usize = 3;
const MINUTE: Duration = Duration::from_mins(1);
const SECOND: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    match env::args().nth(1) {
        None => parent(),
        Some(run) => child(&run),
    }
}

/// Prints a line for people, and one of numbers: how many mails were sent, and when each turn came, in µs.
fn child(run: &str) -> Result<(), Box<dyn Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let locks = LockManager::connect(&url)?;

    let mails = locks.rate_limiter(format!("rate_limit:{run}:mails"), 20, MINUTE);
    let mut sent = 0;
    let wait = loop {
        match mails.try_acquire()? {
            Admission::Admitted => sent += 1,
            Admission::RetryAfter(wait) => break wait,
            other => unreachable!("{other:?} is of a later version"),
        }
    };
    println!("a process: {sent} mails sent, the next in {wait:.1?}");

    let turns = locks.rate_limiter(format!("rate_limit:{run}:turns"), 20, SECOND);
    print!("{sent}");
    for _ in 0..20 {
        turns.acquire()?; // sleeps until its turn; nothing is asked meanwhile
        print!(" {}", now_us()?);
    }
    println!();
    Ok(())
}

fn parent() -> Result<(), Box<dyn Error>> {
    let (run, begun) = (std::process::id().to_string(), now_us()?);
    let mut children: Vec<Child> = Vec::new();
    for _ in 0..PROCESSES {
        let mut program = Command::new(env::current_exe()?);
        children.push(program.arg(&run).stdout(Stdio::piped()).spawn()?);
    }
    let (mut sent, mut turns) = (0, Vec::new());
    for child in children {
        let printed = String::from_utf8(child.wait_with_output()?.stdout)?;
        let (line, numbers) = printed.split_once('\n').ok_or("a process failed")?;
        println!("{line}"); // by one process, so that no two write into one line
        let mut numbers = numbers.split_whitespace().map(str::parse::<u128>);
        sent += numbers.next().ok_or("a process failed")??;
        turns.extend(numbers.collect::<Result<Vec<_>, _>>()?);
    }
    println!("together: {sent} mails in the first minute, then turns at 20 a second");

    // A turn may be noted late but never early: the 21st comes a second after the 1st at the soonest, and so on.
    turns.sort_unstable();
    let too_early = |(n, at): (u128, &u128)| *at < begun + n / 20 * SECOND.as_micros();
    if sent != 20 || turns.len() != 60 || (0..).zip(&turns).any(too_early) {
        return Err("the quota was not kept".into());
    }
    Ok(())
}

fn now_us() -> Result<u128, Box<dyn Error>> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())
}
