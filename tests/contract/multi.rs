//! What only a multi-lock has: which of its names it holds while it waits, and its turns beside others that overlap with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Cancel, Error, LeaseState, LostCause, MultiGuard, MultiLock};
use leasehold_simulator::Topology;

use crate::matrix::{Subject, subject_bodies};
use crate::subject::{Holder, Kind, lost};
use crate::world::{Flag, Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "multi",
    &[Topology::Single],
    subject_bodies![
        a_multi_guard_has_one_state_and_one_extension,
        errors_of_the_largest_set_have_short_texts,
        a_set_of_too_many_names_is_refused_before_anything_is_sent,
        free_names_take_two_requests,
        one_name_is_a_mutex,
        a_multi_lock_holds_no_name_while_it_waits,
        a_key_of_another_type_keeps_no_other_name_from_its_release,
        a_wait_that_moved_to_another_queue_leaves_nothing_there,
        overlapping_multi_locks_all_get_their_turns,
        a_name_is_handed_over_at_once_if_an_earlier_name_is_held,
        a_multi_lock_killed_after_its_wake_up_blocks_no_waiter,
        a_name_is_kept_however_long_the_other_is_held,
        a_wait_that_ends_gives_its_kept_names_back_at_once,
        a_multi_lock_killed_while_it_keeps_a_name_costs_a_pickup_window,
        a_multi_lock_beside_long_holders_is_granted_within_three_fair_turns,
        one_name_is_granted_beside_multi_locks_that_never_pause,
    ],
);

/// The longest pickup window.
const WINDOW: Duration = secs(2);

fn taking(locks: &Locks, set: &MultiLock) -> Task<MultiGuard> {
    let set = set.clone();
    locks.thread(move || set.lock().expect("they become free"))
}

fn nothing_is_left(world: &World, names: &[&str]) {
    let redis = world.redis();
    for name in names {
        world.until("it is free", || !redis.exists(name));
        redis.wait_until_queued(name, 0);
    }
}

/// A multi-guard has one state, one remaining time and one extension for all names.
fn a_multi_guard_has_one_state_and_one_extension(world: &World) {
    let redis = world.redis();
    let names = ["a", "b", "c"];
    let locks = world.manager();
    let set = locks.multi(names).lease(secs(5)).renew(false);
    let guard = set.lock().expect("all are free");
    assert_eq!(guard.state(), LeaseState::Held);
    assert!(guard.remaining() > secs(4) && guard.remaining() <= secs(5));
    guard.extend(secs(100)).expect("it is held");
    // `extend` never shortens.
    guard.extend(secs(1)).expect("it is held");
    assert!(guard.remaining() > secs(99), "{:?}", guard.remaining());
    for (lease, name) in guard.leases().iter().zip(names) {
        assert_eq!(lease.owner(), guard.leases()[0].owner());
        assert_eq!(lease.remaining(), guard.remaining());
        assert!(redis.ttl(name) > Some(secs(99)));
    }
    let () = redis.ask(&["DEL", "b"]);
    assert_eq!(lost(guard.extend(secs(200))).cause, LostCause::Removed);
    assert_eq!(guard.state(), LeaseState::Lost);
    assert_eq!(guard.remaining(), Duration::ZERO);
}

fn accounts(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("account:{number}"))
}

/// Checks the texts of an error or a value. A name has at most 1,024 bytes.
fn is_short(texts: &[String]) {
    for text in texts {
        assert!(text.len() < 1_500, "{} bytes: {text}", text.len());
    }
}

fn errors_of_the_largest_set_have_short_texts(world: &World) {
    let locks = world.manager();
    let set = locks.multi(accounts(1_000)).lease(secs(10)).renew(false);
    let guard = set.lock().expect("all are free");
    is_short(&[
        format!("{set:?}"),
        format!("{guard:?}"),
        set.name().to_owned(),
    ]);
    assert!(
        set.name()
            .starts_with("account:0 + account:1 + account:10 + ")
    );
    assert!(set.name().ends_with(" more"), "{}", set.name());
    let other = world.manager().multi(accounts(1_000));
    let timeout = other.with(secs(1), |_| ()).expect_err("they are held");
    is_short(&[format!("{timeout:#}"), format!("{timeout:?}")]);
    world.pass(secs(10));
    let lost = lost(guard.release());
    is_short(&[lost.to_string(), format!("{lost:?}")]);
    world.stop_servers();
    let failed = set.lock().expect_err("nobody answers");
    is_short(&[format!("{failed:#}"), format!("{failed:?}")]);
}

