//! A reference model that tests the core. One server follows the rules of the scripts, processes run the real
//! [`Attempt`] and [`ReleaseTask`], and a network loses and delays requests. It also loses, delays and repeats messages.
//! A process may stop between a message and its use.
//!
//! The server may fail over to a replica that lags, and the requests that are under way are lost. Each process renews its
//! lease at once then, so a holder whose lock the replica does not have learns of the loss.
//!
//! At all times, at most one process may hold the lock by its own clock, and fences must rise. Each random history ends
//! with a time without faults. Then each process must be served once more, and nothing may be left in Redis.

mod server;

use std::time::Duration;

use proptest::prelude::*;

use crate::config::Terms;
use crate::core::attempt::{
    Attempt, CallContext, EndedOwner, Grant, Input, Step, StepContext, SubscriptionState,
};
use crate::core::release_task::{Next, ReleaseTask};
use crate::error::{Failure, FailureKind, Outcome};
use crate::message::{GrantMessage, Reply, Verb};
use crate::sys::{Arc, AtomicU64, Ordering, Rng, Time};

use server::{LIFE, PICKUP_WINDOW, Server};

const LEASE: Duration = Duration::from_secs(2);
const ALMOST_A_LEASE: Duration = Duration::from_millis(1_999);
const PROCESSES: usize = 3;

/// The fate of one request in the network.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Delivered,
    /// The request is not sent, and the process knows it.
    NotSent,
    RequestLost,
    ReplyLost,
    /// The request is executed and answered. If the lock was granted, too few replicas have confirmed that.
    Unconfirmed,
    /// The process gets no reply, and the server executes the request later.
    Late(u64),
}

/// The next event of a history.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A process does its next step, if its time has come. The network gives its request this fate.
    Run(usize, Fate),
    /// A process ends its lease.
    LetGo(usize, Ending, Fate),
    /// A process that waits gives up.
    GiveUp(usize),
    /// The delegate of a process gives up, and another thread continues its attempt.
    HandOn(usize, Fate),
    /// The subscription of a process begins or ends.
    Subscribe(usize, bool),
    /// From now on, messages have this fate.
    Messages(MessageFate),
    /// This number of milliseconds passes.
    Pass(u64),
    /// The replica has all writes so far.
    Replicate,
    /// The replica becomes the master.
    FailOver,
}

/// The end of a lease.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// The process releases the lock.
    Release,
    /// One of its threads takes over.
    TakeOver,
    /// The process releases the lock, which stays taken for this number of milliseconds (`min_hold`).
    Keep(u64),
}

/// The fate of a message.
#[derive(Clone, Copy, Debug)]
enum MessageFate {
    Delivered,
    Lost,
    /// It comes later.
    Late(u64),
    /// It comes at once, and again later.
    Repeated(u64),
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Delivered),
        1 => Just(Fate::NotSent),
        1 => Just(Fate::RequestLost),
        1 => Just(Fate::ReplyLost),
        1 => Just(Fate::Unconfirmed),
        1 => (0u64..3000).prop_map(Fate::Late),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..PROCESSES, fate()).prop_map(|(p, f)| Event::Run(p, f)),
        3 => (0..PROCESSES, ending(), fate()).prop_map(|(p, e, f)| Event::LetGo(p, e, f)),
        1 => (0..PROCESSES).prop_map(Event::GiveUp),
        1 => (0..PROCESSES, fate()).prop_map(|(p, f)| Event::HandOn(p, f)),
        2 => (0..PROCESSES, any::<bool>()).prop_map(|(p, s)| Event::Subscribe(p, s)),
        3 => (0u64..1500).prop_map(Event::Pass),
        1 => message_fate().prop_map(Event::Messages),
        2 => Just(Event::Replicate),
        2 => Just(Event::FailOver),
    ]
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        2 => Just(Ending::Release),
        2 => Just(Ending::TakeOver),
        1 => (1u64..1500).prop_map(Ending::Keep),
    ]
}

fn message_fate() -> impl Strategy<Value = MessageFate> {
    prop_oneof![
        2 => Just(MessageFate::Delivered),
        1 => Just(MessageFate::Lost),
        2 => (0u64..1500).prop_map(MessageFate::Late),
        1 => (0u64..1500).prop_map(MessageFate::Repeated),
    ]
}

enum State {
    Idle,
    Asking(Attempt, Input),
    Sleeping(Attempt, Time),
    GuardInner(Grant),
}

