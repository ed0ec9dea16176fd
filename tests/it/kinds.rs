//! What of a kind of lock only a real server or a real thread shows. `tests/contract` has the rest.

use std::cell::RefCell;

use leasehold::{Error, ReentrantGuard, ReentrantMutex};

use crate::support::{
    Kind, Server, build, fence_of, manager, ms, name, patient, secs, shared, wait_until,
};

/// Lua passes at most 8,000 arguments to a command, and the scripts pass all keys to one.
#[test]
fn a_set_may_have_a_thousand_names() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(patient(&server.url()).lease(secs(600)));
    for count in [100, 1_000] {
        let set = locks.multi((0..count).map(|number| number.to_string()));
        let guard = set.lock().expect("they are free");
        assert_eq!(guard.leases().len(), count);
        assert_eq!(raw.get("7").as_deref(), Some(guard.leases()[0].owner()));
        guard.release().expect("it is held");
        let left: usize = raw.ask(&["DBSIZE"]);
        let fences = raw.keys("{*}:lh:fence").len();
        assert_eq!((left, fences), (fences, count));
    }
}

/// The Lua of a real server reads the record: a text of another program, or a number that no clock has reached. Fences go on from
/// the clock.
#[test]
fn an_impossible_fence_in_redis_is_ignored() {
    let server = Server::start();
    let (raw, locks) = (server.raw(), manager(&server.url()));
    for record in [
        "1e300",
        "inf",
        "nan",
        "-5",
        "text",
        "",
        "9007199254740991",
        "99999999999999999999",
    ] {
        for kind in Kind::ALL {
            let name = name("record");
            for key in kind.keys(&name) {
                let () = raw.ask(&["SET", &fence_of(&key), record]);
            }
            let guard = kind.of(&locks, &name).lock();
            let guard = guard.unwrap_or_else(|error| panic!("{record:?}, {kind:?}: {error}"));
            let next = guard.lease().fence();
            // The fence is a time between the years 2020 and 2100.
            assert!(
                (1_577_836_800_000_000..4_102_444_800_000_000).contains(&next),
                "{next}"
            );
            guard.release().expect("it is held");
            assert!(!raw.exists(&name));
        }
    }
}

#[test]
fn a_shorter_window_of_a_rate_limiter_does_not_shorten_a_longer_one() {
    let raw = shared();
    let name = name("windows");
    let locks = manager(raw.url());
    let minute = locks.rate_limiter(&name, 3, secs(600));
    let second = locks.rate_limiter(&name, 3, ms(100));
    for _ in 0..3 {
        minute.acquire().expect("one of three");
    }
    second.acquire().expect("Redis replies");
    wait_until("forgotten, or not", || {
        !raw.exists(&name) || raw.ttl(&name).is_some_and(|ttl| ttl > secs(1))
    });
    assert!(raw.exists(&name));
}

#[test]
fn no_number_in_redis_makes_the_rate_limiter_panic() {
    let raw = shared();
    let name = name("far");
    let limiter = manager(raw.url()).rate_limiter(&name, 1, secs(1));
    let () = raw.ask(&["RPUSH", &name, "9007199254740000"]);
    let error = limiter.acquire().expect_err("it is no rate limiter's list");
    assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
    // A list of a rate limiter, with a time that no clock will reach.
    let () = raw.ask(&["DEL", &name]);
    let () = raw.ask(&["RPUSH", &name, "1 1000000 1", "9007199254740000"]);
    let error = limiter.acquire().expect_err("nobody waits for so long");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

/// Locks once more when its thread ends, whichever thread-local values are left by then.
struct AtTheEnd {
    mutex: ReentrantMutex,
    guard: Option<ReentrantGuard>,
}

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        // If the thread's list is gone, the thread is refused its own lock like any other thread.
        drop(self.mutex.try_lock().expect("Redis replies"));
        self.guard
            .take()
            .expect("locked")
            .release()
            .expect("it was held until now");
        drop(self.mutex.lock().expect("it is free"));
    }
}

thread_local! {
    static AT_THE_END: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
}

/// The system drops the values of a thread.
#[test]
fn guards_may_outlive_the_thread_s_own_list() {
    let raw = shared();
    for first_the_guard in [true, false] {
        let name = name("thread-local");
        let mutex = manager(raw.url()).reentrant_mutex(&name);
        let thread = std::thread::spawn({
            let mutex = mutex.clone();
            move || {
                // Thread-local values are dropped in the reverse order of their creation.
                if first_the_guard {
                    AT_THE_END.with(|_| ());
                }
                let guard = Some(mutex.lock().expect("it is free"));
                let end = AtTheEnd { mutex, guard };
                AT_THE_END.with(|at_the_end| at_the_end.replace(Some(end)));
            }
        });
        thread.join().expect("no panic");
        assert!(!raw.exists(&name));
        drop(mutex.lock().expect("it is free"));
    }
}
