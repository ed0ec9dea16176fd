//! A writer that becomes a reader.

use leasehold::{Error, LeaseState, LostCause};

use super::{LONG, end_of, locks, reading, writing};
use crate::support::{
    PATIENCE, Server, build, hasty, lost, manager, name, patient, secs, shared, wait_until,
};

#[test]
fn a_downgrade_lets_readers_in_and_no_writer() {
    let raw = shared();
    let name = name("downgrade");
    let [one, other, third] = locks(raw, &name);
    let writer = one.write().expect("it is free");
    let next = writing(&other);
    raw.wait_until_queued(&name, 1);
    let writers_place = raw.queue(&name);
    let elsewhere = reading(&third);
    raw.wait_until_queued(&name, 2);
    let beside = reading(&one);
    raw.wait_until_queued(&name, 3);
    // Another writer of the same process waits behind this guard.
    let local = writing(&one);
    let (fence, owner) = (writer.fence(), writer.owner().to_owned());
    let reader = writer.downgrade().expect("it is held");
    assert_ne!(reader.owner(), owner);
    let readers = [reader, elsewhere.end(), beside.end()];
    for reader in &readers {
        assert_eq!((reader.fence(), reader.state()), (fence, LeaseState::Held));
    }
    raw.wait_until_queued(&name, 2);
    assert_eq!(raw.queue(&name)[0], writers_place[0]);
    assert!(
        raw.shares(&name)
            .keys()
            .all(|share| share.starts_with("1 "))
    );
    drop(readers);
    let next = next.end();
    assert!(next.fence() > fence);
    drop(next);
    drop(local.end());
    assert!(!raw.exists(&name));
}

#[test]
fn a_downgrade_joins_the_readers_of_its_process() {
    let raw = shared();
    let name = name("joins");
    let lock = build(patient(raw.url()).quantum(LONG)).rwlock(&name);
    let reader = lock
        .write()
        .expect("it is free")
        .downgrade()
        .expect("it is held");
    let beside = lock.try_read().expect("known").expect("shared");
    assert_eq!(beside.owner(), reader.owner());
    assert!(lock.try_write().expect("Redis replies").is_none());
    drop(reader);
    beside.release().expect("it is held");
    drop(
        lock.try_write()
            .expect("Redis replies")
            .expect("it is free"),
    );
}

#[test]
fn a_downgrade_keeps_the_lease_and_goes_on_being_renewed() {
    let raw = shared();
    let name = name("renewed");
    let [lock] = locks(raw, &name);
    let lock = lock.lease(secs(9));
    let reader = lock
        .write()
        .expect("it is free")
        .downgrade()
        .expect("it is held");
    let mut end = end_of(raw, &name, reader.owner());
    for _ in 0..2 {
        wait_until("it is renewed", || end_of(raw, &name, reader.owner()) > end);
        end = end_of(raw, &name, reader.owner());
    }
    reader.release().expect("it was held until now");
}

#[test]
fn a_downgrade_without_an_answer_leaves_nothing_behind() {
    let server = Server::start();
    let raw = server.raw();
    let locks = build(hasty(&server.url()));
    // Loads the script into the server.
    drop(
        locks
            .rwlock("warm")
            .write()
            .expect("it is free")
            .downgrade(),
    );
    let writer = locks.rwlock("n").write().expect("it is free");
    let fence = writer.fence();
    server.pause();
    let error = writer.downgrade().expect_err("no answer");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    server.resume();
    // Both the writer and its reader would last for ten minutes.
    wait_until("both are released", || !raw.exists("n"));
    let next = manager(&server.url())
        .rwlock("n")
        .write()
        .expect("it is free");
    assert!(next.fence() > fence);
}

#[test]
fn a_lost_writer_becomes_no_reader() {
    let raw = shared();
    let name = name("lost-writer");
    let [one, other] = locks(raw, &name);
    // No renewal has found this loss.
    let writer = one.clone().lease(LONG).write().expect("it is free");
    let told = writer.on_lost();
    let () = raw.ask(&["DEL", &name]);
    let between = other.write().expect("it is free");
    assert_eq!(lost(writer.downgrade()).cause, LostCause::Removed);
    assert!(told.try_recv().is_err());
    assert_eq!(raw.shares(&name).len(), 1);
    drop(between);
    // The guard has found this loss.
    let short = one.clone().lease(secs(2)).renew(false);
    let writer = short.write().expect("it is free");
    wait_until("it is lost", || writer.state() == LeaseState::Lost);
    assert_eq!(lost(writer.downgrade()).cause, LostCause::Expired);
    drop(other.write().expect("it is free"));
    drop(one.write().expect("it is free"));
    wait_until("nothing is left", || !raw.exists(&name));
}

#[test]
fn a_downgraded_guard_has_its_own_max_hold() {
    let raw = shared();
    let name = name("max-hold");
    let [lock] = locks(raw, &name);
    let lock = lock.max_hold(Some(secs(2)));
    let reader = lock
        .write()
        .expect("it is free")
        .downgrade()
        .expect("it is held");
    let told = reader.on_lost().recv_timeout(PATIENCE);
    assert_eq!(told.expect("notified").cause, LostCause::MaxHold);
    wait_until("it is released", || !raw.exists(&name));
    assert_eq!(lost(reader.release()).cause, LostCause::MaxHold);
}
