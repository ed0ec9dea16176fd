//! Channels, and the connections that listen to them.

use super::arguments::{Arguments, CommandError};
use super::cluster::ChannelMessage;
use super::glob;
use super::resp::Resp;
use super::state::ServerState;

/// `PUBLISH channel message`. Returns how many connections received it.
pub(super) fn publish(
    server: &mut ServerState,
    _: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let (channel, message) = (arguments.get(1), arguments.get(2));
    if let Some(cluster) = &mut server.cluster {
        cluster.published.push(ChannelMessage {
            channel: channel.to_vec(),
            payload: message.to_vec(),
        });
    }
    Ok(Resp::count(deliver(server, channel, message)))
}

/// Gives a message to the listeners of a channel, and returns how many there are.
pub(super) fn deliver(server: &mut ServerState, channel: &[u8], message: &[u8]) -> usize {
    let listeners = server.peers.values_mut();
    let listeners = listeners.filter(|connection| connection.channels.contains(channel));
    let received = listeners.map(|connection| {
        let parts = [b"message", channel, message].map(Resp::bulk);
        Resp::Array(parts.into()).write(&mut connection.out);
    });
    received.count()
}

/// `SUBSCRIBE channel [channel ...]`.
pub(super) fn subscribe(server: &mut ServerState, connection: u64, arguments: &Arguments<'_>) {
    let Some(connection) = server.peers.get_mut(&connection) else {
        return;
    };
    for channel in arguments.from(1) {
        connection.channels.insert(channel.clone());
        let count = Resp::count(connection.channels.len());
        let confirmation = vec![Resp::bulk("subscribe"), Resp::bulk(channel.clone()), count];
        Resp::Array(confirmation).write(&mut connection.out);
    }
}

/// `UNSUBSCRIBE [channel ...]`. Without a channel, from all.
pub(super) fn unsubscribe(server: &mut ServerState, connection: u64, arguments: &Arguments<'_>) {
    let Some(connection) = server.peers.get_mut(&connection) else {
        return;
    };
    let mut channels: Vec<_> = arguments.from(1).iter().cloned().map(Some).collect();
    if channels.is_empty() {
        channels = connection.channels.iter().cloned().map(Some).collect();
    }
    if channels.is_empty() {
        channels.push(None);
    }
    for channel in channels {
        if let Some(channel) = &channel {
            connection.channels.remove(channel);
        }
        let count = Resp::count(connection.channels.len());
        let confirmation = vec![Resp::bulk("unsubscribe"), Resp::or_nil(channel), count];
        Resp::Array(confirmation).write(&mut connection.out);
    }
}

/// `PUBSUB NUMSUB [channel ...]`, and `PUBSUB CHANNELS [pattern]`.
pub(super) fn pubsub(
    server: &mut ServerState,
    _: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let connections = || server.peers.values();
    let parts = match (arguments.option(1).as_str(), arguments.len()) {
        ("NUMSUB", _) => {
            let channels = arguments.from(2).iter();
            let counts = channels.flat_map(|channel| {
                let listeners = connections().filter(|one| one.channels.contains(channel));
                [Resp::bulk(channel.clone()), Resp::count(listeners.count())]
            });
            counts.collect()
        }
        ("CHANNELS", 2 | 3) => {
            let pattern = arguments
                .from(2)
                .first()
                .map_or(b"*".as_slice(), Vec::as_slice);
            let mut channels: Vec<_> = connections().flat_map(|one| &one.channels).collect();
            channels.sort_unstable();
            channels.dedup();
            let found = channels
                .into_iter()
                .filter(|channel| glob::matches(pattern, channel));
            found.cloned().map(Resp::Bulk).collect()
        }
        _ => return Err(CommandError::unknown_subcommand(arguments)),
    };
    Ok(Resp::Array(parts))
}
