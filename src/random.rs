//! The two uses of chance: the unique part of an owner, and jitter.

use std::time::Duration;

use once_cell::race::OnceBox;
use uuid::Uuid;

use crate::name::OWNER_PREFIX;
use crate::sync::{Arc, AtomicU64, Ordering};

/// Where chance comes from; a simulator puts a seeded source in its place.
pub(crate) trait Chance: Send + Sync {
    /// A number never given before, in the form of a version 4 UUID (RFC 9562).
    fn uuid(&self) -> Uuid;

    /// Any number, for jitter only.
    fn bits(&self) -> u64;
}

/// UUIDs of the system's generator; jitter from `SplitMix64` seeded by one of them.
#[derive(Debug)]
pub(crate) struct SystemChance {
    state: AtomicU64,
}

impl SystemChance {
    pub(crate) fn new() -> Self {
        let (seed, _) = Uuid::new_v4().as_u64_pair();
        Self {
            state: AtomicU64::new(seed),
        }
    }
}

impl Chance for SystemChance {
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
pub(crate) fn jittered(chance: &dyn Chance, most: Duration) -> Duration {
    shortened(chance, most, most / 4)
}

/// Returns a length between half of `most` and `most`.
pub(crate) fn jittered_by_half(chance: &dyn Chance, most: Duration) -> Duration {
    shortened(chance, most, most / 2)
}

/// Returns `length` less a random part of `by`.
fn shortened(chance: &dyn Chance, length: Duration, by: Duration) -> Duration {
    // The top 16 bits are a fraction in 65,536ths.
    let part = (chance.bits() >> 48) as u32;
    length.saturating_sub(by * part / 65_536)
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        let is_odd = self.unique.is_nil();
        self.unique == other.unique && (!is_odd || self.text.get() == other.text.get())
    }
}

/// The unique string that one attempt, and the tenure that comes of it, writes to Redis.
pub(crate) fn owner(chance: &dyn Chance, label: &str) -> Arc<str> {
    written(chance.uuid(), label).into()
}

fn written(unique: Uuid, label: &str) -> String {
    let mut buffer = Uuid::encode_buffer();
    let unique = unique.hyphenated().encode_lower(&mut buffer);
    [OWNER_PREFIX, unique, ":", label].concat()
}

/// An owner that is kept for long: only what is unique of it, until somebody wants to read it.
#[derive(Debug)]
pub(crate) struct Owner {
    unique: Uuid,
    text: OnceBox<String>,
}

impl Owner {
    pub(crate) fn new(owner: &str, label: &str) -> Self {
        let unique = owner.strip_prefix(OWNER_PREFIX).and_then(|rest| {
            let unique = rest.strip_suffix(label)?.strip_suffix(':')?;
            Uuid::try_parse(unique).ok()
        });
        let kept = Self {
            unique: unique.unwrap_or_default(),
            text: OnceBox::new(),
        };
        if written(kept.unique, label) != owner {
            // It was made in another way.
            kept.text.set(Box::new(owner.into())).ok();
        }
        kept
    }

    /// As it stands in Redis. `label` is the one it was made with.
    pub(crate) fn text(&self, label: &str) -> String {
        match self.text.get() {
            Some(text) => text.clone(),
            None => written(self.unique, label),
        }
    }

    /// The same, to be looked at.
    pub(crate) fn shown(&self, label: &str) -> &str {
        self.text
            .get_or_init(|| Box::new(written(self.unique, label)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_between_three_quarters_and_the_whole() {
        let chance = SystemChance::new();
        let most = Duration::from_secs(1);
        let drawn: Vec<_> = (0..1000).map(|_| jittered(&chance, most)).collect();
        assert!(drawn.iter().all(|d| *d <= most && *d > most * 3 / 4));
        assert!(drawn.iter().any(|d| *d != drawn[0]), "no jitter at all");
    }

    #[test]
    fn an_owner_is_kept_whole() {
        let made = owner(&SystemChance::new(), "host:1");
        for (text, label) in [
            (&*made, "host:1"),
            (&made.to_uppercase(), "HOST:1"),
            (&made, "other"),
            ("lh1:u:l", "l"),
            ("lh1::", ""),
            ("somebody", ""),
            ("", "l"),
        ] {
            let kept = Owner::new(text, label);
            assert_eq!(kept.text(label), text);
            assert_eq!(kept.shown(label), text);
            assert_eq!(kept.text(label), text);
        }
    }

    #[test]
    fn owners_differ_and_carry_the_label() {
        let chance = SystemChance::new();
        let (a, b) = (owner(&chance, "host:1"), owner(&chance, "host:1"));
        assert_ne!(a, b);
        assert!(a.starts_with("lh1:") && a.ends_with(":host:1"));
    }
}
