//! rslock, run by the program of the package `tests/rslock`. The values that it writes are random bytes, not text.

use std::process::Command;

use super::program::{Client, urls};
use super::{each, each_on_a_quorum};
use crate::support::{Raw, built};

pub(super) struct Rslock;

impl Client for Rslock {
    fn command(redis: &Raw, name: &str) -> Command {
        let program = built("leasehold-rslock");
        assert!(
            program.exists(),
            "there is no {}: run `cargo build --package leasehold-rslock`",
            program.display()
        );
        let mut client = Command::new(program);
        client.args([&*urls(redis), name]);
        client
    }
}

macro_rules! tests {
    ($servers:ident: $($behaviour:ident)+) => {
        $(
            #[test]
            #[ignore = "it needs the program of tests/rslock: .ci/long builds it"]
            fn $behaviour() {
                use crate::foreign;
                foreign::$servers(foreign::$behaviour::<foreign::Program<foreign::rslock::Rslock>>);
            }
        )+
    };
}

each!(tests);
each_on_a_quorum!(tests);
