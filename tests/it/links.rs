//! Each fault of a link, on each of a manager's connections, in each phase of a lock. Whatever happens, no call outlasts
//! its time limits, a guard is believed no longer than its lease, and nothing is left behind.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Error, LeaseState, LockGuard, LockManager, LostCause};

use crate::support::{
    Fault, PATIENCE, Proxy, Raw, Role, SLACK, Server, build, gave_up, locking, lost, manager, ms,
    patient, secs, task, wait_until,
};

/// Far longer than a test takes: no lease ends by itself, but the ones that are to.
const LONG: Duration = secs(600);
/// How long a request may take: longer than a busy machine stalls.
const IO: Duration = secs(2);
/// A call is one request, on a connection that may have to be opened first and whose request may have to be sent again.
const CALL: Duration = secs(8);

/// A manager behind a proxy, another beside it, and the server of both.
struct Scene {
    redis: Raw,
    proxy: Proxy,
    locks: LockManager,
    other: LockManager,
    _server: Server,
}

impl Scene {
    /// All of the manager's connections are there, and have been used.
    fn new() -> Self {
        let server = Server::start();
        let proxy = Proxy::to(&server);
        let builder = LockManager::single(&proxy.url());
        let locks = build(builder.connect_timeout(IO).io_timeout(IO));
        let scene = Self {
            redis: server.raw(),
            other: manager(&server.url()),
            proxy,
            locks,
            _server: server,
        };
        let first = scene.other.mutex("first").lease(LONG).lock();
        let first = first.expect("it is free");
        let waiter = locking(&scene.locks.mutex("first").lease(secs(6)));
        scene.redis.wait_until_queued("first", 1);
        first.release().expect("it was held all the while");
        let second = waiter.end().expect("it comes free");
        scene.redis.wait_until_renewed("first", 1);
        second.release().expect("it was held all the while");
        scene
    }

    fn lock(&self, lease: Duration) -> leasehold::Result<LockGuard> {
        self.locks.mutex("n").lease(lease).lock()
    }

    /// Waits until a call of the manager's knows that it has to wait: until then its failure would be returned at once.
    fn wait_until_it_waits(&self) {
        self.redis.wait_until_queued("n", 1);
        // The other one was for the first lock.
        wait_until("it is told so", || self.locks.stats().contended == 2);
    }

    /// All is as it was before, once the link is.
    fn end(self) {
        self.proxy.heal();
        let next = self.other.try_lock_for("n", PATIENCE);
        let next = next
            .expect("it is asked")
            .expect("nobody holds it any more");
        next.release().expect("it was held all the while");
        wait_until("the manager is as good as new", || {
            self.lock(LONG).is_ok_and(|guard| guard.release().is_ok())
        });
        assert!(self.locks.close(PATIENCE), "something is left to send");
        // Of a request that was given up something may arrive even now; it is cancelled again and again until it cannot.
        wait_until("nothing is left", || !self.redis.exists("n"));
    }
}

/// Whether the callers' requests fail.
fn fails_calls(role: Role, fault: Fault) -> bool {
    role == Role::Pool && !fault.lets_through()
}

/// The first request of a call: its failure is returned at once, and leaves no orphan behind, whatever came of it.
fn asking(role: Role, fault: Fault) {
    let scene = Scene::new();
    scene.proxy.strike(role, fault);
    let begun = Instant::now();
    let locked = scene.lock(LONG);
    assert!(begun.elapsed() < CALL + SLACK, "{:?}", begun.elapsed());
    if fails_calls(role, fault) {
        assert!(
            matches!(locked, Err(Error::Unavailable { .. })),
            "{locked:?}"
        );
        scene.proxy.wait_until_struck(role);
    } else {
        let guard = locked.expect("it is free");
        guard.release().expect("it was held all the while");
    }
    scene.end();
}

/// A wait that has begun goes on, and has its turn: without a listener by its polls, without a pool when that is back.
fn queued(role: Role, fault: Fault) {
    let scene = Scene::new();
    let holder = scene.other.mutex("n").lease(LONG).lock();
    let holder = holder.expect("it is free");
    let waiter = locking(&scene.locks.mutex("n").lease(LONG));
    scene.wait_until_it_waits();
    scene.proxy.strike(role, fault);
    if role == Role::Pool {
        // By the waiter's poll. What strikes the listener is the message that it is not to hear.
        scene.proxy.wait_until_struck(role);
    }
    holder.release().expect("it was held all the while");
    if fails_calls(role, fault) {
        scene.proxy.heal();
    }
    let guard = waiter.end().expect("it comes free");
    guard.check().expect("it is held");
    if role == Role::Listener {
        scene.proxy.wait_until_struck(role);
    }
    scene.proxy.heal();
    guard.release().expect("it was held all the while");
    scene.end();
}

