//! Rights that the Redis user lacks or loses, and keys that another client has replaced.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::unbounded;
use leasehold::{Error, Event, LeaseState, LostCause};

use crate::holder_and_waiter::{HolderAndWaiter, NAME, both_ways};
use crate::matrix::Capability::OneServer;
use crate::matrix::{Chapter, bodies};
use crate::redis::{Redis, companions_of, fence_of};
use crate::subject::{Kind, lost};
use crate::world::{Locks, World, ms, secs};

pub(crate) const BODIES: Chapter = &[(
    OneServer,
    bodies![
        a_user_without_scripts_or_the_keys_is_denied_at_once,
        a_right_that_is_missing_leaves_no_lock_behind,
        rights_taken_away_for_a_while_end_waits_and_cost_no_lease,
        rights_taken_away_for_ever_lose_the_lock_at_its_deadline,
        a_name_without_rights_costs_the_others_nothing,
        a_renewal_without_the_right_to_pexpire_does_not_count,
        a_renewal_without_the_right_to_pttl_shortens_no_lease,
        holder_and_waiter_learn_that_their_key_was_replaced,
        a_companion_replaced_while_held_costs_no_lease,
        a_password_that_is_changed_is_asked_for_by_new_connections,
        a_password_that_the_program_changes_too_costs_nothing,
    ],
)];

const USER: &str = "user";
const PASSWORD: &str = "us3r-s3cret";

/// A waiter asks again at the latest after this time. So it learns by then what has become of its lock.
const POLL: Duration = secs(1);

const LEASE: Duration = secs(9);
/// Longer than each test, so that the end of the lease releases no lock.
const LONG_LEASE: Duration = secs(600);

/// The kinds whose lock is a plain string in Redis.
const IS_A_STRING: [Kind; 4] = [Kind::Mutex, Kind::Reentrant, Kind::Multi, Kind::Unfenced];

/// Changes the rights of the user.
fn grant(redis: &Redis, rights: &[&str]) {
    let () = redis.ask(&[&["ACL", "SETUSER", USER], rights].concat());
}

/// Makes the user anew, with every right but those that `options` take away.
fn make_user(redis: &Redis, options: &[&str]) {
    let password = format!(">{PASSWORD}");
    let all = ["reset", "on", &password, "~*", "&*", "+@all"];
    grant(redis, &[&all, options].concat());
}

/// Returns a manager with the rights of the user.
fn manager_of_user(world: &World) -> Locks {
    world.manager_as(USER, PASSWORD)
}

#[track_caller]
fn assert_denied<T: std::fmt::Debug>(outcome: &leasehold::Result<T>) {
    assert!(matches!(outcome, Err(Error::Denied { .. })), "{outcome:?}");
}

#[track_caller]
fn assert_wrong_type<T: std::fmt::Debug>(outcome: &leasehold::Result<T>) {
    assert!(
        matches!(outcome, Err(Error::WrongType { .. })),
        "{outcome:?}"
    );
}

fn a_user_without_scripts_or_the_keys_is_denied_at_once(world: &World, kind: Kind) {
    let rights: [&[&str]; 4] = [
        &["resetkeys", "~{pair*"],
        &["resetkeys", "~other"],
        &["-evalsha", "-eval"],
        // The key of the lock, without its companions.
        &["resetkeys", "~pair*"],
    ];
    // Without fences, a free mutex is taken without a script, and without its companions. It may be in a gap for clients
    // that poll, which only a script sees.
    let needed = if kind.has_fences() { 4 } else { 2 };
    let redis = world.redis();
    for (index, rights) in rights.iter().enumerate() {
        make_user(&redis, rights);
        let locks = if index < needed {
            manager_of_user(world)
        } else {
            let locks = manager_of_user(world);
            let guard = kind.of(&locks, NAME).lock().expect("it is free");
            grant(&redis, &["+evalsha", "+eval", "~*"]);
            guard.release().expect("it was held until now");
            make_user(&redis, rights);
            world.build_as(USER, PASSWORD, |it| it.poller_gap(ms(20)))
        };
        let lock = kind.of(&locks, NAME);
        let begun = world.now();
        assert_denied(&lock.lock());
        assert_denied(&lock.try_lock());
        assert_denied(&lock.try_lock_for(secs(30)));
        assert!(world.now() <= world.within(begun), "{rights:?}");
        let left = redis.keys("*");
        assert!(left.is_empty(), "{rights:?}: {left:?}");
        grant(&redis, &["+evalsha", "+eval", "~*"]);
        let guard = lock.try_lock().expect("Redis replies");
        let guard = guard.unwrap_or_else(|| panic!("{rights:?}: it is free"));
        guard.release().expect("it was held until now");
        // The next rights find no fence.
        let () = redis.ask(&["FLUSHALL"]);
    }
}

