//! An address that leads to another server after a failover, such as that of a load balancer. The connections of a process
//! that are older lead to the old server, which goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_simulator::{LinkFault, Role, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::subject::is_unreachable;
use crate::world::{Fault, Flag, Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "addresses",
    &[Topology::Single],
    subject_bodies![
        processes_take_turns_after_the_old_master_was_demoted,
        processes_take_turns_although_the_address_follows_long_after_the_demotion,
        processes_take_turns_although_their_subscriptions_stay_at_the_old_server,
        processes_take_turns_although_only_their_subscriptions_reach_the_new_server,
        processes_take_turns_although_only_their_renewals_reach_the_new_server,
        a_process_that_rested_meanwhile_gets_its_turn,
        a_master_that_stays_a_replica_costs_few_connections,
    ],
);

const NAME: &str = "n";
const HOLD: Duration = ms(5);
const RETRY: Duration = ms(100);
/// A subscription looks once a second whether it must end. The pauses before the next signs are 1 s and 2 s.
const SETTLED_AFTER: Duration = secs(5);
/// The connections of a process: of its pool, of its renewal thread, and of its subscription.
const CONNECTIONS: u64 = 10 + 2;

/// A process whose threads want one lock all the time.
struct Busy {
    turns: Arc<AtomicU32>,
    threads: Vec<Task<()>>,
}

impl Busy {
    fn start(locks: &Locks, threads: usize, stop: &Flag) -> Self {
        let turns = Arc::<AtomicU32>::default();
        let thread = |_| {
            let (mutex, turns, stop) = (locks.mutex(NAME), Arc::clone(&turns), stop.clone());
            let world = locks.world().clone();
            locks.thread(move || {
                while !stop.is_raised() {
                    match mutex.lock() {
                        Ok(guard) => {
                            turns.fetch_add(1, Ordering::Relaxed);
                            world.pass(HOLD);
                            drop(guard);
                        }
                        Err(error) if is_unreachable(&error) => world.pass(RETRY),
                        Err(error) => panic!("{error:?}"),
                    }
                }
            })
        };
        let threads = (0..threads).map(thread).collect();
        Self { turns, threads }
    }

    fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }
}

/// Makes the address lead to the other server. Returns the number of connects so far.
fn redirect(world: &World) -> u64 {
    world.fault(Fault::Redirect { from: 0, to: 1 });
    world.connects(0) + world.connects(1)
}

/// Two processes want a lock, one of them by four threads. `switch` makes their address lead to another server. Checks that
/// both get their turns from then on, and connect only a few times.
#[track_caller]
fn take_turns(world: &World, switch: impl Fn(&[Locks; 2]) -> u64) {
    world.make_nodes(2);
    let managers = [world.manager(), world.manager()];
    let stop = world.flag();
    let busy = [(0, 4), (1, 1)]
        .map(|(which, threads): (usize, usize)| Busy::start(&managers[which], threads, &stop));
    world.until("both take turns", || busy.iter().all(|it| it.turns() > 20));
    let before = switch(&managers);
    world.pass(SETTLED_AFTER);
    for _ in 0..5 {
        let before = busy.each_ref().map(Busy::turns);
        world.pass(secs(4));
        for (busy, before) in busy.iter().zip(before) {
            let turns = busy.turns() - before;
            assert!(turns >= 20, "{turns} turns in 4 s");
        }
    }
    let connects = world.connects(0) + world.connects(1) - before;
    assert!(connects <= 2 * CONNECTIONS, "{connects} connects");
    let channels: Vec<String> = world.redis_at(1).ask(&["PUBSUB", "CHANNELS"]);
    assert_eq!(channels.len(), 3, "one of each, and the common one");
    stop.raise();
    for task in busy.into_iter().flat_map(|it| it.threads) {
        task.end();
    }
}

/// Each request at the old master is `READONLY` from then on. A subscription stays there, and is well.
fn processes_take_turns_after_the_old_master_was_demoted(world: &World) {
    take_turns(world, |_| {
        let before = redirect(world);
        world.demote(true);
        before
    });
}

/// By then a `READONLY` begins a new era once a minute at most.
fn processes_take_turns_although_the_address_follows_long_after_the_demotion(world: &World) {
    take_turns(world, |_| {
        world.demote(true);
        world.pass(secs(70));
        redirect(world)
    });
}

/// The old server goes on as a master, so no answer says that it is not the right one any more.
#[track_caller]
fn take_turns_after_a_move_of(world: &World, role: Role) {
    take_turns(world, |managers| {
        let before = redirect(world);
        for locks in managers {
            locks.strike_on(role, LinkFault::Close);
            locks.wait_until_struck_on(role);
            locks.heal();
        }
        before
    });
}

fn processes_take_turns_although_their_subscriptions_stay_at_the_old_server(world: &World) {
    take_turns_after_a_move_of(world, Role::Pool);
}

fn processes_take_turns_although_only_their_subscriptions_reach_the_new_server(world: &World) {
    take_turns_after_a_move_of(world, Role::Listener);
}

fn processes_take_turns_although_only_their_renewals_reach_the_new_server(world: &World) {
    take_turns_after_a_move_of(world, Role::Renewal);
}

/// Its connections of the pool have been closed, because nobody used them. Its subscription has not.
fn a_process_that_rested_meanwhile_gets_its_turn(world: &World) {
    world.make_nodes(2);
    let (rests, locks) = (world.manager(), world.manager());
    let held = locks.lock(NAME).expect("it is free");
    let asks = rests.mutex(NAME);
    let waiting = rests.thread(move || asks.lock().map(drop));
    world.redis().wait_until_queued(NAME, 1);
    held.release().expect("it was held until now");
    waiting.end().expect("it becomes free");
    world.pass(secs(60));
    world.fault(Fault::Redirect { from: 0, to: 1 });
    let stop = world.flag();
    let busy = Busy::start(&world.manager(), 4, &stop);
    world.until("it is busy", || busy.turns() > 20);
    let mutex = rests.mutex(NAME);
    let turn = |limit| {
        let begun = world.now();
        drop(mutex.lock().expect("the server is there"));
        assert!(world.now() <= world.within(begun + limit));
    };
    turn(SETTLED_AFTER);
    world.pass(SETTLED_AFTER);
    // Ten turns without a message would take a second each.
    for _ in 0..10 {
        turn(ms(500));
    }
    stop.raise();
    busy.threads.into_iter().for_each(Task::end);
}

/// The address leads to the demoted master for an hour. Each `READONLY` is a sign that new connections may lead elsewhere.
fn a_master_that_stays_a_replica_costs_few_connections(world: &World) {
    let locks = world.manager();
    let held = locks.mutex("held").lease(secs(12 * 3600)).lock();
    let held = held.expect("it is free");
    world.demote(true);
    let (before, lines) = (world.connects(0), world.log_lines());
    let minutes = 60;
    for _ in 0..minutes {
        for _ in 0..6 {
            let outcome = locks.try_lock(NAME);
            assert!(outcome.as_ref().is_err_and(is_unreachable), "{outcome:?}");
            world.pass(secs(10));
        }
    }
    let connects = world.connects(0) - before;
    // One for each try. A new era, once a minute at last, costs as many as there are open.
    assert!(connects <= 7 * minutes, "{connects}");
    assert!(world.log_lines() - lines <= 10);
    world.demote(false);
    held.release().expect("it is held");
}
