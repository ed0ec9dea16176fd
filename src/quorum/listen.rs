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
//! | 1 | Subscribes at each node that is up, on a connection of its opener ([`super::opener`]). Waits for the connects under way: with a majority for at most `node_timeout`, otherwise for `connect_timeout`. With a majority the listener is subscribed; with fewer it fails. |
//! | 2 | Waits until a node sends something, for at most a second. Passes messages on, as above. |
//! | 3 | A node that has sent nothing for three seconds gets a PING. Without an answer within `io_timeout` its connection is closed. |
//! | 4 | A connection was closed: takes another one of the opener. If that fails, tries again after a second. Fewer than a majority of connections, with those under way, end the listener. If it had fewer, and has a majority again, it is subscribed anew. |

use std::time::Duration;

use crate::error::Failure;
use crate::net::deadline::Deadline;
use crate::net::pubsub::{PubSubEvent, PushMessage, subscribe};
use crate::net::socket::Socket;
use crate::quorum::state::QuorumState;
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
/// The number by which the openers know the listener. No other owner of a connection has it.
const LISTENER: u64 = 0;
/// The time limit of a read on a socket that has something to read.
const READ_WITHIN: Duration = Duration::from_millis(1);
/// After this silence a node gets a PING.
const SILENCE_TO_PING: Duration = Duration::from_secs(3);

/// A connection that is subscribed at one node.
struct NodeListener {
    socket: Socket,
    heard: Time,
    pinged: Option<Time>,
}

/// The subscription at one node.
#[derive(Default)]
struct Slot {
    listener: Option<NodeListener>,
    /// Why there was none, or is none.
    failure: Option<Failure>,
    /// Whether the node's opener makes a connection.
    is_opening: bool,
    /// When a connection is looked for. `None`: at once.
    tries_at: Option<Time>,
}

/// The messages about one owner, by channel and payload.
type Hints = HashMap<(String, Vec<u8>), Hint>;

/// When the turn before that of an owner ends, by the owner's channel and the owner.
type Lapses = HashMap<(String, Vec<u8>), Time>;

struct Hint {
    /// The nodes that have sent it.
    nodes: Vec<usize>,
    first: Time,
    /// How many nodes had sent it when it was passed on last. 0 if it was not passed on yet.
    passed_on_for: usize,
}

