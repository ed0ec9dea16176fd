//! The [`Lease`] that guards deref to: one thread's hold on a lease of this process ([`ProcessLease`]), with its fence and
//! time limits. Dropping it ends the hold.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use crate::config::Options;
use crate::engine::Engine;
use crate::engine::ending::ReleaseTask;
use crate::engine::lease::CountedBusy;
use crate::engine::lease::limits::HoldLimits;
use crate::engine::lease::process_lease::{Hold, LossListener, ProcessLease};
use crate::engine::lease::release::HoldEnd;
use crate::engine::lease::rules::LeaseStatus;
#[cfg(feature = "tracing")]
use crate::engine::observe::spans;
use crate::error::{Error, Failure, FailureKind, Lost, LostCause, Result};
use crate::event::ReleaseRequest;
use crate::logging;
use crate::sys::{Arc, AtomicBool, Ordering, Time};
use crate::wire::lifetime::drift;
use crate::wire::{Renewed, Request};

/// How many requests to release a lock wait for a guard's thread to read them. Later ones are dropped.
const MOST_REQUESTS: usize = 16;

/// The state of a lease, as [`Lease::state`] returns it.
///
/// A guard that holds its lock excludes others as its kind promises:
///
/// | the guard | others that may hold the lock at the same time |
/// | --- | --- |
/// | [`LockGuard`](crate::LockGuard), [`WriteGuard`](crate::WriteGuard), [`ReentrantGuard`](crate::ReentrantGuard), [`MultiGuard`](crate::MultiGuard) | none |
/// | [`ReadGuard`](crate::ReadGuard) | readers |
/// | [`Permit`](crate::Permit) | permits, in all at most as many as the semaphore has |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseState {
    /// The guard holds its lock.
    Held,
    /// The guard still holds its lock, but Redis must confirm it: half of the lease has passed since Redis last did, or an
    /// answer came that nobody had asked for, so that an earlier answer may have been none.
    AtRisk,
    /// The guard has lost its lock, and others may hold it. This is final: no later reply of Redis revives the lease.
    Lost,
}

/// The lease of a lock, as one guard sees it. Every guard derefs to its lease, except [`MultiGuard`](crate::MultiGuard),
/// which has one for each name.
///
/// # Guarantees
///
/// A lease ends in this process before it ends in Redis. This process counts it from before the request was sent, on a clock
/// that runs through suspend, and takes off 1 % and 2 ms, by which two clocks may differ. After that moment
/// [`state`](Lease::state) never returns `Held`, even if the server and all threads of this crate hang.
///
/// In a forked child of the process that acquired the lock, the state of every lease is `Lost`.
#[expect(
    clippy::struct_field_names,
    reason = "`process_lease` has its name wherever it is"
)]
pub struct Lease {
    pub(crate) engine: Arc<Engine>,
    pub(crate) process_lease: Arc<ProcessLease>,
    /// The number of this guard among the guards of the lease.
    pub(crate) number: u32,
    /// The index of the name that this guard stands for. `None` if it stands for all names of the lease.
    index: Option<u32>,
    pub(crate) fence: u64,
    /// The time at which the thread got the lock.
    pub(crate) since: Time,
    /// `max_hold` and `warn_after`, if one of them is set.
    pub(crate) limits: Option<Arc<HoldLimits>>,
    /// Whether a channel was registered for the loss of this guard.
    pub(crate) is_listened_to: AtomicBool,
    /// Whether the hold has ended, so that dropping this does nothing.
    pub(crate) finished: bool,
    #[cfg(feature = "tracing")]
    span: spans::Span,
}

