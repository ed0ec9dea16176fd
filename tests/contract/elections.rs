//! Leaders, and who observes them.

use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};
use leasehold::{Election, Error, Leader, Leadership, LostCause};
use leasehold_simulator::{LinkFault, Refused, Topology};

use crate::failovers::{KNOWN, fail_over_without};
use crate::matrix::{Subject, subject_bodies};
use crate::redis::leader_of;
use crate::subject::{Kind, lost};
use crate::world::{Fault, Flag, Locks, Task, World, ms, secs};

const ALL: &[Topology] = &[
    Topology::Single,
    Topology::Sentinel,
    Topology::Cluster,
    Topology::Quorum,
];

pub(crate) const BODIES: Subject = (
    "elections",
    ALL,
    subject_bodies![
        a_leader_is_shown_with_its_value_until_it_resigns,
        candidates_lead_one_after_another,
        an_observer_sees_each_change_at_once,
        a_slow_receiver_gets_only_the_latest_state,
        a_name_that_nobody_observes_any_more_is_not_read,
        a_name_costs_one_request_a_second_however_many_observe,
        a_leader_that_dies_is_shown_until_its_lease_is_over,
        a_candidate_that_dies_before_its_value_is_never_shown,
        the_value_of_an_earlier_leader_is_nobodys,
        a_leader_that_was_paused_past_its_lease_writes_nothing,
        nothing_is_written_without_the_lock,
        a_value_whose_request_was_lost_is_written_later,
        a_late_value_replaces_no_later_one,
        a_leader_that_cannot_take_its_value_back_releases_all_the_same,
        a_leader_that_is_dropped_in_the_background_blocks_for_nothing,
        an_observer_that_is_cut_off_is_shown_nobody_from_the_end_of_the_lease,
        a_leader_that_is_cut_off_is_shown_no_other_after_its_lease,
        threads_of_one_process_lead_under_owners_of_their_own,
        a_value_is_kept_for_as_long_as_it_is_led_and_then_for_a_day,
        a_closed_manager_ends_its_receivers_and_keeps_its_leader,
        what_is_no_value_is_refused_before_a_request,
        the_key_of_another_kind_is_an_error,
        a_short_lease_is_shown_without_gaps,
        a_leader_whose_lock_is_kept_is_not_shown,
        a_name_with_spaces_and_tags_is_told_by_message,
        a_name_that_has_another_kind_for_a_while_is_shown_again,
    ],
);

pub(crate) const BODIES_OF_ONE: Subject = (
    "elections",
    &[Topology::Single],
    subject_bodies![
        a_server_that_restarts_empty_has_no_leader,
        a_smaller_fence_is_shown_when_a_second_read_confirms_it,
        all_names_are_read_in_turn_on_a_slow_link,
        at_most_64_processes_are_told_by_a_message,
        a_user_who_may_only_read_observes,
        a_value_that_the_server_refuses_releases_the_lock,
        a_value_whose_answer_was_lost_is_written_once,
    ],
);

pub(crate) const BODIES_OF_REPLICAS: Subject = (
    "elections",
    &[Topology::Sentinel, Topology::Cluster],
    subject_bodies![
        a_value_that_a_failover_loses_comes_back,
        a_leader_whose_lock_a_failover_loses_is_not_shown,
        a_value_on_too_few_replicas_is_an_error_and_no_leader,
    ],
);

pub(crate) const BODIES_OF_A_CLUSTER: Subject = (
    "elections",
    &[Topology::Cluster],
    subject_bodies![a_leader_outlives_the_move_of_its_slot],
);

pub(crate) const BODIES_OF_A_QUORUM: Subject = (
    "elections",
    &[Topology::Quorum],
    subject_bodies![
        a_value_outlives_the_restart_of_each_node,
        a_node_that_hangs_delays_no_resignation,
        the_last_value_counts_at_whatever_node_it_is,
        a_minority_of_the_nodes_shows_nobody,
        a_leader_is_still_shown_if_the_nodes_that_answer_differ,
    ],
);

const NAME: &str = "n";
/// So long that no lease ends in a body.
const LONG: Duration = secs(600);
/// By when an observer has a message.
const TOLD: Duration = ms(100);

/// Returns the election as this process sees it.
fn election(locks: &Locks) -> Election {
    locks.election(NAME)
}

#[track_caller]
fn leads(election: &Election, value: &str) -> Leadership {
    let leadership = election.try_campaign(value).expect("Redis replies");
    leadership.expect("nobody leads")
}

#[track_caller]
fn led_by(election: &Election) -> Option<String> {
    let leader = election.leader().expect("Redis replies");
    leader.map(|leader| leader.value)
}

/// Campaigns on a thread, and resigns when the flag is raised. Returns the fence.
fn campaigning(locks: &Locks, candidate: Election, value: &str, goes_on: &Flag) -> Task<u64> {
    let (value, wait) = (value.to_owned(), goes_on.clone());
    locks.thread(move || {
        let leadership = candidate.campaign(&value).expect("Redis replies");
        wait.wait();
        let fence = leadership.fence();
        leadership.resign().expect("it leads");
        fence
    })
}

/// Leads on a thread of its process until the flag is raised. Returns what `then` makes of it.
fn leading<T: Send + 'static>(
    locks: &Locks,
    candidate: Election,
    then: impl FnOnce(Leadership) -> T + Send + 'static,
) -> (Flag, Task<T>) {
    let (leads, goes_on) = (locks.world().flag(), locks.world().flag());
    let (tell, wait) = (leads.clone(), goes_on.clone());
    let task = locks.thread(move || {
        let leadership = candidate.campaign("one").expect("Redis replies");
        tell.raise();
        wait.wait();
        then(leadership)
    });
    leads.wait();
    (goes_on, task)
}

