//! One test for each way in which the protocol of a lock like this has been broken, by the rule that prevents it. The
//! comment of a rule names the tests of it that are in other files.

use std::thread;
use std::time::Duration;

use crossbeam_channel::TryRecvError;
use leasehold::{Error, LeaseState, LockManager, LostCause};

use crate::support::{
    PATIENCE, Raw, Server, asleep, build, companions_of, hasty, lost, manager, ms, name, patient,
    secs, shared, wait_until,
};

/// Longer than any test runs, so that the end of a lease frees no lock.
const LONG: Duration = Duration::from_mins(10);

fn waits_for(manager: &LockManager, name: &str) -> thread::JoinHandle<leasehold::LockGuard> {
    let handle = manager.mutex(name);
    thread::spawn(move || handle.lock().expect("it becomes free"))
}

/// Puts a waiter that does not exist into the queue of `name`. Its last poll is `seen` ms after now.
fn fake_waiter(raw: &Raw, name: &str, owner: &str, seen: i64, channel: &str) {
    let [_, queue, _] = companions_of(name);
    note_waiter(raw, name, owner, seen, 300, channel);
    let () = raw.ask(&["ZADD", &queue, "-1", owner]);
    let () = raw.ask(&["PEXPIRE", &queue, "60000"]);
}

/// Records the last poll of a waiter, `seen` ms after now, and the pickup window that it asks for, in ms.
fn note_waiter(raw: &Raw, name: &str, owner: &str, seen: i64, claim: i64, channel: &str) {
    let [_, _, waiters] = companions_of(name);
    let time: (i64, i64) = raw.ask(&["TIME"]);
    let seen = time.0 * 1000 + time.1 / 1000 + seen;
    let waiter = format!("{seen} {claim} 1/1 {channel}");
    let () = raw.ask(&["HSET", &waiters, owner, &waiter]);
    let () = raw.ask(&["PEXPIRE", &waiters, "60000"]);
}

// Rule 1: each attempt has its own owner, which is never used again. Two managers of a process are two processes:
// contract::*::keeps_out_other_managers, contract::*::a_release_wakes_another_manager.

#[test]
fn every_acquire_has_an_owner_of_its_own() {
    let manager = manager(shared().url());
    let name = name("owners");
    let mut owners: Vec<String> = (0..5)
        .map(|_| manager.lock(&name).expect("it is free").owner().to_owned())
        .collect();
    owners.sort();
    owners.dedup();
    assert_eq!(owners.len(), 5);
}

#[test]
fn a_place_in_the_queue_goes_to_the_next_thread() {
    let raw = shared();
    let name = name("place");
    let holder = manager(raw.url()).lock(&name).expect("it is free");
    let waiting = manager(raw.url());
    thread::scope(|scope| {
        let first = waiting.mutex(&name);
        let first = scope.spawn(move || first.try_lock_for(secs(6)));
        raw.wait_until_queued(&name, 1);
        let place = raw.queue(&name);
        let second = asleep(scope, || {
            waiting.lock(&name).map(|guard| guard.owner().to_owned())
        });
        // On a busy machine its last request may get no reply.
        let first = first.join().expect("no panic");
        assert!(
            matches!(first, Ok(None) | Err(Error::Unavailable { .. })),
            "{first:?}"
        );
        assert_eq!(raw.queue(&name), place, "the place was given up");
        holder.release().expect("it is held");
        let owner = second.join().expect("no panic").expect("it gets its turn");
        assert_eq!(place, [owner]);
    });
}

// Rule 2: a guard ends before its process sends a request that may give the lock away.

#[test]
fn a_take_over_whose_answer_is_lost_leaves_no_owner_behind() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(
        LockManager::single(&server.url())
            .lease(LONG)
            .quantum(ms(1))
            .io_timeout(secs(1)),
    );
    let elsewhere = build(LockManager::single(&server.url()).io_timeout(secs(1)));
    let guard = locks.lock("n").expect("it is free");
    let fence = guard.fence();
    thread::scope(|scope| {
        let next = asleep(scope, || locks.lock("n"));
        // The quantum is over when the guard has been held for longer than a millisecond.
        let begun = guard.remaining();
        wait_until("a quantum", || guard.remaining() + ms(5) < begun);
        server.pause();
        guard
            .release()
            .expect("the guard ends before the request is sent");
        // Two requests with the same time limit, one after the other. By then the take-over has timed out too, but the
        // server will still execute it.
        for _ in 0..2 {
            assert!(elsewhere.try_lock("x").is_err());
        }
        server.resume();
        let next = next.join().expect("no panic").expect("it gets its turn");
        assert!(next.fence() > fence);
        let owner = next.owner().to_owned();
        next.release().expect("it is held");
        // Neither the old owner nor the owner of the take-over holds the lock for ten minutes.
        wait_until("free again", || !raw.exists("n"));
        assert_eq!(raw.queue("n"), [""; 0]);
        let last = manager(&server.url()).lock("n").expect("it is free");
        assert_ne!(last.owner(), owner);
    });
}

