//! Running a closure under the lock.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, LeaseState, LostCause};

use crate::matrix::Capability::Always;
use crate::matrix::{Chapter, bodies};
use crate::subject::{Kind, Subject, lost};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Chapter = &[(
    Always,
    bodies![
        with_returns_what_the_closure_returns,
        with_times_out_and_names_the_holder,
        with_returns_lost_if_the_lease_ended_meanwhile,
        run_returns_the_result_beside_the_loss,
    ],
)];

pub(crate) fn with_returns_what_the_closure_returns(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("with"));
    let lock = kind.of(&world.manager(), &name);
    let keys = kind.keys(&name);
    let owner = lock
        .with(secs(1), |leases| {
            for (lease, key) in leases.iter().zip(&keys) {
                assert_eq!(redis.holders(key)[0].0, lease.owner());
            }
            leases[0].owner().to_owned()
        })
        .expect("it is free");
    assert!(owner.starts_with("lh1:"));
    redis.is_free(kind, &name);
    // An error of the closure is nested: the lock itself succeeded.
    let nested: Result<Result<(), &str>, Error> = lock.with(secs(1), |_| Err("its own"));
    assert_eq!(nested.expect("it is free"), Err("its own"));
    redis.is_free(kind, &name);
}

pub(crate) fn with_times_out_and_names_the_holder(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("with-timeout"));
    let holder = kind.rival().of(&world.manager(), &name).hold();
    let lock = kind.of(&world.manager(), &name);
    let (owner, _) = redis.holders(&name).remove(0);
    for wait in [Duration::ZERO, ms(600)] {
        let named = holder_at_timeout(world, &lock, wait);
        assert_eq!(named.as_deref(), Some(&*owner));
    }
    holder.release();
}

/// Waits for a lock that stays held, and returns the holder that the error names.
#[track_caller]
pub(crate) fn holder_at_timeout(world: &World, lock: &Subject, wait: Duration) -> Option<Arc<str>> {
    match lock.with(wait, |_| panic!("it ran without the lock")) {
        Err(Error::Timeout {
            name,
            waited,
            holder,
        }) => {
            assert!(name.starts_with(lock.name()), "{name}");
            assert!(waited >= wait && waited <= world.within(wait), "{waited:?}");
            holder
        }
        other => panic!("no timeout: {other:?}"),
    }
}

pub(crate) fn with_returns_lost_if_the_lease_ended_meanwhile(world: &World, kind: Kind) {
    let name = world.name("with-lost");
    let lease = secs(2);
    let lock = kind.of(&world.manager(), &name).lease(lease).unrenewed();
    let mut ran = false;
    let result = lock.with(secs(1), |leases| {
        world.pass(lease);
        assert_eq!(leases[0].state(), LeaseState::Lost);
        ran = true;
    });
    let loss = lost(result);
    assert_eq!(loss.cause, LostCause::Expired);
    assert!(loss.name.starts_with(&name), "{loss:?}");
    assert!(ran);
}

/// The closure ran, so its result is there whether the lease was lost or not.
pub(crate) fn run_returns_the_result_beside_the_loss(world: &World, kind: Kind) {
    let name = world.name("run");
    let lock = kind.of(&world.manager(), &name);
    let ran = lock.run(secs(1), |leases| leases[0].name().to_owned());
    let ran = ran.expect("it is free");
    assert_eq!((ran.value.as_str(), &ran.lost), (&*name, &None));
    assert_eq!(ran.into_result().expect("it was held"), name);

    let lease = secs(2);
    let ran = lock.lease(lease).unrenewed().run(secs(1), |leases| {
        world.pass(lease);
        assert_eq!(leases[0].state(), LeaseState::Lost);
        17
    });
    let ran = ran.expect("it ran");
    assert_eq!(ran.value, 17);
    let loss = ran.lost.clone().expect("it was lost");
    assert_eq!(loss.cause, LostCause::Expired);
    assert_eq!(lost(ran.into_result()), loss);
}
