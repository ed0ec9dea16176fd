//! The memory of a name beside its queue: the last replies about a lock that this process does not hold, and the number of
//! threads that need the entry.

use std::time::Duration;

use crate::error::Failure;
use crate::sys::{Arc, Time};

/// The last reply about a lock that this process does not hold.
#[derive(Clone, Debug, Default)]
pub(crate) enum LastReply {
    /// No reply yet, or none that may still be true.
    #[default]
    NoAnswer,
    /// This owner holds the lock.
    Held(Arc<str>),
    /// The request failed.
    Failed(Failure),
}

/// The notes of one name. Most names are only held, and have none.
#[derive(Debug, Default)]
pub(crate) struct LockNotes(Option<Box<LockNotesInfo>>);

#[derive(Debug, Default)]
struct LockNotesInfo {
    /// The last reply.
    last: LastReply,
    /// The time and the holder of the last reply that the lock is held.
    last_held: Option<(Time, Arc<str>)>,
    /// The number of [`pin`](crate::engine::queue::names::Names::pin) calls without their [`unpin`](crate::engine::queue::names::Names::unpin).
    pins: u32,
    /// The time of the last notice that `force_release` has removed an owner for which this process had no lease.
    forced_release: Option<Time>,
    /// The time of the last warning of a long wait.
    warned_of_wait: Option<Time>,
}

impl LockNotes {
    /// Notes a call of [`pin`](crate::engine::queue::names::Names::pin).
    pub(crate) fn pin(&mut self) {
        self.0.get_or_insert_default().pins += 1;
    }

    /// Ends a pin.
    pub(crate) fn unpin(&mut self) {
        if let Some(info) = &mut self.0 {
            info.pins -= 1;
        }
    }

    /// Returns whether the entry must stay in the table.
    pub(crate) fn is_pinned(&self) -> bool {
        self.0.as_ref().is_some_and(|info| info.pins > 0)
    }

    /// Returns the last reply about the lock.
    pub(crate) fn last(&self) -> &LastReply {
        self.0
            .as_ref()
            .map_or(&LastReply::NoAnswer, |info| &info.last)
    }

    /// Forgets the last reply, because it may not be true any more.
    pub(crate) fn forget_last_reply(&mut self) {
        if let Some(info) = &mut self.0 {
            info.last = LastReply::NoAnswer;
        }
    }

    pub(crate) fn note_last_reply(&mut self, last: LastReply) {
        self.0.get_or_insert_default().last = last;
    }

    /// Notes the reply, at `now`, that this owner holds the lock.
    pub(crate) fn note_held(&mut self, now: Time, holder: &Arc<str>) {
        let info = self.0.get_or_insert_default();
        info.last = LastReply::Held(Arc::clone(holder));
        info.last_held = Some((now, Arc::clone(holder)));
    }

    /// Returns the holder of the last "held" reply, if that reply came at `since` or later.
    pub(crate) fn holder_since(&self, since: Time) -> Option<Arc<str>> {
        let (at, holder) = self.0.as_ref()?.last_held.as_ref()?;
        (*at >= since).then(|| Arc::clone(holder))
    }

    /// Notes, at `now`, that `force_release` has removed an owner for which this process has no lease.
    pub(crate) fn note_forced_release(&mut self, now: Time) {
        self.0.get_or_insert_default().forced_release = Some(now);
    }

    /// Returns whether the lease that begins now, and was asked for at `sent`, may have been released by force already.
    pub(crate) fn may_have_been_released_by_force(&self, sent: Time) -> bool {
        let noted = self.0.as_ref().and_then(|info| info.forced_release);
        noted.is_some_and(|noted| noted >= sent)
    }

    /// Notes that a call warns of its long wait at `now`. Returns when it may do so, if another has within `limit`.
    pub(crate) fn begin_warning(&mut self, now: Time, limit: Duration) -> Result<(), Time> {
        let last = &mut self.0.get_or_insert_default().warned_of_wait;
        match *last {
            Some(last) if now < last + limit => Err(last + limit),
            _ => {
                *last = Some(now);
                Ok(())
            }
        }
    }

    /// Forgets all replies, because this process holds the lock now and no thread waits.
    pub(crate) fn forget(&mut self) {
        if !self.is_pinned() {
            self.0 = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_wait_for_one_name_warn_once_in_a_while() {
        let limit = Duration::from_secs(30);
        let first = Time::from_nanos(1 << 50);
        let next = first + limit;
        let mut notes = LockNotes::default();
        assert_eq!(notes.begin_warning(first, limit), Ok(()));
        let moment = Duration::from_nanos(1);
        for at in [first, first + moment, next - moment] {
            assert_eq!(notes.begin_warning(at, limit), Err(next));
        }
        assert_eq!(notes.begin_warning(next, limit), Ok(()));
    }
}
