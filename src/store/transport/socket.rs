//! A socket to a server, with a time limit for each request and its answer.
//!
//! The redis crate's own connection has no such limit. Its limit restarts at each piece of an answer, so a server that
//! sends a byte now and then keeps a thread busy without end. At its end, a connection that was subscribed waits for
//! the answer to an UNSUBSCRIBE. Here one limit is for a request and its whole answer. An answer also has a greatest
//! length. So no peer, server or not, makes this process run out of memory.
//!
//! A socket has two halves, one that writes and one that reads. So one thread may write while another one reads
//! ([`crate::store::server::shared`]). A thread that has the socket for itself sends a request only if no earlier answer is missing, and
//! the request has one answer. Anything else on the connection is an error.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use redis::{ConnectionAddr, Value};
use rustix::event::PollFlags;
use socket2::{Domain, SockAddr, Type};

use crate::script::Command;
use crate::store::transport::frame::{self, Frame};
use crate::store::transport::resolve::Resolver;
#[cfg(feature = "tls")]
use crate::store::transport::tls::{self, Tls};
use crate::sync::Arc;

mod os;

use os::{Os, TOLERANCE, TimeLimit, is_timeout};

/// The longest answer, in bytes. A page of 200 locks has about 50,000. An answer takes up to 20 times as much memory
/// after it is read, if it consists of the smallest values.
const LONGEST_ANSWER: usize = 8 << 20;
/// The number of bytes that are read at a time.
const PIECE: usize = 8 << 10;

/// The kinds of errors of a connection that the other side has closed.
pub(crate) const CLOSED: [io::ErrorKind; 5] = [
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::NotConnected,
    io::ErrorKind::UnexpectedEof,
];

/// A connected socket. Its halves are boxed, because they move between threads at each call.
pub(crate) struct Socket {
    pub(crate) reading: Box<Reading>,
    pub(crate) writing: Box<Writing>,
}

/// The half of a socket that reads.
pub(crate) struct Reading {
    stream: Arc<Stream>,
    limit: TimeLimit,
    /// Room for the bytes of one read.
    piece: Box<[u8]>,
    /// The bytes that have come and were not taken yet, and how far `frame` has measured them.
    received: Vec<u8>,
    frame: Frame,
    /// Room for the answers of several requests.
    ready: Vec<Value>,
}

/// The half of a socket that writes.
pub(crate) struct Writing {
    stream: Arc<Stream>,
    limit: TimeLimit,
    /// Room for the bytes of a request.
    packed: Vec<u8>,
    /// The bytes to write, with TLS the encrypted ones, and how many of them are written.
    unsent: Vec<u8>,
    sent: usize,
}

/// The part of a socket that its two halves share.
pub(crate) struct Stream {
    os: Os,
    /// A reading of the clock from before it was connected.
    opened: Instant,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

/// The failure of a request. Nothing more can be sent on the socket after it, except after `CallerLeft`. The last three
/// are those of callers that share a socket.
#[derive(Debug)]
pub(crate) enum TransportError {
    Io(io::Error),
    /// The bytes are no answer, for this reason.
    Malformed(String),
    /// The caller has left before the answer came, because its call was over. The connection is sound.
    CallerLeft,
    /// The answer to another request was no reply to it. So the answer to this one may be that to another request too.
    Distrusted,
    /// The socket had failed before any byte of the request was written.
    NotSent,
}

impl TransportError {
    /// Returns whether only the time was over.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::TimedOut)
    }

    /// Returns whether the other side has closed the connection.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Io(error) if CLOSED.contains(&error.kind()))
    }
}

