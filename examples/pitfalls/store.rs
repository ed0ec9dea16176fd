//! The data that the locks protect: one value in Redis, which other processes can reach too.

use redis::{Connection, Script, TypedCommands};

use crate::stage::Outcome;

/// A store must remember the newest fence, and refuse older ones. That takes a script in Redis, or `UPDATE … WHERE
/// fence <= ?` in SQL.
const WRITE: &str = "
    local newest = tonumber(redis.call('HGET', KEYS[1], 'fence') or 0)
    if tonumber(ARGV[2]) < newest then return 0 end
    redis.call('HSET', KEYS[1], 'value', ARGV[1], 'fence', ARGV[2])
    return 1";

pub struct Store {
    redis: Connection,
    key: String,
}

impl Store {
    pub fn new(redis: Connection, key: &str) -> Self {
        Self {
            redis,
            key: key.into(),
        }
    }

    /// Writes without a check, like a store without fences.
    pub fn write_blindly(&mut self, value: &str) -> Outcome {
        self.redis.hset(&self.key, "value", value)?;
        Ok(())
    }

    /// Returns whether the value was written. A fence that is older than the newest is refused.
    pub fn write(&mut self, value: &str, fence: u64) -> Outcome<bool> {
        let script = Script::new(WRITE);
        let mut call = script.key(&self.key);
        Ok(call.arg(value).arg(fence).invoke(&mut self.redis)?)
    }

    pub fn read(&mut self) -> Outcome<Option<String>> {
        Ok(self.redis.hget(&self.key, "value")?)
    }
}
