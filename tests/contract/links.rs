//! A link that loses requests or replies.

use std::time::Duration;

use leasehold::{Error, LeaseState, LostCause};
use leasehold_simulator::LinkFault;

use crate::matrix::Capability::OneServer;
use crate::matrix::{Chapter, bodies};
use crate::redis::fence_of;
use crate::subject::{Kind, lost};
use crate::world::{Locks, World, ms, secs};

pub(crate) const BODIES: Chapter = &[(
    OneServer,
    bodies![
        an_acquire_whose_answer_was_lost_leaves_no_orphan,
        an_acquire_that_is_executed_late_leaves_no_orphan,
        a_release_whose_answer_was_lost_frees_it,
        a_renewal_counts_from_before_its_request,
        close_tells_that_a_release_was_given_up,
        a_dead_link_loses_the_lock_at_its_deadline_for_ever,
        a_wait_outlives_the_faults_of_its_link,
    ],
)];

/// Far longer than these tests take, so that the end of a lease frees no lock.
const LONG: Duration = secs(60);
const IO_TIMEOUT: Duration = secs(2);

/// Returns a manager whose links get faults, and another one.
fn managers(world: &World) -> (Locks, Locks) {
    (world.build(|it| it.io_timeout(IO_TIMEOUT)), world.manager())
}

/// Makes the server load the scripts. A server that lacks a script replies with an error first.
fn make_known(kind: Kind, locks: &Locks) {
    let guard = kind.of(locks, "first").lock().expect("it is free");
    guard.release().expect("it was held until now");
}

/// Tries to lock by a link or a server that does not reply.
fn try_to_lock(world: &World, kind: Kind, locks: &Locks, name: &str) {
    let begun = world.now();
    let tried = kind.of(locks, name).lease(LONG).try_lock();
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    assert!(world.now() <= world.within(begun + IO_TIMEOUT));
}

pub(crate) fn an_acquire_whose_answer_was_lost_leaves_no_orphan(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("lost-grant"));
    let (locks, other) = managers(world);
    make_known(kind, &other);
    locks.strike(LinkFault::LoseAnswers);
    try_to_lock(world, kind, &locks, &name);
    assert!(redis.exists(&name), "the lost reply was no grant");
    locks.heal();
    let healed_at = world.now();
    let next = kind.rival().of(&other, &name).try_lock_for(secs(30));
    let next = next.expect("Redis replies").expect("there is no orphan");
    assert!(world.now() <= world.within(healed_at));
    next.release().expect("it was held until now");
    assert!(locks.close(secs(30)), "something is left to send");
}

/// The server executes the request after the caller has given up.
pub(crate) fn an_acquire_that_is_executed_late_leaves_no_orphan(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("late-grant"));
    let (locks, other) = managers(world);
    make_known(kind, &locks);
    world.pause_servers();
    try_to_lock(world, kind, &locks, &name);
    world.resume_servers();
    let resumed_at = world.now();
    if kind.has_fences() {
        world.until("the server executes the request", || {
            redis.exists(&fence_of(&name))
        });
    }
    let next = kind.rival().of(&other, &name).try_lock_for(secs(30));
    let next = next.expect("Redis replies").expect("there is no orphan");
    assert!(world.now() <= world.within(resumed_at));
    next.release().expect("it was held until now");
    assert!(locks.close(secs(30)), "something is left to send");
}

pub(crate) fn a_release_whose_answer_was_lost_frees_it(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("lost-release"));
    let (locks, other) = managers(world);
    make_known(kind, &other);
    let guard = kind.of(&locks, &name).lease(LONG).lock();
    let guard = guard.expect("it is free");
    locks.strike(LinkFault::LoseAnswers);
    let begun = world.now();
    let released = guard.release();
    assert!(
        matches!(released, Err(Error::Unavailable { .. })),
        "{released:?}"
    );
    assert!(world.now() <= world.within(begun + IO_TIMEOUT));
    redis.is_free(kind, &name);
    let next = kind.rival().of(&other, &name).lease(LONG).lock();
    let next = next.expect("it is free");
    locks.heal();
    assert!(locks.close(secs(30)), "something is left to send");
    // The renewal thread repeated the release until Redis answered. That did not touch the next owner.
    next.release().expect("it was held until now");
    redis.is_free(kind, &name);
}

