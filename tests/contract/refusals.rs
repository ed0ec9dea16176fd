//! Names, options and keys that no lock can have.

use std::time::Duration;

use leasehold::{Error, Result};
use leasehold_simulator::Topology;

use crate::matrix::Capability::{Always, KeepsFences, OneServer};
use crate::matrix::{Chapter, bodies};
use crate::redis::fence_of;
use crate::subject::{Guard, Kind, Subject, is_unreachable};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Chapter = &[
    (
        Always,
        bodies![
            a_key_of_another_type_is_the_wrong_type,
            invalid_names_are_refused_before_a_request_is_sent,
            invalid_options_are_refused_before_a_request_is_sent,
        ],
    ),
    (
        KeepsFences,
        bodies![a_fence_of_another_type_leaves_no_lock_behind],
    ),
    (
        OneServer,
        bodies![
            a_name_that_another_kind_holds_is_the_wrong_type,
            odd_names_work_like_any_other,
        ],
    ),
];

/// Returns the result of each way to lock.
fn outcomes(lock: &Subject) -> [Result<Option<Guard>>; 4] {
    [
        lock.lock().map(Some),
        lock.try_lock(),
        lock.try_lock_for(secs(1)),
        lock.with(secs(1), |_| ()).map(|()| None),
    ]
}

pub(crate) fn a_key_of_another_type_is_the_wrong_type(world: &World, kind: Kind) {
    let redis = world.redis();
    let name = world.name("wrong-type");
    let locks = world.manager();
    let lock = kind.of(&locks, &name);
    for key in kind.keys(&name) {
        let () = redis.ask(&["RPUSH", &key, "a list"]);
        let shown = locks.inspect(&key).map(|_| None);
        let broken = locks.force_release(&key, "value").map(|_| None);
        for outcome in outcomes(&lock).into_iter().chain([shown, broken]) {
            assert!(
                matches!(outcome, Err(Error::WrongType { .. })),
                "{outcome:?}"
            );
        }
        let left: Vec<String> = redis.ask(&["LRANGE", &key, "0", "-1"]);
        assert_eq!(left, ["a list"]);
        let () = redis.ask(&["DEL", &key]);
        // The other keys of the lock are free.
        assert!(lock.try_lock().expect("Redis replies").is_some());
        redis.wait_until_free(kind, &name);
    }
}

pub(crate) fn a_fence_of_another_type_leaves_no_lock_behind(world: &World, kind: Kind) {
    let redis = world.redis();
    let name = world.name("wrong-fence");
    let lock = kind.of(&world.manager(), &name);
    let keys = kind.keys(&name);
    for key in &keys {
        let fence = fence_of(key);
        let () = redis.ask(&["DEL", &fence]);
        let () = redis.ask(&["RPUSH", &fence, "a list"]);
        for outcome in outcomes(&lock) {
            assert!(
                matches!(outcome, Err(Error::WrongType { .. })),
                "{outcome:?}"
            );
            let left = keys.iter().find(|key| redis.exists(key));
            assert_eq!(left, None, "a lock without a fence is an orphan");
        }
        let () = redis.ask(&["DEL", &fence]);
        assert!(lock.try_lock().expect("Redis replies").is_some());
    }
}

pub(crate) fn a_name_that_another_kind_holds_is_the_wrong_type(world: &World, kind: Kind) {
    let locks = world.manager();
    let families: [&[Kind]; 3] = [
        &[Kind::Mutex, Kind::Reentrant, Kind::Multi],
        &[Kind::Reader, Kind::Writer],
        &[
            Kind::OnlyPermit,
            Kind::Permit,
            Kind::Permits,
            Kind::AllPermits,
        ],
    ];
    let strangers = families
        .iter()
        .filter(|family| !family.contains(&kind.family()));
    for &stranger in strangers.flat_map(|family| *family) {
        let name = world.name("stranger");
        // Another process holds the name, and then the same process.
        for theirs in [&world.manager(), &locks] {
            let held = stranger.of(theirs, &name).lock().expect("it is free");
            for outcome in outcomes(&kind.of(&locks, &name)) {
                let wrong = matches!(outcome, Err(Error::WrongType { .. }));
                assert!(wrong, "held as {stranger:?}: {outcome:?}");
            }
            held.check().expect("a refused request does not matter");
            held.release().expect("it was held until now");
            // A name has one kind while it is held, and any kind later.
            let guard = kind.of(&locks, &name).try_lock().expect("Redis replies");
            let guard = guard.expect("it is free");
            guard.release().expect("it was held until now");
        }
    }
}

pub(crate) fn invalid_names_are_refused_before_a_request_is_sent(world: &World, kind: Kind) {
    let locks = world.manager();
    // Without servers, a request would have another error.
    world.stop_servers();
    for name in unfit_names() {
        // The other names of a set are valid.
        let shown = locks.inspect(&name).map(|_| None);
        let broken = locks.force_release(&name, "x").map(|_| None);
        let all = outcomes(&kind.of(&locks, &name)).into_iter();
        for outcome in all.chain([shown, broken]) {
            let refused = matches!(outcome, Err(Error::InvalidName { .. }));
            assert!(refused, "{name:?}: {outcome:?}");
        }
    }
    // A valid name is sent.
    let sent = kind.of(&locks, "n").try_lock();
    assert!(sent.as_ref().is_err_and(is_unreachable), "{sent:?}");
}

