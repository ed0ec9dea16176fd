//! Writes that a guard makes only while it holds its lock.

use std::time::Duration;

use leasehold::{Error, ErrorKind, LostCause, Reply, Write};
use leasehold_simulator::{LinkFault, Role, Topology};

use crate::matrix::Capability::Commits;
use crate::matrix::{Chapter, Subject, bodies, subject_bodies};
use crate::redis::{Redis, companions_of};
use crate::subject::{Guard, Kind, lost};
use crate::world::{Fault, Task, World, ms, secs};

pub(crate) const BODIES: Chapter = &[(
    Commits,
    bodies![
        a_holder_writes_and_gets_the_replies,
        a_commit_goes_on_while_others_wait,
        nothing_is_written_without_one_of_the_keys,
        nothing_is_written_for_the_owner_before,
        nothing_is_written_over_a_key_of_another_type,
        a_holder_that_was_paused_past_its_lease_writes_nothing,
        a_rejected_write_ends_the_commit_there,
        a_commit_that_was_cut_is_not_sent_again,
        a_late_commit_finds_no_later_guard_of_its_owner,
        a_commit_outlives_the_loss_of_the_scripts,
        what_is_no_write_of_ones_own_data_is_refused_before_a_request,
        a_commit_changes_no_lease,
        a_register_that_holders_commit_loses_no_update,
    ],
)];

pub(crate) const BODIES_OF_REPLICAS: Subject = (
    "commits",
    &[Topology::Sentinel, Topology::Cluster],
    subject_bodies![a_commit_on_too_few_replicas_is_written_and_an_error],
);

pub(crate) const BODIES_OF_A_CLUSTER: Subject = (
    "commits",
    &[Topology::Cluster],
    subject_bodies![
        a_commit_follows_its_slot,
        names_of_several_slots_have_no_commit,
        data_of_another_slot_is_refused,
    ],
);

pub(crate) const BODIES_OF_A_QUORUM: Subject = (
    "commits",
    &[Topology::Quorum],
    subject_bodies![a_quorum_has_no_commit],
);

/// Returns a key in the slot of the lock.
fn data(name: &str, what: &str) -> String {
    format!("{{{name}}}:{what}")
}

fn integer(redis: &Redis, key: &str) -> Option<i64> {
    redis.ask(&["GET", key])
}

pub(crate) fn a_holder_writes_and_gets_the_replies(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("commit"));
    let locks = world.manager();
    let (text, count, list) = (
        data(&name, "text"),
        data(&name, "count"),
        data(&name, "list"),
    );
    let guard = kind.of(&locks, &name).lock().expect("it is free");
    let binary = b"\0\r\n\xff".as_slice();
    let all = [
        Write::new("SET", &*text).arg(binary),
        Write::new("set", &*text).arg("new").arg("GET"),
        Write::new("INCR", &*count),
        Write::new("RPUSH", &*list).arg("a").arg(-7),
        Write::new("LPOP", &*list).arg(2),
        Write::new("SET", &*text).arg("never").arg("NX"),
    ];
    let replies = guard.commit(&all).expect("it is held");
    let bytes = |text: &[u8]| Reply::Bytes(text.to_vec());
    assert_eq!(
        replies,
        [
            Reply::Ok,
            bytes(binary),
            Reply::Integer(1),
            Reply::Integer(2),
            Reply::Array(vec![bytes(b"a"), bytes(b"-7")]),
            Reply::Nil,
        ]
    );
    assert_eq!(redis.ask::<String>(&["GET", &text]), "new");
    assert_eq!(integer(&redis, &count), Some(1));
    guard.release().expect("it was held until now");
}

pub(crate) fn a_commit_goes_on_while_others_wait(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("contended"));
    let (locks, count) = (world.manager(), data(&name, "count"));
    let guard = kind.of(&locks, &name).lock().expect("it is free");
    let waiter = kind.of(&world.manager(), &name).locking();
    redis.wait_until_queued(&name, 1);
    let write = [Write::new("INCR", &*count)];
    guard.commit(&write).expect("it is held");
    guard.commit(&write).expect("it is held");
    guard.release().expect("it was held until now");
    waiter.locked();
    waiter.release();
    assert_eq!(integer(&redis, &count), Some(2));
}

