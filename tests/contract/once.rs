//! Jobs that one host runs for each time of their schedule.

use std::time::{Duration, SystemTime};

use leasehold::{Error, ErrorKind, LostCause, Once, OnceGuard};
use leasehold_simulator::{LinkFault, Role, Topology};

use crate::failovers::{KNOWN, fail_over_without};
use crate::matrix::{Subject, subject_bodies};
use crate::redis::{Redis, record_of};
use crate::subject::{Kind, lost};
use crate::world::{Fault, Flag, Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "once",
    &[Topology::Single, Topology::Sentinel, Topology::Cluster],
    subject_bodies![
        a_fire_is_done_once_and_a_later_one_after_it,
        a_guard_that_is_dropped_records_nothing,
        a_host_that_dies_before_its_record_leaves_the_fire_to_another,
        a_host_that_dies_after_its_record_leaves_nothing,
        a_record_whose_answer_was_lost_is_found_by_its_repeat,
        a_record_whose_request_was_lost_is_written_by_its_repeat,
        a_record_that_nobody_answers_is_an_error_and_leaves_the_fire,
        nothing_is_recorded_without_the_lock,
        a_holder_that_was_paused_past_its_lease_records_nothing,
        a_claim_waits_for_an_earlier_fire_and_decides_then,
        threads_of_one_process_do_each_fire_once,
        the_record_outlives_the_lock_for_as_long_as_it_is_kept,
        hosts_whose_clocks_differ_mean_the_same_fire,
        a_claim_that_waits_means_the_fire_of_its_call,
        a_record_far_ahead_of_the_clock_is_an_error_that_names_its_key,
        a_record_goes_back_to_no_earlier_fire,
        a_claim_of_a_fire_that_was_done_keeps_no_lock,
        a_record_of_another_type_is_an_error_and_left_alone,
        what_is_no_fire_is_refused_before_a_request,
    ],
);

pub(crate) const BODIES_OF_ONE: Subject = (
    "once",
    &[Topology::Single],
    subject_bodies![a_clock_set_back_repeats_no_fire],
);

pub(crate) const BODIES_OF_REPLICAS: Subject = (
    "once",
    &[Topology::Sentinel, Topology::Cluster],
    subject_bodies![
        a_record_on_too_few_replicas_is_written_and_an_error,
        a_fire_whose_record_a_failover_loses_is_given_out_again,
    ],
);

pub(crate) const BODIES_OF_A_CLUSTER: Subject = (
    "once",
    &[Topology::Cluster],
    subject_bodies![a_record_follows_its_slot],
);

pub(crate) const BODIES_OF_A_QUORUM: Subject = (
    "once",
    &[Topology::Quorum],
    subject_bodies![a_quorum_has_no_record],
);

const NAME: &str = "n";
const DAY: Duration = secs(24 * 60 * 60);
/// So long that no lease ends in a body.
const LONG: Duration = secs(600);

/// Returns the time of the schedule on some day.
fn day(number: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + secs(1_700_000_000) + DAY * number
}

/// Returns the job as this process sees it.
fn job(locks: &Locks) -> Once {
    locks.once(NAME)
}

#[track_caller]
fn claimed(job: &Once, fire: SystemTime) -> OnceGuard {
    let guard = job.claim(fire).expect("Redis replies");
    guard.expect("it was not done, and nobody is at it")
}

#[track_caller]
fn is_refused(job: &Once, fire: SystemTime) {
    let guard = job.claim(fire).expect("Redis replies");
    assert!(guard.is_none(), "{guard:?}");
}

#[track_caller]
fn last(job: &Once) -> Option<SystemTime> {
    Some(job.last().expect("Redis replies")?.fire)
}

/// Claims a fire on a thread, and records it when the flag is raised.
fn done_later(job: Once, locks: &Locks, fire: SystemTime) -> (Flag, Task<leasehold::Result<()>>) {
    let (held, goes_on) = (locks.world().flag(), locks.world().flag());
    let (tell_held, wait) = (held.clone(), goes_on.clone());
    let task = locks.thread(move || {
        // From then on the server has the script.
        job.last().expect("Redis replies");
        let guard = claimed(&job, fire);
        tell_held.raise();
        wait.wait();
        guard.done()
    });
    held.wait();
    (goes_on, task)
}

