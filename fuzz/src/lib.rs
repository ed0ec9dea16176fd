//! The bodies of the fuzz targets. Each function checks one input of the target of its name.
//!
//! testkit/tests/fuzz.rs calls each with the seeds of its target.

use std::sync::LazyLock;

use leasehold::seam::fuzz::{answers, check_replies, hear, keys, server};
use leasehold::{Claim, Error, LockGuard, LockManager};
use leasehold_testing::Redis;
use percent_encoding::percent_decode_str;
use redis::Value;

/// Checks that an accepted name never collides with another lock or its own companions, and stays in one hash slot.
///
/// The input is a prefix and two names, with `|` between them.
pub fn names(input: &str) {
    let [prefix, one, other] = three_parts(input);
    let found = [one, other].map(|name| match keys(prefix, name) {
        Ok(found) => Some(found),
        Err(Error::InvalidName { name: shown, .. }) => {
            assert!(name.starts_with(shown.trim_end_matches('…')) || *name == *shown);
            None
        }
        Err(error) => panic!("{error:?}"),
    });
    for (name, found) in [one, other].iter().zip(&found) {
        let Some((key, companions, slot)) = found else {
            continue;
        };
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
}

/// Returns the part of a key that Redis Cluster hashes, as its specification says.
fn hashed(key: &str) -> &str {
    let tagged = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let tag = tagged.map(|(tag, _)| tag).filter(|tag| !tag.is_empty());
    tag.unwrap_or(key)
}

/// Checks that no URL causes a panic, and that no output shows a URL's password.
///
/// The input is a URL, and the place of the password in it: the texts before, within and after, with `|` between them.
pub fn urls(input: &str) {
    let [before, between, after] = three_parts(input);
    // The parts together must not have the letters either, because they may be a host.
    if has_letters(&format!("{before}{after}")) || has_letters(between) {
        return;
    }
    // After a further question mark the password would be part of another field, such as the user's name.
    let path = before.split(['?', '#']).next().unwrap_or_default();
    for url in [
        format!("{before}{after}"),
        format!("redis://{between}:{SECRET}@{after}"),
        format!("valkey://:{between}{SECRET}@{after}"),
        format!("unix://{path}?pass={SECRET}&{after}"),
        format!("redis://:{SECRET}{between}"),
    ] {
        // A password ends where the host begins. The text after the last at-sign before a slash is not part of it.
        check(&url);
    }
    for url in [
        format!("redis://h/?password={SECRET}&{after}"),
        format!("redis+quorum://{between}:{SECRET}@{after}"),
        format!("redis+cluster://:{SECRET}{between}@{after}"),
        format!("redis+sentinel://:{SECRET}@{after}"),
        format!("redis+sentinel://{path}/m?sentinel_pass={SECRET}&{after}"),
    ] {
        check_settings(&url);
    }
}

/// Checks that an error about a URL with settings shows no password, and neither does the builder if no other setting can
/// have it.
fn check_settings(url: &str) {
    match LockManager::from_url(url) {
        Ok(builder) => {
            let (front, query) = url.split_once('?').unwrap_or((url, ""));
            if has_secret(front) || query.starts_with("password=") {
                assert!(!has_secret(&format!("{builder:?}")), "{url:?}");
            }
        }
        Err(error) => {
            assert!(matches!(error, Error::Config { .. }), "{error:?}");
            let shown = format!("{error} {error:?}");
            assert!(!has_secret(&shown), "{url:?}: {shown}");
        }
    }
}

/// The password. No other part of a URL, a message or a type contains it.
const SECRET: &str = "S3CRET";

fn check(url: &str) {
    match server(url) {
        Ok(shown) => assert!(!has_secret(&shown), "{url:?}: {shown}"),
        Err(error) => {
            assert!(matches!(error, Error::Config { .. }), "{error:?}");
            let shown = format!("{error} {error:?}");
            assert!(!has_secret(&shown), "{url:?}: {shown}");
        }
    }
    let builder = LockManager::single(url);
    assert!(!has_secret(&format!("{builder:?}")), "{url:?}");
}

fn has_secret(shown: &str) -> bool {
    shown.to_uppercase().contains(SECRET)
}

/// Returns whether a text has the letters of the password, after the characters that a URL parser drops are removed
/// and the percent encoding is decoded.
fn has_letters(text: &str) -> bool {
    let text = percent_decode_str(text).decode_utf8_lossy();
    let letters: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    has_secret(&letters)
}

/// Checks that a claim has exactly one text, and that no text causes a panic.
pub fn claims(text: &str) {
    match text.parse::<Claim>() {
        Ok(claim) => {
            assert_eq!(claim.to_string(), text);
            assert!(
                text.is_ascii() && !text.contains([' ', '"', '\'', '\\']),
                "{text:?}"
            );
            assert!((1..=1024).contains(&claim.name().len()));
            // The claim of a guard without a fence has the fence 0.
            assert!((0..1 << 53).contains(&claim.fence()));
            assert!(claim.owner().starts_with("lh1:"));
            assert_eq!(text.parse::<Claim>().expect("once more"), claim);
        }
        Err(Error::Config { .. } | Error::InvalidName { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
}

/// Checks that the bytes of a server are read as the reply to each call, or are rejected.
pub fn replies(bytes: &[u8]) {
    for value in answers(bytes) {
        // An error reply is recognized before it is read as the reply to a call.
        if !has_error(&value) {
            check_replies(&value);
        }
    }
}

fn has_error(value: &Value) -> bool {
    match value {
        Value::ServerError(_) => true,
        Value::Array(parts) => parts.iter().any(has_error),
        _ => false,
    }
}

/// A process that holds a lock, and listens to messages.
static HOLDER: LazyLock<(LockManager, LockGuard)> = LazyLock::new(|| {
    let locks = Redis::new().manager();
    let guard = locks.lock("n").expect("it is free");
    (locks, guard)
});

/// Checks that a pub/sub message wakes a thread, makes it ask Redis, or is rejected. It grants no lock, and ends none.
pub fn messages(bytes: &[u8]) {
    let (locks, guard) = &*HOLDER;
    let count = hear(locks, guard.owner(), bytes);
    guard.check().expect("no message ends the lease");
    assert!(
        count <= bytes.len() / 20,
        "each message has at least 20 bytes"
    );
}

/// Returns the parts of an input that `|` separates. The last part may contain further ones.
fn three_parts(input: &str) -> [&str; 3] {
    let mut parts = input.splitn(3, '|');
    [(); 3].map(|()| parts.next().unwrap_or_default())
}
