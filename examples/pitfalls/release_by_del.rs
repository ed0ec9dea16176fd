//! Release by `DEL`: a client that is late deletes the lock of the next client, and lets in a third.

use std::time::Duration;

use leasehold::Error;
use redis::TypedCommands;
use shared::PATIENCE;

use crate::claims::{heading, naive, ours};
use crate::naive::{let_lapse, take};
use crate::stage::{Outcome, Stage};

pub fn run(stage: &Stage) -> Outcome {
    heading("Release by DEL");
    let mut redis = stage.redis()?;
    let key = stage.name("del:naive");
    let first = take(&mut redis, &key, "first", 10_000)?;
    let_lapse(&mut redis, &key)?; // The first was slow.
    let second = take(&mut redis, &key, "second", 10_000)?;
    redis.del(&key)?; // The first releases "its" lock.
    let third = take(&mut redis, &key, "third", 10_000)?;
    naive(
        first && second && third,
        "the first was late and deleted the second's lock: second and third hold it",
    )?;

    let name = stage.name("del:ours");
    let [one, two, three] = [stage.locks()?, stage.locks()?, stage.locks()?];
    let short = one.mutex(&name).lease(Duration::from_millis(500));
    let first = short.renew(false).lock()?;
    let second = two.try_lock_for(&name, PATIENCE)?;
    let second = second.ok_or("the lease never ended")?;
    ours(
        matches!(first.release(), Err(Error::Lost(_))),
        "the first is late, and its release returns that the lock was lost",
    )?;
    let third = three.try_lock(&name)?;
    ours(
        third.is_none() && second.check().is_ok(),
        "only the second holds the lock",
    )
}
