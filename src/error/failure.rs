//! Failed requests, as the inside of the crate works with them. Unlike an [`Error`], a [`Failure`] has the outcome of
//! the request.

use std::time::Duration;
use std::{fmt, io, iter};

use super::{Cause, Chain, Error, NodeFailure};
use crate::sys::{Arc, Time};

/// A failed request, on its way from the store to the code that decides what follows.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) outcome: Outcome,
    /// Whether the request failed only because its time was over.
    pub(crate) timed_out: bool,
    /// Whether no connection could be opened. So it is no answer to the request, and concerns all others too.
    pub(crate) of_connecting: bool,
    pub(crate) cause: Cause,
}

/// The effect of a failed request in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing, and it will do nothing.
    NotExecuted,
    /// It may have executed the request in part, or without the replicas that make it count. It will do no more.
    PartlyExecuted,
    /// It may have executed the request, or may still do so.
    Unknown,
}

/// The error that a failure becomes, and whether it is transient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// Transient.
    Unavailable,
    Denied,
    WrongType,
    /// Transient. Redis has executed the request.
    NotReplicated {
        wanted: u32,
        confirmed: u32,
    },
    /// Transient. Too few nodes of a quorum granted the request, and its owner was withdrawn: it must never ask again.
    /// The cause is a [`FailedNodes`].
    NoQuorum(NodeCounts),
    /// By the answer of the server, this setting cannot be used. The innermost cause says why.
    Config(&'static str),
    Protocol,
    /// This manager cannot use the server, or cannot use it for this.
    Unsupported(Unsupported),
    /// Another node of a cluster has the slot. The cause is a [`Redirect`].
    Moved,
    /// Another node of a cluster may have the keys, because their slot is moving. The cause is a [`Redirect`].
    Ask,
    /// Transient. The slot of the keys is moving, and no node has all of them.
    TryAgain,
    /// Transient. The same, after the store of a cluster has waited for the end of the move.
    SlotMoves,
    /// Transient. The cluster serves no slots now, or not this one.
    ClusterDown,
    /// One side of a TLS connection refuses the certificate of the other, or has none that the other wants.
    CertificateRefused,
}

/// The numbers of nodes of a quorum after a request that too few granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeCounts {
    pub(crate) nodes: u32,
    /// How many nodes are a majority.
    pub(crate) needed: u32,
    pub(crate) granted: u32,
}

/// The kind of a server that a manager cannot use, and what to do or why: the fields of [`Error::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsupported {
    topology: &'static str,
    what: &'static str,
}

impl Unsupported {
    pub(crate) const CLUSTER: Self = Self {
        topology: "a node of a Redis Cluster",
        what: "name such nodes in a URL that begins with redis+cluster://",
    };
    pub(crate) const NO_CLUSTER: Self = Self {
        topology: "no node of a Redis Cluster",
        what: "name it in a URL that begins with redis://",
    };
    pub(crate) const SENTINEL: Self = Self {
        topology: "a sentinel",
        what: "name the sentinels in a URL that begins with redis+sentinel://",
    };
    /// A semaphore or a rate limiter at a quorum.
    pub(crate) const COUNTED_BY_VOTES: Self =
        Self::by_votes("the votes of several nodes would admit more than one server that counts");
    /// A commit at a quorum.
    pub(crate) const WRITTEN_BY_VOTES: Self =
        Self::by_votes("the data of a commit is in one server");
    /// The record of a job that runs once, at a quorum.
    pub(crate) const RECORDED_BY_VOTES: Self =
        Self::by_votes("the record of a job that runs once is in one server");
    /// A commit under names in several slots.
    pub(crate) const SEVERAL_SLOTS: Self = Self {
        topology: "a cluster that has these names in several slots",
        what: "one script executes a commit; the same text in braces in each name puts them into one slot",
    };

    const fn by_votes(what: &'static str) -> Self {
        let topology = "a node of a quorum";
        Self { topology, what }
    }

