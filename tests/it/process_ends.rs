//! Processes that end while they hold a lock or wait for one. Others do not wait longer than necessary.

use std::time::Instant;

use crate::support::{
    Child, Kind, PATIENCE, SLACK, Server, locking, manager, ms, name, secs, shared, task,
    wait_until,
};

/// Checks that a lock of an ended process is free when its lease ends: not before, and not later.
#[track_caller]
fn ends_with_its_lease(name: &str, fence: u64, lease_ms: u64) {
    let redis = shared();
    let ended = Instant::now();
    let left = redis.ttl(name).expect("nobody has released it");
    assert!(left <= ms(lease_ms), "{left:?}");
    let next = manager(redis.url()).try_lock_for(name, PATIENCE);
    let next = next.expect("Redis replies").expect("it becomes free");
    assert!(next.fence() > fence);
    // The reading was taken a moment after `ended`, and the server counts in whole milliseconds.
    assert!(ended.elapsed() + ms(2) >= left, "taken too early");
    assert!(ended.elapsed() < ms(lease_ms) + SLACK, "taken too late");
}

#[test]
fn an_exit_sends_no_release_and_the_lease_expires() {
    let name = name("exit-holding");
    let mut holder = Child::start(shared().url(), "lease_ms=6000");
    let fence = holder.lock(&name);
    holder.exit();
    ends_with_its_lease(&name, fence, 6000);
}

#[test]
fn a_forgotten_guard_is_renewed_until_its_process_ends() {
    let redis = shared();
    let name = name("forgotten");
    let mut holder = Child::start(redis.url(), "lease_ms=6000");
    let fence = holder.ask(format_args!("forget {name}"));
    let fence = fence.strip_prefix("locked ").expect("it is free");
    let fence = fence.parse().expect("a fence");
    let owner = redis.get(&name);
    redis.wait_until_renewed(&name, 2);
    // `close` ends waits, but no guard. A guard works without its manager, also a forgotten one.
    assert_eq!(holder.ask("close"), "closed");
    redis.wait_until_renewed(&name, 2);
    assert_eq!(holder.ask("let-go"), "let go");
    redis.wait_until_renewed(&name, 2);
    assert_eq!(redis.get(&name), owner);
    holder.exit();
    ends_with_its_lease(&name, fence, 6000);
}

#[test]
fn a_forgotten_guard_with_a_limit_is_released_at_the_limit() {
    let redis = shared();
    let name = name("forgotten-limited");
    // The long lease shows that the other process does not wait for its end.
    let mut holder = Child::start(redis.url(), "lease_ms=600000");
    let begun = Instant::now();
    let fence = holder.ask(format_args!("forget {name} 700"));
    let next = locking(&manager(redis.url()).mutex(&name)).end();
    let next = next.expect("it is released");
    assert!(begun.elapsed() >= ms(700), "it was released too early");
    assert!(format!("locked {}", next.fence()) > fence);
    // The forgotten guard does not block its own process either.
    next.release().expect("it was held until now");
    holder.lock(&name);
}

#[test]
fn a_queued_background_release_is_lost_at_an_exit() {
    let server = Server::start();
    let redis = server.raw();
    let mut holder = Child::start(&server.url(), "lease_ms=9000 background_release=yes");
    let fence = holder.lock("n");
    let owner = redis.get("n");
    // The paused server keeps the release from being sent before the exit.
    server.pause();
    assert_eq!(holder.ask("release n"), "released");
    holder.exit();
    server.resume();
    assert_eq!(redis.get("n"), owner, "somebody has released it");
    let left = redis.ttl("n").expect("it is held");
    let resumed = Instant::now();
    let next = manager(&server.url()).try_lock_for("n", PATIENCE);
    let next = next.expect("Redis replies").expect("it becomes free");
    assert!(next.fence() > fence);
    assert!(resumed.elapsed() < left + SLACK, "taken too late");
}

#[test]
fn a_queued_background_release_is_sent_before_close_returns() {
    let redis = shared();
    let name = name("exit-closed");
    let settings = "lease_ms=600000 background_release=yes";
    let mut holder = Child::start(redis.url(), settings);
    holder.lock(&name);
    assert_eq!(holder.ask(format_args!("release {name}")), "released");
    assert_eq!(holder.ask("close"), "closed");
    holder.exit();
    assert!(!redis.exists(&name));
}