impl Socket {
    /// Connects within `limit`, which includes the lookup of a host's name, and the handshake of TLS.
    pub(crate) fn connect(
        address: &ConnectionAddr,
        resolver: &Arc<Resolver>,
        limit: Duration,
    ) -> io::Result<Self> {
        let opened = Instant::now();
        let deadline = opened + limit;
        let dial_host =
            |host: &str, port: u16| dial(&resolver.resolve(host, port, deadline)?, deadline);
        match address {
            ConnectionAddr::Tcp(host, port) => {
                Ok(Self::new(Stream::plain(dial_host(host, *port)?, opened)))
            }
            ConnectionAddr::Unix(path) => {
                Ok(Self::new(Stream::plain(dial_unix(path, limit)?, opened)))
            }
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                let tls = Some(tls::client(host)?);
                let os = dial_host(host, *port)?;
                let mut socket = Self::new(Stream { os, opened, tls });
                socket.set_deadline(deadline);
                socket.shake_hands()?;
                Ok(socket)
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn new(stream: Stream) -> Self {
        let stream = Arc::new(stream);
        Self {
            reading: Box::new(Reading {
                stream: Arc::clone(&stream),
                limit: TimeLimit::new(),
                piece: vec![0; PIECE].into(),
                received: Vec::new(),
                frame: Frame::default(),
                ready: Vec::new(),
            }),
            writing: Box::new(Writing {
                stream,
                limit: TimeLimit::new(),
                packed: Vec::new(),
                unsent: Vec::new(),
                sent: 0,
            }),
        }
    }

    /// Begins the time limit of a request: all input and output from now on ends within `limit`.
    fn start_limit(&mut self, limit: Duration) {
        // The settings allow at most an hour.
        self.set_deadline(Instant::now() + limit);
    }

    fn set_deadline(&mut self, deadline: Instant) {
        self.reading.limit.deadline = deadline;
        self.writing.limit.deadline = deadline;
    }

    /// Makes the handshake of TLS.
    #[cfg(feature = "tls")]
    fn shake_hands(&mut self) -> io::Result<()> {
        while let Some(tls) = &self.reading.stream.tls {
            tls.take_output(&mut self.writing.unsent);
            self.writing.write_packed()?;
            if !tls.is_shaking_hands() {
                break;
            }
            match self.reading.read_piece() {
                Ok(()) => {}
                Err(TransportError::Io(error)) => return Err(error),
                Err(TransportError::Malformed(what)) => return Err(io::Error::other(what)),
                // No other caller uses the socket yet.
                Err(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }

    /// Sends a command and reads its answer, both within `limit`.
    pub(crate) fn request(
        &mut self,
        command: &Command,
        limit: Duration,
    ) -> Result<Value, TransportError> {
        self.send(command, limit)?;
        let answer = self.reading.answer()?;
        if self.reading.received.is_empty() {
            Ok(answer)
        } else {
            Err(TransportError::Malformed("more than one answer".to_owned()))
        }
    }

    /// Writes packed commands within `limit`. Their answers come from [`take`](Self::take).
    pub(crate) fn write(&mut self, packed: &[u8], limit: Duration) -> io::Result<()> {
        self.start_limit(limit);
        self.writing.packed.clear();
        self.writing.packed.extend_from_slice(packed);
        self.writing.write_packed()
    }

    /// Returns the next answer, if all of it was read.
    pub(crate) fn take(&mut self) -> Result<Option<Value>, TransportError> {
        self.reading.take()
    }

    /// Reads a piece of an answer, and waits for it for at most `limit`. With TLS the piece may be too short to read any
    /// of the answer.
    pub(crate) fn read(&mut self, limit: Duration) -> Result<(), TransportError> {
        self.start_limit(limit);
        self.reading.read_piece()
    }

    /// Sends several commands in one write, and reads their answers, all within `limit`. Calls `take_answer` with each
    /// answer and its number. If `take_answer` returns an error, the answers after that are not read.
    pub(crate) fn requests<E>(
        &mut self,
        commands: &[Command],
        limit: Duration,
        mut take_answer: impl FnMut(usize, Value) -> Result<(), E>,
    ) -> Result<Result<(), E>, TransportError> {
        if commands.is_empty() {
            return Ok(Ok(()));
        }
        self.start_limit(limit);
        self.writing.packed.clear();
        for command in commands {
            command.pack(&mut self.writing.packed);
        }
        self.writing.write_packed().map_err(TransportError::Io)?;
        for number in 0..commands.len() {
            let answer = self.reading.answer()?;
            if let Err(ended) = take_answer(number, answer) {
                return Ok(Err(ended));
            }
        }
        if self.reading.received.is_empty() {
            Ok(Ok(()))
        } else {
            Err(TransportError::Malformed(
                "more answers than requests".to_owned(),
            ))
        }
    }

    /// Sends a command. Its answer comes from [`next`](Self::next), among the messages.
    pub(crate) fn send(
        &mut self,
        command: &Command,
        limit: Duration,
    ) -> Result<(), TransportError> {
        self.start_limit(limit);
        self.writing.packed.clear();
        command.pack(&mut self.writing.packed);
        self.writing.write_packed().map_err(TransportError::Io)
    }

    /// Returns the next message of the server. Returns `None` if the message is not complete within `limit`. The part
    /// that has come by then is kept.
    pub(crate) fn next(&mut self, limit: Duration) -> Result<Option<Value>, TransportError> {
        self.start_limit(limit);
        match self.reading.answer() {
            Ok(value) => Ok(Some(value)),
            Err(TransportError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}

impl Reading {
    /// Returns the next answer, if all of it was read.
    fn take(&mut self) -> Result<Option<Value>, TransportError> {
        let end = self.frame.end(&self.received, LONGEST_ANSWER);
        let Some(end) = end.map_err(TransportError::Malformed)? else {
            return Ok(None);
        };
        self.frame = Frame::default();
        let value = frame::parse(&self.received[..end]);
        self.received.drain(..end);
        self.received.shrink_to(PIECE);
        value.map(Some).map_err(TransportError::Malformed)
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

    /// Blocks until an answer has come, or until the deadline. Without a deadline, reads what has come. All answers that have
    /// come are [ready](Self::ready) then. Returns whether a part of a further one has come too.
    pub(crate) fn answers(&mut self, deadline: Option<Instant>) -> Result<bool, TransportError> {
        if let Some(deadline) = deadline {
            self.limit.deadline = deadline;
            let first = self.answer()?;
            self.ready.push(first);
        } else {
            let read = self.stream.os.read_now(&mut self.piece);
            if let Some(read) = read.map_err(TransportError::Io)? {
                self.take_piece(read)?;
            }
        }
        while let Some(value) = self.take()? {
            self.ready.push(value);
        }
        Ok(!self.received.is_empty())
    }

    /// Returns the answers that have come.
    pub(crate) fn ready(&mut self) -> &mut Vec<Value> {
        &mut self.ready
    }

    fn read_piece(&mut self) -> Result<(), TransportError> {
        let read = self.limit.read(&self.stream.os, &mut self.piece);
        self.take_piece(read.map_err(TransportError::Io)?)
    }

    /// Takes the bytes of a piece that was read.
    fn take_piece(&mut self, read: usize) -> Result<(), TransportError> {
        match read {
            0 => Err(TransportError::Io(io::ErrorKind::UnexpectedEof.into())),
            read => {
                let read = self.stream.decrypt(&self.piece[..read], &mut self.received);
                read.map_err(TransportError::Io)
            }
        }
    }
}

impl Writing {
    /// Returns the room for the bytes of requests. [`Self::write_by`] writes them.
    pub(crate) fn packed(&mut self) -> &mut Vec<u8> {
        &mut self.packed
    }

    /// Writes the packed bytes, and what an earlier write has left. After a failure because the time is over, the rest can be
    /// written later. Without a deadline, writes what there is room for. `now` is the time, if the caller has just read the
    /// clock.
    pub(crate) fn write_by(
        &mut self,
        deadline: Option<Instant>,
        now: Option<Instant>,
    ) -> io::Result<()> {
        self.stream.encrypt(&mut self.packed, &mut self.unsent)?;
        self.packed.clear();
        if let Some(deadline) = deadline {
            (self.limit.deadline, self.limit.now) = (deadline, now);
        }
        while self.sent < self.unsent.len() {
            let (os, rest) = (&self.stream.os, &self.unsent[self.sent..]);
            let written = match deadline {
                Some(_) => self.limit.write(os, rest)?,
                None => match os.write_now(rest)? {
                    Some(written) => written,
                    None => return Ok(()),
                },
            };
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.sent += written;
        }
        self.unsent.clear();
        self.sent = 0;
        Ok(())
    }

    /// Writes the packed bytes within the limit of the request under way.
    fn write_packed(&mut self) -> io::Result<()> {
        self.write_by(Some(self.limit.deadline), None)
    }

    /// Returns whether an earlier write has left bytes.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Returns what the two halves share.
    pub(crate) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reading.stream.os.as_fd()
    }
}

impl Stream {
    fn plain(os: Os, opened: Instant) -> Self {
        Self {
            os,
            opened,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Returns a reading of the clock from before it was connected.
    pub(crate) fn opened(&self) -> Instant {
        self.opened
    }

    /// Ends the connection, so that a thread that is blocked in a read or a write returns.
    pub(crate) fn shut_down(&self) {
        // A failure means that it has ended already.
        self.os.shut_down().ok();
    }

    /// Waits for at most `limit` until the socket is ready for one of these: see [`Os::poll`].
    pub(crate) fn poll(&self, asked: PollFlags, limit: Duration) -> PollFlags {
        self.os.poll(asked, limit)
    }

    /// Moves the bytes of requests to the unsent ones. With TLS, encrypts them.
    fn encrypt(&self, packed: &mut Vec<u8>, unsent: &mut Vec<u8>) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.encrypt(packed, unsent);
        }
        if unsent.is_empty() {
            std::mem::swap(packed, unsent);
        } else {
            unsent.append(packed);
        }
        Ok(())
    }

    /// Adds the bytes of answers in a piece that was read.
    fn decrypt(&self, piece: &[u8], received: &mut Vec<u8>) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.decrypt(piece, received);
        }
        received.extend_from_slice(piece);
        Ok(())
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
                return Ok(Os(stream.into()));
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
            Ok(()) => return Ok(Os(socket.into())),
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
