//! Releases that ride: they go out in the same write as a request of this process about another lock.
//!
//! The floor above has the releases, and says which of them go ([`Rides`]). The link that sends the request boards them,
//! and hands their answer back:
//!
//! | step | the link |
//! | --- | --- |
//! | 1 | enters a connection that threads share, and boards the releases that may go with its request |
//! | 2 | writes them ahead of the request, in one piece. So both have their answers at the same time, and no other request for one of their keys goes out in that write |
//! | 3 | behind sentinels, checks that the server is still the master, as it does for the request |
//! | 4 | ends the ride with the answer |
//!
//! | event | the ride ends with |
//! | --- | --- |
//! | its answer has come, whatever became of the request | that answer |
//! | the server refuses it | that failure |
//! | the server does not have its script | that failure, and the next ride carries the text: a caller that has its own answer does not wait for a second one |
//! | the connection fails, or its caller leaves or panics, before the answer has come | a failure of unknown outcome |
//! | behind sentinels, the answer may be that of a replica, or the master has changed | a failure of unknown outcome |
//! | the answer is no reply to it | a failure of unknown outcome, and so for every request on the connection |
//!
//! Only a single server and a Sentinel set carry rides. On a cluster, the releases of one request may belong to several
//! masters, and a slot may move between the two commands: there the renewal thread sends them. A quorum has no shared
//! connections.

use redis::Value;

use crate::error::{Failure, FailureKind, Outcome};
use crate::message::{Reply, Request};
use crate::script::{self, ScriptRef, ScriptSettings};
use crate::store::Answer;
use crate::store::shared::Boarded;

/// The releases of this process that wait for a request to ride with.
pub(crate) trait Rides: Sync {
    /// Returns the releases that go with this request, or `None` if there are none. None of them is about a key of the
    /// request.
    fn board(&self, request: &Request<'_>) -> Option<Box<dyn Ride + '_>>;
}

/// Releases that go with one request. Its drop ends it with a failure of unknown outcome.
pub(crate) trait Ride: Send {
    /// Calls `act` with the request of the releases.
    fn with_request(&self, act: &mut dyn FnMut(&Request<'_>));

    /// Ends the ride.
    fn end(self: Box<Self>, answer: Result<Answer, Failure>);
}

impl Boarded {
    /// Returns a ride whose command is ready.
    pub(super) fn new(ride: &dyn Ride, by: ScriptRef, settings: &ScriptSettings) -> Option<Self> {
        let mut boarded = None;
        ride.with_request(&mut |request| {
            if let Request::Release(batch) = request {
                boarded = Some(Self {
                    command: script::encode(request, by, settings),
                    keys: batch.iter().map(|one| one.key.fingerprint()).collect(),
                    answer: None,
                });
            }
        });
        boarded
    }
}

/// Reads the answer to a ride.
pub(super) fn decode(ride: &dyn Ride, value: Value) -> Result<Reply, Failure> {
    let (mut value, mut reply) = (Some(value), None);
    ride.with_request(&mut |request| {
        reply = value.take().map(|value| script::decode(request, value));
    });
    reply.unwrap_or_else(|| Err(Failure::another_question()))
}

/// Returns the failure of a ride without an answer.
pub(crate) fn unanswered() -> Failure {
    let words = "the request with which the release went out has ended without its answer";
    Failure::plain(FailureKind::Unavailable, Outcome::Unknown, words)
}

/// Returns whether a replica could have given this reply, because no release of it wrote.
pub(super) fn may_come_from_a_replica(reply: &Reply) -> bool {
    match reply {
        // A hand-over follows, and is checked by itself.
        Reply::Each(all) => all
            .iter()
            .flatten()
            .any(|reply| !matches!(reply, Reply::Released | Reply::Contended)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Gone, NotReleased};

    /// The server was demoted in the meantime: it answers from old data, and rejects only writes.
    #[test]
    fn an_answer_that_wrote_nothing_does_not_end_a_release_behind_sentinels() {
        let each = |replies: &[Reply]| Reply::Each(replies.iter().cloned().map(Ok).collect());
        let gone = || Reply::NotOwner(Gone::Removed);
        for (reply, may_be) in [
            (each(&[Reply::Released, Reply::Released]), false),
            (each(&[Reply::Contended]), false),
            (each(&[Reply::Released, gone()]), true),
            (each(&[Reply::NotOwner(Gone::Taken)]), true),
            (Reply::Each(vec![Err(NotReleased::Refused)]), false),
            (gone(), true),
        ] {
            assert_eq!(may_come_from_a_replica(&reply), may_be, "{reply:?}");
        }
    }
}
