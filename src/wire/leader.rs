//! The leader of a name, and its value: `leader.lua`.

use std::time::Duration;

use redis::Value::{self, Array, BulkString, Int};

use crate::name::{Companion, LARGEST_FENCE, LockKey};
use crate::wire::script::{Command, LEADER};
use crate::wire::{Gone, Reply};

/// What a request about a leader does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lead<'a> {
    /// Reads who leads. The process of this channel observes; the channel is empty if it does not, or hears no messages.
    Read { channel: &'a str },
    Write {
        owner: &'a str,
        fence: u64,
        /// Larger than that of the owner's earlier writes. A late copy of an earlier one changes nothing.
        number: u64,
        /// `None` takes the value back.
        value: Option<&'a str>,
    },
}

/// The holder of a mutex in Redis, and what it has written as a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenLeader {
    pub(crate) owner: String,
    /// How long its lease still lasts.
    pub(crate) left: Duration,
    /// The number of its last write; 0 before the first.
    pub(crate) number: u64,
    /// Its fence and its value. `None` before the first write, and after it has taken the value back.
    pub(crate) value: Option<(u64, String)>,
}

impl Lead<'_> {
    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Lead::Read { .. })
    }
}

pub(super) fn encode(key: &LockKey, lead: &Lead<'_>) -> Command {
    let mut command = LEADER.command(2);
    command.arg(key.companion(Companion::Leader)).arg(key.key());
    match lead {
        Lead::Read { channel } => command.arg(channel),
        Lead::Write {
            owner,
            fence,
            number,
            value,
        } => command.arg(owner).arg(fence).arg(number).arg(value),
    };
    command
}

pub(super) fn decode(is_read: bool, reply: &Value) -> Option<Reply> {
    match reply {
        Array(parts) if is_read && parts.is_empty() => Some(Reply::Leader(None)),
        Array(parts) if is_read => seen(parts).map(|seen| Reply::Leader(Some(seen))),
        Int(1) if !is_read => Some(Reply::Recorded),
        Int(0) if !is_read => Some(Reply::NotOwner(Gone::Removed)),
        Int(-1) if !is_read => Some(Reply::NotOwner(Gone::Taken)),
        _ => None,
    }
}

fn seen(parts: &[Value]) -> Option<SeenLeader> {
    let [BulkString(owner), Int(left_ms), rest @ ..] = parts else {
        return None;
    };
    let text = |bytes| std::str::from_utf8(bytes).ok().map(str::to_owned);
    let number = |bytes| {
        let number = text(bytes)?.parse().ok();
        number.filter(|number| *number <= LARGEST_FENCE)
    };
    let (written, value) = match rest {
        [] => (0, None),
        [BulkString(written)] => (number(written)?, None),
        [BulkString(written), BulkString(fence), BulkString(value)] => {
            (number(written)?, Some((number(fence)?, text(value)?)))
        }
        _ => return None,
    };
    Some(SeenLeader {
        owner: text(owner)?,
        // Without a time to live, it is no lease of this crate.
        left: Duration::from_millis(u64::try_from(*left_ms).unwrap_or(0)),
        number: written,
        value,
    })
}
