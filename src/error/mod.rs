//! The errors that callers see, and the loss of a lock. Inside, a request that failed is a [`Failure`].

use std::fmt;
use std::time::Duration;

use self::failure::{About, FailedNodes};
use crate::sys::Arc;

pub(crate) use failure::{
    Failure, FailureKind, NodeCounts, Outcome, Redirect, Unsupported, on_a_line,
};

mod failure;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The cause of an error, which [`std::error::Error::source`] returns.
pub(crate) type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// The reason why a call failed.
///
/// Every variant that concerns one lock names it. The message of a connection that could not be opened names the server. No
/// message holds a password. A message does not repeat its [`source`](std::error::Error::source): a reporter prints the
/// chain, and so does `{error:#}`. `{error:?}` is the name of the variant and that chain.
///
/// # The error for each reply
///
/// The third column is for a call that waits, after Redis has replied to it once. The wait goes on after the errors that are
/// [retryable](Error::is_retryable).
///
/// | the server | the error | the wait |
/// | --- | --- | --- |
/// | refuses the connection, closes or resets it, does not reply in time, closes it at `maxclients` | [`Unavailable`](Error::Unavailable) | goes on |
/// | replies `LOADING`, `BUSY`, `READONLY`, `MISCONF`, `OOM`, `NOREPLICAS`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN` | [`Unavailable`](Error::Unavailable) | goes on |
/// | replies `NOAUTH`, `WRONGPASS`, `NOPERM`, or has no password and gets one | [`Denied`](Error::Denied) | ends |
/// | replies `DENIED` because it is in protected mode; speaks TLS and this process does not, or the other way round | [`Denied`](Error::Denied) | ends |
/// | has a certificate that this process does not trust, or that has another name; wants a certificate of this process | [`Config`](Error::Config) | ends |
/// | replies `WRONGTYPE` | [`WrongType`](Error::WrongType) | ends |
/// | replies `MOVED`, `ASK`, `CROSSSLOT`, and is not used as a [cluster](crate::LockManager::cluster) | [`Unsupported`](Error::Unsupported) | ends |
/// | confirms a grant for fewer than [`replicas`](crate::Builder::replicas) | [`NotReplicated`](Error::NotReplicated) | goes on |
/// | is one of a quorum, and fewer than a majority answer or grant the lock | [`NoQuorum`](Error::NoQuorum) | goes on |
/// | sends anything else | [`Protocol`](Error::Protocol) | ends |
///
/// A wait goes on until its deadline. Without a deadline, it goes on until the server has not replied for
/// [`outage_limit`](crate::Builder::outage_limit). The first request of a call is not retried: its error is returned
/// at once, unless the manager [waits through outages](crate::Builder::wait_through_outages), or the slot of
/// the lock moves to another node of a [cluster](crate::LockManager::cluster).
#[derive(Clone)]
#[non_exhaustive]
pub enum Error {
    /// The manager is closed.
    Closed,
    /// This process is a forked child of the process that built the manager. Nothing was sent.
    Forked,
    /// The call's [`Cancel`](crate::Cancel) was cancelled before the call was granted anything.
    Cancelled,
    /// A setting cannot be used, and nothing was sent. Or the server does not have the database, one side of a TLS
    /// connection refuses the certificate of the other, or the other clients of a quorum use another
    /// [`restart_delay`](crate::Builder::restart_delay).
    Config {
        /// The name of the setting.
        option: &'static str,
        /// The reason why the setting cannot be used.
        reason: Box<str>,
    },
    /// The name cannot be the name of a lock. Nothing was sent.
    InvalidName {
        /// The name, cut if it is too long.
        name: Arc<str>,
        /// The reason why the name cannot be used.
        reason: &'static str,
    },
    /// The lock was lost before the guard ended. For [`adopt`](crate::LockManager::adopt): the claim is not valid any
    /// more.
    Lost(Lost),
    /// The lock was held until the end of the wait of a call that runs a closure, such as
    /// [`Mutex::with`](crate::Mutex::with). The closure did not run.
    Timeout {
        /// The name of the lock.
        name: Arc<str>,
        /// The time for which the call waited.
        waited: Duration,
        /// The owner that held the lock when this process last knew. If that is the value of another library, only its length,
        /// because the value may be a secret: [`inspect`](crate::LockManager::inspect) returns it.
        holder: Option<Arc<str>>,
    },
    /// The request did not reach the server, or the server did not reply in time, or it cannot execute the request
    /// now. A [`commit`](crate::LockGuard::commit) may have been executed all the same, or may be later.
    Unavailable {
        /// The name of the lock, or `None` if the error concerns no single lock.
        name: Option<Arc<str>>,
        /// The failure of the connection, or the server's reply.
        cause: Cause,
    },
    /// The server denies access to this user: the password is wrong, or its access control list does not allow the
    /// request. Or it refuses each connection of this process, by protected mode, or because one side alone speaks TLS.
    Denied {
        /// The name of the lock, or `None` if the error concerns no single lock.
        name: Option<Arc<str>>,
        /// The server's reply.
        cause: Cause,
    },
    /// A lock of another kind has this name, or other data has the key of the lock or of one of its companions.
    WrongType {
        /// The name of the lock, or `None` if the error concerns no single lock.
        name: Option<Arc<str>>,
        /// The kind of lock that has the name, or the server's reply.
        cause: Cause,
    },
    /// Fewer replicas than [`replicas`](crate::Builder::replicas) confirmed a grant or an extension in time. A lock
    /// that was granted is released again.
    NotReplicated {
        /// The name of the lock.
        name: Option<Arc<str>>,
        /// The number of replicas that must confirm it.
        wanted: u32,
        /// The number of replicas that confirmed it, as far as the server reported in time.
        confirmed: u32,
    },
    /// Too few nodes of a quorum answered, or granted the lock. A lock that some of them granted is withdrawn there.
    NoQuorum {
        /// The name of the lock, or `None` if the error concerns no single lock.
        name: Option<Arc<str>>,
        /// The number of nodes.
        nodes: u32,
        /// The number of nodes that are a majority.
        needed: u32,
        /// The number of nodes that granted the lock, or answered the request.
        granted: u32,
        /// The nodes that failed.
        failures: Arc<[NodeFailure]>,
    },
    /// The server is not of the kind that the manager needs: for a single server, it is a node of a Redis Cluster or a
    /// sentinel; for a cluster, it is no node of one. A Sentinel set or a Cluster cannot be one of several nodes of a quorum.
    Unsupported {
        /// The kind of server that is needed, or the reason why this one is not supported.
        what: &'static str,
        /// The kind of the server.
        topology: &'static str,
    },
    /// The server rejected a write of a [`commit`](crate::LockGuard::commit). The writes before it were executed, and those
    /// after it were not, because Redis does not roll back. The lock is held.
    Refused {
        /// How many writes were executed.
        done: usize,
        /// The server's words about the next one.
        cause: Cause,
    },
    /// The server sent a reply that does not belong to the request, or an error that this crate does not know.
    Protocol {
        /// The name of the lock, or `None` if the error concerns no single lock.
        name: Option<Arc<str>>,
        /// The reply.
        cause: Cause,
    },
}

