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
//!
//! TCP tells nothing about the request to which an answer belongs. So before a request is written on a connection on which
//! no answer is missing, nothing may be unread ([`Reading::look`]): not on the socket, not in the part of an answer that
//! was read, and with TLS not in the part of a record that was read. Session tickets are no answers, and do no harm. An
//! answer that nobody has asked for, and that comes after this look, cannot be told from the answer to the request.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use redis::{ConnectionAddr, Value};

use crate::config::Server;
use crate::script::Command;
use crate::store::Deadline;
use crate::store::transport::frame::{self, Frame};
use crate::store::transport::resolve::Resolver;
#[cfg(feature = "tls")]
use crate::store::transport::tls::{self, TlsSession};
use crate::sys::net::{ByteStream, PollFlags};
use crate::sys::{Arc, Time};

mod limit;

use limit::TimeLimit;

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
    /// Whether an answer has come. Before that, the socket is new, and the rest of its handshake may still come.
    has_answered: bool,
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
    bytes: ByteStream,
    /// A reading of the clock from before it was connected.
    pub(crate) opened: Time,
    #[cfg(feature = "tls")]
    tls: Option<TlsSession>,
}

/// The failure of a request. Nothing more can be sent on the socket after it, except after `CallerLeft`. The last four
/// are those of callers that share a socket. So several callers may get one failure.
#[derive(Clone, Debug)]
pub(crate) enum TransportError {
    Io(Arc<io::Error>),
    /// The bytes are no answer, for this reason.
    Malformed(String),
    /// The caller has left before the answer came, because its call was over. The connection is sound.
    CallerLeft,
    /// The answer to another request was no reply to it. So the answer to this one may be that to another request too.
    Distrusted,
    /// The socket had failed before any byte of the request was written.
    NotSent,
    /// Something was unread before any byte of the request was written.
    Surplus,
}

