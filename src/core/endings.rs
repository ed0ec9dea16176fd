//! The ended owners of this process whose end a failover may lose.
//!
//! Sentinel and Cluster copy writes to replicas without waiting for them. An example: A releases `A1`, Redis confirms the
//! release, and the master dies before it has sent the release to its replica. The replica becomes the master, and `A1`
//! holds the lock there until its lease ends. So A remembers how `A1` ended, and repeats that on the new master:
//!
//! | `A1` ended so | the repeat, which acts only if the value is still `A1` |
//! | --- | --- |
//! | Redis replied "released" | the same request: a release, a hand-over, a withdrawal, or for a `min_hold` a keep for the rest of its time |
//! | it was handed over to `B1`, by its release or by a take-over | give the lock to `B1` |
//! | it was taken over as `A2` of the same process | give the lock to `A2` |
//! | a take-over found a poller gap, so the lock is free | a hand-over |
//! | it was lost, or was gone when a take-over came, or when it was released soon after a failover | a hand-over |
//! | in any other way | none: if the failover brings `A1` back, it keeps the lock until its lease ends |
//!
//! The other ways are: Redis replied that `A1` was not the holder, so another owner may be; several owners may have got the
//! lock (a multi-lock, a reader-writer lock, a semaphore); a request of unknown outcome may still take the lock for `A1`.
//!
//! A repeat never frees a lock that was handed over, because its new owner may read held. An example: A hands the lock from
//! `A1` to `B1`, and the failover loses that. A withdrawal of `A1` would let C lock while B reads held. So the repeat makes
//! `B1` the holder on the new master too, for the rest of the time of `A1`, and at least for a pickup window. If B works
//! still, its next renewal lengthens that. If B has ended `B1` meanwhile, B repeats the end of `B1`.
//!
//! | event | this process |
//! | --- | --- |
//! | an owner has ended in one of the first five ways | remembers it until Redis must have dropped the key. It remembers at most [`MOST_ENDINGS`]: the oldest goes first |
//! | there is a new master | at once repeats the hand-overs, the last ones first, and what keeps a lock for a `min_hold` |
//! | the same | uses no grant by message that a request before it allows: it asks the new master |
//! | the same | makes an end of each release task that Redis has confirmed, and that waits for its repeat (the owner is uncertain) |
//! | [`RENEWED_AFTER`] has passed since | renews all its leases. Until then it renews only those that would end soon |
//! | [`FREED_AFTER`] has passed since | repeats all ends, also those that may free a lock. Until then it repeats no release task that may free a lock |
//! | [`AGAIN_AFTER`] has passed since the end of that round | repeats all ends again that have a reply: most other processes have repeated theirs by now |
//! | a round has begun | repeats a few ends at a time, while no release waits. It remembers them still |
//! | a renewal or a take-over of a mutex finds that its owner is gone; or soon after a failover a release finds that | remembers the owner as one that has ended: a process that hears of the failover later may still give the lock to it |
//! | a message for an owner that it remembers | repeats the end of that owner at once, but not before that time if it may free a lock. The new master sends such a message if the owner is in its queue |
//!
//! The order matters. An example: the failover loses a release of `A1`, and also the grant of the free lock to `C1`. If A
//! frees the lock on the new master before C has renewed its lease, B gets the lock while C reads held. C's renewal finds
//! `A1` and ends the lease. But a renewal of an owner whose hand-over was lost comes after the repeat of the hand-over.
//!
//! A release that has no reply when the master dies is sent to the new master, as the other ends that may free a lock. A
//! lease that is renewed there before the repeat is lost, and its guard learns it. Nobody repeats the end of an owner after its
//! process has died, or its last manager was dropped.

use std::collections::VecDeque;
use std::time::Duration;

use crate::core::release_task::ReleaseTask;
use crate::sys::Time;

/// The number of ends that a process remembers.
pub(crate) const MOST_ENDINGS: usize = 4096;
/// How long after a failover all leases are renewed. By then most processes have repeated their hand-overs.
pub(crate) const RENEWED_AFTER: Duration = Duration::from_millis(500);
/// How long after a failover a lock may be freed again. By then nearly all hand-overs have been repeated.
pub(crate) const FREED_AFTER: Duration = Duration::from_millis(800);
/// When the last round of repeats follows the end of the one before. By then nearly all processes have heard of the failover.
pub(crate) const AGAIN_AFTER: Duration = Duration::from_secs(3);
/// The rounds of repeats: one of what frees no lock, and two of all ends.
const ROUNDS: u32 = 3;

