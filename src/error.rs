//! The errors that callers see. `failure` has what the inside passes on.

use std::fmt;
use std::time::Duration;

use crate::sync::Arc;

pub(crate) use failure::{Failure, FailureKind, Mode, on_a_line};

// By its path, because benches include this file from elsewhere.
#[path = "error/failure.rs"]
mod failure;

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What an error was caused by, kept for [`std::error::Error::source`].
pub(crate) type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Why a call failed.
///
/// Every variant that concerns one lock names it. No message holds a password. A message does not repeat its
/// [`source`](std::error::Error::source): a reporter prints the chain, and so does `{error:#}`.
///
/// # What is retryable
///
/// [`is_retryable`](Error::is_retryable) is the second column. A retryable error says that the same call may succeed
/// later although nothing is changed.
///
/// | the error | retryable | |
/// | --- | --- | --- |
/// | [`Unavailable`](Error::Unavailable) | yes | the server may be reachable again |
/// | [`Timeout`](Error::Timeout) | yes | the closure has not run, and the lock may be free later |
/// | [`NotReplicated`](Error::NotReplicated) | yes | the replicas may be back |
/// | [`Lost`](Error::Lost) | no | work was done under the lock, or a claim is no longer valid: the program decides |
/// | [`Closed`](Error::Closed) | no | the manager does not open again |
/// | [`Cancelled`](Error::Cancelled) | no | the token stays cancelled |
/// | [`Config`](Error::Config) | no | the setting must be changed |
/// | [`InvalidName`](Error::InvalidName) | no | the name must be changed |
/// | [`Denied`](Error::Denied) | no | the password or the user's rights must be changed |
/// | [`WrongType`](Error::WrongType) | no | the name is in use for something else |
/// | [`PermitsDiffer`](Error::PermitsDiffer) | no | all users of a semaphore must agree on its permits |
/// | [`Unsupported`](Error::Unsupported) | no | the address must be changed |
/// | [`Protocol`](Error::Protocol) | no | the server is not a Redis that this crate knows |
///
/// # What a server's answer becomes
///
/// | the server | the error | a wait that has begun | retryable |
/// | --- | --- | --- | --- |
/// | refuses the connection, closes or resets it, does not answer in time, closes at `maxclients` | [`Unavailable`](Error::Unavailable) | goes on | yes |
/// | `LOADING`, `BUSY`, `READONLY`, `MISCONF`, `OOM`, `NOREPLICAS`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN` | [`Unavailable`](Error::Unavailable) | goes on | yes |
/// | `NOAUTH`, `WRONGPASS`, `NOPERM` | [`Denied`](Error::Denied) | ends | no |
/// | `WRONGTYPE` | [`WrongType`](Error::WrongType) | ends | no |
/// | `MOVED`, `ASK`, `CROSSSLOT` | [`Unsupported`](Error::Unsupported) | ends | no |
/// | that the others use the semaphore with other permits | [`PermitsDiffer`](Error::PermitsDiffer) | ends | no |
/// | confirms a grant for fewer than [`replicas`](crate::Builder::replicas) | [`NotReplicated`](Error::NotReplicated) | goes on | yes |
/// | anything that is no answer to what was asked | [`Protocol`](Error::Protocol) | ends | no |
///
/// A wait goes on until its own deadline, and without one until
/// [`outage_limit`](crate::Builder::outage_limit) has passed without an answer. The very first request of a
/// call is not retried: its error is returned at once, unless the manager
/// [waits through outages](crate::Builder::wait_through_outages).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The manager was closed, or this is a forked child of the process that made it.
    Closed,
    /// The call's [`Cancel`](crate::Cancel) was cancelled before it was granted anything.
    Cancelled,
    /// A setting cannot be used, and nothing was sent; or the server does not have the database.
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
    /// A lock of another kind has this name, or the lock's key or one of its companions holds other data.
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
        /// How many did, as far as the server reported in time.
        confirmed: u32,
    },
    /// Others who use the name at this time divide it into another number of permits.
    PermitsDiffer {
        /// The semaphore.
        name: Arc<str>,
        /// The permits that this handle asked for.
        asked: u32,
        /// The permits that the other users asked for.
        stored: u32,
    },
    /// The server runs in a mode that cannot do this: it is a node of a Redis Cluster, or a sentinel.
    Unsupported {
        /// The thing that the server cannot do.
        what: &'static str,
        /// The kind of the server.
        topology: &'static str,
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
    /// Returns whether the same call can succeed later without anything being changed; see the table at [`Error`].
    ///
    /// [`Lost`](Error::Lost) is not retryable: a closure has run under the lock, or a claim is no longer valid.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// use leasehold::LockManager;
    /// use std::time::Duration;
    ///
    /// let locks = LockManager::single("redis://127.0.0.1/").build_unchecked()?;
    /// let guard = loop {
    ///     match locks.lock("orders:42") {
    ///         Ok(guard) => break guard,
    ///         Err(error) if error.is_retryable() => std::thread::sleep(Duration::from_millis(200)),
    ///         Err(error) => return Err(error),
    ///     }
    /// };
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }

    /// Returns the variant without its fields, to count errors by or to label a metric with.
    ///
    /// # Example
    ///
    /// ```
    /// use leasehold::{ErrorKind, LockManager};
    ///
    /// let error = LockManager::connect("no-url").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Config);
    /// assert_eq!(error.kind().as_str(), "config");
    /// ```
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Closed => ErrorKind::Closed,
            Self::Cancelled => ErrorKind::Cancelled,
            Self::Config { .. } => ErrorKind::Config,
            Self::InvalidName { .. } => ErrorKind::InvalidName,
            Self::Lost(_) => ErrorKind::Lost,
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::Unavailable { .. } => ErrorKind::Unavailable,
            Self::Denied { .. } => ErrorKind::Denied,
            Self::WrongType { .. } => ErrorKind::WrongType,
            Self::NotReplicated { .. } => ErrorKind::NotReplicated,
            Self::PermitsDiffer { .. } => ErrorKind::PermitsDiffer,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Protocol { .. } => ErrorKind::Protocol,
        }
    }

    /// Returns the same error; a `WrongType` says in addition which kind of lock has the name.
    pub(crate) fn of_another_kind(self, found: &'static str) -> Self {
        match self {
            Self::WrongType { name, .. } => Self::WrongType {
                name,
                cause: Arc::new(AnotherKind(found)),
            },
            other => other,
        }
    }

    pub(crate) fn config(option: &'static str, reason: impl Into<Box<str>>) -> Self {
        Self::Config {
            option,
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Error {
    /// Writes the message; with `{:#}` the messages of all sources follow, each after a colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_message(f)?;
        match std::error::Error::source(self) {
            Some(source) if f.alternate() => write!(f, ": {}", Chain(source)),
            _ => Ok(()),
        }
    }
}

/// An error and its sources, each after a colon: how the log shows one.
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl Error {
    fn write_message(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names are shown escaped: they may hold line breaks, and messages end up in logs.
        let about = |f: &mut fmt::Formatter<'_>, name: &Option<Arc<str>>| match name {
            Some(name) => write!(f, "lock {name:?}: "),
            None => Ok(()),
        };
        match self {
            Self::Closed => f.write_str(
                "the lock manager was closed, or this process was forked after it was built",
            ),
            Self::Cancelled => f.write_str("the call was cancelled"),
            Self::Config { option, reason } => write!(f, "invalid `{option}`: {reason}"),
            Self::InvalidName { name, reason } => write!(f, "invalid lock name {name:?}: {reason}"),
            Self::Lost(lost) => write!(f, "{lost}"),
            Self::Timeout {
                name,
                waited,
                holder,
            } => {
                write!(f, "lock {name:?}: not acquired within {waited:?}")?;
                match holder {
                    Some(holder) => write!(f, ", held by {holder:?}"),
                    None => Ok(()),
                }
            }
            Self::Unavailable { name, .. } => {
                about(f, name)?;
                f.write_str("the server is unavailable")
            }
            Self::Denied { name, .. } => {
                about(f, name)?;
                f.write_str("the server denies access")
            }
            Self::WrongType { name, cause } => {
                about(f, name)?;
                if cause.is::<AnotherKind>() {
                    f.write_str("a lock of another kind has this name")
                } else {
                    f.write_str("another kind of lock, or other data, uses this name")
                }
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
                "lock {name:?}: this handle has {asked} permits, but others use it with {stored}"
            ),
            Self::Unsupported { what, topology } => {
                write!(
                    f,
                    "the server is {topology}, which is not supported: {what}"
                )
            }
            Self::Protocol { name, .. } => {
                about(f, name)?;
                f.write_str("the server sent an unexpected answer")
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
            | Self::Cancelled
            | Self::Config { .. }
            | Self::InvalidName { .. }
            | Self::Lost(_)
            | Self::NotReplicated { .. }
            | Self::PermitsDiffer { .. }
            | Self::Unsupported { .. }
            | Self::Timeout { .. } => None,
        }
    }
}

/// A variant of [`Error`] without its fields: see [`Error::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// [`Error::Closed`]
    Closed,
    /// [`Error::Cancelled`]
    Cancelled,
    /// [`Error::Config`]
    Config,
    /// [`Error::InvalidName`]
    InvalidName,
    /// [`Error::Lost`]
    Lost,
    /// [`Error::Timeout`]
    Timeout,
    /// [`Error::Unavailable`]
    Unavailable,
    /// [`Error::Denied`]
    Denied,
    /// [`Error::WrongType`]
    WrongType,
    /// [`Error::NotReplicated`]
    NotReplicated,
    /// [`Error::PermitsDiffer`]
    PermitsDiffer,
    /// [`Error::Unsupported`]
    Unsupported,
    /// [`Error::Protocol`]
    Protocol,
}

