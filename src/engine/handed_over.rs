//! The mutexes that this process handed over to another process within the last 250 ms.
//!
//! Such a mutex is contended: if this process asks for it again, most likely another process holds it. So the first
//! request goes to the queue, without a try to take a free mutex ([`AcquireMode::AfterHandOver`]). That saves commands
//! of the server.
//!
//! A name has one slot of a small table, which other names may share. If another name has overwritten the note, the process
//! asks in the usual way. A note that was not true costs commands, and changes nothing else: if the mutex is free, the
//! request gets it in its turn.
//!
//! [`AcquireMode::AfterHandOver`]: crate::message::AcquireMode::AfterHandOver

use crate::clock::Time;
use crate::core::pickup;
use crate::message::{LockKind, Request};
use crate::name::Target;
use crate::sync::{AtomicU64, Ordering};

pub(super) const SLOTS: u32 = 256;

pub(super) struct HandedOver {
    /// In the upper half of a slot is the fingerprint of the name, in the lower half the time in milliseconds.
    slots: [AtomicU64; SLOTS as usize],
}

impl HandedOver {
    pub(super) fn new() -> Self {
        Self {
            slots: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Returns the slot of a name.
    fn slot(&self, target: &Target) -> &AtomicU64 {
        &self.slots[(target.fingerprint() % SLOTS) as usize]
    }

    /// Notes that the mutex of a request was handed over.
    pub(super) fn note(&self, request: &Request<'_>, now: Time) {
        if let Request::Lock {
            kind: LockKind::Mutex,
            target,
            ..
        } = request
        {
            let note = u64::from(target.fingerprint()) << 32 | u64::from(ms(now));
            self.slot(target).store(note, Ordering::Relaxed);
        }
    }

    /// Returns whether this mutex was handed over less than the shortest pickup window ago.
    pub(super) fn was_handed_over(&self, target: &Target, now: Time) -> bool {
        let noted = self.slot(target).load(Ordering::Relaxed);
        let age = ms(now).wrapping_sub(noted as u32);
        noted >> 32 == u64::from(target.fingerprint())
            && u128::from(age) < pickup::SHORTEST.as_millis()
    }
}

/// Returns the time in milliseconds, as a number that begins anew after 49 days.
fn ms(time: Time) -> u32 {
    (time.as_nanos() / 1_000_000) as u32
}