/// Leads in a process, and observes that from another one. Returns what kills the first process, and the observer.
fn led_until_killed(
    world: &World,
    lease: Duration,
) -> (impl FnOnce(), Election, Receiver<Option<Leader>>) {
    let (locks, observer) = (world.manager(), election(&world.manager()));
    let (goes_on, _task) = leading(&locks, election(&locks).lease(lease), drop);
    let seen = observer.observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    let kill = move || {
        locks.kill();
        goes_on.raise();
    };
    (kill, observer, seen)
}

/// Returns the next state that is received.
#[track_caller]
fn next(world: &World, from: &Receiver<Option<Leader>>) -> Option<String> {
    world.recv(from).map(|leader| leader.value)
}

fn since(world: &World, begun: Duration) -> Duration {
    world.now().saturating_sub(begun)
}

#[expect(clippy::unnecessary_wraps, reason = "it is compared with an option")]
fn some(value: &str) -> Option<String> {
    Some(value.to_owned())
}

fn a_leader_is_shown_with_its_value_until_it_resigns(world: &World) {
    let (one, other) = (world.manager(), world.manager());
    let (one, other) = (election(&one), election(&other));
    assert_eq!(led_by(&one), None);
    let before = world.time_of_day();
    let mut leadership = leads(&one, "10.0.0.1:80");
    assert_eq!(leadership.name(), NAME);
    for election in [&one, &other] {
        let leader = election.leader().expect("Redis replies");
        let leader = leader.expect("it leads");
        assert_eq!(
            (&*leader.value, leader.fence),
            ("10.0.0.1:80", leadership.fence())
        );
        assert!(leader.since + secs(1) >= before && leader.since <= before + secs(10));
    }
    assert!(other.try_campaign("x").expect("Redis replies").is_none());
    leadership.proclaim("10.0.0.1:81").expect("it leads");
    assert_eq!(led_by(&other), some("10.0.0.1:81"));
    leadership.resign().expect("it leads");
    assert_eq!(led_by(&other), None);
    let fence = {
        let leadership = leads(&other, "");
        assert_eq!(led_by(&one), some(""));
        leadership.fence()
    };
    assert_eq!(led_by(&one), None);
    let longest = "x".repeat(200);
    let leadership = leads(&one, &longest);
    assert!(leadership.fence() > fence);
    assert_eq!(led_by(&other), Some(longest));
    drop(leadership);
    world.redis().wait_until_free(Kind::Mutex, NAME);
}

/// In the order in which they asked, but on a quorum, whose nodes may have it in different orders.
fn candidates_lead_one_after_another(world: &World) {
    let hosts = [(); 3].map(|()| world.manager());
    let first = leads(&election(&hosts[0]), "0");
    let mut waiting = Vec::new();
    for (number, locks) in [(1, &hosts[1]), (2, &hosts[2]), (3, &hosts[0])] {
        let (candidate, goes_on) = (election(locks).lease(secs(20)), world.flag());
        let task = campaigning(locks, candidate, &number.to_string(), &goes_on);
        waiting.push((Some(number.to_string()), goes_on, task));
        world.redis().wait_until_queued(NAME, waiting.len().min(2));
        world.pass(ms(100));
    }
    let observer = election(&world.manager());
    let mut fence = first.fence();
    first.resign().expect("it leads");
    while !waiting.is_empty() {
        let mut place = 0;
        world.until("the next one leads", || {
            let leader = led_by(&observer);
            let found = waiting.iter().position(|(value, ..)| leader == *value);
            found.inspect(|found| place = *found).is_some()
        });
        assert!(place == 0 || world.topology() == Topology::Quorum);
        let (_, goes_on, task) = waiting.remove(place);
        goes_on.raise();
        let next = task.end();
        assert!(next > fence);
        fence = next;
    }
    assert_eq!(led_by(&observer), None);
}

fn an_observer_sees_each_change_at_once(world: &World) {
    let (one, other) = (world.manager(), world.manager());
    let observer = election(&world.manager());
    let seen = observer.observe().expect("Redis replies");
    assert_eq!(next(world, &seen), None);
    world.pass(secs(2));
    let within = |expected: Option<String>| {
        let begun = world.now();
        assert_eq!(next(world, &seen), expected);
        let took = since(world, begun);
        assert!(took <= TOLD, "{expected:?} took {took:?}");
    };
    let mut leadership = leads(&election(&one), "one");
    within(some("one"));
    world.pass(secs(3));
    leadership.proclaim("uno").expect("it leads");
    within(some("uno"));
    let (candidate, goes_on) = (election(&other), world.flag());
    let wait = goes_on.clone();
    let task = other.thread(move || {
        let leadership = candidate.campaign("two").expect("Redis replies");
        wait.wait();
        drop(leadership);
    });
    world.redis().wait_until_queued(NAME, 1);
    world.pass(secs(3));
    assert_eq!(seen.try_recv(), Err(TryRecvError::Empty));
    let begun = world.now();
    leadership.resign().expect("it leads");
    let mut state = next(world, &seen);
    if state.is_none() {
        state = next(world, &seen);
    }
    assert_eq!(state, some("two"));
    let took = since(world, begun);
    assert!(took <= world.granted_by(TOLD), "{took:?}");
    goes_on.raise();
    task.end();
    within(None);
}

