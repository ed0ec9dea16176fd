//! A proxy between a manager and its server. It makes the faults of a network on the connections between them.
//!
//! | fault | requests | replies |
//! | --- | --- | --- |
//! | [`Fault::Delay`], [`Fault::Late`] | are late | are late |
//! | [`Fault::Drip`] | arrive in small pieces | arrive in small pieces |
//! | [`Fault::Close`] | are lost: the connection is closed, and a new one at its first request | none |
//! | [`Fault::Reset`] | the same by a reset | none |
//! | [`Fault::HalfOpen`] | are lost: the server's end is closed, and the client's end stays open | none |
//! | [`Fault::LoseRequests`] | are lost | arrive |
//! | [`Fault::LoseAnswers`] | arrive | are lost |
//!
//! The first request of a connection shows its use, see [`Role`]. Lost data stays lost after the fault.
//!
//! [`Proxy::repeat_answers`] sends answers that nobody has asked for. [`Proxy::forget_connections`] makes the proxy a router
//! that has forgotten its connections: it carries nothing on them, and says nothing.

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use super::{Server, ms, wait_until};

/// The time after which a fault affects an idle connection.
const GLANCE: Duration = ms(20);
/// The pause before each piece under [`Fault::Drip`].
const DROP: Duration = ms(1);
/// The largest number of pieces of one read. With it a request is sent in time even on a busy machine, where each
/// pause is longer.
const DROPS: usize = 64;

/// The use that a manager has for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The first request subscribes, or publishes, to check the right to do so.
    Listener,
    /// The first request renews a lease.
    Renewal,
    /// Any other connection. Callers' threads use it, and so does the renewal thread if its first request is no
    /// renewal. On a quorum there is no other role: each connection first asks about the server.
    Pool,
}

impl Role {
    const ALL: [Self; 3] = [Self::Listener, Self::Renewal, Self::Pool];

