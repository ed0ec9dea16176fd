//! Real processes that exit, are killed, or stand still. `tests/contract/crashes.rs` shows what that costs the others.

use crate::support::{Child, Server, manager, secs, wait_until};

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

/// The first waiter is killed, the second one stands still, and the third one is well.
#[test]
fn a_killed_waiter_is_skipped_and_a_stopped_one_goes_on() {
    let server = Server::start();
    let redis = server.raw();
    let guard = manager(&server.url());
    let guard = guard.mutex("n").lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    let [killed, stopped, well] = [1, 2, 3].map(|place| {
        // Twice this time limit is for how long a process may take to pick the lock up.
        let mut child = Child::start(&server.url(), "lease_ms=600000 io_timeout_ms=5000");
        child.say("lock n");
        redis.wait_until_queued("n", place);
        child
    });
    stopped.pause();
    let [owner, ..] = &redis.queue("n")[..] else {
        panic!("they wait");
    };
    let channel = redis.channel("n", owner);
    killed.kill();
    wait_until("the server knows", || redis.listeners(&channel) == 0);
    guard.release().expect("it was held until now");
    // The release gave the lock to the stopped process, which does not pick it up.
    let second = well.locked();
    stopped.resume();
    redis.wait_until_queued("n", 1);
    well.kill();
    let () = redis.ask(&["DEL", "n"]);
    assert!(stopped.locked() > second);
}