/// Listens until `hear` returns false. See [`crate::server::Store::listen`].
pub(super) fn listen(
    state: &QuorumState,
    channels: &[&str],
    hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
) -> Result<(), Failure> {
    let mut slots = Vec::new();
    slots.resize_with(state.nodes.len(), Slot::default);
    let begun = Time::now();
    loop {
        let seen = state.openers.changes();
        subscribe_missing(state, channels, &mut slots, hear);
        let limit = if listening(&slots) >= state.needed {
            state.node_timeout
        } else {
            state.nodes[0].route.connect_timeout
        };
        let is_opening = slots.iter().any(|slot| slot.is_opening);
        if !is_opening || begun.elapsed() >= limit {
            break;
        }
        if !hear(PubSubEvent::Silence) {
            return Ok(());
        }
        state.openers.await_change(seen, Time::now() + LOOKS_EVERY);
    }
    let mut reached = vec![None; state.nodes.len() + 1];
    report(state, &slots, &mut reached, hear);
    if listening(&slots) < state.needed {
        return Err(no_majority(state, &slots));
    }
    if !hear(PubSubEvent::Subscribed) {
        return Ok(());
    }
    let (mut hints, mut lapses) = (Hints::default(), Lapses::default());
    let mut was_subscribed = true;
    let mut silent_at = Time::now() + SILENCE;
    loop {
        // 2. Pass messages on. The first may have come with the answer to a subscription.
        for (number, slot) in slots.iter_mut().enumerate() {
            let noted = |listener: &mut NodeListener| {
                note_messages(state, listener, number, &mut hints, &mut lapses)
            };
            if let Some(Err(failure)) = slot.listener.as_mut().map(noted) {
                slot.close(failure);
            }
        }
        let now = Time::now();
        let mut is_wanted = pass_on(state, &mut hints, &mut lapses, hear);
        // 3 and 4.
        if now >= silent_at {
            is_wanted &= hear(PubSubEvent::Silence);
            ping_silent(state, &mut slots);
            silent_at = now + SILENCE;
        }
        if !is_wanted {
            return Ok(());
        }
        let seen = state.openers.changes();
        subscribe_missing(state, channels, &mut slots, hear);
        report(state, &slots, &mut reached, hear);
        if listening(&slots) + opening(&slots) < state.needed {
            return Err(no_majority(state, &slots));
        }
        let has_majority = listening(&slots) >= state.needed;
        // Messages may have been missed.
        let is_back = has_majority && !was_subscribed;
        if is_back && !hear(PubSubEvent::Subscribed) {
            return Ok(());
        }
        was_subscribed = has_majority;
        // Wait, and read what has come.
        let due = hints.values().filter_map(Hint::due);
        let due = due.chain(lapses.values().copied());
        let due = due.chain(slots.iter().filter_map(Slot::next_try)).min();
        let until = due.map_or(silent_at, |due| due.min(silent_at));
        if listening(&slots) == 0 {
            state.openers.await_change(seen, until);
            continue;
        }
        let connected = slots.iter().filter_map(|slot| slot.listener.as_ref());
        let ready = readable(connected.map(|listener| listener.socket.bytes()), until);
        let connected = slots.iter_mut().enumerate();
        let connected = connected.filter(|(_, slot)| slot.listener.is_some());
        for ((number, slot), _) in connected.zip(ready).filter(|(_, is_ready)| *is_ready) {
            let Some(listener) = &mut slot.listener else {
                continue;
            };
            match listener.socket.read(&mut Deadline::after(READ_WITHIN)) {
                Ok(()) => (listener.heard, listener.pinged) = (Time::now(), None),
                Err(fault) if fault.is_timeout() => {}
                Err(fault) => slot.close(state.nodes[number].route.broken(fault)),
            }
        }
    }
}

/// Passes on the messages that are due. Returns whether more of them are wanted.
fn pass_on(
    state: &QuorumState,
    hints: &mut Hints,
    lapses: &mut Lapses,
    hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
) -> bool {
    let now = Time::now();
    let mut is_wanted = true;
    for ((channel, payload), hint) in &mut *hints {
        if hint.take_due(now, state.needed) {
            is_wanted &= hear(PubSubEvent::Message { channel, payload });
        }
    }
    hints.retain(|_, hint| now < hint.first + SAME_RELEASE);
    lapses.retain(|(channel, payload), ends| {
        let lasts = now < *ends;
        if !lasts {
            is_wanted &= hear(PubSubEvent::Message { channel, payload });
        }
        lasts
    });
    is_wanted
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
        self.listener.is_none().then_some(next)
    }
}

fn listening(slots: &[Slot]) -> usize {
    slots.iter().filter(|slot| slot.listener.is_some()).count()
}

fn opening(slots: &[Slot]) -> usize {
    slots.iter().filter(|slot| slot.is_opening).count()
}

