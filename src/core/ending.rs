//! The way out: how a tenure, or what an attempt left behind, is ended in Redis.
//!
//! The guard's thread sends the first request. The renewal thread repeats a request that failed until the
//! key has expired. That may be long after the lease of the thread that ends it: the time until which Redis may keep
//! the key goes with its owner ([`Leftover::kept_until`]).
//!
//! | request | answer | next |
//! | --- | --- | --- |
//! | release | released, not owner | settled |
//! | release | others wait | hand over, at once |
//! | hand over, keep, cancel | released, not owner | settled |
//! | keep | none by the end of `min_hold` | release; hand over where it has fences to give back |
//! | any | failed | the same again after a pause, until Redis has dropped the key; then it is given up, and not settled |
//!
//! Settled is not final while the owner is in doubt: a request of unknown outcome may be carried out after its
//! release. The owner is then cancelled again and again until a lease has passed since that request was sent.

use std::time::Duration;

use crate::clock::Time;
use crate::core::attempt::Leftover;
use crate::message::{GiveBack, Gone, Reply, Verb};
use crate::random::{Chance, jittered};
use crate::sync::Arc;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Pauses grow to this while the server is out of reach. After any other answer they grow on, to a sixtieth of the time
/// for which the key may live.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send [`Ending::verb`].
    Send,
    /// The same, but not before.
    Later(Time),
    /// Nothing of it is left.
    Done,
}

#[derive(Debug)]
pub(crate) struct Ending {
    verb: Verb,
    /// Until when "not there" is not final.
    doubt: Option<Time>,
    /// When Redis has dropped the key by itself.
    over: Time,
    /// Until when the lock is kept from everybody, whoever released it (`min_hold`).
    kept_back_until: Option<Time>,
    pause: Duration,
    longest_pause: Duration,
    /// Whether an earlier request may have done the work that a later one then finds done.
    repeated: bool,
    settled: bool,
    gone: Option<Gone>,
}

impl Ending {
    /// Ends a tenure, whose key lives for `lease` or until what the tenure knows of.
    pub(crate) fn of_tenure(tenure: Leftover, contended: bool, now: Time, lease: Duration) -> Self {
        let Leftover {
            owner,
            units,
            doubt,
            kept_until,
            give_back,
        } = tenure;
        let verb = if contended || give_back.is_some() {
            Verb::HandOver {
                owner,
                units,
                give_back,
            }
        } else {
            Verb::Release { owner, units }
        };
        Self::new(verb, doubt, kept_until, now, lease)
    }

    /// Ends something that is no tenure, or no longer.
    pub(crate) fn of_leftover(leftover: Leftover, now: Time, lease: Duration) -> Self {
        let (owner, units) = (leftover.owner, leftover.units);
        let verb = match leftover.give_back {
            // It was a tenure. While it is in doubt, cancels follow.
            Some(_) => Verb::HandOver {
                owner,
                units,
                give_back: leftover.give_back,
            },
            None => Verb::Cancel { owner, units },
        };
        Self::new(verb, leftover.doubt, leftover.kept_until, now, lease)
    }

    fn new(
        verb: Verb,
        doubt: Option<Time>,
        kept_until: Option<Time>,
        now: Time,
        lease: Duration,
    ) -> Self {
        let doubt = doubt.filter(|doubt| *doubt > now);
        // A lock that is taken at the last moment of the doubt lives for a lease from then.
        let over = (doubt.unwrap_or(now) + lease).max(kept_until.unwrap_or(now));
        Self {
            verb,
            doubt,
            over,
            kept_back_until: None,
            pause: FIRST_PAUSE,
            longest_pause: LONGEST_PAUSE.max(over.since(now) / 60),
            repeated: false,
            settled: false,
            gone: None,
        }
    }

    /// Makes it keep the lock from everybody until then.
    pub(crate) fn keeping_back(mut self, until: Time, now: Time) -> Self {
        self.kept_back_until = Some(until);
        self.over = self.over.max(until);
        self.brought_up_to(now);
        self
    }

    /// Returns whether it keeps the lock from everybody, threads of this process included.
    pub(crate) fn keeps_back(&self) -> bool {
        matches!(self.verb, Verb::Keep { .. })
    }

    /// Sets for how long the lock is kept back, if that is counted from `now`. Called before each request.
    pub(crate) fn brought_up_to(&mut self, now: Time) {
        let Some(until) = self.kept_back_until else {
            return;
        };
        if let Verb::Cancel { .. } = self.verb {
            return;
        }
        let (owner, units, give_back) = given_up(&self.verb);
        let life = until.since(now);
        self.verb = if !life.is_zero() {
            Verb::Keep {
                owner,
                units,
                life,
                give_back,
            }
        } else if give_back.is_some() {
            Verb::HandOver {
                owner,
                units,
                give_back,
            }
        } else {
            Verb::Release { owner, units }
        };
        if life.is_zero() {
            self.kept_back_until = None;
        }
    }

