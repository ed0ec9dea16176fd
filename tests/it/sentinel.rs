//! Locks on the master of a Sentinel set.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Error, Event, LeaseState, LockGuard, LockManager, LostCause};

use crate::connect::documented_rights;
use crate::support::{
    Child, FencedWriters, Kind, MASTER, PATIENCE, PATIENCE_WITH_SERVERS, Passwords, Sentinels,
    Server, SetOptions, SplitSentinels, build, fence_of, locked_at_last, locking, locking_asleep,
    lost, ms, secs, unused_url, wait_for_servers, wait_until, with_password,
};

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
    wait_for_servers("a master grants it", || {
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

/// The cursors of two servers differ.
#[test]
fn a_list_begins_again_at_the_new_master() {
    const LOCKS: usize = 1_000;
    let set = Sentinels::without_failover();
    let locks = set.manager();
    let lock = |number| locks.lock(format!("n{number:04}")).expect("it is free");
    let guards: Vec<_> = (0..LOCKS).map(lock).collect();
    let _: u32 = set.master().raw().ask(&["WAIT", "2", "0"]);
    let mut listing = locks.list("n*");
    let first = listing.next().expect("there are many");
    let mut names = vec![first.expect("the master answers").name];
    set.fail_over();
    // The manager moves to the new master before the next page.
    wait_until("it locks at the new master", || {
        locked_at_last(&locks, "moved");
        set.master().raw().exists(&fence_of("moved"))
    });
    let pings = locks.ping().expect("the master is known");
    assert!(pings.len() == 1 && pings[0].result.is_ok(), "{pings:?}");
    assert!(
        pings[0]
            .server
            .ends_with(&format!(":{}", set.master().port()))
    );
    names.extend(listing.map(|info| info.expect("the master answers").name));
    names.sort_unstable();
    let expected: Vec<_> = guards.iter().map(|guard| guard.name().to_owned()).collect();
    assert_eq!(names, expected);
}

/// The old master takes writes for some seconds after the failover.
#[test]
fn nobody_uses_the_old_master_after_a_failover_by_hand() {
    let set = Sentinels::without_failover();
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
    let (guard, losses) = set.fail_over_without(|| {
        let guard = one.mutex("n").lease(secs(60)).lock().expect("it is free");
        let losses = guard.on_lost();
        (guard, losses)
    });
    let fence = locked_at_last(&other, "n");
    assert!(fence > guard.fence());
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    assert!(
        [LostCause::Removed, LostCause::Taken].contains(&loss.cause),
        "{loss:?}"
    );
    assert_eq!(lost(guard.release()), loss);
}

/// As after a crash of its holder, the lock stays for the rest of its lease.
#[test]
fn a_lock_stays_for_its_lease_if_the_new_master_lacks_its_release() {
    let set = Sentinels::start();
    let (one, other) = (set.manager(), set.manager());
    let guard = one.mutex("n").lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    let owner = guard.owner().to_owned();
    set.wait_until_replicated();
    set.fail_over_without(|| guard.release().expect("it is held"));
    locked_at_last(&other, "another");
    assert!(other.try_lock("n").expect("Redis replies").is_none());
    let master = set.master().raw();
    assert_eq!(master.owner("n"), Some(owner));
    assert!(master.ask::<i64>(&["PTTL", "n"]) <= 600_000);
    // The lease is over.
    let _: u32 = master.ask(&["PEXPIRE", "n", "1"]);
    locked_at_last(&other, "n");
}

/// One replica becomes the master. The other one follows it, and confirms the grants then.
#[test]
fn a_lock_that_needs_a_replica_is_acquired_after_a_failover() {
    let set = Sentinels::start();
    let locks = build(set.builder().replicas(1));
    let held = locks.lock("held").expect("a replica has it");
    let fence = locks.lock("n").expect("a replica has it").fence();
    let old = set.master();
    old.kill();
    set.wait_for_another_than(old);
    let mut tried = None;
    wait_for_servers("a replica confirms it", || {
        match locks.try_lock_for("n", secs(1)) {
            Ok(guard) => tried = guard.map(|guard| guard.fence()),
            Err(Error::Unavailable { .. } | Error::NotReplicated { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        tried.is_some()
    });
    assert!(tried > Some(fence));
    // The old master is still missing.
    drop(locks.lock("n").expect("a replica has it"));
    match held.release() {
        Ok(()) | Err(Error::Lost(_)) => {}
        Err(error) => panic!("{error:?}"),
    }
}

/// B gets the lock, and the new master believes that A holds it. B learns of the loss, and nobody gets the lock meanwhile.
#[test]
fn a_hand_over_that_the_new_master_lacks_makes_no_second_holder() {
    let set = Sentinels::start();
    let (one, other, third) = (set.manager(), set.manager(), set.manager());
    let guard = one.mutex("n").lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    let owner = guard.owner().to_owned();
    let waiting = locking_asleep(&other.mutex("n").lease(secs(600)));
    let old = set.master().raw();
    old.wait_until_queued("n", 1);
    set.wait_until_replicated();
    let next = set.fail_over_without(|| {
        guard.release().expect("it is held");
        let next = waiting.end().expect("it is handed over");
        // It has its whole lease, and its next renewal is far away.
        wait_until("it is raised", || old.ask::<i64>(&["PTTL", "n"]) > 400_000);
        next
    });
    let loss = next.on_lost().recv_timeout(PATIENCE).expect("it is told");
    assert_eq!(loss.cause, LostCause::Taken);
    assert!(third.try_lock("n").expect("Redis replies").is_none());
    assert_eq!(set.master().raw().owner("n"), Some(owner));
}

/// Five processes always want one lock, so that each release hands it over. Each failover loses the last of these
/// hand-overs, while the last holder works on. It must learn of the loss before anybody else gets the lock, which stays
/// with an earlier holder for the rest of its lease.
///
/// If the key on a replica has expired, or will expire soon, the lock is free before the holder can learn of it.
fn hand_overs_that_are_lost_make_no_second_holder(failovers: u32, seed: u64) {
    const PROCESSES: usize = 5;
    const LEASE: Duration = secs(15);
    let set = Sentinels::with(SetOptions {
        down_after_ms: 1_000,
        ..SetOptions::default()
    });
    let (is_over, holds_on) = (AtomicBool::new(false), AtomicBool::new(false));
    let holders = Mutex::new(Vec::<Arc<LockGuard>>::new());
    let overlaps = Mutex::new(Vec::<Arc<LockGuard>>::new());
    let grants = AtomicUsize::new(0);
    let work = |locks: LockManager| {
        let mutex = locks.mutex("n").lease(LEASE);
        while !is_over.load(SeqCst) {
            let guard = match mutex.try_lock_for(secs(5)) {
                Ok(Some(guard)) => Arc::new(guard),
                Ok(None) | Err(Error::Unavailable { .. }) => continue,
                Err(error) => panic!("{error:?}"),
            };
            {
                let mut holders = holders.lock().expect("no panic");
                let live = holders.iter().filter(|one| one.state() != LeaseState::Lost);
                overlaps.lock().expect("no panic").extend(live.cloned());
                assert!(holders.iter().all(|one| one.fence() < guard.fence()));
                holders.push(Arc::clone(&guard));
            }
            grants.fetch_add(1, SeqCst);
            // The test needs time to pass: a turn takes this long.
            thread::sleep(ms(2));
            while holds_on.load(SeqCst) && guard.state() != LeaseState::Lost {
                thread::sleep(ms(2));
            }
            let mut holders = holders.lock().expect("no panic");
            holders.retain(|one| !Arc::ptr_eq(one, &guard));
        }
    };
    let (mut random, mut of_failovers) = (seed, 0);
    thread::scope(|scope| {
        for number in 0..PROCESSES {
            // The log shows which process of which set an owner belongs to.
            let builder = set.builder().label(format!("seed-{seed}-process-{number}"));
            let locks = build(builder);
            scope.spawn(|| work(locks));
        }
        let _ended = EndsAtDrop(&is_over, &holds_on);
        let more = |count| {
            let before = grants.load(SeqCst);
            wait_for_servers("they work", || grants.load(SeqCst) >= before + count);
        };
        for number in 0..failovers {
            more(50);
            set.wait_until_replicated();
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let lost = (random >> 33) as usize % 30;
            let (old, ttls) = set.fail_over_for_now(|| {
                more(lost);
                holds_on.store(true, SeqCst);
                wait_until("one holds on", || {
                    let before = grants.load(SeqCst);
                    // Time itself is what is looked at: for this long nobody gets the lock.
                    thread::sleep(ms(50));
                    let is_held = !holders.lock().expect("no panic").is_empty();
                    grants.load(SeqCst) == before && is_held
                });
            });
            // The test needs time to pass: a second holder would come now.
            thread::sleep(secs(3));
            holds_on.store(false, SeqCst);
            let found = std::mem::take(&mut *overlaps.lock().expect("no panic"));
            println!(
                "failover {number} of seed {seed}: at least {lost} hand-overs lost, replicas kept the key for {ttls:?} ms, {} overlaps",
                found.len()
            );
            let is_of_failover = ttls.iter().any(|ttl| *ttl < 10_000);
            assert!(
                found.is_empty() || is_of_failover,
                "failover {number} of seed {seed}: {:?}",
                found.iter().map(|one| one.owner()).collect::<Vec<_>>()
            );
            of_failovers += found.len();
            for first in found {
                wait_until("the first holder is told", || {
                    first.state() == LeaseState::Lost
                });
            }
            let begun = Instant::now();
            more(1);
            assert!(begun.elapsed() < LEASE + secs(5), "{:?}", begun.elapsed());
            set.start_as_replica(old);
        }
    });
    println!("{failovers} failovers, which made {of_failovers} overlaps");
}

#[test]
fn hand_overs_that_a_failover_loses_make_no_second_holder() {
    hand_overs_that_are_lost_make_no_second_holder(1, 36);
}

#[test]
#[ignore = "it takes half an hour: .ci/long runs it"]
fn hand_overs_that_200_failovers_lose_make_no_second_holder() {
    // Sets that fail over at the same time, because each mostly waits.
    thread::scope(|scope| {
        for seed in 36..40 {
            scope.spawn(move || hand_overs_that_are_lost_make_no_second_holder(50, seed));
        }
    });
}

/// Ends the threads of a test, also if the test fails.
struct EndsAtDrop<'a>(&'a AtomicBool, &'a AtomicBool);

impl Drop for EndsAtDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
        self.1.store(false, SeqCst);
    }
}

/// Threads write to a file under the lock while the master fails. The file refuses only the writes of holders that have
/// lost the lock, and they learn of it.
fn a_file_with_a_fence_takes_no_stale_write(fail: fn(&Server)) {
    let set = Sentinels::start();
    let managers = [set.manager(), set.manager()];
    let writers = FencedWriters::start(&managers, "n");
    writers.wait_for_more(20);
    let old = set.master();
    fail(old);
    set.wait_for_another_than(old);
    writers.wait_for_more(20);
    writers.end();
}

#[test]
fn a_file_with_a_fence_takes_no_stale_write_if_the_master_dies() {
    a_file_with_a_fence_takes_no_stale_write(Server::kill);
}

#[test]
fn a_file_with_a_fence_takes_no_stale_write_if_the_master_hangs() {
    a_file_with_a_fence_takes_no_stale_write(Server::pause);
}

/// The first half has the master and a holder, and the second has a majority of the sentinels. The network between them
/// is cut. Returns whether the holder had lost the lock when a client in the second half got it. Returns `None` if the
/// machine does not allow it.
fn lost_before_the_other_half_had_the_lock(replicas: u32) -> Option<bool> {
    let set = match SplitSentinels::start() {
        Ok(set) => set,
        Err(reason) => {
            eprintln!("skipped, because this machine cannot split its network: {reason}");
            return None;
        }
    };
    let [first, second] = &set.network.halves;
    let settings = "lease_ms=6000 io_timeout_ms=1000";
    let of_holder = format!("{settings} replicas={replicas}");
    let mut holder = Child::start_within(first, &set.url(), &of_holder);
    let mut other = Child::start_within(second, &set.url(), settings);
    let fence = holder.lock("n");
    assert_eq!(other.ask("try n 0"), "held");
    set.network.cut();
    let mut next = None;
    wait_for_servers("the second half has a master and the lock", || {
        let answer = other.ask("try n 1000");
        next = answer
            .strip_prefix("locked ")
            .map(|fence| fence.parse::<u64>().expect("a fence"));
        next.is_some()
    });
    assert!(next > Some(fence));
    let was_lost = holder.ask("state n") == "Lost";
    set.network.heal();
    wait_for_servers("the holder has lost the lock", || {
        holder.ask("state n") == "Lost"
    });
    assert_ne!(other.ask("state n"), "Lost");
    assert_eq!(other.ask("release n"), "released");
    // The holder releases its guard, and asks anew.
    assert!(holder.ask("release n").contains("Lost"));
    let mut last = None;
    wait_for_servers("the first half follows the new master", || {
        let answer = holder.ask("try n 1000");
        last = answer
            .strip_prefix("locked ")
            .map(|fence| fence.parse::<u64>().expect("a fence"));
        last.is_some()
    });
    assert!(last > next);
    Some(was_lost)
}

/// Both halves may have a holder for a while. Fences rise all the same.
#[test]
fn fences_rise_although_both_halves_of_the_network_have_a_master() {
    lost_before_the_other_half_had_the_lock(0);
}

/// A renewal counts only if the replica has it, and the replica has the lock until then.
#[test]
fn a_holder_with_replicas_has_lost_the_lock_before_the_other_half_has_it() {
    let was_lost = lost_before_the_other_half_had_the_lock(1);
    assert_ne!(was_lost, Some(false));
}

#[test]
fn sentinels_that_hang_lie_or_are_dead_stop_no_lock() {
    let set = Sentinels::without_failover();
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
    let wrong = LockManager::sentinel([server.url()], MASTER)
        .connect_timeout(secs(10))
        .build();
    let error = wrong.expect_err("it is no sentinel");
    let is_config = matches!(
        error,
        Error::Config {
            option: "sentinels",
            ..
        }
    );
    assert!(is_config, "{error:?}");
    let address = format!("127.0.0.1:{} is not a sentinel", server.port());
    assert!(error.to_string().contains(&address), "{error}");
}

/// The rights that the crate's front page lists are enough, also after a failover, and each of those for Sentinel is
/// needed.
#[test]
fn the_documented_access_list_is_enough_for_a_sentinel_set() {
    let lines = documented_rights();
    let set = Sentinels::without_failover();
    let give = |server: &Server, rights: &[&[String]]| {
        let command = ["ACL", "SETUSER", "app", "reset"].map(str::to_owned);
        let rights = rights.iter().flat_map(|line| line.iter().cloned());
        let command: Vec<_> = command.into_iter().chain(rights).collect();
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        let () = server.raw().ask(&command);
    };
    let of_servers = [&*lines[0], &*lines[1], &*lines[7]];
    let of_sentinels = [&*lines[9]];
    let give_all = || {
        set.servers().for_each(|server| give(server, &of_servers));
        set.sentinels()
            .for_each(|sentinel| give(sentinel, &of_sentinels));
    };
    give_all();
    let builder = || {
        let urls = set.urls().into_iter();
        let urls = urls.map(|url| url.replace("//", "//app:us3r-s3cret@"));
        let builder = LockManager::sentinel(urls, MASTER).connect_timeout(secs(10));
        builder.node_credentials(Some("app"), "us3r-s3cret")
    };
    let locks = build(builder());
    let guard = locks.lock("n").expect("it is free");
    guard.extend(secs(60)).expect("it is held");
    guard.release().expect("it is held");
    set.fail_over();
    locked_at_last(&locks, "n");
    let without = |line: &[String], right: &String| -> Vec<String> {
        let others = line.iter().filter(|other| *other != right);
        others.cloned().collect()
    };
    for right in lines[9]
        .iter()
        .filter(|right| right.starts_with(['+', '&']))
    {
        let others = without(&lines[9], right);
        set.sentinels()
            .for_each(|sentinel| give(sentinel, &[&others]));
        let error = builder().build().expect_err("a right is missing");
        assert!(matches!(error, Error::Denied { .. }), "{right}: {error:?}");
    }
    give_all();
    for server in set.servers() {
        give(server, &of_servers[..2]);
    }
    let error = builder()
        .build()
        .expect_err("the right for ROLE is missing");
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    give_all();
    locked_at_last(&build(builder()), "n");
}

/// A server that has become a replica has only the data of its master, and rejects writes.
#[test]
fn the_answers_of_a_demoted_master_are_not_believed() {
    let set = Sentinels::without_failover();
    // Each request waits for a master until its limits are over.
    let hasty = || build(set.builder().connect_timeout(secs(2)).io_timeout(secs(2)));
    let (locks, other) = (hasty(), hasty());
    locked_at_last(&locks, "n");
    let mutex = locks.mutex("n").lease(secs(600));
    let guard = mutex.lock().expect("it is free");
    let (server, stranger) = (set.master(), Server::start());
    let port = stranger.port().to_string();
    let raw = server.raw();
    let () = raw.ask(&["REPLICAOF", "127.0.0.1", &port]);
    wait_for_servers("it has lost its data", || !raw.exists("n"));
    // It has neither the key nor a right to write: "gone" and "free" would be old or wrong.
    let is_unavailable = |error: &Error| matches!(error, Error::Unavailable { .. });
    let extended = guard.extend(secs(1200));
    assert!(extended.as_ref().is_err_and(is_unavailable), "{extended:?}");
    guard.check().expect("no master has said that it is lost");
    let tried = other.try_lock("n");
    assert!(tried.as_ref().is_err_and(is_unavailable), "{tried:?}");
    let seen = other.inspect("n");
    assert!(seen.as_ref().is_err_and(is_unavailable), "{seen:?}");
    // When it is a master again, its answers count.
    let () = raw.ask(&["REPLICAOF", "NO", "ONE"]);
    assert!(locked_at_last(&other, "n") > guard.fence());
    wait_until("the holder asks the master again", || {
        match guard.extend(secs(1200)) {
            Err(Error::Lost(loss)) => loss.cause == LostCause::Removed,
            Err(error) if is_unavailable(&error) => false,
            other => panic!("{other:?}"),
        }
    });
}

/// The connections of the renewal thread and of the listener move to the new master, and the events name both servers.
#[test]
fn events_name_the_servers_that_fail_and_recover() {
    let set = Sentinels::start();
    let (tell, told) = channel();
    let listener = move |event: &Event<'_>| {
        let about = match event {
            Event::Unreachable {
                connection, node, ..
            } => (
                *connection,
                "unreachable",
                node.as_deref().map(str::to_owned),
            ),
            Event::Recovered {
                connection, node, ..
            } => (*connection, "recovered", node.as_deref().map(str::to_owned)),
            _ => return,
        };
        tell.send(about).ok();
    };
    let locks = build(set.builder().listener(listener));
    let kept = locks
        .mutex("kept")
        .lease(secs(3))
        .lock()
        .expect("it is free");
    let other = set.manager();
    let held = other.mutex("n").lease(secs(3)).lock().expect("it is free");
    let waiting = locking(&locks.mutex("n"));
    set.master().raw().wait_until_queued("n", 1);
    let old = set.master();
    let wait_for = |expected: &str, server: &Server| {
        let mut missing: BTreeSet<_> = ["Renewal", "Wakeup"].into();
        while !missing.is_empty() {
            let (connection, what, node) =
                told.recv_timeout(PATIENCE_WITH_SERVERS).expect("an event");
            if what == expected {
                let address = format!("127.0.0.1:{}", server.port());
                assert_eq!(node, Some(address), "{connection:?}");
                missing.remove(&*format!("{connection:?}"));
            }
        }
    };
    // There must be no new master before both connections have found the old one dead.
    set.sentinels().for_each(Server::pause);
    old.kill();
    wait_for("unreachable", old);
    set.sentinels().for_each(Server::resume);
    set.wait_for_another_than(old);
    wait_for("recovered", set.master());
    drop((kept, held));
    drop(waiting.end().expect("it becomes free"));
}

#[test]
fn sentinels_and_servers_have_passwords_of_their_own() {
    let passwords = Passwords {
        of_sentinels: "s3cret-of-sentinels",
        of_servers: "s3cret-of-servers",
    };
    let set = Sentinels::with(SetOptions {
        passwords: Some(passwords),
        ..SetOptions::default()
    });
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