/// Notes the messages of a node that were read.
fn note_messages(
    state: &QuorumState,
    listener: &mut NodeListener,
    number: usize,
    hints: &mut Hints,
    lapses: &mut Lapses,
) -> Result<(), Failure> {
    let route = &state.nodes[number].route;
    while let Some(value) = listener
        .socket
        .take()
        .map_err(|fault| route.broken(fault))?
    {
        if let PushMessage::Message { channel, payload } = PushMessage::of(&route.server, value)? {
            let channel = String::from_utf8_lossy(&channel).into_owned();
            let now = Time::now();
            if let Some((owner, length)) = turn_before(&payload) {
                lapses.insert((channel, owner.to_vec()), now + length + GATHERED_FOR);
                continue;
            }
            let key = (channel, payload);
            lapses.remove(&key);
            let hint = hints.entry(key);
            hint.or_insert_with(|| Hint::new(now)).note(number, now);
        }
    }
    Ok(())
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

/// Does step 1, and step 4: subscribes at each node that is up and has no connection.
fn subscribe_missing(
    state: &QuorumState,
    channels: &[&str],
    slots: &mut [Slot],
    hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
) {
    for (number, slot) in slots.iter_mut().enumerate() {
        let now = Time::now();
        if slot.listener.is_some() || slot.tries_at > Some(now) {
            continue;
        }
        slot.is_opening = false;
        let node = &state.nodes[number];
        let subscribed = node.check_up().and_then(|()| {
            let Some(mut socket) = spare_socket(state, number) else {
                return Ok(None);
            };
            let muted = subscribe(&mut socket, &node.route, state.node_timeout, channels)?;
            Ok(Some((socket, muted)))
        });
        match subscribed {
            Ok(Some((socket, muted))) => {
                if let Some(failure) = muted {
                    hear(PubSubEvent::Muted(&failure));
                }
                let (heard, pinged) = (Time::now(), None);
                slot.listener = Some(NodeListener {
                    socket,
                    heard,
                    pinged,
                });
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

/// Returns the socket of a spare connection that is still open.
fn spare_socket(state: &QuorumState, number: usize) -> Option<Socket> {
    loop {
        let mut spare = state.spare(number, LISTENER)?;
        if spare.pipeline.look(Duration::MAX, |_, _| {}).is_ok() {
            return Some(spare.pipeline.into_socket());
        }
    }
}

/// Does step 3.
fn ping_silent(state: &QuorumState, slots: &mut [Slot]) {
    for (number, slot) in slots.iter_mut().enumerate() {
        let Some(listener) = &mut slot.listener else {
            continue;
        };
        let route = &state.nodes[number].route;
        let now = Time::now();
        let result = match listener.pinged {
            Some(pinged) if now >= pinged + route.io_timeout => {
                Err(crate::net::pubsub::late(route))
            }
            None if now >= listener.heard + SILENCE_TO_PING => {
                listener.pinged = Some(now);
                let mut time = Deadline::after(state.node_timeout);
                let sent = listener.socket.send([&Command::new("PING")], &mut time);
                sent.map_err(|fault| route.broken(fault))
            }
            _ => Ok(()),
        };
        if let Err(failure) = result {
            slot.close(failure);
        }
    }
}

/// Reports each node that is listened to and was not, and the reverse. The same for a majority of them. While a connect is
/// under way, it waits for the end of that. `reached` has what was reported last.
fn report(
    state: &QuorumState,
    slots: &[Slot],
    reached: &mut [Option<bool>],
    hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
) {
    let listening = listening(slots);
    let has_majority = listening >= state.needed;
    let may_get_majority = !has_majority && listening + opening(slots) >= state.needed;
    let nodes = slots
        .iter()
        .map(|slot| (slot.listener.is_some(), slot.is_opening));
    let all = nodes.chain([(has_majority, may_get_majority)]);
    for (place, (is_reached, may_change)) in all.enumerate() {
        if may_change || reached[place].replace(is_reached) == Some(is_reached) {
            continue;
        }
        let report = match state.nodes.get(place) {
            Some(node) => node.report(slots[place].failure.clone()),
            None => state.report((!is_reached).then(|| no_majority(state, slots))),
        };
        hear(PubSubEvent::Node(report));
    }
}

/// Returns the failure if fewer than a majority of the nodes are listened to.
fn no_majority(state: &QuorumState, slots: &[Slot]) -> Failure {
    let failures = slots.iter().map(|slot| slot.failure.clone()).collect();
    state.no_quorum(listening(slots), failures)
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
