//! The linger of a lease: after its last guard, the lease stays with this process for a while. The next lock of the name
//! then sends nothing. This is how a cluster file system caches its locks.
//!
//! Each lease that may linger has one [`Linger`], from its grant to its end. A lease that is `held` has a guard, and an
//! `idle` one has none. In the end the lease is released, or lost, and its [`Linger`] is dropped with it.
//!
//! | state | input | next state | the caller must |
//! | --- | --- | --- | --- |
//! | held | the guard ends, for the first time | idle until [`Linger::ends_at`], which never moves | set a timer for that time |
//! | held | the guard ends before that time | idle | nothing |
//! | held | the guard ends at that time or later | | release the lease |
//! | held | stop | stopped | nothing |
//! | stopped | stop | stopped | nothing |
//! | stopped | the guard ends | | release the lease |
//! | idle | a thread asks that the lease fits, before that time | held | give the thread a guard with the next fence |
//! | idle | a thread asks otherwise | | release the lease, and then let the thread ask Redis |
//! | idle | stop | | release the lease |
//! | any | the lease is lost | | release nothing, and report the loss |
//!
//! These are the stops:
//!
//! | stop | because |
//! | --- | --- |
//! | the timer | locking again does not prolong the linger, so clients that only poll get their chance |
//! | a recall: a message, or "others wait" in the reply to a renewal | another process waits |
//! | the subscription ends | no recall would arrive |
//! | a request of this process for the same key as another kind | this process would wait for itself |
//! | `close` | the process may end |
//!
//! A guard that ends without a subscription, after a recall or after `close` makes its lease stop first. So does the guard
//! of a lease that another process handed over. A lease *fits* a thread if both have the same terms, fences are left, and
//! the lease is healthy. In a forked child there is no input, because each call ends before it looks at the lease.

use std::time::Duration;

use crate::clock::Time;

/// The linger of one lease.
#[derive(Clone, Debug)]
pub(crate) struct Linger {
    length: Duration,
    /// The end, once the lease was idle for the first time.
    ends_at: Option<Time>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held,
    /// Held, and released when the guard ends.
    Stopped,
    Idle,
}

/// The decision that a lease stays without a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stay {
    pub(crate) until: Time,
    /// Whether the lease is idle for the first time, so that it needs a timer.
    pub(crate) is_first: bool,
}

impl Linger {
    /// Returns the linger of a lease that was just granted, and that may be idle for at most `length`.
    pub(crate) fn new(length: Duration) -> Self {
        Self {
            length,
            ends_at: None,
            state: State::Held,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Returns whether a thread may get the lease in memory at `now`, although its quantum is over.
    pub(crate) fn is_open(&self, now: Time) -> bool {
        self.state != State::Stopped && self.ends_at.is_some_and(|ends_at| now < ends_at)
    }

    /// Takes in that the guard has ended, and nobody has the lease next. Returns `None` if the lease must be released.
    pub(crate) fn guard_ended(&mut self, now: Time) -> Option<Stay> {
        debug_assert!(!self.is_idle(), "an idle lease has no guard");
        if self.state == State::Stopped {
            return None;
        }
        let is_first = self.ends_at.is_none();
        let until = *self.ends_at.get_or_insert(now + self.length);
        (now < until).then(|| {
            self.state = State::Idle;
            Stay { until, is_first }
        })
    }

    /// Takes in that a thread gets the lease. Returns whether the lease was idle.
    pub(crate) fn taken(&mut self) -> bool {
        let was_idle = self.is_idle();
        if was_idle {
            self.state = State::Held;
        }
        was_idle
    }

    /// Takes in a stop. Returns true if the lease was idle, and must be released.
    pub(crate) fn stop(&mut self) -> bool {
        let was_idle = self.is_idle();
        self.state = State::Stopped;
        was_idle
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LENGTH: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_end_counts_from_the_first_idle_moment() {
        let mut linger = Linger::new(LENGTH);
        assert!(!linger.is_open(at(5)), "no guard has ended");
        let until = at(110);
        let stay = |is_first| Some(Stay { until, is_first });
        assert_eq!(linger.guard_ended(at(10)), stay(true));
        assert!(linger.is_idle() && linger.is_open(at(109)) && !linger.is_open(at(110)));
        assert!(linger.taken() && !linger.taken());
        assert_eq!(linger.guard_ended(at(109)), stay(false));
        linger.taken();
        assert_eq!(linger.guard_ended(at(110)), None);
    }

    #[test]
    fn after_a_stop_the_lease_is_released_once() {
        let mut idle = Linger::new(LENGTH);
        idle.guard_ended(at(0));
        assert!(idle.stop());
        assert!(!idle.stop() && !idle.is_open(at(1)));
        let mut held = Linger::new(LENGTH);
        assert!(!held.stop() && !held.stop());
        assert_eq!(held.guard_ended(at(1)), None);
    }

    #[derive(Clone, Debug)]
    enum Act {
        End,
        Ask { fits: bool },
        Stop,
    }

    /// The plain model keeps the whole history: when a guard ended, whether a stop came, and whether there is a guard.
    #[derive(Default)]
    struct Model {
        idle_since: Vec<u64>,
        is_stopped: bool,
        is_free: bool,
    }

    impl Model {
        fn is_over(&self, now: u64) -> bool {
            self.is_stopped
                || self
                    .idle_since
                    .first()
                    .is_some_and(|first| now >= first + 100)
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_plain_model(
            acts in proptest::collection::vec(
                (0u64..60, prop_oneof![
                    4 => Just(Act::End),
                    4 => any::<bool>().prop_map(|fits| Act::Ask { fits }),
                    1 => Just(Act::Stop),
                ]),
                1..40,
            )
        ) {
            let (mut linger, mut model, mut now) = (Linger::new(LENGTH), Model::default(), 0);
            let mut releases = 0;
            for (pause, act) in acts {
                now += pause;
                match act {
                    Act::End if !model.is_free => {
                        let is_over = model.is_over(now);
                        let stay = linger.guard_ended(at(now));
                        prop_assert_eq!(stay.is_none(), is_over);
                        if let Some(stay) = stay {
                            prop_assert_eq!(stay.is_first, model.idle_since.is_empty());
                            model.idle_since.push(now);
                            prop_assert_eq!(stay.until, at(model.idle_since[0] + 100));
                            model.is_free = true;
                        } else {
                            releases += 1;
                        }
                    }
                    Act::Ask { fits } if model.is_free => {
                        prop_assert_eq!(linger.is_open(at(now)), !model.is_over(now));
                        if fits && linger.is_open(at(now)) {
                            prop_assert!(linger.taken());
                            model.is_free = false;
                        } else {
                            releases += 1;
                        }
                    }
                    Act::Stop => {
                        let must_release = linger.stop();
                        prop_assert_eq!(must_release, model.is_free);
                        model.is_stopped = true;
                        releases += u32::from(must_release);
                    }
                    Act::End | Act::Ask { .. } => {}
                }
                prop_assert!(releases <= 1);
                if releases == 1 {
                    break;
                }
                prop_assert_eq!(linger.is_idle(), model.is_free);
            }
        }
    }
}
