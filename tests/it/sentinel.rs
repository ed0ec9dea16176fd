//! Locks on the master of a Sentinel set.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leasehold::{Error, LockManager, LostCause};

use crate::support::{
    File, Kind, PATIENCE, Passwords, Sentinels, Server, Task, fence_of, lost, name, secs, shared,
    task, unused_url, wait_until, with_password,
};

/// Locks, and repeats a call that gets no answer. Returns the fence.
#[track_caller]
fn locked_at_last(locks: &LockManager, name: &str) -> u64 {
    let mut fence = 0;
    wait_until("it is locked", || match locks.try_lock_for(name, secs(1)) {
        Ok(Some(guard)) => {
            fence = guard.fence();
            true
        }
        Ok(None) | Err(Error::Unavailable { .. }) => false,
        Err(error) => panic!("{error:?}"),
    });
    fence
}

#[test]
fn every_kind_of_lock_goes_from_one_process_to_the_next() {
    let set = Sentinels::start();
    let (one, other) = (set.manager(), set.manager());
    for kind in Kind::ALL {
        let held = kind.rival().of(&one, kind.name()).hold();
        let waiting = kind.of(&other, kind.name()).locking();
        assert!(waiting.waits());
        held.release();
        waiting.locked();
        waiting.release();
    }
}

fn locks_go_to_the_new_master(fail: fn(&Server)) {
    let set = Sentinels::start();
    let (one, other) = (set.manager(), set.manager());
    let guard = one.lock("n").expect("it is free");
    let fence = guard.fence();
    guard.release().expect("it is held");
    let old = set.master();
    fail(old);
    set.wait_for_another_than(old);
    let first = locked_at_last(&one, "n");
    let second = locked_at_last(&other, "n");
    assert!(fence < first && first < second);
    assert!(set.master().raw().exists(&fence_of("n")));
}

/// The leader of the failover names the old address until the replicas follow the new master.
#[test]
fn locks_go_to_the_new_master_if_the_old_one_dies_with_a_sentinel() {
    let set = Sentinels::start();
    let locks = set.manager();
    let fence = locked_at_last(&locks, "n");
    let old = set.master();
    set.sentinels().last().expect("there are three").kill();
    old.kill();
    wait_until("a master grants it", || {
        match locks.try_lock_for("n", secs(1)) {
            Ok(Some(guard)) => guard.fence() > fence,
            Ok(None) | Err(Error::Unavailable { .. }) => false,
            Err(error) => panic!("{error:?}"),
        }
    });
}

#[test]
fn locks_go_to_the_new_master_if_the_old_one_dies() {
    locks_go_to_the_new_master(Server::kill);
}

#[test]
fn locks_go_to_the_new_master_if_the_old_one_hangs() {
    locks_go_to_the_new_master(Server::pause);
}

/// The old master takes writes for some seconds after the failover.
#[test]
fn nobody_uses_the_old_master_after_a_failover_by_hand() {
    let set = Sentinels::start();
    let (one, other) = (set.manager(), set.manager());
    for locks in [&one, &other] {
        drop(locks.lock("before").expect("it is free"));
    }
    let guard = one
        .mutex("held")
        .lease(secs(60))
        .lock()
        .expect("it is free");
    let _: u32 = set.master().raw().ask(&["WAIT", "2", "0"]);
    let old = set.fail_over();
    let new = set.master();
    // Each of them moves, and then stays.
    for (locks, name) in [(&one, "one"), (&other, "other")] {
        wait_until("it locks at the new master", || {
            locked_at_last(locks, name);
            new.raw().exists(&fence_of(name))
        });
        locked_at_last(locks, "after");
    }
    // On a slow machine the old master may be a replica by now, which has all locks.
    let before = old.raw().exists(&fence_of("after"));
    assert!(!before || is_replica(old), "the old master was asked");
    // The new master has the lock too. It is renewed there, and released.
    guard.extend(secs(120)).expect("it is held");
    assert!(new.raw().ask::<i64>(&["PTTL", "held"]) > 100_000);
    guard.release().expect("it is held");
    assert!(!new.raw().exists("held"));
}

