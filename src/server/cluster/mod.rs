//! The masters of a Redis Cluster, and the requests to them.
//!
//! Each name belongs to one of 16,384 slots ([`LockKey::slot`](crate::name::LockKey::slot)), and each slot to one master.
//! A background thread keeps a map of the slots ([`map`], [`search`]). A request goes to the owner of its slot, on a
//! connection of that master's own pool: a hanging master uses up no connection to the others.
//!
//! | state of a request | event | next state |
//! | --- | --- | --- |
//! | begun | the map has an owner for the slot | sent to the owner |
//! | begun | the map has none | pausing |
//! | sent | a reply | done |
//! | sent | `MOVED`, at most twice in a row | the map is read anew, and has the new owner if it knew that master; begun |
//! | sent | `MOVED` again | the same; pausing |
//! | sent | `ASK` | sent to the named node after `ASKING`, once |
//! | sent | `TRYAGAIN`: the slot is moving, and no node has all keys | pausing |
//! | sent | `CLUSTERDOWN` | the map is read anew; pausing |
//! | sent | a request for a lock, of a thread that waits, and the connection broke or could not be opened | the map is read anew; pausing, for a replica to take over |
//! | sent | another error answer, or a failure of the connection | failed; after a transient one the map is read anew |
//! | pausing | the pause is over, or the map has a new master | begun; each further pause is longer |
//! | pausing | the time of the request is over | failed |
//!
//! A redirection means that the node has not executed the request. A connection that breaks after the request was written
//! leaves it unknown. During a pause a request has no connection. Its time is a short part of the lease
//! ([`call`]): a lease counts from before the request. A wait for a lock goes on after that, with a new request.
//!
//! # No stale answer
//!
//! A node answers a request with keys only if it is the master of their slot by its own table. A replica, and a master that
//! knows of its demotion, answer `MOVED`, even if the request writes nothing. So "gone" and "taken" need no proof by
//! `ROLE`, as they do behind sentinels. Three cases are left:
//!
//! | node | answer |
//! | --- | --- |
//! | a master that does not know yet that another has its slots | may confirm a lease that the new master lacks. `ROLE` would not show it. It stops within `cluster-node-timeout`. The map does not go back to it ([`map`]), and an answer counts only if the map still has the master when it comes. |
//! | a master that has restarted without data | "gone" is true |
//! | any node, for a request without keys | `SCAN` is sent with `ROLE`, and counts only for a master ([`call`]) |
//!
//! A cluster copies writes to replicas without waiting for them, so a failover may lose a lock. The holder learns of it
//! at its next renewal, and the fence is larger after the failover than before, because it follows the servers' time.
//!
//! | module | its subject |
//! | --- | --- |
//! | `map` | the slot map, and how the table of a node changes it |
//! | `search` | the thread that asks the nodes for their tables |
//! | `master` | a master with its connections, and the ways to all nodes |
//! | `call` | a request on the caller's thread |
//! | `renewals` | the requests of the renewal thread, on its own link to each master |

mod call;
mod map;
mod master;
mod renewals;
mod search;

use crate::config::{ClusterNodes, Settings};
use crate::error::{Chain, Failure, FailureKind, Redirect};
use crate::logging;
use crate::net::deadline::{Deadline, Phase};
use crate::net::login::{Pinged, ping_all};
use crate::net::pubsub::{self, PubSubEvent};
use crate::net::refusal::unavailable;
use crate::server::finder::Finder;
use crate::server::{Answer, DedicatedConnection, Store};
use crate::sys::{Arc, AtomicU32, Ordering, Time};
use crate::wire::Request;

use map::{SlotMap, UNKNOWN_HOST};
use master::{Address, Master, Routes};
use renewals::Renewals;
use search::Tables;

/// The store of a cluster.
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    /// The number of the node at which the next listener begins.
    next_listener: AtomicU32,
}

