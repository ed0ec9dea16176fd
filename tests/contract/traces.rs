//! What stays in Redis, and how fences rise.

use leasehold_simulator::Topology;

use crate::matrix::Capability::{Always, Numbers, RepeatsTheLastNumber};
use crate::matrix::{Chapter, bodies};
use crate::subject::Kind;
use crate::world::{World, ms};

pub(crate) const BODIES: Chapter = &[
    (Always, bodies![a_lock_leaves_only_its_fence_in_redis]),
    (Numbers, bodies![fences_rise_from_guard_to_guard]),
    (
        RepeatsTheLastNumber,
        bodies![readers_have_the_last_writers_fence],
    ),
];

fn a_lock_leaves_only_its_fence_in_redis(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("traces"));
    let (one, other) = (world.manager(), world.manager());
    let lock = kind.of(&one, &name);
    let rival = kind.rival().of(&other, &name);
    drop(lock.lock().expect("it is free"));
    redis.only_fences_are_left(kind, &name);

    // After a try and a wait that were not granted the lock.
    let holder = rival.hold();
    assert!(lock.try_lock().expect("Redis replies").is_none());
    let in_vain = lock.try_lock_for(ms(300)).expect("Redis replies");
    assert!(in_vain.is_none());
    redis.wait_until_queued(&name, 0);
    holder.release();
    redis.only_fences_are_left(kind, &name);

    // After a wait that was granted the lock.
    let holder = rival.hold();
    let waiter = lock.locking();
    redis.wait_until_queued(&name, 1);
    holder.release();
    waiter.locked();
    waiter.release();
    redis.only_fences_are_left(kind, &name);

    // After `max_hold` ended the lock.
    let guard = lock.max_hold(ms(1)).lock().expect("it is free");
    world.until("it is over", || guard.check().is_err());
    drop(guard);
    redis.only_fences_are_left(kind, &name);
}

fn fences_rise_from_guard_to_guard(world: &World, kind: Kind) {
    let name = world.name("fences");
    let managers = [(); 3].map(|()| world.manager());
    let mut last = vec![0; kind.keys(&name).len()];
    // Also from a guard to the next one of the same process.
    for process in [0, 0, 2, 1, 1, 2, 0, 2] {
        let guard = kind.of(&managers[process], &name).lock();
        let guard = guard.expect("it is free");
        let fences: Vec<_> = guard.leases().iter().map(leasehold::Lease::fence).collect();
        assert!(last.iter().zip(&fences).all(|(last, fence)| last < fence));
        guard.release().expect("it was held until now");
        last = fences;
    }
}

fn readers_have_the_last_writers_fence(world: &World, kind: Kind) {
    let name = world.name("readers");
    let (one, other) = (world.manager(), world.manager());
    let mut last = 0;
    for round in 0..3 {
        // Before the first writer, readers have a fence of their own. On a quorum each process has: a node that answers the first one
        // late makes another record.
        let before = if round == 0 {
            None
        } else {
            let writer = kind.rival().of(&other, &name).lock().expect("it is free");
            assert!(writer.fence() > last);
            let fence = writer.fence();
            writer.release().expect("it was held until now");
            Some(fence)
        };
        let readers = [&one, &one, &other].map(|locks| {
            let reader = kind.of(locks, &name).lock();
            reader.expect("readers share")
        });
        let fence = readers[0].fence();
        assert!(fence > last);
        assert!(before.is_none_or(|before| before == fence));
        for reader in readers {
            let shares_it = before.is_some() || world.topology() != Topology::Quorum;
            assert!(!shares_it || reader.fence() == fence);
            last = last.max(reader.fence());
            reader.release().expect("it was held until now");
        }
    }
}
