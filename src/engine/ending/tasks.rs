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
//! A thread waits for as long as one request may take, at most ([`crate::engine::acquire`]). The renewal thread drives the
//! tasks in its rounds ([`crate::engine::lease::renewal`]).

use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::ending::{Next, ReleaseTask};
use crate::engine::lease::renewal::{AFTER_PANIC, BATCH};
use crate::engine::queue::Entry;
use crate::engine::timer_queue::{TimerKey, TimerQueue, next_due};
use crate::error::{Failure, FailureKind};
use crate::name::LockKey;
use crate::server::{Answer, DedicatedConnection};
use crate::sys::hash::HashMap;
use crate::sys::{Arc, Time};
use crate::wire::{End, LockKind, NotReleased, Reply, Request};

/// The time for which the release of a mutex without a known waiter is held back, so that others go with it.
const GATHERED_FOR: Duration = Duration::from_millis(1);
/// The largest number of tasks that wait for a repeat. If there are more, the one whose key Redis drops first is given up.
pub(crate) const MOST_REPEATED: usize = 4096;

/// The release tasks. The mutex of the renewal thread guards them.
#[derive(Default)]
pub(crate) struct Endings {
    tasks: TimerQueue<Job>,
    /// The timer keys of the tasks that were sent last. Their answers find them by these keys.
    in_flight: Vec<TimerKey>,
    next_number: u64,
    /// How many replies and failures were applied.
    pub(crate) applied: u64,
    /// Whether a task was given up without a reply, and Redis has not replied to any request since.
    is_given_up: bool,
    /// The number of releases of each key that are unsent.
    unsent: HashMap<LockKey, u32>,
}

/// A release task in the timer queue.
struct Job {
    entry: Arc<Entry>,
    release_task: ReleaseTask,
}

impl Endings {
    /// Adds a task. Returns when it is due.
    pub(crate) fn add(
        &mut self,
        client: &Client,
        entry: &Arc<Entry>,
        release_task: ReleaseTask,
    ) -> Time {
        let now = client.now();
        let is_unsent = release_task.is_unsent();
        if is_unsent {
            for key in entry.target.keys() {
                *self.unsent.entry(key.clone()).or_default() += 1;
            }
        }
        let due = if client.is_closed() {
            now
        } else if is_unsent && is_plain(entry, &release_task, &release_task.end(now)) {
            // Holding a release back would delay a waiter, so only a release without a known waiter is held back.
            now + GATHERED_FOR
        } else {
            release_task.due(now)
        };
        let job = Job {
            entry: Arc::clone(entry),
            release_task,
        };
        self.queue(job, due);
        due
    }

    /// Notes that a task is given up.
    pub(crate) fn give_up(&mut self, release_task: &ReleaseTask) {
        self.is_given_up |= !release_task.is_executed();
    }

    /// Returns when the next task is due.
    pub(crate) fn next(&self) -> Option<Time> {
        next_due(&self.tasks)
    }

    /// Returns whether Redis has replied to each task.
    pub(crate) fn are_executed(&self) -> bool {
        let mut jobs = self.tasks.values();
        jobs.all(|job| job.release_task.is_executed())
    }

    /// Returns whether a task was given up without a reply, and Redis has not replied to any request since.
    pub(crate) fn has_given_up(&self) -> bool {
        self.is_given_up
    }

    /// Notes that Redis replies again. So the keys of the tasks that were given up have expired.
    pub(crate) fn redis_replies(&mut self) {
        self.is_given_up = false;
    }

    /// Leaves all tasks where they are after a panic, to be repeated.
    pub(crate) fn forget_in_flight(&mut self) {
        self.in_flight.clear();
    }

    /// Drops a task whose owner no node of a quorum has any more.
    pub(crate) fn settle(&mut self, task: &SentTask) {
        self.applied += 1;
        self.tasks.remove(&task.timer_key);
    }

    /// Applies the reply to a task, or its failure. `left`: until when nodes of a quorum may still have its owner. Puts the
    /// task back if it is not done. Returns whether it is repeated.
    pub(crate) fn apply(
        &mut self,
        client: &Client,
        task: &SentTask,
        answer: &Result<Answer, Failure>,
        left: Option<Time>,
    ) -> bool {
        let Some(mut job) = self.tasks.remove(&task.timer_key) else {
            return false;
        };
        let (now, release_task) = (client.now(), &mut job.release_task);
        let was_unsent = release_task.is_unsent();
        let next = match answer {
            Ok(answer) => {
                self.redis_replies();
                release_task.replied(now, &answer.reply, answer.resent, left)
            }
            Err(failure) => release_task.failed(now, failure.is_transient(), client.machine()),
        };
        self.applied += 1;
        if was_unsent && !release_task.is_unsent() {
            self.note_sent(&task.entry);
        }
        self.is_given_up |= next == Next::Done && !release_task.is_executed();
        let is_repeated = matches!(next, Next::Later(_)) && !release_task.is_left_at_nodes();
        match next {
            Next::Send => self.queue(job, now),
            Next::Later(due) => self.queue(job, due),
            Next::Done => return false,
        };
        is_repeated
    }

