//! Measures the decisions of `core/`, without a clock, a thread, a mutex or a socket.
//!
//! The crate does not export `core/`. So this program compiles `core/` and the modules below it a second time. That
//! works because a module uses lower floors only (`ARCHITECTURE.md`).

#![allow(
    clippy::incompatible_msrv,
    reason = "only the library is compiled with the oldest Rust"
)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

macro_rules! floors {
    ($($path:literal $module:ident)*) => {
        $(
            #[allow(dead_code, unused_imports, reason = "the library uses all of it, this a part")]
            #[path = $path]
            mod $module;
        )*
    };
}

floors! {
    "../src/error.rs" error
    "../src/name.rs" name
    "../src/owner.rs" owner
    "../src/panics.rs" panics
    "../src/sys/mod.rs" sys
    "../src/stats.rs" stats
    "../src/config/mod.rs" config
    "../src/event.rs" event
    "../src/message/mod.rs" message
    "../src/core/mod.rs" core
    "../src/script/mod.rs" script
}

use crate::config::Terms;
use crate::core::attempt::{
    Attempt, CallContext, EndedOwner, Input, Step, StepContext, SubscriptionState,
};
use crate::core::fence::{Fences, block};
use crate::core::lease::{AtomicLease, valid_until};
use crate::core::queue::{
    AcquireParams, Arrival, Finish, GrantedTo, Health, HeldLease, Queue, QueueLease,
};
use crate::core::release_task::ReleaseTask;
use crate::core::timer_queue::{TimerQueue, renewal_due};
use crate::message::{AcquireMode, Ask, LockKind, Renewal, Reply, Request, Verb};
use crate::name::{LockKey, Target};
use crate::script::ScriptSettings;
use crate::sys::{Arc, Machine, Rng, Time};

const TERMS: Terms = Terms::new(Duration::from_secs(30), true);
const QUANTUM: Duration = Duration::from_millis(50);
const NOW: Time = Time::from_nanos(1_000_000_000);
const LABEL: &str = "host:4711";

/// A random number generator that costs nothing.
struct Fixed;

impl Rng for Fixed {
    fn uuid(&self) -> uuid::Uuid {
        uuid::Uuid::from_u128(7)
    }

    fn bits(&self) -> u64 {
        7
    }

    fn jitter(&self) -> u64 {
        7 << 48
    }
}

fn wants() -> AcquireParams {
    AcquireParams {
        units: 1,
        terms: TERMS,
        waits: true,
    }
}

/// There is only one.
impl HeldLease for () {
    fn number(&self) -> u64 {
        1
    }

    fn units(&self) -> u32 {
        1
    }

    fn terms(&self) -> Terms {
        TERMS
    }
}

fn grant(fences: Fences) -> QueueLease<()> {
    QueueLease::new((), fences, NOW + QUANTUM)
}

/// Returns a mutex's queue. The first thread holds the lock, and `waiting` others wait.
fn held(waiting: u64) -> Queue<u64, ()> {
    let mut queue = Queue::new(LockKind::Mutex.sharing());
    let Arrival::Delegate = queue.arrive(wants(), NOW, |()| Health::Good, || 0) else {
        unreachable!("nobody was before it");
    };
    queue.begin(
        grant(Fences::new(1, u64::MAX / 2)),
        GrantedTo::Delegate,
        NOW,
    );
    for waiter in 1..=waiting {
        queue.arrive(wants(), NOW, |()| Health::Good, || waiter);
    }
    queue
}

fn queues(bench: &mut Criterion) {
    bench.bench_function("queue/alone: arrive, granted, finish, ended", |bench| {
        let mut queue = Queue::<u64, ()>::new(LockKind::Mutex.sharing());
        bench.iter(|| {
            black_box(queue.arrive(wants(), NOW, |()| Health::Good, || 0));
            black_box(queue.begin(grant(Fences::new(1, 1)), GrantedTo::Delegate, NOW));
            black_box(queue.finish(1, NOW, Health::Good));
            queue.ended()
        });
    });
    for waiting in [1, 1_000] {
        let name = format!("queue/{waiting} waiting: finish, arrive");
        bench.bench_function(&name, |bench| {
            let mut queue = held(waiting);
            bench.iter(|| {
                let Finish::GoesOn((Some((waiter, _)), _)) = queue.finish(1, NOW, Health::Good)
                else {
                    unreachable!("there are fences for years");
                };
                queue.arrive(wants(), NOW, |()| Health::Good, || waiter)
            });
        });
    }
    bench.bench_function("queue/1000 readers: arrive, finish", |bench| {
        let mut queue = Queue::<u64, ()>::new(LockKind::Read.sharing());
        queue.arrive(wants(), NOW, |()| Health::Good, || 0);
        let fences = Fences::granted(LockKind::Read, 1, block(LockKind::Read, QUANTUM));
        queue.begin(grant(fences), GrantedTo::Delegate, NOW);
        for _ in 1..1_000 {
            queue.arrive(wants(), NOW, |()| Health::Good, || 0);
        }
        bench.iter(|| {
            black_box(queue.arrive(wants(), NOW, |()| Health::Good, || 0));
            queue.finish(1, NOW, Health::Good)
        });
    });
}

