//! An accepted name never collides with another lock or its own companions, and stays in one hash slot.

#![no_main]

use leasehold::Error;
use leasehold::fuzzing::keys;
use libfuzzer_sys::fuzz_target;

/// Returns the part of a key that Redis Cluster hashes, as its specification says.
fn hashed(key: &str) -> &[u8] {
    let bytes = key.as_bytes();
    if let Some(open) = bytes.iter().position(|byte| *byte == b'{')
        && let Some(length) = bytes[open + 1..].iter().position(|byte| *byte == b'}')
        && length > 0
    {
        return &bytes[open + 1..open + 1 + length];
    }
    bytes
}

// The input is a prefix and two names.
fuzz_target!(|input: (&str, &str, &str)| {
    let (prefix, one, other) = input;
    let found = [one, other].map(|name| match keys(prefix, name) {
        Ok(found) => Some(found),
        Err(Error::InvalidName { name: shown, .. }) => {
            assert!(name.starts_with(shown.trim_end_matches('…')) || *name == *shown);
            None
        }
        Err(error) => panic!("{error:?}"),
    });
    for (name, (key, companions, slot)) in [one, other].iter().zip(&found).filter_map(|(name, found)| {
        Some((name, found.as_ref()?))
    }) {
        assert!((1..=1024).contains(&name.len()));
        assert_eq!(*key, format!("{prefix}{name}"));
        assert!(*slot < 16_384);
        for companion in companions {
            assert_eq!(hashed(companion), hashed(key), "{companion:?} and {key:?}");
            // A companion's key is no valid name. Otherwise a program could lock it.
            if companion.len() <= 1024 {
                assert!(keys("", companion).is_err(), "{companion:?}");
            }
        }
    }
    if let [Some((a, of_a, slot_a)), Some((b, of_b, slot_b))] = &found {
        assert_eq!(a == b, one == other);
        for (index, companion) in of_a.iter().enumerate() {
            assert_ne!(companion, b);
            for (at, theirs) in of_b.iter().enumerate() {
                assert_eq!(companion == theirs, a == b && index == at);
            }
        }
        if hashed(a) == hashed(b) {
            assert_eq!(slot_a, slot_b);
        }
    }
});
