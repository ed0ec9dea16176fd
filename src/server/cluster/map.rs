//! The slot map: which master has which slot.
//!
//! Each node of a cluster has a table of the slots, and a table may be old. The cluster itself compares the *config epochs*
//! of two masters that claim one slot: a failover and the end of a migration give the new owner a larger epoch than all
//! others. The map follows the same rule. So a node that was cut off or stopped cannot turn it back:
//!
//! | the table gives a slot to | the map |
//! | --- | --- |
//! | the same master as before | keeps it |
//! | another, whose epoch is at least that of the owner | takes the new one |
//! | another, whose epoch is smaller | keeps the owner |
//! | another, and it does not know the owner, which has left the cluster | takes the new one |
//! | nobody | keeps the owner, which rejects requests for that slot itself |
//!
//! A table is *foreign* to the map if it knows no node that the map knows, by the node's id. The node is of another cluster
//! then, which would grant locks that the masters have granted already. So a foreign table never changes the map. An example:
//! the map knows the nodes `a`, `b` and `c`. The table of a node that knows only `x` and `y` is foreign. The table of `c` is
//! not, although `c` has taken the slots of `a`, and the operator has removed `a`.
//!
//! A redirection is not a table: the owner itself says that it has the slot no more. So it moves that slot at once, and the
//! next table confirms or corrects it. A node to which a slot is moving may have none yet, so no table names it. The map keeps
//! the last [`MOST_IMPORTING`] of them, so that each has one pool, and one link for renewals. Once a table names it, it is a
//! master, or a replica, which may be promoted later: that is a failover, and only a table brings it.

use redis::Value;

use crate::name::SLOTS;
use crate::net::route::Route;
use crate::server::cluster::master::{Address, Master};
use crate::sys::hash::HashMap;
use crate::sys::{Arc, Ordering};

/// The host of a node whose address another node does not know.
pub(super) const UNKNOWN_HOST: &str = "?";

/// The slot table of one node: the slots and their masters, as this node reports them.
#[derive(Debug, Default)]
pub(super) struct SlotTable {
    /// The first and the last slot of each range, and the id and the address of its owner.
    ranges: Vec<(u16, u16, String, Address)>,
    /// The masters of slots, and their replicas.
    nodes: Vec<Address>,
    /// The config epoch of each node that it knows, by the node's id.
    epochs: HashMap<String, u64>,
}

/// The masters of all slots. A redirection changes one slot, and each table makes a new map.
#[derive(Clone)]
pub(super) struct SlotMap {
    /// In the order of their first slots in the last table.
    masters: Vec<Arc<Master>>,
    /// Nodes without slots to which a slot was moving, and that no table has named yet.
    importing: Vec<Arc<Master>>,
    /// For each slot the place of its owner in `masters`, or [`NOBODY`].
    owners: Box<[u16]>,
    /// All nodes that can be asked for their table.
    nodes: Vec<Address>,
    /// The config epoch of each node of the last table. That of an owner never falls.
    epochs: HashMap<String, u64>,
}

const NOBODY: u16 = u16::MAX;

/// Slots seldom move to more than a few new masters at a time.
const MOST_IMPORTING: usize = 8;

