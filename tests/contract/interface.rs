//! The trait `Lock`, which all kinds share, and the methods that all handles have.

use leasehold::{Guard, Lock, Result};

use crate::matrix::Capability::Always;
use crate::matrix::{Chapter, bodies};
use crate::subject::{Kind, WithLock};
use crate::world::{World, ms, secs};

pub(crate) const BODIES: Chapter = &[(
    Always,
    bodies![
        a_handle_returns_its_name_even_if_the_name_is_invalid,
        code_that_is_generic_over_the_kind_can_lock,
        try_lock_until_waits_until_its_deadline,
    ],
)];

/// Locks and releases by each method of the trait.
struct Steps;

impl WithLock for Steps {
    type Output = Result<()>;

    fn call<L: Lock>(self, lock: &L) -> Result<()> {
        let guard = lock.lock()?;
        guard.check()?;
        guard.release()?;
        let tried = lock.try_lock()?.expect("it is free");
        tried.release()?;
        let waited = lock.try_lock_for(secs(1))?.expect("it is free");
        waited.release()
    }
}

/// Returns whether the lock is held.
struct Busy;

impl WithLock for Busy {
    type Output = Result<bool>;

    fn call<L: Lock>(self, lock: &L) -> Result<bool> {
        Ok(lock.try_lock()?.is_none())
    }
}

/// Returns the name, by the trait and by `Debug`.
struct Name;

impl WithLock for Name {
    type Output = (String, String);

    fn call<L: Lock>(self, lock: &L) -> (String, String) {
        (lock.name().to_owned(), format!("{lock:?}"))
    }
}

pub(crate) fn a_handle_returns_its_name_even_if_the_name_is_invalid(world: &World, kind: Kind) {
    let locks = world.manager();
    for given in ["fit", "", "a}b"] {
        let (name, shown) = kind.of(&locks, given).as_lock(Name);
        if kind == Kind::Multi {
            let names = kind.keys(given);
            assert!(
                names.iter().all(|one| name.contains(one.as_str())),
                "{name}"
            );
        } else {
            assert_eq!(name, given);
        }
        assert!(shown.contains(&format!("{name:?}")), "{shown}");
    }
}

pub(crate) fn code_that_is_generic_over_the_kind_can_lock(world: &World, kind: Kind) {
    let locks = world.manager();
    let name = world.name("generic");
    kind.of(&locks, &name).as_lock(Steps).expect("it is free");
    let holder = kind.rival().of(&world.manager(), &name).hold();
    let is_busy = kind.of(&locks, &name).as_lock(Busy);
    assert!(is_busy.expect("Redis replies"));
    holder.release();
}

pub(crate) fn try_lock_until_waits_until_its_deadline(world: &World, kind: Kind) {
    let name = world.name("until");
    let (one, other) = (world.manager(), world.manager());
    let lock = kind.of(&one, &name);
    let free = lock.try_lock_until(world.instant() + secs(1));
    drop(free.expect("Redis replies").expect("it is free"));
    let holder = kind.rival().of(&other, &name).hold();
    // Another process holds the lock, and then the same process.
    for locks in [&one, &other] {
        let lock = kind.of(locks, &name);
        let deadline = world.instant() + ms(300);
        let waited = lock.try_lock_until(deadline);
        assert!(waited.expect("Redis replies").is_none());
        let late = world.instant().checked_duration_since(deadline);
        let late = late.expect("it waits for as long as it may");
        assert!(late <= world.within(ms(0)), "{late:?}");
        // A deadline that has passed makes the call a try.
        let begun = world.now();
        let tried = lock.try_lock_until(deadline);
        assert!(tried.expect("Redis replies").is_none());
        assert!(world.now() <= world.within(begun));
    }
    // The release must hand the lock to none of these waits.
    world.redis().wait_until_queued(&name, 0);
    holder.release();
    let free = lock.try_lock_until(world.instant());
    assert!(free.expect("Redis replies").is_some());
}
