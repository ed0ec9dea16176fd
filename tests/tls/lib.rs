//! A package of tests: see `main.rs`.
