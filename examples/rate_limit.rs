//! A quota that several processes share: 20 a minute, exact in every minute, by one script in Redis.
//!
//! `cargo run --example rate_limit`, with a Redis on this machine; `REDIS_URL` names another. The parent starts three
//! children of this program. Each child first sends as many mails as it may. Then it waits for its turns with a
//! second quota, of 20 a second, so that the example does not take minutes.

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

/// Prints a line for people, and one of numbers: how many mails were sent, and the time of each turn, in µs.
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
        turns.acquire()?; // sleeps until its turn, without further requests
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
        println!("{line}"); // the parent prints all lines, so that they do not mix
        let mut numbers = numbers.split_whitespace().map(str::parse::<u128>);
        sent += numbers.next().ok_or("a process failed")??;
        turns.extend(numbers.collect::<Result<Vec<_>, _>>()?);
    }
    println!("together: {sent} mails in the first minute, then turns at 20 a second");

    // A turn may be recorded late but never early. So the 21st is at least a second after the 1st, and so on.
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
