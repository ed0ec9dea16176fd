//! Mutexes that stay with their process after their last guard: `linger`.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use leasehold::{Admission, Builder, Error, Event, LockManager};
use redis::Value;

use crate::fork::holds_in_a_child;
use crate::support::{
    Answer, Child, Fault, Hostile, Kind, PATIENCE, Proxy, Role, Server, Topology, build,
    locking_asleep, lost, manager, ms, name, on, patient, secs, shared, task_asleep, wait_until,
};

/// A time that no test reaches.
const LONG: Duration = secs(600);

/// Returns a manager whose mutexes linger for longer than a test. Its leases need no renewal in that time.
fn lingering(url: &str) -> LockManager {
    build(with_linger(url))
}

fn with_linger(url: &str) -> Builder {
    patient(url).linger(LONG).lease(LONG)
}

/// Locks until the mutex lingers, which needs the subscription. Returns the fence of the last guard.
#[track_caller]
fn linger(locks: &LockManager, name: &str) -> u64 {
    let mut fence = 0;
    wait_until("it lingers", || {
        let guard = locks.lock(name).expect("nobody else has it");
        fence = guard.fence();
        guard.release().expect("it is held");
        locks.stats().lingering == 1
    });
    fence
}

/// Lets a server note each command about the mutex `n`.
fn commands(hostile: &Hostile) -> Receiver<String> {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    hostile.answers(move |words| {
        if words.contains(&b"n".to_vec()) {
            let verb = String::from_utf8_lossy(&words[0]).into_owned();
            tell.lock().expect("no test panics").send(verb).ok();
        }
        Answer::Pass
    });
    told
}

#[test]
fn locking_again_sends_nothing() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let told = commands(&hostile);
    let locks = lingering(&hostile.url());
    let mut last = linger(&locks, "n");
    let owner = server.raw().get("n").expect("it is kept");
    assert!(told.try_iter().count() > 0, "the first one asks");
    let mut rises = |fence: u64| {
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    };
    let (mutex, set) = (locks.mutex("n"), locks.multi(["n"]));
    let reentrant = locks.reentrant_mutex("n");
    for _ in 0..100 {
        let guard = mutex.lock().expect("it lingers");
        assert_eq!(guard.owner(), owner);
        rises(guard.fence());
        guard.release().expect("it is held");
        rises(mutex.try_lock().expect("no request").expect("free").fence());
        rises(set.lock().expect("it lingers").leases()[0].fence());
        let (outer, inner) = (reentrant.lock(), reentrant.lock());
        rises(outer.expect("it lingers").fence());
        drop(inner);
    }
    // Threads that wait for such a guard get the lease in memory too.
    let guard = mutex.lock().expect("it lingers");
    let waiting = [(); 4].map(|()| locking_asleep(&mutex));
    rises(guard.fence());
    drop(guard);
    for waiting in waiting {
        rises(waiting.end().expect("it becomes free").fence());
    }
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [""; 0]);
    assert_eq!(locks.stats().lingering, 1);
}

#[test]
fn locking_again_without_a_fence_sends_nothing() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let told = commands(&hostile);
    let locks = build(with_linger(&hostile.url()).fencing(false));
    linger(&locks, "n");
    told.try_iter().for_each(drop);
    for _ in 0..100 {
        assert_eq!(locks.lock("n").expect("it lingers").fence(), 0);
    }
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [""; 0]);
}

