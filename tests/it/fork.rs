//! Forked children. A child has a copy of every guard, but holds no lock.

use std::cell::Cell;
use std::mem;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fork::{Fork, fork, waitpid};
use leasehold::{Error, LeaseState};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Kind, PATIENCE, Task, build, manager, name, patient, shared, task};

/// Runs `check` in a child. The child then executes `true` or `false`, so it runs no clean-up of this process, whose
/// other threads it lacks.
#[track_caller]
pub(crate) fn holds_in_a_child(check: impl FnOnce() -> bool) {
    match fork().expect("a child") {
        Fork::Child => {
            let answer = if check() { "true" } else { "false" };
            let error = Command::new(answer).exec();
            panic!("{error}");
        }
        Fork::Parent(child) => {
            let (sender, ended) = std::sync::mpsc::channel();
            task(move || sender.send(waitpid(child)));
            let Ok(status) = ended.recv_timeout(PATIENCE) else {
                let child = Pid::from_raw(child).expect("a pid");
                kill_process(child, Signal::KILL).ok();
                panic!("the child hangs");
            };
            assert_eq!(status.expect("it ends"), 0);
        }
    }
}

#[test]
fn a_child_has_none_of_its_parents_locks() {
    let (raw, name) = (shared(), name("fork"));
    let locks = manager(raw.url());
    let guard = locks.lock(&name).expect("it is free");
    let other = locks
        .rwlock(format!("{name}:2"))
        .read()
        .expect("it is free");
    let released = locks.lock(format!("{name}:3")).expect("it is free");
    let detached = locks.lock(format!("{name}:4")).expect("it is free");
    let mut taken = Some((released, detached));
    holds_in_a_child(|| {
        let (released, detached) = taken.take().expect("the child's copy");
        let reads_lost = guard.state() == LeaseState::Lost && other.check().is_err();
        let closed = locks.try_lock(&name).expect_err("the child has no lock");
        let is_closed = matches!(closed, Error::Forked)
            && closed.to_string().contains("was forked")
            && matches!(guard.extend(Duration::from_hours(1)), Err(Error::Lost(_)))
            && matches!(released.release(), Err(Error::Forked))
            && !locks.close(Duration::ZERO);
        // A valid claim would allow a second guard for the lock that the parent holds.
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

#[test]
fn a_childs_drops_release_nothing_of_any_kind() {
    let (raw, name) = (shared(), name("fork-drop"));
    // The drops would send a request, or leave the release to a renewal thread, which a child lacks.
    for background in [false, true] {
        let locks = build(patient(raw.url()).background_release(background));
        let lock = |(kind, named): &(Kind, &str)| {
            let name = format!("{name}:{named}:{background}");
            kind.of(&locks, &name).lock().expect("it is free")
        };
        let guards = Cell::new(Kind::NAMES.iter().map(lock).collect::<Vec<_>>());
        holds_in_a_child(|| {
            let mut copies = guards.take();
            let is_lost = copies.iter().all(|guard| {
                guard.lease().state() == LeaseState::Lost
                    && guard.check().is_err()
                    && guard.on_lost().try_recv().is_ok()
            });
            let released = copies.pop().expect("there are some").release();
            drop(copies);
            // The child drops its last handle.
            drop(locks.clone());
            is_lost && matches!(released, Err(Error::Forked))
        });
        let guards = guards.take();
        assert_eq!(guards.len(), Kind::NAMES.len());
        for guard in guards {
            for lease in guard.leases() {
                assert_eq!(lease.state(), LeaseState::Held);
                let holders = raw.holders(lease.name());
                let is_there = holders.iter().any(|(owner, _)| owner == lease.owner());
                assert!(is_there, "{}: {holders:?}", lease.name());
            }
            guard.release().expect("the child did nothing to it");
        }
    }
}

/// At the fork, threads that the child lacks hold mutexes, and have sent half a request on connections that the child
/// shares.
#[test]
fn a_child_of_a_busy_process_never_blocks() {
    let (raw, name) = (shared(), name("fork-busy"));
    let managers =
        [(); 2].map(|()| build(patient(raw.url()).listener(|_: &leasehold::Event<'_>| {})));
    let stop = Arc::new(());
    let busy: Vec<_> = (0..8)
        .map(|number| {
            let mutex = managers[number % 2].mutex(&name);
            let stopped = Arc::downgrade(&stop);
            task(move || {
                while stopped.strong_count() > 0 {
                    let guard = mutex.lock().expect("it becomes free");
                    guard.release().expect("it was held until now");
                }
            })
        })
        .collect();
    let locks = &managers[0];
    let own = format!("{name}:own");
    let reentrant = locks.reentrant_mutex(&own);
    let guard = Cell::new(Some(reentrant.lock().expect("it is free")));
    for _ in 0..30 {
        holds_in_a_child(|| {
            let closed = |result: Result<(), Error>| matches!(result, Err(Error::Forked));
            let copy = guard.take().expect("the child's copy");
            let all_closed = [
                closed(locks.lock(&name).map(drop)),
                // Not even a reentrant mutex that this thread held in the parent.
                closed(reentrant.lock().map(drop)),
                closed(locks.rwlock(&name).write().map(drop)),
                closed(locks.multi([&name, &own]).try_lock().map(drop)),
                closed(locks.rate_limiter(&name, 1, PATIENCE).acquire()),
                closed(locks.inspect(&name).map(drop)),
                closed(locks.list("*").next().expect("an error").map(drop)),
                closed(locks.force_release(&own, copy.owner()).map(drop)),
                closed(locks.with_lock(&name, PATIENCE, |_| ())),
                closed(copy.release()),
            ];
            let figures = locks.stats();
            !locks.close(PATIENCE)
                && figures.acquired > 0
                && all_closed.iter().all(|closed| *closed)
        });
    }
    // The child drops all handles, managers and guards.
    let everything = Cell::new(Some((guard, managers, busy)));
    holds_in_a_child(|| {
        let (guard, managers, busy) = everything.take().expect("the child's copy");
        drop(guard);
        drop(managers);
        mem::forget(busy);
        true
    });
    let (guard, managers, busy) = everything.take().expect("the parent's");
    drop(stop);
    busy.into_iter().for_each(Task::end);
    let guard = guard.take().expect("the parent's");
    assert_eq!(raw.get(&own).as_deref(), Some(guard.owner()));
    guard.release().expect("no child did anything to it");
    for locks in managers {
        assert!(
            locks
                .try_lock_for(&name, PATIENCE)
                .expect("Redis replies")
                .is_some()
        );
    }
}
