//! The engine of a manager of the test kit, whose clock a test moves.

use std::time::Duration;

use crate::engine::leases::Leases;
use crate::test_clock::OnTestClock;

impl OnTestClock for Leases {
    fn look_at_the_clock(&self) {
        self.watch.look_at_the_clock();
        self.renewal.notify_waiting();
    }

    fn is_at_rest(&self) -> bool {
        let now = self.client.now();
        let disturbed = self.client.store.last_surplus();
        self.renewal.is_at_rest(now, disturbed) && self.watch.is_at_rest(now)
    }

    fn shortest_lease(&self) -> Option<Duration> {
        self.renewal.shortest_lease()
    }
}
