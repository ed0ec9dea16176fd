//! What was learnt by attacking the protocol: one test for each way in which a lock like this has been broken.
//! Where another file has the test already, the rule's comment says so.

use std::thread;
use std::time::Duration;

use crossbeam_channel::TryRecvError;
use leasehold::{Error, LeaseState, LockManager, LostCause};

use crate::support::{
    PATIENCE, Raw, Server, asleep, build, companions_of, hasty, lost, manager, ms, name, patient,
    secs, shared, wait_until,
};

/// So long that no test lives to see it end: whatever comes free came free by itself.
const LONG: Duration = Duration::from_mins(10);

fn waits_for(manager: &LockManager, name: &str) -> thread::JoinHandle<leasehold::LockGuard> {
    let handle = manager.mutex(name);
    thread::spawn(move || handle.lock().expect("it comes free"))
}

/// Puts somebody into the queue of `name` who does not exist; `seen` is in ms from now.
fn fake_waiter(raw: &Raw, name: &str, owner: &str, seen: i64, channel: &str) {
    let [_, queue, _] = companions_of(name);
    note_waiter(raw, name, owner, seen, 300, channel);
    let () = raw.ask(&["ZADD", &queue, "-1", owner]);
    let () = raw.ask(&["PEXPIRE", &queue, "60000"]);
}

/// Notes when a waiter was `seen`, in ms from now, and the claim window that it asks for, in ms.
fn note_waiter(raw: &Raw, name: &str, owner: &str, seen: i64, claim: i64, channel: &str) {
    let [_, _, waiters] = companions_of(name);
    let time: (i64, i64) = raw.ask(&["TIME"]);
    let seen = time.0 * 1000 + time.1 / 1000 + seen;
    let waiter = format!("{seen} {claim} 1/1 {channel}");
    let () = raw.ask(&["HSET", &waiters, owner, &waiter]);
    let () = raw.ask(&["PEXPIRE", &waiters, "60000"]);
}

// Rule 1: one owner per attempt and its tenure, never reused.

#[test]
fn every_tenure_has_an_owner_of_its_own() {
    let manager = manager(shared().url());
    let name = name("owners");
    let mut owners: Vec<String> = (0..5)
        .map(|_| manager.lock(&name).expect("free").owner().to_owned())
        .collect();
    owners.sort();
    owners.dedup();
    assert_eq!(owners.len(), 5);
}

#[test]
fn a_place_in_the_queue_passes_to_the_next_thread() {
    let raw = shared();
    let name = name("place");
    let holder = manager(raw.url()).lock(&name).expect("free");
    let waiting = manager(raw.url());
    thread::scope(|scope| {
        let first = waiting.mutex(&name);
        let first = scope.spawn(move || first.try_lock_for(secs(6)));
        raw.wait_until_queued(&name, 1);
        let place = raw.queue(&name);
        let second = asleep(scope, || {
            waiting.lock(&name).map(|guard| guard.owner().to_owned())
        });
        // On a busy machine its last request may go unanswered.
        let first = first.join().expect("no panic");
        assert!(
            matches!(first, Ok(None) | Err(Error::Unavailable { .. })),
            "{first:?}"
        );
        assert_eq!(raw.queue(&name), place, "the place was given up");
        holder.release().expect("held");
        let owner = second.join().expect("no panic").expect("its turn");
        assert_eq!(place, [owner]);
    });
}

#[test]
fn two_managers_of_one_process_are_two_processes() {
    let raw = shared();
    let name = name("managers");
    let (one, other) = (manager(raw.url()), manager(raw.url()));
    let guard = one.lock(&name).expect("free");
    assert!(other.try_lock(&name).expect("asked").is_none());
    let waiter = waits_for(&other, &name);
    raw.wait_until_queued(&name, 1);
    guard.release().expect("held");
    waiter.join().expect("no panic").release().expect("held");
}

// Rule 2: what may give the lock away ends the tenure first.

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
    let guard = locks.lock("n").expect("free");
    let fence = guard.fence();
    thread::scope(|scope| {
        let next = asleep(scope, || locks.lock("n"));
        // The quantum is over when the guard has been held for longer than it.
        let begun = guard.remaining();
        wait_until("a quantum", || guard.remaining() + ms(5) < begun);
        server.pause();
        guard
            .release()
            .expect("ended here, whatever becomes of the request");
        // Two requests of the same patience, one after the other: by then the take-over too is given up on by
        // its sender, but the server will still carry it out.
        for _ in 0..2 {
            assert!(elsewhere.try_lock("x").is_err());
        }
        server.resume();
        let next = next.join().expect("no panic").expect("its turn");
        assert!(next.fence() > fence);
        let owner = next.owner().to_owned();
        next.release().expect("held");
        // Neither the old owner nor the one that was to take over comes back to hold it for ten minutes.
        wait_until("free again", || !raw.exists("n"));
        assert_eq!(raw.queue("n"), [""; 0]);
        let last = manager(&server.url()).lock("n").expect("free");
        assert_ne!(last.owner(), owner);
    });
}

