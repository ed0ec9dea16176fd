//! The time of a call: when it ends, who may end it earlier, and which of its phases runs.
//!
//! A deadline becomes narrower on its way down. The engine makes that of the call. Each [`Phase`] takes a part of it
//! ([`Deadline::phase`]), and the socket waits for as long as that part lasts.

use crate::sys::Time;
use std::io;
use std::time::Duration;

/// How long a call waits for a lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It does not wait: Redis's first answer is its result.
    Try,
    Until(Time),
    Forever,
}

impl Wait {
    /// Returns when the wait ends. A try ends with its answer instead.
    pub(crate) fn end(self) -> Option<Time> {
        match self {
            Self::Until(end) => Some(end),
            Self::Try | Self::Forever => None,
        }
    }

    /// Returns whether the time of the wait is over at `now`.
    pub(crate) fn is_over(self, now: Time) -> bool {
        self.end().is_some_and(|end| now >= end)
    }
}

/// The shortest time of a request, however late it is sent. With less time no request would succeed, and the result
/// would be "unavailable" although the server would have granted the lock.
pub(crate) const LEAST: Duration = Duration::from_millis(100);

/// How often a thread looks whether its call is over, while it waits for a pooled connection or for a master.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The shortest time of a phase, and the longest time of a wait without an end.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The time of a call, or of one of its phases.
#[derive(Clone, Copy)]
pub(crate) struct Deadline<'a> {
    /// `None` if only the phases have limits.
    end: Option<Time>,
    /// The time, as long as the thread has not waited since it read the clock.
    pub(crate) now: Option<Time>,
    phase: Phase,
    /// How long the call waits for a free connection.
    pub(crate) checkout: Duration,
    /// Whether the call goes before those of threads that only ask for a lock.
    pub(crate) has_priority: bool,
    /// Whether the caller waits for the lock, and so through a failure of the server.
    pub(crate) is_of_a_wait: bool,
    /// Whether a read has taken what was there after the end.
    pub(crate) has_looked: bool,
    /// Returns whether the caller has ended the call. A waiting thread calls it every [`LOOK_EVERY`].
    is_over: Option<&'a (dyn Fn() -> bool + Sync)>,
}

/// A part of a call, with its own limit.
#[derive(Clone, Copy)]
pub(crate) enum Phase {
    /// Waiting for a master, or for the map of a cluster.
    Master,
    /// Waiting for a free connection.
    Checkout,
    Connect,
    /// The login, and the question of the first connection.
    LogIn,
    /// A command and its answer.
    Request,
}

impl Default for Deadline<'_> {
    /// Returns the deadline of a call whose phases alone have limits.
    fn default() -> Self {
        Self {
            end: None,
            now: None,
            phase: Phase::Request,
            checkout: LONGEST,
            has_priority: false,
            is_of_a_wait: false,
            has_looked: false,
            is_over: None,
        }
    }
}

