//! Masters that fail and are replaced, behind sentinels and in a cluster.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use leasehold::{Error, Event, EventKind, LeaseState, LockGuard, LostCause, Write};
use leasehold_simulator::Topology;
use leasehold_test_support::names_of_masters;

use crate::matrix::{Subject, subject_bodies};
use crate::redis::fence_of;
use crate::subject::{Kind, lost};
use crate::world::{Fault, Locks, Task, World, locked, ms, secs};

pub(crate) const BODIES: Subject = (
    "failovers",
    &[Topology::Sentinel, Topology::Cluster],
    subject_bodies![
        locks_go_to_the_new_master_if_the_old_one_dies,
        locks_go_to_the_new_master_if_the_old_one_hangs,
        a_lock_that_was_confirmed_outlives_its_master,
        a_lock_that_the_new_master_lacks_is_lost_and_fenced,
        a_lock_without_renewal_that_the_new_master_lacks_is_lost_too,
        nothing_is_committed_at_a_new_master_that_lacks_the_lock,
        a_lock_stays_for_its_lease_if_the_new_master_lacks_its_release,
        a_hand_over_that_the_new_master_lacks_makes_no_second_holder,
        a_failover_by_hand_loses_no_lock,
        a_file_with_a_fence_takes_no_stale_write_if_the_master_dies,
        a_file_with_a_fence_takes_no_stale_write_if_the_master_hangs,
    ],
);

pub(crate) const SENTINEL_BODIES: Subject = (
    "failovers",
    &[Topology::Sentinel],
    subject_bodies![
        locks_go_to_the_new_master_if_the_old_one_dies_with_a_sentinel,
        nobody_uses_the_old_master_after_a_failover_by_hand,
        a_lock_that_needs_a_replica_is_acquired_after_a_failover,
        hand_overs_that_a_failover_loses_make_no_second_holder,
        fences_rise_although_both_halves_of_the_network_have_a_master,
        a_holder_with_replicas_has_lost_the_lock_before_the_other_half_has_it,
        events_name_the_servers_that_fail_and_recover,
    ],
);

pub(crate) const CLUSTER_BODIES: Subject = (
    "failovers",
    &[Topology::Cluster],
    subject_bodies![
        the_leases_of_other_masters_are_renewed_if_one_dies,
        the_leases_of_other_masters_are_renewed_if_one_hangs,
        a_wait_that_begins_during_a_failover_outlasts_it,
        a_cluster_that_restarts_without_data_grants_locks_with_larger_fences,
    ],
);

const NAME: &str = "n";
/// Another name of the same slot.
const OTHER_NAME: &str = "{n}:another";

/// When a replica has a write, and other nodes have a message.
const REPLICATED: Duration = ms(20);
/// How long the others need to notice that a master has failed.
const NOTICED: Duration = secs(2);
/// When all sentinels and nodes know a new master, and the managers too.
pub(crate) const KNOWN: Duration = secs(5);
/// When a master that went on beside its successor is a replica too.
const SETTLED: Duration = secs(12);

/// Locks as soon as a master grants it. Returns the fence.
#[track_caller]
pub(crate) fn locked_at_last(world: &World, locks: &Locks, name: &str) -> u64 {
    let mut fence = 0;
    world.until("it is locked", || match locks.try_lock_for(name, secs(1)) {
        Ok(Some(guard)) => {
            fence = guard.fence();
            true
        }
        Ok(None) | Err(Error::Unavailable { .. }) => false,
        Err(error) => panic!("{error:?}"),
    });
    fence
}

/// Returns the holder, as a server knows it.
#[track_caller]
fn owner_at(world: &World, server: usize) -> String {
    let holder = world.redis_at(server).holders(NAME).pop();
    holder.expect("it is held").0
}

/// The master of the lock fails. When the others have noticed, a replica becomes the master. Returns the new master.
fn fail_over(world: &World, failure: fn(usize) -> Fault) -> usize {
    let (old, new) = (world.master(NAME), world.replicas(NAME)[0]);
    world.fault(failure(old));
    world.pass(NOTICED);
    world.fault(Fault::Promote(new));
    new
}

