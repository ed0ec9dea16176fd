//! The socket of the operating system, and the time limit of the input or output under way.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How much longer than the rest of the time the operating system's limit may be. It is also the shortest limit.
pub(super) const TOLERANCE: Duration = Duration::from_millis(1);

/// The time limit of the input or output under way.
pub(super) struct TimeLimit {
    pub(super) deadline: Instant,
    /// The time, if it was read just before the next input or output.
    pub(super) now: Option<Instant>,
    /// The time limit that is set on the operating system's socket.
    os_limit: Option<Duration>,
}

pub(super) enum Os {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Os {
    pub(super) fn shut_down(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        }
    }
}

impl TimeLimit {
    pub(super) fn new() -> Self {
        Self {
            deadline: Instant::now(),
            now: None,
            os_limit: None,
        }
    }

    pub(super) fn read(&mut self, os: &Os, to: &mut [u8]) -> io::Result<usize> {
        self.repeat_interrupted(|limit| match os {
            Os::Tcp(stream) => {
                limit.map_or(Ok(()), |limit| stream.set_read_timeout(Some(limit)))?;
                (&*stream).read(to)
            }
            Os::Unix(stream) => {
                limit.map_or(Ok(()), |limit| stream.set_read_timeout(Some(limit)))?;
                (&*stream).read(to)
            }
        })
    }

    pub(super) fn write(&mut self, os: &Os, from: &[u8]) -> io::Result<usize> {
        self.repeat_interrupted(|limit| match os {
            Os::Tcp(stream) => {
                limit.map_or(Ok(()), |limit| stream.set_write_timeout(Some(limit)))?;
                (&*stream).write(from)
            }
            Os::Unix(stream) => {
                limit.map_or(Ok(()), |limit| stream.set_write_timeout(Some(limit)))?;
                (&*stream).write(from)
            }
        })
    }

    /// Does some work within the time limit. Repeats it if a signal interrupts it. The work first sets the rest of the
    /// time on the operating system's socket, if it gets one. Most requests and answers are one piece each, and have the
    /// same limit. The time set before is then right to the millisecond, and is not set again.
    fn repeat_interrupted<T>(
        &mut self,
        mut work: impl FnMut(Option<Duration>) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let now = self.now.take().unwrap_or_else(Instant::now);
            let left = self.deadline.saturating_duration_since(now);
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let is_right = |set: Duration| set >= left && set <= left + TOLERANCE;
            let limit = (!self.os_limit.is_some_and(is_right)).then_some(left);
            self.os_limit = limit.or(self.os_limit);
            match work(limit) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
                done => return done,
            }
        }
    }
}

impl AsFd for Os {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// Returns whether the time limit was over. Operating systems report that by different errors.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
    kinds.contains(&error.kind())
}
