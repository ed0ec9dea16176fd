//! The reader-writer lock: which readers and writers it lets in together, and in which order.

mod downgrade;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use leasehold::{LeaseState, LostCause, ReadGuard, RwLock, WriteGuard};

use crate::support::{
    Child, PATIENCE, Raw, Server, Task, build, fence_of, gave_up, lost, manager, ms, name, patient,
    secs, shared, task, task_asleep, wait_until,
};

/// Longer than any test runs, so that no lease ends or is renewed during a test.
const LONG: Duration = Duration::from_mins(10);

/// Returns handles of different managers. To a lock, managers are like processes.
fn locks<const N: usize>(raw: &Raw, name: &str) -> [RwLock; N] {
    [(); N].map(|()| manager(raw.url()).rwlock(name))
}

#[track_caller]
fn reading(lock: &RwLock) -> Task<ReadGuard> {
    let lock = lock.clone();
    task_asleep(move || lock.read().expect("it becomes free"))
}

#[track_caller]
fn writing(lock: &RwLock) -> Task<WriteGuard> {
    let lock = lock.clone();
    task_asleep(move || lock.write().expect("it becomes free"))
}

#[test]
fn smoke() {
    let raw = shared();
    let name = name("rw");
    let [one, other] = locks(raw, &name);
    let writer = one.write().expect("it is free");
    for lock in [&one, &other] {
        assert!(lock.try_read().expect("Redis replies").is_none());
        assert!(lock.try_write().expect("Redis replies").is_none());
    }
    let fence = writer.fence();
    writer.release().expect("it is held");
    let readers = [&one, &other, &one].map(|lock| lock.read().expect("it is free"));
    for reader in &readers {
        assert_eq!((reader.fence(), reader.state()), (fence, LeaseState::Held));
    }
    for lock in [&one, &other] {
        assert!(lock.try_write().expect("Redis replies").is_none());
    }
    drop(readers);
    assert!(!raw.exists(&name));
}

// Readers that share a lease.

#[test]
fn the_readers_of_a_process_share_one_lease() {
    let raw = shared();
    let name = name("share");
    let lock = build(patient(raw.url()).quantum(LONG)).rwlock(&name);
    let first = lock.read().expect("it is free");
    let others: Vec<_> = (0..64)
        .map(|_| {
            let lock = lock.clone();
            task(move || lock.read().expect("shared"))
        })
        .collect();
    let others: Vec<_> = others.into_iter().map(Task::end).collect();
    assert_eq!(raw.shares(&name).len(), 1);
    assert!(others.iter().all(|other| other.owner() == first.owner()));
    // The readers are dropped in the order in which they came, and the lease stays.
    drop(first);
    assert_eq!(raw.shares(&name).len(), 1);
    drop(others);
    assert!(!raw.exists(&name), "the last one releases it");
}

#[test]
fn readers_of_one_process_need_few_commands() {
    const THREADS: usize = 64;
    const ALL: u32 = 25_600;
    let server = Server::start();
    let raw = server.raw();
    // The quantum is long, because the number of requests depends on the number of quanta. So the result does not
    // depend on the machine's speed.
    let lock = build(patient(&server.url()).quantum(LONG)).rwlock("n");
    drop(lock.read().expect("it is free"));
    let taken = Arc::new(AtomicU32::new(0));
    // The readers begin and end together, because a single reader must ask Redis each time.
    let begin = Arc::new(Barrier::new(THREADS + 1));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (lock, taken) = (lock.clone(), Arc::clone(&taken));
            let begin = Arc::clone(&begin);
            task(move || {
                begin.wait();
                while taken.fetch_add(1, Ordering::SeqCst) < ALL {
                    let reader = lock.read().expect("it becomes free");
                    thread::yield_now();
                    reader.release().expect("it is held");
                }
            })
        })
        .collect();
    let before = raw.commands();
    begin.wait();
    threads.into_iter().for_each(Task::end);
    let commands = raw.commands() - before;
    assert!(
        commands * 20 <= u64::from(ALL),
        "{commands} commands for {ALL} reads"
    );
}

#[test]
fn the_last_reader_releases_at_once_though_the_quantum_goes_on() {
    let raw = shared();
    let name = name("last");
    let lock = build(patient(raw.url()).quantum(LONG)).rwlock(&name);
    let [elsewhere] = locks(raw, &name);
    for _ in 0..3 {
        let (one, other) = (
            lock.read().expect("it is free"),
            lock.read().expect("shared"),
        );
        drop(one);
        assert!(elsewhere.try_write().expect("Redis replies").is_none());
        drop(other);
        assert!(elsewhere.try_write().expect("Redis replies").is_some());
    }
}

