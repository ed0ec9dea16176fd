//! A socket to a server, with a time limit for each request and its answer.
//!
//! The redis crate's own connection has no such limit. Its limit restarts at each piece of an answer, so a server that sends
//! a byte now and then keeps a thread busy without end. And before it closes, a connection that was subscribed waits for the
//! answer to an UNSUBSCRIBE. Here one limit is for a request and its whole answer, and an answer has a greatest length, so that no
//! peer, server or not, makes this process run out of memory.
//!
//! One thread uses a socket at a time. It sends a request only if no earlier answer is missing, and a request has one
//! answer. Anything else on the connection is an error.
//!
//! TCP tells nothing about the request to which an answer belongs. So before a request is written on a connection on which
//! no answer is missing, nothing may be unread ([`Socket::look`]): not on the socket, not in the part of an answer that
//! was read, and with TLS not in the part of a record that was read. Session tickets are no answers, and do no harm. An
//! answer that nobody has asked for, and that comes after this look, cannot be told from the answer to the request.
//!
//! A server may greet a client, and close the connection: it is in protected mode, or has too many clients. Then a write
//! of this side may fail before anything was read, but what has come can still be read.

use std::io;
use std::mem;
use std::time::Duration;

use redis::{ConnectionAddr, ServerError, Value};

use crate::config::Server;
use crate::net::deadline::Deadline;
use crate::net::frame::{self, Frame};
use crate::net::resolve::Resolver;
#[cfg(feature = "tls")]
use crate::net::tls::{self, TlsSession};
use crate::sys::Arc;
use crate::sys::net::ByteStream;
use crate::wire::Command;

/// The longest answer, in bytes. A page of 200 locks has about 50,000. An answer takes up to 20 times as much memory
/// after it is read, if it consists of the smallest values.
const LONGEST_ANSWER: usize = 8 << 20;
/// The number of bytes that are read at a time.
const PIECE: usize = 8 << 10;
/// How much longer than the rest of the time the operating system's limit may be.
const TOLERANCE: Duration = Duration::from_millis(1);

/// The kinds of errors of a connection that the other side has closed.
pub(crate) const CLOSED: [io::ErrorKind; 5] = [
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::NotConnected,
    io::ErrorKind::UnexpectedEof,
];

/// A connected socket.
pub(crate) struct Socket {
    bytes: ByteStream,
    #[cfg(feature = "tls")]
    tls: Option<TlsSession>,
    /// The time limits of the operating system for a read and for a write, as they were set last.
    read_limit: Option<Duration>,
    write_limit: Option<Duration>,
    /// The bytes to write, with TLS the encrypted ones.
    unsent: Vec<u8>,
    /// Room for the bytes of one read.
    piece: Box<[u8]>,
    /// The bytes that have come and were not taken yet, and how far `frame` has measured them.
    received: Vec<u8>,
    frame: Frame,
    /// Whether an answer has come. Before that, the socket is new, and the rest of its handshake may still come.
    has_answered: bool,
}

/// The failure of a request. Nothing more can be sent on the socket after it.
#[derive(Debug)]
pub(crate) enum TransportError {
    Io(io::Error),
    /// The bytes are no answer, for this reason.
    Malformed(String),
    /// The connection had ended before any byte of the request was written.
    NotSent,
    /// Something was unread before any byte of the request was written.
    Surplus,
    /// The server has refused the connection, and read no request. With the meaning of that, and the words of the server.
    Greeting(&'static str, Option<ServerError>),
}

const REFUSES: &str = "it refuses the connection";
const SPEAKS_TLS: &str = "it speaks TLS, so its URL must begin with rediss";
#[cfg(feature = "tls")]
const SPEAKS_NO_TLS: &str = "it speaks no TLS, so its URL must begin with redis";

impl From<io::Error> for TransportError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
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

    /// Returns whether no byte of the request was written.
    pub(crate) fn is_before_the_request(&self) -> bool {
        matches!(self, Self::NotSent | Self::Surplus)
    }

    /// Returns what to do if one side has refused the certificate of the other, or has none that the other wants.
    pub(crate) fn mend_of_certificates(&self) -> Option<&'static str> {
        match self {
            #[cfg(feature = "tls")]
            Self::Io(error) => tls::mend_of_certificates(error),
            _ => None,
        }
    }
}