/// Each guard has a fence of the lease's block. After the last one, the lease is released, and the next begins.
#[test]
fn fences_rise_from_lease_to_lease() {
    let (raw, name) = (shared(), name("fences"));
    let locks = build(with_linger(raw.url()).quantum(ms(1)));
    let mut last = linger(&locks, &name);
    let acquired = locks.stats().acquired;
    for _ in 0..3_000 {
        let fence = locks.lock(&name).expect("nobody else wants it").fence();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
    let leases = locks.stats().acquired - acquired;
    assert!((2..=4).contains(&leases), "{leases} leases of 1,000 fences");
    assert!(locks.close(PATIENCE));
    let fence = manager(raw.url()).lock(&name).expect("it is free").fence();
    assert!(fence > last, "{fence} after {last}");
}

/// The lease and the linger are longer than the test, so only a recall ends the linger.
fn a_process_that_waits_gets_the_lock_at_once(topology: Topology) {
    on(topology, || {
        let (raw, name) = (shared(), name("recall"));
        let (locks, other) = (lingering(raw.url()), manager(raw.url()));
        for round in 0..3 {
            let last = linger(&locks, &name);
            assert!(other.try_lock(&name).expect("asked").is_none(), "{round}");
            let guard = other.lock(&name).expect("it is recalled");
            assert!(guard.fence() > last);
            assert_eq!(locks.stats().lingering, 0);
            guard.release().expect("it is held");
        }
        // A set waits for a name that lingers, too.
        linger(&locks, &name);
        let set = other.multi([name.clone(), format!("{{{name}}}:2")]);
        drop(set.lock().expect("it is recalled"));
    });
}

#[test]
fn a_process_that_waits_gets_the_lock_at_once_on_one_server() {
    a_process_that_waits_gets_the_lock_at_once(Topology::Single);
}

#[test]
fn a_process_that_waits_gets_the_lock_at_once_behind_sentinels() {
    a_process_that_waits_gets_the_lock_at_once(Topology::Sentinel);
}

#[test]
fn a_process_that_waits_gets_the_lock_at_once_on_a_cluster() {
    a_process_that_waits_gets_the_lock_at_once(Topology::Cluster);
}

/// A poll takes most of a second. The recall arrives long before that.
#[test]
fn a_recall_is_faster_than_a_poll() {
    let (raw, name) = (shared(), name("fast"));
    let (locks, other) = (lingering(raw.url()), manager(raw.url()));
    // The other process subscribes.
    let guard = locks.lock(&name).expect("it is free");
    let waiting = locking_asleep(&other.mutex(&name));
    raw.wait_until_queued(&name, 1);
    drop(guard);
    drop(waiting.end().expect("it becomes free"));
    let mut waits: Vec<_> = (0..9)
        .map(|_| {
            linger(&locks, &name);
            let begun = Instant::now();
            drop(other.lock(&name).expect("it is recalled"));
            begun.elapsed()
        })
        .collect();
    waits.sort_unstable();
    assert!(waits[4] < ms(300), "{waits:?}");
}

#[test]
fn a_guard_that_is_recalled_is_handed_over_at_its_end() {
    let (raw, name) = (shared(), name("held"));
    let (locks, other) = (lingering(raw.url()), manager(raw.url()));
    linger(&locks, &name);
    let guard = locks.lock(&name).expect("it lingers");
    let waiting = locking_asleep(&other.mutex(&name));
    raw.wait_until_queued(&name, 1);
    let fence = guard.fence();
    guard.release().expect("it is held");
    let next = waiting.end().expect("it is handed over");
    assert!(next.fence() > fence);
    assert_eq!(locks.stats().lingering, 0);
}

/// A recall is a hint: it never ends a guard, and a false one ends no other lease.
#[test]
fn a_recall_ends_only_the_idle_lease_that_it_names() {
    let (raw, name) = (shared(), name("hint"));
    let locks = lingering(raw.url());
    linger(&locks, &name);
    let owner = raw.get(&name).expect("it is kept");
    let channel = format!("leasehold:{}", &owner[4..22]);
    assert_eq!(raw.listeners(&channel), 1);
    let recall = |owner: &str, key: &str| {
        let message = format!("recall {owner} {key}");
        raw.ask::<u32>(&["PUBLISH", &channel, &message])
    };
    for (owner, key) in [
        (owner.as_str(), "another"),
        (&owner.replace("lh1:", "lh1:0"), &name),
        ("", &name),
        (&owner, ""),
    ] {
        assert_eq!(recall(owner, key), 1);
    }
    let guard = locks.lock(&name).expect("it lingers");
    assert_eq!(guard.owner(), owner, "no message named it");
    recall(&owner, &name);
    guard.check().expect("it has a guard");
    // The messages are read in order, so the lease was recalled before this one ends.
    let second = lingering(raw.url());
    let waiting = task_asleep(move || second.lock(&name).map(drop));
    raw.wait_until_queued(guard.name(), 1);
    guard.check().expect("it has a guard");
    guard.release().expect("it is held");
    waiting.end().expect("it is handed over");
}

#[test]
fn a_client_that_polls_gets_the_lock_after_the_linger() {
    const LINGER: Duration = ms(500);
    let (raw, name) = (shared(), name("poller"));
    let locks = build(with_linger(raw.url()).linger(LINGER));
    linger(&locks, &name);
    let begun = Instant::now();
    let poll = || raw.ask::<Value>(&["SET", &name, "foreign", "NX", "PX", "60000"]);
    assert_eq!(poll(), Value::Nil);
    wait_until("the client gets it", || poll() == Value::Okay);
    assert!(begun.elapsed() < PATIENCE && locks.stats().lingering == 0);
}

/// Locking again prolongs nothing: there is a real release at the end, even if threads lock all the time.
#[test]
fn the_linger_counts_from_the_first_idle_moment() {
    const LINGER: Duration = ms(300);
    let server = Server::start();
    let raw = server.raw();
    // The fences last for longer than the linger.
    let locks = build(with_linger(&server.url()).linger(LINGER).quantum(secs(60)));
    linger(&locks, "n");
    let begun = Instant::now();
    let mut owners = vec![raw.get("n").expect("it is kept")];
    while owners.len() < 4 {
        let guard = locks.lock("n").expect("nobody else wants it");
        if guard.owner() != owners[owners.len() - 1] {
            owners.push(guard.owner().to_owned());
        }
        assert!(begun.elapsed() < PATIENCE, "{owners:?}");
    }
    assert!(begun.elapsed() >= LINGER * 2, "no lease ends early");
    // A guard that is held at the end is not disturbed, and then released.
    linger(&locks, "n");
    let guard = locks.lock("n").expect("it lingers");
    let lease = raw.get("n");
    assert_eq!(lease.as_deref(), Some(guard.owner()));
    wait_until("the linger is over", || {
        locks.stats().lingering == 0 && guard.check().is_ok() && begun.elapsed() > LINGER * 8
    });
    guard.release().expect("it is held");
    assert!(!raw.exists("n"), "the linger was over");
}

/// Without a subscription no recall arrives, so nothing lingers.
#[test]
fn the_end_of_the_subscription_ends_the_linger() {
    let server = Server::start();
    for fault in [Fault::Close, Fault::Reset] {
        let proxy = Proxy::to(&server);
        let locks = lingering(&proxy.url());
        linger(&locks, "n");
        proxy.strike(Role::Listener, fault);
        wait_until("it is released", || !server.raw().exists("n"));
        assert_eq!(locks.stats().lingering, 0);
        drop(locks.lock("n").expect("it is free"));
        assert!(!server.raw().exists("n"), "there is no subscription");
        proxy.heal();
        linger(&locks, "n");
        assert!(locks.close(PATIENCE));
    }
}

/// The messages to the holder are lost, so it gets no recall. The waiter gets the lock when the holder notices.
#[test]
fn a_lost_recall_delays_a_waiter_only_for_a_while() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (locks, other) = (
        build(with_linger(&proxy.url()).io_timeout(secs(1))),
        manager(&server.url()),
    );
    linger(&locks, "n");
    proxy.strike(Role::Listener, Fault::LoseAnswers);
    let guard = other.try_lock_for("n", PATIENCE).expect("asked");
    drop(guard.expect("the holder finds its subscription broken"));
}

