//! Processes that are killed, or hang.

use std::time::Instant;

use crate::support::{Child, Kind, SLACK, manager, ms, name, secs, shared, wait_until};

pub(crate) fn a_killed_holder_delays_others_by_its_lease(world: &World, kind: Kind) {
    a_killed_holder_delays_a_waiter(kind, kind.rival());
    if kind.rival() != kind {
        a_killed_holder_delays_a_waiter(kind.rival(), kind);
    }
}

fn a_killed_holder_delays_a_waiter(world: &World, kind: Kind, waiter: Kind) {
    let redis = world.redis();
    let name = world.name("killed-holder");
    let lease = secs(6);
    let locks = world.manager();
    let mut holder = Child::start(, "lease_ms=6000");
    holder.lock_as(kind, &name);
    let waiter = waiter.of(&locks, &name).locking();
    redis.wait_until_queued(&name, 1);
    // The lock outlasts its first lease, so only a renewal can have kept it.
    redis.wait_until_renewed(&name, 4);
    holder.kill();
    let killed = world.now();
    let left = redis.holders(&name);
    let [(_, left)] = left[..] else {
        panic!("it alone holds it: {left:?}");
    };
    waiter.locked();
    // The reading was taken a moment after `killed`, and the server counts in whole milliseconds.
    assert!((world.now() - killed) + ms(2) >= left, "taken too early");
    assert!((world.now() - killed) < lease + SLACK, "taken too late");
    waiter.release();
}

pub(crate) fn killed_waiters_delay_nobody(world: &World, kind: Kind) {
    const KILLED: usize = 3;
    let redis = world.redis();
    let name = world.name("killed-waiters");
    let locks = world.manager();
    let holder = kind.rival().of(&locks, &name).hold();
    let mut killed: Vec<_> = (0..KILLED).map(|_| Child::start(, "")).collect();
    for (before, child) in killed.iter_mut().enumerate() {
        child.wait_as(kind, &name);
        redis.wait_until_queued(&name, before + 1);
    }
    // On a busy machine a waiter of a quorum may lose its place, and queue again as another owner. Its channel is the same.
    let dead = redis.waiters(&name, KILLED);
    let mut live = Child::start(, "");
    live.wait_as(kind, &name);
    let mut all = redis.waiters(&name, KILLED + 1);
    all.retain(|(_, channel)| dead.iter().all(|(_, dead)| dead != channel));
    let [(_, channel_of_live)] = &all[..] else {
        panic!("one more waits: {all:?}");
    };
    for child in killed {
        child.kill();
    }
    // Redis learns of each exit at once, long before the waiters count as stale.
    world.until("the server knows", || {
        let mut channels = dead.iter().map(|(_, channel)| channel);
        channels.all(|channel| redis.listeners(channel) == 0)
    });
    assert_eq!(redis.listeners(channel_of_live), 1);
    holder.release();
    let released = world.now();
    let holders = redis.holders(&name);
    for (owner, _) in holders {
        assert!(
            dead.iter().all(|(dead, _)| *dead != owner),
            "it was given to a dead one"
        );
    }
    live.locked();
    // Waiting for a single one would have taken a pickup window, which is 10 s here.
    assert!((world.now() - released) < secs(9));
}

pub(crate) fn hung_waiters_delay_others_by_one_pickup_window_together(world: &World, kind: Kind) {
    const HUNG: usize = 3;
    let redis = world.redis();
    let name = world.name("hung-waiters");
    let locks = world.manager();
    let holder = kind.rival().of(&locks, &name).hold();
    // A pickup window is never longer than the lease.
    let window = secs(6);
    let start = |_| Child::start(, "lease_ms=6000");
    let mut hung: Vec<_> = (0..HUNG).map(start).collect();
    for (before, child) in hung.iter_mut().enumerate() {
        child.wait_as(kind, &name);
        redis.wait_until_queued(&name, before + 1);
    }
    let mut live = Child::start(, "");
    live.wait_as(kind, &name);
    redis.wait_until_queued(&name, HUNG + 1);
    // The waiters hang just after a poll. So they count as alive: the system keeps their connections open, but they
    // act on no message.
    let queue = redis.queue(&name);
    for (child, owner) in hung.iter().zip(&queue) {
        redis.wait_until_polled(&name, owner);
        child.pause();
    }
    holder.release();
    let released = world.now();
    live.locked();
    assert!(
        (world.now() - released) < window + SLACK,
        "{:?}",
        (world.now() - released)
    );
}

pub(crate) fn a_waiter_that_stalls_keeps_its_place_beside_dead_ones(world: &World, kind: Kind) {
    // On a busy machine a round may take longer than the life of a waiter. It shows nothing then.
    let is_shown = (0..20).any(|_| stalls_beside_dead_ones(kind));
    assert!(is_shown, "the waiters lose their places");
}

fn stalls_beside_dead_ones(world: &World, kind: Kind) -> bool {
    const DEAD: usize = 2;
    // A pickup window is never longer than the lease.
    let window = ms(300);
    let (redis, name) = (world.redis(), world.name("stalled-waiter"));
    let locks = world.manager();
    let holder = kind.rival().of(&locks, &name).hold();
    let start = |_| Child::start(, "lease_ms=300");
    let mut silent: Vec<_> = (0..=DEAD).map(start).collect();
    for (before, child) in silent.iter_mut().enumerate() {
        child.wait_as(kind, &name);
        redis.wait_until_queued(&name, before + 1);
    }
    let live = kind.of(&world.manager(), &name).locking();
    redis.wait_until_queued(&name, DEAD + 2);
    let queue = redis.queue(&name);
    let silence = |place: usize| redis.silence(&name, &queue[place]);
    for child in &silent {
        child.pause();
    }
    world.until("they are silent for their window", || {
        (0..=DEAD).all(|place| silence(place).is_none_or(|silence| silence > window))
    });
    // Passing over all of them takes one script, and no window.
    holder.release();
    live.locked();
    // A waiter that has left the queue has lost its place.
    if (0..=DEAD).any(|place| silence(place).is_none_or(|silence| silence > secs(2))) {
        return false;
    }
    let stalled = silent.pop().expect("it is the last one");
    stalled.resume();
    // A semaphore may have room for it.
    let is_back = || silence(DEAD).is_none_or(|silence| silence < window);
    world.until("it polls", is_back);
    let late = kind.rival().of(&locks, &name).locking();
    world.until("another one waits", || {
        redis
            .queue(&name)
            .iter()
            .any(|owner| !queue.contains(owner))
    });
    live.release();
    stalled.locked();
    assert!(late.waits());
    stalled.kill();
    late.locked();
    true
}

pub(crate) fn a_killed_sharer_costs_the_others_nothing(world: &World, kind: Kind) {
    let redis = world.redis();
    let name = world.name("killed-sharer");
    let locks = world.manager();
    let mut killed = Child::start(, "lease_ms=6000");
    killed.lock_as(kind, &name);
    let guard = kind.of(&locks, &name).lease(secs(6)).lock();
    let guard = guard.expect("there is room");
    let rival = kind.rival().of(&world.manager(), &name);
    let waiter = rival.locking();
    redis.wait_until_queued(&name, 1);
    assert_eq!(redis.holders(&name).len(), 2);
    killed.kill();
    world.until("its lease is over", || redis.holders(&name).len() == 1);
    // The lease was renewed, although the other process crashed.
    redis.wait_until_renewed(&name, 2);
    guard.check().expect("it is held");
    assert!(waiter.waits());
    guard.release().expect("it was held until now");
    waiter.locked();
}
