//! The claims about the locks. Each is checked before it is printed.

use std::thread;
use std::time::{Duration, Instant};

use crate::stage::Outcome;

/// The time limit of anything that must happen.
pub const PATIENCE: Duration = Duration::from_mins(1);

pub fn heading(pitfall: &str) {
    println!("{pitfall}");
}

/// Checks and prints a claim about the naive lock.
pub fn naive(holds: bool, what: &str) -> Outcome {
    claim("naive", holds, what)
}

/// Checks and prints a claim about leasehold.
pub fn ours(holds: bool, what: &str) -> Outcome {
    claim("leasehold", holds, what)
}

fn claim(whose: &str, holds: bool, what: &str) -> Outcome {
    if !holds {
        return Err(format!("this is not true of {whose}: {what}").into());
    }
    println!("  {whose:9}  {what}");
    Ok(())
}

/// Blocks until a condition is true, which must happen in time.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome {
    let begun = Instant::now();
    while !condition()? {
        if begun.elapsed() > PATIENCE {
            return Err(format!("it did not happen in time: {what}").into());
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