fn a_slow_receiver_gets_only_the_latest_state(world: &World) {
    let (locks, observer) = (world.manager(), world.manager());
    let mut leadership = leads(&election(&locks), "0");
    let seen = election(&observer).observe().expect("Redis replies");
    let slow = election(&observer).observe().expect("Redis replies");
    for number in 1..=5 {
        let value = number.to_string();
        leadership.proclaim(&value).expect("it leads");
        // The other receiver shows when the thread has read it.
        world.until("it is read", || next(world, &seen) == Some(value.clone()));
        world.pass(secs(2));
    }
    assert_eq!(next(world, &slow), some("5"));
    world.pass(secs(2));
    assert_eq!(slow.try_recv(), Err(TryRecvError::Empty));
    // One that is slower still may get an older state first.
    world.pass(secs(60));
    leadership.proclaim("6").expect("it leads");
    world.pass(secs(60));
    world.until("the latest comes", || next(world, &slow) == some("6"));
}

/// A receiver that is dropped is noticed within a minute, although nothing changes.
fn a_name_that_nobody_observes_any_more_is_not_read(world: &World) {
    let (locks, observer) = (world.manager(), world.manager());
    let _leadership = leads(&election(&locks), "one");
    let all: Vec<_> = (0..3)
        .map(|_| election(&observer).observe().expect("Redis replies"))
        .collect();
    for seen in &all[1..] {
        assert_eq!(next(world, seen), some("one"));
    }
    drop(all);
    world.pass(secs(65));
    let before = observer.stats().requests;
    world.pass(secs(60));
    assert_eq!(observer.stats().requests, before);
    let seen = election(&observer).observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
}

fn a_name_costs_one_request_a_second_however_many_observe(world: &World) {
    let (locks, observer) = (world.manager(), world.manager());
    let _leadership = leads(&election(&locks), "one");
    let all: Vec<_> = (0..20)
        .map(|_| election(&observer).observe().expect("Redis replies"))
        .collect();
    world.pass(secs(2));
    let before = observer.stats().requests;
    world.pass(secs(100));
    let sent = observer.stats().requests - before;
    assert!((95..=101).contains(&sent), "{sent}");
    for seen in &all {
        assert_eq!(next(world, seen), some("one"));
    }
}

fn a_leader_that_dies_is_shown_until_its_lease_is_over(world: &World) {
    const LEASE: Duration = secs(6);
    let (other, (kill, observer, seen)) = (world.manager(), led_until_killed(world, LEASE));
    world.pass(secs(10));
    let begun = world.now();
    kill();
    assert_eq!(led_by(&observer), some("one"));
    assert_eq!(next(world, &seen), None);
    let took = since(world, begun);
    assert!(
        took > LEASE / 2 && took <= world.within(LEASE + secs(1)),
        "{took:?}"
    );
    let leadership = election(&other).campaign("two").expect("Redis replies");
    assert_eq!(next(world, &seen), some("two"));
    drop(leadership);
}

fn a_candidate_that_dies_before_its_value_is_never_shown(world: &World) {
    let (locks, observer) = (world.manager(), election(&world.manager()));
    let redis = world.redis();
    let first = leads(&election(&world.manager()), "one");
    let seen = observer.observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    let owner = first.owner().to_owned();
    let candidate = election(&locks).lease(secs(6));
    let _task = locks.thread(move || drop(candidate.campaign("two")));
    redis.wait_until_queued(NAME, 1);
    locks.strike(LinkFault::Late(ms(300)));
    first.resign().expect("it leads");
    let is_next = |holder: Option<(String, Duration)>| holder.is_some_and(|(it, _)| it != owner);
    world.until("it has the lock", || is_next(redis.holders(NAME).pop()));
    locks.kill();
    assert_eq!(led_by(&observer), None);
    assert_eq!(next(world, &seen), None);
    assert!(observer.try_campaign("x").expect("Redis replies").is_none());
    let leadership = observer.campaign("three").expect("Redis replies");
    assert_eq!(next(world, &seen), some("three"));
    drop(leadership);
}

/// Another use of the same lock is no leader, whatever stands beside it.
fn the_value_of_an_earlier_leader_is_nobodys(world: &World) {
    let (locks, other) = (world.manager(), world.manager());
    let (goes_on, _task) = leading(&locks, election(&locks).lease(secs(6)), drop);
    locks.kill();
    goes_on.raise();
    let guard = other.lock(NAME).expect("Redis replies");
    assert!(world.redis().exists(&leader_of(NAME)));
    assert_eq!(led_by(&election(&other)), None);
    let seen = election(&other).observe().expect("Redis replies");
    assert_eq!(next(world, &seen), None);
    drop(guard);
    let leadership = leads(&election(&other), "two");
    assert_eq!(next(world, &seen), some("two"));
    drop(leadership);
}

fn a_leader_that_was_paused_past_its_lease_writes_nothing(world: &World) {
    let (locks, other) = (world.manager(), election(&world.manager()));
    let late = |mut leadership: Leadership| {
        let proclaimed = leadership.proclaim("late");
        (proclaimed, leadership.resign())
    };
    let (goes_on, task) = leading(&locks, election(&locks).lease(secs(3)), late);
    let seen = other.observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    locks.pause();
    let leadership = other.campaign("two").expect("Redis replies");
    world.until("it is shown", || next(world, &seen) == some("two"));
    goes_on.raise();
    locks.resume();
    let (proclaimed, resigned) = task.end();
    assert_eq!(lost(proclaimed).cause, LostCause::Expired);
    lost(resigned);
    world.pass(secs(12));
    assert_eq!(led_by(&other), some("two"));
    assert_eq!(seen.try_recv(), Err(TryRecvError::Empty));
    leadership.resign().expect("it leads");
    assert_eq!(led_by(&other), None);
}

