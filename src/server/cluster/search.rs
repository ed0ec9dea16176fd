//! The thread that keeps the slot map.
//!
//! | a check | the thread |
//! | --- | --- |
//! | without a map: the first discovery | asks all nodes at once that the user has named, and waits for their tables, but only for [`PATIENCE`] after the first. It makes the map of these tables, by the rules of the map ([`super::map`]). If two tables share no node, the nodes are of several clusters, and there is no map |
//! | with a map | asks a node for its table, another one in each check. If it fails, or has not answered for [`PATIENCE`], asks the next one too. Updates the map by the first table that comes |
//! | with a map, and the table is foreign | refuses it, with a warning once for each node, and asks the next node. So a cluster that was built anew needs a new manager |
//!
//! A check begins
//!
//! * when a request has failed or was redirected, but at least [`BETWEEN`] after the last one;
//! * every [`RETRY`], as long as a master is suspected, or no map was found. So after a request has failed, a failover costs
//!   no more than the cluster's own time and this one;
//! * every [`CHECK_EVERY`] otherwise.
//!
//! Each node is asked on a short-lived thread, because it may hang. The nodes are all that the last table has named, and
//! those that the user has named.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use redis::ConnectionAddr;

use crate::error::{Chain, Failure, FailureKind, Outcome};
use crate::logging;
use crate::net::deadline::Deadline;
use crate::net::login::log_in;
use crate::net::refusal::unavailable;
use crate::net::route::Route;
use crate::server::cluster::map::{SlotMap, SlotTable};
use crate::server::cluster::master::{Address, Master, Routes};
use crate::server::finder::{Finder, Search};
use crate::sys::hash::HashSet;
use crate::sys::{Arc, Ordering, Time};
use crate::wire::Command;

/// How often the map is read without a reason.
const CHECK_EVERY: Duration = Duration::from_secs(3);
/// The pause between checks while a master is suspected.
const RETRY: Duration = Duration::from_millis(200);
/// The shortest pause between two checks.
const BETWEEN: Duration = Duration::from_millis(50);
/// How long the thread waits for one node before it asks the next one too.
const PATIENCE: Duration = Duration::from_millis(200);
/// The longest time for one node.
const STEP: Duration = Duration::from_secs(1);

/// How many nodes an error names.
const SHOWN: usize = 5;

/// A table, and the address of the node that has answered it.
type TableOf = (Arc<str>, SlotTable);

pub(super) struct Tables {
    routes: Arc<Routes>,
    /// How many nodes were asked, so that each check begins with another one.
    asked: usize,
    /// The nodes whose tables were refused.
    strangers: HashSet<Arc<str>>,
}

impl Search<Arc<SlotMap>> for Tables {
    fn check(&mut self, finder: &Arc<Finder<Arc<SlotMap>>>) -> Result<(), Failure> {
        let tables = self.tables(finder)?;
        self.publish(finder, &tables)
    }

    fn pause(&self, finder: &Finder<Arc<SlotMap>>) -> Duration {
        let map = finder.found();
        let mut masters = map.iter().flat_map(|map| map.masters());
        if finder.is_check_due() {
            BETWEEN
        } else if finder.has_failed()
            || masters.any(|master| master.is_suspected.load(Ordering::Relaxed))
        {
            RETRY
        } else {
            CHECK_EVERY
        }
    }
}

impl Tables {
    pub(super) fn new(routes: Arc<Routes>) -> Self {
        Self {
            routes,
            asked: 0,
            strangers: HashSet::default(),
        }
    }

    /// Asks for the tables that make the next map. Returns none only if the thread must end.
    fn tables(&mut self, finder: &Arc<Finder<Arc<SlotMap>>>) -> Result<Vec<TableOf>, Failure> {
        let map = finder.found();
        let mut unasked = self.nodes(map.as_deref());
        let mut asked = Vec::new();
        let (mut failures, mut tables) = (Vec::new(), Vec::new());
        // When the next node is asked. After the last one: when the check ends.
        let mut next_at = Time::now();
        while !(unasked.is_empty() && asked.is_empty()) {
            if finder.is_over() {
                return Ok(Vec::new());
            }
            let now = Time::now();
            let is_late = now >= next_at;
            if is_late || asked.is_empty() || map.is_none() {
                match unasked.pop_front() {
                    Some((address, route)) => {
                        let node = Arc::clone(&route.server.address);
                        asked.push((node, finder.aside(move || table_of(&address, &route))));
                        self.asked += 1;
                        // The last one has its whole time.
                        let is_last = unasked.is_empty();
                        next_at = now + if is_last { 2 * STEP } else { PATIENCE };
                        if map.is_none() {
                            continue;
                        }
                    }
                    None if is_late => break,
                    None => {}
                }
            }
            finder.sleep(next_at);
            for (node, answer) in mem::take(&mut asked) {
                match (answer.try_recv(), &map) {
                    (Err(_), _) => asked.push((node, answer)),
                    (Ok(Err(failure)), _) => {
                        failures.push(failure);
                        finder.learnt(in_words(&failures));
                    }
                    (Ok(Ok(table)), Some(map)) if map.is_foreign(&table) => {
                        failures.push(self.refuse(node));
                    }
                    (Ok(Ok(table)), Some(_)) => return Ok(vec![(node, table)]),
                    (Ok(Ok(table)), None) => {
                        tables.push((node, table));
                        next_at = next_at.min(Time::now() + PATIENCE);
                    }
                }
            }
        }
        if tables.is_empty() {
            return Err(of_all(&failures));
        }
        Ok(tables)
    }

