//! A server that replies as a test says: wrongly, in part, or not at all.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, Error, LockManager, Result};

use super::{PATIENCE, Server, ms, secs, task};

/// The reply to a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The reply of the real server.
    Pass,
    Say(Vec<u8>),
    /// These bytes, and then the end of the connection.
    Close(Vec<u8>),
    /// The first bytes, and then the second ones again and again, as fast as the client reads.
    Flood(Vec<u8>, Vec<u8>),
    /// The first bytes, and then the second ones again and again, every 50 ms.
    Drip(Vec<u8>, Vec<u8>),
}

/// The words of a request. They are empty when a connection is opened, which may get a reply too.
pub type Words = [Vec<u8>];

type Rule = dyn Fn(&Words) -> Answer + Send + Sync;

/// A server in front of a real one. Dropping it stops it.
pub struct Hostile {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// The port of the real server.
    behind: u16,
    rule: Mutex<Arc<Rule>>,
    /// The number of replies that the rule made.
    answered: AtomicU64,
    stopped: AtomicBool,
    /// Both sides of all connections.
    streams: Mutex<Vec<TcpStream>>,
}

impl Hostile {
    /// Starts a server that forwards everything.
    #[track_caller]
    pub fn before(server: &Server) -> Self {
        let behind = server.port();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            behind,
            rule: Mutex::new(Arc::new(|_: &Words| Answer::Pass)),
            answered: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            streams: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.stopped.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(stream) = stream {
                    let shared = Arc::clone(&accepting);
                    // Either side may end the connection. That is no failure.
                    thread::spawn(move || shared.serve(&stream).ok());
                }
            }
        });
        Self { address, shared }
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Sets the rule for all replies from now on.
    pub fn answers(&self, rule: impl Fn(&Words) -> Answer + Send + Sync + 'static) {
        *guard(&self.shared.rule) = Arc::new(rule);
    }

    /// Forwards everything from now on. A connection that is in the middle of a reply stays there.
    pub fn behaves(&self) {
        self.answers(|_| Answer::Pass);
    }

    /// Returns the number of requests and connections that got a reply from the rule so far.
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::SeqCst)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        for stream in guard(&self.shared.streams).drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
        // Wakes the thread that accepts connections.
        TcpStream::connect(self.address).ok();
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, client: &TcpStream) -> io::Result<()> {
        let mut answers = client.try_clone()?;
        self.keep(client)?;
        if !self.answer(&[], &mut answers, || Ok(()))? {
            return client.shutdown(Shutdown::Both);
        }
        let mut behind = TcpStream::connect(("127.0.0.1", self.behind))?;
        self.keep(&behind)?;
        let (mut said, mut to) = (behind.try_clone()?, client.try_clone()?);
        thread::spawn(move || {
            io::copy(&mut said, &mut to).ok();
            to.shutdown(Shutdown::Both).ok();
        });
        let mut requests = BufReader::new(client.try_clone()?);
        while let Some((words, bytes)) = request(&mut requests)? {
            if !self.answer(&words, &mut answers, || behind.write_all(&bytes))? {
                break;
            }
        }
        behind.shutdown(Shutdown::Both)?;
        client.shutdown(Shutdown::Both)
    }

    /// Sends the reply of the rule, or forwards the request. Returns `false` if the connection must be closed.
    fn answer(
        &self,
        words: &Words,
        to: &mut TcpStream,
        pass: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<bool> {
        let rule = Arc::clone(&guard(&self.rule));
        let answer = rule(words);
        if !matches!(answer, Answer::Pass) {
            self.answered.fetch_add(1, Ordering::SeqCst);
        }
        match answer {
            Answer::Pass => pass()?,
            Answer::Say(bytes) => to.write_all(&bytes)?,
            Answer::Close(bytes) => {
                to.write_all(&bytes)?;
                return Ok(false);
            }
            Answer::Flood(first, then) => {
                to.write_all(&first)?;
                while !self.stopped.load(Ordering::SeqCst) {
                    to.write_all(&then)?;
                }
            }
            Answer::Drip(first, then) => {
                to.write_all(&first)?;
                while !self.stopped.load(Ordering::SeqCst) {
                    to.write_all(&then)?;
                    thread::sleep(ms(50));
                }
            }
        }
        Ok(true)
    }

    /// Registers a connection, so that the drop closes it.
    fn keep(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        guard(&self.streams).push(stream.try_clone()?);
        if self.stopped.load(Ordering::SeqCst) {
            stream.shutdown(Shutdown::Both)?;
        }
        Ok(())
    }
}

/// The words of a request, and all its bytes.
type Request = (Vec<Vec<u8>>, Vec<u8>);

/// Reads the next request. Returns `None` at the end of the connection.
fn request(from: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut bytes = Vec::new();
    let Some(count) = number(from, &mut bytes)? else {
        return Ok(None);
    };
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(from, &mut bytes)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut word = vec![0; length + 2];
        from.read_exact(&mut word)?;
        bytes.extend_from_slice(&word);
        word.truncate(length);
        words.push(word);
    }
    Ok(Some((words, bytes)))
}

/// Reads the number on the next line, after its first character.
fn number(from: &mut impl BufRead, bytes: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    bytes.extend_from_slice(line.as_bytes());
    let number = line
        .get(1..)
        .and_then(|number| number.trim_end().parse().ok());
    number.map(Some).ok_or(io::ErrorKind::InvalidData.into())
}

fn guard<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time limit of a request in these tests.
const IO: Duration = ms(800);

/// Returns settings with short time limits, for servers that do not reply.
pub fn impatient(url: &str) -> Builder {
    LockManager::single(url)
        .connect_timeout(secs(10))
        .io_timeout(IO)
}

/// Returns whether a request runs a script, and so concerns a lock.
pub fn is_script(words: &Words) -> bool {
    words
        .first()
        .is_some_and(|verb| verb == b"EVALSHA" || verb == b"EVAL")
}

/// Returns a rule that sends this reply to each script, and forwards everything else.
pub fn to_scripts(answer: Answer) -> impl Fn(&Words) -> Answer + Send + Sync {
    move |words| {
        if is_script(words) {
            answer.clone()
        } else {
            Answer::Pass
        }
    }
}

/// Returns the result of a call, which must not wait for the server for ever.
#[track_caller]
pub fn in_time<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    task(call).end()
}

/// Repeats a call until it succeeds. The server is healthy, but the machine may be busy.
#[track_caller]
pub fn at_last<T>(mut call: impl FnMut() -> Result<T>) -> T {
    let begun = Instant::now();
    loop {
        match call() {
            Ok(outcome) => return outcome,
            Err(Error::Unavailable { .. }) if begun.elapsed() < PATIENCE => {}
            Err(error) => panic!("the server is well: {error}"),
        }
    }
}
