//! A call for a lock, from the caller's thread to its guard. [`Acquire::run`] is the story, and the rest is what it needs on
//! the way.
//!
//! # The delegate
//!
//! The *delegate* is the only thread of a process that asks Redis for a name. It drives an [`Attempt`], which decides without
//! clock, thread or connection ([`Acquire::ask`]). The threads behind it wait for the result ([`Acquire::wait`]):
//!
//! | how it ends | the delegate | the threads behind it |
//! | --- | --- | --- |
//! | granted | gets a guard ([`Engine::begin_lease`]) | get guards if the lease has room for them, else wait |
//! | Redis lets more readers into this process's lease | gets a guard; if the lease has ended, asks again with a new attempt | get guards if the lease has room for them |
//! | time over, or cancelled | gets no guard | the next thread becomes the delegate, and continues the attempt with its place in the queue in Redis |
//! | failed, in a wait | gets the error | get the error |
//! | failed, in a try | gets the error | tries get the error; the next thread that waits becomes the delegate |
//! | manager closed | gets [`Error::Closed`] | get [`Error::Closed`] |
//!
//! # Behind the delegate
//!
//! A thread sleeps there until one of these has happened. If several have, the first row counts:
//!
//! | event | the thread |
//! | --- | --- |
//! | another thread has sent it a signal | follows the signal |
//! | the call's token is cancelled | leaves the queue; the call returns [`Error::Cancelled`] |
//! | the manager is closed | leaves the queue; the call returns [`Error::Closed`] |
//! | the time is over | leaves the queue; the call returns the last known state of the lock |
//! | it has waited for `warn_wait_after` | warns, and waits on |
//!
//! If the thread is not in the queue when it wants to leave, another thread has taken it out to send it a signal. Then
//! the thread must wait for that signal, without a time limit: the signal may bring the lock, or the task of the
//! delegate.

use std::mem;
use std::time::Duration;

use crate::cancel::Cancel;
use crate::config::{Options, Terms};
use crate::engine::Engine;
use crate::engine::attempt::{Attempt, Context, EndedOwner, Grant, Input, Step};
use crate::engine::client::Client;
use crate::engine::lease::CountedBusy;
use crate::engine::lease::fence;
use crate::engine::lease::guard::Lease;
use crate::engine::lease::process_lease::{Hold, ProcessLease};
#[cfg(feature = "tracing")]
use crate::engine::observe::{ended_by, spans};
use crate::engine::queue::rules::{AcquireParams, Arrival, GrantedTo};
use crate::engine::queue::{Entry, LastReply, NameState, Signal, WaitingThread};
use crate::engine::wakeup::Waker;
use crate::error::{Error, Failure, FailureKind, Result};
use crate::event::{Event, EventKind};
use crate::logging;
use crate::name::Target;
use crate::net::deadline::{LEAST, Wait};
use crate::owner;
use crate::server::Answer;
use crate::stats::Ended;
use crate::sys::machine::Entered;
use crate::sys::{Arc, Ordering, Time};
use crate::wire::{Ask, GrantMessage, LockKind, Reply, Request, lifetime};

/// Acquires a lock. Blocks until the thread has a guard, the time is over, the token is cancelled, the manager is closed,
/// or a request has failed.
pub(crate) fn lock(engine: &Arc<Engine>, call: &Call<'_>) -> Result<Lease, NotAcquired> {
    // A call that cannot succeed changes nothing, and sends nothing.
    let client = &engine.client;
    client.check_open()?;
    let terms = client.settings.checked_terms(&call.options)?;
    if call.is_cancelled() {
        return Err(Error::Cancelled.into());
    }
    let (mut acquire, place) = Acquire::enter(engine, call, terms);
    let acquired = acquire.run(place);
    if let Err(why) = &acquired {
        acquire.count_refused(why);
    }
    acquired
}