impl Cluster {
    pub(crate) fn new(nodes: ClusterNodes, settings: &Settings) -> Result<Self, Failure> {
        let addresses = nodes.seeds.iter().map(|seed| &*seed.address);
        let asked = format!("node of {}", addresses.collect::<Vec<_>>().join(", "));
        let routes = Arc::new(Routes::new(nodes, settings)?);
        let search = Box::new(Tables::new(Arc::clone(&routes)));
        let finder = Finder::new("leasehold-cluster", asked, search);
        Ok(Self {
            shared: Arc::new(Shared { routes, finder }),
            next_listener: AtomicU32::new(0),
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shared.finder.end();
    }
}

impl Store for Cluster {
    fn call(&self, request: &Request<'_>, deadline: Deadline<'_>) -> Result<Answer, Failure> {
        self.shared.call(request, deadline)
    }

    fn ping(&self, mut deadline: Deadline<'_>) -> Result<Vec<Pinged>, Failure> {
        Ok(ping_all(self.shared.map(&mut deadline)?.routes()))
    }

    fn has_slots(&self) -> bool {
        true
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        Box::new(Renewals::new(Arc::clone(&self.shared)))
    }

    fn last_data_loss_sign(&self) -> Time {
        self.shared.routes.first.data_loss_signs.last()
    }

    fn last_surplus(&self) -> Time {
        self.shared.routes.first.data_loss_signs.last_surplus()
    }

    fn last_failover(&self) -> Time {
        self.shared.finder.last_failover()
    }

    /// A message that a script publishes reaches the subscribers of all nodes. So any node will do, until it leaves the
    /// cluster. After a failure the next listener begins at the next node.
    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        let map = self.shared.map(&mut Deadline::default())?;
        let nodes = map.nodes();
        let mut last = unavailable("the cluster has no node");
        for _ in nodes {
            let number = self.next_listener.load(Ordering::Relaxed) as usize % nodes.len();
            let (mut is_wanted, mut is_member, mut has_begun) = (true, true, false);
            let address = &nodes[number];
            let route = self.shared.routes.to(address);
            let listened = pubsub::listen(&route, channels, &mut |event| {
                has_begun |= matches!(event, PubSubEvent::Subscribed);
                is_wanted = hear(event);
                // By the last table.
                let map = self.shared.finder.found();
                is_member = map.is_none_or(|map| map.nodes().contains(address));
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
}

/// The state that all connections of a cluster share.
struct Shared {
    routes: Arc<Routes>,
    finder: Arc<Finder<Arc<SlotMap>>>,
}

impl Shared {
    /// Returns the slot map. Blocks until one was found, but for at most `connect_timeout`.
    ///
    /// # Errors
    ///
    /// Returns the reason why none was found.
    fn map(&self, deadline: &mut Deadline<'_>) -> Result<Arc<SlotMap>, Failure> {
        let time = deadline.phase(Phase::Master, self.routes.first.connect_timeout);
        self.finder.wait(time, |findings| findings.found().cloned())
    }

    /// Makes the thread read the map until this master answers, or has no slot any more.
    fn suspect(&self, master: &Master) {
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

    /// Returns where a request goes next that `from` has redirected by `MOVED` or `ASK`: to the owner of the slot by the map, or
    /// with `ASKING` to this node.
    ///
    /// A slot that has moved is given to its new owner, and the map is read anew. The old owner keeps it until then, so that the
    /// request is sent there again after a pause, if
    ///
    /// * it does not know the address; or
    /// * the map does not have the new owner. That may have been a replica, and then this process must hear of the failover,
    ///   which only a table shows. A node to which a slot is moving is none, so the map may have it before any table.
    fn redirected(
        &self,
        from: &Arc<Master>,
        kind: FailureKind,
        to: &Redirect,
    ) -> Option<Arc<Master>> {
        let has_moved = kind == FailureKind::Moved;
        if has_moved || to.host == UNKNOWN_HOST {
            self.finder.check_again();
        }
        if to.host == UNKNOWN_HOST {
            return None;
        }
        let host = if to.host.is_empty() {
            &from.address.host
        } else {
            &to.host
        };
        let address = Address {
            host: host.clone(),
            port: to.port,
        };
        // Dropped without the mutex of the finder, because that closes connections.
        let mut oldest = None;
        let moving_to = self.finder.change(|map| {
            let known = map.master_at(&address).cloned();
            if has_moved {
                // Another thread may have moved the slot already.
                let has_it = map.owner(to.slot).is_some_and(|it| Arc::ptr_eq(it, from));
                if let Some(known) = known.filter(|_| has_it) {
                    Arc::make_mut(map).give(to.slot, &known);
                }
                return None;
            }
            Some(known.unwrap_or_else(|| {
                let master = self.routes.new_master(&address);
                oldest = Arc::make_mut(map).add_importing(&master);
                master
            }))
        });
        moving_to.flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;
    use crate::name::{LockKey, Target};
    use crate::server::cluster::map::tests::table;

    /// Returns the state of a cluster that nobody asks.
    pub(super) fn shared(settings: &Settings) -> Arc<Shared> {
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let nodes = ClusterNodes::new(&urls, settings).expect("a URL");
        Arc::clone(&Cluster::new(nodes, settings).expect("threads").shared)
    }

    /// Publishes the map of a first discovery.
    pub(super) fn publish_first(shared: &Shared, map: SlotMap) {
        let next = |_: Option<&Arc<SlotMap>>| Ok((Arc::new(map), true));
        shared.finder.publish(next).expect("it is published");
    }

    /// Returns two servers of this machine, and the state of a cluster of which they are the masters. The first has the slot of
    /// the name. No time limit ends before the test.
    pub(super) fn at_two_servers() -> ([TcpListener; 2], Arc<Shared>, Target) {
        let servers = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let ports = servers
            .each_ref()
            .map(|it| it.local_addr().expect("it is bound").port());
        // Longer than any machine starves the test.
        let hour = Duration::from_secs(60 * 60);
        let shared = shared(&Settings {
            connect_timeout: hour,
            io_timeout: hour,
            ..Settings::default()
        });
        let target = Target::from(LockKey::new("", "n").expect("a name"));
        let slot = target.first().slot();
        let known = [("a", 1, 5, (0, slot)), ("b", 2, 6, (slot + 1, slot + 1))];
        let make = &mut |address: &Address| {
            let host = "127.0.0.1".into();
            let port = ports[usize::from(address.port) - 1];
            let master = shared.routes.new_master(&Address { host, port });
            // No test is about the question of the first connection.
            let asked = &master.route.asked_about_itself;
            asked.store(true, Ordering::Relaxed);
            master
        };
        let map = SlotMap::after(None, &table(&known, &[]), make);
        publish_first(&shared, map);
        (servers, shared, target)
    }

    /// Returns such a state, whose map has two masters, and the first one of them.
    fn with_two_masters() -> (Arc<Shared>, Arc<Master>) {
        let shared = shared(&Settings::default());
        let known = table(&[("a", 1, 5, (0, 99)), ("b", 2, 6, (100, 199))], &[]);
        let make = &mut |address: &Address| shared.routes.new_master(address);
        let map = SlotMap::after(None, &known, make);
        let first = Arc::clone(map.owner(5).expect("an owner"));
        publish_first(&shared, map);
        (shared, first)
    }

    /// Redirects a request for slot 5. Returns the port of the node to which the slot is moving, and that of its owner.
    fn redirect(
        (shared, from): &(Arc<Shared>, Arc<Master>),
        kind: FailureKind,
        host: &str,
        port: u16,
    ) -> (Option<u16>, u16) {
        let to = Redirect {
            slot: 5,
            host: host.into(),
            port,
        };
        let moving_to = shared.redirected(from, kind, &to);
        let map = shared.finder.found().expect("a map");
        let owner = map.owner(5).expect("an owner").address.port;
        (moving_to.map(|node| node.address.port), owner)
    }

    #[test]
    fn a_redirection_without_an_address_has_the_map_read_anew() {
        let cluster = with_two_masters();
        let is_check_due = || cluster.0.finder.is_check_due();
        assert_eq!(redirect(&cluster, FailureKind::Ask, "", 3), (Some(3), 1));
        assert!(!is_check_due());
        for kind in [FailureKind::Ask, FailureKind::Moved] {
            let cluster = with_two_masters();
            assert_eq!(redirect(&cluster, kind, "?", 3), (None, 1));
            assert!(cluster.0.finder.is_check_due());
        }
    }

    /// It may have been a replica: the map learns of it by a table only.
    #[test]
    fn a_slot_that_has_moved_to_an_unknown_master_waits_for_the_map() {
        let cluster = with_two_masters();
        let redirect = |kind, port| redirect(&cluster, kind, "h", port);
        assert_eq!(redirect(FailureKind::Moved, 9), (None, 1));
        assert!(cluster.0.finder.is_check_due());
        assert_eq!(redirect(FailureKind::Moved, 2), (None, 2));
    }

    #[test]
    fn a_node_to_which_a_slot_was_moving_has_it_at_once() {
        let cluster = with_two_masters();
        let redirect = |kind, port| redirect(&cluster, kind, "h", port);
        for _ in 0..2 {
            assert_eq!(redirect(FailureKind::Ask, 9), (Some(9), 1));
            let map = cluster.0.finder.found().expect("a map");
            assert_eq!(map.all().count(), 3, "each node has one pool");
        }
        assert_eq!(redirect(FailureKind::Moved, 9), (None, 9));
    }
}
