//! The network of a test kit: streams of bytes between its managers and its servers, without a socket and a thread.
//!
//! | a client | the stream |
//! | --- | --- |
//! | connects | is known to the node. During a cut it is refused, and so is a client of a process that was killed |
//! | writes | gives the bytes to the node, which executes them at the time of the kit's clock. Answers and messages go into the streams of their clients at once |
//! | reads | takes what the node has put into it |
//! | waits | looks again whenever something happens on the network: the node has put bytes into a stream, or has ended one; a thread was woken; the test has moved the clock |

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use leasehold::seam::{LONGEST_SLEEP, TestNetwork, TestStream, Time};
use uuid::Uuid;

use crate::clock::{TestClock, locked};
use crate::memory::{MemoryServer, Resp};

/// The number of events on the network, which only grows.
#[derive(Default)]
struct Happenings {
    count: Mutex<u64>,
    changed: Condvar,
}

/// The nodes of a test kit, and the way to them.
pub(crate) struct MemoryNetwork {
    pub(crate) nodes: Vec<Arc<MemoryNode>>,
    clock: Arc<TestClock>,
    happenings: Arc<Happenings>,
}

/// The way of one process to the nodes.
pub(crate) struct ProcessNetwork {
    network: Arc<MemoryNetwork>,
    is_dead: Arc<AtomicBool>,
}

/// A server in memory, with its clients.
pub(crate) struct MemoryNode {
    clock: Arc<TestClock>,
    happenings: Arc<Happenings>,
    state: Mutex<MemoryNodeState>,
}

struct MemoryNodeState {
    server: MemoryServer,
    /// The bytes that the server has sent to each client.
    inboxes: BTreeMap<u64, Arc<Inbox>>,
    is_cut: bool,
}

/// The bytes on their way to a client.
struct Inbox {
    state: Mutex<InboxState>,
    /// Whether the process of the client was killed.
    is_dead: Arc<AtomicBool>,
}

#[derive(Default)]
struct InboxState {
    bytes: Vec<u8>,
    is_over: bool,
}

/// The client's end of a stream.
struct ClientEnd {
    node: Arc<MemoryNode>,
    id: u64,
    inbox: Arc<Inbox>,
}

impl Happenings {
    fn add(&self) {
        *locked(&self.count) += 1;
        self.changed.notify_all();
    }
}

impl MemoryNetwork {
    pub(crate) fn new(nodes: usize, clock: &Arc<TestClock>) -> Self {
        let happenings = Arc::<Happenings>::default();
        let node = |_| {
            Arc::new(MemoryNode {
                clock: Arc::clone(clock),
                happenings: Arc::clone(&happenings),
                state: Mutex::new(MemoryNodeState {
                    server: new_server(clock),
                    inboxes: BTreeMap::new(),
                    is_cut: false,
                }),
            })
        };
        Self {
            nodes: (0..nodes).map(node).collect(),
            clock: Arc::clone(clock),
            happenings,
        }
    }

    /// Returns the URLs of the nodes. A path is the number of a node.
    pub(crate) fn urls(&self) -> impl Iterator<Item = String> {
        (0..self.nodes.len()).map(|number| format!("unix:///{number}"))
    }
}

impl ProcessNetwork {
    pub(crate) fn new(network: &Arc<MemoryNetwork>) -> Self {
        Self {
            network: Arc::clone(network),
            is_dead: Arc::default(),
        }
    }

    /// Ends the process's connections, and refuses new ones.
    pub(crate) fn kill(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        for node in &self.network.nodes {
            node.disconnect_the_dead();
        }
    }
}

impl TestNetwork for ProcessNetwork {
    fn connect(&self, address: &str, _until: Time) -> io::Result<Box<dyn TestStream>> {
        let number = address.trim_start_matches('/').parse::<usize>();
        let nodes = &self.network.nodes;
        let node = number.ok().and_then(|number| nodes.get(number));
        let node = node.ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(MemoryNode::connect(node, &self.is_dead)?))
    }

    fn wait(&self, streams: &[&dyn TestStream], until: Time) {
        self.network.wait(streams, until);
    }

    fn notify(&self) {
        self.network.notify();
    }
}

