//! Connections: streams of bytes, waits for several of them, and lookups of names.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use smallvec::SmallVec;
use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};

#[cfg(feature = "seam")]
use super::of_test;
use super::time::Time;

/// A write to a connection that has ended sends no signal. On Apple's systems, the socket has that as an option.
#[cfg(not(target_vendor = "apple"))]
const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
const NO_SIGNAL: SendFlags = SendFlags::empty();
/// After 20 s without a byte, the system sends a probe every 4 s. So few routers forget the connection. After nine
/// probes without an answer, which most systems send, the connection has ended: within a minute.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(20))
    .with_interval(Duration::from_secs(4));
/// The shortest limit of a connect. A limit of zero would be an error.
const SHORTEST: Duration = Duration::from_millis(1);

/// How long an address is tried alone before the next one is tried beside it. RFC 8305 recommends 250 ms for servers
/// anywhere, and allows 100 ms. A lock's server is seldom farther away than that, and a caller waits.
const HEAD_START: Duration = Duration::from_millis(100);
/// How many addresses are tried at a time. A name server may name any number.
const SIDE_BY_SIDE: usize = 8;

/// A connected stream of bytes.
#[derive(Debug)]
pub(crate) enum ByteStream {
    Os(OwnedFd),
    #[cfg(feature = "seam")]
    OfTest(of_test::LimitedStream),
}

impl ByteStream {
    /// Connects by TCP to the first of these addresses that accepts, and returns which. They are tried in their order, each
    /// with a head start ([RFC 8305]) of [`HEAD_START`], or less if not all could be tried in time. One that refuses is
    /// followed at once.
    ///
    /// [RFC 8305]: https://www.rfc-editor.org/rfc/rfc8305
    pub(crate) fn connect(addresses: &[SocketAddr], until: Time) -> io::Result<(Self, SocketAddr)> {
        #[cfg(feature = "seam")]
        // The hosts of a test's network have one address each.
        if let Some(address) = addresses.first() {
            if let Some(stream) = of_test::connect(&address.to_string(), until) {
                return stream.map(|stream| (Self::OfTest(stream), *address));
            }
        }
        let mut untried = addresses.iter();
        let mut tried = Vec::<(Socket, SocketAddr)>::new();
        let mut next_at = Time::now();
        let mut refusal = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        loop {
            let now = Time::now();
            if tried.is_empty() || now >= next_at {
                match untried.next() {
                    Some(address) => {
                        let share = until.since(now) / (untried.len() as u32 + 1);
                        next_at = now + HEAD_START.min(share);
                        tried.drain(..(tried.len() + 1).saturating_sub(SIDE_BY_SIDE));
                        match begin_to_connect(*address) {
                            Ok(socket) => tried.push((socket, *address)),
                            Err(error) => {
                                refusal = error;
                                next_at = now;
                            }
                        }
                    }
                    None if tried.is_empty() => return Err(refusal),
                    None if now >= until => return Err(io::ErrorKind::TimedOut.into()),
                    None => next_at = until,
                }
            }
            if let Some(number) = first_writable(&tried, next_at) {
                let (socket, address) = tried.remove(number);
                match socket.take_error() {
                    Ok(None) => return Ok((Self::of_connected(socket)?, address)),
                    Ok(Some(error)) | Err(error) => {
                        refusal = error;
                        next_at = now;
                    }
                }
            }
        }
    }

    fn of_connected(socket: Socket) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        // A request is small and waits for its answer, so holding packets back would gain nothing.
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&KEEPALIVE)?;
        Ok(Self::Os(socket.into()))
    }

    /// Connects to a Unix socket. If the queue of the listener is full, as that of a stopped server may be, this blocks
    /// until then.
    pub(crate) fn connect_unix(path: &Path, until: Time) -> io::Result<Self> {
        #[cfg(feature = "seam")]
        if let Some(stream) = of_test::connect(&path.to_string_lossy(), until) {
            return stream.map(Self::OfTest);
        }
        let address = SockAddr::unix(path)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        loop {
            let left = until.since(Time::now());
            // The operating system limits the time of a connect by the limit for writing.
            socket.set_write_timeout(Some(left.max(SHORTEST)))?;
            match socket.connect(&address) {
                Ok(()) => return Ok(Self::Os(socket.into())),
                // A signal interrupted it.
                Err(error) if error.kind() == io::ErrorKind::Interrupted && !left.is_zero() => {}
                Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads what has come. Returns `None` if nothing has.
    pub(crate) fn read_now(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Self::Os(fd) => match recv(fd, to, RecvFlags::DONTWAIT) {
                Ok((read, _)) => Ok(Some(read)),
                Err(Errno::AGAIN | Errno::INTR) => Ok(None),
                Err(error) => Err(broken(error)),
            },
            #[cfg(feature = "seam")]
            Self::OfTest(stream) => stream.read_now(to),
        }
    }

    /// Sets how long each [`read`](Self::read) may take.
    pub(crate) fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Os(fd) => set_socket_timeout(fd, Timeout::Recv, Some(limit))?,
            #[cfg(feature = "seam")]
            Self::OfTest(stream) => stream.limit_reads(limit),
        }
        Ok(())
    }

    /// Sets how long each [`write`](Self::write) may take.
    pub(crate) fn limit_writes(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Os(fd) => set_socket_timeout(fd, Timeout::Send, Some(limit))?,
            // It never blocks.
            #[cfg(feature = "seam")]
            Self::OfTest(_) => {}
        }
        Ok(())
    }

    /// Reads what has come, or waits for it. Returns an error of the kind `WouldBlock` after the limit.
    pub(crate) fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Os(fd) => {
                let read = recv(fd, to, RecvFlags::empty());
                read.map(|(read, _)| read).map_err(broken)
            }
            #[cfg(feature = "seam")]
            Self::OfTest(stream) => stream.read(to),
        }
    }

    /// Writes some bytes, or waits for room for them. Returns an error of the kind `WouldBlock` after the limit.
    pub(crate) fn write(&self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Os(fd) => send(fd, from, NO_SIGNAL).map_err(broken),
            #[cfg(feature = "seam")]
            Self::OfTest(stream) => stream.write_now(from),
        }
    }
}

