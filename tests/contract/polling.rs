//! Processes that no message reaches. They must find by polling that they have been granted the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::Mutex;
use leasehold_simulator::{LinkFault, Role, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::subject::Kind;
use crate::world::{Fault, Flag, Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "polling",
    &[Topology::Single],
    subject_bodies![
        without_the_subscribe_command_a_process_gets_its_turn,
        without_the_subscribe_command_a_process_with_a_short_lease_gets_its_turn,
        a_process_whose_subscription_is_closed_gets_its_turn,
        a_process_whose_subscription_hangs_gets_its_turn,
        a_process_whose_subscription_cannot_connect_gets_its_turn,
        a_subscription_that_is_closed_repeatedly_loses_no_turn,
        a_subscription_that_is_closed_repeatedly_comes_back_after_pauses,
        a_holder_of_another_client_is_polled_more_often_than_one_of_ours,
    ],
);

const NAME: &str = "n";
/// The time for which a busy process holds each guard: ten guards fill a quantum.
const HOLD: Duration = ms(5);
/// The longest quantum, which is that of a process that no message reaches.
const QUANTUM: Duration = ms(50);

/// A process with two threads that want one lock all the time.
struct Busy {
    guards: Arc<AtomicU32>,
    stop: Flag,
    threads: [Task<()>; 2],
}

impl Busy {
    fn start(locks: &Locks, name: &str) -> Self {
        let world = locks.world();
        let (guards, stop) = (Arc::new(AtomicU32::new(0)), world.flag());
        let threads = [(), ()].map(|()| {
            let (mutex, guards, stop) = (locks.mutex(name), Arc::clone(&guards), stop.clone());
            let world = world.clone();
            locks.thread(move || {
                while !stop.is_raised() {
                    let guard = mutex.lock().expect("the server is there");
                    guards.fetch_add(1, Ordering::Relaxed);
                    world.pass(HOLD);
                    drop(guard);
                }
            })
        });
        world.until("the process is busy", || {
            guards.load(Ordering::Relaxed) > 20
        });
        Self {
            guards,
            stop,
            threads,
        }
    }

    fn end(self) {
        self.stop.raise();
        self.threads.into_iter().for_each(Task::end);
    }
}

/// Locks `times` beside a busy process, and checks how long that takes each time.
#[track_caller]
fn gets_its_turn(world: &World, waiter: &Mutex, busy: &Busy, times: u32) {
    for _ in 0..times {
        let (begun, before) = (world.now(), busy.guards.load(Ordering::Relaxed));
        drop(waiter.lock().expect("the server is there"));
        let limit = world.within(begun + QUANTUM + secs(1));
        let passed = busy.guards.load(Ordering::Relaxed) - before;
        assert!(world.now() <= limit, "{passed} guards went first");
    }
}

/// Takes the right to subscribe from everybody.
fn forbid_subscriptions(world: &World) {
    let () = world
        .redis()
        .ask(&["ACL", "SETUSER", "default", "-subscribe"]);
}

fn without_the_subscribe_command_a_process_gets_its_turn(world: &World) {
    forbid_subscriptions(world);
    let busy = Busy::start(&world.manager(), NAME);
    gets_its_turn(world, &world.manager().mutex(NAME), &busy, 3);
    busy.end();
}

/// After a hand-over it has a quarter of a second to ask for the lock.
fn without_the_subscribe_command_a_process_with_a_short_lease_gets_its_turn(world: &World) {
    forbid_subscriptions(world);
    let busy = Busy::start(&world.manager(), NAME);
    let short = world.manager().mutex(NAME).lease(ms(250));
    gets_its_turn(world, &short, &busy, 3);
    busy.end();
}

/// Tests a fault twice: the process cannot subscribe at first, and later loses its subscription during a wait.
#[track_caller]
fn gets_its_turn_despite(world: &World, fault: LinkFault) {
    let busy = Busy::start(&world.manager(), NAME);
    let locks = world.manager();
    locks.strike_on(Role::Listener, fault);
    gets_its_turn(world, &locks.mutex(NAME), &busy, 2);
    busy.end();

    locks.heal();
    let guard = world.manager().lock(NAME).expect("it is free");
    let mutex = locks.mutex(NAME);
    let waiting = locks.thread(move || mutex.lock().map(drop));
    // The wait names a channel, so the subscription exists and can be lost.
    world.until("it queues under its channel", || {
        let (_, channel) = world.redis().waiters(NAME, 1).remove(0);
        !channel.is_empty()
    });
    locks.strike_on(Role::Listener, fault);
    locks.wait_until_struck_on(Role::Listener);
    let busy = Busy::start(&world.manager(), "other");
    guard.release().expect("it was held until now");
    waiting.end().expect("it gets its turn");
    gets_its_turn(world, &locks.mutex("other"), &busy, 2);
    busy.end();
}

fn a_process_whose_subscription_is_closed_gets_its_turn(world: &World) {
    gets_its_turn_despite(world, LinkFault::Close);
}

fn a_process_whose_subscription_hangs_gets_its_turn(world: &World) {
    gets_its_turn_despite(world, LinkFault::LoseAnswers);
}

fn a_process_whose_subscription_cannot_connect_gets_its_turn(world: &World) {
    let busy = Busy::start(&world.build(|it| it.pool_size(2)), NAME);
    // The manager opens its only connection before the server admits no further one.
    let locks = world.build(|it| it.pool_size(1));
    drop(locks.lock("inside").expect("it is free"));
    world.fault(Fault::Fill(0, true));
    gets_its_turn(world, &locks.mutex(NAME), &busy, 2);
    busy.end();
}

/// The lock is handed over to a waiter whose subscription has ended. Its channel has no subscriber, so the waiter is
/// skipped.
fn a_subscription_that_is_closed_repeatedly_loses_no_turn(world: &World) {
    let busy = Busy::start(&world.manager(), NAME);
    let locks = world.manager();
    let over = world.flag();
    let faults = {
        let (over, world, of_locks) = (over.clone(), world.clone(), locks.clone());
        world.manager().thread(move || {
            while !over.is_raised() {
                of_locks.strike_on(Role::Listener, LinkFault::Close);
                world.pass(ms(50));
                of_locks.heal();
                world.pass(ms(150));
            }
        })
    };
    gets_its_turn(world, &locks.mutex(NAME), &busy, 5);
    over.raise();
    faults.end();
    busy.end();
}

/// Each new subscription makes all waits ask Redis. So the process must pause before it subscribes again.
fn a_subscription_that_is_closed_repeatedly_comes_back_after_pauses(world: &World) {
    let guard = world.manager().lock(NAME).expect("it is free");
    let locks = world.manager();
    let waiter = Kind::Mutex.of(&locks, NAME).locking();
    world.redis().wait_until_queued(NAME, 1);
    locks.strike_on(Role::Listener, LinkFault::Close);
    // The pauses have reached their maximum by then.
    world.pass(secs(10));
    let before = locks.struck_on(Role::Listener);
    world.pass(secs(60));
    let times = locks.struck_on(Role::Listener) - before;
    assert!((60..=120).contains(&times), "{times} times in a minute");
    guard.release().expect("it was held until now");
    waiter.locked();
    waiter.release();
}

/// Another client sends no message when it releases; a holder of ours does.
fn a_holder_of_another_client_is_polled_more_often_than_one_of_ours(world: &World) {
    let redis = world.redis();
    let () = redis.ask(&["SET", "theirs", "6e0b1c"]);
    let guard = world.manager().lock("ours").expect("it is free");
    let managers = ["theirs", "ours"].map(|name| (world.manager(), name));
    let waiting = managers.each_ref().map(|(locks, name)| {
        let mutex = locks.mutex(*name);
        locks.thread(move || mutex.lock().map(drop))
    });
    world.pass(secs(1));
    let polls = || managers.each_ref().map(|(locks, _)| locks.stats().requests);
    let before = polls();
    world.pass(secs(10));
    let [theirs, ours] = [0, 1].map(|which| polls()[which] - before[which]);
    assert!((100..=200).contains(&theirs), "{theirs} requests");
    assert!((10..=14).contains(&ours), "{ours} requests");
    let () = redis.ask(&["DEL", "theirs"]);
    guard.release().expect("it was held until now");
    for waiting in waiting {
        waiting.end().expect("it becomes free");
    }
}