    pub(crate) fn verb(&self) -> &Verb {
        &self.verb
    }

    /// Takes back the end of a tenure that was never sent.
    pub(crate) fn unsent(self) -> Leftover {
        debug_assert!(!self.repeated && !self.settled);
        let (owner, units, give_back) = given_up(&self.verb);
        Leftover {
            owner,
            units,
            doubt: self.doubt,
            kept_until: Some(self.over),
            give_back,
        }
    }

    /// Whether the server has answered at all: what is left then is only caution.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Where the lock had gone, if the very first answer was that this owner does not hold it.
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
        self.settled = true;
        self.repeated = true;
        let Some(doubt) = self.doubt.filter(|doubt| *doubt > now) else {
            return Next::Done;
        };
        // A request that Redis carries out later may take the lock, and may also queue for it.
        let (owner, units, _) = given_up(&self.verb);
        self.verb = Verb::Cancel { owner, units };
        Next::Later((now + self.next_pause()).min(doubt))
    }

    /// `passes`: whether the server was only out of reach, so that a link that comes back is noticed soon.
    pub(crate) fn failed(&mut self, now: Time, passes: bool, chance: &dyn Chance) -> Next {
        self.repeated = true;
        if now >= self.over {
            return Next::Done;
        }
        let mut pause = self.next_pause();
        if passes {
            pause = pause.min(LONGEST_PAUSE);
        }
        Next::Later(now + jittered(chance, pause))
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(self.longest_pause);
        pause
    }
}

