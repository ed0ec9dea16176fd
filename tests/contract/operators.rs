//! Operators see locks, ask for their release, and break them.

use leasehold::{Admission, Error, Holder, Kind as Shown, Lease, LockManager, LostCause, Mode};
use leasehold_simulator::{LinkFault, Role, Topology};

use crate::matrix::Capability::{Always, HandsOver, InOrder, OneServer, Shares, SpansNames};
use crate::matrix::{Chapter, Subject, bodies, subject_bodies};
use crate::subject::{Kind, lost};
use crate::world::{Fault, Locks, World, ms, secs};

pub(crate) const BODIES: Chapter = &[
    (
        Always,
        bodies![
            a_lock_is_shown_as_it_stands,
            a_lock_that_is_held_for_long_keeps_its_fence_and_its_time,
            a_note_is_shown_with_its_holder,
            a_request_for_its_release_is_heard,
            a_release_by_force_ends_the_requests,
            a_holder_learns_at_once_that_it_was_broken,
            only_the_named_owner_is_broken,
            a_kept_lock_is_shown_and_broken_by_its_last_owner,
            locks_are_broken_while_threads_come_and_go,
        ],
    ),
    (
        HandsOver,
        bodies![
            a_free_lock_with_a_waiter_is_shown_without_a_holder,
            a_broken_lock_goes_to_the_first_waiter,
        ],
    ),
    (InOrder, bodies![waiters_are_shown_in_their_order]),
    (
        Shares,
        bodies![
            a_share_that_has_run_out_is_not_shown,
            one_share_is_broken_and_no_other,
        ],
    ),
    (
        OneServer,
        bodies![a_release_by_force_that_overtakes_its_grant_is_a_loss],
    ),
    (
        SpansNames,
        bodies![a_multi_lock_that_is_broken_at_one_name_frees_the_others],
    ),
];

pub(crate) const BODIES_OF_ONE: Subject = (
    "operators",
    &[Topology::Single],
    subject_bodies![
        a_lock_of_another_client_is_shown_and_broken_by_its_owner_alone,
        a_holder_without_a_subscription_learns_of_it_at_its_next_renewal,
        a_process_that_breaks_its_own_lock_needs_no_message,
        a_forged_message_only_causes_a_renewal,
        an_error_ends_a_list,
        a_request_tells_whether_somebody_can_hear_it,
        threads_with_another_note_ask_for_the_lock,
        a_rate_limiter_is_shown_with_its_figures,
    ],
);

pub(crate) const BODIES_OF_NODES: Subject = (
    "operators_of_a_quorum",
    &[Topology::Quorum],
    subject_bodies![a_ping_tells_of_each_server],
);

const LONG: std::time::Duration = secs(600);

#[track_caller]
fn only_holder(locks: &LockManager, name: &str) -> Holder {
    let seen = locks.inspect(name).expect("Redis replies");
    let holders = seen.expect("it is held").holders;
    let [holder] = &holders[..] else {
        panic!("not one: {holders:?}");
    };
    holder.clone()
}

#[track_caller]
fn breaks(locks: &LockManager, name: &str, owner: &str) -> bool {
    locks.force_release(name, owner).expect("Redis replies")
}

/// Makes a manager subscribe, by a wait of one of its threads.
#[track_caller]
fn listening(world: &World, locks: &Locks) {
    let held = Kind::Mutex.of(&world.manager(), "listening").hold();
    let waiting = Kind::Mutex.of(locks, "listening").locking();
    world.redis().wait_until_queued("listening", 1);
    held.release();
    waiting.locked();
    waiting.release();
}

