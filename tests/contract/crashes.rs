//! Processes that are killed, or hang.

use std::time::Duration;

use crossbeam_channel::unbounded;
use leasehold::{LeaseState, LostCause};
use leasehold_simulator::Topology;

use crate::matrix::Capability::{Always, CountsListeners, HandsOver, InOrder, Numbers, Shares};
use crate::matrix::{Chapter, bodies};
use crate::redis::companions_of;
use crate::subject::{Holder, Kind, lost};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Chapter = &[
    (
        Always,
        bodies![
            a_killed_holder_delays_others_by_its_lease,
            a_killed_holder_delays_others_by_its_short_lease,
            a_guard_that_is_not_dropped_is_renewed_until_its_process_ends,
            a_holder_that_was_stopped_past_its_lease_knows_it,
            the_companions_of_a_killed_waiter_expire,
        ],
    ),
    (
        Numbers,
        bodies![a_write_after_a_pause_has_a_smaller_fence_than_the_next_holder],
    ),
    (CountsListeners, bodies![killed_waiters_delay_nobody]),
    (
        HandsOver,
        bodies![hung_waiters_delay_others_by_one_pickup_window_together],
    ),
    (
        InOrder,
        bodies![a_waiter_that_stalls_keeps_its_place_beside_dead_ones],
    ),
    (Shares, bodies![a_killed_sharer_costs_the_others_nothing]),
];

pub(crate) fn a_killed_holder_delays_others_by_its_lease(world: &World, kind: Kind) {
    a_killed_holder_delays_a_rival(world, kind, secs(6));
}

pub(crate) fn a_killed_holder_delays_others_by_its_short_lease(world: &World, kind: Kind) {
    a_killed_holder_delays_a_rival(world, kind, ms(100));
}

fn a_killed_holder_delays_a_rival(world: &World, kind: Kind, lease: Duration) {
    a_killed_holder_delays_a_waiter(world, kind, kind.rival(), lease);
    if kind.rival() != kind {
        a_killed_holder_delays_a_waiter(world, kind.rival(), kind, lease);
    }
}

/// Or until `max_hold`. Neither needs the manager.
pub(crate) fn a_guard_that_is_not_dropped_is_renewed_until_its_process_ends(
    world: &World,
    kind: Kind,
) {
    let (redis, lease) = (world.redis(), secs(12));
    let [name, limited] = ["endless", "limited"].map(|it| world.name(it));
    let locks = world.manager();
    let guard = kind.of(&locks, &name).lease(lease).lock();
    let guard = guard.expect("it is free");
    let kept = kind.of(&locks, &limited).max_hold(lease).lock();
    let kept = kept.expect("it is free");
    let locked_at = world.now();
    assert!(locks.close(secs(1)), "nothing is to be sent");
    redis.wait_until_free(kind, &limited);
    assert!(world.now() <= world.within(locked_at + lease));
    world.pass(3 * lease);
    guard.check().expect("it is renewed");
    locks.kill();
    for key in kind.keys(&name) {
        assert_eq!(redis.holders(&key).len(), 1);
    }
    world.pass(world.within(lease));
    redis.is_free(kind, &name);
    drop((guard, kept));
}

fn a_killed_holder_delays_a_waiter(world: &World, kind: Kind, waiter: Kind, lease: Duration) {
    let name = world.name(&format!("killed-{}-{}", kind.name(), lease.as_millis()));
    let redis = world.redis();
    let killed = world.manager();
    let _holder = kind.of(&killed, &name).lease(lease).hold();
    let waiter = waiter.of(&world.manager(), &name).locking();
    redis.wait_until_queued(&name, 1);
    // The lock outlasts its first lease, so only a renewal can have kept it.
    world.pass(2 * lease);
    assert!(waiter.waits());
    killed.kill();
    let killed_at = world.now();
    let left = redis.holders(&name);
    let [(_, left)] = left[..] else {
        panic!("it alone holds it: {left:?}");
    };
    let locked_at = waiter.locked_at();
    // The server counts in whole milliseconds.
    assert!(locked_at + ms(1) >= killed_at + left, "taken too early");
    let limit = lease.max(ms(250)) + late_by(world.topology());
    assert!(locked_at <= world.within(killed_at + limit));
    waiter.release();
}