fn a_set_of_too_many_names_is_refused_before_anything_is_sent(world: &World) {
    let locks = world.manager();
    let requests = locks.stats().requests;
    let set = locks.multi(accounts(20_000));
    let refused = set.lock().expect_err("too many names");
    assert!(
        matches!(
            refused,
            Error::Config {
                option: "names",
                ..
            }
        ),
        "{refused:?}"
    );
    is_short(&[
        format!("{refused:#}"),
        format!("{set:?}"),
        set.name().to_owned(),
    ]);
    let huge = locks.mutex("x".repeat(1 << 20));
    let refused = huge.lock().expect_err("no name");
    is_short(&[format!("{refused:?}"), format!("{huge:?}")]);
    assert_eq!(locks.stats().requests, requests);
}

fn free_names_take_two_requests(world: &World) {
    let locks = world.build(|it| it.lease(secs(5)).renew(false));
    let set = locks.multi(["a", "b", "c"]);
    // The first call connects and loads the scripts.
    drop(set.lock().expect("they are free"));
    let before = locks.stats().requests;
    drop(set.lock().expect("they are free"));
    assert_eq!(locks.stats().requests, before + 2);
}

fn one_name_is_a_mutex(world: &World) {
    let locks = world.manager();
    let set = locks.multi(["n"]);
    let guard = set.lock().expect("it is free");
    assert_eq!(guard.leases().len(), 1);
    assert!(locks.try_lock("n").expect("Redis replies").is_none());
    guard.release().expect("it is held");
    let held = locks.lock("n").expect("it is free");
    assert!(set.try_lock().expect("Redis replies").is_none());
    drop(held);
    assert!(set.try_lock().expect("Redis replies").is_some());
}

fn a_multi_lock_holds_no_name_while_it_waits(world: &World) {
    let redis = world.redis();
    let (one, other) = (world.manager(), world.manager());
    let names = ["a", "b", "c"];
    let set = other.multi(names);
    for busy in names {
        let held = one.lock(busy).expect("it is free");
        assert!(set.try_lock().expect("Redis replies").is_none());
        let waiting = taking(&other, &set);
        redis.wait_until_queued(busy, 1);
        for name in names.into_iter().filter(|name| *name != busy) {
            assert!(redis.queue(name).is_empty());
            assert!(one.try_lock(name).expect("Redis replies").is_some());
        }
        held.release().expect("it is held");
        waiting.end().release().expect("it is held");
        nothing_is_left(world, &names);
    }
}

fn a_key_of_another_type_keeps_no_other_name_from_its_release(world: &World) {
    let redis = world.redis();
    let names = ["a", "b", "c"];
    let guard = world.manager().multi(names).lock().expect("all are free");
    let () = redis.ask(&["DEL", "b"]);
    let () = redis.ask(&["RPUSH", "b", "no lock"]);
    lost(guard.release());
    nothing_is_left(world, &["a", "c"]);
}

fn a_wait_that_moved_to_another_queue_leaves_nothing_there(world: &World) {
    let redis = world.redis();
    let (one, other) = (world.manager(), world.manager());
    let names = ["a", "b", "c"];
    let [first, rest @ ..] = names.map(|name| one.lock(name).expect("it is free"));
    let set = other.multi(names);
    let waiting = [(); 3].map(|()| {
        let set = set.clone();
        other.thread(move || set.try_lock_for(secs(8)).map(|guard| guard.is_none()))
    });
    redis.wait_until_queued("a", 1);
    drop(first);
    redis.wait_until_queued("b", 1);
    for waiting in waiting {
        assert!(waiting.end().expect("Redis replies"));
    }
    drop(rest);
    nothing_is_left(world, &names);
}

