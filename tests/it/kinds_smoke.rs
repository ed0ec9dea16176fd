//! Each kind's first test.

use std::time::Duration;

use leasehold::{Admission, Error, LeaseState};

use crate::support::{locking, manager, ms, name, secs, shared, task, task_asleep};

#[test]
fn reentrant() {
    let locks = manager(shared().url());
    let name = name("re");
    let mutex = locks.reentrant_mutex(&name);
    let outer = mutex.lock().expect("free");
    let inner = mutex.lock().expect("again");
    let third = mutex.try_lock().expect("again").expect("again");
    assert_eq!(inner.fence(), outer.fence());
    assert!(locks.try_lock(&name).expect("asked").is_none());
    drop(outer);
    drop(inner);
    assert!(locks.try_lock(&name).expect("asked").is_none());
    third.release().expect("held");
    assert!(locks.try_lock(&name).expect("asked").is_some());
}

#[test]
fn rwlock() {
    let (one, other) = (manager(shared().url()), manager(shared().url()));
    let name = name("rw");
    let (one, other) = (one.rwlock(&name), other.rwlock(&name));
    let w = one.write().expect("free");
    let fence = w.fence();
    assert!(other.try_read().expect("asked").is_none());
    assert!(one.try_read().expect("asked").is_none());
    assert!(other.try_write().expect("asked").is_none());
    let reader = {
        let other = other.clone();
        task_asleep(move || other.read())
    };
    let r = w.downgrade().expect("held");
    let r2 = reader.end().expect("readers go in");
    assert_eq!((r.fence(), r2.fence()), (fence, fence));
    let r3 = one.read().expect("free");
    let writer = {
        let other = other.clone();
        task_asleep(move || other.write())
    };
    shared().wait_until_queued(&name, 1);
    drop((r, r2, r3));
    let w = writer.end().expect("free");
    assert!(w.fence() > fence);
    assert_eq!(w.state(), LeaseState::Held);
    w.release().expect("held");
    println!("{:?}", shared().ttl(&name));
    assert!(!shared().exists(&name));
}

#[test]
fn semaphore() {
    let (one, other) = (manager(shared().url()), manager(shared().url()));
    let name = name("sem");
    let (a, b) = (one.semaphore(&name, 3), other.semaphore(&name, 3));
    let p = a.acquire_many(2).expect("free");
    let q = b.acquire().expect("free");
    assert!(b.try_acquire().expect("asked").is_none());
    assert!(a.try_acquire().expect("asked").is_none());
    let wrong = other.semaphore(&name, 5).try_acquire();
    assert!(
        matches!(
            wrong,
            Err(Error::PermitsDiffer {
                asked: 5,
                stored: 3,
                ..
            })
        ),
        "{wrong:?}"
    );
    let wrong = other.rwlock(&name).try_read();
    assert!(matches!(wrong, Err(Error::WrongType { .. })), "{wrong:?}");
    let big = {
        let b = b.clone();
        task_asleep(move || b.acquire_many(3))
    };
    shared().wait_until_queued(&name, 1);
    drop(q);
    assert!(
        a.try_acquire().expect("asked").is_none(),
        "past one who waits"
    );
    assert_eq!(p.count(), 2);
    p.release().expect("held");
    let big = big.end().expect("free");
    assert_eq!(big.count(), 3);
    drop(big);
    assert!(!shared().exists(&name));
}

#[test]
fn multi() {
    let (one, other) = (manager(shared().url()), manager(shared().url()));
    let (a, b) = (name("a"), name("b"));
    let set = one.multi([&b, &a]);
    let guard = set.lock().expect("free");
    assert_eq!(guard.leases().len(), 2);
    assert!(other.try_lock(&a).expect("asked").is_none());
    let waiter = locking(&other.mutex(&a));
    shared().wait_until_queued(&a, 1);
    guard.release().expect("held");
    let held = waiter.end().expect("free");
    let waiting = {
        let set = other.multi([&a, &b]);
        task_asleep(move || set.lock())
    };
    shared().wait_until_queued(&a, 1);
    assert!(
        one.try_lock(&b).expect("asked").is_some(),
        "none of them is held"
    );
    held.release().expect("held");
    let all = waiting.end().expect("free");
    all.check().expect("held");
    drop(all);
    assert!(!shared().exists(&a) && !shared().exists(&b));
}

#[test]
fn rate() {
    let locks = manager(shared().url());
    let name = name("rate");
    let limiter = locks.rate_limiter(&name, 2, ms(500));
    limiter.acquire().expect("asked");
    assert_eq!(limiter.try_acquire().expect("asked"), Admission::Admitted);
    let Admission::RetryAfter(wait) = limiter.try_acquire().expect("asked") else {
        panic!("a third");
    };
    assert!(wait <= ms(500) && wait > Duration::ZERO);
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let limiter = limiter.clone();
            task(move || limiter.acquire())
        })
        .collect();
    for waiter in waiters {
        waiter.end().expect("asked");
    }
    assert_eq!(
        limiter.try_acquire_for(secs(5)).expect("asked"),
        Admission::Admitted
    );
}
