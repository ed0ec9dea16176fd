//! Owners: the unique strings under which this crate's processes hold locks in Redis.
//!
//! An owner is `lh1:<uuid>:<label>`, or with a note `lh1:<uuid>:<label>:<note>`. Each attempt to acquire a lock has one, no
//! two attempts share one, and no owner is ever reused. The value of a held mutex is its owner. A waiter appends [`MARK`] to
//! that value.
//!
//! The text behind the UUID is the *tail*. The note is percent-encoded and has no colon, so it begins behind the last
//! colon of the tail. A tail ends in a colon if there is no note, and the label has a colon itself.

use std::borrow::Cow;

use once_cell::race::OnceBox;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use crate::sys::{Arc, Rng};

/// The beginning of every owner that this crate writes. The number is the version of the wire format.
pub(crate) const OWNER_PREFIX: &str = "lh1:";

/// The character that a waiter appends to the value of a lock: "look into the queue before you release".
///
/// No label may contain it, so no owner ends in it.
pub(crate) const MARK: char = '!';

/// The number of bytes that the scripts read of a value. An owner is shorter. `value.lua` has the same number.
const MOST_OF_VALUE: usize = 512;

/// The longest label, in bytes.
pub(crate) const MAX_LABEL: usize = 128;

/// Returns whether a label may contain this character.
pub(crate) fn is_label(c: char) -> bool {
    c.is_ascii_graphic() && c != MARK
}

/// The longest note, in bytes of its percent-encoding.
const MAX_NOTE: usize = 200;

/// The longest tail: a label, a colon and a note.
pub(crate) const MAX_TAIL: usize = MAX_LABEL + 1 + MAX_NOTE;

/// The characters that a note percent-encodes (RFC 3986), besides those that are not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b':').add(MARK as u8);

/// Returns what is wrong with a note.
pub(crate) fn wrong_note(note: &str) -> Option<&'static str> {
    let encoded = utf8_percent_encode(note, ENCODED).map(str::len);
    let is_long = encoded.sum::<usize>() > MAX_NOTE;
    is_long.then_some("longer than 200 bytes in percent-encoding")
}

/// Returns the tail of the owners with this label and this note, which is empty if there is none.
pub(crate) fn tail(label: &str, note: &str) -> String {
    if note.is_empty() && !label.contains(':') {
        return label.to_owned();
    }
    format!("{label}:{}", utf8_percent_encode(note, ENCODED))
}

/// Returns the label of an owner, or `None` if this crate has not made the owner.
pub(crate) fn label(owner: &str) -> Option<&str> {
    let tail = tail_of(owner)?;
    Some(tail.rsplit_once(':').map_or(tail, |(label, _)| label))
}

/// Returns the note of an owner, if it has one.
pub(crate) fn note(owner: &str) -> Option<String> {
    let (_, note) = tail_of(owner)?.rsplit_once(':')?;
    let note = percent_decode_str(note).decode_utf8().ok()?;
    (!note.is_empty()).then(|| note.into_owned())
}

/// Returns the tail of an owner, or `None` if this crate has not made the owner.
pub(crate) fn tail_of(owner: &str) -> Option<&str> {
    let (unique, tail) = owner.strip_prefix(OWNER_PREFIX)?.split_once(':')?;
    let is_unique = Uuid::try_parse(unique).is_ok_and(|uuid| {
        uuid.as_hyphenated()
            .encode_lower(&mut Uuid::encode_buffer())
            == unique
    });
    let fits = tail.len() <= MAX_TAIL && tail.chars().all(is_label);
    (is_unique && fits).then_some(tail)
}

/// Returns whether this crate wrote the value that names this holder, as `is_ours` in `value.lua`.
pub(crate) fn is_ours(holder: &str) -> bool {
    holder.starts_with(OWNER_PREFIX) && holder.len() < MOST_OF_VALUE
}

/// Returns a holder as logs, events and errors show it. The value of another program may be a secret, so they show its
/// length only.
pub(crate) fn shown(holder: &str) -> Cow<'_, str> {
    if is_ours(holder) {
        return holder.into();
    }
    match holder.chars().count() {
        length @ ..MOST_OF_VALUE => {
            format!("a value of another client ({length} characters)").into()
        }
        _ => format!("a value of another client (at least {MOST_OF_VALUE} characters)").into(),
    }
}

/// Returns a new owner, for one attempt to acquire a lock and for the lease that Redis grants to it.
pub(crate) fn generate(rng: &dyn Rng, tail: &str) -> Arc<str> {
    text_of(rng.uuid(), tail).into()
}

