//! A client of one lock that uses rslock, for the tests of leasehold. It reads one command a line, and replies to
//! each with a line, `yes` or `no`.
//!
//! The arguments are the URLs of the servers, separated by commas, and the lock's name. The program ends when its
//! standard input ends. The commands are `hello`, `acquire MS`, `extend MS` and `release`.

use std::env;
use std::io;
use std::time::Duration;

use rslock::{Lock, LockError, LockManager};
use tokio::runtime::{Builder, Runtime};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Client {
    runtime: Runtime,
    locks: LockManager,
    /// The same for each server alone.
    nodes: Vec<LockManager>,
    name: String,
    held: Option<Lock>,
}

impl Client {
    fn new(urls: &str, name: String) -> Result<Self> {
        let urls: Vec<_> = urls.split(',').collect();
        let mut locks = LockManager::new(urls.clone());
        locks.set_retry(1, Duration::from_millis(1));
        let nodes = urls.into_iter().map(|url| LockManager::new(vec![url]));
        Ok(Self {
            runtime: Builder::new_current_thread().enable_all().build()?,
            locks,
            nodes: nodes.collect(),
            name,
            held: None,
        })
    }

    /// Executes a command. Returns whether the lock was acquired, or was still this client's.
    fn answer(&mut self, command: &str) -> Result<bool> {
        let words: Vec<_> = command.split_whitespace().collect();
        match words[..] {
            ["hello"] => Ok(true),
            ["acquire", ttl] => self.acquire(milliseconds(ttl)?),
            ["extend", ttl] => self.extend(milliseconds(ttl)?),
            ["release"] => self.release(),
            _ => Err(format!("no such command: {command:?}").into()),
        }
    }

    fn acquire(&mut self, ttl: Duration) -> Result<bool> {
        let locked = self.locks.lock(self.name.as_str(), ttl);
        match self.runtime.block_on(locked) {
            Ok(lock) => {
                self.held = Some(lock);
                Ok(true)
            }
            // `TtlExceeded`: on a busy machine the reply may take longer than the lease.
            Err(LockError::Unavailable | LockError::TtlExceeded) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn extend(&self, ttl: Duration) -> Result<bool> {
        let held = self.held.as_ref().ok_or("it has acquired nothing")?;
        Ok(self.runtime.block_on(self.locks.extend(held, ttl)).is_ok())
    }

    fn release(&mut self) -> Result<bool> {
        let held = self.held.take().ok_or("it has acquired nothing")?;
        // `release` does not say whether the lock was still held, and `is_freed` believes the first server that replies.
        let holds = |node: &&LockManager| self.runtime.block_on(node.is_freed(&held)).is_ok();
        let holding = self.nodes.iter().filter(holds).count();
        self.runtime.block_on(held.release());
        Ok(holding > self.nodes.len() / 2)
    }
}

fn milliseconds(text: &str) -> Result<Duration> {
    Ok(Duration::from_millis(text.parse()?))
}

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let (Some(urls), Some(name)) = (arguments.next(), arguments.next()) else {
        return Err("usage: leasehold-rslock URL[,URL...] NAME".into());
    };
    let mut client = Client::new(&urls, name)?;
    for command in io::stdin().lines() {
        let done = client.answer(&command?)?;
        // This flushes each line, also to a pipe.
        println!("{}", if done { "yes" } else { "no" });
    }
    Ok(())
}
