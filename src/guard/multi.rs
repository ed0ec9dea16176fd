//! The guard of a multi-lock.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::engine::lease::guard_inner::GuardInner;
#[cfg(doc)]
use crate::error::Error;
use crate::error::{Lost, Result};
#[cfg(doc)]
use crate::guard::LockGuard;
use crate::guard::lease::{Lease, LeaseState};

/// A guard of a [`MultiLock`](crate::MultiLock): it holds all names. Dropping it releases them together, as dropping a
/// [`LockGuard`] does.
#[must_use = "if unused the locks are released at once"]
pub struct MultiGuard {
    /// One lease for each name, in the order of the names. They only report: the end of one releases nothing.
    leases: Vec<Lease>,
    /// One lease for each request that acquired names. The end of such a lease releases its names.
    holds: Vec<Lease>,
}

impl MultiGuard {
    pub(crate) fn new(held: Vec<GuardInner>) -> Self {
        let by_name = held.iter().flat_map(GuardInner::by_name);
        let mut leases: Vec<_> = by_name.map(Lease::new).collect();
        leases.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        Self {
            leases,
            holds: held.into_iter().map(Lease::new).collect(),
        }
    }

    /// Returns the lease of each name, in the byte order of the names. The leases are renewed together. Each has
    /// another fence.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) {
    /// for lease in guard.leases() {
    ///     println!("{} has fence {}", lease.name(), lease.fence());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Returns an error if at least one name is lost.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: a name is lost. The error names the names that the same request acquired, as
    /// [`MultiLock::name`](crate::MultiLock::name) does.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) -> leasehold::Result<()> {
    /// guard.check()?; // before a step that needs all names
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<()> {
        self.holds.iter().try_for_each(Lease::check)
    }

    /// Returns the state of the weakest lease: [`Lost`](LeaseState::Lost) if one is lost, else
    /// [`AtRisk`](LeaseState::AtRisk) if the renewal of one is overdue.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) {
    /// if guard.state() == leasehold::LeaseState::AtRisk {
    ///     eprintln!("a renewal is overdue");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn state(&self) -> LeaseState {
        let states = || self.holds.iter().map(Lease::state);
        [LeaseState::Lost, LeaseState::AtRisk]
            .into_iter()
            .find(|state| states().any(|one| one == *state))
            .unwrap_or(LeaseState::Held)
    }

    /// Returns how long the guard may rely on all names without another renewal: zero if one is lost.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) {
    /// println!("{:?} left", guard.remaining());
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let left = self.holds.iter().map(Lease::remaining);
        left.min().unwrap_or_default()
    }

    /// Extends the leases so that all last for at least `at_least` from now, as [`Lease::extend`] does. Blocks for at
    /// most one request, or on a topology with slots for at most one for each slot.
    ///
    /// # Errors
    ///
    /// As [`Lease::extend`]. Some of the leases may have been extended.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) -> leasehold::Result<()> {
    /// guard.extend(std::time::Duration::from_secs(300))?;
    /// # Ok(()) }
    /// ```
    pub fn extend(&self, at_least: Duration) -> Result<()> {
        self.holds.iter().try_for_each(|hold| hold.extend(at_least))
    }

    /// Returns a channel that receives one [`Lost`] within 50 ms of the loss of any name, as [`Lease::on_lost`] does.
    /// The message names the names that the same request acquired, as [`MultiLock::name`](crate::MultiLock::name) does.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::MultiGuard) {
    /// let lost = guard.on_lost();
    /// if let Ok(lost) = lost.try_recv() {
    ///     eprintln!("{lost}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn on_lost(&self) -> Receiver<Lost> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        for hold in &self.holds {
            hold.guard_inner.tell_of_loss(&sender);
        }
        receiver
    }

    /// Releases all names. Returns an error if one was lost before.
    ///
    /// Blocks as [`LockGuard::release`] does.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`]. All names are released, even if the release of one fails.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: leasehold::MultiGuard) -> leasehold::Result<()> {
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    pub fn release(self) -> Result<()> {
        let ends: Vec<_> = self
            .holds
            .into_iter()
            .map(|hold| hold.guard_inner.release())
            .collect();
        ends.into_iter().collect()
    }
}

impl fmt::Debug for MultiGuard {
    /// Shows the first lease only, because there may be a thousand.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("leases", &self.leases.len())
            .field("first", &self.leases.first())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
