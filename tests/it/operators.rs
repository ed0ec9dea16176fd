//! The calls of operators: they show locks and break them.

use std::collections::HashSet;
use std::thread;

use leasehold::{
    Error, Holder, Kind as Shown, LeaseState, LockInfo, LockManager, LostCause, Mode, Result,
};

use crate::support::{
    Kind, PATIENCE, Raw, Server, build, fence_of, locking, lost, manager, name, patient, secs,
    shared, unfit_names, unused_url, wait_until,
};

const LONG: std::time::Duration = secs(600);

#[track_caller]
fn seen(locks: &LockManager, name: &str) -> LockInfo {
    let info = locks.inspect(name).expect("Redis replies");
    info.expect("it is held, or waited for")
}

#[track_caller]
fn only_holder(locks: &LockManager, name: &str) -> Holder {
    let info = seen(locks, name);
    let [holder] = &info.holders[..] else {
        panic!("not one: {info:?}");
    };
    holder.clone()
}

#[track_caller]
fn listed(locks: &LockManager, pattern: &str) -> Vec<String> {
    let names = locks.list(pattern).map(|info| info.map(|info| info.name));
    let mut names: Vec<_> = names.collect::<Result<_>>().expect("Redis replies");
    names.sort();
    names
}

/// Makes a manager subscribe, by a wait of one of its threads.
#[track_caller]
fn listening(raw: &Raw, locks: &LockManager) {
    let name = name("listening");
    let held = manager(raw.url()).lock(&name).expect("it is free");
    let waiting = locking(&locks.mutex(&name));
    raw.wait_until_queued(&name, 1);
    drop(held);
    drop(waiting.end().expect("it becomes free"));
}

#[test]
fn every_kind_is_shown_as_it_stands() {
    let raw = shared();
    let onlooker = manager(raw.url());
    for kind in Kind::ALL {
        let name = name(kind.name());
        let locks = build(patient(raw.url()).label("some:label").lease(LONG));
        assert_eq!(onlooker.inspect(&name).expect("Redis replies"), None);
        let guard = kind.of(&locks, &name).lock().expect("it is free");
        for (key, lease) in kind.keys(&name).iter().zip(guard.leases()) {
            let info = seen(&onlooker, key);
            let (shown, mode) = match kind {
                Kind::Mutex | Kind::Reentrant | Kind::Multi | Kind::Unfenced => {
                    (Shown::Mutex, Mode::Exclusive)
                }
                Kind::Reader => (Shown::RwLock, Mode::Read),
                Kind::Writer => (Shown::RwLock, Mode::Exclusive),
                Kind::OnlyPermit => (Shown::Semaphore { permits: 1 }, Mode::Permits(1)),
                Kind::Permit => (Shown::Semaphore { permits: 3 }, Mode::Permits(1)),
                Kind::Permits => (Shown::Semaphore { permits: 3 }, Mode::Permits(2)),
                Kind::AllPermits => (Shown::Semaphore { permits: 3 }, Mode::Permits(3)),
            };
            assert_eq!((&*info.name, info.kind, info.waiters), (&**key, shown, 0));
            let holder = only_holder(&onlooker, key);
            assert_eq!((&*holder.owner, holder.mode), (lease.owner(), mode));
            assert_eq!(holder.label.as_deref(), Some("some:label"));
            let fence = (!matches!(mode, Mode::Permits(_))).then(|| lease.fence());
            assert_eq!(holder.fence, fence, "{kind:?}");
            let is_timed = mode == Mode::Exclusive && fence.is_some();
            let age = holder
                .since
                .map(|since| since.elapsed().expect("it is past"));
            assert_eq!(age.is_some(), is_timed, "{kind:?}");
            assert!(age.is_none_or(|age| age < PATIENCE), "{age:?}");
            assert!(holder.ttl.is_some_and(|ttl| ttl <= LONG && ttl > LONG / 2));
        }
        guard.release().expect("it was held until now");
        assert_eq!(onlooker.inspect(&name).expect("Redis replies"), None);
    }
}

