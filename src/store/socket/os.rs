//! The socket of the operating system, and the time limit of the input or output under way.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::store::waker::readable;

/// How much longer than the rest of the time the operating system's limit may be. It is also the shortest limit of a
/// connect.
pub(super) const TOLERANCE: Duration = Duration::from_millis(1);

/// The time limit of the input or output under way.
pub(super) struct TimeLimit {
    pub(super) deadline: Instant,
    /// The time, if it was read just before the next input or output.
    pub(super) now: Option<Instant>,
    /// The time limit that is set on the operating system's socket.
    os_limit: Option<Duration>,
    /// The last deadline after which a read has looked for bytes once more.
    last_look_for: Option<Instant>,
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
            last_look_for: None,
        }
    }

    /// Reads what has come, or waits for it until the deadline. A thread may get no CPU time between its request and this
    /// call until the deadline has passed, and the answer may have come meanwhile. So the first read after a deadline still
    /// reads what is there.
    pub(super) fn read(&mut self, os: &Os, to: &mut [u8]) -> io::Result<usize> {
        self.repeat_interrupted(Some(os), |limit| match os {
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
        self.repeat_interrupted(None, |limit| match os {
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
    /// same limit. The time set before is then right to the millisecond, and is not set again. If the time is over already,
    /// the work is done once if `read_from` has something to read.
    fn repeat_interrupted<T>(
        &mut self,
        read_from: Option<&Os>,
        mut work: impl FnMut(Option<Duration>) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let now = self.now.take().unwrap_or_else(Instant::now);
            let left = self.deadline.saturating_duration_since(now);
            let limit = if left.is_zero() {
                let mut is_first =
                    || self.last_look_for.replace(self.deadline) != Some(self.deadline);
                let has_come = |os: &Os| readable([os.as_fd()], self.deadline)[0];
                if !read_from.is_some_and(|os| is_first() && has_come(os)) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                // The read finds bytes, so it needs no time limit.
                None
            } else {
                let is_right = |set: Duration| set >= left && set <= left + TOLERANCE;
                let limit = (!self.os_limit.is_some_and(is_right)).then_some(left);
                self.os_limit = limit.or(self.os_limit);
                limit
            };
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A thread that got no CPU time after its request finds the answer that has come meanwhile.
    #[test]
    fn one_read_after_the_deadline_returns_what_has_come() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let os = Os::Tcp(TcpStream::connect(address).expect("it listens"));
        let (mut peer, _) = listener.accept().expect("it has connected");
        let mut limit = TimeLimit::new();
        let mut read = |deadline: Instant| {
            limit.deadline = deadline;
            let read = limit.read(&os, &mut [0]);
            read.map_err(|error| error.kind())
        };
        let send = |peer: &mut TcpStream| {
            peer.write_all(b"x").expect("it is open");
            let soon = Instant::now() + Duration::from_secs(20);
            assert!(readable([os.as_fd()], soon)[0], "it never comes");
        };
        let begun = Instant::now();
        for _ in 0..3 {
            let over = Instant::now();
            send(&mut peer);
            assert_eq!(read(over), Ok(1));
            // A server that sends byte by byte gets no more time.
            send(&mut peer);
            assert_eq!(read(over), Err(io::ErrorKind::TimedOut));
            assert_eq!(read(Instant::now() + Duration::from_secs(60)), Ok(1));
            // Nothing has come, so this does not wait for the minute that is set on the socket.
            assert_eq!(read(Instant::now()), Err(io::ErrorKind::TimedOut));
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it waits");
    }
}