struct Process {
    state: State,
    subscription: SubscriptionState,
    /// The last message for an owner of this process that it has not used.
    message: Option<(Arc<str>, Option<GrantMessage>)>,
    release_tasks: Vec<(Time, ReleaseTask)>,
    served: usize,
}

/// Random numbers that are the same in every run of a history: owners and nonces count up, and there is no jitter.
struct Counting(AtomicU64);

impl Rng for Counting {
    fn uuid(&self) -> uuid::Uuid {
        uuid::Uuid::from_u128(u128::from(self.0.fetch_add(1, Ordering::Relaxed)))
    }

    fn bits(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn jitter(&self) -> u64 {
        0
    }
}

struct World {
    now: Time,
    server: Server,
    replica: Server,
    /// The last failover, which all processes notice at once.
    failed_over_at: Time,
    late: Vec<(Time, Verb)>,
    message_fate: MessageFate,
    /// The messages that are under way, and when they arrive.
    messages: Vec<(Time, Arc<str>, Option<GrantMessage>)>,
    processes: Vec<Process>,
    rng: Counting,
    last_fence: u64,
}

impl World {
    fn new() -> Self {
        let process = || Process {
            state: State::Idle,
            subscription: SubscriptionState::NotYet,
            message: None,
            release_tasks: Vec::new(),
            served: 0,
        };
        Self {
            now: Time::from_nanos(1_000_000_000_000),
            server: Server::default(),
            replica: Server::default(),
            failed_over_at: Time::from_nanos(0),
            late: Vec::new(),
            message_fate: MessageFate::Delivered,
            messages: Vec::new(),
            processes: (0..PROCESSES).map(|_| process()).collect(),
            rng: Counting(AtomicU64::new(1)),
            last_fence: 0,
        }
    }

    fn send(&mut self, verb: &Verb, fate: Fate) -> Result<Reply, Failure> {
        let failure =
            |outcome| Failure::plain(FailureKind::Unavailable, outcome, "a fault of the test");
        match fate {
            Fate::Delivered => Ok(self.execute(verb)),
            Fate::Unconfirmed => match self.execute(verb) {
                Reply::Granted { .. } => {
                    let (wanted, confirmed) = (1, 0);
                    let kind = FailureKind::NotReplicated { wanted, confirmed };
                    Err(Failure::plain(kind, Outcome::PartlyExecuted, "no replica"))
                }
                reply => Ok(reply),
            },
            Fate::NotSent => Err(failure(Outcome::NotExecuted)),
            Fate::RequestLost => Err(failure(Outcome::Unknown)),
            Fate::ReplyLost => {
                self.execute(verb);
                Err(failure(Outcome::Unknown))
            }
            Fate::Late(ms) => {
                // The crate promises nothing for a request that is still under way when a lease has passed.
                let later = self.now + Duration::from_millis(ms).min(ALMOST_A_LEASE);
                self.late.push((later, verb.clone()));
                Err(failure(Outcome::Unknown))
            }
        }
    }

    fn execute(&mut self, verb: &Verb) -> Reply {
        self.server.expire(self.now);
        self.server.execute(verb, self.now)
    }

    /// Makes the replica the master. Each guard renews its lease, and ends if the new master does not have its lock.
    fn fail_over(&mut self) {
        self.late.clear();
        self.server = self.replica.clone();
        // Fences follow the time of the server.
        self.pass(Duration::from_millis(1));
        self.server.expire(self.now);
        self.failed_over_at = self.now;
        for process in &mut self.processes {
            let State::GuardInner(grant) = &process.state else {
                continue;
            };
            match &mut self.server.lock {
                Some((holder, _, end)) if *holder == grant.owner => {
                    *end = (*end).max(self.now + LEASE);
                }
                _ => process.state = State::Idle,
            }
        }
    }

    fn pass(&mut self, length: Duration) {
        let end = self.now + length;
        self.late.sort_by_key(|(time, _)| *time);
        while self.late.first().is_some_and(|(time, _)| *time <= end) {
            let (time, verb) = self.late.remove(0);
            self.now = self.now.max(time);
            self.execute(&verb);
        }
        self.now = end;
    }

    /// Begins or ends the subscription of a process. Its delegate then asks again.
    fn subscribe(&mut self, who: usize, is_there: bool) {
        let process = &mut self.processes[who];
        process.subscription = if is_there {
            SubscriptionState::Ready("c".into())
        } else {
            SubscriptionState::NoSubscription
        };
        if let State::Sleeping(_, until) = &mut process.state {
            *until = self.now;
        }
        self.note_the_deaf();
    }

