//! The release tasks that the renewal thread sends.
//!
//! A task comes from a release that failed, from an owner that an attempt left behind, or from a guard with
//! [`background_release`](crate::Builder::background_release). On a quorum it also comes from an owner whose end some nodes
//! have not confirmed. The thread repeats each task until it is done.
//!
//! The first release of a lease is *unsent* until its request, or the hand-over after that, has a reply or has failed. Until
//! then Redis would answer that this process still holds the lock. So a thread that asks for a lock first waits until no
//! release of its keys is unsent, whatever their kinds:
//!
//! | state | event | next state, or result |
//! | --- | --- | --- |
//! | queued | it is due: after a millisecond for a mutex without a known waiter, else at once | sent; the releases of such mutexes go in one request |
//! | queued | a thread waits for it | it is due at once |
//! | sent | a reply that others wait | sent: the hand-over follows at once |
//! | sent | any other reply, or a failure | no longer unsent: the threads that wait for it ask Redis; if the task is not done, the thread repeats it |
//!
//! A thread waits for as long as one request may take, at most ([`WayIn::wait_for_releases`]).
//!
//! [`WayIn::wait_for_releases`]: crate::engine::way_in::WayIn::wait_for_releases

use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::ending::rules::{Next, ReleaseTask};
use crate::engine::lease::process_lease::Entry;
use crate::engine::lease::renewal::{AFTER_PANIC, BATCH, Job, RenewalState, RenewalThread};
use crate::engine::timer_queue::TimerKey;
use crate::error::{Failure, FailureKind, Outcome};
use crate::logging;
use crate::name::LockKey;
use crate::net::deadline::LEAST;
use crate::server::{Answer, DedicatedConnection, Votes};
use crate::sys::{Arc, Ordering, Time};
use crate::wire::{LockKind, NotReleased, PlainRelease, Reply, Request, Verb};

