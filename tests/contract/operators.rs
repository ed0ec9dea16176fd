//! Operators see the note of a holder, and ask for the release of its lock.

use std::time::SystemTime;

use leasehold::{Holder, Lease, LockManager};

use crate::support::{Kind, PATIENCE, build, lost, manager, name, patient, shared, wait_until};

/// A label and a note that make the longest owner.
fn longest() -> (String, String) {
    ("l:".repeat(64), format!("job 7: {}!", "x".repeat(184)))
}

#[track_caller]
fn holder(onlooker: &LockManager, key: &str, lease: &Lease) -> Holder {
    let seen = onlooker.inspect(key).expect("Redis replies");
    let holders = seen.expect("it is held").holders;
    let mut holders = holders.into_iter();
    let holder = holders.find(|holder| holder.owner == lease.owner());
    holder.expect("it is among the holders")
}

pub(crate) fn a_note_is_shown_with_its_holder(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("noted"));
    let (label, note) = longest();
    let onlooker = world.manager();
    let noted = || world.build(|it| it.label(&label).note(&note));
    let (one, other) = (noted(), noted());
    let guard = kind.of(&one, &name).lock().expect("it is free");
    let show = |lease: &Lease, key: &str| {
        let holder = holder(&onlooker, key, lease);
        assert_eq!(holder.label.as_deref(), Some(&*label));
        assert_eq!(holder.note.as_deref(), Some(&*note));
    };
    for (key, lease) in kind.keys(&name).iter().zip(guard.leases()) {
        show(lease, key);
    }
    // The lock goes on by the queue, whose scripts read the whole owner.
    let waiting = kind.rival().of(&other, &name).locking();
    redis.wait_until_queued(&name, 1);
    guard.release().expect("it was held until now");
    waiting.locked();
    let seen = onlooker.inspect(&name).expect("Redis replies");
    for holder in seen.expect("it is held").holders {
        assert_eq!(holder.note.as_deref(), Some(&*note));
    }
    waiting.release();
    // On a quorum, a node may execute the release after a majority has.
    world.until("it is free", || {
        onlooker.inspect(&name).expect("Redis replies").is_none()
    });
}

pub(crate) fn a_request_for_its_release_is_heard(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("requested"));
    let (holding, operator) = (world.manager(), world.manager());
    let ask = |why| operator.request_release(&name, why).expect("Redis replies");
    assert!(!ask("nobody holds it"));
    let guard = kind.of(&holding, &name).lock().expect("it is free");
    let requested = guard.lease().on_requested();
    let asked = SystemTime::now();
    // The subscription begins in the background.
    let mut heard = None;
    world.until("a request is heard", || {
        assert!(ask("a drain: 1 of 2"));
        heard = requested.try_recv().ok();
        heard.is_some()
    });
    let request = heard.expect("it was waited for");
    assert_eq!(request.why, "a drain: 1 of 2");
    assert!(asked <= request.at && request.at <= SystemTime::now());
    guard.check().expect("a request ends nothing");
    // A later channel has the last request too.
    let later = guard.lease().on_requested();
    let last = later.recv_timeout(PATIENCE).expect("there was one");
    assert_eq!(last.why, request.why);
    assert!(ask("again"));
    let all = std::iter::from_fn(|| later.recv_timeout(PATIENCE).ok());
    let mut all = all.take_while(|heard| heard.why != "again");
    assert!(all.all(|heard| heard.why == request.why));
    guard.release().expect("it was held until now");
    for ended in [requested, later] {
        while let Ok(heard) = ended.recv_timeout(PATIENCE) {
            assert!(heard.why == request.why || heard.why == "again");
        }
        let end = ended.try_recv().expect_err("the guard has ended");
        assert_eq!(end, leasehold::TryRecvError::Disconnected);
    }
    // On a quorum, a node may execute the release after a majority has.
    world.until("it is free", || !ask("it was released"));

    let guard = kind.of(&holding, &name).lock().expect("it is free");
    let requested = guard.lease().on_requested();
    let owner = guard.lease().owner();
    assert!(operator.force_release(&name, owner).expect("Redis replies"));
    let ended = requested.recv_timeout(PATIENCE).expect_err("it is lost");
    assert_eq!(ended, leasehold::RecvTimeoutError::Disconnected);
    lost(guard.release());
}