    fn note_the_deaf(&mut self) {
        let deaf = self.processes.iter().filter_map(|process| {
            let attempt = match &process.state {
                State::Asking(attempt, _) | State::Sleeping(attempt, _) => attempt,
                State::Idle | State::GuardInner(_) => return None,
            };
            let is_deaf = !matches!(process.subscription, SubscriptionState::Ready(_));
            is_deaf.then(|| Arc::clone(attempt.owner()))
        });
        self.server.deaf = deaf.collect();
    }

    /// Sends the messages that the server has published, and delivers those that have arrived.
    fn deliver(&mut self) {
        let later = |ms| self.now + Duration::from_millis(ms);
        for (owner, grant) in std::mem::take(&mut self.server.published) {
            let arrivals = match self.message_fate {
                MessageFate::Delivered => vec![self.now],
                MessageFate::Lost => vec![],
                MessageFate::Late(ms) => vec![later(ms)],
                MessageFate::Repeated(ms) => vec![self.now, later(ms)],
            };
            let messages = arrivals
                .into_iter()
                .map(|at| (at, Arc::clone(&owner), grant));
            self.messages.extend(messages);
        }
        let (arrived, under_way) = std::mem::take(&mut self.messages)
            .into_iter()
            .partition::<Vec<_>, _>(|(at, ..)| *at <= self.now);
        self.messages = under_way;
        for (_, owner, grant) in arrived {
            for process in &mut self.processes {
                let (State::Asking(attempt, _) | State::Sleeping(attempt, _)) = &process.state
                else {
                    continue;
                };
                if *attempt.owner() == owner {
                    process.message = Some((Arc::clone(&owner), grant));
                }
                if let State::Sleeping(attempt, until) = &mut process.state
                    && *attempt.owner() == owner
                {
                    *until = self.now;
                }
            }
        }
    }

    /// Returns the input after a sleep: the message for this owner, if one has come.
    fn woken(&mut self, who: usize, owner: &Arc<str>) -> Input {
        match self.processes[who].message.take() {
            Some((named, grant)) if named == *owner => Input::Message(grant),
            _ => Input::Woken,
        }
    }

    fn run(&mut self, who: usize, fate: Fate) {
        self.send_releases(who, fate);
        let (mut attempt, mut input) =
            match std::mem::replace(&mut self.processes[who].state, State::Idle) {
                State::Idle => (Attempt::new(&self.rng, "p", 1), Input::Go),
                State::Asking(attempt, input) => (attempt, input),
                State::Sleeping(attempt, until) if until <= self.now => {
                    let input = self.woken(who, attempt.owner());
                    (attempt, input)
                }
                other => {
                    self.processes[who].state = other;
                    return;
                }
            };
        loop {
            let call = CallContext {
                arrived: self.now,
                terms: Terms::new(LEASE, false),
                until: Some(Time::NEVER),
                pickup_window: PICKUP_WINDOW,
                grants_by_message: true,
                outage_limit: Duration::from_mins(1),
                waits_through_outages: false,
                tail: "p",
                rng: &self.rng,
            };
            let step = attempt.step(
                input,
                &StepContext {
                    call: &call,
                    now: self.now,
                    subscription: self.processes[who].subscription.clone(),
                    failed_over_at: self.failed_over_at,
                    round_trip: Duration::ZERO,
                    quantum: Duration::from_micros(5),
                    fence_block: 5,
                    shareable_owner: None,
                    crowded: false,
                    busy_threads: 1,
                },
            );
            let ended_owners = attempt.ended_owners();
            self.clean_up(who, ended_owners);
            match step {
                Step::Shared => unreachable!("nothing is offered"),
                Step::Send(verb) => {
                    let sent = self.now;
                    input = match self.send(&verb, fate) {
                        Ok(reply) => Input::Replied {
                            sent,
                            reply,
                            resent: false,
                        },
                        Err(failure) => Input::Failed {
                            sent,
                            failure,
                            cut_short: false,
                        },
                    };
                }
                Step::Sleep(until) => {
                    assert!(until > self.now, "a sleep of no length");
                    // A message may have come during the request. It ends the sleep at once.
                    let message = self.processes[who].message.as_ref();
                    let has_message = message.is_some_and(|(owner, _)| owner == attempt.owner());
                    let until = if has_message { self.now } else { until };
                    self.processes[who].state = State::Sleeping(attempt, until);
                    return;
                }
                Step::Granted(grant) => {
                    assert!(grant.fence > self.last_fence, "a fence was repeated");
                    self.last_fence = grant.fence;
                    self.processes[who].served += 1;
                    self.processes[who].state = State::GuardInner(grant);
                    return;
                }
                Step::Failed(_) | Step::TimeOver(_) => {
                    let ended_owners = attempt.abandon();
                    self.clean_up(who, ended_owners);
                    return;
                }
            }
        }
    }

