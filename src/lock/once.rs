//! Jobs that run once for each time of a schedule, on whichever host comes first.

use std::ops::Deref;
use std::time::Duration;

use crate::engine::lease::guard::Lease;
use crate::error::{Error, Result};
use crate::lock::handle::{Handle, within_limit};
use crate::lock::methods::options;
use crate::name::{Companion, LARGEST_FENCE, LockKey};
use crate::owner;
use crate::sys::Time;
use crate::sys::time::{SystemTime, of_wall_us};
use crate::wire::{LockKind, Recorded};

/// For how long a record is kept, unless the handle says otherwise.
const KEEP_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const LONGEST_KEEP_FOR: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
const LEAST_PERIOD: Duration = Duration::from_secs(1);

/// A job that one host runs for each time of its schedule, its *fires*, and that another host tries again if it fails.
///
/// The job has the mutex of its name while it runs. If it ends well, the guard records the fire in Redis, and no host gets that
/// fire again. A guard that is dropped or lost records nothing, so the next host that asks runs the job for the same fire. A
/// fire is done, or a later one, as soon as Redis has the record.
///
/// If all hosts start the job at the same time, they must wait for the one at work, or nobody is left when it fails.
/// [`claim_for`](Once::claim_for) and [`claim_every`](Once::claim_every) wait for it, and [`claim`](Once::claim) does not.
///
/// | a job needs | use | because |
/// | --- | --- | --- |
/// | at least once | [`claim_for`](Once::claim_for), and [`done`](OnceGuard::done) after the effect | a host that dies between the two leaves no record, so another host does it again |
/// | at most once | `done` before the effect | a host that dies between the two has the record, and nobody does the effect. `done` also gives up the lock, so the next fire may overlap with the effect |
/// | exactly one success | an effect that the data itself makes unique, such as a row with a unique key for the fire | Redis cannot know whether the effect happened |
///
/// [docs/operating.md](https://docs.rs/crate/leasehold/latest/source/docs/operating.md#runbook) has the hole that each leaves.
///
/// The record is as safe as any write in Redis: a failover may lose the last one, and an eviction any, so that the fire is given
/// out again. [`Builder::replicas`](crate::Builder::replicas) makes that rarer.
///
/// # Example
///
/// A nightly report on several hosts, each of which starts it at three o'clock by its own clock:
///
/// ```no_run
/// # fn report() -> Result<(), std::io::Error> { Ok(()) }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::{Duration, SystemTime};
///
/// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
/// let day = 24 * 60 * 60;
/// let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
/// let fire = SystemTime::UNIX_EPOCH + Duration::from_secs(now / day * day + 3 * 60 * 60);
/// let wait = Duration::from_secs(60 * 60); // longer than the job and a lease
/// if let Some(guard) = locks.once("report").claim_for(fire, wait)? {
///     report()?; // after an error nothing is recorded, and a host that waits tries
///     guard.done()?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Once {
    handle: Handle,
    keep_for: Duration,
}

/// The right to do one fire of a [`Once`], and the lock of the job. Dropping it releases the lock and records nothing.
#[must_use = "if unused the lock is released at once, and the fire is not recorded"]
#[derive(Debug)]
pub struct OnceGuard {
    lease: Lease,
    fire_us: u64,
    keep_for: Duration,
}

/// The last fire of a job that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fired {
    /// The time of the schedule.
    pub fire: SystemTime,
    /// When it was recorded, by the server's clock.
    pub at: SystemTime,
    /// The [label](crate::Builder::label) of the manager that did it.
    pub label: Option<String>,
}

/// Which fire a call wants.
#[derive(Clone, Copy)]
enum Wanted {
    At(u64),
    /// The one next to the server's time at the beginning of the call.
    Every(u64),
}

impl Once {
    pub(crate) fn new(handle: Handle) -> Self {
        Self {
            handle,
            keep_for: KEEP_FOR,
        }
    }

