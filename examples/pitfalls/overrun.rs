//! Work that takes longer than its lease.

use std::time::Duration;

use leasehold::Error;
use shared::{PATIENCE, wait_until};

use crate::claims::{heading, naive, ours};
use crate::naive::take;
use crate::stage::{Outcome, Stage};

/// Long enough for a renewal in time on a busy machine.
const LEASE: Duration = Duration::from_secs(5);

pub fn run(stage: &Stage) -> Outcome {
    heading("Work that outlives its lease");
    let mut redis = stage.redis()?;
    let key = stage.name("overrun:naive");
    let first = take(&mut redis, &key, "first", 200)?;
    // The first client works on, because it does not learn of its loss.
    wait_until("the lease is over", || {
        take(&mut redis, &key, "second", 10_000)
    })?;
    naive(
        first,
        "its lease of 200 ms ended during the work: two clients work at once",
    )?;

    let name = stage.name("overrun:ours");
    let (one, two) = (stage.locks()?, stage.locks()?);
    let first = one.mutex(&name).lease(LEASE).lock()?;
    let longer = LEASE + LEASE / 5;
    let second = two.try_lock_for(&name, longer)?;
    ours(
        second.is_none() && first.check().is_ok(),
        &format!(
            "work of {longer:?} under a lease of {LEASE:?}: it is renewed, and the second is kept out"
        ),
    )?;
    first.release()?;

    let short = one.mutex(&name).lease(Duration::from_millis(500));
    let first = short.renew(false).lock()?;
    let lost = first.on_lost();
    let second = two.try_lock_for(&name, PATIENCE)?;
    let told = lost.recv_timeout(PATIENCE).is_ok();
    ours(
        second.is_some() && told && matches!(first.check(), Err(Error::Lost(_))),
        "with `renew(false)` the second got the lock, but the first learns it: check() is Err(Lost)",
    )
}
