//! A manager that is closed during a request, or dropped.

use leasehold::Error;
use leasehold_simulator::Topology;

use crate::matrix::Capability::Always;
use crate::matrix::{Chapter, Subject, bodies, subject_bodies};
use crate::subject::{Holder, Kind, is_unreachable};
use crate::world::{Locks, World, ms, secs};

pub(crate) const BODIES: Chapter = &[(
    Always,
    bodies![
        a_close_during_a_request_ends_the_wait_with_its_answer,
        a_grant_during_a_close_is_returned_as_a_guard,
        a_close_during_a_request_without_an_answer_leaves_no_orphan,
    ],
)];

pub(crate) const BODIES_OF_DROPS: Subject = (
    "drops",
    &Topology::ALL,
    subject_bodies![waits_and_guards_outlive_their_manager],
);

/// Locks on a thread. Returns when the request is sent, and the servers do not reply.
fn inside_a_request(world: &World, kind: Kind, locks: &Locks, name: &str) -> Holder {
    // The servers know the script then.
    drop(kind.of(locks, "free").lock().expect("it is free"));
    world.pause_servers();
    let before = locks.stats().requests;
    let asking = kind.of(locks, name).lease(secs(600)).locking();
    world.until("it asks", || locks.stats().requests > before);
    world.pass(ms(10));
    asking
}

fn a_close_during_a_request_ends_the_wait_with_its_answer(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("closed"));
    let (patience, other) = (secs(60), world.manager());
    let locks = world.build(|it| it.io_timeout(patience).node_timeout(patience));
    let held = kind.rival().of(&other, &name).lease(secs(600)).hold();
    let asking = inside_a_request(world, kind, &locks, &name);
    let behind = kind.of(&locks, &name).locking_asleep();
    assert!(!locks.close(ms(1)), "the request is on its way");
    let closed = behind.outcome();
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    world.resume_servers();
    let closed = asking.outcome();
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    assert!(locks.close(secs(30)), "something is left to send");
    redis.wait_until_queued(&name, 0);
    held.release();
    redis.wait_until_free(kind, &name);
}

fn a_grant_during_a_close_is_returned_as_a_guard(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("granted"));
    let patience = secs(60);
    let locks = world.build(|it| it.io_timeout(patience).node_timeout(patience));
    let asking = inside_a_request(world, kind, &locks, &name);
    assert!(!locks.close(ms(1)), "the request is on its way");
    world.resume_servers();
    asking.locked();
    asking.release();
    assert!(locks.close(secs(30)), "something is left to send");
    redis.wait_until_free(kind, &name);
    let again = kind.of(&locks, &name).lock();
    assert!(matches!(again, Err(Error::Closed)), "{again:?}");
}

fn a_close_during_a_request_without_an_answer_leaves_no_orphan(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("unanswered"));
    let limit = secs(3);
    let locks = world.build(|it| it.io_timeout(limit).node_timeout(limit));
    let asking = inside_a_request(world, kind, &locks, &name);
    assert!(!locks.close(ms(1)), "the request is on its way");
    // The call ends by the close, or because it gets no reply.
    let ended = asking.outcome().expect_err("no server replies");
    assert!(matches!(ended, Error::Closed) || is_unreachable(&ended));
    // Redis executes the request now, and no caller waits for the reply.
    world.resume_servers();
    assert!(locks.close(secs(30)), "something is left to send");
    // A server may execute the request after its owner was withdrawn by another connection. So the withdrawal is
    // repeated.
    redis.wait_until_free(kind, &name);
}

fn waits_and_guards_outlive_their_manager(world: &World) {
    let redis = world.redis();
    let held = world.manager().lock("n").expect("it is free");
    let locks = world.manager();
    let lease = secs(9);
    // One thread asks Redis, and the other waits behind it. The threads own their handles.
    let [asking, behind] = [(), ()].map(|()| {
        let (mutex, of_thread) = (locks.mutex("n").lease(lease), world.clone());
        locks.thread(move || {
            let guard = mutex.lock().expect("it becomes free");
            // It is renewed, although only these threads still own anything of their manager.
            of_thread.pass(3 * lease);
            guard.release().expect("it was held until now");
        })
    });
    world.until("both wait", || locks.stats().waiting == 2);
    drop(locks);
    held.release().expect("it was held until now");
    asking.end();
    behind.end();
    redis.wait_until_free(Kind::Mutex, "n");
}
