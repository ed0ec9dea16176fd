//! Rules of what observers are shown, and of how they get it.
//!
//! | a read says | observers are shown |
//! | --- | --- |
//! | a leader whose lease goes on | that leader, until its lease may be over, counted as a holder counts its own |
//! | nobody leads, or the value is taken back or not written yet | nobody |
//! | an answer to a request that was sent before that of the last answer | as before |
//! | a leader with a smaller fence than the last one shown | as before, and that leader once a second read shows it after both leases |
//! | nothing, because the request failed | as before |
//!
//! Each receiver has one place for a state. A new state replaces one that was not received yet, for which this side keeps a
//! receiver of its own. But only a send shows whether the other one was dropped, and only if this side has none. So a state that
//! was sent [`UNREAD`] ago is sent again, and if that one is not received for as long, this side drops its receiver, and sends. A
//! receiver cannot be made of a sender, so from then on what was not received stays until it is.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError};

use crate::name::LockKey;
use crate::sys::Time;
use crate::sys::time::{SystemTime, of_wall_us};
use crate::wire::SeenLeader;
use crate::wire::lifetime::valid_until;

/// How often a name is read.
const READ_EVERY: Duration = Duration::from_secs(1);
/// The shortest time between two reads, whatever messages come.
const LEAST_PAUSE: Duration = Duration::from_millis(10);
/// After this time a state is sent again, to see whether the receiver still exists.
pub(super) const UNREAD: Duration = Duration::from_secs(30);

/// The leader of a name: see [`Election`](crate::Election).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// What the leader has published, such as its address.
    pub value: String,
    /// The fence of its [`Leadership`](crate::Leadership).
    pub fence: u64,
    /// When it became the leader, by the server's clock.
    pub since: SystemTime,
}

impl Leader {
    /// Returns the leader of an answer to a request that was sent then, and when its lease may be over.
    pub(super) fn of(seen: Option<SeenLeader>, sent: Time) -> Option<(Self, Time)> {
        let seen = seen?;
        let (fence, value) = seen.value?;
        let since = of_wall_us(fence);
        let leader = Self {
            value,
            fence,
            since,
        };
        Some((leader, valid_until(sent, seen.left)))
    }
}

/// A name that threads of this process observe.
pub(super) struct Observed {
    pub(super) key: LockKey,
    /// Who is shown, and until when.
    shown: Option<(Leader, Time)>,
    /// Counts the changes.
    version: u64,
    /// The fence of the last leader shown.
    last_fence: u64,
    /// The fence of a leader that has a smaller one, and when it is shown.
    doubted: Option<(u64, Time)>,
    /// When the request of the last answer was sent.
    sent: Time,
    /// When the last read began.
    begun: Time,
    pub(super) reads_at: Time,
    receivers: Vec<Slot>,
    /// Whether the log has the warning that it cannot be read.
    pub(super) has_failed: bool,
}

/// The place for one receiver.
struct Slot {
    sender: Sender<Option<Leader>>,
    /// Takes out what was not received.
    empties: Option<Receiver<Option<Leader>>>,
    version: u64,
    /// When a state was put into the empty place.
    since: Time,
}

impl Observed {
    pub(super) fn new(key: LockKey) -> Self {
        Self {
            key,
            shown: None,
            version: 0,
            last_fence: 0,
            doubted: None,
            sent: Time::from_nanos(0),
            begun: Time::from_nanos(0),
            reads_at: Time::from_nanos(0),
            receivers: Vec::new(),
            has_failed: false,
        }
    }

    /// Returns when something is due: the next read, or the end of the lease that is shown.
    pub(super) fn due(&self) -> Time {
        let until = self.shown.as_ref().map(|(_, until)| *until);
        until.map_or(self.reads_at, |until| until.min(self.reads_at))
    }

    /// Returns how long the lease that is shown still lasts.
    pub(super) fn left(&self, now: Time) -> Option<Duration> {
        self.shown.as_ref().map(|(_, until)| until.since(now))
    }

    /// Plans the next read, after an answer or a failure. For a short lease it comes earlier.
    pub(super) fn plan(&mut self, now: Time) {
        let left = self.left(now).unwrap_or(READ_EVERY * 2);
        let pause = (left / 2).clamp(LEAST_PAUSE, READ_EVERY);
        self.reads_at = self.reads_at.min(now + pause);
    }