impl Error {
    /// Adds to a `WrongType` error the kind of lock that has the name. Returns any other error unchanged.
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

impl fmt::Debug for Error {
    /// Writes the variant and the text of `{:#}`, because a program that returns an error from `main` prints this.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self:#}", self.kind())
    }
}

impl fmt::Display for Error {
    /// Writes the message. With `{:#}`, the messages of all sources follow, each after a colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.lock() {
            // A name is escaped, because it may hold line breaks, and messages go to logs.
            write!(f, "lock {name:?}: ")?;
        }
        self.write_message(f)?;
        if let Some(about) = self.about() {
            write!(f, ": {about}")?;
        }
        match std::error::Error::source(self) {
            Some(source) if f.alternate() => write!(f, ": {}", Chain(source)),
            _ => Ok(()),
        }
    }
}

/// An error and its sources, each after a colon, as log records show them.
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
    /// Returns the name of the lock, if the message begins with it.
    fn lock(&self) -> Option<&str> {
        match self {
            Self::Timeout { name, .. } => Some(name),
            Self::Unavailable { name, .. }
            | Self::Denied { name, .. }
            | Self::WrongType { name, .. }
            | Self::NotReplicated { name, .. }
            | Self::NoQuorum { name, .. }
            | Self::Protocol { name, .. } => name.as_deref(),
            _ => None,
        }
    }

    fn write_message(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the lock manager is closed"),
            Self::Forked => f.write_str(
                "this process was forked after the lock manager was built; build another one in the child",
            ),
            Self::Cancelled => f.write_str("the call was cancelled"),
            Self::Config { option, reason } => write!(f, "invalid `{option}`: {reason}"),
            Self::InvalidName { name, reason } => write!(f, "invalid lock name {name:?}: {reason}"),
            Self::Lost(lost) => write!(f, "{lost}"),
            Self::Timeout { waited, holder, .. } => {
                write!(f, "not acquired within {waited:?}")?;
                match holder {
                    Some(holder) => write!(f, ", held by {holder:?}"),
                    None => Ok(()),
                }
            }
            Self::Unavailable { .. } => f.write_str("the server is unavailable"),
            Self::Denied { .. } => f.write_str("the server denies access"),
            Self::WrongType { cause, .. } => f.write_str(if cause.is::<AnotherKind>() {
                "a lock of another kind has this name"
            } else {
                "another kind of lock, or other data, uses this name"
            }),
            Self::NotReplicated {
                wanted, confirmed, ..
            } => write!(
                f,
                "{confirmed} of {wanted} replicas confirmed the lock in time"
            ),
            Self::NoQuorum {
                nodes,
                needed,
                granted,
                failures,
                ..
            } => {
                write!(f, "{granted} of {nodes} nodes agreed, {needed} are needed")?;
                if !failures.is_empty() {
                    write!(f, ": {}", FailedNodes(Arc::clone(failures)))?;
                }
                Ok(())
            }
            Self::Unsupported { what, topology } => write!(
                f,
                "the server is {topology}, which is not supported: {what}"
            ),
            Self::Refused { done: 0, .. } => f.write_str("the server rejected the first write"),
            Self::Refused { done, .. } => write!(
                f,
                "the server executed {done} of the writes, and rejected the next one"
            ),
            Self::Protocol { .. } => f.write_str("the server sent an unexpected reply"),
        }
    }

    /// Returns the subject of the cause, if it names one. The message has these words already, so the source begins below them.
    fn about(&self) -> Option<&About> {
        match self {
            Self::Unavailable { cause, .. }
            | Self::Denied { cause, .. }
            | Self::Protocol { cause, .. } => cause.downcast_ref(),
            _ => None,
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Some(about) = self.about() {
            return Some(&*about.cause);
        }
        match self {
            Self::Unavailable { cause, .. }
            | Self::Denied { cause, .. }
            | Self::WrongType { cause, .. }
            | Self::Refused { cause, .. }
            | Self::Protocol { cause, .. } => Some(&**cause),
            _ => None,
        }
    }
}

