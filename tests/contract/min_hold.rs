//! Locks that stay taken after their release (`min_hold`). The tests read the time to live that Redis reports.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use leasehold::{Error, Event, LostCause};

use crate::closures::holder_at_timeout;
use crate::support::{
    Fault, Kind, PATIENCE, Proxy, Raw, Role, Server, build, fence_of, lost, manager, ms, name,
    patient, secs, shared, task, wait_in_vain, wait_until,
};

/// A lease that is shorter than [`KEPT`].
const LEASE: Duration = secs(30);
const KEPT: Duration = secs(600);
/// So long that one surplus block of fences shows, however slow the machine is.
const QUANTUM: Duration = secs(600);

/// Returns the server's time in microseconds.
fn now(redis: &Raw) -> u64 {
    let (whole, rest): (u64, u64) = redis.ask(&["TIME"]);
    whole * 1_000_000 + rest
}

fn micros(length: Duration) -> u64 {
    length.as_micros().try_into().expect("it is short")
}

/// Checks that each key of the lock lives for about `KEPT`, and no longer.
#[track_caller]
fn is_kept(redis: &Raw, kind: Kind, name: &str) -> Vec<Duration> {
    let keys = kind.keys(name).into_iter();
    let kept = keys.map(|key| {
        let holders = redis.holders(&key);
        assert_eq!(holders.len(), 1, "{key}: {holders:?}");
        let ttl = holders[0].1;
        assert!(ttl + PATIENCE > KEPT && ttl <= KEPT, "{key}: {ttl:?}");
        ttl
    });
    kept.collect()
}

pub(crate) fn a_released_lock_stays_taken_until_min_hold_is_over(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept"));
    let (one, other) = (world.manager(), world.manager());
    let lock = kind.of(&one, &name).lease(LEASE).min_hold(KEPT);
    let guard = lock.lock().expect("it is free");
    guard.release().expect("it was held until now");
    is_kept(redis, kind, &name);
    for locks in [&one, &other] {
        wait_in_vain(|| kind.rival().of(locks, &name).try_lock());
    }
    is_kept(redis, kind, &name);
}

pub(crate) fn a_lock_that_is_kept_goes_to_no_thread_of_its_process(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-inside"));
    let locks = world.manager();
    let lock = kind.of(&locks, &name).lease(LEASE).min_hold(KEPT);
    let guard = lock.lock().expect("it is free");
    let waiter = kind.rival().of(&locks, &name).locking_asleep();
    guard.release().expect("it was held until now");
    redis.wait_until_queued(&name, 1);
    assert!(waiter.waits());
    is_kept(redis, kind, &name);
    // Simulates the end of the time.
    for key in kind.keys(&name) {
        let () = redis.ask(&["DEL", &key]);
    }
    waiter.locked();
    waiter.release();
}

pub(crate) fn a_release_after_min_hold_frees_the_lock(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-before"));
    let locks = world.manager();
    let guard = kind.of(&locks, &name).min_hold(ms(1)).lock();
    let (guard, begun) = (guard.expect("it is free"), world.now());
    world.until("it has passed", || (world.now() - begun) > ms(2));
    guard.release().expect("it was held until now");
    assert!(kind.keys(&name).iter().all(|key| !redis.exists(key)));
}

pub(crate) fn a_lock_that_max_hold_ends_stays_taken_until_min_hold_is_over(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-max-hold"));
    let locks = world.manager();
    let lock = kind.of(&locks, &name).lease(LEASE).min_hold(KEPT);
    let guard = lock.max_hold(ms(1)).lock().expect("it is free");
    let loss = guard
        .on_lost()
        .recv_timeout(PATIENCE)
        .expect("it is notified");
    assert_eq!(loss.cause, LostCause::MaxHold);
    // The renewal thread sends the release.
    world.until("each key is kept", || {
        let keys = kind.keys(&name).into_iter();
        keys.flat_map(|key| redis.holders(&key))
            .all(|(_, ttl)| ttl > LEASE * 2)
    });
    assert_eq!(lost(guard.release()), loss);
    is_kept(redis, kind, &name);
}

