//! How a real server comes to refuse requests for a while. `tests/contract/outages.rs` shows for every kind of lock what
//! follows from the refusal, so a mutex and a semaphore, whose scripts differ most, stand for all here.

use std::fs;
use std::time::Duration;

use leasehold::{Error, LeaseState};

use crate::support::{
    Guard, Holder, Kind, Raw, SCRIPTS_NEED_NO_REPLICAS, Server, cannot_show, manager, secs, task,
    wait_until,
};

const NAME: &str = "n";
/// It is renewed after a third, so a busy machine may take long for a fault that a test ends by itself.
const LEASE: Duration = secs(15);

/// A guard and a waiter of another process.
struct Pair {
    server: Server,
    redis: Raw,
    guard: Guard,
    waiter: Holder,
    /// A manager of a third process.
    locks: leasehold::LockManager,
    kind: Kind,
}

impl Pair {
    fn new(kind: Kind, options: &[&str]) -> Self {
        let server = Server::with(options);
        let redis = server.raw();
        let [one, other, locks] = [(); 3].map(|()| manager(&server.url()));
        let guard = kind.of(&one, NAME).lease(LEASE).lock();
        let guard = guard.expect("it is free");
        let waiter = kind.rival().of(&other, NAME).locking();
        redis.wait_until_queued(NAME, 1);
        Self {
            server,
            redis,
            guard,
            waiter,
            locks,
            kind,
        }
    }

    /// Checks that nothing is granted now.
    #[track_caller]
    fn is_refused(&self) {
        let outcome = self.kind.of(&self.locks, "further").try_lock();
        assert!(
            matches!(outcome, Err(Error::Unavailable { .. })),
            "{outcome:?}"
        );
        assert!(self.waiter.waits(), "the waiter got a transient error");
    }

    /// Checks that the refusal has cost nothing: the lock is renewed, and then goes to the waiter.
    #[track_caller]
    fn goes_on(self) {
        self.redis.wait_until_renewed(NAME, 1);
        assert_ne!(self.guard.lease().state(), LeaseState::Lost);
        assert!(self.waiter.waits(), "it was granted beside the holder");
        self.guard.release().expect("it was held until now");
        self.waiter.locked();
        self.waiter.release();
    }
}

fn both(test: impl Fn(Kind)) {
    test(Kind::Mutex);
    test(Kind::Permit);
}

/// Waits until the server replies with an error.
#[track_caller]
fn wait_until_says(redis: &Raw, code: &str) {
    wait_until(code, || match redis.try_ask::<String>(&["PING"]) {
        Err(error) => error.to_string().to_uppercase().contains(code),
        Ok(_) => false,
    });
}

#[test]
fn replicas_are_missing_for_a_while() {
    if cannot_show(SCRIPTS_NEED_NO_REPLICAS) {
        return;
    }
    both(|kind| {
        let pair = Pair::new(kind, &[]);
        let wanted = |n: &str| {
            let config = ["CONFIG", "SET", "min-replicas-to-write", n];
            let () = pair.redis.ask(&config);
        };
        wanted("1");
        pair.is_refused();
        wanted("0");
        pair.goes_on();
    });
}

#[test]
fn a_disk_fails_for_a_while() {
    both(|kind| {
        // Redis refuses writes after a failed save only if saves are configured. These saves never become due.
        let pair = Pair::new(kind, &["--save", "3600", "1000000"]);
        let saves = |outcome: &str| {
            let () = pair.redis.ask(&["BGSAVE"]);
            wait_until("it is saved, or not", || {
                let report: String = pair.redis.ask(&["INFO", "persistence"]);
                report.contains("rdb_bgsave_in_progress:0")
                    && report.contains(&format!("rdb_last_bgsave_status:{outcome}"))
            });
        };
        let dump = pair.server.dir().join("dump.rdb");
        fs::create_dir(&dump).expect("nothing is there");
        saves("err");
        pair.is_refused();
        fs::remove_dir(&dump).expect("it is empty");
        saves("ok");
        pair.goes_on();
    });
}

#[test]
fn another_client_runs_an_endless_script() {
    let pair = Pair::new(Kind::Mutex, &["--lua-time-limit", "50"]);
    let redis = pair.redis.clone();
    // The script ends with an error when it is killed.
    task(move || {
        let endless = ["EVAL", "while true do end", "0"];
        redis.try_ask::<()>(&endless).is_err()
    });
    wait_until_says(&pair.redis, "BUSY");
    pair.is_refused();
    let () = pair.redis.ask(&["SCRIPT", "KILL"]);
    pair.goes_on();
}

#[test]
fn a_server_loads_its_data_for_a_while() {
    if cannot_show(
        "a server that loads its data refuses CONFIG SET, so the test cannot end the fault",
    ) {
        return;
    }
    // Loading takes half a minute unless `key-load-delay` changes. The server replies while it loads.
    let pair = Pair::new(
        Kind::Mutex,
        &[
            "--rdbcompression",
            "no",
            "--loading-process-events-interval-bytes",
            "1024",
            "--key-load-delay",
            "50000",
        ],
    );
    let filler = "for i = 1, 600 do redis.call('SET', 'filler' .. i, string.rep('x', 1024)) end";
    let () = pair.redis.ask(&["EVAL", filler, "0"]);
    let () = pair.redis.ask(&["SAVE"]);
    pair.server.kill_for_now();
    pair.server.start_again();
    wait_until_says(&pair.redis, "LOADING");
    pair.is_refused();
    let () = pair.redis.ask(&["CONFIG", "SET", "key-load-delay", "0"]);
    wait_until("it has loaded", || {
        pair.redis.try_ask::<String>(&["PING"]).is_ok()
    });
    pair.goes_on();
}

#[test]
fn full_memory_refuses_only_new_locks() {
    both(|kind| {
        let pair = Pair::new(kind, &[]);
        let most = |bytes: &str| {
            let () = pair.redis.ask(&["CONFIG", "SET", "maxmemory", bytes]);
        };
        most("1");
        pair.is_refused();
        pair.redis.wait_until_renewed(NAME, 1);
        let owner = pair.guard.lease().owner().to_owned();
        let release = pair.guard.release();
        release.expect("a full server still frees memory");
        let holders = pair.redis.holders(NAME);
        most("0");
        pair.waiter.locked();
        pair.waiter.release();
        // A hand-over needs memory. The server either hands the lock over or only deletes the key.
        assert!(holders.iter().all(|(holder, _)| *holder != owner));
    });
}

#[test]
fn clients_are_paused_for_less_than_the_lease() {
    for which in ["WRITE", "ALL"] {
        let pair = Pair::new(Kind::Mutex, &[]);
        let () = pair.redis.ask(&["CLIENT", "PAUSE", "3000", which]);
        pair.goes_on();
    }
}