    /// Returns the failure of a node whose table is foreign. Logs it once.
    fn refuse(&mut self, node: Arc<str>) -> Failure {
        let words = format!("{node} is a node of another cluster");
        if self.strangers.insert(node) {
            logging::warning!(
                "{words}: its slots are not used. A cluster that was built anew needs a new manager"
            );
        }
        unavailable(words)
    }

    /// Takes the tables into the map.
    ///
    /// # Errors
    ///
    /// Returns a failure if the nodes are of several clusters.
    fn publish(&self, finder: &Finder<Arc<SlotMap>>, tables: &[TableOf]) -> Result<(), Failure> {
        let Some(((first, _), _)) = tables.split_first() else {
            return Ok(());
        };
        let mut changed = None;
        finder.publish(|last| {
            // A table may name a master that only a redirection has named before.
            let ids = |last: &&Arc<SlotMap>| -> Vec<String> {
                last.masters().iter().map(|it| it.id().to_owned()).collect()
            };
            let before = last.as_ref().map(ids).unwrap_or_default();
            let mut next = last.cloned();
            for (node, table) in tables {
                if next.as_ref().is_some_and(|next| next.is_foreign(table)) {
                    let words = format!("{first} and {node} are nodes of different clusters");
                    let (kind, outcome) = (FailureKind::Config("urls"), Outcome::NotExecuted);
                    return Err(Failure::plain(kind, outcome, words));
                }
                let make = &mut |address: &Address| self.routes.new_master(address);
                next = Some(Arc::new(SlotMap::after(next.as_deref(), table, make)));
            }
            // There is at least one table.
            let map = next.ok_or_else(Failure::another_question)?;
            // A replica was promoted. Or a node was added: then the leases are only renewed early. A redirection may have sent
            // requests there already.
            let is_new = |master: &Arc<Master>| before.iter().all(|id| id != master.id());
            let is_another = map.masters().iter().any(is_new);
            let all = last.iter().flat_map(|last| last.all());
            for master in all.filter(|master| !map.has(master)) {
                master.is_retired.store(true, Ordering::Release);
                // A new master may lack what the last one had.
                self.routes.first.data_loss_signs.note();
            }
            let masters = map.masters().len();
            changed = (is_another || masters != before.len()).then_some(masters);
            Ok((map, is_another))
        })?;
        // No record is written under the mutex of the finder.
        if let Some(masters) = changed {
            logging::info!("the slots of the cluster are with {masters} masters");
        }
        Ok(())
    }

    /// Returns the nodes that can be asked, another one first in each check.
    fn nodes(&self, map: Option<&SlotMap>) -> VecDeque<(Address, Route)> {
        let routes = &self.routes;
        let known = map.iter().flat_map(|map| map.nodes());
        let known = known.map(|address| (address.clone(), routes.to(address)));
        let seeds = routes.nodes.seeds.iter().filter_map(|seed| {
            let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) =
                seed.info.addr()
            else {
                return None;
            };
            let address = Address {
                host: host.clone(),
                port: *port,
            };
            Some((address, routes.first.to(seed.clone())))
        });
        let mut all = VecDeque::<(Address, Route)>::new();
        for (address, route) in known.chain(seeds) {
            if !all.iter().any(|(other, _)| *other == address) {
                all.push_back((address, route));
            }
        }
        let first = self.asked % all.len().max(1);
        all.rotate_left(first);
        all
    }
}

/// Asks a node for its table.
fn table_of(address: &Address, route: &Route) -> Result<SlotTable, Failure> {
    let limit = route.io_timeout.min(STEP);
    let mut deadline = Deadline::after(STEP.max(route.connect_timeout));
    let named = |failure: Failure| failure.at(&route.server.address);
    let mut socket = log_in(route, &mut deadline).map_err(named)?;
    let commands = ["SLOTS", "NODES"].map(|what| Command::new("CLUSTER").arg(what).to_owned());
    let asked = socket.requests(&commands, Deadline::after(limit));
    let answers = asked.map_err(|fault| route.broken(fault))?;
    let answers = answers.into_iter().map(|answer| route.accepted(answer));
    let answers: Vec<_> = answers.collect::<Result<_, _>>().map_err(named)?;
    let table = match &answers[..] {
        [slots, nodes] => SlotTable::read(address, slots, nodes),
        _ => None,
    };
    let words = || format!("{} knows no master of any slot", route.server.address);
    table.ok_or_else(|| unavailable(words()))
}

