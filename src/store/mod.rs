//! Where calls are carried out.
//!
//! A *node* is one logical Redis that runs one script atomically. A *store* is one or more nodes and the vote over them.
//! The floors above know the store by the trait [`Store`] only. So a store of another topology, or of a test, can take the
//! place of the real one.
//!
//! | module | its subject |
//! | --- | --- |
//! | `node` | one server, and the store of one |
//! | `pool` | the connections that all threads share |
//! | `link` | one connection for calls |
//! | `pubsub` | one connection that listens |
//! | `login` | connecting and logging in, for both |
//! | `route` | the way to a server: its address and time limits |
//! | `errors` | the failures of a connection, and what each means for a request |
//! | `refusal` | the error answers of a server, and what each means |
//! | `cuts` | signs that a server has lost its data |
//! | `memory` | the first question to a server: is it one master, and may it evict locks? |
//! | `socket`, `tls` | bytes, with a time limit for each request and its answer |
//! | `frame` | where an answer ends |

mod cuts;
mod errors;
pub(crate) mod frame;
mod link;
mod login;
mod memory;
pub(crate) mod node;
mod pool;
pub(crate) mod pubsub;
mod refusal;
mod route;
mod socket;
#[cfg(feature = "tls")]
pub(crate) mod tls;

use std::time::Duration;

use crate::clock::Time;
use crate::error::Failure;
use crate::message::{Call, Reply};

/// What a call may take, beside the time limits of connecting and of input and output.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    /// How long to wait for a free connection.
    pub(crate) checkout: Duration,
    /// How long everything may take together.
    pub(crate) whole: Duration,
    /// Whether it goes before those who only ask, as what holders send does.
    pub(crate) has_priority: bool,
    /// Whether the caller has ended the call: the wait for a connection looks at it every [`LOOK_EVERY`].
    pub(crate) is_over: Option<&'a dyn Fn() -> bool>,
}

impl Limits<'_> {
    fn is_over(&self) -> bool {
        self.is_over.is_some_and(|is_over| is_over())
    }
}

/// How often a thread that waits for a pooled connection looks whether its call is over.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The least that a request is given when it comes to be sent, however late that is: below it, no request would
/// get through, and the answer would be "unavailable" where it could have been "granted".
pub(crate) const LEAST: Duration = Duration::from_millis(100);

/// An answer, and how it was come by.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// Whether the request went out twice, because the first connection turned out to be closed: it may have
    /// been carried out twice, or the first time only later.
    pub(crate) resent: bool,
}

/// What a listener hears.
#[derive(Debug)]
pub(crate) enum PubSubEvent<'a> {
    /// This user may hear its channel, and publish nothing on it. SUBSCRIBE is confirmed next.
    Muted(&'a Failure),
    /// SUBSCRIBE was confirmed: from here on no message is missed.
    Subscribed,
    Message {
        channel: &'a str,
        payload: &'a [u8],
    },
    /// Nothing that is a message, for about a second or until now.
    Silence,
}

/// One or more nodes and the vote over them.
pub(crate) trait Store: Send + Sync {
    /// Carries out a call on a pooled connection, blocking the caller.
    fn call(&self, call: &Call<'_>, limits: Limits<'_>) -> Result<Answer, Failure>;

    /// Whether one call can be about several names only where they share a slot.
    fn has_slots(&self) -> bool {
        false
    }

    /// A way to the store outside the pool, for a thread of its own: a thousand waiting threads that use up
    /// the pool cannot delay it. It connects on its first call.
    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection>;

    /// Returns when the store last saw a sign that a server may have lost its data: a connection that the other side
    /// closed or refused, or a server that was started again. The clock's zero where there was none.
    fn last_cut(&self) -> Time {
        Time::from_nanos(0)
    }

    /// Subscribes to the channels and reports what it hears until `hear` returns false.
    ///
    /// # Errors
    ///
    /// Why the subscription failed or broke.
    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure>;
}

/// A connection of one thread's own.
pub(crate) trait DedicatedConnection: Send {
    /// Connects, and makes ready for renewals, unless it is connected.
    ///
    /// # Errors
    ///
    /// Why it could not; the next call tries again.
    fn open(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Carries out a call. Once connected, it takes at most `limit`, or two of the link's round trips where those take
    /// longer.
    fn call(&mut self, call: &Call<'_>, limit: Duration) -> Result<Answer, Failure>;
}
