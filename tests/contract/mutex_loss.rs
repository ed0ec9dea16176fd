//! What a mutex does after a loss of its key, its companions or all data. `loss.rs` has what all kinds have in common.

use leasehold::{LeaseState, LostCause};
use leasehold_simulator::Topology;

use crate::matrix::{Subject, subject_bodies};
use crate::redis::{Redis, companions_of};
use crate::subject::{Kind, lost};
use crate::world::{Task, World, secs};

pub(crate) const BODIES: Subject = (
    "mutex_loss",
    &[Topology::Single],
    subject_bodies![
        a_key_that_was_overwritten_is_lost_as_taken,
        a_release_returns_a_loss_that_no_renewal_has_found,
        fences_rise_past_the_loss_of_all_data,
        fences_rise_past_the_loss_of_all_companions,
        a_waiter_survives_the_loss_of_its_queue,
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
