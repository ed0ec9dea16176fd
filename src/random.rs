//! The source of random numbers. They have two uses: the unique part of an owner, and jitter.

use std::time::Duration;

use uuid::Uuid;

use crate::sync::{AtomicU64, Ordering};

/// Where chance comes from; a simulator puts a seeded source in its place.
pub(crate) trait Rng: Send + Sync {
    /// A number never given before, in the form of a version 4 UUID (RFC 9562).
    fn uuid(&self) -> Uuid;

    /// Any number, for jitter only.
    fn bits(&self) -> u64;
}

/// UUIDs of the system's generator; jitter from `SplitMix64` seeded by one of them.
#[derive(Debug)]
pub(crate) struct SystemRng {
    state: AtomicU64,
}

impl SystemRng {
    pub(crate) fn new() -> Self {
        let (seed, _) = Uuid::new_v4().as_u64_pair();
        Self {
            state: AtomicU64::new(seed),
        }
    }
}

impl Rng for SystemRng {
    fn uuid(&self) -> Uuid {
        Uuid::new_v4()
    }

    fn bits(&self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
        let mut z = self
            .state
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A length between three quarters of `most` and `most`.
///
/// Jitter only ever shortens a wait: a bound that is stated somewhere stays a bound.
pub(crate) fn jittered(rng: &dyn Rng, most: Duration) -> Duration {
    shortened(rng, most, most / 4)
}

/// Returns a length between half of `most` and `most`.
pub(crate) fn jittered_by_half(rng: &dyn Rng, most: Duration) -> Duration {
    shortened(rng, most, most / 2)
}

/// Returns `length` less a random part of `by`.
fn shortened(rng: &dyn Rng, length: Duration, by: Duration) -> Duration {
    // The top 16 bits are a fraction in 65,536ths.
    let part = (rng.bits() >> 48) as u32;
    length.saturating_sub(by * part / 65_536)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_between_three_quarters_and_the_whole() {
        let rng = SystemRng::new();
        let most = Duration::from_secs(1);
        let drawn: Vec<_> = (0..1000).map(|_| jittered(&rng, most)).collect();
        assert!(drawn.iter().all(|d| *d <= most && *d > most * 3 / 4));
        assert!(drawn.iter().any(|d| *d != drawn[0]), "no jitter at all");
    }
}
