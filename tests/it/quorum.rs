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
//! | `clients` | clients that die or pause |
//! | `storm` | all kinds for minutes, while nodes are stopped and restarted |
//! | `turns` | waiters that get their turn beside processes that ask all the time |

mod clients;
mod endings;
mod faults;
mod fences;
mod joins;
mod partitions;
mod restarts;
mod storm;
mod turns;

use leasehold::{Error, LockGuard, LockManager, Mutex};

use crate::support::{
    Kind, Nodes, Raw, build, fence_of, is_unreachable, patient, secs, wait_until,
};

/// Returns the holders of a mutex, by node.
fn holders(nodes: &Nodes, name: &str) -> Vec<Option<String>> {
    nodes
        .raws()
        .iter()
        .map(|raw| raw.ask(&["GET", name]))
        .collect()
}

/// Blocks until a majority of the nodes has a waiter.
#[track_caller]
fn wait_until_waiting(nodes: &Nodes, name: &str) {
    wait_until("a majority has a waiter", || {
        let raws = nodes.raws();
        let waiting = raws.iter().filter(|node| !node.queue(name).is_empty());
        waiting.count() > raws.len() / 2
    });
}

/// Blocks until a node has executed what this thread has sent to it so far. `unused` is a name that nobody has locked.
#[track_caller]
fn wait_until_executed(locks: &LockManager, node: &Raw, unused: &str) {
    wait_until("the node has granted it", || {
        // It goes to the node on the same connection.
        let guard = locks.lock(unused).expect("a majority is there");
        guard.release().expect("it is held");
        node.exists(&fence_of(unused))
    });
}

/// Locks on every node. A busy machine may be late with the answer of a node, and then its vote does not count.
#[track_caller]
pub(crate) fn locked_on_all(mutex: &Mutex) -> LockGuard {
    let mut guard = None;
    wait_until("each node grants it", || {
        let locked = match mutex.lock() {
            Ok(locked) => locked,
            // Too few nodes vote yet.
            Err(error) if is_unreachable(&error) => return false,
            Err(error) => panic!("{error:?}"),
        };
        guard = Some(locked).filter(|locked| locked.missing_nodes().is_empty());
        guard.is_some()
    });
    guard.expect("each node granted it")
}

/// Returns whether all nodes but those with these URLs vote for a guard.
fn misses_none_but(guard: &LockGuard, urls: &[String]) -> bool {
    let mut missing = guard.missing_nodes().into_iter();
    missing.all(|node| urls.contains(&format!("redis://{node}/")))
}

#[test]
fn a_lock_is_held_on_every_node_and_released_from_all() {
    let nodes = Nodes::start(5);
    let locks = nodes.manager();
    let guard = locked_on_all(&locks.mutex("n"));
    let all = vec![Some(guard.owner().to_owned()); 5];
    assert_eq!(holders(&nodes, "n"), all);
    let other = nodes.manager();
    assert!(other.try_lock("n").expect("the nodes answer").is_none());
    let fence = guard.fence();
    guard.release().expect("it is held");
    wait_until("it is free everywhere", || {
        holders(&nodes, "n") == vec![None; 5]
    });
    let guard = other
        .try_lock("n")
        .expect("the nodes answer")
        .expect("it is free");
    assert!(guard.fence() > fence);
}

#[test]
fn a_majority_is_enough_and_less_is_not() {
    let nodes = Nodes::start(5);
    let locks = build(nodes.builder().node_timeout(secs(1)));
    nodes.servers()[1].kill();
    nodes.servers()[3].pause();
    for _ in 0..3 {
        let guard = locks.lock("n").expect("three nodes are there");
        guard.release().expect("it is held");
    }
    nodes.servers()[0].kill();
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
    nodes.servers()[3].resume();
    wait_until("the node is asked again", || {
        locks.try_lock("n").is_ok_and(|guard| guard.is_some())
    });
}

#[test]
fn two_urls_of_one_server_are_rejected() {
    let nodes = Nodes::start(2);
    let mut urls = nodes.urls();
    urls.push(urls[0].replace("127.0.0.1", "localhost"));
    let error = patient(&urls.join(" ")).build().expect_err("two are one");
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

/// Every kind of lock of a quorum, from a grant over a wait to a release.
#[test]
fn every_kind_of_lock_goes_from_one_process_to_the_next() {
    let nodes = Nodes::start(3);
    let (one, other) = (nodes.manager(), nodes.manager());
    for kind in [
        Kind::Mutex,
        Kind::Reentrant,
        Kind::Reader,
        Kind::Writer,
        Kind::Multi,
    ] {
        let name = kind.name();
        let held = kind.rival().of(&one, name).hold();
        let waiting = kind.of(&other, name).locking();
        wait_until("it waits on every node", || {
            nodes.raws().iter().all(|raw| !raw.queue(name).is_empty())
        });
        held.release();
        waiting.outcome().expect("it becomes free");
        waiting.release();
    }
}

#[test]
fn operators_see_the_nodes_of_a_holder_and_can_release_it() {
    let nodes = Nodes::start(3);
    let locks = nodes.manager();
    let guard = locked_on_all(&locks.mutex("n"));
    let () = nodes.raws()[1].ask(&["SET", "n", "theirs", "PX", "600000"]);
    let seen = locks
        .inspect("n")
        .expect("the nodes answer")
        .expect("it is held");
    let count = |owner: &str| {
        let mut holders = seen.holders.iter();
        holders
            .find(|holder| holder.owner == owner)
            .map(|holder| holder.nodes.len())
    };
    assert_eq!((count(guard.owner()), count("theirs")), (Some(2), Some(1)));
    let listed: Result<Vec<_>, _> = locks.list("*").collect();
    let names: Vec<_> = listed
        .expect("the nodes answer")
        .into_iter()
        .map(|lock| lock.name)
        .collect();
    assert_eq!(names, ["n"]);
    assert!(
        locks
            .force_release("n", guard.owner())
            .expect("the nodes answer")
    );
    wait_until("the holder learns of it", || guard.check().is_err());
    assert!(
        !locks
            .force_release("n", guard.owner())
            .expect("the nodes answer")
    );
}

#[test]
fn a_detached_lock_is_adopted_once() {
    let nodes = Nodes::start(3);
    let (one, other) = (nodes.manager(), nodes.manager());
    let guard = locked_on_all(&one.mutex("n"));
    let fence = guard.fence();
    let claim = guard.detach();
    nodes.servers()[1].kill();
    let adopted = other.adopt(&claim).expect("it was detached");
    assert!(adopted.fence() > fence);
    assert!(matches!(one.adopt(&claim), Err(Error::Lost(_))));
    adopted.check().expect("it is held");
    adopted.release().expect("it is held");
    assert!(one.try_lock("n").expect("two nodes answer").is_some());
}

#[test]
fn a_writer_becomes_a_reader() {
    let nodes = Nodes::start(3);
    let (one, other) = (nodes.manager(), nodes.manager());
    let writer = one.rwlock("n").write().expect("it is free");
    let fence = writer.fence();
    let reader = writer.downgrade().expect("nobody waits");
    assert!(reader.fence() >= fence);
    let second = other.rwlock("n").try_read().expect("the nodes answer");
    assert!(second.is_some(), "readers share it");
    assert!(
        other
            .rwlock("n")
            .try_write()
            .expect("the nodes answer")
            .is_none()
    );
}