/// Returns what a request gives up: the owner, how much of the lock it has, and its unused fences.
fn given_up(verb: &Verb) -> (Arc<str>, u32, Option<GiveBack>) {
    let (owner, units, give_back) = match verb {
        Verb::Release { owner, units } | Verb::Cancel { owner, units } => (owner, units, None),
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
            unreachable!("an ending only gives up")
        }
    };
    (Arc::clone(owner), *units, give_back)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SystemChance;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn owner() -> Arc<str> {
        "lh1:u:l".into()
    }

    fn leftover(doubt: Option<Time>) -> Leftover {
        Leftover {
            owner: owner(),
            units: 1,
            doubt,
            kept_until: None,
            give_back: None,
        }
    }

    #[test]
    fn an_uncontended_release_is_one_request() {
        let mut ending = Ending::of_tenure(leftover(None), false, at(0), LEASE);
        assert!(matches!(ending.verb(), Verb::Release { .. }));
        assert_eq!(ending.replied(at(1), &Reply::Released, false), Next::Done);
        assert_eq!(ending.gone(), None);
    }

    #[test]
    fn a_release_that_finds_waiters_hands_over() {
        let mut ending = Ending::of_tenure(leftover(None), false, at(0), LEASE);
        assert_eq!(ending.replied(at(1), &Reply::Contended, false), Next::Send);
        assert!(matches!(ending.verb(), Verb::HandOver { .. }));
        assert!(!ending.is_settled());
        assert_eq!(ending.replied(at(2), &Reply::HandedOver, false), Next::Done);
    }

    #[test]
    fn not_there_is_a_loss_only_on_the_first_answer() {
        let gone = Reply::NotOwner(Gone::Taken);
        let mut ending = Ending::of_tenure(leftover(None), true, at(0), LEASE);
        ending.replied(at(1), &gone, false);
        assert_eq!(ending.gone(), Some(Gone::Taken));

        let mut ending = Ending::of_tenure(leftover(None), true, at(0), LEASE);
        ending.failed(at(1), true, &SystemChance::new());
        ending.replied(at(2), &gone, false);
        assert_eq!(ending.gone(), None);

        let mut ending = Ending::of_tenure(leftover(None), true, at(0), LEASE);
        ending.replied(at(1), &gone, true);
        assert_eq!(ending.gone(), None);
    }

    #[test]
    fn an_owner_in_doubt_is_cancelled_until_a_lease_has_passed() {
        let mut ending = Ending::of_leftover(leftover(Some(at(0) + LEASE)), at(0), LEASE);
        let mut now = at(0);
        let mut requests = 0;
        loop {
            requests += 1;
            match ending.replied(now, &Reply::NotOwner(Gone::Removed), false) {
                Next::Later(later) => {
                    assert!(later > now && later <= at(0) + LEASE);
                    now = later;
                }
                Next::Done => break,
                Next::Send => panic!("nothing to hand over"),
            }
            assert!(ending.is_settled());
        }
        assert_eq!(now, at(0) + LEASE, "given up early");
        assert!((10..60).contains(&requests), "{requests} requests");
    }

    #[test]
    fn failures_are_repeated_until_the_lease_is_over() {
        let chance = SystemChance::new();
        let mut ending = Ending::of_tenure(leftover(None), false, at(0), LEASE);
        let mut now = at(0);
        while let Next::Later(later) = ending.failed(now, false, &chance) {
            assert!(later > now);
            now = later;
        }
        assert!(now >= at(0) + LEASE);
        assert!(!ending.is_settled());
    }

    #[test]
    fn an_ending_is_repeated_for_as_long_as_the_key_may_live() {
        let chance = SystemChance::new();
        let kept_until = at(0) + LEASE * 20;
        let kept = Leftover {
            kept_until: Some(kept_until),
            ..leftover(None)
        };
        let taken_back = Ending::of_tenure(kept.clone(), false, at(0), LEASE).unsent();
        assert_eq!(taken_back.kept_until, Some(kept_until));
        for mut ending in [
            Ending::of_tenure(kept, false, at(0), LEASE),
            Ending::of_leftover(taken_back, at(0), LEASE),
        ] {
            let mut now = at(0);
            while let Next::Later(later) = ending.failed(now, true, &chance) {
                assert!(
                    later.since(now) <= LONGEST_PAUSE,
                    "a link that is back waits"
                );
                now = later;
            }
            assert!(now >= kept_until, "given up early");
            assert!(!ending.is_settled());
        }
    }

    #[test]
    fn a_lock_is_kept_back_for_what_is_left_and_then_released() {
        let chance = SystemChance::new();
        let until = at(0) + LEASE * 2;
        let ending = Ending::of_tenure(leftover(None), true, at(0), LEASE);
        let mut ending = ending.keeping_back(until, at(0));
        let life = |ending: &Ending| match ending.verb() {
            Verb::Keep { life, .. } => *life,
            other => panic!("{other:?}"),
        };
        assert_eq!(life(&ending), LEASE * 2);
        assert!(matches!(
            ending.failed(at(1), true, &chance),
            Next::Later(_)
        ));
        ending.brought_up_to(at(0) + LEASE);
        assert_eq!(life(&ending), LEASE, "a repeat must not lengthen it");
        assert_eq!(ending.replied(at(2), &Reply::Released, false), Next::Done);

        let ending = Ending::of_tenure(leftover(None), true, at(0), LEASE);
        let mut ending = ending.keeping_back(until, at(0));
        ending.failed(at(1), true, &chance);
        ending.brought_up_to(until);
        assert!(!ending.keeps_back());
        assert!(matches!(ending.verb(), Verb::Release { .. }));
    }

    #[test]
    fn a_lock_that_is_kept_back_gives_its_unused_fences_back() {
        let chance = SystemChance::new();
        let (until, unused) = (at(0) + LEASE, Some(GiveBack { used: 1, last: 9 }));
        let tenure = Leftover {
            give_back: unused,
            ..leftover(None)
        };
        let ending = Ending::of_tenure(tenure, true, at(0), LEASE);
        let mut ending = ending.keeping_back(until, at(0));
        let given_back = |ending: &Ending| match ending.verb() {
            Verb::Keep { give_back, .. } | Verb::HandOver { give_back, .. } => *give_back,
            other => panic!("{other:?}"),
        };
        assert!(ending.keeps_back());
        assert_eq!(given_back(&ending), unused);
        ending.failed(at(1), true, &chance);
        ending.brought_up_to(until);
        assert!(!ending.keeps_back());
        assert_eq!(given_back(&ending), unused);
    }

    #[test]
    fn a_leftover_gives_its_unused_fences_back_and_is_cancelled_while_in_doubt() {
        let unused = Some(GiveBack { used: 1, last: 9 });
        let left = Leftover {
            give_back: unused,
            ..leftover(Some(at(0) + LEASE))
        };
        let mut ending = Ending::of_leftover(left, at(0), LEASE);
        match ending.verb() {
            Verb::HandOver { give_back, .. } => assert_eq!(*give_back, unused),
            other => panic!("{other:?}"),
        }
        let next = ending.replied(at(1), &Reply::Released, false);
        assert!(matches!(next, Next::Later(_)));
        assert!(matches!(ending.verb(), Verb::Cancel { .. }));
    }
}
