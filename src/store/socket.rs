//! A socket to a server, with a time limit for each request and its answer.
//!
//! The redis crate's own connection has no such limit. Its limit restarts at each piece of an answer, so a server that
//! sends a byte now and then keeps a thread busy without end. At its end, a connection that was subscribed waits for
//! the answer to an UNSUBSCRIBE. Here one limit is for a request and its whole answer. An answer also has a greatest
//! length. So no peer, server or not, makes this process run out of memory.
//!
//! A request is sent only if no earlier answer is missing, and it has one answer. Anything else on the connection is an
//! error.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionAddr, Value};
use socket2::{Domain, SockAddr, Type};

use crate::store::frame::{self, Frame};
use crate::store::resolve::Resolver;
#[cfg(feature = "tls")]
use crate::store::tls;
use crate::sync::Arc;

/// The longest answer, in bytes. A page of 200 locks has about 50,000. An answer takes up to 20 times as much memory
/// after it is read, if it consists of the smallest values.
const LONGEST_ANSWER: usize = 8 << 20;
/// The number of bytes that are read at a time.
const PIECE: usize = 8 << 10;
/// How much longer than the rest of the time the operating system's limit may be. It is also the shortest limit.
const TOLERANCE: Duration = Duration::from_millis(1);

/// A connected socket.
pub(super) struct Socket {
    stream: Stream,
    received: Received,
    /// Room for the bytes of a request.
    packed: Vec<u8>,
}

/// The failure of a request. Nothing more can be sent on the socket after it.
#[derive(Debug)]
pub(super) enum TransportError {
    Io(io::Error),
    /// The bytes are no answer, for this reason.
    Malformed(String),
}

impl TransportError {
    /// Returns whether only the time was over.
    pub(super) fn is_timeout(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::TimedOut)
    }
}

enum Stream {
    Plain(Limited),
    #[cfg(feature = "tls")]
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, Limited>>),
}

/// The socket of the operating system, and the time limit of the request under way.
struct Limited {
    os: Os,
    deadline: Instant,
    /// The time limit that is set on the operating system's socket.
    os_limit: Option<Duration>,
}

enum Os {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects within `limit`, which includes the lookup of a host's name.
    pub(super) fn connect(
        address: &ConnectionAddr,
        resolver: &Arc<Resolver>,
        limit: Duration,
    ) -> io::Result<Self> {
        let plain = |os| Stream::Plain(Limited::new(os));
        let dial_host = |host: &str, port: u16| {
            let deadline = Instant::now() + limit;
            dial(&resolver.resolve(host, port, deadline)?, deadline)
        };
        let stream = match address {
            ConnectionAddr::Tcp(host, port) => plain(dial_host(host, *port)?),
            ConnectionAddr::Unix(path) => plain(dial_unix(path, limit)?),
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                let client = tls::client(host)?;
                let os = Limited::new(dial_host(host, *port)?);
                Stream::Tls(Box::new(rustls::StreamOwned::new(client, os)))
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self {
            stream,
            received: Received::default(),
            packed: Vec::new(),
        })
    }

