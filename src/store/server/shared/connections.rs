//! The gate: how a thread enters a connection, waits for one, and leaves it.

use std::time::Duration;

use super::connection::{ConnectionPlace, PoolConnection};
use super::terms::CallTerms;
use crate::error::Failure;
use crate::message::Request;
use crate::stats::PoolCounters;
use crate::store::server::places::{IDLE, Places, TakenPlace, no_place};
use crate::store::server::route::Route;
use crate::store::server::tasks::TaskThread;
use crate::store::transport::socket::Socket;
use crate::store::{Deadline, Phase};
use crate::sys::{Arc, Condvar, Mutex, MutexGuard, Ordering, Time};

/// With fewer threads in calls than this, each has a connection. Two threads on one would have to pass the reader's role
/// at each answer, which costs more than a write for each.
const FEW: u32 = 2;
/// How many threads without priority may be on a connection. Each has at most one request in flight.
pub(super) const MOST_IN_FLIGHT: u32 = 128;

/// The connections to one server.
pub(crate) struct Connections {
    pub(super) places: Places<ConnectionPlace>,
    counters: Arc<PoolCounters>,
    /// Whether replicas must confirm what a request gains.
    is_confirmed: bool,
    pub(super) gate: Mutex<Gate>,
    /// Notified when a thread of this [queue](CallTerms::queue) may enter a connection.
    changed: [Condvar; QUEUES],
}

/// The number of queues at the gate.
const QUEUES: usize = 4;

/// The connections that threads use now, guarded by the mutex.
pub(super) struct Gate {
    /// The places of the connections that may be shared.
    pub(super) shared: Vec<TakenPlace<ConnectionPlace>>,
    /// How many places are taken, with those of connections that one thread has alone.
    pub(super) taken: usize,
    size: usize,
    /// How many threads wait in each queue.
    pub(super) waiting: [usize; QUEUES],
    /// The master to which the last call went, and its way.
    pub(super) master: (u64, Arc<Route>),
    /// When a connection was last found closed by the other side. All that were opened before may be closed too.
    pub(super) last_closed: Option<Time>,
}

/// The room that a thread finds.
enum Room {
    /// On the connection of this number.
    On(usize),
    /// In a place of its own.
    InAPlace,
}

/// A connection of the pool, as one thread has it. Its drop leaves the connection.
pub(crate) struct PooledConnection<'a> {
    pub(super) connections: &'a Connections,
    pub(super) terms: CallTerms,
    /// The place, if no other thread may use the connection, or as long as it is not open.
    pub(super) place: Option<TakenPlace<ConnectionPlace>>,
    /// `None` before it is open, and after it has failed.
    pub(super) connection: Option<Arc<PoolConnection>>,
}

impl Connections {
    /// Makes the connections to one server. `master` is the number of the master to which the way leads.
    pub(crate) fn new(master: (u64, Arc<Route>), size: u32) -> Arc<Self> {
        Self::closing_after(IDLE, master, size)
    }

    /// Does the same, with these times for unused connections: see [`IDLE`].
    pub(super) fn closing_after(
        idle: (Duration, Duration),
        master: (u64, Arc<Route>),
        size: u32,
    ) -> Arc<Self> {
        let places = Places::new(|| Some(ConnectionPlace::default()), size, TaskThread::new());
        let connections = Arc::new(Self {
            places,
            counters: Arc::clone(&master.1.pools),
            is_confirmed: master.1.replicas > 0,
            gate: Mutex::new(Gate {
                shared: Vec::new(),
                taken: 0,
                size: size as usize,
                waiting: [0; QUEUES],
                master,
                last_closed: None,
            }),
            changed: [const { Condvar::new() }; QUEUES],
        });
        connections
            .places
            .close_idle_of(&connections, idle, Self::close_idle);
        connections
    }

    /// Closes the connections that no thread has used for `idle`.
    pub(super) fn close_idle(&self, idle: Duration) {
        self.places.close_idle(idle);
        self.notify(&self.gate.lock());
    }

    /// Notes that a connection was found closed by the other side.
    pub(super) fn note_closed(&self) {
        self.gate.lock().last_closed = Some(Time::now());
    }

