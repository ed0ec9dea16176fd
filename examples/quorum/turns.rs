//! The threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use leasehold::Mutex;

use crate::Outcome;
use crate::account::Account;

/// The longest time that a phase may take, on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// Threads that take turns until they are stopped.
pub struct Turns {
    account: Arc<Account>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Outcome<u64>>>,
}

impl Turns {
    /// Starts a thread for each of these handles.
    pub fn start(mutexes: impl Iterator<Item = Mutex>) -> Self {
        let (account, is_over) = (Arc::<Account>::default(), Arc::<AtomicBool>::default());
        let start = |mutex: Mutex| {
            let (account, is_over) = (Arc::clone(&account), Arc::clone(&is_over));
            thread::spawn(move || {
                let mut turns = 0;
                while !is_over.load(SeqCst) {
                    let guard = mutex.lock()?;
                    account.add_one(guard.fence())?;
                    turns += 1;
                }
                Ok(turns)
            })
        };
        let threads = mutexes.map(start).collect();
        Self {
            account,
            is_over,
            threads,
        }
    }

    /// Blocks until the threads have taken this number of further turns, or one of them has failed.
    pub fn wait_for_more(&self, turns: u64) -> Outcome {
        let (begun, before) = (Instant::now(), self.account.balance());
        while self.account.balance() < before + turns {
            if begun.elapsed() > PATIENCE {
                return Err("the threads do not get on".into());
            }
            if self.threads.iter().any(JoinHandle::is_finished) {
                return Ok(()); // `stop` returns the error.
            }
            thread::sleep(Duration::from_millis(5));
        }
        let time = begun.elapsed();
        println!("the threads took {turns} further turns in {time:.1?}");
        Ok(())
    }

    /// Stops the threads. Returns the balance, and the number of turns that the threads have counted.
    pub fn stop(self) -> Outcome<(u64, u64)> {
        self.is_over.store(true, SeqCst);
        let join = |thread: JoinHandle<_>| thread.join().expect("it does not panic");
        let turns = self.threads.into_iter().map(join).sum::<Outcome<u64>>()?;
        Ok((self.account.balance(), turns))
    }
}