    /// Sends a command and reads its answer, both within `limit`.
    pub(super) fn request(
        &mut self,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Value, TransportError> {
        self.send(command, limit)?;
        let answer = self.answer()?;
        if self.received.is_empty() {
            Ok(answer)
        } else {
            Err(TransportError::Malformed("more than one answer".to_owned()))
        }
    }

    /// Writes packed commands within `limit`. Their answers come from [`take`](Self::take).
    pub(super) fn write(&mut self, packed: &[u8], limit: Duration) -> io::Result<()> {
        self.stream.limited().start_limit(limit);
        self.stream.write_all(packed)?;
        self.stream.flush()
    }

    /// Returns the next answer, if all of it was read.
    pub(super) fn take(&mut self) -> Result<Option<Value>, TransportError> {
        self.received.take().map_err(TransportError::Malformed)
    }

    /// Reads a piece of an answer, and waits for it for at most `limit`.
    pub(super) fn read(&mut self, limit: Duration) -> Result<(), TransportError> {
        self.stream.limited().start_limit(limit);
        self.read_piece()
    }

    /// Returns whether there are bytes that [`poll`](rustix::event::poll) does not show, because they were read from the
    /// system already.
    pub(super) fn has_hidden_bytes(&mut self) -> bool {
        match &mut self.stream {
            Stream::Plain(_) => false,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => {
                let state = stream.conn.process_new_packets();
                state.is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
            }
        }
    }

    /// Sends several commands in one write, and reads their answers, all within `limit`. Calls `take_answer` with each
    /// answer and its number. If `take_answer` returns an error, the answers after that are not read.
    pub(super) fn requests<E>(
        &mut self,
        commands: &[Cmd],
        limit: Duration,
        mut take_answer: impl FnMut(usize, Value) -> Result<(), E>,
    ) -> Result<Result<(), E>, TransportError> {
        if commands.is_empty() {
            return Ok(Ok(()));
        }
        self.stream.limited().start_limit(limit);
        self.packed.clear();
        for command in commands {
            command.write_packed_command(&mut self.packed);
        }
        let sent = self.stream.write_all(&self.packed);
        sent.and_then(|()| self.stream.flush())
            .map_err(TransportError::Io)?;
        for number in 0..commands.len() {
            let answer = self.answer()?;
            if let Err(ended) = take_answer(number, answer) {
                return Ok(Err(ended));
            }
        }
        if self.received.is_empty() {
            Ok(Ok(()))
        } else {
            Err(TransportError::Malformed(
                "more answers than requests".to_owned(),
            ))
        }
    }

    /// Sends a command. Its answer comes from [`next`](Self::next), among the messages.
    pub(super) fn send(&mut self, command: &Cmd, limit: Duration) -> Result<(), TransportError> {
        self.stream.limited().start_limit(limit);
        self.packed.clear();
        command.write_packed_command(&mut self.packed);
        let sent = self.stream.write_all(&self.packed);
        sent.and_then(|()| self.stream.flush())
            .map_err(TransportError::Io)
    }

    /// Returns the next message of the server. Returns `None` if the message is not complete within `limit`. The part
    /// that has come by then is kept.
    pub(super) fn next(&mut self, limit: Duration) -> Result<Option<Value>, TransportError> {
        self.stream.limited().start_limit(limit);
        match self.answer() {
            Ok(value) => Ok(Some(value)),
            Err(TransportError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Reads one answer within the limit of the request under way.
    fn answer(&mut self) -> Result<Value, TransportError> {
        loop {
            if let Some(value) = self.take()? {
                return Ok(value);
            }
            self.read_piece()?;
        }
    }

    fn read_piece(&mut self) -> Result<(), TransportError> {
        let read = self.stream.read(self.received.room());
        match read.map_err(TransportError::Io)? {
            0 => Err(TransportError::Io(io::ErrorKind::UnexpectedEof.into())),
            read => {
                self.received.length += read;
                Ok(())
            }
        }
    }
}

/// The bytes that have come and were not taken yet.
#[derive(Default)]
struct Received {
    /// The bytes, and room for more. The room is not cleared between two answers, because that took time.
    bytes: Vec<u8>,
    /// How many bytes have come.
    length: usize,
    /// How far the bytes have been measured.
    frame: Frame,
}

impl Received {
    fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns room for the next piece.
    fn room(&mut self) -> &mut [u8] {
        if self.bytes.len() < self.length + PIECE {
            self.bytes.resize(self.length + PIECE, 0);
        }
        &mut self.bytes[self.length..]
    }

    /// Takes out the next answer, if all of it has come.
    fn take(&mut self) -> Result<Option<Value>, String> {
        let received = &self.bytes[..self.length];
        let Some(end) = self.frame.end(received, LONGEST_ANSWER)? else {
            return Ok(None);
        };
        let value = frame::parse(&received[..end])?;
        self.frame = Frame::default();
        self.bytes.copy_within(end..self.length, 0);
        self.length -= end;
        // The room for a long answer is not kept.
        if self.bytes.len() > 2 * PIECE && self.length <= PIECE {
            self.bytes.truncate(2 * PIECE);
            self.bytes.shrink_to_fit();
        }
        Ok(Some(value))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Plain(limited) => limited.os.as_fd(),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.sock.os.as_fd(),
        }
    }
}

/// Returns whether the time limit was over. Operating systems report that by different errors.
fn is_timeout(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
    kinds.contains(&error.kind())
}

impl Stream {
    fn limited(&mut self) -> &mut Limited {
        match self {
            Self::Plain(limited) => limited,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => &mut stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(limited) => limited.read(to),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(to),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(limited) => limited.write(from),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(limited) => limited.flush(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl Limited {
    fn new(os: Os) -> Self {
        Self {
            os,
            deadline: Instant::now(),
            os_limit: None,
        }
    }

    /// Begins the time limit of a request: all input and output from now on ends within `limit`.
    fn start_limit(&mut self, limit: Duration) {
        // The settings allow at most an hour.
        self.deadline = Instant::now() + limit;
    }

    /// Sets the rest of the time on the operating system's socket, before each wait. Most requests and answers are one
    /// piece each, and have the same limit. The time set before is then right to the millisecond, and is not set again.
    fn apply_limit(&mut self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let is_right = |set: Duration| set >= left && set <= left + TOLERANCE;
        if !self.os_limit.is_some_and(is_right) {
            self.os.set_limit(left)?;
            self.os_limit = Some(left);
        }
        Ok(())
    }

    /// Does some work within the time limit. Repeats it if a signal interrupts it.
    fn repeat_interrupted<T>(
        &mut self,
        mut work: impl FnMut(&mut Os) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            self.apply_limit()?;
            match work(&mut self.os) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
                done => return done,
            }
        }
    }
}

impl Read for Limited {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.repeat_interrupted(|os| match os {
            Os::Tcp(stream) => stream.read(to),
            Os::Unix(stream) => stream.read(to),
        })
    }
}

impl Write for Limited {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.repeat_interrupted(|os| match os {
            Os::Tcp(stream) => stream.write(from),
            Os::Unix(stream) => stream.write(from),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

impl Os {
    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))
            }
        }
    }
}

/// Connects to the first address of a host that accepts. The addresses share the time until `deadline`, so one that
/// does not answer leaves time for the others.
fn dial(addresses: &[SocketAddr], deadline: Instant) -> io::Result<Os> {
    let mut untried = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        let share = deadline.saturating_duration_since(Instant::now()) / untried;
        untried -= 1;
        // A limit of zero would be an error.
        match TcpStream::connect_timeout(address, share.max(TOLERANCE)) {
            Ok(stream) => {
                // A request is small and waits for its answer, so holding packets back would gain nothing.
                stream.set_nodelay(true)?;
                return Ok(Os::Tcp(stream));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to a Unix socket. If the queue of the listener is full, as that of a stopped server may be, this blocks
/// until the limit.
fn dial_unix(path: &Path, limit: Duration) -> io::Result<Os> {
    let deadline = Instant::now() + limit;
    let address = SockAddr::unix(path)?;
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // The operating system limits the time of a connect by the limit for writing.
        socket.set_write_timeout(Some(left.max(TOLERANCE)))?;
        match socket.connect(&address) {
            Ok(()) => return Ok(Os::Unix(socket.into())),
            // A signal interrupted it.
            Err(error) if error.kind() == io::ErrorKind::Interrupted && !left.is_zero() => {}
            Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use socket2::Socket as OsSocket;

    use super::*;

    /// Returns a listener with a short queue.
    fn listener(address: &SockAddr) -> OsSocket {
        let listener = OsSocket::new(address.domain(), Type::STREAM, None).expect("a socket");
        listener.bind(address).expect("a new address");
        listener.listen(1).expect("it is bound");
        listener
    }

    /// Returns a listener that accepts no more connections, because its queue is full, and the connections in that
    /// queue.
    fn silent() -> (OsSocket, SocketAddr, Vec<TcpStream>) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = listener(&any.into());
        let address = listener.local_addr().expect("an address");
        let address = address.as_socket().expect("of the internet");
        let mut queued = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            queued.push(stream);
        }
        (listener, address, queued)
    }

    #[test]
    fn addresses_share_the_time_limit() {
        const LIMIT: Duration = Duration::from_secs(2);
        let (_listener, silent, _queued) = silent();
        let listening = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let open = listening.local_addr().expect("an address");

        let begun = Instant::now();
        let failed = dial(&[silent; 10], begun + LIMIT).err().map(|e| e.kind());
        let took = begun.elapsed();
        assert_eq!(failed, Some(io::ErrorKind::TimedOut));
        assert!(took < LIMIT * 5, "not 10 times as long: {took:?}");

        assert!(dial(&[silent, silent, open], Instant::now() + LIMIT).is_ok());
        assert!(dial(&[], Instant::now() + LIMIT).is_err());
    }

    #[test]
    fn a_socket_of_this_machine_has_its_time_limit_too() {
        const LIMIT: Duration = Duration::from_millis(300);
        let path = std::env::temp_dir().join(format!("leasehold-{}", uuid::Uuid::new_v4()));
        let _listener = listener(&SockAddr::unix(&path).expect("a short path"));
        let mut queued = Vec::new();
        let failed = loop {
            match dial_unix(&path, LIMIT) {
                Ok(os) => queued.push(os),
                Err(error) => break error.kind(),
            }
        };
        std::fs::remove_file(&path).ok();
        assert!(!queued.is_empty(), "nobody was let in");
        // Some systems refuse the connection at once, and do not wait.
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::ConnectionRefused];
        assert!(kinds.contains(&failed), "{failed:?}");
        assert_eq!(
            dial_unix(&path, LIMIT).err().map(|e| e.kind()),
            Some(io::ErrorKind::NotFound)
        );
    }
}
