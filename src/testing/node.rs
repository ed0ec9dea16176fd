//! A server of the test kit: a Redis in memory behind a socket, and the thread that serves it.
//!
//! | the thread finds | and |
//! | --- | --- |
//! | a new connection | accepts it. During a cut it closes it at once |
//! | bytes of a client | gives them to the server, at the time of the kit's clock |
//! | output of the server | writes it. The rest goes out when the socket has room again |
//! | a connection that has ended | forgets it |
//! | that the node was dropped | ends |

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, poll};

use super::memory::{MemoryServer, request};
use crate::added_time::AddedTime;
use crate::random::{Rng, SystemRng};
use crate::store::transport::waker::{take_wakes, wake, wakers};
use crate::sync::{Arc, Mutex, thread};

/// A server, which ends when this is dropped.
pub(super) struct ServedNode {
    path: PathBuf,
    served: Arc<Served>,
    /// Wakes the thread.
    waker: UnixStream,
}

/// Where clients connect.
enum ListeningSocket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// The part that the thread and the test share.
struct Served {
    added: AddedTime,
    state: Mutex<State>,
}

struct State {
    server: MemoryServer,
    links: BTreeMap<u64, ClientStream>,
    is_cut: bool,
    is_over: bool,
}

/// The connection of a client.
struct ClientStream {
    stream: Arc<UnixStream>,
    /// Output that is not written yet.
    unsent: Vec<u8>,
}

impl ServedNode {
    pub(super) fn start(path: PathBuf, added: AddedTime) -> io::Result<Self> {
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        let (waker, woken) = wakers()?;
        let (listener, served) = (
            ListeningSocket::Unix(listener),
            Arc::new(Served::new(added)),
        );
        let of_thread = Arc::clone(&served);
        thread::Builder::new()
            .name("leasehold-testing".into())
            .spawn(move || of_thread.serve(&listener, &woken))?;
        Ok(Self {
            path,
            served,
            waker,
        })
    }

    pub(super) fn url(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    pub(super) fn cut(&self) {
        let mut state = self.served.state.lock();
        state.is_cut = true;
        state.disconnect_all();
    }

    pub(super) fn restore(&self) {
        self.served.state.lock().is_cut = false;
    }

    pub(super) fn restart_empty(&self) {
        let mut state = self.served.state.lock();
        state.disconnect_all();
        state.server = new_server(&self.served.added);
    }

    /// Executes commands as a client does, and returns the bytes of the answers.
    pub(super) fn execute(&self, commands: &[&[&str]]) -> Vec<u8> {
        let mut state = self.served.state.lock();
        let connection = state.server.connect();
        for command in commands {
            let now = now(&self.served.added);
            let request = request(command);
            state.server.receive(connection, &request, now);
        }
        let answers = state.server.take_output(connection);
        state.server.disconnect(connection);
        answers.unwrap_or_default()
    }
}

impl Drop for ServedNode {
    fn drop(&mut self) {
        let mut state = self.served.state.lock();
        state.is_over = true;
        state.disconnect_all();
        drop(state);
        wake(&self.waker);
    }
}

/// Serves a Redis in memory to the clients of a port, and does not return.
pub(super) fn serve(listener: TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let (_waker, woken) = wakers()?;
    Served::new(AddedTime::default()).serve(&ListeningSocket::Tcp(listener), &woken);
    Ok(())
}

impl ListeningSocket {
    fn accept(&self) -> io::Result<UnixStream> {
        match self {
            Self::Unix(listener) => Ok(listener.accept()?.0),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                // Both kinds of stream are read and written in the same way.
                Ok(OwnedFd::from(stream).into())
            }
        }
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Served {
    fn new(added: AddedTime) -> Self {
        let state = State {
            server: new_server(&added),
            links: BTreeMap::new(),
            is_cut: false,
            is_over: false,
        };
        Self {
            added,
            state: Mutex::new(state),
        }
    }

    fn serve(&self, listener: &ListeningSocket, woken: &UnixStream) {
        loop {
            let links: Vec<_> = {
                let state = self.state.lock();
                if state.is_over {
                    return;
                }
                let links = state.links.iter();
                links
                    .map(|(id, link)| (*id, Arc::clone(&link.stream), link.unsent.is_empty()))
                    .collect()
            };
            let mut polled = vec![
                PollFd::new(woken, PollFlags::IN),
                PollFd::new(listener, PollFlags::IN),
            ];
            for (_, stream, is_sent) in &links {
                let room = if *is_sent {
                    PollFlags::empty()
                } else {
                    PollFlags::OUT
                };
                polled.push(PollFd::new(&**stream, PollFlags::IN | room));
            }
            poll(&mut polled, None).ok();
            take_wakes(woken);
            let mut state = self.state.lock();
            while let Ok(stream) = listener.accept() {
                state.accept(stream);
            }
            for (id, ..) in &links {
                state.receive(*id, now(&self.added));
            }
            state.send_all();
        }
    }
}

impl State {
    fn accept(&mut self, stream: UnixStream) {
        if !self.is_cut && stream.set_nonblocking(true).is_ok() {
            let link = ClientStream {
                stream: Arc::new(stream),
                unsent: Vec::new(),
            };
            self.links.insert(self.server.connect(), link);
        }
    }

    /// Gives the server what a client has sent.
    fn receive(&mut self, id: u64, now: Duration) {
        let mut piece = [0; 8_192];
        while let Some(link) = self.links.get(&id) {
            match (&*link.stream).read(&mut piece) {
                Ok(read) if read > 0 => self.server.receive(id, &piece[..read], now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => self.disconnect(id),
            }
        }
    }

    /// Writes the output of the server.
    fn send_all(&mut self) {
        let mut ended = Vec::new();
        for (id, link) in &mut self.links {
            let output = self.server.take_output(*id);
            let is_over = output.is_none();
            link.unsent.extend(output.unwrap_or_default());
            while !link.unsent.is_empty() {
                match (&*link.stream).write(&link.unsent) {
                    Ok(written) if written > 0 => drop(link.unsent.drain(..written)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(_) | Err(_) => {
                        ended.push(*id);
                        break;
                    }
                }
            }
            if is_over {
                ended.push(*id);
            }
        }
        for id in ended {
            self.disconnect(id);
        }
    }

    fn disconnect(&mut self, id: u64) {
        if let Some(link) = self.links.remove(&id) {
            // The thread may still have the stream, to poll it.
            link.stream.shutdown(Shutdown::Both).ok();
            self.server.disconnect(id);
        }
    }

    fn disconnect_all(&mut self) {
        while let Some(id) = self.links.first_key_value().map(|(id, _)| *id) {
            self.disconnect(id);
        }
    }
}

/// Returns the time of a server since 1970.
fn now(added: &AddedTime) -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default() + added.get()
}

/// Returns a server without data.
fn new_server(added: &AddedTime) -> MemoryServer {
    let rng = SystemRng::new();
    let run_id = format!("{}{:08x}", rng.uuid().simple(), rng.bits() as u32);
    MemoryServer::start(run_id, now(added)).expect("memory for a Redis in memory")
}
