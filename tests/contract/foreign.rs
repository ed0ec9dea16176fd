//! Another client of the same keys. It locks by `SET name value NX PX ttl`, releases by compare-and-delete, and waits by
//! polling. Neither side ever breaks the other's lock. `tests/it/foreign.rs` runs real clients.

use std::time::Duration;

use leasehold::{Error, LeaseState, LostCause};
use leasehold_simulator::Topology;

use crate::matrix::Capability::IsAString;
use crate::matrix::{Chapter, bodies};
use crate::redis::Redis;
use crate::subject::{Holder, Kind, lost};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Chapter = &[(
    IsAString,
    bodies![
        another_client_and_ours_keep_each_other_out,
        a_lock_that_has_expired_does_not_touch_that_of_the_other_side,
        a_value_of_any_length_is_a_held_lock,
        a_value_in_place_of_ours_is_a_loss,
    ],
)];

/// Longer than any body runs.
const LONG: Duration = secs(600);
const OURS: Duration = secs(3);

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const EXTEND: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] \
    then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";
const TOKEN: &str = "6e0b1c";

/// The length of a huge value. No reply may be as long.
const HUGE: usize = 9 << 20;

/// The other client, at one key.
struct Theirs {
    redis: Redis,
    key: String,
}

impl Theirs {
    /// Uses the first key of a lock. A multi-lock queues there.
    fn at(world: &World, name: &str) -> Self {
        Self {
            redis: world.redis(),
            key: name.to_owned(),
        }
    }

    /// Returns how many nodes carry a command out.
    fn count(&self, command: &[&str]) -> usize {
        let done = |node: &Redis| match node.ask(command) {
            redis::Value::Okay | redis::Value::Int(1) => true,
            redis::Value::Nil | redis::Value::Int(0) => false,
            other => panic!("{command:?}: {other:?}"),
        };
        self.redis.nodes().iter().filter(|node| done(node)).count()
    }

    fn has_majority(&self, votes: usize) -> bool {
        votes > self.redis.nodes().len() / 2
    }

    /// Tries to take the lock, without an expiry if `ttl` is `None`.
    fn try_acquire(&self, ttl: Option<Duration>) -> bool {
        let ttl = ttl.map(|ttl| ttl.as_millis().to_string());
        let mut command = vec!["SET", &self.key, TOKEN, "NX"];
        if let Some(ttl) = &ttl {
            command.extend(["PX", ttl]);
        }
        let votes = self.count(&command);
        let has_it = self.has_majority(votes);
        if votes > 0 && !has_it {
            self.release();
        }
        has_it
    }

    fn extend(&self, ttl: Duration) -> bool {
        let ttl = ttl.as_millis().to_string();
        let votes = self.count(&["EVAL", EXTEND, "1", &self.key, TOKEN, &ttl]);
        self.has_majority(votes)
    }

    fn release(&self) -> bool {
        let votes = self.count(&["EVAL", RELEASE, "1", &self.key, TOKEN]);
        self.has_majority(votes)
    }

    /// Checks that theirs has the lock, and for how long.
    #[track_caller]
    fn has_it_for(&self, at_least: Option<Duration>) {
        assert_eq!(self.redis.get(&self.key).as_deref(), Some(TOKEN));
        let ttl = self.redis.ttl(&self.key);
        assert!(ttl >= at_least && ttl.is_some() == at_least.is_some());
    }
}

fn another_client_and_ours_keep_each_other_out(world: &World, kind: Kind) {
    for ttl in [Some(LONG), None] {
        let name = world.name(&format!("both-{}", ttl.is_some()));
        let (redis, theirs) = (world.redis(), Theirs::at(world, &name));
        // A gap would let theirs in between.
        let managers = [(); 2].map(|()| world.build(|it| it.poller_gap(Duration::ZERO)));
        assert!(theirs.try_acquire(ttl));
        let ours = kind.of(&managers[0], &name);
        assert!(ours.try_lock().expect("Redis replies").is_none());
        let waited = ours.try_lock_for(secs(1)).expect("Redis replies");
        assert!(waited.is_none());
        let mut waiters = Vec::new();
        for (before, locks) in managers.iter().enumerate() {
            waiters.push(kind.of(locks, &name).locking());
            redis.wait_until_queued(&theirs.key, before + 1);
        }
        world.pass(secs(2));
        // The value has no mark for waiters, and the waiters set no expiry.
        theirs.has_it_for(ttl.map(|_| LONG / 2));
        assert!(theirs.extend(2 * LONG));
        // Theirs sends no message, so a poll finds the lock free.
        let released_at = world.now();
        assert!(theirs.release());
        let first = next_holder(world, &mut waiters);
        assert!(first.locked_at() <= world.granted_by(released_at + secs(1)));
        assert!(!theirs.try_acquire(ttl));
        redis.wait_until_queued(&theirs.key, 1);
        first.release();
        // A quorum hands no lock over.
        if world.topology() != Topology::Quorum {
            assert!(!theirs.try_acquire(ttl), "it came in between");
        }
        let second = next_holder(world, &mut waiters);
        assert!(!theirs.try_acquire(ttl));
        second.release();
        redis.wait_until_free(kind, &name);
        assert!(theirs.try_acquire(ttl));
        assert!(theirs.release());
    }
}