    fn clean_up(&mut self, who: usize, ended_owners: Vec<EndedOwner>) {
        for ended_owner in ended_owners {
            let release_task = ReleaseTask::of_ended_owner(ended_owner, self.now, LEASE);
            let process = &mut self.processes[who];
            process.release_tasks.push((self.now, release_task));
        }
    }

    fn send_releases(&mut self, who: usize, fate: Fate) {
        for (due, mut release_task) in std::mem::take(&mut self.processes[who].release_tasks) {
            let mut next = Next::Later(due);
            while next == Next::Send || matches!(next, Next::Later(due) if due <= self.now) {
                let verb = release_task.verb(self.now);
                next = match self.send(&verb, fate) {
                    Ok(reply) => release_task.replied(self.now, &reply, false, None),
                    Err(_) => release_task.failed(self.now, true, &self.rng),
                };
            }
            if let Next::Later(due) = next {
                self.processes[who].release_tasks.push((due, release_task));
            }
        }
    }

    fn let_go(&mut self, who: usize, ending: Ending, fate: Fate) {
        let State::GuardInner(grant) = &self.processes[who].state else {
            return;
        };
        let (owner, contended) = (Arc::clone(&grant.owner), grant.contended);
        let left = EndedOwner {
            owner,
            units: 1,
            uncertain_until: grant.uncertain_until,
            key_gone_at: grant.key_gone_at,
            give_back: None,
        };
        let in_time = self.now < grant.deadline;
        self.processes[who].state = State::Idle;
        if matches!(ending, Ending::TakeOver) && in_time {
            let attempt = Attempt::take_over(&self.rng, "p", left);
            self.processes[who].state = State::Asking(attempt, Input::Go);
            self.run(who, fate);
        } else {
            let min_hold_until = match ending {
                Ending::Keep(ms) => Some(self.now + Duration::from_millis(ms)),
                Ending::Release | Ending::TakeOver => None,
            };
            let release_task =
                ReleaseTask::of_lease(left, contended, min_hold_until, self.now, LEASE);
            self.processes[who]
                .release_tasks
                .push((self.now, release_task));
            self.send_releases(who, fate);
        }
    }

    fn give_up(&mut self, who: usize) {
        match std::mem::replace(&mut self.processes[who].state, State::Idle) {
            State::Asking(attempt, _) | State::Sleeping(attempt, _) => {
                let ended_owners = attempt.abandon();
                self.clean_up(who, ended_owners);
            }
            other => self.processes[who].state = other,
        }
    }

    fn hand_on(&mut self, who: usize, fate: Fate) {
        match std::mem::replace(&mut self.processes[who].state, State::Idle) {
            State::Sleeping(attempt, _) => {
                // The next thread has another registration, and asks at once.
                self.processes[who].message = None;
                self.processes[who].state = State::Asking(attempt, Input::Go);
                self.run(who, fate);
            }
            other => self.processes[who].state = other,
        }
    }

    fn holders(&self) -> usize {
        let holds = |process: &&Process| match &process.state {
            State::GuardInner(grant) => self.now < grant.deadline,
            _ => false,
        };
        self.processes.iter().filter(holds).count()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Run(who, fate) => self.run(who, fate),
            Event::LetGo(who, ending, fate) => self.let_go(who, ending, fate),
            Event::GiveUp(who) => self.give_up(who),
            Event::HandOn(who, fate) => self.hand_on(who, fate),
            Event::Subscribe(who, is_there) => self.subscribe(who, is_there),
            Event::Messages(fate) => self.message_fate = fate,
            Event::Pass(ms) => self.pass(Duration::from_millis(ms)),
            Event::Replicate => self.replica = self.server.clone(),
            Event::FailOver => self.fail_over(),
        }
        self.note_the_deaf();
        self.deliver();
    }
}

