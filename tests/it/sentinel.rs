//! Locks on the master of a Sentinel set.

use leasehold::{Error, LockManager};

use crate::connect::documented_rights;
use crate::support::{
    MASTER, Passwords, Sentinels, Server, SetOptions, build, fence_of, locked_at_last, secs,
    unhurried, wait_until, with_password,
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
        let builder = unhurried(LockManager::sentinel(urls, MASTER));
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
        let builder = unhurried(LockManager::sentinel(urls, "mine"));
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
    let in_plain_text = unhurried(LockManager::sentinel(set.urls(), "mine"));
    let in_plain_text = in_plain_text.password(passwords.of_sentinels);
    let in_plain_text = in_plain_text.node_credentials(Some("default"), passwords.of_servers);
    drop(in_plain_text.build().expect("both are right"));
}
