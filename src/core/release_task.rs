//! The end of a lease in Redis, and of an orphaned owner.
//!
//! The guard's thread or the renewal thread sends the first request. The renewal thread repeats a request that failed
//! until Redis must have dropped the key. The key may outlast the lease of the thread that ends it, because a lease can
//! be extended. So the task takes over from its owner the time until which Redis may keep the key
//! ([`OrphanedOwner::kept_until`]).
//!
//! | request | answer | next |
//! | --- | --- | --- |
//! | release | released, not owner | executed |
//! | release | others wait | hand over, at once |
//! | hand over, keep, withdraw | released, not owner | executed |
//! | keep | failed until the end of `min_hold` | release; hand over if there are fences to give back |
//! | any | failed | the renewal thread sends it again, at once and then after growing pauses, until Redis must have dropped the key; then the task is given up |
//!
//! "Executed" is not final while the owner is uncertain: Redis may execute an earlier acquire or take-over of unknown
//! outcome after the release. So the owner is withdrawn again and again until a lease has passed since that request was
//! sent.

use std::time::Duration;

use crate::clock::Time;
use crate::core::attempt::OrphanedOwner;
use crate::message::{GiveBack, Gone, Reply, Verb};
use crate::random::{Rng, jittered};
use crate::sync::Arc;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause while the server cannot be reached. After an answer, pauses grow further, to a sixtieth of the
/// time for which the key may live.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send [`ReleaseTask::verb`].
    Send,
    /// Send [`ReleaseTask::verb`], but not before this time.
    Later(Time),
    /// End the task.
    Done,
}

/// The end of one owner in Redis.
#[derive(Debug)]
pub(crate) struct ReleaseTask {
    verb: Verb,
    /// The time until which Redis may execute an earlier acquire or take-over of this owner. Until then no reply to a
    /// release is final.
    uncertain_until: Option<Time>,
    /// When Redis must have dropped the key.
    key_gone_at: Time,
    /// Until when the lock is kept from all processes (`min_hold`).
    min_hold_until: Option<Time>,
    pause: Duration,
    longest_pause: Duration,
    /// Whether an earlier request may have had its effect, which a later one then finds.
    repeated: bool,
    executed: bool,
    gone: Option<Gone>,
}

impl ReleaseTask {
    /// Makes a task that ends a lease. Its key lives for `lease`, or longer if the lease was extended.
    pub(crate) fn of_lease(
        ended: OrphanedOwner,
        contended: bool,
        now: Time,
        lease: Duration,
    ) -> Self {
        let OrphanedOwner {
            owner,
            units,
            uncertain_until,
            kept_until,
            give_back,
        } = ended;
        let verb = release(owner, units, give_back, contended);
        Self::new(verb, uncertain_until, kept_until, now, lease)
    }

    /// Makes a task that ends an owner on which no guard relies: of an attempt, or of a lease that was lost or taken
    /// over.
    pub(crate) fn of_orphaned_owner(
        orphaned_owner: OrphanedOwner,
        now: Time,
        lease: Duration,
    ) -> Self {
        let (owner, units) = (orphaned_owner.owner, orphaned_owner.units);
        let verb = match orphaned_owner.give_back {
            // The owner had a lease. While the owner is uncertain, withdrawals follow.
            Some(_) => Verb::HandOver {
                owner,
                units,
                give_back: orphaned_owner.give_back,
            },
            None => Verb::Withdraw { owner, units },
        };
        Self::new(
            verb,
            orphaned_owner.uncertain_until,
            orphaned_owner.kept_until,
            now,
            lease,
        )
    }

    fn new(
        verb: Verb,
        uncertain_until: Option<Time>,
        kept_until: Option<Time>,
        now: Time,
        lease: Duration,
    ) -> Self {
        let uncertain_until = uncertain_until.filter(|uncertain_until| *uncertain_until > now);
        // A request that takes the lock at the last uncertain moment takes it for a lease from then.
        let key_gone_at = (uncertain_until.unwrap_or(now) + lease).max(kept_until.unwrap_or(now));
        Self {
            verb,
            uncertain_until,
            key_gone_at,
            min_hold_until: None,
            pause: FIRST_PAUSE,
            longest_pause: LONGEST_PAUSE.max(key_gone_at.since(now) / 60),
            repeated: false,
            executed: false,
            gone: None,
        }
    }

    /// Makes the task keep the lock from all processes until then.
    pub(crate) fn with_min_hold(mut self, until: Time, now: Time) -> Self {
        self.min_hold_until = Some(until);
        self.key_gone_at = self.key_gone_at.max(until);
        self.refresh_min_hold(now);
        self
    }

    /// Returns whether the task keeps the lock from all processes, this one included.
    pub(crate) fn keeps_lock(&self) -> bool {
        matches!(self.verb, Verb::Keep { .. })
    }

