//! Rights that the Redis user lacks or loses, and keys that another client has replaced.

use leasehold::{Error, LeaseState, LostCause};

use crate::holder_and_waiter::{HolderAndWaiter, NAME, both_ways};
use crate::traces::only_fences_are_left;
use crate::support::{
    Kind, PATIENCE, Raw, Server, companions_of, fence_of, lost, manager, secs, wait_until,
};

/// The kinds whose lock is a plain string in Redis.
const IS_A_STRING: [Kind; 4] = [Kind::Mutex, Kind::Reentrant, Kind::Multi, Kind::Unfenced];

/// Gives the user further rights.
fn grant(redis: &Raw, rights: &[&str]) {
    let () = redis.ask(&[&["ACL", "SETUSER", "user"], rights].concat());
}

/// Returns a server with a user that has every right but those that `options` take away, and the user's URL.
fn with_user(options: &[&str]) -> (Server, String) {
    let server = Server::start();
    grant(
        &server.raw(),
        &[&["on", ">us3r-s3cret", "~*", "&*", "+@all"], options].concat(),
    );
    let url = server.url().replace("//", "//user:us3r-s3cret@");
    (server, url)
}

pub(crate) fn a_user_without_scripts_or_the_keys_is_denied_at_once(world: &World, kind: Kind) {
    let rights: [&[&str]; 4] = [
        &["resetkeys", "~{pair*"],
        &["resetkeys", "~other"],
        &["-evalsha", "-eval"],
        // The key of the lock, without its companions.
        &["resetkeys", "~pair*"],
    ];
    // Without fences, a free mutex is taken without a script, and without its companions.
    let needed = if kind.has_fences() { 4 } else { 2 };
    for rights in &rights[..needed] {
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
        let guard = lock.try_lock().expect("Redis replies");
        assert!(guard.is_some(), "{rights:?}");
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
pub(crate) fn a_right_that_is_missing_leaves_no_lock_behind(world: &World, kind: Kind) {
    let (server, url) = with_user(&[]);
    let (redis, other) = (server.raw(), world.manager());
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
            // The script may have failed after it wrote the lock. The clean-up needs no such right.
            world.until("nothing but fences is left", only_fences_are_left);
        }
        grant(&redis, &["+@all"]);
        match outcome {
            Ok(guard) => drop(guard.expect("it is free")),
            Err(Error::Denied { .. }) => denied += 1,
            Err(error) => panic!("{name}: {error:?}"),
        }
        let next = kind.rival().of(&other, name).try_lock_for(PATIENCE);
        let next = next.expect("Redis replies");
        drop(next.unwrap_or_else(|| panic!("{name}: a lock was left behind")));
        world.until("nothing but fences is left", only_fences_are_left);
    }
    // Without fences, a free mutex is taken by SET alone.
    let least = if kind.has_fences() { 2 } else { 1 };
    assert!(denied >= least, "{denied} were denied");
}

pub(crate) fn rights_taken_away_for_a_while_end_waits_and_cost_no_lease(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let (server, url) = with_user(&[]);
        let pair = HolderAndWaiter::with_user(kind, server, secs(15), &url);
        // The lease is longer than the test, so its end does not release the lock.
        let released = kind.of(&pair.locks, "other").lease(secs(600)).lock();
        let released = released.expect("it is free");
        let failed = pair.locks.stats().renewals_failed;
        grant(&pair.redis, &["-evalsha", "-eval"]);
        let outcome = pair.waiter.outcome();
        assert!(matches!(outcome, Err(Error::Denied { .. })), "{outcome:?}");
        // Without fences, a free mutex is taken without a script.
        let further = if kind.has_fences() { "further" } else { NAME };
        let tried = kind.of(&pair.other, further).try_lock();
        assert!(matches!(tried, Err(Error::Denied { .. })), "{tried:?}");
        let refused = released.release();
        assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
        world.until("a renewal is refused", || {
            pair.locks.stats().renewals_failed > failed
        });
        assert_ne!(pair.guard.lease().state(), LeaseState::Lost);
        grant(&pair.redis, &["+evalsha", "+eval"]);
        pair.wait_until_renewed();
        pair.guard.check().expect("it is held");
        let release = pair.guard.release();
        release.expect("it was held until now");
        only_fences_are_left(&pair.redis, kind, NAME);
        only_fences_are_left(&pair.redis, kind, "other");
    });
}

