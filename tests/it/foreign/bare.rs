//! A client that sends `SET … NX` and nothing else.

use std::time::Duration;

use super::{Foreign, each, each_without_expiry};
use crate::support::{Raw, name};

pub(super) const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
pub(super) const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0";

struct Bare {
    redis: Raw,
    name: String,
    token: String,
}

impl Foreign for Bare {
    fn new(redis: &Raw, lock: &str) -> Self {
        Self {
            redis: redis.clone(),
            name: lock.into(),
            token: name("foreign"),
        }
    }

    fn try_acquire(&mut self, ttl: Option<Duration>) -> bool {
        let ttl = ttl.map(|ttl| ttl.as_millis().to_string());
        let mut command = vec!["SET", &self.name, &self.token, "NX"];
        if let Some(ttl) = &ttl {
            command.extend(["PX", ttl]);
        }
        let answer: Option<String> = self.redis.ask(&command);
        answer.is_some()
    }

    fn extend(&mut self, ttl: Duration) -> bool {
        let ttl = ttl.as_millis().to_string();
        self.redis
            .ask(&["EVAL", EXTEND, "1", &self.name, &self.token, &ttl])
    }

    fn release(&mut self) -> bool {
        self.redis
            .ask(&["EVAL", RELEASE, "1", &self.name, &self.token])
    }
}

macro_rules! tests {
    ($servers:ident: $($behaviour:ident)+) => {
        $(
            #[test]
            fn $behaviour() {
                super::$servers(super::$behaviour::<Bare>);
            }
        )+
    };
}

each!(tests);
each_without_expiry!(tests);