    /// Sets how long the lock is kept, counted from `now`. Called before each request.
    pub(crate) fn refresh_min_hold(&mut self, now: Time) {
        let Some(until) = self.min_hold_until else {
            return;
        };
        if let Verb::Withdraw { .. } = self.verb {
            return;
        }
        let (owner, units, give_back) = given_up(&self.verb);
        let life = until.since(now);
        self.verb = if life.is_zero() {
            self.min_hold_until = None;
            release(owner, units, give_back, false)
        } else {
            Verb::Keep {
                owner,
                units,
                life,
                give_back,
            }
        };
    }

    pub(crate) fn verb(&self) -> &Verb {
        &self.verb
    }

    /// Takes back the task of a lease for which no request was sent.
    pub(crate) fn unsent(self) -> OrphanedOwner {
        debug_assert!(!self.repeated && !self.executed);
        let (owner, units, give_back) = given_up(&self.verb);
        OrphanedOwner {
            owner,
            units,
            uncertain_until: self.uncertain_until,
            kept_until: Some(self.key_gone_at),
            give_back,
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

    pub(crate) fn replied(&mut self, now: Time, reply: &Reply, resent: bool) -> Next {
        match (reply, &self.verb) {
            (Reply::Contended, Verb::Release { owner, units }) => {
                self.verb = Verb::HandOver {
                    owner: Arc::clone(owner),
                    units: *units,
                    give_back: None,
                };
                return Next::Send;
            }
            (Reply::NotOwner(gone), _) if !self.repeated && !resent => self.gone = Some(*gone),
            _ => {}
        }
        self.executed = true;
        self.repeated = true;
        let Some(uncertain_until) = self
            .uncertain_until
            .filter(|uncertain_until| *uncertain_until > now)
        else {
            return Next::Done;
        };
        // A request that Redis executes later may take the lock, and may also queue for it.
        let (owner, units, _) = given_up(&self.verb);
        self.verb = Verb::Withdraw { owner, units };
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

/// Returns the request that ends a lease: a hand-over if processes wait or there are unused fences, else a plain
/// release.
fn release(owner: Arc<str>, units: u32, give_back: Option<GiveBack>, contended: bool) -> Verb {
    if contended || give_back.is_some() {
        Verb::HandOver {
            owner,
            units,
            give_back,
        }
    } else {
        Verb::Release { owner, units }
    }
}

/// Returns the parts of a request that ends an owner: the owner, its units, and its unused fences.
fn given_up(verb: &Verb) -> (Arc<str>, u32, Option<GiveBack>) {
    let (owner, units, give_back) = match verb {
        Verb::Release { owner, units } | Verb::Withdraw { owner, units } => (owner, units, None),
        Verb::HandOver {
            owner,
            units,
            give_back,
        }
        | Verb::Keep {
            owner,
            units,
            give_back,
            ..
        } => (owner, units, *give_back),
        Verb::Acquire { .. } | Verb::TakeOver { .. } => {
            unreachable!("a release task never acquires")
        }
    };
    (Arc::clone(owner), *units, give_back)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SystemRng;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn owner() -> Arc<str> {
        "lh1:u:l".into()
    }

    fn orphaned_owner(uncertain_until: Option<Time>) -> OrphanedOwner {
        OrphanedOwner {
            owner: owner(),
            units: 1,
            uncertain_until,
            kept_until: None,
            give_back: None,
        }
    }

    #[test]
    fn an_uncontended_release_is_one_request() {
        let mut release_task = ReleaseTask::of_lease(orphaned_owner(None), false, at(0), LEASE);
        assert!(matches!(release_task.verb(), Verb::Release { .. }));
        assert_eq!(
            release_task.replied(at(1), &Reply::Released, false),
            Next::Done
        );
        assert_eq!(release_task.gone(), None);
    }

    #[test]
    fn a_release_that_finds_waiters_hands_over() {
        let mut release_task = ReleaseTask::of_lease(orphaned_owner(None), false, at(0), LEASE);
        assert_eq!(
            release_task.replied(at(1), &Reply::Contended, false),
            Next::Send
        );
        assert!(matches!(release_task.verb(), Verb::HandOver { .. }));
        assert!(!release_task.is_executed());
        assert_eq!(
            release_task.replied(at(2), &Reply::HandedOver, false),
            Next::Done
        );
    }

    #[test]
    fn not_there_is_a_loss_only_on_the_first_answer() {
        let gone = Reply::NotOwner(Gone::Taken);
        let mut release_task = ReleaseTask::of_lease(orphaned_owner(None), true, at(0), LEASE);
        release_task.replied(at(1), &gone, false);
        assert_eq!(release_task.gone(), Some(Gone::Taken));

        let mut release_task = ReleaseTask::of_lease(orphaned_owner(None), true, at(0), LEASE);
        release_task.failed(at(1), true, &SystemRng::new());
        release_task.replied(at(2), &gone, false);
        assert_eq!(release_task.gone(), None);

        let mut release_task = ReleaseTask::of_lease(orphaned_owner(None), true, at(0), LEASE);
        release_task.replied(at(1), &gone, true);
        assert_eq!(release_task.gone(), None);
    }

    #[test]
    fn an_uncertain_owner_is_withdrawn_until_a_lease_has_passed() {
        let mut release_task =
            ReleaseTask::of_orphaned_owner(orphaned_owner(Some(at(0) + LEASE)), at(0), LEASE);
        let mut now = at(0);
        let mut requests = 0;
        loop {
            requests += 1;
            match release_task.replied(now, &Reply::NotOwner(Gone::Removed), false) {
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
    fn failures_are_repeated_until_the_lease_is_over() {
        let rng = SystemRng::new();
        let mut release_task = ReleaseTask::of_lease(orphaned_owner(None), false, at(0), LEASE);
        let mut now = at(0);
        while let Next::Later(later) = release_task.failed(now, false, &rng) {
            assert!(later > now);
            now = later;
        }
        assert!(now >= at(0) + LEASE);
        assert!(!release_task.is_executed());
    }

    #[test]
    fn a_release_is_repeated_for_as_long_as_the_key_may_live() {
        let rng = SystemRng::new();
        let kept_until = at(0) + LEASE * 20;
        let kept = OrphanedOwner {
            kept_until: Some(kept_until),
            ..orphaned_owner(None)
        };
        let taken_back = ReleaseTask::of_lease(kept.clone(), false, at(0), LEASE).unsent();
        assert_eq!(taken_back.kept_until, Some(kept_until));
        for mut release_task in [
            ReleaseTask::of_lease(kept, false, at(0), LEASE),
            ReleaseTask::of_orphaned_owner(taken_back, at(0), LEASE),
        ] {
            let mut now = at(0);
            while let Next::Later(later) = release_task.failed(now, true, &rng) {
                assert!(
                    later.since(now) <= LONGEST_PAUSE,
                    "a link that is back waits"
                );
                now = later;
            }
            assert!(now >= kept_until, "given up early");
            assert!(!release_task.is_executed());
        }
    }

    #[test]
    fn a_lock_is_kept_back_for_what_is_left_and_then_released() {
        let rng = SystemRng::new();
        let until = at(0) + LEASE * 2;
        let release_task = ReleaseTask::of_lease(orphaned_owner(None), true, at(0), LEASE);
        let mut release_task = release_task.with_min_hold(until, at(0));
        let life = |release_task: &ReleaseTask| match release_task.verb() {
            Verb::Keep { life, .. } => *life,
            other => panic!("{other:?}"),
        };
        assert_eq!(life(&release_task), LEASE * 2);
        assert!(matches!(
            release_task.failed(at(1), true, &rng),
            Next::Later(_)
        ));
        release_task.refresh_min_hold(at(0) + LEASE);
        assert_eq!(life(&release_task), LEASE, "a repeat must not lengthen it");
        assert_eq!(
            release_task.replied(at(2), &Reply::Released, false),
            Next::Done
        );

        let release_task = ReleaseTask::of_lease(orphaned_owner(None), true, at(0), LEASE);
        let mut release_task = release_task.with_min_hold(until, at(0));
        release_task.failed(at(1), true, &rng);
        release_task.refresh_min_hold(until);
        assert!(!release_task.keeps_lock());
        assert!(matches!(release_task.verb(), Verb::Release { .. }));
    }

    #[test]
    fn a_lock_that_is_kept_back_gives_its_unused_fences_back() {
        let rng = SystemRng::new();
        let (until, unused) = (at(0) + LEASE, Some(GiveBack { used: 1, last: 9 }));
        let ended = OrphanedOwner {
            give_back: unused,
            ..orphaned_owner(None)
        };
        let release_task = ReleaseTask::of_lease(ended, true, at(0), LEASE);
        let mut release_task = release_task.with_min_hold(until, at(0));
        let given_back = |release_task: &ReleaseTask| match release_task.verb() {
            Verb::Keep { give_back, .. } | Verb::HandOver { give_back, .. } => *give_back,
            other => panic!("{other:?}"),
        };
        assert!(release_task.keeps_lock());
        assert_eq!(given_back(&release_task), unused);
        release_task.failed(at(1), true, &rng);
        release_task.refresh_min_hold(until);
        assert!(!release_task.keeps_lock());
        assert_eq!(given_back(&release_task), unused);
    }

    #[test]
    fn an_orphaned_owner_gives_its_fences_back_and_is_withdrawn_while_uncertain() {
        let unused = Some(GiveBack { used: 1, last: 9 });
        let left = OrphanedOwner {
            give_back: unused,
            ..orphaned_owner(Some(at(0) + LEASE))
        };
        let mut release_task = ReleaseTask::of_orphaned_owner(left, at(0), LEASE);
        match release_task.verb() {
            Verb::HandOver { give_back, .. } => assert_eq!(*give_back, unused),
            other => panic!("{other:?}"),
        }
        let next = release_task.replied(at(1), &Reply::Released, false);
        assert!(matches!(next, Next::Later(_)));
        assert!(matches!(release_task.verb(), Verb::Withdraw { .. }));
    }
}
