//! A connection to each master that this process uses, on which nothing is sent. Its end shows at once that the master has
//! died, even if no request is under way. From then on the map is read often ([`super::search`]), so this process hears of
//! the failover when the others do.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | closed | its pause is over | opening, on a short-lived thread |
//! | opening | it is open | open |
//! | opening | a failure | closed; the alarm stays |
//! | open | it ends, or anything comes | closed, and to be opened at once; there is an alarm |
//! | any | the map has another master | dropped |
//!
//! The alarm is over when all of them are open, or after [`ALARM_LASTS`].

use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};

use crate::store::Deadline;
use crate::store::topology::cluster::master::Master;
use crate::store::topology::finder::FinderThread;
use crate::store::transport::socket::{Socket, TransportError};
use crate::sys::{Arc, Time};

/// The pause before a connection that could not be opened is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest alarm. A cluster has most often promoted a replica by then.
const ALARM_LASTS: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Lookout {
    connections: Vec<(Arc<Master>, SilentConnection)>,
    alarm_until: Option<Time>,
}

enum SilentConnection {
    /// It is opened at this time.
    Closed(Time),
    Opening(Receiver<Result<Socket, TransportError>>),
    Open(Box<Socket>),
}

impl Lookout {
    /// Takes in the masters of the map, and what has been opened. Opens what is due.
    pub(super) fn update(
        &mut self,
        masters: &[Arc<Master>],
        thread: &FinderThread<impl Clone + Send + 'static>,
    ) {
        let now = Time::now();
        let is_of_map =
            |master: &Arc<Master>| masters.iter().any(|of_map| Arc::ptr_eq(of_map, master));
        self.connections.retain(|(master, _)| is_of_map(master));
        for master in masters.iter().filter(|master| master.is_in_use()) {
            let mut known = self.connections.iter();
            if !known.any(|(known, _)| Arc::ptr_eq(known, master)) {
                let connection = SilentConnection::Closed(now);
                self.connections.push((Arc::clone(master), connection));
            }
        }
        for (master, connection) in &mut self.connections {
            connection.update(master, thread, now);
        }
        let mut all = self.connections.iter();
        let is_well = all.all(|(_, connection)| matches!(connection, SilentConnection::Open(_)));
        self.alarm_until = self.alarm_until.filter(|until| !is_well && *until > now);
    }

    /// Returns whether a master may have died.
    pub(super) fn is_alarmed(&self) -> bool {
        self.alarm_until.is_some()
    }

    /// Blocks until a connection ends, the thread is woken, or it is this time.
    pub(super) fn wait(
        &mut self,
        thread: &FinderThread<impl Clone + Send + 'static>,
        mut until: Time,
    ) {
        let mut open = Vec::new();
        for (_, connection) in &mut self.connections {
            match connection {
                SilentConnection::Closed(due) => until = until.min(*due),
                SilentConnection::Opening(_) => {}
                SilentConnection::Open(_) => open.push(connection),
            }
        }
        let sockets = open.iter().filter_map(|connection| match connection {
            SilentConnection::Open(socket) => Some(&**socket),
            _ => None,
        });
        let readable = thread.wait(&sockets.collect::<Vec<_>>(), until);
        let now = Time::now();
        for place in readable {
            // With TLS, session tickets may come.
            let is_well = match &mut *open[place] {
                SilentConnection::Open(socket) => socket.look().is_ok(),
                SilentConnection::Closed(_) | SilentConnection::Opening(_) => false,
            };
            if !is_well {
                *open[place] = SilentConnection::Closed(now);
                self.alarm_until = Some(now + ALARM_LASTS);
            }
        }
    }
}

impl SilentConnection {
    fn update(
        &mut self,
        master: &Master,
        thread: &FinderThread<impl Clone + Send + 'static>,
        now: Time,
    ) {
        let next = match self {
            Self::Closed(due) if *due <= now => {
                let route = master.route.clone();
                let connect = move || {
                    let deadline = Deadline::after(route.connect_timeout);
                    Socket::connect(route.server.info.addr(), &route.resolver, deadline)
                };
                match thread.aside(connect) {
                    Ok(opened) => Self::Opening(opened),
                    Err(_) => Self::Closed(now + PAUSE),
                }
            }
            Self::Opening(opened) => match opened.try_recv() {
                Err(TryRecvError::Empty) => return,
                Ok(Ok(socket)) => Self::Open(Box::new(socket)),
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => Self::Closed(now + PAUSE),
            },
            Self::Closed(_) | Self::Open(_) => return,
        };
        *self = next;
    }
}
