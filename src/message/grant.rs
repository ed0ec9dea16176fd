//! A grant by message: Redis makes a waiter the holder of a mutex, and tells it so on the channel of its process.
//!
//! 1. A request that may queue carries a new [`Nonce`]. The waiter's record in Redis keeps it.
//! 2. The script that hands the mutex over reserves a fence, makes the waiter the holder for its pickup window, and then
//!    publishes the owner, the nonce and the fence.
//! 3. The waiter holds the mutex when it reads that message. The nonce proves that step 2 came after the request was
//!    sent. So the lease lasts at least for the pickup window from then, by any clock.
//!
//! Another message is the owner alone. Its waiter asks Redis for the lock.
//!
//! A Redis user that may read the record of a waiter, and may publish, can forge a grant.

use std::fmt;

use uuid::Uuid;

use crate::name::LARGEST_FENCE;

/// A text that nobody can guess: a random part of the attempt, and the number of the request.
///
/// It is a secret of this process and of Redis. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonce {
    pub(crate) secret: Uuid,
    pub(crate) request: u32,
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.secret.simple(), self.request)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<nonce>")
    }
}

impl Nonce {
    fn parse(text: &str) -> Option<Self> {
        let (secret, request) = text.split_once('-')?;
        Some(Self {
            secret: Uuid::try_parse(secret).ok()?,
            request: request.parse().ok()?,
        })
    }
}

/// A grant that was read from a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantMessage {
    pub(crate) nonce: Nonce,
    /// The fence; 0 if the lease has none.
    pub(crate) fence: u64,
}

impl GrantMessage {
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
    use super::*;

    fn nonce() -> Nonce {
        Nonce {
            secret: Uuid::from_u128(0xa1),
            request: 7,
        }
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
            format!("{} 1", nonce.secret.simple()),
            "x-1 1".to_owned(),
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
    fn a_nonce_is_not_shown() {
        assert_eq!(format!("{:?}", nonce()), "<nonce>");
    }
}
