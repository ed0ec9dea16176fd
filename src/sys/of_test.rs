//! A machine of a test in place of the operating system: streams on its network, and below this module, waits that its
//! scheduler ends.

pub(crate) mod hash;
pub(crate) mod locks;
pub(crate) mod thread;

use std::fmt;
use std::io;
use std::time::Duration;

use smallvec::SmallVec;

use super::machine::Machine;
use super::test_machine::{TestNetwork, TestStream};
use super::time::Time;
use super::{Arc, AtomicU64, Ordering};

/// A stream, with the time limit of its reads.
pub(crate) struct LimitedStream {
    stream: Box<dyn TestStream>,
    network: Arc<dyn TestNetwork>,
    /// In nanoseconds.
    limit: AtomicU64,
}

/// Connects on the network of this thread's machine, if it has one.
pub(super) fn connect(address: &str, until: Time) -> Option<io::Result<LimitedStream>> {
    let network = Machine::here().network()?;
    let stream = network.connect(address, until);
    Some(stream.map(|stream| LimitedStream::new(stream, network)))
}

impl LimitedStream {
    fn new(stream: Box<dyn TestStream>, network: Arc<dyn TestNetwork>) -> Self {
        Self {
            stream,
            network,
            limit: AtomicU64::new(0),
        }
    }

    pub(super) fn has_input(&self) -> bool {
        self.stream.has_input()
    }

    pub(super) fn read_now(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        self.stream.read_now(to)
    }

    pub(super) fn write_now(&self, from: &[u8]) -> io::Result<usize> {
        self.stream.write_now(from)
    }

    pub(super) fn limit_reads(&self, limit: Duration) {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.limit.store(nanos, Ordering::Relaxed);
    }

    pub(super) fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        let limit = Duration::from_nanos(self.limit.load(Ordering::Relaxed));
        self.network.wait(&[&*self.stream], Time::now() + limit);
        let read = self.stream.read_now(to)?;
        read.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }
}

/// Waits until one of these streams has something to read, or until then.
pub(super) fn wait(streams: &[&LimitedStream], until: Time) {
    if let Some(first) = streams.first() {
        let waiting: SmallVec<[_; 8]> = streams.iter().map(|stream| &*stream.stream).collect();
        first.network.wait(&waiting, until);
    }
}

impl fmt::Debug for LimitedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}