fn a_lock_is_shown_as_it_stands(world: &World, kind: Kind) {
    let name = world.name("shown");
    let onlooker = world.manager();
    let locks = world.build(|it| it.label("some:label").lease(LONG));
    assert_eq!(onlooker.inspect(&name).expect("Redis replies"), None);
    let guard = kind.of(&locks, &name).lock().expect("it is free");
    let held_since = world.time_of_day();
    world.pass(secs(5));
    for (key, lease) in kind.keys(&name).iter().zip(guard.leases()) {
        let info = onlooker.inspect(key).expect("Redis replies");
        let info = info.expect("it is held");
        let (shown, mode) = match kind {
            Kind::Mutex | Kind::Reentrant | Kind::Multi | Kind::Unfenced => {
                (Shown::Mutex, Mode::Exclusive)
            }
            Kind::Reader => (Shown::RwLock, Mode::Read),
            Kind::Writer => (Shown::RwLock, Mode::Exclusive),
            Kind::OnlyPermit => (Shown::Semaphore { permits: 1 }, Mode::Permits(1)),
            Kind::Permit => (Shown::Semaphore { permits: 3 }, Mode::Permits(1)),
            Kind::Permits => (Shown::Semaphore { permits: 3 }, Mode::Permits(2)),
            Kind::AllPermits => (Shown::Semaphore { permits: 3 }, Mode::Permits(3)),
        };
        assert_eq!((&*info.name, info.kind, info.waiters), (&**key, shown, 0));
        let holder = only_holder(&onlooker, key);
        assert_eq!((&*holder.owner, holder.mode), (lease.owner(), mode));
        assert_eq!(holder.label.as_deref(), Some("some:label"));
        let has_fence = !matches!(mode, Mode::Permits(_)) && kind.has_fences();
        assert_eq!(holder.fence, has_fence.then(|| lease.fence()));
        assert_eq!(
            holder.since.is_some(),
            mode == Mode::Exclusive && kind.has_fences()
        );
        let is_late = |since| {
            held_since
                .duration_since(since)
                .is_ok_and(|by| by > world.within(secs(0)))
        };
        assert!(!holder.since.is_some_and(is_late), "{holder:?}");
        assert!(holder.ttl.is_some_and(|ttl| ttl <= LONG && ttl > LONG / 2));
        assert!(!holder.kept);
    }
    guard.release().expect("it was held until now");
    world.redis().wait_until_free(kind, &name);
    assert_eq!(onlooker.inspect(&name).expect("Redis replies"), None);
}

/// Redis forgets the record of a fence after `fence_memory`. The lease is renewed much more rarely.
fn a_lock_that_is_held_for_long_keeps_its_fence_and_its_time(world: &World, kind: Kind) {
    let (name, memory) = (world.name("long"), secs(10));
    let onlooker = world.manager();
    let locks = world.build(|it| it.lease(LONG).fence_memory(memory));
    let guard = kind.of(&locks, &name).lock().expect("it is free");
    let shown = || {
        let keys = kind.keys(&name);
        let holders = keys.iter().map(|key| only_holder(&onlooker, key));
        let shown = holders.map(|holder| (holder.owner, holder.fence, holder.since));
        shown.collect::<Vec<_>>()
    };
    let before = shown();
    world.pass(3 * memory);
    assert_eq!(shown(), before);
    guard.release().expect("it was held until now");
}

fn waiters_are_shown_in_their_order(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("waited-for"));
    let guard = kind.rival().of(&world.manager(), &name).lock();
    let guard = guard.expect("it is free");
    let waiting = [("first", 1), ("second", 2)].map(|(label, place)| {
        let locks = world.build(|it| it.label(label));
        let waiting = kind.of(&locks, &name).locking();
        redis.wait_until_queued(&name, place);
        waiting
    });
    let info = world.manager().inspect(&name).expect("Redis replies");
    let info = info.expect("it is held");
    let [first, second] = &info.waiting[..] else {
        panic!("not two: {info:?}");
    };
    assert_eq!(info.waiters, 2);
    assert!(first.since < second.since, "{info:?}");
    assert_eq!(first.label.as_deref(), Some("first"));
    assert_eq!(second.label.as_deref(), Some("second"));
    let units = match kind {
        Kind::Writer => u32::MAX,
        Kind::Permits => 2,
        Kind::AllPermits => 3,
        _ => 1,
    };
    assert_eq!((first.units, second.units), (units, units));
    assert_eq!(info.holders[0].owner, guard.lease().owner());
    guard.release().expect("it was held until now");
    for waiting in waiting {
        waiting.locked();
        waiting.release();
    }
}

