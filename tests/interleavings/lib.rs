//! Files of the library, which [loom] runs in every order of their atomic accesses that it knows of: it lets no load see a later
//! store. The simulator changes threads at mutexes, waits and I/O only.
//!
//! They are compiled unchanged over a [`sys`] of loom's atomics, mutexes and condition variables. loom also reports a thread that
//! nothing wakes.
//!
//! [loom]: https://docs.rs/loom

#![allow(
    clippy::missing_panics_doc,
    reason = "that is how a model tells of a broken promise"
)]
#![allow(unused, reason = "the models use a part of each file")]

#[path = "../../src/cancel.rs"]
mod cancel;
#[path = "../../src/engine/closing.rs"]
mod closing;
#[path = "../../src/engine/lease/rules.rs"]
mod rules;
mod sys;

/// The part of the library's errors that `rules.rs` needs.
mod error {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum LostCause {
        Expired,
        Taken,
        Removed,
        MaxHold,
    }
}

use loom::model;
use loom::thread::spawn;

use cancel::Cancel;
use closing::Closing;
use error::LostCause::Taken;
use rules::AtomicLease;
use rules::LeaseStatus::{Ended, Live, Lost};
use sys::{Arc, Condvar, Machine, Mutex, Time};

const fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

/// The watch thread sees the deadline pass, and tells a guard, whose reading of the clock is older. Meanwhile the deadline is
/// moved.
pub fn no_thread_reads_held_after_it_was_told_of_the_loss() {
    let renew = |lease: &AtomicLease| {
        lease.renew(at(99), at(200));
    };
    let vote = |lease: &AtomicLease| {
        lease.move_to(at(99), at(200));
    };
    let both: [fn(&AtomicLease); 2] = [renew, vote];
    for moves in both {
        model(move || {
            let lease = Arc::new(AtomicLease::new(at(100)));
            let told = Arc::new(Mutex::new(None));
            let (of_renewal, of_watch) = (Arc::clone(&lease), Arc::clone(&lease));
            let of_guard = Arc::clone(&told);
            let renewal = spawn(move || moves(&of_renewal));
            let watch = spawn(move || *told.lock() = Some(of_watch.status(at(100))));
            let told = *of_guard.lock();
            let read = lease.status(at(99));
            watch.join().expect("no panic");
            renewal.join().expect("no panic");
            let last = lease.status(at(99));
            if let Some(Lost(_)) = told {
                assert_eq!(Some(read), told);
            }
            if let Lost(_) = read {
                assert_eq!(last, read);
            }
            if let Some(Live(_)) = told {
                assert!(matches!(last, Live(_)), "{last:?}");
            }
        });
    }
}

/// The guard ends the lease, while Redis replies to one renewal that the lease is taken, and to another that it goes on.
pub fn a_lease_ends_in_one_way() {
    model(|| {
        let lease = Arc::new(AtomicLease::new(at(100)));
        let (of_guard, of_renewal) = (Arc::clone(&lease), Arc::clone(&lease));
        let guard = spawn(move || of_guard.end(at(99)));
        let renewal = spawn(move || of_renewal.lose(Taken));
        let renewed = lease.renew(at(99), at(200));
        let before = guard.join().expect("no panic");
        let is_lost = renewal.join().expect("no panic");
        let end = lease.status(at(99));
        if is_lost {
            assert_eq!((before, end), (Lost(Taken), Lost(Taken)));
        } else {
            assert!(matches!((before, end), (Live(_), Ended)), "{before:?}");
        }
        assert!(matches!(renewed, Live(_)) || renewed == end);
    });
}

/// A thread registers and looks at the token before it sleeps, as each call does.
pub fn a_cancel_is_never_slept_through() {
    model(|| {
        let token = Cancel::new();
        let waits_for = token.clone();
        let waiter = spawn(move || {
            let parker = Arc::default();
            let _registered = waits_for.register(&parker);
            while !waits_for.is_cancelled() {
                parker.sleep_until(&Machine::default(), Time::NEVER);
            }
        });
        token.cancel();
        waiter.join().expect("no panic");
    });
}

/// The threads sleep and wake each other as in `src/engine/lease/renewal/releases.rs`, which this crate does not compile.
pub fn close_never_sleeps_past_the_last_busy_thread() {
    model(|| {
        let shared = Arc::<(Closing, Mutex<()>, Condvar)>::default();
        shared.0.add_busy();
        let of_busy = Arc::clone(&shared);
        let busy = spawn(move || {
            let (closing, state, changed) = &*of_busy;
            if closing.remove_busy() {
                drop(state.lock());
                changed.notify_all();
            }
        });
        let (closing, state, changed) = &*shared;
        closing.note_closed();
        let mut locked = state.lock();
        while closing.busy_threads() > 0 {
            locked = changed.wait(locked);
        }
        drop(locked);
        busy.join().expect("no panic");
    });
}