pub(crate) fn rights_taken_away_for_ever_lose_the_lock_at_its_deadline(world: &World, kind: Kind) {
    let (server, url) = with_user(&[]);
    let redis = server.raw();
    let (locks, other) = (manager(&url), world.manager());
    let guard = kind.of(&locks, NAME).lease(secs(3)).lock();
    let guard = guard.expect("it is free");
    let losses = guard.on_lost();
    grant(&redis, &["-evalsha", "-eval"]);
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    assert_eq!(loss.cause, LostCause::Expired);
    let next = kind.rival().of(&other, NAME).try_lock_for(PATIENCE);
    let next = next.expect("Redis replies").expect("it becomes free");
    assert_eq!(lost(guard.release()), loss);
    next.release().expect("it was held until now");
}

/// A renewal that may not read the time to live must not set a shorter one.
pub(crate) fn a_renewal_without_the_right_to_pttl_shortens_no_lease(world: &World, kind: Kind) {
    let (server, url) = with_user(&[]);
    let (redis, locks) = (server.raw(), manager(&url));
    let guard = kind.of(&locks, NAME).lease(secs(9)).lock();
    let guard = guard.expect("it is free");
    let speaks_for_all = guard.leases().last().expect("there is one");
    speaks_for_all.extend(secs(600)).expect("it is held");
    grant(&redis, &["-pttl"]);
    let failed = locks.stats().renewals_failed;
    world.until("two renewals are refused", || {
        locks.stats().renewals_failed > failed + 1
    });
    for key in kind.keys(NAME) {
        let ttl = redis.ttl(&key).expect("it is there");
        assert!(ttl > secs(300), "{key}: {ttl:?}");
    }
    guard.check().expect("it is held");
    grant(&redis, &["+pttl"]);
    guard.release().expect("it was held until now");
}

/// Replaces a key of the lock by a list.
fn spoil(redis: &Raw, key: &str) {
    // One script does both, so that no poll comes between them.
    let replace = "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'a list')";
    let () = redis.ask(&["EVAL", replace, "1", key]);
}

pub(crate) fn holder_and_waiter_learn_that_their_key_was_replaced(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(kind, Server::start(), secs(9));
        let losses = pair.guard.on_lost();
        spoil(&pair.redis, NAME);
        let outcome = pair.waiter.outcome();
        assert!(
            matches!(outcome, Err(Error::WrongType { .. })),
            "{outcome:?}"
        );
        let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
        assert_eq!(loss.cause, LostCause::Taken);
        assert_eq!(lost(pair.guard.release()), loss);
        // The list belongs to another client, and stays.
        let left: Vec<String> = pair.redis.ask(&["LRANGE", NAME, "0", "-1"]);
        assert_eq!(left, ["a list"]);
    });
}

pub(crate) fn a_companion_replaced_while_held_costs_no_lease(world: &World, kind: Kind) {
    for which in 0..companions_of(NAME).len() {
        both_ways(kind, |kind| {
            let pair = HolderAndWaiter::new(kind, Server::start(), secs(9));
            let companion = &companions_of(NAME)[which];
            spoil(&pair.redis, companion);
            // A renewal needs the key of the lock alone.
            pair.wait_until_renewed();
            pair.guard.check().expect("it is held");
            if *companion == fence_of(NAME) {
                // A waiter needs no fence until it is granted the lock.
                assert!(pair.waiter.waits());
            } else {
                let outcome = pair.waiter.outcome();
                assert!(
                    matches!(outcome, Err(Error::WrongType { .. })),
                    "{outcome:?}"
                );
            }
            match pair.guard.release() {
                Ok(()) if *companion == fence_of(NAME) => {}
                // Without its queue, the lock has no waiter that a hand-over could go to.
                Ok(()) => assert!(kind.keys(NAME).iter().all(|key| !pair.redis.exists(key))),
                // The release of a share reads the queue.
                Err(Error::WrongType { .. }) if !IS_A_STRING.contains(&kind) => {}
                other => panic!("{companion}: {other:?}"),
            }
            if *companion == fence_of(NAME) {
                let outcome = pair.waiter.outcome();
                if kind.has_fences() {
                    assert!(
                        matches!(outcome, Err(Error::WrongType { .. })),
                        "{outcome:?}"
                    );
                } else {
                    outcome.expect("it becomes free");
                    pair.waiter.release();
                }
            }
            let () = pair.redis.ask(&["DEL", companion]);
            // The renewal thread repeats a refused release. So the lock is free long before its lease ends.
            let next = kind.rival().of(&pair.other, NAME).try_lock_for(secs(6));
            let next = next.expect("Redis replies").expect("it becomes free");
            next.release().expect("it was held until now");
        });
    }
}
