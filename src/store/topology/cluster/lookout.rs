//! A connection to each master that this process uses, on which nothing is sent. Its end shows at once that the process of
//! the master has ended, even if no request is under way. From then on the map is read often ([`super::search`]), so this
//! process hears of the failover when the others do. A master that hangs, or whose host is gone, ends no connection.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | closed | its pause is over | opening, on a short-lived thread |
//! | opening | it is open | open |
//! | opening | a failure | closed; an alarm, if it is the first trouble |
//! | open | it ends | closed; an alarm, if it is the first trouble |
//! | any | the map has another master | dropped |
//!
//! The pause doubles with each trouble. After a connection that was open for [`STEADY_AFTER`], the next trouble is the first
//! again: a server with too many clients closes each connection at once, and must not be asked for ever. An alarm is over
//! when all are open, or after [`ALARM_LASTS`].

use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};

use crate::store::Deadline;
use crate::store::topology::cluster::master::Master;
use crate::store::topology::finder::FinderThread;
use crate::store::transport::socket::{Socket, TransportError};
use crate::sys::{Arc, Ordering, Time};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const STEADY_AFTER: Duration = Duration::from_secs(2);
/// The longest alarm. A cluster has most often promoted a replica by then.
const ALARM_LASTS: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Lookout {
    connections: Vec<SilentConnection>,
    alarm_until: Option<Time>,
}

struct SilentConnection {
    master: Arc<Master>,
    state: SilentState,
    pause: Duration,
}

enum SilentState {
    /// It is opened at this time.
    Closed(Time),
    Opening(Receiver<Result<Socket, TransportError>>),
    /// Since this time.
    Open(Time, Box<Socket>),
}

impl Lookout {
    /// Takes in the masters of the map, and what has been opened. Opens what is due.
    pub(super) fn update(
        &mut self,
        masters: &[Arc<Master>],
        thread: &FinderThread<impl Clone + Send + 'static>,
    ) {
        let now = Time::now();
        let is_of_map = |known: &SilentConnection| {
            let mut masters = masters.iter();
            masters.any(|master| Arc::ptr_eq(master, &known.master))
        };
        self.connections.retain(is_of_map);
        for master in masters {
            let mut known = self.connections.iter();
            let is_known = known.any(|known| Arc::ptr_eq(master, &known.master));
            if !is_known && master.is_used.load(Ordering::Relaxed) {
                self.connections.push(SilentConnection {
                    master: Arc::clone(master),
                    state: SilentState::Closed(now),
                    pause: FIRST_PAUSE,
                });
            }
        }
        for connection in &mut self.connections {
            if connection.update(thread, now) {
                self.alarm_until = Some(now + ALARM_LASTS);
            }
        }
        let mut all = self.connections.iter();
        let is_well = all.all(|known| matches!(known.state, SilentState::Open(..)));
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
        for connection in &mut self.connections {
            match &connection.state {
                SilentState::Closed(due) => until = until.min(*due),
                SilentState::Opening(_) => {}
                SilentState::Open(..) => open.push(connection),
            }
        }
        let sockets = open
            .iter()
            .filter_map(|connection| match &connection.state {
                SilentState::Open(_, socket) => Some(&**socket),
                SilentState::Closed(_) | SilentState::Opening(_) => None,
            });
        let readable = thread.wait(&sockets.collect::<Vec<_>>(), until);
        for place in readable {
            if open[place].look(Time::now()) {
                self.alarm_until = Some(Time::now() + ALARM_LASTS);
            }
        }
    }
}

impl SilentConnection {
    /// Opens it if it is due, or takes it if it was opened. Returns whether there is the first trouble.
    fn update(&mut self, thread: &FinderThread<impl Clone + Send + 'static>, now: Time) -> bool {
        match &self.state {
            SilentState::Closed(due) if *due <= now => {
                let route = self.master.route.clone();
                let connect = move || {
                    let deadline = Deadline::after(route.connect_timeout);
                    Socket::connect(&route.server, &route.resolver, deadline)
                };
                match thread.aside(connect) {
                    Ok(opened) => self.state = SilentState::Opening(opened),
                    Err(_) => self.state = SilentState::Closed(now + FIRST_PAUSE),
                }
            }
            SilentState::Opening(opened) => match opened.try_recv() {
                Err(TryRecvError::Empty) => {}
                Ok(Ok(socket)) => self.state = SilentState::Open(now, Box::new(socket)),
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => return self.is_in_trouble(now),
            },
            SilentState::Closed(_) | SilentState::Open(..) => {}
        }
        false
    }

    /// Looks at an open connection that can be read. Returns whether it has ended, and that is the first trouble.
    fn look(&mut self, now: Time) -> bool {
        let SilentState::Open(since, socket) = &mut self.state else {
            return false;
        };
        let is_steady = now.since(*since) >= STEADY_AFTER;
        if !socket.is_spoilt() {
            return false;
        }
        if is_steady {
            self.pause = FIRST_PAUSE;
        }
        self.is_in_trouble(now)
    }

    /// Closes it. Returns whether that is the first trouble.
    fn is_in_trouble(&mut self, now: Time) -> bool {
        let is_first = self.pause == FIRST_PAUSE;
        self.state = SilentState::Closed(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        is_first
    }
}
