//! The requests to Redis and its replies, as plain data, and their encoding.
//!
//! 1. The engine builds a [`Request`].
//! 2. A connection asks [`encode`] for the command, and sends it.
//! 3. [`decode`] makes a [`Reply`] of the answer. An answer that is no reply to this request is an error.
//! 4. The engine acts on the reply.
//!
//! Only the connections encode and decode, and no other module knows the arguments of a script. A script is a file of `lua/`
//! that includes others (`script`). It handles the usual case before it includes the functions for the rest, because Redis
//! defines a script's functions at each run. Its header lists the keys, the arguments and the answers, and gives the reason why
//! the script may be repeated. Names and owners travel as `KEYS` and `ARGV`, never as script text.
//!
//! | module | its content |
//! | --- | --- |
//! | this one | the requests and the replies |
//! | `lock` | the kinds of lock: how the threads of a process share each; the requests about one lock |
//! | `renew`, `commit`, `once`, `leader`, `rate_limiter`, `operators` | the other requests, with what their replies tell |
//! | `quorum` | the requests to one node of a quorum |
//! | `message` | grants by message |
//! | `script` | the scripts, and a command of the redis crate that names one |
//! | `settings` | the settings that travel with the requests, and at which names clients of other libraries were seen |
//! | `lifetime` | how long a lease, a pickup window and a turn last |

use std::time::Duration;

use redis::Value;

use crate::error::{Failure, FailureKind, LostCause, NodeCounts};
use crate::name::LockKey;
use crate::sys::Arc;
use crate::write;

pub(crate) use commit::Commit;
pub(crate) use leader::{Lead, SeenLeader};
pub(crate) use lock::{ALL, Adopt, Ask, End, GiveBack, How, LockId, LockKind, Sharing};
pub(crate) use message::{GrantMessage, Nonce};
pub(crate) use once::{Done, Recorded};
pub(crate) use operators::{Cursor, Seen, SeenWaiter};
pub(crate) use rate_limiter::RateRequest;
pub(crate) use renew::{Renewal, Renewed};
pub(crate) use script::Command;
#[cfg(feature = "seam")]
pub(crate) use script::SCRIPTS;
pub(crate) use settings::ScriptSettings;

mod commit;
mod leader;
pub(crate) mod lifetime;
mod lock;
mod message;
mod once;
mod operators;
pub(crate) mod quorum;
mod rate_limiter;
mod renew;
mod script;
mod settings;
#[cfg(test)]
mod tests;

/// A request to a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request<'a> {
    /// Finds out whether the node answers.
    Ping,
    /// Asks for a lock.
    Ask(LockId<'a>, &'a Ask),
    /// Ends an owner of a lock.
    End(LockId<'a>, &'a End),
    /// Renews many leases.
    Renew(&'a [Renewal<'a>]),
    /// Keeps the records of the last fences of many leases, as grants now would. A renewal touches the lock's key alone.
    KeepRecords(&'a [Renewal<'a>]),
    /// Releases many mutexes that nobody is known to wait for; on a quorum, locks of any kind.
    Release(&'a [(LockId<'a>, &'a End)]),
    /// Executes writes, if an owner holds its locks. Only this request must not be sent twice: what it writes is the caller's.
    Commit(&'a Commit<'a>),
    /// Records that a fire of a job was done, or reads the last record.
    Once {
        key: &'a LockKey,
        done: Option<Done<'a>>,
    },
    /// Writes the value of a leader, or reads who holds a mutex, and the value that it has written.
    Leader { key: &'a LockKey, lead: Lead<'a> },
    /// Asks a rate limiter for admission.
    RateLimit {
        key: &'a LockKey,
        request: RateRequest,
    },
    /// Gives a new owner to a mutex that was detached.
    Adopt { key: &'a LockKey, adopt: &'a Adopt },
    /// Inspects locks of any kind. Without `named`, a scan found the keys, and they may be no locks.
    Inspect { keys: &'a [LockKey], named: bool },
    /// Lists some of the keys that begin with `prefix` and go on as the Redis pattern `pattern`.
    Scan {
        from: Cursor,
        prefix: &'a str,
        pattern: &'a str,
    },
    /// Takes a lock of any kind from one owner.
    ForceRelease { key: &'a LockKey, owner: &'a str },
    /// Publishes a message about a lock on the channel of all processes.
    Publish { key: &'a LockKey, message: &'a str },
}

/// A reply to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Pong,
    Granted {
        fence: u64,
        /// How many fences were reserved, this one included. `None`: as many as were asked for.
        count: Option<u64>,
        /// The fences of the other names, if there are several.
        rest: Vec<u64>,
        /// Whether other processes wait for the lock.
        contended: bool,
    },
    /// Not granted, but nobody waits: the caller may share the lease that it named in
    /// [`Ask::shareable_owner`].
    Shared,
    Held {
        /// How long the holder's lease still lasts. `None` if the key has no time to live, or less than a millisecond.
        ttl: Option<Duration>,
        holder: Arc<str>,
        /// Whether the request, a take-over, has given a mutex from its old owner to the holder, or left it free in a
        /// gap. Otherwise the old owner may have lost the mutex before.
        handed_over: bool,
    },
    /// Too few nodes of a quorum granted it, and the owner was withdrawn from those. It must never ask again.
    Outvoted {
        /// The owner that may have a majority. `None` means that the votes are split: nobody has one.
        holder: Option<Arc<str>>,
        /// How long the leases of that owner still last. `None` if that is not known.
        ttl: Option<Duration>,
        counts: NodeCounts,
    },
    Released,
    /// Released, and given to a waiter.
    HandedOver,
    /// Not released: other processes wait, so the lock must be handed over.
    Contended,
    /// Not released: this owner did not hold the lock any more.
    NotOwner(Gone),
    /// A reply about a semaphore of which other clients give another number of permits.
    Differs {
        others: u32,
        reply: Box<Reply>,
    },
    Renewed(Vec<Renewed>),
    /// The result of each release.
    Each(Vec<Result<Reply, NotReleased>>),
    /// The replies to all writes of a commit.
    Committed(Vec<write::Reply>),
    /// The server has executed this many writes of a commit, and rejected the next one with these words.
    Stopped {
        done: usize,
        why: Arc<str>,
    },
    /// The record of a job that runs once.
    Record(Recorded),
    /// The record has the fire that was done, or the value of the leader.
    Recorded,
    /// The holder of a mutex, if there is one.
    Leader(Option<SeenLeader>),
    /// Admitted by the rate limiter, once this time has passed.
    Admitted(Duration),
    /// Not admitted: the wait would be this long.
    NotAdmitted(Duration),
    Published,
    /// The state of each lock; `None` if the key is no lock, or if the lock has neither holder nor waiter. If a scan
    /// found the keys, the reply may be about the first of them only. The caller must then ask about the others again.
    Inspected(Vec<Option<Seen>>),
    /// Some keys, and the place where the scan continues.
    Page {
        keys: Vec<Vec<u8>>,
        next: Option<Cursor>,
    },
}

