//! Grants by message.

use std::fmt;

use crate::name::LARGEST_FENCE;
use crate::sys::Rng;

/// The 128 random bits of one request. Nobody can guess them, even from the nonces of all other requests.
///
/// They are a secret of this process and of Redis. `Debug` does not show them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonce([u64; 2]);

/// The number of hexadecimal digits of a nonce.
const NONCE_DIGITS: usize = 32;

/// How far the fence of a message may be ahead of this process's clock, in µs. Fences follow the clock of the server.
const MOST_AHEAD_US: u64 = 60_000_000;

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([first, second]) = self;
        write!(f, "{first:016x}{second:016x}")
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<nonce>")
    }
}

impl Nonce {
    /// Makes the nonce of the next request.
    pub(crate) fn new(rng: &dyn Rng) -> Self {
        Self([rng.bits(), rng.bits()])
    }

    fn parse(text: &str) -> Option<Self> {
        let is_nonce =
            text.len() == NONCE_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let (first, second) = text
            .split_at_checked(NONCE_DIGITS / 2)
            .filter(|_| is_nonce)?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        Some(Self([number(first)?, number(second)?]))
    }
}

/// A grant by message: Redis makes a waiter the holder of a mutex, and tells it so on the channel of its process.
///
/// 1. A request that may queue carries a new [`Nonce`]. The waiter's record in Redis keeps it.
/// 2. The script that hands the mutex over reserves a fence, makes the waiter the holder for its pickup window, and then
///    publishes the owner, the nonce and the fence.
/// 3. The waiter holds the mutex when it reads that message. The nonce proves that step 2 came after the request was
///    sent, because no earlier message shows anything of it. So the lease lasts at least for the pickup window from then, by
///    any clock.
///
/// Step 2 shows the nonce to every client that may subscribe. So the waiter believes only the first message after a
/// request, and none whose fence is far ahead of its clock.
///
/// Another message is the owner alone. Its waiter asks Redis for the lock.
///
/// A Redis user that may read the record of a waiter, and may publish, can forge a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantMessage {
    pub(crate) nonce: Nonce,
    /// The fence; 0 if the lease has none.
    pub(crate) fence: u64,
}

impl GrantMessage {
    /// Returns whether the fence is so far ahead of `clock_us`, this process's time in µs, that the waiter must ask Redis.
    pub(crate) fn is_ahead_of(&self, clock_us: u64) -> bool {
        self.fence > clock_us.saturating_add(MOST_AHEAD_US)
    }

    /// Reads a message on the channel of this process. Returns the owner that it names, and the grant if it is one. A
    /// message that cannot be read as a grant is none: its owner asks Redis.
    pub(crate) fn of(payload: &[u8]) -> Option<(&str, Option<Self>)> {
        let payload = std::str::from_utf8(payload).ok()?;
        let Some((owner, grant)) = payload.split_once(' ') else {
            return Some((payload, None));
        };
        Some((owner, Self::parse(grant)))
    }

    fn parse(grant: &str) -> Option<Self> {
        let (nonce, fence) = grant.split_once(' ')?;
        let fence = fence.parse().ok().filter(|fence| *fence <= LARGEST_FENCE)?;
        let nonce = Nonce::parse(nonce)?;
        Some(Self { nonce, fence })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::sys::Machine;

    fn nonce() -> Nonce {
        Nonce([0xa1, 7])
    }

    #[test]
    fn a_message_is_an_owner_or_a_grant() {
        let text = format!("lh1:u:l {} 12", nonce());
        let grant = GrantMessage {
            nonce: nonce(),
            fence: 12,
        };
        let expected = Some(("lh1:u:l", Some(grant)));
        assert_eq!(GrantMessage::of(text.as_bytes()), expected);
        assert_eq!(GrantMessage::of(b"lh1:u:l"), Some(("lh1:u:l", None)));
        assert_eq!(GrantMessage::of(b"\xff"), None);
    }

    #[test]
    fn a_broken_grant_is_a_message_for_its_owner() {
        let nonce = nonce();
        for rest in [
            String::new(),
            nonce.to_string(),
            format!("{nonce} -1"),
            format!("{nonce} {}", LARGEST_FENCE + 1),
            format!("{nonce} 1 1"),
            format!("{nonce}0 1"),
            format!("{} 1", &nonce.to_string()[1..]),
            format!("+{} 1", &nonce.to_string()[1..]),
            format!("{} 1", "é".repeat(NONCE_DIGITS / 2)),
        ] {
            let text = format!("lh1:u:l {rest}");
            assert_eq!(
                GrantMessage::of(text.as_bytes()),
                Some(("lh1:u:l", None)),
                "{rest}"
            );
        }
    }

    #[test]
    fn a_fence_may_be_a_minute_ahead_of_the_clock() {
        let now = 1_800_000_000_000_000;
        for (fence, is_ahead) in [
            (0, false),
            (now, false),
            (now + MOST_AHEAD_US, false),
            (now + MOST_AHEAD_US + 1, true),
            (LARGEST_FENCE, true),
        ] {
            let grant = GrantMessage {
                nonce: nonce(),
                fence,
            };
            assert_eq!(grant.is_ahead_of(now), is_ahead, "{fence}");
        }
    }

    #[test]
    fn each_digit_of_a_nonce_is_random() {
        let nonces: Vec<_> = (0..100)
            .map(|_| Nonce::new(&Machine::default()).to_string())
            .collect();
        for digit in 0..NONCE_DIGITS {
            let drawn = nonces.iter().map(|nonce| &nonce[digit..=digit]);
            let drawn: BTreeSet<_> = drawn.collect();
            assert!(drawn.len() > 2, "digit {digit} is one of {drawn:?}");
        }
    }

    #[test]
    fn a_nonce_is_not_shown() {
        assert_eq!(format!("{:?}", nonce()), "<nonce>");
    }
}