// Rule 3: a renewal never creates a key (contract::*::a_deleted_key_is_lost_as_removed), and never lowers a time to
// live (mutex::a_renewal_does_not_lower_what_extend_has_raised).

#[test]
fn a_release_that_finds_no_key_is_an_error_and_no_message() {
    let raw = shared();
    let name = name("no-event");
    let guard = manager(raw.url()).lock(&name).expect("it is free");
    let told = guard.on_lost();
    let () = raw.ask(&["DEL", &name]);
    assert_eq!(lost(guard.release()).cause, LostCause::Removed);
    assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected));
}

// Rule 4: an acquire of unknown outcome is released until Redis can no longer execute it:
// contract::*::an_acquire_whose_answer_was_lost_leaves_no_orphan.

// Rule 5: the mark for waiters. Values of other clients get none: foreign::*::theirs_is_not_touched_while_ours_waits.

#[test]
fn a_newcomer_overtakes_the_queue_of_a_vanished_lock_only_once() {
    let raw = shared();
    let name = name("newcomer");
    let crashed = manager(raw.url()).lock(&name).expect("it is free");
    let waiting = manager(raw.url());
    let waiter = waits_for(&waiting, &name);
    raw.wait_until_queued(&name, 1);
    let place = raw.queue(&name);
    raw.wait_until_polled(&name, &place[0]);
    let newcomer = manager(raw.url());
    let () = raw.ask(&["DEL", &name]);
    let guard = newcomer
        .try_lock(&name)
        .expect("Redis replies")
        .expect("its key is gone");
    // The next poll of the waiter marks the value. So the release hands the lock over.
    wait_until("the poll marks it", || {
        raw.get(&name).is_some_and(|value| value.ends_with('!'))
    });
    assert_eq!(raw.queue(&name), place);
    guard.release().expect("it is held");
    let owner = raw.owner(&name);
    assert_eq!(owner.as_deref(), Some(&*place[0]), "handed to the waiter");
    assert_eq!(waiter.join().expect("no panic").owner(), place[0]);
    drop(crashed);
}

#[test]
fn a_waiter_that_is_handed_the_lock_keeps_the_mark_for_waiters() {
    let raw = shared();
    let name = name("claim");
    let guard = manager(raw.url()).lock(&name).expect("it is free");
    let (second, third) = (manager(raw.url()), manager(raw.url()));
    let second = waits_for(&second, &name);
    raw.wait_until_queued(&name, 1);
    let third = waits_for(&third, &name);
    raw.wait_until_queued(&name, 2);
    guard.release().expect("it is held");
    let guard = second.join().expect("no panic");
    let value = raw.get(&name).expect("it is held");
    assert_eq!(value, format!("{}!", guard.owner()));
    wait_until("the time to live is raised to the lease", || {
        raw.ttl(&name).expect("it expires") > secs(10)
    });
    guard.release().expect("it is held");
    third
        .join()
        .expect("no panic")
        .release()
        .expect("it is held");
}

// Rule 6: crashed waiters are skipped. See also contract::*::killed_waiters_delay_nobody and
// contract::*::hung_waiters_delay_others_by_one_pickup_window_together.

