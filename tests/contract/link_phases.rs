//! Each fault of a link, on each connection of a manager, in each phase of a mutex.
//!
//! In every case a call returns within its time limits, a guard is lost at the end of its lease, and no lock is left
//! in Redis.

use std::time::Duration;

use leasehold::{Error, LeaseState, LockGuard, LostCause};
use leasehold_simulator::{LinkFault, Role, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::redis::Redis;
use crate::subject::{Kind, is_unreachable, lost};
use crate::world::{Locks, World, ms, secs};

type Body = (&'static str, fn(&World));

/// Makes a body for each fault of each connection in one phase.
macro_rules! phase {
    ($phase:ident) => {
        [
            phase!($phase, pool Pool),
            phase!($phase, renewal Renewal),
            phase!($phase, listener Listener),
        ]
    };
    ($phase:ident, $of_role:ident $role:ident) => {
        phase!($phase, $of_role $role,
            delay Late(DELAY), drip Drip, close Close, reset Reset, half_open HalfOpen,
            lose_requests LoseRequests, lose_answers LoseAnswers, lose_all LoseAll,
        )
    };
    ($phase:ident, $of_role:ident $role:ident, $($name:ident $fault:ident $(($by:ident))?,)*) => {
        [$((
            concat!(stringify!($phase), "::", stringify!($of_role), "::", stringify!($name)),
            |world| $phase(world, Role::$role, LinkFault::$fault $(($by))?),
        ),)*]
    };
}

const PHASES: [[[Body; 8]; 3]; 5] = [
    phase!(asking),
    phase!(queued),
    phase!(giving_up),
    phase!(held),
    phase!(releasing),
];

pub(crate) const BODIES: Subject = (
    "links",
    &[Topology::Single],
    PHASES.as_flattened().as_flattened(),
);

pub(crate) const BODIES_OF_LINKS: Subject = (
    "links",
    &[Topology::Single],
    subject_bodies![
        on_lost_fires_within_50_ms_of_the_deadline,
        a_short_lease_is_renewed_over_a_slow_link_with_a_login,
        a_lease_is_renewed_although_a_round_trip_takes_more_than_its_quarter,
        a_lost_reply_about_eviction_fails_no_call,
    ],
);

/// Far longer than a body takes, so that no lease ends unless the body sets a shorter one.
const LONG: Duration = secs(60);
/// The time limit of a request.
const IO: Duration = secs(2);
/// How late each message is that is delayed.
const DELAY: Duration = ms(100);
/// How long a message drips at most.
const DRIPS_FOR: Duration = ms(64);
const NAME: &str = "n";

/// A manager whose links have faults, and another whose links have none.
struct Setting {
    world: World,
    redis: Redis,
    locks: Locks,
    other: Locks,
}

impl Setting {
    /// Makes the managers. The first has opened and used all its connections then.
    fn new(world: &World) -> Self {
        let setting = Self {
            world: world.clone(),
            redis: world.redis(),
            locks: world.build(|it| it.connect_timeout(IO).io_timeout(IO)),
            other: world.manager(),
        };
        let first = setting.other.mutex("first").lease(LONG).lock();
        let first = first.expect("it is free");
        let waiter = Kind::Mutex.of(&setting.locks, "first").lease(secs(6));
        let waiter = waiter.locking();
        setting.redis.wait_until_queued("first", 1);
        first.release().expect("it was held until now");
        waiter.locked();
        setting.redis.wait_until_renewed("first", 1);
        waiter.release();
        setting
    }

    fn lock(&self, lease: Duration) -> leasehold::Result<LockGuard> {
        self.locks.mutex(NAME).lease(lease).lock()
    }

    /// Makes the other manager hold the lock.
    fn held_by_the_other(&self) -> LockGuard {
        let holder = self.other.mutex(NAME).lease(LONG).lock();
        holder.expect("it is free")
    }

    /// Blocks until Redis has told a call that the lock is held. Before that, the call would return an error at once.
    fn wait_until_it_waits(&self) {
        self.redis.wait_until_queued(NAME, 1);
        // `new` made the other wait.
        self.world.until("the call knows that it waits", || {
            self.locks.stats().contended == 2
        });
    }

    /// Heals the links, and checks that the manager works and that no lock is left in Redis.
    fn assert_recovers(self) {
        self.locks.heal();
        let healed_at = self.world.now();
        let next = self.other.try_lock_for(NAME, secs(30));
        let next = next.expect("Redis replies").expect("nobody holds it");
        // A request whose answer was lost occupies the renewal thread for its whole time limit.
        assert!(self.world.now() <= self.world.within(healed_at + IO));
        next.release().expect("it was held until now");
        self.world
            .until("the manager locks and releases again", || {
                self.lock(LONG).is_ok_and(|guard| guard.release().is_ok())
            });
        assert!(self.locks.close(secs(30)), "something is left to send");
        // A request that was given up may still arrive. The renewal thread withdraws its owner until it can no longer
        // arrive.
        self.world
            .until("nothing is left", || !self.redis.exists(NAME));
    }
}

/// Returns whether requests get answers under a fault.
fn lets_through(fault: LinkFault) -> bool {
    matches!(fault, LinkFault::Late(_) | LinkFault::Drip)
}

/// Returns whether a fault makes the requests of callers fail.
fn fails_calls(role: Role, fault: LinkFault) -> bool {
    role == Role::Pool && !lets_through(fault)
}

/// Returns by how much longer a call with one request takes under a fault.
fn delay_of_calls(role: Role, fault: LinkFault) -> Duration {
    match fault {
        _ if role != Role::Pool => Duration::ZERO,
        LinkFault::Late(by) => 2 * by,
        LinkFault::Drip => 2 * DRIPS_FOR,
        LinkFault::Close | LinkFault::Reset => Duration::ZERO,
        LinkFault::HalfOpen
        | LinkFault::LoseRequests
        | LinkFault::LoseAnswers
        | LinkFault::LoseAll => IO,
    }
}

/// The first request of a call fails: the call returns the error at once. Redis may have granted the lock, but nobody
/// keeps it.
fn asking(world: &World, role: Role, fault: LinkFault) {
    let setting = Setting::new(world);
    setting.locks.strike_on(role, fault);
    let begun = world.now();
    let locked = setting.lock(LONG);
    assert!(world.now() <= world.within(begun + delay_of_calls(role, fault)));
    if fails_calls(role, fault) {
        let is_told = matches!(locked, Err(Error::Unavailable { .. }));
        assert!(is_told, "{locked:?}");
        setting.locks.wait_until_struck_on(role);
    } else {
        let guard = locked.expect("it is free");
        guard.release().expect("it was held until now");
    }
    setting.assert_recovers();
}

/// A wait that has begun goes on, and is granted the lock. Without a subscription it polls; without a pool it asks
/// after the fault.
fn queued(world: &World, role: Role, fault: LinkFault) {
    let setting = Setting::new(world);
    let holder = setting.held_by_the_other();
    let waiter = Kind::Mutex.of(&setting.locks, NAME).lease(LONG).locking();
    setting.wait_until_it_waits();
    setting.locks.strike_on(role, fault);
    if role == Role::Pool {
        // The next poll meets the fault. The message of the release will meet a fault of the listener.
        setting.locks.wait_until_struck_on(role);
    }
    let released_at = world.now();
    holder.release().expect("it was held until now");
    if fails_calls(role, fault) {
        setting.locks.heal();
    }
    // A poll finds it whose message is lost.
    let limit = released_at + secs(1) + delay_of_calls(role, fault);
    assert!(waiter.locked_at() <= world.within(limit));
    if role == Role::Listener {
        setting.locks.wait_until_struck_on(role);
    }
    setting.locks.heal();
    waiter.release();
    setting.assert_recovers();
}

/// A wait ends at its deadline, and leaves the queue.
fn giving_up(world: &World, role: Role, fault: LinkFault) {
    let setting = Setting::new(world);
    let holder = setting.held_by_the_other();
    let (mutex, wait) = (setting.locks.mutex(NAME).lease(LONG), secs(6));
    let begun = world.now();
    let clock = world.clone();
    let waiting = setting.locks.thread(move || {
        let result = mutex.try_lock_for(wait);
        // The last reply was "held", or it was lost.
        let is_told = fails_calls(role, fault) && result.as_ref().is_err_and(is_unreachable);
        assert!(matches!(result, Ok(None)) || is_told, "{result:?}");
        clock.now()
    });
    setting.wait_until_it_waits();
    setting.locks.strike_on(role, fault);
    let ended = waiting.end();
    // The last request has 100 ms.
    let limit = world.within(begun + wait + ms(100));
    assert!(ended >= begun + wait && ended <= limit, "{ended:?}");
    // The renewal thread sends the withdrawal. It needs its connection for that.
    if role == Role::Renewal {
        setting.locks.heal();
    }
    setting.redis.wait_until_queued(NAME, 0);
    holder.release().expect("it was held until now");
    setting.assert_recovers();
}

/// A fault of the renewal connection loses the lock at its deadline. Faults of the other connections do not.
fn held(world: &World, role: Role, fault: LinkFault) {
    let setting = Setting::new(world);
    let guard = setting.lock(secs(5)).expect("it is free");
    let losses = guard.on_lost();
    setting.locks.strike_on(role, fault);
    if role == Role::Renewal && !lets_through(fault) {
        let deadline = world.now() + guard.remaining();
        setting.locks.wait_until_struck_on(role);
        let loss = world.recv(&losses);
        let told = world.now();
        assert!(told >= deadline && told <= deadline + ms(50), "{told:?}");
        let is_of_guard = (loss.fence, loss.cause) == (guard.fence(), LostCause::Expired);
        assert!(is_of_guard, "{loss:?}");
        assert_eq!(guard.state(), LeaseState::Lost);
        setting.locks.heal();
        // No late reply revives the lease.
        assert_eq!(lost(guard.release()), loss);
    } else {
        setting.redis.wait_until_renewed(NAME, 2);
        guard.check().expect("it is renewed");
        assert!(losses.try_recv().is_err());
        setting.locks.heal();
        guard.release().expect("it was held until now");
    }
    setting.assert_recovers();
}

/// A release that fails returns the error at once. The renewal thread repeats it over its own connection.
fn releasing(world: &World, role: Role, fault: LinkFault) {
    let setting = Setting::new(world);
    let guard = setting.lock(LONG).expect("it is free");
    setting.locks.strike_on(role, fault);
    let begun = world.now();
    let released = guard.release();
    let limit = world.within(begun + delay_of_calls(role, fault));
    assert!(world.now() <= limit);
    if fails_calls(role, fault) {
        let is_told = matches!(released, Err(Error::Unavailable { .. }));
        assert!(is_told, "{released:?}");
        setting.locks.wait_until_struck_on(role);
    } else {
        released.expect("it was held until now");
    }
    // The fault still lasts.
    world.until("it is released", || !setting.redis.exists(NAME));
    assert!(world.now() <= limit);
    setting.assert_recovers();
}

/// The network is dead, so only the clock of the holder ends the lease.
fn on_lost_fires_within_50_ms_of_the_deadline(world: &World) {
    let setting = Setting::new(world);
    let guards: Vec<_> = (0..20)
        .map(|n| {
            let mutex = setting.locks.mutex(format!("n{n}"));
            let guard = mutex.lease(ms(3_000 + n * 50)).lock();
            guard.expect("it is free")
        })
        .collect();
    setting.locks.strike(LinkFault::LoseAll);
    let tasks = guards.into_iter().map(|guard| {
        let deadline = world.now() + guard.remaining();
        let world = world.clone();
        setting.locks.thread(move || {
            world.recv(&guard.on_lost());
            assert_eq!(guard.state(), LeaseState::Lost);
            let told = world.now();
            assert!(told >= deadline && told <= deadline + ms(50), "{told:?}");
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.end();
    }
    setting.assert_recovers();
}

/// Checks that a lease is renewed `times` times over a link that delays each message.
#[track_caller]
fn is_renewed_over_a_slow_link(world: &World, late: Duration, lease: Duration, times: u64) {
    let rights = [
        "ACL", "SETUSER", "slow", "on", ">secret", "~*", "&*", "+@all",
    ];
    let () = world.redis().ask(&rights);
    let locks = world.build_as("slow", "secret", |it| it.io_timeout(secs(5)).database(3));
    locks.strike(LinkFault::Late(late));
    // The first lock loads the script, which takes a further round trip.
    let first = locks.mutex("first").lease(LONG).lock();
    let _first = first.expect("it is free");
    let guard = locks.mutex("n").lease(lease).lock().expect("it is free");
    world.until("the lease is renewed often enough", || {
        guard.check().expect("it is renewed in time");
        locks.stats().renewed >= times
    });
    guard.release().expect("it was held until now");
}

/// To connect, log in, select the database and load the script takes longer than one try of a renewal.
fn a_short_lease_is_renewed_over_a_slow_link_with_a_login(world: &World) {
    is_renewed_over_a_slow_link(world, ms(360), secs(8), 3);
}

/// A round trip takes longer than a quarter of the lease.
fn a_lease_is_renewed_although_a_round_trip_takes_more_than_its_quarter(world: &World) {
    is_renewed_over_a_slow_link(world, ms(1_200), secs(9), 2);
}

/// The first connection asks the server about itself. A call has half of its time for that.
fn a_lost_reply_about_eviction_fails_no_call(world: &World) {
    let wait = secs(12);
    // A call takes less time than a request may take.
    let locks = world.build_lazy(|it| it.io_timeout(2 * wait));
    locks.strike(LinkFault::LoseAnswers);
    let mutex = locks.mutex(NAME);
    let locking = locks.thread(move || mutex.try_lock_for(wait).map(|guard| guard.is_some()));
    locks.wait_until_struck();
    locks.heal();
    assert!(locking.end().expect("Redis replies"), "it is free");
    let (asked_for, now) = (wait / 2, world.now());
    assert!(
        now >= asked_for && now <= world.within(asked_for),
        "{now:?}"
    );
}
