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
//! | `grant` | grants by message |
//! | `kind` | the kinds of lock, and how the threads of a process share each |
//! | `request` | the requests |
//! | `reply` | the replies |
//! | `raw` | commands that the command line makes itself |

mod grant;
mod kind;
#[cfg(feature = "cli")]
mod raw;
mod reply;
mod request;

pub(crate) use grant::{GrantMessage, Nonce};
pub(crate) use kind::{ALL, LockKind, Sharing};
#[cfg(feature = "cli")]
pub use raw::RawReply;
#[cfg(feature = "cli")]
pub(crate) use raw::{RawAnswers, RawCall};
pub(crate) use reply::{
    Cursor, Gone, NotReleased, Renewed, Reply, Seen, SeenHolder, SeenLimiter, SeenWaiter,
};
pub(crate) use request::{
    AcquireMode, Adopt, Ask, GiveBack, Keep, PlainRelease, RateRequest, Renewal, Request, Verb,
};