impl ErrorKind {
    /// Returns its name in lowercase with underscores, such as `not_replicated`. It never changes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Cancelled => "cancelled",
            Self::Config => "config",
            Self::InvalidName => "invalid_name",
            Self::Lost => "lost",
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::WrongType => "wrong_type",
            Self::NotReplicated => "not_replicated",
            Self::PermitsDiffer => "permits_differ",
            Self::Unsupported => "unsupported",
            Self::Protocol => "protocol",
        }
    }

    /// Returns what [`Error::is_retryable`] returns for this variant.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Timeout | Self::Unavailable | Self::NotReplicated => true,
            Self::Closed
            | Self::Cancelled
            | Self::Config
            | Self::InvalidName
            | Self::Lost
            | Self::Denied
            | Self::WrongType
            | Self::PermitsDiffer
            | Self::Unsupported
            | Self::Protocol => false,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The kind of lock that has a name already.
#[derive(Debug)]
struct AnotherKind(&'static str);

impl fmt::Display for AnotherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is the name of a {}", self.0)
    }
}

impl std::error::Error for AnotherKind {}

/// The end of a lease that its guard did not bring about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
            LostCause::Expired => "its lease expired before it was renewed",
            LostCause::Taken => "another owner holds it",
            LostCause::Removed => "its key was removed from Redis",
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
            "lock \"a\\nb\": the server is unavailable"
        );
        assert_eq!(format!("{error:#}"), format!("{error}: gone"));
        assert_eq!(error.source().expect("it has a cause").to_string(), "gone");
        assert!(error.is_retryable());
    }
}
