//! The keys that stay in Redis: only fences.

use crate::support::{Child, Kind, Raw, fence_of, manager, ms, name, secs, shared, wait_until};

/// Blocks until only the fences of the lock are in Redis, and checks that they expire.
#[track_caller]
pub(crate) fn only_fences_are_left(redis: &Raw, kind: Kind, name: &str) {
    let fences: Vec<_> = kind.keys(name).iter().map(|key| fence_of(key)).collect();
    let all = || redis.keys(&format!("*{name}*"));
    // The renewal thread takes waiters that gave up out of the queue.
    world.until("nothing but fences is left", || {
        all().iter().all(|key| fences.contains(key))
    });
    let left = all();
    if !kind.has_fences() {
        assert!(left.is_empty(), "{left:?}");
        return;
    }
    assert_eq!(left.len(), fences.len(), "{left:?}");
    for fence in fences {
        let ttl = redis.ttl(&fence).expect("it does not stay for ever");
        assert!(ttl < secs(11 * 60), "{fence}: {ttl:?}");
    }
}

pub(crate) fn a_lock_leaves_only_its_fence_in_redis(world: &World, kind: Kind) {
    let redis = world.redis();
    let name = world.name("traces");
    let (one, other) = (world.manager(), world.manager());
    let lock = kind.of(&one, &name);
    let rival = kind.rival().of(&other, &name);
    drop(lock.lock().expect("it is free"));
    only_fences_are_left(redis, kind, &name);

    // After a try and a wait that were not granted the lock.
    let holder = rival.hold();
    assert!(lock.try_lock().expect("Redis replies").is_none());
    let in_vain = lock.try_lock_for(ms(300));
    assert!(!matches!(in_vain, Ok(Some(_))), "{in_vain:?}");
    redis.wait_until_queued(&name, 0);
    holder.release();
    only_fences_are_left(redis, kind, &name);

    // After a wait that was granted the lock.
    let holder = rival.hold();
    let waiter = lock.locking();
    redis.wait_until_queued(&name, 1);
    holder.release();
    waiter.locked();
    waiter.release();
    only_fences_are_left(redis, kind, &name);

    // After `max_hold` ended the lock.
    let guard = lock.max_hold(ms(1)).lock().expect("it is free");
    world.until("it is over", || guard.check().is_err());
    drop(guard);
    only_fences_are_left(redis, kind, &name);
}

pub(crate) fn fences_rise_from_guard_to_guard(world: &World, kind: Kind) {
    let redis = world.redis();
    let name = world.name("fences");
    let (one, other) = (world.manager(), world.manager());
    let mut child = Child::start(, "");
    let mut last = vec![0; kind.keys(&name).len()];
    for locks in [&one, &one, &other, &one, &other] {
        let guard = kind.of(locks, &name).lock().expect("it is free");
        let fences: Vec<_> = guard.leases().iter().map(leasehold::Lease::fence).collect();
        assert!(last.iter().zip(&fences).all(|(last, fence)| last < fence));
        guard.release().expect("it was held until now");
        let fence = child.lock_as(kind, &name);
        assert!(fence > fences[0]);
        assert_eq!(child.ask(format_args!("release {name}")), "released");
        last = fences;
        last[0] = fence;
    }
}

pub(crate) fn readers_have_the_last_writers_fence(world: &World, kind: Kind) {
    let redis = world.redis();
    let name = world.name("readers");
    let (one, other) = (world.manager(), world.manager());
    let mut child = Child::start(, "");
    let mut last = 0;
    for round in 0..3 {
        // Before the first writer, readers have a fence of their own.
        let before = if round == 0 {
            None
        } else {
            let writer = kind.rival().of(&other, &name).lock().expect("it is free");
            assert!(writer.fence() > last);
            let fence = writer.fence();
            writer.release().expect("it was held until now");
            Some(fence)
        };
        let first = kind.of(&one, &name).lock().expect("it is free");
        let second = kind.of(&one, &name).lock().expect("readers share");
        let third = kind.of(&other, &name).lock().expect("readers share");
        let fence = child.lock_as(kind, &name);
        assert!(fence > last);
        assert!(before.is_none_or(|before| before == fence));
        for reader in [first, second, third] {
            assert_eq!(reader.fence(), fence);
            reader.release().expect("it was held until now");
        }
        assert_eq!(child.ask(format_args!("release {name}")), "released");
        last = fence;
    }
}
