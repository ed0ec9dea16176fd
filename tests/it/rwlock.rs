//! The reader-writer lock: who is let in beside whom, and in which order.

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

/// No test lives to see a lease of this end, or be renewed.
const LONG: Duration = Duration::from_mins(10);

/// Managers are to a lock what processes are.
fn locks<const N: usize>(raw: &Raw, name: &str) -> [RwLock; N] {
    [(); N].map(|()| manager(raw.url()).rwlock(name))
}

#[track_caller]
fn reading(lock: &RwLock) -> Task<ReadGuard> {
    let lock = lock.clone();
    task_asleep(move || lock.read().expect("it comes free"))
}

#[track_caller]
fn writing(lock: &RwLock) -> Task<WriteGuard> {
    let lock = lock.clone();
    task_asleep(move || lock.write().expect("it comes free"))
}

#[test]
fn smoke() {
    let raw = shared();
    let name = name("rw");
    let [one, other] = locks(raw, &name);
    let writer = one.write().expect("free");
    for lock in [&one, &other] {
        assert!(lock.try_read().expect("asked").is_none());
        assert!(lock.try_write().expect("asked").is_none());
    }
    let fence = writer.fence();
    writer.release().expect("held");
    let readers = [&one, &other, &one].map(|lock| lock.read().expect("free"));
    for reader in &readers {
        assert_eq!((reader.fence(), reader.state()), (fence, LeaseState::Held));
    }
    for lock in [&one, &other] {
        assert!(lock.try_write().expect("asked").is_none());
    }
    drop(readers);
    assert!(!raw.exists(&name));
}

// Readers share.

