//! The source of random numbers. They have three uses: the unique part of an owner, the nonces of grants by message, and
//! jitter.

use std::time::Duration;

use uuid::Uuid;

/// A source of random numbers. Tests use a source that counts.
pub(crate) trait Rng: Send + Sync {
    /// Returns a number that was never returned before, as a version 4 UUID (RFC 9562).
    fn uuid(&self) -> Uuid;

    /// Returns 64 bits that nobody can guess, even from all numbers that this source has returned before.
    fn bits(&self) -> u64;

    /// Returns any number, for jitter only: each number shows the next one.
    fn jitter(&self) -> u64;
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
    use crate::sys::Machine;

    #[test]
    fn jitter_stays_between_three_quarters_and_the_whole() {
        let rng = Machine::default();
        let most = Duration::from_secs(1);
        let drawn: Vec<_> = (0..1000).map(|_| jittered(&rng, most)).collect();
        assert!(drawn.iter().all(|d| *d <= most && *d > most * 3 / 4));
        assert!(drawn.iter().any(|d| *d != drawn[0]), "no jitter at all");
    }
}