fn a_holder_that_was_stopped_past_its_lease_knows_it(world: &World, kind: Kind) {
    let name = world.name("stopped-holder");
    let stopped = world.manager();
    let lock = kind.of(&stopped, &name).lease(secs(1));
    let (holds, goes_on) = (world.flag(), world.flag());
    let holder = {
        let (holds, goes_on) = (holds.clone(), goes_on.clone());
        stopped.thread(move || {
            let guard = lock.lock().expect("it is free");
            holds.raise();
            goes_on.wait();
            // The first look, before any thread of the process has received a reply.
            let state = guard.lease().state();
            (state, lost(guard.release()).cause)
        })
    };
    holds.wait();
    stopped.pause();
    let next = kind.rival().of(&world.manager(), &name).lock();
    let next = next.expect("its lease ends");
    goes_on.raise();
    stopped.resume();
    assert_eq!(holder.end(), (LeaseState::Lost, LostCause::Expired));
    next.check().expect("the late release does not matter");
    next.release().expect("it was held until now");
}

/// Nobody releases the lock, so no script looks into the queue.
fn the_companions_of_a_killed_waiter_expire(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("companions"));
    let holder = kind.rival().of(&world.manager(), &name).hold();
    let killed = world.manager();
    let _waiter = kind.of(&killed, &name).locking();
    redis.wait_until_queued(&name, 1);
    killed.kill();
    let [_, queue, waiters] = companions_of(&name);
    let nodes = redis.nodes();
    world.until("the queue is gone", || {
        let mut nodes = nodes.iter();
        nodes.all(|node| !node.exists(&queue) && !node.exists(&waiters))
    });
    holder.release();
}

/// Returns how long after the end of a lease a waiter may ask. A waiter of a quorum takes a lease that is nearly over for the
/// turn of another waiter, and leaves it alone for 250 ms.
fn late_by(topology: Topology) -> Duration {
    match topology {
        Topology::Quorum => ms(250),
        _ => Duration::ZERO,
    }
}

pub(crate) fn killed_waiters_delay_nobody(world: &World, kind: Kind) {
    const KILLED: usize = 3;
    let (redis, name) = (world.redis(), world.name("killed-waiters"));
    let holder = kind.rival().of(&world.manager(), &name).hold();
    let killed = [(); KILLED].map(|()| world.manager());
    let mut waiting = Vec::new();
    for (before, locks) in killed.iter().enumerate() {
        waiting.push(kind.of(locks, &name).lease(secs(1)).locking());
        redis.wait_until_queued(&name, before + 1);
    }
    let dead = redis.waiters(&name, KILLED);
    let live = kind.of(&world.manager(), &name).locking();
    redis.wait_until_queued(&name, KILLED + 1);
    for locks in &killed {
        locks.kill();
    }
    // Redis learns of each exit at once, long before the waiters count as stale.
    world.until("the server knows", || {
        let mut channels = dead.iter().map(|(_, channel)| channel);
        channels.all(|channel| redis.listeners(channel) == 0)
    });
    let released_at = world.now();
    holder.release();
    assert!(live.locked_at() <= world.within(released_at));
    assert!(waiting.iter().all(Holder::waits));
}

pub(crate) fn hung_waiters_delay_others_by_one_pickup_window_together(world: &World, kind: Kind) {
    // A pickup window is never longer than the lease.
    for (lease, window) in [(secs(30), secs(2)), (secs(1), secs(1))] {
        hung_waiters_delay_others(world, kind, lease, window);
    }
    // A hand-over to a waiter that hangs tells the others nothing, so they notice the end of a shorter window by their poll.
    hung_waiters_delay_others(world, kind, ms(100), secs(1));
}

fn hung_waiters_delay_others(world: &World, kind: Kind, lease: Duration, window: Duration) {
    const HUNG: usize = 3;
    let name = world.name(&format!("hung-{}", lease.as_millis()));
    let redis = world.redis();
    let holder = kind.rival().of(&world.manager(), &name).hold();
    let hung = [(); HUNG].map(|()| world.manager());
    let mut waiting = Vec::new();
    for (before, locks) in hung.iter().enumerate() {
        waiting.push(kind.of(locks, &name).lease(lease).locking());
        redis.wait_until_queued(&name, before + 1);
    }
    let live = kind.of(&world.manager(), &name).locking();
    redis.wait_until_queued(&name, HUNG + 1);
    let first = redis.queue(&name).remove(0);
    // A waiter polls twice in its window, so each of them still counts as alive: the system keeps its connections open, but
    // it acts on no message.
    for locks in &hung {
        locks.pause();
    }
    let released_at = world.now();
    holder.release();
    let mut holders = redis.holders(&name).into_iter();
    assert!(
        holders.any(|(owner, _)| owner == first),
        "it was passed over"
    );
    assert!(live.locked_at() <= world.within(released_at + window));
    assert!(waiting.iter().all(Holder::waits));
}

