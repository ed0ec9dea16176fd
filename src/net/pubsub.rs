//! Listening to channels, on a connection that does nothing else.
//!
//! 1. Connect and log in.
//! 2. PUBLISH an empty message. The scripts ignore a rejected PUBLISH, so only this request shows that the user may not
//!    publish. A subscribed connection cannot publish, so it comes first.
//! 3. SUBSCRIBE, and wait for the confirmation. From then on no message is missed.
//! 4. Report each message, until a new era begins ([`Together`](crate::net::route::Together)). If nothing comes for three seconds, send a
//!    PING, because a dead peer sends nothing either. If no answer comes within `io_timeout`, the connection is broken.

use std::time::Duration;

use redis::Value;

use crate::config::Server;
use crate::error::{Failure, FailureKind, Outcome};
use crate::net::deadline::{Deadline, Phase};
use crate::net::login::connect_in_turn;
use crate::net::refusal::{refusal, unavailable};
use crate::net::route::{NodeReport, Route};
use crate::net::socket::Socket;
use crate::wire::Command;

/// An event of a listener.
#[derive(Debug)]
pub(crate) enum PubSubEvent<'a> {
    /// A server is reached, or cannot be reached.
    Node(NodeReport),
    /// This user may subscribe to the channel, but not publish on it. The confirmation of SUBSCRIBE comes next.
    Muted(&'a Failure),
    /// SUBSCRIBE was confirmed: from now on no message is missed.
    Subscribed,
    Message {
        channel: &'a str,
        payload: &'a [u8],
    },
    /// No message came for about a second, or something other than a message came.
    Silence,
}

/// How long one wait for a message is.
const SILENCE: Duration = Duration::from_secs(1);
/// After this number of waits without a message, the listener sends a PING.
const SILENCES_TO_PING: u32 = 3;

/// Listens until `hear` returns false. See [`crate::server::Store::listen`].
pub(crate) fn listen(
    route: &Route,
    channels: &[&str],
    hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
) -> Result<(), Failure> {
    let listened = subscribe_and_listen(route, channels, hear);
    route.together.unsubscribed();
    if let Err(failure) = &listened {
        hear(PubSubEvent::Node(route.report(Some(failure))));
    }
    listened
}

fn subscribe_and_listen(
    route: &Route,
    channels: &[&str],
    hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
) -> Result<(), Failure> {
    let era = route.together.era();
    let mut open = connect_in_turn(route, &mut Deadline::default(), None)?;
    if let Some(failure) = subscribe(&mut open, route, route.io_timeout, channels)? {
        hear(PubSubEvent::Muted(&failure));
    }
    if !route.is_of_a_cluster {
        route.together.subscribed(channels[0], era);
    }
    hear(PubSubEvent::Node(route.report(None)));
    if !hear(PubSubEvent::Subscribed) {
        return Ok(());
    }
    let broken = |fault| route.broken(fault);
    let mut silences = 0;
    loop {
        let said = open.next(Deadline::after(SILENCE)).map_err(broken)?;
        silences = if said.is_some() { 0 } else { silences + 1 };
        let said = said.map(|said| PushMessage::of(&route.server, said));
        let go_on = match said.transpose()? {
            Some(PushMessage::Message { channel, payload }) => hear(PubSubEvent::Message {
                channel: &String::from_utf8_lossy(&channel),
                payload: &payload,
            }),
            Some(PushMessage::Confirmation | PushMessage::Pong) | None => {
                hear(PubSubEvent::Silence)
            }
        };
        if !go_on {
            return Ok(());
        }
        if route.together.era() != era {
            let address = &route.server.address;
            return Err(unavailable(format!(
                "{address}: other connections may lead to another server"
            )));
        }
        if silences == SILENCES_TO_PING {
            let mut time = Deadline::after(route.io_timeout);
            open.send([&Command::new("PING")], &mut time)
                .map_err(broken)?;
        } else if silences > SILENCES_TO_PING
            && SILENCE * (silences - SILENCES_TO_PING) >= route.io_timeout
        {
            return Err(late(route));
        }
    }
}

/// Subscribes to the channels. Each request may take `limit`. Returns the reason why this user may not publish on the
/// channels, if it may not.
pub(crate) fn subscribe(
    open: &mut Socket,
    route: &Route,
    limit: Duration,
    channels: &[&str],
) -> Result<Option<Failure>, Failure> {
    let server = &route.server;
    let broken = |fault| route.broken(fault);
    let publish = Command::new("PUBLISH").arg(channels[0]).arg("").to_owned();
    let published = open.request(&publish, Deadline::after(limit));
    let published = published.map_err(broken)?;
    let subscribe = Command::new("SUBSCRIBE").arg(channels).to_owned();
    let mut time = Deadline::after(limit);
    open.send([&subscribe], &mut time).map_err(broken)?;
    // The server checks the rights for all channels together. So the first confirmation stands for all, and the
    // listener ignores the others.
    let said = open.next(Deadline::after(limit)).map_err(broken)?;
    let said = said.ok_or_else(|| late(route))?;
    if !matches!(PushMessage::of(server, said)?, PushMessage::Confirmation) {
        return Err(nonsense());
    }
    let Value::ServerError(error) = published else {
        return Ok(None);
    };
    let failure = refusal(server, error);
    if failure.is_transient() {
        return Err(failure);
    }
    Ok(Some(failure))
}

/// A push message of the server.
pub(crate) enum PushMessage {
    Message {
        channel: Vec<u8>,
        payload: Vec<u8>,
    },
    /// The confirmation of one channel.
    Confirmation,
    Pong,
}

impl PushMessage {
    /// Reads a push message.
    ///
    /// # Errors
    ///
    /// The server sent an error, or something other than a push message. The connection cannot be trusted any more.
    pub(crate) fn of(server: &Server, value: Value) -> Result<Self, Failure> {
        let parts = match value {
            Value::Array(parts) => parts,
            Value::ServerError(error) => return Err(refusal(server, error)),
            _ => return Err(nonsense()),
        };
        let mut parts = parts.into_iter();
        let Some(Value::BulkString(what)) = parts.next() else {
            return Err(nonsense());
        };
        match (what.as_slice(), parts.next(), parts.next(), parts.next()) {
            (
                b"message",
                Some(Value::BulkString(channel)),
                Some(Value::BulkString(payload)),
                None,
            ) => Ok(Self::Message { channel, payload }),
            (b"subscribe", Some(Value::BulkString(_)), Some(Value::Int(_)), None) => {
                Ok(Self::Confirmation)
            }
            (b"pong", Some(Value::BulkString(_)), None, None) => Ok(Self::Pong),
            _ => Err(nonsense()),
        }
    }
}

/// Returns the failure of a connection on which something other than a push message came.
fn nonsense() -> Failure {
    let words = "the server sent something other than messages to a subscriber";
    Failure::plain(FailureKind::Protocol, Outcome::NotExecuted, words)
}

/// Returns the failure of a connection on which an answer is overdue.
pub(crate) fn late(route: &Route) -> Failure {
    route.broken(Phase::Request.timed_out().into())
}