/// The ends that Redis has confirmed, each with its lock `L`, in the order of their repeats.
pub(crate) struct Endings<L> {
    ended: VecDeque<(L, ReleaseTask)>,
    /// Whether one was dropped before Redis must have dropped its key.
    has_forgotten: bool,
    /// When there was last a new master.
    changed_at: Time,
    /// When the next round of repeats begins, or goes on.
    due: Option<Time>,
    /// The number of ends that this round has not repeated yet. They come first. `None` between two rounds.
    left: Option<usize>,
    rounds_left: u32,
}

impl<L> Default for Endings<L> {
    fn default() -> Self {
        Self {
            ended: VecDeque::new(),
            has_forgotten: false,
            changed_at: Time::from_nanos(0),
            due: None,
            left: None,
            rounds_left: 0,
        }
    }
}

impl<L> Endings<L> {
    /// Remembers a task that is done.
    pub(crate) fn note(&mut self, lock: L, release_task: ReleaseTask, now: Time) {
        let is_over = |release_task: &ReleaseTask| release_task.key_gone_at() <= now;
        if !release_task.can_be_repeated() || is_over(&release_task) {
            return;
        }
        let is_full = self.ended.len() == MOST_ENDINGS;
        let first = self.ended.front();
        if first.is_some_and(|(_, first)| is_over(first)) {
            self.ended.pop_front();
            self.left = self.left.map(|left| left.saturating_sub(1));
        } else if is_full {
            // Those that a round has still to repeat come first, and stay.
            let place = self.left.filter(|left| *left < self.ended.len());
            let dropped = self.ended.remove(place.unwrap_or(0));
            self.has_forgotten |= dropped.is_some_and(|(_, dropped)| !is_over(&dropped));
        }
        self.ended.push_back((lock, release_task));
    }

    /// Notes that there is a new master.
    pub(crate) fn master_changed(&mut self, now: Time) {
        let ended = self.ended.make_contiguous();
        ended.sort_by_key(|(_, release_task)| release_task.end_may_free(now));
        let first = ended.partition_point(|(_, release_task)| !release_task.end_may_free(now));
        // The last hand-overs first: a replica most often lacks only these.
        ended[..first].reverse();
        (self.left, self.rounds_left) = (Some(first), ROUNDS);
        (self.changed_at, self.due) = (now, Some(now));
    }

    /// Returns when the ends are repeated next.
    pub(crate) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Takes out at most `most` tasks if they are due, for their repeat. Returns whether an end was forgotten before its
    /// time.
    pub(crate) fn take_due(&mut self, now: Time, most: usize) -> (Vec<(L, ReleaseTask)>, bool) {
        if self.due.is_none_or(|due| due > now) {
            return (Vec::new(), false);
        }
        let left = self.left.get_or_insert(self.ended.len());
        let count = (*left).min(most);
        *left -= count;
        if *left == 0 {
            self.left = None;
            self.rounds_left -= 1;
            self.due = match self.rounds_left {
                0 => None,
                1 => Some(now + AGAIN_AFTER),
                _ => Some(now.max(self.changed_at + FREED_AFTER)),
            };
        }
        let mut ended: Vec<_> = self.ended.drain(..count).collect();
        ended.retain_mut(|(_, release_task)| release_task.repeat(now));
        (ended, std::mem::take(&mut self.has_forgotten))
    }