pub(crate) fn a_waiter_that_stalls_keeps_its_place_beside_dead_ones(world: &World, kind: Kind) {
    const DEAD: usize = 2;
    let (redis, name) = (world.redis(), world.name("stalled-waiter"));
    // A pickup window is never longer than the lease.
    let window = ms(300);
    let locks = world.manager();
    let holder = kind.rival().of(&locks, &name).hold();
    let silent = [(); DEAD + 1].map(|()| world.manager());
    let mut waiting = Vec::new();
    for (before, silent) in silent.iter().enumerate() {
        waiting.push(kind.of(silent, &name).lease(window).locking());
        redis.wait_until_queued(&name, before + 1);
    }
    let live = kind.of(&world.manager(), &name).locking();
    redis.wait_until_queued(&name, DEAD + 2);
    let queue = redis.queue(&name);
    let silence = |place: usize| redis.silence(&name, &queue[place]);
    for locks in &silent {
        locks.pause();
    }
    world.pass(window + ms(1));
    // The release passes over all of them, so that it costs no window.
    let released_at = world.now();
    holder.release();
    assert!(live.locked_at() <= world.within(released_at));
    assert!((0..=DEAD).all(|place| silence(place).is_some_and(|silence| silence > window)));
    let (stalled, waiting) = (&silent[DEAD], &waiting[DEAD]);
    stalled.resume();
    // A semaphore may have room for it.
    let is_back = || silence(DEAD).is_none_or(|silence| silence < window);
    world.until("it polls", is_back);
    let late = kind.rival().of(&locks, &name).locking();
    world.until("another one waits", || {
        let now = redis.queue(&name);
        now.iter().any(|owner| !queue.contains(owner))
    });
    let released_at = world.now();
    live.release();
    assert!(waiting.locked_at() <= world.within(released_at));
    assert!(late.waits());
    stalled.kill();
    assert!(late.locked_at() <= world.within(world.now() + window));
}

pub(crate) fn a_killed_sharer_costs_the_others_nothing(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("killed-sharer"));
    let lease = secs(6);
    let killed = world.manager();
    let _killed = kind.of(&killed, &name).lease(lease).hold();
    let guard = kind.of(&world.manager(), &name).lease(lease).lock();
    let guard = guard.expect("there is room");
    let waiter = kind.rival().of(&world.manager(), &name).locking();
    redis.wait_until_queued(&name, 1);
    killed.kill();
    assert_eq!(redis.holders(&name).len(), 2);
    world.pass(lease);
    assert_eq!(redis.holders(&name).len(), 1, "its lease is over");
    // The lease is renewed, although the other process crashed.
    world.pass(lease);
    guard.check().expect("it is held");
    assert!(waiter.waits());
    let released_at = world.now();
    guard.release().expect("it was held until now");
    assert!(waiter.locked_at() <= world.within(released_at));
}

/// A holder hangs between its check and its write, for longer than its lease. It writes without knowing of its loss. No lock
/// can prevent that, but what it writes to can compare fences.
pub(crate) fn a_write_after_a_pause_has_a_smaller_fence_than_the_next_holder(
    world: &World,
    kind: Kind,
) {
    let name = world.name("stale");
    let hangs = world.manager();
    let (tell, told) = unbounded();
    let (lock, clock) = (kind.of(&hangs, &name).lease(secs(3)), world.clone());
    let writer = hangs.thread(move || {
        let guard = lock.lock().expect("it is free");
        guard.check().expect("it is held");
        tell.send(()).ok();
        clock.pass(ms(10));
        let written_with = guard.fence();
        lost(guard.release());
        written_with
    });
    world.recv(&told);
    hangs.pause();
    let next = kind.rival().of(&world.manager(), &name).lock();
    let next = next.expect("it becomes free");
    hangs.resume();
    assert!(writer.end() < next.fence());
    next.check().expect("it is held");
}