// Rule 3: a renewal never creates a key: mutex_loss::a_key_that_was_deleted_is_lost_as_removed; and never lowers
// a time to live: mutex::a_renewal_does_not_lower_what_extend_has_raised.

#[test]
fn a_release_that_finds_nothing_is_an_error_but_no_event() {
    let raw = shared();
    let name = name("no-event");
    let guard = manager(raw.url()).lock(&name).expect("free");
    let told = guard.on_lost();
    let () = raw.ask(&["DEL", &name]);
    assert_eq!(lost(guard.release()).cause, LostCause::Removed);
    assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected));
}

// Rule 4: an acquire of unknown outcome is released until it can no longer be carried out.

#[test]
fn an_acquire_whose_answer_was_lost_leaves_no_orphan() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(hasty(&server.url()));
    // So that the script is known, and one request is all it takes.
    drop(locks.lock("warm").expect("free"));
    let taken = raw.stats()["set"];
    server.pause();
    assert!(matches!(
        locks.try_lock("n"),
        Err(Error::Unavailable { .. })
    ));
    server.resume();
    wait_until("the request is carried out after all", || {
        raw.stats()["set"] > taken
    });
    let guard = manager(&server.url())
        .try_lock_for("n", PATIENCE)
        .expect("asked");
    assert!(guard.is_some(), "an orphan holds it");
}

// Rule 5: the mark. That foreign values are left alone: foreign::*::theirs_is_not_touched_while_ours_waits.

#[test]
fn a_newcomer_takes_a_lapsed_lock_past_the_queue_but_once() {
    let raw = shared();
    let name = name("newcomer");
    let crashed = manager(raw.url()).lock(&name).expect("free");
    let waiting = manager(raw.url());
    let waiter = waits_for(&waiting, &name);
    raw.wait_until_queued(&name, 1);
    let place = raw.queue(&name);
    raw.wait_until_polled(&name, &place[0]);
    let newcomer = manager(raw.url());
    let () = raw.ask(&["DEL", &name]);
    let guard = newcomer.try_lock(&name).expect("asked").expect("it lapsed");
    // The next poll marks it, and so it is handed over, not just let go.
    wait_until("the poll marks it", || {
        raw.get(&name).is_some_and(|value| value.ends_with('!'))
    });
    assert_eq!(raw.queue(&name), place);
    guard.release().expect("held");
    let value = raw.get(&name);
    assert_eq!(value.as_deref(), Some(&*place[0]), "handed to the waiter");
    assert_eq!(waiter.join().expect("no panic").owner(), place[0]);
    drop(crashed);
}

#[test]
fn a_claim_keeps_the_mark() {
    let raw = shared();
    let name = name("claim");
    let guard = manager(raw.url()).lock(&name).expect("free");
    let (second, third) = (manager(raw.url()), manager(raw.url()));
    let second = waits_for(&second, &name);
    raw.wait_until_queued(&name, 1);
    let third = waits_for(&third, &name);
    raw.wait_until_queued(&name, 2);
    guard.release().expect("held");
    let guard = second.join().expect("no panic");
    let value = raw.get(&name).expect("held");
    assert_eq!(value, format!("{}!", guard.owner()));
    assert!(
        raw.ttl(&name).expect("it expires") > secs(10),
        "the claim raised it to the lease"
    );
    guard.release().expect("held");
    third.join().expect("no panic").release().expect("held");
}

// Rule 6: crashed waiters are skipped; see also mutex_processes::killed_waiters_delay_others_by_no_more_than_one_of_them
// and a_waiter_that_hangs_is_passed_over_after_its_claim_window.

