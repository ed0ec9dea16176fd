//! Faults of the connections that threads share, each while fifty calls are under way.
//!
//! Each thread locks and releases another name, again and again. So each grant must be the thread's own: the key
//! in Redis has the owner of its guard. An answer that reached another thread would show.

use std::hint;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Cancel, Error, LockGuard, LockManager, Mutex, Result};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

use crate::support::{
    Fault, PATIENCE, Proxy, Raw, Role, SLACK, Server, Task, build, locking, locking_asleep, ms,
    secs, task, task_asleep, wait_until,
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

/// The server is stopped for longer than one caller waits, and for less than the others do.
#[test]
fn a_caller_with_a_short_limit_leaves_while_others_go_on() {
    let server = Server::start();
    let redis = server.raw();
    let locks = build(
        LockManager::single(&server.url())
            .connect_timeout(PATIENCE)
            .io_timeout(PATIENCE)
            .lease(LEASE)
            .pool_size(1),
    );
    let first = locks.lock("first").expect("it is free");
    // Each of them has asked already, so the calls below only wait for answers.
    server.pause();
    let asked = locks.stats().requests;
    let others: Vec<_> = (0..20)
        .map(|number| locking(&locks.mutex(format!("n{number}"))))
        .collect();
    wait_until("they ask", || locks.stats().requests >= asked + 20);
    let short = locks.mutex("short");
    let begun = Instant::now();
    let left = short.try_lock_for(ms(300));
    assert!(
        matches!(left, Err(Error::Unavailable { .. })),
        "nobody answers: {left:?}"
    );
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    server.resume();
    for (number, other) in others.into_iter().enumerate() {
        let guard = other.end().expect("it waits for its answer");
        let holder = redis.get(&format!("n{number}"));
        assert_eq!(holder.as_deref(), Some(guard.owner()), "not its grant");
    }
    first.release().expect("it is held");
    // The renewal thread withdraws the late grant.
    wait_until("it is withdrawn", || !redis.exists("short"));
}

/// A server that is stopped, and three calls on one connection: one reads, the next one lets it read its answer too, and
/// the last one waits behind that for the same name.
struct Stopped {
    server: Server,
    locks: LockManager,
    stop: Cancel,
    reads: Task<Result<LockGuard>>,
    asks: Task<Result<()>>,
    waits_behind: Task<Result<()>>,
}

fn stopped() -> Stopped {
    let server = Server::start();
    let locks = build(
        LockManager::single(&server.url())
            .connect_timeout(PATIENCE)
            .io_timeout(PATIENCE)
            .lease(LEASE)
            .pool_size(1),
    );
    drop(locks.lock("first").expect("it is free"));
    server.pause();
    let asked = locks.stats().requests;
    let reads = locking_asleep(&locks.mutex("reads"));
    wait_until("it asks", || locks.stats().requests > asked);
    let stop = Cancel::new();
    let mutex = locks.mutex("n").cancel_with(&stop);
    let asks = task_asleep(move || mutex.lock().map(drop));
    wait_until("the next one asks", || locks.stats().requests > asked + 1);
    let mutex = locks.mutex("n");
    let waits_behind = task_asleep(move || mutex.lock().map(drop));
    Stopped {
        server,
        locks,
        stop,
        reads,
        asks,
        waits_behind,
    }
}

#[test]
fn a_cancelled_call_fails_no_other_call() {
    let stopped = stopped();
    stopped.stop.cancel();
    // The server does not answer, so the call must end without its answer.
    let cancelled = stopped.asks.end();
    assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
    stopped.server.resume();
    stopped.waits_behind.end().expect("it asks by itself");
    drop(stopped.reads.end().expect("it is free"));
    // The renewal thread withdraws the late grant.
    let redis = stopped.server.raw();
    wait_until("nothing is left", || !redis.exists("n"));
    assert!(stopped.locks.close(PATIENCE), "something is left to send");
}

#[test]
fn close_ends_a_call_whose_answer_another_call_reads() {
    let stopped = stopped();
    let _ = stopped.locks.close(Duration::ZERO);
    let closed = stopped.asks.end();
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    let closed = stopped.waits_behind.end();
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    stopped.server.resume();
    drop(stopped.reads.end());
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

/// Eight threads hardly get any CPU time while they wait for answers, and a thread that does shares their connection. They
/// hold no half of the socket. So its calls go on, as they do on a connection of its own.
#[test]
fn a_thread_goes_on_beside_threads_that_get_no_cpu_time() {
    const IDLE: usize = 8;
    const PAIRS: usize = 60;
    /// Less than the idle threads wait for the core. A busy machine also delays the calls on the other connection.
    const MORE: Duration = ms(40);
    let server = Server::start();
    let manager = || {
        let builder = LockManager::single(&server.url()).pool_size(1);
        build(builder.io_timeout(PATIENCE).lease(LEASE))
    };
    let (shared, own) = (manager(), manager());
    let mutexes = [&shared, &own].map(|locks| locks.mutex("n"));
    // The threads of the managers start here: later ones would be bound to the core too.
    let _ = mutexes.each_ref().map(pair);
    let is_over = AtomicBool::new(false);
    let medians = thread::scope(|scope| {
        let (is_over, shared) = (&is_over, &shared);
        let _end = EndAtDrop(is_over);
        server.pause();
        let asked = shared.stats().requests;
        // The first one is alone when it begins to read, and gets CPU time.
        scope.spawn(|| pair(&shared.mutex("first")));
        wait_until("it asks", || shared.stats().requests > asked);
        let (sender, idle) = channel();
        for number in 0..IDLE {
            let (mutex, sender) = (shared.mutex(format!("idle{number}")), sender.clone());
            scope.spawn(move || {
                bind_to_one_core();
                sender.send(gettid()).expect("the test waits");
                while !is_over.load(Ordering::SeqCst) {
                    pair(&mutex);
                }
            });
        }
        let idle: Vec<_> = idle.iter().take(IDLE).collect();
        wait_until("the others ask", || {
            shared.stats().requests > asked + IDLE as u64
        });
        idle.into_iter().for_each(make_idle);
        let (sender, busy) = channel();
        scope.spawn(move || {
            bind_to_one_core();
            sender.send(()).expect("the test waits");
            while !is_over.load(Ordering::SeqCst) {
                hint::spin_loop();
            }
        });
        busy.recv().expect("it spins");
        server.resume();
        let measured = scope.spawn(move || {
            bind_to_one_core();
            let mut times = [const { Vec::new() }; 2];
            for _ in 0..PAIRS {
                for (mutex, times) in mutexes.iter().zip(&mut times) {
                    times.push(pair(mutex));
                }
            }
            times.map(|mut times| {
                times.sort_unstable();
                times[PAIRS / 2]
            })
        });
        measured.join().expect("no call fails")
    });
    let [shared, own] = medians;
    println!("a pair beside idle threads took {shared:?}, and alone {own:?}");
    assert!(shared < own * 10 + MORE, "{shared:?}, alone {own:?}");
}
