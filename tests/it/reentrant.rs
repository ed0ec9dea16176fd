//! The reentrant mutex: the behaviour that a mutex does not have.

use std::cell::RefCell;
use std::mem;

use leasehold::{Error, LeaseState, ReentrantGuard, ReentrantMutex};

use crate::support::{
    Child, PATIENCE, Server, asleep, lost, manager, ms, name, secs, shared, task, wait_until,
};

/// Longer than any test runs, so that no lease ends or is renewed during a test.
const LONG: std::time::Duration = std::time::Duration::from_mins(10);

#[test]
fn smoke() {
    let locks = manager(shared().url());
    let name = name("re");
    let mutex = locks.reentrant_mutex(&name);
    let outer = mutex.lock().expect("it is free");
    let inner = mutex.lock().expect("this thread holds it");
    let third = mutex
        .try_lock()
        .expect("this thread holds it")
        .expect("again");
    assert_eq!(inner.fence(), outer.fence());
    assert_eq!(third.owner(), outer.owner());
    drop(outer);
    drop(inner);
    third.release().expect("it is held");
    assert!(!shared().exists(&name));
}

#[test]
fn locking_again_sends_nothing() {
    let server = Server::start();
    let raw = server.raw();
    let mutex = manager(&server.url()).reentrant_mutex("n").lease(LONG);
    // Without renewal, because the renewal's connection would be counted too.
    let mutex = mutex.renew(false);
    let outer = mutex.lock().expect("it is free");
    let before = raw.commands();
    for _ in 0..100 {
        let inner = mutex.lock().expect("this thread holds it");
        let tried = mutex
            .try_lock()
            .expect("this thread holds it")
            .expect("again");
        let waited = mutex
            .try_lock_for(PATIENCE)
            .expect("this thread holds it")
            .expect("again");
        mutex.with(PATIENCE, |_| ()).expect("this thread holds it");
        drop(inner);
        tried.release().expect("it is held");
        waited.release().expect("it is held");
    }
    assert_eq!(raw.commands(), before);
    outer.release().expect("it is held");
    assert!(raw.commands() > before, "the last one does");
}

#[test]
fn locking_again_changes_no_lease() {
    let raw = shared();
    let name = name("same-lease");
    let mutex = manager(raw.url()).reentrant_mutex(&name).renew(false);
    let outer = mutex.clone().lease(secs(60)).lock().expect("it is free");
    for (lease, renew) in [(ms(10), false), (ms(10), true), (LONG, true)] {
        let inner = mutex.clone().lease(lease).renew(renew);
        let left = outer.remaining();
        let inner = inner.lock().expect("this thread holds it");
        assert!(inner.remaining() <= left && inner.remaining() > secs(20));
        drop(inner);
        let ttl = raw.ttl(&name).expect("it expires");
        assert!(ttl <= secs(60) && ttl > secs(20), "{ttl:?}");
    }
    assert_eq!(outer.state(), LeaseState::Held);
}

#[test]
fn the_last_guard_releases_whichever_it_is() {
    let raw = shared();
    let mutex = manager(raw.url());
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let name = name("order");
        let mutex = mutex.reentrant_mutex(&name);
        let mut guards = [(); 3].map(|()| Some(mutex.lock().expect("it is free, or ours")));
        for index in order {
            assert!(raw.exists(&name), "{order:?}");
            drop(guards[index].take());
        }
        assert!(!raw.exists(&name), "{order:?}");
    }
}