/// A wait ends at its deadline, and takes its place in the queue with it.
fn giving_up(role: Role, fault: Fault) {
    let scene = Scene::new();
    let holder = scene.other.mutex("n").lease(LONG).lock();
    let holder = holder.expect("it is free");
    let (mutex, wait) = (scene.locks.mutex("n").lease(LONG), secs(6));
    let begun = Instant::now();
    let waiting = task(move || {
        let result = mutex.try_lock_for(wait);
        assert!(begun.elapsed() >= wait, "it gave up too early: {result:?}");
        result
    });
    scene.wait_until_it_waits();
    scene.proxy.strike(role, fault);
    // Whether the last answer was "held", or there was none.
    gave_up(waiting);
    assert!(begun.elapsed() < wait + CALL + SLACK);
    // While the fault lasts, unless it keeps the renewal thread from it.
    if role == Role::Renewal {
        scene.proxy.heal();
    }
    scene.redis.wait_until_queued("n", 0);
    holder.release().expect("it was held all the while");
    scene.end();
}

/// A lease is renewed past the faults of others, and lost at its deadline by those of the renewal's connection.
fn held(role: Role, fault: Fault) {
    let scene = Scene::new();
    let begun = Instant::now();
    let lease = secs(5);
    let guard = scene.lock(lease).expect("it is free");
    let losses = guard.on_lost();
    scene.proxy.strike(role, fault);
    if role == Role::Renewal && !fault.lets_through() {
        scene.proxy.wait_until_struck(role);
        let loss = losses.recv_timeout(PATIENCE).expect("it is told");
        assert_eq!(
            (loss.fence, loss.cause),
            (guard.fence(), LostCause::Expired)
        );
        assert_eq!(guard.state(), LeaseState::Lost);
        assert!(
            begun.elapsed() + lease / 50 >= lease,
            "it was given up too early"
        );
        scene.proxy.heal();
        // No answer that comes late revives it.
        assert_eq!(lost(guard.release()), loss);
    } else {
        scene.redis.wait_until_renewed("n", 2);
        guard.check().expect("it is renewed");
        assert!(losses.try_recv().is_err());
        scene.proxy.heal();
        guard.release().expect("it was held all the while");
    }
    scene.end();
}

/// A release that fails says so at once, and is carried out by the renewal thread, whose connection is another.
fn releasing(role: Role, fault: Fault) {
    let scene = Scene::new();
    let guard = scene.lock(LONG).expect("it is free");
    scene.proxy.strike(role, fault);
    let begun = Instant::now();
    let released = guard.release();
    assert!(begun.elapsed() < CALL + SLACK, "{:?}", begun.elapsed());
    if fails_calls(role, fault) {
        assert!(
            matches!(released, Err(Error::Unavailable { .. })),
            "{released:?}"
        );
        scene.proxy.wait_until_struck(role);
    } else {
        released.expect("it was held all the while");
    }
    // While the fault lasts.
    wait_until("it is released", || !scene.redis.exists("n"));
    scene.end();
}

/// With the network dead, and by nothing but the holder's own clock. How late a thread is woken is the machine's affair,
/// and the same for who only sleeps.
#[test]
fn a_loss_is_told_within_50_ms_of_the_deadline() {
    const GUARDS: u64 = 20;
    let scene = Scene::new();
    let guards: Vec<_> = (0..GUARDS)
        .map(|n| {
            let mutex = scene.locks.mutex(format!("n{n}")).lease(ms(3_000 + n * 50));
            mutex.lock().expect("it is free")
        })
        .collect();
    scene.proxy.strike_all(Fault::HalfOpen);
    let ends = guards.into_iter().map(|guard| {
        let losses = guard.on_lost();
        let deadline = Instant::now() + guard.remaining();
        let sleeper = task(move || {
            // Time itself is what is tested: this is how late the machine wakes who only sleeps.
            thread::sleep(deadline.saturating_duration_since(Instant::now()));
            deadline.elapsed()
        });
        let told = task(move || {
            losses.recv_timeout(PATIENCE).expect("it is told");
            let told = Instant::now();
            assert_eq!(guard.state(), LeaseState::Lost);
            assert!(told + ms(1) >= deadline, "it was told too early");
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
    scene.end();
}

/// Renews a lease over a link on which everything is late, as often as `times`.
#[track_caller]
fn is_renewed_over_a_slow_link(late_ms: u64, lease: Duration, times: u64) {
    let server = Server::with(&["--requirepass", "slow"]);
    let proxy = Proxy::to(&server);
    proxy.strike_all(Fault::Late(late_ms));
    let url = proxy.url().replace("redis://", "redis://:slow@");
    let locks = build(patient(&url).database(3));
    // The server learns the script by which it is granted, which takes a round trip more.
    let first = locks.mutex("first").lease(LONG).lock();
    let _first = first.expect("it is free");
    let guard = locks.mutex("n").lease(lease).lock().expect("it is free");
    wait_until("it is renewed so often", || {
        guard.check().expect("it is renewed in time");
        locks.stats().renewed >= times
    });
    guard.release().expect("it was held all the while");
}

/// To connect, log in, choose the database and load the script takes longer than a try may.
#[test]
fn a_short_lease_is_renewed_over_a_slow_link_with_a_login() {
    is_renewed_over_a_slow_link(360, secs(8), 3);
}

/// No try would have its answer within a quarter of the lease.
#[test]
fn a_lease_is_renewed_whose_quarter_is_shorter_than_a_round_trip() {
    is_renewed_over_a_slow_link(1200, secs(9), 2);
}

/// A test for each fault of each connection in each phase.
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
