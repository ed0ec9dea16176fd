//! What every pitfall is played on: one Redis, and names of its own.

use std::cell::RefCell;
use std::time::Duration;
use std::{env, error, process};

use leasehold::LockManager;
use redis::{Connection, TypedCommands};

pub type Outcome<T = ()> = Result<T, Box<dyn error::Error>>;

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

    /// A name that no other run uses.
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

    /// A connection, as a client without this crate would have.
    pub fn redis(&self) -> Outcome<Connection> {
        Ok(redis::Client::open(&*self.url)?.get_connection()?)
    }

    /// A manager of its own, so that each stands for another machine.
    pub fn locks(&self) -> Outcome<LockManager> {
        locks(&self.url)
    }
}

/// Patient, since the machine that this runs on may be busy with something else.
pub fn locks(url: &str) -> Outcome<LockManager> {
    let patient = LockManager::single(url).io_timeout(Duration::from_secs(10));
    Ok(patient.build()?)
}