impl SlotTable {
    /// Reads the answers of the node `asked` to `CLUSTER SLOTS` and `CLUSTER NODES`. Returns `None` if they cannot be
    /// read, or name no slot.
    ///
    /// The first answer has the addresses that the cluster prefers, and the second has the epochs.
    pub(super) fn read(asked: &Address, slots: &Value, nodes: &Value) -> Option<Self> {
        let mut table = Self::default();
        let Value::BulkString(nodes) = nodes else {
            return None;
        };
        for line in String::from_utf8_lossy(nodes).lines() {
            let mut words = line.split(' ');
            let (id, flags) = (words.next()?.to_owned(), words.nth(1)?);
            // The master, a ping and a pong come before it.
            let epoch = words.nth(3)?.parse().ok()?;
            // A replica has no slots, and the epoch of its master there.
            let is_replica = flags.split(',').any(|flag| flag == "slave");
            table.epochs.insert(id, if is_replica { 0 } else { epoch });
        }
        let Value::Array(ranges) = slots else {
            return None;
        };
        for range in ranges {
            let Value::Array(parts) = range else {
                return None;
            };
            let [Value::Int(first), Value::Int(last), nodes @ ..] = parts.as_slice() else {
                return None;
            };
            let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < SLOTS);
            let (first, last) = (slot(first)?, slot(last)?);
            if first > last {
                return None;
            }
            let mut owner = None;
            for (place, node) in nodes.iter().enumerate() {
                // A node whose address nobody knows cannot be asked.
                let Some((address, id)) = node_of(asked, node) else {
                    continue;
                };
                if place == 0 {
                    owner = Some((id, address.clone()));
                }
                if !table.nodes.contains(&address) {
                    table.nodes.push(address);
                }
            }
            if let Some((id, address)) = owner {
                table.ranges.push((first, last, id, address));
            }
        }
        (!table.ranges.is_empty()).then_some(table)
    }
}

/// Reads the address and the id of one node. An empty host, or none, is that of the node that was asked. Of a node
/// at [`UNKNOWN_HOST`] it returns nothing.
fn node_of(asked: &Address, node: &Value) -> Option<(Address, String)> {
    let Value::Array(parts) = node else {
        return None;
    };
    let [host, Value::Int(port), Value::BulkString(id), ..] = parts.as_slice() else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
        Value::BulkString(_) | Value::Nil => asked.host.clone(),
        _ => return None,
    };
    let port = u16::try_from(*port).ok().filter(|port| *port > 0)?;
    let id = String::from_utf8(id.clone()).ok()?;
    (host != UNKNOWN_HOST).then_some((Address { host, port }, id))
}

impl SlotMap {
    /// Returns the map after a table: the table at the top. `make` makes a master at an address.
    pub(super) fn after(
        last: Option<&Self>,
        table: &SlotTable,
        make: &mut dyn FnMut(&Address) -> Arc<Master>,
    ) -> Self {
        let is_unnamed =
            |it: &&Arc<Master>| it.id().is_empty() && !table.nodes.contains(&it.address);
        let before = last.iter().flat_map(|last| last.all());
        let mut next = Self {
            masters: Vec::new(),
            importing: before.filter(is_unnamed).cloned().collect(),
            owners: vec![NOBODY; usize::from(SLOTS)].into(),
            nodes: table.nodes.clone(),
            epochs: table.epochs.clone(),
        };
        let mut claimants = Vec::<Arc<Master>>::new();
        let mut claimed = vec![None; usize::from(SLOTS)];
        for (from, to, id, address) in &table.ranges {
            let is_this =
                |it: &&Arc<Master>| it.address == *address && (it.id().is_empty() || it.id() == id);
            let known = last.and_then(|last| last.all().find(is_this));
            let claimant = claimants.iter().find(is_this).or(known).cloned();
            let claimant = claimant.unwrap_or_else(|| make(address));
            claimant.becomes(id);
            claimed[usize::from(*from)..=usize::from(*to)].fill(Some(claimants.len()));
            claimants.push(claimant);
        }
        for (slot, claimant) in (0..SLOTS).zip(claimed) {
            let owner = last.and_then(|last| last.owner(slot));
            let claimant = claimant.map(|number: usize| &claimants[number]);
            let winner = match (owner, claimant) {
                (Some(owner), Some(claimant)) if owner.id() != claimant.id() => {
                    let seen = table.epochs.get(owner.id());
                    let newest = seen.max(last.and_then(|last| last.epochs.get(owner.id())));
                    let keeps = seen.is_some() && table.epochs.get(claimant.id()) < newest;
                    if keeps { owner } else { claimant }
                }
                (Some(owner), None) => owner,
                (_, Some(claimant)) => claimant,
                (None, None) => continue,
            };
            next.give(slot, winner);
        }
        for master in &next.masters {
            let before = last.and_then(|last| last.epochs.get(master.id()));
            let epoch = next.epochs.entry(master.id().to_owned()).or_default();
            *epoch = before.map_or(*epoch, |before| *before.max(epoch));
        }
        next
    }

