//! Nodes that fail while a lock is asked for, held, waited for and released: each node alone, and two of five at once.
//! Then the locks go on. With three of five they end in time.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Error, LeaseState, LockGuard, LockManager, LostCause};
use log::Level;

use super::{holders, locked_on_all, misses_none_but, wait_until_executed, wait_until_waiting};
use crate::support::{
    Fault, File, Nodes, PATIENCE, Proxy, SLACK, Server, Task, add, added, build, is_unreachable,
    locking, logged, lost, ms, patient, secs, task, wait_in_vain, wait_until,
};

/// Far longer than a test takes, so that no lease ends during the test.
const LONG: Duration = secs(600);
const HOUR: i64 = 60 * 60;

/// A way in which a node fails, and in which it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Killed,
    Stopped,
    RestartedEmpty,
    /// Its clock jumps an hour ahead. All its keys expire.
    ClockAhead,
    ClockBehind,
}

impl Way {
    fn start(self) -> Nodes {
        match self {
            Self::ClockAhead | Self::ClockBehind => Nodes::start_each(5, Server::with_clock),
            _ => Nodes::start(5),
        }
    }

    fn fail(self, node: &Server) {
        match self {
            Self::Killed => node.kill(),
            Self::Stopped => node.pause(),
            Self::RestartedEmpty => node.restart(),
            Self::ClockAhead => node.set_clock_ahead(HOUR),
            Self::ClockBehind => node.set_clock_ahead(-HOUR),
        }
    }

    fn heal(self, node: &Server) {
        match self {
            Self::Killed => node.restart(),
            Self::Stopped => node.resume(),
            Self::RestartedEmpty => {}
            Self::ClockAhead | Self::ClockBehind => node.set_clock_ahead(0),
        }
    }
}

/// How long a [`hasty`] manager waits for a node.
const TIMEOUT: Duration = secs(3);

fn hasty(nodes: &Nodes) -> LockManager {
    build(nodes.builder().node_timeout(TIMEOUT).lease(LONG))
}

/// Fails these nodes in each phase of a lock. One manager holds the lock and another waits.
#[track_caller]
fn locks_go_on(nodes: &Nodes, failing: &[usize], way: Way) {
    let (one, other) = (hasty(nodes), hasty(nodes));
    let each = |act: fn(Way, &Server)| {
        for number in failing {
            act(way, &nodes.servers()[*number]);
        }
    };
    // While the lock is held, and waited for.
    let guard = locked_on_all(&one.mutex("n"));
    let waiter = locking(&other.mutex("n"));
    wait_until_waiting(nodes, "n");
    each(Way::fail);
    guard.extend(LONG + secs(60)).expect("a majority has it");
    assert!(one.try_lock("n").expect("it is held here").is_none());
    // During the release.
    let fence = guard.fence();
    guard.release().expect("a majority had it");
    let guard = waiter.end().expect("it becomes free");
    assert!(guard.fence() > fence, "{} after {fence}", guard.fence());
    let fence = guard.fence();
    guard.release().expect("a majority had it");
    // Before the acquire. A node whose clock was set back loses its vote when it comes back, so all others must have one.
    let urls: Vec<_> = failing
        .iter()
        .map(|n| nodes.urls().swap_remove(*n))
        .collect();
    let (mut last, mut held) = (fence, None);
    wait_until("the others vote", || {
        let guard = one.lock("n").expect("a majority is there");
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        held = Some(guard).filter(|guard| misses_none_but(guard, &urls));
        held.is_some()
    });
    let guard = held.expect("the others vote");
    let fence = guard.fence();
    // While it is held, the nodes come back.
    each(Way::heal);
    wait_in_vain(|| other.try_lock("n"));
    guard.extend(LONG + secs(60)).expect("a majority has it");
    guard.release().expect("a majority had it");
    // The renewal thread releases what the nodes have missed.
    wait_until("it is free everywhere", || {
        holders(nodes, "n") == vec![None; 5]
    });
    let mut last = fence;
    wait_until("all nodes vote again", || {
        let guard = other.lock("n").expect("it is free");
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        holders(nodes, "n") == vec![Some(guard.owner().to_owned()); 5]
    });
    assert_eq!((one.stats().lost(), other.stats().lost()), (0, 0));
}

