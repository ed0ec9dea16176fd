//! Connecting to a server that refuses: all that share a [`Route`](super::route::Route) also share the failure.
//!
//! A server that is down, or rejects the password, does so for everybody. If each lease, release and waiter of a process
//! tried for itself, a thousand of them would make thousands of logins a second.
//!
//! | the last attempt | somebody needs a connection | result |
//! | --- | --- | --- |
//! | succeeded, or there was none | | connects |
//! | failed | before the pause is over | a thread of the library gets the failure of that attempt at once, and sends nothing; a call sleeps until the pause is over, unless the attempt failed after the call had begun |
//! | failed | after the pause | connects, and the next pause begins |
//!
//! A pause is a quarter of the time for which the server has refused by then. So an outage costs a lease at most a quarter
//! more than the outage itself. A caller gets the failure as its error. So that failure is never older than the call, and
//! the pause is short: see [`LONGEST_FOR_CALLERS`].
//!
//! A connection that fails at its first request counts as refused: a server without a login says only then that it has
//! too many clients, or that it wants a password. An attempt that ran out of time counts for nothing. The time may be that
//! of one caller, and such attempts are slow enough.

use std::time::Duration;

use crate::error::Failure;
use crate::sys::{Mutex, Time, thread};

/// The longest pause for the threads of the library.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause for the calls of the program.
const LONGEST_FOR_CALLERS: Duration = Duration::from_millis(50);

/// The attempts to connect along a route.
#[derive(Debug, Default)]
pub(crate) struct Connecting(Mutex<Option<Outage>>);

#[derive(Debug)]
struct Outage {
    since: Time,
    tried_at: Time,
    failed_at: Time,
    failure: Failure,
    /// Whether an attempt has succeeded since. The outage goes on if that connection fails at its first request.
    is_over: bool,
}

impl Connecting {
    /// Connects by `connect`, unless the last attempt has failed and its pause goes on. A call that began at `begun` sleeps
    /// until then, if the attempt had failed before.
    pub(crate) fn attempt<T>(
        &self,
        begun: Option<Time>,
        connect: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        loop {
            let pause = self.pause(begun)?;
            if pause.is_zero() {
                break;
            }
            thread::sleep(pause);
        }
        let connected = connect().map_err(Failure::of_connecting);
        match &connected {
            Ok(_) => self.0.lock().iter_mut().for_each(|it| it.is_over = true),
            Err(failure) => self.note(failure),
        }
        connected
    }

    /// Returns how long to sleep before the next attempt, which begins now if that is zero.
    fn pause(&self, begun: Option<Time>) -> Result<Duration, Failure> {
        let mut outage = self.0.lock();
        let Some(outage) = outage.as_mut().filter(|outage| !outage.is_over) else {
            return Ok(Duration::ZERO);
        };
        let now = Time::now();
        let longest = begun.map_or(LONGEST_PAUSE, |_| LONGEST_FOR_CALLERS);
        let pause = (outage.tried_at.since(outage.since) / 4).min(longest);
        let left = (outage.tried_at + pause).since(now);
        if left.is_zero() {
            outage.tried_at = now;
        } else if begun.is_none_or(|begun| outage.failed_at > begun) {
            return Err(outage.failure.clone());
        }
        Ok(left)
    }

    /// Notes that the server has refused a connection.
    pub(crate) fn note(&self, failure: &Failure) {
        if failure.timed_out {
            return;
        }
        let mut outage = self.0.lock();
        let now = Time::now();
        let before = outage.take();
        let goes_on = |it: &Outage| !it.is_over || now < it.tried_at + LONGEST_PAUSE * 2;
        *outage = Some(Outage {
            since: before.filter(goes_on).map_or(now, |it| it.since),
            tried_at: now,
            failed_at: now,
            failure: failure.clone().of_connecting(),
            is_over: false,
        });
    }

    /// Returns why the server could not be connected to last, if no later attempt has succeeded.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let outage = self.0.lock();
        let outage = outage.as_ref().filter(|outage| !outage.is_over)?;
        Some(outage.failure.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{FailureKind, Outcome};
    use crate::sys::test_machine::manual::ManualClock;
    use crate::sys::{Arc, Machine};

    const MS: Duration = Duration::from_millis(1);

    /// Tries every millisecond for this long. Returns how many attempts were made.
    fn attempts_within(
        clock: &ManualClock,
        connecting: &Connecting,
        time: Duration,
        mut connect: impl FnMut() -> Result<(), Failure>,
    ) -> u32 {
        let mut made = 0;
        for _ in 0..time.as_millis() {
            clock.advance(MS);
            let mut connect = || {
                made += 1;
                connect()
            };
            connecting.attempt(None, &mut connect).ok();
        }
        made
    }

    fn refused() -> Failure {
        let words = "the server rejects the login";
        Failure::plain(FailureKind::Denied, Outcome::NotExecuted, words)
    }

    #[test]
    fn an_hour_of_refusal_takes_an_attempt_a_second_and_a_caller_soon_sees_its_end() {
        let clock = Arc::new(ManualClock::starting_at(Time::now()));
        let _entered = Machine::new(Arc::clone(&clock) as Arc<_>).enter();
        let connecting = Connecting::default();
        let hour = Duration::from_hours(1);
        let refuse = || Err(refused());
        let made = attempts_within(&clock, &connecting, hour, refuse);
        assert!((3_590..3_640).contains(&made), "{made}");
        let failure = connecting.attempt(None, || -> Result<(), _> { panic!("the pause goes on") });
        let failure = failure.expect_err("the last failure");
        assert_eq!(failure.kind, FailureKind::Denied);
        assert!(failure.is_of_the_connection(), "it is no answer");
        clock.advance(LONGEST_FOR_CALLERS);
        let connected = connecting.attempt(Some(Time::now()), || Ok(()));
        connected.expect("the server is back");
        assert!(connecting.failure().is_none());
        connecting.attempt(None, || Ok(())).expect("for all");
    }

    #[test]
    fn an_outage_costs_at_most_a_quarter_more() {
        let clock = Arc::new(ManualClock::starting_at(Time::now()));
        let _entered = Machine::new(Arc::clone(&clock) as Arc<_>).enter();
        for outage in [8, 80, 800].map(|ms| MS * ms) {
            let connecting = Connecting::default();
            let refuse = || Err(refused());
            attempts_within(&clock, &connecting, outage, refuse);
            let quarter = outage / 4 + MS;
            let made = attempts_within(&clock, &connecting, quarter, || Ok(()));
            assert!(made > 0, "{outage:?}");
        }
    }

    /// A server without a login, behind which nothing is.
    #[test]
    fn a_connection_that_fails_at_its_first_request_continues_the_outage() {
        let clock = Arc::new(ManualClock::starting_at(Time::now()));
        let _entered = Machine::new(Arc::clone(&clock) as Arc<_>).enter();
        let connecting = Connecting::default();
        let mut made = 0;
        for _ in 0..60_000 {
            clock.advance(MS);
            if connecting.attempt(None, || Ok(())).is_ok() {
                made += 1;
                connecting.note(&refused());
            }
        }
        assert!((50..120).contains(&made), "{made}");
        // An attempt that ran out of time is none.
        let connecting = Connecting::default();
        let late = Failure {
            timed_out: true,
            ..refused()
        };
        connecting.note(&late);
        assert!(connecting.failure().is_none());
    }
}