/// The master dies, and its replicas lack all that `act` writes.
pub(crate) fn fail_over_without<T>(world: &World, act: impl FnOnce() -> T) -> T {
    let replicas = world.replicas(NAME);
    let lag = |is_late| {
        for replica in &replicas {
            world.fault(Fault::Lag(*replica, is_late));
        }
    };
    lag(true);
    let done = act();
    fail_over(world, Fault::StopServer);
    lag(false);
    done
}

fn locks_go_to_the_new_master(world: &World, failure: fn(usize) -> Fault) {
    let (one, other) = (world.manager(), world.manager());
    let guard = one.lock(NAME).expect("it is free");
    let fence = guard.fence();
    guard.release().expect("it is held");
    world.pass(REPLICATED);
    let new = fail_over(world, failure);
    let begun = world.now();
    let first = locked_at_last(world, &one, NAME);
    let second = locked_at_last(world, &other, NAME);
    assert!(world.now() <= world.within(begun + KNOWN));
    assert!(fence < first && first < second);
    assert!(world.redis_at(new).exists(&fence_of(NAME)));
}

fn locks_go_to_the_new_master_if_the_old_one_dies(world: &World) {
    locks_go_to_the_new_master(world, Fault::StopServer);
}

fn locks_go_to_the_new_master_if_the_old_one_hangs(world: &World) {
    locks_go_to_the_new_master(world, Fault::PauseServer);
}

/// Two sentinels are left, one of which may report the old address for a while.
fn locks_go_to_the_new_master_if_the_old_one_dies_with_a_sentinel(world: &World) {
    world.fault(Fault::StopServer(5));
    locks_go_to_the_new_master(world, Fault::StopServer);
}

fn a_lock_that_was_confirmed_outlives_its_master(world: &World) {
    let replicas = world.replicas(NAME).len() as u32;
    let holder = world.build(|it| it.replicas(replicas));
    let other = world.manager();
    let guard = holder.mutex(NAME).lease(secs(600)).lock();
    let guard = guard.expect("the replicas have it");
    let new = fail_over(world, Fault::StopServer);
    locked_at_last(world, &other, OTHER_NAME);
    assert!(other.try_lock(NAME).expect("it replies").is_none());
    assert_eq!(owner_at(world, new), guard.owner());
    guard.check().expect("it is held");
}

fn a_lock_that_the_new_master_lacks_is_lost_and_fenced(world: &World) {
    is_lost_if_the_new_master_lacks_it(world, true);
}

fn a_lock_without_renewal_that_the_new_master_lacks_is_lost_too(world: &World) {
    is_lost_if_the_new_master_lacks_it(world, false);
}

fn is_lost_if_the_new_master_lacks_it(world: &World, is_renewed: bool) {
    let (one, other) = (world.manager(), world.manager());
    let (guard, losses) = fail_over_without(world, || {
        let guard = one.mutex(NAME).lease(secs(60)).renew(is_renewed).lock();
        let guard = guard.expect("it is free");
        let losses = guard.on_lost();
        (guard, losses)
    });
    let begun = world.now();
    let fence = locked_at_last(world, &other, NAME);
    assert!(fence > guard.fence());
    let loss = world.recv(&losses);
    assert!(world.now() <= world.within(begun + KNOWN));
    assert!(
        [LostCause::Removed, LostCause::Taken].contains(&loss.cause),
        "{loss:?}"
    );
    assert_eq!(lost(guard.release()), loss);
}

