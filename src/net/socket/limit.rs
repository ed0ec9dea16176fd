//! The time limit of a stream's reads or writes, as the operating system has it.

use std::io;
use std::time::Duration;

use crate::net::deadline::Deadline;
use crate::sys::Time;
use crate::sys::net::ByteStream;

/// How much longer than the rest of the time the operating system's limit may be.
const TOLERANCE: Duration = Duration::from_millis(1);

/// The time limit of one direction, as it is set on the operating system's socket.
#[derive(Default)]
pub(super) struct TimeLimit {
    set: Option<Duration>,
    /// The end of the last deadline after which a read has looked for bytes once more.
    last_look_for: Option<Time>,
}

impl TimeLimit {
    /// Reads what has come, or waits for it until the deadline. A thread may get no CPU time between its request and this
    /// call until the deadline has passed, and the answer may have come meanwhile. So the first read after a deadline still
    /// reads what is there.
    pub(super) fn read(
        &mut self,
        stream: &ByteStream,
        to: &mut [u8],
        deadline: &mut Deadline<'_>,
    ) -> io::Result<usize> {
        loop {
            if let Some(limit) = self.limit(Some(stream), deadline)? {
                stream.limit_reads(limit)?;
            }
            if let Some(read) = unless_interrupted(stream.read(to), deadline)? {
                return Ok(read);
            }
        }
    }

    /// Writes some bytes. Waits until the deadline for room for them.
    pub(super) fn write(
        &mut self,
        stream: &ByteStream,
        from: &[u8],
        deadline: &mut Deadline<'_>,
    ) -> io::Result<usize> {
        loop {
            if let Some(limit) = self.limit(None, deadline)? {
                stream.limit_writes(limit)?;
            }
            if let Some(written) = unless_interrupted(stream.write(from), deadline)? {
                return Ok(written);
            }
        }
    }

    /// Returns the limit to set on the operating system's socket, if it must be set. Most requests and answers are one piece
    /// each, and have the same limit. The limit set before is then right to the millisecond, and is not set again. If the
    /// time is over already, this is an error, unless `readable` has something to read.
    fn limit(
        &mut self,
        readable: Option<&ByteStream>,
        deadline: &mut Deadline<'_>,
    ) -> io::Result<Option<Duration>> {
        let left = deadline.left();
        if left.is_zero() {
            let end = deadline.end();
            let is_first = std::mem::replace(&mut self.last_look_for, end) != end;
            if is_first && readable.is_some_and(ByteStream::has_input) {
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

/// Returns `None` if a signal has interrupted the read or the write.
fn unless_interrupted(
    done: io::Result<usize>,
    deadline: &Deadline<'_>,
) -> io::Result<Option<usize>> {
    match done {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => match error.kind() {
            io::ErrorKind::Interrupted => Ok(None),
            io::ErrorKind::WouldBlock => Err(deadline.timed_out()),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::sys::net::readable;

    /// A thread that got no CPU time after its request finds the answer that has come meanwhile.
    #[test]
    fn one_read_after_the_deadline_returns_what_has_come() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).expect("it listens");
        let stream = ByteStream::from(stream);
        let (mut peer, _) = listener.accept().expect("it has connected");
        let mut limit = TimeLimit::default();
        let mut read = |end: Time| {
            let read = limit.read(
                &stream,
                &mut [0],
                &mut Deadline::starting(end, Duration::ZERO),
            );
            read.map_err(|error| error.kind())
        };
        let send = |peer: &mut TcpStream| {
            peer.write_all(b"x").expect("it is open");
            let come = readable([&stream], None, Time::now() + Duration::from_secs(20));
            assert!(come[0], "it never comes");
        };
        let begun = Time::now();
        for _ in 0..3 {
            let over = Time::now();
            send(&mut peer);
            assert_eq!(read(over), Ok(1));
            // A server that sends byte by byte gets no more time.
            send(&mut peer);
            assert_eq!(read(over), Err(io::ErrorKind::TimedOut));
            assert_eq!(read(Time::now() + Duration::from_secs(60)), Ok(1));
            // Nothing has come, so this does not wait for the minute that is set on the socket.
            assert_eq!(read(Time::now()), Err(io::ErrorKind::TimedOut));
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it waits");
    }
}