/// The subscription has messages lost once. The first waiter repeats the recall at its next poll.
#[test]
fn the_first_waiter_repeats_the_recall() {
    let server = Server::start();
    let raw = server.raw();
    let (locks, other) = (lingering(&server.url()), manager(&server.url()));
    linger(&locks, "n");
    // Redis rejects each PUBLISH at first.
    let () = raw.ask(&["ACL", "SETUSER", "default", "-publish"]);
    let waiting = locking_asleep(&other.mutex("n"));
    raw.wait_until_queued("n", 1);
    assert_eq!(locks.stats().lingering, 1);
    let () = raw.ask(&["ACL", "SETUSER", "default", "+publish"]);
    drop(waiting.end().expect("it is recalled"));
}

/// The first waiter has died, and its recall was lost. A later waiter need not wait for the next renewal.
#[test]
fn another_waiter_repeats_the_recall_of_one_that_died() {
    let server = Server::start();
    let raw = server.raw();
    let (locks, other) = (lingering(&server.url()), manager(&server.url()));
    linger(&locks, "n");
    // Redis rejects each PUBLISH at first.
    let () = raw.ask(&["ACL", "SETUSER", "default", "-publish"]);
    let mut first = Child::start(&server.url(), "");
    first.say("lock n");
    raw.wait_until_queued("n", 1);
    let waiting = task_asleep(move || other.try_lock_for("n", PATIENCE).map(|got| got.is_some()));
    raw.wait_until_queued("n", 2);
    first.kill();
    let () = raw.ask(&["ACL", "SETUSER", "default", "+publish"]);
    assert!(waiting.end().expect("asked"), "it is recalled");
}