#[test]
fn waiters_are_counted_and_the_mark_is_not_shown() {
    let raw = shared();
    let onlooker = manager(raw.url());
    for kind in Kind::ALL {
        let name = name("waited-for");
        let guard = kind.of(&manager(raw.url()), &name).lock();
        let guard = guard.expect("it is free");
        let waiting = [("first", 1), ("second", 2)].map(|(label, place)| {
            let locks = build(patient(raw.url()).label(label));
            let waiting = kind.rival().of(&locks, &name).locking();
            raw.wait_until_queued(&name, place);
            waiting
        });
        let info = seen(&onlooker, &name);
        assert_eq!(info.waiters, 2, "{kind:?}");
        let [first, second] = &info.waiting[..] else {
            panic!("not two: {info:?}");
        };
        assert!(first.since < second.since, "{info:?}");
        assert_eq!(first.label.as_deref(), Some("first"));
        assert_eq!(second.label.as_deref(), Some("second"));
        let units = match kind.rival() {
            Kind::Writer => u32::MAX,
            Kind::Permits => 2,
            Kind::AllPermits => 3,
            _ => 1,
        };
        assert_eq!((first.units, second.units), (units, units), "{kind:?}");
        assert_eq!(info.holders[0].owner, guard.lease().owner());
        guard.release().expect("it was held until now");
        for waiting in waiting {
            waiting.locked();
            waiting.release();
        }
    }
}

#[test]
fn a_ping_tells_of_each_server() {
    let servers = [Server::start(), Server::start()];
    let dead = unused_url();
    let urls = [servers[0].url(), servers[1].url(), dead.clone()];
    let quorum = LockManager::quorum(urls).restart_delay(secs(0));
    let locks = build(quorum.io_timeout(secs(5)).connect_timeout(secs(5)));
    let pings = locks.ping().expect("it asks");
    let address = |url: &str| {
        url.trim_start_matches("redis://")
            .trim_end_matches('/')
            .to_owned()
    };
    for (ping, server) in pings.iter().zip(&servers) {
        assert_eq!(*ping.server, address(&server.url()));
        let took = ping.result.as_ref().expect("it answers");
        assert!(*took < secs(5) && !took.is_zero(), "{took:?}");
    }
    assert_eq!((pings.len(), &*pings[2].server), (3, &*address(&dead)));
    let failed = pings[2].result.as_ref().expect_err("it is not there");
    assert!(matches!(failed, Error::Unavailable { .. }), "{failed:?}");

    let locks = manager(&servers[0].url());
    // Connections that are in use change nothing.
    let guard = locks.lock("n").expect("it is free");
    assert!(locks.ping().expect("it asks")[0].result.is_ok());
    servers[0].kill();
    assert!(locks.ping().expect("it asks")[0].result.is_err());
    drop(guard);
    assert!(!locks.close(secs(0)));
    assert!(matches!(locks.ping(), Err(Error::Closed)));
}

#[test]
fn a_lock_of_another_client_is_shown_without_label_and_fence() {
    let raw = shared();
    let locks = manager(raw.url());
    // A value that looks like an owner of ours, or ends with our mark, is shown as it is.
    for owner in ["foreign", "foreign!", "", "lh1:mine:x"] {
        let name = name("foreign");
        let () = raw.ask(&["SET", &name, owner]);
        let holder = only_holder(&locks, &name);
        assert_eq!((&*holder.owner, holder.mode), (owner, Mode::Exclusive));
        assert_eq!((holder.label, holder.fence, holder.ttl), (None, None, None));
        let () = raw.ask(&["PEXPIRE", &name, "60000"]);
        let ttl = only_holder(&locks, &name).ttl;
        assert!(ttl.is_some_and(|ttl| ttl <= secs(60)), "{ttl:?}");
    }
}

#[test]
fn shares_that_have_run_out_are_not_shown() {
    let raw = shared();
    let name = name("run-out");
    let [one, other] = [(); 2].map(|()| manager(raw.url()));
    let stays = Kind::Permit.of(&one, &name).lease(LONG).lock();
    let stays = stays.expect("it is free");
    let goes = Kind::Permit.of(&other, &name).lease(secs(2)).unrenewed();
    let goes = goes.lock().expect("it is free");
    wait_until("one has run out", || seen(&one, &name).holders.len() == 1);
    assert_eq!(only_holder(&one, &name).owner, stays.lease().owner());
    assert_eq!(raw.shares(&name).len(), 2, "nobody has noticed yet");
    drop(stays);
    drop(goes);
}

