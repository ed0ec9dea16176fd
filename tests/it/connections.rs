//! Faults of the connections of a pool, each while fifty calls are under way.
//!
//! Each thread locks and releases another name, again and again. So each grant must be the thread's own: the key
//! in Redis has the owner of its guard. An answer that reached another thread would show.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Error, LockManager, Mutex};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

use crate::support::{
    Fault, PATIENCE, Proxy, Raw, Role, SLACK, Server, Task, build, secs, task, task_asleep,
    wait_until,
};

const CALLERS: usize = 50;
/// Far longer than the test takes, so that only a release frees a name.
const LEASE: Duration = secs(600);
/// The time limit of a request. A busy machine stalls for less.
const IO: Duration = secs(2);
/// The limit of a call: it may open a connection, send one request, and send that again.
const CALL: Duration = secs(8);

#[derive(Default)]
struct Counts {
    /// How many guards were granted and released.
    pairs: AtomicU64,
    /// How many calls have failed.
    failures: AtomicU64,
    is_over: AtomicBool,
}

/// Locks and releases a name until the test is over. Checks each result.
fn lock_and_release(locks: &LockManager, redis: &Raw, name: &str, counts: &Counts) {
    let mutex = locks.mutex(name).lease(LEASE);
    while !counts.is_over.load(Ordering::SeqCst) {
        let begun = Instant::now();
        let done = mutex.try_lock().and_then(|guard| {
            let Some(guard) = guard else {
                // An earlier grant had no answer. The renewal thread withdraws it.
                thread::yield_now();
                return Ok(false);
            };
            let holder = redis.get(name);
            assert_eq!(holder.as_deref(), Some(guard.owner()), "not its grant");
            guard.release().map(|()| true)
        });
        assert!(begun.elapsed() < CALL * 2 + SLACK, "{:?}", begun.elapsed());
        match done {
            Ok(true) => counts.pairs.fetch_add(1, Ordering::SeqCst),
            Ok(false) => 0,
            Err(Error::Unavailable { .. }) => counts.failures.fetch_add(1, Ordering::SeqCst),
            Err(error) => panic!("{error:?}"),
        };
    }
}

fn fifty_calls(fault: Fault) {
    let server = Server::start();
    let (proxy, redis) = (Proxy::to(&server), server.raw());
    let builder = LockManager::single(&proxy.url());
    let locks = build(builder.connect_timeout(IO).io_timeout(IO));
    let counts = Arc::new(Counts::default());
    let callers: Vec<Task<()>> = (0..CALLERS)
        .map(|number| {
            let (locks, redis, counts) = (locks.clone(), redis.clone(), Arc::clone(&counts));
            task(move || lock_and_release(&locks, &redis, &format!("n{number}"), &counts))
        })
        .collect();
    let wait_for_pairs = |more: u64| {
        let before = counts.pairs.load(Ordering::SeqCst);
        wait_until("the calls go on", || {
            counts.pairs.load(Ordering::SeqCst) >= before + more
        });
    };
    wait_for_pairs(200);
    let failures = || counts.failures.load(Ordering::SeqCst);
    assert_eq!(failures(), 0);
    proxy.strike(Role::Pool, fault);
    proxy.wait_until_struck(Role::Pool);
    if fault.lets_through() {
        wait_for_pairs(100);
        assert_eq!(failures(), 0);
    } else {
        wait_until("all calls fail", || failures() >= CALLERS as u64);
    }
    proxy.heal_anew();
    wait_for_pairs(500);
    counts.is_over.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.end();
    }
    assert!(locks.close(PATIENCE), "something is left to send");
    // A request that was given up may still arrive. The renewal thread withdraws its owner.
    wait_until("nothing is left", || {
        (0..CALLERS).all(|number| !redis.exists(&format!("n{number}")))
    });
}

#[test]
fn fifty_calls_outlive_a_cut() {
    fifty_calls(Fault::Close);
}

#[test]
fn fifty_calls_outlive_a_reset() {
    fifty_calls(Fault::Reset);
}

#[test]
fn fifty_calls_go_on_byte_by_byte() {
    fifty_calls(Fault::Drip);
}

#[test]
fn fifty_calls_outlive_a_connection_that_hangs() {
    fifty_calls(Fault::HalfOpen);
}

#[test]
fn fifty_calls_outlive_lost_answers() {
    fifty_calls(Fault::LoseAnswers);
}

