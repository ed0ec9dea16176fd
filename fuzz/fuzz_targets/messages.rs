//! A pub/sub message wakes a thread, makes it ask Redis, or is rejected. It never grants a lock.

#![no_main]

use std::sync::LazyLock;

use leasehold::fuzzing::Listening;
use libfuzzer_sys::fuzz_target;

static LISTENING: LazyLock<Listening> = LazyLock::new(Listening::new);

fuzz_target!(|bytes: &[u8]| {
    let count = LISTENING.hear(bytes);
    assert!(count <= bytes.len() / 20, "each message has so many bytes at the least");
});