    /// Takes out the task of one owner, for its repeat.
    pub(crate) fn take(&mut self, owner: &str, now: Time) -> Option<(L, ReleaseTask)> {
        let mut all = self.ended.iter();
        let place = all.position(|(_, release_task)| **release_task.owner() == *owner)?;
        let (lock, mut release_task) = self.ended.remove(place)?;
        self.left = self.left.map(|left| left - usize::from(place < left));
        release_task.repeat(now).then_some((lock, release_task))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::attempt::{Ended, EndedOwner};
    use crate::core::release_task::Next;
    use crate::message::{Gone, Reply, Verb};

    const LEASE: Duration = Duration::from_secs(30);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn ended_owner(owner: &str) -> EndedOwner {
        EndedOwner {
            owner: owner.into(),
            units: 1,
            uncertain_until: None,
            key_gone_at: None,
            give_back: None,
            ended: None,
        }
    }

    /// Returns the task of a lease.
    fn of_lease(min_hold_until: Option<Time>) -> ReleaseTask {
        ReleaseTask::of_lease(ended_owner("a1"), false, min_hold_until, at(0), LEASE)
    }

    fn withdrawal() -> ReleaseTask {
        ReleaseTask::of_ended_owner(ended_owner("a1"), at(0), LEASE)
    }

    fn taken_over(ended: Ended) -> ReleaseTask {
        let ended = EndedOwner {
            ended: Some(ended),
            ..ended_owner("a1")
        };
        ReleaseTask::of_ended_owner(ended, at(0), LEASE)
    }

    /// Returns the request that a new master gets at 100 ms, after a task that ended by these replies.
    fn repeated(mut release_task: ReleaseTask, replies: &[Reply]) -> Option<Verb> {
        let mut endings = Endings::default();
        for reply in replies {
            release_task.replied(at(1), reply, false, None);
        }
        endings.note((), release_task, at(1));
        endings.master_changed(at(100));
        let (mut ended, _) = endings.take_due(at(100), 1);
        if ended.is_empty() {
            let due = endings.due()?;
            (ended, _) = endings.take_due(due, 1);
        }
        ended.pop().map(|((), again)| again.verb(at(100)))
    }

    fn given_to(verb: Option<Verb>) -> Option<String> {
        match verb {
            Some(Verb::GiveTo { to, .. }) => Some(to.to_string()),
            _ => None,
        }
    }

    #[test]
    fn an_end_that_gave_the_lock_to_nobody_is_repeated() {
        let released = [Reply::Released];
        let again = repeated(of_lease(None), &released);
        assert!(matches!(again, Some(Verb::Release { .. })));
        let again = repeated(of_lease(None), &[Reply::Contended, Reply::Released]);
        assert!(matches!(again, Some(Verb::HandOver { .. })));
        let again = repeated(withdrawal(), &released);
        assert!(matches!(again, Some(Verb::Withdraw { .. })));
        let again = repeated(of_lease(Some(at(150))), &released);
        let rest = Duration::from_millis(50);
        assert!(matches!(again, Some(Verb::Keep(keep)) if keep.life == rest));
        let again = repeated(of_lease(Some(at(50))), &released);
        assert!(matches!(again, Some(Verb::Release { .. })));
        let in_a_gap = repeated(taken_over(Ended::Free), &[]);
        assert!(matches!(in_a_gap, Some(Verb::HandOver { .. })));
    }

    #[test]
    fn a_hand_over_is_repeated_to_the_same_owner_and_never_frees_the_lock() {
        let handed_over = Reply::HandedOver(Some("b1".into()));
        let contended = [Reply::Contended, handed_over.clone()];
        assert_eq!(
            given_to(repeated(of_lease(None), &contended)).as_deref(),
            Some("b1")
        );
        let again = repeated(withdrawal(), std::slice::from_ref(&handed_over));
        assert_eq!(given_to(again).as_deref(), Some("b1"));
        for ended in [
            Ended::TakenOver("b1".into()),
            Ended::HandedOver("b1".into()),
        ] {
            let again = repeated(taken_over(ended), &[]);
            assert_eq!(given_to(again).as_deref(), Some("b1"));
        }
        // The repeat is repeated after the next failover.
        let mut again = of_lease(None);
        again.replied(at(1), &handed_over, false, None);
        assert!(again.repeat(at(2)));
        for reply in [Reply::Released, Reply::NotOwner(Gone::Taken)] {
            assert_eq!(again.replied(at(3), &reply, false, None), Next::Done);
            assert!(again.repeat(at(4)));
            assert_eq!(given_to(Some(again.verb(at(4)))).as_deref(), Some("b1"));
        }
    }

    #[test]
    fn an_end_that_may_have_given_the_lock_to_an_unknown_owner_is_not_repeated() {
        // A lock of several names, or of several units.
        assert_eq!(repeated(of_lease(None), &[Reply::HandedOver(None)]), None);
        // Another owner has the lock, or had it: by an earlier copy of the request, or by an operator.
        for gone in [Gone::Taken, Gone::Removed] {
            let reply = [Reply::NotOwner(gone)];
            for release_task in [of_lease(None), withdrawal()] {
                assert_eq!(repeated(release_task, &reply), None);
            }
        }
    }

    /// Until it is certain, it is withdrawn again and again.
    #[test]
    fn a_further_withdrawal_does_not_change_how_an_owner_ended() {
        let uncertain = EndedOwner {
            uncertain_until: Some(at(20)),
            ..ended_owner("a1")
        };
        let mut release_task = ReleaseTask::of_lease(uncertain, true, None, at(0), LEASE);
        let handed_over = Reply::HandedOver(Some("b1".into()));
        let next = release_task.replied(at(1), &handed_over, false, None);
        assert!(matches!(next, Next::Later(_)));
        assert!(matches!(release_task.verb(at(10)), Verb::Withdraw { .. }));
        let taken = Reply::NotOwner(Gone::Taken);
        let next = release_task.replied(at(20), &taken, false, None);
        assert_eq!(next, Next::Done);
        assert_eq!(given_to(repeated(release_task, &[])).as_deref(), Some("b1"));
    }

    /// The process of `b1` hears of the failover first, and its release comes before the hand-over is repeated.
    #[test]
    fn an_owner_that_was_gone_soon_after_a_failover_is_ended_again() {
        let gone = Reply::NotOwner(Gone::Taken);
        let mut released = of_lease(None);
        released.replied(at(1), &gone, false, None);
        released.may_come_back(at(9));
        assert!(matches!(
            repeated(released, &[]),
            Some(Verb::HandOver { .. })
        ));
        // The units of a semaphore may be with several others.
        let mut handed_over = of_lease(None);
        handed_over.replied(at(1), &Reply::HandedOver(None), false, None);
        handed_over.may_come_back(at(9));
        assert_eq!(repeated(handed_over, &[]), None);
        assert!(matches!(
            repeated(taken_over(Ended::Lost), &[]),
            Some(Verb::HandOver { .. })
        ));
    }

    /// Its withdrawal was under way when the master died.
    #[test]
    fn a_hand_over_is_repeated_although_a_withdrawal_of_its_owner_has_failed() {
        let uncertain = EndedOwner {
            uncertain_until: Some(at(20_000)),
            ended: Some(Ended::HandedOver("b1".into())),
            ..ended_owner("a1")
        };
        let mut task = ReleaseTask::of_ended_owner(uncertain, at(0), LEASE);
        let frees_from = Some(at(900));
        assert_eq!(task.due_after_failure(at(150), None, at(100)), at(150));
        let now = at(100);
        assert_eq!(task.due_after_failure(at(150), Some(now), now), at(150));
        assert_eq!(
            task.due_after_failure(at(150), frees_from, at(100)),
            at(100)
        );
        assert_eq!(given_to(Some(task.verb(at(100)))).as_deref(), Some("b1"));
        // The new master refuses it: it pauses as any other task.
        assert_eq!(
            task.due_after_failure(at(150), frees_from, at(100)),
            at(150)
        );
        task.replied(at(101), &Reply::Released, false, None);
        assert!(matches!(task.verb(at(101)), Verb::Withdraw { .. }));
        assert_eq!(task.put_off(at(150), frees_from, at(101)), at(900));
        // Later failures are those of any task.
        assert_eq!(
            task.due_after_failure(at(950), frees_from, at(901)),
            at(950)
        );
    }

    /// Its withdrawals may not free the lock before its successor has renewed its lease.
    #[test]
    fn an_uncertain_owner_that_was_handed_over_is_given_on_after_a_failover() {
        let uncertain = EndedOwner {
            uncertain_until: Some(at(20)),
            ended: Some(Ended::HandedOver("b1".into())),
            ..ended_owner("a1")
        };
        let withdrawn = ReleaseTask::of_ended_owner(uncertain.clone(), at(0), LEASE);
        assert!(!withdrawn.is_done());
        assert!(matches!(withdrawn.verb(at(0)), Verb::Withdraw { .. }));
        assert_eq!(withdrawn.put_off(at(0), Some(at(9)), at(0)), at(9));
        assert!(withdrawn.becomes_an_end());
        assert_eq!(given_to(repeated(withdrawn, &[])).as_deref(), Some("b1"));
        // A take-over of unknown outcome may have handed the lock over.
        let unknown = EndedOwner {
            ended: None,
            ..uncertain.clone()
        };
        let withdrawn = ReleaseTask::of_ended_owner(unknown, at(0), LEASE);
        assert!(!withdrawn.is_executed());
        assert_eq!(withdrawn.put_off(at(0), Some(at(9)), at(0)), at(9));
        // Several others may have the lock.
        let withdrawn = ReleaseTask::of_ended_owner(uncertain, at(0), LEASE).without_repeat();
        assert!(!withdrawn.is_done() && !withdrawn.becomes_an_end());
        assert_eq!(withdrawn.put_off(at(0), Some(at(9)), at(0)), at(9));
    }

    #[test]
    fn ends_are_repeated_twice_and_until_their_keys_must_be_gone() {
        let mut endings = Endings::default();
        let ended = |until| {
            let owner = EndedOwner {
                key_gone_at: Some(at(until)),
                ..ended_owner("a1")
            };
            let mut task = ReleaseTask::of_ended_owner(owner, at(0), Duration::ZERO);
            task.replied(at(0), &Reply::Released, false, None);
            task
        };
        endings.note("short", ended(1_000), at(0));
        endings.note("long", ended(5_000), at(0));
        assert_eq!(endings.due(), None);
        endings.master_changed(at(50));
        assert!(endings.take_due(at(50), 9).0.is_empty(), "no hand-over");
        assert_eq!(endings.due(), Some(at(850)));
        for expected in ["short", "long"] {
            let (mut first, _) = endings.take_due(at(850), 1);
            let (lock, again) = first.pop().expect("one is left");
            assert_eq!(lock, expected);
            endings.note(lock, again, at(851));
        }
        assert!(endings.take_due(at(1_000), 9).0.is_empty());
        assert_eq!(endings.due(), Some(at(3_850)));
        let (second, _) = endings.take_due(at(3_850), 9);
        assert!(second.iter().map(|(lock, _)| *lock).eq(["long"]));
        assert_eq!(endings.due(), None);
        endings.note("long", ended(5_000), at(3_900));
        assert!(endings.take("b1", at(4_000)).is_none());
        assert!(endings.take("a1", at(4_000)).is_some());
        assert!(endings.take("a1", at(4_000)).is_none());
    }

    #[test]
    fn hand_overs_are_repeated_before_what_may_free_a_lock() {
        let mut endings = Endings::default();
        for (number, reply) in [
            Reply::Released,
            Reply::HandedOver(Some("b1".into())),
            Reply::Released,
            Reply::HandedOver(Some("b2".into())),
        ]
        .iter()
        .enumerate()
        {
            let mut task = of_lease(None);
            task.replied(at(1), reply, false, None);
            endings.note(number, task, at(1));
        }
        endings.master_changed(at(2));
        let (hand_overs, _) = endings.take_due(at(2), 9);
        assert_eq!(locks(&hand_overs), [3, 1]);
        assert_eq!(endings.due(), Some(at(802)));
        for (number, task) in hand_overs {
            endings.note(number, task, at(3));
        }
        let (all, _) = endings.take_due(at(802), 9);
        assert_eq!(locks(&all), [0, 2, 3, 1]);
        assert_eq!(endings.due(), Some(at(3_802)));
    }

    /// Returns the task of an owner whose hand-over or release is confirmed.
    fn of_owner(owner: &str, reply: &Reply) -> ReleaseTask {
        let mut task = ReleaseTask::of_lease(ended_owner(owner), false, None, at(0), LEASE);
        task.replied(at(1), reply, false, None);
        task
    }

    fn locks<L: Copy>(ended: &[(L, ReleaseTask)]) -> Vec<L> {
        ended.iter().map(|(lock, _)| *lock).collect()
    }

    /// Two hand-overs and two releases, and the round of hand-overs with one of them left.
    fn within_a_round() -> Endings<&'static str> {
        let mut endings = Endings::default();
        for (owner, reply) in [
            ("h1", Reply::HandedOver(Some("b1".into()))),
            ("h2", Reply::HandedOver(Some("b2".into()))),
            ("r1", Reply::Released),
            ("r2", Reply::Released),
        ] {
            endings.note(owner, of_owner(owner, &reply), at(1));
        }
        endings.master_changed(at(2));
        assert_eq!(locks(&endings.take_due(at(2), 1).0), ["h2"]);
        endings
    }

