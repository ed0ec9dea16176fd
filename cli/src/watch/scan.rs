//! The two threads that ask Redis: the scanner and the clerk. [`super`] has their protocol.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use leasehold::{LockManager, Result};

use super::row::Row;
use crate::output::safe;

/// How many locks the scanner reads in a second. The clerk looks at one lock at a time, at most ten times a second. Both
/// together stay within 1,000.
const LOCKS_PER_SECOND: u32 = 990;
/// How many keys a step of [`LockManager::list`] asks for. A scan counts at least as that many.
const PAGE: u32 = 200;
/// The shortest pause after a scan that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// A message from the screen to the clerk.
#[derive(Debug, PartialEq)]
pub enum Order {
    /// Inspect the selected lock.
    Look(String),
    /// Ask the holders to release.
    Request { name: String, why: String },
    /// Take the lock from an owner. `who` is the owner for people.
    Force {
        name: String,
        owner: String,
        who: String,
    },
}

/// A message to the screen.
#[derive(Debug)]
pub enum News {
    /// A scan has begun.
    Began,
    /// A lock that the scan has read.
    Seen(Row),
    /// The scan has read all locks.
    Ended,
    /// The scan has failed, and the next will begin after a pause.
    Failed(String),
    /// The answer to a `Look`. `None`: the lock is free.
    Looked(String, Option<Row>),
    /// A `Look` has failed.
    LookFailed(String),
    /// The answer to a `Request` or a `Force`: the text for the user.
    Done(String),
    /// A `Request` or a `Force` has failed.
    Refused(String),
}

/// The scanner: reads the locks again and again, until the screen has gone.
///
/// The budget counts the locks that it reads. [`LockManager::list`] does not tell how many other keys it has passed, and
/// cannot be made to pause between them: in a database of a million keys without a lock, one step of the iterator asks for
/// 5,000 pages in a row. After such a scan, the scanner rests for at least as long as it has waited for Redis.
pub fn scan(locks: &LockManager, pattern: &str, every: Duration, tell: &Sender<News>) {
    let mut budget = Budget::new();
    loop {
        let begun = Instant::now();
        let mut asked = Duration::ZERO;
        let scanned = scan_once(locks, pattern, &mut budget, &mut asked, tell);
        let (news, rest) = match scanned {
            Ok(()) => (News::Ended, every.saturating_sub(begun.elapsed())),
            Err(error) => (News::Failed(safe(&format!("{error:#}"))), every.max(PAUSE)),
        };
        if tell.send(news).is_err() {
            return;
        }
        thread::sleep(rest.max(asked));
    }
}

/// Reads all locks once. Adds the time in which it waited for Redis to `asked`.
fn scan_once(
    locks: &LockManager,
    pattern: &str,
    budget: &mut Budget,
    asked: &mut Duration,
    tell: &Sender<News>,
) -> Result<()> {
    // The screen that has gone is noticed at the end of the scan.
    let _ = tell.send(News::Began);
    if let Some(name) = as_name(pattern) {
        budget.spend(1);
        if let Some(lock) = locks.inspect(name)? {
            let _ = tell.send(News::Seen(Row::new(lock, Instant::now())));
        }
        return Ok(());
    }
    let mut list = locks.list(pattern);
    for number in 0_u32.. {
        if number % PAGE == 0 {
            budget.spend(PAGE);
        }
        let before = Instant::now();
        let Some(lock) = list.next() else { break };
        *asked += before.elapsed();
        let _ = tell.send(News::Seen(Row::new(lock?, Instant::now())));
    }
    Ok(())
}

/// Returns the name of the one lock that a pattern can match. Such a lock needs no scan of the whole database, and may be
/// a rate limiter, which a list does not have.
fn as_name(pattern: &str) -> Option<&str> {
    (!pattern.contains(['*', '?', '[', '\\'])).then_some(pattern)
}

/// The clerk: executes orders, until the screen has gone.
pub fn execute(locks: &LockManager, orders: &Receiver<Order>, tell: &Sender<News>) {
    for order in orders {
        let news = match order {
            Order::Look(name) => look(locks, name),
            Order::Request { name, why } => told(
                locks.request_release(&name, &why),
                &format!("asked the holders of {name}"),
                &format!("nobody holds {name}"),
            ),
            Order::Force { name, owner, who } => told(
                locks.force_release(&name, &owner),
                &format!("took {name} from {who}"),
                &format!("{who} did not hold {name} any more"),
            ),
        };
        if tell.send(news).is_err() {
            return;
        }
    }
}

fn look(locks: &LockManager, name: String) -> News {
    match locks.inspect(&name) {
        Ok(lock) => News::Looked(name, lock.map(|lock| Row::new(lock, Instant::now()))),
        Err(error) => News::LookFailed(safe(&format!("{error:#}"))),
    }
}

fn told(result: Result<bool>, yes: &str, no: &str) -> News {
    match result {
        Ok(true) => News::Done(safe(yes)),
        Ok(false) => News::Done(safe(no)),
        Err(error) => News::Refused(safe(&format!("{error:#}"))),
    }
}

/// Keeps the scanner within [`LOCKS_PER_SECOND`], whatever it reads.
struct Budget {
    /// When everything that was read until now is paid for.
    paid_at: Instant,
}

impl Budget {
    fn new() -> Self {
        let paid_at = Instant::now();
        Self { paid_at }
    }

    /// Blocks until the earlier locks are paid for, and charges these.
    fn spend(&mut self, locks: u32) {
        let now = Instant::now();
        thread::sleep(self.paid_at.saturating_duration_since(now));
        self.paid_at = self.paid_at.max(now) + Duration::from_secs(1) * locks / LOCKS_PER_SECOND;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_without_wildcards_is_a_name() {
        assert_eq!(as_name("orders:42"), Some("orders:42"));
        for pattern in ["*", "orders:?", "orders:[1-3]", r"orders:\*"] {
            assert_eq!(as_name(pattern), None);
        }
    }

    #[test]
    fn the_budget_makes_the_third_page_wait_for_the_second() {
        let begun = Instant::now();
        let mut budget = Budget::new();
        budget.spend(PAGE);
        assert!(budget.paid_at >= begun + Duration::from_millis(200));
        budget.spend(PAGE);
        budget.spend(PAGE);
        assert!(begun.elapsed() >= Duration::from_millis(400));
    }
}