    /// A quorum that has more than single servers.
    pub(crate) const fn as_a_node(topology: &'static str) -> Self {
        Self {
            topology,
            what: "after a failover it could vote for a second owner",
        }
    }
}

impl From<Unsupported> for Error {
    fn from(Unsupported { topology, what }: Unsupported) -> Self {
        Self::Unsupported { what, topology }
    }
}

/// Where a node of a cluster sends a client. It is the cause of the failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    /// Empty for the host that was asked.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot, host, port } = self;
        write!(f, "slot {slot} is at {:?}", format!("{host}:{port}"))
    }
}

impl std::error::Error for Redirect {}

impl Failure {
    pub(crate) fn new(kind: FailureKind, outcome: Outcome, cause: Cause) -> Self {
        Self {
            kind,
            outcome,
            timed_out: false,
            of_connecting: false,
            cause,
        }
    }

    /// Returns the failure of a request that must go to another node of a cluster.
    pub(crate) fn redirected(kind: FailureKind, to: Redirect) -> Self {
        Self::new(kind, Outcome::NotExecuted, Arc::new(to))
    }

    /// Returns where the request must go.
    pub(crate) fn redirect(&self) -> Option<&Redirect> {
        self.cause.downcast_ref()
    }

    /// Returns the failure of a server that this manager cannot use.
    pub(crate) fn unsupported(server: Unsupported) -> Self {
        Self::not_executed(FailureKind::Unsupported(server), server.what)
    }

    /// Returns the failure of a request that Redis will not execute, with a text as its cause.
    pub(crate) fn not_executed(kind: FailureKind, words: impl Into<String>) -> Self {
        Self::plain(kind, Outcome::NotExecuted, words)
    }

    /// Returns the failure of a request that Redis may execute or have executed, with a text as its cause.
    pub(crate) fn unknown(kind: FailureKind, words: impl Into<String>) -> Self {
        Self::plain(kind, Outcome::Unknown, words)
    }

    /// Returns a failure with a text as its cause.
    pub(crate) fn plain(kind: FailureKind, outcome: Outcome, words: impl Into<String>) -> Self {
        let words: Box<dyn std::error::Error + Send + Sync> = words.into().into();
        Self::new(kind, outcome, words.into())
    }

    /// Returns the same failure of a request that has had this outcome.
    pub(crate) fn with(self, outcome: Outcome) -> Self {
        Self { outcome, ..self }
    }

    /// Returns the same failure, with words in front of its cause, such as who has named the server that has failed.
    pub(crate) fn about(self, words: impl Into<String>) -> Self {
        let (words, cause) = (words.into(), self.cause);
        Self {
            cause: Arc::new(About { words, cause }),
            ..self
        }
    }

    /// Returns the same failure of a request for which no connection could be opened.
    pub(crate) fn of_connecting(self) -> Self {
        Self {
            outcome: Outcome::NotExecuted,
            of_connecting: true,
            ..self
        }
    }

    /// Returns the same failure of the server at this address. The words of a server do not name it.
    pub(crate) fn at(self, address: &str) -> Self {
        if Chain(&*self.cause).to_string().contains(address) {
            return self;
        }
        self.about(format!("asking {address}"))
    }

    /// Returns whether a connection broke, or could not be opened.
    pub(crate) fn is_of_io(&self) -> bool {
        sources(&*self.cause).any(<dyn std::error::Error>::is::<io::Error>)
    }

    /// Returns the failure of a request whose reply belongs to another request. Redis may have carried the request
    /// out.
    pub(crate) fn another_question() -> Self {
        let words = "the reply belongs to another request";
        Self::unknown(FailureKind::Protocol, words)
    }

    /// Returns the failure of a request that too few nodes of a quorum granted.
    pub(crate) fn no_quorum(counts: NodeCounts, failures: Vec<NodeFailure>) -> Self {
        let (kind, cause) = (FailureKind::NoQuorum(counts), FailedNodes(failures.into()));
        // The quorum withdraws the owner from each node that has executed the request.
        Self::new(kind, Outcome::NotExecuted, Arc::new(cause))
    }