fn is_replica(server: &Server) -> bool {
    let report: String = server.raw().ask(&["INFO", "replication"]);
    report.contains("role:slave")
}

/// A master is killed while its replicas have not got the lock.
#[test]
fn a_lock_that_the_new_master_lacks_is_lost_and_fenced() {
    let set = Sentinels::start();
    let (one, other) = (set.manager(), set.manager());
    let old = set.master();
    let replicas: Vec<_> = set
        .servers()
        .filter(|server| server.port() != old.port())
        .collect();
    // The replicas must not read what the master sends from here on.
    for replica in &replicas {
        replica.pause();
    }
    let () = old.raw().ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    let guard = one.mutex("n").lease(secs(60)).lock().expect("it is free");
    let losses = guard.on_lost();
    old.kill();
    for replica in &replicas {
        replica.resume();
    }
    let fence = locked_at_last(&other, "n");
    assert!(fence > guard.fence());
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    assert!(
        [LostCause::Removed, LostCause::Taken].contains(&loss.cause),
        "{loss:?}"
    );
    assert_eq!(lost(guard.release()), loss);
}

/// Threads write to a file under the lock while the master fails. A write that the file refuses is that of a holder that
/// has lost the lock, and the holder learns of it.
fn a_file_with_a_fence_takes_no_stale_write(fail: fn(&Server)) {
    let set = Sentinels::start();
    let managers = [set.manager(), set.manager()];
    let key = name("failover-file");
    File::new(shared(), &key).write("", Some(0));
    let (stop, turns) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let writers: Vec<_> = managers
        .iter()
        .cycle()
        .take(4)
        .map(|locks| {
            let mutex = locks.mutex("n").lease(secs(3));
            let (stop, turns, key) = (Arc::clone(&stop), Arc::clone(&turns), key.clone());
            task(move || {
                let file = File::new(shared(), &key);
                while !stop.load(Ordering::Relaxed) {
                    match mutex.try_lock_for(secs(1)) {
                        Ok(Some(guard)) => {
                            if !file.write("x", Some(guard.fence())) {
                                wait_until("the writer learns of its loss", || {
                                    guard.check().is_err()
                                });
                            }
                            turns.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(None) | Err(Error::Unavailable { .. }) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
            })
        })
        .collect();
    let go_on = |times: u32| {
        let before = turns.load(Ordering::Relaxed);
        wait_until("they go on", || {
            turns.load(Ordering::Relaxed) >= before + times
        });
    };
    go_on(20);
    let old = set.master();
    fail(old);
    set.wait_for_another_than(old);
    go_on(20);
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(Task::end);
    File::new(shared(), &key).leave();
}

#[test]
fn a_file_with_a_fence_takes_no_stale_write_if_the_master_dies() {
    a_file_with_a_fence_takes_no_stale_write(Server::kill);
}

#[test]
fn a_file_with_a_fence_takes_no_stale_write_if_the_master_hangs() {
    a_file_with_a_fence_takes_no_stale_write(Server::pause);
}

#[test]
fn sentinels_that_hang_lie_or_are_dead_delay_nothing() {
    let set = Sentinels::start();
    let known = set.manager();
    let fence = locked_at_last(&known, "n");
    let sentinels: Vec<_> = set.sentinels().collect();
    // One hangs: the others are a majority.
    sentinels[0].pause();
    let new = set.manager();
    assert!(locked_at_last(&new, "n") > fence);
    // One lies about the master.
    let stranger = Server::start();
    let port = stranger.port().to_string();
    sentinels[0].resume();
    let liar = sentinels[0].raw();
    let () = liar.ask(&["SENTINEL", "REMOVE", "mine"]);
    let () = liar.ask(&["SENTINEL", "MONITOR", "mine", "127.0.0.1", &port, "1"]);
    let other = set.manager();
    assert!(locked_at_last(&other, "n") > fence);
    assert!(!stranger.raw().exists(&fence_of("n")));
    // With no majority alive, a manager goes on that knows the master, even if its connections break.
    sentinels[1].kill();
    sentinels[2].kill();
    let master = set.servers().next().expect("the first master").raw();
    let _: u32 = master.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    locked_at_last(&known, "n");
    let stranger = set.builder().connect_timeout(secs(2)).build();
    assert!(
        matches!(stranger, Err(Error::Unavailable { .. })),
        "{stranger:?}"
    );
}

#[test]
fn a_master_that_the_sentinels_do_not_know_is_an_error() {
    let set = Sentinels::start();
    let unknown = LockManager::sentinel(set.urls(), "other").build();
    let error = unknown.expect_err("there is none");
    assert!(
        matches!(
            error,
            Error::Config {
                option: "master",
                ..
            }
        ),
        "{error:?}"
    );
    let dead = LockManager::sentinel([unused_url()], "mine")
        .connect_timeout(secs(1))
        .build();
    assert!(matches!(dead, Err(Error::Unavailable { .. })), "{dead:?}");
    // A server that is no sentinel does not answer as one.
    let server = Server::start();
    let wrong = LockManager::sentinel([server.url()], "mine")
        .connect_timeout(secs(1))
        .build();
    let error = wrong.expect_err("it is no sentinel");
    assert!(!error.to_string().is_empty(), "{error:?}");
}

#[test]
fn sentinels_and_servers_have_passwords_of_their_own() {
    let passwords = Passwords {
        of_sentinels: "s3cret-of-sentinels",
        of_servers: "s3cret-of-servers",
    };
    let set = Sentinels::with(Some(passwords));
    let builder = |of_sentinels, of_servers| {
        let urls = set.urls().into_iter();
        let urls = urls.map(|url| with_password(&url, Some(of_sentinels)));
        let builder = LockManager::sentinel(urls, "mine").connect_timeout(secs(10));
        builder.node_credentials(None, of_servers)
    };
    let right = builder(passwords.of_sentinels, passwords.of_servers);
    assert!(!format!("{right:?}").contains("s3cret"), "{right:?}");
    let locks = right.build().expect("both are right");
    drop(locks.lock("n").expect("it is free"));
    for wrong in [
        builder("s3cret-wrong", passwords.of_servers),
        builder(passwords.of_sentinels, "s3cret-wrong"),
    ] {
        let error = wrong.build().expect_err("one is wrong");
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        assert!(!format!("{error:?} {error}").contains("s3cret"), "{error}");
    }
    let in_plain_text = LockManager::sentinel(set.urls(), "mine").connect_timeout(secs(10));
    let in_plain_text = in_plain_text.password(passwords.of_sentinels);
    let in_plain_text = in_plain_text.node_credentials(Some("default"), passwords.of_servers);
    drop(in_plain_text.build().expect("both are right"));
}

#[test]
fn wrong_settings_are_rejected_before_anything_is_sent() {
    let urls = ["redis://127.0.0.1:1/", "redis://127.0.0.1:2/"];
    for (builder, option) in [
        (LockManager::sentinel([""; 0], "mine"), "sentinels"),
        (LockManager::sentinel(urls, ""), "master"),
        (
            LockManager::sentinel([urls[0], urls[0]], "mine"),
            "sentinels",
        ),
        (
            LockManager::sentinel(["redis://127.0.0.1:1/3"], "mine"),
            "sentinels",
        ),
        (
            LockManager::sentinel(["unix:///run/sentinel"], "mine"),
            "sentinels",
        ),
        (LockManager::sentinel(["host"], "mine"), "url"),
    ] {
        match builder.build_unchecked() {
            Err(Error::Config { option: wrong, .. }) => assert_eq!(wrong, option),
            other => panic!("{other:?}"),
        }
    }
}
