//! A proxy between a manager and its server, which does to its connections what networks do.
//!
//! | fault | requests | answers |
//! | --- | --- | --- |
//! | [`Fault::Delay`], [`Fault::Late`] | late | late |
//! | [`Fault::Drip`] | a few bytes at a time | a few bytes at a time |
//! | [`Fault::Close`] | the connection is closed in good order, and each new one at its first request | |
//! | [`Fault::Reset`] | the same, by a reset | |
//! | [`Fault::HalfOpen`] | vanish: the server's end is closed, the client is not told | there are none |
//! | [`Fault::LoseRequests`] | vanish | come through |
//! | [`Fault::LoseAnswers`] | come through | vanish |
//!
//! A connection is known by its first request, see [`Role`]. What has been lost on one stays lost after the fault.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use super::{Server, ms, wait_until};

/// How soon a fault is noticed on a connection on which nothing comes.
const GLANCE: Duration = ms(20);
/// Before each drop of what drips.
const DROP: Duration = ms(1);
/// How many drops what is read at once becomes at the most: on a busy machine, which sleeps for longer, a request is
/// through in time all the same.
const DROPS: usize = 64;

/// What a manager uses a connection for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// Its first request publishes, to see whether it may, or subscribes.
    Listener,
    /// Its first request renews.
    Renewal,
    /// Any other: the callers' threads use it. A line of the renewal thread whose first request is no renewal counts
    /// among these.
    Pool,
}

impl Role {
    const ALL: [Self; 3] = [Self::Listener, Self::Renewal, Self::Pool];

