//! No URL makes it panic, and none is shown with its password.

#![no_main]

use leasehold::fuzzing::server;
use leasehold::{Error, LockManager};
use libfuzzer_sys::fuzz_target;
use percent_encoding::percent_decode_str;

/// What is looked for: no other part of a URL, of a message or of a type has it.
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

/// Whether it stands there once what a URL is read without is gone, and what is encoded in it is not.
fn has_letters(text: &str) -> bool {
    let text = percent_decode_str(text).decode_utf8_lossy();
    let letters: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    has_secret(&letters)
}

// A URL, and where in it a password stands.
fuzz_target!(|input: (&str, &str, &str)| {
    let (before, between, after) = input;
    // Nor together, where it would be a host.
    if has_letters(&format!("{before}{after}")) || has_letters(between) {
        return;
    }
    // Behind a question mark of its own it would be part of another word, such as the user's name.
    let path = before.split(['?', '#']).next().unwrap_or_default();
    for url in [
        format!("{before}{after}"),
        format!("redis://{between}:{SECRET}@{after}"),
        format!("valkey://:{between}{SECRET}@{after}"),
        format!("unix://{path}?pass={SECRET}&{after}"),
        format!("redis://:{SECRET}{between}"),
    ] {
        // A password ends where a host begins: what is behind the last at-sign before a slash is no part of it.
        check(&url);
    }
});
