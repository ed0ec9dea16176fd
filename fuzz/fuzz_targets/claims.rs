//! A claim has exactly one text. No text causes a panic.

#![no_main]

use leasehold::{Claim, Error};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match text.parse::<Claim>() {
        Ok(claim) => {
            assert_eq!(claim.to_string(), text);
            assert!(text.is_ascii() && !text.contains([' ', '"', '\'', '\\']), "{text:?}");
            assert!((1..=1024).contains(&claim.name().len()));
            assert!((1..1 << 53).contains(&claim.fence()));
            assert!(claim.owner().starts_with("lh1:"));
            assert_eq!(text.parse::<Claim>().expect("once more"), claim);
        }
        Err(Error::Config { .. } | Error::InvalidName { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
});
