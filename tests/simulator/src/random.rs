//! Random numbers from a seed.

use std::ops::Range;
use std::time::Duration;

/// `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts from a seed. Streams of different numbers have nothing in common.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed);
        let first = random.bits();
        Self(first ^ stream.wrapping_mul(0xd134_2543_de82_ef95))
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number of a range.
    ///
    /// # Panics
    ///
    /// The range is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        let length = u128::from(range.end - range.start);
        let part = (u128::from(self.bits()) * length) >> 64;
        range.start + u64::try_from(part).expect("it is less than the length")
    }

    /// Returns the number of an item among `count`.
    pub fn index(&mut self, count: usize) -> usize {
        self.within(0..count as u64) as usize
    }

    /// Returns true once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.within(0..times) == 0
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }

    /// Returns a length of a range, where each order of magnitude is as likely as the others.
    pub fn length(&mut self, range: Range<Duration>) -> Duration {
        let (least, most) = (range.start.as_secs_f64().ln(), range.end.as_secs_f64().ln());
        let part = f64::from(self.within(0..1 << 20) as u32) / f64::from(1 << 20);
        Duration::from_secs_f64((least + (most - least) * part).exp())
    }
}