/// The reason why an owner does not hold a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The key does not exist.
    Removed,
    /// Another owner holds it.
    Taken,
}

impl Gone {
    /// Returns why a lock is lost by what several nodes say. A node that has only missed what another owner did there says
    /// "removed", so one that says "taken" decides.
    pub(crate) fn of_all(mut all: impl Iterator<Item = Self>) -> Self {
        if all.any(|gone| gone == Self::Taken) {
            Self::Taken
        } else {
            Self::Removed
        }
    }
}

impl From<Gone> for LostCause {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Removed => Self::Removed,
            Gone::Taken => Self::Taken,
        }
    }
}

/// The reason why one release of a batch has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReleased {
    /// The server rejected it.
    Refused,
    /// The node of its slot did not answer. It may have executed the release, or may still do so.
    Unanswered,
}

impl Request<'_> {
    /// Returns whether the call is about a lock that this process holds. Such a call must not be late: a lease would
    /// end, or others would wait for a lock that this process gives up.
    pub(crate) fn is_of_a_holder(&self) -> bool {
        match self {
            Request::Ask(_, ask) => ask.ending.is_some(),
            Request::End(..)
            | Request::Renew(_)
            | Request::KeepRecords(_)
            | Request::Release(_)
            | Request::Commit(_) => true,
            // Without a fire it is a mere read.
            Request::Once { done, .. } => done.is_some(),
            Request::Leader { lead, .. } => !lead.is_read(),
            _ => false,
        }
    }

    /// Returns the lock that the request is about, if it asks for one, or ends an owner of it.
    pub(crate) fn lock(&self) -> Option<LockId<'_>> {
        match self {
            Request::Ask(lock, _) | Request::End(lock, _) => Some(*lock),
            _ => None,
        }
    }

    /// Returns whether a server may execute it twice.
    pub(crate) fn may_repeat(&self) -> bool {
        !matches!(self, Request::Commit(_))
    }

    /// Returns whether it lengthens no lease. So it writes nothing that a replica must confirm.
    pub(crate) fn is_a_look(&self) -> bool {
        match self {
            Request::Renew(all) => all.iter().all(|one| one.lease.is_zero()),
            Request::KeepRecords(_) => true,
            _ => false,
        }
    }
}

impl Reply {
    /// Returns the result for each lease of a renewal.
    ///
    /// # Errors
    ///
    /// Returns a failure if this is the reply to another call.
    pub(crate) fn renewed(self) -> Result<Vec<Renewed>, Failure> {
        match self {
            Self::Renewed(results) => Ok(results),
            _ => Err(Failure::another_question()),
        }
    }

