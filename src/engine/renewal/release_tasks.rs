//! The endings that the renewal thread sends.
//!
//! What fails, or may be left behind, is repeated until it is settled. A release that its guard left here
//! ([`background_release`](crate::Builder::background_release)) goes this way:
//!
//! | state | event | what follows |
//! | --- | --- | --- |
//! | its place is reserved and noted with its keys | | whoever asks for one of them from here on finds it, as whatever kind of lock |
//! | waits for its time | its millisecond is over, at once where somebody is known to wait | it is sent, with others in one request |
//! | waits for its time | a thread of this process asks for the same lock | that thread takes it back, and ends the old lease with its own request |
//! | waits for its time | a thread asks for a lock of another kind, or for one that has room for several | that thread takes it back and sends it, and then asks |
//! | on its way | a thread of this process asks for one of its keys | it waits until the first request is over |
//! | answered, or failed once | | the place is given up; what failed is repeated as any other ending is |

use std::time::Duration;

use super::{AFTER_PANIC, BATCH, RenewalThread, State};
use crate::clock::Time;
use crate::core::release_task::{Next, ReleaseTask};
use crate::core::timer_queue::{Numbered, Place};
use crate::engine::Engine;
use crate::engine::process_lease::Entry;
use crate::error::{Failure, FailureKind};
use crate::logging;
use crate::message::{Call, Kind, PlainRelease, Reply, Verb};
use crate::name::LockKey;
use crate::store::{Answer, DedicatedConnection, LEAST};
use crate::sync::Arc;

/// How many requests with endings are sent at the most before leases are looked at again.
const RELEASES_IN_A_ROW: usize = 64;
/// How long a release that nobody is known to wait for stays here, so that others go with it.
const GATHERED_FOR: Duration = Duration::from_millis(1);
/// How long a flush waits at a time: parking does not run through suspend, the clock does.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// An ending to be sent.
pub(super) struct Job {
    /// Tells it from the others in the timetable.
    number: u64,
    /// Keeps the engine until it is done.
    _engine: Arc<Engine>,
    entry: Arc<Entry>,
    release_task: ReleaseTask,
    /// The place that a release has until its first request is over.
    background_place: Option<Place>,
}

impl RenewalThread {
    /// Sends an ending as soon as possible and as often as it takes.
    pub(crate) fn add_release_task(
        self: &Arc<Self>,
        engine: &Engine,
        entry: &Arc<Entry>,
        release_task: ReleaseTask,
    ) {
        self.add_job(engine, entry, release_task, None);
    }

    /// A place for the release of a lease that is to be left here.
    pub(crate) fn reserve(&self, now: Time, entry: &Entry, release_task: &ReleaseTask) -> Place {
        // Gathering costs a waiter time, so it is for those that nobody is known to wait for.
        let due = if is_plain(entry, release_task.verb()) {
            now + GATHERED_FOR
        } else {
            now
        };
        let mut state = self.state.lock();
        let place = state.new_place(due);
        for key in entry.target.keys() {
            let places = state.background_places.entry(key.clone()).or_default();
            places.push(place);
        }
        place
    }

    /// Sends a release when its place is due and as often as it takes.
    pub(crate) fn add_background_release(
        self: &Arc<Self>,
        engine: &Engine,
        entry: &Arc<Entry>,
        release_task: ReleaseTask,
        place: Place,
    ) {
        self.add_job(engine, entry, release_task, Some(place));
    }

    fn add_job(
        self: &Arc<Self>,
        engine: &Engine,
        entry: &Arc<Entry>,
        release_task: ReleaseTask,
        background_place: Option<Place>,
    ) {
        let Some(strong) = engine.weak_self.upgrade() else {
            return;
        };
        let now = engine.now();
        let mut job = Job {
            number: 0,
            _engine: strong,
            entry: Arc::clone(entry),
            release_task,
            background_place,
        };
        let mut state = self.state.lock();
        if let Err(error) = self.ensure_running(&mut state, engine) {
            state.is_given_up |= !job.release_task.is_settled();
            drop(state);
            let name = entry.target.name();
            logging::error!(
                "lock {name:?}: stays held until its lease ends, since no thread could be started to release it: {error}"
            );
            self.remove_background_place(entry, background_place);
            return;
        }
        state.unsettled += usize::from(!job.release_task.is_settled());
        let (due, number) = background_place.unwrap_or_else(|| state.new_place(now));
        job.number = number;
        state.release_tasks.insert(due, job);
        self.wake_for(&mut state, due);
    }

