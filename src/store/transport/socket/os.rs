//! The socket of the operating system, and its own time limit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::store::Deadline;

/// A write to a connection that has ended sends no signal. On Apple's systems, the socket has that as an option.
#[cfg(not(target_vendor = "apple"))]
const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
const NO_SIGNAL: SendFlags = SendFlags::empty();

/// How much longer than the rest of the time the operating system's limit may be. It is also the shortest limit of a
/// connect.
pub(super) const TOLERANCE: Duration = Duration::from_millis(1);

/// The time limit of one direction, as it is set on the operating system's socket.
#[derive(Default)]
pub(super) struct OsLimit {
    set: Option<Duration>,
    /// The end of the last deadline after which a read has looked for bytes once more.
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
        Err(error) => Err(broken(error)),
    }
}

/// Returns the error of a connection that has failed. `ETIMEDOUT` is no time limit of a caller: the operating system has
/// given the connection up.
fn broken(error: Errno) -> io::Error {
    match error {
        Errno::TIMEDOUT => io::Error::new(io::ErrorKind::ConnectionAborted, error),
        error => error.into(),
    }
}

impl OsLimit {
    /// Reads what has come, or waits for it until the deadline. A thread may get no CPU time between its request and this
    /// call until the deadline has passed, and the answer may have come meanwhile. So the first read after a deadline still
    /// reads what is there.
    pub(super) fn read(
        &mut self,
        os: &Os,
        to: &mut [u8],
        deadline: &mut Deadline<'_>,
    ) -> io::Result<usize> {
        loop {
            if let Some(limit) = self.limit(Some(os), deadline)? {
                set_socket_timeout(os, Timeout::Recv, Some(limit))?;
            }
            match recv(os, &mut *to, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(deadline.timed_out()),
                read => return Ok(read.map_err(broken)?.0),
            }
        }
    }

    /// Writes some bytes. Waits until the deadline for room for them.
    pub(super) fn write(
        &mut self,
        os: &Os,
        from: &[u8],
        deadline: &mut Deadline<'_>,
    ) -> io::Result<usize> {
        loop {
            if let Some(limit) = self.limit(None, deadline)? {
                set_socket_timeout(os, Timeout::Send, Some(limit))?;
            }
            match send(os, from, NO_SIGNAL) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(deadline.timed_out()),
                written => return written.map_err(broken),
            }
        }
    }

    /// Returns the limit to set on the operating system's socket, if it must be set. Most requests and answers are one piece
    /// each, and have the same limit. The limit set before is then right to the millisecond, and is not set again. If the
    /// time is over already, this is an error, unless `readable` has something to read.
    fn limit(
        &mut self,
        readable: Option<&Os>,
        deadline: &mut Deadline<'_>,
    ) -> io::Result<Option<Duration>> {
        let left = deadline.left();
        if left.is_zero() {
            let end = deadline.end();
            let is_first = std::mem::replace(&mut self.last_look_for, end) != end;
            let has_come = |os: &Os| !os.poll(PollFlags::IN, Duration::ZERO).is_empty();
            if is_first && readable.is_some_and(has_come) {
                // The read finds bytes, so it needs no time limit.
                return Ok(None);
            }
            return Err(deadline.timed_out());
        }
        match self.set {
            Some(set) if set >= left && set <= left + TOLERANCE => Ok(None),
            _ => {
                self.set = Some(left);
                Ok(self.set)
            }
        }
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

    /// The caller's time is not over, so the request is sent once more on another connection.
    #[test]
    fn a_connection_that_the_system_gives_up_is_closed_and_not_late() {
        let kind = |error| broken(error).kind();
        assert_eq!(kind(Errno::TIMEDOUT), io::ErrorKind::ConnectionAborted);
        assert_eq!(kind(Errno::CONNRESET), io::ErrorKind::ConnectionReset);
        let given_up = unless_blocked(Err(Errno::TIMEDOUT)).map_err(|error| error.kind());
        assert_eq!(given_up, Err(io::ErrorKind::ConnectionAborted));
    }

    /// A thread that got no CPU time after its request finds the answer that has come meanwhile.
    #[test]
    fn one_read_after_the_deadline_returns_what_has_come() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let os = Os(TcpStream::connect(address).expect("it listens").into());
        let (mut peer, _) = listener.accept().expect("it has connected");
        let mut limit = OsLimit::default();
        let mut read = |end: Instant| {
            let read = limit.read(&os, &mut [0], &mut Deadline::at(end));
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
