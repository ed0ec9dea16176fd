//! The semaphore: how many permits are held, and in which order they are granted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use leasehold::{Error, LockManager, Permit, Semaphore};

use crate::support::{
    Child, PATIENCE, Raw, Server, Task, build, count, gave_up, manager, name, patient, secs,
    shared, task, task_asleep, unused_url, wait_until,
};

/// Longer than any test runs, so that no lease ends or is renewed during a test.
const LONG: Duration = Duration::from_mins(10);

/// Returns handles of different managers. To a lock, managers are like processes.
fn semaphores<const N: usize>(raw: &Raw, name: &str, permits: u32) -> [Semaphore; N] {
    [(); N].map(|()| manager(raw.url()).semaphore(name, permits))
}

#[track_caller]
fn acquiring(semaphore: &Semaphore, n: u32) -> Task<Permit> {
    let semaphore = semaphore.clone();
    task_asleep(move || semaphore.acquire_many(n).expect("they become free"))
}

#[test]
fn smoke() {
    let raw = shared();
    let name = name("sem");
    let [one, other] = semaphores(raw, &name, 3);
    let two = one.acquire_many(2).expect("it is free");
    let third = other.acquire().expect("it is free");
    assert_eq!((two.count(), third.count()), (2, 1));
    assert_ne!(two.fence(), third.fence());
    for semaphore in [&one, &other] {
        assert!(semaphore.try_acquire().expect("Redis replies").is_none());
    }
    third.release().expect("it is held");
    let third = one
        .try_acquire_for(PATIENCE)
        .expect("Redis replies")
        .expect("it is free");
    drop(two);
    assert!(other.try_acquire_many(3).expect("Redis replies").is_none());
    drop(third);
    assert!(!raw.exists(&name));
    drop(
        other
            .try_acquire_many(3)
            .expect("Redis replies")
            .expect("it is free"),
    );
}

#[test]
fn threads_and_processes_never_hold_more_permits_than_exist() {
    const PERMITS: u32 = 3;
    let raw = shared();
    let name = name("most");
    let mut children = [(); 2].map(|()| Child::start(raw.url(), ""));
    for child in &mut children {
        child.say(format_args!("count {name} {PERMITS} 6 15"));
    }
    let [here] = semaphores(raw, &name, PERMITS);
    let threads: Vec<_> = (0..6)
        .map(|_| {
            let (name, here) = (name.clone(), here.clone());
            task(move || count(shared(), &here, &name, 15))
        })
        .collect();
    let mut most: Vec<u32> = threads.into_iter().map(Task::end).collect();
    most.extend(children.map(|child| child.hear().parse::<u32>().expect("a number")));
    assert!(most.iter().all(|most| *most <= PERMITS), "{most:?}");
    assert_eq!(raw.get(&format!("{name}:out")).as_deref(), Some("0"));
    assert!(!raw.exists(&name));
    assert_eq!(raw.queue(&name), [""; 0]);
}

#[test]
fn the_permits_of_a_killed_holder_come_back_and_no_others() {
    let raw = shared();
    let name = name("killed");
    let [one, other] = semaphores(raw, &name, 3);
    let stays = one.clone().lease(LONG).acquire().expect("it is free");
    let mut child = Child::start(raw.url(), "lease_ms=2000");
    assert_eq!(child.ask(format_args!("permits {name} 2 3")), "kept");
    let two = acquiring(&other, 2);
    raw.wait_until_queued(&name, 1);
    child.kill();
    let two = two.end();
    assert_eq!(raw.shares(&name).len(), 2);
    assert!(one.try_acquire().expect("Redis replies").is_none());
    two.release().expect("it is held");
    stays.release().expect("it was held until now");
}

#[test]
fn a_renewal_of_some_permits_touches_no_others() {
    let raw = shared();
    let name = name("renewal");
    let [one, other] = semaphores(raw, &name, 3);
    let still = one.lease(LONG).renew(false).acquire().expect("it is free");
    let renewed = other.lease(secs(9)).acquire_many(2).expect("it is free");
    let end_of = |permit: &Permit| {
        let share = format!("{} {}", permit.count(), permit.owner());
        raw.shares(&name)[&share]
    };
    let (end, begun) = (end_of(&still), end_of(&renewed));
    wait_until("it is renewed", || end_of(&renewed) > begun);
    assert_eq!(end_of(&still), end);
}

