//! A store of the test kit. Its calls read the clock of the kit.

use std::time::Duration;

use crate::clock::Time;
use crate::error::Failure;
use crate::message::Request;
use crate::store::{Answer, Deadline, DedicatedConnection, NodeReport, PubSubEvent, Store};
use crate::sync::Arc;
use crate::test_clock::TestKit;

pub(crate) struct StoreOnTestClock {
    store: Arc<dyn Store>,
    kit: TestKit,
}

impl StoreOnTestClock {
    pub(crate) fn new(store: Arc<dyn Store>, kit: TestKit) -> Self {
        Self { store, kit }
    }
}

impl Store for StoreOnTestClock {
    fn call(&self, request: &Request<'_>, deadline: Deadline<'_>) -> Result<Answer, Failure> {
        let _call = self.kit.clock.call();
        self.store.call(request, deadline)
    }

    fn has_slots(&self) -> bool {
        self.store.has_slots()
    }

    fn is_quorum(&self) -> bool {
        self.store.is_quorum()
    }

    fn left_until(&self, owner: &str) -> Option<Time> {
        let _entered = self.kit.clock.added.enter();
        self.store.left_until(owner)
    }

    fn forget(&self, owner: &str) {
        self.store.forget(owner);
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        Box::new(ConnectionOnTestClock {
            connection: self.store.dedicated_connection(),
            kit: self.kit.clone(),
        })
    }

    fn last_data_loss_sign(&self) -> Time {
        self.store.last_data_loss_sign()
    }

    fn on_failover(&self, changed: Box<dyn Fn() + Send + Sync>) -> bool {
        self.store.on_failover(changed)
    }

    fn last_surplus(&self) -> Time {
        self.store.last_surplus()
    }

    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        let _entered = self.kit.clock.added.enter();
        self.store.listen(channels, hear)
    }
}

struct ConnectionOnTestClock {
    connection: Box<dyn DedicatedConnection>,
    kit: TestKit,
}

impl DedicatedConnection for ConnectionOnTestClock {
    fn open(&mut self, is_silent: bool) -> Result<(), Failure> {
        let _entered = self.kit.clock.added.enter();
        self.connection.open(is_silent)
    }

    fn call(&mut self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure> {
        let _call = self.kit.clock.call();
        self.connection.call(request, limit)
    }

    fn take_reports(&mut self) -> Vec<NodeReport> {
        self.connection.take_reports()
    }
}
