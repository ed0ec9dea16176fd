//! The threads of a manager end with it, in a process of its own.

use crate::support::{Child, Topology, manager, name, on, shared};

/// Behind sentinels there is one thread more than on a single server.
#[test]
fn threads_end_when_everything_is_dropped() {
    on(Topology::Sentinel, threads_end);
}

fn threads_end() {
    let redis = shared();
    let (name, own) = (name("threads-end"), name("threads-end-own"));
    let locks = manager(redis.url());
    let guard = locks.lock(&name).expect("it is free");
    let mut child = Child::start(redis.url(), "");
    // One lease to renew and to watch, and one wait that subscribes.
    child.lock(&own);
    child.say(format_args!("lock {name}"));
    redis.wait_until_queued(&name, 1);
    guard.release().expect("it was held until now");
    child.locked();
    let threads = ["renew", "watch", "wakeu", "pool", "r2d2-", "senti"];
    // One more for each of the three sentinels, under the name of the one that finds the master.
    let answer = child.ask(format_args!("drop {}", threads.len() + 3));
    let (before, after) = answer.split_once(" -> ").expect("two lists");
    // The system cuts names after 15 characters.
    for thread in threads {
        assert!(
            before.contains(&format!("leasehold-{thread}\"")),
            "{before}"
        );
    }
    assert_eq!(after, "[]");
    assert!(!redis.exists(&name) && !redis.exists(&own));
}