    /// Sets for how long Redis keeps the record of the last fire after it was done. A fire whose record has ended is given out
    /// again if somebody still asks for it. It never shortens the time that a record has already. Defaults to 30 days; at most
    /// ten years.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(report: leasehold::Once) {
    /// let yearly = report.keep_for(Duration::from_secs(800 * 24 * 60 * 60));
    /// # drop(yearly); }
    /// ```
    #[must_use]
    pub fn keep_for(mut self, keep_for: Duration) -> Self {
        self.keep_for = keep_for;
        self
    }

    /// Claims a fire: the time of the schedule, not of the call, so that all hosts name the same one. Returns `None` if that
    /// fire or a later one was done, or if another holder has the lock: it may be at work for this fire. Blocks for two requests,
    /// or three if the fire was done. The type [`Claim`](crate::Claim), of a detached lock, has nothing to do with it.
    ///
    /// Does not wait: if the holder at work fails later, this host has given up already. With hosts that start together, use
    /// [`claim_for`](Once::claim_for), with a wait longer than the job and a lease.
    ///
    /// A fire that is done hides all earlier ones. So if somebody has recorded one of next year by mistake, each claim returns
    /// `None` until then: [`last`](Once::last) shows it, and deleting the key of the record (`{report}:lh:once`, or
    /// `key:lht:once` for a name with a hash tag of its own) ends it.
    ///
    /// # Errors
    ///
    /// * [`Error::Config`]: `fire` is before 1970 or after 2255, or a setting cannot be used. Nothing was sent.
    /// * [`Error::Unsupported`]: the locks are those of a quorum, whose nodes could keep different records. Nothing was sent.
    /// * Otherwise as [`Mutex::try_lock`](crate::Mutex::try_lock). After an error the lock is released.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::SystemTime;
    /// # fn example(report: &leasehold::Once, three_o_clock: SystemTime) -> leasehold::Result<()> {
    /// match report.claim(three_o_clock)? {
    ///     Some(guard) => guard.done()?, // after the work
    ///     None => println!("another host has done it, or tries"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn claim(&self, fire: SystemTime) -> Result<Option<OnceGuard>> {
        self.claim_for(fire, Duration::ZERO)
    }

    /// Claims a fire, and waits for another holder for at most `wait`. If that one fails, this call gets the fire; if it
    /// succeeds, this call returns `None`, as it does if the wait is over first. A holder that still works on an earlier fire is
    /// waited for too. Blocks as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) does, and then for one or two requests.
    ///
    /// Choose a wait longer than the job and a lease: a holder may fail at its end, and if its machine crashes, its lock stays
    /// held for the rest of the lease.
    ///
    /// # Errors
    ///
    /// As [`claim`](Once::claim).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::{Duration, SystemTime};
    /// # fn example(report: &leasehold::Once, three_o_clock: SystemTime) -> leasehold::Result<()> {
    /// if let Some(guard) = report.claim_for(three_o_clock, Duration::from_secs(60 * 60))? {
    ///     // … the work, which no other host has done …
    ///     guard.done()?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn claim_for(&self, fire: SystemTime, wait: Duration) -> Result<Option<OnceGuard>> {
        let fire = fire.duration_since(SystemTime::UNIX_EPOCH).ok();
        let fire_us = fire.and_then(|since| u64::try_from(since.as_micros()).ok());
        match fire_us.filter(|us| *us <= LARGEST_FENCE) {
            Some(us) => self.claimed(Wanted::At(us), wait),
            None => Err(Error::config("fire", "it is before 1970 or after 2255")),
        }
    }

    /// Claims the fire next to now, of a job that repeats every `period`. The fires lie whole periods after the last one that was
    /// done, and a call means the one that is less than half a period away by the server's clock when the call begins. So hosts
    /// whose clocks differ by minutes mean the same fire of a daily job, and a call that waits still means its own fire
    /// afterwards. Waits as [`claim_for`](Once::claim_for) does.
    ///
    /// Without a record, now is a fire, and the first success fixes it for all later ones. So if a daily job that belongs to three
    /// o'clock was first done by hand at eleven, its fires lie at eleven, and the call at three means that of eight hours later.
    /// That works, but the nearer the difference comes to half a period, the less the clocks of the hosts may differ, and beyond
    /// it the success by hand counts for the next night. To fix the hour yourself, delete the key of the record if there is one
    /// (`{report}:lh:once`, or `key:lht:once` for a name with a hash tag of its own). Then [`claim`](Once::claim) any past fire
    /// of the schedule, and call [`done`](OnceGuard::done) without the work.
    ///
    /// # Errors
    ///
    /// As [`claim`](Once::claim), and [`Error::Config`] if `period` is less than a second, or more than half of
    /// [`keep_for`](Once::keep_for), or if the last fire is more than a period ahead of the server's clock: its clock was wrong,
    /// or somebody claimed a future fire. The text names the key of the record to delete.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(report: &leasehold::Once) -> leasehold::Result<()> {
    /// let hour = Duration::from_secs(60 * 60); // longer than the job and a lease
    /// if let Some(guard) = report.claim_every(24 * hour, hour)? {
    ///     // … the work …
    ///     guard.done()?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn claim_every(&self, period: Duration, wait: Duration) -> Result<Option<OnceGuard>> {
        if !(LEAST_PERIOD..=self.keep_for / 2).contains(&period) {
            let reason = format!(
                "{period:?} is not between a second and half of keep_for, {:?}",
                self.keep_for / 2
            );
            return Err(Error::config("period", reason));
        }
        let us = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
        self.claimed(Wanted::Every(us), wait)
    }

    /// Returns the last fire that was done, or `None` if there is no record. Blocks for one request.
    ///
    /// # Errors
    ///
    /// As [`LockManager::inspect`](crate::LockManager::inspect), and [`Error::Unsupported`] on a quorum.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(report: &leasehold::Once) -> leasehold::Result<()> {
    /// if let Some(last) = report.last()? {
    ///     println!("done by {:?} at {:?}", last.label, last.at);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn last(&self) -> Result<Option<Fired>> {
        Ok(self.record()?.last.map(|(fire_us, owner, at_us)| Fired {
            fire: of_wall_us(fire_us),
            at: of_wall_us(at_us),
            label: owner::label(&owner).map(str::to_owned),
        }))
    }

    fn key(&self) -> Result<&LockKey> {
        Ok(self.handle.target()?.first())
    }

    fn record(&self) -> Result<Recorded> {
        self.handle.engine.record_of(self.key()?)
    }

    fn claimed(&self, wanted: Wanted, wait: Duration) -> Result<Option<OnceGuard>> {
        if !(LEAST_PERIOD..=LONGEST_KEEP_FOR).contains(&self.keep_for) {
            let reason = format!("{:?} is not between a second and ten years", self.keep_for);
            return Err(Error::config("keep_for", reason));
        }
        // Even of a lock that is held, so that a call fails whoever comes first.
        self.handle.engine.can_record()?;
        let (asked, wait) = (self.handle.engine.client.now(), self.handle.wait_of(wait));
        let granted = within_limit(self.handle.acquire(LockKind::Mutex, 1, wait))?;
        let Some(lease) = granted else {
            return Ok(None);
        };
        let fire_us = self.fire_to_do(wanted, asked);
        let Ok(Some(fire_us)) = fire_us else {
            // Nothing is done under this lock, so nobody waits for its `min_hold`. A failed release changes nothing for the caller.
            lease.forget_min_hold();
            return fire_us.map(|_| None);
        };
        Ok(Some(OnceGuard {
            lease,
            fire_us,
            keep_for: self.keep_for,
        }))
    }

    /// Returns the fire that a call wants, or `None` if that or a later one was done. The call began at `asked`.
    fn fire_to_do(&self, wanted: Wanted, asked: Time) -> Result<Option<u64>> {
        let delay = self.handle.engine.client.now().since(asked);
        let record = self.record()?;
        let fire_us = match wanted {
            Wanted::At(us) => us,
            Wanted::Every(period_us) => {
                self.check_not_ahead(&record, period_us)?;
                next_to(&record, delay, period_us)
            }
        };
        let is_done = record.last.is_some_and(|(done_us, ..)| done_us >= fire_us);
        Ok((!is_done).then_some(fire_us))
    }

    /// Fails if the last fire is more than a period ahead of the server's clock: no call can have meant it. So the clock was
    /// wrong, or somebody has mistyped a fire, and otherwise no fire until then would be done, and nobody would hear of it.
    fn check_not_ahead(&self, record: &Recorded, period_us: u64) -> Result<()> {
        let last_us = record.last.as_ref().map_or(0, |(last_us, ..)| *last_us);
        let ahead_us = last_us.saturating_sub(record.now_us);
        if ahead_us <= period_us {
            return Ok(());
        }
        let reason = format!(
            "the last one that was done is {:?} ahead of the server's clock: wait, or delete the key {:?}",
            Duration::from_secs(ahead_us / 1_000_000),
            self.key()?.companion(Companion::Once)
        );
        Err(Error::config("fire", reason))
    }
}