    #[test]
    fn an_end_that_a_message_asks_for_leaves_the_others_in_their_rounds() {
        let mut later = within_a_round();
        assert!(later.take("r1", at(2)).is_some());
        assert_eq!(locks(&later.take_due(at(2), 9).0), ["h1"]);
        let mut last = within_a_round();
        assert!(last.take("r2", at(2)).is_some());
        assert_eq!(locks(&last.take_due(at(2), 9).0), ["h1"]);
        let mut now = within_a_round();
        assert!(now.take("h1", at(2)).is_some());
        assert!(now.take_due(at(2), 9).0.is_empty());
    }

    #[test]
    fn an_end_that_is_over_leaves_the_others_in_their_rounds() {
        let mut endings = Endings::default();
        let short = ReleaseTask::of_lease(ended_owner("s"), false, None, at(0), LEASE / 2);
        let ends_at = short.key_gone_at();
        let hand_over = Reply::HandedOver(Some("b1".into()));
        for (lock, mut task) in [("s", short), ("h", of_owner("h", &hand_over))] {
            task.replied(at(1), &hand_over, false, None);
            endings.note(lock, task, at(1));
        }
        endings.master_changed(at(2));
        // The last hand-over comes first.
        assert_eq!(locks(&endings.take_due(at(2), 1).0), ["h"]);
        endings.note("r", of_owner("r", &Reply::Released), ends_at);
        assert!(
            endings.take_due(ends_at, 9).0.is_empty(),
            "the hand-overs are over"
        );
        let (all, has_forgotten) = endings.take_due(ends_at + FREED_AFTER, 9);
        assert_eq!((locks(&all), has_forgotten), (vec!["r"], false));
    }

