//! The socket of the operating system, and the time limit of the input or output under way.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

/// A write to a connection that has ended sends no signal. On Apple's systems, the socket has that as an option.
#[cfg(not(target_vendor = "apple"))]
const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
const NO_SIGNAL: SendFlags = SendFlags::empty();

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

/// A connected socket.
pub(super) struct Os(pub(super) OwnedFd);

impl Os {
    pub(super) fn shut_down(&self) -> io::Result<()> {
        Ok(shutdown(self, Shutdown::Both)?)
    }

    /// Waits for at most `limit` until the socket is ready for one of these. Returns what it is ready for: after a failure
    /// for all, because the next input or output shows it.
    pub(super) fn poll(&self, asked: PollFlags, limit: Duration) -> PollFlags {
        let mut sockets = [PollFd::new(self, asked)];
        let limit = Timespec::try_from(limit).ok();
        match poll(&mut sockets, limit.as_ref()) {
            Ok(0) | Err(Errno::INTR) => PollFlags::empty(),
            Ok(_) if asked.contains(sockets[0].revents()) => sockets[0].revents(),
            Ok(_) | Err(_) => asked,
        }
    }

    /// Reads what has come. Returns `None` if nothing has.
    pub(super) fn read_now(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        unless_blocked(recv(self, to, RecvFlags::DONTWAIT).map(|(read, _)| read))
    }

    /// Writes what there is room for. Returns `None` if there is none.
    pub(super) fn write_now(&self, from: &[u8]) -> io::Result<Option<usize>> {
        unless_blocked(send(self, from, SendFlags::DONTWAIT | NO_SIGNAL))
    }
}

fn unless_blocked(done: Result<usize, Errno>) -> io::Result<Option<usize>> {
    match done {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
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
        loop {
            if let Some(limit) = self.limit(Some(os))? {
                set_socket_timeout(os, Timeout::Recv, Some(limit))?;
            }
            match recv(os, &mut *to, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                read => return Ok(read?.0),
            }
        }
    }

    /// Writes some bytes. Waits until the deadline for room for them.
    pub(super) fn write(&mut self, os: &Os, from: &[u8]) -> io::Result<usize> {
        loop {
            if let Some(limit) = self.limit(None)? {
                set_socket_timeout(os, Timeout::Send, Some(limit))?;
            }
            match send(os, from, NO_SIGNAL) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                written => return Ok(written?),
            }
        }
    }

    /// Returns the limit to set on the operating system's socket, if it must be set. Most requests and answers are one piece
    /// each, and have the same limit. The limit set before is then right to the millisecond, and is not set again. If the
    /// time is over already, this is an error, unless `readable` has something to read.
    fn limit(&mut self, readable: Option<&Os>) -> io::Result<Option<Duration>> {
        let now = self.now.take().unwrap_or_else(Instant::now);
        let left = self.deadline.saturating_duration_since(now);
        if left.is_zero() {
            let is_first = self.last_look_for.replace(self.deadline) != Some(self.deadline);
            let has_come = |os: &Os| !os.poll(PollFlags::IN, Duration::ZERO).is_empty();
            if is_first && readable.is_some_and(has_come) {
                // The read finds bytes, so it needs no time limit.
                return Ok(None);
            }
            return Err(io::ErrorKind::TimedOut.into());
        }
        if (self.os_limit).is_some_and(|set| set >= left && set <= left + TOLERANCE) {
            return Ok(None);
        }
        self.os_limit = Some(left);
        Ok(self.os_limit)
    }
}

impl AsFd for Os {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns whether the time limit was over. Operating systems report that by different errors.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
    kinds.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A thread that got no CPU time after its request finds the answer that has come meanwhile.
    #[test]
    fn one_read_after_the_deadline_returns_what_has_come() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let os = Os(TcpStream::connect(address).expect("it listens").into());
        let (mut peer, _) = listener.accept().expect("it has connected");
        let mut limit = TimeLimit::new();
        let mut read = |deadline: Instant| {
            limit.deadline = deadline;
            let read = limit.read(&os, &mut [0]);
            read.map_err(|error| error.kind())
        };
        let send = |peer: &mut TcpStream| {
            peer.write_all(b"x").expect("it is open");
            let come = os.poll(PollFlags::IN, Duration::from_secs(20));
            assert!(!come.is_empty(), "it never comes");
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