/// Defines [`ErrorKind`]: the label of each variant of [`Error`], whether it is retryable, and why.
macro_rules! kinds {
    ($($kind:ident: $label:literal, $is_retryable:literal, $why:literal;)*) => {
        /// A variant of [`Error`] without its fields: see [`Error::kind`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {$(
            #[doc = concat!("[`Error::", stringify!($kind), "`]")]
            $kind,
        )*}

        impl ErrorKind {
            /// Returns the name of the variant in lowercase with underscores, such as `not_replicated`. It never changes.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {$(Self::$kind => $label,)*}
            }

            /// Returns whether errors of this variant are retryable: see [`Error::is_retryable`].
            #[must_use]
            pub fn is_retryable(self) -> bool {
                match self {$(Self::$kind => $is_retryable,)*}
            }
        }

        impl Error {
            /// Returns whether the same call may succeed later although the program changes nothing.
            ///
            /// After a [`commit`](crate::LockGuard::commit), retryable does not mean that nothing was written: `Unavailable`
            /// says that it may have been executed, and `NotReplicated` that it was.
            ///
            /// # What is retryable
            ///
            /// | the error | retryable | |
            /// | --- | --- | --- |
            $(#[doc = concat!(
                "| [`", stringify!($kind), "`](Error::", stringify!($kind), ") | `", $is_retryable, "` | ", $why, " |"
            )])*
            ///
            /// # Example
            ///
            /// ```no_run
            /// # fn main() -> leasehold::Result<()> {
            /// use leasehold::LockManager;
            /// use std::time::Duration;
            ///
            /// let locks = LockManager::single("redis://127.0.0.1/").build_lazy()?;
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

            /// Returns the variant without its fields, for example to count errors by it.
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
                match self {$(Self::$kind { .. } => ErrorKind::$kind,)*}
            }
        }
    };
}

