#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| leasehold_fuzz::claims(text));
