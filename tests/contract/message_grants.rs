//! Grants by message: a hand-over makes a waiter the holder, and tells it the fence.

use std::time::Duration;

use leasehold::{LeaseState, LockGuard, LostCause};
use leasehold_simulator::{LinkFault, Role, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::redis::{Redis, companions_of, fence_of};
use crate::subject::{Holder, Kind};
use crate::world::{Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "message_grants",
    &[Topology::Single],
    subject_bodies![
        a_message_grants_the_lock_with_the_next_fence,
        a_lease_that_a_message_granted_is_raised_to_its_full_length,
        a_message_grants_a_lock_without_a_fence,
        a_process_with_more_threads_gets_its_fences_by_a_reply,
        a_message_without_the_nonce_grants_nothing,
        a_user_without_rights_to_keys_cannot_guess_the_next_nonce,
        a_forged_copy_of_a_grant_changes_no_fence,
        nobody_sees_a_nonce,
        a_process_that_was_stopped_does_not_use_an_old_grant,
        a_lease_that_is_not_raised_ends_with_the_pickup_window,
        a_waiter_whose_connections_were_forgotten_is_granted_by_message_again,
    ],
);

const NAME: &str = "n";
/// The pickup window, twice as long as the default `io_timeout`.
const WINDOW: Duration = secs(2);

/// Makes a thread of the process wait for the lock, until a hand-over can grant it by a message. Its next poll is most of a
/// second away then, so it does not pass the message.
fn waiting(locks: &Locks) -> Task<LockGuard> {
    let (mutex, redis) = (locks.mutex(NAME), locks.world().redis());
    let thread = locks.thread(move || mutex.lock().expect("it is handed over"));
    wait_until_it_listens(&redis);
    thread
}

/// Blocks until the record of the only waiter has a nonce, and the waiter has just polled.
fn wait_until_it_listens(redis: &Redis) {
    redis.until("it can be granted by a message", || {
        nonce_of(redis).is_some()
    });
    redis.wait_until_polled(NAME, &redis.queue(NAME)[0]);
    redis.until("the reply has come", {
        let time = redis.time() + ms(10);
        move || redis.time() >= time
    });
}

/// Returns the nonce in the record of the only waiter.
fn nonce_of(redis: &Redis) -> Option<u128> {
    let queue = redis.queue(NAME);
    let [owner] = &queue[..] else {
        return None;
    };
    let [_, _, waiters] = companions_of(NAME);
    let record: Option<String> = redis.ask(&["HGET", &waiters, owner]);
    let nonce = record?.split(' ').nth(4)?.to_owned();
    Some(u128::from_str_radix(&nonce, 16).expect("it is hexadecimal"))
}

/// Makes a lock go from one manager to another by a message. Returns the guard, and the fence of the guard before it.
fn granted_by_message(from: &Locks, to: &Locks) -> (LockGuard, u64) {
    let before = to.stats().granted_by_message;
    let holder = from.lock(NAME).expect("it is free");
    let waiting = waiting(to);
    let fence = holder.fence();
    holder.release().expect("it was held until now");
    let guard = waiting.end();
    assert_eq!(to.stats().granted_by_message, before + 1);
    (guard, fence)
}

fn a_message_grants_the_lock_with_the_next_fence(world: &World) {
    let redis = world.redis();
    let (one, other) = (world.manager(), world.manager());
    let (guard, fence) = granted_by_message(&one, &other);
    assert_eq!(guard.state(), LeaseState::Held);
    assert!(guard.fence() > fence);
    assert_eq!(largest_fence(&redis), guard.fence());
    assert_eq!(owner(&redis), guard.owner());
    let fence = guard.fence();
    guard.release().expect("it was held until now");
    assert!(one.lock(NAME).expect("it is free").fence() > fence);
}

fn a_lease_that_a_message_granted_is_raised_to_its_full_length(world: &World) {
    let redis = world.redis();
    let lease = secs(600);
    let locks = || world.build(|it| it.lease(lease));
    let (guard, _) = granted_by_message(&locks(), &locks());
    let granted_at = world.now();
    world.until("it is raised in Redis, and the guard knows", || {
        redis.ttl(NAME).is_some_and(|ttl| ttl > lease / 2) && guard.remaining() > lease / 2
    });
    assert!(world.now() <= world.within(granted_at));
    assert_eq!(guard.state(), LeaseState::Held);
}

fn a_message_grants_a_lock_without_a_fence(world: &World) {
    let locks = || world.build(|it| it.fencing(false));
    let (guard, _) = granted_by_message(&locks(), &locks());
    assert_eq!(guard.fence(), 0);
    assert!(!world.redis().exists(&fence_of(NAME)));
}

fn a_process_with_more_threads_gets_its_fences_by_a_reply(world: &World) {
    let redis = world.redis();
    let (one, other) = (world.manager(), world.manager());
    let holder = one.lock(NAME).expect("it is free");
    let threads = [(); 2].map(|()| {
        let mutex = other.mutex(NAME);
        other.thread(move || drop(mutex.lock().expect("it gets its turn")))
    });
    redis.wait_until_queued(NAME, 1);
    // The record of the waiter is written anew by the first poll after the second thread has come.
    world.until("no grant by message is allowed", || {
        nonce_of(&redis).is_none()
    });
    holder.release().expect("it was held until now");
    threads.into_iter().for_each(Task::end);
    assert_eq!(other.stats().granted_by_message, 0);
}

fn a_message_without_the_nonce_grants_nothing(world: &World) {
    let redis = world.redis();
    let (one, other) = (world.manager(), world.manager());
    let holder = one.lock(NAME).expect("it is free");
    let waiting = waiting(&other);
    let heard = Heard::next(&redis);
    let asked = other.stats().requests;
    let told = world.now();
    heard.forge(0x0123_4567_89ab_cdef, holder.fence() + 1);
    world.until("the waiter asks", || other.stats().requests > asked);
    assert!(world.now() <= world.within(told));
    redis.wait_until_polled(NAME, &heard.owner);
    assert_eq!(other.stats().granted(), 0);
    holder.release().expect("it is the only holder");
    drop(waiting.end());
}

/// The message that grants the lock to its only waiter, as one hears it who may subscribe.
struct Heard {
    redis: Redis,
    channel: String,
    owner: String,
    nonce: u128,
}

impl Heard {
    /// Reads what the message of the next hand-over will say.
    fn next(redis: &Redis) -> Self {
        let (owner, channel) = redis.waiters(NAME, 1).remove(0);
        Self {
            redis: redis.clone(),
            channel,
            owner,
            nonce: nonce_of(redis).expect("the waiter has one"),
        }
    }

    /// Publishes a forged grant to the same owner.
    fn forge(&self, nonce: u128, fence: u64) {
        let forged = format!("{} {nonce:032x} {fence}", self.owner);
        let () = self.redis.ask(&["PUBLISH", &self.channel, &forged]);
    }
}

/// Hands a lock over to a process that is stopped. Returns the process, its thread and the message.
fn granted_to_a_stopped_waiter(world: &World) -> (Locks, Holder, Heard) {
    let redis = world.redis();
    let stopped = world.manager();
    let holder = world.manager().lock(NAME).expect("it is free");
    let waiter = Kind::Mutex.of(&stopped, NAME).locking();
    wait_until_it_listens(&redis);
    stopped.pause();
    let heard = Heard::next(&redis);
    holder.release().expect("it was held until now");
    assert_eq!(owner(&redis), heard.owner, "it is handed over");
    (stopped, waiter, heard)
}

/// Returns the owner that holds the lock. Its value may have the mark that others wait.
fn owner(redis: &Redis) -> String {
    let value: String = redis.ask(&["GET", NAME]);
    value.trim_end_matches('!').to_owned()
}

fn largest_fence(redis: &Redis) -> u64 {
    redis.ask(&["GET", &fence_of(NAME)])
}

/// The waiter is stopped, so it uses no message, and asks again under the same owner.
fn a_user_without_rights_to_keys_cannot_guess_the_next_nonce(world: &World) {
    let redis = world.redis();
    let (stopped, waiter, heard) = granted_to_a_stopped_waiter(world);
    let granted = largest_fence(&redis);
    let next = world.manager().try_lock_for(NAME, secs(30));
    let next = next.expect("Redis replies").expect("the window ends");
    stopped.resume();
    redis.wait_until_queued(NAME, 1);
    assert_eq!(redis.queue(NAME), [&*heard.owner], "the owner is the same");
    // Either half could have been a counter.
    for step in [0, 1, 2, 1 << 64, 2 << 64] {
        let told = world.now();
        heard.forge(heard.nonce.wrapping_add(step), granted + 1_000_000);
        // The message makes the waiter ask. So it has heard it.
        redis.wait_until_polled(NAME, &heard.owner);
        assert!(world.now() <= world.within(told), "it did not hear it");
    }
    assert_eq!(owner(&redis), next.owner());
    let fence = next.fence();
    next.release().expect("it is the only holder");
    let own = waiter.locked();
    assert!(fence < own && own <= largest_fence(&redis), "{own}");
}

/// The waiter is stopped while the grant and its forged copies arrive. It has the lock, and uses the true fence.
fn a_forged_copy_of_a_grant_changes_no_fence(world: &World) {
    let redis = world.redis();
    let (stopped, waiter, heard) = granted_to_a_stopped_waiter(world);
    let fence = largest_fence(&redis);
    for ahead in [1_000_000, 1_000_000_000_000] {
        heard.forge(heard.nonce, fence + ahead);
    }
    world.pass(ms(10));
    stopped.resume();
    assert_eq!((waiter.locked(), largest_fence(&redis)), (fence, fence));
}

fn nobody_sees_a_nonce(world: &World) {
    let redis = world.redis();
    let (one, other) = (world.manager(), world.manager());
    let holder = one.lock(NAME).expect("it is free");
    let waiting = waiting(&other);
    let nonce = format!("{:032x}", nonce_of(&redis).expect("the waiter has one"));
    let shown = format!("{:?} {other:?}", one.inspect(NAME), other = *other);
    assert!(!shown.contains(&nonce), "{shown}");
    holder.release().expect("it was held until now");
    let guard = waiting.end();
    let shown = format!("{guard:?} {:?}", one.inspect(NAME));
    assert!(!shown.contains(&nonce), "{shown}");
}

/// The lock goes to a process that is stopped, and then to another. The message to the first one comes too late.
fn a_process_that_was_stopped_does_not_use_an_old_grant(world: &World) {
    let (stopped, waiter, _) = granted_to_a_stopped_waiter(world);
    let handed_over_at = world.now();
    let next = world.manager().try_lock_for(NAME, secs(30));
    let next = next.expect("Redis replies").expect("the window ends");
    assert!(world.now() <= world.within(handed_over_at + WINDOW));
    stopped.resume();
    // It queues again, and so has not used the grant.
    world.redis().wait_until_queued(NAME, 1);
    let fence = next.fence();
    next.release().expect("it is the only holder");
    assert!(waiter.locked() > fence);
}

/// The renewal thread cannot raise the lease. So the lease ends with the pickup window, before Redis gives the lock away.
fn a_lease_that_is_not_raised_ends_with_the_pickup_window(world: &World) {
    let redis = world.redis();
    let (first, other) = (world.manager(), world.manager());
    // No message grants a lease before the renewal thread has connected.
    drop(granted_by_message(&first, &other));
    let holder = first.lock(NAME).expect("it is free");
    let waiting = waiting(&other);
    for role in [Role::Renewal, Role::Pool] {
        other.strike_on(role, LinkFault::LoseRequests);
    }
    holder.release().expect("it was held until now");
    let guard = waiting.end();
    assert_eq!(other.stats().granted_by_message, 2);
    let (of_key, of_guard) = (redis.ttl(NAME).expect("it expires"), guard.remaining());
    // The guard allows for drift: it ends a hundredth of the window, and 2 ms, before the key.
    let is_sooner = of_guard + WINDOW / 100 <= of_key && of_key <= WINDOW;
    assert!(is_sooner, "{of_guard:?} of {of_key:?}");
    let deadline = world.now() + of_guard;
    let lost = world.recv(&guard.on_lost());
    assert_eq!(lost.cause, LostCause::Expired);
    assert!(world.now() >= deadline && world.now() <= world.promptly(deadline));
}

/// A router on the way has forgotten all connections, without a sign, while the process waits.
fn a_waiter_whose_connections_were_forgotten_is_granted_by_message_again(world: &World) {
    let holder = world.manager();
    let locks = world.build(|it| it.lease(secs(60)));
    let guard = holder.lock(NAME).expect("it is free");
    let waiting = waiting(&locks);
    locks.forget_connections();
    // Each connection is asked whether it is there, also that for renewals, although the waiter has no lease.
    world.pass(secs(10));
    wait_until_it_listens(&world.redis());
    let released_at = world.now();
    guard.release().expect("it was held until now");
    let guard = waiting.end();
    assert_eq!(locks.stats().granted_by_message, 1);
    assert_eq!(guard.state(), LeaseState::Held);
    world.until("it is raised", || guard.remaining() > secs(50));
    assert!(world.now() <= world.within(released_at));
}
