//! Leaders: each publishes a value, such as its address, and any process can observe who leads.
//!
//! A leader is the holder of a mutex, and its value stands beside the lock in Redis. The value counts only while the owner that
//! has written it holds the lock. Each write has a larger number than the one before, so that a late copy changes nothing. The
//! lease of a leader goes to no other guard in memory, so that an owner leads once.
//!
//! | step | in Redis |
//! | --- | --- |
//! | the lock is granted | the lock has the owner; a value of an earlier owner is nobody's |
//! | the value is written, by [`Term::proclaim`] | the record has owner, fence, number and value; the processes that observe get a message |
//! | the leadership ends: [`Term`] is dropped | the value is taken back, and the observers get a message; then the lock is released |
//!
//! If the process dies between the first two steps, the lock is held and nobody is shown until the lease is over. A value that
//! cannot be taken back ends with the release.
//!
//! One thread of a manager reads each name that is observed, once a second and after a message of the leader, and tells all
//! receivers of the process ([`rules`]). It does one thing after another, the longest overdue one first, so with many names or a
//! slow server a name has its turn less often.
//!
//! The same thread writes the values of this process's leaders again every [`WRITE_EVERY`]. Otherwise a value would end after a
//! day, for which a record lives, and one that a failover or the restart of a node has lost would not come back.

pub(crate) mod rules;

use std::collections::BTreeMap;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::engine::Engine;
use crate::engine::attempt::poll::SubscriptionState;
use crate::engine::lease::guard::Lease;
use crate::engine::lease::process_lease::ProcessLease;
use crate::engine::timer_queue::{Timed, Worker, WorkerTimer};
use crate::error::{Chain, Failure, FailureKind, Result};
use crate::logging;
use crate::name::LockKey;
use crate::net::deadline::Deadline;
use crate::sys::{Arc, Mutex, Time};
use crate::wire::{Lead, Reply, Request, SeenLeader};

use rules::{Leader, Observed};

/// How often the value of a leader is written again.
const WRITE_EVERY: Duration = Duration::from_secs(10);
/// How long the thread waits for the first subscription before it reads again, so that a message reaches it soon.
const SUBSCRIBES_WITHIN: Duration = Duration::from_millis(50);

/// The leaders of this process, and the names that its threads observe.
pub(crate) type Elections = Worker<State>;

#[derive(Default)]
pub(crate) struct State {
    /// By the key of the lock.
    observed: BTreeMap<String, Observed>,
    /// By the number of the lease, with the time of the next write.
    leaders: BTreeMap<u64, (Time, Arc<Led>)>,
    timer: WorkerTimer,
}

/// What is due.
enum Due {
    Read(LockKey),
    Write(Arc<Led>),
}

/// A lease of this process that leads.
struct Led {
    process_lease: Arc<ProcessLease>,
    fence: u64,
    /// The number of the last write, and its value. `None` if it was taken back.
    written: Mutex<(u64, Option<Arc<str>>)>,
}

/// The term of a leader. It must be dropped before its lease ends. The drop takes the value back, unless releases are in the
/// background: then it blocks for no request, and the value ends with the lock.
pub(crate) struct Term {
    engine: Arc<Engine>,
    led: Arc<Led>,
}

impl Engine {
    /// Begins the term of a leader. Blocks for one request, which writes the value.
    pub(crate) fn begin_term(self: &Arc<Self>, lease: &Lease, value: &str) -> Result<Term> {
        let process_lease = Arc::clone(&lease.process_lease);
        process_lease.keep_to_one_guard();
        let due = self.client.now() + WRITE_EVERY;
        let led = Arc::new(Led {
            process_lease,
            fence: lease.fence,
            written: Mutex::default(),
        });
        {
            let mut state = self.elections.lock();
            self.expect_election(&mut state, due)?;
            let number = led.process_lease.number;
            state.leaders.insert(number, (due, Arc::clone(&led)));
        }
        let engine = Arc::clone(self);
        let term = Term { engine, led };
        let proclaimed = term.proclaim(value);
        if proclaimed.is_err() {
            // The drop must not take the value back, because another request would only block.
            term.led.set(None);
        }
        proclaimed.map(|()| term)
    }

