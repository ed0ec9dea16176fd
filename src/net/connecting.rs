//! Connecting to a server that refuses: all that share a [`Route`](crate::net::route::Route) also share the failure.
//!
//! A server that is down, or rejects the password, does so for everybody. If each lease, release and waiter of a process
//! tried for itself, a thousand of them would make thousands of logins a second.
//!
//! | the last attempt | who needs a connection | result |
//! | --- | --- | --- |
//! | succeeded, or there was none | | connects |
//! | failed | a thread of the library, before the pause is over | gets the failure of that attempt at once, and sends nothing |
//! | failed | the same, after the pause | connects, and the next pause begins |
//! | failed | a call of the program that began before the failure | gets this failure |
//! | failed | a call that began later | connects, because the server may be back |
//!
//! A pause is a quarter of the time for which the server has refused by then, and at most a second. So an outage costs a lease
//! at most a quarter more than the outage itself. The calls do not move the pauses of the library: a program that calls all
//! the time must not keep its leases from being renewed.
//!
//! A connection that fails at its first request counts as refused: a server without a login says only then that it has
//! too many clients, or that it wants a password. An attempt that ran out of time counts for nothing. The time may be that
//! of one caller, and such attempts are slow enough.

use std::time::Duration;

use crate::error::Failure;
use crate::sys::{Mutex, Time};

/// The longest pause between two attempts of the library.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The attempts to connect along a route.
#[derive(Debug, Default)]
pub(crate) struct Connecting(Mutex<Option<Outage>>);

#[derive(Debug)]
struct Outage {
    since: Time,
    /// When a thread of the library last tried, or the outage began.
    tried_at: Time,
    failed_at: Time,
    failure: Failure,
    /// Whether an attempt has succeeded since. The outage goes on if that connection fails at its first request.
    is_over: bool,
}

impl Outage {
    /// Returns whether the pause goes on for the threads of the library. If not, the next attempt begins now.
    fn pauses(&mut self) -> bool {
        let now = Time::now();
        let pause = (self.tried_at.since(self.since) / 4).min(LONGEST_PAUSE);
        if now < self.tried_at + pause {
            return true;
        }
        self.tried_at = now;
        false
    }
}

impl Connecting {
    /// Connects by `connect`, unless the caller gets the last failure: see the table at the top. `begun` is when the call of a
    /// program began, and `None` for a thread of the library.
    pub(crate) fn attempt<T>(
        &self,
        begun: Option<Time>,
        connect: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if let Some(failure) = self.shared(begun) {
            return Err(failure);
        }
        let connected = connect().map_err(Failure::of_connecting);
        match &connected {
            Ok(_) => self.0.lock().iter_mut().for_each(|it| it.is_over = true),
            Err(failure) => self.note(failure),
        }
        connected
    }

    /// Returns the last failure, if it is for this caller too.
    fn shared(&self, begun: Option<Time>) -> Option<Failure> {
        let mut outage = self.0.lock();
        let outage = outage.as_mut().filter(|outage| !outage.is_over)?;
        let is_shared = match begun {
            Some(begun) => outage.failed_at > begun,
            None => outage.pauses(),
        };
        is_shared.then(|| outage.failure.clone())
    }

    /// Notes that the server has refused a connection.
    pub(crate) fn note(&self, failure: &Failure) {
        if failure.timed_out {
            return;
        }
        let mut outage = self.0.lock();
        let now = Time::now();
        let before = outage.take();
        let goes_on = |it: &Outage| !it.is_over || now < it.failed_at + LONGEST_PAUSE * 2;
        let before = before.filter(goes_on);
        *outage = Some(Outage {
            since: before.as_ref().map_or(now, |it| it.since),
            tried_at: before.as_ref().map_or(now, |it| it.tried_at),
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

    /// They may have too little time to connect, so that none of them sees that the server is back.
    #[test]
    fn calls_without_end_do_not_lengthen_an_outage_for_the_leases() {
        let clock = Arc::new(ManualClock::starting_at(Time::now()));
        let _entered = Machine::new(Arc::clone(&clock) as Arc<_>).enter();
        let connecting = Connecting::default();
        let refuse = || Err(refused());
        attempts_within(&clock, &connecting, LONGEST_PAUSE * 8, refuse);
        let is_back = Time::now();
        while connecting.attempt(None, || Ok(())).is_err() {
            assert!(is_back.elapsed() <= LONGEST_PAUSE, "the pause is moved");
            clock.advance(MS);
            let late = Failure {
                timed_out: true,
                ..refused()
            };
            let call = connecting.attempt(Some(Time::now()), || Err::<(), _>(late));
            assert!(
                call.is_err_and(|failure| failure.timed_out),
                "it tries itself"
            );
        }
        // A call that began before another failed has this failure.
        let begun = Time::now();
        clock.advance(MS);
        connecting.note(&refused());
        let shared = connecting.attempt(Some(begun), || -> Result<(), _> { panic!("it is down") });
        assert!(shared.is_err());
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
