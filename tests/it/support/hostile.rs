//! A server that answers as a test tells it to: wrongly, in part, or not at all.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, Error, LockManager, Result};

use super::{PATIENCE, SLACK, Server, ms, secs, task};

/// What a request is answered with.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// What the server behind it says.
    Pass,
    Say(Vec<u8>),
    /// This, and then the connection is closed.
    Close(Vec<u8>),
    /// This, and then this again and again, as far as it is read.
    Flood(Vec<u8>, Vec<u8>),
    /// This, and then this again and again, every 50 ms.
    Drip(Vec<u8>, Vec<u8>),
}

/// The words of a request; none where a connection is made, which may be answered too.
pub(crate) type Words = [Vec<u8>];

type Rule = dyn Fn(&Words) -> Answer + Send + Sync;

/// It stands before a real server, and stops when it is dropped.
pub(crate) struct Hostile {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// The port of the server behind it.
    behind: u16,
    rule: Mutex<Arc<Rule>>,
    /// How many answers were not passed.
    answered: AtomicU64,
    stopped: AtomicBool,
    /// Both sides of the connections.
    streams: Mutex<Vec<TcpStream>>,
}

impl Hostile {
    /// One that passes everything.
    #[track_caller]
    pub(crate) fn before(server: &Server) -> Self {
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
                    // Its end, by whichever side, is no failure.
                    thread::spawn(move || shared.serve(&stream).ok());
                }
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Answers by this rule from here on.
    pub(crate) fn answers(&self, rule: impl Fn(&Words) -> Answer + Send + Sync + 'static) {
        *guard(&self.shared.rule) = Arc::new(rule);
    }

    /// Passes everything from here on. A connection that was left in the middle of an answer stays there.
    pub(crate) fn behaves(&self) {
        self.answers(|_| Answer::Pass);
    }

    /// How many requests, or connections, it has answered by itself so far.
    pub(crate) fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::SeqCst)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        for stream in guard(&self.shared.streams).drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
        // So that its thread looks up.
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

    /// Says what the rule has for it, or has it passed; false where the connection is to be closed.
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

    /// Has it closed when this stops.
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

/// The next one; none where there are no more.
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

/// The number on the next line, behind its first letter.
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

/// How long the servers of these tests may take to answer.
pub(crate) const IO: Duration = ms(800);

/// Settings for servers that let others wait.
pub(crate) fn impatient(url: &str) -> Builder {
    LockManager::single(url)
        .connect_timeout(secs(10))
        .io_timeout(IO)
}

/// Whether a request is a script's, and so about a lock.
pub(crate) fn is_script(words: &Words) -> bool {
    words
        .first()
        .is_some_and(|verb| verb == b"EVALSHA" || verb == b"EVAL")
}

/// Answers scripts so, and passes all else.
pub(crate) fn to_scripts(answer: Answer) -> impl Fn(&Words) -> Answer + Send + Sync {
    move |words| {
        if is_script(words) {
            answer.clone()
        } else {
            Answer::Pass
        }
    }
}

/// What comes of a call, which must come in time.
#[track_caller]
pub(crate) fn in_time<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let begun = Instant::now();
    let outcome = task(call).end();
    let took = begun.elapsed();
    // A request may go out twice, and by its text where the server does not know it.
    assert!(took < 4 * IO + SLACK, "it took {took:?}");
    outcome
}

/// What comes of a call to a server that is well. On a busy machine it may take its time.
#[track_caller]
pub(crate) fn at_last<T>(mut call: impl FnMut() -> Result<T>) -> T {
    let begun = Instant::now();
    loop {
        match call() {
            Ok(outcome) => return outcome,
            Err(Error::Unavailable { .. }) if begun.elapsed() < PATIENCE => {}
            Err(error) => panic!("the server is well: {error}"),
        }
    }
}
