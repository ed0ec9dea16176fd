//! Listening to channels at all nodes at the same time, on one thread.
//!
//! A release wakes the first waiter at each node, by one message for each. A waiter that asked after the first message
//! could find the lock still held at the others. So a message about an owner is passed on when a majority of the nodes
//! has sent it. The queues of the nodes may differ, and then no owner has a majority: so it is passed on a moment after
//! the first message at the latest. If the majority is complete only after that, the other nodes were slow, and the waiter
//! may have found the lock still held there: so the message is passed on once more. Further messages of the same release are
//! dropped.
//!
//! | step | the thread |
//! | --- | --- |
//! | 1 | Subscribe at each node that is up. With a majority of them the listener is subscribed; with fewer it fails. |
//! | 2 | Wait until a node sends something, for at most a second. Pass messages on, as above. |
//! | 3 | A node that has sent nothing for three seconds gets a PING. Without an answer within `io_timeout` its connection is closed. |
//! | 4 | Every second, subscribe at nodes that are up and have no connection. |

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Failure;
use crate::script::Command;
use crate::store::PubSubEvent;
use crate::store::login::connect;
use crate::store::pubsub::{PushMessage, subscribe};
use crate::store::quorum::Shared;
use crate::store::route::Budget;
use crate::store::socket::Socket;

/// How long a message waits for the same message of other nodes.
const GATHERED_FOR: Duration = Duration::from_millis(2);
/// How long further messages of the same release may take.
const SAME_RELEASE: Duration = Duration::from_millis(50);
/// How long one wait is, and how often step 4 is done.
const SILENCE: Duration = Duration::from_secs(1);
/// How long a part of a TLS record, which cannot be read alone, may delay the messages of the other nodes.
const REST_OF_RECORD: Duration = Duration::from_millis(1);
/// After this silence a node gets a PING.
const SILENCE_TO_PING: Duration = Duration::from_secs(3);

/// A connection that is subscribed at one node.
struct Listener {
    socket: Socket,
    heard: Instant,
    pinged: Option<Instant>,
}

/// The messages about one owner, by channel and payload.
type Hints = HashMap<(String, Vec<u8>), Hint>;

struct Hint {
    /// The nodes that have sent it.
    nodes: Vec<usize>,
    first: Instant,
    /// How many nodes had sent it when it was passed on last. 0 if it was not passed on yet.
    passed_on_for: usize,
}

/// Listens until `hear` returns false. See [`crate::store::Store::listen`].
pub(super) fn listen(
    shared: &Shared,
    channels: &[&str],
    hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
) -> Result<(), Failure> {
    let mut failures: Vec<Option<Failure>> = vec![None; shared.nodes.len()];
    let mut listeners: Vec<Option<Listener>> = Vec::new();
    listeners.resize_with(shared.nodes.len(), || None);
    subscribe_missing(shared, channels, &mut listeners, &mut failures, hear);
    let mut reached = vec![None; shared.nodes.len() + 1];
    report(shared, &listeners, &failures, &mut reached, hear);
    check_majority(shared, &listeners, &failures)?;
    if !hear(PubSubEvent::Subscribed) {
        return Ok(());
    }
    let mut hints = Hints::new();
    let mut subscribe_at = Instant::now() + SILENCE;
    loop {
        // 2. Pass messages on. The first may have come with the answer to a subscription.
        for (number, slot) in listeners.iter_mut().enumerate() {
            let noted =
                |listener: &mut Listener| note_messages(shared, listener, number, &mut hints);
            if let Some(Err(failure)) = slot.as_mut().map(noted) {
                *slot = None;
                failures[number] = Some(failure);
            }
        }
        let now = Instant::now();
        let mut is_wanted = true;
        for ((channel, payload), hint) in &mut hints {
            if hint.take_due(now, shared.needed) {
                is_wanted &= hear(PubSubEvent::Message { channel, payload });
            }
        }
        hints.retain(|_, hint| now < hint.first + SAME_RELEASE);
        // 3 and 4.
        if now >= subscribe_at {
            is_wanted &= hear(PubSubEvent::Silence);
            ping_silent(shared, &mut listeners, &mut failures);
            subscribe_missing(shared, channels, &mut listeners, &mut failures, hear);
            subscribe_at = Instant::now() + SILENCE;
        }
        if !is_wanted {
            return Ok(());
        }
        report(shared, &listeners, &failures, &mut reached, hear);
        check_majority(shared, &listeners, &failures)?;
        // Wait, and read what has come.
        let hint_due = hints.values().filter_map(Hint::due).min();
        let until = hint_due.map_or(subscribe_at, |due| due.min(subscribe_at));
        for number in wait(&listeners, until.saturating_duration_since(Instant::now())) {
            let route = &shared.nodes[number].route;
            let read = |listener: &mut Listener| -> Result<(), Failure> {
                match listener.socket.read(REST_OF_RECORD) {
                    Ok(()) => (listener.heard, listener.pinged) = (Instant::now(), None),
                    Err(fault) if fault.is_timeout() => {}
                    Err(fault) => return Err(route.broken(fault)),
                }
                Ok(())
            };
            if let Some(Err(failure)) = listeners[number].as_mut().map(read) {
                listeners[number] = None;
                failures[number] = Some(failure);
            }
        }
    }
}