/// The guard still reads `Held`, so only the script can refuse it.
fn nothing_is_written_without_the_lock(world: &World) {
    let (redis, one, other) = (world.redis(), world.manager(), world.manager());
    let (one, other) = (election(&one), election(&other));
    for is_taken in [false, true] {
        let mut leadership = leads(&one.clone().lease(secs(50)), "one");
        let losses = leadership.on_lost();
        let () = redis.ask(&["DEL", NAME]);
        let next = is_taken.then(|| leads(&other, "two"));
        leadership.check().expect("no renewal has come");
        let cause = if is_taken {
            LostCause::Taken
        } else {
            LostCause::Removed
        };
        assert_eq!(lost(leadership.proclaim("late")).cause, cause);
        assert_eq!(world.recv(&losses).cause, cause);
        assert_eq!(led_by(&other), next.as_ref().and(some("two")));
        lost(leadership.resign());
        drop(next);
        redis.wait_until_free(Kind::Mutex, NAME);
    }
}

/// The library repeats it, because the caller may not.
fn a_value_whose_request_was_lost_is_written_later(world: &World) {
    let locks = world.build(|it| it.io_timeout(secs(1)));
    let proclaims = |mut leadership: Leadership| {
        let error = leadership.proclaim("two").expect_err("nobody answers");
        (error, leadership)
    };
    let (goes_on, task) = leading(
        &locks,
        election(&locks).lease(LONG.min(secs(50))),
        proclaims,
    );
    let observer = election(&world.manager());
    locks.strike(LinkFault::LoseAll);
    goes_on.raise();
    let (error, leadership) = task.end();
    assert!(error.is_retryable(), "{error:?}");
    assert_eq!(led_by(&observer), some("one"));
    locks.heal();
    let begun = world.now();
    world.until("it is written", || led_by(&observer) == some("two"));
    assert!(world.now() <= world.within(begun + secs(12)));
    leadership.resign().expect("it leads");
    assert_eq!(led_by(&observer), None);
}

/// The caller gives up on one value, proclaims another, and resigns. Then the first value arrives.
fn a_late_value_replaces_no_later_one(world: &World) {
    const LATE: Duration = secs(5);
    for ends in [false, true] {
        let (locks, observer) = (world.build(|it| it.io_timeout(secs(1))), world.manager());
        let (is_struck, is_late) = (world.flag(), world.flag());
        let (struck, late, clock) = (is_struck.clone(), is_late.clone(), world.clone());
        let proclaims = move |mut leadership: Leadership| {
            leadership.proclaim("late").expect_err("nobody answers");
            late.raise();
            struck.wait();
            // On a quorum, nodes that did not answer are down for a moment.
            clock.until("it is written", || leadership.proclaim("next").is_ok());
            leadership
        };
        let candidate = election(&locks).lease(secs(50));
        let (goes_on, task) = leading(&locks, candidate, proclaims);
        locks.strike(LinkFault::Late(LATE));
        goes_on.raise();
        locks.wait_until_struck();
        is_late.wait();
        locks.heal();
        is_struck.raise();
        let leadership = task.end();
        let observer = election(&observer);
        assert_eq!(led_by(&observer), some("next"));
        let leadership = if ends {
            leadership.resign().expect("it leads");
            None
        } else {
            Some(leadership)
        };
        // Before the value is written again, which would hide it.
        world.pass(LATE);
        assert_eq!(led_by(&observer), leadership.as_ref().and(some("next")));
    }
}

fn a_leader_that_cannot_take_its_value_back_releases_all_the_same(world: &World) {
    let locks = world.build(|it| it.io_timeout(secs(1)));
    let observer = election(&world.manager());
    let (goes_on, task) = leading(&locks, election(&locks).lease(secs(50)), |leadership| {
        leadership.resign().map_err(|error| error.kind())
    });
    let seen = observer.observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    // The renewal thread repeats the release.
    locks.strike(LinkFault::LoseAll);
    goes_on.raise();
    task.end().expect_err("nobody answers");
    locks.heal();
    let healed = world.now();
    let leadership = observer.campaign("two").expect("Redis replies");
    assert!(world.now() <= world.within(healed + secs(4)));
    world.until("it is shown", || next(world, &seen) == some("two"));
    drop(leadership);
}

fn a_leader_that_is_dropped_in_the_background_blocks_for_nothing(world: &World) {
    let locks = world.build(|it| it.background_release(true));
    let observer = election(&world.manager());
    let seen = observer.observe().expect("Redis replies");
    for resigns in [false, true] {
        let leadership = leads(&election(&locks), "one");
        world.until("it is shown", || next(world, &seen) == some("one"));
        world.pass(secs(1));
        world.pause_servers();
        let begun = world.now();
        if resigns {
            world.resume_servers();
            leadership.resign().expect("it leads");
            assert_eq!(next(world, &seen), None);
            assert!(since(world, begun) <= TOLD);
        } else {
            drop(leadership);
            assert!(world.now() <= world.promptly(begun));
            world.resume_servers();
            assert_eq!(next(world, &seen), None);
            assert!(since(world, begun) <= world.within(secs(1)));
        }
    }
}

fn an_observer_that_is_cut_off_is_shown_nobody_from_the_end_of_the_lease(world: &World) {
    const LEASE: Duration = secs(9);
    let (locks, cut) = (world.manager(), world.build(|it| it.io_timeout(secs(3))));
    let leadership = leads(&election(&locks).lease(LEASE), "one");
    let seen = election(&cut).observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    world.pass(secs(5));
    for fault in [LinkFault::LoseAll, LinkFault::Close] {
        let begun = world.now();
        cut.strike(fault);
        assert_eq!(next(world, &seen), None);
        let took = since(world, begun);
        assert!(took <= world.within(LEASE) && took > LEASE / 2, "{took:?}");
        world.pass(secs(20));
        assert_eq!(seen.try_recv(), Err(TryRecvError::Empty));
        cut.heal();
        let healed = world.now();
        assert_eq!(next(world, &seen), some("one"));
        assert!(world.now() <= world.within(healed + secs(5)));
        world.pass(secs(15));
    }
    drop(leadership);
    assert_eq!(next(world, &seen), None);
}