fn time_to_live(redis: &Redis) -> Duration {
    ms(redis.ask(&["PTTL", &record_of(NAME)]))
}

fn a_fire_is_done_once_and_a_later_one_after_it(world: &World) {
    let locks = world.build(|it| it.label("host-1"));
    let (one, other) = (job(&locks), job(&world.manager()));
    assert_eq!(last(&one), None);
    let guard = claimed(&one, day(1));
    assert_eq!((guard.fire(), guard.name()), (day(1), NAME));
    // It has the mutex of the job.
    assert!(other.claim(day(1)).expect("Redis replies").is_none());
    assert!(locks.try_lock(NAME).expect("Redis replies").is_none());
    guard.done().expect("it was held until now");
    let fired = other.last().expect("Redis replies").expect("it was done");
    assert_eq!(
        (fired.fire, fired.label.as_deref()),
        (day(1), Some("host-1"))
    );
    for job in [&one, &other] {
        is_refused(job, day(1));
        is_refused(job, day(0));
        is_refused(job, day(1) - ms(1));
    }
    // One may be left out.
    claimed(&other, day(3)).done().expect("it was held");
    is_refused(&one, day(2));
    assert_eq!(last(&one), Some(day(3)));
    claimed(&one, day(3) + ms(1)).done().expect("it was held");
    // Each refusal has released the lock.
    world.redis().is_free(Kind::Mutex, NAME);
}

fn a_guard_that_is_dropped_records_nothing(world: &World) {
    let (one, other) = (job(&world.manager()), job(&world.manager()));
    drop(claimed(&one, day(1)));
    assert_eq!(last(&one), None);
    let guard = claimed(&other, day(1));
    assert_eq!(last(&one), None);
    guard.done().expect("it was held until now");
    drop(claimed(&one, day(2)));
    assert_eq!(last(&one), Some(day(1)));
}

/// It dies before the job has an effect, or after: Redis cannot tell, so the other does the job too.
fn a_host_that_dies_before_its_record_leaves_the_fire_to_another(world: &World) {
    let (locks, lease) = (world.manager(), secs(6));
    let (goes_on, _task) = done_later(job(&locks).lease(lease), &locks, day(1));
    let begun = world.now();
    locks.kill();
    goes_on.raise();
    let other = job(&world.manager());
    is_refused(&other, day(1));
    let guard = other.claim_for(day(1), LONG).expect("Redis replies");
    assert!(world.now() <= world.within(begun + lease));
    let guard = guard.expect("nobody has done it");
    assert_eq!(last(&other), None);
    guard.done().expect("it is held");
    is_refused(&other, day(1));
}

/// The lock stays until its lease ends, because the release went with the host.
fn a_host_that_dies_after_its_record_leaves_nothing(world: &World) {
    let (locks, other) = (world.manager(), job(&world.manager()));
    let (goes_on, _task) = done_later(job(&locks).lease(secs(6)), &locks, day(1));
    goes_on.raise();
    let redis = world.redis();
    world.until("it is recorded", || redis.exists(&record_of(NAME)));
    locks.kill();
    let guard = other.claim_for(day(1), LONG).expect("Redis replies");
    assert!(guard.is_none());
    let guard = other.claim_for(day(2), LONG).expect("Redis replies");
    guard.expect("nobody has done it").done().expect("held");
}

