//! The multi-lock: all names or none, whatever other threads lock some of them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use leasehold::{
    Cancel, Error, Lease, LeaseState, LockGuard, LockManager, LostCause, MultiGuard, MultiLock,
    Result,
};

use crate::support::{
    Child, PATIENCE, Raw, Server, Task, build, fence_of, gave_up, locking, lost, manager, ms, name,
    patient, secs, shared, task, task_asleep, unused_url, wait_until,
};

/// Longer than any test runs, so that no lease ends or is renewed during a test.
const LONG: Duration = Duration::from_mins(10);

/// Returns names for one test, in their order.
fn names<const N: usize>(what: &str) -> [String; N] {
    let mut names = [(); N].map(|()| name(what));
    names.sort();
    names
}

#[track_caller]
fn taking(set: &MultiLock) -> Task<MultiGuard> {
    let set = set.clone();
    task_asleep(move || set.lock().expect("they become free"))
}

/// Releases the lock that the thread `behind` gets, and the second one. Checks that no key is left.
#[track_caller]
fn assert_all_released(
    behind: Task<Result<LockGuard>>,
    second: LockGuard,
    raw: &Raw,
    names: &[String],
) {
    let first = behind.end().expect("it is free");
    first.release().expect("it is held");
    second.release().expect("it is held");
    nothing_is_left(raw, names);
}

#[track_caller]
fn nothing_is_left(raw: &Raw, names: &[String]) {
    for name in names {
        wait_until("it is free", || !raw.exists(name));
        wait_until("nobody is in its queue", || raw.queue(name).is_empty());
    }
}

#[test]
fn smoke() {
    let raw = shared();
    let (one, other) = (manager(raw.url()), manager(raw.url()));
    let names = names::<3>("multi");
    let guard = one.multi([&names[2], &names[0], &names[1]]).lock();
    let guard = guard.expect("it is free");
    guard.check().expect("it is held");
    for name in &names {
        assert!(other.try_lock(name).expect("Redis replies").is_none());
    }
    let waiter = locking(&other.mutex(&names[1]));
    raw.wait_until_queued(&names[1], 1);
    guard.release().expect("it is held");
    waiter
        .end()
        .expect("it is free")
        .release()
        .expect("it is held");
    nothing_is_left(raw, &names);
}

#[test]
fn free_names_take_few_commands() {
    let server = Server::start();
    let raw = server.raw();
    // A renewal thread would send a script, too.
    let locks = build(patient(&server.url()).lease(LONG).renew(false));
    let set = locks.multi(["a", "b", "c"]);
    let counted = || {
        let stats = raw.stats();
        ["evalsha", "exists", "time", "set", "getrange", "del"]
            .map(|command| stats.get(command).copied().unwrap_or(0))
    };
    // The first call loads the scripts.
    drop(set.lock().expect("they are free"));
    let before = counted();
    drop(set.lock().expect("they are free"));
    let after = counted();
    let taken: Vec<_> = after.iter().zip(before).map(|(a, b)| a - b).collect();
    assert_eq!(taken, [2, 1, 1, 6, 3, 1]);
}