/// The thread that tells its observers also writes the values of its own leaders, which takes until a time limit here.
fn a_leader_that_is_cut_off_is_shown_no_other_after_its_lease(world: &World) {
    const LEASE: Duration = secs(9);
    for offset in 0..12 {
        let (locks, cut) = (world.manager(), world.build(|it| it.io_timeout(secs(5))));
        let leadership = leads(&election(&locks).lease(LEASE), "one");
        let own: Vec<_> = (0..3)
            .map(|number| cut.election(format!("own{number}")).lease(LONG))
            .map(|own| leads(&own, "own"))
            .collect();
        let seen = election(&cut).observe().expect("Redis replies");
        assert_eq!(next(world, &seen), some("one"));
        world.pass(secs(offset));
        let begun = world.now();
        cut.strike(LinkFault::LoseAll);
        assert_eq!(next(world, &seen), None);
        let took = since(world, begun);
        assert!(took <= world.within(LEASE), "{offset}: {took:?}");
        cut.heal();
        assert_eq!(next(world, &seen), some("one"));
        drop((leadership, own));
        world.redis().wait_until_free(Kind::Mutex, NAME);
    }
}

/// So that what one has written is never the other's. A thread that is granted the lock while others wait has fences for those too.
fn threads_of_one_process_lead_under_owners_of_their_own(world: &World) {
    let locks = world.build(|it| it.quantum(secs(3600)));
    let first = leads(&election(&locks), "first");
    let waiting: Vec<_> = (0..3)
        .map(|number: usize| {
            let (candidate, clock) = (election(&locks), world.clone());
            let task = locks.thread(move || {
                let leadership = candidate.campaign(&number.to_string());
                let leadership = leadership.expect("Redis replies");
                clock.pass(ms(100));
                let owner = leadership.owner().to_owned();
                leadership.resign().expect("it leads");
                owner
            });
            world.until("it waits", || locks.stats().waiting > number as u64);
            task
        })
        .collect();
    let mut owners = std::collections::BTreeSet::from([first.owner().to_owned()]);
    first.resign().expect("it leads");
    owners.extend(waiting.into_iter().map(Task::end));
    assert_eq!(owners.len(), 4);
}

fn a_value_is_kept_for_as_long_as_it_is_led_and_then_for_a_day(world: &World) {
    const DAY: Duration = secs(24 * 60 * 60);
    let (locks, redis) = (world.manager(), world.redis());
    let observer = election(&world.manager());
    let leadership = leads(&election(&locks), "one");
    let () = redis.ask(&["PEXPIRE", &leader_of(NAME), "30000"]);
    world.pass(secs(60));
    assert_eq!(led_by(&observer), some("one"));
    drop(leadership);
    assert_eq!(led_by(&observer), None);
    // Those that observe keep neither it nor a name that nobody has led.
    let locks = world.manager();
    let seen = [NAME, "other"].map(|name| locks.election(name).observe());
    world.pass(secs(600));
    let left = redis.ttl(&leader_of(NAME)).expect("it ends");
    assert!(
        left + secs(660) > DAY && left + secs(600) <= DAY,
        "{left:?}"
    );
    let left = redis.ttl(&leader_of("other")).expect("it ends");
    assert!(left <= secs(15), "{left:?}");
    drop(seen);
}

fn a_closed_manager_ends_its_receivers_and_keeps_its_leader(world: &World) {
    let (locks, observer) = (world.manager(), election(&world.manager()));
    let mut leadership = leads(&election(&locks), "one");
    let seen = election(&locks).observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    assert!(locks.close(secs(1)));
    assert!(world.recv_or_end(&seen).is_none());
    let is_closed = |error| matches!(error, Err(Error::Closed));
    let closed = election(&locks);
    assert!(is_closed(closed.observe().map(drop)));
    assert!(is_closed(closed.leader().map(drop)));
    assert!(is_closed(closed.try_campaign("x").map(drop)));
    world.pass(secs(60));
    leadership.proclaim("two").expect("it leads");
    assert_eq!(led_by(&observer), some("two"));
    drop(leadership);
    assert_eq!(led_by(&observer), None);
}

fn what_is_no_value_is_refused_before_a_request(world: &World) {
    let locks = world.manager();
    let before = locks.stats().requests;
    let (it, long) = (election(&locks), "x".repeat(201));
    let hasty = it.clone().lease(ms(9));
    for (option, outcome) in [
        ("value", it.campaign(&long).map(drop)),
        ("value", it.try_campaign(&long).map(drop)),
        ("value", it.campaign_for(&long, secs(1)).map(drop)),
        ("lease", hasty.campaign("x").map(drop)),
        ("lease", hasty.try_campaign("x").map(drop)),
    ] {
        match outcome {
            Err(Error::Config { option: of, .. }) => assert_eq!(of, option),
            other => panic!("{option}: {other:?}"),
        }
    }
    let is_invalid = |error| matches!(error, Err(Error::InvalidName { .. }));
    let invalid = locks.election("x:lh:leader");
    assert!(is_invalid(invalid.campaign("x").map(drop)));
    assert!(is_invalid(invalid.leader().map(drop)));
    assert!(is_invalid(invalid.observe().map(drop)));
    let stop = leasehold::Cancel::new();
    stop.cancel();
    let cancelled = it.cancel_with(&stop).campaign("x").map(drop);
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    assert_eq!(locks.stats().requests, before);
    let mut leadership = leads(&election(&locks), "x");
    let before = locks.stats().requests;
    let outcome = leadership.proclaim(&long);
    assert!(matches!(
        outcome,
        Err(Error::Config {
            option: "value",
            ..
        })
    ));
    assert_eq!(locks.stats().requests, before);
}