    /// Returns whether a release of any key is unsent.
    pub(crate) fn has_any_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Returns whether a release of these keys is unsent.
    pub(crate) fn has_unsent(&self, keys: &[LockKey]) -> bool {
        keys.iter().any(|key| self.unsent.contains_key(key))
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
    pub(crate) fn make_due(&mut self, now: Time, is_wanted: impl Fn(&ReleaseTask) -> bool) {
        let later = |(timer_key, job): (&TimerKey, &Job)| {
            let is_later = timer_key.0 > now && is_wanted(&job.release_task);
            (is_later && !self.in_flight.contains(timer_key)).then_some(*timer_key)
        };
        let later: Vec<_> = self.tasks.iter().filter_map(later).collect();
        for timer_key in later {
            if let Some(job) = self.tasks.remove(&timer_key) {
                self.queue(job, now);
            }
        }
    }

    /// Adds a job to the timer queue. Returns its key there.
    fn queue(&mut self, job: Job, due: Time) -> TimerKey {
        let timer_key = (due, self.next_number);
        self.next_number += 1;
        self.tasks.insert(timer_key, job);
        timer_key
    }

    /// Drops tasks if too many wait for a repeat: first those that Redis has executed, and of these the ones whose keys it
    /// drops first. Returns their owners.
    pub(crate) fn drop_excess(&mut self) -> Vec<Arc<str>> {
        if self.tasks.len() <= MOST_REPEATED {
            return Vec::new();
        }
        let until = |(timer_key, job): (&TimerKey, &Job)| {
            let task = &job.release_task;
            Some((!task.is_executed(), task.repeated_until()?, *timer_key))
        };
        let mut repeated: Vec<_> = self.tasks.iter().filter_map(until).collect();
        repeated.sort_unstable();
        repeated.truncate(repeated.len().saturating_sub(MOST_REPEATED));
        let mut owners = Vec::with_capacity(repeated.len());
        for (_, _, timer_key) in repeated {
            let Some(Job { release_task, .. }) = self.tasks.remove(&timer_key) else {
                continue;
            };
            self.give_up(&release_task);
            owners.push(Arc::clone(release_task.owner()));
        }
        owners
    }

    /// Returns the next task that is due, or several if one request can carry them. Leaves their jobs in the timer
    /// queue at a later time, so that they are repeated if the thread panics.
    pub(crate) fn begin(&mut self, now: Time) -> Vec<SentTask> {
        let mut begun: Vec<SentTask> = Vec::new();
        // The thread has handled the answers to the last ones.
        self.in_flight.clear();
        while begun.len() < BATCH {
            let Some((&before, job)) = self.tasks.first_key_value() else {
                break;
            };
            let (entry, end) = (Arc::clone(&job.entry), job.release_task.end(now));
            let is_plain = is_plain(&entry, &job.release_task, &end);
            let is_left = job.release_task.is_left_at_nodes();
            let joins = begun.is_empty() || (begun[0].is_plain && is_plain);
            if before.0 > now || !joins {
                break;
            }
            let Some(job) = self.tasks.remove(&before) else {
                break;
            };
            let timer_key = self.queue(job, now + AFTER_PANIC);
            self.in_flight.push(timer_key);
            begun.push(SentTask {
                timer_key,
                entry,
                end,
                is_plain,
                is_left,
            });
        }
        begun
    }
}

/// A task in flight, and the timer key of its job.
pub(crate) struct SentTask {
    timer_key: TimerKey,
    pub(crate) entry: Arc<Entry>,
    pub(crate) end: End,
    /// Whether it can be sent with others in one request.
    is_plain: bool,
    /// Whether its owner is left at nodes of a quorum, which has ended it.
    pub(crate) is_left: bool,
}

impl SentTask {
    pub(crate) fn request(&self) -> Request<'_> {
        Request::End(self.entry.id(), &self.end)
    }
}

/// Returns whether an end is a plain release, which can be sent with others in one request: of a mutex, or of any
/// lock that is left at nodes of a quorum.
fn is_plain(entry: &Entry, release_task: &ReleaseTask, end: &End) -> bool {
    let is_of_mutex = entry.kind == LockKind::Mutex;
    end.is_plain() && (is_of_mutex || release_task.is_left_at_nodes())
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
                Failure::not_executed(FailureKind::Denied, words)
            }
            NotReleased::Unanswered => {
                let words = "the node of its slot did not answer";
                Failure::unknown(FailureKind::Unavailable, words)
            }
        })?;
        Ok(Answer { reply, resent })
    });
    results.collect()
}

/// Sends one task, or several plain releases in one request. Returns the result of each.
pub(crate) fn send(
    client: &Client,
    dedicated_connection: &mut dyn DedicatedConnection,
    begun: &[SentTask],
    limit: Duration,
) -> Vec<Result<Answer, Failure>> {
    client.stats.requests.add(1);
    if let [only] = begun {
        return vec![dedicated_connection.call(&only.request(), limit)];
    }
    let releases: Vec<_> = begun.iter().map(|it| (it.entry.id(), &it.end)).collect();
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
