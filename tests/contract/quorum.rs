//! Locks over several independent servers.
//!
//! | module | its subject |
//! | --- | --- |
//! | `faults` | nodes that are killed, stopped, restarted empty, or whose clocks jump |
//! | `restarts` | the delay after which a restarted node votes |
//! | `partitions` | managers that reach different majorities, and links that fail |
//! | `fences` | fences over wrong clocks and different majorities |
//! | `joins` | nodes that missed a grant, or have forgotten it, and get the lock later |
//! | `endings` | owners that a majority has ended, and that a node may still have |
//! | `clients` | clients that die between two nodes |
//! | `turns` | waiters that get their turn beside processes that ask all the time |

pub(crate) mod clients;
pub(crate) mod endings;
pub(crate) mod faults;
pub(crate) mod fences;
pub(crate) mod joins;
pub(crate) mod partitions;
pub(crate) mod restarts;
pub(crate) mod turns;

use std::time::Duration;

use leasehold::{Error, LockGuard, LockManager, Mutex, Result};
use leasehold_simulator::Topology;

use crate::matrix::{Subject, subject_bodies};
use crate::redis::Redis;
use crate::subject::is_unreachable;
use crate::world::{Fault, Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "quorum",
    &[Topology::Quorum],
    subject_bodies![
        a_lock_is_held_on_every_node_and_released_from_all,
        a_majority_is_enough_and_less_is_not,
        two_urls_of_one_server_are_rejected,
        operators_see_the_nodes_of_a_holder_and_can_release_it,
        a_detached_lock_is_adopted_once,
        a_writer_becomes_a_reader,
    ],
);

/// Longer than [`World::until`] waits, so that no lease ends during it.
const LONG: Duration = secs(310);
const HOUR: Duration = secs(60 * 60);

/// The nodes of a quorum, one by one.
#[derive(Clone)]
struct Nodes {
    world: World,
    each: Vec<Redis>,
}

impl Nodes {
    fn new(world: &World, count: usize) -> Self {
        world.make_nodes(count);
        Self {
            world: world.clone(),
            each: world.redis().servers(),
        }
    }

    /// Returns the holders of a mutex, by node.
    fn holders(&self, name: &str) -> Vec<Option<String>> {
        // The mark says that others wait.
        let owner = |value: String| value.trim_end_matches('!').to_owned();
        let holder = |node: &Redis| node.get(name).map(owner);
        self.each.iter().map(holder).collect()
    }

    #[track_caller]
    fn wait_until_free_everywhere(&self, name: &str) {
        let is_free = || self.each.iter().all(|node| !node.exists(name));
        self.world.until("it is free everywhere", is_free);
    }

    /// Blocks until a majority of the nodes has a waiter.
    #[track_caller]
    fn wait_until_waiting(&self, name: &str) {
        self.world.until("a majority has a waiter", || {
            let waiting = self.each.iter().filter(|node| !node.queue(name).is_empty());
            waiting.count() > self.each.len() / 2
        });
    }

    /// Blocks until all nodes have a waiter.
    #[track_caller]
    fn wait_until_waiting_everywhere(&self, name: &str) {
        self.world.until("all nodes have a waiter", || {
            self.each.iter().all(|node| !node.queue(name).is_empty())
        });
    }

    /// Removes a key at some nodes at once, as an operator may.
    fn delete(&self, nodes: &[usize], key: &str) {
        for node in nodes {
            let _: u32 = self.each[*node].ask(&["DEL", key]);
        }
    }

    fn pause(&self, nodes: &[usize]) {
        self.fault(nodes, Fault::PauseServer);
    }

    fn resume(&self, nodes: &[usize]) {
        self.fault(nodes, Fault::ResumeServer);
    }

    fn stop(&self, nodes: &[usize]) {
        self.fault(nodes, Fault::StopServer);
    }

    /// Starts nodes without the data that they had.
    fn restart_empty(&self, nodes: &[usize]) {
        self.fault(nodes, |server| Fault::StartServer {
            server,
            has_data: false,
        });
    }

    fn set_clocks(&self, nodes: &[usize], by: Duration, is_back: bool) {
        self.fault(nodes, |server| Fault::SetClock {
            server,
            by,
            is_back,
        });
    }

    fn fault(&self, nodes: &[usize], fault: impl Fn(usize) -> Fault) {
        for node in nodes {
            self.world.fault(fault(*node));
        }
    }

    fn all(&self) -> Vec<usize> {
        (0..self.each.len()).collect()
    }
}

/// Locks on every node. The vote of a node whose answer comes later than those of the others does not count.
#[track_caller]
fn locked_on_all(world: &World, mutex: &Mutex) -> LockGuard {
    let mut guard = None;
    world.until("each node grants it", || {
        guard = locked(mutex).filter(|locked| locked.missing_nodes().is_empty());
        if guard.is_none() {
            world.pass(ms(20));
        }
        guard.is_some()
    });
    guard.expect("each node granted it")
}

/// Locks, or returns `None` if too few nodes answer.
fn locked(mutex: &Mutex) -> Option<LockGuard> {
    guard_of(mutex.lock().map(Some))
}