#[cfg(test)]
impl From<std::net::TcpStream> for ByteStream {
    fn from(stream: std::net::TcpStream) -> Self {
        Self::Os(stream.into())
    }
}

fn begin_to_connect(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match rustix::net::connect(&socket, &address) {
        // A connect that a signal interrupts goes on.
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Waits until one of these sockets has connected or failed, or until then. Returns the place of the first one.
fn first_writable(sockets: &[(Socket, SocketAddr)], until: Time) -> Option<usize> {
    let polled = sockets
        .iter()
        .map(|(socket, _)| PollFd::new(socket, PollFlags::OUT));
    let mut polled: SmallVec<[_; SIDE_BY_SIDE]> = polled.collect();
    let left = until.since(Time::now());
    // After an error the caller looks again.
    poll(&mut polled, Timespec::try_from(left).ok().as_ref()).ok()?;
    polled
        .iter()
        .position(|polled| !polled.revents().is_empty())
}

/// Returns the error of a connection that has failed. `ETIMEDOUT` is no time limit of a caller: the operating system has
/// given the connection up.
fn broken(error: Errno) -> io::Error {
    match error {
        Errno::TIMEDOUT => io::Error::new(io::ErrorKind::ConnectionAborted, error),
        error => error.into(),
    }
}

/// Returns whether the time limit was over. Operating systems report that by different errors.
fn is_timeout(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
    kinds.contains(&error.kind())
}

/// Waits until one of these streams has something to read, or has ended, or until then. Returns for each stream whether it
/// has. Looks at least once, even after that time.
pub(crate) fn readable<'s>(
    streams: impl IntoIterator<Item = &'s ByteStream>,
    until: Time,
) -> SmallVec<[bool; 8]> {
    let streams: SmallVec<[_; 8]> = streams.into_iter().collect();
    #[cfg(feature = "seam")]
    if let Some(ready) = readable_of_test(&streams, until) {
        return ready;
    }
    let mut polled = SmallVec::<[_; 8]>::new();
    for stream in &streams {
        match stream {
            ByteStream::Os(fd) => polled.push(PollFd::new(fd, PollFlags::IN)),
            #[cfg(feature = "seam")]
            ByteStream::OfTest(_) => {}
        }
    }
    let left = until.since(Time::now());
    // An error means that a signal came, or that the system has no memory: the caller looks again.
    poll(&mut polled, Timespec::try_from(left).ok().as_ref()).ok();
    let is_ready = |polled: &PollFd<'_>| !polled.revents().is_empty();
    polled.iter().map(is_ready).collect()
}

/// Does the same if they are of the network of a test.
#[cfg(feature = "seam")]
fn readable_of_test(streams: &[&ByteStream], until: Time) -> Option<SmallVec<[bool; 8]>> {
    let of_test = streams.iter().filter_map(|stream| match stream {
        ByteStream::OfTest(stream) => Some(stream),
        ByteStream::Os(_) => None,
    });
    let of_test: SmallVec<[_; 8]> = of_test.collect();
    if of_test.is_empty() {
        return None;
    }
    of_test::wait(&of_test, until);
    Some(of_test.iter().map(|stream| stream.has_input()).collect())
}

/// Returns the addresses of a host. Blocks for as long as the system's lookup takes.
pub(crate) fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
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
    }

    /// A peer that is gone sends nothing, and neither does a router that has forgotten the connection.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_dead_connection_ends_within_a_minute() {
        use rustix::net::sockopt;

        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let soon = Time::now() + Duration::from_secs(20);
        let (stream, _) = ByteStream::connect(&[address], soon).expect("it listens");
        #[cfg_attr(not(feature = "seam"), expect(irrefutable_let_patterns))]
        let ByteStream::Os(fd) = stream else {
            unreachable!("no test has another network");
        };
        assert_eq!(sockopt::socket_keepalive(&fd), Ok(true));
        let idle = sockopt::tcp_keepidle(&fd).expect("a time");
        let between = sockopt::tcp_keepintvl(&fd).expect("a time");
        let probes = sockopt::tcp_keepcnt(&fd).expect("a number");
        assert!(idle + between * probes < Duration::from_secs(60));
    }

    /// Returns a listener that accepts no more connections, because its queue is full, and the connections in that queue.
    fn silent() -> (Socket, SocketAddr, Vec<TcpStream>) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        listener.bind(&any.into()).expect("a free port");
        listener.listen(1).expect("it is bound");
        let address = listener.local_addr().expect("an address");
        let address = address.as_socket().expect("of the internet");
        // Linux queues one connection more than `listen` asks for, and another system may queue more.
        let connect = |limit| TcpStream::connect_timeout(&address, limit);
        let first = [(); 2].map(|()| connect(Duration::from_secs(60)).expect("it listens"));
        let mut queued = Vec::from(first);
        while let Ok(stream) = connect(Duration::from_millis(200)) {
            queued.push(stream);
        }
        (listener, address, queued)
    }

    fn open() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    /// An address to which nobody listens.
    fn closed() -> SocketAddr {
        open().1
    }

    #[test]
    fn an_address_that_does_not_answer_delays_the_next_one_by_its_head_start() {
        const LIMIT: Duration = Duration::from_secs(60);
        let (_listener, silent, _queued) = silent();
        let (_listener, open) = open();
        for addresses in [
            &[silent, open][..],
            &[silent, silent, open],
            &[silent, closed(), open],
            &[closed(), silent, open],
            &[open, silent],
        ] {
            let begun = Time::now();
            let connected = ByteStream::connect(addresses, begun + LIMIT);
            assert_eq!(connected.expect("one accepts").1, open);
            let took = begun.elapsed();
            assert!(took < LIMIT / 3, "it waited for a silent one: {took:?}");
        }
    }

    /// Also if a name server names more addresses than the time has head starts.
    #[test]
    fn each_address_is_tried_in_time() {
        const LIMIT: Duration = Duration::from_secs(2);
        let (_listener, silent, _queued) = silent();
        let (_listener, open) = open();
        let mut addresses = [silent; 100];
        let begun = Time::now();
        let failed = ByteStream::connect(&addresses, begun + LIMIT).map_err(|error| error.kind());
        assert_eq!(failed.err(), Some(io::ErrorKind::TimedOut));
        assert!(begun.elapsed() < LIMIT * 5, "not 100 times as long");
        addresses[99] = open;
        assert!(ByteStream::connect(&addresses, Time::now() + LIMIT).is_ok());
    }

    #[test]
    fn addresses_that_all_refuse_are_a_refusal_at_once() {
        let soon = Time::now() + Duration::from_secs(600);
        for addresses in [&[closed()][..], &[closed(), closed()]] {
            let refused = ByteStream::connect(addresses, soon).map_err(|error| error.kind());
            assert_eq!(refused.err(), Some(io::ErrorKind::ConnectionRefused));
        }
        // The system itself refuses this address. With a head start for each, these would take 45 s.
        let broadcast = SocketAddr::from(([255; 4], 1));
        let begun = Time::now();
        let refused = ByteStream::connect(&[broadcast; 450], soon);
        assert!(refused.is_err() && begun.elapsed() < Duration::from_secs(30));
        let none = ByteStream::connect(&[], soon).map_err(|error| error.kind());
        assert_eq!(none.err(), Some(io::ErrorKind::NotFound));
    }

    #[test]
    fn a_socket_of_this_machine_has_its_time_limit_too() {
        const LIMIT: Duration = Duration::from_millis(300);
        let path = std::env::temp_dir().join(format!("leasehold-{}", uuid::Uuid::new_v4()));
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        let address = SockAddr::unix(&path).expect("a short path");
        listener.bind(&address).expect("a new address");
        listener.listen(1).expect("it is bound");
        let connect = |limit| ByteStream::connect_unix(&path, Time::now() + limit);
        let mut queued = vec![connect(Duration::from_secs(60)).expect("it listens")];
        let failed = loop {
            match connect(LIMIT) {
                Ok(stream) => queued.push(stream),
                Err(error) => break error.kind(),
            }
        };
        std::fs::remove_file(&path).ok();
        // Some systems refuse the connection at once, and do not wait.
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::ConnectionRefused];
        assert!(kinds.contains(&failed), "{failed:?}");
        let gone = connect(LIMIT).err().map(|error| error.kind());
        assert_eq!(gone, Some(io::ErrorKind::NotFound));
    }

    #[test]
    fn a_thread_that_waits_is_told_what_it_can_read() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let soon = Time::now() + Duration::from_secs(20);
        let connect = || ByteStream::connect(&[address], soon).expect("it listens").0;
        let silent = connect();
        let (_silent_peer, _) = listener.accept().expect("it has connected");
        let talks = connect();
        let (mut peer, _) = listener.accept().expect("it has connected");
        peer.write_all(b"x").expect("it is open");
        let ready = readable([&silent, &talks], soon);
        assert_eq!(ready[..], [false, true]);
        assert_eq!(readable([&silent], Time::now())[..], [false]);
        assert!(Time::now() < soon, "it waits");
    }
}
