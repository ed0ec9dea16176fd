//! Other clients of the same keys: real programs, for their own values, commands and waits. They lock by `SET name value NX
//! PX ttl`, release by compare-and-delete, and wait by polling. One set of tests is expanded for each client. Neither side
//! ever breaks the other's lock. `tests/contract/foreign.rs` has what ours does beside any such client.
//!
//! Two of the clients, node-redlock and rslock, can lock a majority of several servers. `quorum` has a second set of tests
//! for them.

mod node_redlock;
mod pauses;
mod program;
mod published;
mod python_redis_lock;
mod quorum;
mod redis_py;
mod rslock;

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use leasehold::LockManager;

use crate::support::{
    self, Kind, PATIENCE, Raw, Task, locking, locking_asleep, manager, ms, secs, shared, task,
    wait_in_vain, wait_until,
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
    losing_two_of_five_nodes, on_five_nodes, ours_excludes_theirs_on_a_quorum,
    ours_keeps_its_lock_and_excludes_theirs, theirs_keeps_its_lock_and_excludes_ours,
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