pub(crate) fn invalid_options_are_refused_before_a_request_is_sent(world: &World, kind: Kind) {
    let locks = world.manager();
    let name = &*world.name("n");
    let lock = kind.of(&locks, name);
    let longest = secs(24 * 60 * 60);
    // Without servers, a request would have another error.
    world.stop_servers();
    for invalid in [
        lock.clone().lease(ms(9)),
        lock.clone().lease(Duration::ZERO),
        lock.clone().lease(longest + ms(1)),
        lock.clone().lease(Duration::MAX),
        lock.clone().max_hold(Duration::ZERO),
    ] {
        for outcome in outcomes(&invalid) {
            assert!(matches!(outcome, Err(Error::Config { .. })), "{outcome:?}");
        }
    }
    let own: Vec<Result<()>> = match kind {
        Kind::Multi => vec![
            locks.multi(["a", "b", "a"]).lock().map(drop),
            locks.multi([""; 0]).try_lock().map(drop),
        ],
        Kind::OnlyPermit | Kind::Permit => vec![
            locks.semaphore(name, 0).acquire().map(drop),
            locks.semaphore(name, u32::MAX).try_acquire().map(drop),
        ],
        Kind::Permits | Kind::AllPermits => vec![
            locks.semaphore(name, 3).acquire_many(0).map(drop),
            locks.semaphore(name, 3).try_acquire_many(4).map(drop),
            locks.semaphore(name, 0).acquire_many(0).map(drop),
        ],
        Kind::Mutex | Kind::Reentrant | Kind::Reader | Kind::Writer | Kind::Unfenced => Vec::new(),
    };
    for outcome in own {
        assert!(matches!(outcome, Err(Error::Config { .. })), "{outcome:?}");
    }
    // The bounds themselves are valid, and are sent. A manager of a quorum would ask for the release of the longest lease
    // until that is over.
    let mut valid = vec![lock.clone().lease(ms(10))];
    if world.topology() != Topology::Quorum {
        valid.push(lock.lease(longest));
    }
    for lock in valid {
        let sent = lock.try_lock();
        assert!(sent.as_ref().is_err_and(is_unreachable), "{sent:?}");
    }
}

/// Each is locked, waited for, handed over, shown and listed.
pub(crate) fn odd_names_work_like_any_other(world: &World, kind: Kind) {
    let [here, elsewhere, onlooker] = [(); 3].map(|()| world.manager());
    let longest = ["x".repeat(1024), "😀".repeat(256)];
    let odd = [
        "\0",
        "a\nb\r\n",
        " sp ace ",
        "quo'te\"s\\",
        "é😀\u{202e}",
        "*",
        "[a-z]?\\*",
        "{",
        "a{b",
        "{a}",
        "{a}b}c",
        "{{a}}",
        "x{a}y{",
        "}{a}",
        ":lh:fences",
        "$1\r\n",
        "-1",
    ];
    for name in odd.map(str::to_owned).into_iter().chain(longest) {
        // The keys of a multi-lock are longer than the name.
        if kind == Kind::Multi && name.len() == 1024 {
            continue;
        }
        let guard = kind.of(&here, &name).lock().expect(&name);
        let fence = guard.fence();
        let waiting = kind.rival().of(&elsewhere, &name).locking();
        world.until("it waits", || {
            let info = onlooker.inspect(&name).expect(&name);
            info.is_some_and(|info| info.waiters == 1 && info.name == name)
        });
        let mut listed = onlooker.list("*").filter_map(|info| Some(info.ok()?.name));
        assert!(listed.any(|listed| listed == name), "{name:?}");
        guard.release().expect(&name);
        assert!(waiting.locked() >= fence, "{name:?}");
        waiting.release();
        world.until("it is free", || {
            onlooker.inspect(&name).expect(&name).is_none()
        });
    }
}

/// Names that no lock can have: too long or empty, with an empty hash tag, or those of companions.
fn unfit_names() -> Vec<String> {
    let long = ["x".repeat(1025), "é".repeat(512) + "x", "😀".repeat(257)];
    let short = [
        "",
        "}",
        "{}",
        "a}b",
        "a}",
        "}x",
        "{}x",
        "{}{x}",
        "a{}b}c",
        "x:lh:fence",
        "x:lh:queue",
        "x:lh:waiters",
        "x:lh:once",
        "{x}:lht:once",
        "x:lh:leader",
        "{x}:lht:leader",
        ":lh:fence",
        "x:lht:fence",
        "{x}:lht:queue",
        "{x}:lh:waiters",
        "leasehold:restart_delay",
    ];
    long.into_iter().chain(short.map(str::to_owned)).collect()
}
