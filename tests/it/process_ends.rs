//! The exit of a process. `tests/contract/crashes.rs` shows what the end of a process costs the others.

use crate::support::{Child, Server, manager, wait_until};

/// No stack is unwound and no guard is dropped, but the system closes the connections.
#[test]
fn an_exit_sends_nothing() {
    let server = Server::start();
    let redis = server.raw();
    let guard = manager(&server.url());
    let guard = guard.lock("awaited").expect("it is free");
    let mut child = Child::start(&server.url(), "lease_ms=600000");
    child.lock("held");
    // The wait is on a thread, while the process goes on to its end.
    child.ask("crowd awaited 600000 1");
    redis.wait_until_queued("awaited", 1);
    let owner = redis.get("held");
    let waiter = redis.queue("awaited").remove(0);
    let channel = redis.channel("awaited", &waiter);
    child.exit();
    assert_eq!(redis.get("held"), owner, "somebody has released it");
    assert_eq!(redis.queue("awaited"), [waiter]);
    wait_until("the server knows", || redis.listeners(&channel) == 0);
    // The release passes over the waiter.
    guard.release().expect("it was held until now");
    assert_eq!(redis.owner("awaited"), None);
}
