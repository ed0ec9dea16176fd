//! The accounts. A deposit reads the balance and writes another: two at a time would lose one.

use std::time::Duration;

use leasehold::{Error, LockManager};
use redis::{Connection, TypedCommands};

use crate::Result;

/// Why a request at a closing server is refused.
pub const CLOSING: &str = "this server is closing";

pub struct Accounts {
    redis: Connection,
    bank: String,
}

/// What comes of a deposit.
pub enum Deposit {
    Done {
        balance: u64,
    },
    /// Nothing was changed, so it may well be asked for again.
    NotNow(&'static str),
}

impl Accounts {
    pub fn open(url: &str, bank: &str) -> Result<Self> {
        Ok(Self {
            redis: redis::Client::open(url)?.get_connection()?,
            bank: bank.into(),
        })
    }

    /// Each account has a lock of its own: requests for others go on meanwhile.
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
                return Ok(Deposit::NotNow("the locks are out of reach"));
            }
            Err(error) => return Err(error.into()),
        };
        let balance = self.balance(account)? + amount;
        self.redis.set(self.key(account), balance)?;
        // Were the lock lost, another deposit could have been overwritten: that is no success.
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