impl Socket {
    /// Connects. The time includes the lookup of a host's name, and the handshake of TLS.
    pub(crate) fn connect(
        server: &Server,
        resolver: &Arc<Resolver>,
        mut deadline: Deadline<'_>,
    ) -> Result<Self, TransportError> {
        let until = deadline.now() + deadline.left();
        let dial_host = |host: &str, port: u16| {
            let addresses = resolver.resolve(host, port, until)?;
            let (bytes, which) = ByteStream::connect(&addresses, until)?;
            resolver.has_accepted(host, &addresses, which);
            io::Result::Ok(bytes)
        };
        match server.info.addr() {
            ConnectionAddr::Tcp(host, port) => Ok(Self::new(dial_host(host, *port)?)),
            ConnectionAddr::Unix(path) => Ok(Self::new(ByteStream::connect_unix(path, until)?)),
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                let tls = tls::client(host, server.tls_config()?)?;
                let mut socket = Self::new(dial_host(host, *port)?);
                socket.tls = Some(tls);
                socket.shake_hands(&mut deadline)?;
                Ok(socket)
            }
            _ => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
        }
    }

    fn new(bytes: ByteStream) -> Self {
        Self {
            bytes,
            #[cfg(feature = "tls")]
            tls: None,
            read_limit: None,
            write_limit: None,
            unsent: Vec::new(),
            piece: vec![0; PIECE].into(),
            received: Vec::new(),
            frame: Frame::default(),
            has_answered: false,
        }
    }

    /// Makes the handshake of TLS.
    #[cfg(feature = "tls")]
    fn shake_hands(&mut self, deadline: &mut Deadline<'_>) -> Result<(), TransportError> {
        while let Some(tls) = &mut self.tls {
            tls.take_output(&mut self.unsent);
            let is_shaking_hands = tls.is_shaking_hands();
            self.flush(deadline)?;
            if !is_shaking_hands {
                break;
            }
            let read = self.read(deadline);
            read.map_err(|fault| match fault {
                TransportError::Io(error) if tls::is_no_record(&error) => self.plain_greeting(),
                // A Redis without TLS waits for the rest of a request.
                fault if fault.is_timeout() => {
                    let words = "timed out in the handshake of TLS, which the server may not speak";
                    io::Error::new(io::ErrorKind::TimedOut, words).into()
                }
                fault => fault,
            })?;
        }
        Ok(())
    }

    /// Returns what a server without TLS has said to the handshake. It is the first that was read.
    #[cfg(feature = "tls")]
    fn plain_greeting(&self) -> TransportError {
        let mut line_ends = self.piece.windows(2);
        let line = line_ends.position(|two| two == b"\r\n");
        let said = match line.map(|end| frame::parse(&self.piece[..end + 2])) {
            Some(Ok(Value::ServerError(error))) => Some(error),
            _ => None,
        };
        TransportError::Greeting(SPEAKS_NO_TLS, said)
    }

    /// Returns the stream, to wait until it can be read.
    pub(crate) fn bytes(&self) -> &ByteStream {
        &self.bytes
    }

    /// Sends a command and reads its answer.
    pub(crate) fn request(
        &mut self,
        command: &Command,
        deadline: Deadline<'_>,
    ) -> Result<Value, TransportError> {
        let answer = self.requests([command], deadline)?.pop();
        answer.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }

    /// Sends several commands in one write, and returns their answers. A server may close the connection after an error
    /// answer. Then these are the answers until that one, and nothing more can be sent.
    pub(crate) fn requests<'c>(
        &mut self,
        commands: impl IntoIterator<Item = &'c Command>,
        mut deadline: Deadline<'_>,
    ) -> Result<Vec<Value>, TransportError> {
        if self.has_answered {
            self.look()?;
        }
        let mut sent = 0;
        let counted = commands.into_iter().inspect(|_| sent += 1);
        self.send(counted, &mut deadline)?;
        let mut answers = Vec::with_capacity(sent);
        while answers.len() < sent {
            match self.answer(&mut deadline) {
                Ok(answer) => answers.push(answer),
                Err(fault)
                    if fault.is_closed()
                        && matches!(answers.last(), Some(Value::ServerError(_))) =>
                {
                    break;
                }
                Err(fault) => return Err(fault),
            }
        }
        if self.received.is_empty() {
            return Ok(answers);
        }
        let words = "more answers than requests".to_owned();
        Err(TransportError::Malformed(words))
    }

    /// Looks, without blocking, whether anything is unread on a connection on which no answer is missing.
    ///
    /// # Errors
    ///
    /// Returns `NotSent` if the connection has ended, and `Surplus` if anything has come.
    pub(crate) fn look(&mut self) -> Result<(), TransportError> {
        match self.read_now() {
            // More may be left only if the piece is full.
            Ok(read) if read < self.piece.len() && self.received.is_empty() => {}
            Err(fault) if fault.is_closed() => return Err(TransportError::NotSent),
            _ => return Err(TransportError::Surplus),
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return match tls.check_records() {
                Ok(()) => Ok(()),
                Err(error) if CLOSED.contains(&error.kind()) => Err(TransportError::NotSent),
                Err(_) => Err(TransportError::Surplus),
            };
        }
        Ok(())
    }

    /// Sends commands in one write. Their answers come from [`take`](Self::take), or from [`next`](Self::next) among the
    /// messages.
    pub(crate) fn send<'c>(
        &mut self,
        commands: impl IntoIterator<Item = &'c Command>,
        deadline: &mut Deadline<'_>,
    ) -> Result<(), TransportError> {
        for command in commands {
            command.pack(&mut self.unsent);
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            let packed = mem::take(&mut self.unsent);
            tls.encrypt(&packed, &mut self.unsent)?;
        }
        let Err(fault) = self.flush(deadline) else {
            return Ok(());
        };
        match self.read_now() {
            // By TLS 1.3 a server refuses a certificate after the handshake of this side, and closes the connection.
            Err(reason) if reason.mend_of_certificates().is_some() => Err(reason),
            // The greeting is read in place of the answer.
            Ok(_) if !self.has_answered && !self.received.is_empty() => {
                self.unsent.clear();
                Ok(())
            }
            _ => Err(fault),
        }
    }

    /// Writes the bytes that are not sent yet. Waits until the deadline for room for them.
    fn flush(&mut self, deadline: &mut Deadline<'_>) -> Result<(), TransportError> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            let left = deadline.left();
            if left.is_zero() {
                return Err(deadline.timed_out().into());
            }
            if is_to_set(&mut self.write_limit, left) {
                self.bytes.limit_writes(left)?;
            }
            match self.bytes.write(&self.unsent[sent..]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(written) => sent += written,
                Err(error) => go_on_after(error, deadline)?,
            }
        }
        self.unsent.clear();
        // A node of a quorum gets all its scripts at first, and short requests from then on. A shrunk buffer would stay in
        // place, and leave a gap in the heap behind it.
        if self.unsent.capacity() > PIECE {
            self.unsent = Vec::new();
        }
        Ok(())
    }

    /// Returns the next message of the server. Returns `None` if the message is not complete in time. The part that has
    /// come by then is kept.
    pub(crate) fn next(
        &mut self,
        mut deadline: Deadline<'_>,
    ) -> Result<Option<Value>, TransportError> {
        match self.answer(&mut deadline) {
            Ok(value) => Ok(Some(value)),
            Err(fault) if fault.is_timeout() => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Reads one answer.
    fn answer(&mut self, deadline: &mut Deadline<'_>) -> Result<Value, TransportError> {
        loop {
            if let Some(value) = self.take()? {
                return Ok(value);
            }
            self.read(deadline)?;
        }
    }

    /// Returns the next answer, if all of it was read.
    pub(crate) fn take(&mut self) -> Result<Option<Value>, TransportError> {
        // A TLS server sends an alert, or a part of a handshake. No answer begins with these bytes.
        if !self.has_answered && matches!(self.received.first(), Some(21 | 22)) {
            return Err(TransportError::Greeting(SPEAKS_TLS, None));
        }
        let end = self.frame.end(&self.received, LONGEST_ANSWER);
        let Some(end) = end.map_err(TransportError::Malformed)? else {
            return Ok(None);
        };
        self.frame = Frame::default();
        let is_first = !mem::replace(&mut self.has_answered, true);
        let value = frame::parse(&self.received[..end]);
        self.received.drain(..end);
        self.received.shrink_to(PIECE);
        match value.map_err(TransportError::Malformed)? {
            Value::ServerError(error) if is_first && is_greeting(&error) => {
                Err(TransportError::Greeting(REFUSES, Some(error)))
            }
            value => Ok(Some(value)),
        }
    }

    /// Reads a piece of an answer. With TLS the piece may be too short to read any of the answer.
    ///
    /// A thread may get no CPU time between its request and this call until the deadline has passed, and the answer may have
    /// come meanwhile. So after the deadline it reads once more what is there.
    pub(crate) fn read(&mut self, deadline: &mut Deadline<'_>) -> Result<(), TransportError> {
        loop {
            let left = deadline.left();
            if left.is_zero() {
                let is_there =
                    !mem::replace(&mut deadline.has_looked, true) && self.read_now()? > 0;
                if is_there {
                    return Ok(());
                }
                return Err(deadline.timed_out().into());
            }
            if is_to_set(&mut self.read_limit, left) {
                self.bytes.limit_reads(left)?;
            }
            match self.bytes.read(&mut self.piece) {
                Ok(read) => return self.take_piece(read),
                Err(error) => go_on_after(error, deadline)?,
            }
        }
    }

    /// Reads a piece of what has come, without blocking. Returns how long it is.
    fn read_now(&mut self) -> Result<usize, TransportError> {
        match self.bytes.read_now(&mut self.piece)? {
            Some(read) => self.take_piece(read).map(|()| read),
            None => Ok(0),
        }
    }

    /// Takes the bytes of a piece that was read. With TLS, decrypts them.
    fn take_piece(&mut self, read: usize) -> Result<(), TransportError> {
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let piece = &self.piece[..read];
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return Ok(tls.decrypt(piece, &mut self.received)?);
        }
        self.received.extend_from_slice(piece);
        Ok(())
    }
}