kinds! {
    Closed: "closed", false, "the manager does not open again";
    Forked: "forked", false, "the child must build a manager of its own";
    Cancelled: "cancelled", false, "the token stays cancelled";
    Config: "config", false, "the setting must be changed";
    InvalidName: "invalid_name", false, "the name must be changed";
    Lost: "lost", false, "the closure has run, or the claim is not valid any more: the program decides";
    Timeout: "timeout", true, "the closure has not run, and the lock may be free later";
    Unavailable: "unavailable", true, "the server may be reachable again";
    Denied: "denied", false, "the password or the user's rights must be changed";
    WrongType: "wrong_type", false, "the name is in use for something else";
    NotReplicated: "not_replicated", true, "the replicas may be back";
    NoQuorum: "no_quorum", true, "the nodes may be reachable again";
    Unsupported: "unsupported", false, "the address must be changed";
    Refused: "refused", false, "the command or the user's rights must be changed, or the server needs memory";
    Protocol: "protocol", false, "the server is not a Redis that this crate knows";
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The failure of one node of a quorum: see [`Error::NoQuorum`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeFailure {
    /// The address of the node.
    pub node: Arc<str>,
    /// The reason why the node did not grant the request.
    pub error: Error,
}

impl fmt::Display for NodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:#}", self.node, self.error)
    }
}

/// The kind of lock that already has the name.
#[derive(Debug)]
struct AnotherKind(&'static str);

impl fmt::Display for AnotherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is the name of a {}", self.0)
    }
}

impl std::error::Error for AnotherKind {}

/// The loss of a lock: its lease ended before its guard did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// The name of the lock.
    pub name: Arc<str>,
    /// The fence of the guard that lost the lock.
    pub fence: u64,
    /// The cause of the loss.
    pub cause: LostCause,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {:?} was lost: {}", self.name, self.cause.why())
    }
}

/// The cause of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostCause {
    /// The deadline of the lease passed, by this process's clock.
    Expired,
    /// Redis replied that another owner holds the lock.
    Taken,
    /// Redis replied that the key of the lock, or this owner's part of it, does not exist.
    Removed,
    /// The guard was held for longer than its `max_hold`.
    MaxHold,
}

impl LostCause {
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::Expired => "its lease expired before it was renewed",
            Self::Taken => "another owner holds it",
            Self::Removed => "its key was removed from Redis",
            Self::MaxHold => "the guard was held for longer than max_hold",
        }
    }
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
            Failure::not_executed(FailureKind::Unavailable, "gone").into_error(Some("a\nb"));
        assert_eq!(
            error.to_string(),
            "lock \"a\\nb\": the server is unavailable"
        );
        assert_eq!(format!("{error:#}"), format!("{error}: gone"));
        assert_eq!(error.source().expect("it has a cause").to_string(), "gone");
        assert!(error.is_retryable());
    }
}