/// Returns the failure of a check in which no node had a table. If a node has given a reason that stays, it is that one.
fn of_all(failures: &[Failure]) -> Failure {
    if let Some(failure) = failures.iter().find(|failure| !failure.is_transient()) {
        return failure.clone();
    }
    unavailable(match failures {
        [] => "no node of the cluster has answered in time".to_owned(),
        failures => in_words(failures),
    })
}

/// Returns why these nodes have named no slots. A table may name any number of nodes.
fn in_words(failures: &[Failure]) -> String {
    let shown = failures.iter().take(SHOWN);
    let causes = shown.map(|failure| Chain(&*failure.cause).to_string());
    let causes = causes.collect::<Vec<_>>().join("; ");
    match failures.len() {
        ..=SHOWN => format!("no node of the cluster has named its slots: {causes}"),
        all => format!("none of {all} nodes of the cluster has named its slots: {causes}; …"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClusterNodes, Settings};
    use crate::error::Redirect;
    use crate::server::cluster::map::tests::{table, with_replica};
    use crate::server::cluster::tests::shared;

    /// The ports of the owners of slots 0 and 100 after a first discovery in which these nodes have answered.
    fn discovered(tables: Vec<SlotTable>) -> Result<Vec<u16>, Failure> {
        let settings = Settings::default();
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let nodes = ClusterNodes::new(&urls, &settings).expect("a URL");
        let routes = Arc::new(Routes::new(nodes, &settings).expect("threads"));
        let search = Tables::new(Arc::clone(&routes));
        let finder = Finder::new("test", "node".to_owned(), Box::new(Tables::new(routes)));
        let tables: Vec<_> = tables
            .into_iter()
            .map(|table| ("node".into(), table))
            .collect();
        search.publish(&finder, &tables)?;
        let map = finder.found().expect("it is published");
        let owners = [0, 100].iter().filter_map(|slot| map.owner(*slot));
        Ok(owners.map(|owner| owner.address.port).collect())
    }

    #[test]
    fn of_the_tables_of_the_first_discovery_the_latest_counts() {
        // A master was cut off before `c` has taken its slots.
        let old = || {
            table(
                &[("a", 1, 5, (0, 99)), ("b", 2, 6, (100, 199))],
                &[("c", 0)],
            )
        };
        let new = || {
            table(
                &[("c", 3, 7, (0, 99)), ("b", 2, 6, (100, 199))],
                &[("a", 5)],
            )
        };
        for tables in [vec![old(), new()], vec![new(), old()], vec![new(), new()]] {
            assert_eq!(discovered(tables).expect("one cluster"), [3, 2]);
        }
    }

    #[test]
    fn tables_of_the_first_discovery_that_share_no_node_are_of_several_clusters() {
        let ours = || table(&[("a", 1, 5, (0, 99)), ("b", 2, 6, (100, 199))], &[]);
        let theirs = || table(&[("x", 8, 9, (0, 199))], &[]);
        for tables in [vec![ours(), theirs()], vec![theirs(), ours(), ours()]] {
            let failure = discovered(tables).expect_err("two clusters");
            assert_eq!(failure.kind, FailureKind::Config("urls"));
        }
    }

    /// A slot was to move to the node, and the operator has made it a replica instead: if `a_table_shows` that before it is
    /// promoted, and if none does.
    fn a_node_that_was_named_by_ask_is_promoted(a_table_shows: bool) {
        let shared = shared(&Settings::default());
        let search = Tables::new(Arc::clone(&shared.routes));
        let publish = |table| {
            let tables = [("node".into(), table)];
            search
                .publish(&shared.finder, &tables)
                .expect("one cluster");
        };
        let owner = || {
            let map = shared.finder.found().expect("a map");
            Arc::clone(map.owner(5).expect("an owner"))
        };
        let redirect = |kind| {
            let (slot, host, port) = (5, "h".into(), 3);
            shared.redirected(&owner(), kind, &Redirect { slot, host, port })
        };
        let old = || table(&[("a", 1, 5, (0, 99))], &[("c", 0)]);
        publish(old());
        let named = redirect(FailureKind::Ask).expect("the node");
        if a_table_shows {
            publish(with_replica(old(), 3));
            assert!(named.check_in_use().is_err());
        }
        redirect(FailureKind::Moved);
        let port = if a_table_shows { 1 } else { 3 };
        assert_eq!(
            owner().address.port,
            port,
            "a table must show a replica first"
        );
        let zero = Time::from_nanos(0);
        assert_eq!(shared.finder.last_failover(), zero);
        publish(table(&[("c", 3, 7, (0, 99))], &[("a", 5)]));
        assert_eq!(owner().address.port, 3);
        assert!(shared.finder.last_failover() > zero);
    }

    #[test]
    fn a_node_that_was_once_named_by_ask_is_promoted_by_a_failover() {
        for a_table_shows in [true, false] {
            a_node_that_was_named_by_ask_is_promoted(a_table_shows);
        }
    }
}
