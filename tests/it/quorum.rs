//! Locks over several independent servers: what is about real processes. All else is in `tests/contract/quorum.rs`.
//!
//! | module | its subject |
//! | --- | --- |
//! | `storm` | all kinds for minutes, while nodes are stopped and restarted |

mod storm;

use std::time::{Duration, Instant};

use leasehold::{LockGuard, Mutex};
use log::Level;

use crate::support::{Nodes, PATIENCE, build, is_unreachable, logged, secs, wait_until};

/// Locks on every node. A busy machine may be late with the answer of a node, and then its vote does not count.
#[track_caller]
pub(crate) fn locked_on_all(mutex: &Mutex) -> LockGuard {
    let mut guard = None;
    wait_until("each node grants it", || {
        let locked = match mutex.lock() {
            Ok(locked) => locked,
            // Too few nodes vote yet.
            Err(error) if is_unreachable(&error) => return false,
            Err(error) => panic!("{error:?}"),
        };
        guard = Some(locked).filter(|locked| locked.missing_nodes().is_empty());
        guard.is_some()
    });
    guard.expect("each node granted it")
}

/// While a node hangs, more locks are released than a manager keeps in mind. In simulated time the thousands of locks would
/// take as long, and the warning is in the log of the process.
#[test]
fn releases_that_a_node_has_missed_reach_it_later_and_of_too_many_some_are_dropped() {
    const NAMES: usize = 4200;
    const MOST: usize = 4096;
    const TIMEOUT: Duration = secs(3);
    let nodes = Nodes::start(3);
    let locks = build(nodes.builder().node_timeout(TIMEOUT).lease(secs(600)));
    let warnings = logged("wait for Redis to confirm their end");
    drop(locked_on_all(&locks.mutex("n")));
    let names: Vec<_> = (0..NAMES).map(|number| format!("n{number}")).collect();
    let guards: Vec<_> = names.iter().map(|name| locks.lock(name)).collect();
    let read = locks.rwlock("read").read().expect("it is free");
    let hung = &nodes.servers()[2];
    hung.pause();
    let mut slow = 0;
    for guard in guards {
        let begun = Instant::now();
        guard.expect("it is free").release().expect("two had it");
        slow += usize::from(begun.elapsed() >= TIMEOUT);
    }
    read.release().expect("two had it");
    assert!(slow < NAMES / 100, "{slow} of them waited for the node");
    let warning = warnings.recv_timeout(PATIENCE).expect("some are dropped");
    assert_eq!(warning.level, Level::Warn);
    hung.resume();
    let exist: Vec<_> = ["EXISTS", "read"]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .collect();
    wait_until("it has executed the others", || {
        let left: usize = hung.raw().ask(&exist);
        left <= NAMES + 1 - MOST
    });
    assert!(warnings.try_recv().is_err(), "it is logged once");
}