    /// Returns whether this is a grant, a renewal, a commit or a record. The caller of those relies on the server's write.
    pub(crate) fn is_gain(&self) -> bool {
        match self {
            Self::Granted { .. } | Self::Shared | Self::Committed(_) | Self::Recorded => true,
            Self::Differs { reply, .. } => reply.is_gain(),
            Self::Renewed(results) => results.iter().any(Renewed::is_confirmed),
            _ => false,
        }
    }
}

/// Returns the command that executes a request. It names its script by the digest.
pub(crate) fn encode(request: &Request<'_>, script_settings: &ScriptSettings) -> Command {
    match request {
        Request::Ping => Command::new("PING"),
        Request::Ask(lock, ask) => lock::ask(*lock, ask, script_settings),
        Request::End(lock, end) => lock::end(*lock, end, false, script_settings),
        Request::Renew(batch) => renew::encode(batch),
        Request::KeepRecords(batch) => renew::keep_records(batch, script_settings),
        Request::Release(batch) => lock::release_many(batch),
        Request::Commit(commit) => commit::encode(commit),
        Request::Once { key, done } => once::encode(key, done.as_ref()),
        Request::Leader { key, lead } => leader::encode(key, lead),
        Request::RateLimit { key, request } => rate_limiter::encode(key, request),
        Request::Adopt { key, adopt } => lock::adopt(key, adopt, script_settings),
        Request::Inspect { keys, named } => operators::inspect(keys, *named),
        Request::Scan {
            from,
            prefix,
            pattern,
        } => operators::scan(*from, prefix, pattern),
        Request::ForceRelease { key, owner } => {
            operators::force_release(key, owner, false, script_settings)
        }
        Request::Publish { message, .. } => operators::publish(message),
    }
}

/// The answer of a script that has taken a lock without a fence.
pub(crate) const TAKEN_WITHOUT_A_FENCE: Value = Value::Int(0);

/// Returns the command that takes a free lock without a script, if the request allows it. The command's answer is `OK` if it
/// has the lock. Otherwise the command of [`encode`] must follow. It also settles whether this owner holds the lock already,
/// by a command that was sent twice.
pub(crate) fn encode_plain(
    request: &Request<'_>,
    script_settings: &ScriptSettings,
) -> Option<Command> {
    match request {
        Request::Ask(lock, ask) => lock::ask_plainly(*lock, ask, script_settings),
        _ => None,
    }
}

/// Reads an answer, if it is one to the request.
pub(crate) type Reader = fn(&Value) -> Option<Reply>;

/// Returns how to read the answer to a request that may go out in one write with those of other calls. `None` if it must go
/// alone.
pub(crate) fn reader(request: &Request<'_>) -> Option<Reader> {
    match request {
        Request::Ask(lock, _) | Request::End(lock, _) if lock.target.keys().len() > 1 => None,
        Request::Ask(_, ask) if ask.fences > 0 => Some(|value| lock::granted(1, true, value)),
        Request::Ask(..) => Some(|value| lock::granted(1, false, value)),
        Request::End(..) => Some(lock::released),
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
        (Request::Ask(lock, ask), value) => {
            lock::granted(lock.target.keys().len(), ask.fences > 0, &value)
        }
        (Request::End(..), value) => lock::released(&value),
        (Request::Renew(batch) | Request::KeepRecords(batch), value) => {
            renew::decode(batch.len(), &value).map(Reply::Renewed)
        }
        (Request::Release(batch), value) => lock::released_many(batch.len(), &value),
        (Request::Commit(commit), value) => commit::decode(commit.writes.len(), value),
        (Request::Once { done, .. }, value) => once::decode(done.is_none(), &value),
        (Request::Leader { lead, .. }, value) => leader::decode(lead.is_read(), &value),
        (Request::RateLimit { request, .. }, value) => rate_limiter::decode(request, &value),
        (Request::Adopt { adopt, .. }, value) => lock::granted(1, adopt.fencing, &value),
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
        Failure::unknown(FailureKind::Protocol, words)
    })
}

/// Reads a value as the reply to each sort of request about locks, for the fuzz targets: with the number of names.
#[cfg(feature = "seam")]
pub(crate) fn read_as_each(value: &Value) -> [(usize, Option<Reply>); 11] {
    [
        (1, lock::granted(1, true, value)),
        (1, lock::granted(1, false, value)),
        (3, lock::granted(3, true, value)),
        (1, lock::released(value)),
        (2, renew::decode(2, value).map(Reply::Renewed)),
        (2, lock::released_many(2, value)),
        (2, commit::decode(2, value.clone())),
        (1, once::decode(true, value)),
        (1, once::decode(false, value)),
        (1, leader::decode(true, value)),
        (1, leader::decode(false, value)),
    ]
}
