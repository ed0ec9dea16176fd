//! What only a reader-writer lock has: readers that share a lease, its order, and a writer that becomes a reader.

use std::time::Duration;

use leasehold::{Error, LeaseState, LostCause};
use leasehold_simulator::{LinkFault, Refused, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::redis::fence_of;
use crate::subject::{Holder, Kind, lost};
use crate::world::{Locks, Task, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "rwlock",
    &[Topology::Single],
    subject_bodies![
        the_readers_of_a_process_share_one_lease,
        readers_of_a_process_come_and_go_without_a_request,
        a_loss_reaches_each_reader_of_a_lease_and_is_released_once,
        a_writer_that_waits_stops_new_readers,
        after_a_writer_all_readers_go_in_and_then_the_next_writer,
        a_writer_that_leaves_the_queue_lets_the_readers_behind_it_in,
        readers_see_no_fence_that_writers_only_reserved,
        a_downgrade_lets_readers_in_and_no_writer,
        a_downgraded_guard_is_renewed_until_its_own_max_hold,
        a_downgrade_that_fails_leaves_nothing_behind,
        a_lost_writer_becomes_no_reader,
    ],
);

const NAME: &str = "n";
/// Longer than any body runs.
const LONG: Duration = secs(600);

fn long_quantum(world: &World) -> Locks {
    world.build(|it| it.quantum(LONG).lease(LONG))
}

fn the_readers_of_a_process_share_one_lease(world: &World) {
    let redis = world.redis();
    let lock = world.build(|it| it.quantum(ms(1))).rwlock(NAME);
    let elsewhere = world.manager().rwlock(NAME);
    let first = lock.read().expect("it is free");
    let mut readers = Vec::new();
    for _ in 0..20 {
        // After each quantum, the process opens its lease for further readers, and adds no second lease.
        world.pass(ms(2));
        readers.push(lock.read().expect("nobody waits"));
    }
    assert!(readers.iter().all(|one| one.owner() == first.owner()));
    assert_eq!(redis.holders(NAME).len(), 1);
    // A lease of another length is a lease of its own.
    let short = lock.lease(secs(5)).read().expect("nobody waits");
    assert_eq!(redis.holders(NAME).len(), 2);
    drop((first, short));
    assert_eq!(redis.holders(NAME).len(), 1);
    assert!(elsewhere.try_write().expect("Redis replies").is_none());
    drop(readers);
    assert!(elsewhere.try_write().expect("Redis replies").is_some());
}

fn readers_of_a_process_come_and_go_without_a_request(world: &World) {
    let (locks, other) = (long_quantum(world), world.manager());
    let lock = locks.rwlock(NAME);
    let first = lock.read().expect("it is free");
    let before = world.received(0);
    let threads = [(); 8].map(|()| {
        let lock = lock.clone();
        locks.thread(move || (0..50).for_each(|_| drop(lock.read().expect("shared"))))
    });
    threads.into_iter().for_each(Task::end);
    assert_eq!(world.received(0), before);
    // They go on within their quantum, although a writer waits.
    let writer = Kind::Writer.of(&other, NAME).locking();
    world.redis().wait_until_queued(NAME, 1);
    let beside = lock.try_read().expect("it is known").expect("shared");
    drop(first);
    drop(lock.try_read().expect("it is known").expect("shared"));
    assert!(writer.waits());
    // The last one releases the lease at once, although the quantum goes on.
    let released_at = world.now();
    drop(beside);
    assert!(writer.locked_at() <= world.within(released_at));
}

fn a_loss_reaches_each_reader_of_a_lease_and_is_released_once(world: &World) {
    for cause in [LostCause::Removed, LostCause::Expired] {
        let locks = world.build(|it| it.quantum(LONG));
        let lock = locks.rwlock(NAME);
        let readers: Vec<_> = (0..200).map(|_| lock.read().expect("shared")).collect();
        let told: Vec<_> = readers.iter().map(|reader| reader.on_lost()).collect();
        if cause == LostCause::Removed {
            let () = world.redis().ask(&["DEL", NAME]);
            lost(readers[3].extend(LONG));
        } else {
            world.pause_servers();
        }
        for told in told {
            assert_eq!(world.recv(&told).cause, cause);
        }
        world.resume_servers();
        // A reader that comes now shares no lease with them.
        let anew = lock.read().expect("it is free");
        assert_ne!(anew.owner(), readers[0].owner());
        let before = world.received(0);
        for reader in readers {
            lost(reader.release());
        }
        anew.release().expect("it was held until now");
        assert!(locks.close(secs(30)), "something is left to send");
        assert!(world.received(0) - before < 10);
    }
}

fn a_writer_that_waits_stops_new_readers(world: &World) {
    let redis = world.redis();
    let [one, other, third] = [(); 3].map(|()| world.manager());
    let lock = one.rwlock(NAME);
    let reader = lock.read().expect("it is free");
    let writer = Kind::Writer.of(&other, NAME).locking();
    redis.wait_until_queued(NAME, 1);
    let elsewhere = third.rwlock(NAME);
    assert!(elsewhere.try_read().expect("Redis replies").is_none());
    // A reader of the same process is let in within its quantum.
    world.until("the quantum is over", || {
        lock.try_read().expect("Redis replies").is_none()
    });
    let late = [&one, &third].map(|locks| Kind::Reader.of(locks, NAME).locking());
    redis.wait_until_queued(NAME, 3);
    assert_eq!(redis.holders(NAME).len(), 1);
    let fence = reader.fence();
    reader.release().expect("it is held");
    assert!(writer.locked() > fence);
    assert!(late.iter().all(Holder::waits));
    let fence = writer.locked();
    writer.release();
    assert!(late.iter().all(|reader| reader.locked() == fence));
}

fn after_a_writer_all_readers_go_in_and_then_the_next_writer(world: &World) {
    let redis = world.redis();
    let first = world.manager();
    let writer = Kind::Writer.of(&first, NAME).hold();
    let mut waiting = Vec::new();
    // The third one is behind that writer in the queue, and still goes before it.
    for (kind, locks) in [
        (Kind::Reader, &world.manager()),
        (Kind::Writer, &world.manager()),
        (Kind::Reader, &world.manager()),
        (Kind::Reader, &first),
    ] {
        waiting.push(kind.of(locks, NAME).locking());
        redis.wait_until_queued(NAME, waiting.len());
    }
    let next = waiting.remove(1);
    let place = redis.queue(NAME).remove(1);
    let fence = writer.locked();
    writer.release();
    assert!(waiting.iter().all(|reader| reader.locked() == fence));
    assert_eq!(redis.queue(NAME), [place]);
    assert!(next.waits());
    waiting.into_iter().for_each(Holder::release);
    assert!(next.locked() > fence);
}

fn a_writer_that_leaves_the_queue_lets_the_readers_behind_it_in(world: &World) {
    let redis = world.redis();
    for (end, ends) in [
        ("gives-up", (|_| {}) as fn(&Locks)),
        ("killed", Locks::kill),
        ("hangs", Locks::pause),
    ] {
        let name = world.name(end);
        let reader = Kind::Reader.of(&world.manager(), &name).hold();
        let leaving = world.manager();
        let writer = leaving.rwlock(&name);
        let wait = if end == "gives-up" { secs(2) } else { LONG };
        leaving.thread(move || drop(writer.try_write_for(wait)));
        redis.wait_until_queued(&name, 1);
        let behind = Kind::Reader.of(&world.manager(), &name).locking();
        redis.wait_until_queued(&name, 2);
        assert!(behind.waits());
        ends(&leaving);
        // The first reader stays, so only the end of the writer can let the second reader in.
        behind.locked();
        behind.release();
        reader.release();
    }
}

fn readers_see_no_fence_that_writers_only_reserved(world: &World) {
    // The block has a fence for each microsecond of ten minutes. Only the unused ones that come back are not seen.
    let locks = long_quantum(world);
    let writer = Kind::Writer.of(&locks, NAME).hold();
    let next = [(); 3].map(|()| Kind::Writer.of(&locks, NAME).locking_asleep());
    let mut last = writer.locked();
    writer.release();
    for writer in next {
        assert!(writer.locked() > last);
        last = writer.locked();
        writer.release();
    }
    let lock = locks.rwlock(NAME);
    assert_eq!(lock.read().expect("it is free").fence(), last);
    let writer = lock.write().expect("it is free").fence();
    assert!(writer > last);
    // Redis drops the record at some time.
    let () = world.redis().ask(&["DEL", &fence_of(NAME)]);
    let reader = lock.read().expect("it is free").fence();
    assert!(reader > writer);
    assert!(lock.write().expect("it is free").fence() > reader);
}

fn a_downgrade_lets_readers_in_and_no_writer(world: &World) {
    let redis = world.redis();
    let [one, other, third] = [(); 3].map(|()| world.manager());
    let writer = one.rwlock(NAME).write().expect("it is free");
    let next = Kind::Writer.of(&other, NAME).locking();
    redis.wait_until_queued(NAME, 1);
    let place = redis.queue(NAME);
    let readers = [&third, &one].map(|locks| {
        let before = redis.queue(NAME).len();
        let reader = Kind::Reader.of(locks, NAME).locking();
        redis.wait_until_queued(NAME, before + 1);
        reader
    });
    // Another writer of the same process waits behind this guard.
    let local = Kind::Writer.of(&one, NAME).locking_asleep();
    let (fence, owner) = (writer.fence(), writer.owner().to_owned());
    let reader = writer.downgrade().expect("it is held");
    assert_ne!(reader.owner(), owner);
    assert_eq!((reader.fence(), reader.state()), (fence, LeaseState::Held));
    assert!(readers.iter().all(|reader| reader.locked() == fence));
    assert_eq!(redis.queue(NAME)[0], place[0]);
    assert!(next.waits() && local.waits());
    readers.into_iter().for_each(Holder::release);
    reader.release().expect("it was held until now");
    assert!(next.locked() > fence);
    next.release();
    local.locked();
}

fn a_downgraded_guard_is_renewed_until_its_own_max_hold(world: &World) {
    let locks = world.build(|it| it.quantum(LONG));
    let lock = locks.rwlock(NAME).lease(secs(6)).max_hold(Some(secs(20)));
    let writer = lock.write().expect("it is free");
    let reader = writer.downgrade().expect("it is held");
    let beside = lock.try_read().expect("it is known").expect("shared");
    assert_eq!(beside.owner(), reader.owner());
    world.pass(secs(18));
    reader.check().expect("it is renewed");
    beside.release().expect("it was held until now");
    assert_eq!(world.recv(&reader.on_lost()).cause, LostCause::MaxHold);
    world.redis().wait_until_free(Kind::Reader, NAME);
    assert_eq!(lost(reader.release()).cause, LostCause::MaxHold);
}

fn a_downgrade_that_fails_leaves_nothing_behind(world: &World) {
    let (locks, other) = (world.manager(), world.manager());
    let mut last = 0;
    for is_answered in [false, true] {
        let writer = locks.rwlock(NAME).lease(secs(1)).write();
        let writer = writer.expect("it is free");
        // Both the writer and its reader would last for ten minutes.
        writer.extend(LONG).expect("it is held");
        assert!(writer.fence() > last);
        last = writer.fence();
        if is_answered {
            world.refuse(Refused::All, "NOPERM no permissions");
            let error = writer.downgrade().expect_err("it is refused");
            assert!(matches!(error, Error::Denied { .. }), "{error:?}");
            // Longer than the lease without its extension.
            world.pass(secs(2));
            world.refuse_nothing();
        } else {
            locks.strike(LinkFault::LoseAnswers);
            let error = writer.downgrade().expect_err("no answer");
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            locks.heal();
        }
        world.redis().wait_until_free(Kind::Writer, NAME);
    }
    let next = other.rwlock(NAME).write().expect("it is free");
    assert!(next.fence() > last);
}

fn a_lost_writer_becomes_no_reader(world: &World) {
    let (one, other) = (world.manager().rwlock(NAME), world.manager().rwlock(NAME));
    // No renewal has found this loss.
    let writer = one.write().expect("it is free");
    let told = writer.on_lost();
    let () = world.redis().ask(&["DEL", NAME]);
    let between = other.write().expect("it is free");
    assert_eq!(lost(writer.downgrade()).cause, LostCause::Removed);
    assert!(told.try_recv().is_err());
    between.release().expect("it was held until now");
    // The guard has found this loss.
    let writer = one.clone().lease(secs(2)).renew(false).write();
    let writer = writer.expect("it is free");
    world.pass(secs(2));
    assert_eq!(lost(writer.downgrade()).cause, LostCause::Expired);
    drop(other.write().expect("it is free"));
    drop(one.write().expect("it is free"));
    world.redis().wait_until_free(Kind::Writer, NAME);
}
