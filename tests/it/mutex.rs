//! What a mutex is to the threads of one process, and to another manager, which is as good as another process.

use std::iter;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Error, LeaseState, LostCause, Mutex};

use crate::support::{
    PATIENCE, SLACK, Server, Task, add, added, build, fence_of, locking, locking_asleep, lost,
    manager, ms, name, patient, secs, shared, task, task_asleep, unfit_names, wait_in_vain,
    wait_until,
};

#[test]
fn smoke() {
    let redis = shared();
    let locks = manager(redis.url());
    let name = name("smoke");
    let guard = locks.lock(&name).expect("it is free");
    assert_eq!(guard.name(), name);
    assert_eq!(redis.get(&name).as_deref(), Some(guard.owner()));
    assert!(guard.fence() > 0);
    assert_eq!(guard.state(), LeaseState::Held);
    assert!(guard.check().is_ok());
    assert!(guard.remaining() > secs(15) && guard.remaining() < secs(30));
    assert!(redis.ttl(&name).expect("it has one") > secs(15));
    guard.release().expect("it was held all the while");
    assert!(!redis.exists(&name));
}

/// Read, then written, with a chance for others in between: what a mutex that excludes nobody would lose.
#[derive(Clone, Default)]
struct PlainCounter(Arc<AtomicU32>);

impl PlainCounter {
    fn add(&self) {
        let value = self.0.load(Ordering::Relaxed);
        thread::yield_now();
        self.0.store(value + 1, Ordering::Relaxed);
    }

    /// On a thread, adds one so many times under a lock.
    fn add_under(&self, mutex: Mutex, times: u32) -> Task<()> {
        let counter = self.clone();
        task(move || {
            for _ in 0..times {
                let guard = mutex.lock().expect("it comes free");
                counter.add();
                drop(guard);
            }
        })
    }

    fn value(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn excludes_between_threads() {
    let name = name("threads");
    let counter = PlainCounter::default();
    // Two managers, so that the lock goes both ways: in memory and over Redis.
    let (one, other) = (manager(shared().url()), manager(shared().url()));
    let tasks: Vec<_> = [&one, &other]
        .into_iter()
        .cycle()
        .take(8)
        .map(|locks| counter.add_under(locks.mutex(&name), 200))
        .collect();
    tasks.into_iter().for_each(Task::end);
    assert_eq!(counter.value(), 1_600);
}

#[test]
fn a_thousand_threads_lose_no_increment() {
    let counter = PlainCounter::default();
    let mutex = manager(shared().url()).mutex(name("thousand"));
    let tasks: Vec<_> = (0..1_000)
        .map(|_| counter.add_under(mutex.clone(), 1))
        .collect();
    tasks.into_iter().for_each(Task::end);
    assert_eq!(counter.value(), 1_000);
}

#[test]
fn fences_rise_from_guard_to_guard() {
    let redis = shared();
    let name = name("fences");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let tasks: Vec<_> = [&one, &other]
        .into_iter()
        .cycle()
        .take(6)
        .map(|locks| {
            let (locks, name) = (locks.clone(), name.clone());
            task(move || add(redis, &locks, &name, 40))
        })
        .collect();
    tasks.into_iter().for_each(Task::end);
    let (sum, fences) = added(redis, &name);
    assert_eq!((sum, fences.len()), (240, 240));
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[test]
fn released_on_drop() {
    let redis = shared();
    let name = name("drop");
    let guard = manager(redis.url()).lock(&name).expect("it is free");
    assert!(redis.exists(&name));
    drop(guard);
    assert!(!redis.exists(&name));
}

#[test]
fn released_on_panic() {
    let redis = shared();
    let name = name("panic");
    let locks = manager(redis.url());
    let panicked = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        let _guard = locks.lock(&name).expect("it is free");
        assert!(redis.exists(&name));
        // Without the message of a panic, which would look like a failure.
        panic::resume_unwind(Box::new(()));
    }));
    assert!(panicked.is_err());
    assert!(!redis.exists(&name));
    let next = locks.try_lock(&name).expect("the server is there");
    assert!(next.is_some(), "there is no poisoning");
}