/// However late the answer comes, the guard ends before its key.
pub(crate) fn a_renewal_counts_from_before_its_request(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("late-renewal"));
    let (locks, _) = managers(world);
    let guard = kind.of(&locks, &name).lease(secs(9)).lock();
    let guard = guard.expect("it is free");
    locks.strike(LinkFault::Late(ms(300)));
    let renewed = locks.stats().renewed;
    world.until("it is renewed", || locks.stats().renewed > renewed);
    let (_, key_left) = redis.holders(&name)[0];
    assert!(guard.lease().remaining() <= key_left * 99 / 100);
    locks.heal();
    guard.release().expect("it was held until now");
}

/// The server has not received the release before the key has ended.
pub(crate) fn close_tells_that_a_release_was_given_up(world: &World, kind: Kind) {
    let name = world.name("given-up");
    let (locks, _) = managers(world);
    let guard = kind.of(&locks, &name).lease(secs(3)).lock();
    let guard = guard.expect("it is free");
    locks.strike(LinkFault::LoseRequests);
    guard.release().expect_err("the server does not answer");
    world.pass(secs(30));
    assert!(!locks.close(secs(30)), "nobody knows what it executes");
}

pub(crate) fn a_dead_link_loses_the_lock_at_its_deadline_for_ever(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("dead-link"));
    let (locks, other) = managers(world);
    let guard = kind.of(&locks, &name).lease(secs(3)).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    locks.strike(LinkFault::LoseAll);
    let deadline = world.now() + guard.lease().remaining();
    let key_ends_at = world.now() + redis.holders(&name)[0].1;
    let next = kind.rival().of(&other, &name).locking();
    let loss = world.recv(&losses);
    assert!(world.now() >= deadline && world.now() <= world.promptly(deadline));
    assert_eq!(loss.cause, LostCause::Expired);
    assert_eq!(guard.lease().state(), LeaseState::Lost);
    // The others need no message from the holder. The server counts in whole milliseconds.
    let next_at = next.locked_at();
    assert!(next_at + ms(1) >= key_ends_at && next_at <= world.within(key_ends_at));
    locks.heal();
    assert_eq!(lost(guard.release()), loss);
    assert!(locks.close(secs(30)), "something is left to send");
    next.release();
}

pub(crate) fn a_wait_outlives_the_faults_of_its_link(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("waits-on"));
    let (locks, other) = managers(world);
    let holder = kind.rival().of(&other, &name).lease(LONG).hold();
    let waiter = kind.of(&locks, &name).lease(LONG).locking();
    // Before that, the call would return an error at once.
    world.until("the call waits", || locks.stats().contended == 1);
    for fault in [LinkFault::Reset, LinkFault::LoseAll, LinkFault::LoseAnswers] {
        redis.wait_until_queued(&name, 1);
        locks.strike(fault);
        // The next poll and the subscription meet the fault, for longer than any of them may take.
        locks.wait_until_struck();
        world.pass(2 * IO_TIMEOUT);
        assert!(waiter.waits(), "{fault:?} ended it");
        locks.heal();
        world.until("it polls again", || {
            // The queue is empty if Redis dropped it meanwhile.
            let queue = redis.queue(&name);
            queue.first().is_some_and(|owner| {
                redis.wait_until_polled(&name, owner);
                true
            })
        });
    }
    assert!(waiter.waits());
    let released_at = world.now();
    holder.release();
    // At most one poll later, if the message is lost.
    assert!(waiter.locked_at() <= world.within(released_at + secs(1)));
    waiter.release();
}