impl Lease {
    /// Returns the name of the lock.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) {
    /// println!("{} is held", guard.name());
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        // A guard of several names has the first one here.
        self.process_lease.keys()[self.index.unwrap_or(0) as usize].name()
    }

    /// Returns the owner: the unique string under which Redis knows this process as a holder of the lock.
    ///
    /// Several guards of a process may have the same owner: guards that had the lock after each other in memory, and
    /// readers.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) {
    /// println!("{} is held by {}", guard.name(), guard.owner());
    /// # }
    /// ```
    #[must_use]
    pub fn owner(&self) -> &str {
        self.process_lease.owner.shown(&self.engine.client.tail)
    }

    /// Returns the fencing token of this guard.
    ///
    /// | the guard | its fence |
    /// | --- | --- |
    /// | [`LockGuard`](crate::LockGuard), [`WriteGuard`](crate::WriteGuard), [`ReentrantGuard`](crate::ReentrantGuard), a lease of a [`MultiGuard`](crate::MultiGuard) | larger than the fence of every earlier exclusive guard of the name |
    /// | [`ReadGuard`](crate::ReadGuard) | the fence of the last writer, which all readers until the next writer share |
    /// | [`Permit`](crate::Permit) | different from the fence of every other permit. It orders nothing, because several permits are held at a time |
    /// | any, with [`fencing(false)`](crate::Builder::fencing) | 0 |
    ///
    /// Send the fence with each write to the resource that the lock protects, and let the resource reject a smaller fence
    /// than the largest it has seen. Then a holder that was paused past its lease does no harm (Martin Kleppmann, "How to do
    /// distributed locking", 2016).
    ///
    /// # When a fence may be smaller
    ///
    /// * The server loses its data *and* its clock is set back. A failover is the same case, if the replica missed the
    ///   last fence and its clock is behind.
    /// * Two masters exist at once, and their clocks differ.
    /// * The server lost its data a moment ago, and a process that hands the lock from thread to thread in memory does not
    ///   know that yet. The fences of these guards may be smaller than a fence that the server has granted since. That ends at
    ///   the latest with the [`quantum`](crate::Builder::quantum), because the next thread then asks the server, and within a
    ///   few milliseconds if the process listens for messages, because it then notices that its connections were closed.
    /// * A node of a [quorum](crate::LockManager::quorum) loses its data, *and* the clocks of the nodes differ.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn write(_: &str, _fence: u64) {}
    /// # fn example(guard: &leasehold::LockGuard) {
    /// write("paid", guard.fence()); // the database rejects an older fence
    /// # }
    /// ```
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Returns how long the guard may rely on the lock without another renewal: zero if the lock is lost.
    ///
    /// If another process handed a mutex over to this guard, that may be less than half of the
    /// [`lease`](crate::Mutex::lease) in the first milliseconds. Redis first keeps the lock for twice the
    /// [`io_timeout`](crate::Builder::io_timeout), and at least for a second. The renewal thread then raises that to the
    /// whole lease.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) {
    /// if guard.remaining() > std::time::Duration::from_secs(5) {
    ///     // … a step that takes less than 5 s …
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.status().map_or(Duration::ZERO, |(left, _)| left)
    }

    /// Returns the state of the lease, by this machine's clock. Sends no request.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) {
    /// if guard.state() == leasehold::LeaseState::AtRisk {
    ///     eprintln!("{} is not renewed", guard.name());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn state(&self) -> LeaseState {
        match self.status() {
            Ok((_, false)) => LeaseState::Held,
            Ok((_, true)) => LeaseState::AtRisk,
            Err(_) => LeaseState::Lost,
        }
    }

    /// Returns an error if the lock is lost. It is [`state`](Lease::state) for use with `?`.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lock is lost.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) -> leasehold::Result<()> {
    /// guard.check()?; // before a step that needs the lock
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<()> {
        self.held().map(drop).map_err(Error::Lost)
    }

    /// Returns a channel that receives one [`Lost`] within 50 ms of the loss of the lock.
    ///
    /// If the lock is lost already, the message is in the channel. If the guard ends before a loss is found, the channel is
    /// disconnected. Each call makes a new channel, which lives until the guard ends, so call it once and keep the channel.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let guard = locks.lock("nightly")?;
    /// let lost = guard.on_lost();
    /// for step in 0..100 {
    ///     if lost.try_recv().is_ok() {
    ///         break; // another process may have started the job
    ///     }
    ///     // … one step of the work …
    ///     # let _ = step;
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn on_lost(&self) -> Receiver<Lost> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.tell_of_loss(&sender);
        receiver
    }

    /// Returns the addresses of the nodes of a [quorum](crate::LockManager::quorum) that do not vote for this lock now: they
    /// were down or late when it was granted, or have lost it since. If only a majority votes, the next node that fails may
    /// end the lease. The renewals ask these nodes again: see the table of [`quorum`](crate::LockManager::quorum). A node
    /// that hangs votes until the lease that it has confirmed last is over.
    ///
    /// All nodes if the lock is lost. None on any other topology. Does not block.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) {
    /// if !guard.missing_nodes().is_empty() {
    ///     println!("{} is at risk if another node fails", guard.name());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn missing_nodes(&self) -> Vec<Arc<str>> {
        self.engine.client.missing_nodes(&self.process_lease)
    }

    /// Returns a channel on which [`request_release`](crate::LockManager::request_release) is heard: somebody asks for the
    /// release of this lock. The program decides what to do. If the lock is shared by threads of this process, each of their
    /// guards hears it.
    ///
    /// Each call returns a new channel, so call it once for a guard. The channel has the last request at once, if one came
    /// before: also one that came while an earlier guard of this process had the lock. It is disconnected when the guard ends
    /// or is lost. It keeps at most 16 requests that were not received. On a quorum a request may rarely come twice.
    ///
    /// The first call makes this process subscribe to requests, unless a thread of it has waited for a lock before. It does not
    /// block, so a request of the first moments may be missed.
    ///
    /// # Example
    ///
    /// A program that wants the same lock again and again keeps its guard, so that it sends no request between two jobs, and
    /// lets go when somebody else wants the lock. That process calls `request_release`, waits in
    /// [`try_lock_for`](crate::Mutex::try_lock_for), and repeats both until it has its guard.
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// # let jobs = ["orders", "refunds"];
    /// let locks = leasehold::LockManager::connect("redis://127.0.0.1/")?;
    /// let mut guard = locks.lock("import")?;
    /// let mut requested = guard.on_requested();
    /// for job in jobs {
    ///     if let Ok(request) = requested.try_recv() {
    ///         println!("letting others go first before {job}: {}", request.why);
    ///         guard.release()?;
    ///         guard = locks.lock("import")?; // behind those that wait
    ///         requested = guard.on_requested();
    ///     }
    ///     // … the job …
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn on_requested(&self) -> Receiver<ReleaseRequest> {
        let (sender, receiver) = crossbeam_channel::bounded(MOST_REQUESTS);
        if self.status().is_ok() {
            self.is_listened_to.store(true, Ordering::Relaxed);
            self.process_lease.listen_to_requests(self.number, sender);
            self.engine.subscribe();
            // If the loss was announced before the channel was registered, it ends now.
            if self.status().is_err() {
                self.process_lease.end_requests(Some(self.number));
            }
        }
        receiver
    }

    /// Extends the lease so that it lasts for at least `at_least` from now. Never shortens it.
    ///
    /// Blocks for at most one request: none is sent if the lease lasts that long already. The next guard of the lock
    /// starts with the handle's own lease again. Readers of one process share a lease, so the extension holds for all
    /// of them.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: the lock was lost before, or Redis replied that it is lost.
    /// * [`Error::Config`]: `at_least` is longer than 24 h.
    /// * [`Error::NotReplicated`]: too few [`replicas`](crate::Builder::replicas) confirmed the extension. The lease
    ///   ends when it would have ended.
    /// * [`Error::NoQuorum`]: too few nodes of a quorum confirmed the extension. The lease ends when it would have ended,
    ///   but a node may keep the key for longer.
    /// * [`Error::Unavailable`], [`Error::Denied`], [`Error::Unsupported`], [`Error::Protocol`]: the request failed.
    ///   The lease ends when it would have ended.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(guard: &leasehold::LockGuard) -> leasehold::Result<()> {
    /// guard.extend(std::time::Duration::from_secs(300))?; // before five minutes without a network
    /// # Ok(()) }
    /// ```
    pub fn extend(&self, at_least: Duration) -> Result<()> {
        let (left, _) = self.status().map_err(Error::Lost)?;
        self.engine
            .client
            .settings
            .check_lease("at_least", at_least)?;
        if left >= at_least {
            return Ok(());
        }
        // The holder counts less than it asks for, because of drift. So it asks for more.
        let lease = at_least + drift(at_least) * 2;
        let now = self.engine.client.now();
        self.process_lease.note_extension(now + lease);
        self.renew(lease, left)?;
        if !self.process_lease.terms.renew {
            // It may live long enough for a look now. Without a thread nobody looks, and the lease is held all the same.
            let renewal = &self.engine.renewal;
            renewal.register(&self.process_lease, now).ok();
        }
        Ok(())
    }

    /// Frees the lock as soon as its guard ends, in spite of a [`min_hold`](crate::Builder::min_hold): for a job that has
    /// failed, so that another host can try it at once. Blocks for no request. Readers of one process share a lease, so it holds
    /// for all of them.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn run() -> Result<(), std::io::Error> { Ok(()) }
    /// # fn example(guard: leasehold::LockGuard) -> Result<(), Box<dyn std::error::Error>> {
    /// run().inspect_err(|_| guard.forget_min_hold())?;
    /// guard.release()?; // the lock stays taken for the rest of its min_hold
    /// # Ok(()) }
    /// ```
    pub fn forget_min_hold(&self) {
        if !self.engine.client.is_forked() {
            self.process_lease.forget_min_hold();
        }
    }
}

