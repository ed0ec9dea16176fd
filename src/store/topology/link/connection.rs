//! The connection of a link: one that it has alone, or one of the pool.

use redis::Value;

use crate::script::Command;
use crate::store::Deadline;
use crate::store::server::shared::PooledConnection;
use crate::store::transport::socket::{Socket, TransportError};

/// The connection of a link. It closes after a fault.
pub(super) enum LinkConnection<'a> {
    /// That of one thread. `None` before it is open.
    Own(Option<Socket>),
    Pooled(PooledConnection<'a>),
}

impl<'a> LinkConnection<'a> {
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Own(socket) => socket.is_some(),
            Self::Pooled(pooled) => pooled.is_open(),
        }
    }

    /// Uses a socket to this master from now on.
    pub(super) fn open(&mut self, socket: Socket, master: u64) {
        match self {
            Self::Own(own) => *own = Some(socket),
            Self::Pooled(pooled) => pooled.open(socket, master),
        }
    }

    /// Sends a command, and returns its answer. On a connection of the pool, ASKING goes before it if `is_asking`.
    pub(super) fn request(
        &mut self,
        command: &Command,
        is_asking: bool,
        deadline: Deadline<'_>,
    ) -> Result<Value, TransportError> {
        match self {
            Self::Own(own) => {
                let mut socket = own.take().ok_or(TransportError::NotSent)?;
                let answer = socket.request(command, deadline)?;
                *own = Some(socket);
                Ok(answer)
            }
            Self::Pooled(pooled) => {
                let answer = pooled.request(command, is_asking, deadline);
                answer.inspect_err(|_| pooled.close())
            }
        }
    }

    /// Ends the use of the connection. `how` says what that means for other threads on a connection of the pool.
    pub(super) fn end(&mut self, how: fn(&mut PooledConnection<'a>)) {
        match self {
            Self::Own(own) => *own = None,
            Self::Pooled(pooled) => how(pooled),
        }
    }
}
