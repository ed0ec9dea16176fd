//! A quota that several processes share: 20 a minute, exact in every minute, by one script in Redis.
//!
//! `cargo run --example rate_limit`, with a Redis on this machine; `REDIS_URL` names another. The parent starts three
//! children of this program. Each child first sends as many mails as it may. Then it waits for its turns with a
//! second quota, of 20 a second, so that the example does not take minutes.

use std::process::{self, Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, error::Error};

use leasehold::{Admission, LockManager};

const PROCESSES: usize = 3;
const MINUTE: Duration = Duration::from_mins(1);
const SECOND: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    env::args().nth(1).map_or_else(parent, |run| child(&run))
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
    println!("I sent {sent} of the 20 mails of a minute, and the next may go in {wait:.1?}.");

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
    let (run, begun) = (process::id().to_string(), now_us()?);
    let mut children: Vec<Child> = Vec::new();
    for _ in 0..PROCESSES {
        let mut program = Command::new(env::current_exe()?);
        children.push(program.arg(&run).stdout(Stdio::piped()).spawn()?);
    }
    let (mut sent, mut turns) = (0, Vec::new());
    for child in children {
        let process = child.id();
        let printed = String::from_utf8(child.wait_with_output()?.stdout)?;
        let (line, numbers) = printed.split_once('\n').ok_or("a process failed")?;
        println!("process {process}: {line}"); // the parent prints all lines, so that they do not mix
        let mut numbers = numbers.split_whitespace().map(str::parse::<u64>);
        sent += numbers.next().ok_or("a process failed")??;
        turns.extend(numbers.collect::<Result<Vec<_>, _>>()?);
    }
    // A turn may be recorded late but never early. So turn 21 comes a second after the start or later, and so on.
    turns.sort_unstable();
    let after = |n: usize| Duration::from_micros(turns[n - 1] - begun);
    if sent != 20 || turns.len() != 60 || after(21) < SECOND || after(41) < 2 * SECOND {
        return Err("the quota was not kept".into());
    }
    println!("Together they sent 20 mails, and then took 60 turns at 20 a second:");
    let (one, two) = (after(21), after(41));
    println!(
        "turn 21 came {one:.2?} after the start (at least 1 s), turn 41 {two:.2?} (at least 2 s)."
    );
    Ok(())
}

fn now_us() -> Result<u64, Box<dyn Error>> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as u64)
}