pub(crate) fn a_lock_that_was_lost_is_not_kept(world: &World, kind: Kind) {
    let redis = world.redis();
    for is_taken in [false, true] {
        let name = world.name("kept-lost");
        let (one, other) = (world.manager(), world.manager());
        let lock = kind.of(&one, &name).lease(LEASE).min_hold(KEPT);
        let guard = lock.lock().expect("it is free");
        let keys = kind.keys(&name);
        for key in &keys {
            let () = redis.ask(&["DEL", key]);
        }
        let rival = kind.rival().of(&other, &name).lease(LEASE);
        let next = is_taken.then(|| rival.lock().expect("it is free"));
        lost(guard.release());
        for key in &keys {
            let holders = redis.holders(key);
            let owners: Vec<_> = holders.iter().map(|(owner, _)| &**owner).collect();
            let next: Vec<_> = next.iter().map(|next| next.lease().owner()).collect();
            assert_eq!(owners, next);
            assert!(holders.iter().all(|(_, ttl)| *ttl <= LEASE), "{holders:?}");
        }
    }
}

pub(crate) fn a_waiter_that_queues_at_a_kept_lock_has_it_next(world: &World, kind: Kind) {
    let redis = world.redis();
    let (one, other) = (world.manager(), world.manager());
    for is_broken in [false, true] {
        let name = world.name("kept-queue");
        let keys = kind.keys(&name);
        let lock = kind.of(&one, &name).lease(LEASE).min_hold(KEPT);
        let guard = lock.lock().expect("it is free");
        let owner = guard.lease().owner().to_owned();
        guard.release().expect("it was held until now");
        let waiter = kind.rival().of(&other, &name).locking();
        redis.wait_until_queued(&keys[0], 1);
        if kind.family() == Kind::Mutex {
            // The value ends with the sign of a kept lock, and then the mark for waiters.
            assert_eq!(redis.get(&keys[0]), Some(format!("{owner}!~!")));
        }
        let info = one.inspect(&keys[0]).expect("Redis replies");
        let holders = info.expect("it is kept").holders;
        let owners: Vec<_> = holders.into_iter().map(|holder| holder.owner).collect();
        assert_eq!(owners, [&*owner]);
        for key in &keys {
            if is_broken {
                assert!(one.force_release(key, &owner).expect("Redis replies"));
            } else {
                // Simulates the end of the time.
                let () = redis.ask(&["DEL", key]);
            }
        }
        waiter.locked();
        waiter.release();
    }
}

/// The waiter asked when the lease had long to go. A message tells it to ask again, and the reply when the lock is free.
pub(crate) fn a_release_within_min_hold_wakes_the_first_waiter(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-wakes"));
    let (one, other) = (world.manager(), world.manager());
    let keys = kind.keys(&name);
    let lock = kind.of(&one, &name).lease(LEASE).min_hold(KEPT);
    let guard = lock.lock().expect("it is free");
    let waiter = kind.rival().of(&other, &name).locking();
    redis.wait_until_queued(&keys[0], 1);
    let owner = redis.queue(&keys[0]).remove(0);
    let channel = || redis.channel(&keys[0], &owner);
    world.until("it has its channel", || !channel().is_empty());
    let client = redis::Client::open().expect("a url");
    let mut connection = client.get_connection().expect("the server is there");
    let timeout = Some(PATIENCE);
    connection.set_read_timeout(timeout).expect("a timeout");
    let mut messages = connection.as_pubsub();
    messages.subscribe(channel()).expect("subscribed");
    guard.release().expect("it was held until now");
    let message = messages.get_message().expect("the waiter is woken");
    assert_eq!(message.get_payload::<String>().ok(), Some(owner));
    is_kept(redis, kind, &name);
    // Simulates the end of the time.
    for key in &keys {
        let () = redis.ask(&["DEL", key]);
    }
    waiter.locked();
    waiter.release();
}

