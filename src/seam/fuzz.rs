//! The door to the library for the fuzz targets in `fuzz/`.

use std::time::Duration;

use redis::Value;

use crate::admin::LockInfo;
use crate::config::Server;
use crate::engine::lease::fence::Fences;
use crate::error::{Error, Result};
use crate::manager::LockManager;
use crate::name::{Companion, LockKey};
use crate::net::frame::{self, Frame};
use crate::net::pubsub::PushMessage;
use crate::wire::{self, Cursor, LockKind, RateRequest, Reply, Request};

/// Returns a lock's key, its companions, and the slot that all of them must be in.
///
/// # Errors
///
/// The name cannot be a lock's name.
pub fn keys(prefix: &str, name: &str) -> Result<(String, [String; 5], u16)> {
    let key = LockKey::new(prefix, name)?;
    assert_eq!(key.name(), name);
    let companions = [
        Companion::Fence,
        Companion::Queue,
        Companion::Waiters,
        Companion::Once,
        Companion::Leader,
    ];
    let companions = companions.map(|which| key.companion(which));
    Ok((key.key().to_owned(), companions, key.slot()))
}

/// Returns the text that logs and errors show of a server with this URL.
///
/// # Errors
///
/// The URL cannot be used.
pub fn server(url: &str) -> Result<String> {
    let server = Server::parse(url)?;
    assert!(!server.address.is_empty());
    Ok(format!("{} {server:?}", server.address))
}

/// Returns all answers in these bytes, up to the first that is malformed.
#[must_use]
pub fn answers(mut bytes: &[u8]) -> Vec<Value> {
    std::iter::from_fn(|| {
        let end = Frame::default().end(bytes, 8 << 20).ok()??;
        let (answer, rest) = bytes.split_at(end);
        bytes = rest;
        frame::parse(answer).ok()
    })
    .collect()
}

/// Reads a value as the reply to each sort of request, and checks what it is read as.
pub fn check_replies(value: &Value) {
    for (names, reply) in wire::read_as_each(value) {
        match reply {
            Some(Reply::Granted { fence, rest, .. }) => {
                assert_eq!(rest.len() + 1, names);
                for kind in [LockKind::Mutex, LockKind::Read] {
                    let mut fences = Fences::granted(kind, fence, 50_000);
                    assert_eq!(fences.take(), Some(fence));
                    fences.give_back();
                }
            }
            Some(Reply::Renewed(said)) => assert_eq!(said.len(), names),
            Some(Reply::Each(said)) => assert_eq!(said.len(), names),
            Some(Reply::Committed(said)) => assert_eq!(said.len(), names),
            Some(Reply::Stopped { done, .. }) => assert!(done < names),
            Some(_) | None => {}
        }
    }
    let keys = ["a", "b", "c"].map(|name| LockKey::new("", name).expect("a name"));
    let (key, second) = (&keys[0], Duration::from_secs(1));
    let (owner, pattern, prefix) = ("lh1:u:l", "*", "");
    let request = RateRequest {
        permits: 1,
        per: second,
        taken: 1,
        patience: second,
    };
    let from = Cursor::START;
    let (one, all) = (&keys[..1], &keys[..]);
    for request in [
        Request::Ping,
        Request::RateLimit { key, request },
        Request::Inspect {
            keys: one,
            named: true,
        },
        Request::Inspect {
            keys: all,
            named: false,
        },
        Request::Scan {
            from,
            prefix,
            pattern,
        },
        Request::ForceRelease { key, owner },
    ] {
        match wire::decode(&request, value.clone()) {
            Ok(Reply::Admitted(wait)) => assert!(wait <= second),
            Ok(Reply::Inspected(seen)) => {
                for seen in seen.into_iter().flatten() {
                    assert!(!format!("{:?}", LockInfo::new(key, seen)).is_empty());
                }
            }
            Ok(_) => {}
            Err(failure) => {
                let error = failure.into_error(Some("a"));
                assert!(matches!(error, Error::Protocol { .. }));
            }
        }
    }
}

/// Lets a manager hear the pub/sub messages in these bytes, up to the first that is malformed, and returns their number. The
/// message `@` stands for this owner.
#[must_use]
pub fn hear(locks: &LockManager, owner: &str, bytes: &[u8]) -> usize {
    let server = Server::parse("redis://h/").expect("a URL");
    let heard = answers(bytes).into_iter();
    let heard = heard.map_while(|value| PushMessage::of(&server, value).ok());
    let mut count = 0;
    for said in heard {
        if let PushMessage::Message { channel, payload } = said {
            let payload = match &payload[..] {
                b"@" => owner.as_bytes(),
                payload => payload,
            };
            let channel = String::from_utf8_lossy(&channel);
            locks.engine.hear(&channel, payload);
            count += 1;
        }
    }
    count
}
