//! The real machine.

use std::thread::park_timeout;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use once_cell::sync::OnceCell;
use uuid::Uuid;

use super::sync::{AtomicU64, Ordering};
use super::time::{LONGEST_SLEEP, Time};

/// Returns the time.
#[inline]
pub(crate) fn now() -> Time {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let id = rustix::time::ClockId::Boottime;
    // Other systems have no such clock by this name. On macOS, the monotonic clock runs through suspend too.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let id = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(id);
    // Both fields are at least 0, because these clocks count from the start of the machine.
    Time::from_nanos(
        now.tv_sec
            .unsigned_abs()
            .saturating_mul(1_000_000_000)
            .saturating_add(now.tv_nsec.unsigned_abs()),
    )
}

/// Returns the time of day, in µs since 1970.
pub(crate) fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| u64::try_from(since.as_micros()).unwrap_or(1))
}

/// Blocks until the thread is unparked, for at most this time and [`LONGEST_SLEEP`].
pub(crate) fn park_for(left: Duration) {
    if !left.is_zero() {
        park_timeout(left.min(LONGEST_SLEEP));
    }
}

/// Returns 64 random bits.
pub(crate) fn bits() -> u64 {
    // A UUID has six fixed bits: four at the end of its first half, and two at the beginning of its second half.
    let (first, second) = Uuid::new_v4().as_u64_pair();
    first & !0xffff | second & 0xffff
}

/// Returns the next number of `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014),
/// which starts from a number of the system.
pub(crate) fn jitter() -> u64 {
    static STATE: OnceCell<AtomicU64> = OnceCell::new();
    let state = STATE.get_or_init(|| AtomicU64::new(bits()));
    let mut z = state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_of_the_64_bits_is_fixed() {
        let (mut zeros, mut ones) = (0, 0);
        for _ in 0..200 {
            let bits = bits();
            (zeros, ones) = (zeros | !bits, ones | bits);
        }
        assert_eq!((zeros, ones), (u64::MAX, u64::MAX));
    }
}
