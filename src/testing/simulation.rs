//! The door for `tests/simulator`: processes on machines that it has made, and servers in memory.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::builder::Builder;
use crate::name;
use crate::sys::test_machine::TestNetwork;
use crate::sys::{Arc, LONGEST_SLEEP, Machine, TestMachine, Time, thread};
use crate::testing::memory::{MemoryServer, request};

pub use crate::sys::test_machine::{TestScheduler, TestStream};
pub use crate::testing::memory::{
    Change, ChannelMessage, ClusterNode, ClusterTable, DataCopy, MovedKey, ServerState,
    WatchedMaster,
};

/// The world that a process of the simulator sees.
pub trait World: Send + Sync {
    /// Returns what decides which thread runs.
    fn scheduler(&self) -> &dyn TestScheduler;

    /// Returns the time of the clock of leases.
    fn now(&self) -> Duration;

    /// Returns the time of day, since 1970.
    fn since_1970(&self) -> Duration;

    /// Connects to a server, within this time. The address is the path of a Unix socket, or an IP address with a port.
    ///
    /// # Errors
    ///
    /// The server refuses, or the time is over.
    fn connect(&self, address: &str, limit: Duration) -> io::Result<Box<dyn TestStream>>;

    /// Returns a stream that gives back what is written to it. By it a thread wakes another one that waits for streams.
    fn echo(&self) -> Box<dyn TestStream>;

    /// Blocks the calling thread until something happens at one of these streams, for at most `limit`. May return earlier.
    fn wait_for_input(&self, streams: &[&dyn TestStream], limit: Duration);
}

/// A process of the simulator.
#[derive(Clone, Debug)]
pub struct Process(Machine);

/// A server in memory, without a clock.
pub struct ServerInMemory(MemoryServer);

/// The machine of a process.
struct SimulatedMachine(Arc<SimulatedNetwork>);

struct SimulatedNetwork(Arc<dyn World>);

impl Process {
    #[must_use]
    pub fn new(world: Arc<dyn World>) -> Self {
        let network = Arc::new(SimulatedNetwork(world));
        Self(Machine::new(Arc::new(SimulatedMachine(network))))
    }

    /// Has a manager of this builder run in this process.
    pub fn builder(&self, builder: Builder) -> Builder {
        builder.on(self.0.clone())
    }

    /// Starts a thread of the process.
    ///
    /// # Errors
    ///
    /// The system refuses the thread.
    pub fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.0.spawn(name, run)
    }
}

/// Blocks the calling thread, which a process has started.
pub fn sleep(time: Duration) {
    thread::sleep(time);
}

/// Returns the slot of a key in a cluster.
#[must_use]
pub fn slot_of(key: &str) -> u16 {
    name::slot_of(key)
}

impl ServerInMemory {
    /// Starts a server without data. `run_id` names this process of the server, and `now` is its time since 1970.
    ///
    /// # Panics
    ///
    /// Panics if there is no memory.
    #[must_use]
    pub fn start(run_id: String, now: Duration) -> Self {
        Self(MemoryServer::start(run_id, now).expect("memory for a server"))
    }

    /// Restarts the server with its data. Its connections end.
    pub fn restart(&mut self, run_id: String, now: Duration) {
        self.0.restart(run_id, now);
    }

    /// Restarts the server as a new one: without data, and its connections have the numbers of before.
    pub fn restart_empty(&mut self, run_id: String, now: Duration) {
        self.0.restart_empty(run_id, now);
    }

    /// Returns the part of the server that has replicas, or is a node of a cluster. The simulator carries what servers send
    /// to each other.
    pub fn state(&mut self) -> &mut ServerState {
        self.0.state()
    }

    /// Accepts a connection, and returns its number.
    pub fn connect(&mut self) -> u64 {
        self.0.connect()
    }

    /// Takes bytes from a client at this time since 1970, and executes each request that is whole.
    pub fn receive(&mut self, connection: u64, bytes: &[u8], now: Duration) {
        self.0.receive(connection, bytes, now);
    }

    /// Returns the connections for which the server has something, or which it has closed.
    #[must_use]
    pub fn with_output(&self) -> Vec<u64> {
        self.0.with_output()
    }

    /// Returns what the server has for a client. Returns `None` at the end of a connection that the server has closed.
    pub fn take_output(&mut self, connection: u64) -> Option<Vec<u8>> {
        self.0.take_output(connection)
    }

    /// Notes that a client has closed its connection.
    pub fn disconnect(&mut self, connection: u64) {
        self.0.disconnect(connection);
    }

    /// Executes a command at this time since 1970, and returns the bytes of its answer.
    pub fn execute(&mut self, command: &[&str], now: Duration) -> Vec<u8> {
        let connection = self.0.connect();
        self.0.receive(connection, &request(command), now);
        let answer = self.0.take_output(connection);
        self.0.disconnect(connection);
        answer.unwrap_or_default()
    }
}

impl TestMachine for SimulatedMachine {
    fn now(&self) -> Time {
        self.0.now()
    }

    fn wall_us(&self) -> u64 {
        let since = self.0.0.since_1970().as_micros();
        u64::try_from(since).unwrap_or(u64::MAX)
    }

    fn park_until(&self, until: Time) {
        let left = until.since(self.now());
        if !left.is_zero() {
            thread::park_for(left.min(LONGEST_SLEEP));
        }
    }

    fn network(&self) -> Option<Arc<dyn TestNetwork>> {
        Some(Arc::clone(&self.0) as _)
    }

    fn scheduler(&self) -> Option<&dyn TestScheduler> {
        Some(self.0.0.scheduler())
    }
}

impl SimulatedNetwork {
    fn now(&self) -> Time {
        Time::from_nanos(0) + self.0.now()
    }
}

impl TestNetwork for SimulatedNetwork {
    fn connect(&self, address: &str, until: Time) -> io::Result<Box<dyn TestStream>> {
        self.0.connect(address, until.since(self.now()))
    }

    fn echo(&self) -> Option<Box<dyn TestStream>> {
        Some(self.0.echo())
    }

    fn wait(&self, streams: &[&dyn TestStream], until: Time) {
        loop {
            let left = until.since(self.now());
            if streams.iter().any(|stream| stream.has_input()) || left.is_zero() {
                return;
            }
            self.0.wait_for_input(streams, left);
        }
    }

    /// The world itself wakes the threads that wait.
    fn notify(&self) {}
}

impl fmt::Debug for ServerInMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerInMemory")
    }
}
