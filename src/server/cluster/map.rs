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
//! next table confirms or corrects it.

use std::mem;
use std::time::Duration;

use redis::Value;

use crate::name::SLOTS;
use crate::server::cluster::master::{Address, Master};
use crate::sys::hash::HashMap;
use crate::sys::{Arc, Ordering, Time};

/// The host of a node whose address another node does not know.
pub(super) const UNKNOWN_HOST: &str = "?";

/// The slot table of one node: the slots and their masters, as this node reports them.
#[derive(Debug, Default)]
pub(super) struct SlotTable {
    /// The first and the last slot of each range, and the place of its owner in `masters`.
    ranges: Vec<(u16, u16, usize)>,
    masters: Vec<Claimant>,
    /// The masters of slots, and their replicas.
    nodes: Vec<Address>,
    /// The config epoch of each node that it knows, by the node's id.
    epochs: HashMap<String, u64>,
}

/// A master that has slots, in the table of a node.
#[derive(Debug)]
struct Claimant {
    id: String,
    address: Address,
}

/// The masters of all slots. It never changes: a new map replaces it.
#[derive(Clone)]
pub(super) struct SlotMap {
    /// The masters of slots, and those to which a redirection has led.
    masters: Vec<KnownMaster>,
    /// For each slot the place of its owner in `masters`, or [`NOBODY`].
    owners: Box<[u16]>,
    /// All nodes that can be asked for their table.
    nodes: Vec<Address>,
    /// The ids of all nodes that the last table knows.
    ids: Vec<String>,
}

#[derive(Clone)]
struct KnownMaster {
    /// Empty if only a redirection has named it.
    id: String,
    epoch: u64,
    master: Arc<Master>,
    /// When a redirection has named it first.
    named_at: Option<Time>,
}

/// How long a master without slots is kept after a redirection has named it, and how many of them. Slots seldom move to
/// more than a few new masters at a time, and each has a pool and a connection for renewals.
const KEPT_FOR: Duration = Duration::from_secs(60);
const MOST_WITHOUT_SLOTS: usize = 8;

