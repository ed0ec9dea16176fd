//! redis-py's `Lock`, run by `tests/redis_py/client.py`. `LEASEHOLD_REDIS_PY` names a Python that has redis-py.
//! `.ci/run` makes such a Python and runs these tests with it.

use std::env;
use std::process::Command;

use super::program::{Client, Program};
use super::{each, each_without_expiry};
use crate::support::Raw;

/// Names a Python that has redis-py.
const PYTHON: &str = "LEASEHOLD_REDIS_PY";
const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redis_py/client.py");

struct RedisPy;

impl Client for RedisPy {
    const BLOCKS: bool = true;

    fn command(redis: &Raw, name: &str) -> Command {
        let Some(python) = env::var_os(PYTHON).filter(|python| !python.is_empty()) else {
            panic!("{PYTHON} does not say which Python has redis-py; see .ci/run");
        };
        let mut client = Command::new(python);
        client.args(["-u", CLIENT, redis.url(), name]);
        client
    }
}

macro_rules! tests {
    ($servers:ident: $($behaviour:ident)+) => {
        $(
            #[test]
            #[ignore = "it needs a Python with redis-py: .ci/run makes one"]
            fn $behaviour() {
                super::$servers(super::$behaviour::<Program<RedisPy>>);
            }
        )+
    };
}

each!(tests);
each_without_expiry!(tests);