options!(Once, keep_for);

/// Returns the fire that was next to the server's time when the call began, whole periods after the last one. The call has
/// `waited` since: the fire next to the end of its wait may be a later one, and its own would never be done.
fn next_to(record: &Recorded, waited: Duration, period_us: u64) -> u64 {
    let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
    let asked_us = record.now_us.saturating_sub(waited_us);
    let Some((last_us, ..)) = record.last else {
        return asked_us;
    };
    let passed = asked_us.saturating_sub(last_us);
    last_us + (passed + period_us / 2) / period_us * period_us
}

impl OnceGuard {
    /// Returns the fire that this guard is for.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::OnceGuard) {
    /// println!("the report of {:?}", guard.fire());
    /// # }
    /// ```
    #[must_use]
    pub fn fire(&self) -> SystemTime {
        of_wall_us(self.fire_us)
    }

    /// Records that the fire was done, and releases the lock. Blocks for two requests. If only the release fails, the renewal
    /// thread repeats it, and the call succeeds.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: the lock was lost before. This call recorded nothing, and another host may do the same fire. (If its
    ///   first answer was lost with a connection, and another host has done a later fire since, the record was that of the other.)
    /// * [`Error::Unavailable`], [`Error::Protocol`]: the record may have been written. Ask [`last`](Once::last).
    /// * [`Error::NotReplicated`]: it was written, and too few [`replicas`](crate::Builder::replicas) confirmed it.
    /// * [`Error::Denied`], [`Error::WrongType`], [`Error::Unsupported`]: the request failed, and nothing was recorded.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: leasehold::OnceGuard) -> leasehold::Result<()> {
    /// // … the work …
    /// guard.done()?;
    /// # Ok(()) }
    /// ```
    pub fn done(self) -> Result<()> {
        self.lease.record(self.fire_us, self.keep_for)
    }
}

impl Deref for OnceGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_mean_the_fire_that_is_next() {
        let at = |last: Option<u64>, now_us: u64| {
            let last = last.map(|us| (us, String::new(), us));
            let waited = Duration::from_micros(5);
            let record = Recorded {
                last,
                now_us: now_us + 5,
            };
            next_to(&record, waited, 100)
        };
        assert_eq!(at(None, 7), 7);
        for (now_us, fire_us) in [
            // The clock was set back.
            (900, 1_000),
            (1_000, 1_000),
            (1_049, 1_000),
            (1_050, 1_100),
            (1_149, 1_100),
            (9_999, 10_000),
        ] {
            assert_eq!(at(Some(1_000), now_us), fire_us, "{now_us}");
        }
    }
}
