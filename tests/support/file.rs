//! The data that a lock protects in the tests of stale writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leasehold::{Error, LockManager};

use super::{Raw, Task, ms, name, secs, shared, task, wait_for_servers, wait_until};

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

/// Threads that write to a file under a lock, each write with the fence of its guard, until the test ends them. If the
/// file refuses a write, its holder has lost the lock, and learns of it.
pub struct FencedWriters {
    file: File,
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicU32>,
    threads: Vec<Task<()>>,
}

impl FencedWriters {
    /// Starts two threads for each manager.
    pub fn start(managers: &[LockManager], lock: &str) -> Self {
        let key = name("fenced-file");
        let file = File::new(shared(), &key);
        file.write("", Some(0));
        let (stop, turns) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU32::new(0)),
        );
        let writer = |locks: &LockManager| {
            let mutex = locks.mutex(lock).lease(secs(3));
            let (stop, turns, key) = (Arc::clone(&stop), Arc::clone(&turns), key.clone());
            task(move || {
                let file = File::new(shared(), &key);
                while !stop.load(Ordering::Relaxed) {
                    match mutex.try_lock_for(secs(1)) {
                        Ok(Some(guard)) => {
                            if !file.write("x", Some(guard.fence())) {
                                wait_until("the writer learns of its loss", || {
                                    guard.check().is_err()
                                });
                            }
                            turns.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(None) | Err(Error::Unavailable { .. }) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
            })
        };
        let threads = managers.iter().chain(managers).map(writer).collect();
        Self {
            file,
            stop,
            turns,
            threads,
        }
    }

    /// Blocks until there were this many more turns.
    #[track_caller]
    pub fn wait_for_more(&self, turns: u32) {
        let before = self.turns.load(Ordering::Relaxed);
        wait_for_servers("they go on", || {
            self.turns.load(Ordering::Relaxed) >= before + turns
        });
    }

    #[track_caller]
    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(Task::end);
        self.file.leave();
    }
}
