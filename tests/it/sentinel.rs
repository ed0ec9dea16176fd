//! Locks on the master of a Sentinel set.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Error, LeaseState, LockGuard, LockManager};

use crate::connect::documented_rights;
use crate::support::{
    Child, MASTER, Passwords, Sentinels, Server, SetOptions, SplitSentinels, build, fence_of,
    locked_at_last, ms, secs, wait_until, with_password,
};

/// The sentinels find out and choose by themselves. `tests/contract/failovers.rs` has what a failover may lose.
#[test]
fn locks_go_to_the_new_master_if_the_old_one_dies() {
    let set = Sentinels::start();
    let (one, other) = (set.manager(), set.manager());
    let guard = one.lock("n").expect("it is free");
    let fence = guard.fence();
    guard.release().expect("it is held");
    let old = set.master();
    old.kill();
    set.wait_for_another_than(old);
    let first = locked_at_last(&one, "n");
    let second = locked_at_last(&other, "n");
    assert!(fence < first && first < second);
    assert!(set.master().raw().exists(&fence_of("n")));
}

/// The cursors of two servers differ, which those in memory do not show.
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
            wait_until("they work", || grants.load(SeqCst) >= before + count);
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
    wait_until("the second half has a master and the lock", || {
        let answer = other.ask("try n 1000");
        next = answer
            .strip_prefix("locked ")
            .map(|fence| fence.parse::<u64>().expect("a fence"));
        next.is_some()
    });
    assert!(next > Some(fence));
    let was_lost = holder.ask("state n") == "Lost";
    set.network.heal();
    wait_until("the holder has lost the lock", || {
        holder.ask("state n") == "Lost"
    });
    assert_ne!(other.ask("state n"), "Lost");
    assert_eq!(other.ask("release n"), "released");
    // The holder releases its guard, and asks anew.
    assert!(holder.ask("release n").contains("Lost"));
    let mut last = None;
    wait_until("the first half follows the new master", || {
        let answer = holder.ask("try n 1000");
        last = answer
            .strip_prefix("locked ")
            .map(|fence| fence.parse::<u64>().expect("a fence"));
        last.is_some()
    });
    assert!(last > next);
    Some(was_lost)
}

/// Without replicas, both halves may have a holder for a while, and fences rise all the same. With one, a renewal counts only
/// if the replica has it, and the replica has the lock until then.
#[test]
#[ignore = "tests/contract/failovers.rs shows it without real sentinels: .ci/long runs it"]
fn a_holder_with_replicas_has_lost_the_lock_before_the_other_half_has_it() {
    lost_before_the_other_half_had_the_lock(0);
    let was_lost = lost_before_the_other_half_had_the_lock(1);
    assert_ne!(was_lost, Some(false));
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
