//! A socket to a server, on which every answer has an end in time.
//!
//! The redis crate's own connection has none: its time limit counts from one piece of an answer to the next, so that a
//! server that says a byte now and then keeps a thread for as long as it likes; and at its end, one that listened waits
//! for the answer to an UNSUBSCRIBE. Here the limit is for all of a request and its answer, and an answer has a greatest
//! length, so that no server, nor what was taken for one, makes this process run out of memory.
//!
//! A request is sent when nothing is owed by either side, and has one answer. Whatever else comes puts them out of step,
//! and is an error.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionAddr, Value};
use socket2::{Domain, SockAddr, Type};

use crate::store::frame::Frame;
#[cfg(feature = "tls")]
use crate::store::tls;

/// The longest answer, in bytes. A page of 200 locks is some 50,000. What is read of an answer takes up to some twenty
/// times as much memory, where it is made of the smallest pieces.
const LONGEST: usize = 8 << 20;
/// How much is read at a time.
const PIECE: usize = 8 << 10;
/// A limit on the socket that is so much too long is as good.
const AS_GOOD: Duration = Duration::from_millis(1);

pub(super) struct Socket {
    stream: Stream,
    /// What has come and was not taken yet, and how far that is measured.
    came: Vec<u8>,
    frame: Frame,
    /// Room for a request.
    packed: Vec<u8>,
}

/// What went wrong. Nothing more can be asked after it.
#[derive(Debug)]
pub(super) enum TransportError {
    Io(io::Error),
    /// What came is no answer, for this reason.
    Malformed(String),
}

enum Stream {
    Plain(Limited),
    #[cfg(feature = "tls")]
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, Limited>>),
}

/// What bytes go through, and for how long.
struct Limited {
    os: Os,
    until: Instant,
    /// The time limit that is set on the socket; none where there is none.
    set: Option<Duration>,
}

