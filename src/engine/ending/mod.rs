//! How a lock is given up in Redis, and how that is repeated until it is sure. `lease/release.rs` has the steps of a thread that
//! ends a lease, and [`tasks`] the tasks that the renewal thread sends.
//!
//! A release task is the one place where an owner waits until Redis has confirmed its end: the server, or each node of a quorum.
//!
//! The guard's thread or the renewal thread sends the first request. The renewal thread repeats a request that failed until
//! Redis must have dropped the key. The key may outlast the lease of the thread that ends it, because a lease can be
//! extended, so the task gets from its owner the time until which Redis may keep it ([`EndedOwner::key_gone_at`]).
//!
//! | request | answer | next |
//! | --- | --- | --- |
//! | release | released, not owner | executed |
//! | release, keep | others may wait | hand over, or keep and wake the first waiter, at once |
//! | hand over, keep, withdraw | released, not owner | executed |
//! | keep | failed until the end of `min_hold` | release; hand over if others may wait, or there are fences to give back |
//! | any | failed | the renewal thread sends it again, at once and then after growing pauses, until Redis must have dropped the key; then the task is given up |
//!
//! "Executed" is not final in two cases. In both the renewal thread asks again, after growing pauses:
//!
//! | the owner | the thread | until |
//! | --- | --- | --- |
//! | is uncertain: Redis may execute an earlier acquire or take-over of unknown outcome after the release | withdraws it again | a lease has passed since that request was sent |
//! | is left at nodes of a quorum: a majority has confirmed the end, and these nodes have not | releases it again, or keeps the lock again until the end of `min_hold`; the quorum asks only these nodes, and skips those that are down | all of them have confirmed it, or must have dropped the key |
//!
//! An owner that a quorum has withdrawn itself begins in the last row. The pauses there are at most a second, so that a
//! node gets the release soon after it is up again.

pub(crate) mod tasks;

use std::time::Duration;

use crate::engine::attempt::EndedOwner;
use crate::sys::random::jittered;
use crate::sys::{Arc, Rng, Time};
use crate::wire::{End, Gone, How, Reply};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause while the server cannot be reached. After an answer, pauses grow further, to a sixtieth of the
/// time for which the key may live.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often the renewal thread looks for owners that are left at nodes after a release.
const LEFT_OWNERS_EVERY: Duration = Duration::from_millis(100);

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send [`ReleaseTask::end`].
    Send,
    /// Send [`ReleaseTask::end`], but not before this time.
    Later(Time),
    /// End the task.
    Done,
}

/// The end of one owner in Redis.
#[derive(Debug)]
pub(crate) struct ReleaseTask {
    left: EndedOwner,
    /// When Redis must have dropped the key.
    key_gone_at: Time,
    /// Until when the lock is kept from all processes (`min_hold`).
    min_hold_until: Option<Time>,
    how: How,
    pause: Duration,
    longest_pause: Duration,
    /// Whether an earlier request may have had its effect, which a later one then finds.
    repeated: bool,
    executed: bool,
    is_left_at_nodes: bool,
    gone: Option<Gone>,
}

impl ReleaseTask {
    /// Makes a task that ends a lease. Its key lives for `lease`, or longer if the lease was extended. With
    /// `min_hold_until`, the task keeps the lock from all processes until then.
    pub(crate) fn of_lease(
        ended: EndedOwner,
        contended: bool,
        min_hold_until: Option<Time>,
        now: Time,
        lease: Duration,
    ) -> Self {
        let hands_over = ended.give_back.is_some() || contended;
        let task = Self::of_ended_owner(ended, now, lease);
        Self {
            how: if hands_over {
                How::HandOver
            } else {
                How::Release
            },
            key_gone_at: task.key_gone_at.max(min_hold_until.unwrap_or(now)),
            min_hold_until,
            ..task
        }
    }