    /// Returns who leads. Blocks for one request.
    pub(crate) fn leader(&self, key: &LockKey) -> Result<Option<Leader>> {
        self.client.check_open()?;
        let sent = self.client.now();
        let seen = self.read_leader(key, "", self.client.deadline(None));
        let seen = seen.map_err(|failure| failure.into_error(Some(key.name())))?;
        let leader = Leader::of(seen, sent);
        let leader = leader.filter(|(_, until)| *until > self.client.now());
        Ok(leader.map(|(leader, _)| leader))
    }

    /// Returns a channel for each leader from now on. Blocks for one request.
    pub(crate) fn observe(self: &Arc<Self>, key: &LockKey) -> Result<Receiver<Option<Leader>>> {
        let client = &self.client;
        client.check_open()?;
        self.subscribe();
        let sent = client.now();
        let seen = self.read_leader(key, "", client.deadline(None));
        let seen = seen.map_err(|failure| failure.into_error(Some(key.name())))?;
        let mut state = self.elections.lock();
        // `close` sets this before it disconnects the receivers.
        client.check_open()?;
        let now = client.now();
        self.expect_election(&mut state, now)?;
        let new = || Observed::new(key.clone());
        let observed = state.observed.entry(key.key().to_owned());
        let observed = observed.or_insert_with(new);
        observed.read(sent, now, seen);
        let receiver = observed.add(now);
        observed.tell(now);
        Ok(receiver)
    }

    /// Reads a name after a message that its leader has changed. Any client could have sent it.
    pub(crate) fn leader_changed(&self, message: &str) {
        let Some((_, key)) = message.split_once(' ') else {
            return;
        };
        let now = self.client.now();
        let mut state = self.elections.lock();
        if let Some(observed) = state.observed.get_mut(key) {
            observed.read_soon(now);
            self.elections.wake_for(&mut state, now);
        }
    }

    /// Makes the thread act at `due`. Starts it if it does not run.
    fn expect_election(self: &Arc<Self>, state: &mut State, due: Time) -> Result<()> {
        let spawned = (self.elections).ensure_running(state, self, "leasehold-elections", serve);
        spawned.map_err(|error| {
            let words = format!("a thread of leasehold could not be started: {error}");
            Failure::not_executed(FailureKind::Unavailable, words).into_error(None)
        })?;
        self.elections.wake_for(state, due);
        Ok(())
    }

    fn read_leader(
        &self,
        key: &LockKey,
        channel: &str,
        deadline: Deadline<'_>,
    ) -> Result<Option<SeenLeader>, Failure> {
        let lead = Lead::Read { channel };
        let answer = self.client.send(&Request::Leader { key, lead }, deadline)?;
        match answer.reply {
            Reply::Leader(seen) => Ok(seen),
            _ => Err(Failure::another_question()),
        }
    }

    /// Reads a name for its observers, and tells them.
    fn read_observed(&self, key: &LockKey, until: Option<Time>) {
        let client = &self.client;
        let sent = client.now();
        let subscription = self.wakeup.subscription(sent);
        let channel = match &subscription {
            SubscriptionState::Ready(channel) => channel,
            _ => "",
        };
        let read = self.read_leader(key, channel, client.deadline(until));
        let now = client.now();
        let failed = {
            let mut state = self.elections.lock();
            let Some(observed) = state.observed.get_mut(key.key()) else {
                return;
            };
            let had_failed = std::mem::replace(&mut observed.has_failed, read.is_err());
            let failed = match read {
                Ok(seen) => {
                    observed.read(sent, now, seen);
                    None
                }
                Err(failure) => Some(failure).filter(|_| !had_failed),
            };
            observed.plan(now);
            if subscription == SubscriptionState::NotYet {
                observed.reads_at = observed.reads_at.min(now + SUBSCRIBES_WITHIN);
            }
            if !observed.tell(now) {
                state.observed.remove(key.key());
            }
            failed
        };
        if let Some(failure) = failed {
            logging::warning!(
                "the leader of {:?} cannot be read now, so its observers are shown nobody when its lease is over: {}",
                key.name(),
                Chain(&*failure.cause)
            );
        }
    }

