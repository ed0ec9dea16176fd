//! The first request for a mutex that this process handed over.

use super::*;
use crate::core::pickup;
use crate::engine::handed_over::SLOTS;
use crate::message::AcquireMode;
use crate::name::fingerprint;

/// Returns how the next request that asks for a lock asks for it.
fn next_mode(verbs: &mpsc::Receiver<Verb>) -> AcquireMode {
    let mode = |verb| match verb {
        Verb::Acquire { mode, .. } => Some(mode),
        _ => None,
    };
    verbs.try_iter().find_map(mode).expect("asked")
}

#[test]
fn a_mutex_that_was_just_handed_over_is_asked_for_in_its_queue() {
    let (sender, verbs) = mpsc::channel();
    let mut recorded = recording(sender);
    let pool = move |request: &Request<'_>| match recorded(request)? {
        Reply::Released => Ok(Reply::HandedOver),
        reply => Ok(reply),
    };
    let clock = still();
    let engine = Fake::new(pool, generous()).engine(LONG, clock.clone());
    let locked = |name| {
        drop(mutex(Arc::clone(&engine), name).lock().expect("granted"));
        next_mode(&verbs)
    };
    // One of 256 names shares the slot of the note.
    let is_apart = |name: &&str| fingerprint(name) % SLOTS != fingerprint("a") % SLOTS;
    let other = ["b", "c", "d", "e", "f", "g"].into_iter().find(is_apart);
    assert_eq!(locked("a"), AcquireMode::TakeFree);
    assert_eq!(locked(other.expect("one of six")), AcquireMode::TakeFree);
    assert_eq!(locked("a"), AcquireMode::AfterHandOver);
    clock.advance(pickup::SHORTEST);
    assert_eq!(locked("a"), AcquireMode::TakeFree, "too long ago");
}

#[test]
fn a_mutex_that_was_released_to_nobody_is_taken_at_once() {
    let (sender, verbs) = mpsc::channel();
    let engine = Fake::new(recording(sender), generous()).engine(LONG, still());
    for _ in 0..2 {
        drop(mutex(Arc::clone(&engine), "a").lock().expect("granted"));
        assert_eq!(next_mode(&verbs), AcquireMode::TakeFree);
    }
}
