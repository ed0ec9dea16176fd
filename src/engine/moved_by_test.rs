//! The engine of a manager of the test kit, whose clock a test moves.

use std::time::Duration;

use crate::engine::leases::Leases;
use crate::sys::test_machine::MovedByTest;

impl MovedByTest for Leases {
    fn look_at_the_clock(&self) {
        self.watch.look_at_the_clock();
        self.renewal.notify_waiting();
        self.wakeup.wake_all();
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
        // A renewal may find a loss, and a loss may plan a release.
        renewal().or_else(watch).or_else(waits).or_else(renewal)
    }

    fn sends_by_itself(&self) -> bool {
        !self.renewal.is_at_rest(self.client.now())
    }

    fn shortest_lease(&self) -> Duration {
        let default = self.client.settings.options.lease;
        let renewed = self.renewal.shortest_lease();
        renewed.map_or(default, |renewed| renewed.min(default))
    }
}
