//! Behaviour of the mutex alone, and settings that are tested with one kind only: the prefix and the database. The
//! behaviour that all kinds share is tested in `contract/`.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use leasehold::{Error, LostCause};

use crate::support::{
    PATIENCE, Server, Task, build, fence_of, locking, lost, manager, ms, name, patient, secs,
    shared, task, task_asleep, wait_until,
};

#[test]
fn a_guard_may_end_on_another_thread() {
    let redis = shared();
    let name = name("moved");
    let guard = manager(redis.url()).lock(&name).expect("it is free");
    thread::spawn(move || guard.release())
        .join()
        .expect("it does not panic")
        .expect("it was held until now");
    assert!(!redis.exists(&name));
}

#[test]
fn threads_are_served_in_the_order_in_which_they_came() {
    let mutex = manager(shared().url()).mutex(name("order"));
    let (sender, served) = channel();
    let guard = mutex.lock().expect("it is free");
    for number in 0..10 {
        let (mutex, sender) = (mutex.clone(), sender.clone());
        task_asleep(move || {
            let guard = mutex.lock().expect("it becomes free");
            sender.send(number).expect("it is received");
            drop(guard);
        });
    }
    assert!(served.try_recv().is_err());
    drop(guard);
    for number in 0..10 {
        assert_eq!(served.recv_timeout(PATIENCE), Ok(number));
    }
}

#[test]
fn a_try_for_a_lock_of_this_process_sends_no_request() {
    let server = Server::start();
    let redis = server.raw();
    let locks = manager(&server.url());
    // A renewal would send commands too.
    let mine = locks.mutex("mine").renew(false);
    let guard = mine.lock().expect("it is free");
    let before = redis.commands();
    for _ in 0..10 {
        assert!(
            locks
                .try_lock("mine")
                .expect("the process knows that it holds the lock")
                .is_none()
        );
    }
    assert_eq!(redis.commands(), before);
    // A try for another name is counted.
    assert!(locks.try_lock("other").expect("Redis replies").is_some());
    assert!(redis.commands() > before);
    drop(guard);
}

#[test]
fn a_wait_that_timed_out_leaves_the_queue() {
    let redis = shared();
    let name = name("timed-out");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let guard = one.lock(&name).expect("it is free");
    // Another waiter stays, so that the queue does not vanish as a whole.
    let steady = locking(&manager(redis.url()).mutex(&name));
    redis.wait_until_queued(&name, 1);
    let waits = [(); 3].map(|()| {
        let (other, name) = (other.clone(), name.clone());
        task(move || other.try_lock_for(name, secs(3)))
    });
    redis.wait_until_queued(&name, 2);
    for wait in waits {
        // On a busy machine a wait may end with an error.
        assert!(!matches!(wait.end(), Ok(Some(_))));
    }
    redis.wait_until_queued(&name, 1);
    guard.release().expect("it was held until now");
    drop(steady.end().expect("it becomes free"));
    wait_until("it is free again", || !redis.exists(&name));
    assert!(other.try_lock(&name).expect("Redis replies").is_some());
}

/// `with_lock` of the manager is `with` of the mutex, whose tests are in `contract/closures.rs`.
#[test]
fn with_lock_runs_a_closure_under_the_mutex_of_that_name() {
    let redis = shared();
    let name = name("with-lock");
    let locks = manager(redis.url());
    let owner = locks
        .with_lock(&name, PATIENCE, |lease| {
            assert_eq!(lease.name(), name);
            lease.owner().to_owned()
        })
        .expect("it is free");
    assert!(!redis.exists(&name));
    let guard = locks.lock(&name).expect("it is free");
    assert_ne!(guard.owner(), owner);
    let timeout = locks.with_lock(&name, ms(1), |_| panic!("it ran without the lock"));
    assert!(
        matches!(timeout, Err::<(), _>(Error::Timeout { .. })),
        "{timeout:?}"
    );
    let refused = locks.with_lock("", secs(1), |_| ());
    assert!(matches!(refused, Err(Error::InvalidName { .. })));
}

#[test]
fn max_hold_hands_the_lock_to_the_next_thread() {
    let name = name("max-hold-threads");
    let locks = manager(shared().url());
    let limited = locks.mutex(&name).max_hold(Some(ms(300)));
    let guard = limited.lock().expect("it is free");
    let next = limited.try_lock_for(secs(15)).expect("Redis replies");
    let next = next.expect("it is handed on");
    assert_eq!(lost(guard.check()).cause, LostCause::MaxHold);
    assert!(next.fence() > guard.fence());
    drop(guard);
    drop(next);
}

