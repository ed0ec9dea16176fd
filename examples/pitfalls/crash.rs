//! `SETNX`, then `EXPIRE`: if a process dies between the two, the lock stays for ever.

use std::process::abort;
use std::time::{Duration, Instant};

use redis::{IntegerReplyOrNoOp, TypedCommands};
use shared::PATIENCE;

use crate::claims::{heading, naive, ours};
use crate::process::Process;
use crate::stage::{Outcome, Stage};

pub fn run(stage: &Stage) -> Outcome {
    heading("SETNX, and a crash before EXPIRE");
    let mut redis = stage.redis()?;
    let key = stage.name("crash:naive");
    let crashed = Process::start("crash", "naive", &key)?.crashed()?;
    naive(crashed, "its process crashed between SETNX and EXPIRE")?;
    let unending = redis.pttl(&key)? == IntegerReplyOrNoOp::ExistsButNotRelevant;
    naive(
        unending,
        "the lock has no expiry: a dead process holds it for ever",
    )?;

    let name = stage.name("crash:ours");
    let mut process = Process::start("crash", "ours", &name)?;
    let begun = Instant::now();
    ours(
        process.crashed()?,
        "its process crashed while it held the lock",
    )?;
    let guard = stage.locks()?.try_lock_for(&name, PATIENCE)?;
    let waited = begun.elapsed().as_secs_f32();
    ours(
        guard.is_some(),
        &format!("the lock had a lease of 1 s from the start: free after {waited:.1} s"),
    )
}

/// Runs the process that crashes.
pub fn second(stage: &Stage, part: &str, name: &str) -> Outcome {
    if part == "naive" {
        if stage.redis()?.set_nx(name, "the dead")? {
            abort();
            // The naive program would call redis.expire(name, 10) here.
        }
    } else {
        let locks = stage.locks()?;
        let _guard = locks.mutex(name).lease(Duration::from_secs(1)).lock()?;
        abort();
    }
    Err("it was not free".into())
}
