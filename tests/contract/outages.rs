//! A server that refuses to write or does not reply. No lock is lost if that lasts for less than a lease.

use std::fs;
use std::time::Duration;

use leasehold::{Error, LeaseState, LostCause};

use crate::holder_and_waiter::{HolderAndWaiter, NAME, both_ways};
use crate::traces::only_fences_are_left;
use crate::support::{Kind, PATIENCE, Raw, Server, lost, manager, secs, task, wait_until};

/// Longer than each fault of these tests. A lease is renewed after a third of it, so two thirds are left for the fault.
const LEASE: Duration = secs(15);

/// Checks that it does no harm if the server refuses requests from `begin` to `end`.
#[track_caller]
fn refused_for_a_while(
    pair: HolderAndWaiter,
    begin: impl FnOnce(&HolderAndWaiter),
    end: impl FnOnce(&HolderAndWaiter),
) {
    begin(&pair);
    pair.assert_nothing_new_is_granted();
    pair.wait_until_unreachable(true);
    assert_ne!(pair.guard.lease().state(), LeaseState::Lost);
    assert!(
        pair.waiter.waits(),
        "the waiter got an error that is transient"
    );
    end(&pair);
    pair.wait_until_unreachable(false);
    pair.assert_unharmed();
}

pub(crate) fn a_master_that_is_a_replica_for_a_while_costs_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let replica_of = |pair: &HolderAndWaiter, host: &str, port: &str| {
            let () = pair.redis.ask(&["REPLICAOF", host, port]);
        };
        refused_for_a_while(
            HolderAndWaiter::new(kind, Server::start(), LEASE),
            // The master does not exist, so the replica keeps its data.
            |pair| replica_of(pair, "127.0.0.1", "1"),
            |pair| replica_of(pair, "NO", "ONE"),
        );
    });
}

/// A waiter gives up while the server is a replica, which cannot take it out of the queue.
pub(crate) fn a_waiter_that_gives_up_beside_a_replica_leaves_the_queue_of_the_master(world: &World, kind: Kind) {
    let server = Server::start();
    let redis = server.raw();
    let [holds, gives_up, stays] = [(); 3].map(|()| world.manager());
    let holder = kind.rival().of(&holds, NAME).lease(secs(600)).hold();
    let leaving = kind.of(&gives_up, NAME).locking();
    redis.wait_until_queued(NAME, 1);
    let staying = kind.of(&stays, NAME).locking();
    redis.wait_until_queued(NAME, 2);
    let () = redis.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    assert!(
        !gives_up.clone().close(secs(1)),
        "close() did not wait for the withdrawal"
    );
    let outcome = leaving.outcome();
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    let () = redis.ask(&["REPLICAOF", "NO", "ONE"]);
    assert!(gives_up.close(PATIENCE), "something is left to send");
    redis.wait_until_queued(NAME, 1);
    holder.release();
    staying.locked();
    staying.release();
}

pub(crate) fn replicas_that_are_missing_for_a_while_cost_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let wanted = |pair: &HolderAndWaiter, n: &str| {
            let config = ["CONFIG", "SET", "min-replicas-to-write", n];
            let () = pair.redis.ask(&config);
        };
        refused_for_a_while(
            HolderAndWaiter::new(kind, Server::start(), LEASE),
            |pair| wanted(pair, "1"),
            |pair| wanted(pair, "0"),
        );
    });
}

pub(crate) fn a_disk_that_fails_for_a_while_costs_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let saves = |pair: &HolderAndWaiter, outcome: &str| {
            let () = pair.redis.ask(&["BGSAVE"]);
            world.until("it is saved, or not", || {
                let report: String = pair.redis.ask(&["INFO", "persistence"]);
                report.contains("rdb_bgsave_in_progress:0")
                    && report.contains(&format!("rdb_last_bgsave_status:{outcome}"))
            });
        };
        let dump = |pair: &HolderAndWaiter| pair.server.dir().join("dump.rdb");
        // Redis refuses writes after a failed save only if saves are configured. These saves never become due.
        let server = Server::with(&["--save", "3600", "1000000"]);
        refused_for_a_while(
            HolderAndWaiter::new(kind, server, LEASE),
            |pair| {
                fs::create_dir(dump(pair)).expect("nothing is there");
                saves(pair, "err");
            },
            |pair| {
                fs::remove_dir(dump(pair)).expect("it is empty");
                saves(pair, "ok");
            },
        );
    });
}

pub(crate) fn an_endless_script_of_another_client_costs_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let server = Server::with(&["--lua-time-limit", "50"]);
        refused_for_a_while(
            HolderAndWaiter::new(kind, server, LEASE),
            |pair| {
                // The script uses a processor, so it begins only shortly before the next renewal.
                let lease = pair.guard.lease();
                world.until("a renewal is near", || lease.remaining() < LEASE * 4 / 5);
                let redis = pair.redis.clone();
                // The script ends with an error when it is killed.
                task(move || {
                    redis
                        .try_ask::<()>(&["EVAL", "while true do end", "0"])
                        .is_err()
                });
                wait_until_says(&pair.redis, "BUSY");
            },
            |pair| pair.redis.ask(&["SCRIPT", "KILL"]),
        );
    });
}

