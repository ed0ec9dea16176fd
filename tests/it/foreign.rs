//! Other clients of the same keys. They lock by `SET name value NX PX ttl`, release by compare-and-delete, and wait
//! by polling. One set of tests is expanded for each client. Neither side ever breaks the other's lock.
//!
//! Two of the clients, node-redlock and rslock, can lock a majority of several servers. `quorum` has a second set of tests
//! for them.

mod bare;
mod node_redlock;
mod pauses;
mod program;
mod published;
mod python_redis_lock;
mod quorum;
mod redis_py;
mod rslock;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use leasehold::{Error, LeaseState, LockManager, LostCause};

use crate::support::{
    self, Child, Holder, Kind, PATIENCE, Raw, Server, Task, locking, locking_asleep, lost, manager,
    ms, patient, secs, shared, task, wait_in_vain, wait_until,
};

/// Longer than any test runs.
const LONG: Duration = Duration::from_mins(10);

/// The prefix of each name. python-redis-lock puts it in front of its keys, and the other clients leave their names alone.
const PREFIX: &str = "lock:";

/// Returns a name that no other test, process or run uses.
fn name(what: &str) -> String {
    PREFIX.to_owned() + &support::name(what)
}

/// Another client of one lock.
trait Foreign: Send + 'static {
    fn new(redis: &Raw, name: &str) -> Self;

    /// Tries to take the lock once, without an expiry if `ttl` is `None`.
    fn try_acquire(&mut self, ttl: Option<Duration>) -> bool;

    /// Sets the time to live. Returns `false` if this client no longer holds the lock.
    fn extend(&mut self, ttl: Duration) -> bool;

    /// Releases the lock. Returns `false` if this client no longer holds it.
    fn release(&mut self) -> bool;

    /// Blocks until this client has the lock.
    fn acquire(&mut self, ttl: Duration) {
        poll(self, ttl);
    }
}

/// Tries again and again until the client has the lock.
fn poll(foreign: &mut (impl Foreign + ?Sized), ttl: Duration) {
    wait_until("another client has its turn", || {
        foreign.try_acquire(Some(ttl))
    });
}

/// Calls `tests!` with the name of each test of one server.
macro_rules! each {
    ($tests:ident) => {
        $tests! { on_one_server:
            ours_excludes_theirs
            theirs_excludes_ours
            theirs_is_not_touched_while_ours_waits
            theirs_that_expires_is_taken_over_and_cannot_come_back
            ours_that_expires_is_taken_over_and_cannot_come_back
            ours_that_was_stopped_past_its_lease_leaves_theirs_alone
            theirs_does_not_overtake_waiters_for_ours
            a_multi_lock_waits_for_theirs_and_then_keeps_it_out
            both_sides_together_lose_no_update
        }
    };
}

/// Does the same with the tests of clients that can lock without an expiry.
macro_rules! each_without_expiry {
    ($tests:ident) => {
        $tests! { on_one_server:
            theirs_without_an_expiry_is_waited_for_and_given_none
        }
    };
}

use {each, each_without_expiry};

use program::Program;
use quorum::{
    a_majority_excludes_the_other_side_and_a_minority_does_not, each_on_a_quorum,
    losing_two_of_five_nodes, on_five_nodes, on_three_of_five_nodes,
    ours_excludes_theirs_on_a_quorum, ours_keeps_its_lock_and_excludes_theirs,
    theirs_keeps_its_lock_and_excludes_ours,
};

/// Runs a test on a server that other tests use too.
fn on_one_server(test: fn(&Raw)) {
    test(shared());
}

/// Returns the value of the key on each node. Some of these clients write bytes that are no text.
fn values(redis: &Raw, name: &str) -> Vec<Option<Vec<u8>>> {
    let nodes = redis.nodes();
    nodes.iter().map(|node| node.ask(&["GET", name])).collect()
}

/// Returns the value of the key, or `None` if the nodes do not all have the same.
fn value(redis: &Raw, name: &str) -> Option<Vec<u8>> {
    let values = values(redis, name);
    let is_same = values.iter().all(|value| *value == values[0]);
    values[0].clone().filter(|_| is_same)
}

