//! Guards without fences: `fencing(false)`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use leasehold::{Claim, Error, LockManager};

use crate::connect::documented_rights;
use crate::support::{
    Answer, Fault, Hostile, Kind, PATIENCE, Proxy, Role, Server, Topology, build, fence_of,
    locking_asleep, manager, ms, name, on, patient, secs, shared,
};

/// Returns a manager whose guards have no fences.
fn without_fences(url: &str) -> LockManager {
    build(patient(url).fencing(false))
}

/// A lock goes from a guard without a fence to one with a fence and back. They exclude each other.
fn locks_go_between_guards_with_and_without_fences(topology: Topology) {
    on(topology, || {
        let url = shared().url();
        let (with, without) = (manager(url), without_fences(url));
        for kind in Kind::ALL {
            // A quorum has no permits.
            if topology == Topology::Quorum && kind.name().contains("permit") {
                continue;
            }
            let name = name(kind.name());
            let first = kind.rival().of(&without, &name).hold();
            let second = kind.of(&with, &name).locking();
            assert!(second.waits(), "{kind:?}");
            first.release();
            assert!(second.locked() > 0, "{kind:?}");
            let third = kind.rival().of(&without, &name).locking();
            assert!(third.waits(), "{kind:?}");
            second.release();
            assert_eq!(third.locked(), 0, "{kind:?}");
            third.release();
        }
    });
}

#[test]
fn locks_go_between_guards_with_and_without_fences_on_one_server() {
    locks_go_between_guards_with_and_without_fences(Topology::Single);
}

#[test]
fn locks_go_between_guards_with_and_without_fences_on_a_quorum() {
    locks_go_between_guards_with_and_without_fences(Topology::Quorum);
}

#[test]
fn locks_go_between_guards_with_and_without_fences_behind_sentinels() {
    locks_go_between_guards_with_and_without_fences(Topology::Sentinel);
}

#[test]
fn locks_go_between_guards_with_and_without_fences_on_a_cluster() {
    locks_go_between_guards_with_and_without_fences(Topology::Cluster);
}

#[test]
fn a_free_mutex_is_taken_without_a_script() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    hostile.answers(move |words| {
        if words.contains(&b"n".to_vec()) {
            let verb = String::from_utf8_lossy(&words[0]).into_owned();
            tell.lock().expect("no test panics").send(verb).ok();
        }
        Answer::Pass
    });
    let sent = || told.try_iter().collect::<Vec<_>>();
    // No lease is renewed during the test: a renewal is a script, too.
    let locks = build(patient(&hostile.url()).fencing(false).lease(secs(600)));
    let guard = locks.lock("n").expect("it is free");
    assert_eq!((guard.fence(), sent()), (0, vec!["SET".to_owned()]));
    assert!(!server.raw().exists(&fence_of("n")), "nobody needs it");
    // The script says by whom it is held, and the server must be told the script first.
    let other = without_fences(&hostile.url());
    assert!(other.try_lock("n").expect("asked").is_none());
    assert_eq!(sent(), ["SET", "EVALSHA", "EVAL"]);
    guard.release().expect("it is held");
    // A mutex may be in a gap for clients that poll, which only the script sees.
    let gaps = patient(&hostile.url()).poller_gap(ms(20));
    let gaps = build(gaps.fencing(false));
    sent();
    let guard = gaps.lock("n").expect("it is free");
    assert_eq!((guard.fence(), sent()), (0, vec!["EVALSHA".to_owned()]));
}

/// The option of a handle is stronger than that of its manager.
#[test]
fn a_handle_has_an_option_of_its_own() {
    let (raw, name) = (shared(), name("handle"));
    let (with, without) = (manager(raw.url()), without_fences(raw.url()));
    let guard = with.mutex(&name).fencing(false).lock();
    assert_eq!(guard.expect("it is free").fence(), 0);
    let guard = without.mutex(&name).fencing(true).lock();
    assert!(guard.expect("it is free").fence() > 0);
    let writer = without.rwlock(format!("{name}:rw")).fencing(true).write();
    let writer = writer.expect("it is free");
    let fence = writer.fence();
    let reader = writer.downgrade().expect("it is held");
    assert_eq!(reader.fence(), fence);
    reader.release().expect("it is held");
    let writer = with.rwlock(format!("{name}:rw")).fencing(false).write();
    let reader = writer.expect("it is free").downgrade();
    assert_eq!(reader.expect("it is held").fence(), 0);
}

/// Threads share a lease in memory only if both want a fence, or neither does.
#[test]
fn threads_hand_over_a_lease_without_fences() {
    let server = Server::start();
    let locks = build(patient(&server.url()).fencing(false).quantum(secs(600)));
    let (mutex, fenced) = (locks.mutex("n"), locks.mutex("n").fencing(true));
    let first = mutex.lock().expect("it is free");
    let waiting = [(); 10].map(|()| locking_asleep(&mutex));
    let last = locking_asleep(&fenced);
    let owner = first.owner().to_owned();
    first.release().expect("it is held");
    for waiting in waiting {
        let guard = waiting.end().expect("it becomes free");
        assert_eq!((guard.fence(), guard.owner()), (0, &*owner));
        guard.release().expect("it is held");
    }
    let guard = last.end().expect("it becomes free");
    assert!(guard.fence() > 0 && guard.owner() != owner);
}