pub(crate) fn a_timeout_at_a_kept_lock_names_the_last_owner(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-told"));
    let (tell, told) = channel();
    let locks = world.build(|it| it.listener(move |event: &Event<'_>| {
        if let Event::Contended { holder, .. } = event {
            tell.send(holder.as_deref().map(str::to_owned)).ok();
        }
    }));
    let lock = kind.of(&locks, &name).lease(LEASE).min_hold(KEPT);
    let guard = lock.lock().expect("it is free");
    let owner = guard.lease().owner().to_owned();
    guard.release().expect("it was held until now");
    let rival = kind.rival().of(&locks, &name);
    // The last wait finds the mark that the second wait has left.
    for wait in [Duration::ZERO, ms(600), Duration::ZERO] {
        assert_eq!(holder_at_timeout(&rival, wait).as_deref(), Some(&*owner));
    }
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Some(owner)));
}

pub(crate) fn a_repeated_release_lengthens_no_min_hold(world: &World, kind: Kind) {
    let (server, name) = (Server::start(), "n");
    let proxy = Proxy::to(&server);
    let redis = server.raw();
    let locks = world.build(|it| it.io_timeout(secs(1)));
    let locked = |name: &str| {
        let lock = kind.of(&locks, name).lease(LEASE).min_hold(KEPT);
        lock.lock().expect("it is free")
    };
    // Loads the script into the server.
    locked("first").release().expect("it was held until now");
    let guard = locked(name);
    proxy.strike(Role::Pool, Fault::LoseAnswers);
    let released = guard.release();
    assert!(
        matches!(released, Err(Error::Unavailable { .. })),
        "{released:?}"
    );
    let before = is_kept(&redis, kind, name);
    proxy.heal();
    assert!(locks.close(PATIENCE), "it is repeated");
    let after = is_kept(&redis, kind, name);
    assert!(
        before
            .iter()
            .zip(&after)
            .all(|(before, after)| after <= before)
    );
}

pub(crate) fn fences_do_not_run_ahead_of_the_clock_with_min_hold(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-fences"));
    // There are more tasks than permits, so that they wait for each other.
    let tasks = [(); 5].map(|()| {
        let locks = world.build(|it| it.quantum(QUANTUM));
        let lock = kind.of(&locks, &name).min_hold(ms(5));
        task(move || {
            let turns = (0..4).map(|_| {
                let guard = lock.lock().expect("it gets its turn");
                let fence = guard.fence();
                guard.release().expect("it is held");
                fence
            });
            turns.max()
        })
    });
    let last = tasks.into_iter().filter_map(|task| task.end()).max();
    let (last, now) = (last.expect("there were turns"), now(redis));
    assert!(last <= now + micros(QUANTUM), "{last} is ahead of {now}");
}

pub(crate) fn a_lock_that_is_kept_gives_its_unused_fences_back(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-block"));
    let first = kind.rival().of(&world.manager(), &name).hold();
    let locks = world.build(|it| it.quantum(QUANTUM));
    let lock = kind.of(&locks, &name).lease(LEASE);
    // A thread waited for it, so it reserves the fences of a quantum, and hands them on in memory.
    let second = lock.locking_asleep();
    redis.wait_until_queued(&kind.keys(&name)[0], 1);
    let third = lock.min_hold(KEPT).locking_asleep();
    first.release();
    second.locked();
    second.release();
    third.locked();
    third.release();
    is_kept(redis, kind, &name);
    for key in kind.keys(&name) {
        let last: u64 = redis.ask(&["GET", &fence_of(&key)]);
        // Permits of one process share the fences of a quantum. Only the owner that reserved last gives any back.
        let beside = kind.crowd().map_or(0, |_| micros(QUANTUM));
        let now = now(redis);
        assert!(last <= now + beside, "{last} is ahead of {now}");
    }
}

pub(crate) fn one_foreign_key_does_not_end_the_min_hold_of_the_other_names(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("kept-foreign"));
    let keys = kind.keys(&name);
    let locks = world.manager();
    let lock = kind.of(&locks, &name).lease(LEASE).min_hold(KEPT);
    let guard = lock.lock().expect("it is free");
    let () = redis.ask(&["DEL", &keys[0]]);
    let () = redis.ask(&["RPUSH", &keys[0], "theirs"]);
    assert!(matches!(guard.release(), Err(Error::Lost(_))));
    for key in &keys[1..] {
        assert!(redis.ttl(key).expect("it is kept") > LEASE);
    }
}
