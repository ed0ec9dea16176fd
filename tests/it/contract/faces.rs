//! Every kind behind the trait that they share, and the parts that all handles have.

use std::time::Instant;

use leasehold::{Guard, Lock, Result};

use crate::support::{Kind, PATIENCE, WithLock, manager, ms, name, secs, shared, wait_in_vain};

/// A call of a function that takes a lock of any kind.
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

/// Whether the lock is held.
struct Busy;

impl WithLock for Busy {
    type Output = Result<bool>;

    fn call<L: Lock>(self, lock: &L) -> Result<bool> {
        Ok(lock.try_lock()?.is_none())
    }
}

/// The name by the trait, and by `Debug`.
struct Name;

impl WithLock for Name {
    type Output = (String, String);

    fn call<L: Lock>(self, lock: &L) -> (String, String) {
        (lock.name().to_owned(), format!("{lock:?}"))
    }
}

pub(super) fn a_handle_has_its_name_even_if_it_is_unfit(kind: Kind) {
    let locks = manager(shared().url());
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

pub(super) fn code_that_is_generic_over_the_kind_locks_it(kind: Kind) {
    let locks = manager(shared().url());
    let name = name("generic");
    kind.of(&locks, &name).as_lock(Steps).expect("it is free");
    let holder = kind.rival().of(&manager(shared().url()), &name).hold();
    let is_busy = kind.of(&locks, &name).as_lock(Busy);
    assert!(is_busy.expect("it is asked"));
    holder.release();
}

pub(super) fn a_deadline_is_waited_for_like_a_length(kind: Kind) {
    let redis = shared();
    let name = name("until");
    let lock = kind.of(&manager(redis.url()), &name);
    let free = lock.try_lock_until(Instant::now() + PATIENCE);
    drop(free.expect("it is asked").expect("it is free"));
    let holder = kind.rival().of(&manager(redis.url()), &name).hold();
    wait_in_vain(|| {
        let deadline = Instant::now() + ms(300);
        let outcome = lock.try_lock_until(deadline);
        assert!(!matches!(outcome, Ok(None)) || Instant::now() >= deadline);
        outcome
    });
    // A deadline that has passed makes it a try.
    wait_in_vain(|| lock.try_lock_until(Instant::now()));
    holder.release();
}