/// The replica has the former owner still, although another process reads held. Nobody else gets the lock meanwhile.
#[test]
fn a_hand_over_that_a_failover_loses_costs_at_most_a_lease() {
    let mut world = World::new();
    for who in 0..2 {
        world.happen(Event::Subscribe(who, true));
        world.happen(Event::Run(who, Fate::Delivered));
    }
    world.happen(Event::Replicate);
    world.happen(Event::LetGo(0, Ending::Release, Fate::Delivered));
    world.happen(Event::Run(1, Fate::Delivered));
    assert!(matches!(world.processes[1].state, State::GuardInner(_)));
    world.happen(Event::FailOver);
    assert_eq!(world.holders(), 0, "it learns of the loss");
    world.happen(Event::Run(2, Fate::Delivered));
    assert_eq!(world.holders(), 0, "the lock stays taken");
    world.happen(Event::Pass(LEASE.as_millis() as u64));
    world.happen(Event::Run(2, Fate::Delivered));
    assert_eq!(world.holders(), 1);
}

/// The waiter asked before the release, when the lease had two seconds left.
#[test]
fn a_waiter_takes_a_kept_lock_as_soon_as_its_time_is_over() {
    const KEPT: u64 = 100;
    let mut world = World::new();
    for who in 0..2 {
        world.happen(Event::Subscribe(who, true));
        world.happen(Event::Run(who, Fate::Delivered));
    }
    world.happen(Event::LetGo(0, Ending::Keep(KEPT), Fate::Delivered));
    for pass in [0, KEPT + 2] {
        assert_eq!(world.holders(), 0);
        world.happen(Event::Pass(pass));
        world.happen(Event::Run(1, Fate::Delivered));
    }
    assert!(matches!(world.processes[1].state, State::GuardInner(_)));
}

/// The first waiter is silent for longer than its pickup window, while the second one polls.
#[test]
fn a_waiter_that_stalls_is_passed_over_and_keeps_its_place() {
    let mut world = World::new();
    for who in 0..PROCESSES {
        world.happen(Event::Subscribe(who, true));
        world.happen(Event::Run(who, Fate::Delivered));
    }
    for _ in 0..11 {
        world.happen(Event::Pass(100));
        world.happen(Event::Run(2, Fate::Delivered));
    }
    let has_it =
        |world: &World, who: usize| matches!(world.processes[who].state, State::GuardInner(_));
    let mut holder = 0;
    for next in [2, 1, 0] {
        world.happen(Event::LetGo(holder, Ending::Release, Fate::Delivered));
        world.happen(Event::Run(next, Fate::Delivered));
        assert!(has_it(&world, next), "{next}");
        // The former holder comes last, and the waiter that stalled asks again.
        world.happen(Event::Run(holder, Fate::Delivered));
        world.happen(Event::Run(1, Fate::Delivered));
        holder = next;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn one_holder_at_a_time_everybody_served_nothing_left(
        events in proptest::collection::vec(event(), 1..120)
    ) {
        let mut world = World::new();
        for event in events {
            world.happen(event);
            prop_assert!(world.holders() <= 1, "two hold the lock after {event:?}");
        }
        // Without faults, each process is served once more.
        let before: Vec<usize> = world.processes.iter().map(|process| process.served).collect();
        for _ in 0..2000 {
            for (who, before) in before.iter().enumerate() {
                world.happen(Event::LetGo(who, Ending::Release, Fate::Delivered));
                world.send_releases(who, Fate::Delivered);
                if world.processes[who].served == *before {
                    world.happen(Event::Run(who, Fate::Delivered));
                }
                prop_assert!(world.holders() <= 1);
            }
            world.happen(Event::Pass(10));
        }
        for (who, before) in before.iter().enumerate() {
            prop_assert!(world.processes[who].served > *before, "{who} was never served");
        }
        // After the last process has gone, nothing is left in Redis.
        for _ in 0..500 {
            for who in 0..PROCESSES {
                world.happen(Event::LetGo(who, Ending::Release, Fate::Delivered));
                world.happen(Event::GiveUp(who));
                world.send_releases(who, Fate::Delivered);
            }
            world.happen(Event::Pass(10));
        }
        prop_assert!(world.processes.iter().all(|process| process.release_tasks.is_empty()), "release tasks without an end");
        world.server.expire(world.now);
        // The keys of the queue expire after the last waiter's life.
        world.server.queue.retain(|waiter| world.now.since(waiter.seen) <= LIFE);
        prop_assert_eq!(world.server.lock, None);
        prop_assert!(world.server.queue.is_empty());
    }
}