fn a_free_lock_with_a_waiter_is_shown_without_a_holder(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("between"));
    let (one, other) = (world.manager(), world.manager());
    let lock = kind.rival().of(&one, &name).unrenewed();
    let guard = lock.lock().expect("it is free");
    let waiting = kind.of(&other, &name).locking();
    redis.wait_until_queued(&name, 1);
    // The waiter polls once a second, and may get the lock first.
    other.pause();
    let () = redis.ask(&["DEL", &name]);
    let info = one.inspect(&name).expect("Redis replies");
    let info = info.expect("it is waited for");
    assert_eq!((info.holders.len(), info.waiters), (0, 1));
    other.resume();
    waiting.locked();
    lost(guard.release());
    waiting.release();
}

fn a_share_that_has_run_out_is_not_shown(world: &World, kind: Kind) {
    let name = world.name("run-out");
    let (one, other) = (world.manager(), world.manager());
    let stays = kind.of(&one, &name).lease(LONG).lock();
    let stays = stays.expect("it is free");
    let goes = kind.of(&other, &name).lease(secs(2)).unrenewed();
    let _goes = goes.lock().expect("there is room");
    // Its release must not take it away.
    other.pause();
    world.pass(world.within(secs(2)));
    assert_eq!(only_holder(&one, &name).owner, stays.lease().owner());
    other.resume();
}

/// The first renewal of this long lease is not due yet.
fn a_holder_learns_at_once_that_it_was_broken(world: &World, kind: Kind) {
    let operator = world.manager();
    for renewed in [true, false] {
        let name = world.name(&format!("broken-{renewed}"));
        let holding = world.build(|it| it.lease(LONG));
        listening(world, &holding);
        let lock = kind.of(&holding, &name);
        let lock = if renewed { lock } else { lock.unrenewed() };
        let guard = lock.lock().expect("it is free");
        // By then the renewal thread has connected to each node of a quorum. Before, two answers may leave it undecided for a second.
        world.pass(secs(1));
        let told = guard.on_lost();
        let (owner, broken_at) = (guard.lease().owner(), world.now());
        assert!(breaks(&operator, &name, owner));
        let loss = world.recv(&told);
        let (now, latest) = (world.now(), world.within(broken_at));
        assert!(now <= latest, "{broken_at:?}: {now:?} > {latest:?}");
        assert_eq!(
            (loss.fence, loss.cause),
            (guard.fence(), LostCause::Removed)
        );
        // That owner holds nothing any more, even if a node of a quorum does not know that yet.
        assert!(!breaks(&operator, &name, owner));
        assert_eq!(lost(guard.release()), loss);
    }
}

fn a_broken_lock_goes_to_the_first_waiter(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("next"));
    let holding = world.build(|it| it.lease(LONG));
    listening(world, &holding);
    let guard = kind.of(&holding, &name).lock().expect("it is free");
    let told = guard.on_lost();
    // Two readers would be granted together.
    let rival = kind.rival();
    let [first, second] = [1, 2].map(|place| {
        let waiting = rival.of(&world.manager(), &name).locking();
        redis.wait_until_queued(&name, place);
        waiting
    });
    assert!(breaks(&world.manager(), &name, guard.lease().owner()));
    world.recv(&told);
    // The next waiter is granted while the broken guard still exists. Only a multi-lock must release its other names first.
    let (fence, mut guard) = (guard.fence(), Some(guard));
    if kind == Kind::Multi {
        lost(guard.take().expect("it was not released yet").release());
    }
    assert!(first.locked() > fence || !kind.has_fences());
    assert!(second.waits());
    if let Some(guard) = guard {
        lost(guard.release());
    }
    first.release();
    second.locked();
    second.release();
}