#[test]
fn a_free_lock_with_a_waiter_is_shown_without_a_holder() {
    let raw = shared();
    for (kind, shown) in [
        (Kind::Mutex, Shown::Mutex),
        (Kind::Writer, Shown::RwLock),
        (Kind::AllPermits, Shown::Semaphore { permits: 3 }),
    ] {
        let name = name("between");
        let guard = kind.of(&manager(raw.url()), &name).lock();
        let guard = guard.expect("it is free");
        let waiting = kind.of(&manager(raw.url()), &name).locking();
        raw.wait_until_queued(&name, 1);
        let locks = manager(raw.url());
        // The waiter polls soon, and may get the lock first.
        wait_until("it is seen between", || {
            let () = raw.ask(&["DEL", &name]);
            let Some(info) = locks.inspect(&name).expect("Redis replies") else {
                return false;
            };
            assert_eq!(info.kind, shown);
            info.holders.is_empty() && info.waiters == 1
        });
        waiting.locked();
        drop(guard);
        drop(waiting);
    }
}

#[test]
fn a_key_that_is_no_lock_is_the_wrong_type() {
    let raw = shared();
    let locks = manager(raw.url());
    for command in [
        &["RPUSH"][..],
        &["SADD"],
        &["HSET", "field"],
        &["ZADD", "1"],
    ] {
        let name = name("no-lock");
        let (verb, more) = command.split_first().expect("a verb");
        let () = raw.ask(&[&[*verb, &name], more, &["value"]].concat());
        for error in [
            locks.inspect(&name).map(drop),
            locks.force_release(&name, "value").map(drop),
        ] {
            assert!(matches!(error, Err(Error::WrongType { .. })), "{error:?}");
        }
        assert!(raw.exists(&name));
    }
    for name in unfit_names() {
        let error = locks.inspect(&name);
        assert!(matches!(error, Err(Error::InvalidName { .. })), "{error:?}");
        let error = locks.force_release(&name, "x");
        assert!(matches!(error, Err(Error::InvalidName { .. })), "{error:?}");
    }
}

#[test]
fn a_list_has_every_kind_and_no_other_keys() {
    let server = Server::start();
    let raw = server.raw();
    let locks = manager(&server.url());
    let mut expected = Vec::new();
    let mut guards = Vec::new();
    for kind in Kind::ALL {
        let name = format!("own:{}", kind.name());
        guards.push(kind.of(&locks, &name).lock().expect("it is free"));
        expected.extend(kind.keys(&name));
    }
    // There are companions of held locks and of a free one, also with hash tags in the name.
    drop(locks.lock("own:free").expect("it is free"));
    let tagged = locks.lock("own:{tag}:x").expect("it is free");
    expected.push("own:{tag}:x".into());
    let long = format!("lh1:{}", "x".repeat(1 << 20));
    for command in [
        &["SET", "own:string", "text"][..],
        &["SET", "own:like-ours", "lh1:hello"],
        &["SET", "own:long", &long],
        &["RPUSH", "own:list", "a"],
        &["SADD", "own:set", "a"],
        &["ZADD", "own:sorted", "1", "a"],
        &["HSET", "own:hash", "a", "b"],
        &["XADD", "own:stream", "*", "a", "b"],
        &[
            "SET",
            "not-own",
            "lh1:00000000-0000-4000-8000-000000000000:x",
        ],
    ] {
        let _: redis::Value = raw.ask(command);
    }
    // A rate limiter is no lock.
    locks
        .rate_limiter("own:rate", 1, secs(60))
        .acquire()
        .expect("Redis replies");
    // This key is no text.
    let client = redis::Client::open(server.url()).expect("a url");
    let mut connection = client.get_connection().expect("it is there");
    let () = redis::cmd("SET")
        .arg(b"own:\xff")
        .arg("lh1:00000000-0000-4000-8000-000000000000:x")
        .query(&mut connection)
        .expect("an answer");
    expected.sort();
    // The other names of the multi-lock have the first one as their tag.
    let mut all = listed(&locks, "own:*");
    all.extend(listed(&locks, "{own:*"));
    all.sort();
    assert_eq!(all, expected);
    // A lock without a record of its fence is listed too. Redis drops the record while a lock is held for long.
    let () = raw.ask(&["DEL", &fence_of("own:mutex")]);
    assert_eq!(listed(&locks, "own:mutex"), ["own:mutex"]);
    assert_eq!(only_holder(&locks, "own:mutex").fence, None);
    // A lock of another client is listed while ours waits for it.
    let () = raw.ask(&["SET", "own:foreign", "foreign", "PX", "60000"]);
    assert_eq!(listed(&locks, "own:foreign"), [""; 0]);
    let waiting = locking(&locks.mutex("own:foreign"));
    raw.wait_until_queued("own:foreign", 1);
    assert_eq!(listed(&locks, "own:foreign"), ["own:foreign"]);
    let () = raw.ask(&["DEL", "own:foreign"]);
    drop(waiting.end());
    drop(tagged);
}

