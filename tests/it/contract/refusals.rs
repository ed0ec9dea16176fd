//! What no lock can be made of.

use std::time::Duration;

use leasehold::{Error, LockManager, Result};

use crate::support::{
    Guard, Kind, Subject, fence_of, manager, ms, name, patient, secs, shared, unfit_names,
    unused_url,
};

/// What comes of it in each of the ways of locking.
fn outcomes(lock: &Subject) -> [Result<Option<Guard>>; 3] {
    [
        lock.lock().map(Some),
        lock.try_lock(),
        lock.try_lock_for(secs(1)),
    ]
}

pub(super) fn a_key_of_another_type_is_the_wrong_type(kind: Kind) {
    let redis = shared();
    let name = name("wrong-type");
    let lock = kind.of(&manager(redis.url()), &name);
    for key in kind.keys(&name) {
        let () = redis.ask(&["RPUSH", &key, "a list"]);
        for outcome in outcomes(&lock) {
            assert!(
                matches!(outcome, Err(Error::WrongType { .. })),
                "{outcome:?}"
            );
        }
        let left: Vec<String> = redis.ask(&["LRANGE", &key, "0", "-1"]);
        assert_eq!(left, ["a list"]);
        let () = redis.ask(&["DEL", &key]);
        // Neither was anything else of it taken.
        assert!(lock.try_lock().expect("it is asked").is_some());
    }
}

pub(super) fn a_fence_of_another_type_leaves_no_lock_behind(kind: Kind) {
    let redis = shared();
    let name = name("wrong-fence");
    let lock = kind.of(&manager(redis.url()), &name);
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
        assert!(lock.try_lock().expect("it is asked").is_some());
    }
}

pub(super) fn a_name_that_another_kind_holds_is_the_wrong_type(kind: Kind) {
    let redis = shared();
    let locks = manager(redis.url());
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
    let strangers = families.iter().filter(|family| !family.contains(&kind));
    for &stranger in strangers.flat_map(|family| *family) {
        let name = name("stranger");
        // Held by another process, and held by this one.
        for theirs in [&manager(redis.url()), &locks] {
            let held = stranger.of(theirs, &name).lock().expect("it is free");
            for outcome in outcomes(&kind.of(&locks, &name)) {
                let wrong = matches!(outcome, Err(Error::WrongType { .. }));
                assert!(wrong, "held as {stranger:?}: {outcome:?}");
            }
            held.check().expect("it is none of its business");
            held.release().expect("it was held all the while");
            // A name is that of one kind at a time, and not for good.
            let guard = kind.of(&locks, &name).try_lock().expect("it is asked");
            let guard = guard.expect("it is free");
            guard.release().expect("it was held all the while");
        }
    }
}

/// A manager whose server is not there: whatever is sent fails as unavailable.
fn out_of_reach() -> LockManager {
    let builder = patient(&unused_url());
    builder.build_unchecked().expect("nothing is wrong with it")
}

pub(super) fn unfit_names_are_refused_before_anything_is_sent(kind: Kind) {
    let locks = out_of_reach();
    for name in unfit_names() {
        let name = &*name;
        // Of several names, the others are fit.
        for outcome in outcomes(&kind.of(&locks, name)) {
            let refused = matches!(outcome, Err(Error::InvalidName { .. }));
            assert!(refused, "{name:?}: {outcome:?}");
        }
    }
    // That it would be sent at all.
    let sent = kind.of(&locks, "n").try_lock();
    assert!(matches!(sent, Err(Error::Unavailable { .. })), "{sent:?}");
}

pub(super) fn unfit_options_are_refused_before_anything_is_sent(kind: Kind) {
    let locks = out_of_reach();
    let lock = kind.of(&locks, "n");
    for unfit in [
        lock.clone().lease(ms(9)),
        lock.clone().lease(Duration::ZERO),
        lock.clone().lease(secs(24 * 60 * 60) + ms(1)),
        lock.clone().lease(Duration::MAX),
        lock.clone().max_hold(Duration::ZERO),
    ] {
        for outcome in outcomes(&unfit) {
            assert!(matches!(outcome, Err(Error::Config { .. })), "{outcome:?}");
        }
    }
    let own: Vec<Result<()>> = match kind {
        Kind::Multi => vec![
            locks.multi(["a", "b", "a"]).lock().map(drop),
            locks.multi([""; 0]).try_lock().map(drop),
        ],
        Kind::OnlyPermit | Kind::Permit => vec![
            locks.semaphore("n", 0).acquire().map(drop),
            locks.semaphore("n", u32::MAX).try_acquire().map(drop),
        ],
        Kind::Permits | Kind::AllPermits => vec![
            locks.semaphore("n", 3).acquire_many(0).map(drop),
            locks.semaphore("n", 3).try_acquire_many(4).map(drop),
            locks.semaphore("n", 0).acquire_many(0).map(drop),
        ],
        Kind::Mutex | Kind::Reentrant | Kind::Reader | Kind::Writer => Vec::new(),
    };
    for outcome in own {
        assert!(matches!(outcome, Err(Error::Config { .. })), "{outcome:?}");
    }
    // The bounds themselves are good, and are sent.
    for fit in [lock.clone().lease(ms(10)), lock.lease(secs(24 * 60 * 60))] {
        let sent = fit.try_lock();
        assert!(matches!(sent, Err(Error::Unavailable { .. })), "{sent:?}");
    }
}
