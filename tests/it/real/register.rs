//! Numbers that holders increase, in a server without faults. Each holder reads a number, works, and writes one more. Each name
//! has two numbers: one takes each write, and the other takes no read or write with a smaller fence than before.

use std::collections::HashMap;

use redis::{Connection, FromRedisValue};

const READ: &str = r"
local fenced = ''
if tonumber(ARGV[1]) >= tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) then
  redis.call('HSET', KEYS[1], 'fence', ARGV[1])
  fenced = redis.call('HGET', KEYS[1], 'fenced') or '0'
end
return {redis.call('HGET', KEYS[1], 'unfenced') or '0', fenced}
";
const WRITE: &str = r"
if (redis.call('HGET', KEYS[1], 'unfenced') or '0') ~= ARGV[2] then
  redis.call('HINCRBY', KEYS[1], 'corrupted', 1)
end
redis.call('HSET', KEYS[1], 'unfenced', ARGV[2] + 1)
if ARGV[3] == '' or tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) then
  redis.call('HINCRBY', KEYS[1], 'rejected', 1)
elseif (redis.call('HGET', KEYS[1], 'fenced') or '0') ~= ARGV[3] then
  redis.call('HINCRBY', KEYS[1], 'lost', 1)
else
  redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'fenced', ARGV[3] + 1)
end
return 1
";

pub(super) struct Register(Connection);

/// The numbers that a holder has read. The fenced one is empty if the fence was too small.
pub(super) struct Read {
    unfenced: String,
    fenced: String,
}

/// The events at the numbers of a name.
#[derive(Default)]
pub(super) struct Outcome {
    /// Writes that the fenced register has rejected.
    pub(super) rejected: u64,
    /// Updates that the fenced register has lost. It must lose none.
    pub(super) lost: u64,
    /// Updates that the unfenced register has lost.
    pub(super) corrupted: u64,
}

impl Register {
    pub(super) fn at(url: &str) -> Self {
        let client = redis::Client::open(url).expect("a URL");
        Self(client.get_connection().expect("it has no faults"))
    }

    fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.0).expect("it has no faults")
    }

    pub(super) fn read(&mut self, name: &str, fence: u64) -> Read {
        let (unfenced, fenced) = self.ask(&["EVAL", READ, "1", name, &fence.to_string()]);
        Read { unfenced, fenced }
    }

    /// Writes one more than was read.
    pub(super) fn write(&mut self, name: &str, fence: u64, read: &Read) {
        let (fence, Read { unfenced, fenced }) = (fence.to_string(), read);
        let _: u32 = self.ask(&["EVAL", WRITE, "1", name, &fence, unfenced, fenced]);
    }

    /// Returns what has happened to a name, and forgets it.
    pub(super) fn take(&mut self, name: &str) -> Outcome {
        let found: HashMap<String, u64> = self.ask(&["HGETALL", name]);
        let _: u32 = self.ask(&["DEL", name]);
        let count = |field: &str| found.get(field).copied().unwrap_or(0);
        Outcome {
            rejected: count("rejected"),
            lost: count("lost"),
            corrupted: count("corrupted"),
        }
    }
}