/// The largest number of requests with release tasks before the thread looks at the leases again.
const RELEASES_IN_A_ROW: usize = 64;
/// The time for which the release of a mutex without a known waiter is held back, so that others go with it.
const GATHERED_FOR: Duration = Duration::from_millis(1);
/// The largest number of tasks that wait for a repeat. If there are more, the one whose key Redis drops first is given up.
const MOST_REPEATED: usize = 4096;
/// The longest time for which a thread waits for a reply to a release task without a look at the clock. While the
/// machine is suspended, the clock goes on but the time of waiting does not.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl RenewalThread {
    /// Adds a task. If the thread cannot be started, the task is given up, and that is logged.
    pub(crate) fn add_release_task(
        self: &Arc<Self>,
        client: &Arc<Client>,
        entry: &Arc<Entry>,
        release_task: ReleaseTask,
    ) {
        let now = client.now();
        let mut state = self.state.lock();
        if let Err(error) = self.ensure_running(&mut state, client) {
            state.is_given_up |= !release_task.is_executed();
            drop(state);
            let name = entry.target.name();
            logging::error!(
                "lock {name:?}: stays held until its lease ends, since no thread could be started to release it: {error}"
            );
            return;
        }
        state.unexecuted += usize::from(!release_task.is_executed());
        let is_unsent = release_task.is_unsent();
        if is_unsent {
            state.note_unsent(entry);
        }
        let due = if client.is_closed() {
            now
        } else if is_unsent && is_plain(entry, &release_task, &release_task.verb(now)) {
            // Holding a release back would delay a waiter, so only a release without a known waiter is held back.
            now + GATHERED_FOR
        } else {
            release_task.due(now)
        };
        let job = Job {
            _client: Arc::clone(client),
            entry: Arc::clone(entry),
            release_task,
        };
        state.queue(job, due);
        self.wake_for(&mut state, due);
    }

    /// Blocks until no release of these keys is unsent. Returns false if the time is over first, or the call `is_over`,
    /// which it checks at least every [`LONGEST_WAIT`].
    pub(crate) fn wait_until_sent(
        &self,
        client: &Client,
        keys: &[LockKey],
        until: Time,
        is_over: &dyn Fn() -> bool,
    ) -> bool {
        let mut state = self.state.lock();
        // Those of other keys go in the same request.
        let begun = client.now();
        state.make_due(begun, ReleaseTask::is_unsent);
        self.wake_for(&mut state, begun);
        while state.has_unsent(keys) {
            let now = client.now();
            if now >= until || is_over() {
                return false;
            }
            let left = until.since(now);
            state = self.changed.wait_for(state, left.min(LONGEST_WAIT));
        }
        true
    }

    /// Makes the threads that wait here check their condition again.
    pub(crate) fn notify_waiting(&self) {
        // A thread that has checked its condition and does not sleep yet holds the mutex. Wait until it sleeps.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Blocks until no thread of the engine is busy, Redis has replied to each release task, and each node of a quorum has
    /// confirmed it; at most until `until`. A busy thread may still add a release task.
    ///
    /// Returns false if the time is over. Also returns false if a release task was given up without a reply, and Redis
    /// has not replied to any request since.
    pub(crate) fn flush(&self, client: &Client, until: Time) -> bool {
        let mut state = self.state.lock();
        // Nobody waits here for answers that may be on their way.
        let now = client.now();
        state.make_due(now, ReleaseTask::is_left_at_nodes);
        if state.next_due().is_some_and(|due| due <= now) {
            self.wake_for(&mut state, now);
        }
        self.changed.notify_all();
        while state.unexecuted > 0
            || (client.store.votes()).is_some_and(Votes::has_unconfirmed)
            || client.busy_threads.load(Ordering::SeqCst) > 0
        {
            let left = until.since(client.now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_for(state, left.min(LONGEST_WAIT));
        }
        !state.is_given_up
    }

    /// Sends the tasks that are due, until the connection fails or a lease is due. Returns false after a failure of the
    /// connection.
    pub(crate) fn send_due_releases(
        &self,
        client: &Client,
        dedicated_connection: &mut dyn DedicatedConnection,
    ) -> bool {
        for round in 0..RELEASES_IN_A_ROW {
            let now = client.now();
            let (mut begun, limit, dropped, is_first_drop) = {
                let mut state = self.state.lock();
                let due = state.leases.next();
                let limit = due.map_or(Duration::MAX, |due| due.since(now));
                // A lease that is due goes first. But the first round always sends, so that leases never block releases
                // without end.
                if limit.is_zero() && round > 0 {
                    return true;
                }
                let dropped = state.drop_excess();
                let is_first_drop = !dropped.is_empty() && !state.has_dropped;
                state.has_dropped |= is_first_drop;
                let begun = state.begin_jobs(now);
                (begun, limit.max(LEAST), dropped, is_first_drop)
            };
            if let Some(votes) = client.store.votes() {
                for owner in &dropped {
                    votes.forget(owner);
                }
            }
            if is_first_drop {
                logging::warning!(
                    "more than {MOST_REPEATED} owners wait for Redis to confirm their end: the others stay until their leases end"
                );
            }
            if begun.is_empty() {
                return true;
            }
            begun.retain(|begun| !self.is_settled(client, begun));
            if begun.is_empty() {
                continue;
            }
            let answers = send(client, dedicated_connection, &begun, limit);
            let (mut failure, mut is_answered) = (None, false);
            for (begun, answer) in begun.iter().zip(answers) {
                is_answered |= answer.is_ok();
                failure = self.answered(client, begun, answer).err().or(failure);
            }
            self.tell_of_servers(client, dedicated_connection);
            match failure {
                // One node of a cluster may fail while others answer.
                Some(failure) if failure.is_of_the_connection() && !is_answered => {
                    self.failed(client, &failure);
                    return false;
                }
                // Redis replies. A task that it refused is repeated at its own time.
                Some(_) | None => self.reached(client),
            }
        }
        true
    }

    /// Drops a task whose owner was left at nodes, if no node has it any more. Returns whether it has.
    fn is_settled(&self, client: &Client, begun: &SentTask) -> bool {
        if !begun.is_left || client.left_until(begun.verb.owner()).is_some() {
            return false;
        }
        let job = self.state.lock().release_tasks.remove(begun.timer_key);
        drop(job);
        self.changed.notify_all();
        true
    }

    /// Applies the reply to a task, or its failure. Puts the task back if it is not done. Returns the failure.
    fn answered(
        &self,
        client: &Client,
        begun: &SentTask,
        answer: Result<Answer, Failure>,
    ) -> Result<(), Failure> {
        // These may panic, so they come before the task leaves its timer queue.
        let mut left = None;
        if let Ok(answer) = &answer {
            client.count_hand_over(&begun.entry.request(&begun.verb), &answer.reply);
            left = client.left_until(begun.verb.owner());
        }
        let Some(mut job) = self.state.lock().release_tasks.remove(begun.timer_key) else {
            return Ok(());
        };
        let now = client.now();
        let was_executed = job.release_task.is_executed();
        let was_unsent = job.release_task.is_unsent();
        let (next, result) = match answer {
            Ok(answer) => {
                let task = &mut job.release_task;
                let next = task.replied(now, &answer.reply, answer.resent, left);
                (next, Ok(()))
            }
            Err(failure) => {
                let next = job
                    .release_task
                    .failed(now, failure.is_transient(), client.machine());
                (next, Err(failure))
            }
        };
        if matches!(next, Next::Later(_)) && !job.release_task.is_left_at_nodes() {
            client.stats.endings_repeated.add(1);
        }
        let is_executed = job.release_task.is_executed();
        let is_given_up = next == Next::Done && !is_executed;
        let mut state = self.state.lock();
        if was_unsent && !job.release_task.is_unsent() {
            state.note_sent(&begun.entry);
            self.changed.notify_all();
        }
        if result.is_ok() {
            // Redis replies again. The keys of tasks that were given up have expired.
            state.is_given_up = false;
        }
        let again = match next {
            Next::Send => Some(now),
            Next::Later(due) => Some(due),
            Next::Done => None,
        };
        if let Some(due) = again {
            state.queue(job, due);
        }
        state.is_given_up |= is_given_up;
        if (is_executed || is_given_up) && !was_executed {
            state.unexecuted -= 1;
            self.changed.notify_all();
        } else if client.is_closed() {
            self.changed.notify_all();
        }
        result
    }
}

impl RenewalState {
    /// Returns whether a release of these keys is unsent.
    pub(crate) fn has_unsent(&self, keys: &[LockKey]) -> bool {
        keys.iter().any(|key| self.unsent.contains_key(key))
    }

    /// Notes that a release of these keys is unsent.
    fn note_unsent(&mut self, entry: &Entry) {
        for key in entry.target.keys() {
            *self.unsent.entry(key.clone()).or_default() += 1;
        }
    }

    /// Notes that it is unsent no longer.
    fn note_sent(&mut self, entry: &Entry) {
        for key in entry.target.keys() {
            if let Some(count) = self.unsent.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.unsent.remove(key);
                }
            }
        }
    }

    /// Makes tasks due now that are due later, and are not in flight.
    fn make_due(&mut self, now: Time, is_wanted: impl Fn(&ReleaseTask) -> bool) {
        let later = |(timer_key, job): (&TimerKey, &Job)| {
            let is_later = timer_key.0 > now && is_wanted(&job.release_task);
            (is_later && !self.tasks_in_flight.contains(timer_key)).then_some(*timer_key)
        };
        let later: Vec<_> = self.release_tasks.iter().filter_map(later).collect();
        for timer_key in later {
            if let Some(job) = self.release_tasks.remove(timer_key) {
                self.queue(job, now);
            }
        }
    }

    /// Adds a job to the timer queue. Returns its key there.
    fn queue(&mut self, job: Job, due: Time) -> TimerKey {
        let timer_key = (due, self.next_job);
        self.next_job += 1;
        self.release_tasks.insert(timer_key, job);
        timer_key
    }

    /// Drops tasks if too many wait for a repeat: first those that Redis has executed, and of these the ones whose keys it
    /// drops first. Returns their owners.
    fn drop_excess(&mut self) -> Vec<Arc<str>> {
        if self.release_tasks.len() <= MOST_REPEATED {
            return Vec::new();
        }
        let until = |(timer_key, job): (&TimerKey, &Job)| {
            let task = &job.release_task;
            Some((!task.is_executed(), task.repeated_until()?, *timer_key))
        };
        let mut repeated: Vec<_> = self.release_tasks.iter().filter_map(until).collect();
        repeated.sort_unstable();
        repeated.truncate(repeated.len().saturating_sub(MOST_REPEATED));
        let mut owners = Vec::with_capacity(repeated.len());
        for (_, _, timer_key) in repeated {
            let Some(Job { release_task, .. }) = self.release_tasks.remove(timer_key) else {
                continue;
            };
            if !release_task.is_executed() {
                self.unexecuted -= 1;
                self.is_given_up = true;
            }
            owners.push(Arc::clone(release_task.owner()));
        }
        owners
    }

    /// Returns the next task that is due, or several if one request can carry them. Leaves their jobs in the timer
    /// queue at a later time, so that they are repeated if the thread panics.
    fn begin_jobs(&mut self, now: Time) -> Vec<SentTask> {
        let mut begun: Vec<SentTask> = Vec::new();
        // The thread has handled the answers to the last ones.
        self.tasks_in_flight.clear();
        while begun.len() < BATCH {
            let Some((before, job)) = self.release_tasks.first() else {
                break;
            };
            let (entry, verb) = (Arc::clone(&job.entry), job.release_task.verb(now));
            let is_plain = is_plain(&entry, &job.release_task, &verb);
            let is_left = job.release_task.is_left_at_nodes();
            let joins = begun.is_empty() || (begun[0].is_plain && is_plain);
            if before.0 > now || !joins {
                break;
            }
            let Some(job) = self.release_tasks.remove(before) else {
                break;
            };
            let timer_key = self.queue(job, now + AFTER_PANIC);
            self.tasks_in_flight.push(timer_key);
            begun.push(SentTask {
                timer_key,
                entry,
                verb,
                is_plain,
                is_left,
            });
        }
        begun
    }
}