/// Returns the guard of a call. A try also fails if two processes split the votes.
fn guard_of<T>(outcome: Result<Option<T>>) -> Option<T> {
    match outcome {
        Ok(guard) => guard,
        Err(error) if is_unreachable(&error) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Locks on a thread.
fn locking(locks: &Locks, mutex: Mutex) -> Task<Result<LockGuard>> {
    locks.thread(move || mutex.lock())
}

/// Locks on a thread, and returns when the thread waits.
fn locking_asleep(locks: &Locks, mutex: Mutex) -> Task<Result<LockGuard>> {
    let before = locks.stats().waiting;
    let locking = locking(locks, mutex);
    let waits = || locks.stats().waiting > before;
    locks.world().until("the thread waits", waits);
    locking
}

/// Returns the nodes that do not vote for a guard.
fn missing(guard: &LockGuard) -> Vec<usize> {
    let number = |address: &str| {
        let number = address.rsplit('/').next();
        number.and_then(|it| it.parse().ok()).expect("a socket")
    };
    (guard.missing_nodes().iter())
        .map(|it| number(it))
        .collect()
}

fn a_lock_is_held_on_every_node_and_released_from_all(world: &World) {
    let nodes = Nodes::new(world, 5);
    let (locks, other) = (world.manager(), world.manager());
    let guard = locked_on_all(world, &locks.mutex("n"));
    let all = vec![Some(guard.owner().to_owned()); 5];
    assert_eq!(nodes.holders("n"), all);
    assert!(other.try_lock("n").expect("the nodes answer").is_none());
    let fence = guard.fence();
    guard.release().expect("it is held");
    nodes.wait_until_free_everywhere("n");
    let guard = other.try_lock("n").expect("the nodes answer");
    assert!(guard.expect("it is free").fence() > fence);
}

fn a_majority_is_enough_and_less_is_not(world: &World) {
    let nodes = Nodes::new(world, 5);
    let locks = world.manager();
    nodes.stop(&[1]);
    nodes.pause(&[3]);
    for _ in 0..3 {
        let guard = locks.lock("n").expect("three nodes are there");
        guard.release().expect("it is held");
    }
    nodes.stop(&[0]);
    match locks.try_lock("n") {
        Err(Error::NoQuorum {
            needed,
            granted,
            failures,
            ..
        }) => {
            // The call ends with the third failure, which may come before the answers of the other two.
            assert_eq!(needed, 3);
            assert!(granted <= 2, "{granted}");
            assert_eq!(failures.len(), 3, "{failures:?}");
        }
        other => panic!("{other:?}"),
    }
    nodes.resume(&[3]);
    world.until("the node is asked again", || {
        locks.try_lock("n").is_ok_and(|guard| guard.is_some())
    });
}

fn two_urls_of_one_server_are_rejected(world: &World) {
    let urls = ["unix:///0", "unix:///1", "redis://10.0.0.1:6379/"];
    let built = world.try_build(|_| LockManager::quorum(urls));
    let error = built.map(drop).expect_err("two are one");
    assert!(
        matches!(
            error,
            Error::Config {
                option: "nodes",
                ..
            }
        ),
        "{error:?}"
    );
}

fn operators_see_the_nodes_of_a_holder_and_can_release_it(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = world.manager();
    let guard = locked_on_all(world, &locks.mutex("n"));
    let () = nodes.each[1].ask(&["SET", "n", "theirs", "PX", "600000"]);
    let seen = locks.inspect("n").expect("the nodes answer");
    let seen = seen.expect("it is held");
    let count = |owner: &str| {
        let mut holders = seen.holders.iter();
        let holder = holders.find(|holder| holder.owner == owner);
        holder.map(|holder| holder.nodes.len())
    };
    assert_eq!((count(guard.owner()), count("theirs")), (Some(2), Some(1)));
    let listed: Result<Vec<_>> = locks.list("*").collect();
    let listed = listed.expect("the nodes answer").into_iter();
    let names: Vec<_> = listed.map(|lock| lock.name).collect();
    assert_eq!(names, ["n"]);
    let release = || locks.force_release("n", guard.owner());
    assert!(release().expect("the nodes answer"));
    world.until("the holder learns of it", || guard.check().is_err());
    assert!(!release().expect("the nodes answer"));
}

fn a_detached_lock_is_adopted_once(world: &World) {
    let nodes = Nodes::new(world, 3);
    let (one, other) = (world.manager(), world.manager());
    let guard = locked_on_all(world, &one.mutex("n"));
    let fence = guard.fence();
    let claim = guard.detach();
    nodes.stop(&[1]);
    let adopted = other.adopt(&claim).expect("it was detached");
    assert!(adopted.fence() > fence);
    assert!(matches!(one.adopt(&claim), Err(Error::Lost(_))));
    adopted.check().expect("it is held");
    adopted.release().expect("it is held");
    assert!(one.try_lock("n").expect("two nodes answer").is_some());
}

fn a_writer_becomes_a_reader(world: &World) {
    let (one, other) = (world.manager(), world.manager());
    let writer = one.rwlock("n").write().expect("it is free");
    let fence = writer.fence();
    let reader = writer.downgrade().expect("nobody waits");
    assert!(reader.fence() >= fence);
    let shared = other.rwlock("n");
    let second = shared.try_read().expect("the nodes answer");
    assert!(second.is_some(), "readers share it");
    assert!(shared.try_write().expect("the nodes answer").is_none());
}