impl Acquire<'_> {
    /// The story: from the place in the queue of the name to the guard.
    fn run(&mut self, place: Place) -> Result<Lease, NotAcquired> {
        // 1. Am I first? The queue has decided.
        let signal = match place {
            // Nobody is before this thread.
            Arrival::Delegate => Signal::Ask { has_waited: false },
            // A lease of this process has room for it: no request.
            Arrival::Hold(hold) => Signal::Hold(hold),
            // It only tries, and another owner has the lock as far as this process knows.
            Arrival::Held => Signal::Held,
            // Another thread asks Redis, or this process holds or releases the lock. Wait behind it.
            Arrival::Queued(waiter) => self.wait(&waiter)?,
        };
        let hold = match signal {
            Signal::Hold(hold) => {
                self.count_granted(&hold, false);
                hold
            }
            Signal::Ask { has_waited } => self.ask(self.attempt(has_waited))?,
            Signal::Delegate(attempt) if attempt.is_for(self.call.units, self.call.tail) => {
                self.ask(attempt)?
            }
            Signal::Delegate(attempt) => {
                self.clean_up(attempt.abandon());
                self.ask(self.attempt(true))?
            }
            Signal::Held => return Err(self.held()),
            Signal::Failed(failure) => return Err(self.call.failed(failure)),
            Signal::Closed => return Err(Error::Closed.into()),
        };
        // 4. Hand the guard out.
        Ok(Lease::new(
            Arc::clone(self.engine),
            hold,
            &self.call.options,
        ))
    }

    /// Steps 2 and 3, as the delegate. The thread counts as busy.
    // Inlined, its 2 KB of stack would be those of each thread that only waits: with a thousand of them a hand-over in memory
    // took 3 % longer.
    #[inline(never)]
    fn ask(&mut self, mut attempt: Box<Attempt>) -> Result<Hold, NotAcquired> {
        // 2. Ask Redis for all threads of this process, and sleep between the requests, as the attempt says. Releases that
        //    are still to be sent go first.
        if let Err(failure) = self.wait_for_releases() {
            return Err(match self.call.wait {
                Wait::Try => self.failed(attempt, failure),
                Wait::Until(_) | Wait::Forever => self.time_over(attempt, Some(failure)),
            });
        }
        let mut input = Input::Go;
        loop {
            // If a request has a result, the attempt must get it before the call ends: Redis may still execute the request.
            let has_result = matches!(input, Input::Replied { .. } | Input::Failed { .. });
            if !has_result && self.must_end() {
                return Err(self.called_off(attempt));
            }
            let step = attempt.step(input, &self.context());
            // If the attempt has changed its owner, the former one may still have something in Redis.
            self.clean_up(attempt.ended_owners());
            input = match step {
                Step::Send(ask) => self.send(&mut attempt, ask),
                Step::Sleep(until) => self.sleep(&attempt, until),
                // 3. Begin the lease. Its first hold is this thread's; if the kind allows several, threads that wait get
                //    holds too.
                Step::Granted(grant) => return self.begin_lease(grant),
                Step::Shared => match self.share(&mut attempt) {
                    Some(hold) => return Ok(hold),
                    // The lease has ended meanwhile. Ask again.
                    None => Input::Go,
                },
                Step::TimeOver(failure) => return Err(self.time_over(attempt, failure)),
                Step::Failed(failure) => return Err(self.failed(attempt, failure)),
            };
        }
    }
}

/// The parameters of one call.
pub(crate) struct Call<'a> {
    pub(crate) kind: LockKind,
    pub(crate) target: &'a Target,
    pub(crate) options: Options,
    /// The tail of its owners.
    pub(crate) tail: &'a Arc<str>,
    /// The number of units.
    pub(crate) units: u32,
    pub(crate) wait: Wait,
    /// The token that may end the call early.
    pub(crate) cancel: Option<&'a Cancel>,
}

impl Call<'_> {
    fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(Cancel::is_cancelled)
    }

    /// Converts the failure of a request into the error that the caller gets.
    fn failed(&self, failure: Failure) -> NotAcquired {
        NotAcquired::Failed(failure.into_error(Some(self.target.name())))
    }
}

/// The reason for which a call got no guard.
pub(crate) enum NotAcquired {
    /// The lock was held until the call ended. The owner is `None` if this process does not know it.
    Held(Option<Arc<str>>),
    Failed(Error),
}

