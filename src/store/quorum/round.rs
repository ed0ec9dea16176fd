//! One round: a request to several nodes, and their answers.
//!
//! 1. The request is written to each node, before any answer is read. A node that is down, or has too many answers
//!    missing, is skipped.
//! 2. The answers are read as they come. After each of them the caller says whether it has enough. Nodes that are alike
//!    answer at almost the same time, and to wake a thread takes longer than to read an answer. So the thread first
//!    waits, for at most a millisecond, for the answer that is probably the last that it needs. With TLS, a node that
//!    sends only a part of a record delays the round until the rest comes, or the time is over.
//! 3. If the caller has almost enough, because a majority agrees, the round waits for the other nodes only for a
//!    quarter of `node_timeout`. So a lock gets the votes of all nodes that are well. A node that takes longer is late:
//!    for a second no round waits for it alone, unless it answers in time before. So a node that hangs costs that time
//!    once, until it is down.
//! 4. A node that has answered nobody for `node_timeout` is down.

use std::time::{Duration, Instant};

use redis::Value;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

use crate::error::Failure;
use crate::store::quorum::connection::NodeConnection;

/// For how long a round waits for one answer alone.
const TOGETHER: Duration = Duration::from_millis(1);

/// How long a round waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    /// The longest time.
    pub(super) limit: Duration,
    /// The longest time after the caller has almost enough.
    pub(super) grace: Duration,
    /// How many nodes it probably takes until the caller has enough.
    pub(super) nodes: usize,
}

/// The verdict of a caller on the answers so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enough {
    No,
    /// The result is certain, but further answers would be of use.
    Almost,
    Yes,
}

/// Reads the answers that the connections wait for. Gives each answer to `heard`, or the failure of a connection once.
/// Afterwards no connection waits for anything.
pub(super) fn gather(
    connections: &mut [NodeConnection],
    waits: Waits,
    heard: &mut dyn FnMut(usize, Result<Value, Failure>) -> Enough,
) {
    let begun = Instant::now();
    let mut until = begun + waits.limit;
    let mut last_needed = last_needed(connections, waits.nodes);
    let mut enough = Enough::No;
    'reading: loop {
        // 1. Take the answers that were read.
        for (number, connection) in connections.iter_mut().enumerate() {
            while connection.is_wanted() && enough != Enough::Yes {
                let answer = match connection.answer() {
                    Ok(None) => break,
                    Ok(Some(value)) => Ok(value),
                    Err(failure) => Err(failure),
                };
                let before = enough;
                enough = heard(number, answer);
                if (before, enough) == (Enough::No, Enough::Almost) {
                    until = until.min(Instant::now() + waits.grace);
                }
            }
        }
        // 2. Is that enough? A late node alone is not waited for.
        let is_waited_for = |connection: &NodeConnection| {
            connection.is_wanted() && !(enough == Enough::Almost && connection.node().is_late())
        };
        if enough == Enough::Yes || !connections.iter().any(is_waited_for) {
            break;
        }
        // 3. Wait for more: first for the last node that is needed, then for any.
        let now = Instant::now();
        let left = until.saturating_duration_since(now);
        if let Some(number) = last_needed.filter(|number| connections[*number].is_wanted()) {
            let alone = left.min((begun + TOGETHER).saturating_duration_since(now));
            if connections[number].is_readable(alone) {
                if let Err(failure) = connections[number].read(left) {
                    enough = heard(number, Err(failure));
                }
                continue;
            }
        }
        last_needed = None;
        let readable = wait(connections, left);
        if readable.is_empty() {
            if left.is_zero() {
                break;
            }
            continue;
        }
        for number in readable {
            let left = until.saturating_duration_since(Instant::now());
            if let Err(failure) = connections[number].read(left) {
                enough = heard(number, Err(failure));
                if enough == Enough::Yes {
                    break 'reading;
                }
            }
        }
    }
    // 4. Stop waiting.
    for (number, connection) in connections.iter_mut().enumerate() {
        if !connection.is_wanted() {
            continue;
        }
        if enough == Enough::No {
            let failure = connection.timed_out(begun.elapsed());
            heard(number, Err(failure));
        } else {
            // A node that was skipped because it is late has had no new chance.
            if enough == Enough::Almost && !connection.node().is_late() {
                connection.node().note_late();
            }
            connection.give_up();
        }
    }
}

/// Returns the connection whose answer is probably the last of `nodes` answers, by what each node took the last time.
fn last_needed(connections: &[NodeConnection], nodes: usize) -> Option<usize> {
    let mut wanted: SmallVec<[(Duration, usize); 8]> = connections
        .iter()
        .enumerate()
        .filter(|(_, connection)| connection.is_wanted() && !connection.node().is_late())
        .map(|(number, connection)| (connection.took(), number))
        .collect();
    wanted.sort_unstable();
    let last = nodes.min(wanted.len()).checked_sub(1)?;
    Some(wanted[last].1)
}

/// Waits until a connection that is wanted has something to read, for at most `left`. Returns those that have.
fn wait(connections: &[NodeConnection], left: Duration) -> Vec<usize> {
    let wanted: Vec<_> = connections
        .iter()
        .enumerate()
        .filter_map(|(number, connection)| {
            Some((
                number,
                connection.is_wanted().then(|| connection.socket())??,
            ))
        })
        .collect();
    let mut polled: Vec<_> = wanted
        .iter()
        .map(|(_, socket)| PollFd::new(*socket, PollFlags::IN))
        .collect();
    // An error means that a signal came, or that the system has no memory: look again.
    let ready = poll(&mut polled, Timespec::try_from(left).ok().as_ref()).unwrap_or(0);
    if ready == 0 {
        return Vec::new();
    }
    let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
    wanted
        .iter()
        .zip(&polled)
        .filter_map(|((number, _), fd)| is_ready(fd).then_some(*number))
        .collect()
}
