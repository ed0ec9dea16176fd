//! What goes to Redis and what comes back: requests and replies as plain data, and their encoding.
//!
//! 1. The engine builds a [`Request`].
//! 2. A connection asks [`encode`] for the command, and sends it.
//! 3. [`decode`] makes a [`Reply`] of the answer. An answer that is no reply to this request is an error.
//! 4. The engine acts on the reply.
//!
//! Only the connections encode and decode, and no other module knows the arguments of a script. A script is a file of `lua/`
//! that includes others (`text`). It handles the usual case before it includes the functions for the rest, because Redis defines a
//! script's functions at each run. Its header lists the keys, the arguments and the answers, and gives the reason why the script may be
//! repeated. Names and owners travel as `KEYS` and `ARGV`, never as script text.
//!
//! | module | its content |
//! | --- | --- |
//! | `request` | the requests, and the kinds of lock: how the threads of a process share each |
//! | `reply` | the replies, and grants by message |
//! | `lifetime` | how long a lease, a pickup window and a turn last |
//! | `single` | encodes and decodes the requests about locks to a server that is no node of a quorum |
//! | `quorum` | encodes and decodes the requests to one node of a quorum |
//! | `operators` | encodes and decodes the requests of operators about locks of any kind |
//! | `answers` | decodes the answers that several kinds share |
//! | `command` | a command of the redis crate, and the script that it names |
//! | `text` | the texts of the scripts, and the arguments that several scripts share |
//! | `pollers` | remembers at which names clients of other libraries were seen |

use redis::Value;

use crate::error::{Failure, FailureKind, Outcome};

pub(crate) use command::Command;
pub(crate) use reply::{
    Cursor, Gone, GrantMessage, Nonce, NotReleased, Renewed, Reply, Seen, SeenHolder, SeenLimiter,
    SeenWaiter,
};
pub(crate) use request::{
    ALL, AcquireMode, Adopt, Ask, GiveBack, Keep, LockKind, PlainRelease, RateRequest, Renewal,
    Request, Sharing, Verb,
};
#[cfg(feature = "seam")]
pub(crate) use text::SCRIPTS;
pub(crate) use text::ScriptSettings;

mod answers;
mod command;
pub(crate) mod lifetime;
mod operators;
mod pollers;
pub(crate) mod quorum;
mod reply;
mod request;
mod single;
mod text;

/// Returns the command that executes a request. It names its script by the digest.
pub(crate) fn encode(request: &Request<'_>, script_settings: &ScriptSettings) -> Command {
    match request {
        Request::Ping => Command::new("PING"),
        Request::Lock { kind, target, verb } => match kind {
            LockKind::Mutex => single::mutex(target.first(), verb, script_settings),
            LockKind::Read | LockKind::Write | LockKind::Semaphore { .. } => {
                single::share(*kind, target.first(), verb, script_settings)
            }
            LockKind::Multi => single::multi(target.keys(), verb, script_settings),
        },
        Request::Renew(batch) => single::renew(batch),
        Request::KeepRecords(batch) => single::keep_records(batch, script_settings),
        Request::Release(batch) => single::release_many(batch),
        Request::RateLimit { key, request } => single::rate_limit(key, request),
        Request::Adopt { key, adopt } => single::adopt(key, adopt, script_settings),
        Request::Inspect { keys, named } => operators::inspect(keys, *named),
        Request::Scan {
            from,
            prefix,
            pattern,
        } => operators::scan(*from, prefix, pattern),
        Request::ForceRelease { key, owner } => {
            operators::force_release(key, owner, script_settings)
        }
        Request::Publish { message, .. } => operators::publish(message),
    }
}

/// The answer of a script that has taken a lock without a fence.
pub(crate) const TAKEN_WITHOUT_A_FENCE: Value = Value::Int(0);

/// Returns the command that takes a free lock without a script, if the request allows it: it asks for a mutex without a
/// fence, and may go before the queue. The command's answer is `OK` if it has the lock. Otherwise the command of
/// [`encode`] must follow. It also settles whether this owner holds the lock already, by a command that was sent twice.
pub(crate) fn encode_plain(
    request: &Request<'_>,
    script_settings: &ScriptSettings,
) -> Option<Command> {
    match request {
        Request::Lock {
            kind: LockKind::Mutex,
            target,
            verb:
                Verb::Acquire {
                    ask,
                    mode: AcquireMode::TakeFree,
                },
        } if ask.fences == 0 => single::plain(target.first(), ask, script_settings),
        _ => None,
    }
}

/// Reads the answer to a request.
///
/// # Errors
///
/// Returns a [`FailureKind::Protocol`] of unknown outcome if the answer is no reply to this request.
pub(crate) fn decode(request: &Request<'_>, value: Value) -> Result<Reply, Failure> {
    let reply = match (request, value) {
        (Request::Ping, Value::SimpleString(_) | Value::BulkString(_)) => Some(Reply::Pong),
        (Request::Lock { verb, target, .. }, value) => match verb {
            Verb::Acquire { ask, .. } | Verb::TakeOver { ask, .. } => {
                answers::grant(target.keys().len(), ask.fences > 0, &value)
            }
            Verb::Release { .. }
            | Verb::HandOver { .. }
            | Verb::Keep(_)
            | Verb::Withdraw { .. } => answers::release(&value),
        },
        (Request::Renew(batch) | Request::KeepRecords(batch), value) => {
            single::renewed(batch.len(), &value)
        }
        (Request::Release(batch), value) => single::released_many(batch.len(), &value),
        (Request::RateLimit { request, .. }, value) => single::admission(request, &value),
        (Request::Adopt { adopt, .. }, value) => answers::grant(1, adopt.fencing, &value),
        (Request::Inspect { keys, named }, value) => {
            operators::inspected(keys.len(), *named, value)
        }
        (Request::Scan { from, .. }, value) => operators::page(*from, value),
        (Request::ForceRelease { .. }, Value::Int(1)) => Some(Reply::Released),
        (Request::ForceRelease { .. }, Value::Int(0)) => Some(Reply::NotOwner(Gone::Removed)),
        (Request::Publish { .. }, Value::Int(_)) => Some(Reply::Published),
        (Request::Ping | Request::ForceRelease { .. } | Request::Publish { .. }, _) => None,
    };
    reply.ok_or_else(|| {
        let words = "the answer does not have the form of a reply to this request";
        Failure::plain(FailureKind::Protocol, Outcome::Unknown, words)
    })
}

/// Reads a value as the reply to each sort of request about locks, for the fuzz targets: with the number of names.
#[cfg(feature = "seam")]
pub(crate) fn read_as_each(value: &Value) -> [(usize, Option<Reply>); 6] {
    [
        (1, answers::grant(1, true, value)),
        (1, answers::grant(1, false, value)),
        (3, answers::grant(3, true, value)),
        (1, answers::release(value)),
        (2, single::renewed(2, value)),
        (2, single::released_many(2, value)),
    ]
}

#[cfg(test)]
mod tests;
