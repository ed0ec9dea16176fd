//! A storm. Nodes are stopped, restarted without data, and cut off again and again. Meanwhile three managers want the same
//! names: mutexes, two names at once, readers and writers. At no moment do two guards that exclude each other hold a lock,
//! fences rise, and nothing is left.
//!
//! It takes as many minutes as the variable `LEASEHOLD_STORM` says, or one. The simulator has such storms in simulated time
//! (`tests/simulator`). This one shows the same with real servers, clocks and sockets.

use std::env;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Error, Guard, Lock, LockManager};

use crate::support::{
    Fault, Nodes, PATIENCE, Proxy, Random, Raw, Server, is_unreachable, ms, patient, secs,
    wait_until,
};

const NODES: usize = 5;
const PROCESSES: usize = 3;
/// Also the restart delay.
const LEASE: Duration = secs(3);
/// The faults of the link to the first node.
const LINK_FAULTS: [Fault; 6] = [
    Fault::Late(20),
    Fault::Close,
    Fault::Reset,
    Fault::HalfOpen,
    Fault::LoseRequests,
    Fault::LoseAnswers,
];

/// The guards of a lock that may be held.
#[derive(Default)]
struct Ledger {
    held: Mutex<Vec<Entry>>,
    last_fence: AtomicU64,
}

struct Entry {
    guard: Arc<dyn Held>,
    is_reader: bool,
}

/// A guard that may have lost its lock.
trait Held: Send + Sync + Debug {
    fn is_held(&self) -> bool;
}

impl<G: Guard + Send + Sync> Held for G {
    fn is_held(&self) -> bool {
        self.check().is_ok()
    }
}

impl Ledger {
    /// Notes a new guard. Without a fence it is a reader's. Returns whether it was still held, and so was checked.
    ///
    /// # Errors
    ///
    /// A guard that excludes it is held too, or its fence is not larger than each one before.
    fn enter<G: Held + 'static>(&self, guard: &Arc<G>, fence: Option<u64>) -> Result<bool, String> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let is_reader = fence.is_none();
        let is_rival = |entry: &&Entry| !(entry.is_reader && is_reader) && entry.guard.is_held();
        let rivals: Vec<_> = held.iter().filter(is_rival).map(|it| &it.guard).collect();
        // It is still held, so it was held when the others were looked at.
        let is_held = guard.is_held();
        if is_held {
            if !rivals.is_empty() {
                return Err(format!("{guard:?} is held beside {rivals:?}"));
            }
            let last = self.last_fence.load(SeqCst);
            if fence.is_some_and(|fence| fence <= last) {
                return Err(format!("{guard:?} has no larger fence than {last}"));
            }
            self.last_fence.fetch_max(fence.unwrap_or(0), SeqCst);
        }
        let guard = Arc::<G>::clone(guard);
        held.push(Entry { guard, is_reader });
        Ok(is_held)
    }

    fn leave<G: Held + 'static>(&self, guard: &Arc<G>) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|entry| !std::ptr::addr_eq(Arc::as_ptr(&entry.guard), Arc::as_ptr(guard)));
    }
}

/// The number of each event.
#[derive(Debug, Default)]
struct Counts {
    grants: AtomicU64,
    /// Grants whose guard was held when it was compared with the others.
    checked: AtomicU64,
    in_vain: AtomicU64,
    /// Requests for which too few nodes voted.
    failures: AtomicU64,
    lost: AtomicU64,
}

#[derive(Default)]
struct Storm {
    is_over: AtomicBool,
    counts: Counts,
    /// The first violation.
    wrong: Mutex<Option<String>>,
}

impl Storm {
    /// Locks and releases until the storm is over. `fence` returns the fence of a guard that is no reader's.
    fn work<L: Lock>(&self, lock: &L, fence: Fence<L>, ledger: &Ledger, mut random: Random)
    where
        L::Guard: Send + Sync + 'static,
    {
        let counts = &self.counts;
        while !self.is_over.load(SeqCst) {
            let wait = [Duration::ZERO, ms(200), secs(5)];
            let wait = wait[usize::try_from(random.below(3)).expect("small")];
            let guard = match lock.try_lock_for(wait) {
                Ok(Some(guard)) => Arc::new(guard),
                Ok(None) => {
                    counts.in_vain.fetch_add(1, SeqCst);
                    // The load of the test: each thread asks at its own times.
                    thread::sleep(random.ms_below(20));
                    continue;
                }
                Err(error) if is_unreachable(&error) => {
                    counts.failures.fetch_add(1, SeqCst);
                    continue;
                }
                Err(error) => return self.is_wrong(format!("{error:?}")),
            };
            counts.grants.fetch_add(1, SeqCst);
            match ledger.enter(&guard, fence.map(|fence| fence(&guard))) {
                Ok(is_held) => counts.checked.fetch_add(u64::from(is_held), SeqCst),
                Err(wrong) => return self.is_wrong(wrong),
            };
            // Some guards are held for so long that they are renewed, and nodes join their leases.
            let longest = if random.below(10) == 0 { 6_000 } else { 30 };
            let until = Instant::now() + random.ms_below(longest);
            while Instant::now() < until && guard.is_held() && !self.is_over.load(SeqCst) {
                thread::sleep(ms(5));
            }
            ledger.leave(&guard);
            let guard = Arc::into_inner(guard).expect("the ledger has forgotten it");
            match guard.release() {
                Ok(()) => {}
                Err(Error::Lost(_)) => drop(counts.lost.fetch_add(1, SeqCst)),
                Err(error) if is_unreachable(&error) => {}
                Err(error) => return self.is_wrong(format!("{error:?}")),
            }
            thread::sleep(random.ms_below(40));
        }
    }

