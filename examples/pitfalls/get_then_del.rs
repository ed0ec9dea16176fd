//! Release by `GET`, and then `DEL` if the value is the client's own. That fails if the lease ends between the two.

use leasehold::{Error, LostCause};
use redis::TypedCommands;

use crate::claims::{heading, naive, ours};
use crate::naive::{let_lapse, take};
use crate::stage::{Outcome, Stage};

pub fn run(stage: &Stage) -> Outcome {
    heading("Release by GET, then DEL");
    let mut redis = stage.redis()?;
    let key = stage.name("get:naive");
    let first = take(&mut redis, &key, "first", 10_000)?;
    let own = redis.get(&key)?.as_deref() == Some("first");
    let_lapse(&mut redis, &key)?; // Just now.
    let second = take(&mut redis, &key, "second", 10_000)?;
    if own {
        redis.del(&key)?;
    }
    let third = take(&mut redis, &key, "third", 10_000)?;
    naive(
        first && own && second && third,
        "GET returned the first's value, DEL deleted the second's lock: second and third hold it",
    )?;

    let name = stage.name("get:ours");
    let [one, two, three] = [stage.locks()?, stage.locks()?, stage.locks()?];
    let first = one.lock(&name)?;
    let_lapse(&mut redis, &name)?; // Before the first can know.
    let second = two.try_lock(&name)?.ok_or("it was free")?;
    let believed = first.check().is_ok();
    let taken = matches!(first.release(), Err(Error::Lost(lost)) if lost.cause == LostCause::Taken);
    ours(
        believed && taken,
        "the first expected its lock too, but Redis compares and deletes in one step",
    )?;
    let third = three.try_lock(&name)?;
    ours(
        third.is_none() && second.check().is_ok(),
        "only the second holds the lock",
    )
}
