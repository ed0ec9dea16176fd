//! The record of a job that runs once: `once.lua`.

use std::time::Duration;

use redis::Value::{self, Array, BulkString, Int};

use crate::name::{Companion, LARGEST_FENCE, LockKey};
use crate::wire::script::{Command, ONCE};
use crate::wire::{Gone, Reply};

/// A fire of a job that was done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done<'a> {
    /// The holder of the job's lock.
    pub(crate) owner: &'a str,
    /// The time of the schedule, in µs since 1970.
    pub(crate) fire_us: u64,
    pub(crate) keep_for: Duration,
}

/// The record of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// The last fire that was done, its owner, and when it was recorded. Times are in µs since 1970.
    pub(crate) last: Option<(u64, String, u64)>,
    /// The server's time, in µs since 1970.
    pub(crate) now_us: u64,
}

/// Returns the command that records a fire, or that reads the record.
pub(super) fn encode(key: &LockKey, done: Option<&Done<'_>>) -> Command {
    let record = key.companion(Companion::Once);
    let Some(done) = done else {
        // In a slot that is being moved, only a command with one key is sure to find it.
        let mut command = ONCE.command(1);
        command.arg(record);
        return command;
    };
    let mut command = ONCE.command(2);
    let keep_ms = u64::try_from(done.keep_for.as_millis()).unwrap_or(u64::MAX);
    command
        .arg(record)
        .arg(key.key())
        .arg(done.fire_us)
        .arg(done.owner)
        .arg(keep_ms);
    command
}

pub(super) fn decode(is_read: bool, value: &Value) -> Option<Reply> {
    match value {
        Array(parts) if is_read => record(parts).map(Reply::Record),
        Int(1) if !is_read => Some(Reply::Recorded),
        Int(0) if !is_read => Some(Reply::NotOwner(Gone::Removed)),
        Int(-1) if !is_read => Some(Reply::NotOwner(Gone::Taken)),
        _ => None,
    }
}

fn record(parts: &[Value]) -> Option<Recorded> {
    let [
        BulkString(fire),
        BulkString(owner),
        BulkString(at),
        BulkString(now),
    ] = parts
    else {
        return None;
    };
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let us = |bytes| text(bytes)?.parse().ok().filter(|us| *us <= LARGEST_FENCE);
    let last = if fire.is_empty() {
        None
    } else {
        Some((us(fire)?, text(owner)?.to_owned(), us(at)?))
    };
    Some(Recorded {
        last,
        now_us: us(now)?,
    })
}
