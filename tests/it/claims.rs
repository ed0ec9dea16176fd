//! Locks that go from one guard to another by a claim: one process detaches, another adopts.

use std::sync::Barrier;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use leasehold::{Claim, Error, LeaseState, LockGuard, LockManager, Lost, LostCause};

use crate::support::{
    Child, PATIENCE, Server, build, fence_of, hasty, locking, locking_asleep, lost, manager, ms,
    name, patient, secs, shared, task, wait_until,
};

const LONG: std::time::Duration = secs(600);

/// Adopts a claim whose lock is lost.
#[track_caller]
fn too_late(locks: &LockManager, claim: &Claim) -> Lost {
    let lost = lost(locks.adopt(claim));
    assert_eq!((&*lost.name, lost.fence), (claim.name(), claim.fence()));
    lost
}

#[test]
fn smoke() {
    let raw = shared();
    let name = name("smoke");
    let [one, other] = [(); 2].map(|()| manager(raw.url()));
    let guard = one.lock(&name).expect("it is free");
    let (fence, owner) = (guard.fence(), guard.owner().to_owned());
    let told = guard.on_lost();
    let claim = guard.detach();
    assert_eq!((claim.name(), claim.fence()), (&*name, fence));
    assert!(told.recv_timeout(PATIENCE).is_err(), "a healthy end");
    assert_eq!(raw.get(&name), Some(owner));
    assert!(one.try_lock(&name).expect("Redis replies").is_none());

    let guard = other.adopt(&claim).expect("it is not adopted yet");
    assert!(guard.fence() > fence);
    assert_eq!(raw.get(&name).as_deref(), Some(guard.owner()));
    assert_eq!((guard.name(), guard.state()), (&*name, LeaseState::Held));
    for locks in [&one, &other] {
        assert_eq!(too_late(locks, &claim).cause, LostCause::Taken);
        assert!(locks.try_lock(&name).expect("Redis replies").is_none());
    }
    guard.release().expect("it was held until now");
    for locks in [&one, &other] {
        assert_eq!(too_late(locks, &claim).cause, LostCause::Removed);
    }
    drop(
        one.try_lock(&name)
            .expect("Redis replies")
            .expect("it is free"),
    );
}

#[test]
fn the_same_manager_may_adopt_it() {
    let raw = shared();
    let name = name("itself");
    let locks = manager(raw.url());
    let mut fence = 0;
    let mut guard = locks.lock(&name).expect("it is free");
    for _ in 0..5 {
        assert!(guard.fence() > fence);
        fence = guard.fence();
        guard = locks.adopt(&guard.detach()).expect("it is not adopted yet");
    }
    guard.release().expect("it was held until now");
    assert!(!raw.exists(&name));
}

#[test]
fn an_adopted_lock_is_renewed_and_a_detached_one_is_not() {
    let raw = shared();
    let name = name("renewed");
    let locks = build(patient(raw.url()).lease(secs(9)));
    let guard = locks.lock(&name).expect("it is free");
    raw.wait_until_renewed(&name, 1);
    let guard = locks.adopt(&guard.detach()).expect("it is not adopted yet");
    raw.wait_until_renewed(&name, 2);
    guard.check().expect("it is held");
    let claim = guard.detach();
    wait_until("its lease ends", || !raw.exists(&name));
    assert_eq!(too_late(&locks, &claim).cause, LostCause::Removed);
}

#[test]
fn a_detached_lock_has_a_full_lease_if_it_was_renewed() {
    let raw = shared();
    let locks = build(patient(raw.url()).lease(LONG));
    for renew in [true, false] {
        let name = name("full");
        let guard = locks.mutex(&name).renew(renew).lock();
        let guard = guard.expect("it is free");
        // Simulates that most of the lease is over.
        let () = raw.ask(&["PEXPIRE", &name, "60000"]);
        let claim = guard.detach();
        assert_eq!(raw.ttl(&name).is_some_and(|ttl| ttl > secs(60)), renew);
        drop(locks.adopt(&claim).expect("it is not adopted yet"));
    }
    // `detach` does not shorten an extended lease.
    let name = name("extended");
    let guard = locks.lock(&name).expect("it is free");
    guard.extend(LONG * 2).expect("it is held");
    let claim = guard.detach();
    assert!(raw.ttl(&name).is_some_and(|ttl| ttl > LONG));
    // The extension belongs to the guard that asked for it, and to its claim.
    let guard = locks.adopt(&claim).expect("it is not adopted yet");
    assert!(raw.ttl(&name).is_some_and(|ttl| ttl <= LONG));
    drop(guard);
}