    fn of(first_request: &[u8]) -> Self {
        let renewal = redis::Script::new(concat!(
            include_str!("../../../src/script/lua/value.lua"),
            include_str!("../../../src/script/lua/renew.lua")
        ));
        let has = |word: &str| {
            let mut windows = first_request.windows(word.len());
            windows.any(|window| window == word.as_bytes())
        };
        if has("SUBSCRIBE") || first_request.starts_with(b"*3\r\n$7\r\nPUBLISH") {
            Self::Listener
        } else if has(renewal.get_hash()) {
            Self::Renewal
        } else {
            Self::Pool
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Delay,
    /// The same, by as many milliseconds.
    Late(u64),
    Drip,
    Close,
    Reset,
    HalfOpen,
    LoseRequests,
    LoseAnswers,
}

impl Fault {
    /// How late whatever is delayed is: less than any request may take.
    pub(crate) const DELAY: Duration = ms(100);

    /// Whether a request can have its answer under it.
    pub(crate) fn lets_through(self) -> bool {
        matches!(self, Self::Delay | Self::Late(_) | Self::Drip)
    }
}

/// Dropping it ends the connections that go through it.
pub(crate) struct Proxy {
    address: SocketAddr,
    net: Arc<Net>,
}

struct Net {
    server: SocketAddr,
    faults: Mutex<Faults>,
    over: AtomicBool,
}

#[derive(Default)]
struct Faults {
    now: HashMap<Role, Fault>,
    /// How often each has struck something since it began.
    struck: HashMap<Role, u64>,
}

/// A connection through the proxy.
struct Pair {
    client: TcpStream,
    server: TcpStream,
    role: Role,
    net: Arc<Net>,
    /// Whether one direction has ended, and so the other does.
    over: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Requests,
    Answers,
}

impl Proxy {
    pub(crate) fn to(server: &Server) -> Self {
        Self::to_port(server.port())
    }

    pub(crate) fn to_port(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("it has one");
        let net = Arc::new(Net {
            server: SocketAddr::from(([127, 0, 0, 1], port)),
            faults: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let own = Arc::clone(&net);
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if own.is_over() {
                    return;
                }
                let net = Arc::clone(&own);
                thread::spawn(move || net.connect(client));
            }
        });
        Self { address, net }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// From now on this is done to all connections of the role, present and to come.
    pub(crate) fn strike(&self, role: Role, fault: Fault) {
        let mut faults = self.net.faults();
        faults.now.insert(role, fault);
        faults.struck.remove(&role);
    }

    pub(crate) fn strike_all(&self, fault: Fault) {
        for role in Role::ALL {
            self.strike(role, fault);
        }
    }

    pub(crate) fn heal(&self) {
        self.net.faults().now.clear();
    }

    /// Waits until the role's fault has done something to a connection.
    #[track_caller]
    pub(crate) fn wait_until_struck(&self, role: Role) {
        wait_until("the fault strikes", || {
            self.net.faults().struck.contains_key(&role)
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.net.over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        TcpStream::connect(self.address).ok();
    }
}

impl Net {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn connect(self: Arc<Self>, mut client: TcpStream) {
        let mut first = vec![0; 64 * 1024];
        let Ok(length) = client.read(&mut first) else {
            return;
        };
        first.truncate(length);
        // Refused, as the server would: the server may be one that is killed.
        let Ok(server) = TcpStream::connect(self.server) else {
            return;
        };
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a connection");
            stream.set_read_timeout(Some(GLANCE)).expect("a connection");
        }
        let pair = Arc::new(Pair {
            role: Role::of(&first),
            client,
            server,
            net: self,
            over: AtomicBool::new(false),
        });
        if pair.carry(What::Requests, &first) {
            drop(first);
            let answers = Arc::clone(&pair);
            thread::spawn(move || answers.pump(What::Answers));
            pair.pump(What::Requests);
        }
    }
}

impl Pair {
    /// Carries over what comes from one end to the other, until one is closed or a fault ends it.
    fn pump(&self, what: What) {
        let mut from = match what {
            What::Requests => &self.client,
            What::Answers => &self.server,
        };
        let mut bytes = vec![0; 64 * 1024];
        while !self.net.is_over() && !self.over.load(Ordering::SeqCst) {
            let goes_on = match from.read(&mut bytes) {
                // The server's end is closed, and the client is not told.
                Ok(0) if what == What::Answers && self.fault() == Some(Fault::HalfOpen) => return,
                Ok(0) => self.close(),
                Ok(length) => self.carry(what, &bytes[..length]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    self.look()
                }
                Err(_) => self.close(),
            };
            if !goes_on {
                break;
            }
        }
        // With the last of the two the sockets are closed.
        self.over.store(true, Ordering::SeqCst);
    }

    /// Ends both directions. False, as for what ends the connection.
    fn close(&self) -> bool {
        for stream in [&self.client, &self.server] {
            stream.shutdown(Shutdown::Both).ok();
        }
        false
    }

    fn fault(&self) -> Option<Fault> {
        self.net.faults().now.get(&self.role).copied()
    }

    /// The fault has had an effect.
    fn strikes(&self) {
        *self.net.faults().struck.entry(self.role).or_default() += 1;
    }

    /// Does what a fault does to a connection on which nothing comes. False where that ends it.
    fn look(&self) -> bool {
        match self.fault() {
            Some(Fault::Close | Fault::Reset) => self.carry(What::Requests, &[]),
            Some(Fault::HalfOpen) => self.carry(What::Answers, &[]),
            _ => true,
        }
    }

    /// Carries something over, as the fault has it. False where the connection is over.
    fn carry(&self, what: What, bytes: &[u8]) -> bool {
        let fault = self.fault();
        match (fault, what) {
            (None, _)
            | (Some(Fault::LoseRequests), What::Answers)
            | (Some(Fault::LoseAnswers), What::Requests) => {}
            _ => self.strikes(),
        }
        let mut to = match what {
            What::Requests => &self.server,
            What::Answers => &self.client,
        };
        match (fault, what) {
            (Some(Fault::Close), _) => self.close(),
            (Some(Fault::Reset), _) => {
                // Closed with this, a socket sends a reset.
                for stream in [&self.client, &self.server] {
                    set_socket_linger(stream, Some(Duration::ZERO)).ok();
                }
                false
            }
            (Some(Fault::HalfOpen), _) => {
                self.server.shutdown(Shutdown::Both).ok();
                true
            }
            (Some(Fault::LoseRequests), What::Requests)
            | (Some(Fault::LoseAnswers), What::Answers) => true,
            (Some(Fault::Drip), _) => {
                bytes
                    .chunks(bytes.len().div_ceil(DROPS).max(1))
                    .all(|drop| {
                        thread::sleep(DROP);
                        to.write_all(drop).is_ok()
                    })
            }
            (Some(Fault::Delay), _) => {
                thread::sleep(Fault::DELAY);
                to.write_all(bytes).is_ok()
            }
            (Some(Fault::Late(by)), _) => {
                thread::sleep(ms(by));
                to.write_all(bytes).is_ok()
            }
            (None | Some(Fault::LoseRequests | Fault::LoseAnswers), _) => {
                to.write_all(bytes).is_ok()
            }
        }
    }
}
