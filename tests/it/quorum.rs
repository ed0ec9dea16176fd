//! Locks over several independent servers.

use leasehold::{Error, LockManager};

use crate::support::{Nodes, build, secs, wait_until};

/// Returns the holders of a mutex, by node.
fn holders(nodes: &Nodes, name: &str) -> Vec<Option<String>> {
    nodes
        .raws()
        .iter()
        .map(|raw| raw.ask(&["GET", name]))
        .collect()
}

#[test]
fn a_lock_is_held_on_every_node_and_released_from_all() {
    let nodes = Nodes::start(5);
    let locks = nodes.manager();
    let guard = locks.lock("n").expect("it is free");
    assert_eq!(
        holders(&nodes, "n"),
        vec![Some(guard.owner().to_owned()); 5]
    );
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
            assert_eq!((needed, granted), (3, 2));
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
    let error = LockManager::quorum(urls).build().expect_err("two are one");
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