impl From<Error> for NotAcquired {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The place in the queue of the name that a thread found.
type Place = Arrival<Arc<WaitingThread>, Arc<ProcessLease>>;

/// A call on its way.
struct Acquire<'a> {
    engine: &'a Arc<Engine>,
    client: &'a Client,
    call: &'a Call<'a>,
    terms: Terms,
    entry: Arc<Entry>,
    /// When the call began.
    arrived: Time,
    /// Counts the thread as busy, once it is the delegate.
    counted: Option<CountedBusy<'a>>,
    /// Whether the call has begun to wait for the lock.
    waits: bool,
    /// When to warn of the wait. [`Time::NEVER`] if never, or never again.
    long_at: Time,
    /// Whether the log has the warning that the holder has no expiry.
    has_warned: bool,
    /// The registration under which a message wakes the delegate, once there is one.
    waker: Option<Waker>,
    /// When a message woke the delegate, until the next request. Redis may have handed the lock over to this owner, so
    /// that the pickup window runs.
    message_at: Option<Time>,
    /// How long the last request took.
    round_trip: Duration,
    /// The owner of the lease that the last request offered to share.
    offered: Option<Arc<str>>,
    /// Held by simulated machines: keeps the test clock still from send to guard.
    called: Option<Entered>,
    #[cfg(feature = "tracing")]
    span: spans::Span,
}

impl<'a> Acquire<'a> {
    /// Enters the queue of the name.
    fn enter(engine: &'a Arc<Engine>, call: &'a Call<'a>, terms: Terms) -> (Self, Place) {
        let client = &*engine.client;
        let arrived = client.now();
        let params = AcquireParams {
            units: call.units,
            terms,
            waits: !matches!(call.wait, Wait::Try),
        };
        let (entry, arrival, counted) =
            engine.names.with(call.kind, call.target, |entry, state| {
                let arrival = state.queue.arrive(
                    params,
                    arrived,
                    |process_lease| engine.health(process_lease, arrived),
                    || WaitingThread::new(call.tail),
                );
                let mut counted = None;
                if let Arrival::Delegate = arrival {
                    state.forget_last_reply(arrived);
                    // `close` looks at the name after this, and then waits for busy threads.
                    counted = Some(engine.count_busy());
                }
                (Arc::clone(entry), arrival, counted)
            });
        let long_after = client.settings.warn_wait_after.filter(|_| params.waits);
        let acquire = Self {
            engine,
            client,
            call,
            terms,
            entry,
            arrived,
            counted,
            waits: false,
            long_at: long_after.map_or(Time::NEVER, |after| arrived + after),
            has_warned: false,
            waker: None,
            message_at: None,
            round_trip: Duration::ZERO,
            offered: None,
            called: None,
            #[cfg(feature = "tracing")]
            span: spans::wait(call.target.name()),
        };
        (acquire, arrival)
    }

    /// Returns whether the call must end: the manager is closed, or the token is cancelled. Locks no mutex.
    fn must_end(&self) -> bool {
        self.client.is_closed() || self.call.is_cancelled()
    }

    /// Returns the result of a call that ends while another owner holds the lock.
    fn held(&self) -> NotAcquired {
        NotAcquired::Held(self.engine.holder(&self.entry.lock()))
    }

    /// Makes an attempt for the calling thread.
    fn attempt(&self, has_waited: bool) -> Box<Attempt> {
        let (rng, call) = (self.client.machine(), self.call);
        Box::new(Attempt::new(rng, call.tail, call.units, has_waited))
    }

    /// Begins the lease of a grant. If that fails, so do the threads that wait.
    fn begin_lease(&mut self, grant: Grant) -> Result<Hold, NotAcquired> {
        // No request was sent since the message, so this granted the lock.
        if let Some(message_at) = self.message_at {
            self.note_hand_over(message_at);
            self.client.stats.granted_by_message.add(1);
        }
        // From here on, a message for this owner has no effect.
        self.waker = None;
        let count = |hold: &Hold| self.count_granted(hold, true);
        let begun = (self.engine).begin_lease(&self.entry, grant, GrantedTo::Delegate, count);
        begun.map_err(|failure| {
            self.end_waits(Some(&failure));
            self.leave();
            self.call.failed(failure)
        })
    }

    /// Makes the renewal thread release owners of an attempt that may have something in Redis.
    fn clean_up(&self, ended_owners: Vec<EndedOwner>) {
        for ended_owner in ended_owners {
            let lease = self.terms.lease();
            self.engine.clean_up(&self.entry, ended_owner, lease);
        }
    }

