//! The accounts. A deposit reads the balance and writes a new one, so two at the same time would lose one.

use std::time::Duration;

use leasehold::{Error, LockManager};
use redis::{Connection, TypedCommands};

use crate::Result;

/// The reason for which a closing server refuses a request.
pub const CLOSING: &str = "this server is closing";

pub struct Accounts {
    redis: Connection,
    bank: String,
}

/// The result of a deposit.
pub enum Deposit {
    Done {
        balance: u64,
    },
    /// No balance was changed, so the client may try again.
    NotNow(&'static str),
}

impl Accounts {
    pub fn open(url: &str, bank: &str) -> Result<Self> {
        Ok(Self {
            redis: redis::Client::open(url)?.get_connection()?,
            bank: bank.into(),
        })
    }

    /// Returns the name of an account's lock. Each account has its own, so requests for other accounts go on.
    pub fn lock_name(&self, account: &str) -> String {
        format!("{}:{account}:lock", self.bank)
    }

    pub fn deposit(
        &mut self,
        locks: &LockManager,
        account: &str,
        amount: u64,
        wait: Duration,
    ) -> Result<Deposit> {
        let guard = match locks.try_lock_for(self.lock_name(account), wait) {
            Ok(Some(guard)) => guard,
            Ok(None) => return Ok(Deposit::NotNow("the account is busy")),
            Err(Error::Closed) => return Ok(Deposit::NotNow(CLOSING)),
            Err(error) if error.is_retryable() => {
                return Ok(Deposit::NotNow("the lock server is not reachable"));
            }
            Err(error) => return Err(error.into()),
        };
        let balance = self.balance(account)? + amount;
        self.redis.set(self.key(account), balance)?;
        // If the lock was lost, another deposit may have been overwritten. So that is an error.
        guard.release()?;
        Ok(Deposit::Done { balance })
    }

    pub fn balance(&mut self, account: &str) -> Result<u64> {
        let balance = self.redis.get(self.key(account))?;
        Ok(balance.map_or(Ok(0), |balance| balance.parse())?)
    }

    pub fn remove(&mut self, accounts: &[&str]) -> Result {
        for account in accounts {
            self.redis.del(self.key(account))?;
        }
        Ok(())
    }

    fn key(&self, account: &str) -> String {
        format!("{}:{account}", self.bank)
    }
}