/// The guard still reads `Held`, so only the script can refuse it. Of several names, the last one is gone.
pub(crate) fn nothing_is_written_without_one_of_the_keys(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("deleted"));
    let (locks, count) = (world.manager(), data(&name, "count"));
    let guard = kind.of(&locks, &name).lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    let () = redis.ask(&["DEL", kind.keys(&name).last().expect("it has one")]);
    guard.check().expect("no renewal has come");
    let losses = guard.on_lost();
    let loss = lost(guard.commit(&[Write::new("INCR", &*count)]));
    assert_eq!(loss.cause, LostCause::Removed);
    // The guard knows it now, and not only after the next renewal.
    assert_eq!(lost(guard.check()).cause, LostCause::Removed);
    assert_eq!(world.recv(&losses).cause, LostCause::Removed);
    assert_eq!(integer(&redis, &count), None);
}

/// Another process has the lock, and the guard still reads `Held`.
pub(crate) fn nothing_is_written_for_the_owner_before(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("taken"));
    let (locks, count) = (world.manager(), data(&name, "count"));
    let guard = kind.of(&locks, &name).lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    for key in kind.keys(&name) {
        let () = redis.ask(&["DEL", &key]);
    }
    let other = world.manager();
    let next = kind.of(&other, &name).lock().expect("it is free");
    guard.check().expect("no renewal has come");
    let write = [Write::new("INCR", &*count)];
    let loss = lost(guard.commit(&write));
    assert!(matches!(loss.cause, LostCause::Taken | LostCause::Removed));
    assert_eq!(integer(&redis, &count), None);
    next.commit(&write).expect("it is held");
    assert_eq!(integer(&redis, &count), Some(1));
    next.release().expect("it was held until now");
}

pub(crate) fn nothing_is_written_over_a_key_of_another_type(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("list"));
    let (locks, count) = (world.manager(), data(&name, "count"));
    let guard = kind.of(&locks, &name).lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    let () = redis.ask(&["DEL", &name]);
    let () = redis.ask(&["RPUSH", &name, "x"]);
    let loss = lost(guard.commit(&[Write::new("INCR", &*count)]));
    assert_eq!(loss.cause, LostCause::Taken);
    assert_eq!(integer(&redis, &count), None);
}

pub(crate) fn a_holder_that_was_paused_past_its_lease_writes_nothing(world: &World, kind: Kind) {
    let (redis, name, lease) = (world.redis(), world.name("paused"), secs(3));
    let (locks, count) = (world.manager(), data(&name, "count"));
    let (held, goes_on) = (world.flag(), world.flag());
    let (lock, write) = (
        kind.of(&locks, &name).lease(lease),
        Write::new("SET", &*count).arg("the first holder's"),
    );
    let (tell_held, wait) = (held.clone(), goes_on.clone());
    let paused = locks.thread(move || {
        let guard = lock.lock().expect("it is free");
        tell_held.raise();
        wait.wait();
        guard.commit(&[write])
    });
    held.wait();
    locks.pause();
    let other = world.manager();
    let next = kind.of(&other, &name).lock().expect("it becomes free");
    next.commit(&[Write::new("SET", &*count).arg("new")])
        .expect("it is held");
    next.release().expect("it was held until now");
    goes_on.raise();
    locks.resume();
    lost(paused.end());
    assert_eq!(redis.ask::<String>(&["GET", &count]), "new");
}

