//! Whatever is said to who listens: it wakes somebody, makes somebody ask, or is refused; it is never believed.

#![no_main]

use std::sync::LazyLock;

use leasehold::fuzzing::Listening;
use libfuzzer_sys::fuzz_target;

static LISTENING: LazyLock<Listening> = LazyLock::new(Listening::new);

fuzz_target!(|bytes: &[u8]| {
    let count = LISTENING.hear(bytes);
    assert!(count <= bytes.len() / 20, "each message has so many bytes at the least");
});