/// The commands that scripts use to acquire and release, and the commands that run scripts.
const COMMANDS: [&str; 25] = [
    "append",
    "del",
    "exists",
    "get",
    "getrange",
    "hdel",
    "hget",
    "hlen",
    "hset",
    "pexpire",
    "pexpireat",
    "pttl",
    "publish",
    "pubsub",
    "set",
    "time",
    "zadd",
    "zcard",
    "zrange",
    "zrangebyscore",
    "zrem",
    "zscore",
    "ping",
    "eval",
    "evalsha",
];

/// The commands of those that write nothing.
const READS: [&str; 11] = [
    "exists",
    "get",
    "getrange",
    "hget",
    "hlen",
    "pttl",
    "time",
    "zcard",
    "zrange",
    "zrangebyscore",
    "zscore",
];

/// Takes each right away in turn, so that the scripts fail at every command.
fn a_right_that_is_missing_leaves_no_lock_behind(world: &World, kind: Kind) {
    let (redis, other) = (world.redis(), world.manager());
    make_user(&redis, &[]);
    let mut denied = 0;
    for command in COMMANDS {
        let name = &format!("without-{command}");
        let locks = manager_of_user(world);
        grant(&redis, &[&format!("-{command}")]);
        let outcome = kind.of(&locks, name).lease(LONG_LEASE).try_lock();
        if READS.contains(&command) && outcome.is_err() {
            // The script may have failed after it wrote the lock. The clean-up needs no such right.
            wait_until_clean(&redis, kind, name);
        }
        grant(&redis, &["+@all"]);
        match outcome {
            Ok(guard) => drop(guard.expect("it is free")),
            Err(Error::Denied { .. }) => denied += 1,
            Err(error) => panic!("{name}: {error:?}"),
        }
        let next = kind.rival().of(&other, name);
        let next = next.try_lock_for(world.within(POLL));
        let next = next.expect("Redis replies");
        drop(next.unwrap_or_else(|| panic!("{name}: a lock was left behind")));
        wait_until_clean(&redis, kind, name);
    }
    // Without fences, a free mutex is taken by SET alone.
    let least = if kind.has_fences() { 2 } else { 1 };
    assert!(denied >= least, "{denied} were denied");
}

/// Blocks until nothing but fences is there. A refused request may have left none.
#[track_caller]
fn wait_until_clean(redis: &Redis, kind: Kind, name: &str) {
    let fences: Vec<_> = kind.keys(name).iter().map(|key| fence_of(key)).collect();
    redis.until("nothing but fences is left", || {
        let left = redis.keys(&format!("*{name}*"));
        left.iter().all(|key| fences.contains(key))
    });
}

fn rights_taken_away_for_a_while_end_waits_and_cost_no_lease(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        make_user(&world.redis(), &[]);
        let pair = HolderAndWaiter::with(world, kind, LEASE, |change| {
            world.build_as(USER, PASSWORD, change)
        });
        let released = kind.of(&pair.locks, "other").lease(LONG_LEASE).lock();
        let released = released.expect("it is free");
        let failed = pair.locks.stats().renewals_failed;
        grant(&pair.redis, &["-evalsha", "-eval"]);
        let taken_at = world.now();
        assert_denied(&pair.waiter.outcome());
        assert!(world.now() <= world.within(taken_at + POLL));
        // Without fences, a free mutex is taken without a script.
        let further = if kind.has_fences() { "further" } else { NAME };
        assert_denied(&kind.of(&pair.other, further).try_lock());
        assert_denied(&released.release());
        world.until("a renewal is refused", || {
            pair.locks.stats().renewals_failed > failed
        });
        assert!(world.now() <= world.within(taken_at + LEASE / 3));
        assert_ne!(pair.guard.lease().state(), LeaseState::Lost);
        grant(&pair.redis, &["+evalsha", "+eval"]);
        pair.wait_until_renewed();
        pair.guard.check().expect("it is held");
        let release = pair.guard.release();
        release.expect("it was held until now");
        pair.redis.only_fences_are_left(kind, NAME);
        pair.redis.only_fences_are_left(kind, "other");
    });
}

fn a_password_that_is_changed_is_asked_for_by_new_connections(world: &World, kind: Kind) {
    make_user(&world.redis(), &[]);
    let pair = HolderAndWaiter::with(world, kind, LEASE, |change| {
        // With more connections, a call might open one.
        world.build_as(USER, PASSWORD, |it| change(it).pool_size(1))
    });
    pair.wait_until_renewed();
    grant(&pair.redis, &["resetpass", ">another"]);
    // Open connections stay logged in.
    drop(kind.of(&pair.locks, "other").lock().expect("it is free"));
    pair.locks.cut(0);
    pair.other.cut(0);
    assert_denied(&pair.waiter.outcome());
    assert_denied(&kind.of(&pair.locks, "other").try_lock());
    world.until("a renewal is refused", || {
        pair.locks.stats().renewals_failed > 0
    });
    assert_ne!(pair.guard.lease().state(), LeaseState::Lost);
    grant(&pair.redis, &["resetpass", &format!(">{PASSWORD}")]);
    pair.wait_until_renewed();
    pair.guard.release().expect("it was held until now");
}