/// The lock is gone before the repeat arrives, so only the record can tell that the fire was done.
fn a_record_whose_answer_was_lost_is_found_by_its_repeat(world: &World) {
    let (locks, redis) = (world.build(|it| it.io_timeout(secs(60))), world.redis());
    let (goes_on, done) = done_later(job(&locks).lease(LONG), &locks, day(1));
    locks.strike_on(Role::Pool, LinkFault::Late(ms(100)));
    goes_on.raise();
    locks.wait_until_struck_on(Role::Pool);
    locks.abandon(world.master(NAME));
    // The repeat arrives long after the first request.
    locks.strike_on(Role::Pool, LinkFault::Late(ms(700)));
    world.until("it is recorded", || redis.exists(&record_of(NAME)));
    let at = job(&world.manager()).last().expect("Redis replies");
    let () = redis.ask(&["DEL", NAME]);
    match done.end() {
        // The repeat was cut too, because its connection was a new one.
        Ok(()) | Err(Error::Unavailable { .. }) => {}
        other => panic!("it did not find itself: {other:?}"),
    }
    assert_eq!(job(&world.manager()).last().expect("Redis replies"), at);
    assert_eq!(at.expect("it was done").fire, day(1));
}

fn a_record_whose_request_was_lost_is_written_by_its_repeat(world: &World) {
    let locks = world.build(|it| it.io_timeout(secs(60)));
    let (goes_on, done) = done_later(job(&locks).lease(LONG), &locks, day(1));
    locks.cut(world.master(NAME));
    goes_on.raise();
    done.end().expect("it is sent on a new connection");
    let other = job(&world.manager());
    is_refused(&other, day(1));
    drop(claimed(&other, day(2)));
}

fn a_record_that_nobody_answers_is_an_error_and_leaves_the_fire(world: &World) {
    let locks = world.build(|it| it.io_timeout(secs(1)));
    let (goes_on, done) = done_later(job(&locks).lease(secs(20)), &locks, day(1));
    locks.strike(LinkFault::LoseAll);
    goes_on.raise();
    let error = done.end().expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let other = job(&world.manager());
    assert_eq!(last(&other), None);
    let guard = other.claim_for(day(1), LONG).expect("Redis replies");
    guard.expect("it was not done").done().expect("it is held");
    locks.heal();
    is_refused(&job(&locks), day(1));
}

/// The guard still reads `Held`, so only the script can refuse it.
fn nothing_is_recorded_without_the_lock(world: &World) {
    let (redis, one, other) = (world.redis(), world.manager(), world.manager());
    let (one, other) = (job(&one).lease(LONG), job(&other).lease(LONG));
    let guard = claimed(&one, day(1));
    let () = redis.ask(&["DEL", NAME]);
    let losses = guard.on_lost();
    guard.check().expect("no renewal has come");
    assert_eq!(lost(guard.done()).cause, LostCause::Removed);
    assert_eq!(world.recv(&losses).cause, LostCause::Removed);
    assert!(!redis.exists(&record_of(NAME)));
    // Now another process is at the same fire, and then it has done that or a later one.
    for (is_done, fire) in [(false, day(1)), (true, day(2)), (true, day(4))] {
        let guard = claimed(&one, day(3));
        let () = redis.ask(&["DEL", NAME]);
        let next = claimed(&other, fire);
        if is_done {
            next.done().expect("it is held");
            let before = last(&other);
            assert_eq!(lost(guard.done()).cause, LostCause::Removed);
            assert_eq!(last(&other), before);
        } else {
            assert_eq!(lost(guard.done()).cause, LostCause::Taken);
            assert_eq!(last(&other), None);
            next.check().expect("it is held");
        }
    }
    assert_eq!(last(&other), Some(day(4)));
}

fn a_holder_that_was_paused_past_its_lease_records_nothing(world: &World) {
    for (number, then) in [(1, None), (11, Some(12))] {
        let (locks, other) = (world.manager(), job(&world.manager()));
        let (goes_on, late) = done_later(job(&locks).lease(secs(3)), &locks, day(number));
        locks.pause();
        let fire = day(then.unwrap_or(number));
        let next = other.claim_for(fire, LONG).expect("Redis replies");
        let next = next.expect("nobody has done it");
        let before = last(&other);
        if then.is_some() {
            next.done().expect("it is held");
            goes_on.raise();
            locks.resume();
            lost(late.end());
            assert_eq!(last(&other), Some(fire));
        } else {
            goes_on.raise();
            locks.resume();
            lost(late.end());
            assert_eq!(last(&other), before);
            next.done().expect("it is held");
        }
    }
}

