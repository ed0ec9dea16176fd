//! Waiters that get their turn, although other processes ask all the time, or an earlier waiter hangs.

use std::collections::BTreeSet;
use std::iter;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::Result;

use super::wait_until_waiting;
use crate::support::{
    Child, Kind, Nodes, Raw, companions_of, is_unreachable, ms, secs, wait_until,
};

/// How many times each test waits.
const ROUNDS: u32 = 20;
/// How often others may overtake the waiters of all rounds together. A waiter whose votes were split loses its place.
/// Without turns, others overtake in each round.
const MOST: u32 = 10;
/// The length of a turn. On a busy machine a waiter may miss its turn. So a grant after that time does not count, nor one
/// while a majority passes the waiter over.
const TURN: Duration = ms(100);
/// How long a node keeps the place of a waiter that does not ask.
const WAITER_LIFE: Duration = secs(3);

/// Returns the guard of a try. A try also fails if two processes split the votes.
fn guard_of<T>(tried: Result<Option<T>>) -> Option<T> {
    match tried {
        Ok(guard) => guard,
        Err(error) if is_unreachable(&error) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Readers of two processes overlap: each releases the lock only after the other has it, or was kept out.
#[test]
fn a_writer_gets_in_while_readers_overlap_without_a_gap() {
    let nodes = Nodes::start(3);
    let readers = [nodes.manager(), nodes.manager()].map(|locks| locks.rwlock("n"));
    let writer = Kind::Writer.of(&nodes.manager(), "n");
    let mut granted = 0;
    for _ in 0..ROUNDS {
        // A further reader of the same process would share the lease in memory.
        let mut asks_next = 1;
        let mut released = Instant::now();
        let mut reading = Some(readers[0].read().expect("nobody writes"));
        let waiting = writer.locking();
        wait_until_ready(&nodes, 1, |_| true);
        while waiting.waits() {
            let next = guard_of(readers[asks_next].try_read());
            let is_turn = reading.is_some() || released.elapsed() < TURN;
            let is_granted = next.is_some() && is_turn;
            granted += u32::from(is_granted && !is_passed_over(&nodes));
            assert!(granted <= MOST, "readers keep the writer out");
            asks_next = 1 - asks_next;
            if let Some(former) = std::mem::replace(&mut reading, next) {
                released = Instant::now();
                former.release().expect("it was held until now");
            }
        }
        waiting.release();
    }
}

/// One process releases the lock and asks again at once, while another waits.
fn a_waiter_is_not_overtaken(asking: Kind, waiting: Kind) {
    let nodes = Nodes::start(3);
    let lock = asking.of(&nodes.manager(), "n");
    let waiter = waiting.of(&nodes.manager(), "n");
    let mut overtaken = 0;
    for _ in 0..ROUNDS {
        let mut held = Some(lock.lock().expect("it becomes free"));
        let mut released = Instant::now();
        let waiting = waiter.locking();
        wait_until_ready(&nodes, 1, |_| true);
        while waiting.waits() {
            if let Some(guard) = held.take() {
                released = Instant::now();
                guard.release().expect("it was held until now");
            }
            held = guard_of(lock.try_lock());
            let is_granted = held.is_some() && released.elapsed() < TURN;
            overtaken += u32::from(is_granted && !is_passed_over(&nodes));
            assert!(overtaken <= MOST, "others keep the waiter out");
        }
        waiting.release();
    }
}

#[test]
fn a_multi_lock_gets_its_turn_beside_a_multi_lock() {
    a_waiter_is_not_overtaken(Kind::Multi, Kind::Multi);
}

#[test]
fn a_multi_lock_gets_its_turn_beside_a_lock_of_one_name() {
    a_waiter_is_not_overtaken(Kind::Mutex, Kind::Multi);
}

#[test]
fn a_lock_of_one_name_gets_its_turn_beside_a_multi_lock() {
    a_waiter_is_not_overtaken(Kind::Multi, Kind::Mutex);
}

#[test]
fn a_writer_gets_its_turn_beside_a_writer() {
    a_waiter_is_not_overtaken(Kind::Writer, Kind::Writer);
}

#[test]
fn a_reader_gets_its_turn_beside_a_writer() {
    a_waiter_is_not_overtaken(Kind::Writer, Kind::Reader);
}

/// A waiter's place and record at a node.
struct Waiter {
    owner: String,
    /// For how long it has not asked.
    silence: Duration,
    /// Whether it let its turn lapse, and has not asked since.
    is_passed_over: bool,
    has_channel: bool,
}

/// Returns the waiters at a node in order.
fn waiters_at(node: &Raw) -> Vec<Waiter> {
    let [_, _, waiters] = companions_of("n");
    let (now, micros): (u64, u64) = node.ask(&["TIME"]);
    let with_record = |owner: String| {
        let record: String = node.ask::<Option<String>>(&["HGET", &waiters, &owner])?;
        let words: Vec<&str> = record.split(' ').collect();
        let seen: u64 = words[0].parse().expect("ms");
        Some(Waiter {
            owner,
            silence: ms((now * 1_000 + micros / 1_000).saturating_sub(seen)),
            is_passed_over: words[1] == "0",
            has_channel: !words[3].is_empty(),
        })
    };
    node.queue("n")
        .into_iter()
        .filter_map(with_record)
        .collect()
}

/// Returns whether a majority of the nodes passes a waiter over.
fn is_passed_over(nodes: &Nodes) -> bool {
    let at = |node: &&Raw| waiters_at(node).iter().any(|it| it.is_passed_over);
    let raws = nodes.raws();
    raws.iter().filter(at).count() > raws.len() / 2
}

/// Returns whether a majority of the nodes has this number of waiters, which a message can wake, and `is_ready` holds for the
/// first.
fn are_ready(nodes: &Nodes, count: usize, is_ready: impl Fn(&Waiter) -> bool) -> bool {
    let is_node_ready = |node: &&Raw| {
        let waiters = waiters_at(node);
        let has_all = waiters.len() == count && waiters.iter().all(|it| it.has_channel);
        has_all && is_ready(&waiters[0])
    };
    let raws = nodes.raws();
    raws.iter().filter(is_node_ready).count() > raws.len() / 2
}

/// Blocks until [`are_ready`] holds. A waiter that no message can wake gets no turn.
#[track_caller]
fn wait_until_ready(nodes: &Nodes, count: usize, is_ready: impl Fn(&Waiter) -> bool) {
    wait_until("the waiters are ready", || {
        are_ready(nodes, count, &is_ready)
    });
}

/// Waits until [`are_ready`] holds, for at most [`WAITER_LIFE`]. Returns whether it holds.
///
/// On a busy machine it may never hold. A node drops a waiter that hangs for longer than its life. A waiter that hangs while it
/// changes its owner has two places.
fn are_ready_in_time(nodes: &Nodes, count: usize, is_ready: impl Fn(&Waiter) -> bool) -> bool {
    let begun = Instant::now();
    while !are_ready(nodes, count, &is_ready) {
        if begun.elapsed() > WAITER_LIFE {
            return false;
        }
        // Between two looks at the condition.
        thread::sleep(ms(1));
    }
    true
}

/// Returns the owner of the only waiter.
fn only_waiter(nodes: &Nodes) -> String {
    let raws = nodes.raws();
    let waiter = raws.iter().find_map(|node| node.queue("n").pop());
    waiter.expect("a waiter")
}

/// Returns a child that waits for the lock behind its holder, and hangs.
fn hung_waiter(nodes: &Nodes, kind: Kind) -> Child {
    let mut child = Child::start(&nodes.url(), "");
    child.wait_as(kind, "n");
    wait_until_ready(nodes, 1, |_| true);
    child.pause();
    child
}

#[test]
fn a_waiter_that_hangs_has_one_turn_while_it_hangs() {
    for kind in [Kind::Mutex, Kind::Writer, Kind::Multi] {
        let nodes = Nodes::start(3);
        let lock = kind.of(&nodes.manager(), "n");
        let guard = lock.lock().expect("it is free");
        let hung = hung_waiter(&nodes, kind);
        let owner = only_waiter(&nodes);
        guard.release().expect("it was held until now");
        let [_, _, waiters] = companions_of("n");
        let mut turns = BTreeSet::new();
        for _ in 0..ROUNDS {
            for (number, node) in nodes.raws().iter().enumerate() {
                let turn: Option<String> = node.ask(&["HGET", &waiters, "=turn"]);
                turns.extend(
                    turn.filter(|turn| turn.ends_with(&owner))
                        .map(|it| (number, it)),
                );
            }
            let guard = lock.lock().expect("it becomes free");
            guard.release().expect("it was held until now");
        }
        assert!(turns.len() <= 3, "{turns:?}");
        hung.resume();
        hung.locked();
    }
}

#[test]
fn a_waiter_that_stalls_keeps_its_place() {
    for kind in [Kind::Mutex, Kind::Writer, Kind::Multi] {
        // On a busy machine it may let its next turn lapse too.
        let keeps = (0..ROUNDS).any(|_| keeps_its_place(kind));
        assert!(keeps, "{kind:?}");
    }
}

/// Returns whether a waiter that stalls gets the lock before one that came later.
fn keeps_its_place(kind: Kind) -> bool {
    let nodes = Nodes::start(3);
    let guard = kind.of(&nodes.manager(), "n").lock().expect("it is free");
    let mut stalled = hung_waiter(&nodes, kind);
    let owner = only_waiter(&nodes);
    let second = kind.of(&nodes.manager(), "n").locking();
    if !are_ready_in_time(&nodes, 2, |_| true) {
        return false;
    }
    guard.release().expect("it was held until now");
    second.locked();
    // On a busy machine it may have been silent for too long to get a turn.
    if !is_passed_over(&nodes) {
        return false;
    }
    let third = kind.of(&nodes.manager(), "n").locking();
    if !are_ready_in_time(&nodes, 2, |_| true) {
        return false;
    }
    stalled.resume();
    if !are_ready_in_time(&nodes, 2, |first| {
        first.owner == owner && !first.is_passed_over
    }) {
        return false;
    }
    second.release();
    wait_until("one of them has it", || {
        stalled.has_answered() || !third.waits()
    });
    let is_first = third.waits();
    if is_first {
        stalled.locked();
        assert!(third.waits(), "it has the lock too");
        assert_eq!(stalled.ask("release n"), "released");
    }
    third.locked();
    third.release();
    is_first
}

/// The first waiter hangs, and a process releases the lock and asks again at once. Without the turn of the next waiter, that
/// process would get the lock whenever the turn of the first one ends.
#[test]
fn a_live_waiter_gets_its_turn_behind_one_that_hangs() {
    for kind in [Kind::Mutex, Kind::Writer, Kind::Multi] {
        let nodes = Nodes::start(3);
        let lock = kind.of(&nodes.manager(), "n");
        let waiter = kind.of(&nodes.manager(), "n");
        let mut held = Some(lock.lock().expect("it is free"));
        let hung = hung_waiter(&nodes, kind);
        let hung_owner = only_waiter(&nodes);
        let mut overtaken = 0;
        for _ in 0..ROUNDS {
            let mut guard = Some(
                held.take()
                    .unwrap_or_else(|| lock.lock().expect("it is free")),
            );
            let waiting = waiter.locking();
            let is_live = |it: &Waiter| it.has_channel && it.owner != hung_owner;
            let has_it = |node: &&Raw| waiters_at(node).iter().any(is_live);
            wait_until("a majority has the waiter", || {
                nodes.raws().iter().filter(has_it).count() >= 2
            });
            while waiting.waits() {
                if let Some(guard) = guard.take() {
                    guard.release().expect("it was held until now");
                }
                guard = guard_of(lock.try_lock());
                // On a busy machine a waiter may miss its turn, and is passed over then.
                let is_next = |it: &Waiter| is_live(it) && !it.is_passed_over;
                let has_next = |node: &&Raw| waiters_at(node).iter().any(is_next);
                if guard.is_some() && nodes.raws().iter().filter(has_next).count() >= 2 {
                    overtaken += 1;
                }
                assert!(overtaken <= MOST, "{kind:?}: the waiter is kept out");
            }
            waiting.release();
        }
        hung.resume();
        hung.locked();
    }
}

/// The process that released the lock does not ask again, so nobody else notices the end of the turn. Without being told of
/// it, the second waiter would find it at its poll, after about a second.
#[test]
fn the_second_waiter_asks_when_the_turn_of_the_first_ends() {
    let nodes = Nodes::start(3);
    let lock = Kind::Mutex.of(&nodes.manager(), "n");
    let waiter = Kind::Mutex.of(&nodes.manager(), "n");
    let mut child = Child::start(&nodes.url(), "");
    let (mut shortest, mut ready) = (Duration::MAX, 0);
    for round in 0..ROUNDS {
        let guard = lock.lock().expect("it becomes free");
        child.wait_as(Kind::Mutex, "n");
        wait_until_ready(&nodes, 1, |_| true);
        child.pause();
        let second = waiter.locking_asleep();
        let is_ready = are_ready_in_time(&nodes, 2, |first| first.silence > ms(50));
        let released = Instant::now();
        guard.release().expect("it was held until now");
        second.locked();
        // The first time, the process may poll often, because its subscription is new.
        if is_ready && round > 0 {
            ready += 1;
            shortest = shortest.min(released.elapsed());
        }
        second.release();
        child.resume();
        child.locked();
        assert_eq!(child.ask("release n"), "released");
        if shortest < 3 * TURN {
            return;
        }
    }
    panic!("in {ready} rounds it waited for at least {shortest:?}");
}

/// The waiter asked before the release. Its turn begins when the lock is free.
#[test]
fn a_release_within_min_hold_gives_the_first_waiter_the_turn_after_it() {
    for kind in [Kind::Mutex, Kind::Writer, Kind::Multi] {
        // On a busy machine the waiter may have been silent for too long to get a turn.
        let gives = (0..ROUNDS).any(|_| gives_the_turn_after_min_hold(kind));
        assert!(gives, "{kind:?}");
    }
}

/// Returns whether a release gives the waiter a turn after the time for which the lock is kept.
fn gives_the_turn_after_min_hold(kind: Kind) -> bool {
    const KEPT: Duration = secs(600);
    let nodes = Nodes::start(3);
    let lock = kind.of(&nodes.manager(), "n").min_hold(KEPT);
    let guard = lock.lock().expect("it is free");
    let waiter = kind.of(&nodes.manager(), "n").locking();
    wait_until_ready(&nodes, 1, |_| true);
    // A release keeps the lock only at the nodes that vote for the guard. At another node the waiter could get the lock, and
    // the deletion below would take it from the waiter.
    if !guard.lease().missing_nodes().is_empty() {
        return false;
    }
    guard.release().expect("it was held until now");
    let [_, _, waiters] = companions_of("n");
    let begins_later = |node: &&Raw| {
        let turn: Option<String> = node.ask(&["HGET", &waiters, "=turn"]);
        let ends = turn.and_then(|turn| turn.split_once(' ')?.0.parse::<u64>().ok());
        let (now, _): (u64, u64) = node.ask(&["TIME"]);
        ends.is_some_and(|ends| ends / 1_000 > now + KEPT.as_secs() / 2)
    };
    let raws = nodes.raws();
    let is_given = raws.iter().filter(begins_later).count() > raws.len() / 2;
    // Simulates the end of the time. One DEL for all keys: between two commands the waiter could get the lock.
    let keys = kind.keys("n");
    let delete: Vec<_> = iter::once("DEL")
        .chain(keys.iter().map(String::as_str))
        .collect();
    for node in raws {
        let () = node.ask(&delete);
    }
    waiter.locked();
    waiter.release();
    is_given
}

/// The request of the downgrade ends the writer's lease first, and that wakes the next writer.
#[test]
fn a_writer_becomes_a_reader_before_a_writer_that_waits() {
    let nodes = Nodes::start(3);
    let locks = nodes.manager();
    let next = Kind::Writer.of(&nodes.manager(), "n");
    for _ in 0..ROUNDS {
        let writer = locks.rwlock("n").write().expect("it becomes free");
        let waiting = next.locking();
        wait_until_waiting(&nodes, "n");
        let reader = writer.downgrade().expect("it was held until now");
        reader.check().expect("it is held");
        assert!(waiting.waits());
        reader.release().expect("it was held until now");
        waiting.locked();
        waiting.release();
    }
}
