//! The checks of all servers together: whether the nodes of a quorum are several servers with one time, and whether a
//! lock works from its acquire to its release.

use std::time::{Duration, Instant};

use leasehold::{Error, LockGuard, LockManager};
use uuid::Uuid;

use super::finding::Finding;
use super::link::{Offset, is_apart, length};
use crate::deployment::{Deployment, Topology};
use crate::output;

const LEASE: Duration = Duration::from_secs(10);
/// How long the message may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the message is sent again. The process may not have subscribed yet at the first.
const AGAIN: Duration = Duration::from_millis(200);

/// The facts of one server that these checks need.
pub struct Node {
    pub address: String,
    pub run_id: Option<String>,
    pub offset: Option<Offset>,
}

/// Makes these checks. If locks cannot work, as the checks of the servers have found, there is no lock of a trial.
pub fn check(
    locks: &LockManager,
    deployment: &Deployment,
    nodes: &[Node],
    can_lock: bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if nodes.is_empty() {
        return findings;
    }
    if deployment.topology == Topology::Quorum {
        findings.extend(same_servers(nodes));
        findings.extend(clocks(nodes));
    }
    if can_lock {
        findings.extend(trial(locks));
    } else {
        let found = "not tried, because rights or scripts are missing";
        findings.push(Finding::skip(
            "lock",
            found,
            "Mend the other findings first.",
        ));
    }
    findings
}

/// Finds nodes that are one server.
fn same_servers(nodes: &[Node]) -> Option<Finding> {
    let known = || nodes.iter().filter(|node| node.run_id.is_some());
    let is_twin = |node: &&Node| known().filter(|other| other.run_id == node.run_id).count() > 1;
    let twins: Vec<_> = known().filter(is_twin).map(|node| &*node.address).collect();
    (!twins.is_empty()).then(|| {
        Finding::bad(
            "nodes",
            format!("{} are one server", twins.join(" and ")),
            "This server has several votes. So its failure can stop the majority, or lose the locks of one.",
            "Name independent servers in the URL.",
        )
    })
}

/// Compares the clocks of the nodes with each other.
fn clocks(nodes: &[Node]) -> Option<Finding> {
    let known = || nodes.iter().filter_map(|node| Some((node, node.offset?)));
    let (last, behind) = known().min_by_key(|(_, offset)| offset.ms)?;
    let (first, ahead) = known().max_by_key(|(_, offset)| offset.ms)?;
    let apart = ahead.ms - behind.ms;
    let error = ahead.error_ms + behind.error_ms;
    if !is_apart(apart, error) {
        let found = format!(
            "at most {} apart, to within {}",
            length(apart),
            length(error)
        );
        return Some(Finding::ok("clocks", found));
    }
    Some(Finding::warn(
        "clocks",
        format!(
            "{} is {} ahead of {}",
            first.address,
            length(apart),
            last.address
        ),
        "Fences follow the clocks of the nodes. If a node loses its data, a later fence can be smaller than an earlier one.",
        "Let NTP slew the clocks of all nodes.",
    ))
}

/// Acquires a lock of a random name, has a message sent to its holder, and releases it.
fn trial(locks: &LockManager) -> Vec<Finding> {
    let name = format!("leasehold-doctor:{}", Uuid::new_v4());
    // A fence would stay in Redis for a while.
    let mutex = locks
        .mutex(name)
        .lease(LEASE)
        .fencing(false)
        .min_hold(Duration::ZERO);
    let begun = Instant::now();
    let guard = match mutex.try_lock() {
        Ok(Some(guard)) => guard,
        Ok(None) => {
            return vec![failed(
                "acquire",
                "another process holds a lock with a random name",
            )];
        }
        Err(error) => return vec![failed("acquire", &format!("{error:#}"))],
    };
    let messages = messages(locks, &guard);
    let released = guard.release();
    let lock = match released {
        Ok(()) => {
            let took = begun.elapsed();
            Finding::ok(
                "lock",
                format!("acquired and released, in {}", output::span(took)),
            )
        }
        Err(error) => failed("release", &format!("{error:#}")),
    };
    vec![lock, messages]
}

fn failed(step: &str, error: &str) -> Finding {
    Finding::bad(
        "lock",
        format!("the {step} failed: {error}"),
        "Locks do not work with these servers and this user.",
        "Mend the other findings first. If there are none, the error names the reason.",
    )
}

/// Requests the release of the lock, and checks that its holder hears of it.
fn messages(locks: &LockManager, guard: &LockGuard) -> Finding {
    const CHECK: &str = "messages";
    const MEANS: &str = "A waiting process is not told when the lock comes free. It polls, so it waits for up to 1 s longer.";
    let requested = guard.on_requested();
    let begun = Instant::now();
    let mut failure: Option<Error> = None;
    while begun.elapsed() < PATIENCE && failure.is_none() {
        failure = locks
            .request_release(guard.name(), "a check of leasehold doctor")
            .err();
        if requested.recv_timeout(AGAIN).is_ok() {
            return Finding::ok(CHECK, "a message reached the holder of a lock");
        }
    }
    let found = match failure {
        Some(Error::Denied { .. }) => {
            let found = "this user may not request the release of a lock";
            return Finding::skip(
                CHECK,
                found,
                "Give the user the rights of operators: see `rights`.",
            );
        }
        Some(error) => format!("a message could not be sent: {error:#}"),
        None => format!("no message arrived within {} s", PATIENCE.as_secs()),
    };
    Finding::warn(
        CHECK,
        found,
        MEANS,
        "Allow SUBSCRIBE and PUBLISH on the channels leasehold:*. Connect to the server itself, not to a proxy.",
    )
}