/// Fails each node alone, and then two at once.
fn locks_go_on_without_any_one_or_two(way: Way) {
    let nodes = way.start();
    for node in 0..5 {
        locks_go_on(&nodes, &[node], way);
    }
    locks_go_on(&nodes, &[0, 1], way);
    locks_go_on(&nodes, &[2, 4], way);
}

/// The wakeup thread asks each node for a further connection.
#[test]
fn leases_outlive_nodes_that_admit_no_further_client() {
    let nodes = Nodes::start(3);
    let lease = secs(4);
    let locks = build(nodes.builder().lease(lease));
    let guard = locked_on_all(&locks.mutex("n"));
    wait_until("the renewal thread has connections too", || {
        locks.stats().renewed > 1 && guard.missing_nodes().is_empty()
    });
    // Connections that are open stay open.
    let connect = |url: String| redis::Client::open(url)?.get_connection();
    let mut open: Vec<_> = nodes
        .urls()
        .into_iter()
        .map(|url| connect(url).expect("it listens"))
        .collect();
    for node in &mut open {
        let mut limit = redis::cmd("CONFIG");
        let limit = limit.arg("SET").arg("maxclients").arg(1);
        let () = limit.query(node).expect("it is allowed");
    }
    let _requested = guard.on_requested();
    wait_until("no node has let it in", || {
        open.iter_mut().all(|node| {
            let stats: String = redis::cmd("INFO").arg("stats").query(node).expect("text");
            !stats.contains("rejected_connections:0")
        })
    });
    let (begun, renewed) = (Instant::now(), locks.stats().renewed);
    wait_until("two leases have passed", || begun.elapsed() > lease * 2);
    guard.check().expect("it is renewed");
    assert!(locks.stats().renewed > renewed);
    assert!(guard.missing_nodes().is_empty());
}

/// The nodes hang when a waiter asks again, and its time is over before theirs.
#[test]
fn a_wait_whose_last_request_is_cut_short_ends_as_held() {
    let nodes = Nodes::start(3);
    let holder = build(nodes.builder().lease(LONG));
    let _guard = locked_on_all(&holder.mutex("n"));
    let limits = nodes.builder().io_timeout(secs(1)).node_timeout(secs(8));
    let patient = build(limits);
    let waiter = task(move || {
        patient
            .try_lock_for("n", secs(4))
            .map(|guard| guard.is_some())
    });
    wait_until_waiting(&nodes, "n");
    nodes.servers().iter().for_each(Server::pause);
    assert!(!waiter.end().expect("it had the answer that it is held"));
    nodes.servers().iter().for_each(Server::resume);
}

/// Three of five nodes are gone, and one hangs until the wait is over.
#[test]
fn a_wait_that_a_majority_refuses_at_its_end_is_an_error() {
    let nodes = Nodes::start(5);
    let holder = build(nodes.builder().lease(LONG));
    let _guard = locked_on_all(&holder.mutex("n"));
    let patient = build(nodes.builder().node_timeout(secs(8)));
    let waiter = task(move || {
        patient
            .try_lock_for("n", secs(4))
            .map(|guard| guard.is_some())
    });
    wait_until_waiting(&nodes, "n");
    nodes.servers()[0].pause();
    nodes.servers()[1..4].iter().for_each(Server::kill);
    let end = waiter.end();
    nodes.servers()[0].resume();
    assert!(matches!(end, Err(Error::NoQuorum { .. })), "{end:?}");
}

/// A node hangs while two calls connect for the first time.
#[test]
fn a_call_connects_for_no_longer_than_it_lasts() {
    let nodes = Nodes::start(3);
    let locks = build(nodes.builder().node_timeout(secs(60)));
    nodes.servers()[2].pause();
    let begun = Instant::now();
    let calls = ["a", "b"].map(|name| {
        let locks = locks.clone();
        task(move || locks.try_lock_for(name, secs(6)))
    });
    let guards = calls.map(|call| call.end().expect("two nodes are well"));
    assert!(begun.elapsed() < secs(60), "{:?}", begun.elapsed());
    nodes.servers()[2].resume();
    assert!(guards.iter().all(Option::is_some));
}

