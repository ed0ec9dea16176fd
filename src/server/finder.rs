//! The thread that finds a server whose place changes: the master behind sentinels, or the masters of a cluster.
//!
//! A [`Search`] does one check. All that does not depend on whom it asks is here:
//!
//! | event | the finder |
//! | --- | --- |
//! | a caller waits for the first time | starts the thread |
//! | a check has found a master, or a map of masters | publishes this result, and lets the waiting callers go on. Another result than the last has the next number |
//! | a check has failed | suspects the last result, notes the failure, and wakes the waiting callers |
//! | a connection to the found server fails | suspects the last result, and wakes the thread for another check |
//! | a check that began after the suspicion has the same result | trusts the result again |
//! | a check that was under way at the suspicion has the same result | goes on suspecting the result |
//! | a check has another result | trusts the new result |
//! | the same, and there was a result before (a failover) | notes the time before it publishes, and the renewal thread sees it: a server of the new result may lack what the last ones had |
//! | the check panics | as if it had failed |
//! | nobody uses the servers any more | ends the thread |
//!
//! A waiting caller looks at the result after each check. It gets a failure if its time is over. It gets a failure at once
//! if the failure is not transient: another check would find the same.

use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::error::{Failure, Outcome};
use crate::logging;
use crate::net::deadline::Deadline;
use crate::net::refusal::unavailable;
use crate::panics::survived;
use crate::sys::thread::{self, Parker};
use crate::sys::{Arc, AtomicBool, AtomicU64, Condvar, Machine, Mutex, Ordering, Time};

/// The pause after a panic. Repeated panics must not use a whole core.
const PANIC_PAUSE: Duration = Duration::from_millis(50);

/// The part of the thread that knows whom to ask.
pub(crate) trait Search<T>: Send {
    /// Does one check, and publishes its result. Returns early if the thread must end.
    ///
    /// # Errors
    ///
    /// Returns the reason why nothing was found.
    fn check(&mut self, finder: &Arc<Finder<T>>) -> Result<(), Failure>;

    /// Returns how long after the end of the last check the next one begins.
    fn pause(&self, finder: &Finder<T>) -> Duration;
}

/// The last result, and the thread that checks it.
pub(crate) struct Finder<T> {
    /// The name of the thread.
    name: &'static str,
    /// Those whom the thread asks, in words.
    asked: String,
    /// Empty while the thread runs, because the thread has it.
    search: Mutex<Option<Box<dyn Search<T>>>>,
    findings: Mutex<Findings<T>>,
    /// Notified after each check.
    checked: Condvar,
    /// Where the thread sleeps.
    sleeps: Parker,
    /// When the last failover was noticed, in nanoseconds of the clock; 0 if there was none.
    failed_over_at: AtomicU64,
    /// Whether nobody uses the servers any more.
    is_over: AtomicBool,
}

/// The outcome of all checks so far.
pub(crate) struct Findings<T> {
    is_started: bool,
    found: Option<T>,
    /// The number of the last result: each other result has the next one.
    number: u64,
    is_suspected: bool,
    /// How often a result was suspected.
    suspicions: u64,
    /// Whether there is a reason for a check that came after the last check began.
    is_check_due: bool,
    /// How many checks have failed.
    failed: u64,
    /// Why the last of them has failed, or what the check under way has learnt by now. `None` if a later check has found
    /// something.
    failure: Option<Failure>,
}

impl<T> Findings<T> {
    /// Returns the last result.
    pub(crate) fn found(&self) -> Option<&T> {
        self.found.as_ref()
    }

    /// Returns the same with its number, unless it is suspected.
    pub(crate) fn trusted(&self) -> Option<(u64, &T)> {
        let found = self.found.as_ref().filter(|_| !self.is_suspected);
        found.map(|found| (self.number, found))
    }
}