#[test]
fn an_adopted_lock_has_the_min_hold_of_its_manager_from_the_adoption_on() {
    let raw = shared();
    let [one, other] = [ms(0), LONG].map(|length| build(patient(raw.url()).min_hold(length)));
    let name = name("min-hold");
    let guard = other.lock(&name).expect("it is free");
    let guard = one.adopt(&guard.detach()).expect("it is not adopted yet");
    guard.release().expect("it was held until now");
    assert!(!raw.exists(&name), "the first guard's goes on");

    let (guard, begun) = (one.lock(&name).expect("it is free"), Instant::now());
    wait_until("time passes before the adoption", || {
        begun.elapsed() > ms(500)
    });
    let (claim, begun) = (guard.detach(), Instant::now());
    let guard = other.adopt(&claim).expect("it is not adopted yet");
    guard.release().expect("it was held until now");
    let ttl = raw.ttl(&name).expect("it is kept");
    assert!(ttl <= LONG && ttl + begun.elapsed() + ms(100) > LONG);
}

#[test]
fn detach_works_while_the_server_is_silent() {
    let server = Server::start();
    let locks = build(hasty(&server.url()));
    let guard = locks.lock("n").expect("it is free");
    server.pause();
    let claim = guard.detach();
    server.resume();
    let guard = manager(&server.url()).adopt(&claim);
    guard
        .expect("it is not adopted yet")
        .release()
        .expect("it was held");
}

#[test]
fn an_adoption_whose_answer_was_lost_is_repeated() {
    let server = Server::start();
    let locks = build(hasty(&server.url()));
    let other = manager(&server.url());
    let raw = server.raw();
    // Loads the script into the server.
    let claim = locks.lock("n").expect("it is free").detach();
    let claim = locks.adopt(&claim).expect("it is not adopted yet").detach();
    server.pause();
    let error = locks.adopt(&claim).map(drop);
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
    server.resume();
    wait_until("Redis executes it", || {
        raw.get("n").is_some_and(|owner| owner != claim.owner())
    });
    assert_eq!(too_late(&other, &claim).cause, LostCause::Taken);
    let guard = locks.adopt(&claim).expect("it has it already");
    assert!(guard.fence() > claim.fence());
    too_late(&locks, &claim);
    guard.release().expect("it was held until now");
    too_late(&locks, &claim);
    assert!(!raw.exists("n"));
}

#[test]
fn a_lost_guard_gives_a_claim_that_is_lost() {
    let raw = shared();
    let locks = manager(raw.url());
    let short = |name: &str| locks.mutex(name).lease(secs(2)).renew(false);

    // The key still exists, because another client has lengthened its life.
    let kept = name("kept");
    let guard = locks.mutex(&kept).lease(secs(3)).renew(false).lock();
    let guard = guard.expect("it is free");
    let () = raw.ask(&["PEXPIRE", &kept, "600000"]);
    wait_until("it is lost", || guard.state() == LeaseState::Lost);
    too_late(&locks, &guard.detach());

    let expired = name("expired");
    let guard = short(&expired).lock().expect("it is free");
    wait_until("it is lost", || guard.state() == LeaseState::Lost);
    too_late(&locks, &guard.detach());

    // Only the renewal of the adopted lock finds the loss.
    let deleted = name("deleted");
    let guard = locks.lock(&deleted).expect("it is free");
    let () = raw.ask(&["DEL", &deleted]);
    too_late(&locks, &guard.detach());

    // Nothing has found the loss yet.
    let taken = name("taken");
    let guard = locks.mutex(&taken).lease(LONG).renew(false).lock();
    let guard = guard.expect("it is free");
    let () = raw.ask(&["DEL", &taken]);
    let next = manager(raw.url()).lock(&taken).expect("it is free");
    assert_eq!(too_late(&locks, &guard.detach()).cause, LostCause::Taken);
    next.release().expect("it was held until now");

    let exceeded = name("exceeded");
    let guard = locks.mutex(&exceeded).max_hold(Some(ms(300))).lock();
    let guard = guard.expect("it is free");
    wait_until("it is lost", || guard.state() == LeaseState::Lost);
    too_late(&locks, &guard.detach());

    let broken = name("broken");
    let claim = locks.lock(&broken).expect("it is free").detach();
    let done = manager(raw.url()).force_release(&broken, claim.owner());
    assert!(done.expect("Redis replies"));
    assert_eq!(too_late(&locks, &claim).cause, LostCause::Removed);
}