/// A waiter without the right to publish sends no recall. The holder's next renewal says that others wait.
#[test]
fn a_renewal_tells_that_others_wait() {
    let server = Server::start();
    let () = server.raw().ask(&["ACL", "SETUSER", "default", "-publish"]);
    let locks = build(with_linger(&server.url()).lease(secs(3)));
    linger(&locks, "n");
    let other = manager(&server.url());
    let guard = other.try_lock_for("n", PATIENCE).expect("asked");
    drop(guard.expect("the renewal shows it"));
    assert_eq!(locks.stats().lingering, 0);
}

#[test]
fn close_releases_what_lingers() {
    for background in [false, true] {
        let (raw, name) = (shared(), name("close"));
        let locks = build(with_linger(raw.url()).background_release(background));
        linger(&locks, &name);
        let held = locks.lock(format!("{name}:2")).expect("it is free");
        assert!(locks.close(PATIENCE));
        assert!(!raw.exists(&name));
        assert_eq!(locks.stats().lingering, 0);
        // A guard that ends after `close` is released at once.
        let key = held.name().to_owned();
        held.release().expect("it is held");
        wait_until("it is released", || !raw.exists(&key));
    }
}

#[test]
fn a_lease_that_lingers_keeps_its_manager_alive() {
    let (raw, name) = (shared(), name("alive"));
    let locks = build(with_linger(raw.url()).linger(ms(700)));
    linger(&locks, &name);
    drop(locks);
    assert!(raw.exists(&name), "it lingers");
    wait_until("it is released", || !raw.exists(&name));
}

#[test]
fn another_kind_of_lock_ends_the_linger_first() {
    let (raw, base) = (shared(), name("kinds"));
    for (kind, named) in Kind::NAMES {
        let locks = lingering(raw.url());
        let name = format!("{base}:{named}");
        linger(&locks, &name);
        let guard = kind.of(&locks, &name).try_lock().expect("asked");
        let guard = guard.expect("this process itself had it");
        guard.release().expect("it is held");
        assert!(locks.close(PATIENCE));
    }
    let locks = lingering(raw.url());
    linger(&locks, &base);
    let limiter = locks.rate_limiter(&base, 1, secs(1));
    let admitted = limiter.try_acquire().expect("no lock has the key");
    assert_eq!(admitted, Admission::Admitted);
}

