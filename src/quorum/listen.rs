//! Listening to channels at all nodes at the same time, on one thread.
//!
//! A release wakes the first waiter at each node, by one message for each. A waiter that asked after the first message
//! could find the lock still held at the others. So a message about an owner is passed on when a majority of the nodes
//! has sent it. The queues of the nodes may differ, and then no owner has a majority: so it is passed on a moment after
//! the first message at the latest. If the majority is complete only after that, the other nodes were slow, and the waiter
//! may have found the lock still held there: so the message is passed on once more. Further messages of the same release are
//! dropped.
//!
//! A node also tells the waiter behind the first how long the first one's turn lasts there: `quorum_turn.lua`. If the first
//! waiter hangs, somebody must ask when its turn is over. So the waiter's own message is passed on then, unless it has
//! come before.
//!
//! | step | the thread |
//! | --- | --- |
//! | 1 | Subscribes at each node that is up and has no connection, on one that is made in the background ([`super::node`]). If that fails, tries again after a second. With a majority the listener is subscribed; at first it waits up to `node_timeout` for the connects under way. If it had fewer, and has a majority again, it is subscribed anew. Fewer than a majority, with the connects under way, end the listener. |
//! | 2 | Passes messages on, as above. |
//! | 3 | A node that has sent nothing for three seconds gets a PING each second. If it still sends nothing for `io_timeout`, its connection is closed. |
//! | 4 | Waits until a node sends something, for at most a second; with fewer than a majority, until a connect has ended. |

use std::time::Duration;

use crate::error::Failure;
use crate::net::deadline::Deadline;
use crate::net::pubsub::{PubSubEvent, PushMessage, late, subscribe};
use crate::net::socket::Socket;
use crate::quorum::QuorumState;
use crate::quorum::connection::{Connection, READ_WITHIN};
use crate::quorum::node::Node;
use crate::sys::Time;
use crate::sys::hash::HashMap;
use crate::sys::net::readable;
use crate::wire::Command;

/// How long a message waits for the same message of other nodes.
const GATHERED_FOR: Duration = Duration::from_millis(2);
/// How long further messages of the same release may take.
const SAME_RELEASE: Duration = Duration::from_millis(50);
/// How long one wait is, and the pause after a failure.
const SILENCE: Duration = Duration::from_secs(1);
/// How often the thread looks for a connection that is being made.
const LOOKS_EVERY: Duration = Duration::from_millis(50);
/// After this silence a node gets a PING.
const SILENCE_TO_PING: Duration = Duration::from_secs(3);

/// The subscription at one node.
enum Slot {
    Open(Box<Socket>, Heard),
    /// A connection is made in the background. Why there is none yet.
    Opening(Failure),
    /// Why there is none, and when one is looked for.
    Closed(Failure, Time),
}

/// What an open connection has said.
#[derive(Clone, Copy)]
struct Heard {
    /// When something was read from it.
    at: Time,
    /// When the first PING after that was sent.
    pinged: Option<Time>,
}

impl Heard {
    fn now() -> Self {
        let (at, pinged) = (Time::now(), None);
        Self { at, pinged }
    }
}

/// A message: its channel and payload.
type Message = (String, Vec<u8>);

/// The nodes that have sent a message.
struct Hint {
    nodes: Vec<usize>,
    first: Time,
    /// How many nodes had sent it when it was passed on last. 0 if it was not passed on yet.
    passed_on_for: usize,
}

/// The messages of all nodes.
#[derive(Default)]
struct Messages {
    hints: HashMap<Message, Hint>,
    /// When the turn before that of an owner ends, by the message for the owner.
    lapses: HashMap<Message, Time>,
}

struct Listener<'a> {
    state: &'a QuorumState,
    channels: &'a [&'a str],
    hear: &'a mut dyn FnMut(PubSubEvent<'_>) -> bool,
    slots: Vec<Slot>,
    messages: Messages,
}

/// Listens until `hear` returns false. See [`crate::server::Store::listen`].
pub(super) fn listen(
    state: &QuorumState,
    channels: &[&str],
    hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
) -> Result<(), Failure> {
    let nodes = state.nodes.iter();
    let mut listener = Listener {
        state,
        channels,
        hear,
        slots: nodes
            .map(|node| Slot::Opening(node.being_opened()))
            .collect(),
        messages: Messages::default(),
    };
    let begun = Time::now();
    let mut was_subscribed = false;
    let mut silent_at = Time::now() + SILENCE;
    loop {
        // 1.
        let seen = state.connects();
        listener.subscribe_missing();
        if listener.listening() + listener.opening() < state.needed {
            return Err(listener.no_majority());
        }
        let waits_for_more = !was_subscribed && begun.elapsed() < state.node_timeout;
        let is_subscribed =
            listener.listening() >= state.needed && !(waits_for_more && listener.opening() > 0);
        // Messages may have been missed.
        if is_subscribed && !was_subscribed && !(listener.hear)(PubSubEvent::Subscribed) {
            return Ok(());
        }
        was_subscribed = is_subscribed;
        // 2. The first may have come with the answer to a subscription.
        let mut is_wanted = listener.pass_on();
        // 3.
        if Time::now() >= silent_at {
            is_wanted &= (listener.hear)(PubSubEvent::Silence);
            listener.ping_silent();
            silent_at = Time::now() + SILENCE;
        }
        if !is_wanted {
            return Ok(());
        }
        // 4.
        let due = (listener.messages.due()).chain(listener.slots.iter().filter_map(Slot::next_try));
        let until = due.fold(silent_at, Time::min);
        if is_subscribed {
            listener.read(until);
        } else {
            state.await_connect(seen, until);
        }
    }
}

