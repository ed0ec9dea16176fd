//! The result of one process.

use std::time::Duration;

use serde_json::{Value, json};

use crate::waits::Waits;

pub struct Share {
    /// The guards that made their update.
    pub guards: u64,
    /// The guards that believed to hold the lock although the ledger had a fence as new as theirs.
    pub fence_violations: u64,
    /// The guards that knew that they had lost the lock.
    pub lost_leases: u64,
    /// The threads that stopped because a call failed.
    pub errors: u64,
    /// The end of the last guard by the common clock, or zero without a guard.
    pub ended: Duration,
    pub waits: Waits,
}

impl Share {
    pub fn to_json(&self) -> Value {
        json!({
            "guards": self.guards,
            "fence_violations": self.fence_violations,
            "lost_leases": self.lost_leases,
            "errors": self.errors,
            "ended_us": self.ended.as_micros() as u64,
            "waits": self.waits.to_json(),
        })
    }

    /// Reads the text of [`to_json`](Self::to_json). A killed process may have written half of it.
    pub fn parse(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let number = |field: &str| value.get(field)?.as_u64();
        Some(Self {
            guards: number("guards")?,
            fence_violations: number("fence_violations")?,
            lost_leases: number("lost_leases")?,
            errors: number("errors")?,
            ended: Duration::from_micros(number("ended_us")?),
            waits: Waits::from_json(value.get("waits")?)?,
        })
    }
}
