//! The replies, and the grants by message.

use std::fmt;
use std::time::Duration;

use crate::error::{Failure, LostCause, NodeCounts};
use crate::name::LARGEST_FENCE;
use crate::sys::{Arc, Rng, Time};

/// A reply to a [`Request`](crate::wire::Request).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Pong,
    Granted {
        fence: u64,
        /// How many fences were reserved, this one included. `None`: as many as were asked for.
        count: Option<u64>,
        /// The fences of the other names, if there are several.
        rest: Vec<u64>,
        /// Whether other processes wait for the lock.
        contended: bool,
    },
    /// Not granted, but nobody waits: the caller may share the lease that it named in
    /// [`Ask::shareable_owner`](crate::wire::Ask).
    Shared,
    Held {
        /// How long the holder's lease still lasts. `None` if the key has no time to live, or less than a millisecond.
        ttl: Option<Duration>,
        holder: Arc<str>,
        /// Whether the request, a take-over, has given a mutex from its old owner to the holder, or left it free in a
        /// gap. Otherwise the old owner may have lost the mutex before.
        handed_over: bool,
    },
    /// Too few nodes of a quorum granted it, and the owner was withdrawn from those. It must never ask again.
    Outvoted {
        /// The owner that may have a majority. `None` means that the votes are split: nobody has one.
        holder: Option<Arc<str>>,
        /// How long the leases of that owner still last. `None` if that is not known.
        ttl: Option<Duration>,
        counts: NodeCounts,
    },
    Released,
    /// Released, and given to a waiter.
    HandedOver,
    /// Not released: other processes wait, so the lock must be handed over.
    Contended,
    /// Not released: this owner did not hold the lock any more.
    NotOwner(Gone),
    /// A reply about a semaphore of which other clients give another number of permits.
    Differs {
        others: u32,
        reply: Box<Reply>,
    },
    Renewed(Vec<Renewed>),
    /// The result of each release.
    Each(Vec<Result<Reply, NotReleased>>),
    /// Admitted by the rate limiter, once this time has passed.
    Admitted(Duration),
    /// Not admitted: the wait would be this long.
    NotAdmitted(Duration),
    Published,
    /// The state of each lock; `None` if the key is no lock, or if the lock has neither holder nor waiter. If a scan
    /// found the keys, the reply may be about the first of them only. The caller must then ask about the others again.
    Inspected(Vec<Option<Seen>>),
    /// Some keys, and the place where the scan continues.
    Page {
        keys: Vec<Vec<u8>>,
        next: Option<Cursor>,
    },
}

/// The reason why an owner does not hold a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The key does not exist.
    Removed,
    /// Another owner holds it.
    Taken,
}

impl From<Gone> for LostCause {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Removed => Self::Removed,
            Gone::Taken => Self::Taken,
        }
    }
}

/// The reason why one release of a batch has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReleased {
    /// The server rejected it.
    Refused,
    /// The node of its slot did not answer. It may have executed the release, or may still do so.
    Unanswered,
}

/// The result of one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Done {
        /// Whether other processes wait for the lock.
        contended: bool,
    },
    /// The votes of a quorum: the lease lasts until then, at the nodes that still hold it.
    Voted {
        /// Whether other processes wait for the lock.
        contended: bool,
        until: Time,
        /// Rises with each vote about this owner. A result of a lower number came earlier.
        version: u32,
        /// Whether a majority of the nodes has confirmed this renewal. If not, it must be repeated.
        is_confirmed: bool,
        /// Whether the lease lacks votes that an early renewal may bring.
        lacks_votes: bool,
        /// Whether a node has no vote that had one at the last confirmed renewal, or this is the first.
        has_new_misses: bool,
    },
    Gone(Gone),
    /// The server rejected it.
    Refused,
    /// The node of its slot did not answer, or cannot serve the slot now. The others of the batch have their results.
    Unanswered,
}

