//! Access for the fuzz targets to private parts of the crate.

use std::time::Duration;

use redis::Value;

use crate::admin::LockInfo;
use crate::config::{Server, Settings};
use crate::core::fence::Fences;
use crate::engine::Engine;
use crate::error::{Error, Failure, Result};
use crate::guard::LockGuard;
use crate::manager::LockManager;
use crate::message::{
    AcquireMode, Adopt, Ask, Cursor, LockKind, PlainRelease, RateRequest, Renewal, Renewed, Reply,
    Request, Verb,
};
use crate::name::{Companion, LockKey, Target};
use crate::script;
use crate::store::server::pubsub::PushMessage;
use crate::store::transport::frame::{self, Frame};
use crate::store::{Answer, Deadline, DedicatedConnection, PubSubEvent, Store};
use crate::sys::Arc;

/// Returns a lock's key, its companions, and the slot that all of them must be in.
///
/// # Errors
///
/// Returns an error if the name cannot be a lock's name.
pub fn keys(prefix: &str, name: &str) -> Result<(String, [String; 3], u16)> {
    let key = LockKey::new(prefix, name)?;
    assert_eq!(key.name(), name);
    let companions = [Companion::Fence, Companion::Queue, Companion::Waiters];
    let companions = companions.map(|which| key.companion(which));
    Ok((key.key().to_owned(), companions, key.slot()))
}

/// Returns the text that logs and errors show of a server with this URL.
///
/// # Errors
///
/// Returns an error if the URL cannot be used.
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

/// Reads a value as the reply to each kind of call, and builds the results that callers get.
#[expect(clippy::too_many_lines, reason = "it makes a request of each kind")]
pub fn reply(value: &Value) {
    let key = |name| LockKey::new("", name).expect("a name");
    let keys = [key("a"), key("b"), key("c")];
    let one = Target::from(key("a"));
    let several = Target::all(keys.to_vec()).expect("three names");
    let owner: Arc<str> = "lh1:67e55044-10b1-426f-9247-bb680e5fe0c8:l".into();
    let ask = Ask {
        owner: Arc::clone(&owner),
        units: 1,
        lease: Duration::from_secs(1),
        fences: 50_000,
        shareable_owner: None,
        channel: None,
        nonce: None,
    };
    let acquire = Verb::Acquire {
        ask,
        mode: AcquireMode::TakeFree,
    };
    let release = Verb::Release {
        owner: Arc::clone(&owner),
        units: 1,
    };
    let lock = |kind, target, verb| Request::Lock { kind, target, verb };
    let renewal = Renewal {
        kind: LockKind::Mutex,
        key: &keys[0],
        owner: owner.to_string(),
        units: 1,
        lease: Duration::from_secs(1),
        may_join: false,
    };
    let plain = PlainRelease {
        kind: LockKind::Mutex,
        target: &one,
        owner: &owner,
        units: 1,
    };
    let request = RateRequest {
        permits: 1,
        per: Duration::from_secs(1),
        patience: Duration::from_secs(1),
    };
    let adopt = Adopt {
        owner: Arc::clone(&owner),
        lease: Duration::from_secs(1),
        from: Arc::clone(&owner),
        last: 1,
        fencing: true,
        shortens: true,
    };
    for request in [
        Request::Ping,
        lock(LockKind::Mutex, &one, &acquire),
        lock(LockKind::Read, &one, &acquire),
        lock(LockKind::Multi, &several, &acquire),
        lock(LockKind::Mutex, &one, &release),
        Request::Renew(&[renewal.clone(), renewal]),
        Request::Release(&[plain, plain]),
        Request::RateLimit {
            key: &keys[0],
            request,
        },
        Request::Adopt {
            key: &keys[0],
            adopt: &adopt,
        },
        Request::Inspect {
            keys: &keys[..1],
            named: true,
        },
        Request::Inspect {
            keys: &keys,
            named: false,
        },
        Request::Scan {
            from: Cursor::START,
            prefix: "",
            pattern: "*",
        },
        Request::ForceRelease {
            key: &keys[0],
            owner: &owner,
        },
    ] {
        match script::decode(&request, value.clone()) {
            Ok(Reply::Granted { fence, rest, .. }) => {
                let names = match request {
                    Request::Lock { target, .. } => target.keys().len(),
                    _ => 1,
                };
                assert_eq!(rest.len() + 1, names);
                for kind in [LockKind::Mutex, LockKind::Read] {
                    let mut fences = Fences::granted(kind, fence, 50_000);
                    assert_eq!(fences.take(), Some(fence));
                    fences.give_back();
                }
            }
            Ok(Reply::Renewed(said)) => assert_eq!(said.len(), 2),
            Ok(Reply::Each(said)) => assert_eq!(said.len(), 2),
            Ok(Reply::Admitted(wait)) => assert!(wait <= Duration::from_secs(1)),
            Ok(Reply::Inspected(seen)) => {
                for seen in seen.into_iter().flatten() {
                    let info = LockInfo::new(&keys[0], seen);
                    assert!(!format!("{info:?}").is_empty());
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

/// A process that holds a lock, and listens to messages.
pub struct Listening {
    engine: Arc<Engine>,
    guard: LockGuard,
}

impl Default for Listening {
    fn default() -> Self {
        Self::new()
    }
}

impl Listening {
    /// Acquires a lock called `n` from a store that grants everything.
    #[must_use]
    pub fn new() -> Self {
        let settings = Settings {
            label: "l".into(),
            ..Settings::default()
        };
        let engine = Engine::new(settings, Arc::new(Grants));
        let locks = LockManager {
            engine: Arc::clone(&engine),
        };
        let guard = locks.lock("n").expect("it is granted");
        Self { engine, guard }
    }

    /// Receives the messages in these bytes, up to the first that is malformed, and returns their number. The message
    /// `@` stands for the owner of the lock. The process trusts no message, so it still holds the lock.
    #[must_use]
    pub fn hear(&self, bytes: &[u8]) -> usize {
        let server = Server::parse("redis://h/").expect("it is a URL");
        let said = answers(bytes)
            .into_iter()
            .map_while(|value| PushMessage::of(&server, value).ok());
        let mut count = 0;
        for said in said {
            if let PushMessage::Message { channel, payload } = said {
                let payload = match &payload[..] {
                    b"@" => self.guard.owner().as_bytes(),
                    payload => payload,
                };
                self.engine
                    .hear(&String::from_utf8_lossy(&channel), payload);
                count += 1;
            }
        }
        self.guard.check().expect("no message ends the lease");
        count
    }
}

/// A store that grants and renews everything.
struct Grants;

impl Store for Grants {
    fn call(&self, request: &Request<'_>, _: Deadline<'_>) -> Result<Answer, Failure> {
        let reply = match request {
            Request::Renew(batch) => {
                let done = Renewed::Done { contended: false };
                Reply::Renewed(vec![done; batch.len()])
            }
            _ => Reply::Granted {
                fence: 1,
                count: None,
                rest: Vec::new(),
                contended: false,
            },
        };
        Ok(Answer {
            reply,
            resent: false,
        })
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        Box::new(Self)
    }

    fn listen(
        &self,
        _: &[&str],
        _: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        Ok(())
    }
}

impl DedicatedConnection for Grants {
    fn call(&mut self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure> {
        Store::call(self, request, Deadline::after(limit))
    }
}