/// Its beginning, its deadline and its renewal, for the guards and the engine.
impl Lease {
    /// Makes the guard of a hold.
    pub(crate) fn new(engine: Arc<Engine>, hold: Hold, options: &Options) -> Self {
        if !options.min_hold.is_zero() {
            hold.process_lease
                .note_min_hold(hold.since + options.min_hold);
        }
        let number = hold.process_lease.guards.fetch_add(1, Ordering::Relaxed);
        let limits = HoldLimits::watch(&engine, &hold, number, options.max_hold);
        Self {
            #[cfg(feature = "tracing")]
            span: spans::hold(hold.process_lease.entry.target.name(), hold.fence),
            engine,
            process_lease: hold.process_lease,
            number,
            index: None,
            fence: hold.fence,
            since: hold.since,
            limits,
            is_listened_to: AtomicBool::new(false),
            finished: false,
        }
    }

    /// Returns a view for each name of the guard. Dropping a view ends nothing.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = Lease> {
        // A view registers its loss listeners under the number of this guard. So the end of this guard must look for
        // them.
        self.is_listened_to.store(true, Ordering::Relaxed);
        let fences = std::iter::once(self.fence).chain(self.process_lease.further_fences());
        (0..).zip(fences).map(|(index, fence)| Lease {
            engine: Arc::clone(&self.engine),
            process_lease: Arc::clone(&self.process_lease),
            number: self.number,
            index: Some(index),
            fence,
            since: self.since,
            limits: self.limits.clone(),
            is_listened_to: AtomicBool::new(false),
            finished: true,
            #[cfg(feature = "tracing")]
            span: spans::Span::none(),
        })
    }

    pub(crate) fn max_hold(&self) -> Option<Duration> {
        self.limits.as_ref()?.max_hold
    }

    /// Returns the time that is left of the lease, and whether it is at risk: its renewal is overdue, or it is doubtful.
    pub(crate) fn status(&self) -> Result<(Duration, bool), Lost> {
        let (now, deadline) = self.held()?;
        let left = deadline.since(now);
        let is_late = self.process_lease.is_overdue(now, deadline);
        Ok((
            left,
            is_late || self.engine.is_doubtful(&self.process_lease),
        ))
    }

    /// Returns the time and the deadline of the lease. An inner guard of a reentrant mutex does little else, so this does
    /// no arithmetic.
    #[inline]
    pub(crate) fn held(&self) -> Result<(Time, Time), Lost> {
        // A forked child has a copy of the guard, but does not hold the lock.
        if self.engine.client.is_forked() {
            return Err(self.lost(LostCause::Taken));
        }
        let now = self.engine.client.now();
        let deadline = self.process_lease.validity.deadline_after(now);
        // Read after the lease: the watch thread notes the end at `max_hold` before it ends the lease or passes it on.
        let limits = self.limits.as_ref();
        if limits.is_some_and(|limits| limits.is_exceeded()) {
            return Err(self.lost(LostCause::MaxHold));
        }
        match deadline {
            Ok(deadline) => Ok((now, deadline)),
            Err(LeaseStatus::Lost(cause)) => Err(self.lost(cause)),
            // A lease ends with its last hold. If this guard still exists, its hold ended by a loss.
            Err(_) => Err(self.lost(LostCause::Expired)),
        }
    }

    pub(crate) fn lost(&self, cause: LostCause) -> Lost {
        Lost {
            name: self.name().into(),
            fence: self.fence,
            cause,
        }
    }

    /// Registers a channel for the loss of this guard. If the guard ends without a loss, the sender is dropped.
    pub(crate) fn tell_of_loss(&self, sender: &Sender<Lost>) {
        // The cause is a placeholder: `LossListener::notify` replaces it.
        let lost = self.lost(LostCause::Expired);
        if self.engine.client.is_forked() {
            sender.try_send(lost).ok();
            return;
        }
        self.is_listened_to.store(true, Ordering::Relaxed);
        self.process_lease.enlist(LossListener {
            guard_number: self.number,
            sender: sender.clone(),
            lost,
        });
        // If the loss was announced before this listener was registered, send it now. If it is sent twice, the channel
        // is full at the second time.
        if let Err(lost) = self.status() {
            sender.try_send(lost).ok();
        }
    }

    /// Sends a renewal for `lease`, and waits for the reply for at most `left`, the time that is left of the lease.
    pub(crate) fn renew(&self, lease: Duration, left: Duration) -> Result<()> {
        let client = &self.engine.client;
        let _called = client.machine().begin_call();
        let renewals: Vec<_> = client.renewals(&self.process_lease, lease).collect();
        let sent = client.now();
        let deadline = client.deadline(Some(sent + left));
        let name = Some(self.name());
        let replies = client
            .send(&Request::Renew(&renewals), deadline)
            .and_then(|answer| answer.reply.renewed())
            .map_err(|failure| failure.into_error(name))?;
        let renewed = self
            .engine
            .renewal
            .apply(&self.process_lease, sent, lease, &replies);
        match renewed {
            LeaseStatus::Lost(_) | LeaseStatus::Ended => {}
            _ if replies.contains(&Renewed::Refused) => {
                let words = "the server does not let this user renew this lock";
                return Err(Failure::not_executed(FailureKind::Denied, words).into_error(name));
            }
            LeaseStatus::Live(_) if !replies.iter().all(Renewed::is_confirmed) => {
                let words = "too few nodes confirmed it";
                let kind = FailureKind::Unavailable;
                return Err(Failure::unknown(kind, words).into_error(name));
            }
            LeaseStatus::Live(left) => client.count_renewal(&self.process_lease, left),
        }
        self.held().map(drop).map_err(Error::Lost)
    }
}

