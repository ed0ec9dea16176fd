//! The engine of a manager of the test kit, whose clock a test moves.

use std::time::Duration;

use crate::engine::leases::Leases;
use crate::sys::test_machine::MovedByTest;

impl MovedByTest for Leases {
    fn look_at_the_clock(&self) {
        self.watch.look_at_the_clock();
        self.renewal.notify_waiting();
        self.wakeup.wake_all();
    }

    fn renew_all(&self) {
        self.renewal.renew_all(self.client.now());
    }

    fn busy_part(&self) -> Option<&'static str> {
        let now = self.client.now();
        if !self.renewal.is_at_rest(now) {
            Some("the renewals and releases that are due")
        } else if !self.watch.is_at_rest(now) {
            Some("the losses that are to be told")
        } else if !self.wakeup.is_at_rest() {
            Some("the requests of threads that wait for a lock")
        } else {
            None
        }
    }

    fn shortest_lease(&self) -> Duration {
        let default = self.client.settings.options.lease;
        let renewed = self.renewal.shortest_lease();
        renewed.map_or(default, |renewed| renewed.min(default))
    }
}
