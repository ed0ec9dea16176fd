//! A process that may start no further thread: its user has reached the limit of the system.

use leasehold::{LeaseState, LockGuard, Result};
use leasehold_simulator::Topology;

use crate::matrix::{Subject, subject_bodies};
use crate::world::{Locks, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "threads",
    &Topology::ALL,
    subject_bodies![calls_at_the_limit_of_threads_are_errors_and_succeed_after_it],
);

/// More threads than these calls start on any topology.
const ENOUGH: u64 = 40;

/// Calls everything that may start a thread. Another manager holds the lock `held`.
fn calls(locks: &Locks, free: &str, held: &str) -> Vec<Result<()>> {
    vec![
        locks.lock(free).and_then(LockGuard::release),
        locks.try_lock_for(held, ms(700)).map(drop),
        locks.multi([free, "a", "b"]).try_lock().map(drop),
        locks.rwlock("shared").try_read().map(drop),
        locks.inspect(held).map(drop),
        locks.list("*").collect::<Result<Vec<_>>>().map(drop),
        locks.ping().map(drop),
    ]
}

/// The first thread of a process is refused, and all after it; then the second and all after it, and so on, until the calls have
/// all the threads that they need.
fn calls_at_the_limit_of_threads_are_errors_and_succeed_after_it(world: &World) {
    let other = world.manager();
    let held = other.lock("held").expect("it is free");
    for threads in 0..=ENOUGH {
        let free = format!("free {threads}");
        let locks = match world.try_build_with_threads(threads) {
            Ok(locks) => locks,
            Err(error) => {
                let names_it = format!("{error:#}").contains("thread");
                assert!(error.is_retryable() && names_it, "{threads}: {error:?}");
                continue;
            }
        };
        let mut all_succeed = true;
        for outcome in calls(&locks, &free, "held") {
            let Err(error) = outcome else { continue };
            assert!(error.is_retryable(), "{threads}: {error:?}");
            all_succeed = false;
        }
        locks.lift_thread_limit();
        let mut again = None;
        world.until("it has a lock again", || {
            again = locks.try_lock(format!("again {threads}")).ok().flatten();
            again.is_some()
        });
        world.pass(secs(40));
        let again = again.expect("it has a lock");
        assert_eq!(again.state(), LeaseState::Held, "it is renewed");
        again.release().expect("it is held");
        if all_succeed {
            held.release().expect("it is held");
            return;
        }
    }
    panic!("the calls need more than {ENOUGH} threads");
}
