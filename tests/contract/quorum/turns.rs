//! Waiters that get their turn, although other processes ask all the time, or an earlier waiter hangs.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::{Error, LostCause};
use leasehold_simulator::Topology;

use super::{Nodes, guard_of};
use crate::matrix::{Subject, subject_bodies};
use crate::redis::{Redis, companions_of};
use crate::subject::{Holder, Kind};
use crate::world::{Locks, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "quorum::turns",
    &[Topology::Quorum],
    subject_bodies![
        a_writer_gets_in_while_readers_overlap_without_a_gap,
        a_multi_lock_gets_its_turn_beside_a_multi_lock,
        a_multi_lock_gets_its_turn_beside_a_lock_of_one_name,
        a_lock_of_one_name_gets_its_turn_beside_a_multi_lock,
        a_writer_gets_its_turn_beside_a_writer,
        a_reader_gets_its_turn_beside_a_writer,
        a_waiter_that_hangs_has_one_turn_while_it_hangs,
        a_waiter_that_stalls_keeps_its_place,
        a_live_waiter_gets_its_turn_behind_one_that_hangs,
        the_second_waiter_asks_when_the_turn_of_the_first_ends,
        a_release_within_min_hold_gives_the_first_waiter_the_turn_after_it,
        a_writer_becomes_a_reader_before_a_writer_that_waits,
    ],
);

/// How many times each body waits.
const ROUNDS: u32 = 5;
/// How often others may overtake the waiters of all rounds together. A waiter loses its place if its votes are split, or the
/// answer of a node comes late. Without turns, others overtake again and again in each round.
const MOST: u32 = 5;
/// The length of a turn.
const TURN: Duration = ms(100);
/// The kinds that each wait in another way.
const KINDS: [Kind; 3] = [Kind::Mutex, Kind::Writer, Kind::Multi];

/// Readers of two processes overlap: each releases the lock only after the other has it, or was kept out.
fn a_writer_gets_in_while_readers_overlap_without_a_gap(world: &World) {
    let nodes = Nodes::new(world, 3);
    let readers = [world.manager(), world.manager()].map(|locks| locks.rwlock("n"));
    let writer = Kind::Writer.of(&world.manager(), "n");
    let mut granted = 0;
    for _ in 0..ROUNDS {
        // A further reader of the same process would share the lease in memory.
        let mut asks_next = 1;
        let mut reading = Some(readers[0].read().expect("nobody writes"));
        let waiting = writer.locking();
        wait_until_ready(&nodes, "n", 1, |_| true);
        while waiting.waits() {
            let next = guard_of(readers[asks_next].try_read());
            granted += u32::from(next.is_some());
            assert!(granted <= MOST, "readers keep the writer out");
            asks_next = 1 - asks_next;
            if let Some(former) = std::mem::replace(&mut reading, next) {
                former.release().expect("it was held until now");
            }
        }
        waiting.release();
    }
}

/// One process releases the lock and asks again at once, while another waits.
fn a_waiter_is_not_overtaken(world: &World, asking: Kind, waiting: Kind) {
    let nodes = Nodes::new(world, 3);
    let lock = asking.of(&world.manager(), "n");
    let waiter = waiting.of(&world.manager(), "n");
    let mut overtaken = 0;
    for _ in 0..ROUNDS {
        let mut held = Some(lock.lock().expect("it becomes free"));
        let waiting = waiter.locking();
        wait_until_ready(&nodes, "n", 1, |_| true);
        while waiting.waits() {
            if let Some(guard) = held.take() {
                guard.release().expect("it was held until now");
            }
            held = guard_of(lock.try_lock());
            overtaken += u32::from(held.is_some());
            assert!(overtaken <= MOST, "others keep the waiter out");
        }
        waiting.release();
    }
}

fn a_multi_lock_gets_its_turn_beside_a_multi_lock(world: &World) {
    a_waiter_is_not_overtaken(world, Kind::Multi, Kind::Multi);
}

fn a_multi_lock_gets_its_turn_beside_a_lock_of_one_name(world: &World) {
    a_waiter_is_not_overtaken(world, Kind::Mutex, Kind::Multi);
}

fn a_lock_of_one_name_gets_its_turn_beside_a_multi_lock(world: &World) {
    a_waiter_is_not_overtaken(world, Kind::Multi, Kind::Mutex);
}

fn a_writer_gets_its_turn_beside_a_writer(world: &World) {
    a_waiter_is_not_overtaken(world, Kind::Writer, Kind::Writer);
}

