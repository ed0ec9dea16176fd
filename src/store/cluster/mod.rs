//! The masters of a Redis Cluster, and the requests to them.
//!
//! Each name belongs to one of 16,384 slots ([`LockKey::slot`](crate::name::LockKey::slot)), and each slot to one master.
//! A background thread keeps a map of the slots ([`map`], [`watcher`]). A request goes to the owner of its slot, on a
//! connection of that master's own pool. So a master that hangs uses up no connection to the others.
//!
//! | state of a request | event | next state |
//! | --- | --- | --- |
//! | begun | the map has an owner for the slot | sent to the owner |
//! | begun | the map has none | pausing |
//! | sent | a reply | done |
//! | sent | `MOVED`, at most twice in a row | the map has the new owner, and is read anew; begun |
//! | sent | `MOVED` again | the same; pausing |
//! | sent | `ASK` | sent to the named node after `ASKING`, once |
//! | sent | `TRYAGAIN`: the slot is moving, and no node has all keys | pausing |
//! | sent | `CLUSTERDOWN` | the map is read anew; pausing |
//! | sent | a request for a lock, of a thread that waits, and the connection broke or could not be opened | the map is read anew; pausing, for a replica to take over |
//! | sent | another error answer, or a failure of the connection | failed; after a transient one the map is read anew |
//! | pausing | the pause is over, or the slot has a new owner after the last one could not be reached | begun; each further pause is longer |
//! | pausing | the time of the request is over | failed |
//!
//! A redirection means that the node has not executed the request. A connection that breaks after the request was written
//! leaves it unknown. During a pause a request has no connection. Its time is a short part of the lease
//! ([`call`]): a lease counts from before the request. A wait for a lock goes on after that, with a new request.
//!
//! # No stale answer
//!
//! A node answers a request with keys only if it is the master of their slot by its own view. A replica, and a master that
//! knows of its demotion, answer `MOVED`, even if the request writes nothing. So "gone" and "taken" need no proof by
//! `ROLE`, as they do behind sentinels. Three cases are left:
//!
//! | node | answer |
//! | --- | --- |
//! | a master that does not know yet that another has its slots | may confirm a lease that the new master lacks. `ROLE` would not show it. It stops within `cluster-node-timeout`. The map does not go back to it ([`map`]), and an answer counts only if the map still has the master when it comes. |
//! | a master that has restarted without data | "gone" is true |
//! | any node, for a request without keys | `SCAN` is sent with `ROLE`, and counts only for a master (`operators`) |
//!
//! A cluster copies writes to replicas without waiting for them. So a failover may lose a lock. The holder learns of it
//! at its next renewal, and the fence is larger after the failover than before, because it follows the servers' time.
//!
//! | module | its subject |
//! | --- | --- |
//! | `map` | the slot map, and how it takes in the view of a node |
//! | `watcher` | the thread that asks the nodes for their views |
//! | `call` | a request on the caller's thread |
//! | `operators` | requests that concern several slots |
//! | `lanes` | the connections of the renewal thread, one for each master |
//! | `batch` | renewals and releases on those connections, by slot |

mod batch;
mod call;
mod lanes;
mod map;
mod operators;
mod watcher;

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;

use crate::clock::Time;
use crate::config::{ClusterNodes, Server, Settings};
use crate::error::{Failure, FailureKind, Outcome, Redirect};
use crate::logging;
use crate::message::Request;
use crate::store::pubsub;
use crate::store::route::{Route, route};
use crate::store::shared::Connections;
use crate::store::waker::{wake, wakers};
use crate::store::{Answer, DedicatedConnection, Limits, NodeReport, PubSubEvent, Store};
use crate::sync::{Arc, AtomicBool, AtomicU32, Condvar, Mutex, Ordering, thread};

use batch::ClusterConnection;
use map::{Address, SlotMap};
use watcher::{ViewOf, Watcher};

/// The store of a cluster.
pub(crate) struct Cluster {
    shared: Arc<Shared>,
}

/// The state that all connections of a cluster share.
struct Shared {
    nodes: ClusterNodes,
    settings: Settings,
    /// A way to the first node that the user names. It has the parts that all nodes share.
    first: Route,
    state: Mutex<State>,
    /// Notified after each check.
    checked: Condvar,
    /// Wakes the thread. Empty before it runs.
    waker: OnceCell<UnixStream>,
    /// Whether the map must be read anew.
    is_outdated: AtomicBool,
    /// Whether nobody uses the cluster any more.
    is_over: AtomicBool,
    /// The number of the node at which the next listener begins.
    next_listener: AtomicU32,
}