#[test]
fn one_of_several_adopters_gets_the_lock() {
    let raw = shared();
    let managers = [(); 3].map(|()| manager(raw.url()));
    for _ in 0..50 {
        let name = name("race");
        let claim = managers[0].lock(&name).expect("it is free").detach();
        let start = Barrier::new(9);
        let held: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = managers
                .iter()
                .cycle()
                .take(9)
                .map(|locks| {
                    scope.spawn(|| {
                        start.wait();
                        match locks.adopt(&claim) {
                            Ok(guard) => Some(guard),
                            Err(Error::Lost(_)) => None,
                            Err(error) => panic!("{error}"),
                        }
                    })
                })
                .collect();
            let held = threads.into_iter().map(ScopedJoinHandle::join);
            held.filter_map(|held| held.expect("no panic")).collect()
        });
        let [guard] = <[LockGuard; 1]>::try_from(held).expect("one has it");
        guard.release().expect("it was held until now");
        assert!(!raw.exists(&name));
    }
}

#[test]
fn the_threads_behind_a_detached_lock_ask_for_it_and_keep_their_order() {
    let raw = shared();
    let name = name("behind");
    let [one, other, adopter] = [(); 3].map(|()| manager(raw.url()));
    let guard = one.lock(&name).expect("it is free");
    let here = locking_asleep(&one.mutex(&name));
    let later = locking_asleep(&one.mutex(&name));
    let elsewhere = locking(&other.mutex(&name));
    raw.wait_until_queued(&name, 1);
    let claim = guard.detach();
    raw.wait_until_queued(&name, 2);
    let mut fence = claim.fence();
    let guard = adopter.adopt(&claim).expect("it is not adopted yet");
    for guard in [task(|| Ok(guard)), elsewhere, here, later] {
        let guard = guard.end().expect("it becomes free");
        assert!(guard.fence() > fence);
        fence = guard.fence();
        guard.release().expect("it was held until now");
    }
    assert!(!raw.exists(&name));
}

#[test]
fn a_lock_is_adopted_while_threads_wait_for_it() {
    let raw = shared();
    let name = name("waited-for");
    let [one, other] = [(); 2].map(|()| build(patient(raw.url()).quantum(LONG)));
    let claim = one.lock(&name).expect("it is free").detach();
    // One thread of this process asks Redis. Another thread stands behind it, and so does another process.
    let here = locking(&other.mutex(&name));
    raw.wait_until_queued(&name, 1);
    let elsewhere = locking(&one.mutex(&name));
    raw.wait_until_queued(&name, 2);
    let later = locking_asleep(&other.mutex(&name));
    let mut fence = claim.fence();
    let guard = other.adopt(&claim).expect("it is not adopted yet");
    let tried = other.try_lock(&name).expect("it is known");
    assert!(tried.is_none());
    // The thread behind the delegate gets no guard in memory, however long the quantum is.
    for guard in [task(|| Ok(guard)), here] {
        let guard = guard.end().expect("it becomes free");
        assert!(guard.fence() > fence);
        fence = guard.fence();
        guard.release().expect("it was held until now");
    }
    for guard in [later, elsewhere] {
        let guard = guard.end().expect("it becomes free");
        assert!(guard.fence() > fence);
        guard.release().expect("it was held until now");
    }
    assert!(!raw.exists(&name));
}

