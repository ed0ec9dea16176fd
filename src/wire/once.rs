//! The record of a job that runs once: `once.lua`.

use std::time::Duration;

use redis::Value::{self, Array, BulkString, Int};

use crate::name::{Companion, LockKey};
use crate::wire::script::{Command, ONCE};
use crate::wire::{Gone, Reply};

/// What a request does with the record of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OnceRequest<'a> {
    Read,
    /// Reads it for the holder of the lock. If the job has no first fire yet, the server's time becomes that.
    ReadEvery {
        owner: &'a str,
        keep_for: Duration,
    },
    /// Records that the holder of the lock has done a fire.
    Done {
        owner: &'a str,
        fire_us: u64,
        keep_for: Duration,
    },
}

/// The record of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// The last fire that was done, its owner, and when it was recorded, in µs since 1970.
    pub(crate) last: Option<(u64, String, u64)>,
    /// The first fire of a job that repeats, in µs since 1970.
    pub(crate) first_us: Option<u64>,
    /// The server's time, in µs since 1970.
    pub(crate) now_us: u64,
}

pub(super) fn encode(key: &LockKey, request: &OnceRequest<'_>) -> Command {
    let mut command = ONCE.command(2);
    command.arg(key.key()).arg(key.companion(Companion::Once));
    let ms = |length: &Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    match request {
        OnceRequest::Read => command.arg(""),
        OnceRequest::ReadEvery { owner, keep_for } => {
            command.arg("every").arg(*owner).arg(ms(keep_for))
        }
        OnceRequest::Done {
            owner,
            fire_us,
            keep_for,
        } => command.arg(*fire_us).arg(*owner).arg(ms(keep_for)),
    };
    command
}

pub(super) fn decode(value: Value) -> Option<Reply> {
    match value {
        Int(1) => Some(Reply::Recorded),
        Int(0) => Some(Reply::NotOwner(Gone::Removed)),
        Int(-1) => Some(Reply::NotOwner(Gone::Taken)),
        Array(parts) => record(&parts).map(Reply::Record),
        _ => None,
    }
}

fn record(parts: &[Value]) -> Option<Recorded> {
    let [fire, owner, at, first, now] = parts else {
        return None;
    };
    let text = |value: &Value| match value {
        BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    };
    let [fire, owner, at, first, now] = [
        text(fire)?,
        text(owner)?,
        text(at)?,
        text(first)?,
        text(now)?,
    ];
    let us = |text: &str| text.parse().ok();
    Some(Recorded {
        last: if fire.is_empty() {
            None
        } else {
            Some((us(&fire)?, owner, us(&at)?))
        },
        first_us: if first.is_empty() {
            None
        } else {
            Some(us(&first)?)
        },
        now_us: us(&now)?,
    })
}
