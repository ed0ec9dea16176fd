//! One Redis server at a fixed address.

use std::time::{Duration, Instant};

use crate::clock::Time;
use crate::config::{Server, Settings};
use crate::error::Failure;
use crate::message::Request;
use crate::script::ScriptSettings;
use crate::store::link::Link;
use crate::store::pool::Pool;
use crate::store::pubsub;
use crate::store::route::{Budget, Route};
use crate::store::{Answer, DedicatedConnection, LEAST, Limits, PubSubEvent, Store};
use crate::sync::Arc;

/// A node, and the store of one.
pub(crate) struct Node {
    pool: Pool<Link>,
    route: Route,
}

impl Node {
    pub(crate) fn new(server: Server, settings: &Settings) -> Self {
        let route = route(server, settings);
        Self {
            pool: Pool::new(Link::maker(route.clone()), settings.pool_size),
            route,
        }
    }
}

/// The way to a server.
pub(super) fn route(server: Server, settings: &Settings) -> Route {
    Route {
        server: Arc::new(server),
        script_settings: Arc::new(
            ScriptSettings::new(settings.fence_memory, settings.io_timeout)
                .with_gap(settings.poller_gap, settings.quantum),
        ),
        connect_timeout: settings.connect_timeout,
        io_timeout: settings.io_timeout,
        replicas: settings.replicas,
        asked_about_itself: Arc::default(),
        resolver: Arc::default(),
        cuts: Arc::default(),
    }
}

impl Store for Node {
    fn call(&self, request: &Request<'_>, limits: Limits<'_>) -> Result<Answer, Failure> {
        let started = Instant::now();
        let wait = limits.checkout.min(limits.whole);
        let is_over = || limits.is_over();
        let has_priority = limits.has_priority || request.is_of_a_holder();
        let mut link = self.pool.take(wait, has_priority, &is_over)?;
        let left = limits.whole.saturating_sub(started.elapsed());
        link.call(request, &mut Budget::new(left.max(LEAST)))
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        Box::new(Link::dedicated(self.route.clone()))
    }

    fn last_cut(&self) -> Time {
        self.route.cuts.last()
    }

    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        pubsub::listen(&self.route, channels, hear)
    }
}

impl DedicatedConnection for Link {
    fn open(&mut self) -> Result<(), Failure> {
        self.open_for_renewals()
    }

    fn call(&mut self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure> {
        self.call_and_measure(request, limit)
    }
}
