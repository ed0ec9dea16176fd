//! The claims about the locks. Each is checked before it is printed.

use crate::stage::Outcome;

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
