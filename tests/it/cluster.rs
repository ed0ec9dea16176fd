//! Locks on a Redis Cluster.

mod failover;
mod migration;
mod operators;

use std::time::Instant;

use leasehold::{Admission, Error, LockGuard, LockManager};

use crate::connect::documented_rights;
use crate::support::{
    Cluster, Kind, PATIENCE, SCRIPTS_NEED_NO_REPLICAS, SLOTS, Server, build, cannot_show,
    give_slots, hasty, is_ok, locked_at_last, logged, names_of_masters, secs, task, unused_url,
    wait_for_servers, wait_until,
};

/// Returns the end of a lease, unless it is renewed before. A renewal moves it by much more than a second.
fn end_of(guard: &LockGuard) -> Instant {
    Instant::now() + guard.remaining()
}

#[test]
fn every_kind_of_lock_goes_from_one_process_to_the_next() {
    let cluster = Cluster::start();
    let (one, other) = (cluster.manager(), cluster.manager());
    for kind in Kind::ALL {
        let held = kind.rival().of(&one, kind.name()).hold();
        let waiting = kind.of(&other, kind.name()).locking();
        assert!(waiting.waits());
        held.release();
        waiting.locked();
        waiting.release();
    }
}

#[test]
fn a_rate_limiter_counts_the_permits_of_all_processes() {
    let cluster = Cluster::start();
    let (one, other) = (cluster.manager(), cluster.manager());
    for name in names_of_masters() {
        let limited = |locks: &LockManager| locks.rate_limiter(&name, 1, secs(600)).try_acquire();
        assert_eq!(limited(&one).expect("asked"), Admission::Admitted);
        assert!(limited(&other).expect("asked") != Admission::Admitted);
    }
}

#[test]
fn a_claim_is_adopted_by_another_process() {
    let cluster = Cluster::start();
    let (one, other) = (cluster.manager(), cluster.manager());
    for name in names_of_masters() {
        let guard = one.lock(&name).expect("it is free");
        let fence = guard.fence();
        let claim = guard.detach();
        let adopted = other.adopt(&claim).expect("nobody else has");
        assert!(adopted.fence() > fence);
        adopted.release().expect("it is held");
    }
}

#[test]
fn a_multi_lock_over_slots_excludes_each_of_its_names() {
    let cluster = Cluster::start();
    let (one, other) = (cluster.manager(), cluster.manager());
    let names = names_of_masters();
    let set = one.multi(&names);
    let guard = set.lock().expect("all are free");
    for name in &names {
        assert!(other.try_lock(name).expect("asked").is_none());
    }
    assert!(
        other
            .multi(&names[1..])
            .try_lock()
            .expect("asked")
            .is_none()
    );
    guard.extend(secs(120)).expect("all are held");
    guard.release().expect("all are held");
    // A try that gets only some of the names keeps none.
    let last = other.lock(&names[2]).expect("it is free");
    assert!(set.try_lock().expect("asked").is_none());
    for name in &names[..2] {
        drop(other.try_lock(name).expect("asked").expect("it is free"));
    }
    last.release().expect("it is held");
    drop(set.try_lock().expect("asked").expect("all are free"));
}

/// Starts a node of another cluster. It has no slots yet.
fn stranger() -> Server {
    Server::of_cluster(&[])
}

#[track_caller]
fn give_all_slots(stranger: &Server) {
    give_slots(stranger, 0..SLOTS);
    wait_for_servers("it serves all slots", || is_ok(stranger));
}

