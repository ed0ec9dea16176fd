//! No URL causes a panic. No output shows a URL's password.

#![no_main]

use leasehold::fuzzing::server;
use leasehold::{Error, LockManager};
use libfuzzer_sys::fuzz_target;
use percent_encoding::percent_decode_str;

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

// The input is a URL, and the place of the password in it.
fuzz_target!(|input: (&str, &str, &str)| {
    let (before, between, after) = input;
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
});
