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
//! | pausing | the pause is over, or the slot has a new owner after the last one could not be reached | begun; each further pause is longer |
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
//! | any node, for a request without keys | `SCAN` is sent with `ROLE`, and counts only for a master (`operators`) |
//!
//! A cluster copies writes to replicas without waiting for them, so a failover may lose a lock. The holder learns of it
//! at its next renewal, and the fence is larger after the failover than before, because it follows the servers' time.
//!
//! | module | its subject |
//! | --- | --- |
//! | `map` | the slot map, and how the table of a node changes it |
//! | `search` | the thread that asks the nodes for their tables |
//! | `state` | the map, and the masters that fail |
//! | `master` | a master with its connections, and the ways to all nodes |
//! | `call` | a request on the caller's thread |
//! | `operators` | requests that concern several slots |
//! | `renewals` | the requests of the renewal thread, on its own link to each master |

mod call;
mod map;
mod master;
mod operators;
mod renewals;
mod search;
mod state;

use crate::config::{ClusterNodes, Settings};
use crate::error::Failure;
use crate::net::deadline::Deadline;
use crate::net::login::{Pinged, ping_all};
use crate::net::pubsub::PubSubEvent;
use crate::server::finder::Finder;
use crate::server::{Answer, DedicatedConnection, Store};
use crate::sys::{Arc, AtomicU32, Time};
use crate::wire::Request;

use master::Routes;
use renewals::Renewals;
use search::Tables;
use state::Shared;

/// The store of a cluster.
pub(crate) struct Cluster {
    shared: Arc<Shared>,
}

impl Cluster {
    pub(crate) fn new(nodes: ClusterNodes, settings: &Settings) -> Result<Self, Failure> {
        let addresses = nodes.seeds.iter().map(|seed| &*seed.address);
        let asked = format!("node of {}", addresses.collect::<Vec<_>>().join(", "));
        let routes = Arc::new(Routes::new(nodes, settings)?);
        let search = Box::new(Tables::new(Arc::clone(&routes)));
        let finder = Finder::new("leasehold-cluster", asked, search);
        Ok(Self {
            shared: Arc::new(Shared {
                routes,
                finder,
                next_listener: AtomicU32::new(0),
            }),
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
        let masters = self.shared.map(&mut deadline)?.masters();
        let routes = masters.iter().map(|master| master.route.clone());
        Ok(ping_all(routes.collect()))
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

    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        self.shared.listen(channels, hear)
    }
}