#[derive(Default)]
struct State {
    map: Option<Arc<SlotMap>>,
    /// How many checks have found no view.
    failed: u64,
    /// Why the last of them has found none.
    failure: Option<Failure>,
}

/// A master, with its own pool of connections.
struct Master {
    address: Address,
    route: Route,
    /// Empty before the first request.
    pool: OnceCell<Arc<Connections>>,
    pool_size: u32,
    /// Whether a later map does not have this master.
    is_retired: AtomicBool,
    /// Whether a request has failed since the last answer.
    is_suspected: AtomicBool,
}

impl Master {
    fn pool(&self) -> &Arc<Connections> {
        let way = || (0, Arc::new(self.route.clone()));
        self.pool
            .get_or_init(|| Connections::new(way(), self.pool_size))
    }

    fn note_answer(&self) {
        // Most answers find no suspicion, and write nothing.
        if self.is_suspected.load(Ordering::Relaxed)
            && self.is_suspected.swap(false, Ordering::Relaxed)
        {
            let address = &self.route.server.address;
            logging::info!("the master {address} answers again");
        }
    }

    /// Returns a failure if a later map does not have this master: another may have its slots.
    fn check_in_use(&self) -> Result<(), Failure> {
        if !self.is_retired.load(Ordering::Acquire) {
            return Ok(());
        }
        let words = format!(
            "{} was replaced during the request",
            self.route.server.address
        );
        Err(Failure::plain(
            FailureKind::Unavailable,
            Outcome::Unknown,
            words,
        ))
    }
}

