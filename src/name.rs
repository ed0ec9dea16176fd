//! Names of locks, and their keys in Redis.
//!
//! A lock called `name` is the Redis key `prefix + name`. Beside it, leasehold keeps *companion* keys: the last fence,
//! the queue, the waiters, the last fire of a job, and the value of a leader. They must share the key's hash slot, so that in a cluster one
//! script may use them all. Redis hashes the text between the first `{` and the first `}` after it, if there is such a
//! text ([hash tags]). So there are two forms:
//!
//! | the key | its companions |
//! | --- | --- |
//! | has no hash tag: `orders:42` | `{orders:42}` + `:lh:…` |
//! | has a hash tag: `{shop}:42` | `{shop}:42` + `:lht:…` |
//!
//! The suffixes differ because `x` and `{x}` would otherwise share companions. Two sorts of keys are invalid: a key
//! that cannot share a slot with its companions (`a}b`, `}x`, `{}x`), and a key with such a suffix, because it could be
//! a companion of another lock.
//!
//! [hash tags]: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags

use std::collections::BTreeMap;

use once_cell::race::OnceBox;

use crate::error::Error;
use crate::sys::Arc;
use crate::sys::hash::{BuildHasher, Hash, Hasher, RandomState};

/// The longest name, in bytes of UTF-8.
pub(crate) const MAX_NAME: usize = 1024;

/// The most names of a set. On one server a single script acquires them all, and serves nobody else meanwhile.
pub(crate) const MOST_NAMES: usize = 1_000;

/// The largest fence. Lua's numbers are not exact beyond it. A clock in microseconds reaches it in the year 2255.
pub(crate) const LARGEST_FENCE: u64 = (1 << 53) - 1;

/// The number of hash slots of a Redis Cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The beginning of every channel of this crate, so that one pattern of an access control list matches them all.
pub(crate) const CHANNEL_PREFIX: &str = "leasehold:";

/// The channel to which every process subscribes. `force_release` publishes the owner that it removed there, and
/// `request_release` publishes its requests.
pub(crate) const BROKEN: &str = "leasehold:broken";

/// Begins a message on the channel of one process about a new leader or value: `leader <fence>.<number of the write> <key>`.
pub(crate) const LEADER: &str = "leader ";

/// Begins a message that asks for the release of a lock: `request <owner> <µs since 1970> <why>`.
pub(crate) const REQUEST: &str = "request ";

/// Ends the key by which the clients of a quorum compare their restart delays. The prefix comes before it.
pub(crate) const RESTART_DELAY: &str = "leasehold:restart_delay";

/// A key beside the key of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Companion {
    /// A string: the last fence that was given out or reserved.
    Fence,
    /// A sorted set: the owners that wait, in the order of their scores.
    Queue,
    /// A hash: for each owner in the queue, the time at which it was last seen, its channel, and what it asks for.
    Waiters,
    /// A hash: the last fire of a job that runs once.
    Once,
    /// A hash: the value of a leader, and the channels of those that observe it.
    Leader,
}

/// The suffixes of each [`Companion`]: for a key without a hash tag, and for a key with one.
const SUFFIXES: [(&str, &str); 5] = [
    (":lh:fence", ":lht:fence"),
    (":lh:queue", ":lht:queue"),
    (":lh:waiters", ":lht:waiters"),
    (":lh:once", ":lht:once"),
    (":lh:leader", ":lht:leader"),
];

/// A number that two names seldom share: a hash with a random key, so nobody can choose names that share it. It is computed
/// once for each handle. Otherwise each lock and each release would hash the name several times.
pub(crate) type Fingerprint = u32;

/// A valid name of a lock, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockKey {
    /// The prefix and the name.
    key: Arc<str>,
    /// The length of the prefix, which is at most 1,024 bytes.
    prefix: u16,
    /// Whether the key has a hash tag.
    is_tagged: bool,
    fingerprint: Fingerprint,
}

impl Hash for LockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.fingerprint);
    }
}