    /// Wakes a thread that waits, if it may enter a connection.
    pub(super) fn notify(&self, gate: &MutexGuard<'_, Gate>) {
        for (queue, waiting) in gate.waiting.iter().enumerate() {
            let (has_priority, is_alone) = (queue < 2, queue % 2 == 0);
            if *waiting > 0 && gate.room(has_priority, is_alone, Time::now()).is_some() {
                self.changed[queue].notify_one();
                return;
            }
        }
    }
}

impl Gate {
    /// Finds room for a thread: the table at the top of [`super`].
    fn room(&self, has_priority: bool, is_alone: bool, now: Time) -> Option<Room> {
        let has_place = self.taken < self.size;
        if !has_priority && self.waiting[0] + self.waiting[1] > 0 {
            return None;
        }
        if is_alone {
            return has_place.then_some(Room::InAPlace);
        }
        // The first connection is for a thread that waits for a place.
        let is_place_awaited = !has_place && self.waiting[0] + self.waiting[2] > 0;
        let keeps_first = is_place_awaited && (!has_priority || self.shared.len() > 1);
        let most = MOST_IN_FLIGHT << u32::from(has_priority);
        let (mut best, mut all) = (None, 0);
        for (number, place) in self.shared.iter().enumerate() {
            let Some(connection) = &place.connection else {
                continue;
            };
            let callers = connection.callers.load(Ordering::Relaxed);
            all += callers;
            let is_kept = number == 0 && keeps_first;
            if is_kept || callers >= most || !connection.is_open_to(self.master.0, self.last_closed)
            {
                continue;
            }
            best = best.max(Some((!connection.is_slow(now), callers, number)));
        }
        match best {
            Some((true, _, number)) if all >= FEW => Some(Room::On(number)),
            _ if has_place => Some(Room::InAPlace),
            best => best.map(|(_, _, number)| Room::On(number)),
        }
    }

    /// Notes that a thread has left a connection that it shared. Returns the place if it was the last one.
    fn left(&mut self, left: &Arc<PoolConnection>) -> Option<TakenPlace<ConnectionPlace>> {
        if left.callers.fetch_sub(1, Ordering::Relaxed) > 1 {
            return None;
        }
        let holds = |place: &TakenPlace<ConnectionPlace>| {
            let connection = place.connection.as_ref();
            connection.is_some_and(|connection| Arc::ptr_eq(connection, left))
        };
        let number = self.shared.iter().position(holds)?;
        Some(self.shared.swap_remove(number))
    }
}

impl<'a> PooledConnection<'a> {
    /// Returns what a thread uses for a request. It has not entered a connection yet.
    pub(crate) fn new(
        connections: &'a Connections,
        request: &Request<'_>,
        has_priority: bool,
    ) -> Self {
        Self {
            connections,
            terms: CallTerms::of(request, has_priority, connections.is_confirmed),
            place: None,
            connection: None,
        }
    }

    /// Enters a connection to the last master, or takes a place for one. Returns the number of that master, and its way.
    ///
    /// # Errors
    ///
    /// Returns [`FailureKind::Unavailable`](crate::error::FailureKind) if there was no room before the wait was over.
    pub(in crate::store) fn enter(
        &mut self,
        deadline: &mut Deadline<'_>,
    ) -> Result<(u64, Arc<Route>), Failure> {
        let mut wait = deadline.phase(Phase::Checkout, deadline.checkout);
        let (connections, queue) = (self.connections, self.terms.queue());
        let mut gate = connections.gate.lock();
        if !self.try_enter(&mut gate, wait.now()) {
            let begun = wait.now();
            let has_entered = loop {
                let Some(slice) = wait.next_look() else {
                    break false;
                };
                gate.waiting[queue] += 1;
                gate = connections.changed[queue].wait_for(gate, slice);
                gate.waiting[queue] -= 1;
                if self.try_enter(&mut gate, wait.now()) {
                    break true;
                }
            };
            connections.counters.waits.record(wait.now().since(begun));
            if !has_entered {
                // Only this thread was notified. If there is room, another may enter.
                connections.notify(&gate);
                return Err(no_place(&wait));
            }
        }
        if gate.waiting != [0; QUEUES] {
            connections.notify(&gate);
        }
        let master = gate.master.clone();
        drop(gate);
        // One more look, so that no request of a call that is over delays others.
        if wait.is_over() {
            self.leave();
            return Err(no_place(&wait));
        }
        deadline.after_checkout(&wait);
        Ok(master)
    }