fn only_the_named_owner_is_broken(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("named"));
    let operator = world.manager();
    assert!(!breaks(&operator, &name, "x"));
    let guard = kind.of(&world.manager(), &name).lock().expect("it is free");
    let waiting = kind.rival().of(&world.manager(), &name).locking();
    redis.wait_until_queued(&name, 1);
    let (waiter, _) = redis.waiters(&name, 1).remove(0);
    let owner = guard.lease().owner();
    let cut = &owner[..owner.len() - 1];
    let (marked, counted) = (format!("{owner}!"), format!("1 {owner}"));
    for other in [&*waiter, cut, &marked, &counted, "", "=of"] {
        assert!(!breaks(&operator, &name, other), "{other}");
    }
    redis.wait_until_queued(&name, 1);
    guard.release().expect("it was held until now");
    waiting.locked();
    waiting.release();
}

fn one_share_is_broken_and_no_other(world: &World, kind: Kind) {
    let name = world.name("one-share");
    let (one, other) = (world.manager(), world.manager());
    let [broken, stays] = [&one, &other].map(|locks| {
        let guard = kind.of(locks, &name).lease(LONG).lock();
        guard.expect("there is room")
    });
    assert!(breaks(&other, &name, broken.lease().owner()));
    lost(broken.release());
    assert_eq!(only_holder(&one, &name).owner, stays.lease().owner());
    stays.release().expect("it was held until now");
}

fn a_multi_lock_that_is_broken_at_one_name_frees_the_others(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("set"));
    let locks = world.build(|it| it.lease(LONG));
    let guard = kind.of(&locks, &name).lock().expect("it is free");
    let told = guard.on_lost();
    assert!(breaks(&locks, &kind.keys(&name)[1], guard.lease().owner()));
    world.recv(&told);
    lost(guard.release());
    redis.wait_until_free(kind, &name);
}

fn a_kept_lock_is_shown_and_broken_by_its_last_owner(world: &World, kind: Kind) {
    let redis = world.redis();
    // A label may end with the sign that marks the owner of a kept lock.
    for label in ["host", "host~", ""] {
        let locks = world.build(|it| it.label(label));
        let name = world.name(&format!("kept-{label}"));
        let guard = kind.of(&locks, &name).min_hold(LONG).lock();
        let guard = guard.expect("it is free");
        let owner = guard.lease().owner().to_owned();
        // The value then has the mark for waiters before the sign.
        let waiter = kind.rival().of(&world.manager(), &name).locking();
        redis.wait_until_queued(&name, 1);
        guard.release().expect("it is held");
        // A node of a quorum may have granted it to the waiter before.
        let seen = locks.inspect(&name).expect("Redis replies");
        let mut holders = seen.expect("it is kept").holders.into_iter();
        let holder = holders.find(|holder| holder.owner == owner);
        let holder = holder.expect("it is shown");
        assert!(holder.kept);
        assert_eq!(holder.label.as_deref(), Some(label));
        for key in kind.keys(&name) {
            assert!(breaks(&locks, &key, &owner));
        }
        waiter.locked();
        waiter.release();
    }
}

fn locks_are_broken_while_threads_come_and_go(world: &World, kind: Kind) {
    let name = world.name("storm");
    let managers = [(); 2].map(|()| world.build(|it| it.lease(LONG)));
    let operator = world.manager();
    let working = [0, 1, 0, 1].map(|which| {
        let locks: &Locks = &managers[which];
        let (lock, world) = (kind.of(locks, &name), world.clone());
        locks.thread(move || {
            for _ in 0..10 {
                let guard = lock.lock().expect("it becomes free");
                // For longer than an operator takes to see the holder and to break the lock.
                world.pass(ms(30));
                match guard.release() {
                    Ok(()) => {}
                    broken => _ = lost(broken),
                }
            }
        })
    });
    let mut broken = 0;
    while !working.iter().all(crate::world::Task::has_ended) {
        let info = operator.inspect(&name).expect("Redis replies");
        for holder in info.into_iter().flat_map(|info| info.holders) {
            broken += u32::from(breaks(&operator, &name, &holder.owner));
        }
        world.pass(ms(3));
    }
    assert!(broken > 0, "no lock was broken");
    working.into_iter().for_each(crate::world::Task::end);
    drop(kind.of(&operator, &name).lock().expect("it becomes free"));
}