impl LockKey {
    /// Checks the name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] with the reason.
    pub(crate) fn new(prefix: &str, name: &str) -> Result<Self, Error> {
        check_length(name)?;
        let invalid = |reason| Err(invalid(name, reason));
        let key: Arc<str> = if prefix.is_empty() {
            name.into()
        } else {
            [prefix, name].concat().into()
        };
        let is_tagged = hash_tag(key.as_bytes()).is_some();
        if !is_tagged && key.contains('}') {
            return invalid(
                "its braces put the lock and the keys beside it into different hash slots",
            );
        }
        let is_suffix =
            |(plain, tagged): &(&str, &str)| key.ends_with(plain) || key.ends_with(tagged);
        if SUFFIXES.iter().any(is_suffix) || key.ends_with(RESTART_DELAY) {
            return invalid("it ends like a key that leasehold keeps beside a lock");
        }
        Ok(Self {
            fingerprint: fingerprint(&key),
            key,
            prefix: prefix.len() as u16,
            is_tagged,
        })
    }

    /// Returns the name, without the prefix.
    pub(crate) fn name(&self) -> &str {
        &self.key[usize::from(self.prefix)..]
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Returns the hash slot in which Redis Cluster keeps the key and its companions: the CRC-16/XMODEM of the hashed
    /// text, modulo 16,384 ([key distribution model]).
    ///
    /// [key distribution model]: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model
    pub(crate) fn slot(&self) -> u16 {
        slot_of(&*self.key)
    }

    /// Returns the keys of the lock and of its companions.
    pub(crate) fn all(&self) -> [String; 6] {
        let companion = |which| self.companion(which);
        [
            self.key.to_string(),
            companion(Companion::Fence),
            companion(Companion::Queue),
            companion(Companion::Waiters),
            companion(Companion::Once),
            companion(Companion::Leader),
        ]
    }

    pub(crate) fn companion(&self, which: Companion) -> String {
        let (plain, tagged) = SUFFIXES[which as usize];
        if self.is_tagged {
            [&self.key, tagged].concat()
        } else {
            ["{", &self.key, "}", plain].concat()
        }
    }
}

/// The names that a lock is about.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    One(LockKey),
    Several(Arc<Set>),
}

#[derive(Debug)]
pub(crate) struct Set {
    /// A text that no other set has.
    id: Arc<str>,
    fingerprint: Fingerprint,
    /// The name of the set in messages.
    name: Arc<str>,
    /// The names, in the order of their keys.
    keys: Vec<LockKey>,
}

impl From<LockKey> for Target {
    fn from(key: LockKey) -> Self {
        Self::One(key)
    }
}

impl Target {
    /// Returns the set of these names. A set of one name is the same target as that name alone.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if there is no name, one name is given twice, or there are more than [`MOST_NAMES`].
    pub(crate) fn all(mut keys: Vec<LockKey>) -> Result<Self, Error> {
        if keys.len() > MOST_NAMES {
            let reason = format!(
                "{} names are given, and a set has at most 1,000",
                keys.len()
            );
            return Err(Error::config("names", reason));
        }
        // Every process has the names in one order, whatever order its caller gave.
        keys.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        if let Some(twice) = keys.windows(2).find(|pair| pair[0].key == pair[1].key) {
            let reason = format!("{:?} is given twice", twice[0].name());
            return Err(Error::config("names", reason));
        }
        if keys.is_empty() {
            return Err(Error::config("names", "no name is given"));
        }
        if keys.len() == 1 {
            return Ok(Self::One(keys.swap_remove(0)));
        }
        let names: Vec<&str> = keys.iter().map(LockKey::name).collect();
        let name = joined(&names).into();
        // With the lengths, or the set of `a` and `b` could have the same text as the name `a1:b`.
        let id = keys
            .iter()
            .flat_map(|key| [key.key.len().to_string(), ":".into(), key.key.to_string()])
            .collect::<String>();
        let set = Set {
            fingerprint: fingerprint(&id),
            id: id.into(),
            name,
            keys,
        };
        Ok(Self::Several(Arc::new(set)))
    }

    /// Returns the same names as one target for each slot, in the order of the slots.
    pub(crate) fn by_slot(&self) -> Vec<Self> {
        let mut slots = BTreeMap::<u16, Vec<LockKey>>::new();
        for key in self.keys() {
            slots.entry(key.slot()).or_default().push(key.clone());
        }
        slots
            .into_values()
            .filter_map(|keys| Self::all(keys).ok())
            .collect()
    }

    pub(crate) fn first(&self) -> &LockKey {
        &self.keys()[0]
    }

