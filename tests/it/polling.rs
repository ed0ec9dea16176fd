//! Processes that no message reaches. They must find by polling that they have been granted the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{LockManager, Mutex};

use crate::support::{
    Fault, Proxy, Role, Server, Task, build, locking, manager, ms, patient, task, wait_until,
};

/// The time for which a busy process holds each guard: ten guards fill a quantum.
const HOLD: Duration = ms(5);
/// The number of guards of a busy process that may go first: those of 60 quanta. A waiter needs about ten quanta.
const MOST: u32 = 600;

/// A process with two threads that want one lock all the time.
struct Busy {
    guards: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    threads: [Task<()>; 2],
}

impl Busy {
    #[track_caller]
    fn start(mutex: &Mutex) -> Self {
        let (guards, stop) = (
            Arc::new(AtomicU32::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let threads = [(), ()].map(|()| {
            let (mutex, guards, stop) = (mutex.clone(), Arc::clone(&guards), Arc::clone(&stop));
            task(move || {
                while !stop.load(Ordering::Relaxed) {
                    let guard = mutex.lock().expect("the server is there");
                    guards.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(HOLD);
                    drop(guard);
                }
            })
        });
        let busy = Self {
            guards,
            stop,
            threads,
        };
        wait_until("the process is busy", || busy.guards() > 20);
        busy
    }

    fn guards(&self) -> u32 {
        self.guards.load(Ordering::Relaxed)
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.end();
        }
    }
}

/// Locks `times` beside a busy process, which must not have more than [`MOST`] guards each time.
#[track_caller]
fn gets_its_turn(waiter: &Mutex, busy: &Busy, times: u32) {
    for _ in 0..times {
        let before = busy.guards();
        let (mutex, locked) = (waiter.clone(), Arc::new(AtomicBool::new(false)));
        let tell = Arc::clone(&locked);
        let waiting = task(move || {
            let guard = mutex.lock();
            tell.store(true, Ordering::SeqCst);
            guard
        });
        wait_until("it has the lock, or waited for too long", || {
            locked.load(Ordering::SeqCst) || busy.guards() - before > MOST
        });
        let passed = busy.guards() - before;
        assert!(
            passed <= MOST,
            "{passed} guards of the busy process went first"
        );
        drop(waiting.end().expect("the server is there"));
    }
}

fn short(locks: &LockManager) -> Mutex {
    locks.mutex("n").lease(ms(250))
}

#[test]
fn without_the_subscribe_command_a_process_gets_its_turn() {
    let server = Server::with(&["--rename-command", "SUBSCRIBE", ""]);
    let busy = Busy::start(&manager(&server.url()).mutex("n"));
    let locks = manager(&server.url());
    gets_its_turn(&locks.mutex("n"), &busy, 3);
    busy.end();
}

/// After a hand-over it has a quarter of a second to ask for the lock.
#[test]
fn without_the_subscribe_command_a_process_with_a_short_lease_gets_its_turn() {
    let server = Server::with(&["--rename-command", "SUBSCRIBE", ""]);
    let busy = Busy::start(&manager(&server.url()).mutex("n"));
    gets_its_turn(&short(&manager(&server.url())), &busy, 3);
    busy.end();
}

/// Tests a fault twice: the process cannot subscribe at first, and later loses its subscription during a wait.
#[track_caller]
fn gets_its_turn_despite(fault: Fault) {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let busy = Busy::start(&manager(&server.url()).mutex("n"));
    let locks = manager(&proxy.url());
    proxy.strike(Role::Listener, fault);
    gets_its_turn(&locks.mutex("n"), &busy, 2);
    busy.end();

    proxy.heal();
    let redis = server.raw();
    let guard = manager(&server.url()).lock("n").expect("it is free");
    let waiting = locking(&locks.mutex("n"));
    // The wait names a channel, so the subscription exists and can be lost.
    wait_until("it queues under its channel", || {
        let waiters: Vec<String> = redis.ask(&["HVALS", "{n}:lh:waiters"]);
        waiters.len() == 1 && !waiters[0].ends_with(' ')
    });
    proxy.strike(Role::Listener, fault);
    proxy.wait_until_struck(Role::Listener);
    let busy = Busy::start(&manager(&server.url()).mutex("other"));
    guard.release().expect("it was held");
    drop(waiting.end().expect("it gets its turn"));
    gets_its_turn(&locks.mutex("other"), &busy, 2);
    busy.end();
}

#[test]
fn a_process_whose_subscription_is_closed_gets_its_turn() {
    gets_its_turn_despite(Fault::Close);
}

#[test]
fn a_process_whose_subscription_hangs_gets_its_turn() {
    gets_its_turn_despite(Fault::LoseAnswers);
}

#[test]
fn a_process_whose_subscription_cannot_connect_gets_its_turn() {
    let server = Server::start();
    let busy_locks = build(patient(&server.url()).pool_size(2));
    let busy = Busy::start(&busy_locks.mutex("n"));
    // The manager opens its only connection before the limit is set.
    let locks = build(patient(&server.url()).pool_size(1));
    drop(locks.lock("inside").expect("it is free"));
    let redis = server.raw();
    let () = redis.ask(&["CONFIG", "SET", "maxclients", "1"]);
    gets_its_turn(&locks.mutex("n"), &busy, 2);
    busy.end();
}

/// The lock is handed over to a waiter whose subscription has ended. Its channel has no subscriber, so the waiter is
/// skipped.
#[test]
fn a_subscription_that_is_closed_repeatedly_loses_no_turn() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let busy = Busy::start(&manager(&server.url()).mutex("n"));
    let locks = manager(&proxy.url());
    let over = Arc::new(AtomicBool::new(false));
    let faults = {
        let over = Arc::clone(&over);
        task(move || {
            while !over.load(Ordering::Relaxed) {
                proxy.strike(Role::Listener, Fault::Close);
                thread::sleep(ms(50));
                proxy.heal();
                thread::sleep(ms(150));
            }
        })
    };
    gets_its_turn(&locks.mutex("n"), &busy, 5);
    over.store(true, Ordering::Relaxed);
    faults.end();
    busy.end();
}

/// Another client sends no message when it releases; a holder of ours does.
#[test]
fn a_holder_of_another_client_is_polled_more_often_than_one_of_ours() {
    let server = Server::start();
    let () = server.raw().ask(&["SET", "theirs", "6e0b1c"]);
    let guard = manager(&server.url()).lock("ours").expect("it is free");
    let managers = ["theirs", "ours"].map(|name| (manager(&server.url()), name));
    let waiting = managers
        .each_ref()
        .map(|(locks, name)| locking(&locks.mutex(name)));
    let polls = || managers.each_ref().map(|(locks, _)| locks.stats().requests);
    wait_until("it polls", || polls()[0] >= 60);
    let [theirs, ours] = polls();
    assert!(theirs > 3 * ours, "{theirs} and {ours} requests");
    let () = server.raw().ask(&["DEL", "theirs"]);
    guard.release().expect("it was held");
    for waiting in waiting {
        drop(waiting.end().expect("it becomes free"));
    }
}