    /// Notes that a read is sent. Until it is answered, [`Self::read_soon`] plans another one.
    pub(super) fn begin_to_read(&mut self, now: Time) {
        (self.begun, self.reads_at) = (now, now + READ_EVERY);
    }

    /// Plans a read because of a message.
    pub(super) fn read_soon(&mut self, now: Time) {
        let soon = now.max(self.begun + LEAST_PAUSE);
        self.reads_at = self.reads_at.min(soon);
    }

    /// Applies an answer to a request that was sent then.
    pub(super) fn read(&mut self, sent: Time, now: Time, seen: Option<SeenLeader>) {
        if sent < self.sent {
            return;
        }
        self.sent = sent;
        let read = Leader::of(seen, sent).filter(|(_, until)| *until > now);
        let smaller = read.as_ref().filter(|(it, _)| it.fence < self.last_fence);
        if let Some((leader, until)) = smaller {
            // A demoted master shows a leader of the past until that lease is over, and the leader shown may live on.
            let shown_until = self.shown.as_ref().map_or(*until, |(_, until)| *until);
            let begun = self.doubted.filter(|(fence, _)| *fence == leader.fence);
            let (fence, from) = begun.unwrap_or((leader.fence, shown_until.max(*until)));
            self.doubted = Some((fence, from));
            if sent < from {
                return;
            }
        }
        self.doubted = None;
        self.show(read);
    }

    fn show(&mut self, read: Option<(Leader, Time)>) {
        let leader = |of: &Option<(Leader, Time)>| of.as_ref().map(|(leader, _)| leader.clone());
        if leader(&self.shown) != leader(&read) {
            self.version += 1;
        }
        if let Some((leader, _)) = &read {
            self.last_fence = leader.fence;
        }
        self.shown = read;
    }

    /// Adds a receiver.
    pub(super) fn add(&mut self, now: Time) -> Receiver<Option<Leader>> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.receivers.push(Slot {
            sender,
            empties: Some(receiver.clone()),
            version: u64::MAX,
            since: now,
        });
        receiver
    }

    /// Ends what is shown if its lease may be over, and sends each receiver what it has not received yet. Returns whether there is
    /// a receiver.
    pub(super) fn tell(&mut self, now: Time) -> bool {
        if self.shown.as_ref().is_some_and(|(_, until)| *until <= now) {
            self.show(None);
        }
        let leader = self.shown.as_ref().map(|(leader, _)| leader);
        let version = self.version;
        self.receivers
            .retain_mut(|slot| slot.put(leader, version, now));
        !self.receivers.is_empty()
    }
}