impl Cluster {
    pub(crate) fn new(nodes: ClusterNodes, settings: &Settings) -> Self {
        let settings = Settings {
            // Only the events thread may keep it.
            listener: None,
            ..settings.clone()
        };
        let first = of_a_cluster(route(nodes.seeds[0].clone(), &settings));
        let shared = Shared {
            nodes,
            settings,
            first,
            state: Mutex::default(),
            checked: Condvar::new(),
            waker: OnceCell::new(),
            is_outdated: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            next_listener: AtomicU32::new(0),
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Store for Cluster {
    fn call(&self, request: &Request<'_>, limits: Limits<'_>) -> Result<Answer, Failure> {
        self.shared.call(request, limits)
    }

    fn has_slots(&self) -> bool {
        true
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        Box::new(ClusterConnection::new(Arc::clone(&self.shared)))
    }

    fn last_cut(&self) -> Time {
        self.shared.first.cuts.last()
    }

    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        self.shared.listen(channels, hear)
    }
}

/// Returns the way to a node of a cluster.
fn of_a_cluster(route: Route) -> Route {
    let script_settings = route.script_settings.as_ref().clone().of_a_cluster();
    Route {
        script_settings: Arc::new(script_settings),
        is_of_a_cluster: true,
        ..route
    }
}

impl Shared {
    /// Returns the slot map. Blocks until one was found, but for at most `limit`.
    ///
    /// # Errors
    ///
    /// Returns the reason why none was found.
    fn map(self: &Arc<Self>, limit: Duration) -> Result<Arc<SlotMap>, Failure> {
        let mut state = self.state.lock();
        if let Some(map) = &state.map {
            return Ok(Arc::clone(map));
        }
        if self.waker.get().is_none() {
            // Under the mutex, so no other thread has set it.
            self.waker.set(self.start()?).ok();
        }
        let (deadline, failed_before) = (Instant::now() + limit, state.failed);
        loop {
            if let Some(map) = &state.map {
                return Ok(Arc::clone(map));
            }
            // Another check would find the same.
            let is_final =
                |failure: &&Failure| !failure.is_transient() && state.failed > failed_before;
            if let Some(failure) = state.failure.as_ref().filter(is_final) {
                return Err(failure.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let none = || unavailable("no node of the cluster has answered in time");
                return Err(state.failure.clone().unwrap_or_else(none));
            }
            state = self.checked.wait_for(state, left);
        }
    }

    /// Starts the thread. Returns what wakes it.
    fn start(self: &Arc<Self>) -> Result<UnixStream, Failure> {
        let failed = |error: std::io::Error| {
            let words = format!("the thread that asks the nodes cannot be started: {error}");
            unavailable(words)
        };
        let (waker, woken) = wakers().map_err(failed)?;
        let watcher = Watcher::new(Arc::clone(self), woken);
        thread::Builder::new()
            .name("leasehold-cluster".into())
            .spawn(move || watcher.run())
            .map_err(failed)?;
        Ok(waker)
    }

    /// Ends the thread. Takes no mutex, because a forked child may call it.
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.wake();
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            wake(waker);
        }
    }

    /// Has the map read anew until this master answers, or has no slot any more.
    fn suspect(&self, master: &Master) {
        if !master.is_suspected.swap(true, Ordering::Relaxed) {
            let address = &master.route.server.address;
            logging::warning!("the master {address} does not answer, or serves no request now");
            self.note_outdated();
        }
    }

    /// Returns whether the last request to each master has failed.
    fn is_lost(&self) -> bool {
        let map = self.state.lock().map.clone();
        let masters = map.map(|map| map.masters()).unwrap_or_default();
        let is_suspected = |master: &Arc<Master>| master.is_suspected.load(Ordering::Relaxed);
        masters.iter().all(is_suspected)
    }

    /// Returns a report of each master. Its place is that of its slots, so a replica that is promoted has the same.
    fn reports(&self) -> Vec<NodeReport> {
        let map = self.state.lock().map.clone();
        let masters = map.map(|map| map.masters()).unwrap_or_default();
        let report = |(place, master): (usize, &Arc<Master>)| {
            let address = &master.route.server.address;
            let is_suspected = master.is_suspected.load(Ordering::Relaxed);
            let failure = || unavailable(format!("{address} has not answered a request"));
            NodeReport {
                place,
                node: Some(Arc::clone(address)),
                failure: is_suspected.then(failure),
            }
        };
        masters.iter().enumerate().map(report).collect()
    }

    /// Has the map read anew.
    fn note_outdated(&self) {
        self.is_outdated.store(true, Ordering::Release);
        self.wake();
    }

    fn route_to(&self, server: Server) -> Route {
        Route {
            cuts: Arc::clone(&self.first.cuts),
            resolver: Arc::clone(&self.first.resolver),
            script_settings: Arc::clone(&self.first.script_settings),
            ..of_a_cluster(route(server, &self.settings))
        }
    }

    /// Returns the way to a node.
    fn route_to_address(&self, address: &Address) -> Route {
        self.route_to(self.nodes.server_at(&address.host, address.port))
    }

    fn new_master(&self, address: &Address) -> Arc<Master> {
        Arc::new(Master {
            address: address.clone(),
            route: self.route_to_address(address),
            pool: OnceCell::new(),
            pool_size: self.settings.pool_size,
            is_retired: AtomicBool::new(false),
            is_suspected: AtomicBool::new(false),
        })
    }

    /// Takes in the views of some nodes. Returns the number of masters if the map has changed.
    ///
    /// # Errors
    ///
    /// Returns a failure if the nodes are of several clusters.
    fn publish(&self, views: &[ViewOf]) -> Result<Option<usize>, Failure> {
        let mut state = self.state.lock();
        let last = state.map.clone();
        let mut next = last.as_deref().cloned();
        for (node, view) in views {
            if next.as_ref().is_some_and(|next| next.is_foreign(view)) {
                let words = format!("{} and {node} are nodes of different clusters", views[0].0);
                let (kind, outcome) = (FailureKind::SeveralClusters, Outcome::NotExecuted);
                return Err(Failure::plain(kind, outcome, words));
            }
            let make = &mut |address: &Address| self.new_master(address);
            next = Some(SlotMap::after(next.as_ref(), view, make));
        }
        let Some(map) = next else { return Ok(None) };
        let is_same = last.as_ref().is_some_and(|last| last.has_same_owners(&map));
        let mut is_failover = false;
        for master in last.iter().flat_map(|last| last.all_masters()) {
            if !map.has(master) {
                master.is_retired.store(true, Ordering::Release);
                is_failover = true;
            }
        }
        if is_failover {
            // A new master may lack what the last one had.
            self.first.cuts.note();
        }
        let masters = map.masters().len();
        state.map = Some(Arc::new(map));
        state.failure = None;
        drop(state);
        self.checked.notify_all();
        // The last map is dropped without the mutex, because it may be the last to hold a pool.
        drop(last);
        Ok((!is_same).then_some(masters))
    }

    /// Notes why a check has found no view.
    fn not_found(&self, failure: Failure) {
        let mut state = self.state.lock();
        state.failed += 1;
        state.failure = Some(Failure {
            outcome: Outcome::NotExecuted,
            ..failure
        });
        drop(state);
        self.checked.notify_all();
    }

    /// Returns the master to which `from` redirects a request. With `has_moved` it is the owner of the slot from now on.
    /// If `from` does not know the address, has the map read anew, and returns `from`: the request will pause.
    fn redirected(&self, from: &Arc<Master>, to: &Redirect, has_moved: bool) -> Arc<Master> {
        if to.host == map::UNKNOWN_HOST {
            self.note_outdated();
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
        let mut state = self.state.lock();
        let Some(map) = state.map.clone() else {
            return self.new_master(&address);
        };
        let known = map.master_at(&address);
        let master = known.unwrap_or_else(|| self.new_master(&address));
        // Another thread may have moved the slot already.
        let is_owner = map
            .owner(to.slot)
            .is_some_and(|owner| Arc::ptr_eq(owner, from));
        if has_moved && is_owner {
            state.map = Some(Arc::new(map.after_move(to.slot, &master)));
        } else if !map.has(&master) {
            state.map = Some(Arc::new(map.with(&master)));
        }
        drop(state);
        if has_moved {
            self.note_outdated();
        }
        master
    }

    /// Listens at a node until `hear` returns false. See [`crate::store::Store::listen`].
    ///
    /// A message that a script publishes reaches the subscribers of all nodes. So any node will do, until it leaves the
    /// cluster. After a failure the next listener begins at the next node.
    fn listen(
        self: &Arc<Self>,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        let map = self.map(self.settings.connect_timeout)?;
        let nodes = map.nodes();
        let mut last = unavailable("the cluster has no node");
        for _ in nodes {
            let number = self.next_listener.load(Ordering::Relaxed) as usize % nodes.len();
            let (mut is_wanted, mut is_member, mut has_begun) = (true, true, false);
            let address = &nodes[number];
            let route = self.route_to_address(address);
            let listened = pubsub::listen(&route, channels, &mut |event| {
                has_begun |= matches!(event, PubSubEvent::Subscribed);
                is_wanted = hear(event);
                is_member = self.is_member(address);
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

    fn is_member(&self, address: &Address) -> bool {
        let state = self.state.lock();
        let map = state.map.as_ref();
        map.is_none_or(|map| map.nodes().contains(address))
    }
}

fn unavailable(words: impl Into<String>) -> Failure {
    Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words)
}

#[cfg(test)]
mod tests {
    use super::map::View;
    use super::map::tests::view;
    use super::*;

    /// Returns a cluster whose thread does not run.
    fn cluster() -> Cluster {
        let settings = Settings::default();
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let nodes = ClusterNodes::new(&urls, &settings).expect("a URL");
        Cluster::new(nodes, &settings)
    }

    /// The ports of the owners of slots 0 and 100 after a first discovery in which these nodes have answered.
    fn discovered(views: Vec<View>) -> Result<Vec<u16>, Failure> {
        let cluster = cluster();
        let views: Vec<_> = views
            .into_iter()
            .map(|view| ("node".into(), view))
            .collect();
        let masters = cluster.shared.publish(&views)?;
        assert_eq!(masters, Some(2));
        let map = cluster.shared.map(Duration::ZERO)?;
        let owners = [0, 100].iter().filter_map(|slot| map.owner(*slot));
        Ok(owners.map(|owner| owner.address.port).collect())
    }

    #[test]
    fn of_the_views_of_the_first_discovery_the_latest_counts() {
        // A master was cut off before `c` has taken its slots.
        let old = || {
            view(
                &[("a", 1, 5, (0, 99)), ("b", 2, 6, (100, 199))],
                &[("c", 0)],
            )
        };
        let new = || {
            view(
                &[("c", 3, 7, (0, 99)), ("b", 2, 6, (100, 199))],
                &[("a", 5)],
            )
        };
        for views in [vec![old(), new()], vec![new(), old()], vec![new(), new()]] {
            assert_eq!(discovered(views).expect("one cluster"), [3, 2]);
        }
    }

    #[test]
    fn views_of_the_first_discovery_that_share_no_node_are_of_several_clusters() {
        let ours = || view(&[("a", 1, 5, (0, 99)), ("b", 2, 6, (100, 199))], &[]);
        let theirs = || view(&[("x", 8, 9, (0, 199))], &[]);
        for views in [vec![ours(), theirs()], vec![theirs(), ours(), ours()]] {
            let failure = discovered(views).expect_err("two clusters");
            assert_eq!(failure.kind, FailureKind::SeveralClusters);
        }
    }

    #[test]
    fn a_redirection_without_an_address_has_the_map_read_anew() {
        let cluster = cluster();
        let address = |host: &str, port| Address {
            host: host.into(),
            port,
        };
        let from = cluster.shared.new_master(&address("10.0.0.1", 2));
        let redirected = |host: &str, has_moved| {
            let to = Redirect {
                slot: 5,
                host: host.into(),
                port: 3,
            };
            cluster.shared.redirected(&from, &to, has_moved)
        };
        assert_eq!(redirected("", false).address, address("10.0.0.1", 3));
        assert!(!cluster.shared.is_outdated.load(Ordering::Acquire));
        for has_moved in [false, true] {
            assert!(Arc::ptr_eq(&redirected("?", has_moved), &from));
            assert!(cluster.shared.is_outdated.swap(false, Ordering::AcqRel));
        }
    }
}