/// A node that has left the cluster, or is of another one, would grant what the masters have granted.
#[test]
fn a_node_that_knows_none_of_the_masters_is_refused_and_warned_of_once() {
    let (nodes, stranger) = (Cluster::without_failover(), stranger());
    let urls = nodes.urls().into_iter().chain([stranger.url()]);
    let locks = build(
        LockManager::cluster(urls)
            .connect_timeout(secs(10))
            .io_timeout(secs(5)),
    );
    let address = stranger.url().replace("redis://", "").replace('/', "");
    let warnings = logged(&format!("{address} is a node of another cluster"));
    give_all_slots(&stranger);
    let names = names_of_masters();
    let holder = build(LockManager::cluster(nodes.urls()).connect_timeout(secs(10)));
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

#[test]
fn seeds_of_several_clusters_are_an_error() {
    let (nodes, stranger) = (Cluster::without_failover(), stranger());
    give_all_slots(&stranger);
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
fn without_full_coverage_the_slots_of_other_masters_are_served() {
    let cluster = Cluster::start();
    let locks = cluster.manager();
    let names = names_of_masters();
    let (master, replica) = cluster.owner(&names[0]);
    let others = || {
        let gone = [master.port(), replica.port()];
        let all = cluster.servers().iter();
        all.filter(move |server| !gone.contains(&server.port()))
    };
    let require = |required: &str| {
        for server in others() {
            let set = ["CONFIG", "SET", "cluster-require-full-coverage", required];
            let () = server.raw().ask(&set);
        }
    };
    require("yes");
    replica.kill();
    master.kill();
    wait_for_servers("the cluster is down", || !others().any(is_ok));
    for name in &names {
        let error = locks.try_lock(name).expect_err("the cluster is down");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    }
    require("no");
    wait_for_servers("the others serve their slots", || others().all(is_ok));
    for name in &names[1..] {
        locked_at_last(&locks, name);
    }
    let error = locks.try_lock(&names[0]).expect_err("its master is gone");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    // A new process finds the others too.
    locked_at_last(&cluster.manager(), &names[1]);
}

#[test]
fn a_master_with_too_few_replicas_grants_nothing() {
    if cannot_show(SCRIPTS_NEED_NO_REPLICAS) {
        return;
    }
    let cluster = Cluster::start();
    let locks = cluster.manager();
    let names = names_of_masters();
    let (master, _) = cluster.owner(&names[0]);
    let require = |replicas: &str| {
        let set = ["CONFIG", "SET", "min-replicas-to-write", replicas];
        let () = master.raw().ask(&set);
    };
    require("2");
    let error = locks.try_lock(&names[0]).expect_err("it has one replica");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    drop(locks.lock(&names[1]).expect("this master needs none"));
    require("0");
    locked_at_last(&locks, &names[0]);
}

#[test]
fn a_grant_waits_for_replicas() {
    let cluster = Cluster::start();
    let name = &names_of_masters()[0];
    let locks = cluster
        .builder()
        .replicas(1)
        .build()
        .expect("all are there");
    let guard = locks
        .mutex(name)
        .lease(secs(15))
        .lock()
        .expect("it is free");
    let end = end_of(&guard);
    wait_until("it is renewed", || end_of(&guard) > end + secs(1));
    guard.release().expect("it is held");
    let (_, replica) = cluster.owner(name);
    replica.pause();
    let more = cluster.builder().replicas(2).build().expect("it is there");
    let error = more.try_lock(name).expect_err("there is one replica");
    assert!(matches!(error, Error::NotReplicated { .. }), "{error:?}");
    replica.resume();
}

#[test]
fn the_cluster_is_found_from_any_node_that_answers() {
    let cluster = Cluster::start();
    let fence = locked_at_last(&cluster.manager(), "n");
    let mut last = fence;
    for server in cluster.servers() {
        let seeds = [unused_url(), server.url()];
        let locks = LockManager::cluster(seeds)
            .connect_timeout(secs(10))
            .build();
        let next = locked_at_last(&locks.expect("one of them answers"), "n");
        assert!(next > last);
        last = next;
    }
    let dead = LockManager::cluster([unused_url()]).connect_timeout(secs(1));
    let dead = dead.build().expect_err("there is none");
    assert!(matches!(dead, Error::Unavailable { .. }), "{dead:?}");
}

/// It accepts connections, and answers nothing.
#[test]
fn a_master_that_hangs_delays_no_build() {
    let nodes = Cluster::without_failover();
    for hung in nodes.servers() {
        hung.pause();
        // Longer than the test may take.
        let limit = secs(600);
        let builder = LockManager::cluster(nodes.urls())
            .connect_timeout(limit)
            .io_timeout(limit);
        let built = task(move || builder.build());
        drop(built.end().expect("the other masters answer"));
        hung.resume();
    }
}

#[test]
fn a_server_that_is_no_node_of_a_cluster_is_unsupported() {
    let server = Server::start();
    let error = LockManager::cluster([server.url()]).build();
    let error = error.expect_err("it is a single server");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    assert!(
        error.to_string().contains("LockManager::cluster"),
        "{error}"
    );
    // The other way round.
    let cluster = Cluster::start();
    let error = hasty(&cluster.urls()[0]).build().expect_err("a cluster");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
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

#[test]
fn a_wrong_password_is_denied_and_not_shown() {
    let cluster = Cluster::start();
    for server in cluster.servers() {
        let set = ["CONFIG", "SET", "requirepass", "s3cret"];
        let () = server.raw().ask(&set);
    }
    let builder = || cluster.builder().connect_timeout(secs(10));
    drop(builder().password("s3cret").build().expect("it is right"));
    for wrong in [builder().password("s3cret-wrong"), builder()] {
        let error = wrong.build().expect_err("it is wrong");
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        assert!(
            !format!("{error:?} {error:#}").contains("s3cret"),
            "{error}"
        );
    }
}

#[test]
fn wrong_settings_are_rejected_before_anything_is_sent() {
    let urls = ["redis://127.0.0.1:1/", "redis://127.0.0.1:2/"];
    for (builder, option) in [
        (LockManager::cluster([""; 0]), "urls"),
        (LockManager::cluster([urls[0], urls[0]]), "urls"),
        (LockManager::cluster(["redis://127.0.0.1:1/3"]), "urls"),
        (LockManager::cluster(["unix:///run/redis"]), "urls"),
        (
            LockManager::cluster([urls[0], "redis://:other@127.0.0.1:2/"]),
            "urls",
        ),
        (LockManager::cluster(urls).database(3), "database"),
        (LockManager::cluster(["host"]), "url"),
    ] {
        match builder.build_unchecked() {
            Err(Error::Config { option: wrong, .. }) => assert_eq!(wrong, option),
            other => panic!("{other:?}"),
        }
    }
    let same = LockManager::cluster(urls).database(0).build_unchecked();
    drop(same.expect("a cluster has database 0"));
}