/// Neither guards nor claims without fences touch the record of the last fence.
fn the_last_fence_is_kept(topology: Topology) {
    on(topology, || {
        let (raw, name) = (shared(), name("kept"));
        let (with, without) = (manager(raw.url()), without_fences(raw.url()));
        let records = || {
            let nodes = raw.nodes();
            nodes.into_iter().map(|node| node.get(&fence_of(&name)))
        };
        let mut last = 0;
        let mut rises = |fence: u64| {
            assert!(fence > last, "{fence} after {last}");
            last = fence;
        };
        let guard = with.lock(&name).expect("it is free");
        rises(guard.fence());
        guard.release().expect("it is held");
        let before: Vec<_> = records().collect();
        let claim = without.lock(&name).expect("it is free").detach();
        assert_eq!(claim.fence(), 0);
        let read: Claim = claim.to_string().parse().expect("it is a claim");
        assert_eq!(read, claim);
        let guard = without.adopt(&claim).expect("nobody else has");
        assert_eq!(guard.fence(), 0);
        assert_eq!(records().collect::<Vec<_>>(), before);
        let guard = with.adopt(&guard.detach()).expect("nobody else has");
        rises(guard.fence());
        let guard = without.adopt(&guard.detach()).expect("nobody else has");
        assert_eq!(guard.fence(), 0);
        guard.release().expect("it is held");
        rises(with.lock(&name).expect("it is free").fence());
    });
}

#[test]
fn the_last_fence_is_kept_on_one_server() {
    the_last_fence_is_kept(Topology::Single);
}

#[test]
fn the_last_fence_is_kept_on_a_quorum() {
    the_last_fence_is_kept(Topology::Quorum);
}

/// Whether the command is lost or only its answer, nobody keeps the lock.
#[test]
fn a_command_that_fails_leaves_no_lock_behind() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let short = secs(2);
    let builder = LockManager::single(&proxy.url()).fencing(false);
    let locks = build(builder.connect_timeout(short).io_timeout(short));
    let mutex = locks.mutex("n").lease(secs(600));
    let other = manager(&server.url());
    for fault in [
        Fault::Close,
        Fault::Reset,
        Fault::HalfOpen,
        Fault::LoseRequests,
        Fault::LoseAnswers,
    ] {
        mutex.lock().map(drop).expect("it is free");
        proxy.strike(Role::Pool, fault);
        let failed = mutex.lock();
        assert!(
            matches!(failed, Err(Error::Unavailable { .. })),
            "{fault:?}: {failed:?}"
        );
        proxy.heal();
        let next = other.try_lock_for("n", PATIENCE).expect("asked");
        drop(next.expect("nobody keeps it"));
    }
}

/// The server executes the command, and closes the connection before it answers. The link sends it once more, and "held"
/// is then no answer: this owner holds the lock itself.
#[test]
fn a_command_that_was_sent_twice_gets_the_lock() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    // With one connection, the lock is asked for on one that was used before. Only then is a request sent again.
    let locks = patient(&hostile.url()).fencing(false).pool_size(1);
    let locks = build(locks);
    drop(locks.lock("first").expect("it is free"));
    let (raw, is_first) = (server.raw(), AtomicBool::new(true));
    hostile.answers(move |words| {
        let words = words.iter().map(|word| String::from_utf8_lossy(word));
        let words: Vec<_> = words.collect();
        let is_set = words.first().is_some_and(|verb| verb == "SET");
        if !is_set || !is_first.swap(false, Ordering::SeqCst) {
            return Answer::Pass;
        }
        let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
        let () = raw.ask(&words);
        Answer::Close(Vec::new())
    });
    let guard = locks.lock("n").expect("this owner holds it");
    assert_eq!(guard.fence(), 0);
    assert_eq!(server.raw().get("n").as_deref(), Some(guard.owner()));
}

/// Only OK and "nothing" answer the command. After anything else, the connection is not used again.
#[test]
fn a_strange_answer_is_no_grant() {
    let server = Server::start();
    for answer in [":0\r\n", ":1\r\n", "+QUEUED\r\n", "*0\r\n", "$2\r\nOK\r\n"] {
        let hostile = Hostile::before(&server);
        let locks = build(patient(&hostile.url()).fencing(false));
        drop(locks.lock("first").expect("it is free"));
        hostile.answers(move |words| match words.first() {
            Some(verb) if verb == b"SET" => Answer::Say(answer.as_bytes().to_vec()),
            _ => Answer::Pass,
        });
        let error = locks.lock("n").expect_err("it is no answer");
        assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    }
}

#[test]
fn the_documented_rights_are_enough() {
    let server = Server::start();
    let lines = documented_rights();
    for line in [0, 1, 2, 3] {
        let rights = lines[line].iter().map(String::as_str);
        let user = ["ACL", "SETUSER", "app"].into_iter().chain(rights);
        let () = server.raw().ask(&user.collect::<Vec<_>>());
    }
    let user = patient(&server.url())
        .username("app")
        .password("us3r-s3cret");
    let locks = build(user.fencing(false));
    for kind in Kind::ALL {
        kind.of(&locks, kind.name()).hold().release();
    }
    let refused: Vec<redis::Value> = server.raw().ask(&["ACL", "LOG"]);
    assert!(refused.is_empty(), "{refused:?}");
}