#[test]
fn a_renewal_does_not_lower_what_extend_has_raised() {
    let server = Server::start();
    let redis = server.raw();
    let locks = manager(&server.url());
    let guard = locks.mutex("n").lease(secs(6)).lock().expect("it is free");
    guard.extend(secs(60)).expect("it is held");
    // Only renewals run scripts on this server now.
    let scripts = || redis.stats().get("evalsha").copied().unwrap_or(0);
    let before = scripts();
    wait_until("it is renewed twice", || scripts() >= before + 2);
    assert!(guard.remaining() > secs(30));
    assert!(redis.ttl("n").expect("it has one") > secs(30));
    drop(guard);
}

#[test]
fn close_wakes_sleeping_waiters() {
    let redis = shared();
    let name = name("close-wakes");
    let _guard = manager(redis.url()).lock(&name).expect("it is free");
    let mut prompt = 0;
    for _ in 0..3 {
        let locks = manager(redis.url());
        let waiter = locking(&locks.mutex(&name));
        redis.wait_until_queued(&name, 1);
        // The next poll is most of a second away.
        redis.wait_until_polled(&name, &redis.queue(&name)[0]);
        let begun = Instant::now();
        assert!(locks.close(PATIENCE), "nothing is left to send");
        assert!(matches!(waiter.end(), Err(Error::Closed)));
        prompt += usize::from(begun.elapsed() < ms(600));
        redis.wait_until_queued(&name, 0);
    }
    // A busy machine may be late once. A waiter that `close` does not wake is late each time.
    assert!(prompt >= 2, "only {prompt} were woken");
}

#[test]
fn only_fences_stay_in_redis_and_expire() {
    let server = Server::start();
    let redis = server.raw();
    let (one, other) = (manager(&server.url()), manager(&server.url()));
    let tasks: Vec<_> = [&one, &other]
        .into_iter()
        .cycle()
        .take(6)
        .map(|locks| {
            let locks = locks.clone();
            task(move || {
                for round in 0..20 {
                    let name = format!("n{}", round % 3);
                    drop(locks.lock(&name).expect("it becomes free"));
                    drop(locks.try_lock(&name).expect("Redis replies"));
                    // On a busy machine a short wait may end with an error, because its reply is late.
                    drop(locks.try_lock_for(&name, ms(round % 4)));
                }
            })
        })
        .collect();
    tasks.into_iter().for_each(Task::end);
    drop(one.mutex("{tag}").max_hold(Some(ms(1))).lock());
    // The renewal thread takes waiters that gave up out of the queues.
    let unexpected = || -> Vec<String> {
        let keys: Vec<String> = redis.ask(&["KEYS", "*"]);
        keys.into_iter()
            .filter(|key| !key.ends_with(":lh:fence") && key != "{tag}:lht:fence")
            .collect()
    };
    wait_until("nothing but fences is left", || unexpected().is_empty());
    let keys: Vec<String> = redis.ask(&["KEYS", "*"]);
    assert_eq!(keys.len(), 4, "{keys:?}");
    for key in keys {
        let ttl = redis.ttl(&key).expect("it does not stay for ever");
        assert!(ttl < secs(11 * 60), "{key}: {ttl:?}");
    }
}

#[test]
fn the_prefix_is_part_of_the_key() {
    let redis = shared();
    let name = name("prefix");
    let key = format!("lock:{name}");
    let prefixed = build(patient(redis.url()).prefix("lock:"));
    let guard = prefixed.lock(&name).expect("it is free");
    assert_eq!(guard.name(), name);
    assert_eq!(redis.get(&key).as_deref(), Some(guard.owner()));
    assert!(!redis.exists(&name));
    assert!(redis.exists(&fence_of(&key)));
    // A manager without a prefix reaches the same key by its full name.
    let plain = manager(redis.url());
    assert!(plain.try_lock(&key).expect("Redis replies").is_none());
    assert!(plain.try_lock(&name).expect("Redis replies").is_some());
}

#[test]
fn locks_of_different_databases_are_different_locks() {
    let server = Server::start();
    let locks = build(patient(&server.url()).database(3));
    let by_url = manager(&format!("{}3", server.url()));
    let elsewhere = manager(&server.url());
    let _guard = locks.lock("n").expect("it is free");
    assert!(by_url.try_lock("n").expect("Redis replies").is_none());
    assert!(elsewhere.try_lock("n").expect("Redis replies").is_some());
}
