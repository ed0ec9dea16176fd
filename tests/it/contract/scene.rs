//! One who holds, and one of another process who waits: what a fault of the server finds.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Connection, Error, Event, LeaseState, LockManager};

use super::traces::only_fences_are_left;
use crate::support::{Guard, Holder, Kind, PATIENCE, Raw, Server, build, patient, wait_until};

pub(super) const NAME: &str = "scene";

pub(super) struct Scene {
    pub(super) server: Server,
    pub(super) redis: Raw,
    pub(super) kind: Kind,
    /// The manager of who holds.
    pub(super) locks: LockManager,
    /// That of who waits.
    pub(super) other: LockManager,
    pub(super) guard: Guard,
    pub(super) waiter: Holder,
    /// What the manager of who holds tells of its renewal's connection: whether it is out of reach.
    out_of_reach: Receiver<bool>,
}

/// Runs a test with this kind as the holder, and with it as the one who waits.
pub(super) fn both_ways(kind: Kind, test: impl Fn(Kind)) {
    test(kind);
    if kind.rival() != kind {
        test(kind.rival());
    }
}

impl Scene {
    pub(super) fn new(kind: Kind, server: Server, lease: Duration) -> Self {
        let url = server.url();
        Self::with_user(kind, server, lease, &url)
    }

    /// The same with a URL that names a user.
    pub(super) fn with_user(kind: Kind, server: Server, lease: Duration, url: &str) -> Self {
        let (tell, out_of_reach) = channel();
        let tell = Mutex::new(tell);
        let listener = move |event: &Event<'_>| {
            let (connection, is_out) = match *event {
                Event::Unreachable { connection, .. } => (connection, true),
                Event::Recovered { connection, .. } => (connection, false),
                _ => return,
            };
            if connection == Connection::Renewal {
                let tell = tell.lock().unwrap_or_else(PoisonError::into_inner);
                tell.send(is_out).ok();
            }
        };
        let locks = build(patient(url).listener(listener));
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
            out_of_reach,
        }
    }

    /// Waits until the renewal thread says that it cannot renew, or that it can again.
    #[track_caller]
    pub(super) fn wait_until_out_of_reach(&self, is_out: bool) {
        let told = self.out_of_reach.recv_timeout(PATIENCE);
        assert_eq!(told, Ok(is_out));
    }

    /// Waits until the holder's lease is renewed.
    #[track_caller]
    pub(super) fn wait_until_renewed(&self) {
        let renewed = self.locks.stats().renewed;
        wait_until("it is renewed", || self.locks.stats().renewed > renewed);
    }

    /// A further lock cannot be had now, and nobody says that it is held.
    #[track_caller]
    pub(super) fn nothing_new_is_granted(&self) {
        let further = self.kind.of(&self.other, "further");
        for outcome in [further.try_lock(), further.lock().map(Some)] {
            assert!(
                matches!(outcome, Err(Error::Unavailable { .. })),
                "{outcome:?}"
            );
        }
    }

    /// The fault has cost nobody anything: the holder still holds, who waits still waits, and is next.
    #[track_caller]
    pub(super) fn ends_well(self) {
        let (redis, kind) = (self.redis.clone(), self.kind);
        let _server = self.goes_on();
        only_fences_are_left(&redis, kind, NAME);
    }

    /// The same, without a look at what it leaves behind.
    #[track_caller]
    pub(super) fn goes_on(self) -> Server {
        self.wait_until_renewed();
        wait_until("it is held", || {
            assert_ne!(self.guard.lease().state(), LeaseState::Lost);
            self.guard.lease().state() == LeaseState::Held
        });
        assert!(self.waiter.waits(), "it came in beside the holder");
        let fence = self.guard.fence();
        self.guard.release().expect("it was held all the while");
        let next = self.waiter.locked();
        // A reader has the fence of the last writer.
        let is_reader = self.kind.rival() == Kind::Reader;
        assert!(next > fence || is_reader && next == fence, "{next} {fence}");
        self.waiter.release();
        assert_eq!(self.locks.stats().lost(), 0);
        self.server
    }
}