impl Listener<'_> {
    fn listening(&self) -> usize {
        let slots = self.slots.iter();
        slots.filter(|slot| matches!(slot, Slot::Open(..))).count()
    }

    fn opening(&self) -> usize {
        let slots = self.slots.iter();
        slots
            .filter(|slot| matches!(slot, Slot::Opening(_)))
            .count()
    }

    /// Subscribes at each node that is up and has no connection.
    fn subscribe_missing(&mut self) {
        let (state, now) = (self.state, Time::now());
        let mut has_tried = false;
        for (node, slot) in state.nodes.iter().zip(&mut self.slots) {
            match slot {
                Slot::Open(..) => continue,
                Slot::Closed(_, tries_at) if *tries_at > now => continue,
                _ => has_tried = true,
            }
            let spare = Connection::spare_socket(state, node.number);
            let subscribe = |mut socket: Socket| {
                let limit = state.node_timeout;
                let muted = subscribe(&mut socket, &node.route, limit, self.channels)?;
                Ok((socket, muted))
            };
            let subscribed = spare.and_then(|socket| socket.map(subscribe).transpose());
            *slot = match subscribed {
                Ok(Some((socket, muted))) => {
                    if let Some(failure) = muted {
                        (self.hear)(PubSubEvent::Muted(&failure));
                    }
                    Slot::Open(Box::new(socket), Heard::now())
                }
                Ok(None) => Slot::Opening(node.being_opened()),
                Err(failure) => Slot::Closed(failure, now + SILENCE),
            };
        }
        if has_tried {
            self.report();
        }
    }

    /// Reports which nodes are listened to, and whether a majority of them is. A node that is being connected to has no
    /// report before the end of that.
    fn report(&mut self) {
        for (node, slot) in self.state.nodes.iter().zip(&self.slots) {
            let failure = match slot {
                Slot::Open(..) => None,
                Slot::Opening(_) => continue,
                Slot::Closed(failure, _) => Some(failure.clone()),
            };
            (self.hear)(PubSubEvent::Node(node.report(failure)));
        }
        let (listening, needed) = (self.listening(), self.state.needed);
        let failure = (listening < needed).then(|| self.no_majority());
        if failure.is_none() || listening + self.opening() < needed {
            (self.hear)(PubSubEvent::Node(self.state.report(failure)));
        }
    }

    /// Returns the failure if fewer than a majority of the nodes are listened to.
    fn no_majority(&self) -> Failure {
        let failures = self.slots.iter().map(|slot| match slot {
            Slot::Open(..) => None,
            Slot::Opening(failure) | Slot::Closed(failure, _) => Some(failure.clone()),
        });
        self.state.no_quorum(self.listening(), failures.collect())
    }

    /// Notes the messages that were read, and passes on those that are due. Returns whether more of them are wanted.
    fn pass_on(&mut self) -> bool {
        let now = Time::now();
        for (node, slot) in self.state.nodes.iter().zip(&mut self.slots) {
            while let Slot::Open(socket, _) = slot {
                let taken = socket.take().map_err(|fault| node.route.broken(fault));
                let message = taken.and_then(|value| {
                    let message = value.map(|value| PushMessage::of(&node.route.server, value));
                    message.transpose()
                });
                match message {
                    Ok(Some(PushMessage::Message { channel, payload })) => {
                        let channel = String::from_utf8_lossy(&channel).into_owned();
                        self.messages.note((channel, payload), node.number, now);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(failure) => *slot = Slot::Closed(failure, now),
                }
            }
        }
        self.messages.pass_on(now, self.state.needed, self.hear)
    }

    /// Does `work` on each connection, and closes those on which it fails. The next one is tried at once.
    fn on_each(
        &mut self,
        mut work: impl FnMut(&Node, &mut Socket, &mut Heard) -> Result<(), Failure>,
    ) {
        for (node, slot) in self.state.nodes.iter().zip(&mut self.slots) {
            if let Slot::Open(socket, heard) = slot {
                if let Err(failure) = work(node, socket, heard) {
                    *slot = Slot::Closed(failure, Time::now());
                }
            }
        }
    }

    /// Does step 3.
    fn ping_silent(&mut self) {
        let write_within = self.state.node_timeout;
        self.on_each(|node, socket, heard| {
            let is_over = |at: Time| at.elapsed() >= node.route.io_timeout;
            if heard.pinged.is_some_and(is_over) {
                return Err(late(&node.route));
            }
            if heard.at.elapsed() < SILENCE_TO_PING {
                return Ok(());
            }
            heard.pinged.get_or_insert_with(Time::now);
            let ping = Command::new("PING");
            let sent = socket.send([&ping], &mut Deadline::after(write_within));
            sent.map_err(|fault| node.route.broken(fault))
        });
    }

    /// Waits until a node sends something, at most until then. Reads what has come.
    fn read(&mut self, until: Time) {
        let sockets = self.slots.iter().filter_map(|slot| match slot {
            Slot::Open(socket, _) => Some(socket.bytes()),
            _ => None,
        });
        let mut ready = readable(sockets, until).into_iter();
        self.on_each(|node, socket, heard| {
            if ready.next() != Some(true) {
                return Ok(());
            }
            match socket.read(&mut Deadline::after(READ_WITHIN)) {
                Err(fault) if fault.is_timeout() => {}
                read => {
                    read.map_err(|fault| node.route.broken(fault))?;
                    *heard = Heard::now();
                }
            }
            Ok(())
        });
    }
}