    fn is_wrong(&self, wrong: String) {
        self.is_over.store(true, SeqCst);
        let mut first = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(wrong);
    }

    /// Stops nodes, restarts them without data, and has the link to the first one fail. Returns how often.
    fn strike(
        &self,
        nodes: &[Server],
        link: &Proxy,
        until: Instant,
        random: &mut Random,
    ) -> [u32; 3] {
        let _ended = EndsAtDrop(&self.is_over);
        let (mut stops, mut restarts, mut link_faults) = (0, 0, 0);
        while Instant::now() < until && !self.is_over.load(SeqCst) {
            thread::sleep(random.ms_below(3_000));
            let first = random.below(nodes.len() as u64);
            let second = (first + 1 + random.below(nodes.len() as u64 - 1)) % nodes.len() as u64;
            let node = |number: u64| &nodes[usize::try_from(number).expect("small")];
            let (restarted, stopped) = match random.below(6) {
                0 => (Some(first), vec![]),
                // The one is stopped before the other votes again.
                1 => (Some(first), vec![second]),
                2 => (None, vec![first]),
                3 => (None, vec![first, second]),
                _ => {
                    let fault = random.below(LINK_FAULTS.len() as u64);
                    link.strike_all(LINK_FAULTS[usize::try_from(fault).expect("small")]);
                    thread::sleep(random.ms_below(2_000));
                    link.heal_anew();
                    link_faults += 1;
                    continue;
                }
            };
            if let Some(number) = restarted {
                node(number).restart();
                restarts += 1;
            }
            for number in &stopped {
                node(*number).pause();
                stops += 1;
            }
            thread::sleep(random.ms_below(if stopped.is_empty() { 1 } else { 4_000 }));
            for number in &stopped {
                node(*number).resume();
            }
        }
        [stops, restarts, link_faults]
    }
}

/// Ends the storm, also after a panic.
struct EndsAtDrop<'a>(&'a AtomicBool);

impl Drop for EndsAtDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Returns the fence of a guard. `None` for a reader's.
type Fence<L> = Option<fn(&<L as Lock>::Guard) -> u64>;

/// Returns the keys of a node that are locks, or have no time to live.
fn left_at(node: &Raw, names: &[&str]) -> Vec<String> {
    let keys: Vec<String> = node.ask(&["KEYS", "*"]);
    let is_left = |key: &String| names.contains(&&**key) || node.ttl(key).is_none();
    keys.into_iter().filter(is_left).collect()
}

#[test]
#[ignore = "it takes as many minutes as LEASEHOLD_STORM says: .ci/long runs it for ten"]
fn no_two_hold_a_lock_in_a_storm() {
    let minutes = env::var("LEASEHOLD_STORM").map_or(1, |text| text.parse().expect("minutes"));
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let nodes = Nodes::start(NODES);
    let link = Proxy::to(&nodes.servers()[0]);
    let mut urls = nodes.urls();
    urls[0] = link.url();
    let manager = |_| {
        let builder = patient(&urls.join(" ")).node_timeout(ms(500));
        let builder = builder.lease(LEASE).restart_delay(LEASE);
        builder.build_unchecked().expect("nothing is sent yet")
    };
    let managers: Vec<LockManager> = (0..PROCESSES).map(manager).collect();
    wait_until("the nodes vote", || managers[0].lock("first").is_ok());
    let names = ["mutex", "both", "both:2", "rwlock"];
    let ledgers: [Ledger; 3] = Default::default();
    let [mutex, both, rwlock] = &ledgers;
    let storm = Storm::default();
    let until = Instant::now() + secs(60) * minutes;
    let [stops, restarts, link_faults] = thread::scope(|scope| {
        for (number, locks) in managers.iter().enumerate() {
            let storm = &storm;
            let random = move |worker| Random(seed + 100 * number as u64 + worker);
            let (one, other) = (locks.mutex("mutex"), locks.mutex("both"));
            // Two threads of one process hand it over in memory.
            for lock in [one.clone(), one] {
                scope.spawn(move || storm.work(&lock, Some(|it| it.fence()), mutex, random(1)));
            }
            scope.spawn(move || storm.work(&other, Some(|it| it.fence()), both, random(2)));
            let multi = locks.multi(["both", "both:2"]);
            scope.spawn(move || {
                storm.work(&multi, Some(|it| it.leases()[0].fence()), both, random(3));
            });
            let shared = locks.rwlock("rwlock");
            let (reader, writer) = (shared.reader(), shared.writer());
            scope.spawn(move || storm.work(&reader, None, rwlock, random(4)));
            scope.spawn(move || storm.work(&writer, Some(|it| it.fence()), rwlock, random(5)));
        }
        storm.strike(nodes.servers(), &link, until, &mut Random(seed))
    });
    let wrong = storm.wrong.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(*wrong, None);
    for locks in &managers {
        assert!(locks.close(PATIENCE), "all nodes are well");
    }
    let renewed: u64 = managers.iter().map(|locks| locks.stats().renewed).sum();
    println!(
        "{minutes} minutes, {stops} stops, {restarts} restarts without data, {link_faults} faults of a link, {renewed} \
         renewals, {:?}",
        storm.counts
    );
    for node in nodes.raws() {
        assert_eq!(left_at(&node, &names), [""; 0]);
    }
    let checked = storm.counts.checked.load(SeqCst);
    assert!(checked > 100 && renewed > 0, "the storm let nobody in");
}