/// All connections end, and the server has another password than before.
fn a_password_that_the_program_changes_too_costs_nothing(world: &World, kind: Kind) {
    make_user(&world.redis(), &[]);
    let password = Arc::new(Mutex::new(PASSWORD.to_owned()));
    let pair = HolderAndWaiter::with(world, kind, LEASE, |change| {
        let password = Arc::clone(&password);
        let current = move || password.lock().expect("no panic").clone();
        // That of the URL does not count.
        world.build_as(USER, "wrong-s3cret", |it| {
            change(it).credentials(move || (None, current()))
        })
    });
    for next in ["second-s3cret", "third-s3cret"] {
        pair.wait_until_renewed();
        grant(&pair.redis, &["resetpass", &format!(">{next}")]);
        next.clone_into(&mut password.lock().expect("no panic"));
        pair.locks.cut(0);
        pair.other.cut(0);
    }
    pair.assert_unharmed();
}

fn rights_taken_away_for_ever_lose_the_lock_at_its_deadline(world: &World, kind: Kind) {
    let redis = world.redis();
    make_user(&redis, &[]);
    let (locks, other) = (manager_of_user(world), world.manager());
    let begun = world.now();
    let guard = kind.of(&locks, NAME).lease(LEASE).lock();
    let guard = guard.expect("it is free");
    let granted_at = world.now();
    let losses = guard.on_lost();
    grant(&redis, &["-evalsha", "-eval"]);
    let loss = world.recv(&losses);
    assert_eq!(loss.cause, LostCause::Expired);
    // The guard counts its lease less 1 % and 2 ms, in case the clocks differ.
    assert!(world.now() + ms(2) >= begun + LEASE * 99 / 100);
    assert!(world.now() <= world.within(granted_at + LEASE));
    let next = kind.rival().of(&other, NAME).try_lock_for(secs(30));
    let next = next.expect("Redis replies").expect("it becomes free");
    assert!(world.now() <= world.within(granted_at + LEASE));
    assert_eq!(lost(guard.release()), loss);
    next.release().expect("it was held until now");
}

/// One request renews the leases of several names, and one releases them. The server refuses it as a whole.
fn a_name_without_rights_costs_the_others_nothing(world: &World, kind: Kind) {
    let redis = world.redis();
    make_user(&redis, &[]);
    let (tell, told) = unbounded();
    let locks = world.build_as(USER, PASSWORD, |it| {
        let listener = move |event: &Event<'_>| drop(tell.send(format!("{:?}", event.kind)));
        it.background_release(true).listener(listener)
    });
    let names = ["kept:a", "kept:b", "refused", "kept:c", "kept:d"];
    let lock = |name: &str| kind.of(&locks, name).lease(LEASE).lock();
    let guards = names.map(|name| lock(name).expect("it is free"));
    grant(&redis, &["resetkeys", "~kept:*", "~{kept:*"]);
    world.pass(2 * LEASE);
    for (name, guard) in names.iter().zip(&guards) {
        let is_lost = guard.lease().state() == LeaseState::Lost;
        assert_eq!(is_lost, *name == "refused", "{name}");
    }
    // A refusal is an answer.
    let events: Vec<_> = told.try_iter().collect();
    let has = |kind: &str| events.iter().any(|event| event.starts_with(kind));
    assert!(has("AtRisk") && !has("Unreachable"), "{events:?}");
    grant(&redis, &["~*"]);
    let refused = lock("refused:2").expect("it is free");
    grant(
        &redis,
        &["resetkeys", "~kept:*", "~{kept:*", "~leasehold:*"],
    );
    let released_at = world.now();
    drop((guards, refused));
    for name in names.iter().filter(|name| **name != "refused") {
        redis.wait_until_free(kind, name);
    }
    assert!(world.now() <= world.within(released_at));
    assert!(redis.exists("refused:2"));
    grant(&redis, &["~*"]);
    redis.wait_until_free(kind, "refused:2");
}

/// A renewal that may not read the time to live must not set a shorter one.
fn a_renewal_without_the_right_to_pexpire_does_not_count(world: &World, kind: Kind) {
    let redis = world.redis();
    make_user(&redis, &[]);
    let locks = manager_of_user(world);
    let guard = kind.of(&locks, NAME).lease(LEASE).lock();
    let guard = guard.expect("it is free");
    grant(&redis, &["-pexpire"]);
    let failed = locks.stats().renewals_failed;
    world.until("two renewals are refused", || {
        locks.stats().renewals_failed > failed + 1
    });
    for key in kind.keys(NAME) {
        let ttl = redis.ttl(&key).expect("it is there");
        assert!(guard.lease().remaining() <= ttl + ms(1), "{key}: {ttl:?}");
    }
    grant(&redis, &["+pexpire"]);
    guard.release().expect("it was held until now");
}

