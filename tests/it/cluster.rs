//! Locks on a Redis Cluster: what only real nodes show. `tests/contract/cluster.rs` has the rest, and
//! `tests/contract/failovers.rs` what a failover may lose.

use std::collections::BTreeSet;

use leasehold::{Error, LockManager};

use crate::connect::documented_rights;
use crate::support::{
    Cluster, Kind, Nodes, PATIENCE, SLOTS, Server, build, give_slots, is_ok, locked_at_last,
    logged, names_of_masters, secs, slot_of, unhurried, wait_until,
};

/// A waiter has marked the lock. Its release cannot use the queue while the slot moves.
#[test]
fn a_lock_with_a_waiter_is_released_while_its_slot_moves() {
    let name = |number: usize| format!("{{moving}}{number}");
    let cluster = Cluster::start();
    let (holder, other) = (cluster.manager(), cluster.manager());
    let slot = slot_of(&name(0));
    let (from, _) = cluster.owner(&name(0));
    let to = cluster.servers()[..3]
        .iter()
        .find(|server| server.port() != from.port());
    let guards = [0, 1].map(|number| holder.lock(name(number)).expect("it is free"));
    let waiters = [0, 1].map(|number| Kind::Mutex.of(&other, &name(number)).locking());
    wait_until("the locks are marked", || {
        [0, 1].iter().all(|number| {
            let value = from.raw().get(&name(*number));
            value.is_some_and(|value| value.ends_with('!'))
        })
    });
    let migration = cluster.migrate(slot, to.expect("there are three"));
    // One of them is at the new master already.
    migration.move_key(&name(0));
    for guard in guards {
        guard.release().expect("it is held");
    }
    // All keys of the other one are at the old master, so it may have been handed over.
    assert!(waiters[0].waits());
    migration.end();
    for waiter in waiters {
        waiter.locked();
        waiter.release();
    }
}

/// The scan of the first master begins again at its replica.
#[test]
fn a_list_shows_each_lock_once_although_a_master_fails_meanwhile() {
    const LOCKS: usize = 900;
    let cluster = Cluster::start();
    let locks = cluster.manager();
    let names: Vec<_> = (0..LOCKS).map(|number| format!("lock-{number}")).collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| {
            let mutex = locks.mutex(name).lease(secs(600));
            mutex.lock().expect("it is free")
        })
        .collect();
    let all = || {
        let all = locks.list("lock-*");
        all.map(|lock| lock.expect("all masters are well").name)
            .collect::<Vec<_>>()
    };
    let listed = all();
    let once: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!((listed.len(), once.len()), (LOCKS, LOCKS));
    for server in &cluster.servers()[..3] {
        let _: u32 = server.raw().ask(&["WAIT", "1", "0"]);
    }
    let mut list = locks.list("lock-*");
    let mut seen: Vec<_> = list.by_ref().take(1).collect();
    // The scan begins with the master of slot 0.
    let first = names.iter().min_by_key(|name| slot_of(name)).expect("some");
    let (master, replica) = cluster.owner(first);
    master.kill();
    cluster.wait_for_failover(master, replica, slot_of(first));
    locked_at_last(&locks, &names_of_masters()[0]);
    seen.extend(list);
    let seen: Vec<_> = seen
        .into_iter()
        .map(|lock| lock.expect("they are well").name)
        .collect();
    let once: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!((seen.len(), once.len()), (LOCKS, LOCKS));
    drop(guards);
}

/// A node that has left the cluster, or is of another one, would grant what the masters have granted.
#[test]
fn a_node_that_knows_none_of_the_masters_is_refused_and_warned_of_once() {
    let (nodes, stranger) = (Cluster::without_failover(), Server::of_cluster(&[]));
    // It has no slots yet.
    let urls = nodes.urls().into_iter().chain([stranger.url()]);
    let locks = build(
        LockManager::cluster(urls)
            .connect_timeout(secs(10))
            .io_timeout(secs(5)),
    );
    let address = stranger.url().replace("redis://", "").replace('/', "");
    let warnings = logged(&format!("{address} is a node of another cluster"));
    give_slots(&stranger, 0..SLOTS);
    wait_until("it serves all slots", || is_ok(&stranger));
    seeds_of_several_clusters_are_an_error(&nodes, &stranger);
    let names = names_of_masters();
    let holder = build(unhurried(LockManager::cluster(nodes.urls())));
    let guard = holder.mutex(&names[0]).lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    // While a master is suspected, another node is asked for its slots several times a second.
    nodes.servers()[2].kill();
    let raw = stranger.raw();
    // Redis before 7 counts all CLUSTER commands together.
    let asked = || {
        let stats = raw.stats();
        let all = stats.get("cluster|slots").or(stats.get("cluster"));
        all.copied().unwrap_or(0)
    };
    let before = asked();
    wait_until("the stranger is asked", || {
        locks.try_lock(&names[2]).expect_err("its master is gone");
        let tried = locks.try_lock(&names[0]).expect("its master is there");
        assert!(tried.is_none(), "it is held");
        asked() >= before + 3
    });
    let warning = warnings.recv_timeout(PATIENCE).expect("it is logged");
    assert_eq!(warning.level, log::Level::Warn);
    assert!(warnings.try_recv().is_err(), "once for each node");
    guard.release().expect("it is held");
}