    fn of(first_request: &[u8]) -> Self {
        let renewal = leasehold::seam::script("renew");
        let by_text = format!("EVAL\r\n${}\r\n{renewal}", renewal.len());
        let by_digest = redis::Script::new(renewal);
        let has = |word: &str| {
            let mut windows = first_request.windows(word.len());
            windows.any(|window| window == word.as_bytes())
        };
        if has("SUBSCRIBE") || first_request.starts_with(b"*3\r\n$7\r\nPUBLISH") {
            Self::Listener
        } else if has(by_digest.get_hash()) || has(&by_text) {
            Self::Renewal
        } else {
            Self::Pool
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Delay,
    /// Delays by this many milliseconds.
    Late(u64),
    Drip,
    Close,
    Reset,
    HalfOpen,
    LoseRequests,
    LoseAnswers,
}

impl Fault {
    /// The delay of [`Fault::Delay`]. It is shorter than the time limit of any request.
    pub const DELAY: Duration = ms(100);

    /// Returns whether requests get replies under this fault.
    pub fn lets_through(self) -> bool {
        matches!(self, Self::Delay | Self::Late(_) | Self::Drip)
    }
}

/// A proxy. Dropping it closes its connections.
pub struct Proxy {
    address: SocketAddr,
    net: Arc<Net>,
}

struct Net {
    server: SocketAddr,
    faults: Mutex<Faults>,
    pairs: Mutex<Vec<Weak<Pair>>>,
    /// How often all connections were closed.
    closings: AtomicU64,
    /// How often all connections were forgotten.
    forgotten: AtomicU64,
    over: AtomicBool,
}

#[derive(Default)]
struct Faults {
    now: HashMap<Role, Fault>,
    /// How often each fault has had an effect since it began.
    struck: HashMap<Role, u64>,
}

/// A connection through the proxy.
struct Pair {
    client: TcpStream,
    server: TcpStream,
    role: Role,
    net: Arc<Net>,
    /// The last piece of answers.
    last_answers: Mutex<Vec<u8>>,
    /// [`Net::closings`] at the start of the connection.
    closings: u64,
    /// [`Net::forgotten`] at the start of the connection.
    forgotten: u64,
    /// Whether one direction has ended. Then the other ends too.
    over: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Requests,
    Answers,
}

impl Proxy {
    pub fn to(server: &Server) -> Self {
        Self::to_port(server.port())
    }

    pub fn to_port(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("it has one");
        let net = Arc::new(Net {
            server: SocketAddr::from(([127, 0, 0, 1], port)),
            faults: Mutex::default(),
            pairs: Mutex::default(),
            closings: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
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

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Applies a fault to all connections of a role from now on.
    pub fn strike(&self, role: Role, fault: Fault) {
        let mut faults = self.net.faults();
        faults.now.insert(role, fault);
        faults.struck.remove(&role);
    }

    pub fn strike_all(&self, fault: Fault) {
        for role in Role::ALL {
            self.strike(role, fault);
        }
    }

    pub fn heal(&self) {
        self.net.faults().now.clear();
    }

    /// Ends the faults, and closes all connections. A connection that lost data and goes on is no network fault.
    pub fn heal_anew(&self) {
        self.net.closings.fetch_add(1, Ordering::SeqCst);
        self.heal();
    }

    /// Loses all that is sent on the connections of now, in both directions.
    pub fn forget_connections(&self) {
        self.net.forgotten.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the connections that have not ended.
    fn open_pairs(&self) -> Vec<Arc<Pair>> {
        let pairs = self
            .net
            .pairs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let there = pairs.iter().filter_map(Weak::upgrade);
        there
            .filter(|pair| !pair.over.load(Ordering::SeqCst))
            .collect()
    }

    /// Sends at most `length` bytes of the last piece of answers of each connection once more. Returns how many
    /// connections have got them.
    pub fn repeat_answers(&self, length: usize) -> usize {
        let open = self.open_pairs().into_iter();
        open.filter(|pair| pair.repeat_answers(length)).count()
    }

    /// Returns how often the fault of a role, or of all, has had an effect since it began.
    pub fn struck(&self, role: Option<Role>) -> u64 {
        let faults = self.net.faults();
        let meant = |its: &Role| role.is_none_or(|role| role == *its);
        let struck = faults.struck.iter().filter(|(its, _)| meant(its));
        struck.map(|(_, count)| count).sum()
    }

    /// Blocks until the fault of the role has had an effect.
    #[track_caller]
    pub fn wait_until_struck(&self, role: Role) {
        wait_until("the fault strikes", || {
            self.net.faults().struck.contains_key(&role)
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.net.over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts connections.
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
        // The test may have killed the server. Then the proxy refuses connections too.
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
            closings: self.closings.load(Ordering::SeqCst),
            forgotten: self.forgotten.load(Ordering::SeqCst),
            last_answers: Mutex::default(),
            net: Arc::clone(&self),
            over: AtomicBool::new(false),
        });
        let pairs = self.pairs.lock();
        pairs
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::downgrade(&pair));
        if pair.carry(What::Requests, &first) {
            drop(first);
            let answers = Arc::clone(&pair);
            thread::spawn(move || answers.pump(What::Answers));
            pair.pump(What::Requests);
        }
    }
}

impl Pair {
    /// Forwards data in one direction, until a side closes the connection or a fault ends it.
    fn pump(&self, what: What) {
        let mut from = match what {
            What::Requests => &self.client,
            What::Answers => &self.server,
        };
        let mut bytes = vec![0; 64 * 1024];
        while !self.net.is_over() && !self.over.load(Ordering::SeqCst) {
            let goes_on = match from.read(&mut bytes) {
                // The server has closed its end. The client does not learn of it.
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
        // The sockets are closed when both directions have ended.
        self.over.store(true, Ordering::SeqCst);
    }

    /// Sends the beginning of the last piece of answers once more. Returns false if there is none, or the connection has
    /// ended.
    fn repeat_answers(&self, length: usize) -> bool {
        let last = self.last_answers.lock();
        let last = last.unwrap_or_else(PoisonError::into_inner);
        let Ok(client) = self.client.peer_addr() else {
            return false;
        };
        let part = &last[..last.len().min(length)];
        if part.is_empty() || (&self.client).write_all(part).is_err() {
            return false;
        }
        wait_until("the client's system has it", || !has_unsent(client.port()));
        true
    }

    /// Ends both directions. Returns `false`, because the connection is over.
    fn close(&self) -> bool {
        for stream in [&self.client, &self.server] {
            stream.shutdown(Shutdown::Both).ok();
        }
        false
    }

    /// Returns whether the proxy has closed all connections since the start of this one.
    fn is_closed(&self) -> bool {
        self.net.closings.load(Ordering::SeqCst) != self.closings
    }

    /// Returns whether the proxy has forgotten all connections since the start of this one.
    fn is_forgotten(&self) -> bool {
        self.net.forgotten.load(Ordering::SeqCst) != self.forgotten
    }

    fn fault(&self) -> Option<Fault> {
        self.net.faults().now.get(&self.role).copied()
    }

    /// Records that the fault has had an effect.
    fn strikes(&self) {
        *self.net.faults().struck.entry(self.role).or_default() += 1;
    }

    /// Applies the fault to an idle connection. Returns `false` if the connection is over.
    fn look(&self) -> bool {
        if self.is_closed() {
            return self.close();
        }
        match self.fault() {
            Some(Fault::Close | Fault::Reset) => self.carry(What::Requests, &[]),
            Some(Fault::HalfOpen) => self.carry(What::Answers, &[]),
            _ => true,
        }
    }

    /// Forwards data as the fault demands. Returns `false` if the connection is over.
    fn carry(&self, what: What, bytes: &[u8]) -> bool {
        let fault = self.fault();
        if self.is_closed() {
            return self.close();
        }
        if self.is_forgotten() {
            return true;
        }
        match (fault, what) {
            (None, _)
            | (Some(Fault::LoseRequests), What::Answers)
            | (Some(Fault::LoseAnswers), What::Requests) => {}
            _ => self.strikes(),
        }
        let mut to = match what {
            What::Requests => &self.server,
            What::Answers => {
                let last = self.last_answers.lock();
                bytes.clone_into(&mut last.unwrap_or_else(PoisonError::into_inner));
                &self.client
            }
        };
        match (fault, what) {
            (Some(Fault::Close), _) => self.close(),
            (Some(Fault::Reset), _) => {
                // A socket that is closed with this option sends a reset.
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

/// Returns whether a socket of this machine has bytes for this port that have not arrived there.
fn has_unsent(port: u16) -> bool {
    let sockets = fs::read_to_string("/proc/self/net/tcp").expect("the table of sockets");
    let to = format!(":{port:04X}");
    sockets.lines().any(|line| {
        // The number, both addresses, the state, and the lengths of both queues.
        let mut words = line.split_ascii_whitespace().skip(2);
        let is_to = words.next().is_some_and(|remote| remote.ends_with(&to));
        is_to
            && words
                .nth(1)
                .is_some_and(|queues| !queues.starts_with("00000000:"))
    })
}