impl Deadline<'_> {
    /// Returns the deadline of a request that begins at `now`, and may take this time.
    pub(crate) fn starting(now: Time, limit: Duration) -> Self {
        Self {
            end: Some(now + limit.min(LONGEST)),
            ..Self::default()
        }
    }

    /// Returns the deadline of a request that begins now on this thread's machine, and may take this time.
    pub(crate) fn after(limit: Duration) -> Self {
        Self::starting(Time::now(), limit)
    }

    /// Returns the same for a call that also ends once `is_over` returns true.
    pub(crate) fn ended_by(self, is_over: &(dyn Fn() -> bool + Sync)) -> Deadline<'_> {
        Deadline {
            is_over: Some(is_over),
            ..self
        }
    }

    /// Returns the deadline of a phase that begins now, and may take `limit`. The phase has at least [`SHORTEST`].
    pub(crate) fn phase(&mut self, phase: Phase, limit: Duration) -> Self {
        let now = self.now();
        // The thread waits in the phase.
        self.now = None;
        let mut end = now + limit.min(LONGEST);
        if let Some(whole) = self.end {
            end = end.min(whole);
        }
        Self {
            end: Some(end.max(now + SHORTEST)),
            now: Some(now),
            phase,
            ..*self
        }
    }

    /// Goes on after the wait for a connection. The request has at least [`LEAST`] from now on.
    pub(crate) fn after_checkout(&mut self, wait: &Self) {
        // If the thread has not waited, the clock is not read again.
        self.now = wait.now;
        if let Some(end) = self.end {
            self.end = Some(end.max(self.now() + LEAST));
        }
    }

    /// Moves the end by the time since `begun`, because what the thread did then is no part of the limit.
    pub(crate) fn leave_out(&mut self, begun: Time) {
        self.now = None;
        let took = self.now().since(begun);
        self.end = self.end.map(|end| end + took);
    }

    /// Returns the time. Reads the clock if the thread may have waited since the last reading.
    pub(crate) fn now(&mut self) -> Time {
        *self.now.get_or_insert_with(Time::now)
    }

    /// Returns how long the thread may wait now.
    pub(crate) fn left(&mut self) -> Duration {
        let now = self.now();
        self.now = None;
        match self.end {
            Some(end) => end.since(now),
            None => LONGEST,
        }
    }

    /// Returns when the time of the call is over.
    pub(crate) fn end(&self) -> Time {
        self.end.unwrap_or(Time::NEVER)
    }

    /// Returns whether the caller has ended the call.
    pub(crate) fn is_over(&self) -> bool {
        match self.is_over {
            Some(is_over) => is_over(),
            None => false,
        }
    }

    /// Returns how long the thread may wait before it looks again; `None` if the time or the call is over.
    pub(crate) fn next_look(&mut self) -> Option<Duration> {
        let left = self.left();
        (!left.is_zero() && !self.is_over()).then(|| left.min(LOOK_EVERY))
    }

    /// Returns the error of a thread whose time is over. It names the phase.
    pub(crate) fn timed_out(&self) -> io::Error {
        self.phase.timed_out()
    }
}

impl Phase {
    /// Returns the error of a thread whose time was over in this phase.
    pub(crate) fn timed_out(self) -> io::Error {
        let words = match self {
            Self::Master => "timed out waiting for a master",
            Self::Checkout => "timed out waiting for a pooled connection",
            Self::Connect => "timed out while connecting",
            Self::LogIn => "timed out during the login",
            Self::Request => "timed out waiting for the answer",
        };
        io::Error::new(io::ErrorKind::TimedOut, words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_phase_ends_no_later_than_its_call_but_has_a_moment() {
        let mut call = Deadline::after(MINUTE);
        assert!(call.phase(Phase::Connect, MINUTE / 2).end < call.end);
        assert_eq!(call.phase(Phase::Connect, MINUTE * 2).end, call.end);
        assert_eq!(call.phase(Phase::Connect, Duration::MAX).end, call.end);
        let mut over = Deadline::after(Duration::ZERO);
        assert!(over.phase(Phase::Request, MINUTE).end > over.end);
        let mut without_end = Deadline::default();
        assert!(without_end.phase(Phase::Request, MINUTE).left() <= MINUTE);
        assert!(without_end.end.is_none());
    }

    #[test]
    fn the_end_moves_for_the_least_time_and_for_what_is_left_out() {
        let mut late = Deadline::after(Duration::ZERO);
        assert!(late.left().is_zero());
        late.after_checkout(&late.clone());
        assert!(!late.left().is_zero());
        let mut call = Deadline::after(MINUTE);
        let (end, begun) = (call.end, call.now());
        call.after_checkout(&call.clone());
        assert_eq!(call.end, end);
        call.leave_out(begun);
        let moved = call.end.zip(end).map(|(later, end)| later.since(end));
        assert_eq!(moved, Some(call.now().since(begun)));
    }

    #[test]
    fn a_thread_looks_until_the_time_or_the_call_is_over() {
        let mut call = Deadline::after(MINUTE);
        assert_eq!(call.next_look(), Some(LOOK_EVERY));
        assert_eq!(Deadline::after(Duration::ZERO).next_look(), None);
        assert_eq!(call.ended_by(&|| true).next_look(), None);
        assert_eq!(call.ended_by(&|| false).next_look(), Some(LOOK_EVERY));
    }
}