impl Slot {
    /// Puts a state there, if it is new, or if the last one is old. Returns false if the receiver was dropped.
    fn put(&mut self, leader: Option<&Leader>, version: u64, now: Time) -> bool {
        let (is_new, is_old) = (self.version != version, now.since(self.since) >= UNREAD);
        if !is_new && !is_old {
            return true;
        }
        if self.sender.is_empty() {
            self.since = now;
        } else if is_old {
            self.empties = None;
        } else if let Some(empties) = &self.empties {
            empties.try_recv().ok();
        }
        match self.sender.try_send(leader.cloned()) {
            Ok(()) => {
                self.version = version;
                true
            }
            Err(TrySendError::Full(_)) => true,
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(1 << 50);
    const LEASE: Duration = Duration::from_secs(10);

    fn observed() -> Observed {
        Observed::new(LockKey::new("", "n").expect("a name"))
    }

    fn at(seconds: u64) -> Time {
        START + Duration::from_secs(seconds)
    }

    /// Reads a leader with this fence, and a lease, at once.
    fn read(observed: &mut Observed, at: Time, fence: Option<u64>) {
        read_for(LEASE, observed, at, fence);
    }

    fn read_for(left: Duration, observed: &mut Observed, at: Time, fence: Option<u64>) {
        let seen = fence.map(|fence| SeenLeader {
            owner: "o".to_owned(),
            left,
            number: 1,
            value: Some((fence, format!("v{fence}"))),
        });
        observed.read(at, at, seen);
        observed.tell(at);
    }

    fn received(from: &Receiver<Option<Leader>>) -> Vec<Option<u64>> {
        let fences = from.try_iter();
        fences
            .map(|state| state.map(|leader| leader.fence))
            .collect()
    }

    #[test]
    fn a_leader_is_shown_until_its_lease_may_be_over() {
        let mut observed = observed();
        let receiver = observed.add(START);
        read(&mut observed, at(0), Some(5));
        assert_eq!(received(&receiver), [Some(5)]);
        // The answer came late, so that less is left than the server has said.
        read(&mut observed, at(3), Some(5));
        observed.tell(at(12));
        assert_eq!(received(&receiver), []);
        observed.tell(at(13));
        assert_eq!(received(&receiver), [None]);
        let seen = SeenLeader {
            owner: "o".to_owned(),
            left: LEASE,
            number: 1,
            value: Some((5, "v".to_owned())),
        };
        observed.read(at(14), at(24), Some(seen));
        observed.tell(at(24));
        assert_eq!(received(&receiver), []);
    }

    #[test]
    fn an_answer_to_an_earlier_request_changes_nothing() {
        let mut observed = observed();
        let receiver = observed.add(START);
        read(&mut observed, at(2), Some(5));
        read(&mut observed, at(1), None);
        assert_eq!(received(&receiver), [Some(5)]);
    }

    #[test]
    fn a_smaller_fence_is_shown_when_both_leases_are_over() {
        let mut observed = observed();
        let receiver = observed.add(START);
        read(&mut observed, at(0), Some(5));
        for second in 1..=10 {
            read(&mut observed, at(second), Some(4));
        }
        assert_eq!(received(&receiver), [None]);
        // Another one begins anew.
        read(&mut observed, at(11), Some(3));
        read(&mut observed, at(20), Some(3));
        assert_eq!(received(&receiver), []);
        read(&mut observed, at(21), Some(3));
        assert_eq!(received(&receiver), [Some(3)]);
        read(&mut observed, at(22), Some(4));
        assert_eq!(received(&receiver), [Some(4)]);
        // A doubt ends with an answer that nobody leads.
        read(&mut observed, at(23), Some(2));
        read(&mut observed, at(24), None);
        read(&mut observed, at(40), Some(2));
        assert_eq!(received(&receiver), [None]);
    }

    #[test]
    fn a_place_has_the_latest_state_and_a_dropped_receiver_is_noticed() {
        let mut observed = observed();
        let (receiver, dropped) = (observed.add(START), observed.add(START));
        for second in 0..20 {
            read_for(LEASE * 60, &mut observed, at(second), Some(second));
        }
        assert_eq!(received(&receiver), [Some(19)]);
        drop(dropped);
        assert!(observed.tell(at(21)));
        assert_eq!(observed.receivers.len(), 2);
        // Nobody has received its state for a while.
        assert!(observed.tell(at(30)));
        assert_eq!(observed.receivers.len(), 1);
        // The other one has received all. So the state comes again.
        assert!(observed.tell(at(49)));
        assert_eq!(received(&receiver), [Some(19)]);
        // It is alive, and gets an older state first.
        assert!(observed.tell(at(79)) && observed.tell(at(109)));
        read_for(LEASE * 60, &mut observed, at(110), Some(110));
        assert_eq!(received(&receiver), [Some(19)]);
        observed.tell(at(111));
        assert_eq!(received(&receiver), [Some(110)]);
        drop(receiver);
        assert!(!observed.tell(at(141)) || !observed.tell(at(171)));
    }

    #[test]
    fn messages_make_few_reads_and_short_leases_more() {
        let mut observed = observed();
        let _receiver = observed.add(START);
        observed.begin_to_read(at(0));
        read(&mut observed, at(0), Some(5));
        observed.plan(at(0));
        assert_eq!(observed.reads_at, at(1));
        observed.read_soon(at(0));
        assert_eq!(observed.reads_at, at(0) + LEAST_PAUSE);
        // A message that comes while the read is on its way makes another one.
        observed.begin_to_read(at(0) + LEAST_PAUSE);
        observed.read_soon(at(0) + LEAST_PAUSE);
        observed.plan(at(1));
        assert_eq!(observed.reads_at, at(0) + LEAST_PAUSE * 2);
        observed.begin_to_read(at(9));
        observed.plan(at(9));
        let until = valid_until(at(0), LEASE);
        assert_eq!(observed.reads_at, at(9) + until.since(at(9)) / 2);
        assert_eq!(observed.due(), observed.reads_at);
        observed.begin_to_read(at(10));
        assert_eq!(observed.due(), until);
    }
}
