//! The failures of the nodes of a quorum.

use std::fmt;

use crate::error::Error;
use crate::sync::Arc;

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

/// Writes the failures of several nodes on one line.
pub(super) fn write(f: &mut fmt::Formatter<'_>, failures: &[NodeFailure]) -> fmt::Result {
    for (index, failure) in failures.iter().enumerate() {
        if index > 0 {
            f.write_str("; ")?;
        }
        write!(f, "{failure}")?;
    }
    Ok(())
}

/// The failures of several nodes, as the cause of one failure.
#[derive(Debug)]
pub(super) struct NodeFailures(pub(super) Arc<[NodeFailure]>);

impl fmt::Display for NodeFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, &self.0)
    }
}

impl std::error::Error for NodeFailures {}