impl<T: Clone + Send + 'static> Finder<T> {
    pub(crate) fn new(name: &'static str, asked: String, search: Box<dyn Search<T>>) -> Arc<Self> {
        Arc::new(Self {
            name,
            asked,
            search: Mutex::new(Some(search)),
            findings: Mutex::new(Findings {
                is_started: false,
                found: None,
                number: 0,
                is_suspected: false,
                suspicions: 0,
                is_check_due: false,
                failed: 0,
                failure: None,
            }),
            checked: Condvar::new(),
            sleeps: Parker::default(),
            failed_over_at: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        })
    }

    /// Returns whether the result of this number is the last one, and trusted.
    pub(crate) fn is_trusted(&self, number: u64) -> bool {
        let findings = self.findings.lock();
        findings.trusted().is_some_and(|(last, _)| last == number)
    }

    /// Returns the last result, although it may be suspected.
    pub(crate) fn found(&self) -> Option<T> {
        self.findings.lock().found.clone()
    }

    /// Returns whether something has failed since the last result, or there is none.
    pub(crate) fn has_failed(&self) -> bool {
        let findings = self.findings.lock();
        findings.failure.is_some() || findings.found.is_none()
    }

    /// Returns whether no result has a later number.
    pub(crate) fn is_last(&self, number: u64) -> bool {
        self.findings.lock().number == number
    }

    /// Blocks until `look` returns something, or the time or the call is over. Starts the thread if it does not run.
    ///
    /// # Errors
    ///
    /// Returns what the check that is under way has learnt, or the failure of the last check.
    pub(crate) fn wait<R>(
        self: &Arc<Self>,
        mut deadline: Deadline<'_>,
        look: impl Fn(&Findings<T>) -> Option<R>,
    ) -> Result<R, Failure> {
        let mut findings = self.findings.lock();
        if let Some(seen) = look(&findings) {
            return Ok(seen);
        }
        if !findings.is_started {
            let finder = Arc::clone(self);
            let started = thread::spawn(self.name, move || finder.run());
            started.map_err(|error| {
                let name = self.name;
                unavailable(format!("the thread {name} cannot be started: {error}"))
            })?;
            findings.is_started = true;
        }
        let failed_before = findings.failed;
        loop {
            // Another check would find the same.
            let is_final =
                |failure: &&Failure| !failure.is_transient() && findings.failed > failed_before;
            if let Some(failure) = findings.failure.as_ref().filter(is_final) {
                return Err(failure.clone());
            }
            let Some(slice) = deadline.next_look() else {
                let none = || unavailable(format!("no {} has answered in time", self.asked));
                return Err(findings.failure.clone().unwrap_or_else(none));
            };
            findings = self.checked.wait_for(findings, slice);
            if let Some(seen) = look(&findings) {
                return Ok(seen);
            }
        }
    }

    /// Suspects the result of this number, and makes the thread check it.
    pub(crate) fn suspect(&self, number: u64) {
        let mut findings = self.findings.lock();
        let is_this = findings.found.is_some() && findings.number == number;
        findings.suspicions += u64::from(is_this);
        // A check that has begun may have asked before this. One more check is enough for all that suspect it now.
        if is_this && !(findings.is_suspected && findings.is_check_due) {
            findings.is_suspected = true;
            findings.is_check_due = true;
            self.sleeps.wake();
        }
    }

    /// Returns how often a result was suspected. The answer to a question that was asked before the last suspicion does not
    /// settle it.
    pub(crate) fn suspicions(&self) -> u64 {
        self.findings.lock().suspicions
    }

    /// Makes the thread do another check. The last result stays trusted.
    pub(crate) fn check_again(&self) {
        self.findings.lock().is_check_due = true;
        self.sleeps.wake();
    }

    /// Returns whether there was a reason for a check since the last one began.
    pub(crate) fn is_check_due(&self) -> bool {
        self.findings.lock().is_check_due
    }

    /// Returns when the last failover was noticed, or the clock's zero.
    pub(crate) fn last_failover(&self) -> Time {
        Time::from_nanos(self.failed_over_at.load(Ordering::SeqCst))
    }

    /// Returns whether nobody uses the servers any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.sleeps.wake();
    }

    /// Publishes the result that `next` makes of the last one, and whether it is another: a map of the same masters with other
    /// slots is not. A failover is noted before any thread can use the new result.
    ///
    /// # Errors
    ///
    /// Returns the failure of `next`, and publishes nothing.
    pub(crate) fn publish(
        &self,
        next: impl FnOnce(Option<&T>) -> Result<(T, bool), Failure>,
    ) -> Result<(), Failure> {
        let mut findings = self.findings.lock();
        let (found, is_another) = next(findings.found.as_ref())?;
        if is_another && findings.found.is_some() {
            let now = Time::now().as_nanos();
            self.failed_over_at.store(now, Ordering::SeqCst);
        }
        let last = findings.found.replace(found);
        if is_another {
            findings.number += 1;
        }
        // A suspicion of the last result says nothing about another one.
        findings.is_suspected &= findings.is_check_due && !is_another;
        findings.failure = None;
        drop(findings);
        self.checked.notify_all();
        // Without the mutex, because this may close connections.
        drop(last);
        Ok(())
    }

    /// Changes the last result, without a check. Returns the value of `change`, or `None` if there is no result.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.findings.lock().found.as_mut().map(change)
    }

    /// Notes what the check that is under way has learnt, for the callers whose time ends before it. A failure that is final
    /// tells more.
    pub(crate) fn learnt(&self, words: String) {
        let mut findings = self.findings.lock();
        if findings.failure.as_ref().is_none_or(Failure::is_transient) {
            findings.failure = Some(unavailable(words));
        }
    }

    /// Notes that a check has failed.
    fn not_found(&self, failure: Failure) {
        let mut findings = self.findings.lock();
        // The next check will answer this suspicion.
        findings.is_suspected = true;
        findings.failed += 1;
        findings.failure = Some(failure.with(Outcome::NotExecuted));
        drop(findings);
        self.checked.notify_all();
    }

    /// Runs until nobody uses the servers any more.
    fn run(self: &Arc<Self>) {
        let Some(mut search) = self.search.lock().take() else {
            return;
        };
        while !self.is_over() {
            self.findings.lock().is_check_due = false;
            let went_on = survived(|| {
                if let Err(failure) = search.check(self) {
                    self.not_found(failure);
                }
                let ended = Time::now();
                while !self.is_over() {
                    let until = ended + search.pause(self);
                    if Time::now() >= until {
                        break;
                    }
                    self.sleep(until);
                }
            });
            if went_on.is_none() {
                let words = format!("the thread {} panicked, and begins anew", self.name);
                logging::error!("{words}");
                self.not_found(unavailable(words));
                thread::sleep(PANIC_PAUSE);
            }
        }
    }

    /// Blocks until the thread is woken, or it is this time.
    pub(crate) fn sleep(&self, until: Time) {
        self.sleeps.sleep_until(&Machine::here(), until);
    }

    /// Asks a server by `work` on a short-lived thread, because it may hang. Wakes this thread when there is an answer, or a
    /// failure because no thread could be started.
    pub(crate) fn aside<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> Result<R, Failure> + Send + 'static,
    ) -> Receiver<Result<R, Failure>> {
        let (sender, answer) = bounded(1);
        let finder = Arc::clone(self);
        // If nobody receives it, it is not needed any more.
        let tell = move |said| {
            sender.send(said).ok();
            finder.sleeps.wake();
        };
        let of_thread = tell.clone();
        let started = thread::spawn("", move || {
            let panicked = || Err(unavailable("asking a server panicked"));
            of_thread(survived(work).unwrap_or_else(panicked));
        });
        if let Err(error) = started {
            tell(Err(unavailable(format!(
                "no thread could be started: {error}"
            ))));
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::FailureKind;

    struct Nothing;

    impl Search<&'static str> for Nothing {
        fn check(&mut self, _: &Arc<Finder<&'static str>>) -> Result<(), Failure> {
            Ok(())
        }

        fn pause(&self, _: &Finder<&'static str>) -> Duration {
            PANIC_PAUSE
        }
    }

    /// Returns a finder whose thread does not run.
    fn finder() -> Arc<Finder<&'static str>> {
        let finder = Finder::new("leasehold-test", "server".to_owned(), Box::new(Nothing));
        finder.findings.lock().is_started = true;
        finder
    }

    /// Another check would find the same, so what it has learnt so far does not count.
    #[test]
    fn a_failure_that_is_final_is_told_although_the_next_check_goes_on() {
        let finder = finder();
        let told = || {
            let time = Deadline::after(Duration::ZERO);
            let failed = finder.wait(time, |_| None::<()>);
            failed.expect_err("nothing was found").kind
        };
        finder.learnt("one has not answered yet".to_owned());
        assert_eq!(told(), FailureKind::Unavailable);
        let words = "the server rejects the login";
        finder.not_found(Failure::plain(
            FailureKind::Denied,
            Outcome::NotExecuted,
            words,
        ));
        finder.learnt("one has not answered yet".to_owned());
        assert_eq!(told(), FailureKind::Denied);
    }

    #[test]
    fn a_failover_is_noted_with_another_result() {
        let finder = finder();
        let zero = Time::from_nanos(0);
        check(&finder, "one");
        assert_eq!(finder.last_failover(), zero, "it is the first result");
        check(&finder, "another");
        let noted = finder.last_failover();
        assert!(noted > zero);
        check(&finder, "another");
        assert_eq!(finder.last_failover(), noted, "it is the same result");
        assert!(finder.is_trusted(2));
    }

    fn begin(finder: &Finder<&'static str>) {
        finder.findings.lock().is_check_due = false;
    }

    /// The end of a check that finds this.
    fn find(finder: &Finder<&'static str>, found: &'static str) {
        let next = |last: Option<&&str>| Ok((found, last.is_none_or(|last| *last != found)));
        finder.publish(next).expect("it is found");
    }

    /// A check that finds this.
    fn check(finder: &Finder<&'static str>, found: &'static str) {
        begin(finder);
        find(finder, found);
    }

    fn trusted(finder: &Arc<Finder<&'static str>>) -> Option<(u64, &'static str)> {
        let look = |findings: &Findings<_>| findings.trusted().map(|(number, it)| (number, *it));
        let seen = finder.wait(Deadline::after(Duration::ZERO), look).ok();
        let number = seen.map_or(1, |(number, _)| number);
        assert_eq!(finder.is_trusted(number), seen.is_some());
        seen
    }

    #[test]
    fn only_another_result_has_another_number() {
        let finder = finder();
        assert_eq!(trusted(&finder), None);
        for (found, number) in [("a", 1), ("a", 1), ("b", 2), ("a", 3)] {
            check(&finder, found);
            assert_eq!(trusted(&finder), Some((number, found)));
            assert!(finder.is_last(number) && !finder.is_last(number - 1));
        }
    }

    #[test]
    fn a_call_that_is_over_waits_for_nothing() {
        let finder = finder();
        let over = || Deadline::default().ended_by(&|| true);
        let waited = finder.wait(over(), |findings| findings.found().copied());
        let failure = waited.expect_err("nothing is found");
        assert_eq!(failure.kind, FailureKind::Unavailable);
        assert!(failure.cause.to_string().contains("no server"));
        check(&finder, "a");
        let waited = finder.wait(over(), |findings| findings.found().copied());
        assert_eq!(waited.expect("it is found"), "a");
    }

    #[test]
    fn a_suspicion_is_answered_by_a_later_check_only() {
        let finder = finder();
        check(&finder, "a");
        finder.suspect(1);
        assert_eq!(trusted(&finder), None);
        assert_eq!(finder.found(), Some("a"));
        assert!(finder.is_check_due());
        // Another suspicion comes while the check asks.
        begin(&finder);
        assert!(!finder.is_check_due());
        finder.suspect(1);
        finder.suspect(1);
        find(&finder, "a");
        assert_eq!(trusted(&finder), None, "an older check has answered it");
        assert!(finder.is_check_due());
        check(&finder, "a");
        assert_eq!(trusted(&finder), Some((1, "a")));
        // A suspicion of an earlier result is none of this one.
        check(&finder, "b");
        finder.suspect(1);
        assert_eq!(trusted(&finder), Some((2, "b")));
    }

    #[test]
    fn another_result_is_trusted_although_the_last_one_is_suspected() {
        let finder = finder();
        check(&finder, "a");
        begin(&finder);
        finder.suspect(1);
        find(&finder, "b");
        assert_eq!(trusted(&finder), Some((2, "b")));
        // The next check has not begun.
        finder.suspect(2);
        assert_eq!(trusted(&finder), None);
    }

    #[test]
    fn after_a_check_that_has_failed_nothing_is_trusted() {
        let finder = finder();
        check(&finder, "a");
        begin(&finder);
        finder.not_found(unavailable("it is gone"));
        assert_eq!(trusted(&finder), None);
        assert!(finder.has_failed());
        // The thread waits before it asks again.
        assert!(!finder.is_check_due());
        let waited = finder.wait(Deadline::after(Duration::ZERO), |findings| {
            findings.trusted().map(drop)
        });
        let failure = waited.expect_err("it is gone");
        assert!(failure.cause.to_string().contains("it is gone"));
        check(&finder, "a");
        assert_eq!(trusted(&finder), Some((1, "a")));
        assert!(!finder.has_failed());
    }
}