/// Its end.
impl Lease {
    /// Releases the lock. Returns [`Error::Lost`] if the lease had ended before.
    pub(crate) fn release(mut self) -> Result<()> {
        self.end()
    }

    /// Does all steps of [`crate::engine::lease::release`], unless this guard has ended before.
    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        let result = self.end_and_release();
        #[cfg(feature = "tracing")]
        spans::released(&self.span, &result);
        result
    }

    fn end_and_release(&self) -> Result<()> {
        let (status, unreleased) = self.end_hold(HoldEnd::Release)?;
        let (engine, entry) = (&self.engine, &self.process_lease.entry);
        let released = match unreleased {
            None => Ok(None),
            Some((release_task, _counted)) if engine.client.settings.background_release => {
                engine.release_later(entry, release_task);
                Ok(None)
            }
            Some((release_task, _counted)) => {
                let deadline = engine.client.deadline(None);
                let result = engine.send_release(entry, release_task, deadline);
                engine.let_next_thread_ask(entry);
                result
            }
        };
        if let LeaseStatus::Lost(cause) = status {
            return Err(Error::Lost(self.lost(cause)));
        }
        match released {
            Ok(None) => Ok(()),
            Ok(Some(gone)) => {
                let cause = gone.into();
                engine
                    .client
                    .count_loss(&self.process_lease, self.fence, cause);
                Err(Error::Lost(self.lost(cause)))
            }
            Err(failure) => Err(failure.into_error(Some(entry.target.name()))),
        }
    }

    /// Does steps 1 to 3 of [`crate::engine::lease::release`], once. Returns the status of the lease at its end, and the
    /// release task if the caller must do the next steps.
    pub(crate) fn end_hold(
        &self,
        mode: HoldEnd,
    ) -> Result<(LeaseStatus, Option<(ReleaseTask, CountedBusy<'_>)>)> {
        if self.engine.client.is_forked() {
            // This raises the reference count, so that the child never drops its copy of the leases.
            std::mem::forget(Arc::clone(&self.engine));
            return Err(Error::Forked);
        }
        let limits = self.limits.as_ref();
        if limits.is_some_and(|limits| !limits.finish(&self.engine.watch)) {
            #[cfg(feature = "tracing")]
            if mode == HoldEnd::Detach {
                spans::detached(&self.span, LeaseStatus::Lost(LostCause::MaxHold));
            }
            return Err(Error::Lost(self.lost(LostCause::MaxHold)));
        }
        // Step 2 comes before the lock goes on: these listeners must not receive a loss of the next guard.
        let listeners = if self.is_listened_to.load(Ordering::Relaxed) {
            self.process_lease.remove_listeners(self.number)
        } else {
            Vec::new()
        };
        let now = self.engine.client.now();
        let held = now.since(self.since);
        self.engine
            .client
            .count_end(&self.process_lease, self.fence, now, held);
        let (status, unreleased) = self.engine.end_hold(&self.process_lease, now, mode);
        #[cfg(feature = "tracing")]
        if mode == HoldEnd::Detach {
            spans::detached(&self.span, status);
        }
        if let LeaseStatus::Lost(cause) = status {
            for listener in listeners {
                listener.notify(cause);
            }
        }
        Ok((status, unreleased))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In a forked child, a mutex of the subscriber may stay locked without end.
        #[cfg(feature = "tracing")]
        if self.engine.client.is_forked() {
            std::mem::forget(std::mem::replace(&mut self.span, spans::Span::none()));
        }
        match self.end() {
            // The events thread logs each loss.
            Ok(()) | Err(Error::Forked | Error::Lost(_)) => {}
            Err(error) => {
                logging::warning!(
                    "a release failed, and is repeated until Redis replies or has dropped the key: {error:#}"
                );
            }
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name())
            .field("fence", &self.fence())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
