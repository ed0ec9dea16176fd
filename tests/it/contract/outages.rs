//! A server that refuses to write, or does nothing: for less than a lease it costs nobody anything.

use std::fs;
use std::time::Duration;

use leasehold::{Error, LeaseState, LostCause};

use super::scene::{NAME, Scene, both_ways};
use super::traces::only_fences_are_left;
use crate::support::{Kind, PATIENCE, Raw, Server, lost, manager, secs, task, wait_until};

/// Faults are over long before: renewed by a third of it, that leaves twice as much.
const LEASE: Duration = secs(15);

/// The server refuses what is asked from `begin` to `end`.
#[track_caller]
fn refused_for_a_while(scene: Scene, begin: impl FnOnce(&Scene), end: impl FnOnce(&Scene)) {
    begin(&scene);
    scene.nothing_new_is_granted();
    scene.wait_until_out_of_reach(true);
    assert_ne!(scene.guard.lease().state(), LeaseState::Lost);
    assert!(scene.waiter.waits(), "it was told of what passes");
    end(&scene);
    scene.wait_until_out_of_reach(false);
    scene.ends_well();
}

pub(super) fn a_master_that_is_a_replica_for_a_while_costs_nothing(kind: Kind) {
    both_ways(kind, |kind| {
        let replica_of = |scene: &Scene, host: &str, port: &str| {
            let () = scene.redis.ask(&["REPLICAOF", host, port]);
        };
        refused_for_a_while(
            Scene::new(kind, Server::start(), LEASE),
            // Of nobody, so that it keeps what it has.
            |scene| replica_of(scene, "127.0.0.1", "1"),
            |scene| replica_of(scene, "NO", "ONE"),
        );
    });
}

/// Whoever gives up while nothing can be written is taken out of the queue when it can.
pub(super) fn who_gives_up_beside_a_replica_is_forgotten_by_the_master(kind: Kind) {
    let server = Server::start();
    let redis = server.raw();
    let [holds, gives_up, stays] = [(); 3].map(|()| manager(&server.url()));
    let holder = kind.rival().of(&holds, NAME).lease(secs(600)).hold();
    let leaving = kind.of(&gives_up, NAME).locking();
    redis.wait_until_queued(NAME, 1);
    let staying = kind.of(&stays, NAME).locking();
    redis.wait_until_queued(NAME, 2);
    let () = redis.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    assert!(!gives_up.clone().close(secs(1)), "it was taken for done");
    let outcome = leaving.outcome();
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    let () = redis.ask(&["REPLICAOF", "NO", "ONE"]);
    assert!(gives_up.close(PATIENCE), "something is left to send");
    redis.wait_until_queued(NAME, 1);
    holder.release();
    staying.locked();
    staying.release();
}

pub(super) fn replicas_that_are_missing_for_a_while_cost_nothing(kind: Kind) {
    both_ways(kind, |kind| {
        let wanted = |scene: &Scene, n: &str| {
            let config = ["CONFIG", "SET", "min-replicas-to-write", n];
            let () = scene.redis.ask(&config);
        };
        refused_for_a_while(
            Scene::new(kind, Server::start(), LEASE),
            |scene| wanted(scene, "1"),
            |scene| wanted(scene, "0"),
        );
    });
}

pub(super) fn a_disk_that_fails_for_a_while_costs_nothing(kind: Kind) {
    both_ways(kind, |kind| {
        let saves = |scene: &Scene, outcome: &str| {
            let () = scene.redis.ask(&["BGSAVE"]);
            wait_until("it is saved, or not", || {
                let report: String = scene.redis.ask(&["INFO", "persistence"]);
                report.contains("rdb_bgsave_in_progress:0")
                    && report.contains(&format!("rdb_last_bgsave_status:{outcome}"))
            });
        };
        let dump = |scene: &Scene| scene.server.dir().join("dump.rdb");
        // It means to save, at times that never come: only then does it mind that it cannot.
        let server = Server::with(&["--save", "3600 1000000"]);
        refused_for_a_while(
            Scene::new(kind, server, LEASE),
            |scene| {
                fs::create_dir(dump(scene)).expect("nothing is there");
                saves(scene, "err");
            },
            |scene| {
                fs::remove_dir(dump(scene)).expect("it is empty");
                saves(scene, "ok");
            },
        );
    });
}

pub(super) fn an_endless_script_of_another_costs_nothing(kind: Kind) {
    both_ways(kind, |kind| {
        let server = Server::with(&["--lua-time-limit", "50"]);
        refused_for_a_while(
            Scene::new(kind, server, LEASE),
            |scene| {
                let redis = scene.redis.clone();
                // Its end is an error.
                task(move || {
                    redis
                        .try_ask::<()>(&["EVAL", "while true do end", "0"])
                        .is_err()
                });
                wait_until_says(&scene.redis, "BUSY");
            },
            |scene| scene.redis.ask(&["SCRIPT", "KILL"]),
        );
    });
}