fn attempts(bench: &mut Criterion) {
    let call = CallContext {
        arrived: NOW,
        terms: TERMS,
        until: Some(Time::NEVER),
        pickup_window: Duration::from_secs(2),
        grants_by_message: true,
        outage_limit: Duration::from_mins(1),
        waits_through_outages: false,
        tail: LABEL,
        rng: &Fixed,
    };
    let around = StepContext {
        call: &call,
        now: NOW,
        subscription: SubscriptionState::NotYet,
        failed_over_at: Time::from_nanos(0),
        round_trip: Duration::ZERO,
        quantum: QUANTUM,
        fence_block: block(LockKind::Mutex, QUANTUM),
        shareable_owner: None,
        crowded: false,
        busy_threads: 1,
    };
    bench.bench_function("attempt: ask, granted", |bench| {
        bench.iter(|| {
            let mut attempt = Attempt::new(&Fixed, LABEL, 1);
            let Step::Send(_) = attempt.step(Input::Go, &around) else {
                unreachable!("the first step is to ask");
            };
            let granted = Input::Replied {
                sent: NOW,
                reply: Reply::Granted {
                    fence: 7,
                    count: None,
                    rest: Vec::new(),
                    contended: false,
                },
                resent: false,
            };
            let Step::Granted(grant) = attempt.step(granted, &around) else {
                unreachable!("it was granted");
            };
            grant
        });
    });
    let ended_owner = EndedOwner {
        owner: owner::generate(&Fixed, LABEL),
        units: 1,
        uncertain_until: None,
        key_gone_at: None,
        give_back: None,
    };
    bench.bench_function("ending: released", |bench| {
        bench.iter(|| {
            let mut release_task =
                ReleaseTask::of_lease(ended_owner.clone(), false, None, NOW, TERMS.lease());
            release_task.replied(NOW, &Reply::Released, false, None)
        });
    });
    let rng = Machine::default();
    bench.bench_function("owner, by the system's generator", |bench| {
        bench.iter(|| owner::generate(&rng, LABEL));
    });
}

fn leases(bench: &mut Criterion) {
    let cell = AtomicLease::new(valid_until(NOW, TERMS.lease()));
    bench.bench_function("lease: standing", |bench| {
        bench.iter(|| black_box(&cell).status(NOW));
    });
    bench.bench_function("lease: renew", |bench| {
        let (cell, mut sent) = (AtomicLease::new(valid_until(NOW, TERMS.lease())), NOW);
        bench.iter(|| {
            sent = sent + Duration::from_millis(1);
            cell.renew(sent, valid_until(sent, TERMS.lease()))
        });
    });
    for leases in [1_000, 100_000] {
        let name = format!("schedule/{leases}: the earliest is put back");
        bench.bench_function(&name, |bench| {
            let mut timer_queue = TimerQueue::default();
            for number in 0..leases {
                let due = Time::from_nanos(number);
                timer_queue.insert((due, number), number);
            }
            let mut jitter = 0_u64;
            bench.iter(|| {
                let due = timer_queue.next().expect("there are leases");
                let number = timer_queue.pop_due(due).expect("it is due");
                jitter = jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let due = renewal_due(due, TERMS.lease(), jitter);
                timer_queue.insert((due, number), number);
            });
        });
    }
}

/// Returns the bytes of a command.
fn packed(command: &script::Command) -> Vec<u8> {
    let mut bytes = Vec::new();
    command.pack(&mut bytes);
    bytes
}

fn calls(bench: &mut Criterion) {
    let script_settings = ScriptSettings::new(Duration::from_mins(10), Duration::from_secs(1));
    let key = LockKey::new("", "orders:42").expect("a name");
    let target = Target::from(key.clone());
    let owner = owner::generate(&Fixed, LABEL);
    bench.bench_function("target of a name", |bench| {
        bench.iter(|| LockKey::new("", black_box("orders:42")).map(Target::from));
    });
    let ask = Ask {
        owner: Arc::clone(&owner),
        units: 1,
        lease: TERMS.lease(),
        fences: 1,
        shareable_owner: None,
        channel: None,
        nonce: None,
    };
    let verbs = [
        (
            "acquire",
            Verb::Acquire {
                ask,
                mode: AcquireMode::TakeFree,
            },
        ),
        (
            "release",
            Verb::Release {
                owner: Arc::clone(&owner),
                units: 1,
            },
        ),
    ];
    for (name, verb) in &verbs {
        let request = Request::Lock {
            kind: LockKind::Mutex,
            target: &target,
            verb,
        };
        bench.bench_function(&format!("command/{name}: made and packed"), |bench| {
            bench.iter(|| packed(&script::encode(&request, &script_settings)));
        });
    }
    let names = (0..200).map(|number| format!("orders:{number}"));
    let keys: Vec<_> = names
        .map(|name| LockKey::new("", &name).expect("a name"))
        .collect();
    let batch: Vec<_> = keys
        .iter()
        .map(|key| Renewal {
            kind: LockKind::Mutex,
            key,
            owner: owner.to_string(),
            units: 1,
            lease: TERMS.lease(),
            may_join: true,
        })
        .collect();
    bench.bench_function("command/renewal of 200: made and packed", |bench| {
        bench.iter(|| packed(&script::encode(&Request::Renew(&batch), &script_settings)));
    });
    bench.bench_function("reply/renewal of 200", |bench| {
        let value = redis::Value::Array(vec![redis::Value::Int(1); batch.len()]);
        bench.iter_batched(
            || value.clone(),
            |value| script::decode(&Request::Renew(&batch), value),
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(core_benches, queues, attempts, leases, calls);
criterion_main!(core_benches);
