//! Numbers that depend on a seed only.

use std::time::Duration;

use super::ms;

/// A linear congruential generator, with the constants of Knuth's MMIX.
pub struct Random(pub u64);

impl Random {
    /// Returns a number that is smaller than `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    pub fn ms_below(&mut self, limit: u64) -> Duration {
        ms(self.below(limit))
    }
}
