//! Grants by message: a hand-over makes a waiter the holder, and tells it the fence.

use std::time::Duration;

use leasehold::{LeaseState, LockGuard, LockManager, LostCause};

use crate::support::{
    Child, Fault, PATIENCE, Proxy, Raw, Role, Server, asleep, build, companions_of, fence_of,
    locking_asleep, manager, name, patient, secs, shared, wait_until,
};

/// The pickup window of [`patient`] managers.
const WINDOW: Duration = secs(10);

/// Has a lock go from one manager to another until a message has granted it. On a busy machine, the waiter may poll just
/// before the hand-over, so that a reply grants the lock. Returns the guard, and the fence of the guard before it.
#[track_caller]
fn granted_by_message(
    raw: &Raw,
    from: &LockManager,
    to: &LockManager,
    name: &str,
) -> (LockGuard, u64) {
    let by_message = || to.stats().granted_by_message;
    for _ in 0..20 {
        let holder = from.lock(name).expect("it is free");
        let before = by_message();
        let waiting = locking_asleep(&to.mutex(name));
        raw.wait_until_queued(name, 1);
        let fence = holder.fence();
        holder.release().expect("it is held");
        let guard = waiting.end().expect("it is handed over");
        if by_message() > before {
            return (guard, fence);
        }
    }
    panic!("no message has granted the lock")
}

#[test]
fn a_message_grants_the_lock_with_the_next_fence() {
    let raw = shared();
    let (one, other) = (manager(raw.url()), manager(raw.url()));
    let name = name("grant");
    let (guard, fence) = granted_by_message(raw, &one, &other, &name);
    assert_eq!(guard.state(), LeaseState::Held);
    assert!(guard.fence() > fence);
    assert_eq!(raw.get(&fence_of(&name)), Some(guard.fence().to_string()));
    assert_eq!(raw.owner(&name).as_deref(), Some(guard.owner()));
    let fence = guard.fence();
    guard.release().expect("it is held");
    assert!(one.lock(&name).expect("it is free").fence() > fence);
}

#[test]
fn a_lease_that_a_message_granted_is_raised_to_its_full_length() {
    let raw = shared();
    let lease = secs(600);
    let locks = || build(patient(raw.url()).lease(lease));
    let name = name("raised");
    let (guard, _) = granted_by_message(raw, &locks(), &locks(), &name);
    wait_until("it is raised in Redis", || {
        raw.ttl(&name).is_some_and(|ttl| ttl > lease / 2)
    });
    wait_until("the guard knows", || guard.remaining() > lease / 2);
    assert_eq!(guard.state(), LeaseState::Held);
}

#[test]
fn a_message_grants_a_lock_without_a_fence() {
    let raw = shared();
    let locks = || build(patient(raw.url()).fencing(false));
    let name = name("unfenced");
    let (guard, _) = granted_by_message(raw, &locks(), &locks(), &name);
    assert_eq!(guard.fence(), 0);
    assert!(!raw.exists(&fence_of(&name)));
}

#[test]
fn a_process_with_more_threads_gets_its_fences_by_a_reply() {
    let raw = shared();
    let (one, other) = (manager(raw.url()), manager(raw.url()));
    let name = name("crowd");
    let holder = one.lock(&name).expect("it is free");
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| asleep(scope, || other.lock(&name).map(drop)));
        raw.wait_until_queued(&name, 1);
        // The record of the waiter is written anew by the first poll after the second thread has come.
        let [_, _, waiters] = companions_of(&name);
        wait_until("no grant by message is allowed", || {
            let records: Vec<String> = raw.ask(&["HVALS", &waiters]);
            records.iter().all(|record| record.split(' ').count() == 4)
        });
        holder.release().expect("it is held");
        for thread in threads {
            thread.join().expect("no panic").expect("it gets its turn");
        }
    });
    assert_eq!(other.stats().granted_by_message, 0);
}

#[test]
fn a_message_without_the_nonce_grants_nothing() {
    let raw = shared();
    let (one, other) = (manager(raw.url()), manager(raw.url()));
    let name = name("forged");
    let holder = one.lock(&name).expect("it is free");
    let waiting = locking_asleep(&other.mutex(&name));
    raw.wait_until_queued(&name, 1);
    let owner = raw.queue(&name).remove(0);
    let channel = raw.channel(&name, &owner);
    let nonce = "0123456789abcdef".repeat(2);
    let asked = other.stats().requests;
    let forged = format!("{owner} {nonce} {}", holder.fence() + 1);
    let () = raw.ask(&["PUBLISH", &channel, &forged]);
    wait_until("the waiter asks", || other.stats().requests > asked);
    raw.wait_until_polled(&name, &owner);
    assert_eq!(other.stats().granted(), 0);
    holder.release().expect("it is the only holder");
    drop(waiting.end().expect("it is handed over"));
}

