//! Leaders, and who observes them.

use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, TryRecvError};
use leasehold::{Election, Error, Leader, Leadership, LostCause};
use leasehold_simulator::Topology;

use crate::matrix::{Subject, subject_bodies};
use crate::redis::{Redis, leader_of};
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
        processes_lead_in_the_order_in_which_they_asked,
        an_observer_sees_each_change_at_once,
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

/// Returns the next state that is received.
#[track_caller]
fn next(world: &World, from: &Receiver<Option<Leader>>) -> Option<String> {
    world.recv(from).map(|leader| leader.value)
}

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

fn processes_lead_in_the_order_in_which_they_asked(world: &World) {
    let hosts = [(); 3].map(|()| world.manager());
    let first = leads(&election(&hosts[0]), "0");
    let mut waiting = Vec::new();
    for (number, locks) in [(1, &hosts[1]), (2, &hosts[2]), (3, &hosts[0])] {
        let (election, goes_on) = (election(locks).lease(secs(20)), world.flag());
        let wait = goes_on.clone();
        let task = locks.thread(move || {
            let leadership = election.campaign(&number.to_string());
            let leadership = leadership.expect("Redis replies");
            wait.wait();
            let fence = leadership.fence();
            leadership.resign().expect("it leads");
            fence
        });
        waiting.push((number, goes_on, task));
        world.redis().wait_until_queued(NAME, waiting.len().min(2));
        world.pass(ms(100));
    }
    let observer = election(&world.manager());
    let mut fence = first.fence();
    first.resign().expect("it leads");
    for (number, goes_on, task) in waiting {
        let value = Some(number.to_string());
        world.until("the next one leads", || led_by(&observer) == value);
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
        let took = world.now() - begun;
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
    let took = world.now() - begun;
    assert!(took <= world.granted_by(TOLD), "{took:?}");
    goes_on.raise();
    task.end();
    within(None);
}
