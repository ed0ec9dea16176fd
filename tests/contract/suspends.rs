//! A machine that was suspended: the clocks have gone on, and no thread of the process has run meanwhile.

use leasehold::{LeaseState, LostCause};

use crate::matrix::Capability::Always;
use crate::matrix::{Chapter, bodies};
use crate::subject::{Kind, lost};
use crate::world::{World, secs};

pub(crate) const BODIES: Chapter = &[(
    Always,
    bodies![
        a_lease_that_ended_during_a_suspend_is_lost_at_once,
        what_was_over_during_a_suspend_ends_after_it,
    ],
)];

fn a_lease_that_ended_during_a_suspend_is_lost_at_once(world: &World, kind: Kind) {
    let name = world.name("suspended");
    let locks = world.manager();
    let guard = kind.rival().of(&locks, &name).lease(secs(9)).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    let waiter = kind.of(&locks, &name).locking_asleep();
    locks.pause();
    world.pass(secs(60 * 60));
    // No thread of the process has run, but the guard compares the clock with its deadline.
    assert_eq!(guard.lease().state(), LeaseState::Lost);
    locks.resume();
    let resumed_at = world.now();
    let loss = world.recv(&losses);
    assert_eq!(
        (loss.cause, loss.fence),
        (LostCause::Expired, guard.fence())
    );
    // A thread that waits for an answer looks at the clock each second.
    assert!(world.now() <= world.within(resumed_at + secs(1)));
    // The thread gets the lock although the guard is neither dropped nor used. A late answer revives no lease.
    assert!(kind.rises(guard.fence(), waiter.locked()) || kind == Kind::Reader);
    assert_eq!(lost(guard.release()), loss);
    waiter.release();
}

fn what_was_over_during_a_suspend_ends_after_it(world: &World, kind: Kind) {
    let (held, limited) = (world.name("held"), world.name("limited"));
    let (locks, other) = (world.manager(), world.manager());
    let minute = secs(60);
    let holder = kind.rival().of(&other, &held).hold();
    let waits = [(); 2].map(|()| {
        let (manager, name) = (locks.clone(), held.clone());
        locks.thread(move || {
            let waited = kind.of(&manager, &name).try_lock_for(minute);
            waited.map(|guard| guard.is_some())
        })
    });
    let guard = kind.of(&locks, &limited).lease(10 * minute);
    let guard = guard.max_hold(minute).lock().expect("it is free");
    let losses = guard.on_lost();
    world.until("one of them waits behind the other", || {
        locks.stats().waiting == 2
    });
    locks.pause();
    world.pass(5 * minute);
    locks.resume();
    for wait in waits {
        assert!(!wait.end().expect("Redis replies"), "it was held");
    }
    holder.release();
    assert_eq!(world.recv(&losses).cause, LostCause::MaxHold);
    // The lease is not over yet, so only the limit can have released the lock.
    let next = kind.rival().of(&other, &limited).try_lock_for(secs(15));
    let next = next.expect("Redis replies").expect("it was released");
    next.release().expect("it was held until now");
    assert_eq!(lost(guard.release()).cause, LostCause::MaxHold);
}