#[test]
fn other_threads_wait_for_the_last_guard() {
    let raw = shared();
    let name = name("others");
    let mutex = manager(raw.url()).reentrant_mutex(&name);
    let elsewhere = manager(raw.url()).reentrant_mutex(&name);
    let outer = mutex.lock().expect("it is free");
    let inner = mutex.lock().expect("this thread holds it");
    let fence = outer.fence();
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| mutex.try_lock().map(|guard| guard.is_none()));
        assert!(tried.join().expect("no panic").expect("Redis replies"));
        let next = asleep(scope, || mutex.lock().map(|guard| guard.fence()));
        let other = scope.spawn(|| elsewhere.lock().map(|guard| guard.fence()));
        raw.wait_until_queued(&name, 1);
        drop(outer);
        assert!(!next.is_finished() && !other.is_finished());
        assert_eq!(raw.queue(&name).len(), 1);
        drop(inner);
        assert!(next.join().expect("no panic").expect("it gets its turn") > fence);
        assert!(other.join().expect("no panic").expect("it gets its turn") > fence);
    });
}

#[test]
fn other_processes_wait_for_the_last_guard() {
    let raw = shared();
    let name = name("processes");
    let mutex = manager(raw.url()).reentrant_mutex(&name);
    let mut child = Child::start(raw.url(), "");
    let outer = mutex.lock().expect("it is free");
    let inner = mutex.lock().expect("this thread holds it");
    let fence = inner.fence();
    child.say(format_args!("lock {name}"));
    raw.wait_until_queued(&name, 1);
    drop(inner);
    assert_eq!(raw.queue(&name).len(), 1);
    drop(outer);
    assert!(child.locked() > fence);
    assert!(mutex.try_lock().expect("Redis replies").is_none());
}

#[test]
fn a_plain_mutex_and_another_manager_are_kept_out() {
    let locks = manager(shared().url());
    let name = name("else");
    let guard = locks.reentrant_mutex(&name).lock().expect("it is free");
    assert!(
        locks
            .mutex(&name)
            .try_lock()
            .expect("Redis replies")
            .is_none()
    );
    let other = manager(shared().url()).reentrant_mutex(&name);
    assert!(other.try_lock().expect("Redis replies").is_none());
    // Another handle of the same manager is the same lock.
    let again = locks.clone().reentrant_mutex(&name).try_lock();
    assert_eq!(
        again.expect("this thread holds it").expect("again").fence(),
        guard.fence()
    );
    drop(guard);
    let plain = locks.mutex(&name).lock().expect("it is free");
    let mutex = locks.reentrant_mutex(&name);
    assert!(mutex.try_lock().expect("Redis replies").is_none());
    drop(plain);
    assert!(mutex.try_lock().expect("Redis replies").is_some());
}

#[test]
fn each_name_has_its_own_lock() {
    let raw = shared();
    let locks = manager(raw.url());
    let (a, b) = (name("a"), name("b"));
    let (first, second) = (locks.reentrant_mutex(&a), locks.reentrant_mutex(&b));
    let (guard, other) = (
        first.lock().expect("it is free"),
        second.lock().expect("free"),
    );
    assert_ne!(guard.owner(), other.owner());
    let again = first.lock().expect("this thread holds it");
    drop(guard);
    drop(other);
    assert!(raw.exists(&a) && !raw.exists(&b));
    drop(again);
    assert!(!raw.exists(&a));
}

#[test]
fn a_lost_lock_is_refused_until_all_its_guards_are_dropped() {
    let raw = shared();
    let name = name("lost");
    let mutex = manager(raw.url()).reentrant_mutex(&name);
    let outer = mutex
        .clone()
        .lease(secs(2))
        .renew(false)
        .lock()
        .expect("it is free");
    let inner = mutex.lock().expect("this thread holds it");
    let (owner, fence) = (outer.owner().to_owned(), outer.fence());
    wait_until("it is lost", || inner.state() == LeaseState::Lost);
    for _ in 0..2 {
        assert_eq!(lost(mutex.lock()).fence, fence);
        lost(mutex.try_lock());
        lost(mutex.try_lock_for(secs(1)));
        lost(mutex.with(secs(1), |_| -> () { panic!("it never runs") }));
    }
    // Other processes do not wait for the guards that are left here.
    let other = manager(raw.url()).reentrant_mutex(&name);
    drop(other.lock().expect("it is free"));
    lost(inner.release());
    lost(mutex.lock());
    lost(outer.release());
    let anew = mutex.lock().expect("it is free");
    assert_ne!(anew.owner(), owner);
    assert!(anew.fence() > fence);
    anew.release().expect("it is held");
}