    /// Writes what a leader has set last.
    fn write_leader(&self, of: &Led, until: Option<Time>) -> Result<()> {
        let (number, value) = of.written.lock().clone();
        let (process_lease, fence) = (&of.process_lease, of.fence);
        let lead = Lead::Write {
            owner: &self.client.owner_of(process_lease),
            fence,
            number,
            value: value.as_deref(),
        };
        let key = &process_lease.keys()[0];
        let request = Request::Leader { key, lead };
        let deadline = self.client.deadline(until);
        match self.write_if_held(process_lease, fence, &request, deadline)? {
            Reply::Recorded => Ok(()),
            _ => Err(Failure::another_question().into_error(Some(key.name()))),
        }
    }
}

impl Term {
    /// Writes the value of the leader. Blocks for one request.
    pub(crate) fn proclaim(&self, value: &str) -> Result<()> {
        self.led.set(Some(value.into()));
        self.engine.write_leader(&self.led, None)
    }

    /// Takes the value back, so that the observers get a message. Blocks for one request.
    pub(crate) fn take_back(&self) {
        let led = &self.led;
        if !self.engine.client.is_forked() && led.is_held() && led.written.lock().1.is_some() {
            led.set(None);
            // The lock is released whether or not this was executed, and without it the value is nobody's.
            self.engine.write_leader(led, None).ok();
        }
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        let Engine {
            client, elections, ..
        } = &*self.engine;
        if !client.settings.background_release {
            self.take_back();
        }
        if !client.is_forked() {
            let mut state = elections.lock();
            state.leaders.remove(&self.led.process_lease.number);
        }
    }
}

impl Led {
    fn is_held(&self) -> bool {
        self.process_lease.validity.deadline().is_some()
    }

    fn set(&self, value: Option<Arc<str>>) {
        let mut written = self.written.lock();
        *written = (written.0 + 1, value);
    }
}

impl Elections {
    /// Disconnects all receivers.
    pub(crate) fn close(&self) {
        let observed = std::mem::take(&mut self.lock().observed);
        drop(observed);
    }

    /// Tells observers of leaders whose leases may be over, and takes out the next thing that is due. Returns it with the end of
    /// its request: half of the time until the first lease that is shown may be over. So the other half is left for more
    /// requests, and for telling of that end.
    fn next(&self, now: Time) -> Option<(Due, Option<Time>)> {
        let mut state = self.lock();
        for observed in state.observed.values_mut() {
            observed.tell(now);
        }
        let due = state.take(now);
        let left = state.observed.values().filter_map(|it| it.left(now)).min();
        due.map(|due| (due, left.map(|left| now + left / 2)))
    }
}

impl Timed for State {
    fn timer(&mut self) -> &mut WorkerTimer {
        &mut self.timer
    }

    fn next_due(&self) -> Option<Time> {
        let reads = self.observed.values().map(Observed::due);
        let writes = self.leaders.values().map(|(due, _)| *due);
        reads.chain(writes).min()
    }
}

impl State {
    /// Takes out what waits longest, so that nothing starves if all together take longer than the time between two reads.
    fn take(&mut self, now: Time) -> Option<Due> {
        let write = self.leaders.values_mut().min_by_key(|(due, _)| *due);
        let read = self.observed.values_mut().min_by_key(|it| it.reads_at);
        match (write, read) {
            (Some((due, led)), read)
                if *due <= now && read.as_ref().is_none_or(|it| *due <= it.reads_at) =>
            {
                *due = now + WRITE_EVERY;
                Some(Due::Write(Arc::clone(led)))
            }
            (_, Some(observed)) if observed.reads_at <= now => {
                observed.begin_to_read(now);
                Some(Due::Read(observed.key.clone()))
            }
            _ => None,
        }
    }
}

/// Does the next thing that is due. One at a time, because with many names something is always due, and the thread must let go of
/// the engine in between: it may be the last one that holds it.
fn serve(engine: &Arc<Engine>) {
    match engine.elections.next(engine.client.now()) {
        Some((Due::Read(key), until)) => engine.read_observed(&key, until),
        // It is repeated soon, and the leader itself learns of a loss by its guard.
        Some((Due::Write(led), until)) if led.is_held() => drop(engine.write_leader(&led, until)),
        Some((Due::Write(_), _)) | None => {}
    }
}
