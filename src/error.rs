//! What can go wrong, as callers see it and as the inside passes it on.

use std::fmt;
use std::time::Duration;

use crate::clock::Time;
use crate::sync::Arc;

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What an error was caused by, kept for [`std::error::Error::source`].
pub(crate) type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Why a call failed.
///
/// Every variant that concerns one lock names it. No message holds a password.
///
/// # What a server's answer becomes
///
/// | the server | the error | a wait that has begun |
/// | --- | --- | --- |
/// | refuses the connection, closes or resets it, does not answer in time, closes at `maxclients` | [`Unavailable`](Error::Unavailable) | goes on |
/// | `LOADING`, `BUSY`, `READONLY`, `MISCONF`, `OOM`, `NOREPLICAS`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN` | [`Unavailable`](Error::Unavailable) | goes on |
/// | `NOAUTH`, `WRONGPASS`, `NOPERM` | [`Denied`](Error::Denied) | ends |
/// | `WRONGTYPE` | [`WrongType`](Error::WrongType) | ends |
/// | that the others use the semaphore with other permits | [`PermitsDiffer`](Error::PermitsDiffer) | ends |
/// | confirms a grant for fewer than [`replicas`](crate::Builder::replicas) | [`NotReplicated`](Error::NotReplicated) | goes on |
/// | anything that is no answer to what was asked | [`Protocol`](Error::Protocol) | ends |
///
/// A wait goes on until its own deadline, and without one until
/// [`outage_limit`](crate::Builder::outage_limit) has passed without an answer. The very first request of a
/// call is not retried: its error is returned at once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The manager was closed, or this is a forked child of the process that made it.
    Closed,
    /// A setting cannot be used; nothing was sent.
    Config {
        /// The setting.
        option: &'static str,
        /// What is wrong with it.
        reason: Box<str>,
    },
    /// The name cannot be a lock's; nothing was sent.
    InvalidName {
        /// The name, cut where it is over-long.
        name: Arc<str>,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The lock was held, and the lease ended before the guard did.
    Lost(Lost),
    /// The lock was not free within the wait of [`with_lock`](crate::LockManager::with_lock) or
    /// [`Mutex::with`](crate::Mutex::with); the closure never ran.
    Timeout {
        /// The lock.
        name: Arc<str>,
        /// How long the call waited.
        waited: Duration,
        /// The owner that held the lock when it was last seen.
        holder: Option<Arc<str>>,
    },
    /// The server could not be asked, or could not carry out what it was asked.
    Unavailable {
        /// The lock; none where the manager itself connects.
        name: Option<Arc<str>>,
        /// What happened.
        cause: Cause,
    },
    /// The server refuses this user: the password is wrong, or its access control list does not allow it.
    Denied {
        /// The lock; none where the manager itself connects.
        name: Option<Arc<str>>,
        /// What the server said.
        cause: Cause,
    },
    /// The lock's key, or one of its companions, holds something that is no lock.
    WrongType {
        /// The lock.
        name: Option<Arc<str>>,
        /// What the server said.
        cause: Cause,
    },
    /// The lock was granted, but fewer replicas than [`replicas`](crate::Builder::replicas) confirmed it in time, so it
    /// is released again.
    NotReplicated {
        /// The lock.
        name: Option<Arc<str>>,
        /// How many were to confirm it.
        wanted: u32,
        /// How many did.
        confirmed: u32,
    },
    /// Others who use the name at this time divide it into another number of permits.
    PermitsDiffer {
        /// The semaphore.
        name: Arc<str>,
        /// The permits that this handle asked for.
        asked: u32,
        /// Those that the others did.
        stored: u32,
    },
    /// The server answered with something that is no answer to what it was asked.
    Protocol {
        /// The lock; none where the manager itself connects.
        name: Option<Arc<str>>,
        /// What was answered.
        cause: Cause,
    },
}

impl Error {
    /// Whether the same call can succeed later without anything being changed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Lost(_)
                | Self::Timeout { .. }
                | Self::Unavailable { .. }
                | Self::NotReplicated { .. }
        )
    }

    pub(crate) fn config(option: &'static str, reason: impl Into<Box<str>>) -> Self {
        Self::Config {
            option,
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names are shown escaped: they may hold line breaks, and messages end up in logs.
        let about = |f: &mut fmt::Formatter<'_>, name: &Option<Arc<str>>| match name {
            Some(name) => write!(f, "lock {name:?}: "),
            None => Ok(()),
        };
        match self {
            Self::Closed => f.write_str("the lock manager is closed"),
            Self::Config { option, reason } => write!(f, "{option} cannot be used: {reason}"),
            Self::InvalidName { name, reason } => {
                write!(f, "{name:?} cannot be the name of a lock: {reason}")
            }
            Self::Lost(lost) => lost.fmt(f),
            Self::Timeout {
                name,
                waited,
                holder,
            } => {
                write!(f, "lock {name:?}: not free within {waited:?}")?;
                match holder {
                    Some(holder) => write!(f, ", held by {holder:?}"),
                    None => Ok(()),
                }
            }
            Self::Unavailable { name, cause } => {
                about(f, name)?;
                write!(f, "the server is unavailable: {cause}")
            }
            Self::Denied { name, cause } => {
                about(f, name)?;
                write!(f, "the server refuses this user: {cause}")
            }
            Self::WrongType { name, cause } => {
                about(f, name)?;
                write!(f, "its key holds something that is no lock: {cause}")
            }
            Self::NotReplicated {
                name,
                wanted,
                confirmed,
            } => {
                about(f, name)?;
                write!(f, "{confirmed} of {wanted} replicas confirmed it in time")
            }
            Self::PermitsDiffer {
                name,
                asked,
                stored,
            } => write!(
                f,
                "lock {name:?}: asked for one of {asked} permits, but others use it with {stored}"
            ),
            Self::Protocol { name, cause } => {
                about(f, name)?;
                write!(f, "the server's answer makes no sense: {cause}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unavailable { cause, .. }
            | Self::Denied { cause, .. }
            | Self::WrongType { cause, .. }
            | Self::Protocol { cause, .. } => Some(&**cause),
            Self::Closed
            | Self::Config { .. }
            | Self::InvalidName { .. }
            | Self::Lost(_)
            | Self::NotReplicated { .. }
            | Self::PermitsDiffer { .. }
            | Self::Timeout { .. } => None,
        }
    }
}

/// The end of a lease that its guard did not bring about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The lock.
    pub name: Arc<str>,
    /// The fence of the guard that lost it.
    pub fence: u64,
    /// What ended the lease.
    pub cause: LostCause,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.cause {
            LostCause::Expired => "the lease ran out before it was renewed",
            LostCause::Taken => "another owner holds it",
            LostCause::Removed => "its key was removed",
            LostCause::MaxHold => "the guard was held for longer than max_hold",
        };
        write!(f, "lock {:?} was lost: {why}", self.name)
    }
}