/// A task in flight, and the timer key of its job.
struct SentTask {
    timer_key: TimerKey,
    entry: Arc<Entry>,
    verb: Verb,
    /// Whether it can be sent with others in one request.
    is_plain: bool,
    /// Whether its owner is left at nodes of a quorum, which has ended it.
    is_left: bool,
}

/// Returns whether a request is a plain release, which can be sent with others in one request: of a mutex, or of any
/// lock that is left at nodes of a quorum.
fn is_plain(entry: &Entry, release_task: &ReleaseTask, verb: &Verb) -> bool {
    let is_of_mutex = entry.kind == LockKind::Mutex;
    matches!(verb, Verb::Release { .. }) && (is_of_mutex || release_task.is_left_at_nodes())
}

/// Returns the result of each of several plain releases, from the answer to their request.
fn of_each(answer: Answer, count: usize) -> Vec<Result<Answer, Failure>> {
    let resent = answer.resent;
    let replies = match answer.reply {
        Reply::Each(replies) if replies.len() == count => replies,
        _ => return vec![Err(Failure::another_question()); count],
    };
    let results = replies.into_iter().map(|reply| {
        let reply = reply.map_err(|why| match why {
            NotReleased::Refused => {
                let words = "the server refuses the release, or the key holds other data";
                Failure::plain(FailureKind::Denied, Outcome::NotExecuted, words)
            }
            NotReleased::Unanswered => {
                let words = "the node of its slot did not answer";
                Failure::plain(FailureKind::Unavailable, Outcome::Unknown, words)
            }
        })?;
        Ok(Answer { reply, resent })
    });
    results.collect()
}