#[test]
fn patterns_match_names_and_the_prefix_is_literal() {
    let server = Server::start();
    let prefix = r"[a-z]*?\:";
    let locks = build(patient(&server.url()).prefix(prefix));
    // The prefix "b" would match these names if it were a pattern.
    let others = build(patient(&server.url()).prefix("b"));
    let _theirs = others.lock("xyz:one").expect("it is free");
    let names = ["one", "two", "a*b", "a?b", "axb", "[x]"];
    let guards = names.map(|name| locks.lock(name).expect("it is free"));
    let mut sorted = names.map(str::to_owned);
    sorted.sort();
    assert_eq!(listed(&locks, "*"), sorted);
    assert_eq!(listed(&locks, "t*"), ["two"]);
    assert_eq!(listed(&locks, "a?b"), ["a*b", "a?b", "axb"]);
    assert_eq!(listed(&locks, r"a\?b"), ["a?b"]);
    assert_eq!(listed(&locks, "[ot]*"), ["one", "two"]);
    assert_eq!(listed(&locks, ""), [""; 0]);
    assert_eq!(listed(&others, "*"), ["xyz:one"]);
    drop(guards);
}

#[test]
fn ten_thousand_locks_are_listed_once_each_while_others_come_and_go() {
    const LOCKS: usize = 10_000;
    const OTHERS: &str = "300000";
    let server = Server::start();
    let raw = server.raw();
    let locks = build(patient(&server.url()).lease(LONG));
    let fill = "for i = 1, ARGV[1] do redis.call('SET', 'other:' .. i, i) end";
    let empty = "for i = 1, ARGV[1] do redis.call('DEL', 'other:' .. i) end";
    let () = raw.ask(&["EVAL", fill, "0", OTHERS]);
    let names = || (0..LOCKS).map(|i| format!("n:{i}"));
    let guards: Vec<_> = names()
        .map(|name| locks.lock(name).expect("it is free"))
        .collect();
    let mut listed = HashSet::new();
    for (at, info) in locks.list("n:*").enumerate() {
        let info = info.expect("Redis replies");
        assert_eq!(info.holders.len(), 1);
        assert!(listed.insert(info.name), "twice");
        match at {
            // The hash table shrinks during the scan. The scan returns some keys again.
            2_000 => {
                let () = raw.ask(&["EVAL", empty, "0", OTHERS]);
            }
            // The hash table grows.
            6_000 => {
                let () = raw.ask(&["EVAL", fill, "0", OTHERS]);
            }
            at if at % 100 == 0 => drop(locks.lock(format!("n:gone:{at}")).expect("it is free")),
            _ => {}
        }
    }
    listed.retain(|name| !name.starts_with("n:gone:"));
    assert_eq!(listed.len(), LOCKS);
    assert!(names().all(|name| listed.contains(&name)));
    drop(guards);
}