    /// The releases of any kind that guards left here and that concern one of these keys.
    pub(crate) fn background_releases(&self, keys: &[LockKey]) -> Vec<Place> {
        let state = self.state.lock();
        if state.background_places.is_empty() {
            return Vec::new();
        }
        let places = keys
            .iter()
            .filter_map(|key| state.background_places.get(key));
        places.flatten().copied().collect()
    }

    /// Takes a release out again that was left here and is not on its way yet.
    pub(crate) fn take_back(&self, place: Place) -> Option<(Arc<Entry>, ReleaseTask)> {
        let job = {
            let mut state = self.state.lock();
            let job = state.release_tasks.remove(place)?;
            state.unsettled -= 1;
            job
        };
        self.remove_background_place(&job.entry, job.background_place);
        Some((job.entry, job.release_task))
    }

    /// Waits until the first request of a release that was left here is over, at most until `until`, or until the
    /// call that waits `is_over`, which it looks at every [`LONGEST_WAIT`].
    pub(crate) fn wait_until_sent(
        &self,
        engine: &Engine,
        keys: &[LockKey],
        place: Place,
        until: Time,
        is_over: &dyn Fn() -> bool,
    ) {
        let mut state = self.state.lock();
        let is_left = |state: &State, key| {
            let places = state.background_places.get(key);
            places.is_some_and(|places| places.contains(&place))
        };
        while keys.iter().any(|key| is_left(&state, key)) {
            let left = until.since(engine.now());
            if left.is_zero() || is_over() {
                return;
            }
            state = self.changed.wait_for(state, left.min(LONGEST_WAIT));
        }
    }

    /// The first request of a release that was left here is over, or was not needed.
    fn remove_background_place(&self, entry: &Entry, place: Option<Place>) {
        let Some(place) = place else { return };
        let mut state = self.state.lock();
        for key in entry.target.keys() {
            if let Some(places) = state.background_places.get_mut(key) {
                places.retain(|other| *other != place);
                if places.is_empty() {
                    state.background_places.remove(key);
                }
            }
        }
        self.changed.notify_all();
    }