impl MemoryNetwork {
    /// Blocks until one of these streams has input, or until then.
    fn wait(&self, streams: &[&dyn TestStream], until: Time) {
        let is_ready = || streams.iter().any(|stream| stream.has_input());
        let mut count = locked(&self.happenings.count);
        loop {
            let seen = *count;
            drop(count);
            let left = until.since(self.clock.now());
            if is_ready() || left.is_zero() {
                return;
            }
            count = locked(&self.happenings.count);
            if *count == seen {
                let limit = left.min(LONGEST_SLEEP);
                let waited = self.happenings.changed.wait_timeout(count, limit);
                count = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Notes that something has happened for which a thread may wait.
    pub(crate) fn notify(&self) {
        self.happenings.add();
    }
}

impl MemoryNode {
    fn connect(this: &Arc<Self>, is_dead: &Arc<AtomicBool>) -> io::Result<ClientEnd> {
        let mut state = locked(&this.state);
        // A process is killed before its connections end, so each of them is found here or there.
        if state.is_cut || is_dead.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let inbox = Arc::new(Inbox {
            state: Mutex::default(),
            is_dead: Arc::clone(is_dead),
        });
        let id = state.server.connect();
        state.inboxes.insert(id, Arc::clone(&inbox));
        Ok(ClientEnd {
            node: Arc::clone(this),
            id,
            inbox,
        })
    }

    pub(crate) fn cut(&self) {
        let mut state = locked(&self.state);
        state.is_cut = true;
        state.disconnect(|_| true);
        drop(state);
        self.happenings.add();
    }

    /// Ends the connections of processes that were killed.
    fn disconnect_the_dead(&self) {
        locked(&self.state).disconnect(|inbox| inbox.is_dead.load(Ordering::SeqCst));
        self.happenings.add();
    }

    pub(crate) fn restore(&self) {
        locked(&self.state).is_cut = false;
    }

    pub(crate) fn restart_empty(&self) {
        let mut state = locked(&self.state);
        state.disconnect(|_| true);
        state.server = new_server(&self.clock);
        drop(state);
        self.happenings.add();
    }

    /// Executes a command as a client does, and returns its answer.
    pub(crate) fn execute(&self, words: &[Vec<u8>]) -> Option<Resp> {
        let mut state = locked(&self.state);
        let answer = state.server.answer(words, now(&self.clock));
        state.send_all();
        drop(state);
        self.happenings.add();
        answer
    }
}

impl MemoryNodeState {
    /// Puts what the server has for its clients into their streams.
    fn send_all(&mut self) {
        let mut ended = Vec::new();
        for (id, inbox) in &self.inboxes {
            match self.server.take_output(*id) {
                Some(output) => locked(&inbox.state).bytes.extend(output),
                None => ended.push(*id),
            }
        }
        for id in ended {
            self.disconnect_one(id);
        }
    }

    fn disconnect_one(&mut self, id: u64) {
        if let Some(inbox) = self.inboxes.remove(&id) {
            locked(&inbox.state).is_over = true;
            self.server.disconnect(id);
        }
    }

    /// Ends these connections.
    fn disconnect(&mut self, is_meant: impl Fn(&Inbox) -> bool) {
        let meant = self.inboxes.iter().filter(|(_, inbox)| is_meant(inbox));
        let ids: Vec<_> = meant.map(|(id, _)| *id).collect();
        for id in ids {
            self.disconnect_one(id);
        }
    }
}

impl TestStream for ClientEnd {
    fn number(&self) -> u64 {
        self.id
    }

    fn has_input(&self) -> bool {
        let inbox = locked(&self.inbox.state);
        inbox.is_over || !inbox.bytes.is_empty()
    }

    fn read_now(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        let mut inbox = locked(&self.inbox.state);
        let length = inbox.bytes.len().min(to.len());
        if length == 0 {
            return Ok(inbox.is_over.then_some(0));
        }
        to[..length].copy_from_slice(&inbox.bytes[..length]);
        inbox.bytes.drain(..length);
        Ok(Some(length))
    }

    fn write_now(&self, from: &[u8]) -> io::Result<usize> {
        let mut state = locked(&self.node.state);
        if !state.inboxes.contains_key(&self.id) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        state.server.receive(self.id, from, now(&self.node.clock));
        state.send_all();
        drop(state);
        self.node.happenings.add();
        Ok(from.len())
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        locked(&self.node.state).disconnect_one(self.id);
    }
}

impl fmt::Debug for ClientEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientEnd").field(&self.id).finish()
    }
}

/// Returns the time of a server since 1970.
fn now(clock: &TestClock) -> Duration {
    Duration::from_micros(clock.wall_us())
}

/// Returns a server without data.
fn new_server(clock: &TestClock) -> MemoryServer {
    let run_id = Uuid::new_v4().simple().to_string();
    MemoryServer::start(run_id, now(clock))
}
