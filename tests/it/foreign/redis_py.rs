//! redis-py's `Lock`, run by `tests/redis_py/client.py`. `LEASEHOLD_REDIS_PY` names a Python that has redis-py.
//! `.ci/run` makes such a Python and runs these tests with it.

use std::env;
use std::process::Command;
use std::time::Duration;

use super::program::Program;
use super::{Foreign, each, each_without_expiry};
use crate::support::Raw;

/// Names a Python that has redis-py.
const PYTHON: &str = "LEASEHOLD_REDIS_PY";
const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redis_py/client.py");

struct RedisPy(Program);

impl Foreign for RedisPy {
    fn new(redis: &Raw, name: &str) -> Self {
        let Some(python) = env::var_os(PYTHON).filter(|python| !python.is_empty()) else {
            panic!("{PYTHON} does not say which Python has redis-py; see .ci/run");
        };
        let mut client = Command::new(python);
        Self(Program::start(client.args([
            "-u",
            CLIENT,
            redis.url(),
            name,
        ])))
    }

    fn try_acquire(&mut self, ttl: Option<Duration>) -> bool {
        self.0.ask_with("acquire", ttl)
    }

    fn extend(&mut self, ttl: Duration) -> bool {
        self.0.ask_with("extend", Some(ttl))
    }

    fn release(&mut self) -> bool {
        self.0.ask("release")
    }

    /// Waits by redis-py's own blocking call.
    fn acquire(&mut self, ttl: Duration) {
        assert!(self.0.ask_with("wait", Some(ttl)));
    }
}

macro_rules! tests {
    ($servers:ident: $($behaviour:ident)+) => {
        $(
            #[test]
            #[ignore = "it needs a Python with redis-py: .ci/run makes one"]
            fn $behaviour() {
                super::$servers(super::$behaviour::<RedisPy>);
            }
        )+
    };
}

each!(tests);
each_without_expiry!(tests);
