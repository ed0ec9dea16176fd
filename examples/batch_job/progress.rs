//! The progress of the job, which all its runs share. It refuses the fence of an older run.

use std::error::Error;

use redis::{Connection, Script, TypedCommands};

const COMMIT: &str = "
    local newest = tonumber(redis.call('HGET', KEYS[1], 'fence') or 0)
    if tonumber(ARGV[2]) < newest then return 0 end
    redis.call('HSET', KEYS[1], 'done', ARGV[1], 'fence', ARGV[2])
    return 1";

pub struct Progress {
    redis: Connection,
    key: String,
}

impl Progress {
    pub fn new(url: &str, key: &str) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            redis: redis::Client::open(url)?.get_connection()?,
            key: key.into(),
        })
    }

    /// Returns the number of finished steps.
    pub fn done(&mut self) -> Result<u32, Box<dyn Error>> {
        let done = self.redis.hget(&self.key, "done")?;
        Ok(done.map_or(Ok(0), |done| done.parse())?)
    }

    /// Returns whether the progress was recorded.
    pub fn commit(&mut self, done: u32, fence: u64) -> Result<bool, Box<dyn Error>> {
        let script = Script::new(COMMIT);
        let mut call = script.key(&self.key);
        Ok(call.arg(done).arg(fence).invoke(&mut self.redis)?)
    }
}

impl Drop for Progress {
    /// This is only an example. The progress of a real job stays.
    fn drop(&mut self) {
        self.redis.del(&self.key).ok();
    }
}
