//! How a guard learns that it has lost its lock, and that it learns it in time.

use std::time::{Duration, Instant};

use leasehold::{LeaseState, LockGuard, LockManager, LostCause};

use crate::support::{
    Child, PATIENCE, SLACK, Server, Task, build, companions_of, locking, lost, manager, ms, name,
    secs, shared, task, wait_closely_until, wait_until,
};

/// Returns the shortest time that a guard may be valid: 1 % and 2 ms less than the lease, and 1 ms for the clocks.
fn least(lease: Duration) -> Duration {
    lease.saturating_sub(lease / 100 + ms(3))
}

#[test]
fn a_lease_that_is_not_renewed_is_lost_at_its_end() {
    let redis = shared();
    let name = name("unrenewed");
    let lease = secs(3);
    let locks = manager(redis.url());
    let begun = Instant::now();
    let guard = locks
        .mutex(&name)
        .lease(lease)
        .renew(false)
        .lock()
        .expect("it is free");
    let loss = guard
        .on_lost()
        .recv_timeout(PATIENCE)
        .expect("it is notified");
    assert!(begun.elapsed() >= least(lease), "it was lost too early");
    assert_eq!(
        (&*loss.name, loss.fence, loss.cause),
        (&*name, guard.fence(), LostCause::Expired)
    );
    assert_eq!(guard.state(), LeaseState::Lost);
    assert_eq!(lost(guard.check()), loss);
    assert_eq!(lost(guard.extend(secs(1))), loss);
    // A receiver that is made later gets the loss too.
    assert_eq!(guard.on_lost().try_recv(), Ok(loss.clone()));
    assert_eq!(lost(guard.release()), loss);
}

#[test]
fn no_guard_reads_held_when_its_key_is_gone() {
    let redis = shared();
    let locks = manager(redis.url());
    let mut seen = 0;
    for lease in [10, 50, 200, 201, 500, 1000] {
        let name = name("ends-first");
        let Ok(guard) = locks.mutex(&name).lease(ms(lease)).renew(false).lock() else {
            // On a busy machine a short lease may end before the reply arrives. Then there is no guard.
            continue;
        };
        seen += 1;
        wait_closely_until("the key is gone", || !redis.exists(&name));
        assert_eq!(guard.state(), LeaseState::Lost, "{lease} ms");
    }
    assert!(seen > 0);
}

#[test]
fn an_expired_holder_does_not_release_its_successor() {
    let redis = shared();
    let name = name("successor");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let short = one.mutex(&name).lease(secs(1)).renew(false);
    let first = short.lock().expect("it is free");
    let second = other.try_lock_for(&name, PATIENCE).expect("Redis replies");
    let second = second.expect("it becomes free");
    assert_eq!(first.state(), LeaseState::Lost);
    assert!(second.fence() > first.fence());
    let loss = lost(first.release());
    assert_eq!(loss.cause, LostCause::Expired);
    // The renewal thread releases the lost lock in Redis. `close` returns `true` when that is done.
    assert!(one.close(PATIENCE));
    assert_eq!(redis.get(&name).as_deref(), Some(second.owner()));
    second.release().expect("it was held until now");
}

#[test]
fn a_silent_server_loses_the_lock_at_its_deadline_for_ever() {
    let server = Server::start();
    // The renewal thread waits for a reply all the time, so another thread must end the lease.
    let locks = build(LockManager::single(&server.url()).io_timeout(PATIENCE * 2));
    let other = manager(&server.url());
    let guard = locks.mutex("n").lease(secs(8)).lock().expect("it is free");
    let losses = guard.on_lost();
    assert_eq!(guard.state(), LeaseState::Held);
    server.pause();
    let mut seen = vec![guard.state()];
    wait_until("it is at risk", || {
        // Read once, because the state may change between two reads.
        let state = guard.state();
        seen.push(state);
        state != LeaseState::Held
    });
    assert!(guard.check().is_ok(), "at risk is not lost");
    // No reply is on its way any more, so the deadline does not change.
    let before = Instant::now();
    let left = guard.remaining();
    let after = Instant::now();
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    let told = Instant::now();
    assert!(told + ms(1) >= before + left, "the notice came too early");
    assert!(told < after + left + secs(2), "the notice came too late");
    assert_eq!(loss.cause, LostCause::Expired);
    assert_eq!(guard.state(), LeaseState::Lost);
    seen.push(guard.state());
    seen.dedup();
    let course = [LeaseState::Held, LeaseState::AtRisk, LeaseState::Lost];
    assert_eq!(seen, course);
    assert_eq!(lost(guard.check()), loss);
    // Redis replies to the renewal now. That does not revive the lease.
    server.resume();
    let next = other.try_lock_for("n", PATIENCE).expect("Redis replies");
    assert!(next.expect("it becomes free").fence() > guard.fence());
    assert_eq!(guard.state(), LeaseState::Lost);
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(lost(guard.release()), loss);
    assert!(losses.try_recv().is_err(), "the notice came twice");
}

#[test]
fn a_lease_survives_a_pause_shorter_than_itself() {
    let server = Server::start();
    let redis = server.raw();
    let locks = manager(&server.url());
    let guard = locks.mutex("n").lease(secs(10)).lock().expect("it is free");
    server.pause();
    wait_until("it is at risk", || guard.state() == LeaseState::AtRisk);
    server.resume();
    wait_until("it is held again", || guard.state() == LeaseState::Held);
    assert_eq!(redis.get("n").as_deref(), Some(guard.owner()));
    guard.release().expect("it was held until now");
}

/// Returns a guard whose lease is renewed about once a second.
fn renewed_often(name: &str) -> LockGuard {
    let locks = manager(shared().url());
    let mutex = locks.mutex(name).lease(secs(3));
    mutex.lock().expect("it is free")
}