fn the_key_of_another_kind_is_an_error(world: &World) {
    let locks = world.manager();
    let it = election(&locks);
    let guard = locks.rwlock(NAME).read().expect("it is free");
    let is_wrong = |error: leasehold::Result<()>| match error {
        Err(Error::WrongType { .. }) => {}
        other => panic!("{other:?}"),
    };
    is_wrong(it.leader().map(drop));
    is_wrong(it.observe().map(drop));
    drop(guard);
    world.redis().wait_until_free(Kind::Reader, NAME);
    // A value beside the lock that is none.
    let redis = world.redis();
    let () = redis.ask(&["SET", &leader_of(NAME), "x"]);
    is_wrong(it.leader().map(drop));
    is_wrong(it.try_campaign("x").map(drop));
    redis.wait_until_free(Kind::Mutex, NAME);
}

/// It is read more often, so that what is read outlasts the time until the next read.
fn a_short_lease_is_shown_without_gaps(world: &World) {
    let (locks, observer) = (world.manager(), election(&world.manager()));
    let leadership = leads(&election(&locks).lease(ms(600)), "one");
    let seen = observer.observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    world.pass(secs(20));
    assert_eq!(seen.try_recv(), Err(TryRecvError::Empty));
    drop(leadership);
    assert_eq!(next(world, &seen), None);
}

/// By `min_hold`. Its owner has ended all the same.
fn a_leader_whose_lock_is_kept_is_not_shown(world: &World) {
    let (locks, observer) = (world.build(|it| it.min_hold(secs(30))), world.manager());
    let observer = election(&observer);
    let seen = observer.observe().expect("Redis replies");
    assert_eq!(next(world, &seen), None);
    let leadership = leads(&election(&locks), "one");
    assert_eq!(next(world, &seen), some("one"));
    leadership.resign().expect("it leads");
    let begun = world.now();
    assert_eq!(next(world, &seen), None);
    assert!(since(world, begun) <= TOLD);
    world.pass(secs(10));
    assert_eq!(led_by(&observer), None);
    assert!(
        observer
            .try_campaign("two")
            .expect("Redis replies")
            .is_none()
    );
    assert_eq!(seen.try_recv(), Err(TryRecvError::Empty));
}

fn a_name_with_spaces_and_tags_is_told_by_message(world: &World) {
    for (prefix, name) in [
        ("", "a b  c"),
        ("app 1:", "a{b}c d"),
        ("p{q}:", "leader 1.2 n"),
    ] {
        let [one, other] = [(); 2].map(|()| world.build(|it| it.prefix(prefix)));
        let seen = other.election(name).observe().expect("Redis replies");
        assert_eq!(next(world, &seen), None);
        world.pass(secs(2));
        let begun = world.now();
        let leadership = leads(&one.election(name), name);
        assert_eq!(next(world, &seen), some(name));
        assert!(since(world, begun) <= TOLD, "{prefix}{name}");
        drop(leadership);
    }
}

fn a_name_that_has_another_kind_for_a_while_is_shown_again(world: &World) {
    let (locks, observer) = (world.manager(), world.manager());
    let seen = election(&observer).observe().expect("Redis replies");
    assert_eq!(next(world, &seen), None);
    let guard = locks.rwlock(NAME).read().expect("it is free");
    world.pass(secs(20));
    assert_eq!(seen.try_recv(), Err(TryRecvError::Empty));
    drop(guard);
    world.redis().wait_until_free(Kind::Reader, NAME);
    let begun = world.now();
    let leadership = leads(&election(&locks), "one");
    assert_eq!(next(world, &seen), some("one"));
    assert!(world.now() <= world.within(begun + secs(1)));
    drop(leadership);
}

fn a_server_that_restarts_empty_has_no_leader(world: &World) {
    let (locks, observer) = (world.manager(), election(&world.manager()));
    let leadership = leads(&election(&locks), "one");
    let seen = observer.observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    world.pass(secs(3));
    world.restart_servers_empty();
    assert_eq!(next(world, &seen), None);
    let second = observer.campaign("two").expect("Redis replies");
    assert_eq!(next(world, &seen), some("two"));
    world.until("it is lost", || leadership.check().is_err());
    drop(leadership);
    world.pass(secs(11));
    assert_eq!(led_by(&observer), some("two"));
    drop(second);
}

/// The server has lost its data, and its clock is set back.
fn a_smaller_fence_is_shown_when_a_second_read_confirms_it(world: &World) {
    const LEASE: Duration = secs(6);
    let (other, (kill, observer, seen)) = (world.manager(), led_until_killed(world, LEASE));
    kill();
    world.restart_servers_empty();
    world.set_clock_back(secs(3600));
    assert_eq!(next(world, &seen), None);
    let leadership = leads(&election(&other).lease(LEASE), "two");
    let begun = world.now();
    assert_eq!(led_by(&observer), some("two"));
    assert_eq!(next(world, &seen), some("two"));
    let took = since(world, begun);
    assert!(
        took >= LEASE / 2 && took <= world.within(LEASE + secs(1)),
        "{took:?}"
    );
    // From then on this fence is the last one.
    drop(leadership);
    assert_eq!(next(world, &seen), None);
    let _leadership = leads(&election(&other), "three");
    let begun = world.now();
    assert_eq!(next(world, &seen), some("three"));
    assert!(since(world, begun) <= TOLD);
}