#[test]
fn an_exit_while_waiting_costs_no_pickup_window() {
    let redis = shared();
    let name = name("exit-waiting");
    let guard = manager(redis.url()).lock(&name).expect("it is free");
    let mut leaves = Child::start(redis.url(), "");
    // The wait is on a thread, while the process goes on to its end.
    leaves.ask(format_args!("crowd {name} 600000 1"));
    redis.wait_until_queued(&name, 1);
    let first = redis.queue(&name).remove(0);
    let stays = Kind::Mutex.of(&manager(redis.url()), &name).locking();
    redis.wait_until_queued(&name, 2);
    let channel = redis.channel(&name, &first);
    leaves.exit();
    wait_until("the server knows", || redis.listeners(&channel) == 0);
    let second = redis.queue(&name).remove(1);
    guard.release().expect("it was held until now");
    // The script of the release handed the lock over. A pickup window would have been 10 s.
    assert_eq!(redis.owner(&name), Some(second));
    stays.locked();
    stays.release();
}

const CROWD: usize = 50;
/// A pickup window is never longer than the lease.
const WINDOW_MS: u64 = 3000;

/// Makes `CROWD` managers of one process wait for `name`, and behind them a process that stays alive.
fn a_crowd_and_one(name: &str) -> (Child, crate::support::Task<Instant>) {
    let redis = shared();
    let mut crowd = Child::start(redis.url(), "");
    crowd.ask(format_args!("crowd {name} {WINDOW_MS} {CROWD}"));
    redis.wait_until_queued(name, CROWD);
    let mutex = manager(redis.url()).mutex(name);
    let live = task(move || {
        let guard = mutex.lock().expect("it becomes free");
        let at = Instant::now();
        drop(guard);
        at
    });
    redis.wait_until_queued(name, CROWD + 1);
    (crowd, live)
}

#[test]
fn fifty_killed_together_cost_at_most_one_pickup_window() {
    let redis = shared();
    let name = name("fifty-killed");
    let guard = manager(redis.url()).lock(&name).expect("it is free");
    let (crowd, live) = a_crowd_and_one(&name);
    crowd.kill();
    let released = Instant::now();
    // The server may or may not have learned of their end by now.
    guard.release().expect("it was held until now");
    let took = live.end() - released;
    assert!(took < ms(WINDOW_MS) + SLACK, "{took:?}");
}

/// This is like a machine that loses its network: the connections stay open, and no data arrives.
#[test]
fn fifty_stopped_together_cost_at_most_one_pickup_window() {
    let redis = shared();
    let name = name("fifty-stopped");
    let guard = manager(redis.url()).lock(&name).expect("it is free");
    let (crowd, live) = a_crowd_and_one(&name);
    crowd.pause();
    let first = redis.queue(&name).remove(0);
    let released = Instant::now();
    guard.release().expect("it was held until now");
    let holder = redis.get(&name).expect("it was handed over");
    assert_eq!(holder.trim_end_matches('!'), first);
    let took = live.end() - released;
    assert!(took < ms(WINDOW_MS) + SLACK, "{took:?}");
    // The server counts in whole milliseconds.
    assert!(
        took + ms(2) >= ms(WINDOW_MS),
        "the hung waiter did not have it: {took:?}"
    );
}

#[test]
fn a_killed_holder_whose_threads_and_waiters_died_with_it_costs_its_lease() {
    let redis = shared();
    let name = name("all-killed");
    let mut all = Child::start(redis.url(), "lease_ms=3000");
    let fence = all.lock(&name);
    all.ask(format_args!("crowd {name} 3000 {CROWD}"));
    redis.wait_until_queued(&name, CROWD);
    all.kill();
    let killed = Instant::now();
    let next = manager(redis.url()).try_lock_for(&name, PATIENCE);
    let next = next.expect("Redis replies").expect("it becomes free");
    assert!(next.fence() > fence);
    // The lease of the holder, and one pickup window for all waiters before it in the queue.
    assert!(killed.elapsed() < secs(3) + ms(3000) + SLACK);
}