#[test]
fn readers_with_different_lease_times_share_no_lease() {
    let raw = shared();
    let name = name("leases");
    let lock = build(patient(raw.url()).quantum(LONG)).rwlock(&name);
    let long = lock.read().expect("it is free");
    let short = lock.clone().lease(secs(5)).read().expect("beside it");
    assert_ne!(long.owner(), short.owner());
    assert_eq!(raw.shares(&name).len(), 2);
    drop(long);
    assert_eq!(raw.shares(&name).len(), 1);
    drop(short);
    assert!(!raw.exists(&name));
}

// Readers with leases of their own.

/// Returns when the lease of a reader ends, by its owner.
fn end_of(raw: &Raw, name: &str, owner: &str) -> Option<u64> {
    raw.shares(name).get(&format!("1 {owner}")).copied()
}

#[test]
fn no_reader_s_renewal_or_crash_touches_the_lease_of_another() {
    let raw = shared();
    let name = name("leases-apart");
    let [lock, writer] = locks(raw, &name);
    let lock = lock.lease(LONG).renew(false);
    let mut child = Child::start(raw.url(), "lease_ms=3000 label=child");
    assert_eq!(child.ask(format_args!("read {name}")), "kept");
    let reader = lock.read().expect("beside it");
    let end = end_of(raw, &name, reader.owner());
    let child_s = || {
        let shares = raw.shares(&name);
        let found = shares.iter().find(|(member, _)| member.ends_with(":child"));
        found.map(|(_, end)| *end)
    };
    let mut last = child_s();
    for _ in 0..2 {
        wait_until("the lease of the other is renewed", || child_s() > last);
        last = child_s();
        assert_eq!(end_of(raw, &name, reader.owner()), end);
        assert!(raw.ttl(&name).expect("it expires") > LONG / 2);
    }
    child.kill();
    let writer = writing(&writer);
    wait_until("the dead reader's lease runs out", || child_s().is_none());
    assert_eq!(end_of(raw, &name, reader.owner()), end);
    assert_eq!(raw.shares(&name).len(), 1);
    assert_eq!(reader.state(), LeaseState::Held);
    reader.release().expect("it was held until now");
    drop(writer.end());
}

#[test]
fn a_killed_reader_delays_a_writer_by_its_lease() {
    let raw = shared();
    let name = name("killed-reader");
    let [lock] = locks(raw, &name);
    let mut child = Child::start(raw.url(), "lease_ms=2000");
    assert_eq!(child.ask(format_args!("read {name}")), "kept");
    let writer = writing(&lock.lease(LONG));
    raw.wait_until_queued(&name, 1);
    child.kill();
    writer.end().release().expect("it is held");
}

// The order in which readers and writers are let in.

#[test]
fn a_writer_that_waits_stops_new_readers() {
    let raw = shared();
    let name = name("stops");
    let [one, other, third] = locks(raw, &name);
    let reader = one.read().expect("it is free");
    let writer = writing(&other);
    raw.wait_until_queued(&name, 1);
    assert!(third.try_read().expect("Redis replies").is_none());
    // A reader of the same process is let in within its quantum.
    wait_until("the quantum is over", || {
        one.try_read().expect("Redis replies").is_none()
    });
    let late = [reading(&one), reading(&third)];
    raw.wait_until_queued(&name, 3);
    assert_eq!(raw.shares(&name).len(), 1);
    let fence = reader.fence();
    reader.release().expect("it is held");
    let writer = writer.end();
    assert!(writer.fence() > fence);
    assert_eq!(
        raw.queue(&name).len(),
        2,
        "those who came later wait for it"
    );
    let fence = writer.fence();
    writer.release().expect("it is held");
    for late in late {
        assert_eq!(late.end().fence(), fence);
    }
}

#[test]
fn a_process_goes_on_reading_within_its_quantum() {
    let raw = shared();
    let name = name("reads-on");
    let [other] = locks(raw, &name);
    let lock = build(patient(raw.url()).quantum(LONG)).rwlock(&name);
    let reader = lock.read().expect("it is free");
    let writer = writing(&other);
    raw.wait_until_queued(&name, 1);
    let beside = lock.try_read().expect("known").expect("shared");
    drop(reader);
    drop(lock.try_read().expect("known").expect("shared"));
    drop(beside);
    writer.end().release().expect("it is held");
}