fn a_claim_waits_for_an_earlier_fire_and_decides_then(world: &World) {
    let (one, other) = (world.manager(), world.manager());
    let waiting = |fire| {
        let job = job(&other);
        let task = other.thread(move || {
            let guard = job.claim_for(fire, LONG).expect("Redis replies");
            guard.map(OnceGuard::done)
        });
        world.redis().wait_until_queued(NAME, 1);
        task
    };
    // The holder of an earlier fire, whether it is done or not, and the holder of the same one.
    for (number, is_done, then) in [
        (1, true, 2),
        (3, false, 4),
        (5, true, 5),
        (6, false, 6),
        (9, true, 8),
    ] {
        let guard = claimed(&job(&one), day(number));
        let task = waiting(day(then));
        is_refused(&job(&one), day(then));
        if is_done {
            guard.done().expect("it is held");
        } else {
            drop(guard);
        }
        let outcome = task.end();
        if is_done && then <= number {
            assert!(outcome.is_none(), "{outcome:?}");
        } else {
            outcome.expect("it is next").expect("it is held");
        }
        assert_eq!(last(&job(&one)), Some(day(number.max(then))));
    }
    // It waits no longer than it was told to.
    let guard = claimed(&job(&one), day(20));
    let begun = world.now();
    let outcome = job(&other).claim_for(day(21), secs(2));
    assert!(outcome.expect("Redis replies").is_none());
    assert!(world.now() <= world.within(begun + secs(2)));
    guard.done().expect("it is held");
}

/// The lock goes from thread to thread in memory, so that they have one owner. A fence of each would need a request.
fn threads_of_one_process_do_each_fire_once(world: &World) {
    let locks = world.build(|it| it.quantum(secs(3600)));
    let threads = [1, 2, 2, 3, 3, 1].map(|number| {
        let (job, clock) = (job(&locks).fencing(false), world.clone());
        locks.thread(move || {
            let guard = job.claim_for(day(number), LONG).expect("Redis replies");
            let guard = guard?;
            clock.pass(ms(50));
            guard.done().expect("it is held");
            Some(number)
        })
    });
    let mut done: Vec<_> = threads.into_iter().filter_map(Task::end).collect();
    done.sort_unstable();
    // A thread that comes after a later fire has nothing to do.
    assert!(done.is_sorted_by(|one, other| one < other), "{done:?}");
    assert_eq!(done.last(), Some(&3));
    assert_eq!(last(&job(&locks)), Some(day(3)));
    let of = |number| {
        let (job, wait) = (job(&locks).fencing(false), LONG);
        move || job.claim_for(day(number), wait).expect("Redis replies")
    };
    let first = of(11)().expect("it was not done");
    let (owner, next) = (first.owner().to_owned(), locks.thread(of(12)));
    world.until("it waits", || locks.stats().waiting == 1);
    first.done().expect("it is held");
    let next = next.end().expect("it was not done");
    assert_eq!(next.owner(), owner);
    assert_eq!(last(&job(&locks)), Some(day(11)));
    next.done().expect("it is held");
    assert_eq!(last(&job(&locks)), Some(day(12)));
}

fn the_record_outlives_the_lock_for_as_long_as_it_is_kept(world: &World) {
    const KEPT: Duration = secs(100);
    let (redis, locks) = (world.redis(), world.manager());
    let short = job(&locks).keep_for(KEPT);
    claimed(&short, day(1)).done().expect("it was held");
    let left = time_to_live(&redis);
    assert!(left <= KEPT && left > secs(90), "{left:?}");
    world.pass(secs(80));
    is_refused(&short, day(1));
    world.pass(secs(21));
    assert_eq!(last(&short), None);
    claimed(&short, day(1)).done().expect("it was held");
    // Each record is kept anew, and a handle that keeps it for less shortens nothing.
    claimed(&job(&locks), day(2)).done().expect("it was held");
    claimed(&short, day(3)).done().expect("it was held");
    let left = time_to_live(&redis);
    assert!(left <= DAY * 30 && left > DAY * 29, "{left:?}");
}