fn nothing_is_committed_at_a_new_master_that_lacks_the_lock(world: &World) {
    let (locks, count) = (world.manager(), format!("{{{NAME}}}:count"));
    let guard = fail_over_without(world, || {
        let guard = locks.mutex(NAME).lease(secs(60)).lock();
        guard.expect("it is free")
    });
    let loss = loop {
        match guard.commit(&[Write::new("INCR", &*count)]) {
            Err(Error::Lost(loss)) => break loss,
            // No master is known yet.
            Err(Error::Unavailable { .. }) => world.pass(ms(100)),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(loss.cause, LostCause::Removed);
    let at_the_master = world.redis_at(world.master(NAME));
    assert!(!at_the_master.ask::<bool>(&["EXISTS", &count]));
}

/// As after a crash of its holder, the lock stays for the rest of its lease.
fn a_lock_stays_for_its_lease_if_the_new_master_lacks_its_release(world: &World) {
    const LEASE: Duration = secs(20);
    let (one, other) = (world.manager(), world.manager());
    // The server counts the lease from when it grants it.
    let begun = world.now();
    let guard = one.mutex(NAME).lease(LEASE).lock().expect("it is free");
    let owner = guard.owner().to_owned();
    world.pass(REPLICATED);
    fail_over_without(world, || guard.release().expect("it is held"));
    locked_at_last(world, &other, OTHER_NAME);
    assert!(other.try_lock(NAME).expect("it replies").is_none());
    assert_eq!(owner_at(world, world.master(NAME)), owner);
    drop(other.lock(NAME).expect("the lease ends"));
    assert!(world.now() >= begun + LEASE && world.now() <= world.within(begun + LEASE));
}

/// B gets the lock, and the new master believes that A holds it. B learns of the loss, and nobody gets the lock meanwhile.
fn a_hand_over_that_the_new_master_lacks_makes_no_second_holder(world: &World) {
    let [one, other, third] = [(); 3].map(|()| world.manager());
    let guard = one.mutex(NAME).lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    let owner = guard.owner().to_owned();
    let next = other.mutex(NAME).lease(secs(600));
    let waiting = other.thread(move || next.lock());
    let old = world.redis_at(world.master(NAME));
    old.wait_until_queued(NAME, 1);
    world.pass(REPLICATED);
    let next = fail_over_without(world, || {
        guard.release().expect("it is held");
        let next = waiting.end().expect("it is handed over");
        // It has its whole lease, and its next renewal is far away.
        world.until("it is raised", || next.remaining() > secs(400));
        next
    });
    let begun = world.now();
    let loss = world.recv(&next.on_lost());
    assert!(world.now() <= world.within(begun + KNOWN));
    assert_eq!(loss.cause, LostCause::Taken);
    locked_at_last(world, &third, OTHER_NAME);
    assert!(third.try_lock(NAME).expect("it replies").is_none());
    assert_eq!(owner_at(world, world.master(NAME)), owner);
}

/// The first request of a wait waits, within its own time limit, until a replica has taken over. It goes there at once.
fn a_wait_that_begins_during_a_failover_outlasts_it(world: &World) {
    let locks = world.build(|it| it.io_timeout(secs(60)));
    drop(locks.lock(NAME).expect("it is free"));
    world.fault(Fault::StopServer(world.master(NAME)));
    // Each of them is in another part of its pause when the manager knows the new master.
    let waiting = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|number| {
        world.pass(ms(10));
        let other = locks.mutex(format!("{OTHER_NAME}{number}"));
        let world = world.clone();
        locks.thread(move || {
            let locked = other.try_lock_for(secs(60));
            drop(locked.expect("the replica takes over").expect("it is free"));
            world.now()
        })
    });
    world.pass(NOTICED);
    world.fault(Fault::Promote(world.replicas(NAME)[0]));
    let begun = world.now();
    while locks.try_lock(NAME).is_err() {
        world.pass(ms(1));
    }
    let known_at = world.now();
    assert!(known_at <= world.within(begun + KNOWN));
    for waiting in waiting {
        assert!(waiting.end() <= world.within(known_at));
    }
}

/// After a failover by hand, the old master is a replica, which answers every request with a redirection or a refusal.
fn a_failover_by_hand_loses_no_lock(world: &World) {
    let (one, other) = (world.manager(), world.manager());
    let guard = one.mutex(NAME).lease(secs(60)).lock().expect("it is free");
    let waiting = Kind::Mutex.of(&other, NAME).locking();
    let old = world.master(NAME);
    world.redis_at(old).wait_until_queued(NAME, 1);
    world.pass(REPLICATED);
    world.fault(Fault::Promote(world.replicas(NAME)[0]));
    world.pass(SETTLED);
    let info: String = world.redis_at(old).ask(&["INFO", "replication"]);
    assert!(info.contains("role:slave"), "{info}");
    guard.extend(secs(120)).expect("the new master has it");
    assert!(waiting.waits());
    guard.release().expect("the new master has it");
    let begun = world.now();
    let locked_at = waiting.locked_at();
    assert!(locked_at <= world.within(begun));
    waiting.release();
}

/// The old master takes writes for some seconds after the failover.
fn nobody_uses_the_old_master_after_a_failover_by_hand(world: &World) {
    let (one, other) = (world.manager(), world.manager());
    for locks in [&one, &other] {
        drop(locks.lock("before").expect("it is free"));
    }
    let guard = one.mutex("held").lease(secs(60)).lock();
    let guard = guard.expect("it is free");
    world.pass(REPLICATED);
    let (old, new) = (world.master(NAME), world.replicas(NAME)[0]);
    world.fault(Fault::Promote(new));
    let (old, new) = (world.redis_at(old), world.redis_at(new));
    // Each of them moves, and then stays.
    for (locks, name) in [(&one, "one"), (&other, "other")] {
        world.until("it locks at the new master", || {
            locked_at_last(world, locks, name);
            new.exists(&fence_of(name))
        });
        locked_at_last(world, locks, "after");
    }
    let info: String = old.ask(&["INFO", "replication"]);
    assert!(info.contains("role:master"), "{info}");
    assert!(!old.exists(&fence_of("after")), "the old master was asked");
    // The new master has the lock too. It is renewed there, and released.
    guard.extend(secs(120)).expect("it is held");
    assert!(new.ttl("held") > Some(secs(100)));
    guard.release().expect("it is held");
    assert!(!new.exists("held"));
}

/// One replica becomes the master. The other one follows it, and confirms the grants then.
fn a_lock_that_needs_a_replica_is_acquired_after_a_failover(world: &World) {
    let locks = world.build(|it| it.replicas(1));
    let held = locks.lock("held").expect("a replica has it");
    let fence = locks.lock(NAME).expect("a replica has it").fence();
    // Only then do the replicas have its release too.
    world.pass(REPLICATED);
    fail_over(world, Fault::StopServer);
    let begun = world.now();
    let mut tried = None;
    world.until("a replica confirms it", || {
        match locks.try_lock_for(NAME, secs(1)) {
            Ok(guard) => tried = guard.map(|guard| guard.fence()),
            Err(Error::Unavailable { .. } | Error::NotReplicated { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        tried.is_some()
    });
    assert!(tried > Some(fence));
    // It has followed the new master within 5 s, has loaded its data within two more, and the last try took one.
    assert!(world.now() <= world.within(begun + KNOWN + secs(3)));
    // The old master is still missing.
    drop(locks.lock(NAME).expect("a replica has it"));
    match held.release() {
        Ok(()) | Err(Error::Lost(_)) => {}
        Err(error) => panic!("{error:?}"),
    }
}

/// A small store that checks the fences of its writers.
#[derive(Default)]
struct File(Mutex<u64>);

impl File {
    /// Returns `false` if the fence is too old.
    fn write(&self, fence: u64) -> bool {
        let mut last = locked(&self.0);
        let is_later = fence > *last;
        *last = fence.max(*last);
        is_later
    }
}

/// Threads that write to a file under a lock. If the file refuses a write, its holder has lost the lock, and learns of it.
struct FencedWriters {
    world: World,
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicU32>,
    threads: Vec<Task<()>>,
}

impl FencedWriters {
    /// Starts two threads for each of two processes.
    fn start(world: &World) -> Self {
        let (stop, turns) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let file = Arc::new(File::default());
        let managers = [(); 2].map(|()| world.manager());
        let writer = |locks: &Locks| {
            let mutex = locks.mutex(NAME).lease(secs(3));
            let (stop, turns, file) = (Arc::clone(&stop), Arc::clone(&turns), Arc::clone(&file));
            let world = world.clone();
            locks.thread(move || {
                while !stop.load(SeqCst) {
                    let guard = match mutex.try_lock_for(secs(1)) {
                        Ok(Some(guard)) => guard,
                        Ok(None) | Err(Error::Unavailable { .. }) => {
                            world.pass(ms(50));
                            continue;
                        }
                        Err(error) => panic!("{error:?}"),
                    };
                    world.pass(ms(1));
                    if !file.write(guard.fence()) {
                        world.until("the writer learns of its loss", || guard.check().is_err());
                    }
                    turns.fetch_add(1, SeqCst);
                }
            })
        };
        let threads = managers.iter().chain(&managers).map(writer).collect();
        Self {
            world: world.clone(),
            stop,
            turns,
            threads,
        }
    }

    fn wait_for_more(&self, turns: u32) {
        let before = self.turns.load(SeqCst);
        let has_more = || self.turns.load(SeqCst) >= before + turns;
        self.world.until("they go on", has_more);
    }

    fn end(self) {
        self.stop.store(true, SeqCst);
        self.threads.into_iter().for_each(Task::end);
    }
}

fn a_file_with_a_fence_takes_no_stale_write_if_the_master_dies(world: &World) {
    let writers = FencedWriters::start(world);
    writers.wait_for_more(20);
    fail_over(world, Fault::StopServer);
    writers.wait_for_more(20);
    writers.end();
}

fn a_file_with_a_fence_takes_no_stale_write_if_the_master_hangs(world: &World) {
    let writers = FencedWriters::start(world);
    writers.wait_for_more(20);
    fail_over(world, Fault::PauseServer);
    writers.wait_for_more(20);
    writers.end();
}

/// Processes that always want one lock, so that each release hands it over.
struct Crowd {
    world: World,
    holders: Mutex<Vec<Arc<LockGuard>>>,
    /// The guards that were not lost when another one was granted.
    overlaps: Mutex<Vec<Arc<LockGuard>>>,
    grants: AtomicUsize,
    holds_on: AtomicBool,
    is_over: AtomicBool,
}

impl Crowd {
    const LEASE: Duration = secs(30);

    fn start(world: &World, processes: usize) -> (Arc<Self>, Vec<Task<()>>) {
        let crowd = Arc::new(Self {
            world: world.clone(),
            holders: Mutex::default(),
            overlaps: Mutex::default(),
            grants: AtomicUsize::new(0),
            holds_on: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let member = |_| {
            let (crowd, locks) = (Arc::clone(&crowd), world.manager());
            locks.clone().thread(move || crowd.work(&locks))
        };
        let tasks = (0..processes).map(member).collect();
        (crowd, tasks)
    }

    fn work(&self, locks: &Locks) {
        let mutex = locks.mutex(NAME).lease(Self::LEASE);
        while !self.is_over.load(SeqCst) {
            let guard = match mutex.try_lock_for(secs(5)) {
                Ok(Some(guard)) => Arc::new(guard),
                Ok(None) | Err(Error::Unavailable { .. }) => {
                    self.world.pass(ms(50));
                    continue;
                }
                Err(error) => panic!("{error:?}"),
            };
            {
                let mut holders = locked(&self.holders);
                let live = holders.iter().filter(|it| it.state() != LeaseState::Lost);
                locked(&self.overlaps).extend(live.cloned());
                assert!(holders.iter().all(|it| it.fence() < guard.fence()));
                holders.push(Arc::clone(&guard));
            }
            self.grants.fetch_add(1, SeqCst);
            self.world.pass(ms(100));
            while self.holds_on.load(SeqCst) && guard.state() != LeaseState::Lost {
                self.world.pass(ms(100));
            }
            locked(&self.holders).retain(|it| !Arc::ptr_eq(it, &guard));
        }
    }

    fn wait_for_more(&self, count: usize) {
        let before = self.grants.load(SeqCst);
        let has_more = || self.grants.load(SeqCst) >= before + count;
        self.world.until("they work", has_more);
    }

    /// Lets the next holder hold on. Blocks until one does.
    fn hold_on(&self) {
        self.holds_on.store(true, SeqCst);
        self.world.until("one holds on", || {
            let before = self.grants.load(SeqCst);
            self.world.pass(ms(300));
            let is_held = !locked(&self.holders).is_empty();
            self.grants.load(SeqCst) == before && is_held
        });
    }
}

/// A failover loses the last hand-overs, while the last holder works on. It must learn of the loss before anybody else gets
/// the lock, which stays with an earlier holder for the rest of its lease.
fn hand_overs_that_a_failover_loses_make_no_second_holder(world: &World) {
    let (crowd, tasks) = Crowd::start(world, 4);
    crowd.wait_for_more(10);
    // A lock that was handed over has a short lease until its next holder has said that it is there.
    let replicas = world.replicas(NAME);
    let is_whole = |replica: &usize| world.redis_at(*replica).ttl(NAME) > Some(secs(29));
    world.until("the replicas have a whole lease", || {
        world.pass(ms(5));
        replicas.iter().all(is_whole)
    });
    fail_over_without(world, || {
        crowd.wait_for_more(2);
        crowd.hold_on();
    });
    // The lease of the earlier holder ends before the next renewal of the last one, which must have heard by then.
    let ends_at = world.now() + secs(4);
    let master = world.redis_at(world.master(NAME));
    assert!(master.ask::<bool>(&["PEXPIRE", NAME, "4000"]));
    crowd.wait_for_more(1);
    assert!(world.now() >= ends_at && world.now() <= world.within(ends_at));
    crowd.holds_on.store(false, SeqCst);
    let overlaps = locked(&crowd.overlaps);
    let owners: Vec<_> = overlaps.iter().map(|it| it.owner()).collect();
    assert!(owners.is_empty(), "{owners:?}");
    drop(overlaps);
    crowd.is_over.store(true, SeqCst);
    tasks.into_iter().for_each(Task::end);
}

/// Half of the network has the master, a sentinel and a holder. The other half has the replicas, two sentinels and a waiter.
/// Returns whether the holder had lost the lock when the waiter got it.
fn is_lost_before_the_other_half_has_it(world: &World, replicas: u32) -> bool {
    const LEASE: Duration = secs(6);
    let holder = world.build(|it| it.replicas(replicas));
    let other = world.manager();
    let (master, followers) = (0, [1, 2]);
    let cut = |is_cut| {
        for server in 1..6 {
            // A sentinel of its own is left to the holder.
            if server != 3 {
                holder.block(server, is_cut);
            }
        }
        for server in [master, 3] {
            other.block(server, is_cut);
            world.fault(Fault::CutOff(server, is_cut));
        }
        for replica in followers {
            world.fault(Fault::Lag(replica, is_cut));
        }
    };
    let guard = holder.mutex(NAME).lease(LEASE).lock();
    let guard = guard.expect("it is free");
    let of_other = other.mutex(NAME).lease(LEASE);
    assert!(of_other.try_lock().expect("it replies").is_none());
    cut(true);
    world.pass(NOTICED);
    world.fault(Fault::Promote(followers[0]));
    let mut next = None;
    world.until("the second half has the lock", || {
        next = of_other.try_lock_for(secs(1)).ok().flatten();
        next.is_some()
    });
    let next = next.expect("it was waited for");
    assert!(next.fence() > guard.fence());
    let was_lost = guard.state() == LeaseState::Lost;
    cut(false);
    world.until("the holder has lost it", || {
        guard.state() == LeaseState::Lost
    });
    next.check().expect("its master is that of all");
    let fence = next.fence();
    next.release().expect("it is held");
    lost(guard.release());
    assert!(locked_at_last_confirmed(world, &holder) > fence);
    was_lost
}

/// Locks as soon as enough replicas confirm it.
fn locked_at_last_confirmed(world: &World, locks: &Locks) -> u64 {
    let mut fence = None;
    world.until("it is confirmed", || {
        let tried = locks.try_lock_for(NAME, secs(1)).ok().flatten();
        fence = tried.map(|guard| guard.fence());
        fence.is_some()
    });
    fence.expect("it was waited for")
}

/// Both halves have a holder for a while. Fences rise all the same.
fn fences_rise_although_both_halves_of_the_network_have_a_master(world: &World) {
    assert!(!is_lost_before_the_other_half_has_it(world, 0));
}

/// A renewal counts only if the replica has it, and the replica has the lock until then.
fn a_holder_with_replicas_has_lost_the_lock_before_the_other_half_has_it(world: &World) {
    assert!(is_lost_before_the_other_half_has_it(world, 1));
}

/// Returns a manager, and its events: the connection, whether it is reachable, and the address.
fn told_manager(world: &World) -> (Locks, Receiver<(String, bool, Option<String>)>) {
    let (tell, told) = unbounded();
    let locks = world.build(|it| {
        it.listener(move |event: &Event<'_>| {
            let (connection, is_back, node) = match &event.kind {
                EventKind::Unreachable {
                    connection, node, ..
                } => (connection, false, node),
                EventKind::Recovered {
                    connection, node, ..
                } => (connection, true, node),
                _ => return,
            };
            let node = node.as_deref().map(str::to_owned);
            tell.send((format!("{connection:?}"), is_back, node)).ok();
        })
    });
    (locks, told)
}

/// The connections of the renewal thread and of the listener move to the new master, and the events name both servers.
fn events_name_the_servers_that_fail_and_recover(world: &World) {
    let (locks, told) = told_manager(world);
    let other = world.manager();
    let kept = locks.mutex("kept").lease(secs(3)).lock();
    let held = other.mutex(NAME).lease(secs(3)).lock();
    let waiting = Kind::Mutex.of(&locks, NAME).locking();
    world.redis().wait_until_queued(NAME, 1);
    let wait_for = |is_expected: bool, server: usize| {
        let mut missing: BTreeSet<_> = ["Renewal", "Wakeup"].map(str::to_owned).into();
        while !missing.is_empty() {
            let (connection, is_back, node) = world.recv(&told);
            if is_back == is_expected {
                let address = format!("10.0.0.{}:6379", server + 1);
                assert_eq!(node, Some(address), "{connection}");
                missing.remove(&connection);
            }
        }
    };
    world.fault(Fault::StopServer(0));
    wait_for(false, 0);
    world.fault(Fault::Promote(1));
    wait_for(true, 1);
    drop((kept, held));
    waiting.locked();
    waiting.release();
}

/// Checks that no guard reads held without time left.
fn check_deadline(guard: &LockGuard) {
    assert!(guard.state() == LeaseState::Lost || !guard.remaining().is_zero());
}

/// A master fails under load. Only its own leases may be lost.
fn the_leases_of_other_masters_are_renewed(world: &World, failure: fn(usize) -> Fault) {
    const LEASE: Duration = secs(12);
    let locks = world.manager();
    let [name, others @ ..] = names_of_masters();
    assert_eq!(world.master(&name), 0);
    let lock = |number| {
        let mutex = locks.mutex(format!("lease-{number}")).lease(LEASE);
        mutex.lock().expect("it is free")
    };
    let guards = (0..30).map(lock);
    let (of_failed, of_others): (Vec<_>, Vec<_>) =
        guards.partition(|guard| world.master(guard.name()) == 0);
    assert!(of_failed.len() > 5 && of_others.len() > 10);
    let until = |end: Duration| {
        while world.now() < end {
            for name in &others {
                // The master that has failed delays no request to another.
                let begun = world.now();
                drop(locks.lock(name).expect("its master is well"));
                assert!(world.now() <= world.within(begun));
            }
            of_failed.iter().for_each(check_deadline);
            for guard in &of_others {
                guard.check().expect("its master is well");
                // A lease is renewed after a third of it.
                assert!(guard.remaining() > LEASE / 2);
            }
            world.pass(ms(500));
        }
    };
    world.pass(LEASE / 4);
    world.fault(failure(0));
    until(world.now() + NOTICED);
    world.fault(Fault::Promote(3));
    until(world.now() + KNOWN);
    drop(locks.lock(&name).expect("the new master grants it"));
    until(world.now() + LEASE / 2);
    for guard in of_others {
        guard.release().expect("its master is well");
    }
    for guard in of_failed {
        match guard.release() {
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

fn the_leases_of_other_masters_are_renewed_if_one_dies(world: &World) {
    the_leases_of_other_masters_are_renewed(world, Fault::StopServer);
}

fn the_leases_of_other_masters_are_renewed_if_one_hangs(world: &World) {
    the_leases_of_other_masters_are_renewed(world, Fault::PauseServer);
}

fn a_cluster_that_restarts_without_data_grants_locks_with_larger_fences(world: &World) {
    let locks = world.manager();
    let names = names_of_masters();
    let fences = names
        .each_ref()
        .map(|name| locked_at_last(world, &locks, name));
    let held = locks.mutex("held").lease(secs(60)).lock();
    let held = held.expect("it is free");
    let losses = held.on_lost();
    world.stop_servers();
    world.pass(secs(1));
    world.restart_servers_empty();
    for (name, fence) in names.iter().zip(fences) {
        assert!(locked_at_last(world, &locks, name) > fence);
    }
    assert_eq!(world.recv(&losses).cause, LostCause::Removed);
    drop(held);
    let new = world.manager();
    for name in &names {
        locked_at_last(world, &new, name);
    }
}