#[test]
fn an_adopted_lock_is_handed_on_in_memory() {
    let raw = shared();
    let name = name("passed-on");
    let locks = build(patient(raw.url()).quantum(LONG));
    let claim = locks.lock(&name).expect("it is free").detach();
    let guard = locks.adopt(&claim).expect("it is not adopted yet");
    let behind = [(); 3].map(|()| locking_asleep(&locks.mutex(&name)));
    let mut fence = guard.fence();
    guard.release().expect("it was held until now");
    let mut owners = Vec::new();
    for guard in behind {
        let guard = guard.end().expect("it becomes free");
        assert!(guard.fence() > fence);
        fence = guard.fence();
        owners.push(guard.owner().to_owned());
        guard.release().expect("it was held until now");
    }
    owners.dedup();
    assert_eq!(owners.len(), 1, "the place was asked for again");
}

#[test]
fn a_timeout_beside_an_adopted_lock_strands_no_other_waiter() {
    let raw = shared();
    let name = name("gives-up");
    let locks = manager(raw.url());
    let claim = manager(raw.url()).lock(&name).expect("it is free").detach();
    let mutex = locks.mutex(&name);
    let asks = task(move || mutex.try_lock_for(secs(6)));
    raw.wait_until_queued(&name, 1);
    let behind = locking_asleep(&locks.mutex(&name));
    let guard = locks.adopt(&claim).expect("it is not adopted yet");
    crate::support::gave_up(asks);
    guard.release().expect("it was held until now");
    let next = behind.end().expect("it becomes free");
    assert!(next.fence() > claim.fence());
}

#[test]
fn adoption_ignores_fences_that_were_only_reserved() {
    let raw = shared();
    let name = name("fences");
    // A block of fences for ten minutes.
    let locks = build(patient(raw.url()).quantum(LONG));
    let guard = locks.lock(&name).expect("it is free");
    let other = manager(raw.url());
    let waiting = [(); 2].map(|()| locking_asleep(&locks.mutex(&name)));
    drop(guard);
    let [first, second] = waiting;
    drop(first.end().expect("it becomes free"));
    let claim = second.end().expect("it becomes free").detach();
    let kept: u64 = raw.ask(&["GET", &fence_of(&name)]);
    assert!(kept > claim.fence() + 500_000_000, "a block was reserved");
    let guard = other.adopt(&claim).expect("it is not adopted yet");
    let (seconds, micros): (u64, u64) = raw.ask(&["TIME"]);
    assert!(guard.fence() > claim.fence());
    assert!(
        guard.fence() <= seconds * 1_000_000 + micros,
        "ahead of time"
    );
    // If Redis lost the record, the claim has the last fence.
    let ahead = guard.fence() + 30_000_000;
    let claim = guard.detach();
    let () = raw.ask(&["DEL", &fence_of(&name)]);
    let text = claim.to_string();
    let (_, rest) = text.split_once('/').expect("a fence first");
    let claim: Claim = format!("{ahead}/{rest}").parse().expect("a claim");
    let guard = other.adopt(&claim).expect("it is not adopted yet");
    assert_eq!(guard.fence(), ahead + 1);
    drop(guard);
    assert!(raw.ttl(&fence_of(&name)).is_some(), "it stays for ever");
}