#[test]
fn a_loss_notifies_every_guard() {
    let raw = shared();
    let name = name("told");
    let mutex = manager(raw.url()).reentrant_mutex(&name);
    let ran = mutex.with(PATIENCE, |outer| {
        let inner = mutex.lock().expect("this thread holds it");
        let told = [outer.on_lost(), inner.on_lost()];
        let () = raw.ask(&["DEL", &name]);
        inner.extend(LONG).expect_err("it is gone");
        for told in told {
            told.recv_timeout(PATIENCE).expect("notified");
        }
        lost(inner.release());
    });
    lost(ran);
}

/// Locks `depth` times, each time under the guard before. Returns the number of guards.
fn down(mutex: &ReentrantMutex, depth: u32, fence: Option<u64>) -> u32 {
    let below = mutex.with(secs(10), |lease| {
        assert!(fence.is_none_or(|fence| fence == lease.fence()));
        match depth {
            0 => 0,
            _ => down(mutex, depth - 1, Some(lease.fence())),
        }
    });
    below.expect("it is free, or ours") + 1
}

#[test]
fn closures_nest() {
    let raw = shared();
    let name = name("nest");
    let mutex = manager(raw.url()).reentrant_mutex(&name);
    assert_eq!(down(&mutex, 20, None), 21);
    assert!(!raw.exists(&name));
    // Closures nest with guards too.
    let guard = mutex.lock().expect("it is free");
    mutex.with(PATIENCE, |_| ()).expect("this thread holds it");
    assert!(raw.exists(&name));
    mutex
        .with(PATIENCE, |lease| {
            let inner = mutex.lock().expect("this thread holds it");
            drop(guard);
            assert_eq!(inner.fence(), lease.fence());
            assert!(raw.exists(&name));
        })
        .expect("this thread holds it");
    assert!(!raw.exists(&name));
}

#[test]
fn a_closure_that_panics_ends_its_guard_alone() {
    let raw = shared();
    let name = name("panics");
    let mutex = manager(raw.url()).reentrant_mutex(&name);
    let outer = mutex.lock().expect("it is free");
    let inner = std::panic::AssertUnwindSafe(|| mutex.with(PATIENCE, |_| -> () { panic!("so") }));
    assert!(std::panic::catch_unwind(inner).is_err());
    assert!(raw.exists(&name));
    outer.release().expect("it was held until now");
    assert!(!raw.exists(&name));
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

#[test]
fn a_guard_that_is_forgotten_keeps_the_lock() {
    let server = Server::start();
    let raw = server.raw();
    let locks = manager(&server.url());
    let mutex = locks.reentrant_mutex("n");
    let fence = task({
        let mutex = mutex.clone();
        move || {
            let guard = mutex.lock().expect("it is free");
            let fence = guard.fence();
            mem::forget(guard);
            // The thread of the forgotten guard can still lock again.
            for _ in 0..3 {
                let again = mutex.lock().expect("this thread holds it");
                assert_eq!(again.fence(), fence);
                again.release().expect("it is held");
            }
            fence
        }
    });
    fence.end();
    assert!(raw.exists("n"));
    assert!(mutex.try_lock().expect("Redis replies").is_none());
    let elsewhere = manager(&server.url()).reentrant_mutex("n");
    assert!(elsewhere.try_lock().expect("Redis replies").is_none());
}

#[test]
fn a_closed_manager_refuses_to_lock_again() {
    let raw = shared();
    let name = name("closed");
    let locks = manager(raw.url());
    let mutex = locks.reentrant_mutex(&name);
    let guard = mutex.lock().expect("it is free");
    assert!(locks.close(secs(1)));
    assert!(matches!(mutex.lock(), Err(Error::Closed)));
    guard.release().expect("it was held until now");
    assert!(!raw.exists(&name));
}
