//! A grant that counts only if enough replicas have it, on real replicas. `tests/contract/replicas.rs` has the rest.

use crate::support::{Server, build, patient, wait_until};

#[test]
fn smoke() {
    // Without this option the master would wait 5 s for further replicas.
    let master = Server::with(&["--repl-diskless-sync-delay", "0"]);
    let port = master.port().to_string();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &port]);
    let (raw, replica) = (master.raw(), replica.raw());
    wait_until("the replica follows", || {
        let written: i64 = raw.ask(&["INCR", "followed"]);
        replica.get("followed") == Some(written.to_string())
    });
    let waits = || raw.stats().get("wait").copied().unwrap_or(0);
    let locks = build(patient(&master.url()).replicas(1));
    let before = waits();
    let guard = locks.lock("n").expect("it is free");
    assert_eq!(waits(), before + 1);
    assert_eq!(replica.get("n").as_deref(), Some(guard.owner()));
    guard.release().expect("it is held");
}