pub(super) fn a_server_that_loads_its_data_for_a_while_costs_nothing(kind: Kind) {
    both_ways(kind, |kind| {
        // Half a minute for all of it, if nobody says otherwise; it answers in between.
        let server = Server::with(&[
            "--rdbcompression",
            "no",
            "--loading-process-events-interval-bytes",
            "1024",
            "--key-load-delay",
            "50000",
        ]);
        let filler =
            "for i = 1, 600 do redis.call('SET', 'filler' .. i, string.rep('x', 1024)) end";
        let () = server.raw().ask(&["EVAL", filler, "0"]);
        refused_for_a_while(
            Scene::new(kind, server, LEASE),
            |scene| {
                let () = scene.redis.ask(&["SAVE"]);
                scene.server.kill_for_now();
                scene.server.start_again();
                wait_until_says(&scene.redis, "LOADING");
            },
            |scene| scene.redis.ask(&["CONFIG", "SET", "key-load-delay", "0"]),
        );
    });
}

/// Waits until the server answers with an error.
#[track_caller]
fn wait_until_says(redis: &Raw, code: &str) {
    wait_until(code, || match redis.try_ask::<String>(&["PING"]) {
        Err(error) => error.to_string().to_uppercase().contains(code),
        Ok(_) => false,
    });
}

pub(super) fn full_memory_keeps_out_only_what_is_new(kind: Kind) {
    both_ways(kind, |kind| {
        let scene = Scene::new(kind, Server::start(), LEASE);
        let most = |bytes: &str| {
            let () = scene.redis.ask(&["CONFIG", "SET", "maxmemory", bytes]);
        };
        most("1");
        scene.nothing_new_is_granted();
        scene.wait_until_renewed();
        assert!(scene.waiter.waits());
        let release = scene.guard.release();
        release.expect("what frees memory is not refused");
        let holders = scene.redis.holders(NAME);
        most("0");
        scene.waiter.locked();
        scene.waiter.release();
        // Whether it was handed over or only let go, which takes less memory, is for the server to decide.
        assert!(holders.len() <= 1, "{holders:?}");
        only_fences_are_left(&scene.redis, kind, NAME);
    });
}

pub(super) fn a_restart_that_keeps_the_data_costs_nothing(kind: Kind) {
    both_ways(kind, |kind| {
        let scene = Scene::new(kind, Server::keeping_data(&[]), LEASE);
        for _ in 0..2 {
            scene.server.kill_for_now();
            scene.nothing_new_is_granted();
            scene.server.start_again();
            scene.wait_until_renewed();
        }
        scene.ends_well();
    });
}

pub(super) fn a_server_that_stops_for_less_than_the_lease_costs_nothing(kind: Kind) {
    both_ways(kind, |kind| {
        let scene = Scene::new(kind, Server::start(), LEASE);
        scene.server.pause();
        wait_until("it is at risk", || {
            scene.guard.lease().state() == LeaseState::AtRisk
        });
        scene.server.resume();
        scene.ends_well();
    });
}

pub(super) fn clients_paused_for_less_than_the_lease_lose_nothing(kind: Kind) {
    for which in ["WRITE", "ALL"] {
        let scene = Scene::new(kind, Server::start(), LEASE);
        let () = scene.redis.ask(&["CLIENT", "PAUSE", "5000", which]);
        // Renewals are due in less.
        wait_until("it is at risk, or renewed", || {
            let renewed = scene.locks.stats().renewed > 0;
            renewed || scene.guard.lease().state() == LeaseState::AtRisk
        });
        scene.ends_well();
    }
}

pub(super) fn clients_paused_for_longer_than_the_lease_lose_it_and_no_more(kind: Kind) {
    for which in ["WRITE", "ALL"] {
        let scene = Scene::new(kind, Server::start(), secs(3));
        let losses = scene.guard.on_lost();
        let () = scene.redis.ask(&["CLIENT", "PAUSE", "7000", which]);
        let loss = losses.recv_timeout(PATIENCE).expect("it is told");
        assert_eq!(loss.cause, LostCause::Expired);
        // What was asked meanwhile is answered now; that revives nothing.
        scene.waiter.locked();
        assert_eq!(scene.guard.lease().state(), LeaseState::Lost);
        assert_eq!(lost(scene.guard.release()), loss);
        scene.waiter.release();
        assert!(scene.locks.close(PATIENCE), "something is left to send");
        only_fences_are_left(&scene.redis, kind, NAME);
    }
}

pub(super) fn connections_that_are_closed_cost_nothing(kind: Kind) {
    both_ways(kind, |kind| {
        let scene = Scene::new(kind, Server::start(), LEASE);
        // Those of the pool and the renewal, and then the listener's.
        for of in ["normal", "pubsub", "normal"] {
            scene.wait_until_renewed();
            let killed: u32 = scene.redis.ask(&["CLIENT", "KILL", "TYPE", of]);
            assert!(killed > 0, "there are none {of}");
        }
        scene.ends_well();
    });
}
