//! A node that restarted without its data may have forgotten who holds a lock. It votes only after `restart_delay`, and
//! all clients of a quorum must have one value.

use std::time::{Duration, Instant};

use leasehold::{Builder, Error, LeaseState, LockManager, LostCause};

use super::{holders, locked_on_all};
use crate::support::{
    Nodes, PATIENCE, Raw, build, is_unreachable, lost, ms, secs, task, wait_until,
};

/// The key by which clients compare their values.
const NOTE: &str = "leasehold:restart_delay";

/// Returns settings with this delay, which is also the lease.
fn delayed(nodes: &Nodes, delay: Duration) -> Builder {
    nodes.builder().lease(delay).restart_delay(delay)
}

/// Returns a manager whose nodes all vote.
#[track_caller]
fn settled(nodes: &Nodes, delay: Duration) -> LockManager {
    let locks = delayed(nodes, delay).build_unchecked();
    let locks = locks.expect("nothing is sent yet");
    wait_until("the nodes vote", || {
        let guard = match locks.lock("settled") {
            Ok(guard) => guard,
            Err(error) if is_unreachable(&error) => return false,
            Err(error) => panic!("{error:?}"),
        };
        holders(nodes, "settled") == vec![Some(guard.owner().to_owned()); nodes.servers().len()]
    });
    locks
}

/// Blocks until the manager gets the lock, and returns when its last call began.
#[track_caller]
fn granted_at_last(locks: &LockManager, name: &str) -> Instant {
    let mut granted = None;
    wait_until("the nodes vote again", || {
        match locks.try_lock(name) {
            Ok(Some(_)) => granted = Some(Instant::now()),
            Ok(None) => {}
            Err(error) if is_unreachable(&error) => {}
            Err(error) => panic!("{error:?}"),
        }
        granted.is_some()
    });
    granted.expect("it was granted")
}

#[test]
fn a_node_that_restarted_empty_does_not_vote_before_the_delay() {
    let delay = secs(2);
    let nodes = Nodes::start(3);
    let known = settled(&nodes, delay);
    // This one has seen none of the nodes yet.
    let new = delayed(&nodes, delay).build_unchecked();
    let new = new.expect("nothing is sent yet");
    let restarted = Instant::now();
    for node in &nodes.servers()[..2] {
        node.restart();
    }
    // Each asks on its own thread, so the manager that knows the nodes also opens new connections.
    let asking: Vec<_> = [&known, &known, &new]
        .into_iter()
        .enumerate()
        .map(|(number, locks)| {
            let locks = LockManager::clone(locks);
            task(move || granted_at_last(&locks, &format!("n{number}")))
        })
        .collect();
    for asking in asking {
        let granted = asking.end() - restarted;
        assert!(granted >= delay, "it voted after {granted:?}");
    }
}