/// Each host asks when its own clock says so, and the fires of an hourly job are those of the server's clock. The first one
/// fails at its first try.
fn hosts_whose_clocks_differ_mean_the_same_fire(world: &World) {
    const HOUR: Duration = secs(60 * 60);
    let hosts = [(); 2].map(|()| job(&world.manager()));
    let claim = |host: usize| {
        let claim = hosts[host].claim_every(HOUR, Duration::ZERO);
        claim.expect("Redis replies")
    };
    drop(claim(0).expect("it is the first"));
    let begun = world.now();
    let first = claim(1).expect("the first try failed");
    let fire = first.fire();
    first.done().expect("it was held");
    assert!(claim(0).is_none());
    let (early, late) = (secs(55 * 60), secs(65 * 60));
    let just_early = secs(60 * 60 - 2);
    for (hour, asks) in [
        (1, [(0, early), (1, just_early)]),
        (2, [(1, just_early), (0, HOUR + secs(2))]),
        (3, [(0, early), (1, late)]),
        (4, [(0, HOUR + secs(2)), (1, late)]),
    ] {
        let mut done = 0;
        for (host, at) in asks {
            world.pass_until(begun + HOUR * (hour - 1) + at);
            if let Some(guard) = claim(host) {
                assert_eq!(guard.fire(), fire + HOUR * hour);
                guard.done().expect("it was held");
                done += 1;
            }
        }
        assert_eq!(done, 1, "in hour {hour}");
    }
}

/// One host is still at the fire of the hour before, or of this one, when the other asks.
fn a_claim_that_waits_means_the_fire_of_its_call(world: &World) {
    const HOUR: Duration = secs(60 * 60);
    let (one, other) = (job(&world.manager()).lease(LONG), world.manager());
    let claim = || one.claim_every(HOUR, Duration::ZERO);
    let claim = || claim().expect("Redis replies").expect("it is next");
    let first = claim();
    let (begun, fire) = (world.now(), first.fire());
    first.done().expect("it was held");
    for (begins, asks, then) in [(1, 2, Some(2)), (3, 3, None)] {
        world.pass_until(begun + HOUR * begins);
        let earlier = claim();
        assert_eq!(earlier.fire(), fire + HOUR * begins);
        world.pass_until(begun + HOUR * asks);
        let waiting = job(&other);
        let task = other.thread(move || {
            let guard = waiting.claim_every(HOUR, HOUR).expect("Redis replies")?;
            let fire = guard.fire();
            guard.done().expect("it is held");
            Some(fire)
        });
        world.redis().wait_until_queued(NAME, 1);
        world.pass_until(begun + HOUR * asks + secs(40 * 60));
        earlier.done().expect("it is held");
        assert_eq!(task.end(), then.map(|hour| fire + HOUR * hour));
    }
}

