//! Waiters that get their turn, although other processes ask all the time.

use std::time::{Duration, Instant};

use leasehold::Result;

use super::wait_until_waiting;
use crate::support::{Kind, Nodes, Raw, companions_of, is_unreachable, ms, secs, wait_until};

/// How many times each test waits.
const ROUNDS: u32 = 20;
/// How often others may overtake the waiters of all rounds together. A waiter whose votes were split loses its place.
/// Without turns, others overtake in each round.
const MOST: u32 = 10;
/// The length of a turn. On a busy machine a waiter may miss its turn, so a grant after that time does not count.
const TURN: Duration = ms(100);

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
        wait_until_waiting(&nodes, "n");
        while waiting.waits() {
            let next = guard_of(readers[asks_next].try_read());
            let is_turn = reading.is_some() || released.elapsed() < TURN;
            granted += u32::from(next.is_some() && is_turn);
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
        wait_until_waiting(&nodes, "n");
        while waiting.waits() {
            if let Some(guard) = held.take() {
                released = Instant::now();
                guard.release().expect("it was held until now");
            }
            held = guard_of(lock.try_lock());
            overtaken += u32::from(held.is_some() && released.elapsed() < TURN);
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

/// The waiter asked before the release. Its turn begins when the lock is free.
#[test]
fn a_release_within_min_hold_gives_the_first_waiter_the_turn_after_it() {
    const KEPT: Duration = secs(600);
    for kind in [Kind::Mutex, Kind::Writer, Kind::Multi] {
        let nodes = Nodes::start(3);
        let lock = kind.of(&nodes.manager(), "n").min_hold(KEPT);
        let guard = lock.lock().expect("it is free");
        let waiter = kind.of(&nodes.manager(), "n").locking();
        wait_until_waiting(&nodes, "n");
        guard.release().expect("it was held until now");
        let [_, _, waiters] = companions_of("n");
        let begins_later = |node: &Raw| {
            let turn: Option<String> = node.ask(&["HGET", &waiters, "=turn"]);
            let ends = turn.and_then(|turn| turn.split_once(' ')?.0.parse::<u64>().ok());
            let (now, _): (u64, u64) = node.ask(&["TIME"]);
            ends.is_some_and(|ends| ends / 1_000 > now + KEPT.as_secs() / 2)
        };
        wait_until("a majority has woken it", || {
            let raws = nodes.raws();
            raws.iter().filter(|raw| begins_later(raw)).count() >= 2
        });
        // Simulates the end of the time.
        for node in nodes.raws() {
            for key in kind.keys("n") {
                let () = node.ask(&["DEL", &key]);
            }
        }
        waiter.locked();
        waiter.release();
    }
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