#[test]
fn a_guard_may_end_on_another_thread() {
    let redis = shared();
    let name = name("moved");
    let guard = manager(redis.url()).lock(&name).expect("it is free");
    thread::spawn(move || guard.release())
        .join()
        .expect("it does not panic")
        .expect("it was held all the while");
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
            let guard = mutex.lock().expect("it comes free");
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
fn a_try_is_none_while_another_process_holds_the_lock() {
    let name = name("try");
    let (one, other) = (manager(shared().url()), manager(shared().url()));
    let guard = one.lock(&name).expect("it is free");
    assert!(other.try_lock(&name).expect("it is asked").is_none());
    drop(guard);
    assert!(other.try_lock(&name).expect("it is asked").is_some());
    assert!(shared().queue(&name).is_empty(), "a try queued");
}

#[test]
fn a_try_of_what_this_process_holds_asks_nobody() {
    let server = Server::start();
    let redis = server.raw();
    let locks = manager(&server.url());
    // Without renewal, whose connection would be counted too.
    let mine = locks.mutex("mine").renew(false);
    let guard = mine.lock().expect("it is free");
    let before = redis.commands();
    for _ in 0..10 {
        assert!(locks.try_lock("mine").expect("nobody is asked").is_none());
    }
    assert_eq!(redis.commands(), before);
    // That it counts at all: another name has to be asked for.
    assert!(locks.try_lock("other").expect("it is asked").is_some());
    assert!(redis.commands() > before);
    drop(guard);
}

#[test]
fn a_wait_is_none_at_its_deadline_and_not_before() {
    let name = name("deadline");
    let (one, other) = (manager(shared().url()), manager(shared().url()));
    let _guard = one.lock(&name).expect("it is free");
    // Held by another process, and held by this one.
    for locks in [&one, &other] {
        let wait = ms(600);
        let mut begun = Instant::now();
        wait_in_vain(|| {
            begun = Instant::now();
            locks.try_lock_for(&name, wait)
        });
        assert!(begun.elapsed() >= wait);
        assert!(begun.elapsed() < wait + SLACK);

        let mut until = Instant::now();
        wait_in_vain(|| {
            until = Instant::now() + wait;
            locks.mutex(&name).try_lock_until(until)
        });
        assert!(Instant::now() >= until);
        assert!(Instant::now() < until + SLACK);

        let past = locks.mutex(&name).try_lock_until(begun);
        assert!(past.expect("it is asked").is_none());
    }
}

#[test]
fn a_wait_that_timed_out_leaves_nothing_behind() {
    let redis = shared();
    let name = name("timed-out");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let guard = one.lock(&name).expect("it is free");
    // Somebody who goes on waiting, so that the queue does not go by itself.
    let steady = locking(&manager(redis.url()).mutex(&name));
    redis.wait_until_queued(&name, 1);
    let waits = [(); 3].map(|()| {
        let (other, name) = (other.clone(), name.clone());
        task(move || other.try_lock_for(name, secs(3)))
    });
    redis.wait_until_queued(&name, 2);
    for wait in waits {
        // That they give up is what matters, and not what they are told.
        assert!(!matches!(wait.end(), Ok(Some(_))));
    }
    redis.wait_until_queued(&name, 1);
    guard.release().expect("it was held all the while");
    drop(steady.end().expect("it comes free"));
    wait_until("it is free again", || !redis.exists(&name));
    assert!(other.try_lock(&name).expect("it is asked").is_some());
}

#[test]
fn with_lock_returns_what_the_closure_returns() {
    let redis = shared();
    let name = name("with");
    let locks = manager(redis.url());
    let owner = locks
        .with_lock(&name, secs(1), |lease| {
            assert_eq!(redis.get(&name).as_deref(), Some(lease.owner()));
            lease.owner().to_owned()
        })
        .expect("it is free");
    assert!(owner.starts_with("lh1:"));
    assert!(!redis.exists(&name));
    // The closure's own error nests: the lock's part went well.
    let nested: Result<Result<(), &str>, Error> =
        locks.with_lock(&name, secs(1), |_| Err("its own"));
    assert_eq!(nested.expect("it is free"), Err("its own"));
    assert!(!redis.exists(&name));
}

#[test]
fn with_lock_times_out_and_names_the_holder() {
    let name = name("with-timeout");
    let (one, other) = (manager(shared().url()), manager(shared().url()));
    let guard = one.lock(&name).expect("it is free");
    for wait in [Duration::ZERO, ms(600)] {
        let try_it = || other.with_lock(&name, wait, |_| panic!("it ran without the lock"));
        // On a busy machine the last request may go unanswered, and then it is not known to be held.
        let timeout = iter::repeat_with(try_it)
            .take(10)
            .find(|result| !matches!(result, Err(Error::Unavailable { .. })))
            .expect("the server answers");
        match timeout {
            Err(Error::Timeout {
                name: which,
                waited,
                holder,
            }) => {
                assert_eq!(*which, *name);
                assert!(waited >= wait);
                assert_eq!(holder.as_deref(), Some(guard.owner()));
            }
            other => panic!("no timeout: {other:?}"),
        }
    }
}

#[test]
fn with_lock_says_that_the_lease_ended_inside() {
    let name = name("with-lost");
    let locks = manager(shared().url());
    let mut ran = false;
    let result = locks
        .mutex(&name)
        .lease(secs(2))
        .renew(false)
        .with(PATIENCE, |lease| {
            wait_until("the lease is over", || lease.state() == LeaseState::Lost);
            ran = true;
        });
    let lost = lost(result);
    assert!(ran);
    assert_eq!((&*lost.name, lost.cause), (&*name, LostCause::Expired));
}

#[test]
fn max_hold_releases_for_the_others() {
    let redis = shared();
    let name = name("max-hold");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let limit = ms(300);
    let begun = Instant::now();
    let guard = one
        .mutex(&name)
        .max_hold(Some(limit))
        .lock()
        .expect("it is free");
    let losses = guard.on_lost();
    // The lease of 30 s is renewed, so it is not its end that the other waits for.
    let next = other
        .try_lock_for(&name, secs(15))
        .expect("it is asked")
        .expect("it is released");
    assert!(begun.elapsed() >= limit);
    assert!(next.fence() > guard.fence());
    let loss = losses.recv_timeout(PATIENCE).expect("it is told");
    assert_eq!(
        (loss.cause, loss.fence),
        (LostCause::MaxHold, guard.fence())
    );
    assert_eq!(guard.state(), LeaseState::Lost);
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(lost(guard.check()), loss);
    assert_eq!(lost(guard.extend(secs(1))), loss);
    assert_eq!(lost(guard.release()), loss);
    assert_eq!(redis.get(&name).as_deref(), Some(next.owner()));
    assert_eq!(next.state(), LeaseState::Held);
}

#[test]
fn max_hold_passes_the_lock_to_the_next_thread() {
    let name = name("max-hold-threads");
    let locks = manager(shared().url());
    let limited = locks.mutex(&name).max_hold(Some(ms(300)));
    let guard = limited.lock().expect("it is free");
    let next = limited.try_lock_for(secs(15)).expect("it is asked");
    let next = next.expect("it is passed on");
    assert_eq!(lost(guard.check()).cause, LostCause::MaxHold);
    assert!(next.fence() > guard.fence());
    drop(guard);
    // A guard that ends within the limit is none of its business.
    let held_to_the_end = locks.mutex(&name).max_hold(Some(PATIENCE));
    drop(next);
    let guard = held_to_the_end.lock().expect("it is free");
    guard.release().expect("it was held all the while");
}

#[test]
fn extend_lengthens_and_never_shortens() {
    let redis = shared();
    let name = name("extend");
    let lease = secs(3);
    let locks = manager(redis.url());
    let guard = locks.mutex(&name).lease(lease).lock().expect("it is free");
    guard.extend(secs(60)).expect("it is held");
    // Time passes between any two lines; it is given plenty, and yet far from what would be wrong.
    assert!(guard.remaining() > secs(30) && guard.remaining() <= secs(62));
    assert!(redis.ttl(&name).expect("it has one") > secs(30));
    guard.extend(ms(1)).expect("it is held");
    assert!(guard.remaining() > secs(30));
    assert!(redis.ttl(&name).expect("it has one") > secs(30));
    let too_long = guard.extend(secs(25 * 60 * 60));
    assert!(matches!(too_long, Err(Error::Config { .. })));
    guard.release().expect("it was held all the while");
}

#[test]
fn a_renewal_does_not_lower_what_extend_has_raised() {
    let server = Server::start();
    let redis = server.raw();
    let locks = manager(&server.url());
    let guard = locks.mutex("n").lease(secs(6)).lock().expect("it is free");
    guard.extend(secs(60)).expect("it is held");
    // Nothing else runs scripts on this server now.
    let scripts = || redis.stats().get("evalsha").copied().unwrap_or(0);
    let before = scripts();
    wait_until("it is renewed twice", || scripts() >= before + 2);
    assert!(guard.remaining() > secs(30));
    assert!(redis.ttl("n").expect("it has one") > secs(30));
    drop(guard);
}

#[test]
fn on_lost_disconnects_at_a_healthy_end() {
    let locks = manager(shared().url());
    let guard = locks.lock(name("healthy")).expect("it is free");
    let (first, second) = (guard.on_lost(), guard.on_lost());
    assert!(first.is_empty());
    drop(guard);
    // An error without a message before it: disconnected.
    assert!(first.recv_timeout(PATIENCE).is_err_and(|e| !e.is_timeout()));
    assert!(second.recv().is_err());
}

#[test]
fn close_ends_waits_and_leaves_guards() {
    let redis = shared();
    let (name, mine) = (name("close"), name("close-mine"));
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let theirs = one.lock(&name).expect("it is free");
    let guard = other
        .mutex(&mine)
        .lease(secs(9))
        .lock()
        .expect("it is free");
    // One that asks Redis, one that waits behind it, one that waits for another thread's guard.
    let asking = locking(&other.mutex(&name));
    redis.wait_until_queued(&name, 1);
    let behind = locking_asleep(&other.mutex(&name));
    let behind_ours = locking_asleep(&other.mutex(&mine).lease(secs(9)));
    assert!(other.clone().close(PATIENCE), "nothing is left to send");
    for wait in [asking, behind, behind_ours] {
        let result = wait.end();
        assert!(matches!(result, Err(Error::Closed)), "{result:?}");
    }
    redis.wait_until_queued(&name, 0);
    assert!(matches!(other.lock(&name), Err(Error::Closed)));
    assert!(matches!(other.try_lock(&mine), Err(Error::Closed)));
    let with = other.with_lock(&mine, secs(1), |_| ());
    assert!(matches!(with, Err(Error::Closed)));
    redis.wait_until_renewed(&mine, 2);
    guard.check().expect("it is renewed");
    guard.release().expect("it was held all the while");
    assert!(!redis.exists(&mine));
    // Other managers are not concerned.
    theirs.check().expect("it is held");
    theirs.release().expect("it was held all the while");
}

#[test]
fn close_wakes_those_who_sleep() {
    let redis = shared();
    let name = name("close-wakes");
    let _guard = manager(redis.url()).lock(&name).expect("it is free");
    let mut prompt = 0;
    for _ in 0..3 {
        let locks = manager(redis.url());
        let waiter = locking(&locks.mutex(&name));
        redis.wait_until_queued(&name, 1);
        // It would not look up by itself before most of a second has passed.
        redis.wait_until_polled(&name, &redis.queue(&name)[0]);
        let begun = Instant::now();
        assert!(locks.close(PATIENCE), "nothing is left to send");
        assert!(matches!(waiter.end(), Err(Error::Closed)));
        prompt += usize::from(begun.elapsed() < ms(600));
        redis.wait_until_queued(&name, 0);
    }
    // A busy machine may be late once; a sleeper that is not woken is late each time.
    assert!(prompt >= 2, "only {prompt} were woken");
}

#[test]
fn only_fences_are_left_behind_and_not_for_ever() {
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
                    drop(locks.lock(&name).expect("it comes free"));
                    drop(locks.try_lock(&name).expect("it is asked"));
                    // What comes of it is not the point: so short a wait may be over before any answer.
                    drop(locks.try_lock_for(&name, ms(round % 4)));
                }
            })
        })
        .collect();
    tasks.into_iter().for_each(Task::end);
    drop(one.mutex("{tag}").max_hold(Some(ms(1))).lock());
    // What gave up waiting is taken out of the queues in the background.
    let strange = || -> Vec<String> {
        let keys: Vec<String> = redis.ask(&["KEYS", "*"]);
        keys.into_iter()
            .filter(|key| !key.ends_with(":lh:fence") && key != "{tag}:lht:fence")
            .collect()
    };
    wait_until("nothing but fences is left", || strange().is_empty());
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
    // The same key, by the other way.
    let plain = manager(redis.url());
    assert!(plain.try_lock(&key).expect("it is asked").is_none());
    assert!(plain.try_lock(&name).expect("it is asked").is_some());
}