fn a_lock_of_another_client_is_shown_and_broken_by_its_owner_alone(world: &World) {
    let (redis, locks) = (world.redis(), world.manager());
    // A value that looks like an owner of ours, or ends with our mark, is shown as it is.
    for owner in ["foreign", "foreign!", "", "lh1:mine:x"] {
        let () = redis.ask(&["SET", "n", owner]);
        let holder = only_holder(&locks, "n");
        assert_eq!((&*holder.owner, holder.mode), (owner, Mode::Exclusive));
        assert_eq!((holder.label, holder.fence, holder.ttl), (None, None, None));
        let () = redis.ask(&["PEXPIRE", "n", "60000"]);
        let ttl = only_holder(&locks, "n").ttl;
        assert!(ttl.is_some_and(|ttl| ttl <= secs(60)), "{ttl:?}");
    }
    let () = redis.ask(&["SET", "n", "foreign!"]);
    let waiting = Kind::Mutex.of(&locks, "n").locking();
    redis.wait_until_queued("n", 1);
    assert!(!breaks(&locks, "n", "foreign"));
    assert!(breaks(&locks, "n", "foreign!"));
    waiting.locked();
    waiting.release();
}

fn a_holder_without_a_subscription_learns_of_it_at_its_next_renewal(world: &World) {
    let lease = secs(6);
    let guard = world.manager().mutex("n").lease(lease).lock();
    let guard = guard.expect("it is free");
    let broken_at = world.now();
    assert!(breaks(&world.manager(), "n", guard.owner()));
    let loss = world.recv(&guard.on_lost());
    assert_eq!(loss.cause, LostCause::Removed);
    assert!(world.now() <= world.within(broken_at + lease / 3));
}

fn a_process_that_breaks_its_own_lock_needs_no_message(world: &World) {
    let locks = world.build(|it| it.lease(LONG));
    let guard = locks.lock("n").expect("it is free");
    let waiting = Kind::Mutex.of(&locks, "n").locking_asleep();
    assert!(breaks(&locks, "n", guard.owner()));
    world.recv(&guard.on_lost());
    assert!(waiting.locked() > guard.fence());
    lost(guard.release());
    waiting.release();
}

fn a_forged_message_only_causes_a_renewal(world: &World) {
    let redis = world.redis();
    let locks = world.build(|it| it.lease(LONG));
    listening(world, &locks);
    let guard = locks.lock("renewed").expect("it is free");
    let fixed = locks.mutex("fixed").renew(false).lock();
    let fixed = fixed.expect("it is free");
    // A shorter time to live makes a renewal visible.
    for name in ["renewed", "fixed"] {
        let () = redis.ask(&["PEXPIRE", name, "300000"]);
    }
    for owner in ["nobody", fixed.owner(), guard.owner()] {
        let _: i64 = redis.ask(&["PUBLISH", "leasehold:broken", owner]);
    }
    world.pass(secs(1));
    assert!(redis.ttl("renewed").is_some_and(|ttl| ttl > secs(300)));
    // A lease that is not to be renewed is not renewed.
    assert!(redis.ttl("fixed").is_some_and(|ttl| ttl <= secs(300)));
    fixed.release().expect("it was held until now");
    guard.release().expect("it was held until now");
}

fn an_error_ends_a_list(world: &World) {
    let locks = world.manager();
    drop(locks.lock("n").expect("it is free"));
    world.stop_servers();
    let mut list = locks.list("*");
    assert!(matches!(list.next(), Some(Err(Error::Unavailable { .. }))));
    assert!(list.next().is_none());
    let mut list = locks.list("*");
    assert!(locks.close(secs(30)));
    assert!(matches!(list.next(), Some(Err(Error::Closed))));
    assert!(list.next().is_none());
    assert!(matches!(locks.inspect("n"), Err(Error::Closed)));
    assert!(matches!(locks.force_release("n", "x"), Err(Error::Closed)));
    assert!(matches!(locks.ping(), Err(Error::Closed)));
}

