//! The names in use, each with its queue of threads.
//!
//! | event | the entry of the name |
//! | --- | --- |
//! | a thread wants the name, and there is no entry | the thread makes it |
//! | the last thread or lease has left | the thread that notices retires it, and takes it out of the table |
//! | it was retired after a thread looked it up, and before that thread locked it | that thread looks the name up again |

use hashbrown::HashTable;
use hashbrown::hash_table::OccupiedEntry;

use crate::engine::lease::process_lease::{Entry, NameState};
use crate::name::{Fingerprint, Target};
use crate::sys::{Arc, Mutex};
use crate::wire::LockKind;

/// The number of shards: enough that threads with different names seldom lock the same shard.
const SHARDS: usize = 32;

/// All names in use by this engine. An entry has its own key, so each name takes up less memory than in a map.
pub(crate) struct Names {
    shards: [Mutex<HashTable<Arc<Entry>>>; SHARDS],
}

impl Names {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Calls `act` with the locked entry of a name. Makes the entry if there is none.
    pub(crate) fn with<T>(
        &self,
        kind: LockKind,
        target: &Target,
        mut act: impl FnMut(&Arc<Entry>, &mut NameState) -> T,
    ) -> T {
        let fingerprint = target.fingerprint();
        let is_meant = |entry: &Arc<Entry>| entry.is(kind, target.id());
        let hash_of = |entry: &Arc<Entry>| hash(entry.target.fingerprint());
        loop {
            let entry = {
                let mut shard = self.shards[fingerprint as usize % SHARDS].lock();
                let found = shard.entry(hash(fingerprint), is_meant, hash_of);
                let found = found.or_insert_with(|| Arc::new(Entry::new(kind, target.clone())));
                Arc::clone(found.get())
            };
            let mut state = entry.lock();
            if !state.queue.is_retired() {
                return act(&entry, &mut state);
            }
        }
    }

    /// Returns the entry of a name, and keeps it in the table until [`unpin`](Names::unpin).
    pub(crate) fn pin(&self, kind: LockKind, target: &Target) -> Arc<Entry> {
        self.with(kind, target, |entry, state| {
            state.notes.pin();
            Arc::clone(entry)
        })
    }

    /// Ends a [`pin`](Names::pin), and takes the entry out of the table if it is not in use.
    pub(crate) fn unpin(&self, entry: &Entry) {
        entry.lock().notes.unpin();
        self.retire(entry);
    }

    /// Takes the entry out of the table if it is not in use: no lease, no delegate, no waiting thread, no pin.
    pub(crate) fn retire(&self, entry: &Entry) {
        let fingerprint = entry.target.fingerprint();
        let mut shard = self.shards[fingerprint as usize % SHARDS].lock();
        let mut state = entry.lock();
        if state.is_unused() && !state.queue.is_retired() {
            state.queue.retire();
            let found = shard.find_entry(hash(fingerprint), |other| other.is_of(entry));
            found.map(OccupiedEntry::remove).ok();
        }
    }

    /// Returns the entries of all names in use.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.shards
            .iter()
            .flat_map(|shard| {
                let shard = shard.lock();
                shard.iter().cloned().collect::<Vec<_>>()
            })
            .collect()
    }
}

/// Returns the hash of an entry with this fingerprint. All entries of a shard share the bits that choose the shard, so the
/// hash leaves them out. The factor spreads the other bits, because a table reads the highest and the lowest ones.
fn hash(fingerprint: Fingerprint) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    u64::from(fingerprint / SHARDS as u32).wrapping_mul(FACTOR)
}