/// With very many holders, one page of the list is longer than any reply may be.
#[test]
fn a_list_has_room_for_very_many_holders() {
    const LOCKS: usize = 240;
    const HOLDERS: usize = 1000;
    let server = Server::start();
    let make = "
        local time = redis.call('TIME')
        local ends = (time[1] + 600) * 1000
        for lock = 1, ARGV[1] do
            local name = 'crowd:' .. lock
            redis.call('ZADD', name, -ARGV[2], '=of', -ARGV[2], '=used')
            for holder = 1, ARGV[2] do
                local owner = 'lh1:67e55044-10b1-426f-9247-' .. string.format('%012d', holder) .. ':a-host:4711'
                redis.call('ZADD', name, ends, '1 ' .. owner)
            end
            redis.call('PEXPIREAT', name, ends)
        end";
    let () = server
        .raw()
        .ask(&["EVAL", make, "0", &LOCKS.to_string(), &HOLDERS.to_string()]);
    let locks = manager(&server.url());
    let mut names = HashSet::new();
    for lock in locks.list("crowd:*") {
        let lock = lock.expect("Redis replies");
        assert_eq!(lock.holders.len(), HOLDERS, "{}", lock.name);
        names.insert(lock.name);
    }
    assert_eq!(names.len(), LOCKS);
}

#[test]
fn an_error_ends_a_list() {
    let nobody = LockManager::single(&unused_url()).build_unchecked();
    let mut list = nobody.expect("a url").list("*");
    assert!(matches!(list.next(), Some(Err(Error::Unavailable { .. }))));
    assert!(list.next().is_none());
    let locks = manager(shared().url());
    let mut list = locks.list("*");
    assert!(locks.close(PATIENCE));
    assert!(matches!(list.next(), Some(Err(Error::Closed))));
    assert!(list.next().is_none());
    assert!(matches!(locks.inspect("n"), Err(Error::Closed)));
    assert!(matches!(locks.force_release("n", "x"), Err(Error::Closed)));
}

#[test]
fn force_release_notifies_the_holder_and_grants_the_first_waiter() {
    let raw = shared();
    let operator = manager(raw.url());
    for kind in Kind::ALL {
        for renewed in [true, false] {
            let name = name(kind.name());
            let holding = build(patient(raw.url()).lease(LONG));
            listening(raw, &holding);
            let subject = kind.of(&holding, &name);
            let subject = if renewed {
                subject
            } else {
                subject.unrenewed()
            };
            let guard = subject.lock().expect("it is free");
            let told = guard.on_lost();
            let rival = kind.rival();
            // Two readers would be granted together.
            assert_ne!(rival, Kind::Reader);
            let [first, second] = [1, 2].map(|place| {
                let waiting = rival.of(&manager(raw.url()), &name).locking();
                raw.wait_until_queued(&name, place);
                waiting
            });
            // The first renewal of this long lease is not due yet.
            let owner = guard.lease().owner();
            assert!(operator.force_release(&name, owner).expect("Redis replies"));
            let loss = told.recv_timeout(PATIENCE).expect("it is notified");
            let expected = match kind {
                // For a lock with units, a renewal only sees that its own share is missing.
                Kind::Mutex | Kind::Reentrant | Kind::Multi => LostCause::Taken,
                _ => LostCause::Removed,
            };
            assert_eq!((loss.fence, loss.cause), (guard.fence(), expected));
            assert_eq!(guard.lease().state(), LeaseState::Lost);
            // A repeated call does nothing, because that owner holds nothing any more.
            assert!(!operator.force_release(&name, owner).expect("Redis replies"));
            // The next waiter is granted while the broken guard still exists. Only a multi-lock must release its
            // other names first.
            let (fence, mut guard) = (guard.fence(), Some(guard));
            if kind == Kind::Multi {
                lost(guard.take().expect("it was not released yet").release());
            }
            assert!(first.locked() > fence);
            assert!(second.waits(), "{kind:?}");
            if let Some(guard) = guard {
                lost(guard.release());
            }
            first.release();
            second.locked();
            second.release();
        }
    }
}

#[test]
fn a_holder_without_a_subscription_learns_of_it_at_its_next_renewal() {
    let raw = shared();
    let name = name("deaf");
    let guard = manager(raw.url()).mutex(&name).lease(secs(3)).lock();
    let guard = guard.expect("it is free");
    let told = guard.on_lost();
    let operator = manager(raw.url());
    let broken = operator.force_release(&name, guard.owner());
    assert!(broken.expect("Redis replies"));
    assert!(!raw.exists(&name));
    let loss = told.recv_timeout(PATIENCE).expect("it is notified");
    assert_eq!(loss.cause, LostCause::Removed);
    let next = operator.try_lock(&name).expect("Redis replies");
    assert!(next.expect("it is free").fence() > guard.fence());
}