    /// Returns the failure of a grant that came after its deadline.
    pub(crate) fn too_late() -> Self {
        let words = "the grant arrived after its lease had expired";
        Self::unknown(FailureKind::Unavailable, words)
    }

    /// Returns until when Redis may still execute the request that was sent at `sent`. Returns `None` if Redis has
    /// done nothing of it, and `sent` if it has done what it will do.
    pub(crate) fn uncertain_until(&self, sent: Time, lease: Duration) -> Option<Time> {
        match self.outcome {
            Outcome::NotExecuted => None,
            Outcome::PartlyExecuted => Some(sent),
            Outcome::Unknown => Some(sent + lease),
        }
    }

    /// Returns whether the failure is transient.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            FailureKind::Unavailable
                | FailureKind::NotReplicated { .. }
                | FailureKind::NoQuorum(_)
                | FailureKind::TryAgain
                | FailureKind::SlotMoves
                | FailureKind::ClusterDown
        )
    }

    /// Returns whether the failure concerns the server or the connection, and not only this request.
    pub(crate) fn is_of_the_connection(&self) -> bool {
        let is_of_the_slot = self.kind == FailureKind::SlotMoves;
        self.of_connecting
            || self.outcome == Outcome::Unknown
            || (self.is_transient() && !is_of_the_slot)
    }

    /// Makes the error that the caller gets.
    pub(crate) fn into_error(self, name: Option<&str>) -> Error {
        let (name, cause) = (name.map(Arc::from), self.cause);
        match self.kind {
            FailureKind::Unavailable
            | FailureKind::TryAgain
            | FailureKind::SlotMoves
            | FailureKind::ClusterDown => Error::Unavailable { name, cause },
            // A manager of a cluster follows them.
            FailureKind::Moved | FailureKind::Ask => Unsupported::CLUSTER.into(),
            FailureKind::Denied => Error::Denied { name, cause },
            FailureKind::WrongType => Error::WrongType { name, cause },
            FailureKind::NotReplicated { wanted, confirmed } => Error::NotReplicated {
                name,
                wanted,
                confirmed,
            },
            FailureKind::NoQuorum(NodeCounts {
                nodes,
                needed,
                granted,
            }) => Error::NoQuorum {
                name,
                nodes,
                needed,
                granted,
                failures: match cause.downcast_ref::<FailedNodes>() {
                    Some(FailedNodes(failures)) => Arc::clone(failures),
                    None => Arc::new([]),
                },
            },
            FailureKind::Config(option) => {
                let innermost = sources(&*cause).last().map(ToString::to_string);
                Error::config(option, innermost.unwrap_or_default())
            }
            FailureKind::Unsupported(server) => server.into(),
            FailureKind::Protocol => Error::Protocol { name, cause },
            FailureKind::CertificateRefused => Error::config("tls", Chain(&*cause).to_string()),
        }
    }
}

type Source = dyn std::error::Error + 'static;

/// Returns a cause and all that are below it.
fn sources(cause: &Source) -> impl Iterator<Item = &Source> {
    iter::successors(Some(cause), |deeper| deeper.source())
}

/// Returns a foreign text in a form fit for a message: on one line, and cut if it is too long.
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

/// A cause, and what it is about. The message of an [`Error`] has these words, because they name the server, and its
/// source is what is below them.
#[derive(Debug)]
pub(super) struct About {
    words: String,
    pub(super) cause: Cause,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for About {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.cause)
    }
}

/// The failures of several nodes of a quorum, on one line.
#[derive(Debug)]
pub(super) struct FailedNodes(pub(super) Arc<[NodeFailure]>);

impl fmt::Display for FailedNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, failure) in self.0.iter().enumerate() {
            f.write_str(if index > 0 { "; " } else { "" })?;
            write!(f, "{failure}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FailedNodes {}
