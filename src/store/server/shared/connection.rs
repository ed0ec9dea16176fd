//! An open connection of the pool, and the place that holds it.

use std::time::Duration;

use redis::Value;

use super::combiner::{Combiner, Failures};
use crate::store::server::places::Pooled;
use crate::store::transport::socket::{Reading, Socket, Stream, TransportError, Writing};
use crate::sys::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, Time, thread::Thread};

/// After this time without an answer, other threads prefer other connections.
const SLOW: Duration = Duration::from_millis(50);

/// The content of a place of the r2d2 pool.
#[derive(Default)]
pub(super) struct ConnectionPlace {
    /// `None` before a thread has opened it, and after it has failed.
    pub(super) connection: Option<Arc<PoolConnection>>,
}

/// An open connection. Threads that enter it look at the fields outside of the mutex, while they have the gate.
pub(super) struct PoolConnection {
    pub(super) state: Mutex<SharedState>,
    pub(super) stream: Arc<Stream>,
    /// The number of the master to which it leads. 0 if the address is fixed.
    master: u64,
    /// The number of threads on it. It changes under the gate.
    pub(super) callers: AtomicU32,
    /// Whether no thread may enter any more: it has failed, or a new connection may reach a better server.
    pub(super) is_retired: AtomicBool,
    /// Whether no thread may enter until what is overdue has come: see [`Combiner::is_overdue`].
    pub(super) is_overdue: AtomicBool,
    /// Whether an answer is missing.
    pub(super) is_awaited: AtomicBool,
    /// When answers came last while others were missing, or else when the first request after that was made. It counts
    /// in milliseconds from when the connection was opened.
    used_ms: AtomicU64,
}

/// The state of a connection, guarded by its mutex.
pub(super) struct SharedState {
    pub(super) combiner: Combiner<Thread, Value, TransportError>,
    /// `None` while a thread reads.
    pub(super) reading: Option<Box<Reading>>,
    /// `None` while a thread writes.
    pub(super) writing: Option<Box<Writing>>,
}

impl Pooled for ConnectionPlace {
    fn close_if_idle(&mut self, idle: Duration) {
        self.connection
            .take_if(|connection| connection.unused_for(Time::now()) >= idle);
    }
}

impl PoolConnection {
    /// Returns the connection of one thread.
    pub(super) fn new(socket: Socket, master: u64) -> Self {
        let Socket { reading, writing } = socket;
        Self {
            stream: Arc::clone(writing.stream()),
            state: Mutex::new(SharedState {
                combiner: Combiner::new(),
                reading: Some(reading),
                writing: Some(writing),
            }),
            master,
            callers: AtomicU32::new(1),
            is_retired: AtomicBool::new(false),
            is_overdue: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            used_ms: AtomicU64::new(0),
        }
    }

    /// Returns whether a thread may enter that wants this master: the connection must have been opened after one was last found closed.
    pub(super) fn is_open_to(&self, master: u64, last_closed: Option<Time>) -> bool {
        self.master == master
            && last_closed.is_none_or(|closed| self.stream.opened > closed)
            && !self.is_retired.load(Ordering::Relaxed)
            && !self.is_overdue.load(Ordering::Relaxed)
    }

    /// Returns whether other threads can use the connection after its last thread has left.
    pub(super) fn is_usable(&self) -> bool {
        let flags = [&self.is_retired, &self.is_overdue, &self.is_awaited];
        !flags.iter().any(|flag| flag.load(Ordering::Relaxed))
    }

    pub(super) fn is_slow(&self, now: Time) -> bool {
        self.is_awaited.load(Ordering::Relaxed) && self.unused_for(now) > SLOW
    }

    fn unused_for(&self, now: Time) -> Duration {
        let used = Duration::from_millis(self.used_ms.load(Ordering::Relaxed));
        now.since(self.stream.opened + used)
    }

    pub(super) fn note_use(&self, now: Time) {
        let since = now.since(self.stream.opened);
        let since = since.as_millis() as u64;
        self.used_ms.store(since, Ordering::Relaxed);
    }

    /// Shows the state of the combiner to threads that have the gate.
    pub(super) fn show(&self, state: &SharedState) {
        let combiner = &state.combiner;
        self.is_overdue
            .store(combiner.is_overdue(), Ordering::Relaxed);
        self.is_awaited
            .store(combiner.load() > 0, Ordering::Relaxed);
    }

    /// Ends the connection. The threads on it get the failure that its fault means for each of them. The caller wakes
    /// those, and shuts the stream down.
    pub(super) fn fail(
        &self,
        state: &mut SharedState,
        fault: TransportError,
        wake: &mut Vec<Thread>,
    ) {
        state.combiner.fail(failures(fault), wake);
        self.is_retired.store(true, Ordering::Relaxed);
    }

    /// Ends the connection, because an answer was no reply to its request. The other threads get an unknown outcome.
    pub(super) fn distrust(&self) {
        let mut wake = Vec::new();
        let mut state = self.state.lock();
        self.fail(&mut state, TransportError::Distrusted, &mut wake);
        drop(state);
        // A thread that reads or writes returns.
        self.stream.shut_down();
        for thread in wake {
            thread.unpark();
        }
    }
}

/// Returns the failure that a fault of a connection is for each of its callers. Only one of them has got the answer that
/// cannot be read. The others may succeed on another connection.
fn failures(fault: TransportError) -> Failures<TransportError> {
    let others = match &fault {
        TransportError::Malformed(_) => TransportError::Distrusted,
        fault => fault.clone(),
    };
    let unsent = match &fault {
        TransportError::Surplus => TransportError::Surplus,
        _ => TransportError::NotSent,
    };
    Failures {
        first: fault,
        others,
        unsent,
    }
}