/// A client of another library cannot hear, and a job that is over cannot let go.
fn a_request_tells_whether_somebody_can_hear_it(world: &World) {
    let operator = world.manager();
    let ask = |name| operator.request_release(name, "").expect("Redis replies");
    let () = world
        .redis()
        .ask(&["SET", "theirs", "a token", "PX", "600000"]);
    assert!(ask("theirs"));
    let kept = operator.mutex("kept").min_hold(LONG).lock();
    kept.expect("it is free").release().expect("it was held");
    assert!(world.redis().exists("kept"));
    assert!(!ask("kept"));
}

/// Threads with equal notes hand the lock on in memory, and threads with other notes do so by Redis.
fn threads_with_another_note_ask_for_the_lock(world: &World) {
    let locks = world.build(|it| it.note("of the manager").quantum(LONG));
    let of = |job: &str| locks.mutex("n").note(job);
    let note = || only_holder(&locks, "n").note;
    let mut guard = locks.lock("n").expect("it is free");
    assert_eq!(note().as_deref(), Some("of the manager"));
    let mut before = "of the manager";
    for job in ["one", "one", "two", "", "one"] {
        let (mutex, waiting) = (of(job), locks.stats().waiting);
        let next = locks.thread(move || mutex.lock());
        world.until("it waits", || locks.stats().waiting > waiting);
        let passed_on = locks.stats().passed_on;
        guard.release().expect("it was held until now");
        guard = next.end().expect("it becomes free");
        assert_eq!(note().unwrap_or_default(), job);
        let in_memory = locks.stats().passed_on > passed_on;
        assert_eq!(in_memory, before == job, "{before}, then {job}");
        before = job;
    }
    let claim = guard.detach();
    let adopted = of("adopted").adopt(&claim).expect("it is the claim's");
    assert_eq!(note().as_deref(), Some("adopted"));
    adopted.release().expect("it was held until now");
}

fn a_rate_limiter_is_shown_with_its_figures(world: &World) {
    let locks = world.manager();
    let seen = || locks.inspect("n").expect("Redis replies");
    assert_eq!(seen(), None);
    let limiter = locks.rate_limiter("n", 2, LONG);
    for left in [ms(0), LONG] {
        let admission = limiter.try_acquire().expect("Redis replies");
        assert_eq!(admission, Admission::Admitted);
        let info = seen().expect("it was used");
        assert_eq!((info.holders.len(), info.waiters), (0, 0));
        let Shown::RateLimiter {
            permits,
            per,
            retry_after,
            ..
        } = info.kind
        else {
            panic!("{info:?}");
        };
        assert_eq!((permits, per), (2, LONG));
        assert!(retry_after <= left && world.within(retry_after) >= left);
    }
    // A list does not read what another program may have written.
    assert!(locks.list("n").next().is_none());
    let error = locks.lock("n").expect_err("it is no lock");
    assert!(format!("{error:#}").contains("rate limiter"), "{error:#}");
}

fn a_ping_tells_of_each_server(world: &World) {
    world.make_nodes(3);
    let locks = world.manager();
    let _guard = locks.lock("n").expect("it is free");
    world.fault(Fault::PauseServer(1));
    world.fault(Fault::StopServer(2));
    let begun = world.now();
    let pings = locks.ping().expect("it asks");
    // The server that hangs has its time limit for a request.
    assert!(world.now() <= world.within(begun + secs(1)));
    assert_eq!(pings.len(), 3);
    for (number, ping) in pings.iter().enumerate() {
        assert!(ping.server.ends_with(&format!("/{number}")), "{ping:?}");
        match &ping.result {
            Ok(took) => assert!(number == 0 && !took.is_zero(), "{ping:?}"),
            Err(error) => {
                assert!(number > 0, "{ping:?}");
                assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            }
        }
    }
}

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
    let hears = || ask("too early") && requested.try_recv().is_ok();
    world.until("it hears", hears);
    // Each node tells of each request.
    world.pass(ms(100));
    while requested.try_recv().is_ok() {}
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