pub(crate) fn a_server_that_loads_its_data_for_a_while_costs_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        // Loading takes half a minute unless `key-load-delay` changes. The server replies while it loads.
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
            HolderAndWaiter::new(kind, server, LEASE),
            |pair| {
                let () = pair.redis.ask(&["SAVE"]);
                pair.server.kill_for_now();
                pair.server.start_again();
                wait_until_says(&pair.redis, "LOADING");
            },
            |pair| pair.redis.ask(&["CONFIG", "SET", "key-load-delay", "0"]),
        );
    });
}

/// Waits until the server replies with an error.
#[track_caller]
fn wait_until_says(redis: &Raw, code: &str) {
    world.until(code, || match redis.try_ask::<String>(&["PING"]) {
        Err(error) => error.to_string().to_uppercase().contains(code),
        Ok(_) => false,
    });
}

pub(crate) fn full_memory_refuses_only_new_locks(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(kind, Server::start(), LEASE);
        let most = |bytes: &str| {
            let () = pair.redis.ask(&["CONFIG", "SET", "maxmemory", bytes]);
        };
        most("1");
        pair.assert_nothing_new_is_granted();
        pair.wait_until_renewed();
        pair.wait_until_renewed();
        assert!(pair.waiter.waits());
        let owner = pair.guard.lease().owner().to_owned();
        let release = pair.guard.release();
        release.expect("a full server still frees memory");
        let holders = pair.redis.holders(NAME);
        most("0");
        pair.waiter.locked();
        pair.waiter.release();
        // A hand-over needs memory. The server either hands the lock over or only deletes the key.
        assert!(holders.len() <= 1, "{holders:?}");
        assert!(holders.iter().all(|(holder, _)| *holder != owner));
        only_fences_are_left(&pair.redis, kind, NAME);
    });
}

pub(crate) fn a_restart_that_keeps_the_data_costs_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(kind, Server::keeping_data(&[]), LEASE);
        for _ in 0..2 {
            pair.server.kill_for_now();
            pair.assert_nothing_new_is_granted();
            pair.server.start_again();
            pair.wait_until_renewed();
        }
        pair.assert_unharmed();
    });
}

pub(crate) fn a_server_that_stops_for_less_than_the_lease_costs_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(kind, Server::start(), LEASE);
        pair.server.pause();
        world.until("it is at risk", || {
            pair.guard.lease().state() == LeaseState::AtRisk
        });
        pair.server.resume();
        pair.assert_unharmed();
    });
}

pub(crate) fn clients_paused_for_less_than_the_lease_lose_nothing(world: &World, kind: Kind) {
    for which in ["WRITE", "ALL"] {
        let pair = HolderAndWaiter::new(kind, Server::start(), LEASE);
        let () = pair.redis.ask(&["CLIENT", "PAUSE", "5000", which]);
        // A renewal is due within the pause.
        world.until("it is at risk, or renewed", || {
            let renewed = pair.locks.stats().renewed > 0;
            renewed || pair.guard.lease().state() == LeaseState::AtRisk
        });
        pair.assert_unharmed();
    }
}

pub(crate) fn clients_paused_for_longer_than_the_lease_lose_it_once(world: &World, kind: Kind) {
    for which in ["WRITE", "ALL"] {
        let pair = HolderAndWaiter::new(kind, Server::start(), secs(3));
        let losses = pair.guard.on_lost();
        let () = pair.redis.ask(&["CLIENT", "PAUSE", "7000", which]);
        let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
        assert_eq!(loss.cause, LostCause::Expired);
        // Redis executes the requests of the pause now. None of them revives the lease.
        pair.waiter.locked();
        assert_eq!(pair.guard.lease().state(), LeaseState::Lost);
        assert_eq!(lost(pair.guard.release()), loss);
        pair.waiter.release();
        assert!(pair.locks.close(PATIENCE), "something is left to send");
        only_fences_are_left(&pair.redis, kind, NAME);
    }
}

pub(crate) fn connections_that_are_closed_cost_nothing(world: &World, kind: Kind) {
    both_ways(kind, |kind| {
        let pair = HolderAndWaiter::new(kind, Server::start(), LEASE);
        // The connections of the pool and of the renewal are "normal", that of the listener is "pubsub".
        for of in ["normal", "pubsub", "normal"] {
            pair.wait_until_renewed();
            let killed: u32 = pair.redis.ask(&["CLIENT", "KILL", "TYPE", of]);
            assert!(killed > 0, "there are none {of}");
        }
        pair.assert_unharmed();
    });
}
