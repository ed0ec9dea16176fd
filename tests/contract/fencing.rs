//! Guards without fences: `fencing(false)`. The kind `Unfenced` takes part in all other bodies.

use leasehold::Claim;
use leasehold_simulator::Topology;

use crate::matrix::Capability::KeepsFences;
use crate::matrix::{Chapter, Subject, bodies, subject_bodies};
use crate::redis::fence_of;
use crate::subject::Kind;
use crate::world::{Locks, World, secs};

pub(crate) const BODIES: Chapter = &[(
    KeepsFences,
    bodies![a_lock_goes_between_guards_with_and_without_fences],
)];

pub(crate) const OPTION_BODIES: Subject = (
    "fencing",
    &[Topology::Single, Topology::Quorum],
    subject_bodies![
        the_last_fence_is_kept,
        a_handle_has_an_option_of_its_own,
        threads_hand_over_a_lease_without_fences,
    ],
);

const NAME: &str = "n";

fn without_fences(world: &World) -> Locks {
    world.build(|it| it.fencing(false))
}

fn a_lock_goes_between_guards_with_and_without_fences(world: &World, kind: Kind) {
    let name = world.name("both");
    let (with, without) = (world.manager(), without_fences(world));
    let first = kind.rival().of(&without, &name).hold();
    let second = kind.of(&with, &name).locking();
    world.pass(secs(2));
    assert!(second.waits());
    first.release();
    assert!(second.locked() > 0);
    let third = kind.rival().of(&without, &name).locking();
    world.pass(secs(2));
    assert!(third.waits());
    second.release();
    assert_eq!(third.locked(), 0);
    third.release();
}

/// Neither guards nor claims without fences touch the record of the last fence.
fn the_last_fence_is_kept(world: &World) {
    let (with, without) = (world.manager(), without_fences(world));
    let records = || {
        // A node of a quorum may execute a release after a majority has.
        world.pass(secs(1));
        let nodes = world.redis().servers().into_iter();
        nodes
            .map(|node| node.get(&fence_of(NAME)))
            .collect::<Vec<_>>()
    };
    let mut last = 0;
    let mut rises = |fence: u64| {
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    };
    let guard = with.lock(NAME).expect("it is free");
    rises(guard.fence());
    guard.release().expect("it is held");
    let before = records();
    let claim = without.lock(NAME).expect("it is free").detach();
    assert_eq!(claim.fence(), 0);
    let read: Claim = claim.to_string().parse().expect("it is a claim");
    assert_eq!(read, claim);
    let guard = without.adopt(&claim).expect("nobody else has");
    assert_eq!(guard.fence(), 0);
    assert_eq!(records(), before);
    let guard = with.adopt(&guard.detach()).expect("nobody else has");
    rises(guard.fence());
    let guard = without.adopt(&guard.detach()).expect("nobody else has");
    assert_eq!(guard.fence(), 0);
    guard.release().expect("it is held");
    rises(with.lock(NAME).expect("it is free").fence());
}

/// The option of a handle is stronger than that of its manager.
fn a_handle_has_an_option_of_its_own(world: &World) {
    let (with, without) = (world.manager(), without_fences(world));
    let guard = with.mutex(NAME).fencing(false).lock();
    assert_eq!(guard.expect("it is free").fence(), 0);
    let guard = without.mutex(NAME).fencing(true).lock();
    assert!(guard.expect("it is free").fence() > 0);
    let writer = without.rwlock("rw").fencing(true).write();
    let writer = writer.expect("it is free");
    let fence = writer.fence();
    let reader = writer.downgrade().expect("it is held");
    assert_eq!(reader.fence(), fence);
    reader.release().expect("it is held");
    let writer = with.rwlock("rw").fencing(false).write();
    let reader = writer.expect("it is free").downgrade();
    assert_eq!(reader.expect("it is held").fence(), 0);
}

/// Threads share a lease in memory only if both want a fence, or neither does.
fn threads_hand_over_a_lease_without_fences(world: &World) {
    let locks = world.build(|it| it.fencing(false).quantum(secs(600)));
    let first = locks.lock(NAME).expect("it is free");
    let waiting = |fencing: bool| {
        let (mutex, before) = (locks.mutex(NAME).fencing(fencing), locks.stats().waiting);
        let thread = locks.thread(move || {
            let guard = mutex.lock().expect("it becomes free");
            (guard.fence(), guard.owner().to_owned())
        });
        world.until("it waits", || locks.stats().waiting > before);
        thread
    };
    let threads = [(); 10].map(|()| waiting(false));
    let last = waiting(true);
    let owner = first.owner().to_owned();
    first.release().expect("it is held");
    for thread in threads {
        assert_eq!(thread.end(), (0, owner.clone()));
    }
    let (fence, another) = last.end();
    assert!(fence > 0 && another != owner);
}