    /// Warns once for each wait that the lock may stay held for ever.
    fn warn_of_no_expiry(&mut self) {
        if self.call.wait != Wait::Try && !mem::replace(&mut self.has_warned, true) {
            logging::warning!(
                "lock {:?}: the holder has no expiry; is this the key of another program? Set a prefix",
                self.call.target.name()
            );
        }
    }

    /// Warns if the wait is long: once, and for one name once in that time. `asks`: asks Redis for the queue.
    fn warn_if_long(&mut self, asks: bool) {
        if self.long_at == Time::NEVER || self.client.now() < self.long_at {
            return;
        }
        let now = self.client.now();
        let limit = self.client.settings.warn_wait_after.unwrap_or_default();
        let holder = {
            let mut state = self.entry.lock();
            if let Err(later) = state.begin_warning(now, limit) {
                self.long_at = later;
                return;
            }
            self.engine.holder(&state)
        };
        self.long_at = Time::NEVER;
        let queue = asks.then(|| self.queue_in_redis()).flatten();
        let kind = EventKind::WaitsLong {
            holder: holder.map(|holder| holder.to_string().into()),
            waited: now.since(self.arrived),
            queue,
        };
        self.client
            .events
            .warn(|| Event::of_lock(self.call.target.name(), None, kind));
    }

    /// Returns the length of the queue in Redis, unless that takes long.
    fn queue_in_redis(&self) -> Option<u64> {
        let request = Request::Inspect {
            keys: &self.entry.target.keys()[..1],
            named: true,
        };
        let must_end = || self.must_end();
        let until = self.end_of_one_request().min(self.client.now() + LEAST);
        let deadline = self.client.deadline(Some(until)).ended_by(&must_end);
        match self.client.send(&request, deadline).ok()?.reply {
            Reply::Inspected(seen) => Some(seen.iter().flatten().map(|it| it.waiters).sum()),
            _ => None,
        }
    }

    /// Returns when what the call waits for before its own request must end: after the time limit of one request, at the
    /// latest. It has [`LEAST`], as that request has.
    fn end_of_one_request(&self) -> Time {
        let now = self.client.now();
        let limit = now + self.client.settings.io_timeout;
        let end = self.call.wait.end();
        end.map_or(limit, |end| end.max(now + LEAST).min(limit))
    }
}

/// Behind the delegate.
impl Acquire<'_> {
    /// Sleeps until there is a signal, or leaves the queue and returns the reason.
    fn wait(&mut self, waiter: &Arc<WaitingThread>) -> Result<Signal, NotAcquired> {
        self.count_wait(|engine, entry| engine.holder(&entry.lock()));
        let is_it = |other: &Arc<WaitingThread>| Arc::ptr_eq(other, waiter);
        let (call, arrived) = (self.call, self.arrived);
        let mut until = match call.wait {
            // `close` sets its flag before it takes the threads out of the queues. So either this thread sees the flag
            // here, or `close` finds this thread in the queue.
            _ if self.client.is_closed() => self.client.now(),
            // A try waits for one reply to the delegate, so for at most the time limit of a request.
            Wait::Try => arrived + self.client.settings.io_timeout,
            Wait::Until(end) => end,
            Wait::Forever => Time::NEVER,
        };
        // From here on, a cancel wakes this thread.
        let _registered = call.cancel.map(|token| token.register(&waiter.parker));
        let mut is_taken_out = false;
        loop {
            // 1. A signal decides, if there is one.
            if let Some(signal) = waiter.take() {
                self.counted = match signal {
                    Signal::Ask { .. } => Some(self.engine.count_busy()),
                    // The thread that left the attempt has left its count too.
                    Signal::Delegate(_) => Some(CountedBusy(self.engine)),
                    _ => None,
                };
                return Ok(signal);
            }
            // 2. A cancelled thread leaves the queue. If it cannot, its signal is on the way.
            if call.is_cancelled() && !is_taken_out {
                if self.entry.lock().queue.leave(is_it) {
                    return Err(Error::Cancelled.into());
                }
                is_taken_out = true;
            }
            // 3. Sleep. If a signal is on the way, only the signal ends this.
            let wakes_at = if is_taken_out {
                Time::NEVER
            } else {
                until.min(self.long_at)
            };
            let now = self.client.now();
            if wakes_at > now {
                waiter.parker.sleep_until(self.client.machine(), wakes_at);
                continue;
            }
            if until > now {
                self.warn_if_long(false);
                continue;
            }
            // 4. The time is over, or the manager was closed: leave the queue.
            let mut state = self.entry.lock();
            if self.client.is_closed() && state.queue.leave(is_it) {
                return Err(Error::Closed.into());
            }
            let known = self.last_known(&state);
            // Any request may take `LEAST`. So give the delegate's first request that time: without its reply, the result
            // of this wait would be an error.
            if known.is_none() && until < arrived + LEAST {
                until = arrived + LEAST;
                continue;
            }
            if state.queue.leave(is_it) {
                return Err(known.unwrap_or_else(|| {
                    let words = "the wait ended before the server answered";
                    call.failed(Failure::unknown(FailureKind::Unavailable, words))
                }));
            }
            is_taken_out = true;
        }
    }

    /// Returns the result of a wait whose time is over: the last state of the lock that this process knows. `None`: it has no
    /// reply that may still be true.
    fn last_known(&self, state: &NameState) -> Option<NotAcquired> {
        match (self.engine.holder(state), state.last_reply()) {
            (Some(holder), _) => Some(NotAcquired::Held(Some(holder))),
            // This process holds the lock until Redis has executed the release.
            (None, _) if state.queue.is_releasing() => Some(NotAcquired::Held(None)),
            (None, LastReply::Failed(failure)) => Some(self.call.failed(failure.clone())),
            // The request in flight has no reply yet. But the lock was held during this wait.
            (None, LastReply::WasHeld(at, holder)) if *at >= self.arrived => {
                Some(NotAcquired::Held(Some(Arc::clone(holder))))
            }
            // The delegate sleeps after "held", and does not know of a thread that has adopted and released the lock since.
            (None, _) if state.queue.is_answered(self.call.units) => Some(NotAcquired::Held(None)),
            (None, _) => None,
        }
    }
}