/// What ended a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostCause {
    /// The deadline passed by the holder's own clock.
    Expired,
    /// The server said that another owner holds the lock.
    Taken,
    /// The server said that the lock's key is gone.
    Removed,
    /// The guard was held for longer than its `max_hold`.
    MaxHold,
}

/// A request that failed, on its way from the store to whoever decides what to do about it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    /// Whether the request may have been carried out, or may yet be.
    pub(crate) unknown: bool,
    /// Whether it may have been carried out in part. That part is over: nothing is to come.
    pub(crate) half_done: bool,
    pub(crate) cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// It may pass.
    Unavailable,
    Denied,
    WrongType,
    PermitsDiffer {
        asked: u32,
        stored: u32,
    },
    /// It was carried out, and may pass.
    NotReplicated {
        wanted: u32,
        confirmed: u32,
    },
    Protocol,
}

impl Failure {
    /// A failure in plain words.
    pub(crate) fn plain(kind: FailureKind, unknown: bool, words: impl Into<String>) -> Self {
        Self {
            kind,
            unknown,
            half_done: false,
            cause: Arc::new(Plain(words.into())),
        }
    }

    /// An answer that makes no sense; what was asked may have been carried out.
    pub(crate) fn another_question() -> Self {
        let words = "an answer to another question";
        Self::plain(FailureKind::Protocol, true, words)
    }

    /// A grant whose validity was over when it came.
    pub(crate) fn too_late() -> Self {
        let words = "the lock was granted too late to be believed";
        Self::plain(FailureKind::Unavailable, true, words)
    }

    /// Until when what was `sent` then may be carried out, where it may have been. What was carried out in part is over.
    pub(crate) fn doubt(&self, sent: Time, lease: Duration) -> Option<Time> {
        if self.unknown {
            Some(sent + lease)
        } else {
            self.half_done.then_some(sent)
        }
    }

    pub(crate) fn passes(&self) -> bool {
        matches!(
            self.kind,
            FailureKind::Unavailable | FailureKind::NotReplicated { .. }
        )
    }

    /// Whether it says something of the server, or of the way there, and not only of what was asked.
    pub(crate) fn is_of_the_connection(&self) -> bool {
        self.unknown || self.passes()
    }

    pub(crate) fn into_error(self, name: Option<&str>) -> Error {
        let (name, cause) = (name.map(Arc::from), self.cause);
        match self.kind {
            FailureKind::Unavailable => Error::Unavailable { name, cause },
            FailureKind::Denied => Error::Denied { name, cause },
            FailureKind::WrongType => Error::WrongType { name, cause },
            FailureKind::PermitsDiffer { asked, stored } => Error::PermitsDiffer {
                name: name.unwrap_or_default(),
                asked,
                stored,
            },
            FailureKind::NotReplicated { wanted, confirmed } => Error::NotReplicated {
                name,
                wanted,
                confirmed,
            },
            FailureKind::Protocol => Error::Protocol { name, cause },
        }
    }
}

/// A text of somebody else's, fit for a message: without what would break the line, and cut where it is over-long.
pub(crate) fn on_a_line(text: &str) -> String {
    const SHOWN: usize = 500;
    let mut line = String::new();
    for c in text.trim().chars() {
        if line.len() >= SHOWN {
            line.push('…');
            break;
        }
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

#[derive(Debug)]
struct Plain(String);

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Plain {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn an_error_is_small() {
        assert!(size_of::<Error>() < 128, "{}", size_of::<Error>());
    }

    #[test]
    fn messages_name_the_lock_and_escape_it() {
        let error =
            Failure::plain(FailureKind::Unavailable, false, "gone").into_error(Some("a\nb"));
        assert_eq!(
            error.to_string(),
            "lock \"a\\nb\": the server is unavailable: gone"
        );
        assert_eq!(error.source().expect("it has a cause").to_string(), "gone");
        assert!(error.is_retryable());
    }
}
