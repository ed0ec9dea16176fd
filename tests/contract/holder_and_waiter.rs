//! The setting of the tests of server faults: one process holds a lock, and another waits for it.

use std::sync::Mutex;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use leasehold::{Builder, Connection, Error, Event, EventKind, LeaseState};

use crate::redis::Redis;
use crate::subject::{Guard, Holder, Kind};
use crate::world::{Locks, World, locked};

pub(crate) const NAME: &str = "pair";

pub(crate) struct HolderAndWaiter {
    pub(crate) world: World,
    pub(crate) redis: Redis,
    pub(crate) kind: Kind,
    /// The manager of the holder.
    pub(crate) locks: Locks,
    /// The manager of the waiter.
    pub(crate) other: Locks,
    pub(crate) guard: Guard,
    pub(crate) waiter: Holder,
    /// Receives `true` if the holder's renewal connection breaks, and `false` if it recovers.
    unreachable: Receiver<bool>,
}

/// Runs a test twice: once with this kind as the holder, and once with this kind as the waiter.
pub(crate) fn both_ways(kind: Kind, test: impl Fn(Kind)) {
    test(kind);
    if kind.rival() != kind {
        test(kind.rival());
    }
}

impl HolderAndWaiter {
    pub(crate) fn new(world: &World, kind: Kind, lease: Duration) -> Self {
        Self::with(world, kind, lease, |change| world.build(change))
    }

    /// Makes the managers by `build`.
    pub(crate) fn with(
        world: &World,
        kind: Kind,
        lease: Duration,
        build: impl Fn(Box<dyn Fn(Builder) -> Builder>) -> Locks,
    ) -> Self {
        let (tell, unreachable) = unbounded();
        let tell = std::sync::Arc::new(Mutex::new(tell));
        let locks = build(Box::new(move |builder| {
            let tell = std::sync::Arc::clone(&tell);
            builder.listener(move |event: &Event<'_>| {
                let (connection, is_unreachable) = match event.kind {
                    EventKind::Unreachable { connection, .. } => (connection, true),
                    EventKind::Recovered { connection, .. } => (connection, false),
                    _ => return,
                };
                if connection == Connection::Renewal {
                    locked(&tell).send(is_unreachable).ok();
                }
            })
        }));
        let other = build(Box::new(|builder| builder));
        let redis = world.redis();
        let guard = kind.of(&locks, NAME).lease(lease).lock();
        let guard = guard.expect("it is free");
        let waiter = kind.rival().of(&other, NAME).locking();
        redis.wait_until_queued(NAME, 1);
        Self {
            world: world.clone(),
            redis,
            kind,
            locks,
            other,
            guard,
            waiter,
            unreachable,
        }
    }

    /// Blocks until the renewal connection breaks (`true`) or recovers (`false`).
    #[track_caller]
    pub(crate) fn wait_until_unreachable(&self, is_unreachable: bool) {
        assert_eq!(self.world.recv(&self.unreachable), is_unreachable);
    }

    /// Blocks until the holder's lease is renewed.
    #[track_caller]
    pub(crate) fn wait_until_renewed(&self) {
        let renewed = self.locks.stats().renewed;
        self.world
            .until("it is renewed", || self.locks.stats().renewed > renewed);
    }

    /// Checks that a lock of another name is refused, and not reported as held.
    #[track_caller]
    pub(crate) fn assert_nothing_new_is_granted(&self) {
        let further = self.kind.of(&self.other, "further");
        for outcome in [further.try_lock(), further.lock().map(Some)] {
            assert!(
                matches!(outcome, Err(Error::Unavailable { .. })),
                "{outcome:?}"
            );
        }
    }

    /// Checks that the fault did no harm: the holder still holds the lock, and the waiter still waits and is next.
    /// Only fences stay in Redis.
    #[track_caller]
    pub(crate) fn assert_unharmed(self) {
        let (redis, kind) = (self.redis.clone(), self.kind);
        self.assert_goes_on();
        redis.only_fences_are_left(kind, NAME);
    }

    /// Checks the same, except for what stays in Redis.
    #[track_caller]
    pub(crate) fn assert_goes_on(self) {
        self.wait_until_renewed();
        assert_eq!(self.guard.lease().state(), LeaseState::Held);
        assert!(
            self.waiter.waits(),
            "the waiter was granted the lock beside the holder"
        );
        let fence = self.guard.fence();
        self.guard.release().expect("it was held until now");
        let next = self.waiter.locked();
        assert!(self.kind.rises(fence, next), "{next} {fence}");
        self.waiter.release();
        assert_eq!(self.locks.stats().lost(), 0);
    }
}