    /// Makes a task that ends an owner on which no guard relies: of an attempt, or of a lease that was lost or taken
    /// over.
    pub(crate) fn of_ended_owner(mut left: EndedOwner, now: Time, lease: Duration) -> Self {
        left.uncertain_until = left.uncertain_until.filter(|until| *until > now);
        // A request that takes the lock at the last uncertain moment takes it for a lease from then.
        let key_gone_at = left.key_gone_at.unwrap_or(now);
        let key_gone_at = (left.uncertain_until.unwrap_or(now) + lease).max(key_gone_at);
        Self {
            // With unused fences, the owner had a lease. While the owner is uncertain, withdrawals follow.
            how: match left.give_back {
                Some(_) => How::HandOver,
                None => How::Withdraw,
            },
            left,
            key_gone_at,
            min_hold_until: None,
            pause: FIRST_PAUSE,
            longest_pause: LONGEST_PAUSE.max(key_gone_at.since(now) / 60),
            repeated: false,
            executed: false,
            is_left_at_nodes: false,
            gone: None,
        }
    }

    /// Makes a task for an owner that a quorum has ended, and that is left at some nodes.
    pub(crate) fn of_left_owner(owner: Arc<str>, units: u32, until: Time, now: Time) -> Self {
        let owner = EndedOwner {
            key_gone_at: Some(until),
            ..EndedOwner::new(owner, units)
        };
        Self {
            how: How::Release,
            is_left_at_nodes: true,
            repeated: true,
            executed: true,
            ..Self::of_ended_owner(owner, now, Duration::ZERO)
        }
    }

    /// Returns when a task is due that is not held back.
    pub(crate) fn due(&self, now: Time) -> Time {
        if !self.is_left_at_nodes() {
            return now;
        }
        // The answers that settle the rest are most likely on their way. Such tasks are due together, so that the thread
        // seldom wakes for them.
        let every = LEFT_OWNERS_EVERY.as_nanos() as u64;
        Time::from_nanos((now.as_nanos() / every + 2) * every)
    }

    /// Returns whether a quorum has ended the owner, and some of its nodes may still have it.
    pub(crate) fn is_left_at_nodes(&self) -> bool {
        self.is_left_at_nodes
    }

    /// Returns the owner that the task ends.
    pub(crate) fn owner(&self) -> &Arc<str> {
        &self.left.owner
    }

    /// Returns when Redis must have dropped the key, if the task was sent before, or `None`.
    pub(crate) fn repeated_until(&self) -> Option<Time> {
        self.repeated.then_some(self.key_gone_at)
    }

    /// Returns the end to send at `now`.
    pub(crate) fn end(&self, now: Time) -> End {
        let kept_until = self.min_hold_until.filter(|_| self.how != How::Withdraw);
        End {
            how: self.how,
            kept_for: kept_until.map_or(Duration::ZERO, |until| until.since(now)),
            // Once the end was executed, another owner may have got the same fences.
            give_back: (self.left.give_back).filter(|_| self.how == How::HandOver),
            ..self.left.end()
        }
    }

    /// Returns whether Redis has the lock for the owner, as far as this process knows: the owner had a lease, and no request
    /// of the task has had an effect or has failed.
    pub(crate) fn is_unsent(&self) -> bool {
        !self.repeated && self.how != How::Withdraw
    }

    /// Returns the owner of a lease for which no request was sent.
    pub(crate) fn unsent(self) -> EndedOwner {
        debug_assert!(!self.repeated && !self.executed);
        EndedOwner {
            key_gone_at: Some(self.key_gone_at),
            ..self.left
        }
    }

    /// Returns whether Redis has executed a request that ends the owner. Any further request is only a precaution.
    pub(crate) fn is_executed(&self) -> bool {
        self.executed
    }

    /// Returns why the owner did not hold the lock, if the first reply was that it did not.
    pub(crate) fn gone(&self) -> Option<Gone> {
        self.gone
    }

    /// Applies a reply, and returns the next thing to do. `left_until`: until when nodes of a quorum may still have the owner.
    pub(crate) fn replied(
        &mut self,
        now: Time,
        reply: &Reply,
        resent: bool,
        left_until: Option<Time>,
    ) -> Next {
        match reply {
            Reply::Contended if self.how == How::Release => {
                self.how = How::HandOver;
                // A release that finds waiters changes nothing. But a keep has had its effect, and its time may be over
                // before the next request.
                self.repeated |= self.min_hold_until.is_some();
                return Next::Send;
            }
            Reply::NotOwner(gone) if !self.repeated && !resent => self.gone = Some(*gone),
            _ => {}
        }
        self.executed = true;
        self.repeated = true;
        self.is_left_at_nodes = left_until.is_some();
        if let Some(until) = left_until {
            self.how = How::Release;
            self.key_gone_at = until;
            return Next::Later(now + self.next_pause().min(LONGEST_PAUSE));
        }
        let Some(uncertain_until) = self
            .left
            .uncertain_until
            .filter(|uncertain_until| *uncertain_until > now)
        else {
            return Next::Done;
        };
        // A request that Redis executes later may take the lock, and may also queue for it.
        self.how = How::Withdraw;
        Next::Later((now + self.next_pause()).min(uncertain_until))
    }