fn a_renewal_without_the_right_to_pttl_shortens_no_lease(world: &World, kind: Kind) {
    let redis = world.redis();
    make_user(&redis, &[]);
    let locks = manager_of_user(world);
    let guard = kind.of(&locks, NAME).lease(LEASE).lock();
    let guard = guard.expect("it is free");
    let speaks_for_all = guard.leases().last().expect("there is one");
    let extended_at = world.now();
    speaks_for_all.extend(LONG_LEASE).expect("it is held");
    grant(&redis, &["-pttl"]);
    let failed = locks.stats().renewals_failed;
    world.until("two renewals are refused", || {
        locks.stats().renewals_failed > failed + 1
    });
    for key in kind.keys(NAME) {
        let ttl = redis.ttl(&key).expect("it is there");
        let ends_at = world.now() + ttl;
        assert!(
            ends_at + ms(1) >= extended_at + LONG_LEASE,
            "{key}: {ttl:?}"
        );
    }
    guard.check().expect("it is held");
    grant(&redis, &["+pttl"]);
    guard.release().expect("it was held until now");
}

/// Replaces a key of the lock by a list.
fn spoil(redis: &Redis, key: &str) {
    // One script does both, so that no poll comes between them.
    let replace = "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'a list')";
    let () = redis.ask(&["EVAL", replace, "1", key]);
}

fn holder_and_waiter_learn_that_their_key_was_replaced(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(world, kind, LEASE);
        let losses = pair.guard.on_lost();
        spoil(&pair.redis, NAME);
        let spoiled_at = world.now();
        assert_wrong_type(&pair.waiter.outcome());
        assert!(world.now() <= world.within(spoiled_at + POLL));
        let loss = world.recv(&losses);
        assert!(world.now() <= world.within(spoiled_at + LEASE / 3));
        assert_eq!(loss.cause, LostCause::Taken);
        assert_eq!(lost(pair.guard.release()), loss);
        // The list belongs to another client, and stays.
        let left: Vec<String> = pair.redis.ask(&["LRANGE", NAME, "0", "-1"]);
        assert_eq!(left, ["a list"]);
        let () = pair.redis.ask(&["FLUSHALL"]);
    });
}

fn a_companion_replaced_while_held_costs_no_lease(world: &World, kind: Kind) {
    for companion in &companions_of(NAME) {
        both_ways(kind, |kind| {
            let pair = HolderAndWaiter::new(world, kind, LEASE);
            spoil(&pair.redis, companion);
            // A renewal needs the key of the lock alone.
            pair.wait_until_renewed();
            pair.guard.check().expect("it is held");
            if *companion == fence_of(NAME) {
                spoiled_fence_fails_the_next(pair);
            } else {
                spoiled_queue_fails_the_waiter(pair, companion);
            }
        });
    }
}

/// A waiter needs no fence until it is granted the lock.
fn spoiled_fence_fails_the_next(pair: HolderAndWaiter) {
    assert!(pair.waiter.waits());
    pair.guard.release().expect("it was held until now");
    if pair.kind.has_fences() {
        assert_wrong_type(&pair.waiter.outcome());
    } else {
        pair.waiter.locked();
        pair.waiter.release();
    }
    is_free_without(&pair.redis, pair.kind, &pair.other, &fence_of(NAME));
}

fn spoiled_queue_fails_the_waiter(pair: HolderAndWaiter, companion: &str) {
    assert_wrong_type(&pair.waiter.outcome());
    match pair.guard.release() {
        // Without its queue, the lock has no waiter that a hand-over could go to.
        Ok(()) => pair.redis.is_free(pair.kind, NAME),
        // The release of a share reads the queue.
        Err(Error::WrongType { .. }) if !IS_A_STRING.contains(&pair.kind) => {}
        other => panic!("{companion}: {other:?}"),
    }
    is_free_without(&pair.redis, pair.kind, &pair.other, companion);
}

/// Deletes the list, and checks that the lock is free. The renewal thread repeats a refused release, so that the others
/// need not wait for the end of the lease.
fn is_free_without(redis: &Redis, kind: Kind, locks: &Locks, companion: &str) {
    let () = redis.ask(&["DEL", companion]);
    let next = kind.rival().of(locks, NAME);
    let next = next.try_lock_for(locks.world().within(POLL));
    let next = next.expect("Redis replies").expect("it becomes free");
    next.release().expect("it was held until now");
}
