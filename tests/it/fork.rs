//! Forked children: they have a copy of every guard, and none of the locks.

use std::os::unix::process::CommandExt;
use std::process::Command;

use fork::{Fork, fork, waitpid};
use leasehold::{Error, LeaseState};

use crate::support::{manager, name, shared};

/// Runs `check` in a child, which then becomes a program that ends with its answer: so nothing of this process, whose
/// other threads the child has lost, is wound up there.
#[track_caller]
fn holds_in_a_child(check: impl FnOnce() -> bool) {
    match fork().expect("a child") {
        Fork::Child => {
            let answer = if check() { "true" } else { "false" };
            let error = Command::new(answer).exec();
            panic!("{error}");
        }
        Fork::Parent(child) => assert_eq!(waitpid(child).expect("it ends"), 0),
    }
}

#[test]
fn a_child_has_none_of_its_parents_locks() {
    let (raw, name) = (shared(), name("fork"));
    let locks = manager(raw.url());
    let guard = locks.lock(&name).expect("free");
    let other = locks.rwlock(format!("{name}:2")).read().expect("free");
    let released = locks.lock(format!("{name}:3")).expect("free");
    let detached = locks.lock(format!("{name}:4")).expect("free");
    let mut taken = Some((released, detached));
    holds_in_a_child(|| {
        let (released, detached) = taken.take().expect("the child's copy");
        let reads_lost = guard.state() == LeaseState::Lost && other.check().is_err();
        let is_closed = matches!(locks.try_lock(&name), Err(Error::Closed))
            && matches!(
                guard.extend(std::time::Duration::from_hours(1)),
                Err(Error::Lost(_))
            )
            && matches!(released.release(), Err(Error::Closed))
            && !locks.close(std::time::Duration::ZERO);
        // A claim of it would be a second guard of what the parent holds.
        let claim = detached.detach();
        reads_lost && is_closed && raw.get(claim.name()).as_deref() != Some(claim.owner())
    });
    let (released, detached) = taken.expect("the parent's");
    for guard in [&guard, &released, &detached] {
        assert_eq!(guard.state(), LeaseState::Held);
        assert_eq!(raw.get(guard.name()).as_deref(), Some(guard.owner()));
    }
    assert_eq!(other.state(), LeaseState::Held);
    for guard in [guard, released, detached] {
        guard.release().expect("the child did nothing to it");
    }
    other.release().expect("the child did nothing to it");
}