#[test]
fn one_release_skips_all_stale_and_unreachable_waiters() {
    let raw = shared();
    let name = name("skipped");
    let guard = manager(raw.url()).lock(&name).expect("it is free");
    let waiting = manager(raw.url());
    let waiter = waits_for(&waiting, &name);
    raw.wait_until_queued(&name, 1);
    let place = raw.queue(&name);
    fake_waiter(raw, &name, "lh1:stale:x", -10_000, "");
    fake_waiter(raw, &name, "lh1:unheard:x", 0, "leasehold:nobody");
    assert_eq!(raw.queue(&name).len(), 3);
    guard.release().expect("it is held");
    // The script of the release handed the lock over.
    let owner = raw.owner(&name);
    assert_eq!(owner.as_deref(), Some(&*place[0]));
    waiter
        .join()
        .expect("no panic")
        .release()
        .expect("it is held");
}

#[test]
fn a_poll_of_a_free_lock_gives_it_to_the_first_waiter() {
    let raw = shared();
    let name = name("advance");
    let crashed = manager(raw.url()).lock(&name).expect("it is free");
    let waiting = manager(raw.url());
    let waiter = waits_for(&waiting, &name);
    raw.wait_until_queued(&name, 1);
    // A waiter that polls and then dies.
    fake_waiter(raw, &name, "lh1:first:x", 0, "");
    let () = raw.ask(&["DEL", &name]);
    wait_until("the poll gives it to the first", || {
        // The poll may come late on a busy machine. So the first waiter is made to look alive until then.
        note_waiter(raw, &name, "lh1:first:x", 0, 60_000, "");
        raw.get(&name)
            .is_some_and(|value| value == "lh1:first:x!" || value == "lh1:first:x")
    });
    // The next waiter gets the lock after the key of the first is gone.
    let () = raw.ask(&["DEL", &name]);
    waiter
        .join()
        .expect("no panic")
        .release()
        .expect("it is held");
    drop(crashed);
}

// Rule 7: a script first runs the commands that can fail. Full memory: contract::*::full_memory_refuses_only_new_locks.
// A refused channel: server_faults::without_pub_sub_rights_waits_poll_and_the_log_reports_it_once.

#[test]
fn one_bad_key_in_a_batch_fails_no_other_renewal() {
    let raw = shared();
    let locks = build(patient(raw.url()).lease(secs(24)));
    let names: Vec<String> = (0..5).map(|_| name("batch")).collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| locks.lock(name).expect("it is free"))
        .collect();
    let () = raw.ask(&["DEL", &names[2]]);
    let () = raw.ask(&["RPUSH", &names[2], "no lock"]);
    let told = guards[2].on_lost().recv_timeout(PATIENCE);
    assert_eq!(told.expect("notified").cause, LostCause::Taken);
    for (index, name) in names.iter().enumerate() {
        if index != 2 {
            raw.wait_until_renewed(name, 1);
            guards[index].check().expect("it is renewed");
        }
    }
    let () = raw.ask(&["DEL", &names[2]]);
}

// Rule 8: renewal and plain release declare only the key of the lock: a unit test of the script module.
// Rule 9: a lost lock leaves the queue of its process: contract::*::a_lost_lock_goes_to_the_next_waiter.
// Rule 10, for `extend`: contract::*::extend_lengthens_and_never_shortens.

// Rule 13: a queued release is sent although the manager that queued it is gone.

#[test]
fn a_queued_release_is_sent_after_its_manager_is_dropped() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(hasty(&server.url()));
    let guard = locks.lock("n").expect("it is free");
    server.pause();
    assert!(matches!(guard.release(), Err(Error::Unavailable { .. })));
    drop(locks);
    server.resume();
    wait_until("it is released", || !raw.exists("n"));
}

#[test]
fn close_returns_whether_every_release_was_sent() {
    let server = Server::start();
    let locks = build(hasty(&server.url()));
    let guard = locks.lock("n").expect("it is free");
    server.pause();
    drop(guard);
    assert!(!locks.close(ms(300)), "the server cannot have answered");
    server.resume();
    assert!(locks.close(PATIENCE));
    assert!(!server.raw().exists("n"));
}

// An extension ends with the guard that asked for it.

#[test]
fn an_extension_ends_with_its_guard() {
    let raw = shared();
    let name = name("extension");
    let locks = build(patient(raw.url()).lease(secs(20)));
    let guard = locks.lock(&name).expect("it is free");
    guard.extend(LONG).expect("extended");
    assert!(raw.ttl(&name).expect("it expires") > secs(500));
    thread::scope(|scope| {
        let next = asleep(scope, || locks.lock(&name));
        guard.release().expect("it is held");
        let next = next.join().expect("no panic").expect("it gets its turn");
        assert!(raw.ttl(&name).expect("it expires") <= secs(20));
        next.release().expect("it is held");
    });
}