#[test]
fn a_database_is_a_world_of_its_own() {
    let server = Server::start();
    let locks = build(patient(&server.url()).database(3));
    let by_url = manager(&format!("{}3", server.url()));
    let elsewhere = manager(&server.url());
    let _guard = locks.lock("n").expect("it is free");
    assert!(by_url.try_lock("n").expect("it is asked").is_none());
    assert!(elsewhere.try_lock("n").expect("it is asked").is_some());
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let redis = server.raw();
    let locks = patient(&server.url())
        .build_unchecked()
        .expect("nothing is wrong with it");
    let before = redis.commands();
    let longest = "x".repeat(1024);
    for name in unfit_names() {
        let name = &*name;
        let refused = locks.lock(name);
        assert!(matches!(refused, Err(Error::InvalidName { .. })), "{name}");
        let refused = locks.try_lock(name);
        assert!(matches!(refused, Err(Error::InvalidName { .. })), "{name}");
        let refused = locks.with_lock(name, secs(1), |_| ());
        assert!(matches!(refused, Err(Error::InvalidName { .. })), "{name}");
    }
    let mutex = locks.mutex("n");
    for unfit in [
        mutex.clone().lease(ms(9)),
        mutex.clone().lease(Duration::ZERO),
        mutex.clone().lease(secs(24 * 60 * 60) + ms(1)),
        mutex.clone().lease(Duration::MAX),
        mutex.clone().max_hold(Some(Duration::ZERO)),
    ] {
        let refused = unfit.try_lock();
        assert!(matches!(refused, Err(Error::Config { .. })), "{unfit:?}");
    }
    assert_eq!(redis.commands(), before, "something was sent");
    // The bounds themselves are good.
    drop(locks.lock(&longest).expect("the longest name"));
    // A busy machine may find so short a lease over before the answer is there; but it asks.
    let shortest = mutex.lease(ms(10)).lock();
    assert!(!matches!(shortest, Err(Error::Config { .. })));
    assert!(redis.commands() > before, "it does not count");
}
