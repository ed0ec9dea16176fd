//! The parts of the processes. Each process prints its events and their times.

use std::time::Duration;
use std::{io, thread};

use leasehold::{Event, EventKind, LockManager, Mutex};

use crate::{Outcome, now_us};

const NAME: &str = "orders:42";
pub const TURNS: usize = 8;
/// The work under a guard.
const WORK: Duration = Duration::from_millis(2);
/// The lease of the process that loses its lock.
const LEASE: Duration = Duration::from_secs(3);
/// The time limit of a request, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);

pub fn play(part: &str, url: &str) -> Outcome {
    let builder = LockManager::single(url).io_timeout(TIMEOUT);
    let mutex = builder.listener(print_event).build()?.mutex(NAME);
    hear()?;
    match part {
        "take_turns" => take_turns(&mutex)?,
        "lose" => lose(&mutex.lease(LEASE))?,
        _ => return Err(format!("{part} is no part").into()),
    }
    // Another thread prints the last events. The first process waits for them, and then ends this one.
    hear()
}

/// Holds the lock several times. The first turn lasts until the first process has seen the other process wait.
fn take_turns(mutex: &Mutex) -> Outcome {
    for turn in 0..TURNS {
        let guard = mutex.lock()?;
        if turn == 0 {
            hear()?;
        }
        thread::sleep(WORK);
        let now = now_us()?;
        guard.check()?;
        println!("{now} held {}", guard.fence());
        guard.release()?;
    }
    Ok(())
}

/// Holds the lock until it is lost.
fn lose(mutex: &Mutex) -> Outcome {
    let guard = mutex.lock()?;
    let (mut now, mut held) = (now_us()?, None);
    while guard.check().is_ok() {
        held = Some(now);
        thread::sleep(Duration::from_millis(1));
        now = now_us()?;
    }
    println!("{} held {}", held.ok_or("never held")?, guard.fence());
    Ok(())
}

fn print_event(event: &Event<'_>) {
    let (Some(NAME), Ok(now)) = (event.name.as_deref(), now_us()) else {
        return;
    };
    match &event.kind {
        EventKind::Acquired { fence, .. } => println!("{now} acquired {fence}"),
        _ => println!("{now} {}", event.kind.as_str()),
    }
}

/// Waits for a line of the first process.
fn hear() -> Outcome {
    match io::stdin().read_line(&mut String::new())? {
        0 => Err("the first process is gone".into()),
        _ => Ok(()),
    }
}
