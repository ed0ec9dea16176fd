//! A reader-writer lock as a programmer might write it by hand: two keys, a script for each step, and polling. A
//! writer marks that it waits. Otherwise readers would never let it in.

use std::thread;
use std::time::Duration;

use redis::{Connection, ConnectionLike, Value};

use crate::Result;
use crate::bare;

/// KEYS: 1 the writer, 2 the number of readers, 3 the mark of a waiting writer.
const READ: &str = "\
if redis.call('EXISTS', KEYS[1], KEYS[3]) > 0 then return 0 end
return redis.call('INCR', KEYS[2])";
const WRITE: &str = "\
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if tonumber(redis.call('GET', KEYS[2]) or 0) > 0 then
  redis.call('SET', KEYS[3], 1, 'PX', 100)
  return 0
end
redis.call('SET', KEYS[1], 1)
redis.call('DEL', KEYS[3])
return 1";
const PAUSE_US: u64 = 500;

pub struct Polled {
    connection: Connection,
    read: Vec<u8>,
    write: Vec<u8>,
    end_read: Vec<u8>,
    end_write: Vec<u8>,
    draw: Draw,
}

impl Polled {
    pub fn new(url: &str, name: &str, draw: Draw) -> Result<Self> {
        let mut connection = bare::connect(url)?;
        let keys = ["writer", "readers", "waits"].map(|part| format!("{name}:{part}"));
        let mut script = |text| -> Result<_> {
            let mut call = bare::load(&mut connection, text, keys.len())?;
            Ok(call.arg(&keys).get_packed_command())
        };
        Ok(Self {
            read: script(READ)?,
            write: script(WRITE)?,
            end_read: redis::cmd("DECR").arg(&keys[1]).get_packed_command(),
            end_write: redis::cmd("DEL").arg(&keys[0]).get_packed_command(),
            connection,
            draw,
        })
    }

    pub fn take(&mut self, writes: bool) -> Result<()> {
        let take = if writes { &self.write } else { &self.read };
        while self.connection.req_packed_command(take)? == Value::Int(0) {
            // The pause is random, so that waiting threads do not ask in step.
            thread::sleep(Duration::from_micros(
                PAUSE_US / 2 + self.draw.below(PAUSE_US),
            ));
        }
        Ok(())
    }

    pub fn put(&mut self, writes: bool) -> Result<()> {
        let put = if writes {
            &self.end_write
        } else {
            &self.end_read
        };
        bare::ask(&mut self.connection, put, |value| {
            matches!(value, Value::Int(_))
        })
    }
}

/// Random numbers that decide which turns write. They are the same in every run.
#[derive(Clone)]
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: usize) -> Self {
        Self(seed as u64)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        // Knuth's constants (MMIX). The upper bits are the good ones.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