/// Three of five nodes have the holder, and the keys of the other two are gone.
#[test]
fn a_try_beside_a_waiter_with_two_votes_learns_that_it_is_held() {
    let nodes = Nodes::start(5);
    let holder = build(nodes.builder().lease(LONG));
    let guard = locked_on_all(&holder.mutex("n"));
    for raw in &nodes.raws()[3..] {
        let () = raw.ask(&["DEL", "n"]);
    }
    let other = build(nodes.builder().lease(LONG));
    let waiter = locking(&other.mutex("n"));
    wait_until_waiting(&nodes, "n");
    for _ in 0..3 {
        let tried = other.try_lock("n").expect("a waiter knows that it is held");
        assert!(tried.is_none());
    }
    guard.release().expect("a majority has it");
    drop(waiter.end().expect("it becomes free"));
}

/// A waiter waits at all nodes, and gets the lock from two of three.
#[test]
fn an_owner_leaves_the_queues_of_the_nodes_that_did_not_grant_it_the_lock() {
    an_owner_leaves_the_other_queues(secs(0));
}

#[test]
fn an_owner_that_keeps_the_lock_for_min_hold_leaves_the_other_queues() {
    an_owner_leaves_the_other_queues(secs(60));
}

fn an_owner_leaves_the_other_queues(min_hold: Duration) {
    let nodes = Nodes::start(3);
    let (one, other) = (nodes.manager(), build(nodes.builder().min_hold(min_hold)));
    let guard = locked_on_all(&one.mutex("n"));
    let waiter = locking(&other.mutex("n"));
    let raws = nodes.raws();
    wait_until("it waits at all nodes", || {
        raws.iter().all(|raw| !raw.queue("n").is_empty())
    });
    let () = raws[2].ask(&["SET", "n", "lh1:stranger:x!", "PX", "600000"]);
    guard.release().expect("two nodes have it");
    let guard = waiter.end().expect("two nodes are free");
    guard.release().expect("two nodes have it");
    wait_until_executed(&other, &raws[2], "after the release");
    assert_eq!(raws[2].queue("n"), [""; 0]);
    assert_eq!(raws[0].exists("n"), min_hold > secs(0));
}

#[test]
fn locks_go_on_if_one_or_two_nodes_are_killed() {
    locks_go_on_without_any_one_or_two(Way::Killed);
}

#[test]
fn locks_go_on_if_one_or_two_nodes_are_stopped() {
    locks_go_on_without_any_one_or_two(Way::Stopped);
}

#[test]
fn locks_go_on_if_one_or_two_nodes_restart_empty() {
    locks_go_on_without_any_one_or_two(Way::RestartedEmpty);
}

#[test]
fn locks_go_on_if_one_or_two_clocks_jump_ahead() {
    locks_go_on_without_any_one_or_two(Way::ClockAhead);
}

#[test]
fn locks_go_on_if_one_or_two_clocks_are_set_back() {
    locks_go_on_without_any_one_or_two(Way::ClockBehind);
}

/// Threads that add one to a number under the lock, until they are stopped. Each reads the number and then writes it.
struct Adders {
    stop: Arc<AtomicBool>,
    sum: Arc<AtomicU32>,
    /// The fence of each turn.
    fences: Arc<Mutex<Vec<u64>>>,
    threads: Vec<Task<()>>,
}

impl Adders {
    fn start(managers: &[&LockManager]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (sum, fences) = (Arc::new(AtomicU32::new(0)), Arc::default());
        let threads = managers
            .iter()
            .map(|locks| {
                let locks = LockManager::clone(locks);
                let (stop, sum) = (Arc::clone(&stop), Arc::clone(&sum));
                let fences: Arc<Mutex<Vec<u64>>> = Arc::clone(&fences);
                task(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let guard = locked_at_last(&locks);
                        let before = sum.load(Ordering::Relaxed);
                        thread::yield_now();
                        sum.store(before + 1, Ordering::Relaxed);
                        lock(&fences).push(guard.fence());
                        match guard.release() {
                            // A lock that had a bare majority is lost with one of its nodes. But it excludes others
                            // until its lease ends, because nodes that have restarted do not vote.
                            Ok(()) | Err(Error::Lost(_)) => {}
                            // The outcome is unknown. The renewal thread repeats the release.
                            Err(error) if is_unreachable(&error) => {}
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                })
            })
            .collect();
        Self {
            stop,
            sum,
            fences,
            threads,
        }
    }

