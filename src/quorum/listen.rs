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
//! | 3 | A node that has sent nothing for three seconds gets a PING each second. After `io_timeout` more its connection is closed. |
//! | 4 | Waits until a node sends something, for at most a second; with fewer than a majority, until a connect has ended. |

use std::time::Duration;

use crate::error::Failure;
use crate::net::deadline::Deadline;
use crate::net::pubsub::{PubSubEvent, PushMessage, late, subscribe};
use crate::net::socket::Socket;
use crate::quorum::QuorumState;
use crate::quorum::connection::READ_WITHIN;
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
#[derive(Default)]
struct Slot {
    /// The connection, and when something was read from it.
    open: Option<(Socket, Time)>,
    /// Why there was none, or is none.
    failure: Option<Failure>,
    /// Whether a connection is made in the background.
    is_opening: bool,
    /// When a connection is looked for. `None`: at once.
    tries_at: Option<Time>,
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
    /// What was reported last of each node, and of the quorum as a whole.
    reached: Vec<Option<bool>>,
}

/// Listens until `hear` returns false. See [`crate::server::Store::listen`].
pub(super) fn listen(
    state: &QuorumState,
    channels: &[&str],
    hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
) -> Result<(), Failure> {
    let nodes = state.nodes.len();
    let mut listener = Listener {
        state,
        channels,
        hear,
        slots: std::iter::repeat_with(Slot::default).take(nodes).collect(),
        messages: Messages::default(),
        reached: vec![None; nodes + 1],
    };
    let begun = Time::now();
    let mut was_subscribed = false;
    let mut silent_at = Time::now() + SILENCE;
    loop {
        // 1.
        let seen = state.connects();
        listener.subscribe_missing();
        listener.report();
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
        let open = self.slots.iter().filter(|slot| slot.open.is_some());
        open.count()
    }

    fn opening(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_opening).count()
    }

    /// Subscribes at each node that is up and has no connection.
    fn subscribe_missing(&mut self) {
        let state = self.state;
        for (node, slot) in state.nodes.iter().zip(&mut self.slots) {
            let now = Time::now();
            if slot.open.is_some() || slot.tries_at > Some(now) {
                continue;
            }
            slot.is_opening = false;
            let subscribed = node.check_up().and_then(|()| {
                let Some(mut socket) = spare_socket(state, node.number) else {
                    return Ok(None);
                };
                let limit = state.node_timeout;
                let muted = subscribe(&mut socket, &node.route, limit, self.channels)?;
                Ok(Some((socket, muted)))
            });
            match subscribed {
                Ok(Some((socket, muted))) => {
                    if let Some(failure) = muted {
                        (self.hear)(PubSubEvent::Muted(&failure));
                    }
                    slot.open = Some((socket, Time::now()));
                    slot.failure = None;
                }
                Ok(None) => {
                    slot.is_opening = true;
                    slot.failure.get_or_insert_with(|| node.being_opened());
                }
                Err(failure) => {
                    (slot.failure, slot.tries_at) = (Some(failure), Some(now + SILENCE));
                }
            }
        }
    }

    /// Reports each node that is listened to and was not, and the reverse. The same for a majority of them. While a connect
    /// is under way, it waits for the end of that.
    fn report(&mut self) {
        let (listening, needed) = (self.listening(), self.state.needed);
        let has_majority = listening >= needed;
        let may_get_majority = !has_majority && listening + self.opening() >= needed;
        let nodes = self.slots.iter();
        let mut all: Vec<_> = nodes
            .map(|slot| (slot.open.is_some(), slot.is_opening))
            .collect();
        all.push((has_majority, may_get_majority));
        for (place, (is_reached, may_change)) in all.into_iter().enumerate() {
            if may_change || self.reached[place].replace(is_reached) == Some(is_reached) {
                continue;
            }
            let report = match self.state.nodes.get(place) {
                Some(node) => node.report(self.slots[place].failure.clone()),
                None => (self.state).report((!is_reached).then(|| self.no_majority())),
            };
            (self.hear)(PubSubEvent::Node(report));
        }
    }

    /// Returns the failure if fewer than a majority of the nodes are listened to.
    fn no_majority(&self) -> Failure {
        let failures = self.slots.iter().map(|slot| slot.failure.clone());
        self.state.no_quorum(self.listening(), failures.collect())
    }

    /// Notes the messages that were read, and passes on those that are due. Returns whether more of them are wanted.
    fn pass_on(&mut self) -> bool {
        let now = Time::now();
        for (node, slot) in self.state.nodes.iter().zip(&mut self.slots) {
            while let Some((socket, _)) = &mut slot.open {
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
                    Err(failure) => slot.close(failure),
                }
            }
        }
        self.messages.pass_on(now, self.state.needed, self.hear)
    }

    /// Does step 3.
    fn ping_silent(&mut self) {
        for (node, slot) in self.state.nodes.iter().zip(&mut self.slots) {
            let Some((socket, heard)) = &mut slot.open else {
                continue;
            };
            let (route, silent_for) = (&node.route, heard.elapsed());
            let result = if silent_for >= SILENCE_TO_PING + route.io_timeout {
                Err(late(route))
            } else if silent_for >= SILENCE_TO_PING {
                let mut time = Deadline::after(self.state.node_timeout);
                let sent = socket.send([&Command::new("PING")], &mut time);
                sent.map_err(|fault| route.broken(fault))
            } else {
                Ok(())
            };
            if let Err(failure) = result {
                slot.close(failure);
            }
        }
    }

    /// Waits until a node sends something, at most until then. Reads what has come.
    fn read(&mut self, until: Time) {
        let sockets = self.slots.iter().filter_map(|slot| slot.open.as_ref());
        let ready = readable(sockets.map(|(socket, _)| socket.bytes()), until);
        let slots = self.state.nodes.iter().zip(&mut self.slots);
        let open = slots.filter(|(_, slot)| slot.open.is_some());
        for ((node, slot), _) in open.zip(ready).filter(|(_, is_ready)| *is_ready) {
            let Some((socket, heard)) = &mut slot.open else {
                continue;
            };
            match socket.read(&mut Deadline::after(READ_WITHIN)) {
                Ok(()) => *heard = Time::now(),
                Err(fault) if fault.is_timeout() => {}
                Err(fault) => slot.close(node.route.broken(fault)),
            }
        }
    }
}

impl Slot {
    /// Closes the connection. The next one is tried at once.
    fn close(&mut self, failure: Failure) {
        *self = Self {
            failure: Some(failure),
            ..Self::default()
        };
    }

    /// Returns when to look for a connection. Returns `None` if there is one.
    fn next_try(&self) -> Option<Time> {
        let now = Time::now();
        let next = if self.is_opening {
            now + LOOKS_EVERY
        } else {
            self.tries_at.unwrap_or(now)
        };
        self.open.is_none().then_some(next)
    }
}

/// Returns the socket of a spare connection that is still open.
fn spare_socket(state: &QuorumState, number: usize) -> Option<Socket> {
    loop {
        if let Some(socket) = state.spare(number)?.into_idle_socket() {
            return Some(socket);
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