const NOBODY: u16 = u16::MAX;

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
                    owner = Some(table.claimant(id, &address));
                }
                if !table.nodes.contains(&address) {
                    table.nodes.push(address);
                }
            }
            if let Some(owner) = owner {
                table.ranges.push((first, last, owner));
            }
        }
        (!table.ranges.is_empty()).then_some(table)
    }

    /// Returns the place of a master.
    fn claimant(&mut self, id: String, address: &Address) -> usize {
        let known = self.masters.iter().position(|known| known.id == id);
        known.unwrap_or_else(|| {
            self.masters.push(Claimant {
                id,
                address: address.clone(),
            });
            self.masters.len() - 1
        })
    }

    fn epoch(&self, id: &str) -> Option<u64> {
        self.epochs.get(id).copied()
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
        let mut next = Self {
            masters: Vec::new(),
            owners: vec![NOBODY; usize::from(SLOTS)].into(),
            nodes: table.nodes.clone(),
            ids: table.epochs.keys().cloned().collect(),
        };
        let mut claimed = vec![None; usize::from(SLOTS)];
        for (first, last, owner) in &table.ranges {
            claimed[usize::from(*first)..=usize::from(*last)].fill(Some(*owner));
        }
        // A slot may be moving to a master that has none yet.
        let is_kept =
            |known: &&KnownMaster| known.named_at.is_some_and(|at| at.elapsed() < KEPT_FOR);
        let unslotted = last.iter().flat_map(|last| last.without_slots());
        next.masters.extend(unslotted.filter(is_kept).cloned());
        let mut places = vec![None; table.masters.len()];
        for (slot, number) in claimed.into_iter().enumerate() {
            let owner = last.and_then(|last| last.known(slot));
            let claimant = number.map(|number: usize| &table.masters[number]);
            let keeps = match (owner, claimant) {
                (Some(owner), Some(claimant)) if owner.id != claimant.id => {
                    let is_known = table.epoch(&owner.id);
                    let claimed = table.epoch(&claimant.id).unwrap_or(0);
                    is_known.is_some_and(|seen| claimed < seen.max(owner.epoch))
                }
                (Some(_), None) => true,
                _ => false,
            };
            let place = match (owner, claimant) {
                (Some(owner), _) if keeps => {
                    let epoch = table.epoch(&owner.id).unwrap_or(0).max(owner.epoch);
                    next.add(&owner.id, epoch, Arc::clone(&owner.master))
                }
                (_, Some(claimant)) => {
                    let place = &mut places[number.unwrap_or_default()];
                    *place.get_or_insert_with(|| {
                        let address = &claimant.address;
                        let known = last.and_then(|last| last.master_at(address));
                        let seen = table.epoch(&claimant.id).unwrap_or(0);
                        let before = last.and_then(|last| last.epoch(&claimant.id));
                        let master = known.unwrap_or_else(|| make(address));
                        next.add(&claimant.id, seen.max(before.unwrap_or(0)), master)
                    })
                }
                (_, None) => continue,
            };
            next.owners[slot] = u16::try_from(place).unwrap_or(NOBODY);
        }
        next
    }

    /// Returns whether a table is foreign to this map: it knows no node that the map knows.
    pub(super) fn is_foreign(&self, table: &SlotTable) -> bool {
        let masters = self.masters.iter().map(|known| &known.id);
        let mut ids = masters.chain(&self.ids);
        !ids.any(|id| table.epochs.contains_key(id))
    }

    /// Returns the map after a redirection of this slot.
    pub(super) fn after_move(&self, slot: u16, to: &Arc<Master>) -> Self {
        let mut next = self.with(to);
        let place = next.place(to).unwrap_or_default();
        next.owners[usize::from(slot)] = u16::try_from(place).unwrap_or(NOBODY);
        next
    }

    /// Returns the map with a master to which a redirection has led. If there are too many, the master that was named first
    /// is retired.
    pub(super) fn with(&self, master: &Arc<Master>) -> Self {
        let mut next = self.clone();
        if next.place(master).is_some() {
            return next;
        }
        let named = KnownMaster {
            id: String::new(),
            epoch: 0,
            master: Arc::clone(master),
            named_at: Some(Time::now()),
        };
        let has_slots = next.has_slots();
        let without = || (0..has_slots.len()).filter(|place| !has_slots[*place]);
        let first = without().min_by_key(|place| next.masters[*place].named_at);
        match first.filter(|_| without().count() >= MOST_WITHOUT_SLOTS) {
            // No slot has this place.
            Some(place) => {
                let retired = mem::replace(&mut next.masters[place], named);
                retired.master.is_retired.store(true, Ordering::Release);
            }
            None => next.masters.push(named),
        }
        next
    }

    /// Adds a master unless it is there, and returns its place.
    fn add(&mut self, id: &str, epoch: u64, master: Arc<Master>) -> usize {
        if let Some(place) = self.place(&master) {
            let known = &mut self.masters[place];
            (known.id, known.epoch) = (id.to_owned(), epoch);
            return place;
        }
        self.masters.push(KnownMaster {
            id: id.to_owned(),
            epoch,
            master,
            named_at: None,
        });
        self.masters.len() - 1
    }

    fn place(&self, master: &Arc<Master>) -> Option<usize> {
        let mut masters = self.masters.iter();
        masters.position(|known| Arc::ptr_eq(&known.master, master))
    }

    fn known(&self, slot: usize) -> Option<&KnownMaster> {
        self.masters.get(usize::from(self.owners[slot]))
    }

    fn epoch(&self, id: &str) -> Option<u64> {
        let mut masters = self.masters.iter();
        masters.find(|known| known.id == id).map(|it| it.epoch)
    }

    /// Returns whether there is a master that `last` does not have. A replica that was promoted is another master.
    pub(super) fn has_new_master(&self, last: &Self) -> bool {
        let is_new = |known: &KnownMaster| last.masters.iter().all(|before| before.id != known.id);
        self.masters.iter().any(is_new)
    }

    fn without_slots(&self) -> impl Iterator<Item = &KnownMaster> {
        let has_slots = self.has_slots();
        let all = self.masters.iter().zip(has_slots);
        all.filter_map(|(known, has_slots)| (!has_slots).then_some(known))
    }

    /// Returns for each master whether it has slots.
    fn has_slots(&self) -> Vec<bool> {
        let mut has_slots = vec![false; self.masters.len()];
        for owner in &self.owners {
            if let Some(has_slots) = has_slots.get_mut(usize::from(*owner)) {
                *has_slots = true;
            }
        }
        has_slots
    }

    /// Returns the owner of a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Master>> {
        self.known(usize::from(slot)).map(|known| &known.master)
    }

    pub(super) fn master_at(&self, address: &Address) -> Option<Arc<Master>> {
        let mut masters = self.masters.iter();
        let found = masters.find(|known| known.master.address == *address);
        found.map(|known| Arc::clone(&known.master))
    }

    /// Returns the masters of slots, in the order of their first slots.
    pub(super) fn masters(&self) -> Vec<Arc<Master>> {
        let mut places: Vec<u16> = Vec::new();
        for owner in &self.owners {
            if *owner != NOBODY && places.last() != Some(owner) && !places.contains(owner) {
                places.push(*owner);
            }
        }
        let master = |place: u16| Arc::clone(&self.masters[usize::from(place)].master);
        places.into_iter().map(master).collect()
    }

    /// Returns whether a master is in the map.
    pub(super) fn has(&self, master: &Arc<Master>) -> bool {
        self.place(master).is_some()
    }

    /// Returns all masters, also those without slots.
    pub(super) fn all_masters(&self) -> impl Iterator<Item = &Arc<Master>> {
        self.masters.iter().map(|known| &known.master)
    }

    pub(super) fn nodes(&self) -> &[Address] {
        &self.nodes
    }

    /// Returns whether each slot has the same owner in both maps.
    pub(super) fn has_same_owners(&self, other: &Self) -> bool {
        let owner = |map: &Self, slot| map.known(slot).map(|known| Arc::as_ptr(&known.master));
        (0..usize::from(SLOTS)).all(|slot| owner(self, slot) == owner(other, slot))
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
        Master::new(address.clone(), route(server, &Settings::default()), 1)
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
        assert!(again.has_same_owners(&failed_over));
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
        let old = table(&[("a", 1, 5, (0, 99))], &[("b", 6)]);
        let map = after(None, &old);
        let to = make(&address(2));
        let moved = map.after_move(7, &to);
        assert_eq!([6, 7].map(|slot| port_of(&moved, slot)), [Some(1), Some(2)]);
        assert!(moved.has(&to) && moved.masters().len() == 2);
        let new = table(&[("a", 1, 5, (0, 6)), ("b", 2, 6, (7, 99))], &[]);
        let next = after(Some(&moved), &new);
        assert!(
            Arc::ptr_eq(next.owner(7).expect("b"), &to),
            "its connections stay open"
        );
        // A master to which a slot is moving has none in any table yet.
        let importing = make(&address(3));
        let kept = after(Some(&next.with(&importing)), &new);
        assert!(kept.has(&importing) && !kept.masters().contains_master(&importing));
        // A master that has lost its slots is no master any more.
        let taken = table(&[("b", 2, 9, (0, 99))], &[("a", 5)]);
        let taken = after(Some(&next), &taken);
        assert!(!taken.has(next.owner(0).expect("a")));
    }

    trait Contains {
        fn contains_master(&self, master: &Arc<Master>) -> bool;
    }

    impl Contains for Vec<Arc<Master>> {
        fn contains_master(&self, master: &Arc<Master>) -> bool {
            self.iter().any(|other| Arc::ptr_eq(other, master))
        }
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