    /// Returns the names, of which there is at least one.
    pub(crate) fn keys(&self) -> &[LockKey] {
        match self {
            Self::One(key) => std::slice::from_ref(key),
            Self::Several(set) => &set.keys,
        }
    }

    /// Returns the name for messages.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::One(key) => key.name(),
            Self::Several(set) => &set.name,
        }
    }

    /// Returns a text that no other target of the same kind has.
    pub(crate) fn id(&self) -> &Arc<str> {
        match self {
            Self::One(key) => &key.key,
            Self::Several(set) => &set.id,
        }
    }

    /// Returns the fingerprint of [`Self::id`].
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        match self {
            Self::One(key) => key.fingerprint,
            Self::Several(set) => set.fingerprint,
        }
    }
}

/// Returns the fingerprint of the text of a [`Target::id`].
pub(crate) fn fingerprint(id: &str) -> Fingerprint {
    // A `Lazy` blocks while another thread initialises it. In a forked child that thread may not exist.
    static HASHER: OnceBox<RandomState> = OnceBox::new();
    let hasher = HASHER.get_or_init(Box::default);
    hasher.hash_one(id) as Fingerprint
}

/// Checks the length of a name, which does not depend on the prefix.
///
/// # Errors
///
/// [`Error::InvalidName`] with the reason.
pub(crate) fn check_length(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(invalid(name, "it is empty"));
    }
    if name.len() > MAX_NAME {
        return Err(invalid(name, "it is longer than 1,024 bytes"));
    }
    Ok(())
}

fn invalid(name: &str, reason: &'static str) -> Error {
    Error::InvalidName {
        name: shortened(name),
        reason,
    }
}

/// Returns the hash slot of a key.
#[must_use]
pub fn slot_of(key: impl AsRef<[u8]>) -> u16 {
    let key = key.as_ref();
    let hashed = hash_tag(key).unwrap_or(key);
    let crc = hashed.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    crc % SLOTS
}

/// Returns the part of a key that Redis Cluster hashes in place of the whole key, or `None` if it hashes the whole.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let place = |text: &[u8], brace| text.iter().position(|byte| *byte == brace);
    let tag = &key[place(key, b'{')? + 1..];
    let tag = &tag[..place(tag, b'}')?];
    (!tag.is_empty()).then_some(tag)
}

/// Returns the names of a set in one text, which has a few hundred bytes at most, if no name is longer: the other names are
/// only counted.
pub(crate) fn joined(names: &[&str]) -> String {
    const SHOWN: usize = 200;
    let mut text = String::new();
    for (number, name) in names.iter().enumerate() {
        if number > 0 && text.len() + name.len() > SHOWN {
            return text + &format!(" and {} more", names.len() - number);
        }
        text.push_str(if number > 0 { " + " } else { "" });
        text.push_str(&shortened(name));
    }
    text
}