#[test]
fn calls_for_many_permits_do_not_deadlock() {
    let raw = shared();
    let name = name("many");
    let managers = [manager(raw.url()), manager(raw.url())];
    let threads: Vec<_> = (0..8)
        .map(|index| {
            let semaphore = managers[index % 2].semaphore(&name, 4);
            let n = [3, 2, 4, 1][index / 2];
            task(move || {
                for _ in 0..15 {
                    let permit = semaphore.acquire_many(n).expect("they become free");
                    assert_eq!(permit.count(), n);
                    permit.release().expect("it is held");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(Task::end);
    assert!(!raw.exists(&name));
    assert_eq!(raw.queue(&name), [""; 0]);
}

#[test]
fn a_stream_of_small_calls_does_not_starve_a_large_call() {
    let raw = shared();
    let name = name("large");
    let [one, other, third] = semaphores(raw, &name, 4);
    // The large call is in a process without small calls, and then in one with them.
    for large in [&third, &one] {
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = [&one, &other]
            .into_iter()
            .cycle()
            .take(12)
            .map(|small| {
                let (small, stop) = (small.clone(), Arc::clone(&stop));
                task(move || {
                    // At least once: a thread may begin only when the large calls are served.
                    loop {
                        let permit = small.acquire().expect("it becomes free");
                        thread::yield_now();
                        permit.release().expect("it is held");
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            let large = large.clone();
            let all = task(move || large.acquire_many(4).map(drop));
            all.end().expect("they become free");
        }
        stop.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(Task::end);
    }
    assert!(!raw.exists(&name));
}

/// A rolling change from three permits to five: the old processes count against three, and the new ones against five.
#[test]
fn each_process_counts_permits_against_its_own_number() {
    let raw = shared();
    let name = name("differ");
    let three = manager(raw.url()).semaphore(&name, 3);
    let five = manager(raw.url()).semaphore(&name, 5);
    let old = three.acquire_many(3).expect("it is free");
    let new = five.acquire_many(2).expect("five are enough");
    assert!(five.try_acquire().expect("Redis replies").is_none());
    assert!(three.try_acquire().expect("Redis replies").is_none());
    // Nobody passes the first waiter, although there is room by the other's number.
    let waiting = acquiring(&three, 2);
    raw.wait_until_queued(&name, 1);
    let place = raw.queue(&name);
    new.release().expect("it is held");
    assert!(five.try_acquire().expect("Redis replies").is_none());
    assert_eq!(raw.queue(&name), place);
    old.release().expect("it is held");
    let waiting = waiting.end();
    let new = five.acquire_many(3).expect("two are in use");
    waiting.release().expect("it is held");
    new.release().expect("it is held");
    assert!(matches!(three.acquire_many(4), Err(Error::Config { .. })));
}

#[test]
fn a_reader_writer_lock_of_the_name_is_another_kind() {
    let raw = shared();
    let name = name("mixed");
    let locks = manager(raw.url());
    let (semaphore, lock) = (locks.semaphore(&name, 3), locks.rwlock(&name));
    let permit = semaphore.acquire().expect("it is free");
    assert!(matches!(lock.try_read(), Err(Error::WrongType { .. })));
    assert!(matches!(lock.write(), Err(Error::WrongType { .. })));
    assert!(matches!(locks.lock(&name), Err(Error::WrongType { .. })));
    permit.release().expect("it was held until now");
    let reader = lock.read().expect("it is free");
    assert!(matches!(
        semaphore.try_acquire(),
        Err(Error::WrongType { .. })
    ));
    reader.release().expect("it was held until now");
    assert!(!raw.exists(&name));
}

#[test]
fn processes_are_served_in_the_order_in_which_they_came() {
    let raw = shared();
    let name = name("order");
    let [holder, waiting @ ..] = semaphores::<6>(raw, &name, 2);
    let holding = holder.acquire_many(2).expect("it is free");
    let (sender, served) = channel();
    let tasks: Vec<_> = (1..)
        .zip(waiting)
        .map(|(number, semaphore)| {
            let sender = sender.clone();
            let task = task(move || {
                // All permits, so no other thread is served until this one is done.
                let permit = semaphore.acquire_many(2).expect("they become free");
                sender.send(number).expect("it is received");
                permit.release().expect("it is held");
            });
            raw.wait_until_queued(&name, number);
            task
        })
        .collect();
    drop((holding, sender));
    assert_eq!(served.iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    tasks.into_iter().for_each(Task::end);
}

#[test]
fn a_waiter_for_many_permits_goes_before_later_calls_until_it_dies() {
    let raw = shared();
    for hangs in [false, true] {
        let name = name("head");
        let [one, other] = semaphores(raw, &name, 4);
        let mut child = Child::start(raw.url(), "");
        let permit = one.clone().lease(LONG).acquire().expect("it is free");
        child.say(format_args!("permits {name} 4 4"));
        raw.wait_until_queued(&name, 1);
        // Three permits are free, but a waiter goes first.
        assert!(other.try_acquire().expect("Redis replies").is_none());
        let later = acquiring(&other, 3);
        raw.wait_until_queued(&name, 2);
        if hangs {
            child.pause();
        } else {
            child.kill();
        }
        assert_eq!(later.end().count(), 3);
        permit.release().expect("it was held until now");
    }
}

#[test]
fn a_waiter_that_gives_up_lets_in_the_waiters_behind_it() {
    let raw = shared();
    let name = name("gives-up");
    let [one, other, third] = semaphores(raw, &name, 4);
    let permit = one.acquire().expect("it is free");
    let large = task(move || other.try_acquire_many_for(4, secs(6)));
    raw.wait_until_queued(&name, 1);
    let behind = [acquiring(&third, 2), acquiring(&one, 1)];
    raw.wait_until_queued(&name, 3);
    gave_up(large);
    drop(behind.map(Task::end));
    permit.release().expect("it was held until now");
    assert!(!raw.exists(&name));
    assert_eq!(raw.queue(&name), [""; 0]);
}

#[test]
fn a_release_grants_every_waiter_that_its_permits_suffice_for() {
    let raw = shared();
    let name = name("enough");
    let [one, rest @ ..] = semaphores::<5>(raw, &name, 4);
    let all = one.acquire_many(4).expect("it is free");
    let waiting: Vec<_> = (1..)
        .zip(&rest)
        .zip([1, 2, 1, 1])
        .map(|((place, semaphore), n)| {
            let waiting = acquiring(semaphore, n);
            raw.wait_until_queued(&name, place);
            waiting
        })
        .collect();
    all.release().expect("it is held");
    // The script of the release granted them: four permits are held, and one call waits.
    assert_eq!(raw.shares(&name).len(), 3);
    assert_eq!(raw.queue(&name).len(), 1);
    for waiting in waiting {
        drop(waiting.end());
    }
}

#[test]
fn figures_that_make_no_sense_are_refused_before_anything_is_sent() {
    let locks = LockManager::single(&unused_url())
        .build_unchecked()
        .expect("nothing is sent");
    let refused = |semaphore: Semaphore, n: u32, figure: &str| {
        for answer in [
            semaphore.acquire_many(n).map(drop),
            semaphore.try_acquire_many(n).map(drop),
            semaphore.try_acquire_many_for(n, secs(1)).map(drop),
        ] {
            match answer {
                Err(error @ Error::Config { .. }) => {
                    assert!(error.to_string().contains(figure), "{error}");
                }
                other => panic!("not refused: {other:?}"),
            }
        }
    };
    refused(locks.semaphore("n", 3), 0, "n");
    refused(locks.semaphore("n", 3), 4, "4 of 3");
    refused(locks.semaphore("n", 3), u32::MAX, "n");
    refused(locks.semaphore("n", 0), 1, "permits");
    refused(locks.semaphore("n", u32::MAX), 1, "permits");
}

#[test]
fn the_largest_number_of_permits_is_served() {
    let raw = shared();
    let name = name("largest");
    let [one, other] = semaphores(raw, &name, u32::MAX - 1);
    let most = one.acquire_many(u32::MAX - 2).expect("it is free");
    let last = other.acquire().expect("one is left");
    assert!(other.try_acquire().expect("Redis replies").is_none());
    assert_eq!(most.count(), u32::MAX - 2);
    drop((most, last));
    drop(other.acquire_many(u32::MAX - 1).expect("it is free"));
    assert!(!raw.exists(&name));
}

#[test]
fn permits_go_from_thread_to_thread_with_few_commands() {
    const ALL: u32 = 6_400;
    let server = Server::start();
    let raw = server.raw();
    // The quantum is long, because the number of requests depends on the number of quanta. So the result does not
    // depend on the machine's speed.
    let semaphore = build(patient(&server.url()).quantum(LONG)).semaphore("n", 8);
    drop(semaphore.acquire().expect("it is free"));
    let before = raw.commands();
    let taken = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..64)
        .map(|_| {
            let (semaphore, taken) = (semaphore.clone(), Arc::clone(&taken));
            // The tasks begin together, because a thread that asks Redis for a ninth permit gets none that the others
            // hand on in memory.
            task(move || {
                while taken.fetch_add(1, Ordering::SeqCst) < ALL {
                    let permit = semaphore.acquire().expect("it becomes free");
                    thread::yield_now();
                    permit.release().expect("it is held");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(Task::end);
    let commands = raw.commands() - before;
    // Each permit would take two if none went from thread to thread. On a busy machine a permit may become free while
    // nobody waits for it.
    assert!(
        commands <= u64::from(ALL),
        "{commands} commands for {ALL} permits"
    );
    assert!(!raw.exists("n"));
}

#[test]
fn threads_that_want_different_numbers_are_all_served() {
    let raw = shared();
    let name = name("numbers");
    let [semaphore] = semaphores(raw, &name, 5);
    let all = semaphore.acquire_many(5).expect("it is free");
    let waiting: Vec<_> = (0..20)
        .map(|index| {
            let (semaphore, n) = (semaphore.clone(), 1 + index % 5);
            task(move || {
                let permit = semaphore.acquire_many(n).expect("they become free");
                assert_eq!(permit.count(), n);
                permit.release().expect("it is held");
            })
        })
        .collect();
    raw.wait_until_queued(&name, 1);
    drop(all);
    waiting.into_iter().for_each(Task::end);
    assert!(!raw.exists(&name));
    assert_eq!(raw.queue(&name), [""; 0]);
}

#[test]
fn a_thread_that_gives_up_hands_its_place_to_one_that_wants_another_number() {
    let raw = shared();
    let name = name("hands");
    let [one, other] = semaphores(raw, &name, 3);
    let all = one.acquire_many(3).expect("it is free");
    let first = task({
        let other = other.clone();
        move || other.try_acquire_many_for(3, secs(6))
    });
    raw.wait_until_queued(&name, 1);
    let place = raw.queue(&name);
    let second = acquiring(&other, 1);
    let third = acquiring(&other, 2);
    gave_up(first);
    wait_until("another thread asks in its place", || {
        let queue = raw.queue(&name);
        queue.len() == 1 && queue != place
    });
    drop(all);
    assert_eq!((second.end().count(), third.end().count()), (1, 2));
    assert!(!raw.exists(&name));
}

#[test]
fn a_permit_has_a_fence_of_its_own() {
    let raw = shared();
    let name = name("fences");
    let managers = [manager(raw.url()), manager(raw.url())];
    let threads: Vec<_> = (0..12)
        .map(|index| {
            let semaphore = managers[index % 2].semaphore(&name, 3);
            task(move || {
                [(); 20].map(|()| {
                    let permit = semaphore.acquire().expect("it becomes free");
                    let fence = permit.fence();
                    permit.release().expect("it is held");
                    fence
                })
            })
        })
        .collect();
    let mut fences: Vec<u64> = threads.into_iter().flat_map(Task::end).collect();
    let all = fences.len();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), all);
}

#[test]
fn its_debug_shows_its_permits() {
    let locks = LockManager::single(&unused_url()).build_unchecked();
    let semaphore = locks.expect("nothing is sent").semaphore("downloads", 8);
    let shown = format!("{semaphore:?}");
    assert!(shown.contains("\"downloads\""), "{shown}");
    assert!(shown.contains("permits: 8"), "{shown}");
}
