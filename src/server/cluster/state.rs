//! The state that all connections of a cluster share: the map, and the masters that requests have shown to fail.

use crate::error::{Chain, Failure, Redirect};
use crate::logging;
use crate::net::deadline::{Deadline, Phase};
use crate::net::pubsub::{self, PubSubEvent};
use crate::net::refusal::unavailable;
use crate::net::route::NodeReport;
use crate::server::cluster::map::{SlotMap, UNKNOWN_HOST};
use crate::server::cluster::master::{Address, Master, Routes};
use crate::server::finder::Finder;
use crate::sys::{Arc, AtomicU32, Ordering};

/// The state that all connections of a cluster share.
pub(super) struct Shared {
    pub(super) routes: Arc<Routes>,
    pub(super) finder: Arc<Finder<Arc<SlotMap>>>,
    /// The number of the node at which the next listener begins.
    pub(super) next_listener: AtomicU32,
}

impl Shared {
    /// Returns the slot map. Blocks until one was found, but for at most `connect_timeout`.
    ///
    /// # Errors
    ///
    /// Returns the reason why none was found.
    pub(super) fn map(&self, deadline: &mut Deadline<'_>) -> Result<Arc<SlotMap>, Failure> {
        let time = deadline.phase(Phase::Master, self.routes.settings.connect_timeout);
        self.finder.wait(time, |findings| findings.found().cloned())
    }

    /// Returns the masters of the map.
    fn masters(&self) -> Vec<Arc<Master>> {
        let map = self.finder.found();
        map.map(|map| map.masters()).unwrap_or_default()
    }

    /// Makes the thread read the map anew until this master answers, or has no slot any more.
    pub(super) fn suspect(&self, master: &Master) {
        if !master.is_suspected.swap(true, Ordering::Relaxed) {
            let address = &master.route.server.address;
            let why = match master.route.connecting.failure() {
                Some(failure) => format!(": {}", Chain(&*failure.cause)),
                None => String::new(),
            };
            logging::warning!(
                "the master {address} does not answer, or serves no request now{why}"
            );
            self.finder.check_again();
        }
    }

    /// Returns whether the last request to each master has failed.
    pub(super) fn is_lost(&self) -> bool {
        let is_suspected = |master: &Arc<Master>| master.is_suspected.load(Ordering::Relaxed);
        self.masters().iter().all(is_suspected)
    }

    /// Returns a report of each master. Its place is that of its slots, so a replica that is promoted has the same.
    pub(super) fn reports(&self) -> Vec<NodeReport> {
        let report = |(place, master): (usize, &Arc<Master>)| {
            let address = &master.route.server.address;
            let is_suspected = master.is_suspected.load(Ordering::Relaxed);
            let late = || unavailable(format!("{address} has not answered a request"));
            let failure = || master.route.connecting.failure().unwrap_or_else(late);
            NodeReport {
                place,
                node: Some(Arc::clone(address)),
                failure: is_suspected.then(failure),
            }
        };
        self.masters().iter().enumerate().map(report).collect()
    }

    /// Returns the master to which `from` redirects a request. With `has_moved` it is the owner of the slot from now on, and
    /// the map is read anew. Returns `from`, so that the request pauses, if
    ///
    /// * `from` does not know the address; or
    /// * the slot has moved to a master that the map does not have. It may have been a replica, and then this process must
    ///   hear of the failover, which only a table shows.
    pub(super) fn redirected(
        &self,
        from: &Arc<Master>,
        to: &Redirect,
        has_moved: bool,
    ) -> Arc<Master> {
        if has_moved || to.host == UNKNOWN_HOST {
            self.finder.check_again();
        }
        if to.host == UNKNOWN_HOST {
            return Arc::clone(from);
        }
        let address = Address {
            host: if to.host.is_empty() {
                from.address.host.clone()
            } else {
                to.host.clone()
            },
            port: to.port,
        };
        let master = self.finder.change(|map| {
            let known = map.master_at(&address);
            if !has_moved {
                return known.unwrap_or_else(|| {
                    let master = self.routes.new_master(&address);
                    *map = Arc::new(map.with(&master));
                    master
                });
            }
            let Some(master) = known else {
                return Arc::clone(from);
            };
            // Another thread may have moved the slot already.
            if map
                .owner(to.slot)
                .is_some_and(|owner| Arc::ptr_eq(owner, from))
            {
                *map = Arc::new(map.after_move(to.slot, &master));
            }
            master
        });
        master.unwrap_or_else(|| self.routes.new_master(&address))
    }

