//! The account, and the SQL that checks a fence. docs/fencing.md explains this SQL.

use crate::Outcome;
use crate::database::Database;

pub const TABLES: &str = include_str!("tables.sql");
const READ: &str = include_str!("read.sql");
const WRITE: &str = include_str!("write.sql");
const APPEND: &str = include_str!("append.sql");

/// The account, in the hands of one holder of its lock.
pub struct Account<'a> {
    database: &'a dyn Database,
    holder: &'static str,
    fence: i64,
}

impl<'a> Account<'a> {
    pub fn new(database: &'a dyn Database, holder: &'static str, fence: u64) -> Outcome<Self> {
        println!("{holder} locks account:7. Its fence is {fence}.");
        Ok(Self {
            database,
            holder,
            fence: fence.try_into()?, // it is below 2^53
        })
    }

    /// Raises the fence of the account, and returns the balance. Returns `None` if the fence is too old.
    pub fn balance(&self) -> Outcome<Option<i64>> {
        let selected = self.database.run(READ, &[("fence", self.fence)])?;
        let balance = selected.as_deref().map(str::trim_end);
        let answer = balance.unwrap_or("rejected");
        println!("{} reads the balance: {answer}", self.holder);
        Ok(balance.map(str::parse).transpose()?)
    }

    /// Returns whether the account accepts the fence.
    pub fn set_balance(&self, balance: i64) -> Outcome<bool> {
        let step = format!("sets the balance to {balance}");
        self.write(&step, WRITE, ("balance", balance))
    }

    /// Adds a row to a table without a column for a fence. Returns whether the table of fences accepts the fence.
    pub fn add_entry(&self, amount: i64) -> Outcome<bool> {
        let step = format!("adds an entry of {amount}");
        self.write(&step, APPEND, ("amount", amount))
    }

    fn write(&self, step: &str, sql: &str, value: (&str, i64)) -> Outcome<bool> {
        let selected = self.database.run(sql, &[("fence", self.fence), value])?;
        let accepted = selected.is_some();
        let answer = if accepted { "accepted" } else { "rejected" };
        println!("{} {step}: {answer}", self.holder);
        Ok(accepted)
    }
}