/// Takes the waiter out of the list that is granted the lock.
fn next_holder(world: &World, waiters: &mut Vec<Holder>) -> Holder {
    let mut next = None;
    world.until("a waiter has it", || {
        next = waiters.iter().position(|waiter| !waiter.waits());
        next.is_some()
    });
    waiters.remove(next.expect("one has it"))
}

fn a_lock_that_has_expired_does_not_touch_that_of_the_other_side(world: &World, kind: Kind) {
    let name = world.name("expires");
    let theirs = Theirs::at(world, &name);
    let locks = world.manager();
    assert!(theirs.try_acquire(Some(ms(400))));
    let ours = kind.of(&locks, &name).lease(OURS);
    let guard = ours.try_lock_for(secs(30)).expect("Redis replies");
    let guard = guard.expect("it becomes free");
    // Theirs still believes that it holds the lock.
    assert!(!theirs.extend(LONG) && !theirs.release());
    world.pass(2 * OURS);
    guard.check().expect("it is held");
    // The process stops past its lease.
    locks.pause();
    world.pass(OURS);
    assert!(theirs.try_acquire(Some(LONG)));
    locks.resume();
    assert_eq!(guard.lease().state(), LeaseState::Lost);
    lost(guard.release());
    assert!(locks.close(secs(30)), "something is left to send");
    theirs.has_it_for(Some(LONG / 2));
}

/// Returns values of another client: how each begins, and how long it is. The longer ones are not read to their end.
fn values(world: &World, kind: Kind) -> Vec<(&'static str, usize)> {
    let mut values = vec![("", 0), ("theirs", 6), ("lh1:theirs", 600)];
    // It costs most of a second.
    if kind == Kind::Mutex && world.topology() == Topology::Single {
        values.push(("lh1:theirs", HUGE));
    }
    values
}

/// Sets a value of this length that starts with `beginning`.
fn set(redis: &Redis, key: &str, beginning: &str, length: usize) {
    let set = "redis.call('SET', KEYS[1], ARGV[1] .. string.rep('x', ARGV[2] - #ARGV[1]))";
    let length = length.to_string();
    let () = redis.ask(&["EVAL", set, "1", key, beginning, &length]);
}

#[track_caller]
fn is_whole(redis: &Redis, key: &str, length: usize) {
    for node in redis.nodes() {
        let found: usize = node.ask(&["STRLEN", key]);
        assert_eq!(found, length);
    }
}

/// A script replies with the beginning of a value, as a whole one might be longer than a reply may be.
fn a_value_of_any_length_is_a_held_lock(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("held"));
    let locks = world.manager();
    let ours = kind.of(&locks, &name);
    for (beginning, length) in values(world, kind) {
        for key in kind.keys(&name) {
            set(&redis, &key, beginning, length);
            assert!(ours.try_lock().expect("Redis replies").is_none());
            let waited = ours.try_lock_for(ms(300)).expect("Redis replies");
            assert!(waited.is_none());
            is_whole(&redis, &key, length);
            let () = redis.ask(&["DEL", &key]);
        }
    }
    if kind == Kind::Mutex {
        forced_release_needs_the_whole_value(world, &locks);
    }
}

/// An operator can read the value unless it is too long to be shown.
fn forced_release_needs_the_whole_value(world: &World, locks: &leasehold::LockManager) {
    let (redis, name) = (world.redis(), world.name("long"));
    let value = "theirs!".repeat(100);
    set(&redis, &name, &value, value.len());
    let held = locks.inspect(&name).expect("Redis replies");
    assert_eq!(held.expect("it is held").holders[0].owner, value);
    for owner in [&value[..512], &value[..value.len() - 1], ""] {
        assert!(!locks.force_release(&name, owner).expect("Redis replies"));
    }
    assert!(locks.force_release(&name, &value).expect("Redis replies"));
    assert!(!redis.exists(&name));
}

fn a_value_in_place_of_ours_is_a_loss(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("replaced"));
    let key = kind.keys(&name).pop().expect("there is one");
    for (beginning, length) in values(world, kind) {
        let locks = world.manager();
        let ours = kind.of(&locks, &name).lease(OURS);
        // A long value may begin with our own owner.
        let is_like_ours = beginning.starts_with("lh1");
        let of = |owner: &str| {
            let beginning = if is_like_ours { owner } else { beginning };
            set(&redis, &key, beginning, length);
        };
        let guard = ours.lock().expect("it becomes free");
        of(guard.leases().last().expect("there is one").owner());
        lost(guard.release());
        is_whole(&redis, &key, length);
        let () = redis.ask(&["DEL", &key]);
        // A renewal finds the same loss.
        let guard = ours.lock().expect("it becomes free");
        let losses = guard.on_lost();
        of(guard.leases().last().expect("there is one").owner());
        assert_eq!(world.recv(&losses).cause, LostCause::Taken);
        drop(guard);
        assert!(locks.close(secs(30)), "something is left to send");
        is_whole(&redis, &key, length);
        let () = redis.ask(&["DEL", &key]);
    }
    if kind == Kind::Mutex {
        let locks = world.manager();
        let claim = locks.lock("claimed").expect("it is free").detach();
        set(&redis, "claimed", claim.owner(), 600);
        assert!(matches!(locks.adopt(&claim), Err(Error::Lost(_))));
        let broken = locks.force_release("claimed", claim.owner());
        assert!(!broken.expect("Redis replies"));
        is_whole(&redis, "claimed", 600);
    }
}