pub(crate) fn a_rejected_write_ends_the_commit_there(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("rejected"));
    let (locks, count, list) = (world.manager(), data(&name, "count"), data(&name, "list"));
    let guard = kind.of(&locks, &name).lock().expect("it is free");
    let write = Write::new("INCR", &*count);
    let wrong = Write::new("RPUSH", &*count).arg("x");
    let after = Write::new("RPUSH", &*list).arg("x");
    let error = guard.commit(&[write.clone(), wrong.clone(), after]);
    match &error {
        Err(Error::Refused { done: 1, cause }) => {
            assert!(cause.to_string().starts_with("WRONGTYPE"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        error.map(drop).expect_err("it is one").kind(),
        ErrorKind::Refused
    );
    assert_eq!(integer(&redis, &count), Some(1));
    assert!(!redis.exists(&list));
    // The first one may be rejected too.
    let error = guard.commit(&[wrong, write]);
    assert!(
        matches!(error, Err(Error::Refused { done: 0, .. })),
        "{error:?}"
    );
    assert_eq!(integer(&redis, &count), Some(1));
    guard.release().expect("it was held until now");
}

/// The connection ends after the server has got the commit. Every other request would be sent again.
pub(crate) fn a_commit_that_was_cut_is_not_sent_again(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("cut"));
    let (locks, count) = (world.manager(), data(&name, "count"));
    let (held, goes_on) = (world.flag(), world.flag());
    let (lock, write) = (kind.of(&locks, &name), Write::new("INCR", &*count));
    let (tell_held, wait, write_key) = (held.clone(), goes_on.clone(), count.clone());
    let cut = locks.thread(move || {
        let guard = lock.lock().expect("it is free");
        // From then on the server has the script.
        let first = Write::new("DEL", write_key);
        guard.commit(&[first]).expect("it is held");
        tell_held.raise();
        wait.wait();
        let cut = guard.commit(&[write]).map_err(|error| error.kind());
        (cut, guard.check(), guard.release())
    });
    held.wait();
    locks.strike_on(Role::Pool, LinkFault::Late(ms(100)));
    goes_on.raise();
    locks.wait_until_struck_on(Role::Pool);
    locks.abandon(world.master(&name));
    let (committed, checked, released) = cut.end();
    locks.heal();
    assert_eq!(committed, Err(ErrorKind::Unavailable));
    checked.expect("a cut loses no lock");
    released.expect("it was held until now");
    assert!(locks.close(secs(30)), "something is left to send");
    assert_eq!(integer(&redis, &count), Some(1));
}

/// The commit arrives after its guard has ended, while another thread of the process has the lock.
pub(crate) fn a_late_commit_finds_no_later_guard_of_its_owner(world: &World, kind: Kind) {
    const LATE: Duration = secs(5);
    let (redis, name) = (world.redis(), world.name("late"));
    let locks = world.build(|it| it.io_timeout(secs(1)).quantum(secs(3600)));
    let text = data(&name, "text");
    let (held, goes_on) = (world.flag(), world.flag());
    let (tell_held, wait, lock) = (held.clone(), goes_on.clone(), kind.of(&locks, &name));
    let write = |value: &str| [Write::new("SET", &*text).arg(value)];
    let (first, late, next) = (write("first"), write("late"), write("next"));
    let late = locks.thread(move || {
        let guard = lock.lock().expect("it is free");
        // From then on the server has the script.
        guard.commit(&first).expect("it is held");
        tell_held.raise();
        wait.wait();
        let late = guard.commit(&late).map_err(|error| error.kind());
        guard.release().expect("it was held until now");
        late
    });
    held.wait();
    let (lock, clock) = (kind.of(&locks, &name), world.clone());
    let next = locks.thread(move || {
        let guard = lock.lock().expect("it becomes free");
        guard.commit(&next).expect("it is held");
        clock.pass(LATE * 2);
        guard.release().expect("it was held until now");
    });
    world.until("it waits", || locks.stats().waiting == 1);
    locks.strike_on(Role::Pool, LinkFault::Late(LATE));
    goes_on.raise();
    locks.wait_until_struck_on(Role::Pool);
    locks.heal();
    assert_eq!(late.end(), Err(ErrorKind::Unavailable));
    next.end();
    assert_eq!(redis.ask::<String>(&["GET", &text]), "next");
}

pub(crate) fn a_commit_outlives_the_loss_of_the_scripts(world: &World, kind: Kind) {
    let (redis, name) = (world.redis(), world.name("flushed"));
    let (locks, count) = (world.manager(), data(&name, "count"));
    let guard = kind.of(&locks, &name).lock().expect("it is free");
    for times in 1..=3 {
        let () = redis.ask(&["SCRIPT", "FLUSH"]);
        guard
            .commit(&[Write::new("INCR", &*count)])
            .expect("it is held");
        assert_eq!(integer(&redis, &count), Some(times));
    }
    guard.release().expect("it was held until now");
}

pub(crate) fn what_is_no_write_of_ones_own_data_is_refused_before_a_request(
    world: &World,
    kind: Kind,
) {
    let (redis, name) = (world.redis(), world.name("refused"));
    let (locks, own) = (world.manager(), data(&name, "own"));
    let guard = kind.of(&locks, &name).lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    let good = || Write::new("INCR", &*own);
    let many = vec![good(); 1_001];
    let huge = Write::new("SET", &*own).arg(vec![0; 1 << 20]);
    let long = |args| (0..args).fold(Write::new("RPUSH", &*own), Write::arg);
    let mut wrong = vec![
        vec![],
        many,
        vec![huge],
        vec![long(4_001)],
        vec![long(3_999); 26],
    ];
    for command in [
        "GET", "FLUSHALL", "EVAL", "MSET", "RENAME", "COPY", "SMOVE", "SORT", "PUBLISH", "SET x",
        "",
    ] {
        wrong.push(vec![good(), Write::new(command, &*own)]);
    }
    for command in ["DEL", "UNLINK"] {
        wrong.push(vec![good(), Write::new(command, &*own).arg(&name)]);
    }
    let keys = kind.keys(&name).into_iter();
    for key in keys.flat_map(|key| companions_of(&key).into_iter().chain([key.clone()])) {
        wrong.push(vec![good(), Write::new("DEL", key)]);
    }
    let before = locks.stats().requests;
    for writes in &wrong {
        match guard.commit(writes) {
            Err(Error::Config {
                option: "writes", ..
            }) => {}
            other => panic!("{writes:?}: {other:?}"),
        }
    }
    assert_eq!(locks.stats().requests, before);
    assert!(!redis.exists(&own));
    guard.release().expect("it was held until now");
}

pub(crate) fn a_commit_changes_no_lease(world: &World, kind: Kind) {
    let (redis, name, lease) = (world.redis(), world.name("lease"), secs(10));
    let (locks, count) = (world.manager(), data(&name, "count"));
    let guard = kind.of(&locks, &name).lease(lease).unrenewed().lock();
    let guard = guard.expect("it is free");
    let ends = |guard: &Guard| world.now() + guard.lease().remaining();
    let before = ends(&guard);
    world.pass(secs(6));
    guard
        .commit(&[Write::new("INCR", &*count)])
        .expect("it is held");
    let after = ends(&guard);
    assert!(after <= world.within(before) && world.within(after) >= before);
    for key in kind.keys(&name) {
        let (_, left) = redis.holders(&key)[0];
        assert!(left <= secs(4), "{left:?} are left");
    }
    guard.release().expect("it was held until now");
}

/// Each process is paused again and again for longer than its lease, between its read and its write too.
pub(crate) fn a_register_that_holders_commit_loses_no_update(world: &World, kind: Kind) {
    let (redis, name, lease) = (world.redis(), world.name("register"), secs(2));
    let register = data(&name, "register");
    let managers = [(); 3].map(|()| world.manager());
    let tasks = managers.each_ref().map(|locks| {
        let (world, redis) = (world.clone(), redis.clone());
        let (lock, register) = (kind.of(locks, &name).lease(lease), register.clone());
        locks.thread(move || {
            let mut written = 0;
            for _ in 0..8 {
                let guard = lock.lock().expect("it becomes free");
                let read = integer(&redis, &register).unwrap_or_default();
                world.pass(ms(300));
                let write = Write::new("SET", &*register).arg(read + 1);
                match guard.commit(&[write]) {
                    Ok(_) => written += 1,
                    Err(Error::Lost(_)) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
            written
        })
    });
    for round in 0..6 {
        world.pass(ms(700));
        let paused = &managers[round % 3];
        paused.pause();
        world.pass(lease + secs(1));
        paused.resume();
    }
    let written = tasks.into_iter().map(Task::end).sum();
    assert_eq!(integer(&redis, &register), Some(written));
}

const NAME: &str = "n";

fn a_commit_on_too_few_replicas_is_written_and_an_error(world: &World) {
    let redis = world.redis();
    let locks = world.build(|it| it.replicas(1).lease(secs(600)));
    let guard = locks.lock(NAME).expect("it is free");
    let count = data(NAME, "count");
    let write = [Write::new("INCR", &*count)];
    guard.commit(&write).expect("the replicas have it");
    let replicas = world.replicas(NAME);
    for replica in &replicas {
        world.fault(Fault::Lag(*replica, true));
    }
    let error = guard.commit(&write);
    assert!(
        matches!(
            error,
            Err(Error::NotReplicated {
                wanted: 1,
                confirmed: 0,
                ..
            })
        ),
        "{error:?}"
    );
    assert_eq!(integer(&redis, &count), Some(2));
    guard.check().expect("it is held");
    for replica in &replicas {
        world.fault(Fault::Lag(*replica, false));
    }
    guard.release().expect("it was held until now");
}

fn a_commit_follows_its_slot(world: &World) {
    let (redis, locks) = (world.redis(), world.manager());
    let (old, count) = (world.master(NAME), data(NAME, "count"));
    let guard = locks.mutex(NAME).lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    let mut done = 0;
    let mut commit = || match guard.commit(&[Write::new("INCR", &*count)]) {
        Ok(_) => done += 1,
        // The keys are at two masters, so that no script has them all.
        Err(Error::Unavailable { .. }) => {}
        Err(error) => panic!("{error:?}"),
    };
    commit();
    world.fault(Fault::MoveSlot(NAME, secs(4)));
    while world.master(NAME) == old {
        commit();
        world.pass(ms(100));
    }
    commit();
    assert!(done >= 2);
    let read = || redis.try_ask::<i64>(&["GET", &count]).ok();
    world.until("the key has moved", || read().is_some());
    assert_eq!(read(), Some(done));
    guard.release().expect("it was held until now");
}

fn names_of_several_slots_have_no_commit(world: &World) {
    let locks = world.manager();
    let guard = locks.multi(["a", "b"]).lock().expect("they are free");
    let error = guard.commit(&[Write::new("INCR", "{a}:count")]);
    assert!(matches!(error, Err(Error::Unsupported { .. })), "{error:?}");
    assert!(!world.redis().exists("{a}:count"));
}

fn data_of_another_slot_is_refused(world: &World) {
    let guard = world.manager().lock(NAME).expect("it is free");
    let error = guard.commit(&[Write::new("INCR", "elsewhere")]);
    let error = error.expect_err("it has another slot").to_string();
    assert!(error.contains("\"elsewhere\" is in slot 6140"), "{error}");
    assert!(error.contains("\"n\" in slot 3432"), "{error}");
    assert!(!world.redis().exists("elsewhere"));
}

fn a_quorum_has_no_commit(world: &World) {
    let locks = world.manager();
    let guard = locks.mutex(NAME).lease(secs(600)).lock();
    let guard = guard.expect("it is free");
    let error = guard.commit(&[Write::new("INCR", "{n}:count")]);
    assert!(matches!(error, Err(Error::Unsupported { .. })), "{error:?}");
    assert!(!world.redis().exists("{n}:count"));
    guard.release().expect("it was held until now");
}
