//! Operators see the note of a holder, and ask for the release of its lock.

use leasehold::{Holder, Lease, LockManager, LostCause};
use leasehold_simulator::{LinkFault, Role};

use crate::matrix::Capability::{Always, OneServer};
use crate::matrix::{Chapter, bodies};
use crate::subject::{Kind, lost};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Chapter = &[
    (
        Always,
        bodies![
            a_note_is_shown_with_its_holder,
            a_request_for_its_release_is_heard,
            a_release_by_force_ends_the_requests,
        ],
    ),
    (
        OneServer,
        bodies![a_release_by_force_that_overtakes_its_grant_is_a_loss],
    ),
];

/// A label and a note that make the longest owner.
fn longest() -> (String, String) {
    ("l:".repeat(64), format!("job 7: {}!", "x".repeat(184)))
}

#[track_caller]
fn holder(onlooker: &LockManager, key: &str, lease: &Lease) -> Holder {
    let seen = onlooker.inspect(key).expect("Redis replies");
    let holders = seen.expect("it is held").holders;
    let mut holders = holders.into_iter();
    let holder = holders.find(|holder| holder.owner == lease.owner());
    holder.expect("it is among the holders")
}

pub(crate) fn a_note_is_shown_with_its_holder(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("noted"));
    let (label, note) = longest();
    let onlooker = world.manager();
    let noted = || world.build(|it| it.label(&label).note(&note));
    let (one, other) = (noted(), noted());
    let guard = kind.of(&one, &name).lock().expect("it is free");
    for (key, lease) in kind.keys(&name).iter().zip(guard.leases()) {
        let holder = holder(&onlooker, key, lease);
        assert_eq!(holder.label.as_deref(), Some(&*label));
        assert_eq!(holder.note.as_deref(), Some(&*note));
    }
    // The lock goes on by the queue, whose scripts read the whole owner.
    let waiting = kind.rival().of(&other, &name).locking();
    redis.wait_until_queued(&name, 1);
    guard.release().expect("it was held until now");
    waiting.locked();
    let seen = onlooker.inspect(&name).expect("Redis replies");
    for holder in seen.expect("it is held").holders {
        assert_eq!(holder.note.as_deref(), Some(&*note));
    }
    waiting.release();
    // On a quorum, a node may execute the release after a majority has, and keep the waiter in its queue until then.
    world.until("it is free", || {
        onlooker.inspect(&name).expect("Redis replies").is_none()
    });
}

pub(crate) fn a_request_for_its_release_is_heard(world: &World, kind: Kind) {
    let name = world.name("requested");
    let (holding, operator) = (world.manager(), world.manager());
    let ask = |why| operator.request_release(&name, why).expect("Redis replies");
    assert!(!ask("nobody holds it"));
    let guard = kind.of(&holding, &name).lock().expect("it is free");
    let requested = guard.lease().on_requested();
    // The subscription begins in the background.
    world.pass(ms(100));
    let asked = (world.now(), world.time_of_day());
    assert!(ask("a drain: 1 of 2"));
    let request = world.recv(&requested);
    assert!(world.now() <= world.within(asked.0));
    assert_eq!(request.why, "a drain: 1 of 2");
    assert!(asked.1 <= request.at && request.at <= world.time_of_day());
    guard.check().expect("a request ends nothing");
    // A later channel has the last request too.
    let later = guard.lease().on_requested();
    assert_eq!(world.recv(&later).why, request.why);
    assert!(ask("again"));
    // Each node of a quorum tells of a request.
    while world.recv(&later).why != "again" {}
    guard.release().expect("it was held until now");
    for ended in [requested, later] {
        while let Some(heard) = world.recv_or_end(&ended) {
            assert!(heard.why == request.why || heard.why == "again");
        }
    }
    world.redis().wait_until_free(kind, &name);
    assert!(!ask("it was released"));
}

pub(crate) fn a_release_by_force_ends_the_requests(world: &World, kind: Kind) {
    let name = world.name("forced");
    let (holding, operator) = (world.manager(), world.manager());
    let guard = kind.of(&holding, &name).lock().expect("it is free");
    let requested = guard.lease().on_requested();
    let owner = guard.lease().owner();
    assert!(operator.force_release(&name, owner).expect("Redis replies"));
    assert!(world.recv_or_end(&requested).is_none());
    lost(guard.release());
}

/// The answers to calls are late, and messages are not.
pub(crate) fn a_release_by_force_that_overtakes_its_grant_is_a_loss(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("overtaken"));
    let (holding, operator) = (world.manager(), world.manager());
    // A process subscribes when it waits for the first time.
    let theirs = kind.rival().of(&operator, &name).hold();
    let waiter = kind.of(&holding, &name).locking();
    redis.wait_until_queued(&name, 1);
    theirs.release();
    waiter.locked();
    waiter.release();
    holding.strike_on(Role::Pool, LinkFault::Late(ms(300)));
    let locking = {
        let locks = holding.clone();
        let name = name.clone();
        holding.thread(move || {
            let guard = kind.of(&locks, &name).lease(secs(600)).lock();
            let guard = guard.expect("it is free");
            let loss = locks.world().recv(&guard.on_lost());
            (loss.cause, locks.world().now())
        })
    };
    world.until("the server has executed it", || redis.exists(&name));
    let (owner, _) = redis.holders(&name).remove(0);
    assert!(operator.force_release(&name, &owner).expect("it replies"));
    let forced_at = world.now();
    let (cause, told_at) = locking.end();
    assert_eq!(cause, LostCause::Removed);
    assert!(told_at <= world.within(forced_at + secs(1)));
}