/// One read after another of all the names takes longer than the second after which the first name is due again.
fn all_names_are_read_in_turn_on_a_slow_link(world: &World) {
    let (locks, observer) = (world.manager(), world.manager());
    let names: Vec<_> = (0..30).map(|number| format!("n{number:02}")).collect();
    let all: Vec<_> = names
        .iter()
        .map(|name| observer.election(name).observe().expect("Redis replies"))
        .collect();
    observer.strike(LinkFault::Late(ms(22)));
    world.pass(secs(3));
    let led: Vec<_> = names
        .iter()
        .map(|name| leads(&locks.election(name), name))
        .collect();
    let begun = world.now();
    for (name, seen) in names.iter().zip(&all) {
        world.until("it is shown", || next(world, seen).as_ref() == Some(name));
    }
    let took = since(world, begun);
    assert!(took <= secs(4), "{took:?}");
    drop(led);
}

fn at_most_64_processes_are_told_by_a_message(world: &World) {
    let observers: Vec<_> = (0..70).map(|_| world.manager()).collect();
    let seen: Vec<_> = observers
        .iter()
        .map(|locks| election(locks).observe().expect("Redis replies"))
        .collect();
    for seen in &seen {
        assert_eq!(next(world, seen), None);
    }
    world.pass(secs(3));
    let told = || {
        let told = world
            .redis()
            .ask::<String>(&["HGET", &leader_of(NAME), "observers"]);
        told.split(' ').count() / 2
    };
    assert_eq!(told(), 64);
    // The others have just read the name, so they read it again in almost a second.
    let leader = world.manager();
    let before = observers[69].stats().requests;
    world.until("the last one reads", || {
        observers[69].stats().requests > before
    });
    world.pass(TOLD);
    let leadership = leads(&election(&leader), "one");
    world.pass(TOLD);
    let is_told = |seen: &&Receiver<Option<Leader>>| seen.try_recv().is_ok();
    assert_eq!(seen.iter().filter(is_told).count(), 64);
    world.pass(secs(1));
    assert_eq!(seen.iter().filter(is_told).count(), 6);
    drop(seen);
    // Another one takes the place of those that observe no more.
    world.pass(secs(90));
    let seen = election(&observers[0]).observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    world.pass(secs(2));
    assert_eq!(told(), 1);
    drop(leadership);
}

fn a_user_who_may_only_read_observes(world: &World) {
    let (user, password) = ("user", "us3r-s3cret");
    let redis = world.redis();
    let login = format!(">{password}");
    let rights = ["on", &login, "~*", "&*", "+@all", "-hset"];
    let () = redis.ask(&[&["ACL", "SETUSER", user][..], &rights].concat());
    let (reads, locks) = (world.manager_as(user, password), world.manager());
    let seen = election(&reads).observe().expect("it may read");
    assert_eq!(next(world, &seen), None);
    let denied = election(&reads).try_campaign("x").map(drop);
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    redis.is_free(Kind::Mutex, NAME);
    assert!(!redis.exists(&leader_of(NAME)));
    let leadership = leads(&election(&locks), "one");
    let begun = world.now();
    assert_eq!(next(world, &seen), some("one"));
    assert!(world.now() <= world.within(begun + secs(1)));
    drop(leadership);
}

fn a_value_that_the_server_refuses_releases_the_lock(world: &World) {
    let (locks, redis) = (world.build(|it| it.min_hold(secs(60))), world.redis());
    let () = redis.ask(&["RPUSH", &leader_of(NAME), "x"]);
    let outcome = election(&locks).campaign("one").map(drop);
    assert!(
        matches!(outcome, Err(Error::WrongType { .. })),
        "{outcome:?}"
    );
    redis.is_free(Kind::Mutex, NAME);
    let () = redis.ask(&["DEL", &leader_of(NAME)]);
    let mut leadership = leads(&election(&locks), "one");
    world.refuse(Refused::Writes, "MISCONF the disk is full");
    let outcome = leadership.proclaim("two");
    assert!(outcome.is_err(), "{outcome:?}");
    leadership.check().expect("it is renewed");
    world.refuse_nothing();
    let observer = election(&world.manager());
    world.until("it is written later", || led_by(&observer) == some("two"));
}

fn a_value_whose_answer_was_lost_is_written_once(world: &World) {
    let locks = world.build(|it| it.io_timeout(secs(60)));
    let proclaims = |mut leadership: Leadership| {
        let outcome = leadership.proclaim("two").map_err(|error| error.kind());
        (outcome, leadership)
    };
    let (goes_on, task) = leading(&locks, election(&locks).lease(LONG), proclaims);
    let observer = election(&world.manager());
    locks.cut(world.master(NAME));
    goes_on.raise();
    let (outcome, leadership) = task.end();
    outcome.expect("it is sent on a new connection");
    assert_eq!(led_by(&observer), some("two"));
    drop(leadership);
}

fn a_value_that_a_failover_loses_comes_back(world: &World) {
    let (locks, observer) = (world.manager(), election(&world.manager()));
    let mut leadership = leads(&election(&locks).lease(secs(60)), "one");
    let seen = observer.observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    world.pass(secs(1));
    fail_over_without(world, || leadership.proclaim("two").expect("it leads"));
    let begun = world.now();
    world.until(
        "it comes back",
        || matches!(observer.leader(), Ok(Some(leader)) if leader.value == "two"),
    );
    assert!(world.now() <= world.within(begun + KNOWN + secs(11)));
    world.until("it is shown", || next(world, &seen) == some("two"));
    leadership.check().expect("the new master has the lock");
    leadership.resign().expect("it leads");
}

fn a_leader_whose_lock_a_failover_loses_is_not_shown(world: &World) {
    let (locks, observer) = (world.manager(), election(&world.manager()));
    assert_eq!(led_by(&observer), None);
    world.pass(secs(1));
    let leadership = fail_over_without(world, || leads(&election(&locks).lease(secs(60)), "one"));
    world.until("it is lost", || leadership.check().is_err());
    let second = observer.campaign("two").expect("Redis replies");
    drop(leadership);
    world.pass(secs(11));
    assert_eq!(led_by(&observer), some("two"));
    drop(second);
}

