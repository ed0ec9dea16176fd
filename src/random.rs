//! The source of random numbers. They have three uses: the unique part of an owner, the nonces of grants by message, and
//! jitter.

use std::time::Duration;

use uuid::Uuid;

use crate::sync::{AtomicU64, Ordering};

/// A source of random numbers. Tests use a source that counts.
pub(crate) trait Rng: Send + Sync {
    /// Returns a number that was never returned before, as a version 4 UUID (RFC 9562).
    fn uuid(&self) -> Uuid;

    /// Returns 64 bits that nobody can guess, even from all numbers that this source has returned before.
    fn bits(&self) -> u64;

    /// Returns any number, for jitter only: each number shows the next one.
    fn jitter(&self) -> u64;
}

/// The random numbers of the system. Jitter comes from `SplitMix64`, which starts from a UUID of the system.
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
        // A UUID has six fixed bits: four at the end of its first half, and two at the beginning of its second half.
        let (first, second) = Uuid::new_v4().as_u64_pair();
        first & !0xffff | second & 0xffff
    }

    fn jitter(&self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
        let mut z = self
            .state
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Returns a length between three quarters of `most` and `most`.
///
/// Jitter only shortens a wait, so a documented bound of that wait stays true.
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
    let part = (rng.jitter() >> 48) as u32;
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

    #[test]
    fn none_of_the_64_bits_is_fixed() {
        let rng = SystemRng::new();
        let (mut zeros, mut ones) = (0, 0);
        for _ in 0..200 {
            let bits = rng.bits();
            (zeros, ones) = (zeros | !bits, ones | bits);
        }
        assert_eq!((zeros, ones), (u64::MAX, u64::MAX));
    }
}