#[test]
fn the_readers_of_a_process_share_one_lease() {
    let raw = shared();
    let name = name("share");
    let lock = build(patient(raw.url()).quantum(LONG)).rwlock(&name);
    let first = lock.read().expect("free");
    let others: Vec<_> = (0..64)
        .map(|_| {
            let lock = lock.clone();
            task(move || lock.read().expect("shared"))
        })
        .collect();
    let others: Vec<_> = others.into_iter().map(Task::end).collect();
    assert_eq!(raw.shares(&name).len(), 1);
    assert!(others.iter().all(|other| other.owner() == first.owner()));
    // Whoever came first goes first, and the hold stays.
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
    // However slow the machine is: what is asked at the end of a quantum depends on how many it has time for.
    let lock = build(patient(&server.url()).quantum(LONG)).rwlock("n");
    drop(lock.read().expect("free"));
    let taken = Arc::new(AtomicU32::new(0));
    // They begin and end together: one that reads alone has to ask each time.
    let begin = Arc::new(Barrier::new(THREADS + 1));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (lock, taken) = (lock.clone(), Arc::clone(&taken));
            let begin = Arc::clone(&begin);
            task(move || {
                begin.wait();
                while taken.fetch_add(1, Ordering::SeqCst) < ALL {
                    let reader = lock.read().expect("it comes free");
                    thread::yield_now();
                    reader.release().expect("held");
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
        let (one, other) = (lock.read().expect("free"), lock.read().expect("shared"));
        drop(one);
        assert!(elsewhere.try_write().expect("asked").is_none());
        drop(other);
        assert!(elsewhere.try_write().expect("asked").is_some());
    }
}

#[test]
fn readers_with_different_lease_times_share_no_lease() {
    let raw = shared();
    let name = name("leases");
    let lock = build(patient(raw.url()).quantum(LONG)).rwlock(&name);
    let long = lock.read().expect("free");
    let short = lock.clone().lease(secs(5)).read().expect("beside it");
    assert_ne!(long.owner(), short.owner());
    assert_eq!(raw.shares(&name).len(), 2);
    drop(long);
    assert_eq!(raw.shares(&name).len(), 1);
    drop(short);
    assert!(!raw.exists(&name));
}

// Each has a lease of its own.

/// When the lease of a reader of this owner ends.
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
        wait_until("the other's lease is renewed", || child_s() > last);
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
    reader.release().expect("held all the while");
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
    writer.end().release().expect("held");
}

// Who waits for whom.

#[test]
fn a_writer_that_waits_stops_new_readers() {
    let raw = shared();
    let name = name("stops");
    let [one, other, third] = locks(raw, &name);
    let reader = one.read().expect("free");
    let writer = writing(&other);
    raw.wait_until_queued(&name, 1);
    assert!(third.try_read().expect("asked").is_none());
    // In the process that reads, within its quantum.
    wait_until("the quantum is over", || {
        one.try_read().expect("asked").is_none()
    });
    let late = [reading(&one), reading(&third)];
    raw.wait_until_queued(&name, 3);
    assert_eq!(raw.shares(&name).len(), 1);
    let fence = reader.fence();
    reader.release().expect("held");
    let writer = writer.end();
    assert!(writer.fence() > fence);
    assert_eq!(
        raw.queue(&name).len(),
        2,
        "those who came later wait for it"
    );
    let fence = writer.fence();
    writer.release().expect("held");
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
    let reader = lock.read().expect("free");
    let writer = writing(&other);
    raw.wait_until_queued(&name, 1);
    let beside = lock.try_read().expect("known").expect("shared");
    drop(reader);
    drop(lock.try_read().expect("known").expect("shared"));
    drop(beside);
    writer.end().release().expect("held");
}

#[test]
fn after_a_writer_all_readers_go_in_and_then_the_next_writer() {
    let raw = shared();
    let name = name("together");
    let [first, early, second, late] = locks(raw, &name);
    let writer = first.write().expect("free");
    let early = reading(&early);
    raw.wait_until_queued(&name, 1);
    let second = writing(&second);
    raw.wait_until_queued(&name, 2);
    let writers_place = raw.queue(&name)[1].clone();
    // Behind that writer, and yet before it.
    let late = reading(&late);
    raw.wait_until_queued(&name, 3);
    let local = reading(&first);
    raw.wait_until_queued(&name, 4);
    let fence = writer.fence();
    writer.release().expect("held");
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
    let reader = one.read().expect("free");
    let writer = task(move || other.try_write_for(secs(2)));
    raw.wait_until_queued(&name, 1);
    let behind = reading(&third);
    raw.wait_until_queued(&name, 2);
    gave_up(writer);
    behind.end().release().expect("held");
    reader.release().expect("held all the while");
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
        let reader = one.lease(LONG).read().expect("free");
        child.say(format_args!("write {name}"));
        raw.wait_until_queued(&name, 1);
        let behind = reading(&other);
        raw.wait_until_queued(&name, 2);
        if hangs {
            child.pause();
        } else {
            child.kill();
        }
        // The first reader stays: nothing but the writer's end can let the second in.
        behind.end().release().expect("held");
        reader.release().expect("held all the while");
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

/// What two processes do to one lock: it is counted that no writer is beside anybody.
struct Inside {
    readers: AtomicU32,
    writer: AtomicBool,
    reads: AtomicU32,
    writes: AtomicU32,
}

impl Inside {
    fn read(&self, lock: &RwLock) {
        let reader = lock.read().expect("it comes free");
        self.readers.fetch_add(1, Ordering::SeqCst);
        assert!(!self.writer.load(Ordering::SeqCst), "beside a writer");
        thread::yield_now();
        self.readers.fetch_sub(1, Ordering::SeqCst);
        reader.release().expect("held all the while");
        self.reads.fetch_add(1, Ordering::SeqCst);
    }

    fn write(&self, lock: &RwLock) -> u64 {
        let writer = lock.write().expect("it comes free");
        assert!(!self.writer.swap(true, Ordering::SeqCst), "two writers");
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "beside readers");
        thread::yield_now();
        self.writer.store(false, Ordering::SeqCst);
        let fence = writer.fence();
        writer.release().expect("held all the while");
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
            // Each side goes on until the other has had enough, so that one that starves ends no test.
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

// One guard of a hold that is shared.

#[test]
fn max_hold_of_one_reader_ends_that_reader_alone() {
    let raw = shared();
    let name = name("one-of-two");
    let lock = build(patient(raw.url()).quantum(LONG)).rwlock(&name);
    let stays = lock.read().expect("free");
    let goes = lock.clone().max_hold(Some(ms(200))).read().expect("shared");
    assert_eq!(goes.owner(), stays.owner());
    let told = goes.on_lost().recv_timeout(PATIENCE);
    assert_eq!(told.expect("told").cause, LostCause::MaxHold);
    assert_eq!(stays.state(), LeaseState::Held);
    lost(goes.release());
    assert!(raw.exists(&name));
    stays.release().expect("held all the while");
    // The turn that was ended for its guard may well be the last to end.
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
        assert_eq!(told.expect("told").cause, LostCause::Removed);
    }
    // Who comes now shares nothing with them.
    let anew = lock.read().expect("free");
    assert_ne!(anew.owner(), readers[0].owner());
    for reader in readers {
        lost(reader.release());
    }
    anew.release().expect("held all the while");
    assert!(!raw.exists(&name));
}

// Fences.

#[test]
fn readers_carry_the_fence_of_the_last_writer() {
    let raw = shared();
    let name = name("fences");
    let [one, other] = locks(raw, &name);
    let before = one.read().expect("free").fence();
    let mut last = before;
    for round in 0..4 {
        let (writes, reads) = if round % 2 == 0 {
            (&one, &other)
        } else {
            (&other, &one)
        };
        let fence = writes.write().expect("free").fence();
        assert!(fence > last);
        for lock in [reads, writes] {
            assert_eq!(lock.read().expect("free").fence(), fence);
        }
        last = fence;
    }
    // The record is forgotten at some time: the fence lies between the last and the next all the same.
    let () = raw.ask(&["DEL", &fence_of(&name)]);
    let between = one.read().expect("free");
    let beside = other.read().expect("free");
    assert!(between.fence() > last);
    assert_eq!(between.fence(), beside.fence());
    last = between.fence();
    drop((between, beside));
    assert!(other.write().expect("free").fence() > last);
}

#[test]
fn readers_see_no_fence_that_writers_only_reserved() {
    let raw = shared();
    let name = name("block");
    // A block for ten minutes: were the rest kept, readers would be that far ahead.
    let lock = build(patient(raw.url()).quantum(LONG)).rwlock(&name);
    let writer = lock.write().expect("free");
    let next = [writing(&lock), writing(&lock), writing(&lock)];
    drop(writer);
    // They come one after the other, in whatever order their tasks are asked for.
    let mut last = 0;
    for next in next {
        let next = next.end();
        assert!(next.fence() > last);
        last = next.fence();
        next.release().expect("held");
    }
    assert_eq!(lock.read().expect("free").fence(), last);
    assert!(lock.write().expect("free").fence() > last);
}