#[test]
fn an_adoption_and_an_operator_end_the_linger_first() {
    let (raw, name) = (shared(), name("operators"));
    let locks = lingering(raw.url());
    linger(&locks, &name);
    let owner = raw.get(&name).expect("it is kept");
    let info = locks.inspect(&name).expect("asked").expect("it is held");
    assert_eq!(info.holders[0].owner, owner);
    assert!(!locks.force_release(&name, "lh1:other:l").expect("asked"));
    assert_eq!(locks.stats().lingering, 0);
    linger(&locks, &name);
    let owner = raw.get(&name).expect("it is kept");
    assert!(locks.force_release(&name, &owner).expect("asked"));
    assert!(!raw.exists(&name));
    linger(&locks, &name);
    let owner = raw.get(&name).expect("it is kept");
    assert!(
        manager(raw.url())
            .force_release(&name, &owner)
            .expect("asked")
    );
    wait_until("the holder learns of it", || locks.stats().lingering == 0);
    // A detached lock does not linger: another process may adopt it at any time.
    linger(&locks, &name);
    let claim = locks.lock(&name).expect("it lingers").detach();
    assert_eq!(locks.stats().lingering, 0);
    let adopted = locks.adopt(&claim).expect("nobody else has");
    assert!(adopted.fence() > claim.fence());
    adopted.release().expect("it is held");
    assert!(!raw.exists(&name), "an adopted lease does not linger");
    let claim = manager(raw.url()).lock(&name).expect("it is free").detach();
    drop(manager(raw.url()).adopt(&claim).expect("nobody else has"));
    linger(&locks, &name);
    lost(locks.adopt(&claim));
    assert_eq!(locks.stats().lingering, 0);
}

#[test]
fn a_handle_with_other_terms_gets_a_lease_of_its_own() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let told = commands(&hostile);
    let locks = lingering(&hostile.url());
    let mutex = || locks.mutex("n");
    for (what, other) in [
        ("lease", mutex().lease(LONG / 2)),
        ("renew", mutex().renew(false)),
        ("fencing", mutex().fencing(false)),
        ("max_hold", mutex().max_hold(Some(LONG))),
        ("linger", mutex().linger(LONG / 2)),
        ("no linger", mutex().linger(Duration::ZERO)),
    ] {
        let last = linger(&locks, "n");
        let owner = server.raw().get("n").expect("it is kept");
        told.try_iter().for_each(drop);
        let guard = other
            .try_lock()
            .expect("asked")
            .expect("this process had it");
        assert_ne!(guard.owner(), owner, "{what}");
        assert!(guard.fence() > last || what == "fencing", "{what}");
        assert!(told.try_iter().count() >= 1, "{what}: it asks");
        drop(guard);
        locks.force_release("n", "nobody").expect("asked");
    }
}

#[test]
fn a_guard_that_reaches_its_max_hold_does_not_linger() {
    let (raw, name) = (shared(), name("max-hold"));
    let locks = lingering(raw.url());
    linger(&locks, &name);
    assert!(locks.close(PATIENCE));
    let locks = build(with_linger(raw.url()).max_hold(Some(ms(300))));
    linger(&locks, &name);
    let guard = locks.lock(&name).expect("it lingers");
    wait_until("it is released", || !raw.exists(&name));
    lost(guard.check());
    assert_eq!(locks.stats().lingering, 0);
}

/// There is no guard to tell, so the counters and the listener tell of the loss.
#[test]
fn a_loss_is_counted_and_the_next_lock_asks_again() {
    let (raw, name) = (shared(), name("loss"));
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let locks = build(
        with_linger(raw.url())
            .lease(secs(3))
            .listener(move |event: &Event<'_>| {
                if let Event::Lost { lost, .. } = event {
                    tell.lock()
                        .expect("no test panics")
                        .send((*lost).clone())
                        .ok();
                }
            }),
    );
    let fence = linger(&locks, &name);
    let () = raw.ask(&["DEL", &name]);
    let lost = told.recv_timeout(PATIENCE).expect("a renewal finds it");
    assert_eq!(lost.fence, fence);
    wait_until("it is over", || locks.stats().lingering == 0);
    assert_eq!(locks.stats().lost_removed, 1);
    assert!(linger(&locks, &name) > fence);
    // A lease of another client is found as soon as this one would be released.
    let () = raw.ask(&["SET", &name, "foreign", "PX", "60000"]);
    assert!(locks.close(PATIENCE));
    assert_eq!(raw.get(&name).as_deref(), Some("foreign"));
}