/// As the delegate.
impl Acquire<'_> {
    /// Waits until the renewal thread has sent the releases of the call's keys. Otherwise Redis could answer that this
    /// process itself still holds the lock. Waits for at most the time limit of one request, so neither a busy renewal thread nor a dead server delays the call for longer.
    ///
    /// # Errors
    ///
    /// Returns a failure if the call has no time left to ask later. The answer "held", by an owner of this process that has
    /// ended, would be none.
    fn wait_for_releases(&self) -> Result<(), Failure> {
        let (keys, renewal) = (self.call.target.keys(), &self.engine.renewal);
        // Most calls need no mutex to know.
        if !renewal.has_unsent.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (until, must_end) = (self.end_of_one_request(), || self.must_end());
        let is_sent = renewal.wait_until_sent(keys, until, &must_end);
        let wait = self.call.wait;
        let may_wait = wait != Wait::Try && !wait.is_over(self.client.now());
        if is_sent || may_wait || must_end() {
            return Ok(());
        }
        let words = "this process still has to release the lock, and could not do so in time";
        Err(Failure::not_executed(FailureKind::Unavailable, words))
    }

    /// Returns whether a hand-over may grant the lock by message. These leases are granted by reply only:
    ///
    /// | lease | because |
    /// | --- | --- |
    /// | of another kind than a mutex | other scripts hand it over |
    /// | on a quorum | one node cannot grant it |
    /// | that counts replicas | the hand-over waits for no replica |
    /// | without renewal | nothing would raise it to its full length |
    fn grants_by_message(&self) -> bool {
        self.call.kind == LockKind::Mutex
            && self.terms.renew
            && self.client.settings.replicas == 0
            && self.client.store.votes().is_none()
    }

    /// Returns what the attempt must know for its next step.
    fn context(&self) -> Context<'_> {
        let (engine, client, call) = (self.engine, self.client, self.call);
        let (settings, terms, now) = (&client.settings, self.terms, client.now());
        let subscription = engine.wakeup.subscription(now);
        let quantum = engine.quantum.get(&subscription);
        let (shareable_owner, crowded) = {
            let queue = &self.entry.lock().queue;
            let lease = if call.kind.sharing().together {
                queue.shareable_lease(call.units, terms, |lease| engine.health(lease, now))
            } else {
                None
            };
            (
                lease.map(|lease| client.owner_of(lease)),
                queue.is_crowded(),
            )
        };
        // A lease with a `min_hold` is not handed to the next thread, so it needs one fence.
        let fence_block = if call.options.min_hold.is_zero() {
            fence::block(self.entry.kind, quantum)
        } else {
            1
        };
        Context {
            arrived: self.arrived,
            terms,
            wait: call.wait,
            pickup_window: lifetime::pickup_window(terms.lease(), settings.io_timeout),
            grants_by_message: self.grants_by_message(),
            outage_limit: settings.outage_limit,
            waits_through_outages: settings.wait_through_outages,
            tail: call.tail,
            rng: client.machine(),
            now,
            subscription,
            failed_over_at: client.store.last_failover(),
            round_trip: self.round_trip,
            fence_block,
            shareable_owner,
            crowded,
            busy_threads: client.closing.busy_threads(),
        }
    }

    /// Sends a request of the attempt. Returns its result.
    fn send(&mut self, attempt: &mut Attempt, ask: Ask) -> Input {
        let (engine, client) = (self.engine, self.client);
        self.offered.clone_from(&ask.shareable_owner);
        if self.called.is_none() {
            self.called = Some(client.machine().begin_call());
        }
        if ask.queues() {
            // The message may arrive before the reply, so the thread registers before it sends the request.
            engine.wakeup.register(&mut self.waker, attempt.owner());
        }
        let (sent, message_at) = (client.now(), self.message_at.take());
        let must_end = || self.must_end();
        let wait = self.call.wait;
        let mut deadline = client.deadline(wait.end()).ended_by(&must_end);
        deadline.is_of_a_wait = !matches!(wait, Wait::Try);
        if let Wait::Forever = wait {
            deadline.checkout = client.settings.outage_limit;
        }
        // The pickup window may run, so this request must not wait behind others for a connection.
        deadline.has_priority = message_at.is_some();
        let answer = client.send(&Request::Ask(self.entry.id(), &ask), deadline);
        self.round_trip = client.now().since(sent);
        engine.clean_up_nodes(&self.entry, &ask.owner, ask.units);
        if let (Some(end), Ok(_)) = (&ask.ending, &answer) {
            engine.clean_up_nodes(&self.entry, &end.owner, end.units);
        }
        let failure = match answer {
            Ok(Answer { reply, resent }) => {
                let message_at = message_at.filter(|_| !resent);
                let reply = self.note_reply(attempt, &ask, reply, message_at);
                return Input::Replied {
                    ask,
                    sent,
                    reply,
                    resent,
                };
            }
            Err(failure) => failure,
        };
        // The call must end, so the thread stopped waiting, or the failure is of no interest to it. The threads behind it ask
        // Redis themselves. The attempt notes whether Redis may still execute the request.
        if self.must_end() && failure.is_transient() {
            attempt.failed(&ask, sent, &failure, &self.context());
            return Input::Woken;
        }
        let cut_short = self.is_cut_short(sent, &failure);
        if !cut_short {
            let mut state = self.entry.lock();
            state.note_failed(failure.clone());
            state.queue.not_answered();
        }
        Input::Failed {
            ask,
            sent,
            failure,
            cut_short,
        }
    }

    /// Notes what a reply says of the lock, and returns it. `message_at` is when a message woke the thread, unless the request
    /// was sent twice: from then to the grant is how long the lock took to be picked up.
    fn note_reply(
        &mut self,
        attempt: &Attempt,
        ask: &Ask,
        reply: Reply,
        message_at: Option<Time>,
    ) -> Reply {
        let reply = match reply {
            Reply::Differs { others, reply } => {
                self.client.warn_of_permits(&self.entry, others);
                *reply
            }
            reply => reply,
        };
        match &reply {
            Reply::Granted { .. } => {
                if let Some(message_at) = message_at {
                    self.note_hand_over(message_at);
                }
            }
            Reply::Held { ttl, holder, .. }
            | Reply::Outvoted {
                holder: Some(holder),
                ttl,
                ..
            } if !attempt.is_former_owner(holder) => {
                self.note_held(holder, ttl.is_none(), ask.queues());
            }
            _ => {}
        }
        reply
    }

    /// Notes that another owner holds the lock. Ends the tries that wait behind the delegate.
    fn note_held(&mut self, holder: &str, has_no_expiry: bool, is_queued: bool) {
        let shown: Arc<str> = owner::shown(holder).into();
        let tries = {
            let mut state = self.entry.lock();
            state.note_held(Arc::clone(&shown));
            state.queue.answered_held(is_queued)
        };
        for waiter in tries {
            waiter.send(Signal::Held);
        }
        self.count_wait(|_, _| Some(shown));
        if has_no_expiry && !owner::is_ours(holder) {
            self.warn_of_no_expiry();
        }
    }

    /// Notes how long this process has taken to pick the lock up after the message.
    fn note_hand_over(&self, message_at: Time) {
        let pickup = self.client.now().since(message_at);
        self.engine.quantum.note_hand_over(pickup, self.round_trip);
        self.client.stats.hand_overs_received.add(1);
    }

    /// Returns whether a request timed out only because the wait ended before the time limit of a request had passed.
    /// Such a failure is no sign of a fault of the server.
    fn is_cut_short(&self, sent: Time, failure: &Failure) -> bool {
        let (client, end) = (self.client, self.call.wait.end());
        let limit = match failure.kind {
            // A quorum says that the request timed out only if its nodes had less than `node_timeout`.
            FailureKind::NoQuorum(_) => client.settings.node_timeout,
            _ => client.settings.io_timeout,
        };
        failure.timed_out && end.is_some_and(|end| client.now() >= end && end < sent + limit)
    }

    /// Sleeps until a message comes, `until` has passed, or the call must end. Returns the result of the sleep: the message,
    /// if it grants the lock and the renewal thread is ready to raise the lease from the pickup window to its full length.
    /// Otherwise the delegate asks Redis, which raises it at once.
    fn sleep(&mut self, attempt: &Attempt, until: Time) -> Input {
        self.called = None;
        self.warn_if_long(true);
        let until = until.min(self.long_at);
        let (engine, client) = (self.engine, self.client);
        engine.subscribe();
        if self.grants_by_message() {
            engine.renewal.prepare();
        }
        let waker = engine.wakeup.register(&mut self.waker, attempt.owner());
        // From here on, a cancel wakes this thread.
        let cancel = self.call.cancel;
        let _registered = cancel.map(|token| token.register(waker.parker()));
        // `close` sets its flag before it wakes all registered threads. So either this thread sees the flag, or `close`
        // wakes it.
        if client.is_closed() || self.call.is_cancelled() {
            return Input::Woken;
        }
        let Some(message) = waker.wait(client.machine(), until) else {
            return Input::Woken;
        };
        self.message_at.get_or_insert_with(|| client.now());
        let is_usable = |grant: &GrantMessage| {
            engine.renewal.is_ready(client.now()) && !grant.is_ahead_of(client.machine().wall_us())
        };
        Input::Message(message.filter(is_usable))
    }

    /// Begins another quantum of the lease that the last request offered, with a hold for this thread. The attempt ends, and
    /// a new one takes its place. Returns `None` if the lease has ended.
    fn share(&mut self, attempt: &mut Box<Attempt>) -> Option<Hold> {
        let new = self.attempt(true);
        self.clean_up(mem::replace(attempt, new).abandon());
        let offered = self.offered.take()?;
        let count = |hold: &Hold| self.count_granted(hold, true);
        self.engine.reopen(&self.entry, &offered, count)
    }

    /// Ends a call whose manager is closed, or whose token is cancelled.
    fn called_off(&mut self, attempt: Box<Attempt>) -> NotAcquired {
        if self.client.is_closed() {
            self.end_all(*attempt, None);
            return Error::Closed.into();
        }
        self.give_to_next(attempt);
        Error::Cancelled.into()
    }

    /// Ends a call whose time is over. Its result is this failure, or else the last answer, which was "held".
    fn time_over(&mut self, attempt: Box<Attempt>, failure: Option<Failure>) -> NotAcquired {
        let why = failure.map_or_else(|| self.held(), |failure| self.call.failed(failure));
        self.give_to_next(attempt);
        why
    }

    /// Ends a call by a failure that counts for the threads behind it too.
    fn failed(&mut self, attempt: Box<Attempt>, failure: Failure) -> NotAcquired {
        match self.call.wait {
            Wait::Try => self.end_tries(*attempt, &failure),
            Wait::Until(_) | Wait::Forever => self.end_all(*attempt, Some(&failure)),
        }
        self.call.failed(failure)
    }

    /// Hands the attempt to the next thread. If there is none, ends the attempt, which leaves the queue in Redis.
    fn give_to_next(&mut self, attempt: Box<Attempt>) {
        self.waker = None;
        let next = self.entry.lock().queue.delegate_left();
        match next {
            Some(waiter) => {
                self.engine.count_busy().pass_on();
                waiter.send(Signal::Delegate(attempt));
            }
            None => self.abandon(*attempt),
        }
    }

    /// Ends the attempt, and the wait of every thread behind it: by this failure, or because the manager is closed.
    fn end_all(&mut self, attempt: Attempt, why: Option<&Failure>) {
        self.waker = None;
        self.end_waits(why);
        self.abandon(attempt);
    }

    /// Ends the wait of every thread behind the delegate.
    fn end_waits(&self, why: Option<&Failure>) {
        let waiting = self.entry.lock().queue.failed();
        for waiter in waiting {
            waiter.send(why.map_or(Signal::Closed, |why| Signal::Failed(why.clone())));
        }
    }

    /// Ends an attempt that no thread continues.
    fn abandon(&self, attempt: Attempt) {
        self.clean_up(attempt.abandon());
        self.leave();
    }

    /// Takes the name out of the table if nobody uses it.
    fn leave(&self) {
        self.engine.names.leave(&self.entry, |_| ());
    }

    /// Ends the attempt of a try, and the tries behind it. The next thread that waits becomes the delegate, because the
    /// failure of a try must not end a wait.
    fn end_tries(&mut self, attempt: Attempt, why: &Failure) {
        self.waker = None;
        let (tries, next) = {
            let mut state = self.entry.lock();
            let (tries, next) = state.queue.try_failed();
            if next.is_some() {
                state.forget_last_reply(self.client.now());
            }
            (tries, next)
        };
        for waiter in tries {
            waiter.send(Signal::Failed(why.clone()));
        }
        let has_waited = attempt.waits();
        self.clean_up(attempt.abandon());
        match next {
            Some(waiter) => waiter.send(Signal::Ask { has_waited }),
            None => self.leave(),
        }
    }
}