/// Makes a Redis user that may subscribe and publish, and has no right to any key.
fn forger_at(server: &Server) -> redis::Connection {
    let rights = "on nopass resetkeys resetchannels &leasehold:* -@all +@pubsub";
    let user = ["ACL", "SETUSER", "forger"].into_iter();
    let () = server
        .raw()
        .ask(&user.chain(rights.split(' ')).collect::<Vec<_>>());
    let url = server.url().replacen("redis://", "redis://forger:any@", 1);
    let client = redis::Client::open(url).expect("a URL");
    let connection = client.get_connection().expect("the user may log in");
    let limit = connection.set_read_timeout(Some(PATIENCE));
    limit.expect("a limit");
    connection
}

/// The channel of a grant by message, and the parts of the message.
struct Heard {
    channel: String,
    owner: String,
    nonce: u128,
    fence: u64,
}

/// Waits for the message of the next grant.
fn hear(messages: &mut redis::PubSub<'_>) -> Heard {
    loop {
        let message = messages.get_message().expect("a message comes");
        let text: String = message.get_payload().expect("it is text");
        if let [owner, nonce, fence] = text.split(' ').collect::<Vec<_>>()[..] {
            return Heard {
                channel: message.get_channel_name().into(),
                owner: owner.into(),
                nonce: u128::from_str_radix(nonce, 16).expect("it is hexadecimal"),
                fence: fence.parse().expect("a number"),
            };
        }
    }
}

impl Heard {
    /// Publishes a forged grant to the same owner.
    fn forge(&self, user: &mut redis::Connection, nonce: u128, fence: u64) {
        let forged = format!("{} {nonce:032x} {fence}", self.owner);
        let publish = redis::cmd("PUBLISH")
            .arg(&self.channel)
            .arg(forged)
            .exec(user);
        publish.expect("the user may publish");
    }
}

/// Hands a lock over to a process that is stopped. Returns the process, and the message as a forger hears it.
fn granted_to_a_stopped_waiter(server: &Server, name: &str) -> (Child, Heard) {
    let raw = server.raw();
    let mut stopped = Child::start(raw.url(), "");
    let holder = manager(raw.url()).lock(name).expect("it is free");
    stopped.say(format_args!("lock {name}"));
    raw.wait_until_queued(name, 1);
    let mut listens = forger_at(server);
    let mut messages = listens.as_pubsub();
    let subscribed = messages.psubscribe("leasehold:*");
    subscribed.expect("it may subscribe");
    stopped.pause();
    holder.release().expect("it is held");
    let heard = hear(&mut messages);
    drop(messages);
    (stopped, heard)
}

/// The waiter is stopped, so it uses no message, and asks again under the same owner.
#[test]
fn a_user_without_rights_to_keys_cannot_guess_the_next_nonce() {
    let server = Server::start();
    let (raw, name) = (server.raw(), "guessed");
    let (stopped, heard) = granted_to_a_stopped_waiter(&server, name);
    let mut forger = forger_at(&server);
    let next = manager(raw.url()).try_lock_for(name, PATIENCE);
    let next = next.expect("Redis replies").expect("the window ends");
    stopped.resume();
    raw.wait_until_queued(name, 1);
    assert_eq!(raw.queue(name), [&*heard.owner], "the owner is the same");
    // Either half could have been a counter.
    for step in [0, 1, 2, 1 << 64, 2 << 64] {
        let guess = heard.nonce.wrapping_add(step);
        heard.forge(&mut forger, guess, heard.fence + 1_000_000);
        // The message makes the waiter ask. So it has heard it.
        raw.wait_until_polled(name, &heard.owner);
    }
    assert_eq!(raw.owner(name).as_deref(), Some(next.owner()));
    let fence = next.fence();
    next.release().expect("it is the only holder");
    let own = stopped.locked();
    assert!(fence < own && own <= largest_fence(&raw, name), "{own}");
}

fn largest_fence(raw: &Raw, name: &str) -> u64 {
    let record = raw.get(&fence_of(name)).expect("it is kept");
    record.parse().expect("a fence")
}

/// The waiter is stopped while the grant and its forged copies arrive. It has the lock, and it uses the true fence, or asks
/// for another one if the pickup window is nearly over.
#[test]
fn a_forged_copy_of_a_grant_changes_no_fence() {
    let server = Server::start();
    let mut forger = forger_at(&server);
    let (raw, name) = (server.raw(), "copied");
    let (stopped, heard) = granted_to_a_stopped_waiter(&server, name);
    for ahead in [1_000_000, 1_000_000_000_000] {
        heard.forge(&mut forger, heard.nonce, heard.fence + ahead);
    }
    stopped.resume();
    let own = stopped.locked();
    let largest = largest_fence(&raw, name);
    assert!(heard.fence <= own && own <= largest, "{own}");
}

