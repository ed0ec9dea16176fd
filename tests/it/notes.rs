//! Notes of handles, and requests for a release beside other settings. The contract has what holds for every kind.

use leasehold::{Admission, Error, Kind as Shown, LockManager};

use crate::support::{PATIENCE, build, locking_asleep, manager, ms, name, patient, secs, shared};

#[track_caller]
fn note(locks: &LockManager, name: &str) -> Option<String> {
    let seen = locks.inspect(name).expect("Redis replies");
    let mut holders = seen.expect("it is held").holders;
    assert_eq!(holders.len(), 1);
    holders.remove(0).note
}

/// Threads with equal notes hand the lock on in memory, and threads with other notes do so by Redis.
#[test]
fn a_lock_shows_the_note_of_the_handle_that_holds_it() {
    let raw = shared();
    let name = name("jobs");
    let locks = build(patient(raw.url()).note("of the manager").quantum(secs(600)));
    let of = |job: &str| locks.mutex(&name).note(job);
    let guard = locks.lock(&name).expect("it is free");
    assert_eq!(note(&locks, &name).as_deref(), Some("of the manager"));
    let mut jobs = vec![("of the manager", guard)];
    for job in ["one", "one", "two", "", "one"] {
        let waiting = locking_asleep(&of(job));
        let passed_on = locks.stats().passed_on;
        let (before, guard) = jobs.pop().expect("a job");
        guard.release().expect("it was held until now");
        let guard = waiting.end().expect("it becomes free");
        let shown = note(&locks, &name);
        assert_eq!(shown.unwrap_or_default(), job);
        let in_memory = locks.stats().passed_on > passed_on;
        assert_eq!(in_memory, before == job, "{before}, then {job}");
        jobs.push((job, guard));
    }
    let (_, guard) = jobs.pop().expect("a job");
    let claim = guard.detach();
    let adopted = of("adopted").adopt(&claim).expect("it is the claim's");
    assert_eq!(note(&locks, &name).as_deref(), Some("adopted"));
    adopted.release().expect("it was held until now");
}

#[test]
fn a_note_that_is_too_long_is_refused_before_anything_is_sent() {
    let url = "redis://127.0.0.1:1/";
    let (fits, too_long) = ("x".repeat(200), "é".repeat(34));
    let builder = LockManager::single(url);
    let refused = builder.clone().note(&too_long).build_unchecked();
    assert!(matches!(refused, Err(Error::Config { option: "note", .. })));
    let locks = builder.note(fits).build_unchecked().expect("it fits");
    let refused = locks.mutex("n").note(&too_long).lock();
    assert!(matches!(refused, Err(Error::Config { option: "note", .. })));
    let why = "x".repeat(1025);
    let refused = locks.request_release("n", &why);
    assert!(matches!(refused, Err(Error::Config { option: "why", .. })));
}

/// A client of another library cannot hear, and a job that is over cannot let go.
#[test]
fn a_request_tells_whether_somebody_holds_the_lock() {
    let raw = shared();
    let operator = manager(raw.url());
    let theirs = name("theirs");
    let () = raw.ask(&["SET", &theirs, "a token", "PX", "600000"]);
    assert!(
        operator
            .request_release(&theirs, "")
            .expect("Redis replies")
    );
    let kept = name("kept");
    let guard = operator.mutex(&kept).min_hold(secs(600)).lock();
    guard.expect("it is free").release().expect("it was held");
    assert!(raw.exists(&kept));
    assert!(!operator.request_release(&kept, "").expect("Redis replies"));
}

#[test]
fn a_rate_limiter_is_shown_with_its_figures() {
    let raw = shared();
    let (locks, name) = (manager(raw.url()), name("rate"));
    let seen = || locks.inspect(&name).expect("Redis replies");
    assert_eq!(seen(), None);
    let limiter = locks.rate_limiter(&name, 2, secs(600));
    let retry_after = |expected_permits, expected_per| {
        let info = seen().expect("it was used");
        assert_eq!((info.holders.len(), info.waiters), (0, 0));
        match info.kind {
            Shown::RateLimiter {
                permits,
                per,
                retry_after,
                ..
            } => {
                assert_eq!((permits, per), (expected_permits, expected_per));
                retry_after
            }
            other => panic!("{other:?}"),
        }
    };
    let one = limiter.try_acquire().expect("Redis replies");
    assert_eq!(one, Admission::Admitted);
    assert_eq!(retry_after(2, secs(600)), ms(0));
    let two = limiter.try_acquire().expect("Redis replies");
    assert_eq!(two, Admission::Admitted);
    let left = retry_after(2, secs(600));
    assert!(left <= secs(600) && left + PATIENCE > secs(600), "{left:?}");
    // A list does not read what another program may have written.
    assert!(locks.list(&name).next().is_none());
    let error = locks.lock(&name).expect_err("it is no lock");
    assert!(format!("{error:#}").contains("rate limiter"), "{error:#}");
}