    /// Returns whether a table is foreign to this map: it knows no node that the map knows.
    pub(super) fn is_foreign(&self, table: &SlotTable) -> bool {
        let mut ids = self.epochs.keys();
        !ids.any(|id| table.epochs.contains_key(id))
    }

    /// Gives a slot to a master.
    pub(super) fn give(&mut self, slot: u16, to: &Arc<Master>) {
        let place = self.masters.iter().position(|it| Arc::ptr_eq(it, to));
        let place = place.unwrap_or_else(|| {
            self.masters.push(Arc::clone(to));
            self.importing.retain(|it| !Arc::ptr_eq(it, to));
            self.masters.len() - 1
        });
        self.owners[usize::from(slot)] = u16::try_from(place).unwrap_or(NOBODY);
    }

    /// Adds a node to which a slot is moving. If there are too many, the oldest is retired and returned.
    pub(super) fn add_importing(&mut self, master: &Arc<Master>) -> Option<Arc<Master>> {
        let has_too_many = self.importing.len() >= MOST_IMPORTING;
        let oldest = has_too_many.then(|| self.importing.remove(0));
        if let Some(oldest) = &oldest {
            oldest.is_retired.store(true, Ordering::Release);
        }
        self.importing.push(Arc::clone(master));
        oldest
    }

