//! A link of the pool: a caller's way to a connection that it shares, or has for itself.

use std::time::Duration;

use redis::Value;

use super::Link;
use crate::error::Failure;
use crate::message::Request;
use crate::script::Command;
use crate::store::Limits;
use crate::store::places::Wait;
use crate::store::route::{Budget, Route, TimeSpan};
use crate::store::sentinel::Discovery;
use crate::store::shared::{CallTerms, Connections, Entered, Member, Seat};
use crate::store::socket::{Socket, TransportError};
use crate::sync::Arc;

/// An open connection.
pub(super) enum Open<'a> {
    /// One that no other thread uses.
    Own(Socket),
    /// One that other threads use too, and the limits of this caller.
    Shared(Member, Limits<'a>),
}

/// The pool of a caller's link.
pub(super) struct Pool<'a> {
    connections: Arc<Connections>,
    terms: CallTerms,
    limits: Limits<'a>,
    /// The place for a connection, unless the caller has entered one.
    seat: Option<Box<Seat>>,
}

impl Open<'_> {
    /// Sends a command, after ASKING if `is_asking`, and returns its answer.
    pub(super) fn request(
        &mut self,
        command: &Command,
        is_asking: bool,
        time: TimeSpan,
    ) -> Result<Value, TransportError> {
        match self {
            Self::Own(socket) if is_asking => ask_for_moving_slot(socket, command, time.limit),
            Self::Own(socket) => socket.request(command, time.limit),
            Self::Shared(member, limits) => {
                member.request(command, is_asking, time, &|| limits.is_over())
            }
        }
    }

    /// Ends the use of the connection for later requests.
    pub(super) fn retire(self) {
        if let Self::Shared(member, _) = self {
            member.retire();
        }
    }

    /// Ends the connection, because an answer was no reply to its request.
    pub(super) fn distrust(self) {
        if let Self::Shared(member, _) = self {
            member.distrust();
        }
    }
}

impl Pool<'_> {
    /// Notes that the other side has closed the connection. If other threads share it, one of them has noted that.
    pub(super) fn note_cut(&self) {
        if let Some(seat) = &self.seat {
            seat.note_cut();
        }
    }

    /// Notes the way to a later master.
    pub(super) fn note_master(&self, number: u64, route: &Arc<Route>) {
        self.connections.note_master(number, route);
    }
}

impl<'a> Link<'a> {
    /// Does `work` with a link of the pool. Waits for a connection, or a place for one, within `wait`.
    pub(in crate::store) fn of_pool<T>(
        (connections, discovery): (&Arc<Connections>, Option<&Arc<Discovery>>),
        request: &Request<'_>,
        (limits, wait): (Limits<'a>, &Wait<'_>),
        work: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut link = Self::new(connections.master(), discovery.cloned());
        let is_confirmed = link.route.replicas > 0;
        link.pool = Some(Pool {
            connections: Arc::clone(connections),
            terms: CallTerms::of(request, limits.has_priority, is_confirmed),
            limits,
            seat: None,
        });
        link.enter(wait)?;
        let done = work(&mut link);
        link.leave();
        done
    }

    /// Enters a connection of the pool, or takes a place for one.
    pub(super) fn enter(&mut self, wait: &Wait<'_>) -> Result<(), Failure> {
        let Some(pool) = &mut self.pool else {
            return Ok(());
        };
        match pool.connections.enter(pool.terms, self.master, wait)? {
            Entered::Member(member) => self.open = Some(Open::Shared(member, pool.limits)),
            Entered::Seat(mut seat) => {
                let socket = seat.take_socket(self.master);
                pool.seat = Some(Box::new(seat));
                self.open = socket.map(|socket| self.share(socket));
            }
        }
        Ok(())
    }

    /// Enters a connection again, if the one that it had entered has ended. The wait counts from when the request was
    /// first sent.
    pub(super) fn enter_again(&mut self, budget: &Budget) -> Result<(), Failure> {
        let has_ended = self.open.is_none();
        let pool = self.pool.as_ref();
        let Some(pool) = pool.filter(|pool| has_ended && pool.seat.is_none()) else {
            return Ok(());
        };
        let limits = pool.limits;
        let left = limits.checkout.saturating_sub(budget.started.elapsed());
        self.enter(&Wait::new(budget.left(left), &|| limits.is_over()))
    }

    /// Lets other callers share an open connection, if the pool and the call allow it.
    pub(super) fn share(&mut self, socket: Socket) -> Open<'a> {
        let Some(pool) = &mut self.pool else {
            return Open::Own(socket);
        };
        let Some(seat) = &mut pool.seat else {
            return Open::Own(socket);
        };
        match seat.share(socket, self.master, pool.terms) {
            Ok(member) => {
                // Its place goes with the connection.
                pool.seat = None;
                Open::Shared(member, pool.limits)
            }
            Err(socket) => Open::Own(socket),
        }
    }

    /// Gives a connection that no other caller uses back to its place.
    fn leave(self) {
        let seat = self.pool.and_then(|pool| pool.seat);
        if let (Some(Open::Own(socket)), Some(seat)) = (self.open, seat) {
            seat.keep(socket, self.master);
        }
    }
}

/// Sends a command after ASKING, in one write.
fn ask_for_moving_slot(
    open: &mut Socket,
    command: &Command,
    limit: Duration,
) -> Result<Value, TransportError> {
    let mut value = Value::Nil;
    let heard = |_, answer| -> Result<(), std::convert::Infallible> {
        value = answer;
        Ok(())
    };
    match open.requests(&[Command::new("ASKING"), command.clone()], limit, heard)? {
        // The answer to ASKING is of no interest: without its effect, the command is redirected.
        Ok(()) => Ok(value),
        Err(never) => match never {},
    }
}