#[test]
fn nobody_sees_a_nonce() {
    let raw = shared();
    let (one, other) = (manager(raw.url()), manager(raw.url()));
    let name = name("secret");
    let holder = one.lock(&name).expect("it is free");
    let waiting = locking_asleep(&other.mutex(&name));
    raw.wait_until_queued(&name, 1);
    let owner = raw.queue(&name).remove(0);
    let [_, _, waiters] = companions_of(&name);
    let record: String = raw.ask(&["HGET", &waiters, &owner]);
    let nonce = record.rsplit(' ').next().expect("the record has words");
    assert_eq!(nonce.len(), 32, "{record}");
    let shown = format!("{:?} {other:?}", one.inspect(&name));
    assert!(!shown.contains(nonce), "{shown}");
    holder.release().expect("it is held");
    let guard = waiting.end().expect("it is handed over");
    let shown = format!("{guard:?} {:?}", one.inspect(&name));
    assert!(!shown.contains(nonce), "{shown}");
}

/// The lock goes to a process that is stopped, and then to another. The message to the first one comes too late.
#[test]
fn a_process_that_was_stopped_does_not_use_an_old_grant() {
    let raw = shared();
    let name = name("stopped");
    let mut stopped = Child::start(raw.url(), "");
    let holder = manager(raw.url()).lock(&name).expect("it is free");
    stopped.say(format_args!("lock {name}"));
    raw.wait_until_queued(&name, 1);
    let owner = raw.queue(&name).remove(0);
    stopped.pause();
    holder.release().expect("it is held");
    assert_eq!(raw.owner(&name), Some(owner), "it is handed over");
    let next = manager(raw.url()).try_lock_for(&name, PATIENCE);
    let next = next.expect("Redis replies").expect("the window ends");
    stopped.resume();
    // It queues again, and so has not used the grant.
    raw.wait_until_queued(&name, 1);
    let fence = next.fence();
    next.release().expect("it is the only holder");
    assert!(stopped.locked() > fence);
}

/// The renewal thread cannot raise the lease. So the lease ends with the pickup window, before Redis gives the lock away.
#[test]
fn a_lease_that_is_not_raised_ends_with_the_pickup_window() {
    let server = Server::start();
    let (raw, proxy) = (server.raw(), Proxy::to(&server));
    let other = build(patient(&proxy.url()));
    let name = "n";
    let first = manager(raw.url());
    // No message grants a lease before the renewal thread has connected.
    drop(granted_by_message(&raw, &first, &other, name));
    let before = other.stats().granted_by_message;
    let holder = first.lock(name).expect("it is free");
    let waiting = locking_asleep(&other.mutex(name));
    raw.wait_until_queued(name, 1);
    proxy.strike(Role::Renewal, Fault::LoseRequests);
    proxy.strike(Role::Pool, Fault::LoseRequests);
    holder.release().expect("it is held");
    let guard = waiting.end().expect("the message grants it");
    assert_eq!(other.stats().granted_by_message, before + 1);
    let of_key = raw.ttl(name).expect("it expires");
    let of_guard = guard.remaining();
    // The guard allows for drift: it ends a hundredth of the window, and 2 ms, before the key. It was read later.
    assert!(
        of_guard + WINDOW / 100 <= of_key && of_key <= WINDOW,
        "{of_guard:?} of {of_key:?}"
    );
    let lost = guard.on_lost().recv_timeout(PATIENCE).expect("it is lost");
    assert_eq!(lost.cause, LostCause::Expired);
}

/// A router on the way has forgotten all connections, without a sign, while the process waits.
#[test]
fn a_waiter_whose_connections_were_forgotten_is_granted_by_message_again() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = manager(&server.url());
    let locks = build(patient(&proxy.url()).lease(secs(600)).io_timeout(secs(1)));
    let guard = holder.lock("n").expect("it is free");
    let waiting = locking_asleep(&locks.mutex("n"));
    wait_until("the renewal thread has connected", || {
        proxy.carries(Role::Renewal)
    });
    proxy.forget_connections();
    // Nothing is due to be sent on the connection for renewals: the waiter has no lease.
    wait_until("all have connected again", || {
        [Role::Renewal, Role::Listener, Role::Pool].map(|role| proxy.carries(role)) == [true; 3]
    });
    guard.release().expect("it is held");
    let guard = waiting.end().expect("it is handed over");
    assert_eq!(guard.state(), LeaseState::Held);
    wait_until("it is raised", || guard.remaining() > secs(300));
}