    /// Returns the owner of a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Master>> {
        let place = self.owners[usize::from(slot)];
        self.masters.get(usize::from(place))
    }

    pub(super) fn master_at(&self, address: &Address) -> Option<&Arc<Master>> {
        self.all().find(|it| it.address == *address)
    }

    /// Returns all masters, also those without slots.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Master>> {
        self.masters.iter().chain(&self.importing)
    }

    pub(super) fn masters(&self) -> &[Arc<Master>] {
        &self.masters
    }

    /// Returns the ways to all masters.
    pub(super) fn routes(&self) -> Vec<Route> {
        self.masters.iter().map(|it| it.route.clone()).collect()
    }

    /// Returns whether a master is in the map.
    pub(super) fn has(&self, master: &Arc<Master>) -> bool {
        self.all().any(|it| Arc::ptr_eq(it, master))
    }

    pub(super) fn nodes(&self) -> &[Address] {
        &self.nodes
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::{Server, Settings};
    use crate::net::route::route;

    fn address(port: u16) -> Address {
        Address {
            host: "h".into(),
            port,
        }
    }

    fn make(address: &Address) -> Arc<Master> {
        let server = Server::parse("redis://h/").expect("a URL");
        Master::new(address.clone(), route(server, &Settings::default()))
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn range(first: i64, last: i64, nodes: &[(&str, i64, &str)]) -> Value {
        let node = |(host, port, id): &(&str, i64, &str)| {
            Value::Array(vec![bulk(host), Value::Int(*port), bulk(id)])
        };
        let mut parts = vec![Value::Int(first), Value::Int(last)];
        parts.extend(nodes.iter().map(node));
        Value::Array(parts)
    }

    /// Returns a table in which each of these ids has a range, and a port and an epoch.
    pub(in super::super) fn table(
        masters: &[(&str, u16, u64, (u16, u16))],
        others: &[(&str, u64)],
    ) -> SlotTable {
        let slots = masters.iter().map(|(id, port, _, (first, last))| {
            range(
                (*first).into(),
                (*last).into(),
                &[("h", (*port).into(), id)],
            )
        });
        let epochs = masters.iter().map(|(id, _, epoch, _)| (*id, *epoch));
        let nodes = epochs.chain(others.iter().copied()).map(|(id, epoch)| {
            format!("{id} 1.2.3.4:1@2,name master - 0 1700000000 {epoch} connected 0-5\n")
        });
        let nodes = bulk(&nodes.collect::<String>());
        SlotTable::read(&address(1), &Value::Array(slots.collect()), &nodes).expect("a table")
    }

    /// Returns the same table, in which the node at this port is a replica.
    pub(in super::super) fn with_replica(mut table: SlotTable, port: u16) -> SlotTable {
        table.nodes.push(address(port));
        table
    }

    fn port_of(map: &SlotMap, slot: u16) -> Option<u16> {
        map.owner(slot).map(|master| master.address.port)
    }

    fn after(last: Option<&SlotMap>, table: &SlotTable) -> SlotMap {
        SlotMap::after(last, table, &mut make)
    }

    #[test]
    fn a_slot_goes_to_the_owner_with_the_larger_epoch_and_not_back() {
        let old = table(
            &[("a", 1, 5, (0, 99)), ("b", 2, 6, (100, 199))],
            &[("c", 5)],
        );
        let map = after(None, &old);
        assert_eq!(
            [0, 100, 200].map(|slot| port_of(&map, slot)),
            [Some(1), Some(2), None]
        );
        // A failover from `a` to `c`.
        let new = table(
            &[("c", 3, 7, (0, 99)), ("b", 2, 6, (100, 199))],
            &[("a", 5)],
        );
        let failed_over = after(Some(&map), &new);
        assert_eq!(port_of(&failed_over, 0), Some(3));
        assert!(Arc::ptr_eq(
            map.owner(100).expect("b"),
            failed_over.owner(100).expect("b")
        ));
        // A node that does not know it yet.
        let again = after(Some(&failed_over), &old);
        assert_eq!(port_of(&again, 0), Some(3));
        assert_eq!(port_of(&again, 100), Some(2));
        // A migration of one slot back, to a node that has another address by now.
        let moved = table(&[("a", 9, 8, (7, 7)), ("c", 3, 7, (8, 99))], &[("b", 6)]);
        let moved = after(Some(&failed_over), &moved);
        assert_eq!(
            [6, 7, 8].map(|slot| port_of(&moved, slot)),
            [Some(3), Some(9), Some(3)]
        );
        // A slot that a table gives to nobody stays where it is.
        assert_eq!(port_of(&moved, 100), Some(2));
    }

    #[test]
    fn a_table_is_foreign_if_it_knows_no_node_of_the_map() {
        let old = table(
            &[("a", 1, 5, (0, 99)), ("b", 2, 6, (100, 199))],
            &[("c", 0)],
        );
        let map = after(None, &old);
        // A cluster that was built anew at the same addresses.
        let new = table(&[("x", 1, 50, (0, 99)), ("y", 2, 51, (100, 199))], &[]);
        assert!(!map.is_foreign(&old) && map.is_foreign(&new));
        // All masters have failed over to a replica that the map knows, and were removed.
        let replaced = table(&[("c", 3, 7, (0, 199))], &[]);
        assert!(!map.is_foreign(&replaced));
        let next = after(Some(&map), &replaced);
        assert_eq!(
            [0, 100].map(|slot| port_of(&next, slot)),
            [Some(3), Some(3)]
        );
        // A master whose slots the new table gives to nobody is still known.
        let less = after(Some(&map), &table(&[("c", 3, 7, (0, 99))], &[]));
        assert!(!less.is_foreign(&table(&[("b", 2, 6, (100, 199))], &[])));
    }

    #[test]
    fn a_redirection_moves_one_slot_until_a_table_has_it() {
        let old = table(&[("a", 1, 5, (0, 98)), ("b", 2, 6, (99, 99))], &[]);
        let map = after(None, &old);
        let to = Arc::clone(map.owner(99).expect("b"));
        let mut moved = map.clone();
        moved.give(7, &to);
        assert_eq!([6, 7].map(|slot| port_of(&moved, slot)), [Some(1), Some(2)]);
        // A table that does not have it yet.
        assert_eq!(port_of(&after(Some(&moved), &old), 7), Some(2));
        let new = table(&[("a", 1, 5, (0, 6)), ("b", 2, 6, (7, 99))], &[]);
        let next = after(Some(&moved), &new);
        assert!(
            Arc::ptr_eq(next.owner(7).expect("b"), &to),
            "its connections stay open"
        );
        // A master to which a slot is moving has none in any table yet, and then it is the node of its first table.
        let importing = make(&address(3));
        let mut named = next.clone();
        named.add_importing(&importing);
        let kept = after(Some(&named), &new);
        assert!(kept.has(&importing) && kept.masters().len() == 2);
        let mut moved = kept.clone();
        moved.give(8, &importing);
        // A table that does not know it yet.
        let stale = after(Some(&moved), &new);
        assert!(stale.has(&importing) && port_of(&stale, 8) == Some(2));
        let table_of_all = [
            ("a", 1, 5, (0, 6)),
            ("b", 2, 6, (7, 7)),
            ("c", 3, 7, (8, 99)),
        ];
        for last in [kept, moved, stale] {
            let next = after(Some(&last), &table(&table_of_all, &[]));
            assert!(Arc::ptr_eq(next.owner(8).expect("c"), &importing));
            assert!(importing.id() == "c" && next.importing.is_empty());
        }
        // A master that has lost its slots is no master any more.
        let taken = table(&[("b", 2, 9, (0, 99))], &[("a", 5)]);
        let taken = after(Some(&next), &taken);
        assert!(!taken.has(next.owner(0).expect("a")) && taken.masters().len() == 1);
    }

    #[test]
    fn a_node_without_a_host_is_the_one_that_was_asked() {
        let nodes =
            bulk("a 1.2.3.4:1@2 master - 0 0 5 connected\nb 1.2.3.4:2@3 slave a 0 0 5 connected\n");
        let read = |range| SlotTable::read(&address(1), &Value::Array(vec![range]), &nodes);
        let hosts = |table: &SlotTable| -> Vec<String> {
            table.nodes.iter().map(|node| node.host.clone()).collect()
        };
        let both = read(range(0, 5, &[("", 1, "a"), ("::1", 2, "b")])).expect("a table");
        assert_eq!(hosts(&both), ["h", "::1"]);
        let unknown = Value::Array(vec![Value::Nil, Value::Int(1), bulk("a")]);
        let nil = Value::Array(vec![Value::Int(0), Value::Int(5), unknown]);
        assert_eq!(hosts(&read(nil).expect("a table")), ["h"]);
        // Nobody knows the host of the master.
        assert!(read(range(0, 5, &[("?", 1, "a"), ("x", 2, "b")])).is_none());
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_no_table() {
        let nodes = bulk("a 1.2.3.4:1@2 master - 0 0 5 connected\n");
        let good = range(0, 5, &[("h", 1, "a")]);
        let read =
            |slots: Value, nodes: &Value| SlotTable::read(&address(1), &slots, nodes).is_some();
        assert!(read(Value::Array(vec![good.clone()]), &nodes));
        for slots in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 16_384, &[("h", 1, "a")])]),
            Value::Array(vec![range(-1, 5, &[("h", 1, "a")])]),
            Value::Array(vec![range(0, 5, &[("h", 0, "a")])]),
            Value::Array(vec![range(5, 0, &[("h", 1, "a")])]),
            Value::Array(vec![range(0, 5, &[])]),
        ] {
            assert!(!read(slots.clone(), &nodes), "{slots:?}");
        }
        for nodes in ["a", "a 1 master - 0 0 x connected"] {
            assert!(
                !read(Value::Array(vec![good.clone()]), &bulk(nodes)),
                "{nodes}"
            );
        }
    }
}