/// Notes the messages of a node that were read.
fn note_messages(
    shared: &Shared,
    listener: &mut Listener,
    number: usize,
    hints: &mut Hints,
) -> Result<(), Failure> {
    let route = &shared.nodes[number].route;
    while let Some(value) = listener
        .socket
        .take()
        .map_err(|fault| route.broken(fault))?
    {
        if let PushMessage::Message { channel, payload } = PushMessage::of(&route.server, value)? {
            let channel = String::from_utf8_lossy(&channel).into_owned();
            let now = Instant::now();
            let hint = hints.entry((channel, payload));
            hint.or_insert_with(|| Hint::new(now)).note(number, now);
        }
    }
    Ok(())
}

impl Hint {
    fn new(now: Instant) -> Self {
        Self {
            nodes: Vec::new(),
            first: now,
            passed_on_for: 0,
        }
    }

    /// Notes the message of a node at `now`.
    fn note(&mut self, node: usize, now: Instant) {
        let is_repeated = self.nodes.contains(&node);
        if is_repeated && self.passed_on_for == 0 {
            return;
        }
        // Otherwise the node has released the lock once more.
        if is_repeated || now >= self.first + SAME_RELEASE {
            *self = Self::new(now);
        }
        self.nodes.push(node);
    }

    /// Returns when the message must be passed on, even without a majority. Returns `None` if it was passed on.
    fn due(&self) -> Option<Instant> {
        (self.passed_on_for == 0).then(|| self.first + GATHERED_FOR)
    }

    /// Returns whether the message must be passed on at `now`, and notes that it is. `needed` nodes are a majority.
    fn take_due(&mut self, now: Instant, needed: usize) -> bool {
        let has_new_majority = self.nodes.len() >= needed && self.passed_on_for < needed;
        let is_due = has_new_majority || self.due().is_some_and(|due| now >= due);
        if is_due {
            self.passed_on_for = self.nodes.len();
        }
        is_due
    }
}

/// Does step 1, and step 4: subscribes at each node that is up and has no connection.
fn subscribe_missing(
    shared: &Shared,
    channels: &[&str],
    listeners: &mut [Option<Listener>],
    failures: &mut [Option<Failure>],
    hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
) {
    for (number, listener) in listeners.iter_mut().enumerate() {
        if listener.is_some() {
            continue;
        }
        let node = &shared.nodes[number];
        let subscribed = node.check_up().and_then(|()| {
            let mut socket = connect(&node.route, &Budget::new(shared.node_timeout))?;
            let muted = subscribe(&mut socket, &node.route, shared.node_timeout, channels)?;
            Ok((socket, muted))
        });
        match subscribed {
            Ok((socket, muted)) => {
                if let Some(failure) = muted {
                    hear(PubSubEvent::Muted(&failure));
                }
                *listener = Some(Listener {
                    socket,
                    heard: Instant::now(),
                    pinged: None,
                });
            }
            Err(failure) => failures[number] = Some(failure),
        }
    }
}

/// Does step 3.
fn ping_silent(
    shared: &Shared,
    listeners: &mut [Option<Listener>],
    failures: &mut [Option<Failure>],
) {
    for (number, slot) in listeners.iter_mut().enumerate() {
        let Some(listener) = slot else { continue };
        let route = &shared.nodes[number].route;
        let now = Instant::now();
        let result = match listener.pinged {
            Some(pinged) if now >= pinged + route.io_timeout => {
                Err(crate::store::pubsub::late(route))
            }
            None if now >= listener.heard + SILENCE_TO_PING => {
                listener.pinged = Some(now);
                let sent = listener
                    .socket
                    .send(&Command::new("PING"), shared.node_timeout);
                sent.map_err(|fault| route.broken(fault))
            }
            _ => Ok(()),
        };
        if let Err(failure) = result {
            *slot = None;
            failures[number] = Some(failure);
        }
    }
}

