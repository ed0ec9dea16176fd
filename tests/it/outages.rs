//! How a real server comes to refuse requests for a while, and by which error. `tests/contract/outages.rs` shows for every
//! kind of lock what follows from the refusal.

use std::fs;
use std::time::Duration;

use leasehold::{Error, LockManager};

use crate::support::{
    Guard, Kind, Raw, SCRIPTS_NEED_NO_REPLICAS, Server, cannot_show, manager, secs, task,
    wait_until,
};

const NAME: &str = "n";
/// No lease is renewed or ends by itself.
const LEASE: Duration = secs(3600);

/// A server, and a lock of a mutex and of a semaphore, whose scripts differ most.
struct Outage {
    redis: Raw,
    locks: LockManager,
    guards: [Guard; 2],
    server: Server,
}

impl Outage {
    const KINDS: [Kind; 2] = [Kind::Mutex, Kind::Permit];

    fn on(options: &[&str]) -> Self {
        let server = Server::with(options);
        let locks = manager(&server.url());
        let guards = Self::KINDS.map(|kind| {
            let lock = kind.of(&locks, &format!("{NAME}:{}", kind.name()));
            lock.lease(LEASE).lock().expect("it is free")
        });
        Self {
            redis: server.raw(),
            locks,
            guards,
            server,
        }
    }

    /// Checks that nothing is granted now, and that the error is that of an outage.
    #[track_caller]
    fn is_refused(&self) {
        for kind in Self::KINDS {
            let outcome = kind.of(&self.locks, "further").try_lock();
            assert!(
                matches!(outcome, Err(Error::Unavailable { .. })),
                "{outcome:?}"
            );
        }
    }

    /// Checks the same of extensions, which the server executes like renewals.
    #[track_caller]
    fn refuses_renewals(&self) {
        for guard in &self.guards {
            let outcome = guard.lease().extend(2 * LEASE);
            assert!(
                matches!(outcome, Err(Error::Unavailable { .. })),
                "{outcome:?}"
            );
        }
    }

    /// Checks that the refusal has cost nothing.
    #[track_caller]
    fn goes_on(self) {
        for guard in self.guards {
            guard.lease().extend(2 * LEASE).expect("it is held");
            guard.release().expect("it was held until now");
        }
    }
}

/// Waits until the server replies with an error.
#[track_caller]
fn wait_until_says(redis: &Raw, code: &str) {
    wait_until(code, || match redis.try_ask::<String>(&["PING"]) {
        Err(error) => error.to_string().to_uppercase().contains(code),
        Ok(_) => false,
    });
}

/// Waits until the server replies as usual.
#[track_caller]
fn wait_until_well(redis: &Raw) {
    wait_until("PONG", || redis.try_ask::<String>(&["PING"]).is_ok());
}

#[test]
fn replicas_are_missing_for_a_while() {
    if cannot_show(SCRIPTS_NEED_NO_REPLICAS) {
        return;
    }
    let outage = Outage::on(&[]);
    let wanted = |n: &str| {
        let config = ["CONFIG", "SET", "min-replicas-to-write", n];
        let () = outage.redis.ask(&config);
    };
    wanted("1");
    outage.is_refused();
    outage.refuses_renewals();
    wanted("0");
    outage.goes_on();
}

#[test]
fn a_disk_fails_for_a_while() {
    // Redis refuses writes after a failed save only if saves are configured. These saves never become due.
    let outage = Outage::on(&["--save", "3600", "1000000"]);
    let saves = |outcome: &str| {
        let () = outage.redis.ask(&["BGSAVE"]);
        wait_until("it is saved, or not", || {
            let report: String = outage.redis.ask(&["INFO", "persistence"]);
            report.contains("rdb_bgsave_in_progress:0")
                && report.contains(&format!("rdb_last_bgsave_status:{outcome}"))
        });
    };
    let dump = outage.server.dir().join("dump.rdb");
    fs::create_dir(&dump).expect("nothing is there");
    saves("err");
    outage.is_refused();
    outage.refuses_renewals();
    fs::remove_dir(&dump).expect("it is empty");
    saves("ok");
    outage.goes_on();
}

#[test]
fn another_client_runs_an_endless_script() {
    let outage = Outage::on(&["--lua-time-limit", "50"]);
    let redis = outage.redis.clone();
    let script = task(move || {
        let endless = ["EVAL", "while true do end", "0"];
        redis.try_ask::<()>(&endless).is_err()
    });
    wait_until_says(&outage.redis, "BUSY");
    outage.is_refused();
    outage.refuses_renewals();
    let () = outage.redis.ask(&["SCRIPT", "KILL"]);
    assert!(script.end(), "it ends with an error");
    // Redis says OK to the kill before the script has ended, and the script ends before Redis is no longer busy.
    wait_until_well(&outage.redis);
    outage.goes_on();
}

#[test]
fn a_server_loads_its_data_for_a_while() {
    if cannot_show(
        "a server that loads its data refuses CONFIG SET, so the test cannot end the fault",
    ) {
        return;
    }
    // Loading takes half a minute unless `key-load-delay` changes. The server replies while it loads.
    let outage = Outage::on(&[
        "--rdbcompression",
        "no",
        "--loading-process-events-interval-bytes",
        "1024",
        "--key-load-delay",
        "50000",
    ]);
    let filler = "for i = 1, 600 do redis.call('SET', 'filler' .. i, string.rep('x', 1024)) end";
    let () = outage.redis.ask(&["EVAL", filler, "0"]);
    let () = outage.redis.ask(&["SAVE"]);
    outage.server.kill_for_now();
    outage.server.start_again();
    wait_until_says(&outage.redis, "LOADING");
    outage.is_refused();
    outage.refuses_renewals();
    let () = outage.redis.ask(&["CONFIG", "SET", "key-load-delay", "0"]);
    wait_until_well(&outage.redis);
    outage.goes_on();
}

/// A full server executes what frees memory or needs little.
#[test]
fn full_memory_refuses_only_new_locks() {
    let outage = Outage::on(&[]);
    let most = |bytes: &str| {
        let () = outage.redis.ask(&["CONFIG", "SET", "maxmemory", bytes]);
    };
    most("1");
    outage.is_refused();
    outage.goes_on();
}
