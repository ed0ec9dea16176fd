//! `core/` of the library and the modules below it. The unit tests of `core/` compile here in a part of the time, and
//! cargo-mutants compiles them once for each mutant.

#![allow(
    dead_code,
    unused_imports,
    reason = "the library uses all of it, this a part"
)]

#[path = "../../src/config/mod.rs"]
mod config;
#[path = "../../src/core/mod.rs"]
mod core;
#[path = "../../src/error.rs"]
mod error;
#[path = "../../src/event.rs"]
mod event;
#[path = "../../src/message/mod.rs"]
mod message;
#[path = "../../src/name.rs"]
mod name;
#[path = "../../src/owner.rs"]
mod owner;
#[path = "../../src/panics.rs"]
mod panics;
#[path = "../../src/stats.rs"]
mod stats;
#[path = "../../src/sys/mod.rs"]
mod sys;