    /// Notes a failed request. `is_transient`: the server could only not be reached, so the next try comes soon.
    pub(crate) fn failed(&mut self, now: Time, is_transient: bool, rng: &dyn Rng) -> Next {
        self.repeated = true;
        if now >= self.key_gone_at {
            return Next::Done;
        }
        let mut pause = self.next_pause();
        if is_transient {
            pause = pause.min(LONGEST_PAUSE);
        }
        Next::Later(now + jittered(rng, pause))
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(self.longest_pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Machine;
    use crate::wire::GiveBack;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn owner() -> Arc<str> {
        "lh1:u:l".into()
    }

    /// Returns how the owner ends, unless the lock stays taken for a while.
    fn plain(release_task: &ReleaseTask, now: Time) -> Option<How> {
        let end = release_task.end(now);
        end.kept_for.is_zero().then_some(end.how)
    }

    fn ended_owner(uncertain_until: Option<Time>) -> EndedOwner {
        EndedOwner {
            uncertain_until,
            ..EndedOwner::new(owner(), 1)
        }
    }

    #[test]
    fn an_uncontended_release_is_one_request() {
        let mut release_task = ReleaseTask::of_lease(ended_owner(None), false, None, at(0), LEASE);
        assert_eq!(plain(&release_task, at(0)), Some(How::Release));
        assert_eq!(
            release_task.replied(at(1), &Reply::Released, false, None),
            Next::Done
        );
        assert_eq!(release_task.gone(), None);
    }

    #[test]
    fn a_release_that_finds_waiters_hands_over() {
        let mut release_task = ReleaseTask::of_lease(ended_owner(None), false, None, at(0), LEASE);
        assert_eq!(
            release_task.replied(at(1), &Reply::Contended, false, None),
            Next::Send
        );
        assert_eq!(plain(&release_task, at(1)), Some(How::HandOver));
        assert!(!release_task.is_executed());
        assert!(release_task.is_unsent());
        assert_eq!(
            release_task.replied(at(2), &Reply::HandedOver, false, None),
            Next::Done
        );
        assert!(!release_task.is_unsent());
    }

    #[test]
    fn only_the_release_of_a_lease_is_unsent_until_it_is_answered_or_fails() {
        let lease = || ReleaseTask::of_lease(ended_owner(None), true, None, at(0), LEASE);
        let mut failed = lease();
        assert!(failed.is_unsent());
        failed.failed(at(1), true, &Machine::default());
        assert!(!failed.is_unsent());
        assert!(!ReleaseTask::of_ended_owner(ended_owner(None), at(0), LEASE).is_unsent());
        assert!(!ReleaseTask::of_left_owner(owner(), 1, at(9), at(0)).is_unsent());
    }

    #[test]
    fn not_there_is_a_loss_only_on_the_first_answer() {
        let gone = Reply::NotOwner(Gone::Taken);
        let mut release_task = ReleaseTask::of_lease(ended_owner(None), true, None, at(0), LEASE);
        release_task.replied(at(1), &gone, false, None);
        assert_eq!(release_task.gone(), Some(Gone::Taken));

        let mut release_task = ReleaseTask::of_lease(ended_owner(None), true, None, at(0), LEASE);
        release_task.failed(at(1), true, &Machine::default());
        release_task.replied(at(2), &gone, false, None);
        assert_eq!(release_task.gone(), None);

        let mut release_task = ReleaseTask::of_lease(ended_owner(None), true, None, at(0), LEASE);
        release_task.replied(at(1), &gone, true, None);
        assert_eq!(release_task.gone(), None);
    }

    #[test]
    fn an_uncertain_owner_is_withdrawn_until_a_lease_has_passed() {
        let mut release_task =
            ReleaseTask::of_ended_owner(ended_owner(Some(at(0) + LEASE)), at(0), LEASE);
        let mut now = at(0);
        let mut requests = 0;
        loop {
            requests += 1;
            match release_task.replied(now, &Reply::NotOwner(Gone::Removed), false, None) {
                Next::Later(later) => {
                    assert!(later > now && later <= at(0) + LEASE);
                    now = later;
                }
                Next::Done => break,
                Next::Send => panic!("nothing to hand over"),
            }
            assert!(release_task.is_executed());
        }
        assert_eq!(now, at(0) + LEASE, "given up early");
        assert!((10..60).contains(&requests), "{requests} requests");
    }

    #[test]
    fn an_owner_that_is_left_at_a_node_is_released_every_second_until_it_is_not() {
        let until = at(0) + LEASE * 20;
        let after_a_release = ReleaseTask::of_lease(ended_owner(None), true, None, at(0), LEASE);
        let after_an_acquire = ReleaseTask::of_left_owner(owner(), 1, until, at(0));
        assert!(after_an_acquire.is_executed());
        assert_eq!(plain(&after_an_acquire, at(0)), Some(How::Release));
        assert_eq!(after_an_acquire.repeated_until(), Some(until));
        let left = [&after_a_release, &after_an_acquire].map(ReleaseTask::is_left_at_nodes);
        assert_eq!(left, [false, true]);
        // Those that are left are due together.
        for (now, due) in [(0, 200), (99, 200), (100, 300)] {
            assert_eq!(after_an_acquire.due(at(now)), at(due));
            assert_eq!(after_a_release.due(at(now)), at(now));
        }
        for mut release_task in [after_a_release, after_an_acquire] {
            let mut now = at(0);
            for requests in 0.. {
                let left = (now < until).then_some(until);
                match release_task.replied(now, &Reply::Released, false, left) {
                    Next::Later(later) => {
                        assert!(later > now && later <= now + LONGEST_PAUSE);
                        now = later;
                    }
                    next => {
                        assert_eq!(next, Next::Done);
                        assert!(requests < 620, "{requests} requests");
                        break;
                    }
                }
                assert!(release_task.is_executed());
                assert_eq!(plain(&release_task, now), Some(How::Release));
            }
            assert!(now >= until);
        }
    }

    #[test]
    fn failures_are_repeated_until_the_lease_is_over() {
        let rng = Machine::default();
        for (lease, longest) in [(LEASE, LONGEST_PAUSE), (LEASE * 20, LEASE / 3)] {
            let mut release_task =
                ReleaseTask::of_lease(ended_owner(None), false, None, at(0), lease);
            assert_eq!(release_task.repeated_until(), None);
            let mut now = at(0);
            let mut paused = Duration::ZERO;
            while let Next::Later(later) = release_task.failed(now, false, &rng) {
                assert!(later > now);
                paused = paused.max(later.since(now));
                now = later;
            }
            assert!(now >= at(0) + lease);
            assert!(paused > longest / 2 && paused <= longest, "{paused:?}");
            assert!(!release_task.is_executed());
            assert_eq!(release_task.repeated_until(), Some(at(0) + lease));
        }
    }

    #[test]
    fn a_release_is_repeated_for_as_long_as_the_key_may_live() {
        let rng = Machine::default();
        let key_gone_at = at(0) + LEASE * 20;
        let kept = EndedOwner {
            key_gone_at: Some(key_gone_at),
            ..ended_owner(None)
        };
        let ended = ended_owner(None);
        let unsent = ReleaseTask::of_lease(ended, false, None, at(0), LEASE).unsent();
        assert_eq!(unsent.key_gone_at, Some(at(0) + LEASE));
        let unsent = ReleaseTask::of_lease(kept.clone(), false, None, at(0), LEASE).unsent();
        assert_eq!(unsent.key_gone_at, Some(key_gone_at));
        for mut release_task in [
            ReleaseTask::of_lease(kept, false, None, at(0), LEASE),
            ReleaseTask::of_ended_owner(unsent, at(0), LEASE),
        ] {
            let mut now = at(0);
            while let Next::Later(later) = release_task.failed(now, true, &rng) {
                assert!(
                    later.since(now) <= LONGEST_PAUSE,
                    "a link that is back waits"
                );
                now = later;
            }
            assert!(now >= key_gone_at, "given up early");
            assert!(!release_task.is_executed());
        }
    }

    #[test]
    fn a_lock_is_kept_back_for_what_is_left_and_then_released() {
        let rng = Machine::default();
        let until = at(0) + LEASE * 2;
        let kept = || ReleaseTask::of_lease(ended_owner(None), true, Some(until), at(0), LEASE);
        let life = |release_task: &ReleaseTask, now| release_task.end(now).kept_for;
        let mut release_task = kept();
        assert_eq!(release_task.key_gone_at, until);
        assert_eq!(life(&release_task, at(0)), LEASE * 2);
        assert!(matches!(
            release_task.failed(at(1), true, &rng),
            Next::Later(_)
        ));
        let later = at(0) + LEASE;
        let left = life(&release_task, later);
        assert_eq!(left, LEASE, "a repeat must not lengthen it");
        assert_eq!(
            release_task.replied(at(2), &Reply::Released, false, None),
            Next::Done
        );

        let mut release_task = kept();
        release_task.failed(at(1), true, &rng);
        assert_eq!(plain(&release_task, until), Some(How::HandOver));

        // The other nodes of a quorum keep it too.
        let mut release_task = kept();
        let left_until = Some(until + LEASE);
        let next = release_task.replied(at(1), &Reply::Released, false, left_until);
        assert!(matches!(next, Next::Later(_)));
        assert_eq!(life(&release_task, later), LEASE);
        assert_eq!(plain(&release_task, until), Some(How::Release));
    }

    #[test]
    fn a_lock_that_is_kept_back_wakes_a_waiter() {
        let until = at(0) + LEASE;
        let wakes = |release_task: &ReleaseTask| {
            let end = release_task.end(at(0));
            assert_eq!(end.kept_for, LEASE);
            end.how == How::HandOver
        };
        let kept = |contended| {
            ReleaseTask::of_lease(ended_owner(None), contended, Some(until), at(0), LEASE)
        };
        assert!(wakes(&kept(true)));
        let mut release_task = kept(false);
        assert!(!wakes(&release_task));
        let next = release_task.replied(at(1), &Reply::Contended, false, None);
        assert_eq!(next, Next::Send);
        assert!(wakes(&release_task));
        // The time may be over before that request.
        let gone = Reply::NotOwner(Gone::Removed);
        assert_eq!(release_task.replied(at(2), &gone, false, None), Next::Done);
        assert_eq!(release_task.gone(), None);
        let mut release_task = kept(false);
        release_task.replied(at(1), &Reply::Contended, false, None);
        // The slot is moving, so the store has sent the form for the lock's key alone.
        let next = release_task.replied(at(2), &Reply::Contended, false, None);
        assert_eq!(next, Next::Done);
    }

    #[test]
    fn a_lock_that_is_kept_back_gives_its_unused_fences_back() {
        let rng = Machine::default();
        let (until, unused) = (at(0) + LEASE, Some(GiveBack { used: 1, last: 9 }));
        let ended = EndedOwner {
            give_back: unused,
            ..ended_owner(None)
        };
        let mut release_task = ReleaseTask::of_lease(ended, true, Some(until), at(0), LEASE);
        let gives_back = |kept_for| End {
            owner: owner(),
            units: 1,
            how: How::HandOver,
            kept_for,
            give_back: unused,
        };
        assert_eq!(release_task.end(at(0)), gives_back(LEASE));
        release_task.failed(at(1), true, &rng);
        assert_eq!(release_task.end(until), gives_back(Duration::ZERO));
    }

    #[test]
    fn an_ended_owner_gives_its_fences_back_and_is_withdrawn_while_uncertain() {
        let unused = Some(GiveBack { used: 1, last: 9 });
        let left = EndedOwner {
            give_back: unused,
            ..ended_owner(Some(at(0) + LEASE))
        };
        let mut release_task = ReleaseTask::of_ended_owner(left, at(0), LEASE);
        let end = release_task.end(at(0));
        assert_eq!((end.how, end.give_back), (How::HandOver, unused));
        let next = release_task.replied(at(1), &Reply::Released, false, None);
        assert!(matches!(next, Next::Later(_)));
        assert_eq!(plain(&release_task, at(1)), Some(How::Withdraw));
    }
}
