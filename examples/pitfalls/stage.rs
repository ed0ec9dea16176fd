//! The setting of every pitfall: one Redis, and names that no other run uses.

use std::cell::RefCell;
use std::time::Duration;
use std::{env, error, process};

use leasehold::LockManager;
use redis::{Connection, TypedCommands};

pub type Outcome<T = ()> = Result<T, Box<dyn error::Error + Send + Sync>>;

pub struct Stage {
    url: String,
    names: RefCell<Vec<String>>,
}

impl Stage {
    pub fn from_env() -> Self {
        Self {
            url: env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned()),
            names: RefCell::default(),
        }
    }

    /// Returns a name that no other run uses.
    pub fn name(&self, what: &str) -> String {
        let name = format!("pitfalls:{}:{what}", process::id());
        self.names.borrow_mut().push(name.clone());
        name
    }

    pub fn clean_up(&self) -> Outcome {
        let names = self.names.take();
        if !names.is_empty() {
            self.redis()?.del(names)?;
        }
        Ok(())
    }

    /// Opens a connection, as a client without leasehold would.
    pub fn redis(&self) -> Outcome<Connection> {
        Ok(redis::Client::open(&*self.url)?.get_connection()?)
    }

    /// Returns a new manager, so that each stands for another machine.
    pub fn locks(&self) -> Outcome<LockManager> {
        locks(&self.url)
    }
}

/// Returns a manager with a long time limit, because the machine may be busy.
pub fn locks(url: &str) -> Outcome<LockManager> {
    let patient = LockManager::single(url).io_timeout(Duration::from_secs(10));
    Ok(patient.build()?)
}