/// Waits until a node has sent something, for at most `limit`. Returns those nodes.
fn wait(listeners: &[Option<Listener>], limit: Duration) -> Vec<usize> {
    let mut numbers = Vec::new();
    let mut polled = Vec::new();
    for (number, listener) in listeners.iter().enumerate() {
        if let Some(listener) = listener {
            numbers.push(number);
            polled.push(PollFd::new(&listener.socket, PollFlags::IN));
        }
    }
    // An error means that a signal came, or that the system has no memory: look again.
    let ready = poll(&mut polled, Timespec::try_from(limit).ok().as_ref()).unwrap_or(0);
    if ready == 0 {
        return Vec::new();
    }
    let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
    numbers
        .into_iter()
        .zip(&polled)
        .filter_map(|(number, fd)| is_ready(fd).then_some(number))
        .collect()
}

/// Reports each node that is listened to and was not, and the reverse. The same for a majority of them. `reached` has
/// what was reported last.
fn report(
    shared: &Shared,
    listeners: &[Option<Listener>],
    failures: &[Option<Failure>],
    reached: &mut [Option<bool>],
    hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
) {
    let has_majority = listeners.iter().flatten().count() >= shared.needed;
    let are_reached = listeners.iter().map(Option::is_some).chain([has_majority]);
    for (place, is_reached) in are_reached.enumerate() {
        if reached[place].replace(is_reached) == Some(is_reached) {
            continue;
        }
        let report = match shared.nodes.get(place) {
            Some(node) => node.report(failures[place].clone().filter(|_| !is_reached)),
            None => shared.report(check_majority(shared, listeners, failures).err()),
        };
        hear(PubSubEvent::Node(report));
    }
}

/// Returns a failure if fewer than a majority of the nodes are listened to.
fn check_majority(
    shared: &Shared,
    listeners: &[Option<Listener>],
    failures: &[Option<Failure>],
) -> Result<(), Failure> {
    let listening = listeners.iter().flatten().count();
    if listening >= shared.needed {
        return Ok(());
    }
    let failures = listeners
        .iter()
        .zip(failures)
        .map(|(listener, failure)| failure.clone().filter(|_| listener.is_none()))
        .collect();
    Err(shared.no_quorum(listening, failures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_passed_on_when_a_majority_has_sent_it_or_early() {
        const NEEDED: usize = 3;
        let begin = Instant::now();
        // The messages, by their nodes and milliseconds, and the milliseconds at which one is passed on. A node of
        // 0 sends nothing.
        for (messages, expected) in [
            // A majority, and then the others.
            (&[(1, 0), (2, 1), (3, 1), (4, 1), (5, 9)][..], &[1][..]),
            // Too few: after a moment, and no sooner.
            (&[(1, 0), (0, 1), (0, 2), (2, 3), (0, 40)], &[2]),
            // The majority is complete after that, because nodes were slow.
            (&[(1, 0), (0, 2), (2, 3), (3, 9), (4, 9), (5, 20)], &[2, 9]),
            // The same, but the second message comes at that moment.
            (&[(1, 0), (2, 2), (3, 30), (4, 31)], &[2, 30]),
            // A node sends once more: another release.
            (&[(1, 0), (2, 0), (3, 0), (1, 5), (2, 6), (3, 6)], &[0, 6]),
            (&[(1, 0), (0, 2), (1, 5), (0, 6), (0, 7), (2, 8)], &[2, 7]),
            // So soon that the first message was not passed on yet.
            (&[(1, 0), (1, 1), (0, 2), (1, 3), (0, 4), (0, 5)], &[2, 5]),
            // Another release, much later, and another node comes first.
            (
                &[(1, 0), (2, 0), (3, 0), (4, 500), (0, 501), (0, 502)],
                &[0, 502],
            ),
        ] {
            let mut hint = Hint::new(begin);
            let mut passed_on = Vec::new();
            for &(node, ms) in messages {
                let now = begin + Duration::from_millis(ms);
                if node > 0 {
                    hint.note(node, now);
                }
                if hint.take_due(now, NEEDED) {
                    passed_on.push(ms);
                    assert_eq!(hint.due(), None);
                }
            }
            assert_eq!(passed_on, expected, "{messages:?}");
        }
    }

    #[test]
    fn a_message_is_due_a_moment_after_the_first_node_sent_it() {
        let begin = Instant::now();
        let mut hint = Hint::new(begin);
        hint.note(1, begin);
        hint.note(2, begin + GATHERED_FOR / 2);
        assert_eq!(hint.due(), Some(begin + GATHERED_FOR));
    }
}