fn a_reader_gets_its_turn_beside_a_writer(world: &World) {
    a_waiter_is_not_overtaken(world, Kind::Writer, Kind::Reader);
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

/// Returns the waiters for a name at a node in order.
fn waiters_at(node: &Redis, name: &str) -> Vec<Waiter> {
    let [_, _, waiters] = companions_of(name);
    let with_record = |owner: String| {
        let record: String = node.ask::<Option<String>>(&["HGET", &waiters, &owner])?;
        let words: Vec<&str> = record.split(' ').collect();
        let seen = ms(words[0].parse().expect("ms"));
        Some(Waiter {
            owner,
            silence: node.time().saturating_sub(seen),
            is_passed_over: words[1] == "0",
            has_channel: !words[3].is_empty(),
        })
    };
    let queue = node.queue(name).into_iter();
    queue.filter_map(with_record).collect()
}

/// Returns whether a majority of the nodes passes a waiter over.
fn is_passed_over(nodes: &Nodes, name: &str) -> bool {
    let at = |node: &&Redis| waiters_at(node, name).iter().any(|it| it.is_passed_over);
    nodes.each.iter().filter(at).count() > nodes.each.len() / 2
}

/// Blocks until a majority of the nodes has this number of waiters, which a message can wake, and `is_ready` holds for the
/// first. A waiter that no message can wake gets no turn.
#[track_caller]
fn wait_until_ready(nodes: &Nodes, name: &str, count: usize, is_ready: impl Fn(&Waiter) -> bool) {
    let is_node_ready = |node: &&Redis| {
        let waiters = waiters_at(node, name);
        let has_all = waiters.len() == count && waiters.iter().all(|it| it.has_channel);
        has_all && is_ready(&waiters[0])
    };
    nodes.world.until("the waiters are ready", || {
        nodes.each.iter().filter(is_node_ready).count() > nodes.each.len() / 2
    });
}

/// Returns the owner of the only waiter.
fn only_waiter(nodes: &Nodes, name: &str) -> String {
    let waiter = nodes.each.iter().find_map(|node| node.queue(name).pop());
    waiter.expect("a waiter")
}

/// Returns a process that waits for the lock behind its holder, and hangs.
fn hung_waiter(nodes: &Nodes, kind: Kind, name: &str) -> (Locks, Holder) {
    let locks = nodes.world.manager();
    let waiter = kind.of(&locks, name).locking();
    wait_until_ready(nodes, name, 1, |_| true);
    locks.pause();
    (locks, waiter)
}

/// Runs a body for each kind, with a name of its own.
fn each_kind(world: &World, body: impl Fn(&Nodes, Kind, &str)) {
    let nodes = Nodes::new(world, 3);
    for kind in KINDS {
        body(&nodes, kind, kind.name());
    }
}

/// Runs a body for each kind, with other names each time, until it succeeds. A waiter loses its place if its votes are split,
/// or if the answer of a node comes after those of the others, so not each round succeeds.
#[track_caller]
fn any_round_of_each_kind(world: &World, body: fn(&Nodes, Kind, &str) -> bool) {
    each_kind(world, |nodes, kind, name| {
        let succeeds = |round| body(nodes, kind, &format!("{name}{round}"));
        assert!((0..20).any(succeeds), "{kind:?}");
    });
}

fn a_waiter_that_hangs_has_one_turn_while_it_hangs(world: &World) {
    each_kind(world, |nodes, kind, name| {
        let lock = kind.of(&world.manager(), name);
        let guard = lock.lock().expect("it is free");
        let (hung, waiter) = hung_waiter(nodes, kind, name);
        let owner = only_waiter(nodes, name);
        guard.release().expect("it was held until now");
        let [_, _, waiters] = companions_of(name);
        let mut turns = BTreeSet::new();
        for _ in 0..ROUNDS {
            for (number, node) in nodes.each.iter().enumerate() {
                let turn: Option<String> = node.ask(&["HGET", &waiters, "=turn"]);
                let its = turn.filter(|turn| turn.ends_with(&owner));
                turns.extend(its.map(|it| (number, it)));
            }
            let guard = lock.lock().expect("it becomes free");
            guard.release().expect("it was held until now");
        }
        // One at each node.
        assert!(turns.len() <= 3, "{turns:?}");
        hung.resume();
        waiter.locked();
        waiter.release();
    });
}

fn a_waiter_that_stalls_keeps_its_place(world: &World) {
    any_round_of_each_kind(world, keeps_its_place);
}

/// Returns whether a waiter that stalls gets the lock before one that came later.
fn keeps_its_place(nodes: &Nodes, kind: Kind, name: &str) -> bool {
    let world = &nodes.world;
    let guard = kind.of(&world.manager(), name).lock().expect("it is free");
    let (stalled, first) = hung_waiter(nodes, kind, name);
    let second = kind.of(&world.manager(), name).locking();
    wait_until_ready(nodes, name, 2, |_| true);
    guard.release().expect("it was held until now");
    second.locked();
    assert!(is_passed_over(nodes, name), "it had no turn");
    let third = kind.of(&world.manager(), name).locking();
    wait_until_ready(nodes, name, 2, |_| true);
    stalled.resume();
    // It asks, because its turn has woken it.
    world.pass(ms(50));
    second.release();
    world.until("one has it", || !first.waits() || !third.waits());
    let is_first = third.waits();
    drop(first);
    third.locked();
    is_first
}

/// The first waiter hangs, and a process releases the lock and asks again at once. Without the turn of the next waiter, that
/// process would get the lock whenever the turn of the first one ends.
fn a_live_waiter_gets_its_turn_behind_one_that_hangs(world: &World) {
    each_kind(world, |nodes, kind, name| {
        let lock = kind.of(&world.manager(), name);
        let waiter = kind.of(&world.manager(), name);
        let mut guard = Some(lock.lock().expect("it is free"));
        let (hung, first) = hung_waiter(nodes, kind, name);
        let hung_owner = only_waiter(nodes, name);
        let mut overtaken = 0;
        for _ in 0..ROUNDS {
            guard = guard.or_else(|| Some(lock.lock().expect("it is free")));
            let waiting = waiter.locking();
            let is_live = |it: &Waiter| it.has_channel && it.owner != hung_owner;
            let has_it = |node: &&Redis| waiters_at(node, name).iter().any(is_live);
            world.until("a majority has the waiter", || {
                nodes.each.iter().filter(has_it).count() >= 2
            });
            while waiting.waits() {
                if let Some(guard) = guard.take() {
                    guard.release().expect("it was held until now");
                }
                guard = guard_of(lock.try_lock());
                overtaken += u32::from(guard.is_some());
                assert!(overtaken <= MOST, "{kind:?}: the waiter is kept out");
            }
            waiting.release();
        }
        hung.resume();
        first.locked();
        first.release();
    });
}

/// The process that released the lock does not ask again, so nobody else notices the end of the turn. Without being told of
/// it, the second waiter would find it at its poll, after about a second.
fn the_second_waiter_asks_when_the_turn_of_the_first_ends(world: &World) {
    let (nodes, name) = (Nodes::new(world, 3), Kind::Mutex.name());
    let lock = Kind::Mutex.of(&world.manager(), name);
    let guard = lock.lock().expect("it is free");
    let (hung, first) = hung_waiter(&nodes, Kind::Mutex, name);
    let second = Kind::Mutex.of(&world.manager(), name).locking_asleep();
    wait_until_ready(&nodes, name, 2, |first| first.silence > ms(50));
    let released_at = world.now();
    guard.release().expect("it was held until now");
    let (locked_at, ends_at) = (second.locked_at(), released_at + TURN);
    assert!(locked_at >= ends_at, "{locked_at:?} before {ends_at:?}");
    assert!(locked_at <= world.within(ends_at), "{locked_at:?}");
    second.release();
    hung.resume();
    first.locked();
    first.release();
}

/// The waiter asked before the release. Its turn begins when the lock is free.
fn a_release_within_min_hold_gives_the_first_waiter_the_turn_after_it(world: &World) {
    any_round_of_each_kind(world, gives_the_turn_after_min_hold);
}

/// Returns whether a release gives the waiter a turn after the time for which the lock is kept.
fn gives_the_turn_after_min_hold(nodes: &Nodes, kind: Kind, name: &str) -> bool {
    const KEPT: Duration = secs(10);
    let world = &nodes.world;
    let lock = kind.of(&world.manager(), name).min_hold(KEPT);
    let guard = lock.lock().expect("it is free");
    // A release keeps the lock only at the nodes that vote for the guard.
    let is_kept = guard.lease().missing_nodes().is_empty();
    let free_at = world.now() + KEPT;
    let waiter = kind.of(&world.manager(), name).locking();
    wait_until_ready(nodes, name, 1, |_| true);
    guard.release().expect("it was held until now");
    // A node may execute the release after a majority has.
    world.pass(ms(20));
    let [_, _, waiters] = companions_of(name);
    let begins_later = |node: &&Redis| {
        let turn: Option<String> = node.ask(&["HGET", &waiters, "=turn"]);
        let ends_ms = turn.and_then(|turn| turn.split_once(' ')?.0.parse().ok());
        ends_ms.is_some_and(|ends_ms| ms(ends_ms) > node.time() + KEPT / 2)
    };
    let given = nodes.each.iter().filter(begins_later).count();
    let locked_at = waiter.locked_at();
    assert!(locked_at <= world.granted_by(free_at), "{locked_at:?}");
    is_kept && given > nodes.each.len() / 2
}

/// The request of the downgrade ends the writer's lease first, and that wakes the next writer. Rarely this one asks enough nodes
/// between the two.
fn a_writer_becomes_a_reader_before_a_writer_that_waits(world: &World) {
    let nodes = Nodes::new(world, 3);
    let locks = world.manager();
    let next = Kind::Writer.of(&world.manager(), "n");
    let mut downgrades = 0;
    for _ in 0..ROUNDS {
        let writer = locks.rwlock("n").write().expect("it becomes free");
        let waiting = next.locking();
        nodes.wait_until_waiting("n");
        match writer.downgrade() {
            Ok(reader) => {
                reader.check().expect("it is held");
                assert!(waiting.waits());
                reader.release().expect("it was held until now");
                downgrades += 1;
            }
            Err(Error::Lost(lost)) => assert_eq!(lost.cause, LostCause::Taken),
            Err(error) => panic!("{error}"),
        }
        waiting.locked();
        waiting.release();
    }
    assert!(downgrades > ROUNDS / 2, "{downgrades}");
}
