//! The answers of the nodes.

use leasehold::{Error, LockManager};
use redis::{RedisResult, TypedCommands};
use shared::Server;

use crate::{MAJORITY, Outcome};

const NAME: &str = "quorum:shown";

/// Locks a name, and prints the holder that each node names.
pub fn show_holders(nodes: &[Server], locks: &LockManager) -> Outcome {
    let guard = locks.lock(NAME)?;
    println!("the holder of {NAME:?} at each node:");
    let mut votes = 0;
    for node in nodes {
        match holder_at(node) {
            Ok(holder) => {
                votes += usize::from(holder.as_deref() == Some(guard.owner()));
                let holder = holder.as_deref().unwrap_or("nobody");
                println!("  {}: {holder}", node.address());
            }
            Err(error) if error.is_timeout() => println!("  {}: no answer", node.address()),
            Err(error) => println!("  {}: {error:#}", node.address()),
        }
    }
    if votes < MAJORITY {
        return Err("no majority has the lock".into());
    }
    Ok(guard.release()?)
}

/// Tries a lock while too few nodes answer, and prints the failure of each of the others.
pub fn show_failures(locks: &LockManager) -> Outcome {
    match locks.try_lock(NAME) {
        Err(Error::NoQuorum {
            needed,
            granted,
            failures,
            ..
        }) => {
            println!("{granted} nodes granted the lock, but it needs {needed}:");
            for failure in &*failures {
                println!("  {failure}");
            }
            Ok(())
        }
        other => Err(format!("two nodes are no majority: {other:?}").into()),
    }
}

/// Returns the value of the lock's key, as a client without leasehold reads it.
fn holder_at(node: &Server) -> RedisResult<Option<String>> {
    node.connect()?.get(NAME)
}