/// Each set is in a ring with others, and gets names handed over that it cannot use yet.
fn overlapping_multi_locks_all_get_their_turns(world: &World) {
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let inside: Arc<[AtomicBool; 5]> = Arc::default();
    let managers = [(); 3].map(|()| world.manager());
    let threads: Vec<_> = (0..12)
        .map(|thread| {
            let (locks, inside) = (managers[thread % 3].clone(), Arc::clone(&inside));
            managers[thread % 3].thread(move || {
                for round in 0..10 {
                    // Half of the threads use the reverse order, and each round starts at another name.
                    let start = thread * 7 + round * 3;
                    // Some threads lock single names.
                    let count = if thread >= 9 { 1 } else { 2 + round % 2 };
                    let mut taken: Vec<_> = (0..count).map(|step| (start + step) % 5).collect();
                    if thread % 4 > 1 {
                        taken.reverse();
                    }
                    let set = locks.multi(taken.iter().map(|index| NAMES[*index]));
                    let guard = set.lock().expect("they become free");
                    let was_inside = |&index: &usize| inside[index].swap(true, Ordering::SeqCst);
                    assert!(!taken.iter().any(was_inside), "two threads are inside");
                    locks.world().pass(ms(1));
                    for &index in &taken {
                        inside[index].store(false, Ordering::SeqCst);
                    }
                    guard.release().expect("it was held until now");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(Task::end);
    nothing_is_left(world, &NAMES);
}

fn a_name_is_handed_over_at_once_if_an_earlier_name_is_held(world: &World) {
    let redis = world.redis();
    let (one, other) = (world.manager(), world.manager());
    let first = one.lock("b").expect("it is free");
    let set = taking(&other, &other.multi(["a", "b"]));
    redis.wait_until_queued("b", 1);
    let behind = Kind::Mutex.of(&world.manager(), "b").locking();
    redis.wait_until_queued("b", 2);
    let second = one.lock("a").expect("it is free");
    let released_at = world.now();
    first.release().expect("it is held");
    // The set is woken first, and hands the name over. A poll would come later.
    assert!(behind.locked_at() <= world.within(world.within(released_at)));
    redis.wait_until_queued("a", 1);
    behind.release();
    second.release().expect("it was held until now");
    set.end().release().expect("it is held");
    nothing_is_left(world, &["a", "b"]);
}

fn a_multi_lock_killed_after_its_wake_up_blocks_no_waiter(world: &World) {
    let redis = world.redis();
    let killed = world.manager();
    let first = world.manager().lock("a").expect("it is free");
    let set = killed.multi(["a", "b"]);
    killed.thread(move || drop(set.lock()));
    redis.wait_until_queued("a", 1);
    let behind = Kind::Mutex.of(&world.manager(), "a").locking();
    redis.wait_until_queued("a", 2);
    killed.pause();
    let released_at = world.now();
    first.release().expect("it is held");
    killed.kill();
    assert!(behind.locked_at() <= world.within(released_at + WINDOW));
    behind.release();
    nothing_is_left(world, &["a", "b"]);
}

/// A set that keeps its first name and waits for the second one, and a process behind it at the first name.
struct Keeping {
    owner: String,
    locks: Locks,
    set: Task<leasehold::Result<MultiGuard>>,
    behind: Holder,
    /// Holds the second name.
    second: Holder,
}

impl Keeping {
    fn start(world: &World, stop: &Cancel) -> Self {
        let redis = world.redis();
        let first = Kind::Mutex.of(&world.manager(), "a").hold();
        let second = Kind::Mutex.of(&world.manager(), "b").hold();
        let locks = world.manager();
        let set = locks.multi(["a", "b"]).cancel_with(stop);
        let set = locks.thread(move || set.lock());
        redis.wait_until_queued("a", 1);
        let owner = redis.queue("a").remove(0);
        let behind = Kind::Mutex.of(&world.manager(), "a").locking();
        redis.wait_until_queued("a", 2);
        first.release();
        redis.wait_until_queued("b", 1);
        assert_eq!(redis.holders("a")[0].0, owner);
        Self {
            owner,
            locks,
            set,
            behind,
            second,
        }
    }

    /// Checks that the process behind the set gets the first name, and that nothing is left.
    /// Returns the thread that waited for both names.
    fn assert_given_back_by(
        self,
        world: &World,
        at: Duration,
    ) -> Task<leasehold::Result<MultiGuard>> {
        assert!(self.behind.locked_at() <= world.within(at));
        self.behind.release();
        self.second.release();
        nothing_is_left(world, &["a", "b"]);
        self.set
    }
}

fn a_name_is_kept_however_long_the_other_is_held(world: &World) {
    let keeping = Keeping::start(world, &Cancel::new());
    for _ in 0..20 {
        world.pass(ms(500));
        assert_eq!(world.redis().holders("a")[0].0, keeping.owner);
    }
    keeping.second.release();
    let guard = keeping.set.end().expect("both are free");
    assert_eq!(guard.leases()[0].owner(), keeping.owner);
    guard.release().expect("it is held");
    keeping.behind.locked();
    keeping.behind.release();
    nothing_is_left(world, &["a", "b"]);
}

fn a_wait_that_ends_gives_its_kept_names_back_at_once(world: &World) {
    let stop = Cancel::new();
    let keeping = Keeping::start(world, &stop);
    let cancelled_at = world.now();
    stop.cancel();
    let ended = keeping.assert_given_back_by(world, cancelled_at).end();
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
}

fn a_multi_lock_killed_while_it_keeps_a_name_costs_a_pickup_window(world: &World) {
    let keeping = Keeping::start(world, &Cancel::new());
    let killed_at = world.now();
    keeping.locks.kill();
    drop(keeping.assert_given_back_by(world, killed_at + WINDOW));
}

/// A thread that locks and releases again and again.
fn busy(
    locks: &Locks,
    names: &[&str],
    stop: &Flag,
    turns: &Arc<AtomicU32>,
    held: Duration,
) -> Task<()> {
    let (set, stop, turns) = (locks.multi(names), stop.clone(), Arc::clone(turns));
    let world = locks.world().clone();
    locks.thread(move || {
        while !stop.is_raised() {
            let guard = set.lock().expect("they become free");
            turns.fetch_add(1, Ordering::SeqCst);
            world.pass(held);
            guard.release().expect("it is held");
        }
    })
}

/// Two processes take turns at each of two names, so a fair turn is two guards.
fn a_multi_lock_beside_long_holders_is_granted_within_three_fair_turns(world: &World) {
    const FAIR_TURN: u32 = 2;
    let (stop, turns) = (world.flag(), [(); 2].map(|()| Arc::<AtomicU32>::default()));
    let mut threads = Vec::new();
    // A guard lasts longer than a name may be kept without a further request.
    for (name, held) in [("a", 3_000), ("b", 4_100), ("a", 3_700), ("b", 3_300)] {
        let turns = &turns[usize::from(name == "b")];
        threads.push(busy(&world.manager(), &[name], &stop, turns, ms(held)));
    }
    let locks = world.manager();
    for _ in 0..3 {
        world.pass(secs(10));
        let counts = || turns.each_ref().map(|turns| turns.load(Ordering::SeqCst));
        let before = counts();
        let set = locks.multi(["a", "b"]).lock().expect("they become free");
        let passed = counts()
            .into_iter()
            .zip(before)
            .map(|(now, then)| now - then);
        let passed: Vec<_> = passed.collect();
        assert!(passed.iter().all(|it| *it <= 3 * FAIR_TURN), "{passed:?}");
        set.release().expect("it is held");
    }
    stop.raise();
    threads.into_iter().for_each(Task::end);
    nothing_is_left(world, &["a", "b"]);
}

/// Two multi-locks share their first name, and two others share theirs. All four have the last name in common, and
/// one of them is nearly always at the front there. The front and the rest of the queue take turns.
fn one_name_is_granted_beside_multi_locks_that_never_pause(world: &World) {
    let (stop, turns) = (world.flag(), Arc::<AtomicU32>::default());
    let sets = ["a", "a", "b", "b"].map(|first| {
        let locks = world.manager();
        busy(&locks, &[first, "z"], &stop, &turns, ms(300))
    });
    let locks = world.manager();
    for _ in 0..5 {
        world.pass(secs(2));
        let before = turns.load(Ordering::SeqCst);
        let guard = locks.lock("z").expect("it becomes free");
        let passed = turns.load(Ordering::SeqCst) - before;
        // Each of them may have asked before, and another one from the front may go before each.
        assert!(passed <= 8, "{passed} multi-locks went before it");
        guard.release().expect("it is held");
    }
    stop.raise();
    sets.into_iter().for_each(Task::end);
    nothing_is_left(world, &["a", "b", "z"]);
}