    /// Enters a connection, or takes a place for one. Returns false if there is no room.
    fn try_enter(&mut self, gate: &mut MutexGuard<'_, Gate>, now: Time) -> bool {
        let may_share = self.terms.key.is_some();
        match gate.room(self.terms.has_priority, !may_share, now) {
            None => return false,
            Some(Room::On(number)) => {
                self.connection.clone_from(&gate.shared[number].connection);
                if let Some(connection) = &self.connection {
                    connection.callers.fetch_add(1, Ordering::Relaxed);
                }
            }
            Some(Room::InAPlace) => {
                let Some(place) = self.connections.places.try_take() else {
                    return false;
                };
                gate.taken += 1;
                self.connections.counters.taken();
                // The usual case of a thread that calls alone: the connection is as it left it. One that must not be used
                // closes when the next one is opened.
                if let Some(connection) = &place.connection {
                    if connection.is_open_to(gate.master.0, gate.last_closed) {
                        connection.callers.store(1, Ordering::Relaxed);
                        self.connection = Some(Arc::clone(connection));
                    }
                }
                if may_share && self.connection.is_some() {
                    gate.shared.push(place);
                } else {
                    self.place = Some(place);
                }
            }
        }
        true
    }

    /// Returns whether the thread has neither an open connection nor a place for one.
    pub(crate) fn has_left(&self) -> bool {
        self.place.is_none() && self.connection.is_none()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    /// Puts an open socket into the place. Other threads may then share it, if the terms allow that.
    pub(crate) fn open(&mut self, socket: Socket, master: u64) {
        let Some(place) = &mut self.place else {
            return;
        };
        let connection = Arc::new(PoolConnection::new(socket, master));
        self.connection = Some(Arc::clone(&connection));
        let stale = place.connection.replace(connection);
        drop(stale);
        let place = self.place.take_if(|_| self.terms.key.is_some());
        if let Some(place) = place {
            let mut gate = self.connections.gate.lock();
            gate.shared.push(place);
            self.connections.notify(&gate);
        }
    }

    /// Notes the way to a later master.
    pub(crate) fn note_master(&self, number: u64, route: &Arc<Route>) {
        let mut gate = self.connections.gate.lock();
        if gate.master.0 < number {
            gate.master = (number, Arc::clone(route));
        }
    }

    /// Leaves the connection. If this thread has it alone, closes it, and keeps the place.
    pub(crate) fn close(&mut self) {
        match &mut self.place {
            Some(place) => (self.connection, place.connection) = (None, None),
            None => self.leave(),
        }
    }

    /// Lets no further thread enter the connection, and leaves it.
    pub(crate) fn retire(&mut self) {
        if let Some(connection) = &self.connection {
            connection.is_retired.store(true, Ordering::Relaxed);
        }
        self.close();
    }

    /// Ends the connection, because an answer was no reply to its request.
    pub(crate) fn distrust(&mut self) {
        if let Some(connection) = &self.connection {
            connection.distrust();
        }
        self.close();
    }

    /// Leaves the connection, and gives its place back if no other thread is on it.
    fn leave(&mut self) {
        let (place, connection) = (self.place.take(), self.connection.take());
        if place.is_none() && connection.is_none() {
            return;
        }
        let mut gate = self.connections.gate.lock();
        let place = match &connection {
            Some(connection) if place.is_none() => gate.left(connection),
            _ => place,
        };
        let mut broken = None;
        if let Some(mut place) = place {
            gate.taken -= 1;
            self.connections.counters.given_back();
            broken = place
                .connection
                .take_if(|connection| !connection.is_usable());
        }
        self.connections.notify(&gate);
        drop(gate);
        // It closes without the mutex.
        drop(broken);
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
