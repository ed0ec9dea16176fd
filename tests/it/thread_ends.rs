//! The threads of a manager end with it.

use crossbeam_channel::TryRecvError;

use crate::support::{
    Child, Fault, Proxy, Role, Server, Topology, manager, name, on, shared, wait_until,
};

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

/// With so many names on a slow link one of them is always due, and to read it a thread needs the manager.
#[test]
fn receivers_of_leaders_end_with_the_last_handle() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = manager(&proxy.url());
    let all: Vec<_> = (0..60)
        .map(|number| locks.election(format!("n{number}")))
        .map(|election| election.observe().expect("Redis replies"))
        .collect();
    proxy.strike(Role::Pool, Fault::Late(50));
    let before = locks.stats().requests;
    wait_until("each name is due once more", || {
        locks.stats().requests >= before + 60
    });
    drop(locks);
    wait_until("all receivers have ended", || {
        all.iter().all(|seen| {
            seen.try_iter().for_each(drop);
            seen.try_recv() == Err(TryRecvError::Disconnected)
        })
    });
}
