//! What is said of the locks: checked as it is printed.

use std::thread;
use std::time::{Duration, Instant};

use crate::stage::Outcome;

/// How long anything may take that is bound to happen.
pub const PATIENCE: Duration = Duration::from_mins(1);

pub fn heading(pitfall: &str) {
    println!("{pitfall}");
}

/// Checks and prints what is said of the naive lock.
pub fn naive(holds: bool, what: &str) -> Outcome {
    claim("naive", holds, what)
}

/// Checks and prints what is said of this crate's lock.
pub fn ours(holds: bool, what: &str) -> Outcome {
    claim("leasehold", holds, what)
}

fn claim(whose: &str, holds: bool, what: &str) -> Outcome {
    if !holds {
        return Err(format!("it does not hold that, {whose}: {what}").into());
    }
    println!("  {whose:9}  {what}");
    Ok(())
}

/// Waits for something that is bound to happen.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome {
    let begun = Instant::now();
    while !condition()? {
        if begun.elapsed() > PATIENCE {
            return Err(format!("it never came: {what}").into());
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
