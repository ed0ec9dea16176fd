//! What the locks protect: one value, in Redis, so that other processes reach it as well.

use redis::{Connection, Script, TypedCommands};

use crate::stage::Outcome;

/// All a store has to do about fences: remember the newest, and refuse what is older. Here it takes a script, in
/// SQL `UPDATE … WHERE fence <= ?`.
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

    /// Writes whatever comes, as stores without fences do.
    pub fn write_blindly(&mut self, value: &str) -> Outcome {
        self.redis.hset(&self.key, "value", value)?;
        Ok(())
    }

    /// Whether it was written, and not refused as older than what is there.
    pub fn write(&mut self, value: &str, fence: u64) -> Outcome<bool> {
        let script = Script::new(WRITE);
        let mut call = script.key(&self.key);
        Ok(call.arg(value).arg(fence).invoke(&mut self.redis)?)
    }

    pub fn read(&mut self) -> Outcome<Option<String>> {
        Ok(self.redis.hget(&self.key, "value")?)
    }
}
