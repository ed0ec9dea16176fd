//! Each fault of a link, on each connection of a manager, in each phase of a lock.
//!
//! In every case a call returns within its time limits, a guard is lost at the end of its lease, and no lock is left
//! in Redis.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Error, LeaseState, LockGuard, LockManager, LostCause};

use crate::support::{
    Fault, PATIENCE, Proxy, Raw, Role, SLACK, Server, build, gave_up, locking, lost, manager, ms,
    patient, secs, task, wait_until,
};

/// Far longer than a test takes, so that no lease ends during a test unless the test sets a shorter one.
const LONG: Duration = secs(600);
/// The time limit of a request. A busy machine stalls for less.
const IO: Duration = secs(2);
/// The limit of a call: it may open a connection, send one request, and send that again.
const CALL: Duration = secs(8);

/// A manager behind a proxy, another manager without one, and the server of both.
struct ProxiedManager {
    redis: Raw,
    proxy: Proxy,
    locks: LockManager,
    other: LockManager,
    _server: Server,
}

impl ProxiedManager {
    /// Starts them. The manager has opened and used all its connections then.
    fn new() -> Self {
        let server = Server::start();
        let proxy = Proxy::to(&server);
        let builder = LockManager::single(&proxy.url());
        let locks = build(builder.connect_timeout(IO).io_timeout(IO));
        let proxied = Self {
            redis: server.raw(),
            other: manager(&server.url()),
            proxy,
            locks,
            _server: server,
        };
        let first = proxied.other.mutex("first").lease(LONG).lock();
        let first = first.expect("it is free");
        let waiter = locking(&proxied.locks.mutex("first").lease(secs(6)));
        proxied.redis.wait_until_queued("first", 1);
        first.release().expect("it was held until now");
        let second = waiter.end().expect("it becomes free");
        proxied.redis.wait_until_renewed("first", 1);
        second.release().expect("it was held until now");
        proxied
    }

    fn lock(&self, lease: Duration) -> leasehold::Result<LockGuard> {
        self.locks.mutex("n").lease(lease).lock()
    }

    /// Blocks until Redis has told a call that the lock is held. Before that, the call would return an error at once.
    fn wait_until_it_waits(&self) {
        self.redis.wait_until_queued("n", 1);
        // `new` made the other wait.
        wait_until("the call knows that it waits", || {
            self.locks.stats().contended == 2
        });
    }

    /// Repairs the link, and checks that the manager works and that no lock is left in Redis.
    fn assert_recovers(self) {
        self.proxy.heal();
        let next = self.other.try_lock_for("n", PATIENCE);
        let next = next
            .expect("Redis replies")
            .expect("nobody holds it any more");
        next.release().expect("it was held until now");
        wait_until("the manager locks and releases again", || {
            self.lock(LONG).is_ok_and(|guard| guard.release().is_ok())
        });
        assert!(self.locks.close(PATIENCE), "something is left to send");
        // A request that was given up may still arrive. The renewal thread withdraws its owner until it can no longer
        // arrive.
        wait_until("nothing is left", || !self.redis.exists("n"));
    }
}

/// Returns whether the fault makes requests of callers fail.
fn fails_calls(role: Role, fault: Fault) -> bool {
    role == Role::Pool && !fault.lets_through()
}

/// The first request of a call fails: the call returns the error at once. Redis may have granted the lock, but nobody
/// keeps it.
fn asking(role: Role, fault: Fault) {
    let proxied = ProxiedManager::new();
    proxied.proxy.strike(role, fault);
    let begun = Instant::now();
    let locked = proxied.lock(LONG);
    assert!(begun.elapsed() < CALL + SLACK, "{:?}", begun.elapsed());
    if fails_calls(role, fault) {
        assert!(
            matches!(locked, Err(Error::Unavailable { .. })),
            "{locked:?}"
        );
        proxied.proxy.wait_until_struck(role);
    } else {
        let guard = locked.expect("it is free");
        guard.release().expect("it was held until now");
    }
    proxied.assert_recovers();
}