enum Os {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects within `limit`, which begins when the name's addresses are known.
    pub(super) fn connect(address: &ConnectionAddr, limit: Duration) -> io::Result<Self> {
        let plain = |os| Stream::Plain(Limited::new(os));
        let stream = match address {
            ConnectionAddr::Tcp(host, port) => plain(dial((&**host, *port), limit)?),
            ConnectionAddr::Unix(path) => plain(dial_here(path, limit)?),
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                let client = tls::client(host)?;
                let os = Limited::new(dial((&**host, *port), limit)?);
                Stream::Tls(Box::new(rustls::StreamOwned::new(client, os)))
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self {
            stream,
            came: Vec::new(),
            frame: Frame::default(),
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
        if self.came.is_empty() {
            Ok(answer)
        } else {
            Err(TransportError::Malformed("more than one answer".to_owned()))
        }
    }

    /// Sends several commands in one piece, and reads their answers, all within `limit`. `heard` is given each answer with
    /// its number, and may end it early by an error: the answers after that are not read.
    pub(super) fn requests<E>(
        &mut self,
        commands: &[Cmd],
        limit: Duration,
        mut heard: impl FnMut(usize, Value) -> Result<(), E>,
    ) -> Result<Result<(), E>, TransportError> {
        if commands.is_empty() {
            return Ok(Ok(()));
        }
        self.stream.limited().begin(limit);
        self.packed.clear();
        for command in commands {
            command.write_packed_command(&mut self.packed);
        }
        let sent = self.stream.write_all(&self.packed);
        sent.and_then(|()| self.stream.flush())
            .map_err(TransportError::Io)?;
        for number in 0..commands.len() {
            let answer = self.answer()?;
            if let Err(ended) = heard(number, answer) {
                return Ok(Err(ended));
            }
        }
        if self.came.is_empty() {
            Ok(Ok(()))
        } else {
            Err(TransportError::Malformed(
                "more answers than requests".to_owned(),
            ))
        }
    }

    /// Sends a command whose answer comes among the [`next`](Self::next) things that are said.
    pub(super) fn send(&mut self, command: &Cmd, limit: Duration) -> Result<(), TransportError> {
        self.stream.limited().begin(limit);
        self.packed.clear();
        command.write_packed_command(&mut self.packed);
        let sent = self.stream.write_all(&self.packed);
        sent.and_then(|()| self.stream.flush())
            .map_err(TransportError::Io)
    }

    /// What the server says next by itself; none where that is not all there within `limit`. What has come of it by
    /// then is kept.
    pub(super) fn next(&mut self, limit: Duration) -> Result<Option<Value>, TransportError> {
        self.stream.limited().begin(limit);
        match self.answer() {
            Ok(value) => Ok(Some(value)),
            Err(TransportError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    fn answer(&mut self) -> Result<Value, TransportError> {
        loop {
            let end = self.frame.end(&self.came, LONGEST);
            if let Some(end) = end.map_err(TransportError::Malformed)? {
                self.frame = Frame::default();
                let value = redis::parse_redis_value(&self.came[..end]);
                self.came.drain(..end);
                self.came.shrink_to(PIECE);
                return value.map_err(|error| TransportError::Malformed(error.to_string()));
            }
            let mut piece = [0; PIECE];
            match self.stream.read(&mut piece).map_err(TransportError::Io)? {
                0 => return Err(TransportError::Io(io::ErrorKind::UnexpectedEof.into())),
                read => self.came.extend_from_slice(&piece[..read]),
            }
        }
    }
}

/// Systems differ in what they call it.
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
            until: Instant::now(),
            set: None,
        }
    }

    /// All that follows ends within `limit`.
    fn begin(&mut self, limit: Duration) {
        // Settings keep it at an hour at the most.
        self.until = Instant::now() + limit;
    }

    /// Sets what is left of the time on the socket, before it is waited for. Most requests are sent and answered in one
    /// piece each, and have the same limit: what is set is then right to the millisecond, and is not set again.
    fn limit(&mut self) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let is_right = |set: Duration| set >= left && set <= left + AS_GOOD;
        if !self.set.is_some_and(is_right) {
            self.os.set_limit(left)?;
            self.set = Some(left);
        }
        Ok(())
    }

    /// Does it until it is done or has failed: where a signal is handled meanwhile, it is begun again.
    fn go<T>(&mut self, mut work: impl FnMut(&mut Os) -> io::Result<T>) -> io::Result<T> {
        loop {
            self.limit()?;
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
        self.go(|os| match os {
            Os::Tcp(stream) => stream.read(to),
            Os::Unix(stream) => stream.read(to),
        })
    }
}

impl Write for Limited {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.go(|os| match os {
            Os::Tcp(stream) => stream.write(from),
            Os::Unix(stream) => stream.write(from),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

/// Tries the addresses that a name stands for, one after the other. They share the time that is left then, so that a
/// first one that says nothing leaves some for the others.
fn dial(host: impl ToSocketAddrs, limit: Duration) -> io::Result<Os> {
    let addresses: Vec<_> = host.to_socket_addrs()?.collect();
    let until = Instant::now() + limit;
    let mut untried = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        let share = until.saturating_duration_since(Instant::now()) / untried;
        untried -= 1;
        // Not nothing, which is refused.
        match TcpStream::connect_timeout(&address, share.max(AS_GOOD)) {
            Ok(stream) => {
                // Requests are small and wait for their answers: nothing is gained by holding packets back.
                stream.set_nodelay(true)?;
                return Ok(Os::Tcp(stream));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to a socket of this machine: to one whose queue is full, as that of a stopped server, it takes its time.
fn dial_here(path: &Path, limit: Duration) -> io::Result<Os> {
    let until = Instant::now() + limit;
    let address = SockAddr::unix(path)?;
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Connecting is bound by what bounds writing.
        socket.set_write_timeout(Some(left.max(AS_GOOD)))?;
        match socket.connect(&address) {
            Ok(()) => return Ok(Os::Unix(socket.into())),
            // A signal was handled meanwhile.
            Err(error) if error.kind() == io::ErrorKind::Interrupted && !left.is_zero() => {}
            Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use socket2::Socket as OsSocket;

    use super::*;

    /// A listener with a short queue.
    fn listener(address: &SockAddr) -> OsSocket {
        let listener = OsSocket::new(address.domain(), Type::STREAM, None).expect("a socket");
        listener.bind(address).expect("a new address");
        listener.listen(1).expect("it is bound");
        listener
    }

    /// A listener that lets nobody in any more: its queue is full. Those in it are kept with it.
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
        let failed = dial(&[silent; 10][..], LIMIT).err().map(|e| e.kind());
        let took = begun.elapsed();
        assert_eq!(failed, Some(io::ErrorKind::TimedOut));
        assert!(took < LIMIT * 5, "not 10 times as long: {took:?}");

        assert!(dial(&[silent, silent, open][..], LIMIT).is_ok());
        assert!(dial(&[][..], LIMIT).is_err());
    }

    #[test]
    fn a_socket_of_this_machine_has_its_time_limit_too() {
        const LIMIT: Duration = Duration::from_millis(300);
        let path = std::env::temp_dir().join(format!("leasehold-{}", uuid::Uuid::new_v4()));
        let _listener = listener(&SockAddr::unix(&path).expect("a short path"));
        let mut queued = Vec::new();
        let failed = loop {
            match dial_here(&path, LIMIT) {
                Ok(os) => queued.push(os),
                Err(error) => break error.kind(),
            }
        };
        std::fs::remove_file(&path).ok();
        assert!(!queued.is_empty(), "nobody was let in");
        // Where the system does not wait, it refuses.
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::ConnectionRefused];
        assert!(kinds.contains(&failed), "{failed:?}");
        assert_eq!(
            dial_here(&path, LIMIT).err().map(|e| e.kind()),
            Some(io::ErrorKind::NotFound)
        );
    }
}
