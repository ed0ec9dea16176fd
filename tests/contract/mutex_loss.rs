//! What a mutex does after a loss of its key, its companions or all data. `loss.rs` has what all kinds have in common.

use leasehold::{LeaseState, LostCause};
use leasehold_simulator::{LinkFault, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::redis::{Redis, companions_of};
use crate::subject::{Kind, is_unreachable, lost};
use crate::world::{Fault, Task, World, secs};

pub(crate) const BODIES: Subject = (
    "mutex_loss",
    &[Topology::Single],
    subject_bodies![
        a_key_that_was_overwritten_is_lost_as_taken,
        a_release_returns_a_loss_that_no_renewal_has_found,
        fences_rise_past_the_loss_of_all_data,
        fences_rise_past_the_loss_of_all_companions,
        a_waiter_survives_the_loss_of_its_queue,
        a_lease_from_before_a_restart_without_data_is_not_handed_on_in_memory,
        a_queue_of_another_type_leaves_no_orphan,
        a_renewal_that_cannot_connect_is_repeated_until_it_can,
    ],
);

const NAME: &str = "n";

/// Makes somebody else hold the lock.
fn overwrite(redis: &Redis) {
    let () = redis.ask(&["SET", NAME, "somebody else", "PX", "60000"]);
}

fn delete_companions(redis: &Redis) {
    let [fence, queue, waiters] = companions_of(NAME);
    let () = redis.ask(&["DEL", &fence, &queue, &waiters]);
}

fn a_key_that_was_overwritten_is_lost_as_taken(world: &World) {
    let (redis, lease) = (world.redis(), secs(3));
    let locks = world.manager();
    let guard = locks.mutex(NAME).lease(lease).lock();
    let guard = guard.expect("it is free");
    overwrite(&redis);
    let overwritten_at = world.now();
    let loss = world.recv(&guard.on_lost());
    // The next renewal finds it.
    assert!(world.now() <= world.within(overwritten_at + lease / 3));
    assert_eq!(loss.cause, LostCause::Taken);
    assert_eq!(lost(guard.check()).cause, LostCause::Taken);
    assert_eq!(lost(guard.release()).cause, LostCause::Taken);
    assert!(locks.close(secs(30)), "something is left to send");
    assert_eq!(redis.ask::<String>(&["GET", NAME]), "somebody else");
    assert!(redis.ttl(NAME) > Some(secs(58)), "it was shortened");
}

fn a_release_returns_a_loss_that_no_renewal_has_found(world: &World) {
    let redis = world.redis();
    let locks = world.manager();
    // With a lease of 30 s, no renewal is due meanwhile.
    let locked = || locks.lock(NAME).expect("it is free");
    let delete = || -> () { redis.ask(&["DEL", NAME]) };
    let guard = locked();
    delete();
    assert_eq!(lost(guard.release()).cause, LostCause::Removed);

    let guard = locked();
    overwrite(&redis);
    assert_eq!(lost(guard.release()).cause, LostCause::Taken);
    assert_eq!(redis.ask::<String>(&["GET", NAME]), "somebody else");

    // `extend` finds the loss too.
    delete();
    let guard = locked();
    delete();
    assert_eq!(lost(guard.extend(secs(60))).cause, LostCause::Removed);
    assert_eq!(guard.state(), LeaseState::Lost);
}

fn fences_rise_past_the_loss_of_all_data(world: &World) {
    let locks = world.manager();
    let mut last = 0;
    for round in 0..3 {
        // Waiting threads make the lease reserve many fences at once, so that the record in Redis is ahead of the
        // guards. The restart deletes the record.
        let tasks = [(); 4].map(|()| {
            let mutex = locks.mutex(NAME);
            locks.thread(move || {
                for _ in 0..10 {
                    drop(mutex.lock().expect("it becomes free"));
                }
            })
        });
        tasks.into_iter().for_each(Task::end);
        let guard = locks.lock(NAME).expect("it is free");
        assert!(guard.fence() > last, "round {round}");
        last = guard.fence();
        guard.release().expect("it was held until now");
        world.restart_servers_empty();
    }
    let guard = world.manager().lock(NAME).expect("it is free");
    assert!(guard.fence() > last);
}

fn fences_rise_past_the_loss_of_all_companions(world: &World) {
    let (one, other) = (world.manager(), world.manager());
    let mut last = 0;
    for locks in [&one, &other, &other, &one] {
        let guard = locks.lock(NAME).expect("it is free");
        assert!(guard.fence() > last);
        last = guard.fence();
        delete_companions(&world.redis());
        guard.release().expect("it was held until now");
    }
}

fn a_waiter_survives_the_loss_of_its_queue(world: &World) {
    let redis = world.redis();
    let guard = world.manager().lock(NAME).expect("it is free");
    let waiter = Kind::Mutex.of(&world.manager(), NAME).locking();
    redis.wait_until_queued(NAME, 1);
    delete_companions(&redis);
    let last = guard.fence();
    let released_at = world.now();
    guard.release().expect("it was held until now");
    // Redis does not know the waiter, so that it finds the lock free by its next poll.
    assert!(waiter.locked_at() <= world.within(released_at + secs(1)));
    assert!(waiter.locked() > last);
}

/// The connection of the subscription closes with the server. From then on the process hands the old lease on no more.
fn a_lease_from_before_a_restart_without_data_is_not_handed_on_in_memory(world: &World) {
    let (redis, other) = (world.redis(), world.manager());
    // No quantum ends meanwhile, so only the closed connection makes a thread ask.
    let locks = world.build(|it| it.quantum(secs(3600)).lease(secs(600)));
    // The manager subscribes when it waits for the first time.
    let first = other.lock("first").expect("it is free");
    let waiter = Kind::Mutex.of(&locks, "first").locking();
    redis.wait_until_queued("first", 1);
    first.release().expect("it was held until now");
    waiter.locked();
    waiter.release();
    let locking = || Kind::Mutex.of(&locks, NAME).locking_asleep();
    // The second guard has fences for many more.
    let guard = locks.lock(NAME).expect("it is free");
    let second = locking();
    guard.release().expect("it was held until now");
    second.locked();
    let last = locking();
    world.restart_servers_empty();
    world.until("it subscribes again", || {
        let channels: Vec<String> = redis.ask(&["PUBSUB", "CHANNELS"]);
        !channels.is_empty()
    });
    let others = other.lock(NAME).expect("the server has forgotten it");
    let fence = others.fence();
    // Redis replies that the lock is gone, or no thread has asked yet.
    drop(second);
    redis.wait_until_queued(NAME, 1);
    assert!(last.waits(), "it was handed on");
    others.release().expect("it was held until now");
    assert!(last.locked() > fence);
}

/// The server admits no further client when the renewal thread connects.
fn a_renewal_that_cannot_connect_is_repeated_until_it_can(world: &World) {
    let locks = world.build(|it| it.pool_size(1));
    // Opens the only connection of the pool. Without a renewal, and a look before the end, no other one.
    drop(
        locks
            .mutex("inside")
            .lease(secs(5))
            .renew(false)
            .lock()
            .expect("it is free"),
    );
    world.fault(Fault::Fill(0, true));
    let guard = locks.mutex(NAME).lease(secs(12)).lock();
    let guard = guard.expect("the pool has its connection");
    world.until("a renewal fails", || locks.stats().renewals_failed > 0);
    assert_eq!(locks.stats().renewed, 0);
    world.fault(Fault::Fill(0, false));
    world.until("it is renewed", || locks.stats().renewed > 0);
    assert_eq!(guard.state(), LeaseState::Held);
    guard.release().expect("it was held until now");
}

/// A grant whose answer is lost is withdrawn, although the queue belongs to another client.
fn a_queue_of_another_type_leaves_no_orphan(world: &World) {
    let redis = world.redis();
    let locks = world.build(|it| it.io_timeout(secs(2)));
    // The server knows the script then.
    drop(locks.lock(NAME).expect("it is free"));
    let [_, queue, _] = companions_of(NAME);
    let () = redis.ask(&["SET", &queue, "a string"]);
    locks.strike(LinkFault::LoseAnswers);
    let tried = locks.mutex(NAME).lease(secs(600)).try_lock();
    assert!(tried.as_ref().is_err_and(is_unreachable), "{tried:?}");
    assert!(redis.exists(NAME), "it was not granted");
    locks.heal();
    redis.wait_until_free(Kind::Mutex, NAME);
    assert_eq!(redis.get(&queue).as_deref(), Some("a string"));
}