impl From<io::Error> for TransportError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
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

    /// Returns whether one side has refused the certificate of the other, or has none that the other wants.
    pub(crate) fn is_of_a_certificate(&self) -> bool {
        match self {
            #[cfg(feature = "tls")]
            Self::Io(error) => tls::is_of_a_certificate(error),
            _ => false,
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
        let opened = deadline.now();
        let until = opened + deadline.left();
        let dial_host = |host: &str, port: u16| dial(&resolver.resolve(host, port, until)?, until);
        match server.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                Ok(Self::new(Stream::plain(dial_host(host, *port)?, opened)))
            }
            ConnectionAddr::Unix(path) => Ok(Self::new(Stream::plain(
                ByteStream::connect_unix(path, until)?,
                opened,
            ))),
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                let tls = Some(tls::client(host, server.tls_config()?)?);
                let bytes = dial_host(host, *port)?;
                let mut socket = Self::new(Stream { bytes, opened, tls });
                socket.shake_hands(&mut deadline)?;
                Ok(socket)
            }
            _ => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
        }
    }

    fn new(stream: Stream) -> Self {
        let stream = Arc::new(stream);
        Self {
            reading: Box::new(Reading {
                stream: Arc::clone(&stream),
                limit: TimeLimit::default(),
                piece: vec![0; PIECE].into(),
                received: Vec::new(),
                frame: Frame::default(),
                has_answered: false,
                ready: Vec::new(),
            }),
            writing: Box::new(Writing {
                stream,
                limit: TimeLimit::default(),
                packed: Vec::new(),
                unsent: Vec::new(),
                sent: 0,
            }),
        }
    }

    /// Makes the handshake of TLS.
    #[cfg(feature = "tls")]
    fn shake_hands(&mut self, deadline: &mut Deadline<'_>) -> Result<(), TransportError> {
        while let Some(tls) = &self.reading.stream.tls {
            tls.take_output(&mut self.writing.unsent);
            self.writing.write_by(Some(deadline))?;
            if !tls.is_shaking_hands() {
                break;
            }
            self.reading.read_piece(deadline)?;
        }
        Ok(())
    }

    /// Sends a command and reads its answer.
    pub(crate) fn request(
        &mut self,
        command: &Command,
        mut deadline: Deadline<'_>,
    ) -> Result<Value, TransportError> {
        if self.reading.has_answered {
            self.look()?;
        }
        self.send(command, &mut deadline)?;
        let answer = self.reading.answer(&mut deadline)?;
        self.check_read().map(|()| answer)
    }

    /// Returns the stream, to wait until it can be read.
    pub(crate) fn bytes(&self) -> &ByteStream {
        &self.reading.stream.bytes
    }

    /// Does [`Reading::look`].
    pub(crate) fn look(&mut self) -> Result<(), TransportError> {
        self.reading.look()
    }

    /// Writes packed commands. Their answers come from [`take`](Self::take).
    pub(crate) fn write(
        &mut self,
        packed: &[u8],
        mut deadline: Deadline<'_>,
    ) -> Result<(), TransportError> {
        self.writing.packed.extend_from_slice(packed);
        self.writing.write_by(Some(&mut deadline))
    }

    /// Returns the next answer, if all of it was read.
    pub(crate) fn take(&mut self) -> Result<Option<Value>, TransportError> {
        self.reading.take()
    }

    /// Reads a piece of an answer. With TLS the piece may be too short to read any of the answer.
    pub(crate) fn read(&mut self, mut deadline: Deadline<'_>) -> Result<(), TransportError> {
        self.reading.read_piece(&mut deadline)
    }

    /// Sends several commands in one write, and returns their answers. A server may close the connection after an error
    /// answer. Then these are the answers until that one.
    pub(crate) fn requests(
        &mut self,
        commands: &[Command],
        mut deadline: Deadline<'_>,
    ) -> Result<Vec<Value>, TransportError> {
        for command in commands {
            command.pack(&mut self.writing.packed);
        }
        self.write_packed(&mut deadline)?;
        let mut answers = Vec::with_capacity(commands.len());
        for _ in commands {
            match self.reading.answer(&mut deadline) {
                Ok(answer) => answers.push(answer),
                Err(_) if matches!(answers.last(), Some(Value::ServerError(_))) => break,
                Err(fault) => return Err(fault),
            }
        }
        self.check_read().map(|()| answers)
    }

    /// Writes the packed commands.
    fn write_packed(&mut self, deadline: &mut Deadline<'_>) -> Result<(), TransportError> {
        let written = self.writing.write_by(Some(deadline));
        // By TLS 1.3 a server refuses a certificate after the handshake of this side, and closes the connection.
        written.map_err(|fault| match self.reading.read_now() {
            Err(reason) if reason.is_of_a_certificate() => reason,
            _ => fault,
        })
    }

    /// Returns an error if more has come than the answers that were read.
    fn check_read(&self) -> Result<(), TransportError> {
        if self.reading.received.is_empty() {
            return Ok(());
        }
        let words = "more answers than requests".to_owned();
        Err(TransportError::Malformed(words))
    }

    /// Sends a command. Its answer comes from [`next`](Self::next), among the messages.
    pub(crate) fn send(
        &mut self,
        command: &Command,
        deadline: &mut Deadline<'_>,
    ) -> Result<(), TransportError> {
        command.pack(&mut self.writing.packed);
        self.write_packed(deadline)
    }

    /// Returns the next message of the server. Returns `None` if the message is not complete in time. The part that has
    /// come by then is kept.
    pub(crate) fn next(
        &mut self,
        mut deadline: Deadline<'_>,
    ) -> Result<Option<Value>, TransportError> {
        match self.reading.answer(&mut deadline) {
            Ok(value) => Ok(Some(value)),
            Err(fault) if fault.is_timeout() => Ok(None),
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
        self.has_answered = true;
        let value = frame::parse(&self.received[..end]);
        self.received.drain(..end);
        self.received.shrink_to(PIECE);
        value.map(Some).map_err(TransportError::Malformed)
    }

    /// Reads one answer.
    fn answer(&mut self, deadline: &mut Deadline<'_>) -> Result<Value, TransportError> {
        loop {
            if let Some(value) = self.take()? {
                return Ok(value);
            }
            self.read_piece(deadline)?;
        }
    }

    /// Blocks until an answer has come, or until the deadline. Without a deadline, reads what has come. All answers that have
    /// come are [ready](Self::ready) then. Returns whether a part of a further one has come too.
    pub(crate) fn answers(
        &mut self,
        deadline: Option<&mut Deadline<'_>>,
    ) -> Result<bool, TransportError> {
        if let Some(deadline) = deadline {
            let first = self.answer(deadline)?;
            self.ready.push(first);
        } else {
            self.read_now()?;
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

    fn read_piece(&mut self, deadline: &mut Deadline<'_>) -> Result<(), TransportError> {
        let read = self
            .limit
            .read(&self.stream.bytes, &mut self.piece, deadline)?;
        self.take_piece(read)
    }

    /// Returns whether an answer has come since the socket was opened.
    pub(crate) fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Looks, without blocking, whether anything is unread on a connection on which no answer is missing.
    ///
    /// # Errors
    ///
    /// Returns `NotSent` if the connection has ended, and `Surplus` if anything has come.
    pub(crate) fn look(&mut self) -> Result<(), TransportError> {
        let read = self.read_now();
        let read = read.and_then(|read| Ok(self.stream.check_records().map(|()| read)?));
        match read {
            // More may be left only if the piece is full.
            Ok(read) if read < self.piece.len() && self.received.is_empty() => Ok(()),
            Err(fault) if fault.is_closed() => Err(TransportError::NotSent),
            _ => Err(TransportError::Surplus),
        }
    }

    /// Reads a piece of what has come, without blocking. Returns how long it is.
    fn read_now(&mut self) -> Result<usize, TransportError> {
        match self.stream.bytes.read_now(&mut self.piece)? {
            Some(read) => self.take_piece(read).map(|()| read),
            None => Ok(0),
        }
    }

    /// Takes the bytes of a piece that was read.
    fn take_piece(&mut self, read: usize) -> Result<(), TransportError> {
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let piece = &self.piece[..read];
        Ok(self.stream.decrypt(piece, &mut self.received)?)
    }
}

impl Writing {
    /// Returns the room for the bytes of requests. [`Self::write_by`] writes them.
    pub(crate) fn packed(&mut self) -> &mut Vec<u8> {
        &mut self.packed
    }

    /// Writes the packed bytes, and what an earlier write has left. After a failure because the time is over, the rest can be
    /// written later. Without a deadline, writes what there is room for.
    pub(crate) fn write_by(
        &mut self,
        mut deadline: Option<&mut Deadline<'_>>,
    ) -> Result<(), TransportError> {
        self.stream.encrypt(&mut self.packed, &mut self.unsent)?;
        self.packed.clear();
        while self.sent < self.unsent.len() {
            let (bytes, rest) = (&self.stream.bytes, &self.unsent[self.sent..]);
            let written = match &mut deadline {
                Some(deadline) => self.limit.write(bytes, rest, deadline)?,
                None => match bytes.write_now(rest)? {
                    Some(written) => written,
                    None => return Ok(()),
                },
            };
            if written == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
            self.sent += written;
        }
        self.unsent.clear();
        self.sent = 0;
        Ok(())
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

impl Stream {
    fn plain(bytes: ByteStream, opened: Time) -> Self {
        Self {
            bytes,
            opened,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Ends the connection, so that a thread that is blocked in a read or a write returns.
    pub(crate) fn shut_down(&self) {
        // A failure means that it has ended already.
        self.bytes.shut_down().ok();
    }

    /// Waits for at most `limit` until the socket is ready for one of these: see [`ByteStream::poll`].
    pub(crate) fn poll(&self, asked: PollFlags, limit: Duration) -> PollFlags {
        self.bytes.poll(asked, limit)
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

    /// Returns an error if a part of a TLS record has come, or the end of the TLS connection.
    fn check_records(&self) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.check_records();
        }
        Ok(())
    }
}

/// Connects to the first address of a host that accepts. The addresses share the time until `deadline`, so one that
/// does not answer leaves time for the others.
fn dial(addresses: &[SocketAddr], deadline: Time) -> io::Result<ByteStream> {
    let mut untried = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        let share = deadline.since(Time::now()) / untried;
        untried -= 1;
        match ByteStream::connect(address, share) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use socket2::{Domain, Socket as OsSocket, Type};

    use super::*;

    /// Returns a listener that accepts no more connections, because its queue is full, and the connections in that
    /// queue.
    fn silent() -> (OsSocket, SocketAddr, Vec<TcpStream>) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = OsSocket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        listener.bind(&any.into()).expect("a free port");
        listener.listen(1).expect("it is bound");
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

        let begun = Time::now();
        let failed = dial(&[silent; 10], begun + LIMIT).err().map(|e| e.kind());
        let took = begun.elapsed();
        assert_eq!(failed, Some(io::ErrorKind::TimedOut));
        assert!(took < LIMIT * 5, "not 10 times as long: {took:?}");

        assert!(dial(&[silent, silent, open], Time::now() + LIMIT).is_ok());
        assert!(dial(&[], Time::now() + LIMIT).is_err());
    }
}
