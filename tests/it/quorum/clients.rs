//! Clients that die between the writes to the nodes, or pause for longer than their lease.

use std::time::Instant;

use crate::support::{Child, Fault, Nodes, Proxy, Role, SLACK, locking, ms, secs, wait_until};

/// A client asks two of five nodes, and is killed before its requests reach the others.
#[test]
fn a_client_killed_between_two_nodes_delays_others_by_its_lease() {
    let nodes = Nodes::start(5);
    let lease = secs(4);
    let proxies: Vec<_> = nodes.servers()[2..].iter().map(Proxy::to).collect();
    let mut urls = nodes.urls();
    urls.truncate(2);
    urls.extend(proxies.iter().map(Proxy::url));
    let settings = "lease_ms=4000 node_timeout_ms=60000";
    let mut killed = Child::start(&urls.join(" "), settings);
    // Its connections are open.
    killed.lock("first");
    assert_eq!(killed.ask("release first"), "released");
    for proxy in &proxies {
        proxy.strike(Role::Pool, Fault::LoseRequests);
    }
    killed.say("lock n");
    let asked = &nodes.raws()[..2];
    wait_until("two nodes grant it", || {
        asked.iter().all(|node| node.exists("n"))
    });
    killed.kill();
    let begun = Instant::now();
    let left = asked.iter().filter_map(|node| node.ttl("n")).min();
    let other = nodes.manager();
    // The three other nodes are free.
    let guard = other.lock("n").expect("three nodes are free");
    guard.release().expect("it is held");
    // Without one of them, others wait until the votes of the killed client are over.
    nodes.servers()[4].kill();
    let waiter = locking(&other.mutex("n"));
    let guard = waiter.end().expect("it becomes free");
    if let Some(left) = left {
        let after = begun.elapsed();
        assert!(after + ms(2) >= left, "taken after {after:?} of {left:?}");
    }
    assert!(begun.elapsed() < lease + SLACK, "taken too late");
    guard.release().expect("it is held");
}