#[test]
fn claims_go_from_process_to_process() {
    let raw = shared();
    let name = name("pass the baton/ü");
    let locks = build(patient(raw.url()).lease(secs(5)));
    let claim = locks.lock(&name).expect("it is free").detach();
    let mut heir = Child::start_with(raw.url(), "", Some(&claim));
    // The environment passes the claim.
    let answer = heir.ask("adopt it");
    let fence = answer.strip_prefix("locked ").map(str::parse);
    let Some(Ok(fence)) = fence else {
        panic!("not adopted: {answer}");
    };
    assert!(claim.fence() < fence);
    assert_eq!(heir.ask("state it"), "Held");
    too_late(&locks, &claim);
    assert!(locks.try_lock(&name).expect("Redis replies").is_none());
    // A command passes the claim.
    let text = heir.ask("detach it");
    heir.kill();
    let mut last = Child::start(raw.url(), "");
    let answer = last.ask(format_args!("adopt it {text}"));
    assert!(answer.starts_with("locked "), "{answer}");
    let waiting = locking(&locks.mutex(&name));
    raw.wait_until_queued(&name, 1);
    assert_eq!(last.ask("release it"), "released");
    assert!(waiting.end().expect("it becomes free").fence() > fence);
    let answer = last.ask(format_args!("adopt it {text}"));
    assert!(answer.starts_with("Lost: "), "{answer}");
}

#[test]
fn claims_that_cannot_be_adopted_are_refused() {
    let raw = shared();
    let name = name("refused");
    let locks = manager(raw.url());
    let claim = locks.lock(&name).expect("it is free").detach();
    // The manager's prefix is part of the key, so this is another key.
    too_late(&build(patient(raw.url()).prefix("p:")), &claim);
    let unfit = build(patient(raw.url()).prefix("}"));
    let error = unfit.adopt(&claim);
    assert!(matches!(error, Err(Error::InvalidName { .. })), "{error:?}");
    let closed = manager(raw.url());
    assert!(closed.close(PATIENCE));
    assert!(matches!(closed.adopt(&claim), Err(Error::Closed)));
    // A key of another type.
    let () = raw.ask(&["DEL", &name]);
    let () = raw.ask(&["RPUSH", &name, "x"]);
    let error = locks.adopt(&claim);
    assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
}

#[test]
fn a_fence_of_another_type_leaves_the_claim_as_it_is() {
    let raw = shared();
    let name = name("wrong-fence");
    let locks = manager(raw.url());
    let claim = locks.lock(&name).expect("it is free").detach();
    let () = raw.ask(&["DEL", &fence_of(&name)]);
    let () = raw.ask(&["RPUSH", &fence_of(&name), "x"]);
    let error = locks.adopt(&claim);
    assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
    assert_eq!(raw.get(&name).as_deref(), Some(claim.owner()));
    let () = raw.ask(&["DEL", &fence_of(&name)]);
    drop(locks.adopt(&claim).expect("it is not adopted yet"));
}

/// Any program can write a claim, because it is text. If `adopt` accepted a fence that the lock never gave, Redis
/// would keep it until the clock is past it, and all later fences would follow it.
#[test]
fn a_claim_with_a_fence_that_was_never_given_is_refused_and_leaves_the_record_alone() {
    let raw = shared();
    let locks = manager(raw.url());
    for forgotten in [false, true] {
        let name = name("forged");
        let claim = locks.lock(&name).expect("it is free").detach();
        let record = fence_of(&name);
        if forgotten {
            let () = raw.ask(&["DEL", &record]);
        }
        let before: Option<u64> = raw.ask(&["GET", &record]);
        let minute = 60_000_000;
        let day = 24 * 60 * minute;
        // The clock runs on during the test. So without a record a small change may not be detected.
        let least = if forgotten { day / 2 } else { minute / 2 };
        let first = claim.fence();
        for fence in [
            first + least,
            first + day,
            8_999_999_999_999_000,
            (1 << 53) - 1,
        ] {
            let text = claim.to_string();
            let (_, rest) = text.split_once('/').expect("a claim's text");
            let forged: Claim = format!("{fence}/{rest}").parse().expect("a claim");
            lost(locks.adopt(&forged));
            assert_eq!(raw.ask::<Option<u64>>(&["GET", &record]), before);
        }
        let guard = locks.adopt(&claim).expect("it is held");
        assert!(guard.fence() > claim.fence() && guard.fence() < claim.fence() + day / 2);
        guard.release().expect("it is held");
        assert!(raw.ttl(&record).expect("it expires") < secs(60 * 60));
    }
}