/// Checks that an owner of ours has a majority of the nodes. Its value has a mark if another owner is in the queue there,
/// perhaps an earlier one of the same wait.
#[track_caller]
fn assert_holds(redis: &Raw, name: &str, owner: &str) {
    let marked = format!("{owner}!");
    let values = values(redis, name);
    let is_ours = |value: &&Vec<u8>| [owner, &marked].map(str::as_bytes).contains(&&value[..]);
    let votes = values.iter().flatten().filter(is_ours).count();
    assert!(votes > values.len() / 2, "{values:?}");
}

/// Blocks until the client, which holds the lock, holds it on every node. Returns its value.
fn held_everywhere(foreign: &mut impl Foreign, redis: &Raw, name: &str) -> Option<Vec<u8>> {
    let mut found = None;
    wait_until("each node has granted it", || {
        found = value(redis, name);
        if found.is_none() {
            foreign.release();
            foreign.acquire(LONG);
        }
        found.is_some()
    });
    found
}

fn ours_excludes_theirs<F: Foreign>(redis: &Raw) {
    let name = name("ours");
    let mut foreign = F::new(redis, &name);
    let guard = manager(redis.url()).lock(&name).expect("it is free");
    assert!(!foreign.try_acquire(Some(secs(1))));
    // The mark for waiters does not change who holds the lock.
    let waiters = [1, 2].map(|queued| {
        let waiter = Kind::Mutex.of(&manager(redis.url()), &name).locking();
        redis.wait_until_queued(&name, queued);
        waiter
    });
    let marked = format!("{}!", guard.owner());
    assert_eq!(redis.get(&name), Some(marked));
    assert!(!foreign.try_acquire(Some(secs(1))));
    guard.release().expect("it was held until now");
    // The release handed the lock over to one of the waiters.
    for waiter in waiters {
        assert!(!foreign.try_acquire(Some(secs(1))));
        waiter.locked();
        assert!(!foreign.try_acquire(Some(secs(1))));
        waiter.release();
    }
    assert!(foreign.try_acquire(Some(LONG)));
    assert!(foreign.release());
}

fn theirs_excludes_ours<F: Foreign>(redis: &Raw) {
    let name = name("theirs");
    let locks = manager(redis.url());
    let mut foreign = F::new(redis, &name);
    foreign.acquire(LONG);
    assert!(locks.try_lock(&name).expect("Redis replies").is_none());
    wait_in_vain(|| locks.try_lock_for(&name, ms(600)));
    assert!(foreign.release());
    assert!(locks.try_lock(&name).expect("Redis replies").is_some());
}

/// Makes several waits for a lock of theirs: two threads of one process, and another process.
fn waiting(redis: &Raw, name: &str) -> Vec<Task<leasehold::Result<()>>> {
    let locks = manager(redis.url());
    let waiters = vec![
        locking(&locks.mutex(name)),
        locking_asleep(&locks.mutex(name)),
        locking(&manager(redis.url()).mutex(name)),
    ];
    redis.wait_until_queued(name, 2);
    // Each guard is released on its own thread. Otherwise the first would block the others.
    let ending = |wait: Task<leasehold::Result<_>>| task(move || wait.end().map(drop));
    waiters.into_iter().map(ending).collect()
}

fn theirs_is_not_touched_while_ours_waits<F: Foreign>(redis: &Raw) {
    let name = name("untouched");
    let mut foreign = F::new(redis, &name);
    foreign.acquire(LONG);
    let theirs = held_everywhere(&mut foreign, redis, &name);
    let ends = waiting(redis, &name);
    for owner in redis.queue(&name) {
        redis.wait_until_polled(&name, &owner);
        assert_eq!(value(redis, &name), theirs, "its value was changed");
    }
    assert!(redis.ttl(&name) <= Some(LONG), "it was lengthened");
    // The other client still recognizes its own lock.
    assert!(foreign.extend(LONG * 2));
    assert!(redis.ttl(&name) > Some(LONG));
    // The other client publishes nothing, so a poll finds the lock free.
    assert!(foreign.release());
    for end in ends {
        end.end().expect("it becomes free");
    }
}

fn theirs_without_an_expiry_is_waited_for_and_given_none<F: Foreign>(redis: &Raw) {
    let name = name("no-expiry");
    let mut foreign = F::new(redis, &name);
    assert!(foreign.try_acquire(None));
    let theirs = value(redis, &name);
    let ends = waiting(redis, &name);
    for owner in redis.queue(&name) {
        redis.wait_until_polled(&name, &owner);
        let ttl: i64 = redis.ask(&["PTTL", &name]);
        assert_eq!(ttl, -1, "it was given an expiry");
        assert_eq!(value(redis, &name), theirs, "its value was changed");
    }
    assert!(foreign.release());
    for end in ends {
        end.end().expect("it becomes free");
    }
}