    /// Listens at a node until `hear` returns false. See [`crate::server::Store::listen`].
    ///
    /// A message that a script publishes reaches the subscribers of all nodes. So any node will do, until it leaves the
    /// cluster. After a failure the next listener begins at the next node.
    pub(super) fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        let map = self.map(&mut Deadline::default())?;
        let nodes = map.nodes();
        let mut last = unavailable("the cluster has no node");
        for _ in nodes {
            let number = self.next_listener.load(Ordering::Relaxed) as usize % nodes.len();
            let (mut is_wanted, mut is_member, mut has_begun) = (true, true, false);
            let address = &nodes[number];
            let route = self.routes.to_address(address);
            let listened = pubsub::listen(&route, channels, &mut |event| {
                has_begun |= matches!(event, PubSubEvent::Subscribed);
                is_wanted = hear(event);
                is_member = self.has_node(address);
                is_wanted && is_member
            });
            if !is_wanted {
                return Ok(());
            }
            self.next_listener.fetch_add(1, Ordering::Relaxed);
            last = match listened {
                Err(failure) => failure,
                Ok(()) => unavailable("the node has left the cluster"),
            };
            if has_begun {
                break;
            }
        }
        Err(last)
    }

    /// Returns whether the cluster has a node at this address, by the last table.
    fn has_node(&self, address: &Address) -> bool {
        let map = self.finder.found();
        map.is_none_or(|map| map.nodes().contains(address))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::{ClusterNodes, Settings};
    use crate::server::cluster::Cluster;
    use crate::server::cluster::map::tests::table;
    use crate::server::finder::Published;

    fn address(host: &str, port: u16) -> Address {
        Address {
            host: host.into(),
            port,
        }
    }

    /// Publishes the map of a first discovery.
    pub(in super::super) fn publish_first(shared: &Shared, map: SlotMap) {
        let next = |_: Option<&Arc<SlotMap>>| {
            Ok(Published {
                found: Arc::new(map),
                is_another: true,
                is_failover: false,
            })
        };
        shared.finder.publish(next).expect("it is published");
    }

    #[test]
    fn a_redirection_without_an_address_has_the_map_read_anew() {
        let redirected = |host: &str, has_moved| {
            let settings = Settings::default();
            let urls = ["redis://127.0.0.1:1/".to_owned()];
            let nodes = ClusterNodes::new(&urls, &settings).expect("a URL");
            let shared = Arc::clone(&Cluster::new(nodes, &settings).expect("threads").shared);
            let from = shared.routes.new_master(&address("10.0.0.1", 2));
            let to = Redirect {
                slot: 5,
                host: host.into(),
                port: 3,
            };
            let to = shared.redirected(&from, &to, has_moved);
            (to.address.clone(), shared.finder.is_check_due())
        };
        assert_eq!(redirected("", false), (address("10.0.0.1", 3), false));
        for has_moved in [false, true] {
            let from = address("10.0.0.1", 2);
            assert_eq!(redirected("?", has_moved), (from, true));
        }
    }

    /// It may have been a replica: the map learns of it by a table only.
    #[test]
    fn a_slot_that_has_moved_to_an_unknown_master_waits_for_the_map() {
        let settings = Settings::default();
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let nodes = ClusterNodes::new(&urls, &settings).expect("a URL");
        let shared = Arc::clone(&Cluster::new(nodes, &settings).expect("threads").shared);
        let known = table(&[("a", 1, 5, (0, 99)), ("b", 2, 6, (100, 199))], &[]);
        let make = &mut |address: &Address| shared.routes.new_master(address);
        publish_first(&shared, SlotMap::after(None, &known, make));
        let owner = || {
            let map = shared.finder.found().expect("a map");
            map.owner(5).expect("an owner").address.port
        };
        let from = shared.finder.found().expect("a map").owner(5).cloned();
        let from = from.expect("an owner");
        let moved_to = |port| {
            let to = Redirect {
                slot: 5,
                host: "h".into(),
                port,
            };
            shared.redirected(&from, &to, true).address.port
        };
        assert_eq!((moved_to(9), owner()), (1, 1));
        assert!(shared.finder.is_check_due());
        assert_eq!((moved_to(2), owner()), (2, 2));
    }
}
