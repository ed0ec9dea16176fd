//! A Redis in memory that serves the clients of a port.
//!
//! | the thread finds | and |
//! | --- | --- |
//! | a new connection | accepts it |
//! | bytes of a client | gives them to the server |
//! | output of the server | writes it. The rest goes out when the socket has room again |
//! | a connection that has ended | forgets it |

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_testing::memory::MemoryServer;
use rustix::event::{PollFd, PollFlags, poll};
use uuid::Uuid;

struct ServedClients {
    server: MemoryServer,
    clients: BTreeMap<u64, ServedClient>,
}

/// The connection of a client.
struct ServedClient {
    stream: TcpStream,
    /// Output that is not written yet.
    unsent: Vec<u8>,
}

/// Serves, and does not return.
pub(crate) fn serve(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let run_id = Uuid::new_v4().simple().to_string();
    let mut served = ServedClients {
        server: MemoryServer::start(run_id, now()),
        clients: BTreeMap::new(),
    };
    loop {
        let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
        for client in served.clients.values() {
            let room = if client.unsent.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::OUT
            };
            polled.push(PollFd::new(&client.stream, PollFlags::IN | room));
        }
        poll(&mut polled, None).ok();
        served.accept(listener);
        served.receive_all();
        served.send_all();
    }
}

impl ServedClients {
    /// Accepts all that wait. After a failure the rest waits for the next turn.
    fn accept(&mut self, listener: &TcpListener) {
        while let Ok((stream, _)) = listener.accept() {
            let is_set = stream.set_nodelay(true).and(stream.set_nonblocking(true));
            if is_set.is_ok() {
                let client = ServedClient {
                    stream,
                    unsent: Vec::new(),
                };
                self.clients.insert(self.server.connect(), client);
            }
        }
    }

    /// Gives the server what the clients have sent.
    fn receive_all(&mut self) {
        let mut ended = Vec::new();
        let mut piece = [0; 8_192];
        for (id, client) in &mut self.clients {
            loop {
                match client.stream.read(&mut piece) {
                    Ok(read) if read > 0 => {
                        self.server.receive(*id, &piece[..read], now());
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(_) | Err(_) => {
                        ended.push(*id);
                        break;
                    }
                }
            }
        }
        self.disconnect(&ended);
    }

    /// Writes the output of the server.
    fn send_all(&mut self) {
        let mut ended = Vec::new();
        for (id, client) in &mut self.clients {
            let output = self.server.take_output(*id);
            let is_over = output.is_none();
            client.unsent.extend(output.unwrap_or_default());
            while !client.unsent.is_empty() {
                match client.stream.write(&client.unsent) {
                    Ok(written) if written > 0 => drop(client.unsent.drain(..written)),
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
        self.disconnect(&ended);
    }

    fn disconnect(&mut self, ended: &[u64]) {
        for id in ended {
            if self.clients.remove(id).is_some() {
                self.server.disconnect(*id);
            }
        }
    }
}

/// Returns the time since 1970.
fn now() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("it is past 1970")
}