fn theirs_that_expires_is_taken_over_and_cannot_come_back<F: Foreign>(redis: &Raw) {
    let name = name("expires");
    let locks = manager(redis.url());
    let mut foreign = F::new(redis, &name);
    foreign.acquire(ms(400));
    let guard = locks.try_lock_for(&name, PATIENCE).expect("Redis replies");
    let guard = guard.expect("it becomes free");
    assert_holds(redis, &name, guard.owner());
    // The other client still believes that it holds the lock.
    assert!(!foreign.extend(LONG));
    assert!(!foreign.release());
    assert_holds(redis, &name, guard.owner());
    assert!(redis.ttl(&name) <= Some(secs(30)));
    guard.release().expect("it was held until now");
}

fn ours_that_expires_is_taken_over_and_cannot_come_back<F: Foreign>(redis: &Raw) {
    let name = name("lapses");
    let locks = manager(redis.url());
    let unrenewed = locks.mutex(&name).lease(secs(3)).renew(false);
    let guard = unrenewed.lock().expect("it is free");
    let mut foreign = F::new(redis, &name);
    foreign.acquire(LONG);
    assert_eq!(guard.state(), LeaseState::Lost, "two hold it");
    let theirs = held_everywhere(&mut foreign, redis, &name);
    lost(guard.release());
    // The renewal thread cleans up in Redis. `close` returns `true` when that is done.
    assert!(locks.close(PATIENCE));
    assert_eq!(value(redis, &name), theirs);
    assert!(redis.ttl(&name) > Some(LONG / 2), "it was shortened");
    assert!(foreign.release());
}

fn ours_that_was_stopped_past_its_lease_leaves_theirs_alone<F: Foreign>(redis: &Raw) {
    let name = name("stopped");
    let mut holder = Child::start(redis.url(), "lease_ms=3000");
    holder.lock(&name);
    holder.pause();
    let mut foreign = F::new(redis, &name);
    foreign.acquire(LONG);
    let theirs = held_everywhere(&mut foreign, redis, &name);
    // A renewal is overdue now, and the guard does not know of the loss.
    holder.resume();
    assert_eq!(holder.ask(format_args!("state {name}")), "Lost");
    let answer = holder.ask(format_args!("release {name}"));
    assert!(answer.starts_with("Lost: "), "{answer}");
    assert_eq!(holder.ask("close"), "closed");
    assert_eq!(value(redis, &name), theirs);
    let left = redis.ttl(&name);
    assert!(left > Some(LONG / 2) && left <= Some(LONG), "{left:?}");
    assert!(foreign.release());
}

/// Starts a thread that tries to take the lock again and again. Returns the number of its tries so far, and a task
/// that returns how often it got the lock.
fn trying<F: Foreign>(redis: &Raw, name: &str, stop: &Arc<()>) -> (Arc<AtomicU32>, Task<u32>) {
    let (mut foreign, stopped) = (F::new(redis, name), Arc::downgrade(stop));
    let tries = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&tries);
    let end = task(move || {
        let mut taken = 0;
        while stopped.strong_count() > 0 {
            if foreign.try_acquire(Some(LONG)) {
                taken += 1;
                foreign.release();
            }
            counted.fetch_add(1, Ordering::Relaxed);
        }
        taken
    });
    (tries, end)
}

/// Blocks until a waiter has the lock, and takes it out of the list. Redis skips a waiter that has not polled for 3 s, so on
/// a busy machine it may not be the first.
fn next_holder(waiters: &mut Vec<Holder>) -> Holder {
    let mut next = None;
    wait_until("a waiter has it", || {
        next = waiters.iter().position(|waiter| !waiter.waits());
        next.is_some()
    });
    waiters.remove(next.expect("one has it"))
}