#[test]
fn waiters_that_are_stale_or_unheard_are_skipped_in_one_go() {
    let raw = shared();
    let name = name("skipped");
    let guard = manager(raw.url()).lock(&name).expect("free");
    let waiting = manager(raw.url());
    let waiter = waits_for(&waiting, &name);
    raw.wait_until_queued(&name, 1);
    let place = raw.queue(&name);
    fake_waiter(raw, &name, "lh1:stale:x", -10_000, "");
    fake_waiter(raw, &name, "lh1:unheard:x", 0, "leasehold:nobody");
    assert_eq!(raw.queue(&name).len(), 3);
    guard.release().expect("held");
    // In the very script of the release.
    let value = raw.get(&name);
    assert_eq!(value.as_deref(), Some(&*place[0]));
    waiter.join().expect("no panic").release().expect("held");
}

#[test]
fn whoever_polls_a_free_lock_gives_it_to_the_first_in_the_queue() {
    let raw = shared();
    let name = name("advance");
    let crashed = manager(raw.url()).lock(&name).expect("free");
    let waiting = manager(raw.url());
    let waiter = waits_for(&waiting, &name);
    raw.wait_until_queued(&name, 1);
    // It polls, and is not heard of again.
    fake_waiter(raw, &name, "lh1:first:x", 0, "");
    let () = raw.ask(&["DEL", &name]);
    wait_until("the poll gives it to the first", || {
        // However long the poll takes to come, the first was seen shortly before. Its claim window is long.
        note_waiter(raw, &name, "lh1:first:x", 0, 60_000, "");
        raw.get(&name)
            .is_some_and(|value| value == "lh1:first:x!" || value == "lh1:first:x")
    });
    // And after its claim window to the next.
    let () = raw.ask(&["DEL", &name]);
    waiter.join().expect("no panic").release().expect("held");
    drop(crashed);
}

// Rule 7: what can fail comes first. A refused channel:
// server_faults::without_its_channels_or_their_commands_a_user_polls_and_says_so_once.

#[test]
fn one_bad_key_in_a_batch_spoils_no_other_renewal() {
    let raw = shared();
    let locks = build(patient(raw.url()).lease(secs(12)));
    let names: Vec<String> = (0..5).map(|_| name("batch")).collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| locks.lock(name).expect("free"))
        .collect();
    let () = raw.ask(&["DEL", &names[2]]);
    let () = raw.ask(&["RPUSH", &names[2], "no lock"]);
    let told = guards[2].on_lost().recv_timeout(PATIENCE);
    assert_eq!(told.expect("told").cause, LostCause::Taken);
    for (index, name) in names.iter().enumerate() {
        if index != 2 {
            raw.wait_until_renewed(name, 2);
            guards[index].check().expect("it is renewed");
        }
    }
    let () = raw.ask(&["DEL", &names[2]]);
}

#[test]
fn full_memory_stops_neither_renewal_nor_release() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(patient(&server.url()).lease(secs(6)));
    let guard = locks.lock("n").expect("free");
    let owner = guard.owner().to_owned();
    let waiting = manager(&server.url());
    let waiter = waits_for(&waiting, "n");
    raw.wait_until_queued("n", 1);
    let () = raw.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    raw.wait_until_renewed("n", 2);
    guard.release().expect("held all the while");
    // Redis lets a script go on writing that has begun to; a server that does not would just have released it.
    let value = raw.get("n").unwrap_or_default();
    assert!(!value.starts_with(&owner), "{value}");
    assert!(matches!(
        locks.try_lock("m"),
        Err(Error::Unavailable { .. })
    ));
    let () = raw.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    waiter.join().expect("no panic").release().expect("held");
}

// Rule 8: renewal and plain release declare the lock's key alone: a unit test of the script module.
// Rule 9: mutex_loss::a_lost_tenure_lets_the_threads_behind_it_ask.
// Rule 10, of `extend`: mutex::extend_lengthens_and_never_shortens.

// Rule 13: a queued release outlives everything it was queued by.

#[test]
fn a_queued_release_outlives_its_manager() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(hasty(&server.url()));
    let guard = locks.lock("n").expect("free");
    server.pause();
    assert!(matches!(guard.release(), Err(Error::Unavailable { .. })));
    drop(locks);
    server.resume();
    wait_until("it is released", || !raw.exists("n"));
}

#[test]
fn close_says_whether_every_release_went_out() {
    let server = Server::start();
    let locks = build(hasty(&server.url()));
    let guard = locks.lock("n").expect("free");
    server.pause();
    drop(guard);
    assert!(!locks.close(ms(300)), "nothing can have gone out");
    server.resume();
    assert!(locks.close(PATIENCE));
    assert!(!server.raw().exists("n"));
}

// What an extension raised ends with the guard that asked for it.

