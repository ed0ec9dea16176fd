//! Owners that a majority has ended, and that a node may still have.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use leasehold::LostCause;

use super::locked_on_all;
use super::partitions::{Proxied, wait_until_later};
use crate::support::{
    Answer, Fault, Hostile, Nodes, PATIENCE, Raw, Role, build, fence_of, is_script, lost, ms,
    patient, secs, wait_until,
};

/// Far longer than a test takes.
const LONG: Duration = secs(600);

fn holder(node: &Raw) -> Option<String> {
    node.ask(&["GET", "n"])
}

/// The third node was down when the lock was asked for, and the second one misses the release. Only the first one keeps
/// the lock at once.
#[test]
fn a_node_that_missed_the_release_keeps_the_lock_for_min_hold() {
    let nodes = Nodes::start(3);
    nodes.servers()[2].kill();
    let lease = secs(120);
    let one = Proxied::with(&nodes, |builder| builder.min_hold(LONG).lease(lease));
    let guard = one.locks.lock("n").expect("two nodes are there");
    let raws = nodes.raws();
    let owner = holder(&raws[1]).expect("it has granted the lock");
    one.proxies[1].strike(Role::Pool, Fault::LoseRequests);
    guard.release().expect("two nodes had it");
    one.proxies[1].wait_until_struck(Role::Pool);
    assert_eq!(holder(&raws[1]), Some(owner.clone()), "it is lost");
    one.heal(&[1]);
    wait_until("the node is asked again", || {
        // The manager learns of it at the next use of the connection.
        drop(one.locks.try_lock("m"));
        holder(&raws[1]).as_ref() != Some(&owner)
    });
    for node in &raws[..2] {
        let kept = node.ttl("n").expect("it has released the lock");
        assert!(kept > lease, "{kept:?}");
    }
}

/// The third node was down when the lock was asked for. Another owner has the first one, and the second one hangs. So no
/// majority can have had this owner to the end.
#[test]
fn an_owner_that_cannot_have_had_a_majority_learns_it_at_its_release() {
    let nodes = Nodes::start(3);
    nodes.servers()[2].kill();
    let locks = build(nodes.builder().node_timeout(secs(2)).lease(LONG));
    let mutex = locks.mutex("n").renew(false);
    let guard = mutex.lock().expect("two nodes are there");
    let raw = nodes.servers()[0].raw();
    let () = raw.ask(&["SET", "n", "lh1:stranger:x", "PX", "600000"]);
    nodes.servers()[1].pause();
    let loss = lost(guard.release());
    nodes.servers()[1].resume();
    assert_eq!(loss.cause, LostCause::Taken);
}

/// The second node has another holder, so the votes are split. The connection to the third one ends before its first
/// answer, so a repeat to that node gives no vote, and the lock is granted to another owner. The node executes the first
/// request after the release.
#[test]
fn a_request_on_a_closed_connection_is_withdrawn_for_as_long_as_it_may_come() {
    let nodes = Nodes::start(3);
    let raws = nodes.raws();
    let hostile = Hostile::before(&nodes.servers()[2]);
    let urls = [raws[0].url(), raws[1].url(), &hostile.url()].join(" ");
    // The third node must be connected to again within a quarter of this.
    let settings = patient(&urls).node_timeout(secs(10)).lease(LONG);
    let locks = build(settings);
    wait_until("each node answers", || {
        drop(locks.try_lock("other"));
        raws.iter().all(|raw| raw.exists(&fence_of("other")))
    });
    let () = raws[1].ask(&["SET", "n", "lh1:stranger:x", "PX", "600000"]);
    let is_first = AtomicBool::new(true);
    let (cut, was_cut) = mpsc::channel();
    hostile.answers(move |words| {
        let is_about_it = is_script(words) && words.iter().any(|word| word == b"n");
        if is_about_it && is_first.swap(false, Ordering::SeqCst) {
            let owner = words.iter().find(|word| word.starts_with(b"lh1:"));
            cut.send(owner.expect("it names its owner").clone()).ok();
            return Answer::Close(Vec::new());
        }
        Answer::Pass
    });
    let guard = locks.try_lock("n").expect("two nodes are free");
    let guard = guard.expect("the third node grants it to the next owner");
    let cut = was_cut.try_recv().expect("a connection was closed");
    let cut = String::from_utf8(cut).expect("an owner is text");
    assert_ne!(guard.owner(), cut);
    guard.release().expect("two nodes had it");
    assert!(!raws[2].exists("n"));
    let () = raws[2].ask(&["SET", "n", &cut, "PX", "600000"]);
    wait_until("it is withdrawn", || !raws[2].exists("n"));
}

/// A node refuses a release. Its answer comes when nobody waits for it any more.
#[test]
fn a_late_refusal_does_not_confirm_a_release() {
    let nodes = Nodes::start(3);
    let locks = build(nodes.builder().node_timeout(secs(2)).lease(LONG));
    let guard = locked_on_all(&locks.mutex("n").renew(false));
    let hung = &nodes.servers()[2];
    let raw = hung.raw();
    let () = raw.ask(&["ACL", "SETUSER", "default", "-@scripting"]);
    hung.pause();
    guard.release().expect("two nodes had it");
    hung.resume();
    wait_until("it has refused the release", || {
        let refused: Vec<redis::Value> = raw.ask(&["ACL", "LOG"]);
        !refused.is_empty()
    });
    // The next call on the connection reads the refusal: a connection is looked at after a pause.
    wait_until_later(ms(20));
    drop(locks.lock("m").expect("two nodes are free"));
    let () = raw.ask(&["ACL", "SETUSER", "default", "+@scripting"]);
    wait_until("it is asked again", || !raw.exists("n"));
}

/// A node hangs while locks are released, and then the program ends.
#[test]
fn close_waits_until_each_node_has_released_the_locks() {
    let nodes = Nodes::start(3);
    let locks = build(nodes.builder().node_timeout(secs(2)).lease(LONG));
    let names: Vec<_> = (0..20).map(|number| format!("n{number}")).collect();
    let lock = |name: &String| locked_on_all(&locks.mutex(name));
    let guards: Vec<_> = names.iter().map(lock).collect();
    let hung = &nodes.servers()[2];
    hung.pause();
    drop(guards);
    assert!(!locks.close(ms(50)), "a node has not released them");
    hung.resume();
    assert!(locks.close(PATIENCE), "all nodes are well");
    let raw = hung.raw();
    let left = names.iter().filter(|name| raw.exists(name));
    assert_eq!(left.count(), 0);
}