fn theirs_does_not_overtake_waiters_for_ours<F: Foreign>(redis: &Raw) {
    const WAITERS: usize = 12;
    let name = name("gap");
    let mut holder = Kind::Mutex.of(&manager(redis.url()), &name).hold();
    let mut waiters: Vec<_> = (0..WAITERS)
        .map(|before| {
            let waiter = Kind::Mutex.of(&manager(redis.url()), &name).locking();
            redis.wait_until_queued(&name, before + 1);
            waiter
        })
        .collect();
    let stop = Arc::new(());
    let (tries, end) = trying::<F>(redis, &name, &stop);
    let next_tries = || {
        let before = tries.load(Ordering::Relaxed);
        wait_until("it tries", || tries.load(Ordering::Relaxed) > before + 1);
    };
    while !waiters.is_empty() {
        next_tries();
        holder.release();
        holder = next_holder(&mut waiters);
    }
    next_tries();
    drop(stop);
    assert_eq!(end.end(), 0, "it came in between");
    holder.release();
}

fn a_multi_lock_waits_for_theirs_and_then_keeps_it_out<F: Foreign>(redis: &Raw) {
    let names = [name("set-1"), name("set-2")];
    let locks = manager(redis.url());
    let mut theirs = names.each_ref().map(|name| F::new(redis, name));
    for which in 0..names.len() {
        theirs[which].acquire(LONG);
        let before = held_everywhere(&mut theirs[which], redis, &names[which]);
        assert!(
            locks
                .multi(&names)
                .try_lock()
                .expect("Redis replies")
                .is_none()
        );
        let set = locks.multi(&names);
        let (told, has_it) = std::sync::mpsc::channel();
        let (release, until) = std::sync::mpsc::channel::<()>();
        let waiter = task(move || {
            let guard = set.lock().expect("it becomes free");
            told.send(()).expect("the test goes on");
            until.recv().ok();
            guard.release()
        });
        redis.wait_until_queued(&names[which], 1);
        for owner in redis.queue(&names[which]) {
            redis.wait_until_polled(&names[which], &owner);
        }
        assert_eq!(value(redis, &names[which]), before);
        assert!(theirs[which].release());
        has_it.recv_timeout(PATIENCE).expect("it has all of them");
        for foreign in &mut theirs {
            assert!(!foreign.try_acquire(Some(secs(1))));
        }
        drop(release);
        waiter.end().expect("it was held until now");
    }
}

/// The work of both sides under the lock: they read a number on the shared server, and then write it.
#[derive(Clone)]
struct Sum {
    key: String,
    inside: String,
}

impl Sum {
    fn of(name: &str) -> Self {
        Self {
            key: format!("{name}:sum"),
            inside: format!("{name}:inside"),
        }
    }

    fn add(&self) {
        let redis = shared();
        let inside: u32 = redis.ask(&["INCR", &self.inside]);
        assert_eq!(inside, 1, "another client is inside");
        let value: Option<u32> = redis.ask(&["GET", &self.key]);
        let value = value.unwrap_or(0) + 1;
        let () = redis.ask(&["SET", &self.key, &value.to_string()]);
        let () = redis.ask(&["DECR", &self.inside]);
    }

    fn take(self) -> u32 {
        let redis = shared();
        let value = redis.ask(&["GET", &self.key]);
        let () = redis.ask(&["DEL", &self.key, &self.inside]);
        value
    }
}

/// Counts turns until each side has had `least`.
struct Turns {
    least: u32,
    taken: Mutex<[u32; 2]>,
    /// Notified of each turn.
    changed: Condvar,
}

impl Turns {
    fn taken(&self) -> [u32; 2] {
        *self.taken.lock().expect("no panic")
    }

    fn are_wanted(&self) -> bool {
        self.is_any_below(self.taken())
    }

    fn is_any_below(&self, taken: [u32; 2]) -> bool {
        taken.iter().any(|side| *side < self.least)
    }

    /// Counts a turn, and waits while its side is ahead. A client that polls gets a chance only while no thread of
    /// ours waits.
    fn count(&self, side: usize) {
        let mut taken = self.taken.lock().expect("no panic");
        taken[side] += 1;
        self.changed.notify_all();
        // This wait has no time limit, because the other side may be slow.
        let is_ahead =
            |taken: &mut [u32; 2]| self.is_any_below(*taken) && taken[side] > taken[1 - side] + 3;
        drop(self.changed.wait_while(taken, is_ahead).expect("no panic"));
    }
}

