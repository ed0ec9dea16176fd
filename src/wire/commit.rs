//! Writes that a lock guards: `commit.lua`.

use redis::Value::{self, Array, BulkString, Int, Nil, Okay};

use crate::name::LockKey;
use crate::sys::Arc;
use crate::wire::script::{COMMIT, Command};
use crate::wire::{Gone, Reply};
use crate::write::{self, Write};

/// Writes, and the owner that must hold the locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commit<'a> {
    pub(crate) locks: &'a [LockKey],
    pub(crate) owner: &'a str,
    /// The owner's units as the key has them: 0 if it has the whole key.
    pub(crate) units: u32,
    pub(crate) writes: &'a [Write],
}

pub(super) fn encode(commit: &Commit<'_>) -> Command {
    let mut command = COMMIT.command(commit.locks.len() + commit.writes.len());
    for lock in commit.locks {
        command.arg(lock.key());
    }
    for write in commit.writes {
        command.arg(&write.key);
    }
    command
        .arg(commit.owner)
        .arg(commit.units)
        .arg(commit.locks.len());
    for write in commit.writes {
        command.arg(&write.command).arg(write.args.len());
        for arg in &write.args {
            command.arg(arg);
        }
    }
    command
}

/// Reads the answer to this number of writes.
pub(super) fn decode(writes: usize, value: Value) -> Option<Reply> {
    let Array(parts) = value else {
        return None;
    };
    match parts.as_slice() {
        [Int(0)] => Some(Reply::NotOwner(Gone::Removed)),
        [Int(-1)] => Some(Reply::NotOwner(Gone::Taken)),
        [Int(2), Int(done), BulkString(why)] => {
            let done = usize::try_from(*done).ok().filter(|done| *done < writes)?;
            let why = Arc::from(String::from_utf8_lossy(why));
            Some(Reply::Stopped { done, why })
        }
        [Int(1), replies @ ..] if replies.len() == writes => {
            let replies = parts.into_iter().skip(1).map(read);
            replies.collect::<Option<_>>().map(Reply::Committed)
        }
        _ => None,
    }
}

/// Reads the reply to one write.
fn read(value: Value) -> Option<write::Reply> {
    match value {
        Nil => Some(write::Reply::Nil),
        Int(number) => Some(write::Reply::Integer(number)),
        BulkString(bytes) => Some(write::Reply::Bytes(bytes)),
        Okay => Some(write::Reply::Ok),
        Array(values) => values
            .into_iter()
            .map(read)
            .collect::<Option<_>>()
            .map(write::Reply::Array),
        _ => None,
    }
}
