//! The release tasks in the rounds of the renewal thread, and the threads that wait for them.

use std::time::Duration;

use super::{RenewalState, RenewalThread};
use crate::engine::ending::ReleaseTask;
use crate::engine::ending::tasks::{MOST_REPEATED, SentTask, send};
use crate::engine::queue::Entry;
use crate::engine::timer_queue::next_due;
use crate::error::Failure;
use crate::logging;
use crate::name::LockKey;
use crate::net::deadline::LEAST;
use crate::server::{Answer, DedicatedConnection, Votes};
use crate::sys::{Arc, Ordering, Time};

/// The largest number of requests with release tasks before the thread looks at the leases again.
const RELEASES_IN_A_ROW: usize = 64;
/// The longest time for which a thread waits for a reply to a release task without a look at the clock. While the
/// machine is suspended, the clock goes on but the time of waiting does not.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl RenewalThread {
    /// Adds a task. If the thread cannot be started, the task is given up, and that is logged.
    pub(crate) fn add_release_task(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        release_task: ReleaseTask,
    ) {
        let mut state = self.state.lock();
        if let Err(error) = self.ensure_running(&mut state) {
            state.endings.give_up(&release_task);
            drop(state);
            let name = entry.target.name();
            logging::error!(
                "lock {name:?}: stays held until its lease ends, since no thread could be started to release it: {error}"
            );
            return;
        }
        let due = state.endings.add(&self.client, entry, release_task);
        self.note_unsent(&state);
        self.wake_for(&mut state, due);
    }

    fn note_unsent(&self, state: &RenewalState) {
        let has_unsent = state.endings.has_any_unsent();
        self.has_unsent.store(has_unsent, Ordering::SeqCst);
    }

    /// Blocks until no release of these keys is unsent. Returns false if the time is over first, or the call `is_over`,
    /// which it checks at least every [`LONGEST_WAIT`].
    pub(crate) fn wait_until_sent(
        &self,
        keys: &[LockKey],
        until: Time,
        is_over: &dyn Fn() -> bool,
    ) -> bool {
        let mut state = self.state.lock();
        // Those of other keys stay gathered.
        if !state.endings.has_unsent(keys) {
            return true;
        }
        // Now they go in the same request.
        let begun = self.client.now();
        state.endings.make_due(begun, ReleaseTask::is_unsent);
        self.wake_for(&mut state, begun);
        while state.endings.has_unsent(keys) {
            let now = self.client.now();
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
    pub(crate) fn flush(&self, until: Time) -> bool {
        let mut state = self.state.lock();
        // Nobody waits here for answers that may be on their way.
        let now = self.client.now();
        state.endings.make_due(now, ReleaseTask::is_left_at_nodes);
        if state.next_due().is_some_and(|due| due <= now) {
            self.wake_for(&mut state, now);
        }
        self.changed.notify_all();
        loop {
            let before = state.endings.applied;
            let is_idle = |state: &RenewalState| {
                self.client.closing.busy_threads() == 0 && state.endings.are_executed()
            };
            // The nodes are asked last, and without the mutex. Once nobody is busy, and each task has a reply, only a new reply
            // or a busy thread could leave an owner at a node.
            if is_idle(&state) {
                drop(state);
                let is_unconfirmed =
                    (self.client.store.votes()).is_some_and(Votes::has_unconfirmed);
                state = self.state.lock();
                if !is_unconfirmed && state.endings.applied == before && is_idle(&state) {
                    return !state.endings.has_given_up();
                }
            }
            let left = until.since(self.client.now());
            if left.is_zero() {
                return false;
            }
            if state.endings.applied == before {
                state = self.changed.wait_for(state, left.min(LONGEST_WAIT));
            }
        }
    }

    /// Sends the tasks that are due, until the connection fails or a lease is due. Returns false after a failure of the
    /// connection.
    pub(crate) fn send_due_releases(
        &self,
        dedicated_connection: &mut dyn DedicatedConnection,
    ) -> bool {
        self.drop_excess();
        for round in 0..RELEASES_IN_A_ROW {
            let now = self.client.now();
            let (mut begun, limit) = {
                let mut state = self.state.lock();
                let due = next_due(&state.leases);
                let limit = due.map_or(Duration::MAX, |due| due.since(now));
                // A lease that is due goes first. But the first round always sends, so that leases never block releases
                // without end.
                if limit.is_zero() && round > 0 {
                    return true;
                }
                (state.endings.begin(now), limit.max(LEAST))
            };
            if begun.is_empty() {
                return true;
            }
            begun.retain(|begun| !self.is_settled(begun));
            if begun.is_empty() {
                continue;
            }
            let answers = send(&self.client, dedicated_connection, &begun, limit);
            let (mut failure, mut is_answered) = (None, false);
            for (begun, answer) in begun.iter().zip(answers) {
                is_answered |= answer.is_ok();
                failure = self.answered(begun, answer).err().or(failure);
            }
            self.tell_of_servers(dedicated_connection);
            match failure {
                // One node of a cluster may fail while others answer.
                Some(failure) if failure.is_of_the_connection() && !is_answered => {
                    self.failed(&failure);
                    return false;
                }
                // Redis replies. A task that it refused is repeated at its own time.
                Some(_) | None => self.reached(),
            }
        }
        true
    }

    /// Gives tasks up if too many are repeated.
    fn drop_excess(&self) {
        let (dropped, is_first_drop) = {
            let mut state = self.state.lock();
            let dropped = state.endings.drop_excess();
            let is_first_drop = !dropped.is_empty() && !state.has_dropped;
            state.has_dropped |= is_first_drop;
            (dropped, is_first_drop)
        };
        if let Some(votes) = self.client.store.votes() {
            for owner in &dropped {
                votes.forget(owner);
            }
        }
        if is_first_drop {
            logging::warning!(
                "more than {MOST_REPEATED} owners wait for Redis to confirm their end: the others stay until their leases end"
            );
        }
    }

    /// Drops a task whose owner was left at nodes, if no node has it any more. Returns whether it has.
    fn is_settled(&self, begun: &SentTask) -> bool {
        if !begun.is_left || self.client.left_until(&begun.end.owner).is_some() {
            return false;
        }
        self.state.lock().endings.settle(begun);
        self.changed.notify_all();
        true
    }

    /// Applies the reply to a task, or its failure, and returns the failure.
    fn answered(&self, begun: &SentTask, answer: Result<Answer, Failure>) -> Result<(), Failure> {
        // These may panic, so they come before the task leaves its timer queue.
        let mut left = None;
        if let Ok(answer) = &answer {
            self.client.count_hand_over(&begun.request(), &answer.reply);
            left = self.client.left_until(&begun.end.owner);
        }
        let is_repeated = {
            let mut state = self.state.lock();
            let is_repeated = state.endings.apply(&self.client, begun, &answer, left);
            self.note_unsent(&state);
            is_repeated
        };
        if is_repeated {
            self.client.stats.endings_repeated.add(1);
        }
        self.changed.notify_all();
        answer.map(drop)
    }
}