#[test]
fn a_process_that_breaks_its_own_lock_needs_no_message() {
    let raw = shared();
    let name = name("own");
    let locks = build(patient(raw.url()).lease(LONG));
    let guard = locks.lock(&name).expect("it is free");
    let waiting = locking(&locks.mutex(&name));
    let told = guard.on_lost();
    assert!(
        locks
            .force_release(&name, guard.owner())
            .expect("Redis replies")
    );
    told.recv_timeout(PATIENCE).expect("it is notified");
    let next = waiting.end().expect("it becomes free");
    assert!(next.fence() > guard.fence());
    lost(guard.release());
    next.release().expect("it was held until now");
}

#[test]
fn force_release_ends_one_share_and_no_other() {
    let raw = shared();
    for kind in [Kind::Reader, Kind::Permit] {
        let name = name("one-share");
        let [one, other] = [(); 2].map(|()| manager(raw.url()));
        let [broken, stays] = [&one, &other].map(|locks| {
            let guard = kind.of(locks, &name).lease(LONG).lock();
            guard.expect("there is room")
        });
        let done = other.force_release(&name, broken.lease().owner());
        assert!(done.expect("Redis replies"));
        assert_eq!(only_holder(&one, &name).owner, stays.lease().owner());
        lost(broken.release());
        stays.release().expect("it was held until now");
    }
}

#[test]
fn force_release_of_one_name_releases_the_other_names_of_a_multi_lock() {
    let raw = shared();
    let name = name("set");
    let locks = build(patient(raw.url()).lease(LONG));
    let guard = Kind::Multi.of(&locks, &name).lock().expect("it is free");
    let keys = Kind::Multi.keys(&name);
    let told = guard.on_lost();
    let owner = guard.lease().owner();
    assert!(locks.force_release(&keys[1], owner).expect("Redis replies"));
    told.recv_timeout(PATIENCE).expect("it is notified");
    assert!(raw.exists(&keys[0]) && !raw.exists(&keys[1]));
    lost(guard.release());
    wait_until("the others are released", || {
        keys.iter().all(|key| !raw.exists(key))
    });
}

#[test]
fn only_the_named_owner_is_broken() {
    let raw = shared();
    let operator = manager(raw.url());
    for kind in Kind::ALL {
        let name = name(kind.name());
        assert!(!operator.force_release(&name, "x").expect("Redis replies"));
        let guard = kind.of(&manager(raw.url()), &name).lock();
        let guard = guard.expect("it is free");
        let waiting = kind.rival().of(&manager(raw.url()), &name).locking();
        raw.wait_until_queued(&name, 1);
        let waiter = raw.queue(&name).remove(0);
        let owner = guard.lease().owner();
        let cut = &owner[..owner.len() - 1];
        for other in [
            &*waiter,
            cut,
            &format!("{owner}!"),
            &format!("1 {owner}"),
            "",
            "=of",
        ] {
            let done = operator.force_release(&name, other);
            assert!(!done.expect("Redis replies"), "{kind:?}: {other}");
        }
        assert_eq!(raw.queue(&name), [waiter]);
        guard.check().expect("it is held");
        guard.release().expect("it was held until now");
        waiting.locked();
        waiting.release();
    }
}

#[test]
fn another_clients_lock_is_broken_by_its_owner_alone() {
    let raw = shared();
    let name = name("foreign");
    let locks = manager(raw.url());
    let () = raw.ask(&["SET", &name, "foreign!"]);
    let waiting = locking(&locks.mutex(&name));
    raw.wait_until_queued(&name, 1);
    // Only our values have the mark. The value of another client may end with the same sign.
    assert!(
        !locks
            .force_release(&name, "foreign")
            .expect("Redis replies")
    );
    assert!(
        locks
            .force_release(&name, "foreign!")
            .expect("Redis replies")
    );
    drop(waiting.end().expect("it becomes free"));
}