#[test]
fn a_key_that_was_overwritten_is_lost_as_taken() {
    let redis = shared();
    let name = name("taken");
    let guard = renewed_often(&name);
    let () = redis.ask(&["SET", &name, "somebody else", "PX", "60000"]);
    let loss = guard
        .on_lost()
        .recv_timeout(PATIENCE)
        .expect("it is notified");
    assert_eq!(loss.cause, LostCause::Taken);
    assert_eq!(lost(guard.check()).cause, LostCause::Taken);
    assert_eq!(lost(guard.release()).cause, LostCause::Taken);
    assert_eq!(redis.get(&name).as_deref(), Some("somebody else"));
    assert!(redis.ttl(&name) > Some(secs(5)), "it was shortened");
    let () = redis.ask(&["DEL", &name]);
}

#[test]
fn a_key_that_was_deleted_is_lost_as_removed() {
    let redis = shared();
    let name = name("removed");
    let guard = renewed_often(&name);
    let () = redis.ask(&["DEL", &name]);
    let loss = guard
        .on_lost()
        .recv_timeout(PATIENCE)
        .expect("it is notified");
    assert_eq!(loss.cause, LostCause::Removed);
    assert!(!redis.exists(&name), "a renewal has made it again");
    assert_eq!(lost(guard.release()).cause, LostCause::Removed);
}

#[test]
fn a_release_returns_a_loss_that_no_renewal_has_found() {
    let redis = shared();
    let locks = manager(redis.url());
    // With a lease of 30 s, no renewal is due during the test.
    let (deleted, overwritten) = (name("deleted"), name("overwritten"));
    let guard = locks.lock(&deleted).expect("it is free");
    let () = redis.ask(&["DEL", &deleted]);
    assert_eq!(lost(guard.release()).cause, LostCause::Removed);

    let guard = locks.lock(&overwritten).expect("it is free");
    let () = redis.ask(&["SET", &overwritten, "somebody else", "PX", "60000"]);
    assert_eq!(lost(guard.release()).cause, LostCause::Taken);
    assert_eq!(redis.get(&overwritten).as_deref(), Some("somebody else"));

    // `extend` finds the loss too.
    let () = redis.ask(&["DEL", &overwritten]);
    let guard = locks.lock(&overwritten).expect("it is free");
    let () = redis.ask(&["DEL", &overwritten]);
    assert_eq!(lost(guard.extend(secs(60))).cause, LostCause::Removed);
    assert_eq!(guard.state(), LeaseState::Lost);
}

#[test]
fn a_lost_lease_lets_the_threads_behind_it_ask() {
    let redis = shared();
    let name = name("behind");
    let locks = manager(redis.url());
    let short = locks.mutex(&name).lease(secs(1)).renew(false);
    let begun = Instant::now();
    let guard = short.lock().expect("it is free");
    // The guard is neither dropped nor checked. Still the wait of another thread ends.
    let next = locking(&locks.mutex(&name)).end();
    let next = next.expect("it becomes free");
    let took = begun.elapsed();
    assert!(
        took >= least(secs(1)),
        "it was not over: {took:?}, {:?} {} {}, then {:?} {} {} now {:?}",
        guard.state(),
        guard.fence(),
        guard.owner(),
        next,
        next.fence(),
        next.owner(),
        redis.get(&name)
    );
    assert!(begun.elapsed() < secs(1) + SLACK);
    assert!(next.fence() > guard.fence());
    assert_eq!(guard.state(), LeaseState::Lost);
    // The drop of the lost guard must not release the lock of the next thread.
    drop(guard);
    assert_eq!(redis.get(&name).as_deref(), Some(next.owner()));
}

#[test]
fn fences_rise_past_the_loss_of_all_data() {
    let server = Server::start();
    let locks = manager(&server.url());
    let mut last = 0;
    for round in 0..3 {
        // Waiting threads make the lease reserve many fences at once, so that the record in Redis is ahead of the
        // guards. The restart deletes the record.
        let tasks = [(); 4].map(|()| {
            let locks = locks.clone();
            task(move || {
                for _ in 0..10 {
                    drop(locks.lock("n").expect("it becomes free"));
                }
            })
        });
        tasks.into_iter().for_each(Task::end);
        let guard = locks.lock("n").expect("it is free");
        assert!(guard.fence() > last, "round {round}");
        last = guard.fence();
        guard.release().expect("it was held until now");
        server.restart();
    }
    let guard = manager(&server.url()).lock("n").expect("it is free");
    assert!(guard.fence() > last);
}

#[test]
fn fences_rise_past_the_loss_of_all_companions() {
    let redis = shared();
    let name = name("companions-lost");
    let (one, other) = (manager(redis.url()), manager(redis.url()));
    let mut last = 0;
    for locks in [&one, &other, &other, &one] {
        let guard = locks.lock(&name).expect("it is free");
        assert!(guard.fence() > last);
        last = guard.fence();
        let [fence, queue, waiters] = companions_of(&name);
        let () = redis.ask(&["DEL", &fence, &queue, &waiters]);
        guard.release().expect("it was held until now");
    }
}

#[test]
fn a_waiter_survives_the_loss_of_its_queue() {
    let redis = shared();
    let name = name("queue-lost");
    let locks = manager(redis.url());
    let guard = locks.lock(&name).expect("it is free");
    let mut waiter = Child::start(redis.url(), "");
    waiter.say(format_args!("lock {name}"));
    redis.wait_until_queued(&name, 1);
    let [fence, queue, waiters] = companions_of(&name);
    let () = redis.ask(&["DEL", &fence, &queue, &waiters]);
    let last = guard.fence();
    guard.release().expect("it was held until now");
    assert!(waiter.locked() > last);
}
