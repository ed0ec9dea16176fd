//! A request that failed, as the inside passes it on: with its outcome, which callers do not see.

use std::fmt;
use std::time::Duration;

use crate::clock::Time;
use crate::error::{Cause, Error};
use crate::sync::Arc;

/// A request that failed, on its way from the store to whoever decides what to do about it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    /// Whether the request may have been carried out, or may yet be.
    pub(crate) unknown: bool,
    /// Whether it may have been carried out in part, or wholly but without what makes it count. That is over: nothing is
    /// to come.
    pub(crate) half_done: bool,
    /// Whether it failed only because the time for it was over.
    pub(crate) timed_out: bool,
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
    /// The server runs in a mode that this manager cannot use.
    Unsupported(Mode),
    /// The server has fewer databases.
    NoSuchDatabase(i64),
}

/// A mode of a server in which it is not one master with all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Cluster,
    Sentinel,
}

impl Failure {
    /// A server in a mode that this manager cannot use.
    pub(crate) fn unsupported(mode: Mode) -> Self {
        Self::plain(FailureKind::Unsupported(mode), false, "its mode")
    }

    /// A failure in plain words.
    pub(crate) fn plain(kind: FailureKind, unknown: bool, words: impl Into<String>) -> Self {
        Self {
            kind,
            unknown,
            half_done: false,
            timed_out: false,
            cause: Arc::new(Plain(words.into())),
        }
    }

    /// An answer to another request. The request itself may have been carried out.
    pub(crate) fn another_question() -> Self {
        let words = "the answer belongs to another request";
        Self::plain(FailureKind::Protocol, true, words)
    }

    /// A grant whose validity was over when it came.
    pub(crate) fn too_late() -> Self {
        let words = "the grant arrived after its lease had expired";
        Self::plain(FailureKind::Unavailable, true, words)
    }

    /// Until when what was `sent` then may be carried out, where it may have been. What was carried out in part is over.
    pub(crate) fn uncertain_until(&self, sent: Time, lease: Duration) -> Option<Time> {
        if self.unknown {
            Some(sent + lease)
        } else {
            self.half_done.then_some(sent)
        }
    }

    /// Returns whether the time was over before the request was sent: the thread waited for a connection.
    pub(crate) fn was_not_sent(&self) -> bool {
        self.timed_out && !self.unknown && !self.half_done && self.is_transient()
    }

    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            FailureKind::Unavailable | FailureKind::NotReplicated { .. }
        )
    }

    /// Whether it says something of the server, or of the way there, and not only of what was asked.
    pub(crate) fn is_of_the_connection(&self) -> bool {
        self.unknown || self.is_transient()
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
            FailureKind::NoSuchDatabase(number) => {
                Error::config("database", format!("the server has no database {number}"))
            }
            FailureKind::Unsupported(mode) => Error::Unsupported {
                what: "`LockManager::single` needs the address of one master that holds all keys",
                topology: match mode {
                    Mode::Cluster => "a node of a Redis Cluster",
                    Mode::Sentinel => "a sentinel",
                },
            },
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
