//! The data that a lock protects in the tests of stale writers.

use super::{Raw, ms};

/// Keeps the largest fence so far, and refuses a write with a smaller one.
const WRITE: &str = r"
if tonumber(ARGV[2]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[2], 'text', ARGV[1])
return 1
";

/// A small store of one text, which can check the fences of its writers.
pub struct File {
    redis: Raw,
    key: String,
}

impl File {
    pub fn new(redis: &Raw, key: &str) -> Self {
        Self {
            redis: redis.clone(),
            key: key.into(),
        }
    }

    /// Replaces the text. Returns `false` if the fence is too old. A write without a fence always succeeds.
    pub fn write(&self, text: &str, fence: Option<u64>) -> bool {
        let Some(fence) = fence else {
            let () = self.redis.ask(&["HSET", &self.key, "text", text]);
            return true;
        };
        self.redis
            .ask(&["EVAL", WRITE, "1", &self.key, text, &fence.to_string()])
    }

    pub fn read(&self) -> String {
        let text: Option<String> = self.redis.ask(&["HGET", &self.key, "text"]);
        text.unwrap_or_default()
    }

    /// Lets the file expire, long after the test.
    pub fn leave(&self) {
        let ttl = ms(60_000).as_millis().to_string();
        let () = self.redis.ask(&["PEXPIRE", &self.key, &ttl]);
    }
}