/// Lua passes at most 8,000 arguments to a command, and the short scripts pass all keys to one.
#[test]
fn a_set_may_have_thousands_of_names() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(patient(&server.url()).lease(LONG));
    for count in [2_000, 2_001, 10_000] {
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

#[test]
fn leases_stand_in_order_with_one_owner_and_a_fence_each() {
    let raw = shared();
    let locks = manager(raw.url());
    let names = names::<4>("leases");
    let before = names
        .each_ref()
        .map(|name| locks.lock(name).expect("it is free").fence());
    let set = locks.multi(names.iter().rev());
    for _ in 0..2 {
        let guard = set.lock().expect("it is free");
        let leases = guard.leases();
        let order: Vec<_> = leases.iter().map(Lease::name).collect();
        assert_eq!(order, names);
        for (lease, before) in leases.iter().zip(before) {
            assert_eq!(lease.owner(), leases[0].owner());
            assert_eq!(lease.state(), LeaseState::Held);
            assert!(lease.fence() > before);
            let stored: u64 = raw.ask(&["GET", &fence_of(lease.name())]);
            assert_eq!(lease.fence(), stored);
        }
        let last = leases[2].fence();
        guard.release().expect("it is held");
        assert!(locks.lock(&names[2]).expect("it is free").fence() > last);
    }
}

#[test]
fn one_name_is_a_mutex() {
    let raw = shared();
    let locks = manager(raw.url());
    let [name] = names("one");
    let set = locks.multi([&name]);
    let guard = set.lock().expect("it is free");
    assert_eq!(guard.leases().len(), 1);
    assert!(locks.try_lock(&name).expect("Redis replies").is_none());
    guard.release().expect("it is held");
    let held = locks.lock(&name).expect("it is free");
    assert!(set.try_lock().expect("Redis replies").is_none());
    drop(held);
    drop(set.try_lock().expect("Redis replies").expect("it is free"));
}

#[test]
fn a_name_twice_and_no_name_are_refused_before_anything_is_sent() {
    let locks = LockManager::single(&unused_url())
        .build_unchecked()
        .expect("nothing is sent");
    for names in [&["a", "b", "a"][..], &[]] {
        let set = locks.multi(names);
        for answer in [
            set.lock().map(drop),
            set.try_lock().map(drop),
            set.try_lock_for(secs(1)).map(drop),
            set.with(secs(1), |_| ()),
        ] {
            assert!(matches!(answer, Err(Error::Config { .. })), "{answer:?}");
        }
    }
    let unnamed = locks.multi(["a", ""]).lock();
    assert!(matches!(unnamed, Err(Error::InvalidName { .. })));
}

#[test]
fn a_multi_lock_holds_no_name_while_it_waits() {
    let raw = shared();
    let (one, other) = (manager(raw.url()), manager(raw.url()));
    for busy in 0..3 {
        let names = names::<3>("waits");
        let held = one.lock(&names[busy]).expect("it is free");
        let waiting = taking(&other.multi(&names));
        raw.wait_until_queued(&names[busy], 1);
        for (index, name) in names.iter().enumerate() {
            if index != busy {
                assert_eq!(raw.queue(name), [""; 0]);
                drop(
                    one.try_lock(name)
                        .expect("Redis replies")
                        .expect("not held"),
                );
            }
        }
        held.release().expect("it is held");
        waiting.end().release().expect("it is held");
        nothing_is_left(raw, &names);
    }
}

#[test]
fn a_failed_try_holds_nothing() {
    let raw = shared();
    let (one, other) = (manager(raw.url()), manager(raw.url()));
    let names = names::<3>("try");
    let held = one.lock(&names[2]).expect("it is free");
    let set = other.multi(&names);
    assert!(set.try_lock().expect("Redis replies").is_none());
    assert!(!raw.exists(&names[0]) && !raw.exists(&names[1]));
    assert_eq!(raw.queue(&names[2]), [""; 0]);
    drop(held);
    drop(set.try_lock().expect("Redis replies").expect("it is free"));
}

#[test]
fn a_timed_out_wait_leaves_nothing_in_any_queue() {
    let raw = shared();
    let (one, other) = (manager(raw.url()), manager(raw.url()));
    let names = names::<3>("in-vain");
    let held = names
        .each_ref()
        .map(|name| one.lock(name).expect("it is free"));
    let set = other.multi(&names);
    let waiting = [(); 3].map(|()| {
        let set = set.clone();
        task(move || set.try_lock_for(secs(8)))
    });
    raw.wait_until_queued(&names[0], 1);
    // The wait moves to the queue of the next name.
    let [first, rest @ ..] = held;
    drop(first);
    raw.wait_until_queued(&names[1], 1);
    for waiting in waiting {
        gave_up(waiting);
    }
    drop(rest);
    nothing_is_left(raw, &names);
}

/// Checks for each name that no other thread is inside.
fn alone(inside: &[AtomicBool], taken: &[usize]) {
    for &index in taken {
        assert!(
            !inside[index].swap(true, Ordering::SeqCst),
            "two threads are inside"
        );
    }
    thread::yield_now();
    for &index in taken {
        inside[index].store(false, Ordering::SeqCst);
    }
}

#[test]
fn overlapping_multi_locks_all_get_their_turns() {
    const NAMES: usize = 5;
    let raw = shared();
    let names = Arc::new(names::<NAMES>("overlap"));
    let inside: Arc<[AtomicBool; NAMES]> = Arc::default();
    let managers = [manager(raw.url()), manager(raw.url())];
    let threads: Vec<_> = (0..12)
        .map(|thread| {
            let locks = managers[thread % 2].clone();
            let (names, inside) = (Arc::clone(&names), Arc::clone(&inside));
            task(move || {
                for round in 0..15 {
                    // Half of the threads use the reverse order, and each round starts at another name.
                    let start = thread * 7 + round * 3;
                    let mut taken: Vec<_> = (0..2 + round % 2)
                        .map(|step| (start + step) % NAMES)
                        .collect();
                    if thread % 4 > 1 {
                        taken.reverse();
                    }
                    if thread >= 8 {
                        // Some threads lock single names.
                        let index = taken[0];
                        let guard = locks.lock(&names[index]).expect("it becomes free");
                        alone(&*inside, &[index]);
                        guard.release().expect("it was held until now");
                        continue;
                    }
                    let set = locks.multi(taken.iter().map(|index| &names[*index]));
                    let guard = set.lock().expect("they become free");
                    alone(&*inside, &taken);
                    guard.release().expect("it was held until now");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(Task::end);
    nothing_is_left(raw, &*names);
}

#[test]
fn a_name_is_handed_over_at_once_if_an_earlier_name_is_held() {
    let raw = shared();
    let (one, other) = (manager(raw.url()), manager(raw.url()));
    let names = names::<2>("passes-on");
    let first = one.lock(&names[1]).expect("it is free");
    let set = taking(&other.multi(&names));
    raw.wait_until_queued(&names[1], 1);
    let mut behind = Child::start(raw.url(), "");
    behind.say(format_args!("lock {}", names[1]));
    raw.wait_until_queued(&names[1], 2);
    let place = raw.queue(&names[1])[1].clone();
    let second = one.lock(&names[0]).expect("it is free");
    // The process behind hangs, so it does not poll. Only the multi-lock can have handed the name over to it, and at
    // once.
    behind.pause();
    first.release().expect("it is held");
    wait_until("it goes to the one behind", || {
        raw.owner(&names[1]).is_some_and(|owner| owner == place)
    });
    raw.wait_until_queued(&names[0], 1);
    behind.resume();
    behind.locked();
    assert_eq!(behind.ask(format_args!("release {}", names[1])), "released");
    second.release().expect("it was held until now");
    set.end().release().expect("it is held");
    nothing_is_left(raw, &names);
}

#[test]
fn a_multi_lock_killed_after_its_wake_up_blocks_no_waiter() {
    let raw = shared();
    let (one, other) = (manager(raw.url()), manager(raw.url()));
    let names = names::<2>("told-dead");
    let first = one.lock(&names[0]).expect("it is free");
    let mut child = Child::start(raw.url(), "");
    child.say(format_args!("multi {} {}", names[0], names[1]));
    raw.wait_until_queued(&names[0], 1);
    let behind = locking(&other.mutex(&names[0]));
    raw.wait_until_queued(&names[0], 2);
    child.pause();
    first.release().expect("it is held");
    raw.wait_until_queued(&names[0], 0);
    child.kill();
    behind
        .end()
        .expect("it is free")
        .release()
        .expect("it is held");
    nothing_is_left(raw, &names);
}

#[test]
fn a_killed_holder_delays_others_by_its_lease() {
    let raw = shared();
    let locks = manager(raw.url());
    let names = names::<2>("killed");
    let mut child = Child::start(raw.url(), "lease_ms=2000");
    let command = format!("multi {} {}", names[0], names[1]);
    assert_eq!(child.ask(command), "kept");
    let set = taking(&locks.multi(&names));
    let other = manager(raw.url());
    // Either of them may be granted first.
    let mutex = task({
        let name = names[1].clone();
        move || other.lock(&name).and_then(LockGuard::release)
    });
    raw.wait_until_queued(&names[0], 1);
    raw.wait_until_queued(&names[1], 1);
    child.kill();
    set.end().release().expect("it is held");
    mutex.end().expect("it came free, and was held");
    nothing_is_left(raw, &names);
}

#[test]
fn the_loss_of_one_name_loses_all_and_frees_the_others() {
    let raw = shared();
    let locks = manager(raw.url());
    let other = manager(raw.url());
    let names = names::<3>("loss");
    let set = locks.multi(&names).lease(secs(9));
    let guard = set.lock().expect("it is free");
    let told = guard.on_lost();
    let each: Vec<_> = guard.leases().iter().map(Lease::on_lost).collect();
    let () = raw.ask(&["DEL", &names[1]]);
    let taken = other.lock(&names[1]).expect("it is free");
    let cause = told.recv_timeout(PATIENCE).expect("notified").cause;
    assert_eq!(cause, LostCause::Taken);
    for (told, name) in each.iter().zip(&names) {
        let lost = told.recv_timeout(PATIENCE).expect("notified");
        assert_eq!((&*lost.name, lost.cause), (&**name, LostCause::Taken));
    }
    lost(guard.check());
    for lease in guard.leases() {
        assert_eq!(lease.state(), LeaseState::Lost);
    }
    lost(guard.release());
    for name in [&names[0], &names[2]] {
        drop(other.lock(name).expect("freed"));
    }
    taken.release().expect("it is another's");
}

#[test]
fn an_extension_covers_all_names() {
    let raw = shared();
    let names = names::<3>("extended");
    let set = manager(raw.url()).multi(&names).lease(secs(20));
    let guard = set.lock().expect("it is free");
    guard.leases()[1].extend(LONG).expect("extended");
    for (name, lease) in names.iter().zip(guard.leases()) {
        assert!(raw.ttl(name).expect("it expires") >= LONG);
        assert!(lease.remaining() >= LONG / 2);
    }
    let () = raw.ask(&["DEL", &names[2]]);
    lost(guard.leases()[0].extend(LONG * 2));
    lost(guard.release());
    nothing_is_left(raw, &names[..2]);
}

#[test]
fn the_next_thread_with_the_same_names_takes_the_lock_over() {
    let raw = shared();
    let locks = manager(raw.url());
    let names = names::<2>("same");
    let set = locks.multi(&names);
    let guard = set.lock().expect("it is free");
    let fences: Vec<_> = guard.leases().iter().map(Lease::fence).collect();
    let next = [taking(&set), taking(&locks.multi(names.iter().rev()))];
    guard.release().expect("it is held");
    let mut last = fences;
    for next in next {
        let guard = next.end();
        let fences: Vec<_> = guard.leases().iter().map(Lease::fence).collect();
        assert!(fences.iter().zip(&last).all(|(fence, last)| fence > last));
        last = fences;
        guard.release().expect("it is held");
    }
    nothing_is_left(raw, &names);
}

#[test]
fn with_runs_a_closure_under_all_names() {
    let raw = shared();
    let (one, other) = (manager(raw.url()), manager(raw.url()));
    let names = names::<2>("closure");
    let set = one.multi(&names);
    let ran = set.with(secs(10), |leases| {
        let timeout = other.multi([&names[1]]).with(ms(100), |_| ());
        // On a busy machine the last request may get no reply.
        assert!(
            matches!(
                timeout,
                Err(Error::Timeout { .. } | Error::Unavailable { .. })
            ),
            "{timeout:?}"
        );
        leases.len()
    });
    assert_eq!(ran.expect("it is free"), 2);
    nothing_is_left(raw, &names);
}

#[test]
fn a_name_of_another_kind_fails_the_call_before_any_name_is_locked() {
    let raw = shared();
    let locks = manager(raw.url());
    let names = names::<3>("kind");
    let () = raw.ask(&["RPUSH", &names[1], "no lock"]);
    let error = locks.multi(&names).lock().expect_err("no lock");
    assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
    assert!(!raw.exists(&names[0]) && !raw.exists(&names[2]));
    let () = raw.ask(&["DEL", &names[1]]);
}

/// A multi-guard has one state, one remaining time and one extension for all names.
#[test]
fn a_multi_guard_has_one_state_and_one_extension() {
    let redis = shared();
    let (locks, name) = (manager(redis.url()), name("set"));
    let names = ["a", "b", "c"].map(|end| format!("{name}:{end}"));
    let set = locks.multi(&names).lease(secs(5)).renew(false);
    let guard = set.lock().expect("all are free");
    assert_eq!(guard.state(), LeaseState::Held);
    assert!(guard.remaining() > secs(1) && guard.remaining() <= secs(5));
    guard.extend(secs(100)).expect("it is held");
    assert!(guard.remaining() > secs(99), "{:?}", guard.remaining());
    for (lease, name) in guard.leases().iter().zip(&names) {
        assert!(lease.remaining() > secs(99), "{lease:?}");
        assert!(redis.ttl(name).expect("it expires") > secs(99));
    }
    // `extend` never shortens.
    guard.extend(secs(1)).expect("it is held");
    assert!(guard.remaining() > secs(90), "{:?}", guard.remaining());
    let () = redis.ask(&["DEL", &names[1]]);
    assert_eq!(lost(guard.extend(secs(200))).cause, LostCause::Removed);
    assert_eq!(guard.state(), LeaseState::Lost);
    assert_eq!(guard.remaining(), Duration::ZERO);
}

/// Returns a manager whose pickup window is longer than any test waits, so that a busy machine ends none.
fn with_a_long_window() -> LockManager {
    let builder = LockManager::single(shared().url());
    let locks = builder.io_timeout(PATIENCE).lease(LONG).build();
    locks.expect("the server is there")
}

/// Returns the owner that holds a name, or nothing.
fn holder(raw: &Raw, name: &str) -> Option<String> {
    let value = raw.get(name)?;
    Some(value.trim_end_matches('!').to_owned())
}

/// Waits until `owner` has polled twice in the queue of a name. That takes longer than a name may be kept without a
/// further request.
#[track_caller]
fn polls_twice(raw: &Raw, name: &str, owner: &str) {
    for _ in 0..2 {
        raw.wait_until_polled(name, owner);
    }
}

#[test]
fn a_name_is_kept_however_long_the_other_is_held() {
    let raw = shared();
    let managers = [(); 4].map(|()| with_a_long_window());
    let names = names::<2>("kept");
    let first = managers[0].lock(&names[0]).expect("it is free");
    let second = managers[1].lock(&names[1]).expect("it is free");
    let set = taking(&managers[2].multi(&names));
    raw.wait_until_queued(&names[0], 1);
    let owner = raw.queue(&names[0]).remove(0);
    let behind = locking(&managers[3].mutex(&names[0]));
    raw.wait_until_queued(&names[0], 2);
    first.release().expect("it is held");
    raw.wait_until_queued(&names[1], 1);
    for _ in 0..3 {
        polls_twice(raw, &names[1], &owner);
        assert_eq!(holder(raw, &names[0]).as_ref(), Some(&owner));
    }
    second.release().expect("it is held");
    let guard = set.end();
    assert_eq!(guard.leases()[0].owner(), owner);
    guard.release().expect("it is held");
    behind
        .end()
        .expect("it is free")
        .release()
        .expect("it is held");
    nothing_is_left(raw, &names);
}

/// Two processes take turns at each of two names, so a fair turn is two guards. Each guard lasts until the multi-lock
/// has polled twice.
#[test]
fn a_multi_lock_beside_long_holders_is_granted_within_three_fair_turns() {
    const FAIR_TURN: usize = 2;
    let raw = shared();
    let managers = [[(); 2]; 2].map(|pair| pair.map(|()| with_a_long_window()));
    let names = names::<2>("turns");
    let mut held = [0, 1].map(|at| Some(managers[at][0].lock(&names[at]).expect("it is free")));
    let mut waits = [0, 1].map(|at| locking(&managers[at][1].mutex(&names[at])));
    for name in &names {
        raw.wait_until_queued(name, 1);
    }
    let set = taking(&with_a_long_window().multi(&names));
    raw.wait_until_queued(&names[0], 2);
    let owner = raw.queue(&names[0]).remove(1);
    let is_set = |at: usize| holder(raw, &names[at]).is_some_and(|holder| holder == owner);
    let place = || names.iter().find(|name| raw.queue(name).contains(&owner));
    let mut turns = [0; 2];
    let mut at = 0;
    while !(is_set(0) && is_set(1)) {
        if let Some(guard) = held[at].take() {
            guard.release().expect("it is held");
            wait_until("the multi-lock queues, or has all names", || {
                place().is_some() || is_set(0) && is_set(1)
            });
        }
        if !is_set(at) {
            turns[at] += 1;
            assert!(turns[at] <= 3 * FAIR_TURN, "{turns:?}");
            // The process that released the name waits again.
            let released = &managers[at][(turns[at] - 1) % 2];
            let next = std::mem::replace(&mut waits[at], locking(&released.mutex(&names[at])));
            held[at] = Some(next.end().expect("it is handed over"));
        }
        if let Some(name) = place() {
            polls_twice(raw, name, &owner);
        }
        at ^= 1;
    }
    set.end().release().expect("it is held");
    for wait in waits {
        wait.end()
            .expect("it is free")
            .release()
            .expect("it is held");
    }
    nothing_is_left(raw, &names);
}

/// Two multi-locks share their first name, and two others share theirs. All four have the last name in common, and
/// one of them is always at the front there.
#[test]
fn one_name_is_granted_within_three_turns_of_multi_locks() {
    let raw = shared();
    let [a, b, z] = names("beside-sets");
    let locks = with_a_long_window();
    let held = [&a, &b].map(|name| locks.lock(name).expect("it is free"));
    let (go, turns) = channel::<()>();
    let turns = Arc::new(Mutex::new(turns));
    let entered = Arc::new(AtomicUsize::new(0));
    let sets = [&a, &a, &b, &b].map(|first| {
        let set = with_a_long_window().multi([first, &z]);
        let (turns, entered) = (Arc::clone(&turns), Arc::clone(&entered));
        task(move || {
            let mut goes_on = true;
            while goes_on {
                let guard = set.lock().expect("they become free");
                entered.fetch_add(1, Ordering::SeqCst);
                goes_on = turns.lock().expect("no panic").recv().is_ok();
                guard.release().expect("it is held");
            }
        })
    });
    raw.wait_until_queued(&a, 2);
    raw.wait_until_queued(&b, 2);
    drop(held);
    let mut last = 0;
    for _ in 0..3 {
        raw.wait_until_queued(&z, 1);
        wait_until("a multi-lock is granted", || {
            entered.load(Ordering::SeqCst) == last + 1
        });
        let is_in = Arc::new(AtomicBool::new(false));
        let single = task({
            let (lock, is_in) = (locks.mutex(&z), Arc::clone(&is_in));
            move || {
                let guard = lock.lock().expect("it becomes free");
                is_in.store(true, Ordering::SeqCst);
                guard
            }
        });
        raw.wait_until_queued(&z, 2);
        let before = last;
        while !is_in.load(Ordering::SeqCst) {
            last += 1;
            assert!(last <= before + 3, "it starves");
            go.send(()).expect("somebody receives it");
            wait_until(
                "a multi-lock is granted, with another behind it, or the other",
                || {
                    let set_is_in = entered.load(Ordering::SeqCst) == last + 1;
                    is_in.load(Ordering::SeqCst) || set_is_in && raw.queue(&z).len() == 2
                },
            );
        }
        drop(single.end());
    }
    drop(go);
    sets.into_iter().for_each(Task::end);
    nothing_is_left(raw, &[a, b, z]);
}

#[test]
fn a_wait_that_ends_gives_its_kept_names_back_at_once() {
    let raw = shared();
    let managers = [(); 4].map(|()| with_a_long_window());
    let names = names::<2>("given-back");
    let first = managers[0].lock(&names[0]).expect("it is free");
    let second = managers[1].lock(&names[1]).expect("it is free");
    let stop = Cancel::new();
    let set = managers[3].multi(&names).cancel_with(&stop);
    let set = task(move || set.lock());
    raw.wait_until_queued(&names[0], 1);
    let owner = raw.queue(&names[0]).remove(0);
    let behind = locking(&managers[2].mutex(&names[0]));
    raw.wait_until_queued(&names[0], 2);
    first.release().expect("it is held");
    raw.wait_until_queued(&names[1], 1);
    assert_eq!(holder(raw, &names[0]), Some(owner));
    stop.cancel();
    assert!(matches!(set.end(), Err(Error::Cancelled)));
    assert_all_released(behind, second, raw, &names);
}

#[test]
fn a_multi_lock_killed_while_it_keeps_a_name_costs_a_pickup_window() {
    let raw = shared();
    let managers = [(); 3].map(|()| with_a_long_window());
    let names = names::<2>("kept-dead");
    let first = managers[0].lock(&names[0]).expect("it is free");
    let second = managers[1].lock(&names[1]).expect("it is free");
    let mut child = Child::start(raw.url(), "");
    child.say(format_args!("multi {} {}", names[0], names[1]));
    raw.wait_until_queued(&names[0], 1);
    let behind = locking(&managers[2].mutex(&names[0]));
    raw.wait_until_queued(&names[0], 2);
    first.release().expect("it is held");
    raw.wait_until_queued(&names[1], 1);
    child.kill();
    let left = raw.ttl(&names[0]);
    // The pickup window of a child is longer than the default.
    assert!(left.is_none_or(|left| left <= PATIENCE / 2), "{left:?}");
    assert_all_released(behind, second, raw, &names);
}