/// Notes the time limit for the operating system. Returns whether it must be set: most requests and answers are one piece
/// each, and have the same limit. The one that was set before is then right to the millisecond.
fn is_to_set(limit: &mut Option<Duration>, left: Duration) -> bool {
    if limit.is_some_and(|set| set >= left && set <= left + TOLERANCE) {
        return false;
    }
    *limit = Some(left);
    true
}

/// Returns the error of a read or a write, unless a signal has interrupted it.
fn go_on_after(error: io::Error, deadline: &Deadline<'_>) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock => Err(deadline.timed_out()),
        _ => Err(error),
    }
}

/// Returns whether the first answer on a connection is none to a request, and the server closes the connection after it.
fn is_greeting(error: &ServerError) -> bool {
    let text = error.details().unwrap_or_default();
    (error.code() == "DENIED" && text.contains("protected mode"))
        || text.starts_with("max number of clients")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use socket2::SockRef;

    use super::*;
    use crate::sys::Time;
    use crate::sys::net::readable;

    const SOON: Duration = Duration::from_secs(60 * 60);

    /// Connects to the listener.
    fn connected(listener: &TcpListener) -> (Socket, TcpStream) {
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).expect("it listens");
        let (peer, _) = listener.accept().expect("it has connected");
        (Socket::new(ByteStream::from(stream)), peer)
    }

    /// The reset comes before the first write of this side.
    #[test]
    fn what_a_server_has_said_before_a_reset_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let server = Server::parse(&format!("redis://{address}/")).expect("a URL");
        for said in [
            &b"-DENIED Redis is running in protected mode.\r\n"[..],
            b"-ERR max number of clients reached\r\n",
            // An alert, and the begin of a handshake.
            b"\x15\x03\x03\x00\x02\x02\x46",
            b"\x16\x03\x03\x00\x7a\x02",
        ] {
            let open = Socket::connect(&server, &Arc::default(), Deadline::after(SOON));
            let mut open = open.expect("it listens");
            let (mut peer, _) = listener.accept().expect("it has connected");
            peer.write_all(said).expect("it is open");
            let reset = SockRef::from(&peer).set_linger(Some(Duration::ZERO));
            reset.expect("an option");
            drop(peer);
            let answered = open.request(&Command::new("PING"), Deadline::after(SOON));
            assert!(
                matches!(answered, Err(TransportError::Greeting(..))),
                "{answered:?}"
            );
        }
    }

    /// A thread that got no CPU time after its request finds the answer that has come meanwhile.
    #[test]
    fn a_read_after_the_deadline_returns_what_has_come_and_waits_for_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (mut socket, mut peer) = connected(&listener);
        let read = |socket: &mut Socket, end: Time| {
            let read = socket.read(&mut Deadline::starting(end, Duration::ZERO));
            let come = mem::take(&mut socket.received).len();
            read.map(|()| come).map_err(|fault| fault.is_timeout())
        };
        let begun = Time::now();
        for _ in 0..3 {
            let over = Time::now();
            peer.write_all(b"x").expect("it is open");
            let soon = over + Duration::from_secs(20);
            assert!(readable([socket.bytes()], soon)[0], "it never comes");
            assert_eq!(read(&mut socket, over), Ok(1));
            peer.write_all(b"x").expect("it is open");
            assert_eq!(read(&mut socket, over + Duration::from_secs(60)), Ok(1));
            // Nothing has come, so this does not wait for the minute that is set on the socket.
            assert_eq!(read(&mut socket, over), Err(true));
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it waits");
    }

    #[test]
    fn the_room_of_a_long_request_is_given_back() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (mut socket, _peer) = connected(&listener);
        let mut long = Command::new("SET");
        long.arg("key").arg(vec![b'x'; 2 * PIECE]);
        let sent = socket.send([&long], &mut Deadline::after(SOON));
        sent.expect("there is room for it");
        assert!(socket.unsent.capacity() <= PIECE);
    }
}