/// Both sides lock one name at the same time, until each side has had its turns. Meanwhile leases that nobody
/// releases expire on both sides.
fn both_sides_together_lose_no_update<F: Foreign>(redis: &Raw) {
    const OURS: usize = 0;
    const THEIRS: usize = 1;
    let name = name("both");
    let sum = Sum::of(&name);
    let turns = Arc::new(Turns {
        least: 15,
        taken: Mutex::default(),
        changed: Condvar::new(),
    });
    let managers = [(); 2].map(|()| manager(redis.url()));
    let mut tasks = Vec::new();
    for locks in managers.iter().cycle().take(4) {
        let (mutex, turns, sum) = (locks.mutex(&name), Arc::clone(&turns), sum.clone());
        tasks.push(task(move || {
            while turns.are_wanted() {
                let guard = mutex.lock().expect("it becomes free");
                sum.add();
                guard.release().expect("it was held until now");
                turns.count(OURS);
            }
        }));
    }
    for _ in 0..2 {
        let mut foreign = F::new(redis, &name);
        let (turns, sum) = (Arc::clone(&turns), sum.clone());
        tasks.push(task(move || {
            while turns.are_wanted() {
                // The lock lasts longer than a turn takes, but no longer than `PATIENCE`.
                if foreign.try_acquire(Some(PATIENCE / 2)) {
                    sum.add();
                    assert!(foreign.release(), "it was taken from it");
                    turns.count(THEIRS);
                }
                // The test needs time to pass: such clients wait like this.
                thread::sleep(ms(2));
            }
        }));
    }
    tasks.push(lapsing_of_ours(&managers[0], &name, &turns));
    tasks.push(lapsing_of_theirs::<F>(redis, &name, &turns));
    // A busy machine may need long for this many turns. The test only checks that both sides go on.
    for number in 1..=turns.least {
        wait_until("both sides have another turn", || {
            turns.taken().into_iter().min() >= Some(number)
        });
    }
    tasks.into_iter().for_each(Task::end);
    assert_eq!(sum.take(), turns.taken().into_iter().sum::<u32>());
}

/// Lets locks of ours expire, again and again.
fn lapsing_of_ours(locks: &LockManager, name: &str, turns: &Arc<Turns>) -> Task<()> {
    let mutex = locks.mutex(name).lease(ms(100)).renew(false);
    let turns = Arc::clone(turns);
    task(move || {
        while turns.are_wanted() {
            // On a busy machine a short lease may end before its reply arrives, or the reply may be late.
            if let Ok(Some(guard)) = mutex.try_lock_for(secs(1)) {
                wait_until("it is over", || guard.check().is_err());
            }
            // The test needs time to pass: the other threads get most of it.
            thread::sleep(ms(300));
        }
    })
}

/// Lets locks of theirs expire, again and again.
fn lapsing_of_theirs<F: Foreign>(redis: &Raw, name: &str, turns: &Arc<Turns>) -> Task<()> {
    let mut foreign = F::new(redis, name);
    let turns = Arc::clone(turns);
    task(move || {
        while turns.are_wanted() {
            // The client does not release the lock, as if it had crashed.
            foreign.try_acquire(Some(ms(100)));
            // The test needs time to pass: the other threads get most of it.
            thread::sleep(ms(300));
        }
    })
}

/// The kinds whose lock is a plain string, like the lock of other clients.
const STRINGS: [Kind; 3] = [Kind::Mutex, Kind::Reentrant, Kind::Multi];

/// The length of the huge values. No reply may be as long.
const HUGE: usize = 9 << 20;

/// Sets a huge value that starts with `beginning`.
fn set_huge(redis: &Raw, key: &str, beginning: &str) {
    let set = "redis.call('SET', KEYS[1], ARGV[1] .. string.rep('x', ARGV[2] - #ARGV[1]))";
    let () = redis.ask(&["EVAL", set, "1", key, beginning, &HUGE.to_string()]);
}

#[track_caller]
fn is_whole(redis: &Raw, key: &str) {
    assert_eq!(redis.ask::<usize>(&["STRLEN", key]), HUGE);
}

/// Returns the number of bytes that the server has sent so far.
fn sent(redis: &Raw) -> u64 {
    let info: String = redis.ask(&["INFO", "stats"]);
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    line.and_then(|bytes| bytes.parse().ok()).expect("a number")
}