#[test]
fn a_lock_whose_extension_got_no_answer_is_released() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(LockManager::single(&server.url()).io_timeout(secs(1)));
    // Loads the script.
    let warm = locks.lock("warm").expect("it is free");
    warm.extend(LONG).expect("extended");
    let short = locks.mutex("n").lease(secs(2)).renew(false);
    let guard = short.lock().expect("it is free");
    server.pause();
    let error = guard.extend(LONG).expect_err("no answer");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    server.resume();
    // The server executed the request all the same: the key lives far longer than the lease.
    wait_until("extended", || {
        raw.ttl("n").is_some_and(|ttl| ttl > secs(500))
    });
    wait_until("the guard is lost", || guard.state() == LeaseState::Lost);
    assert!(raw.exists("n"));
    drop(guard);
    wait_until("released", || !raw.exists("n"));
}

#[test]
fn unused_fences_are_given_back_after_each_quantum() {
    let name = name("give-back");
    // A block has one fence for each microsecond of the quantum.
    let locks = build(patient(shared().url()).quantum(LONG));
    let mut next = locks.lock(&name).expect("it is free");
    let mut fences = vec![next.fence()];
    for round in 0..4 {
        // A different lease each time, so that the next thread cannot get the lock in memory: it takes the lock over by
        // a script.
        let handle = locks.mutex(&name).lease(secs(100 + round));
        next = thread::scope(|scope| {
            let waiter = asleep(scope, || handle.lock());
            next.release().expect("it is held");
            waiter.join().expect("no panic").expect("it gets its turn")
        });
        fences.push(next.fence());
    }
    assert!(fences.is_sorted(), "{fences:?}");
    // Fences follow the server's clock. If one block had not been given back, they would be ten minutes ahead.
    let micros = u64::try_from(LONG.as_micros()).expect("it is small");
    assert!(fences[4] - fences[0] < micros / 2, "{fences:?}");
}

// A short wait fails no other wait.

#[test]
fn a_short_wait_fails_no_longer_wait_behind_it() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(LockManager::single(&server.url()).io_timeout(secs(20)));
    // Opens the connections.
    drop(locks.lock("warm").expect("it is free"));
    let () = raw.ask(&["CLIENT", "PAUSE", "2000", "ALL"]);
    thread::scope(|scope| {
        let short = asleep(scope, || locks.try_lock_for("n", ms(1)));
        let patient = asleep(scope, || locks.lock("n"));
        let short = short.join().expect("no panic");
        assert!(matches!(short, Err(Error::Unavailable { .. })), "{short:?}");
        let guard = patient.join().expect("no panic").expect("it waited");
        guard.release().expect("it is held");
    });
}

// After the server's clock was set back, fences go on from the last one.

#[test]
fn fences_go_on_from_the_last_one_after_the_clock_was_set_back() {
    let raw = shared();
    let name = name("clock");
    let [fence, ..] = companions_of(&name);
    let (seconds, micros): (u64, u64) = raw.ask(&["TIME"]);
    // The record that Redis would have after its clock was set back by an hour.
    let mut last = (seconds + 3600) * 1_000_000 + micros;
    let () = raw.ask(&["SET", &fence, &last.to_string(), "PX", "600000"]);
    let locks = manager(raw.url());
    for _ in 0..3 {
        let guard = locks.lock(&name).expect("it is free");
        assert_eq!(guard.fence(), last + 1);
        last = guard.fence();
        // Redis keeps the record until ten minutes after the time of the fence, not of its clock.
        assert!(raw.ttl(&fence).expect("it expires") > secs(3600));
    }
    // A lock that is handed on in memory takes a block of fences.
    let guard = locks.lock(&name).expect("it is free");
    let mut last = guard.fence();
    thread::scope(|scope| {
        let next = [(); 3].map(|()| asleep(scope, || locks.lock(&name).map(|guard| guard.fence())));
        drop(guard);
        for next in next {
            let fence = next.join().expect("no panic").expect("it gets its turn");
            assert!(fence > last);
            last = fence;
        }
    });
    // The last release gave the unused fences of the block back.
    let kept: String = raw.ask(&["GET", &fence]);
    assert_eq!(kept, last.to_string());
}