/// Returns a name for an error message. A name that is too long is cut.
pub(crate) fn shortened(name: &str) -> Arc<str> {
    const SHOWN: usize = 64;
    match name.char_indices().nth(SHOWN) {
        Some((end, _)) if name.len() > MAX_NAME => [&name[..end], "…"].concat().into(),
        _ => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Companion; 4] = [
        Companion::Fence,
        Companion::Queue,
        Companion::Waiters,
        Companion::Once,
    ];

    /// Returns the part of a key that Redis Cluster hashes. This follows its specification, and not this module's code.
    fn hashed(key: &str) -> &[u8] {
        let bytes = key.as_bytes();
        let Some(open) = bytes.iter().position(|b| *b == b'{') else {
            return bytes;
        };
        match bytes[open + 1..].iter().position(|b| *b == b'}') {
            Some(length) if length > 0 => &bytes[open + 1..open + 1 + length],
            _ => bytes,
        }
    }

    #[test]
    fn bad_names_are_refused_with_a_reason() {
        for (name, reason) in [
            ("", "empty"),
            ("a}b", "hash slots"),
            ("}x", "hash slots"),
            ("{}x", "hash slots"),
            ("{}{x}", "hash slots"),
            ("{x}:lh:queue", "beside a lock"),
            ("x:lht:fence", "beside a lock"),
            (&"x".repeat(MAX_NAME + 1), "1,024"),
            (&"é".repeat(MAX_NAME / 2 + 1), "1,024"),
        ] {
            let error = LockKey::new("", name).expect_err(name).to_string();
            assert!(error.contains(reason), "{name:?}: {error}");
            assert!(error.len() < 300, "{error}");
        }
    }

    #[test]
    fn odd_names_are_names() {
        for name in [
            "a{b",
            "{",
            "{a}",
            "x{a}y{",
            "a\nb",
            "a\0b",
            "é",
            &"x".repeat(MAX_NAME),
        ] {
            assert!(LockKey::new("", name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn the_prefix_counts_where_the_key_counts() {
        assert!(LockKey::new("a:lh", ":queue").is_err());
        assert!(LockKey::new("a}", "b").is_err());
        let key = LockKey::new("lock:", "n").expect("a plain name");
        assert_eq!((key.key(), key.name()), ("lock:n", "n"));
    }

    fn name() -> impl Strategy<Value = String> {
        // With many braces and parts of the suffixes, which random text would rarely contain.
        proptest::collection::vec(
            prop_oneof![
                Just("{".to_owned()),
                Just("}".to_owned()),
                Just(":lh".to_owned()),
                Just("t".to_owned()),
                Just(":queue".to_owned()),
                Just(":fence".to_owned()),
                Just(":once".to_owned()),
                "[a-c]",
            ],
            1..8,
        )
        .prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn companions_share_the_slot(name in name()) {
            if let Ok(key) = LockKey::new("", &name) {
                for which in ALL {
                    let companion = key.companion(which);
                    prop_assert_eq!(hashed(&companion), hashed(key.key()));
                }
            }
        }

        #[test]
        fn no_two_locks_share_a_key(a in name(), b in name()) {
            if let (Ok(a), Ok(b)) = (LockKey::new("", &a), LockKey::new("", &b)) {
                for one in ALL {
                    prop_assert_ne!(a.companion(one), b.key());
                    for other in ALL {
                        let same = a == b && one == other;
                        prop_assert_eq!(a.companion(one) == b.companion(other), same);
                    }
                }
            }
        }
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        let slot = |name| LockKey::new("", name).expect("a name").slot();
        // The check value of CRC-16/XMODEM is 0x31c3 for "123456789".
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("foo"), 12_182);
        assert_eq!(slot("{foo}:1"), slot("foo"));
    }

    #[test]
    fn a_set_is_the_same_in_whatever_order_and_knows_its_slots() {
        let set = |names: &[&str]| {
            let keys = names
                .iter()
                .map(|name| LockKey::new("p:", name).expect("a name"));
            Target::all(keys.collect())
        };
        let (one, other) = (set(&["b", "a"]), set(&["a", "b"]));
        let (one, other) = (one.expect("a set"), other.expect("a set"));
        assert_eq!(one.id(), other.id());
        assert_eq!(one.name(), "a + b");
        assert!(set(&[]).is_err());
        assert!(set(&["a", "b", "a"]).is_err());
        let many = |count: usize| (0..count).map(|number| number.to_string());
        let many = |count| {
            let names: Vec<_> = many(count).collect();
            set(&names.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert!(many(MOST_NAMES + 1).is_err());
        let most = many(MOST_NAMES).expect("a set");
        let shown = most.name();
        assert!(
            shown.starts_with("0 + 1 + 10 + 100 + ") && shown.len() < 230,
            "{shown}"
        );
        let listed = shown.split(" + ").count();
        assert!(
            shown.ends_with(&format!(" and {} more", MOST_NAMES - listed)),
            "{shown}"
        );
        // Also if a name looks like the id of a set.
        let [odd, pair] = [set(&["a3:p:b"]), set(&["a", "b"])].map(|set| set.expect("a set"));
        assert_ne!(odd.id(), pair.id());
        // A set of one name has the same threads as that name alone.
        assert_eq!(**set(&["a"]).expect("a set").id(), *"p:a");

        let names = ["{x}1", "{y}1", "{x}2", "{z}1", "{y}2"];
        let groups = set(&names).expect("a set").by_slot();
        let slots: Vec<_> = groups.iter().map(|group| group.first().slot()).collect();
        assert!(slots.is_sorted() && slots.len() == 3, "{slots:?}");
        for group in &groups {
            let slot = group.first().slot();
            assert!(group.keys().iter().all(|key| key.slot() == slot));
        }
        assert_eq!(
            groups.iter().map(|group| group.keys().len()).sum::<usize>(),
            5
        );
    }
}