impl Slot {
    /// Returns when to look for a connection. Returns `None` if there is one.
    fn next_try(&self) -> Option<Time> {
        match self {
            Slot::Open(..) => None,
            Slot::Opening(_) => Some(Time::now() + LOOKS_EVERY),
            Slot::Closed(_, tries_at) => Some(*tries_at),
        }
    }
}

impl Messages {
    /// Notes the message of a node.
    fn note(&mut self, (channel, payload): Message, node: usize, now: Time) {
        if let Some((owner, length)) = turn_before(&payload) {
            let message = (channel, owner.to_vec());
            self.lapses.insert(message, now + length + GATHERED_FOR);
            return;
        }
        let message = (channel, payload);
        self.lapses.remove(&message);
        let hint = self.hints.entry(message);
        hint.or_insert_with(|| Hint::new(now)).note(node, now);
    }

    /// Returns when messages are due.
    fn due(&self) -> impl Iterator<Item = Time> {
        let hints = self.hints.values().filter_map(Hint::due);
        hints.chain(self.lapses.values().copied())
    }

    /// Passes on the messages that are due. Returns whether more of them are wanted.
    fn pass_on(
        &mut self,
        now: Time,
        needed: usize,
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> bool {
        let mut is_wanted = true;
        self.hints.retain(|(channel, payload), hint| {
            if hint.take_due(now, needed) {
                is_wanted &= hear(PubSubEvent::Message { channel, payload });
            }
            now < hint.first + SAME_RELEASE
        });
        self.lapses.retain(|(channel, payload), ends| {
            let lasts = now < *ends;
            if !lasts {
                is_wanted &= hear(PubSubEvent::Message { channel, payload });
            }
            lasts
        });
        is_wanted
    }
}

/// Returns the owner that a message is for, and the length of the turn before its own, if the message tells that.
fn turn_before(payload: &[u8]) -> Option<(&[u8], Duration)> {
    let space = payload.iter().position(|byte| *byte == b' ')?;
    let length = std::str::from_utf8(&payload[space + 1..]).ok()?;
    // No turn is longer than a minute. So a foreign message is soon forgotten.
    let ms: u16 = length.parse().ok()?;
    Some((&payload[..space], Duration::from_millis(ms.into())))
}

impl Hint {
    fn new(now: Time) -> Self {
        Self {
            nodes: Vec::new(),
            first: now,
            passed_on_for: 0,
        }
    }

    /// Notes the message of a node at `now`.
    fn note(&mut self, node: usize, now: Time) {
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
    fn due(&self) -> Option<Time> {
        (self.passed_on_for == 0).then(|| self.first + GATHERED_FOR)
    }

    /// Returns whether the message must be passed on at `now`, and notes that it is. `needed` nodes are a majority.
    fn take_due(&mut self, now: Time, needed: usize) -> bool {
        let has_new_majority = self.nodes.len() >= needed && self.passed_on_for < needed;
        let is_due = has_new_majority || self.due().is_some_and(|due| now >= due);
        if is_due {
            self.passed_on_for = self.nodes.len();
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_passed_on_when_a_majority_has_sent_it_or_early() {
        const NEEDED: usize = 3;
        let begin = Time::now();
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
    fn a_message_may_tell_the_length_of_the_turn_before() {
        for (payload, expected) in [
            ("lh1:u:l 100", Some(("lh1:u:l", 100))),
            ("lh1:u:l", None),
            ("lh1:u:l ", None),
            ("lh1:u:l -1", None),
            ("lh1:u:l 99999999999", None),
            ("lh1:u:l 1 1", None),
        ] {
            let expected =
                expected.map(|(owner, length)| (owner.as_bytes(), Duration::from_millis(length)));
            assert_eq!(turn_before(payload.as_bytes()), expected, "{payload}");
        }
    }

    #[test]
    fn a_message_is_due_a_moment_after_the_first_node_sent_it() {
        let begin = Time::now();
        let mut hint = Hint::new(begin);
        hint.note(1, begin);
        hint.note(2, begin + GATHERED_FOR / 2);
        assert_eq!(hint.due(), Some(begin + GATHERED_FOR));
    }
}
