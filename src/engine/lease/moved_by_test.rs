//! The engine of a manager of the test kit, whose clock a test moves.

use crate::engine::Engine;
use crate::engine::timer_queue::Timed;
use crate::sys::test_machine::MovedByTest;
use crate::sys::{LONGEST_SLEEP, Time};

impl MovedByTest for Engine {
    fn look_at_the_clock(&self) {
        self.watch.look_at_the_clock();
        self.renewal.notify_waiting();
        self.wakeup.wake_all();
        self.elections.look_at_the_clock();
        // The threads behind the delegates have time limits too.
        for entry in self.names.all() {
            entry.lock().queue.waiting().for_each(|it| it.parker.wake());
        }
    }

    fn renew_all(&self) {
        self.renewal.renew_all(self.client.now());
    }

    fn busy_part(&self) -> Option<&'static str> {
        let now = self.client.now();
        let renewal = || {
            let is_busy = !self.renewal.is_at_rest(now);
            is_busy.then_some("the renewals and releases that are due")
        };
        let watch = || (!self.watch.is_at_rest(now)).then_some("the losses that are to be told");
        let waits = || {
            let is_busy = !self.wakeup.is_at_rest();
            is_busy.then_some("the requests of threads that wait for a lock")
        };
        let elections = || {
            let is_busy = !self.elections.is_at_rest(now);
            is_busy.then_some("the leaders that are observed, or written again")
        };
        // A renewal may find a loss, and a loss may plan a release.
        let locks = renewal().or_else(watch).or_else(waits).or_else(renewal);
        locks.or_else(elections)
    }

    fn sends_by_itself(&self) -> bool {
        let now = self.client.now();
        !self.renewal.is_at_rest(now) || !self.elections.is_at_rest(now)
    }

    fn next_due(&self) -> Option<Time> {
        // A delegate asks about once a second, and within its pickup window. A lease that it gets is not due before that.
        let waits = self.client.closing.busy_threads() > 0 || self.wakeup.has_sleepers();
        let pause = (self.client.settings.options.lease / 10).min(LONGEST_SLEEP);
        let asks = waits.then(|| self.client.now() + pause);
        let renewal = self.renewal.state.lock().next_due();
        let others = [
            renewal,
            self.watch.lock().next_due(),
            self.elections.lock().next_due(),
        ];
        others.into_iter().chain([asks]).flatten().min()
    }
}
