//! redis-py's `Lock`, run by `tests/redis_py/client.py`.

use std::process::Command;

use super::program::{Client, Program, in_python};
use super::{each, each_without_expiry};
use crate::support::Raw;

pub(super) struct RedisPy;

impl Client for RedisPy {
    const BLOCKS: bool = true;

    fn command(redis: &Raw, name: &str) -> Command {
        let mut client = in_python("redis_py");
        client.args([redis.url(), name]);
        client
    }
}

macro_rules! tests {
    ($servers:ident: $($behaviour:ident)+) => {
        $(
            #[test]
            #[ignore = "it needs a Python with redis-py: .ci/long makes one"]
            fn $behaviour() {
                super::$servers(super::$behaviour::<Program<RedisPy>>);
            }
        )+
    };
}

each!(tests);
each_without_expiry!(tests);