fn a_value_on_too_few_replicas_is_an_error_and_no_leader(world: &World) {
    let locks = world.build(|it| it.replicas(1).lease(secs(60)));
    let mut leadership = leads(&election(&locks), "one");
    for replica in world.replicas(NAME) {
        world.fault(Fault::Lag(replica, true));
    }
    let outcome = leadership.proclaim("two");
    assert!(
        matches!(outcome, Err(Error::NotReplicated { .. })),
        "{outcome:?}"
    );
    assert_eq!(led_by(&election(&world.manager())), some("two"));
    leadership.check().expect("it leads");
}

fn a_leader_outlives_the_move_of_its_slot(world: &World) {
    let (locks, old) = (world.manager(), world.master(NAME));
    let leadership = leads(&election(&locks).lease(secs(60)), "one");
    let observer = election(&world.manager());
    let seen = observer.observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    world.fault(Fault::MoveSlot(NAME, secs(4)));
    world.until("the slot has moved", || world.master(NAME) != old);
    world.pass(secs(12));
    assert_eq!(seen.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(led_by(&observer), some("one"));
    leadership.resign().expect("it leads");
    assert_eq!(next(world, &seen), None);
}

/// One after the other, so that the lock stays. In the end no node has what was written first.
fn a_value_outlives_the_restart_of_each_node(world: &World) {
    let locks = world.build(|it| it.restart_delay(secs(20)).lease(secs(10)));
    let observer = election(&world.build(|it| it.restart_delay(secs(20)).lease(secs(10))));
    let leadership = leads(&election(&locks).lease(secs(10)), "one");
    let seen = observer.observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    for server in 0..world.servers() {
        world.until("all nodes vote", || leadership.missing_nodes().is_empty());
        world.fault(Fault::StopServer(server));
        world.fault(Fault::StartServer {
            server,
            has_data: false,
        });
        world.pass(secs(60));
        assert_eq!(led_by(&observer), some("one"));
    }
    leadership.check().expect("it leads");
    // While it lasts, the same state comes again.
    assert_eq!(next(world, &seen), some("one"));
    leadership.resign().expect("it leads");
    world.until("it is seen", || next(world, &seen).is_none());
}

fn a_node_that_hangs_delays_no_resignation(world: &World) {
    let (locks, other) = (world.manager(), world.manager());
    let took = |resigns: &dyn Fn()| {
        let begun = world.now();
        resigns();
        since(world, begun)
    };
    let guard = std::cell::Cell::new(Some(other.lock("other").expect("it is free")));
    let leadership = std::cell::Cell::new(Some(leads(&election(&locks), "one")));
    world.pass(secs(1));
    world.fault(Fault::PauseServer(0));
    let released = took(&|| drop(guard.take()));
    let resigned = took(&|| drop(leadership.take()));
    assert!(
        resigned <= world.within(released * 2 + ms(10)),
        "{resigned:?}, {released:?}"
    );
    world.fault(Fault::ResumeServer(0));
}

/// A node that did not get it shows the value before.
fn the_last_value_counts_at_whatever_node_it_is(world: &World) {
    let locks = world.manager();
    let mut leadership = leads(&election(&locks).lease(secs(50)), "one");
    world.pass(secs(1));
    world.fault(Fault::PauseServer(0));
    leadership.proclaim("two").expect("a majority answers");
    world.fault(Fault::ResumeServer(0));
    // The hung node gets it when it goes on. Take it back there.
    world.pass(secs(1));
    let node = world.redis_at(0);
    let () = node.ask(&["HSET", &leader_of(NAME), "value", "one", "number", "1"]);
    for server in 1..world.servers() {
        world.fault(Fault::PauseServer(server));
        assert_eq!(led_by(&election(&world.manager())), some("two"));
        world.fault(Fault::ResumeServer(server));
        world.pass(ms(100));
    }
}

fn a_minority_of_the_nodes_shows_nobody(world: &World) {
    let (locks, observer) = (world.manager(), election(&world.manager()));
    let leadership = leads(&election(&locks), "one");
    for server in 1..world.servers() {
        let node = world.redis_at(server);
        let () = node.ask(&["DEL", NAME]);
    }
    assert_eq!(led_by(&observer), None);
    world.until("it is lost", || leadership.check().is_err());
}

/// One node names the leader, one has restarted without its data, and one hangs: the leader may have its vote.
fn a_leader_is_still_shown_if_the_nodes_that_answer_differ(world: &World) {
    let (locks, observer) = (world.manager(), election(&world.manager()));
    let leadership = leads(&election(&locks).lease(secs(50)), "one");
    world.until("all nodes vote", || leadership.missing_nodes().is_empty());
    let seen = observer.observe().expect("Redis replies");
    assert_eq!(next(world, &seen), some("one"));
    world.fault(Fault::StopServer(2));
    world.fault(Fault::StartServer {
        server: 2,
        has_data: false,
    });
    world.fault(Fault::PauseServer(1));
    let begun = world.now();
    while world.now() < begun + secs(10) {
        let outcome = observer.leader();
        assert!(
            matches!(outcome, Err(Error::NoQuorum { .. })),
            "{outcome:?}"
        );
        assert_eq!(seen.try_recv(), Err(TryRecvError::Empty));
        world.pass(ms(300));
    }
    leadership.check().expect("two nodes have voted for it");
    world.fault(Fault::ResumeServer(1));
    world.pass(secs(2));
    assert_eq!(led_by(&observer), some("one"));
    assert_eq!(seen.try_recv(), Err(TryRecvError::Empty));
    leadership.resign().expect("it leads");
    assert_eq!(next(world, &seen), None);
}