#[test]
fn after_a_writer_all_readers_go_in_and_then_the_next_writer() {
    let raw = shared();
    let name = name("together");
    let [first, early, second, late] = locks(raw, &name);
    let writer = first.write().expect("it is free");
    let early = reading(&early);
    raw.wait_until_queued(&name, 1);
    let second = writing(&second);
    raw.wait_until_queued(&name, 2);
    let writers_place = raw.queue(&name)[1].clone();
    // This reader is behind that writer in the queue, and still goes before it.
    let late = reading(&late);
    raw.wait_until_queued(&name, 3);
    let local = reading(&first);
    raw.wait_until_queued(&name, 4);
    let fence = writer.fence();
    writer.release().expect("it is held");
    let readers = [early.end(), late.end(), local.end()];
    assert!(readers.iter().all(|reader| reader.fence() == fence));
    assert_eq!(raw.queue(&name), [writers_place]);
    drop(readers);
    let second = second.end();
    assert!(second.fence() > fence);
}

#[test]
fn a_writer_that_gives_up_lets_the_readers_behind_it_in() {
    let raw = shared();
    let name = name("gives-up");
    let [one, other, third] = locks(raw, &name);
    let reader = one.read().expect("it is free");
    let writer = task(move || other.try_write_for(secs(2)));
    raw.wait_until_queued(&name, 1);
    let behind = reading(&third);
    raw.wait_until_queued(&name, 2);
    gave_up(writer);
    behind.end().release().expect("it is held");
    reader.release().expect("it was held until now");
    assert!(!raw.exists(&name));
    assert_eq!(raw.queue(&name), [""; 0]);
}

#[test]
fn a_writer_that_is_killed_or_hangs_keeps_no_reader_out_for_long() {
    let raw = shared();
    for hangs in [false, true] {
        let name = name("dead-writer");
        let [one, other] = locks(raw, &name);
        let mut child = Child::start(raw.url(), "");
        let reader = one.lease(LONG).read().expect("it is free");
        child.say(format_args!("write {name}"));
        raw.wait_until_queued(&name, 1);
        let behind = reading(&other);
        raw.wait_until_queued(&name, 2);
        if hangs {
            child.pause();
        } else {
            child.kill();
        }
        // The first reader stays, so only the end of the writer can let the second reader in.
        behind.end().release().expect("it is held");
        reader.release().expect("it was held until now");
    }
}

#[test]
fn a_killed_writer_lets_readers_in_after_its_lease() {
    let raw = shared();
    let name = name("killed-writer");
    let [one, other] = locks(raw, &name);
    let mut child = Child::start(raw.url(), "lease_ms=2000");
    assert_eq!(child.ask(format_args!("write {name}")), "kept");
    let readers = [reading(&one), reading(&other)];
    raw.wait_until_queued(&name, 2);
    child.kill();
    let readers = readers.map(Task::end);
    assert_eq!(raw.shares(&name).len(), 2);
    drop(readers);
}

/// Counts the threads inside, to check that a writer is always alone.
struct Inside {
    readers: AtomicU32,
    writer: AtomicBool,
    reads: AtomicU32,
    writes: AtomicU32,
}

impl Inside {
    fn read(&self, lock: &RwLock) {
        let reader = lock.read().expect("it becomes free");
        self.readers.fetch_add(1, Ordering::SeqCst);
        assert!(
            !self.writer.load(Ordering::SeqCst),
            "a reader is beside a writer"
        );
        thread::yield_now();
        self.readers.fetch_sub(1, Ordering::SeqCst);
        reader.release().expect("it was held until now");
        self.reads.fetch_add(1, Ordering::SeqCst);
    }

    fn write(&self, lock: &RwLock) -> u64 {
        let writer = lock.write().expect("it becomes free");
        assert!(!self.writer.swap(true, Ordering::SeqCst), "two writers");
        assert_eq!(
            self.readers.load(Ordering::SeqCst),
            0,
            "a writer is beside readers"
        );
        thread::yield_now();
        self.writer.store(false, Ordering::SeqCst);
        let fence = writer.fence();
        writer.release().expect("it was held until now");
        self.writes.fetch_add(1, Ordering::SeqCst);
        fence
    }
}