fn text_of(unique: Uuid, tail: &str) -> String {
    let mut buffer = Uuid::encode_buffer();
    let unique = unique.hyphenated().encode_lower(&mut buffer);
    [OWNER_PREFIX, unique, ":", tail].concat()
}

/// An owner in a small form: its unique part alone. The whole text is built when a caller reads it.
///
/// A manager keeps one for each lease. Most of them have the tail of the manager.
#[derive(Debug)]
pub(crate) struct Owner {
    unique: Uuid,
    /// The whole text, after it was read. It is set from the start if the owner has another tail.
    text: OnceBox<String>,
}

impl Owner {
    /// Keeps the small form of an owner. `tail` is the manager's tail.
    pub(crate) fn new(owner: &str, tail: &str) -> Self {
        let parts = owner.strip_prefix(OWNER_PREFIX).and_then(|rest| {
            // Of the forms that are read, only one has this length.
            let (unique, own_tail) = rest.split_at_checked(Hyphenated::LENGTH)?;
            let own_tail = own_tail.strip_prefix(':')?;
            let is_canonical = !unique.bytes().any(|byte| byte.is_ascii_uppercase());
            let unique = is_canonical.then(|| Uuid::try_parse(unique).ok())??;
            Some((unique, own_tail))
        });
        let (unique, own_tail) = parts.unzip();
        let kept = Self {
            unique: unique.unwrap_or_default(),
            text: OnceBox::new(),
        };
        if own_tail != Some(tail) {
            // Another program or manager has made the owner, or a handle with its own note.
            kept.text.set(Box::new(owner.into())).ok();
        }
        kept
    }

    /// Returns the owner as it stands in Redis. `tail` is the tail that was given to [`Self::new`].
    pub(crate) fn text(&self, tail: &str) -> String {
        match self.text.get() {
            Some(text) => text.clone(),
            None => text_of(self.unique, tail),
        }
    }

    /// Returns the same text as [`Self::text`], and keeps it.
    pub(crate) fn shown(&self, tail: &str) -> &str {
        self.text
            .get_or_init(|| Box::new(text_of(self.unique, tail)))
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        let is_odd = self.unique.is_nil();
        self.unique == other.unique && (!is_odd || self.text.get() == other.text.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Machine;

    #[test]
    fn an_owner_is_kept_whole() {
        let made = generate(&Machine::default(), "host:1");
        for (text, label) in [
            (&*made, "host:1"),
            (&made.to_uppercase(), "HOST:1"),
            (&made, "other"),
            ("lh1:01234567-89AB-4DEF-8123-456789ABCDEF:l", "l"),
            ("lh1:0123456789ab4def8123456789abcdef:l", "l"),
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
    fn owners_differ_and_carry_the_label_and_the_note() {
        let rng = Machine::default();
        for (own_label, own_note, own_tail) in [
            ("worker", "", "worker"),
            ("host:1", "", "host:1:"),
            ("host:1", "job 7", "host:1:job%207"),
            ("worker", "a:b!%é~", "worker:a%3Ab%21%25%C3%A9~"),
            ("", "x", ":x"),
            (":", "", "::"),
        ] {
            assert_eq!(tail(own_label, own_note), own_tail);
            let (a, b) = (generate(&rng, own_tail), generate(&rng, own_tail));
            assert_ne!(a, b);
            assert!(a.starts_with("lh1:") && a.ends_with(&format!(":{own_tail}")));
            assert_eq!(label(&a), Some(own_label));
            assert_eq!(note(&a).unwrap_or_default(), own_note);
            assert!(is_ours(&a));
            // The small form keeps the owner whole, and shows its process, beside any tail of the manager.
            for of_manager in [own_tail, "other"] {
                let kept = Owner::new(&a, of_manager);
                assert_eq!(kept.text(of_manager), *a);
                assert!(kept == Owner::new(&a, "l") && kept != Owner::new(&b, own_tail));
            }
        }
        let longest = "x".repeat(MAX_NOTE);
        assert_eq!(wrong_note(&longest), None, "it fits");
        let long = wrong_note(&" ".repeat(MAX_NOTE / 3 + 1));
        assert!(long.is_some(), "it is longer once encoded");
        let owner = generate(&rng, &tail(&"l".repeat(MAX_LABEL), &longest));
        assert_eq!(note(&owner), Some(longest));
        assert!(is_ours(&owner));
        assert_eq!(note("lh1:no owner:l:n"), None);
    }
}
