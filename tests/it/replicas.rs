//! Grants and renewals that count only if enough replicas have them.

use leasehold::{Error, LeaseState, LockManager, LostCause};

use crate::support::{
    Child, PATIENCE, Raw, Server, build, locking_asleep, lost, manager, ms, patient, secs,
    task_asleep, wait_until,
};

/// Returns a master and `N` replicas that follow it.
fn servers<const N: usize>() -> (Server, [Server; N]) {
    // Without this option the master would wait 5 s for further replicas.
    let master = Server::with(&["--repl-diskless-sync-delay", "0"]);
    let port = master.port().to_string();
    let replicas = [(); N].map(|()| Server::with(&["--replicaof", "127.0.0.1", &port]));
    let raw = master.raw();
    for replica in &replicas {
        let replica = replica.raw();
        wait_until("the replica follows", || {
            let written: i64 = raw.ask(&["INCR", "followed"]);
            replica.get("followed") == Some(written.to_string())
        });
    }
    (master, replicas)
}

fn replicated(master: &Server, replicas: u32) -> LockManager {
    build(patient(&master.url()).replicas(replicas))
}

fn not_replicated<T: std::fmt::Debug>(result: Result<T, Error>) -> (u32, u32) {
    match result {
        Err(Error::NotReplicated {
            wanted, confirmed, ..
        }) => (wanted, confirmed),
        other => panic!("{other:?}"),
    }
}

/// Returns how often a client has sent WAIT.
fn waits(raw: &Raw) -> u64 {
    raw.stats().get("wait").copied().unwrap_or(0)
}

#[test]
fn smoke() {
    let (master, replicas) = servers::<2>();
    let locks = replicated(&master, 2);
    let before = waits(&master.raw());
    let guard = locks.lock("n").expect("it is free");
    assert_eq!(waits(&master.raw()), before + 1);
    for replica in &replicas {
        assert_eq!(replica.raw().get("n").as_deref(), Some(guard.owner()));
    }
    guard.release().expect("it is held");
}

/// Other processes hold permits of the same name with another number.
#[test]
fn a_permit_beside_another_number_of_permits_needs_its_replicas_too() {
    let master = Server::start();
    let other = manager(&master.url());
    let held = other.semaphore("s", 2).acquire().expect("it is free");
    let tried = replicated(&master, 1).semaphore("s", 3).try_acquire();
    assert_eq!(not_replicated(tried), (1, 0));
    held.release().expect("it is held");
}

#[test]
fn a_grant_on_too_few_replicas_is_released_and_an_error() {
    let (master, [replica]) = servers::<1>();
    let locks = build(patient(&master.url()).replicas(1).io_timeout(secs(1)));
    replica.pause();
    assert_eq!(not_replicated(locks.lock("n")), (1, 0));
    assert_eq!(not_replicated(locks.try_lock("n2")), (1, 0));
    let text = locks.try_lock("n3").expect_err("no replica").to_string();
    assert_eq!(
        text,
        "lock \"n3\": 0 of 1 replicas confirmed the lock in time"
    );
    wait_until("it is released", || !master.raw().exists("n"));
    replica.resume();
    wait_until("the replica is back", || {
        locks.try_lock("n").is_ok_and(|guard| guard.is_some())
    });
}

/// More replicas than exist never confirm a grant. No key stays behind.
#[test]
fn every_kind_needs_its_replicas() {
    let (master, [_replica]) = servers::<1>();
    let locks = build(patient(&master.url()).replicas(2).io_timeout(secs(1)));
    not_replicated(locks.reentrant_mutex("reentrant").try_lock());
    not_replicated(locks.rwlock("rw").try_read());
    not_replicated(locks.rwlock("rw2").try_write());
    not_replicated(locks.semaphore("sem", 3).try_acquire_many(2));
    not_replicated(locks.multi(["a", "b"]).try_lock());
    let raw = master.raw();
    for key in ["reentrant", "rw", "rw2", "sem", "a", "b"] {
        wait_until("it is released", || !raw.exists(key));
    }
}

#[test]
fn a_wait_goes_on_until_the_replicas_are_back() {
    let (master, [replica]) = servers::<1>();
    let locks = build(patient(&master.url()).replicas(1).io_timeout(secs(1)));
    let first = manager(&master.url()).lock("n").expect("it is free");
    let waiting = {
        let locks = locks.clone();
        task_asleep(move || locks.lock("n").map(|guard| guard.fence()))
    };
    master.raw().wait_until_queued("n", 1);
    replica.pause();
    let fence = first.fence();
    let raw = master.raw();
    let asked = waits(&raw);
    first.release().expect("it is held");
    wait_until("its claim is not confirmed, twice", || {
        waits(&raw) >= asked + 2
    });
    replica.resume();
    assert!(waiting.end().expect("it goes on") > fence);
}

