//! The integration tests, one binary. They start the servers that they need. `REDIS_URL` may name a server for the
//! tests that change no setting of their server.

#![allow(
    clippy::incompatible_msrv,
    reason = "only the library is compiled with the oldest Rust"
)]

mod cluster;
mod connect;
mod connections;
mod error_texts;
mod examples;
mod fencing;
mod fencing_page;
mod foreign;
mod fork;
mod hostile;
mod kinds;
mod logging;
mod operating_page;
mod operators;
mod outages;
mod pages;
mod process_ends;
mod rate_limiter;
mod real;
mod record;
mod replicas;
mod scripts;
mod secrets;
mod sentinel;
mod server_faults;
mod thread_ends;
mod tidy;

use leasehold_test_support as support;

/// The folder of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The child processes of the tests.
#[test]
fn child() {
    support::child();
}