/// Sends one task, or several plain releases in one request. Returns the result of each.
fn send(
    client: &Client,
    dedicated_connection: &mut dyn DedicatedConnection,
    begun: &[SentTask],
    limit: Duration,
) -> Vec<Result<Answer, Failure>> {
    client.stats.requests.add(1);
    if let [only] = begun {
        let request = Request::Lock {
            kind: only.entry.kind,
            target: &only.entry.target,
            verb: &only.verb,
        };
        return vec![dedicated_connection.call(&request, limit)];
    }
    let releases = begun.iter().filter_map(|begun| match &begun.verb {
        Verb::Release { owner, units } => Some(PlainRelease {
            kind: begun.entry.kind,
            target: &begun.entry.target,
            owner,
            units: *units,
        }),
        _ => None,
    });
    let releases: Vec<_> = releases.collect();
    match dedicated_connection.call(&Request::Release(&releases), limit) {
        Ok(answer) => of_each(answer, begun.len()),
        // If the server refuses the request, send it again in halves: one key that this user may not use must not
        // prevent the release of the others.
        Err(failure) if !failure.is_of_the_connection() => {
            let (first, second) = begun.split_at(begun.len() / 2);
            let mut answers = send(client, dedicated_connection, first, limit);
            answers.extend(send(client, dedicated_connection, second, limit));
            answers
        }
        Err(failure) => vec![Err(failure); begun.len()],
    }
}