#[test]
fn an_extension_is_not_passed_on() {
    let raw = shared();
    let name = name("extension");
    let locks = build(patient(raw.url()).lease(secs(20)));
    let guard = locks.lock(&name).expect("free");
    guard.extend(LONG).expect("extended");
    assert!(raw.ttl(&name).expect("it expires") > secs(500));
    thread::scope(|scope| {
        let next = asleep(scope, || locks.lock(&name));
        guard.release().expect("held");
        let next = next.join().expect("no panic").expect("its turn");
        assert!(raw.ttl(&name).expect("it expires") <= secs(20));
        next.release().expect("held");
    });
}

#[test]
fn an_extension_whose_answer_was_lost_leaves_no_orphan() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(LockManager::single(&server.url()).io_timeout(secs(1)));
    // So that the server knows the script.
    let warm = locks.lock("warm").expect("free");
    warm.extend(LONG).expect("extended");
    let short = locks.mutex("n").lease(secs(2)).renew(false);
    let guard = short.lock().expect("free");
    server.pause();
    let error = guard.extend(LONG).expect_err("no answer");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    server.resume();
    // It was carried out all the same: the key outlives the lease by far.
    wait_until("extended", || {
        raw.ttl("n").is_some_and(|ttl| ttl > secs(500))
    });
    wait_until("lost here", || guard.state() == LeaseState::Lost);
    assert!(raw.exists("n"));
    drop(guard);
    wait_until("released", || !raw.exists("n"));
}

#[test]
fn unused_fences_are_given_back_at_each_quantum() {
    let name = name("give-back");
    // A block of as many fences as there are microseconds in it.
    let locks = build(patient(shared().url()).quantum(LONG));
    let mut next = locks.lock(&name).expect("free");
    let mut fences = vec![next.fence()];
    for round in 0..4 {
        // Another lease each time, so that nothing is passed on: the tenure is taken over by the script.
        let handle = locks.mutex(&name).lease(secs(100 + round));
        next = thread::scope(|scope| {
            let waiter = asleep(scope, || handle.lock());
            next.release().expect("held");
            waiter.join().expect("no panic").expect("its turn")
        });
        fences.push(next.fence());
    }
    assert!(fences.is_sorted(), "{fences:?}");
    // They follow the server's clock: had one block been kept, they would be ten minutes ahead.
    let micros = u64::try_from(LONG.as_micros()).expect("it is small");
    assert!(fences[4] - fences[0] < micros / 2, "{fences:?}");
}

// A wait that is cut short fails no other.

#[test]
fn a_short_wait_does_not_fail_those_behind_it() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(LockManager::single(&server.url()).io_timeout(secs(20)));
    // So that the connections are there.
    drop(locks.lock("warm").expect("free"));
    let () = raw.ask(&["CLIENT", "PAUSE", "2000", "ALL"]);
    thread::scope(|scope| {
        let short = asleep(scope, || locks.try_lock_for("n", ms(1)));
        let patient = asleep(scope, || locks.lock("n"));
        let short = short.join().expect("no panic");
        assert!(matches!(short, Err(Error::Unavailable { .. })), "{short:?}");
        let guard = patient.join().expect("no panic").expect("it waited");
        guard.release().expect("held");
    });
}

// The fence goes on from the last one where the server's clock has been set back.

#[test]
fn fences_rise_though_the_clock_was_set_back() {
    let raw = shared();
    let name = name("clock");
    let [fence, ..] = companions_of(&name);
    let (seconds, micros): (u64, u64) = raw.ask(&["TIME"]);
    // As it stands after the clock was set back by an hour.
    let mut last = (seconds + 3600) * 1_000_000 + micros;
    let () = raw.ask(&["SET", &fence, &last.to_string(), "PX", "600000"]);
    let locks = manager(raw.url());
    for _ in 0..3 {
        let guard = locks.lock(&name).expect("free");
        assert_eq!(guard.fence(), last + 1);
        last = guard.fence();
        // Kept for its memory past its own time, not past the clock's.
        assert!(raw.ttl(&fence).expect("it expires") > secs(3600));
    }
    // And with a block of them, as a lock that is passed on takes.
    let guard = locks.lock(&name).expect("free");
    let mut last = guard.fence();
    thread::scope(|scope| {
        let next = [(); 3].map(|()| asleep(scope, || locks.lock(&name).map(|guard| guard.fence())));
        drop(guard);
        for next in next {
            let fence = next.join().expect("no panic").expect("its turn");
            assert!(fence > last);
            last = fence;
        }
    });
    // What was not used of the block was given back.
    let kept: String = raw.ask(&["GET", &fence]);
    assert_eq!(kept, last.to_string());
}