#[test]
fn a_server_that_restarts_empty_ends_the_linger() {
    let server = Server::start();
    let locks = lingering(&server.url());
    let fence = linger(&locks, "n");
    server.kill();
    server.restart();
    wait_until("it is over", || locks.stats().lingering == 0);
    let other = manager(&server.url());
    let guard = other.try_lock_for("n", PATIENCE).expect("asked");
    let guard = guard.expect("the server has forgotten it");
    assert!(guard.fence() > fence);
    drop(guard);
    assert!(linger(&locks, "n") > fence);
}

#[test]
fn a_killed_process_delays_others_by_its_lease() {
    let (raw, name) = (shared(), name("killed"));
    let mut holder = Child::start(raw.url(), "lease_ms=3000 linger_ms=600000");
    wait_until("it lingers", || {
        holder.lock(&name);
        holder.ask(format!("release {name}"));
        raw.exists(&name)
    });
    raw.wait_until_renewed(&name, 2);
    holder.kill();
    let next = manager(raw.url()).try_lock_for(&name, PATIENCE);
    drop(next.expect("asked").expect("the lease is over"));
}

#[test]
fn a_forked_child_does_not_use_its_parents_lease() {
    let (raw, name) = (shared(), name("fork"));
    let locks = lingering(raw.url());
    let last = linger(&locks, &name);
    let owner = raw.get(&name);
    holds_in_a_child(|| {
        let is_closed = matches!(locks.lock(&name), Err(Error::Closed));
        is_closed && !locks.close(Duration::ZERO)
    });
    assert_eq!(raw.get(&name), owner);
    let guard = locks.lock(&name).expect("it lingers");
    assert_eq!(Some(guard.owner()), owner.as_deref());
    assert!(guard.fence() > last);
}

#[test]
fn the_listener_hears_of_each_linger() {
    let (raw, name) = (shared(), name("events"));
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let locks = build(with_linger(raw.url()).listener(move |event: &Event<'_>| {
        let remaining = match event {
            Event::Lingers { remaining, .. } => Some(*remaining),
            _ => None,
        };
        let heard = (event.kind(), remaining);
        tell.lock().expect("no test panics").send(heard).ok();
    }));
    linger(&locks, &name);
    drop(locks.lock(&name).expect("it lingers"));
    let heard = || told.recv_timeout(PATIENCE).expect("an event");
    while heard().0 != "lingers" {}
    assert_eq!(heard().0, "passed_on");
    assert_eq!(heard().0, "released");
    let (kind, remaining) = heard();
    let remaining = remaining.expect("it lingers");
    assert_eq!(kind, "lingers");
    assert!(remaining <= LONG && remaining + PATIENCE > LONG);
    let stats = locks.stats();
    assert_eq!((stats.lingering, stats.held), (1, 0));
    assert_eq!(stats.passed_on, 1);
}

#[test]
fn a_quorum_has_no_linger() {
    on(Topology::Quorum, || {
        let url = shared().url();
        let refused = with_linger(url).restart_delay(LONG).build();
        let error = refused.expect_err("a quorum");
        assert!(error.to_string().starts_with("invalid `linger`"), "{error}");
        let locks = manager(url);
        let error = locks.mutex(name("quorum")).linger(secs(1)).try_lock();
        assert!(matches!(error, Err(Error::Config { .. })), "{error:?}");
        let rwlock = locks.rwlock(name("quorum")).linger(secs(1));
        drop(rwlock.try_write().expect("a lock of this kind ignores it"));
    });
}

/// Threads of two processes lock one name in turn, and one of the processes lets it linger.
#[test]
fn nothing_is_lost_between_processes_that_linger() {
    const TIMES: u32 = 200;
    let (raw, name) = (shared(), name("turns"));
    let managers = [
        lingering(raw.url()),
        lingering(raw.url()),
        manager(raw.url()),
    ];
    std::thread::scope(|scope| {
        for locks in &managers {
            let subject = Kind::Mutex.of(locks, &name);
            for _ in 0..2 {
                let subject = subject.clone();
                scope.spawn(move || crate::support::add_under(raw, &subject, TIMES));
            }
        }
    });
    let (sum, fences) = crate::support::added(raw, &name);
    assert_eq!(sum, 6 * TIMES);
    assert!(fences.is_sorted_by(|one, next| one < next));
}
