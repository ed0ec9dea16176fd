//! What is shown with a mutex alone: the manager's closure, and requests that end late or unanswered. `exclusion.rs` and
//! others have what all kinds have in common.

use std::time::Duration;

use leasehold::{Error, LostCause};
use leasehold_simulator::{LinkFault, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::redis::fence_of;
use crate::subject::Kind;
use crate::world::{Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "mutex",
    &[Topology::Single],
    subject_bodies![
        with_lock_runs_a_closure_under_the_mutex_of_that_name,
        locks_of_different_databases_are_different_locks,
        a_try_for_a_lock_of_this_process_sends_no_request,
        a_short_wait_fails_no_longer_wait_behind_it,
        an_extension_ends_with_its_guard,
        a_lock_whose_extension_got_no_answer_is_released,
        one_bad_key_in_a_batch_fails_no_other_renewal,
        close_returns_whether_every_release_was_sent,
        unused_fences_are_given_back,
    ],
);

const NAME: &str = "n";
/// Longer than any body runs.
const LONG: Duration = secs(600);

fn with_lock_runs_a_closure_under_the_mutex_of_that_name(world: &World) {
    let locks = world.manager();
    let owner = locks.with_lock(NAME, secs(1), |lease| {
        assert_eq!(lease.name(), NAME);
        assert!(world.redis().exists(NAME));
        lease.owner().to_owned()
    });
    let guard = locks.lock(NAME).expect("it is free");
    assert_ne!(guard.owner(), owner.expect("it was free"));
    let timeout = locks.with_lock(NAME, ms(1), |_| panic!("it ran without the lock"));
    let is_timeout = matches!(timeout, Err::<(), _>(Error::Timeout { .. }));
    assert!(is_timeout, "{timeout:?}");
    let refused = locks.with_lock("", secs(1), |_| ());
    assert!(matches!(refused, Err(Error::InvalidName { .. })));
}

fn locks_of_different_databases_are_different_locks(world: &World) {
    let [one, same] = [(); 2].map(|()| world.build(|it| it.database(3)));
    let elsewhere = world.manager();
    let _guard = one.lock(NAME).expect("it is free");
    assert!(same.try_lock(NAME).expect("Redis replies").is_none());
    assert!(elsewhere.try_lock(NAME).expect("Redis replies").is_some());
}

fn a_try_for_a_lock_of_this_process_sends_no_request(world: &World) {
    let locks = world.manager();
    let _guard = locks.mutex(NAME).renew(false).lock().expect("it is free");
    let before = world.received(0);
    for _ in 0..10 {
        assert!(locks.try_lock(NAME).expect("it is known").is_none());
    }
    assert_eq!(world.received(0), before);
    assert!(locks.try_lock("other").expect("Redis replies").is_some());
    assert!(world.received(0) > before, "a try for another name does");
}

fn a_short_wait_fails_no_longer_wait_behind_it(world: &World) {
    let locks = world.build(|it| it.io_timeout(secs(20)));
    // Opens the connections.
    drop(locks.lock("warm").expect("it is free"));
    world.pause_servers();
    let mutex = locks.mutex(NAME);
    let short = locks.thread(move || mutex.try_lock_for(ms(1)).map(drop));
    world.pass(ms(1));
    let patient = Kind::Mutex.of(&locks, NAME).locking();
    let short = short.end();
    assert!(matches!(short, Err(Error::Unavailable { .. })), "{short:?}");
    world.resume_servers();
    patient.locked();
    patient.release();
}

fn an_extension_ends_with_its_guard(world: &World) {
    let locks = world.manager();
    let guard = locks.lock(NAME).expect("it is free");
    guard.extend(LONG).expect("it is held");
    let next = Kind::Mutex.of(&locks, NAME).locking_asleep();
    guard.release().expect("it is held");
    next.locked();
    assert!(world.redis().ttl(NAME) <= Some(secs(30)));
    next.release();
}

fn a_lock_whose_extension_got_no_answer_is_released(world: &World) {
    let (redis, locks) = (world.redis(), world.manager());
    let guard = locks.mutex(NAME).lease(secs(2)).renew(false).lock();
    let guard = guard.expect("it is free");
    locks.strike(LinkFault::LoseAnswers);
    let error = guard.extend(LONG).expect_err("no answer");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    locks.heal();
    assert_eq!(world.recv(&guard.on_lost()).cause, LostCause::Expired);
    // The server executed the request all the same, so the key would live far longer.
    drop(guard);
    redis.wait_until_free(Kind::Mutex, NAME);
}

fn one_bad_key_in_a_batch_fails_no_other_renewal(world: &World) {
    let (redis, locks) = (world.redis(), world.manager());
    let names = ["a", "b", "c", "d", "e"];
    let guards = names.map(|name| locks.mutex(name).lease(secs(6)).lock());
    let guards = guards.map(|guard| guard.expect("it is free"));
    let () = redis.ask(&["DEL", names[2]]);
    let () = redis.ask(&["RPUSH", names[2], "no lock"]);
    assert_eq!(world.recv(&guards[2].on_lost()).cause, LostCause::Taken);
    world.pass(secs(12));
    for guard in guards.iter().filter(|guard| guard.name() != names[2]) {
        guard.check().expect("it is renewed");
    }
}

fn close_returns_whether_every_release_was_sent(world: &World) {
    let locks = world.manager();
    let guard = locks.lock(NAME).expect("it is free");
    world.pause_servers();
    drop(guard);
    assert!(!locks.close(ms(300)), "the server cannot have answered");
    world.resume_servers();
    assert!(locks.close(secs(30)));
    assert!(!world.redis().exists(NAME));
}

fn unused_fences_are_given_back(world: &World) {
    // A block has one fence for each microsecond of the quantum.
    let locks = world.build(|it| it.quantum(LONG).lease(LONG));
    let mut last = 0;
    for _ in 0..3 {
        let threads = [(); 4].map(|()| {
            let mutex = locks.mutex(NAME);
            locks.thread(move || mutex.lock().expect("it becomes free").fence())
        });
        let mut fences = threads.map(Task::end);
        fences.sort_unstable();
        assert!(fences.is_sorted_by(|one, other| one < other) && fences[0] > last);
        last = fences[3];
        let kept: Option<u64> = world.redis().ask(&["GET", &fence_of(NAME)]);
        assert_eq!(kept, Some(last));
    }
}
