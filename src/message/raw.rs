//! Commands that the command line makes itself, and the answers.

use std::time::Duration;

use crate::error::Failure;

/// A server's reply to a command of [`LockManager::raw`](crate::LockManager::raw).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawReply {
    /// No value.
    Nil,
    /// A number.
    Number(i64),
    /// A text, or a status such as `OK`. Bytes that are no UTF-8 are replaced.
    Text(String),
    /// Several replies.
    List(Vec<RawReply>),
    /// The error answer of the server, with its code, on one line and without the password.
    Refused(String),
}

/// Commands for the server at a place in the order of the pings, one after the other on a new connection.
#[derive(Clone, Copy)]
pub(crate) struct RawCall<'a> {
    pub(crate) server: usize,
    pub(crate) commands: &'a [&'a [&'a str]],
}

/// The replies to the commands of a call, each with the time of its round trip.
pub(crate) type RawAnswers = Result<Vec<(RawReply, Duration)>, Failure>;