/// The counters and events of a call. [`crate::engine::observe`] has the table.
impl Acquire<'_> {
    /// Notes that the call waits for the lock. Only the first time counts. A try waits only for a reply, so it never
    /// counts.
    fn count_wait(&mut self, holder: impl FnOnce(&Engine, &Entry) -> Option<Arc<str>>) {
        if self.call.wait == Wait::Try || mem::replace(&mut self.waits, true) {
            return;
        }
        self.client.stats.contended.add(1);
        self.client.exported.waiting.increment(1);
        self.client.events.step(|| {
            let holder = holder(self.engine, &self.entry).map(|holder| holder.to_string().into());
            let kind = EventKind::Contended { holder };
            Event::of_lock(self.call.target.name(), None, kind)
        });
    }

    /// Notes that the call has a guard. `from_redis` is false if another thread of this process gave it.
    fn count_granted(&self, hold: &Hold, from_redis: bool) {
        let waited = hold.since.since(self.arrived);
        self.client.count_guard(hold, waited, from_redis);
        #[cfg(feature = "tracing")]
        {
            self.span.record("fence", hold.fence);
            self.span.record("outcome", ended_by(from_redis).label());
        }
    }

    /// Notes that the call ends without a guard.
    fn count_refused(&self, why: &NotAcquired) {
        let stats = &self.client.stats;
        let mut waited = Duration::ZERO;
        let ended = match (why, self.call.wait) {
            (NotAcquired::Held(_), Wait::Try) => {
                stats.tries_held.add(1);
                Ended::Held
            }
            (NotAcquired::Held(_), _) => {
                waited = self.client.now().since(self.arrived);
                stats.waits_timed_out.record(waited);
                Ended::TimedOut
            }
            (NotAcquired::Failed(error), _) => {
                stats.failed.add(1);
                match error {
                    Error::Cancelled | Error::Closed => Ended::Cancelled,
                    _ => Ended::Failed,
                }
            }
        };
        let series = self.client.exported.of(self.call.target.name());
        series.call(self.call.kind, ended, waited);
        #[cfg(feature = "tracing")]
        self.span.record("outcome", ended.label());
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if self.waits {
            self.client.stats.waits_over.add(1);
            self.client.exported.waiting.decrement(1);
        }
    }
}