/// Otherwise no fire would be done until then, and nobody would hear of it.
fn a_record_far_ahead_of_the_clock_is_an_error_that_names_its_key(world: &World) {
    const HOUR: Duration = secs(60 * 60);
    let (redis, job) = (world.redis(), job(&world.manager()));
    let claim = || job.claim_every(HOUR, Duration::ZERO);
    let first = claim().expect("Redis replies").expect("it is the first");
    let fire = first.fire();
    drop(first);
    // A mistyped time, or a server whose clock was ahead.
    claimed(&job, fire + HOUR * 3).done().expect("it is held");
    let keeps = job.clone().min_hold(LONG);
    match keeps.claim_every(HOUR, Duration::ZERO).map(drop) {
        Err(Error::Config { option, reason }) => {
            assert_eq!(option, "fire");
            assert!(reason.contains(&record_of(NAME)), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    redis.is_free(Kind::Mutex, NAME);
    assert_eq!(last(&job), Some(fire + HOUR * 3));
    world.pass(HOUR * 2);
    assert!(claim().expect("it is at most an hour ahead").is_none());
    let () = redis.ask(&["DEL", &record_of(NAME)]);
    drop(claim().expect("Redis replies").expect("it is the first"));
}

/// Somebody says by hand that later fires are done.
fn a_record_goes_back_to_no_earlier_fire(world: &World) {
    let (redis, locks) = (world.redis(), world.manager());
    let guard = claimed(&job(&locks), day(1));
    let later = day(3).duration_since(SystemTime::UNIX_EPOCH);
    let later = later.expect("it is later").as_micros().to_string();
    let by_hand = ["fire", &later, "owner", "by hand", "at", "0"];
    let record = record_of(NAME);
    let () = redis.ask(&[&["HSET", &*record][..], &by_hand].concat());
    guard.done().expect("it is held");
    assert_eq!(last(&job(&locks)), Some(day(3)));
    is_refused(&job(&world.manager()), day(2));
    claimed(&job(&locks), day(4)).done().expect("it is held");
    assert_eq!(last(&job(&locks)), Some(day(4)));
}

/// Otherwise a host that comes late would keep a host of the next fire waiting.
fn a_claim_of_a_fire_that_was_done_keeps_no_lock(world: &World) {
    let (one, other) = (world.manager(), world.manager());
    claimed(&job(&one), day(1)).done().expect("it was held");
    is_refused(&job(&other).min_hold(LONG), day(1));
    world.redis().is_free(Kind::Mutex, NAME);
    // A guard has it like any other.
    drop(claimed(&job(&other).min_hold(LONG), day(2)));
    is_refused(&job(&one), day(2));
}

fn a_record_of_another_type_is_an_error_and_left_alone(world: &World) {
    let (redis, locks) = (world.redis(), world.manager());
    let () = redis.ask(&["SET", &record_of(NAME), "x"]);
    let is_wrong = |error| matches!(error, Err(Error::WrongType { .. }));
    assert!(is_wrong(job(&locks).min_hold(LONG).claim(day(1)).map(drop)));
    assert!(is_wrong(job(&locks).last().map(drop)));
    redis.is_free(Kind::Mutex, NAME);
    let () = redis.ask(&["DEL", &record_of(NAME)]);
    let guard = claimed(&job(&locks), day(1));
    let () = redis.ask(&["SET", &record_of(NAME), "x"]);
    assert!(is_wrong(guard.done()));
    redis.is_free(Kind::Mutex, NAME);
    assert_eq!(redis.ask::<String>(&["GET", &record_of(NAME)]), "x");
}

fn what_is_no_fire_is_refused_before_a_request(world: &World) {
    let locks = world.manager();
    let before = locks.stats().requests;
    let it = || job(&locks);
    let no_time = Duration::ZERO;
    for (option, outcome) in [
        ("fire", it().claim(SystemTime::UNIX_EPOCH - ms(1))),
        ("fire", it().claim(day(400 * 365))),
        ("keep_for", it().keep_for(ms(999)).claim(day(1))),
        ("keep_for", it().keep_for(Duration::MAX).claim(day(1))),
        ("period", it().claim_every(ms(999), no_time)),
        ("period", it().claim_every(DAY * 16, no_time)),
        ("period", it().claim_every(Duration::MAX, no_time)),
        ("min_hold", it().min_hold(DAY * 2).claim(day(1))),
    ] {
        match outcome {
            Err(Error::Config { option: of, .. }) => assert_eq!(of, option),
            other => panic!("{option}: {other:?}"),
        }
    }
    let invalid = locks.once("x:lh:once").claim(day(1)).map(drop);
    assert!(matches!(invalid, Err(Error::InvalidName { .. })));
    assert_eq!(locks.stats().requests, before);
}

/// It costs fires, until the clock is where it was.
fn a_clock_set_back_repeats_no_fire(world: &World) {
    const HOUR: Duration = secs(60 * 60);
    let hosts = [(); 2].map(|()| job(&world.manager()));
    let claim = |host: usize| {
        let claim = hosts[host].claim_every(HOUR, Duration::ZERO);
        claim.expect("Redis replies")
    };
    let first = claim(0).expect("it is the first");
    let fire = first.fire();
    first.done().expect("it was held");
    world.set_clock_back(3 * HOUR);
    let set_at = world.now();
    for hour in 0..=3 {
        world.pass_until(set_at + HOUR * hour);
        match hosts[1].claim_every(HOUR, Duration::ZERO) {
            Err(Error::Config { option: "fire", .. }) => assert!(hour < 2),
            Ok(None) => assert!(hour >= 2),
            other => panic!("{other:?}"),
        }
    }
    world.pass_until(set_at + HOUR * 4);
    assert_eq!(claim(1).expect("it is the next").fire(), fire + HOUR);
}

fn a_record_on_too_few_replicas_is_written_and_an_error(world: &World) {
    let locks = world.build(|it| it.replicas(1).lease(LONG));
    let guard = claimed(&job(&locks), day(1));
    guard.done().expect("the replicas have it");
    let guard = claimed(&job(&locks), day(2));
    let lag = |is_late| {
        for replica in world.replicas(NAME) {
            world.fault(Fault::Lag(replica, is_late));
        }
    };
    lag(true);
    let error = guard.done();
    assert!(
        matches!(
            error,
            Err(Error::NotReplicated {
                wanted: 1,
                confirmed: 0,
                ..
            })
        ),
        "{error:?}"
    );
    lag(false);
    let other = job(&world.manager());
    assert_eq!(last(&other), Some(day(2)));
    is_refused(&other, day(2));
}

/// As any write is lost that the replica lacks: the documentation of `Once` says so.
fn a_fire_whose_record_a_failover_loses_is_given_out_again(world: &World) {
    let (locks, other) = (world.manager(), job(&world.manager()));
    claimed(&job(&locks), day(1)).done().expect("it was held");
    world.pass(secs(1));
    fail_over_without(world, || {
        claimed(&job(&locks), day(2)).done().expect("it was held");
    });
    world.pass(KNOWN);
    assert_eq!(last(&other), Some(day(1)));
    is_refused(&other, day(1));
    claimed(&other, day(2)).done().expect("it is held");
}

fn a_record_follows_its_slot(world: &World) {
    let (locks, old) = (world.manager(), world.master(NAME));
    let job = job(&locks).lease(LONG);
    // Does the next fire, and returns its number.
    let fire = |number| {
        let done = match job.claim(day(number + 1)) {
            Ok(Some(guard)) => guard.done(),
            // A release that failed is repeated.
            Ok(None) => return number,
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => number + 1,
            // The keys are at two masters, so that no script has them all.
            Err(Error::Unavailable { .. }) => number,
            Err(error) => panic!("{error:?}"),
        }
    };
    let mut number = fire(0);
    assert_eq!(number, 1);
    world.fault(Fault::MoveSlot(NAME, secs(4)));
    while world.master(NAME) == old {
        number = fire(number);
        world.pass(ms(100));
    }
    let moved = number;
    world.until("all keys have moved", || {
        number = fire(number);
        number > moved
    });
    assert_eq!(last(&job), Some(day(number)));
}

fn a_quorum_has_no_record(world: &World) {
    let job = job(&world.manager());
    let is_refused = |error| matches!(error, Err(Error::Unsupported { .. }));
    assert!(is_refused(job.claim(day(1)).map(drop)));
    assert!(is_refused(job.claim_every(DAY, secs(1)).map(drop)));
    assert!(is_refused(job.last().map(drop)));
    // Nothing is sent, so it is no matter who has the lock.
    let other = world.manager();
    let guard = other.lock(NAME).expect("it is free");
    let (begun, before) = (world.now(), other.stats().requests);
    let it = self::job(&other);
    assert!(is_refused(it.claim(day(1)).map(drop)));
    assert!(is_refused(it.claim_for(day(1), LONG).map(drop)));
    assert_eq!((world.now(), other.stats().requests), (begun, before));
    drop(guard);
    world.redis().wait_until_free(Kind::Mutex, NAME);
}