/// The request that goes out on a new connection is refused too, because the node is asked first for how long it is up.
#[test]
fn the_first_request_after_a_restart_is_refused() {
    let delay = secs(2);
    let nodes = Nodes::start(3);
    let new = delayed(&nodes, delay).build_unchecked();
    let new = new.expect("nothing is sent yet");
    drop(settled(&nodes, delay));
    let begun = Instant::now();
    for node in &nodes.servers()[..2] {
        node.restart();
    }
    match new.try_lock("n") {
        Err(Error::NoQuorum { failures, .. }) => {
            let shown = format!("{failures:?}");
            assert!(shown.contains("restart_delay"), "{shown}");
        }
        // A busy machine may be so late.
        Ok(Some(_)) => assert!(begun.elapsed() >= delay, "{:?}", begun.elapsed()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nobody_is_granted_a_lock_that_restarted_nodes_have_forgotten() {
    let delay = secs(3);
    let nodes = Nodes::start(3);
    let one = settled(&nodes, delay);
    // Its own leases are short.
    let other = build(delayed(&nodes, delay).lease(ms(300)));
    let guard = locked_on_all(&one.mutex("n").renew(false));
    for node in &nodes.servers()[..2] {
        node.restart();
    }
    granted_at_last(&other, "n");
    assert_eq!(guard.state(), LeaseState::Lost);
    // The notice came before the other manager's guard.
    assert_eq!(lost(guard.check()).cause, LostCause::Expired);
}

#[test]
fn restarted_nodes_cost_a_holder_their_votes_until_they_join() {
    let delay = secs(6);
    let nodes = Nodes::start(5);
    let (one, other) = (settled(&nodes, delay), settled(&nodes, delay));
    let guard = locked_on_all(&one.mutex("n"));
    let restart = |some: &[usize]| {
        // All are down at the same time, however long a busy machine takes for a start.
        for number in some {
            nodes.servers()[*number].kill_for_now();
        }
        for number in some {
            nodes.servers()[*number].restart();
        }
    };
    // Without two votes the lock is kept, and renewed for longer than its lease.
    let begun = Instant::now();
    restart(&[0, 1]);
    wait_until("these nodes have joined", || {
        assert!(other.try_lock("n").expect("they answer").is_none());
        let owners = holders(&nodes, "n");
        owners[..2].iter().all(Option::is_some)
    });
    assert!(begun.elapsed() >= delay, "{:?}", begun.elapsed());
    // Without a third vote it is lost, at the end of its lease and not later.
    restart(&[0, 1, 2]);
    let loss = guard.on_lost().recv_timeout(PATIENCE);
    let loss = loss.expect("it is notified");
    assert!(
        matches!(loss.cause, LostCause::Expired | LostCause::Removed),
        "{loss:?}"
    );
    granted_at_last(&other, "n");
    assert!(other.lock("n").expect("they vote").fence() > loss.fence);
}

#[test]
fn no_lease_is_longer_than_the_delay() {
    let nodes = Nodes::start(3);
    let is_refused = |error: Error| {
        let refused = matches!(
            error,
            Error::Config {
                option: "lease",
                ..
            }
        );
        assert!(refused, "{error:?}");
    };
    let delay = secs(2);
    let longer = delay + Duration::from_millis(1);
    let built = delayed(&nodes, delay).lease(longer).build();
    is_refused(built.expect_err("the lease is too long"));
    let locks = settled(&nodes, delay);
    let locked = locks.mutex("n").lease(longer).lock();
    is_refused(locked.expect_err("the lease is too long"));
    let guard = locks.lock("n").expect("it is as long as the delay");
    guard.extend(delay).expect("it is as long as the delay");
    let extended = guard.extend(longer);
    assert!(
        matches!(extended, Err(Error::Config { .. })),
        "{extended:?}"
    );
    // Without a delay no lease is limited.
    let nodes = Nodes::start(3);
    let locks = build(nodes.builder());
    let long = locks.mutex("m").lease(secs(24 * 60 * 60)).lock();
    drop(long.expect("it is not limited"));
}

#[test]
fn the_default_does_not_depend_on_the_lease() {
    let nodes = Nodes::start(3);
    for lease in [secs(4), secs(60)] {
        let locks = build(
            LockManager::quorum(nodes.urls())
                .lease(lease)
                .connect_timeout(secs(10))
                .io_timeout(secs(5))
                .node_timeout(secs(1)),
        );
        for node in nodes.raws() {
            assert_eq!(node.ask::<String>(&["GET", NOTE]), "60000");
        }
        let longer = locks.mutex("n").lease(secs(61)).lock();
        assert!(matches!(longer, Err(Error::Config { .. })), "{longer:?}");
    }
}

#[test]
fn the_error_tells_a_first_start_from_a_restart() {
    let nodes = Nodes::start(3);
    let locks = build(delayed(&nodes, secs(60)));
    let error = locks.lock("n").expect_err("no node votes yet").to_string();
    assert!(
        error.contains("0 of 3 nodes agreed, 2 are needed"),
        "{error}"
    );
    let (started, restarted) = ("started a moment ago", "it has restarted");
    assert_eq!(error.matches(started).count(), 3, "{error}");
    assert!(!error.contains(restarted), "{error}");
    for node in nodes.servers() {
        node.restart();
    }
    wait_until("the nodes are asked again", || {
        let error = locks.lock("n").expect_err("no node votes yet").to_string();
        assert!(!error.contains(started), "{error}");
        error.matches(restarted).count() == 3
    });
}

#[track_caller]
fn is_another_delay<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Config {
            option: "restart_delay",
            reason,
        }) => reason.into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn managers_of_different_delays_cannot_both_start() {
    let nodes = Nodes::start(3);
    let one = build(delayed(&nodes, secs(60)));
    for delay in [secs(4), secs(61), Duration::ZERO] {
        let other = || nodes.builder().lease(secs(4)).restart_delay(delay);
        let reason = is_another_delay(other().build());
        for part in ["use 60s", &format!("uses {delay:?}"), NOTE] {
            assert!(reason.contains(part), "{reason}");
        }
        let unchecked = other().build_unchecked().expect("nothing is sent yet");
        is_another_delay(unchecked.try_lock("n"));
    }
    // One node is enough to keep a process from starting, but not to stop one that has started.
    let set_note = |count: usize, note: &str| {
        for node in &nodes.raws()[..count] {
            let () = node.ask(&["SET", NOTE, note, "PX", "600000"]);
            let () = node.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
    };
    set_note(1, "4000");
    is_another_delay(delayed(&nodes, secs(60)).build());
    let error = one.try_lock("n").expect_err("the nodes have just started");
    assert!(is_unreachable(&error), "{error:?}");
    set_note(2, "4000");
    wait_until(
        "the process finds two nodes of another delay",
        || match one.try_lock("n") {
            Err(error) if is_unreachable(&error) => false,
            other => {
                is_another_delay(other);
                true
            }
        },
    );
    // Two of three nodes have lost their notes, and a client with another value is the first to come.
    for node in &nodes.raws()[1..] {
        let () = node.ask(&["DEL", NOTE]);
    }
    let first = nodes.builder().lease(secs(4)).build_unchecked();
    is_another_delay(first.expect("nothing is sent yet").try_lock("n"));
    // The remedy of the error's text. The threads of a manager that has ended may write its note once more.
    drop(one);
    let mut other = None;
    wait_until("a client with another value starts", || {
        for node in nodes.raws() {
            let () = node.ask(&["DEL", NOTE]);
        }
        match delayed(&nodes, secs(4)).build() {
            Err(Error::Config { .. }) => {}
            built => other = Some(built.expect("the nodes are there")),
        }
        other.is_some()
    });
    let other = other.expect("it was built");
    // The note is no lock.
    assert!(other.list("*").next().is_none());
}

#[test]
fn a_delay_of_zero_is_noted_too() {
    let nodes = Nodes::start(3);
    let zero = build(nodes.builder());
    for node in nodes.raws() {
        assert_eq!(node.ask::<String>(&["GET", NOTE]), "0");
        assert!(node.ttl(NOTE) > Some(secs(500)), "{:?}", node.ttl(NOTE));
    }
    let reason = is_another_delay(delayed(&nodes, secs(60)).build());
    assert!(reason.contains("use 0ns"), "{reason}");
    drop(zero.lock("n").expect("its nodes vote at once"));
}

/// A node that is full grants nothing. But leases there are renewed, also on a new connection that finds no note.
#[test]
fn a_full_node_without_a_note_renews() {
    let nodes = Nodes::start(3);
    let locks = build(nodes.builder());
    let guard = locked_on_all(&locks.mutex("n").lease(secs(60)).renew(false));
    for node in nodes.raws() {
        let () = node.ask(&["DEL", NOTE]);
        let () = node.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        let () = node.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    // The first renewal goes to the nodes that have connections again.
    wait_until("each node renews", || {
        guard.extend(secs(90)).expect("a majority renews");
        let is_renewed = |node: &Raw| node.ttl("n") > Some(secs(60));
        nodes.raws().iter().all(is_renewed)
    });
    assert!(!nodes.raws().iter().any(|node| node.exists(NOTE)));
    let refused = |locks: &LockManager| {
        let error = locks.try_lock("m").expect_err("no node may vote");
        assert!(is_unreachable(&error), "{error:?}");
        format!("{error:#}")
    };
    assert!(refused(&locks).contains("no memory for the note"));
    // With memory, only one of two values is noted.
    let other = delayed(&nodes, secs(4)).build();
    let other = other.expect("no node has a note");
    for node in nodes.raws() {
        let () = node.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    }
    wait_until("the note is made", || locks.try_lock("m").is_ok());
    wait_until("the other one finds it", || match other.try_lock("m") {
        Err(error) if is_unreachable(&error) => false,
        other => {
            is_another_delay(other);
            true
        }
    });
}

#[test]
fn a_process_renews_its_note_and_compares_it_again() {
    let nodes = Nodes::start(3);
    let locks = settled(&nodes, secs(1));
    let mut left = nodes.raw().ttl(NOTE);
    wait_until("the note is renewed", || {
        locks.try_lock("n").ok();
        let now = nodes.raw().ttl(NOTE);
        std::mem::replace(&mut left, now) < now
    });
    let () = nodes.raw().ask(&["SET", NOTE, "4000"]);
    // The connections are open, and the process looks even so.
    wait_until("the process finds the other value", || {
        let outcome = locks.try_lock("m");
        match outcome {
            Ok(_) => false,
            Err(error) if is_unreachable(&error) => false,
            other => {
                is_another_delay(other);
                true
            }
        }
    });
}
