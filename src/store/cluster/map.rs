//! The slot map: which master has which slot.
//!
//! Each node of a cluster has a view of the slots, and a view may be old. The cluster itself compares the *config epochs*
//! of two masters that claim one slot: a failover and the end of a migration give the new owner a larger epoch than all
//! others. The map follows the same rule. So a node that was cut off or stopped cannot turn it back:
//!
//! | the view gives a slot to | the map |
//! | --- | --- |
//! | the same master as before | keeps it |
//! | another, whose epoch is at least that of the owner | takes the new one |
//! | another, whose epoch is smaller | keeps the owner |
//! | another, and it does not know the owner at all: the cluster was built anew | takes the new one |
//! | nobody | keeps the owner, which rejects requests for that slot itself |
//!
//! A redirection is not a view: the owner itself says that it has the slot no more. So it always moves that slot.

use std::collections::HashMap;

use redis::Value;

use super::Master;
use crate::name::SLOTS;
use crate::sync::Arc;

/// Where a node listens, in the words of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// The view of one node.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The first and the last slot of each range, and the place of its owner in `masters`.
    ranges: Vec<(u16, u16, usize)>,
    masters: Vec<Claimant>,
    /// The masters of slots, and their replicas.
    nodes: Vec<Address>,
    /// The config epoch of each node that it knows, by the node's id.
    epochs: HashMap<String, u64>,
}

/// A master that has slots, in the view of a node.
#[derive(Debug)]
struct Claimant {
    id: String,
    address: Address,
}

/// The masters of all slots. It never changes: a new map replaces it.
#[derive(Clone)]
pub(super) struct SlotMap {
    /// The masters of slots, and those to which a redirection has led.
    masters: Vec<Known>,
    /// For each slot the place of its owner in `masters`, or [`NOBODY`].
    owners: Box<[u16]>,
    /// All nodes that can be asked for their view.
    nodes: Vec<Address>,
}

#[derive(Clone)]
struct Known {
    /// Empty if only a redirection has named it.
    id: String,
    epoch: u64,
    master: Arc<Master>,
}

const NOBODY: u16 = u16::MAX;

impl View {
    /// Reads the answers of the node `asked` to `CLUSTER SLOTS` and `CLUSTER NODES`. Returns `None` if they cannot be
    /// read, or name no slot.
    ///
    /// The first answer has the addresses that the cluster prefers, and the second has the epochs.
    pub(super) fn read(asked: &Address, slots: &Value, nodes: &Value) -> Option<Self> {
        let mut view = Self::default();
        let Value::BulkString(nodes) = nodes else {
            return None;
        };
        for line in String::from_utf8_lossy(nodes).lines() {
            let mut words = line.split(' ');
            let id = words.next()?.to_owned();
            // The address, the flags, the master, a ping and a pong come before it.
            view.epochs.insert(id, words.nth(5)?.parse().ok()?);
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
            let mut owner = None;
            for (place, node) in nodes.iter().enumerate() {
                // A node whose address nobody knows cannot be asked.
                let Some((address, id)) = node_of(asked, node) else {
                    continue;
                };
                if place == 0 {
                    owner = Some(view.claimant(id, &address));
                }
                if !view.nodes.contains(&address) {
                    view.nodes.push(address);
                }
            }
            if let Some(owner) = owner {
                view.ranges.push((first, last, owner));
            }
        }
        (!view.ranges.is_empty()).then_some(view)
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

/// Reads the address and the id of one node. An empty host, or none, is that of the node that was asked. A host of `?` is
/// not known.
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
    (host != "?").then_some((Address { host, port }, id))
}

impl SlotMap {
    /// Returns the map after a view: the table at the top. `make` makes a master at an address.
    pub(super) fn after(
        last: Option<&Self>,
        view: &View,
        make: &mut dyn FnMut(&Address) -> Arc<Master>,
    ) -> Self {
        let mut next = Self {
            masters: Vec::new(),
            owners: vec![NOBODY; usize::from(SLOTS)].into(),
            nodes: view.nodes.clone(),
        };
        let mut claimed = vec![None; usize::from(SLOTS)];
        for (first, last, owner) in &view.ranges {
            claimed[usize::from(*first)..=usize::from(*last)].fill(Some(*owner));
        }
        // The masters to which only redirections have led stay, because the view has no slot of theirs.
        for known in last.iter().flat_map(|last| last.without_slots()) {
            next.add(&known.id, known.epoch, Arc::clone(&known.master));
        }
        let mut places = vec![None; view.masters.len()];
        for (slot, number) in claimed.into_iter().enumerate() {
            let owner = last.and_then(|last| last.known(slot));
            let claimant = number.map(|number: usize| &view.masters[number]);
            let keeps = match (owner, claimant) {
                (Some(owner), Some(claimant)) if owner.id != claimant.id => {
                    let is_known = view.epoch(&owner.id);
                    let claimed = view.epoch(&claimant.id).unwrap_or(0);
                    is_known.is_some_and(|seen| claimed < seen.max(owner.epoch))
                }
                (Some(_), None) => true,
                _ => false,
            };
            let place = match (owner, claimant) {
                (Some(owner), _) if keeps => {
                    let epoch = view.epoch(&owner.id).unwrap_or(0).max(owner.epoch);
                    next.add(&owner.id, epoch, Arc::clone(&owner.master))
                }
                (_, Some(claimant)) => {
                    let place = &mut places[number.unwrap_or_default()];
                    *place.get_or_insert_with(|| {
                        let address = &claimant.address;
                        let known = last.and_then(|last| last.master_at(address));
                        let seen = view.epoch(&claimant.id).unwrap_or(0);
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

    /// Returns the map after a redirection of this slot.
    pub(super) fn after_move(&self, slot: u16, to: &Arc<Master>) -> Self {
        let mut next = self.with(to);
        let place = next.place(to).unwrap_or_default();
        next.owners[usize::from(slot)] = u16::try_from(place).unwrap_or(NOBODY);
        next
    }

    /// Returns the map with a master to which a redirection has led.
    pub(super) fn with(&self, master: &Arc<Master>) -> Self {
        let mut next = self.clone();
        if next.place(master).is_none() {
            next.masters.push(Known {
                id: String::new(),
                epoch: 0,
                master: Arc::clone(master),
            });
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
        self.masters.push(Known {
            id: id.to_owned(),
            epoch,
            master,
        });
        self.masters.len() - 1
    }

    fn place(&self, master: &Arc<Master>) -> Option<usize> {
        let mut masters = self.masters.iter();
        masters.position(|known| Arc::ptr_eq(&known.master, master))
    }

    fn known(&self, slot: usize) -> Option<&Known> {
        self.masters.get(usize::from(self.owners[slot]))
    }

    fn epoch(&self, id: &str) -> Option<u64> {
        let mut masters = self.masters.iter();
        masters.find(|known| known.id == id).map(|it| it.epoch)
    }

    fn without_slots(&self) -> impl Iterator<Item = &Known> {
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