#[test]
fn a_forged_message_only_causes_a_renewal() {
    let raw = shared();
    let locks = build(patient(raw.url()).lease(LONG));
    listening(raw, &locks);
    let (renewed, fixed) = (name("renewed"), name("fixed"));
    let guard = locks.lock(&renewed).expect("it is free");
    let unrenewed = locks.mutex(&fixed).renew(false).lock();
    let unrenewed = unrenewed.expect("it is free");
    let said = |owner: &str| {
        let _: i64 = raw.ask(&["PUBLISH", "leasehold:broken", owner]);
    };
    // A shorter time to live makes a renewal visible.
    for name in [&renewed, &fixed] {
        let () = raw.ask(&["PEXPIRE", name, "300000"]);
    }
    said("nobody");
    said(unrenewed.owner());
    said(guard.owner());
    wait_until("it asks, by a renewal", || {
        raw.ttl(&renewed).is_some_and(|ttl| ttl > secs(300))
    });
    // That message came first. A lease that is not to be renewed is not renewed.
    assert!(raw.ttl(&fixed).is_some_and(|ttl| ttl <= secs(300)));
    assert_eq!([guard.state(), unrenewed.state()], [LeaseState::Held; 2]);
    // Both locks still work.
    assert!(
        locks
            .force_release(&fixed, unrenewed.owner())
            .expect("Redis replies")
    );
    let told = unrenewed.on_lost().recv_timeout(PATIENCE);
    assert_eq!(told.expect("it is notified").cause, LostCause::Removed);
    guard.release().expect("it was held until now");
}

#[test]
fn locks_are_broken_while_threads_come_and_go() {
    let raw = shared();
    let name = name("storm");
    let [one, other] = [(); 2].map(|()| build(patient(raw.url()).lease(LONG)));
    let operator = manager(raw.url());
    thread::scope(|scope| {
        let working: Vec<_> = [&one, &other, &one, &other]
            .map(|locks| {
                let name = &name;
                scope.spawn(move || {
                    let mut fences = Vec::new();
                    for _ in 0..50 {
                        let guard = locks.lock(name).expect("it becomes free");
                        fences.push(guard.fence());
                        // The lock may have been broken.
                        guard.release().ok();
                    }
                    fences
                })
            })
            .into();
        while working.iter().any(|thread| !thread.is_finished()) {
            let info = operator.inspect(&name).expect("Redis replies");
            for holder in info.into_iter().flat_map(|info| info.holders) {
                operator
                    .force_release(&name, &holder.owner)
                    .expect("Redis replies");
            }
        }
        let mut all = HashSet::new();
        for thread in working {
            let fences = thread.join().expect("no panic");
            assert!(fences.is_sorted());
            assert!(fences.into_iter().all(|fence| all.insert(fence)));
        }
    });
}

#[test]
fn a_kept_lock_is_shown_and_broken_by_its_last_owner() {
    let raw = shared();
    // A label may end with the sign that marks the owner of a kept lock.
    for label in ["host", "host~", ""] {
        let locks = build(patient(raw.url()).label(label));
        let others = manager(raw.url());
        for kind in Kind::ALL {
            let name = name("kept-owner");
            let key = kind.keys(&name).remove(0);
            let guard = kind
                .of(&locks, &name)
                .min_hold(LONG)
                .lock()
                .expect("it is free");
            let owner = guard.lease().owner().to_owned();
            // The value then has the mark for waiters before the sign.
            let waiter = kind.rival().of(&others, &name).locking_asleep();
            raw.wait_until_queued(&key, 1);
            assert!(!only_holder(&locks, &key).kept, "{kind:?}");
            guard.release().expect("it is held");
            let holder = only_holder(&locks, &key);
            assert!(holder.kept, "{kind:?}");
            assert_eq!(
                (holder.owner, holder.label.as_deref()),
                (owner.clone(), Some(label))
            );
            for key in kind.keys(&name) {
                assert!(
                    locks.force_release(&key, &owner).expect("Redis replies"),
                    "{kind:?}"
                );
            }
            waiter.locked();
            waiter.release();
        }
    }
}