#[test]
fn neither_side_starves_under_a_stream_of_the_other() {
    const ENOUGH: u32 = 60;
    let raw = shared();
    let name = name("stream");
    let inside = Arc::new(Inside {
        readers: AtomicU32::new(0),
        writer: AtomicBool::new(false),
        reads: AtomicU32::new(0),
        writes: AtomicU32::new(0),
    });
    let threads: Vec<_> = locks::<2>(raw, &name)
        .into_iter()
        .flat_map(|lock| (0..8).map(move |index| (lock.clone(), index % 2 == 0)))
        .map(|(lock, writes)| {
            let inside = Arc::clone(&inside);
            // Each side goes on until the other side is done, so a side that starves fails the test.
            task(move || {
                let mut fences = Vec::new();
                if writes {
                    while inside.reads.load(Ordering::SeqCst) < ENOUGH
                        || inside.writes.load(Ordering::SeqCst) < ENOUGH
                    {
                        fences.push(inside.write(&lock));
                    }
                } else {
                    while inside.writes.load(Ordering::SeqCst) < ENOUGH
                        || inside.reads.load(Ordering::SeqCst) < ENOUGH
                    {
                        inside.read(&lock);
                    }
                }
                fences
            })
        })
        .collect();
    let mut all = HashSet::new();
    for thread in threads {
        let fences = thread.end();
        assert!(fences.is_sorted());
        assert!(fences.into_iter().all(|fence| all.insert(fence)), "twice");
    }
    assert!(!raw.exists(&name));
    assert_eq!(raw.queue(&name), [""; 0]);
}

// One guard of a shared lease.

#[test]
fn max_hold_of_one_reader_ends_that_reader_alone() {
    let raw = shared();
    let name = name("one-of-two");
    let lock = build(patient(raw.url()).quantum(LONG)).rwlock(&name);
    let stays = lock.read().expect("it is free");
    let goes = lock.clone().max_hold(Some(ms(200))).read().expect("shared");
    assert_eq!(goes.owner(), stays.owner());
    let told = goes.on_lost().recv_timeout(PATIENCE);
    assert_eq!(told.expect("notified").cause, LostCause::MaxHold);
    assert_eq!(stays.state(), LeaseState::Held);
    lost(goes.release());
    assert!(raw.exists(&name));
    stays.release().expect("it was held until now");
    // The turn that `max_hold` ended may be the last one to leave the shared lease.
    wait_until("it is released", || !raw.exists(&name));
}

#[test]
fn a_loss_notifies_each_reader_of_a_lease() {
    let raw = shared();
    let name = name("each-told");
    let lock = build(patient(raw.url()).quantum(LONG)).rwlock(&name);
    let readers = [(); 5].map(|()| lock.read().expect("free, or shared"));
    let told = readers.each_ref().map(|reader| reader.on_lost());
    let () = raw.ask(&["DEL", &name]);
    readers[3].extend(LONG).expect_err("it is gone");
    for told in told {
        let told = told.recv_timeout(PATIENCE);
        assert_eq!(told.expect("notified").cause, LostCause::Removed);
    }
    // A reader that comes now shares no lease with them.
    let anew = lock.read().expect("it is free");
    assert_ne!(anew.owner(), readers[0].owner());
    for reader in readers {
        lost(reader.release());
    }
    anew.release().expect("it was held until now");
    assert!(!raw.exists(&name));
}

// Fences of readers and writers.

#[test]
fn readers_carry_the_fence_of_the_last_writer() {
    let raw = shared();
    let name = name("fences");
    let [one, other] = locks(raw, &name);
    let before = one.read().expect("it is free").fence();
    let mut last = before;
    for round in 0..4 {
        let (writes, reads) = if round % 2 == 0 {
            (&one, &other)
        } else {
            (&other, &one)
        };
        let fence = writes.write().expect("it is free").fence();
        assert!(fence > last);
        for lock in [reads, writes] {
            assert_eq!(lock.read().expect("it is free").fence(), fence);
        }
        last = fence;
    }
    // Redis drops the record at some time. The fence of a reader still lies between the last writer's and the next
    // writer's.
    let () = raw.ask(&["DEL", &fence_of(&name)]);
    let between = one.read().expect("it is free");
    let beside = other.read().expect("it is free");
    assert!(between.fence() > last);
    assert_eq!(between.fence(), beside.fence());
    last = between.fence();
    drop((between, beside));
    assert!(other.write().expect("it is free").fence() > last);
}

#[test]
fn readers_see_no_fence_that_writers_only_reserved() {
    let raw = shared();
    let name = name("block");
    // A block of fences for ten minutes. If the unused fences were not given back, readers would see a fence that is
    // far ahead.
    let lock = build(patient(raw.url()).quantum(LONG)).rwlock(&name);
    let writer = lock.write().expect("it is free");
    let next = [writing(&lock), writing(&lock), writing(&lock)];
    drop(writer);
    // The writers are granted one after the other, in the order in which their tasks asked.
    let mut last = 0;
    for next in next {
        let next = next.end();
        assert!(next.fence() > last);
        last = next.fence();
        next.release().expect("it is held");
    }
    assert_eq!(lock.read().expect("it is free").fence(), last);
    assert!(lock.write().expect("it is free").fence() > last);
}
