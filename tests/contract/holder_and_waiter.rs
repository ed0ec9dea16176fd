//! The setting of the tests of server faults: one manager holds a lock, and a thread of another manager waits for it.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Connection, Error, Event, LeaseState, LockManager};

use crate::traces::only_fences_are_left;
use crate::support::{Guard, Holder, Kind, PATIENCE, Raw, Server, build, patient, wait_until};

pub(crate) const NAME: &str = "pair";

pub(crate) struct HolderAndWaiter {
    pub(crate) server: Server,
    pub(crate) redis: Raw,
    pub(crate) kind: Kind,
    /// The manager of the holder.
    pub(crate) locks: LockManager,
    /// The manager of the waiter.
    pub(crate) other: LockManager,
    pub(crate) guard: Guard,
    pub(crate) waiter: Holder,
    /// Receives `true` if the holder's renewal connection breaks, and `false` if it recovers.
    unreachable: Receiver<bool>,
}

/// Runs a test twice: once with this kind as the holder, and once with this kind as the waiter.
pub(crate) fn both_ways(world: &World, kind: Kind, test: impl Fn(Kind)) {
    test(kind);
    if kind.rival() != kind {
        test(kind.rival());
    }
}

impl HolderAndWaiter {
    pub(crate) fn new(world: &World, kind: Kind, server: Server, lease: Duration) -> Self {
        let url = server.url();
        Self::with_user(kind, server, lease, &url)
    }

    /// Does the same with a URL that names a user.
    pub(crate) fn with_user(world: &World, kind: Kind, server: Server, lease: Duration, url: &str) -> Self {
        let (tell, unreachable) = channel();
        let tell = Mutex::new(tell);
        let listener = move |event: &Event<'_>| {
            let (connection, is_unreachable) = match *event {
                Event::Unreachable { connection, .. } => (connection, true),
                Event::Recovered { connection, .. } => (connection, false),
                _ => return,
            };
            if connection == Connection::Renewal {
                let tell = tell.lock().unwrap_or_else(PoisonError::into_inner);
                tell.send(is_unreachable).ok();
            }
        };
        let locks = world.build(|it| it.listener(listener));
        let other = build(patient(url));
        let redis = server.raw();
        let guard = kind.of(&locks, NAME).lease(lease).lock();
        let guard = guard.expect("it is free");
        let waiter = kind.rival().of(&other, NAME).locking();
        redis.wait_until_queued(NAME, 1);
        Self {
            server,
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
        let received = self.unreachable.recv_timeout(PATIENCE);
        assert_eq!(received, Ok(is_unreachable));
    }

    /// Blocks until the holder's lease is renewed.
    #[track_caller]
    pub(crate) fn wait_until_renewed(&self) {
        let renewed = self.locks.stats().renewed;
        world.until("it is renewed", || self.locks.stats().renewed > renewed);
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
        let _server = self.assert_goes_on();
        only_fences_are_left(&redis, kind, NAME);
    }

    /// Checks the same, except for what stays in Redis.
    #[track_caller]
    pub(crate) fn assert_goes_on(self) -> Server {
        self.wait_until_renewed();
        world.until("it is held", || {
            assert_ne!(self.guard.lease().state(), LeaseState::Lost);
            self.guard.lease().state() == LeaseState::Held
        });
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
        self.server
    }
}