/// A wait that has begun goes on, and is granted the lock. Without a subscription it polls; without a pool it asks
/// after the fault.
fn queued(role: Role, fault: Fault) {
    let proxied = ProxiedManager::new();
    let holder = proxied.other.mutex("n").lease(LONG).lock();
    let holder = holder.expect("it is free");
    let waiter = locking(&proxied.locks.mutex("n").lease(LONG));
    proxied.wait_until_it_waits();
    proxied.proxy.strike(role, fault);
    if role == Role::Pool {
        // The next poll meets the fault. The message of the release will meet a fault of the listener.
        proxied.proxy.wait_until_struck(role);
    }
    holder.release().expect("it was held until now");
    if fails_calls(role, fault) {
        proxied.proxy.heal();
    }
    let guard = waiter.end().expect("it becomes free");
    guard.check().expect("it is held");
    if role == Role::Listener {
        proxied.proxy.wait_until_struck(role);
    }
    proxied.proxy.heal();
    guard.release().expect("it was held until now");
    proxied.assert_recovers();
}

/// A wait ends at its deadline, and leaves the queue.
fn giving_up(role: Role, fault: Fault) {
    let proxied = ProxiedManager::new();
    let holder = proxied.other.mutex("n").lease(LONG).lock();
    let holder = holder.expect("it is free");
    let (mutex, wait) = (proxied.locks.mutex("n").lease(LONG), secs(6));
    let begun = Instant::now();
    let waiting = task(move || {
        let result = mutex.try_lock_for(wait);
        assert!(begun.elapsed() >= wait, "it gave up too early: {result:?}");
        result
    });
    proxied.wait_until_it_waits();
    proxied.proxy.strike(role, fault);
    // The last reply was "held", or it was lost.
    gave_up(waiting);
    assert!(begun.elapsed() < wait + CALL + SLACK);
    // The renewal thread sends the withdrawal. It needs its connection for that.
    if role == Role::Renewal {
        proxied.proxy.heal();
    }
    proxied.redis.wait_until_queued("n", 0);
    holder.release().expect("it was held until now");
    proxied.assert_recovers();
}

/// A fault of the renewal connection loses the lock at its deadline. Faults of the other connections do not.
fn held(role: Role, fault: Fault) {
    let proxied = ProxiedManager::new();
    let begun = Instant::now();
    let lease = secs(5);
    let guard = proxied.lock(lease).expect("it is free");
    let losses = guard.on_lost();
    proxied.proxy.strike(role, fault);
    if role == Role::Renewal && !fault.lets_through() {
        proxied.proxy.wait_until_struck(role);
        let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
        assert_eq!(
            (loss.fence, loss.cause),
            (guard.fence(), LostCause::Expired)
        );
        assert_eq!(guard.state(), LeaseState::Lost);
        assert!(
            begun.elapsed() + lease / 50 >= lease,
            "it was given up too early"
        );
        proxied.proxy.heal();
        // No late reply revives the lease.
        assert_eq!(lost(guard.release()), loss);
    } else {
        proxied.redis.wait_until_renewed("n", 2);
        guard.check().expect("it is renewed");
        assert!(losses.try_recv().is_err());
        proxied.proxy.heal();
        guard.release().expect("it was held until now");
    }
    proxied.assert_recovers();
}

/// A release that fails returns the error at once. The renewal thread repeats it over its own connection.
fn releasing(role: Role, fault: Fault) {
    let proxied = ProxiedManager::new();
    let guard = proxied.lock(LONG).expect("it is free");
    proxied.proxy.strike(role, fault);
    let begun = Instant::now();
    let released = guard.release();
    assert!(begun.elapsed() < CALL + SLACK, "{:?}", begun.elapsed());
    if fails_calls(role, fault) {
        assert!(
            matches!(released, Err(Error::Unavailable { .. })),
            "{released:?}"
        );
        proxied.proxy.wait_until_struck(role);
    } else {
        released.expect("it was held until now");
    }
    // The fault still lasts.
    wait_until("it is released", || !proxied.redis.exists("n"));
    proxied.assert_recovers();
}

