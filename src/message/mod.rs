//! Messages: the requests to Redis and the replies to them, as plain data.
//!
//! A message does not depend on the way that it travels. A request takes these steps:
//!
//! 1. `core` and `engine` build a [`Request`].
//! 2. `store` lets `script` encode the call as a Redis command, and sends the command.
//! 3. `script` decodes the answer as a [`Reply`]. An answer that is no reply to this call is an error.
//! 4. `core` and `engine` act on the reply.
//!
//! So a store of a test can take calls and return replies without a server.
//!
//! | module | its content |
//! | --- | --- |
//! | `request` | the requests, and the kinds of lock: how the threads of a process share each |
//! | `reply` | the replies, and grants by message |

mod reply;
mod request;

pub(crate) use reply::{
    Cursor, Gone, GrantMessage, Nonce, NotReleased, Renewed, Reply, Seen, SeenHolder, SeenLimiter,
    SeenWaiter,
};
pub(crate) use request::{
    ALL, AcquireMode, Adopt, Ask, GiveBack, Keep, LockKind, PlainRelease, RateRequest, Renewal,
    Request, Sharing, Verb,
};