/// Checks that nodes of two clusters are no seeds of one manager.
fn seeds_of_several_clusters_are_an_error(nodes: &Nodes, stranger: &Server) {
    // A node that is late would be refused after the first discovery.
    wait_until("both answer at once", || {
        let urls = [nodes.urls()[0].clone(), stranger.url()];
        let built = LockManager::cluster(urls).connect_timeout(secs(10)).build();
        let Err(error) = built else { return false };
        assert!(
            matches!(error, Error::Config { option: "urls", .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("different clusters"), "{error}");
        true
    });
}

#[test]
fn the_documented_access_list_is_enough_for_a_cluster() {
    let (cluster, lines) = (Cluster::start(), documented_rights());
    for server in cluster.servers() {
        for line in [0, 1, 2, 3, 5, 8] {
            let rights = lines[line].iter().map(String::as_str);
            let user = ["ACL", "SETUSER", "app"].into_iter().chain(rights);
            let () = server.raw().ask(&user.collect::<Vec<_>>());
        }
    }
    let user = || cluster.builder().username("app").password("us3r-s3cret");
    let managers = [0; 2].map(|_| build(user()));
    let [one, other] = &managers;
    for kind in Kind::ALL {
        let held = kind.rival().of(one, kind.name()).hold();
        let waiting = kind.of(other, kind.name()).locking();
        held.release();
        waiting.locked();
        waiting.release();
    }
    for name in names_of_masters() {
        let guard = one.lock(&name).expect("it is free");
        guard.extend(secs(60)).expect("it is held");
        assert!(other.inspect(&name).expect("asked").is_some());
        let claim = guard.detach();
        drop(other.adopt(&claim).expect("nobody else has"));
        let limiter = one.rate_limiter(format!("rate-{name}"), 1, secs(1));
        limiter.try_acquire().map(drop).expect("asked");
    }
    assert!(one.list("*").all(|lock| lock.is_ok()));
    for server in cluster.servers() {
        let refused: Vec<redis::Value> = server.raw().ask(&["ACL", "LOG"]);
        assert!(refused.is_empty(), "{refused:?}");
    }
}

/// Also of a Sentinel set.
#[test]
fn wrong_settings_are_rejected_before_anything_is_sent() {
    let [one, other] = ["redis://127.0.0.1:1/", "redis://127.0.0.1:2/"];
    let cluster = |urls: &[&str]| LockManager::cluster(urls);
    let sentinel = |urls: &[&str]| LockManager::sentinel(urls, "mine");
    let with_database = "redis://127.0.0.1:1/3";
    for (builder, option) in [
        (cluster(&[]), "urls"),
        (cluster(&[one, one]), "urls"),
        (cluster(&[with_database]), "urls"),
        (cluster(&["unix:///run/redis"]), "urls"),
        (cluster(&[one, "redis://:other@127.0.0.1:2/"]), "urls"),
        (cluster(&[one, other]).database(3), "database"),
        (cluster(&["host"]), "url"),
        (sentinel(&[]), "sentinels"),
        (LockManager::sentinel([one, other], ""), "master"),
        (sentinel(&[one, one]), "sentinels"),
        (sentinel(&[with_database]), "sentinels"),
        (sentinel(&["unix:///run/sentinel"]), "sentinels"),
        (sentinel(&["host"]), "url"),
    ] {
        match builder.build_lazy() {
            Err(Error::Config { option: wrong, .. }) => assert_eq!(wrong, option),
            other => panic!("{other:?}"),
        }
    }
    let same = cluster(&[one, other]).database(0).build_lazy();
    drop(same.expect("a cluster has database 0"));
}