/// The state of a lock in Redis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The rate limiter, if it is no lock.
    pub(crate) limiter: Option<SeenLimiter>,
    /// How many units the lock has; `None` for a mutex.
    pub(crate) total_units: Option<u32>,
    /// The last fence that was reserved; `None` if Redis has forgotten it.
    pub(crate) fence: Option<u64>,
    pub(crate) waiters: u64,
    pub(crate) holders: Vec<SeenHolder>,
    /// The first waiters, in the order of the queue.
    pub(crate) waiting: Vec<SeenWaiter>,
}

/// A rate limiter in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenLimiter {
    pub(crate) permits: u32,
    pub(crate) per: Duration,
    /// How long a call would wait.
    pub(crate) wait: Duration,
}

/// One waiter of a lock in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenWaiter {
    pub(crate) owner: String,
    /// When it joined the queue, by the server's clock, in µs since 1970.
    pub(crate) joined_us: u64,
    pub(crate) units: u32,
}

/// One holder of a lock in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenHolder {
    pub(crate) owner: String,
    /// How long the lease still lasts; `None` if the key has no time to live.
    pub(crate) ttl: Option<Duration>,
    pub(crate) units: u32,
    /// Whether it has given the lock up, and keeps it from others for a while (`min_hold`).
    pub(crate) is_kept: bool,
    /// The addresses of the nodes of a quorum that name this holder.
    pub(crate) nodes: Vec<Arc<str>>,
}

/// The place where a scan continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The node that is scanned.
    pub(crate) node: u32,
    /// The server that is scanned, because another server's cursors are different. In a cluster these are the first 16
    /// digits of its `run_id`, and behind sentinels the number of the master. 0 before it was asked.
    pub(crate) run: u64,
    /// How many nodes before it have failed.
    pub(crate) failed: u32,
    /// A fingerprint of a cluster's masters, in their order, when the scan began; 0 before. If they are others at the end,
    /// the scan begins again.
    pub(crate) masters: u64,
    /// The node's own cursor.
    pub(crate) at: u64,
}

impl Cursor {
    pub(crate) const START: Self = Self {
        node: 0,
        run: 0,
        failed: 0,
        masters: 0,
        at: 0,
    };
}

impl Renewed {
    /// Returns whether the lease is renewed.
    pub(crate) fn is_confirmed(&self) -> bool {
        match self {
            Self::Done { .. } => true,
            Self::Voted { is_confirmed, .. } => *is_confirmed,
            Self::Gone(_) | Self::Refused | Self::Unanswered => false,
        }
    }

    /// Returns whether the lease lacks votes of a quorum that an early renewal may bring.
    pub(crate) fn lacks_votes(&self) -> bool {
        matches!(
            self,
            Self::Voted {
                lacks_votes: true,
                ..
            }
        )
    }

    /// Returns whether a further node of a quorum has no vote.
    pub(crate) fn has_new_misses(&self) -> bool {
        matches!(
            self,
            Self::Voted {
                has_new_misses: true,
                ..
            }
        )
    }
}

impl Reply {
    /// Returns the result for each lease of a renewal.
    ///
    /// # Errors
    ///
    /// Returns a failure if this is the reply to another call.
    pub(crate) fn renewed(self) -> Result<Vec<Renewed>, Failure> {
        match self {
            Self::Renewed(results) => Ok(results),
            _ => Err(Failure::another_question()),
        }
    }

    /// Returns whether this is a grant or a renewal. The caller of those relies on the server's write.
    pub(crate) fn is_gain(&self) -> bool {
        match self {
            Self::Granted { .. } | Self::Shared => true,
            Self::Differs { reply, .. } => reply.is_gain(),
            Self::Renewed(results) => results.iter().any(Renewed::is_confirmed),
            _ => false,
        }
    }
}

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
///    sent, because no earlier message shows anything of it. So the lease lasts at least for the pickup window from then, by any clock.
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