    /// Somebody who waits for something here is to look again.
    pub(crate) fn notify_waiting(&self) {
        // Whoever has looked and does not sleep yet holds the mutex.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Waits until nobody asks any more, who may have something to release after all, and every queued ending was
    /// answered once; at most until `until`. Returns true if that came in time. Returns false if an ending was given up
    /// without an answer, and the server has answered nothing since.
    pub(crate) fn flush(&self, engine: &Engine, until: Time) -> bool {
        self.notify_waiting();
        let mut state = self.state.lock();
        while state.unsettled > 0 || engine.has_delegates() {
            let left = until.since(engine.now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_for(state, left.min(LONGEST_WAIT));
        }
        !state.is_given_up
    }

    /// Sends the endings that are due, until one fails or a lease is due. False where one failed.
    pub(super) fn send_due_releases(
        &self,
        engine: &Engine,
        dedicated_connection: &mut dyn DedicatedConnection,
    ) -> bool {
        for round in 0..RELEASES_IN_A_ROW {
            let now = engine.now();
            let (begun, limit) = {
                let mut state = self.state.lock();
                let due = state.leases.next();
                let limit = due.map_or(Duration::MAX, |due| due.since(now));
                // An ending can wait, a lease cannot; but one goes out whatever is due, or none might ever.
                if limit.is_zero() && round > 0 {
                    return true;
                }
                (state.begin_jobs(now), limit.max(LEAST))
            };
            if begun.is_empty() {
                return true;
            }
            let answers = send(engine, dedicated_connection, &begun, limit);
            let mut failure = None;
            for (begun, answer) in begun.iter().zip(answers) {
                failure = self.answered(engine, begun, answer).err().or(failure);
            }
            match failure {
                Some(failure) if failure.is_of_the_connection() => {
                    self.failed(engine, failure);
                    return false;
                }
                // The server answers; what it refuses is repeated by itself.
                Some(_) | None => self.reached(engine),
            }
        }
        true
    }

    /// Takes in what was answered to an ending.
    ///
    /// # Errors
    ///
    /// What kept it from being answered.
    fn answered(
        &self,
        engine: &Engine,
        begun: &SentTask,
        answer: Result<Answer, Failure>,
    ) -> Result<(), Failure> {
        let Some(mut job) = self.state.lock().release_tasks.remove(begun.place) else {
            return Ok(());
        };
        let now = engine.now();
        let was_settled = job.release_task.is_settled();
        let (next, result) = match answer {
            Ok(answer) => {
                engine.count_hand_over(&begun.entry.call(&begun.verb), &answer.reply);
                let next = job.release_task.replied(now, &answer.reply, answer.resent);
                (next, Ok(()))
            }
            Err(failure) => {
                let next = job
                    .release_task
                    .failed(now, failure.is_transient(), &*engine.rng);
                (next, Err(failure))
            }
        };
        if let Next::Later(_) = next {
            engine.stats.endings_repeated.add(1);
        }
        if next != Next::Send {
            self.remove_background_place(&begun.entry, job.background_place.take());
        }
        let is_settled = job.release_task.is_settled();
        let is_given_up = next == Next::Done && !is_settled;
        let mut state = self.state.lock();
        if result.is_ok() {
            // Redis answers, and the keys of endings that were given up have expired.
            state.is_given_up = false;
        }
        let again = match next {
            Next::Send => Some(now),
            Next::Later(later) => Some(later),
            Next::Done => None,
        };
        if let Some(due) = again {
            state.queue(job, due);
        }
        state.is_given_up |= is_given_up;
        if (is_settled || is_given_up) && !was_settled {
            state.unsettled -= 1;
            self.changed.notify_all();
        }
        result
    }
}

impl Numbered for Job {
    fn number(&self) -> u64 {
        self.number
    }
}

impl State {
    fn new_place(&mut self, due: Time) -> Place {
        let number = self.next_job;
        self.next_job += 1;
        (due, number)
    }

    /// Puts it into a new place, which is returned.
    fn queue(&mut self, mut job: Job, due: Time) -> Place {
        let place = self.new_place(due);
        job.number = place.1;
        self.release_tasks.insert(due, job);
        place
    }

    /// The next ending that is due, or the next several where one request can carry them, left in the timetable
    /// where a panic on the way would have them repeated.
    fn begin_jobs(&mut self, now: Time) -> Vec<SentTask> {
        let mut begun: Vec<SentTask> = Vec::new();
        while begun.len() < BATCH {
            let Some((due, job)) = self.release_tasks.first() else {
                break;
            };
            let joins = begun.is_empty()
                || (begun[0].is_plain() && is_plain(&job.entry, job.release_task.verb()));
            if due > now || !joins {
                break;
            }
            let Some(mut job) = self.release_tasks.pop_due(now) else {
                break;
            };
            job.release_task.brought_up_to(now);
            let (entry, verb) = (Arc::clone(&job.entry), job.release_task.verb().clone());
            let place = self.queue(job, now + AFTER_PANIC);
            begun.push(SentTask { place, entry, verb });
        }
        begun
    }
}

/// An ending that is being sent, and its place meanwhile.
struct SentTask {
    place: Place,
    entry: Arc<Entry>,
    verb: Verb,
}

impl SentTask {
    fn is_plain(&self) -> bool {
        is_plain(&self.entry, &self.verb)
    }
}

/// Whether it goes together with others of its like.
fn is_plain(entry: &Entry, verb: &Verb) -> bool {
    entry.kind == Kind::Mutex && matches!(verb, Verb::Release { .. })
}

/// Sends endings: one, or several plain releases by one request. Returns an answer to each.
fn send(
    engine: &Engine,
    dedicated_connection: &mut dyn DedicatedConnection,
    begun: &[SentTask],
    limit: Duration,
) -> Vec<Result<Answer, Failure>> {
    engine.stats.requests.add(1);
    if let [only] = begun {
        let call = Call::Lock {
            kind: only.entry.kind,
            target: &only.entry.target,
            verb: &only.verb,
        };
        return vec![dedicated_connection.call(&call, limit)];
    }
    let releases: Vec<_> = begun
        .iter()
        .filter_map(|begun| match &begun.verb {
            Verb::Release { owner, .. } => Some(PlainRelease {
                key: begun.entry.target.first(),
                owner,
            }),
            _ => None,
        })
        .collect();
    match dedicated_connection.call(&Call::Release(&releases), limit) {
        Ok(Answer {
            reply: Reply::Each(replies),
            resent,
        }) => replies
            .into_iter()
            .map(|reply| {
                let reply = reply.ok_or_else(|| {
                    let words = "the server refuses the release, or the key holds other data";
                    Failure::plain(FailureKind::Denied, false, words)
                })?;
                Ok(Answer { reply, resent })
            })
            .collect(),
        Ok(_) => vec![Err(Failure::another_question()); begun.len()],
        // Where the server refuses it because of a key in it that this user may not touch, it goes in halves: one bad
        // key must not cost the others.
        Err(failure) if !failure.unknown && !failure.is_transient() => {
            let (first, second) = begun.split_at(begun.len() / 2);
            let mut answers = send(engine, dedicated_connection, first, limit);
            answers.extend(send(engine, dedicated_connection, second, limit));
            answers
        }
        Err(failure) => vec![Err(failure); begun.len()],
    }
}