/// Many connections are open when the server closes all of them.
fn calls_outlive(close: impl Fn(&Server)) {
    const CONNECTIONS: u32 = 8;
    let server = Server::start();
    let locks = build(
        LockManager::single(&server.url())
            .connect_timeout(PATIENCE)
            .io_timeout(PATIENCE)
            .lease(LEASE)
            .pool_size(CONNECTIONS),
    );
    for round in 0..5 {
        // An inspection has a connection for itself.
        server.pause();
        let inspections: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let locks = locks.clone();
                task_asleep(move || locks.inspect("n").map(drop))
            })
            .collect();
        server.resume();
        for inspection in inspections {
            inspection.end().expect("Redis replies");
        }
        close(&server);
        let together = Arc::new(Barrier::new(CALLERS));
        let calls: Vec<_> = (0..CALLERS)
            .map(|number| {
                let (locks, together) = (locks.clone(), Arc::clone(&together));
                task(move || {
                    together.wait();
                    let guard = locks.try_lock(format!("n{round}-{number}"))?;
                    guard.expect("nobody has it").release()
                })
            })
            .collect();
        for call in calls {
            call.end().expect("it is sent again");
        }
    }
}

#[test]
fn no_call_fails_after_a_restart() {
    calls_outlive(Server::restart);
}

#[test]
fn no_call_fails_after_the_server_has_closed_all_connections() {
    calls_outlive(|server| {
        let () = server
            .raw()
            .ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    });
}

/// Binds this thread to one core, and all threads that it starts later.
fn bind_to_one_core() {
    let allowed = sched_getaffinity(None).expect("the cores of this thread");
    let mut one = CpuSet::new();
    let mut cores = (0..CpuSet::MAX_CPU).rev();
    one.set(cores.find(|core| allowed.is_set(*core)).expect("a core"));
    sched_setaffinity(None, &one).expect("it may use the core");
}

/// Lets a thread run only while no other thread wants its core.
fn make_idle(thread: Pid) {
    let thread = thread.as_raw_nonzero().to_string();
    let chrt = ["--idle", "--pid", "0", &thread];
    let done = Command::new("chrt").args(chrt).status();
    assert!(done.expect("chrt of util-linux").success());
}

/// Returns how long it takes to lock and release.
fn pair(mutex: &Mutex) -> Duration {
    let begun = Instant::now();
    let guard = mutex.lock().expect("nobody else has it");
    guard.release().expect("it is held");
    begun.elapsed()
}

/// Ends the threads of a test, also if it fails.
struct EndAtDrop<'a>(&'a AtomicBool);

impl Drop for EndAtDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Locks and releases until the others are over. Returns how long each pair took.
fn pairs(mutex: &Mutex, is_over: &AtomicBool) -> Vec<Duration> {
    let mut times = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        times.push(pair(mutex));
    }
    times
}

/// Seven threads and one of idle priority call on one core, with one manager for all or one for the idle thread. Prints how
/// long the calls of the seven take: the idle thread holds nothing that another one needs.
#[test]
#[ignore = "measures, so it wants the machine for itself"]
fn a_thread_of_idle_priority_among_eight() {
    const OTHERS: usize = 7;
    const ROUNDS: usize = 8;
    const ROUND: Duration = secs(2);
    let server = Server::start();
    let manager = || build(LockManager::single(&server.url()).lease(LEASE));
    let (common, own) = (manager(), manager());
    // The threads of the managers start here: later ones would be bound to the core too.
    for locks in [&common, &own] {
        pair(&locks.mutex("first"));
    }
    let mut times = [const { Vec::new() }; 2];
    for round in 0..ROUNDS {
        let of_idle = [&common, &own][round % 2].mutex("idle");
        let is_over = AtomicBool::new(false);
        let (started, waits) = channel();
        let taken: Vec<_> = thread::scope(|scope| {
            let (is_over, of_idle) = (&is_over, &of_idle);
            let _end = EndAtDrop(is_over);
            scope.spawn(move || {
                bind_to_one_core();
                make_idle(gettid());
                started.send(()).expect("the test waits");
                pairs(of_idle, is_over)
            });
            waits.recv().expect("it starts");
            let others: Vec<_> = (0..OTHERS)
                .map(|number| {
                    let mutex = common.mutex(format!("n{number}"));
                    scope.spawn(move || {
                        bind_to_one_core();
                        pairs(&mutex, is_over)
                    })
                })
                .collect();
            // The pairs of a fixed time are what is measured.
            thread::sleep(ROUND);
            is_over.store(true, Ordering::SeqCst);
            others
                .into_iter()
                .flat_map(|other| other.join().expect("no call fails"))
                .collect()
        });
        times[round % 2].extend(taken);
    }
    let of_rank = |times: &mut Vec<Duration>, per_mille: usize| {
        times.sort_unstable();
        times[times.len() * per_mille / 1000]
    };
    for (mut times, whose) in times.into_iter().zip(["on the same manager", "on its own"]) {
        let (median, p99) = (of_rank(&mut times, 500), of_rank(&mut times, 990));
        println!(
            "idle thread {whose}: {} pairs, median {median:?}, p99 {p99:?}",
            times.len()
        );
    }
}
