//! Rights that are missing, or taken away, and keys that turn out to be somebody else's.

use leasehold::{Error, LeaseState, LostCause};

use super::scene::{NAME, Scene, both_ways};
use super::traces::only_fences_are_left;
use crate::support::{
    Kind, PATIENCE, Raw, Server, companions_of, fence_of, lost, manager, secs, wait_until,
};

/// The kinds whose lock is a string of its own, as other clients make it.
const IS_A_STRING: [Kind; 3] = [Kind::Mutex, Kind::Reentrant, Kind::Multi];

/// Gives a user rights beside what it has.
fn grant(redis: &Raw, rights: &[&str]) {
    let () = redis.ask(&[&["ACL", "SETUSER", "user"], rights].concat());
}

/// A server with a user that may do everything, and the user's URL.
fn with_user(options: &[&str]) -> (Server, String) {
    let server = Server::start();
    grant(
        &server.raw(),
        &[&["on", ">us3r-s3cret", "~*", "&*", "+@all"], options].concat(),
    );
    let url = server.url().replace("//", "//user:us3r-s3cret@");
    (server, url)
}

pub(super) fn a_user_without_scripts_or_the_keys_is_denied_at_once(kind: Kind) {
    let rights: [&[&str]; 4] = [
        &["-evalsha", "-eval"],
        // The name, and not what stands beside it.
        &["resetkeys", "~scene*"],
        &["resetkeys", "~{scene*"],
        &["resetkeys", "~other"],
    ];
    for rights in rights {
        let (server, url) = with_user(rights);
        let locks = manager(&url);
        let lock = kind.of(&locks, NAME);
        for outcome in [
            lock.lock().map(Some),
            lock.try_lock(),
            lock.try_lock_for(PATIENCE),
        ] {
            assert!(
                matches!(outcome, Err(Error::Denied { .. })),
                "{rights:?}: {outcome:?}"
            );
        }
        let left: Vec<String> = server.raw().ask(&["KEYS", "*"]);
        assert!(left.is_empty(), "{rights:?}: {left:?}");
        grant(&server.raw(), &["+evalsha", "+eval", "~*"]);
        let guard = lock.try_lock().expect("it is asked");
        assert!(guard.is_some(), "{rights:?}");
    }
}

/// All that scripts use to acquire and release.
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

/// Those of them that write nothing.
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

/// Each right in turn, so that scripts fail wherever they can.
pub(super) fn a_right_that_is_missing_leaves_no_lock_behind(kind: Kind) {
    let (server, url) = with_user(&[]);
    let (redis, other) = (server.raw(), manager(&server.url()));
    let mut denied = 0;
    for command in COMMANDS {
        let name = &format!("without-{command}");
        let locks = manager(&url);
        grant(&redis, &[&format!("-{command}")]);
        let outcome = kind.of(&locks, name).lease(secs(600)).try_lock();
        let fences: Vec<_> = kind.keys(name).iter().map(|key| fence_of(key)).collect();
        let only_fences_are_left = || {
            let left: Vec<String> = redis.ask(&["KEYS", &format!("*{name}*")]);
            left.iter().all(|key| fences.contains(key))
        };
        if READS.contains(&command) && outcome.is_err() {
            // By what is there without the right to it.
            wait_until("nothing but fences is left", only_fences_are_left);
        }
        grant(&redis, &["+@all"]);
        match outcome {
            Ok(guard) => drop(guard.expect("it is free")),
            Err(Error::Denied { .. }) => denied += 1,
            Err(error) => panic!("{name}: {error:?}"),
        }
        let next = kind.rival().of(&other, name).try_lock_for(PATIENCE);
        let next = next.expect("it is asked");
        drop(next.unwrap_or_else(|| panic!("{name}: it was left behind")));
        wait_until("nothing but fences is left", only_fences_are_left);
    }
    assert!(denied > 1, "{denied} were denied");
}

pub(super) fn rights_taken_away_end_waits_and_cost_a_lease_only_at_its_end(kind: Kind) {
    both_ways(kind, |kind| {
        let (server, url) = with_user(&[]);
        let scene = Scene::with_user(kind, server, secs(15), &url);
        // Its lease is no help to get rid of it.
        let released = kind.of(&scene.locks, "other").lease(secs(600)).lock();
        let released = released.expect("it is free");
        let failed = scene.locks.stats().renewals_failed;
        grant(&scene.redis, &["-evalsha", "-eval"]);
        let outcome = scene.waiter.outcome();
        assert!(matches!(outcome, Err(Error::Denied { .. })), "{outcome:?}");
        let tried = kind.of(&scene.other, "further").try_lock();
        assert!(matches!(tried, Err(Error::Denied { .. })), "{tried:?}");
        let refused = released.release();
        assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
        wait_until("a renewal is refused", || {
            scene.locks.stats().renewals_failed > failed
        });
        assert_ne!(scene.guard.lease().state(), LeaseState::Lost);
        grant(&scene.redis, &["+evalsha", "+eval"]);
        scene.wait_until_renewed();
        scene.guard.check().expect("it is held");
        let release = scene.guard.release();
        release.expect("it was held all the while");
        only_fences_are_left(&scene.redis, kind, NAME);
        only_fences_are_left(&scene.redis, kind, "other");
    });
}

