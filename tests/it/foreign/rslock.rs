//! rslock, run by the program of the package `tests/rslock`. The values that it writes are random bytes, not text.

use std::process::Command;
use std::time::Duration;

use super::program::{Program, urls};
use super::{Foreign, each, each_on_a_quorum};
use crate::support::{Raw, built};

struct Rslock(Program);

impl Foreign for Rslock {
    fn new(redis: &Raw, name: &str) -> Self {
        let program = built("leasehold-rslock");
        assert!(
            program.exists(),
            "there is no {}: run `cargo build --package leasehold-rslock`",
            program.display()
        );
        Self(Program::start(
            Command::new(program).args([&*urls(redis), name]),
        ))
    }

    fn try_acquire(&mut self, ttl: Option<Duration>) -> bool {
        let ttl = ttl.expect("its locks all have one");
        self.0.ask_with("acquire", Some(ttl))
    }

    fn extend(&mut self, ttl: Duration) -> bool {
        self.0.ask_with("extend", Some(ttl))
    }

    fn release(&mut self) -> bool {
        self.0.ask("release")
    }
}

macro_rules! tests {
    ($servers:ident: $($behaviour:ident)+) => {
        $(
            #[test]
            #[ignore = "it needs the program of tests/rslock: .ci/run builds it"]
            fn $behaviour() {
                use crate::foreign;
                foreign::$servers(foreign::$behaviour::<foreign::rslock::Rslock>);
            }
        )+
    };
}

each!(tests);
each_on_a_quorum!(tests);