    #[test]
    fn an_end_that_is_never_repeated_takes_no_room() {
        let mut endings = Endings::default();
        endings.note(0, of_owner("a1", &Reply::Released), at(1));
        for number in 1..=MOST_ENDINGS {
            // It may have given the lock to several others.
            endings.note(number, of_owner("a1", &Reply::HandedOver(None)), at(1));
            // Its key is gone already.
            let task = of_owner("a1", &Reply::Released);
            let now = task.key_gone_at();
            endings.note(number, task, now);
        }
        endings.master_changed(at(2));
        endings.take_due(at(2), 1);
        let (all, has_forgotten) = endings.take_due(at(802), 2 * MOST_ENDINGS);
        assert_eq!((locks(&all), has_forgotten), (vec![0], false));
    }

    /// Those that the round has still to repeat stay, and if it has all of them to repeat, the first one goes.
    #[test]
    fn a_new_end_takes_the_place_of_one_that_the_round_has_repeated() {
        let hand_over = Reply::HandedOver(Some("b1".into()));
        let full = || {
            let mut endings = Endings::default();
            for number in 0..MOST_ENDINGS {
                endings.note(number, of_owner("a1", &hand_over), at(1));
            }
            endings.master_changed(at(2));
            endings
        };
        let mut begun = full();
        assert_eq!(begun.take_due(at(2), 1).0.len(), 1);
        for number in 0..2 {
            begun.note(number, of_owner("a1", &hand_over), at(2));
        }
        // The last hand-over came first.
        let rest: Vec<_> = (0..MOST_ENDINGS - 1).rev().collect();
        assert_eq!(locks(&begun.take_due(at(2), MOST_ENDINGS).0), rest);
        let mut new = full();
        new.note(0, of_owner("a1", &hand_over), at(2));
        assert_eq!(new.take_due(at(2), 2 * MOST_ENDINGS).0.len(), MOST_ENDINGS);
        assert!(new.take_due(at(802), 1).0.is_empty());
    }

    #[test]
    fn the_oldest_end_is_forgotten_first() {
        let mut endings = Endings::default();
        for number in 0..=MOST_ENDINGS {
            let mut task = of_lease(None);
            task.replied(at(1), &Reply::Released, false, None);
            endings.note(number, task, at(1));
        }
        endings.master_changed(at(2));
        let (hand_overs, has_forgotten) = endings.take_due(at(2), 2 * MOST_ENDINGS);
        assert!(hand_overs.is_empty());
        assert!(has_forgotten);
        let (ended, _) = endings.take_due(at(802), 2 * MOST_ENDINGS);
        assert_eq!(ended.len(), MOST_ENDINGS);
        assert_eq!(ended.first().map(|(number, _)| *number), Some(1));
    }
}