#[test]
fn a_renewal_on_too_few_replicas_does_not_count() {
    let (master, [replica]) = servers::<1>();
    let locks = build(
        patient(&master.url())
            .replicas(1)
            .io_timeout(secs(3))
            .lease(secs(12)),
    );
    let guard = locks.lock("n").expect("it is free");
    let (raw, heard) = (master.raw(), guard.on_lost());
    raw.wait_until_renewed("n", 1);
    replica.pause();
    // The master itself still accepts the renewals.
    let told = heard.recv_timeout(PATIENCE).expect("lost");
    assert_eq!(
        (told.cause, guard.state()),
        (LostCause::Expired, LeaseState::Lost)
    );
    assert!(raw.exists("n"), "the master had it renewed all the while");
    lost(guard.release());
    replica.resume();
}

#[test]
fn an_extension_on_too_few_replicas_is_an_error() {
    let (master, [replica]) = servers::<1>();
    let locks = replicated(&master, 1);
    let guard = locks.lock("n").expect("it is free");
    let left = guard.remaining();
    replica.pause();
    assert_eq!(not_replicated(guard.extend(secs(100))), (1, 0));
    assert!(guard.remaining() <= left);
    replica.resume();
    guard.extend(secs(100)).expect("the replica is back");
    assert!(guard.remaining() >= secs(99));
    // The extension is longer than a renewal of this lease. Renewals must still write, or a WAIT after them would
    // prove nothing.
    let raw = master.raw();
    let writes = || raw.stats().get("pexpire").copied().unwrap_or(0);
    let before = writes();
    guard.extend(secs(101)).expect("it is held");
    assert!(writes() > before);
}

/// A failover: the replica that has the lock becomes the master.
#[test]
fn a_lock_that_was_confirmed_outlives_its_master() {
    let (master, [replica]) = servers::<1>();
    let mut holder = Child::start(&master.url(), "replicas=1");
    holder.lock("n");
    master.kill();
    let raw = replica.raw();
    let () = raw.ask(&["REPLICAOF", "NO", "ONE"]);
    let other = manager(&replica.url());
    assert!(other.try_lock("n").expect("Redis replies").is_none());
    holder.kill();
}

/// The error is `NotReplicated` for each time limit, however little time is left for the last request.
#[test]
fn missing_replicas_are_the_error_of_every_wait() {
    let (server, master) = (Server::start(), Server::start());
    let locks = build(patient(&server.url()).replicas(1));
    for wait_ms in (200..500).step_by(30) {
        let name = format!("n{wait_ms}");
        assert_eq!(
            not_replicated(locks.try_lock_for(&name, ms(wait_ms))),
            (1, 0)
        );
    }
    let hurried = build(
        LockManager::single(&master.url())
            .replicas(1)
            .io_timeout(ms(50)),
    );
    for n in 0..20 {
        // On a busy machine a request may take longer than that. Then the error does not say that replicas are
        // missing.
        wait_until("the server answers in time", || {
            match hurried.lock(format!("n{n}")) {
                Err(Error::NotReplicated { .. }) => true,
                Err(Error::Unavailable { .. }) => {
                    assert_eq!(waits(&master.raw()), 0, "it is the WAIT that was late");
                    false
                }
                other => panic!("{other:?}"),
            }
        });
        let () = master.raw().ask(&["CONFIG", "RESETSTAT"]);
    }
}

/// A wait leaves the lock free between its tries, and returns at its end what was missing.
#[test]
fn a_wait_without_replicas_leaves_the_lock_free_between_tries() {
    let server = Server::start();
    let redis = server.raw();
    let settings = patient(&server.url()).io_timeout(ms(500));
    let locks = build(settings.replicas(1).outage_limit(secs(10)));
    let other = manager(&server.url());
    let first = other.lock("n").expect("it is free");
    let waiting = locking_asleep(&locks.mutex("n"));
    redis.wait_until_queued("n", 1);
    first.release().expect("it is held");
    // Other processes get the lock in the meantime, again and again.
    let mut guards = 0;
    wait_until("others have it between its tries", || {
        guards += u32::from(other.try_lock("n").expect("Redis replies").is_some());
        guards >= 3
    });
    assert_eq!(locks.stats().failed, 0, "it still waits");
    assert_eq!(not_replicated(waiting.end()), (1, 0));
    wait_until("nothing is left", || !redis.exists("n"));
}
