//! A place of the pool, and the connection in it.

use std::time::{Duration, Instant};

use super::combiner::Combiner;
use super::member::Member;
use super::{CallTerms, Connections, Shared, is_newer};
use crate::store::places::{Pooled, TakenPlace};
use crate::store::socket::Socket;
use crate::sync::Arc;

/// The content of a place of the pool.
pub(crate) struct Place {
    socket: Option<Socket>,
    /// The number of the master to which the socket is connected. 0 if the address is fixed.
    master: u64,
    used: Instant,
}

impl Place {
    pub(super) fn new() -> Self {
        Self {
            socket: None,
            master: 0,
            used: Instant::now(),
        }
    }

    pub(super) fn keep(&mut self, socket: Socket, master: u64) {
        (self.socket, self.master, self.used) = (Some(socket), master, Instant::now());
    }
}

impl Pooled for Place {
    fn close_if_idle(&mut self, idle: Duration) {
        if self.used.elapsed() >= idle {
            self.socket = None;
        }
    }
}

/// A place of the pool, for a connection that one thread uses. Its drop frees the place.
pub(crate) struct Seat {
    connections: Arc<Connections>,
    /// `None` before it is taken, and after it was given on.
    place: Option<TakenPlace<Place>>,
    /// Whether the place belongs to a connection that threads share now.
    is_given: bool,
    /// When a connection was last found closed, as the thread has seen it when it entered.
    cut: Option<Instant>,
}

impl Seat {
    /// Returns a seat that was counted, and has no place yet.
    pub(super) fn new(connections: Arc<Connections>, cut: Option<Instant>) -> Self {
        Self {
            connections,
            place: None,
            is_given: false,
            cut,
        }
    }

    pub(super) fn fill(&mut self, place: TakenPlace<Place>) {
        self.place = Some(place);
    }

    /// Returns the open socket of the place, if it leads to this master and was opened after the cut. Closes any other.
    pub(crate) fn take_socket(&mut self, master: u64) -> Option<Socket> {
        let place = self.place.as_mut()?;
        let socket = place.socket.take();
        socket.filter(|socket| place.master == master && is_newer(socket.stream(), self.cut))
    }

    /// Notes that the connection of this place was found closed by the other side.
    pub(crate) fn note_cut(&self) {
        self.connections.state.lock().note_cut();
    }

    /// Gives an open socket back to the place.
    pub(crate) fn keep(mut self, socket: Socket, master: u64) {
        if let Some(place) = &mut self.place {
            place.keep(socket, master);
        }
    }

    /// Lets other threads share the socket. Returns the socket if the terms do not allow it.
    pub(crate) fn share(
        &mut self,
        socket: Socket,
        master: u64,
        terms: CallTerms,
    ) -> Result<Member, Socket> {
        let place = self.place.take_if(|_| terms.key.is_some());
        let Some(place) = place else {
            return Err(socket);
        };
        self.is_given = true;
        let connections = Arc::clone(&self.connections);
        let Socket { reading, writing } = socket;
        let shared = Box::new(Shared {
            combiner: Combiner::new(),
            stream: Arc::clone(writing.stream()),
            reading: Some(reading),
            writing: Some(writing),
            place,
            members: 1,
            is_retired: false,
            master,
            answered: Instant::now(),
        });
        let mut state = connections.state.lock();
        let number = state.add(shared);
        connections.notify(&state);
        drop(state);
        Ok(Member::new(connections, number, terms))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.is_given {
            return;
        }
        self.place = None;
        let mut state = self.connections.state.lock();
        state.in_use -= 1;
        self.connections.notify(&state);
    }
}
