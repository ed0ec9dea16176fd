//! The traits that a machine of a test implements.

#[cfg(feature = "seam")]
use std::fmt;
use std::io;
#[cfg(feature = "seam")]
use std::time::Duration;
use std::time::Instant;

use super::real;
use super::time::Time;
#[cfg(feature = "seam")]
use super::{Arc, Weak};

/// A machine that a test has made. The default of each method is the real machine.
pub trait TestMachine: Send + Sync {
    /// Returns the time of the clock of leases.
    fn now(&self) -> Time {
        real::now()
    }

    /// Returns the time of the clock that programs read.
    fn instant(&self) -> Instant {
        Instant::now()
    }

    /// Returns the time of day, in µs since 1970.
    fn wall_us(&self) -> u64 {
        real::wall_us()
    }

    /// Notes that a call has begun that may ask a server. Blocks while a test moves the clock.
    fn call_begins(&self) {}

    /// Notes its end.
    fn call_ends(&self) {}

    /// Returns an error if the machine starts no further thread.
    ///
    /// # Errors
    ///
    /// The error that the start of the thread returns.
    fn may_start_thread(&self) -> io::Result<()> {
        Ok(())
    }

    /// Notes an engine that runs on this machine.
    #[cfg(feature = "seam")]
    fn register(&self, _engine: Weak<dyn MovedByTest>) {}

    /// Returns the machine of a manager that is about to be made, if the test tells the managers apart.
    #[cfg(feature = "seam")]
    fn new_process(&self) -> Option<Arc<dyn TestMachine>> {
        None
    }

    /// Takes the network from the manager of this machine for ever. Returns false if the machine cannot do that.
    #[cfg(feature = "seam")]
    fn kill(&self) -> bool {
        false
    }

    /// Returns the network in memory, if the machine has one.
    #[cfg(feature = "seam")]
    fn network(&self) -> Option<Arc<dyn TestNetwork>> {
        None
    }

    /// Returns what decides which thread of this machine runs, if that is not the operating system.
    #[cfg(feature = "seam")]
    fn scheduler(&self) -> Option<&dyn TestScheduler> {
        None
    }
}

/// A scheduler that runs one thread at a time. So what a thread does between two calls of these methods is atomic to the
/// others.
#[cfg(feature = "seam")]
pub trait TestScheduler: Send + Sync {
    /// Lets other threads run first, if the scheduler chooses so.
    fn step(&self);

    /// Blocks the calling thread until another one wakes this place, for at most `limit`. May return earlier.
    fn wait(&self, place: usize, limit: Option<Duration>);

    /// Wakes one of the threads that wait at a place, or all of them. Does not block.
    fn wake(&self, place: usize, all: bool);

    /// Notes that a thread will be started, and returns its number.
    fn thread_planned(&self) -> u64;

    /// Blocks the calling thread, which has this number, until it may run.
    fn thread_begins(&self, number: u64);

    /// Notes that the thread has ended, or will not be started.
    fn thread_ends(&self, number: u64);

    /// Returns 64 random bits.
    fn random(&self) -> u64;

    /// Returns whether the calling thread is that of a forked child.
    fn is_in_child(&self) -> bool;
}

/// Returns a version 4 UUID of the scheduler's random numbers.
#[cfg(feature = "seam")]
pub(super) fn uuid(scheduler: &dyn TestScheduler) -> uuid::Uuid {
    let (high, low) = (scheduler.random(), scheduler.random());
    let bits = u128::from(high) << 64 | u128::from(low);
    uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
}

/// A part of the library that sleeps until a time of its machine, which a test moves.
#[cfg(feature = "seam")]
pub trait MovedByTest: Send + Sync {
    /// Wakes its threads that sleep until some time.
    fn look_at_the_clock(&self);

    /// Makes the library renew all leases at once.
    fn renew_all(&self) {}

    /// Returns what is due, or what a thread is busy with that was due.
    fn busy_part(&self) -> Option<&'static str>;

    /// Returns whether a thread of the library sends a request, or is about to.
    fn sends_by_itself(&self) -> bool;

    /// Returns when it next has something to do for a lock, if it has.
    fn next_due(&self) -> Option<Time> {
        None
    }
}

/// The network of a machine of a test.
#[cfg(feature = "seam")]
pub trait TestNetwork: Send + Sync {
    /// Connects to a server that the test has made, by the path of a Unix socket, or by an IP address with a port.
    ///
    /// # Errors
    ///
    /// The server refuses, or the time is over.
    fn connect(&self, address: &str, until: Time) -> io::Result<Box<dyn TestStream>>;

    /// Blocks until one of these streams has input, or until then.
    fn wait(&self, streams: &[&dyn TestStream], until: Time);

    /// Notes that something has happened for which a thread may wait.
    fn notify(&self);
}

/// A stream of such a network.
#[cfg(feature = "seam")]
pub trait TestStream: fmt::Debug + Send + Sync {
    /// Returns its number on the network.
    fn number(&self) -> u64;

    /// Returns whether there is something to read, or the stream has ended.
    fn has_input(&self) -> bool;

    /// Reads what has come. Returns `None` if nothing has.
    ///
    /// # Errors
    ///
    /// The stream is broken.
    fn read_now(&self, to: &mut [u8]) -> io::Result<Option<usize>>;

    /// Writes some bytes. There is always room for one.
    ///
    /// # Errors
    ///
    /// The stream has ended, or is broken.
    fn write_now(&self, from: &[u8]) -> io::Result<usize>;
}

#[cfg(test)]
pub(crate) mod manual {
    use std::time::Duration;

    use super::TestMachine;
    use crate::sys::time::Time;
    use crate::sys::{AtomicU64, Ordering};

    /// A machine whose clock moves only when a test advances it.
    #[derive(Debug)]
    pub(crate) struct ManualClock(AtomicU64);

    impl ManualClock {
        pub(crate) fn starting_at(start: Time) -> Self {
            Self(AtomicU64::new(start.as_nanos()))
        }

        pub(crate) fn advance(&self, by: Duration) {
            let nanos = u64::try_from(by.as_nanos()).expect("a test's step fits");
            self.0.fetch_add(nanos, Ordering::SeqCst);
        }
    }

    impl TestMachine for ManualClock {
        fn now(&self) -> Time {
            Time::from_nanos(self.0.load(Ordering::SeqCst))
        }
    }
}