/// The network is dead, so only the clock of the holder ends the lease. A busy machine wakes every thread late, so the
/// test compares with threads that only sleep.
#[test]
fn on_lost_fires_within_50_ms_of_the_deadline() {
    const GUARDS: u64 = 20;
    let proxied = ProxiedManager::new();
    let guards: Vec<_> = (0..GUARDS)
        .map(|n| {
            let mutex = proxied
                .locks
                .mutex(format!("n{n}"))
                .lease(ms(3_000 + n * 50));
            mutex.lock().expect("it is free")
        })
        .collect();
    proxied.proxy.strike_all(Fault::HalfOpen);
    let ends = guards.into_iter().map(|guard| {
        let losses = guard.on_lost();
        let deadline = Instant::now() + guard.remaining();
        let sleeper = task(move || {
            // This measures how late the machine wakes a sleeping thread.
            thread::sleep(deadline.saturating_duration_since(Instant::now()));
            deadline.elapsed()
        });
        let told = task(move || {
            losses.recv_timeout(PATIENCE).expect("it is notified");
            let told = Instant::now();
            assert_eq!(guard.state(), LeaseState::Lost);
            assert!(told + ms(1) >= deadline, "the notice came too early");
            told.saturating_duration_since(deadline)
        });
        (sleeper, told)
    });
    let ends: Vec<_> = ends.collect();
    let (mut slept, mut told): (Vec<_>, Vec<_>) = ends
        .into_iter()
        .map(|(sleeper, told)| (sleeper.end(), told.end()))
        .unzip();
    slept.sort();
    told.sort();
    let middle = told.len() / 2;
    assert!(
        told[middle] <= slept[middle] + ms(50),
        "told {told:?} late, where others slept {slept:?} too long"
    );
    proxied.assert_recovers();
}

/// Checks that a lease is renewed `times` times over a link that delays each message by `late_ms`.
#[track_caller]
fn assert_renewed_over_a_slow_link(late_ms: u64, lease: Duration, times: u64) {
    let server = Server::with(&["--requirepass", "slow"]);
    let proxy = Proxy::to(&server);
    proxy.strike_all(Fault::Late(late_ms));
    let url = proxy.url().replace("redis://", "redis://:slow@");
    let locks = build(patient(&url).database(3));
    // The first lock loads the script, which takes a further round trip.
    let first = locks.mutex("first").lease(LONG).lock();
    let _first = first.expect("it is free");
    let guard = locks.mutex("n").lease(lease).lock().expect("it is free");
    wait_until("the lease is renewed often enough", || {
        guard.check().expect("it is renewed in time");
        locks.stats().renewed >= times
    });
    guard.release().expect("it was held until now");
}

/// To connect, log in, select the database and load the script takes longer than one try of a renewal.
#[test]
fn a_short_lease_is_renewed_over_a_slow_link_with_a_login() {
    assert_renewed_over_a_slow_link(360, secs(8), 3);
}

/// A round trip takes longer than a quarter of the lease.
#[test]
fn a_lease_is_renewed_although_a_round_trip_takes_more_than_its_quarter() {
    assert_renewed_over_a_slow_link(1200, secs(9), 2);
}

/// Makes a test for each fault of each connection in each phase.
macro_rules! phases {
    ($($phase:ident)*) => {$(
        mod $phase {
            roles! { $phase }
        }
    )*};
}

macro_rules! roles {
    ($phase:ident) => {
        mod pool {
            faults! { $phase Pool }
        }
        mod renewal {
            faults! { $phase Renewal }
        }
        mod listener {
            faults! { $phase Listener }
        }
    };
}

macro_rules! faults {
    ($phase:ident $role:ident) => {
        faults! { $phase $role
            delay Delay, drip Drip, close Close, reset Reset, half_open HalfOpen,
            lose_requests LoseRequests, lose_answers LoseAnswers,
        }
    };
    ($phase:ident $role:ident $($name:ident $fault:ident,)*) => {$(
        #[test]
        fn $name() {
            crate::links::$phase(crate::support::Role::$role, crate::support::Fault::$fault);
        }
    )*};
}

phases! { asking queued giving_up held releasing }
