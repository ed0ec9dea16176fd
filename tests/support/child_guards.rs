//! The guards of a child process that only some tests need: readers, writers, permits and multi-locks.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::thread::{self, ScopedJoinHandle};

use leasehold::{LockManager, Result, Semaphore};

use super::Raw;

/// Guards by the name of the lock.
#[derive(Default)]
pub struct ChildGuards(HashMap<String, Box<dyn Any>>);

impl ChildGuards {
    /// Executes a command of one of these guards. Returns `None` for any other command.
    pub fn answer(&mut self, raw: &Raw, manager: &LockManager, command: &[&str]) -> Option<String> {
        let number = |word: &str| word.parse().expect("a number");
        Some(match *command {
            ["read", name] => self.keep(name, manager.rwlock(name).read()),
            ["write", name] => self.keep(name, manager.rwlock(name).write()),
            ["permits", name, n, of] => {
                let semaphore = manager.semaphore(name, number(of));
                self.keep(name, semaphore.acquire_many(number(n)))
            }
            ["multi", name, ref names @ ..] => {
                let all = [&[name], names].concat();
                self.keep(name, manager.multi(all).lock())
            }
            ["count", name, of, threads, times] => {
                let semaphore = manager.semaphore(name, number(of));
                let most = thread::scope(|scope| {
                    let threads: Vec<_> = (0..number(threads))
                        .map(|_| scope.spawn(|| count(raw, &semaphore, name, number(times))))
                        .collect();
                    let most = threads.into_iter().map(ScopedJoinHandle::join);
                    most.map(|most| most.expect("no panic")).max()
                });
                most.unwrap_or_default().to_string()
            }
            _ => return None,
        })
    }

    fn keep<T: Any + Debug>(&mut self, name: &str, guard: Result<T>) -> String {
        match guard {
            Ok(guard) => {
                self.0.insert(name.into(), Box::new(guard));
                "kept".into()
            }
            Err(error) => format!("{error:?}"),
        }
    }
}

/// Acquires permits one after the other, and counts in Redis how many permits are held. Returns the largest count.
pub fn count(raw: &Raw, semaphore: &Semaphore, name: &str, times: u32) -> u32 {
    let out = format!("{name}:out");
    let most = (0..times).map(|_| {
        let permit = semaphore.acquire().expect("it becomes free");
        let now: u32 = raw.ask(&["INCR", &out]);
        let () = raw.ask(&["DECR", &out]);
        permit.release().expect("it was held until now");
        now
    });
    most.max().unwrap_or_default()
}