#[test]
fn a_huge_value_is_a_held_lock_and_is_not_transferred() {
    let server = Server::start();
    let redis = server.raw();
    let locks = manager(&server.url());
    for kind in STRINGS {
        for beginning in ["theirs", "lh1:theirs"] {
            let name = name("huge");
            let keys = kind.keys(&name);
            for key in &keys {
                set_huge(&redis, key, beginning);
            }
            let before = sent(&redis);
            let lock = kind.of(&locks, &name);
            assert!(lock.try_lock().expect("Redis replies").is_none());
            wait_in_vain(|| lock.try_lock_for(ms(300)));
            for key in &keys {
                is_whole(&redis, key);
            }
            let sent = sent(&redis) - before;
            assert!(sent < 1 << 20, "{sent} bytes");
        }
    }
    let error = locks.with_lock("huge", ms(100), |_| ()).map(drop);
    error.expect("it is free");
    set_huge(&redis, "huge", "theirs");
    let error = locks.with_lock("huge", ms(100), |_| ()).expect_err("held");
    if let Error::Timeout { holder, .. } = &error {
        let holder = holder.as_deref().unwrap_or_default();
        assert_eq!(
            holder,
            "a value of another client (at least 512 characters)"
        );
    }
}

#[test]
fn a_huge_value_in_place_of_ours_is_a_loss() {
    let server = Server::start();
    let redis = server.raw();
    let locks = manager(&server.url());
    for kind in STRINGS {
        // The value is another client's, or begins like the value of this lock.
        for is_like_ours in [false, true] {
            let name = name("huge");
            let lock = kind.of(&locks, &name);
            let keys = kind.keys(&name);
            let guard = lock.lock().expect("it is free");
            let owner = guard.leases()[0].owner().to_owned();
            let beginning = if is_like_ours { &*owner } else { "theirs" };
            set_huge(&redis, &keys[0], beginning);
            lost(guard.release());
            is_whole(&redis, &keys[0]);
            let () = redis.ask(&["DEL", &keys[0]]);
            // A renewal finds the same loss.
            let guard = lock.clone().lease(secs(3)).lock().expect("it is free");
            let losses = guard.on_lost();
            set_huge(&redis, &keys[0], beginning);
            let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
            assert_eq!(loss.cause, LostCause::Taken);
            drop(guard);
            is_whole(&redis, &keys[0]);
        }
    }
    // Adoption, `force_release` and a background release find it too.
    let guard = locks.lock("claimed").expect("it is free");
    let claim = guard.detach();
    set_huge(&redis, "claimed", claim.owner());
    assert!(matches!(locks.adopt(&claim), Err(Error::Lost(_))));
    let broken = locks.force_release("claimed", claim.owner());
    assert!(!broken.expect("Redis replies"));
    is_whole(&redis, "claimed");
    let background = patient(&server.url()).background_release(true);
    let background = background.build().expect("it is there");
    let guard = background.lock("background").expect("it is free");
    set_huge(&redis, "background", guard.owner());
    drop(guard);
    assert!(background.close(PATIENCE), "something is left to send");
    is_whole(&redis, "background");
}

/// `force_release` needs the whole value. An operator can read it unless it is too long to be shown.
#[test]
fn force_release_of_a_long_value_needs_the_whole_value() {
    let redis = shared();
    let locks = manager(redis.url());
    let name = name("long");
    let value = "theirs!".repeat(100);
    let () = redis.ask(&["SET", &name, &value]);
    let held = locks
        .inspect(&name)
        .expect("Redis replies")
        .expect("it is held");
    assert_eq!(held.holders[0].owner, value);
    for owner in [&value[..512], &value[..value.len() - 1], ""] {
        assert!(!locks.force_release(&name, owner).expect("Redis replies"));
    }
    assert!(locks.force_release(&name, &value).expect("Redis replies"));
    assert!(!redis.exists(&name));
}

#[test]
fn an_empty_value_is_a_lock_that_is_held() {
    let redis = shared();
    let locks = manager(redis.url());
    for kind in STRINGS {
        let name = name("empty");
        let keys = kind.keys(&name);
        let lock = kind.of(&locks, &name).lease(secs(3));
        let () = redis.ask(&["SET", &keys[0], ""]);
        assert!(lock.try_lock().expect("Redis replies").is_none());
        wait_in_vain(|| lock.try_lock_for(ms(100)));
        let () = redis.ask(&["DEL", &keys[0]]);
        let guard = lock.lock().expect("it is free");
        let losses = guard.on_lost();
        let () = redis.ask(&["SET", &keys[0], ""]);
        let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
        assert_eq!(loss.cause, LostCause::Taken);
        drop(guard);
        assert!(redis.exists(&keys[0]));
    }
}
