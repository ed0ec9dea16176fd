//! The linger of a lease: after its last guard, the lease stays with this process for a while. The next lock of the name
//! then sends nothing. This is how a cluster file system caches its locks.
//!
//! A lease is *idle* while no guard has it, and *held* otherwise. Each lease has one [`Linger`], from its grant to its end.
//!
//! | the lease | input | the lease then | the caller must |
//! | --- | --- | --- | --- |
//! | held | the guard ends, for the first time | idle; its linger has an end from now on, which never moves | set a timer for that end |
//! | held | the guard ends before that end | idle | nothing |
//! | held | the guard ends at that end or later | | release the lease |
//! | held | stop | held; its linger is over | nothing |
//! | idle | a thread that the lease fits asks for the lock, before that end | held | give the thread a guard with the next fence |
//! | idle | a thread asks otherwise | | have that thread ask Redis; its first request takes the lease over |
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
//! A guard that ends without a subscription, after a recall, at its `max_hold` or after `close` leaves no idle lease. Nor
//! does the guard of a lease that another process handed over. A lease *fits* a thread if both have the same terms and the
//! same [`LingerOptions`], fences are left, and the lease is healthy. In a forked child there is no input, because each call
//! ends before it looks at the lease.
//!
//! The queue of a name keeps an idle lease like a held one ([`super::queue`]): it has no hold.

use std::time::Duration;

use crate::config::Options;
use crate::sys::Time;

/// The options of a handle whose leases may linger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LingerOptions {
    /// How long a lease may stay after the end of its first guard.
    pub(crate) length: Duration,
    /// The `max_hold` of the guards.
    pub(crate) max_hold: Option<Duration>,
}

impl LingerOptions {
    /// Returns these options of a handle. Returns `None` if its leases never linger.
    pub(crate) fn of(options: &Options) -> Option<Self> {
        (!options.linger.is_zero()).then_some(Self {
            length: options.linger,
            max_hold: options.max_hold,
        })
    }
}

/// The end of the linger of one lease, once the lease was idle for the first time.
#[derive(Debug, Default)]
pub(crate) struct Linger(Option<Time>);

impl Linger {
    /// Returns whether a thread may get the lease in memory at `now`, although its quantum is over.
    pub(crate) fn is_open(&self, now: Time) -> bool {
        self.0.is_some_and(|end| now < end)
    }

    /// Takes in that the guard has ended, and nobody has the lease next. The lease may stay for `length`, counted from the
    /// first call. Returns the end of that time, or `None` if the lease must be released.
    pub(crate) fn guard_ended(&mut self, now: Time, length: Duration) -> Option<Time> {
        let end = *self.0.get_or_insert(now + length);
        (now < end).then_some(end)
    }

    /// Ends the linger.
    pub(crate) fn stop(&mut self) {
        self.0 = Some(Time::from_nanos(0));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Settings;

    const LENGTH: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_end_counts_from_the_first_idle_moment() {
        let mut linger = Linger::default();
        assert!(!linger.is_open(at(5)), "no guard has ended");
        assert_eq!(linger.guard_ended(at(10), LENGTH), Some(at(110)));
        assert!(linger.is_open(at(109)) && !linger.is_open(at(110)));
        assert_eq!(linger.guard_ended(at(109), LENGTH), Some(at(110)));
        assert_eq!(linger.guard_ended(at(110), LENGTH), None);
    }

    #[test]
    fn a_lease_lingers_if_its_handle_says_for_how_long() {
        let options = |linger| Options {
            linger,
            max_hold: Some(LENGTH * 9),
            ..Settings::default().options
        };
        assert_eq!(LingerOptions::of(&options(Duration::ZERO)), None);
        let lingers = LingerOptions {
            length: LENGTH,
            max_hold: Some(LENGTH * 9),
        };
        assert_eq!(LingerOptions::of(&options(LENGTH)), Some(lingers));
    }

    #[test]
    fn after_a_stop_the_lease_does_not_become_idle() {
        for ended in [false, true] {
            let mut linger = Linger::default();
            if ended {
                linger.guard_ended(at(1), LENGTH);
            }
            linger.stop();
            assert!(!linger.is_open(at(2)));
            assert_eq!(linger.guard_ended(at(2), LENGTH), None);
        }
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
            let (mut linger, mut model, mut now) = (Linger::default(), Model::default(), 0);
            let mut releases = 0;
            for (pause, act) in acts {
                now += pause;
                match act {
                    Act::End if !model.is_free => {
                        let is_over = model.is_over(now);
                        let until = linger.guard_ended(at(now), LENGTH);
                        prop_assert_eq!(until.is_none(), is_over);
                        if let Some(until) = until {
                            model.idle_since.push(now);
                            prop_assert_eq!(until, at(model.idle_since[0] + 100));
                            model.is_free = true;
                        } else {
                            releases += 1;
                        }
                    }
                    Act::Ask { fits } if model.is_free => {
                        prop_assert_eq!(linger.is_open(at(now)), !model.is_over(now));
                        if fits && linger.is_open(at(now)) {
                            model.is_free = false;
                        } else {
                            releases += 1;
                        }
                    }
                    Act::Stop => {
                        linger.stop();
                        model.is_stopped = true;
                        releases += u32::from(model.is_free);
                    }
                    Act::End | Act::Ask { .. } => {}
                }
                prop_assert!(releases <= 1);
                if releases == 1 {
                    break;
                }
            }
        }
    }
}
