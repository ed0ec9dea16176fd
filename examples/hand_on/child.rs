//! The child, which goes on with its parent's work.

use std::io;

use leasehold::{Claim, LockManager};

use crate::Outcome;

/// Adopts the lock, prints its fence, and holds the lock until the standard input ends.
pub fn go_on(locks: &LockManager, claim: &Claim) -> Outcome {
    let guard = locks.adopt(claim)?;
    println!("{}", guard.fence());
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(guard.release()?)
}