    fn wait_for_turns(&self, count: usize) {
        let before = lock(&self.fences).len();
        wait_until("they go on", || lock(&self.fences).len() >= before + count);
    }

    fn assert_no_update_is_lost(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(Task::end);
        let (sum, fences) = (self.sum.load(Ordering::Relaxed), lock(&self.fences));
        assert_eq!(usize::try_from(sum), Ok(fences.len()));
        assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks, and repeats a call that too few nodes answer.
fn locked_at_last(locks: &LockManager) -> LockGuard {
    let mut guard = None;
    wait_until("it is locked", || match locks.lock("n") {
        Ok(locked) => {
            guard = Some(locked);
            true
        }
        Err(error) if is_unreachable(&error) => false,
        Err(error) => panic!("{error:?}"),
    });
    guard.expect("it is locked")
}

/// Two threads of each of two managers add to a number, while two nodes fail, come back, and two others fail.
fn no_update_is_lost_while_two_nodes_fail(way: Way) {
    let nodes = way.start();
    // A node that has restarted does not vote before each lease is over that it may have forgotten.
    let length = secs(5);
    let locks = || {
        let builder = nodes.builder().node_timeout(secs(1));
        let builder = builder.lease(length).restart_delay(length);
        builder.build_unchecked().expect("nothing is sent")
    };
    let (one, other) = (locks(), locks());
    let wait_until_all_vote = || {
        for locks in [&one, &other] {
            drop(locked_on_all(&locks.mutex("m")));
        }
    };
    // A node that has just started does not vote yet either.
    wait_until_all_vote();
    let adders = Adders::start(&[&one, &other, &one, &other]);
    adders.wait_for_turns(20);
    for pair in [[0, 1], [1, 3], [2, 4]] {
        let pair = pair.map(|number| &nodes.servers()[number]);
        for node in pair {
            way.fail(node);
        }
        adders.wait_for_turns(30);
        // The clocks jump ahead again, and the nodes drop their keys. All five must have this lock, so that three keep it.
        let kept = (way == Way::ClockBehind).then(|| locked_on_all(&one.mutex("n")));
        for node in pair {
            way.heal(node);
        }
        drop(kept);
        adders.wait_for_turns(10);
        wait_until_all_vote();
    }
    adders.assert_no_update_is_lost();
}

#[test]
fn no_update_is_lost_while_two_nodes_are_stopped() {
    no_update_is_lost_while_two_nodes_fail(Way::Stopped);
}

#[test]
fn no_update_is_lost_while_two_nodes_restart_empty() {
    no_update_is_lost_while_two_nodes_fail(Way::Killed);
}

#[test]
fn no_update_is_lost_while_two_clocks_are_set_back() {
    no_update_is_lost_while_two_nodes_fail(Way::ClockBehind);
}

/// Fails three of five nodes while a lock is held and waited for.
fn three_nodes_end_all_in_time(way: Way) {
    let nodes = way.start();
    let limit = secs(2);
    let builder = || nodes.builder().node_timeout(limit);
    let (one, other) = (build(builder()), build(builder()));
    let guard = one.mutex("n").lease(secs(9)).lock().expect("it is free");
    let losses = guard.on_lost();
    let waiter = locking(&other.mutex("n").lease(secs(9)));
    wait_until_waiting(&nodes, "n");
    for node in &nodes.servers()[1..4] {
        way.fail(node);
    }
    // Calls end within their limits. The nodes are asked one after another only to connect.
    let begun = Instant::now();
    for outcome in [
        other.try_lock("free"),
        other.lock("free").map(Some),
        other.try_lock_for("free", secs(60)),
    ] {
        match outcome {
            Err(Error::NoQuorum {
                needed, failures, ..
            }) => {
                // With three nodes down, no call waits until the others are connected to.
                assert_eq!(needed, 3);
                assert!((3..=5).contains(&failures.len()), "{failures:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(begun.elapsed() < 9 * limit + SLACK, "{:?}", begun.elapsed());
    wait_until("it is at risk", || guard.state() != LeaseState::Held);
    // No node confirms anything any more, so the deadline does not change.
    let before = Instant::now();
    let left = guard.remaining();
    let after = Instant::now();
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    let told = Instant::now();
    assert!(told + ms(1) >= before + left, "the notice came too early");
    assert!(told < after + left + SLACK, "the notice came too late");
    assert_eq!(loss.cause, LostCause::Expired);
    assert_eq!(lost(guard.release()), loss);
    for node in &nodes.servers()[1..4] {
        way.heal(node);
    }
    // The wait outlives the outage.
    let guard = waiter.end().expect("it becomes free");
    assert!(guard.fence() > loss.fence);
    guard.release().expect("it is held");
    drop(locked_at_last(&one));
}

#[test]
fn three_killed_nodes_end_all_in_time() {
    three_nodes_end_all_in_time(Way::Killed);
}

#[test]
fn three_stopped_nodes_end_all_in_time() {
    three_nodes_end_all_in_time(Way::Stopped);
}

/// The keys of a lock expire at three nodes before its lease is over. So another manager gets the lock, which the first
/// one still believes to hold. The fence tells them apart.
#[test]
fn a_lock_that_expired_early_at_three_nodes_is_fenced_and_lost() {
    let way = Way::ClockAhead;
    let nodes = way.start();
    let (one, other) = (nodes.manager(), nodes.manager());
    // A renewal comes a few seconds after the clocks jump.
    let guard = locked_on_all(&one.mutex("n").lease(secs(9)));
    let losses = guard.on_lost();
    // Each node may have the file. The clock of this one does not jump.
    let file = File::new(&nodes.servers()[0].raw(), "file");
    assert!(file.write("first", Some(guard.fence())));
    for node in &nodes.servers()[2..] {
        way.fail(node);
    }
    let next = other.try_lock("n").expect("the nodes answer");
    let next = next.expect("three nodes have forgotten the other guard");
    assert!(next.fence() > guard.fence());
    assert!(file.write("next", Some(next.fence())));
    assert!(!file.write("late", Some(guard.fence())), "it is too old");
    assert_eq!(file.read(), "next");
    let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
    assert!(matches!(loss.cause, LostCause::Taken | LostCause::Removed));
    assert_eq!(lost(guard.release()), loss);
    next.check().expect("a majority has it");
    next.release().expect("a majority had it");
}

/// Three votes are gone, although only a minority of the nodes can say so at the same time.
#[test]
fn a_vote_that_is_gone_counts_however_few_nodes_answer() {
    let nodes = Nodes::start(5);
    let locks = hasty(&nodes);
    for node in &nodes.servers()[3..] {
        node.kill();
    }
    let guard = locks.mutex("n").lease(secs(9)).lock();
    let guard = guard.expect("three nodes are there");
    // The second node says that it has no key, the first confirms, and the third says nothing.
    let _: u32 = nodes.servers()[1].raw().ask(&["DEL", "n"]);
    nodes.servers()[2].pause();
    let loss = guard.on_lost().recv_timeout(PATIENCE);
    assert_eq!(loss.expect("it is notified").cause, LostCause::Removed);
}

/// With one node stopped, an acquire waits for it once. Then the node is skipped.
#[test]
fn a_node_that_hangs_delays_an_acquire_only_seldom() {
    let nodes = Nodes::start(5);
    let limit = secs(2);
    let locks = build(nodes.builder().node_timeout(limit));
    drop(locks.lock("n").expect("it is free"));
    nodes.servers()[2].pause();
    let (begun, mut slow) = (Instant::now(), 0);
    // The test needs time to pass: a node that was skipped is asked again.
    while begun.elapsed() < secs(6) {
        let asked = Instant::now();
        let guard = locks.lock("n").expect("four nodes are there");
        slow += u32::from(asked.elapsed() >= limit);
        guard.release().expect("it is held");
    }
    assert!(slow <= 2, "{slow} of them waited for the node");
}

/// A manager that has no connection yet opens them all at the same time. So two nodes that hang leave it time to ask the
/// others.
#[test]
fn two_nodes_that_hang_do_not_fail_the_first_call() {
    let nodes = Nodes::start(5);
    let locks = nodes.builder().build_unchecked();
    let locks = locks.expect("nothing is sent yet");
    for node in &nodes.servers()[..2] {
        node.pause();
    }
    let begun = Instant::now();
    let guard = locks.lock("n").expect("three nodes are there");
    assert!(begun.elapsed() < secs(5) + SLACK, "{:?}", begun.elapsed());
    guard.release().expect("it is held");
}

/// While a node hangs, more locks are released than a manager keeps in mind.
#[test]
fn releases_that_a_node_has_missed_reach_it_later_and_of_too_many_some_are_dropped() {
    const NAMES: usize = 4200;
    const MOST: usize = 4096;
    let nodes = Nodes::start(3);
    let locks = hasty(&nodes);
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

#[test]
fn a_node_that_was_down_when_the_lock_was_asked_for_gets_no_release() {
    let nodes = Nodes::start(3);
    nodes.servers()[2].kill();
    let locks = hasty(&nodes);
    // For long enough that a release at the third node would be repeated.
    let until = Instant::now() + secs(1);
    while Instant::now() < until {
        let guard = locks.lock("n").expect("two nodes are there");
        guard.release().expect("two had it");
    }
    assert_eq!(locks.stats().endings_repeated, 0);
}

/// The server may close connections that nobody uses, as its setting `timeout` makes it do.
#[test]
fn connections_that_were_closed_while_idle_fail_no_call() {
    let nodes = Nodes::start(5);
    let locks = nodes.manager();
    drop(locks.lock("n").expect("it is free"));
    for node in nodes.raws() {
        let _: u32 = node.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    // The test needs time to pass: only a connection that was idle for a moment is looked at.
    thread::sleep(ms(200));
    let guard = locks.lock("n").expect("they are opened again");
    guard.release().expect("it is held");
}

/// With two nodes gone, each of two managers may have some of the votes of the others. Neither call fails then.
#[test]
fn contention_over_three_of_five_nodes_fails_no_call() {
    const TURNS: u32 = 30;
    let nodes = Nodes::start(5);
    let data = nodes.servers()[4].raw();
    for node in &nodes.servers()[..2] {
        node.kill();
    }
    let (one, other) = (build(nodes.builder()), build(nodes.builder()));
    let turns = [&one, &other].map(|locks| {
        let (locks, data) = (LockManager::clone(locks), data.clone());
        task(move || add(&data, &locks, "n", TURNS))
    });
    for turns in turns {
        turns.end();
    }
    let (sum, fences) = added(&data, "n");
    assert_eq!((sum, fences.len()), (2 * TURNS, 60));
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    assert_eq!((one.stats().failed, other.stats().failed), (0, 0));
}

/// The server counts its uptime by its clock, so it may be below zero.
#[test]
fn a_node_whose_clock_was_set_back_since_its_start_votes() {
    let nodes = Nodes::start_each(3, Server::with_clock);
    for node in nodes.servers() {
        node.set_clock_ahead(-HOUR);
    }
    let locks = nodes.builder().build_unchecked();
    let locks = locks.expect("nothing is sent yet");
    drop(locks.lock("n").expect("the nodes are there"));
}

/// The node hangs when the renewal thread connects to it, or when the lease is renewed.
fn a_short_lease_outlives_a_node_that_hangs(hangs_at_connect: bool) {
    const LEASE: Duration = secs(4);
    let nodes = Nodes::start(3);
    let limit = 2 * LEASE;
    let locks = build(nodes.builder().node_timeout(limit).connect_timeout(limit));
    let mutex = locks.mutex("n").lease(LEASE);
    let hung = &nodes.servers()[2];
    let guard = if hangs_at_connect {
        hung.pause();
        mutex.lock().expect("two nodes are well")
    } else {
        let guard = locked_on_all(&mutex);
        wait_until("it is renewed", || locks.stats().renewed > 0);
        hung.pause();
        guard
    };
    let before = locks.stats().renewed;
    wait_until("it is renewed again and again", || {
        guard.check().expect("two nodes are well");
        locks.stats().renewed >= before + 4
    });
    hung.resume();
    guard.release().expect("it is held");
}

#[test]
fn a_short_lease_outlives_a_node_that_hangs_while_it_is_connected_to() {
    a_short_lease_outlives_a_node_that_hangs(true);
}

#[test]
fn a_short_lease_outlives_a_node_that_hangs_while_it_is_asked() {
    a_short_lease_outlives_a_node_that_hangs(false);
}

/// Two of three nodes close each connection, and count them.
#[test]
fn nodes_are_probed_often_while_a_majority_is_missing_and_wanted() {
    const PROBES: u32 = 150;
    let nodes = Nodes::start(1);
    let probes = Arc::new(AtomicU32::new(0));
    let mut urls = nodes.urls();
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it has one");
        urls.push(format!("redis://{address}/"));
        let probes = Arc::clone(&probes);
        thread::spawn(move || {
            while let Ok((connection, _)) = listener.accept() {
                drop(connection);
                probes.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let locks = patient(&urls.join(" ")).build_unchecked();
    let locks = locks.expect("nothing is sent yet");
    // With growing pauses of up to 5 s, 150 probes would take over ten minutes.
    wait_until("they are probed all the time", || {
        let failed = locks.try_lock("n").expect_err("one node is no majority");
        assert!(is_unreachable(&failed), "{failed:?}");
        probes.load(Ordering::Relaxed) >= PROBES
    });
}

/// All nodes hang for most of a lease. A server alone would still have the key.
#[test]
fn a_lease_outlives_an_outage_of_all_nodes_that_is_shorter() {
    const LEASE: Duration = secs(14);
    let nodes = Nodes::start(3);
    let locks = build(nodes.builder().node_timeout(secs(1)));
    let guard = locked_on_all(&locks.mutex("n").lease(LEASE));
    let before = locks.stats().renewed;
    nodes.pause();
    // Nobody else wants a majority meanwhile.
    wait_until("a third of it is left", || guard.remaining() < LEASE / 3);
    nodes.resume();
    wait_until("it is renewed", || locks.stats().renewed > before);
    guard.release().expect("it is held");
}

/// The connect alone takes longer than a request may.
#[test]
fn a_node_that_is_slow_to_connect_to_votes() {
    let nodes = Nodes::start(3);
    let proxy = Proxy::to(&nodes.servers()[2]);
    proxy.strike_all(Fault::Late(500));
    let mut urls = nodes.urls();
    urls[2] = proxy.url();
    let locks = build(patient(&urls.join(" ")).node_timeout(ms(1500)));
    nodes.servers()[1].kill();
    wait_until("two nodes grant it", || match locks.try_lock("n") {
        Ok(guard) => guard.is_some(),
        Err(error) if is_unreachable(&error) => false,
        Err(error) => panic!("{error:?}"),
    });
}

#[test]
fn a_slow_node_does_not_delay_each_acquire() {
    const LOCKS: u32 = 8;
    const DELAY: u64 = 2500;
    let nodes = Nodes::start(3);
    let proxy = Proxy::to(&nodes.servers()[2]);
    let mut urls = nodes.urls();
    urls[2] = proxy.url();
    let locks = build(patient(&urls.join(" ")).node_timeout(4 * ms(DELAY)));
    drop(locks.lock("first").expect("it is free"));
    proxy.strike_all(Fault::Late(DELAY));
    let begun = Instant::now();
    for number in 0..LOCKS {
        let guard = locks.lock(number.to_string()).expect("two nodes are well");
        guard.release().expect("two nodes had it");
    }
    let took = begun.elapsed();
    assert!(took < LOCKS / 2 * ms(DELAY), "{took:?}");
}

/// While a node hangs, it misses the releases that matter, and then far more others. Then another node hangs.
#[test]
fn free_names_are_granted_after_a_node_has_missed_many_releases() {
    const OTHERS: usize = 11_000;
    let nodes = Nodes::start(3);
    let locks = build(nodes.builder().node_timeout(secs(1)).lease(LONG));
    let names: Vec<_> = (0..20).map(|number| format!("n{number}")).collect();
    let lock = |name: &String| locked_on_all(&locks.mutex(name));
    let guards: Vec<_> = names.iter().map(lock).collect();
    let hung = &nodes.servers()[2];
    hung.pause();
    drop(guards);
    for number in 0..OTHERS {
        let other = locks.lock(format!("other {number}"));
        drop(other.expect("two nodes are well"));
    }
    hung.resume();
    let raw = hung.raw();
    wait_until("the node has executed the releases", || {
        names.iter().all(|name| !raw.exists(name))
    });
    nodes.servers()[1].pause();
    for name in &names {
        let mut guard = None;
        wait_until("it is granted", || {
            guard = locks.try_lock(name).ok().flatten();
            guard.is_some()
        });
    }
    nodes.servers()[1].resume();
}