pub(super) fn rights_taken_away_for_good_cost_the_lock_at_the_deadline(kind: Kind) {
    let (server, url) = with_user(&[]);
    let redis = server.raw();
    let (locks, other) = (manager(&url), manager(&server.url()));
    let guard = kind.of(&locks, NAME).lease(secs(3)).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    grant(&redis, &["-evalsha", "-eval"]);
    let loss = losses.recv_timeout(PATIENCE).expect("it is told");
    assert_eq!(loss.cause, LostCause::Expired);
    let next = kind.rival().of(&other, NAME).try_lock_for(PATIENCE);
    let next = next.expect("it is asked").expect("it comes free");
    assert_eq!(lost(guard.release()), loss);
    next.release().expect("it was held all the while");
}

/// A renewal only ever lengthens what there is: where it may not look how long that lives, it leaves it alone.
pub(super) fn a_renewal_that_may_not_look_shortens_nothing(kind: Kind) {
    let (server, url) = with_user(&[]);
    let (redis, locks) = (server.raw(), manager(&url));
    let guard = kind.of(&locks, NAME).lease(secs(9)).lock();
    let guard = guard.expect("it is free");
    let speaks_for_all = guard.leases().last().expect("there is one");
    speaks_for_all.extend(secs(600)).expect("it is held");
    grant(&redis, &["-pttl"]);
    let failed = locks.stats().renewals_failed;
    wait_until("two renewals are refused", || {
        locks.stats().renewals_failed > failed + 1
    });
    for key in kind.keys(NAME) {
        let ttl = redis.ttl(&key).expect("it is there");
        assert!(ttl > secs(300), "{key}: {ttl:?}");
    }
    guard.check().expect("it is held");
    grant(&redis, &["+pttl"]);
    guard.release().expect("it was held all the while");
}

/// Puts a list where the lock has something of its own.
fn spoil(redis: &Raw, key: &str) {
    // At one moment, or a poll would come in between.
    let replace = "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'a list')";
    let () = redis.ask(&["EVAL", replace, "1", key]);
}

pub(super) fn a_key_replaced_while_held_and_waited_for_is_told_to_both(kind: Kind) {
    both_ways(kind, |kind| {
        let scene = Scene::new(kind, Server::start(), secs(9));
        let losses = scene.guard.on_lost();
        spoil(&scene.redis, NAME);
        let outcome = scene.waiter.outcome();
        assert!(
            matches!(outcome, Err(Error::WrongType { .. })),
            "{outcome:?}"
        );
        let loss = losses.recv_timeout(PATIENCE).expect("it is told");
        assert_eq!(loss.cause, LostCause::Taken);
        assert_eq!(lost(scene.guard.release()), loss);
        // It is somebody's, and stays.
        let left: Vec<String> = scene.redis.ask(&["LRANGE", NAME, "0", "-1"]);
        assert_eq!(left, ["a list"]);
    });
}

pub(super) fn a_companion_replaced_while_held_costs_no_lease(kind: Kind) {
    for which in 0..companions_of(NAME).len() {
        both_ways(kind, |kind| {
            let scene = Scene::new(kind, Server::start(), secs(9));
            let companion = &companions_of(NAME)[which];
            spoil(&scene.redis, companion);
            // Renewal needs the lock alone.
            scene.wait_until_renewed();
            scene.guard.check().expect("it is held");
            if *companion == fence_of(NAME) {
                // Waiting needs no fence; being granted does.
                assert!(scene.waiter.waits());
            } else {
                let outcome = scene.waiter.outcome();
                assert!(
                    matches!(outcome, Err(Error::WrongType { .. })),
                    "{outcome:?}"
                );
            }
            match scene.guard.release() {
                Ok(()) if *companion == fence_of(NAME) => {}
                // There is nobody to hand it to.
                Ok(()) => assert!(kind.keys(NAME).iter().all(|key| !scene.redis.exists(key))),
                // Who shares a lock counts with those who wait.
                Err(Error::WrongType { .. }) if !IS_A_STRING.contains(&kind) => {}
                other => panic!("{companion}: {other:?}"),
            }
            if *companion == fence_of(NAME) && kind.rival() != Kind::Reader {
                let outcome = scene.waiter.outcome();
                assert!(
                    matches!(outcome, Err(Error::WrongType { .. })),
                    "{outcome:?}"
                );
            }
            let () = scene.redis.ask(&["DEL", companion]);
            // A release that was refused is sent again, so it is long before the lease is over that it is free.
            let next = kind.rival().of(&scene.other, NAME).try_lock_for(secs(6));
            let next = next.expect("it is asked").expect("it comes free");
            next.release().expect("it was held all the while");
        });
    }
}
