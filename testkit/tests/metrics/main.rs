//! The metrics and spans of each step of a lock, on a Redis in memory.

#![allow(
    clippy::incompatible_msrv,
    reason = "only the library is compiled with the oldest Rust"
)]

mod recorded;
mod spans;

use std::thread;
use std::time::Duration;

use leasehold::{Admission, Error, LeaseState};
use leasehold_testing::Redis;
use recorded::{Panics, manager};

const ACQUIRED: &str = "leasehold_acquires_total{kind=mutex,name=n,outcome=acquired}";

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn a_guard_is_recorded_from_its_call_to_its_end() {
    let (locks, recorded) = manager(&Redis::new());
    assert_eq!(recorded.changed(), []);
    let guard = locks.lock("n").expect("it is free");
    let now = [(ACQUIRED, 1), ("leasehold_held", 1)];
    assert_eq!(recorded.changed(), now.map(|(s, n)| (s.to_owned(), n)));
    assert_eq!(recorded.times("leasehold_wait_seconds{name=n}").len(), 1);
    assert_eq!(recorded.times("leasehold_hold_seconds{name=n}"), [0.0; 0]);
    guard.release().expect("it was held");
    assert_eq!(recorded.changed(), [(ACQUIRED.to_owned(), 1)]);
    assert_eq!(recorded.times("leasehold_hold_seconds{name=n}").len(), 1);
    // Its acquire and its release.
    assert_eq!(recorded.times("leasehold_request_seconds{name=n}").len(), 2);
}

#[test]
fn a_name_that_the_program_has_not_listed_is_no_label() {
    let (locks, recorded) = manager(&Redis::new());
    let before = recorded.times("leasehold_request_seconds").len();
    drop(locks.lock("secret").expect("it is free"));
    let series = "leasehold_acquires_total{kind=mutex,outcome=acquired}".to_owned();
    assert_eq!(recorded.changed(), [(series, 1)]);
    assert_eq!(recorded.times("leasehold_wait_seconds").len(), 1);
    assert_eq!(recorded.times("leasehold_hold_seconds").len(), 1);
    let requests = recorded.times("leasehold_request_seconds").len();
    assert_eq!(requests - before, 2);
}

#[test]
fn each_kind_of_lock_has_its_label() {
    let (locks, recorded) = manager(&Redis::new());
    drop(locks.rwlock("rw").read().expect("it is free"));
    drop(locks.rwlock("rw").write().expect("it is free"));
    drop(locks.semaphore("s", 2).acquire().expect("it is free"));
    drop(locks.multi(["a", "b"]).lock().expect("they are free"));
    for kind in ["read", "write", "semaphore", "multi"] {
        let series = format!("leasehold_acquires_total{{kind={kind},outcome=acquired}}");
        assert_eq!(recorded.number(&series), 1, "{kind}");
    }
}

#[test]
fn a_call_without_a_guard_has_the_reason_as_its_outcome() {
    spans::install();
    let redis = Redis::new();
    let _held = redis.manager().mutex("n").lease(secs(3600)).lock();
    let (locks, recorded) = manager(&redis);
    let outcome =
        |outcome| format!("leasehold_acquires_total{{kind=mutex,name=n,outcome={outcome}}}");

    assert!(locks.try_lock("n").expect("it answers").is_none());
    assert_eq!(recorded.number(&outcome("held")), 1);
    assert_eq!(recorded.times("leasehold_wait_seconds{name=n}"), [0.0; 0]);

    let waited = Duration::from_millis(5);
    assert!(
        locks
            .try_lock_for("n", waited)
            .expect("it answers")
            .is_none()
    );
    assert_eq!(recorded.number(&outcome("timed_out")), 1);
    let waits = recorded.times("leasehold_wait_seconds{name=n}");
    assert!(
        waits.len() == 1 && waits[0] >= waited.as_secs_f64(),
        "{waits:?}"
    );

    let cancel = leasehold::Cancel::new();
    let mutex = locks.mutex("n").cancel_with(&cancel);
    let waiting = thread::spawn(move || mutex.lock().map(drop));
    recorded.becomes("leasehold_waiting", 1);
    cancel.cancel();
    assert!(matches!(
        waiting.join().expect("no panic"),
        Err(Error::Cancelled)
    ));
    assert_eq!(recorded.number(&outcome("cancelled")), 1);
    assert_eq!(recorded.number("leasehold_waiting"), 0);

    redis.cut();
    locks.try_lock("n").expect_err("no server answers");
    assert_eq!(recorded.number(&outcome("failed")), 1);
    assert_eq!(recorded.number("leasehold_connections"), 0);
}

#[test]
fn a_call_of_a_rate_limiter_is_recorded_by_its_end() {
    let redis = Redis::new();
    let (locks, recorded) = manager(&redis);
    let limiter = locks.rate_limiter("n", 1, secs(3_600));
    let waits = || recorded.times("leasehold_rate_wait_seconds{name=n}");
    let refused = || recorded.number("leasehold_rate_refused_total{name=n}");
    limiter.acquire().expect("it answers");
    assert_eq!((waits().len(), refused()), (1, 0));
    for wait in [secs(0), secs(60)] {
        let reply = limiter.try_acquire_for(wait).expect("it answers");
        assert!(matches!(reply, Admission::RetryAfter(_)), "{reply:?}");
    }
    assert_eq!((waits().len(), refused()), (1, 2));
    redis.cut();
    limiter.acquire().expect_err("no server answers");
    redis.restore();
    assert_eq!((waits().len(), refused()), (1, 2));

    let requests = || recorded.times("leasehold_request_seconds").len();
    let before = requests();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| limiter.acquire());
        while requests() == before {
            thread::yield_now();
        }
        redis.pass(secs(3_600));
        waiting.join().expect("no panic").expect("it has a place");
    });
    let waits = waits();
    assert!(waits.len() == 2 && waits[1] > 3_000.0, "{waits:?}");
    assert_eq!(refused(), 2);
}

#[test]
fn a_lock_that_passes_between_threads_and_processes_is_recorded() {
    let redis = Redis::new();
    let ((one, of_one), (other, of_other)) = (manager(&redis), manager(&redis));
    let guard = one.lock("n").expect("it is free");
    let next = thread::scope(|scope| {
        let waiting = [(); 2].map(|()| scope.spawn(|| one.lock("n").map(drop)));
        of_one.becomes("leasehold_waiting", 2);
        drop(guard);
        for waiter in waiting {
            let ended = waiter.join().expect("no panic");
            ended.expect("it becomes free");
        }
        one.lock("n").expect("it is free")
    });
    // The first waiter asks Redis for the fences of both.
    let passed_on = "leasehold_acquires_total{kind=mutex,name=n,outcome=passed_on}";
    assert_eq!(of_one.number(passed_on), 1);
    assert_eq!(of_one.number("leasehold_hand_overs_total{name=n}"), 0);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.lock("n").map(drop));
        while redis.locks()[0].waiters == 0 {
            thread::yield_now();
        }
        drop(next);
        waiting.join().expect("no panic").expect("it becomes free");
    });
    assert_eq!(of_one.number("leasehold_hand_overs_total{name=n}"), 1);
    assert_eq!(of_other.number(ACQUIRED), 1);
    assert_eq!(of_one.number("leasehold_held"), 0);
    assert_eq!(of_other.number("leasehold_waiting"), 0);
}

#[test]
fn each_cause_of_a_loss_is_recorded() {
    let redis = Redis::new();
    let (locks, recorded) = manager(&redis);
    let lost = |cause| recorded.number(&format!("leasehold_lost_total{{cause={cause},name=n}}"));

    let guard = locks.lock("n").expect("it is free");
    redis.lose("n");
    assert_eq!((guard.state(), lost("removed")), (LeaseState::Lost, 1));
    // A guard exists until it is dropped.
    assert_eq!(recorded.number("leasehold_held"), 1);
    drop(guard);

    let guard = locks.lock("n").expect("it is free");
    redis.hold_by_other("n", secs(1));
    assert_eq!((guard.state(), lost("taken")), (LeaseState::Lost, 1));
    drop(guard);
    redis.advance(secs(2));

    let guard = locks.lock("n").expect("it is free");
    redis.advance(secs(60));
    assert_eq!((guard.state(), lost("expired")), (LeaseState::Lost, 1));
    drop(guard);

    let guard = locks.mutex("n").max_hold(Some(secs(5))).lock();
    let guard = guard.expect("it is free");
    redis.pass(secs(6));
    assert_eq!((guard.state(), lost("max_hold")), (LeaseState::Lost, 1));
    assert_eq!(recorded.number("leasehold_held"), 0);
    drop(guard);
    assert_eq!(recorded.number("leasehold_held"), 0);
    assert_eq!(recorded.times("leasehold_hold_seconds{name=n}").len(), 4);
}

#[test]
fn a_lease_is_at_risk_until_its_renewal_or_its_loss() {
    let redis = Redis::new();
    let (locks, recorded) = manager(&redis);
    let guard = locks.mutex("n").lease(secs(300)).lock();
    let guard = guard.expect("it is free");
    redis.pass(secs(400));
    assert_eq!(recorded.number("leasehold_at_risk"), 0);
    let lags = recorded.times("leasehold_renewal_lag_seconds{name=n}");
    assert!(lags.len() >= 3, "{lags:?}");

    redis.cut();
    redis.pass(secs(250));
    assert_eq!(guard.state(), LeaseState::AtRisk);
    recorded.becomes("leasehold_at_risk", 1);
    redis.restore();
    redis.pass(secs(40));
    assert_eq!(guard.state(), LeaseState::Held);
    recorded.becomes("leasehold_at_risk", 0);

    redis.cut();
    redis.pass(secs(250));
    recorded.becomes("leasehold_at_risk", 1);
    redis.pass(secs(60));
    assert_eq!(guard.state(), LeaseState::Lost);
    recorded.becomes("leasehold_at_risk", 0);
}

#[test]
fn a_lease_that_ends_is_at_risk_no_longer() {
    let redis = Redis::new();
    let (locks, recorded) = manager(&redis);
    let guard = locks.lock("n").expect("it is free");
    redis.cut();
    redis.pass(secs(25));
    recorded.becomes("leasehold_at_risk", 1);
    guard.release().expect_err("no server answers");
    assert_eq!(recorded.number("leasehold_at_risk"), 0);
}

#[test]
fn a_call_and_its_guard_have_spans_below_that_of_the_caller() {
    spans::install();
    let redis = Redis::new();
    let locks = redis.manager();
    let request = tracing::info_span!("request", name = "of spans");
    let guard = request.in_scope(|| locks.lock("of spans").expect("it is free"));
    let fence = guard.fence().to_string();
    let others = redis.manager();
    assert!(others.try_lock("of spans").expect("it answers").is_none());
    let until_now = spans::of("of spans");
    assert!(!until_now[2].is_closed, "{until_now:?}");
    thread::spawn(move || drop(guard)).join().expect("no panic");

    let [_, wait, hold, refused] = &spans::of("of spans")[..] else {
        panic!("{:?}", spans::of("of spans"));
    };
    let parent = request.id().map(|id| id.into_u64());
    assert_eq!((wait.kind, hold.kind), ("leasehold.wait", "leasehold.hold"));
    assert_eq!((wait.parent, hold.parent), (parent, parent));
    assert_eq!(
        (&wait.fields["fence"], &hold.fields["fence"]),
        (&fence, &fence)
    );
    assert_eq!(wait.fields["outcome"], "acquired");
    assert_eq!(hold.fields["outcome"], "released");
    assert_eq!((refused.kind, refused.parent), ("leasehold.wait", None));
    assert_eq!(refused.fields["outcome"], "held");
    assert!(!refused.fields.contains_key("fence"));
    for span in [wait, hold, refused] {
        assert!(span.is_closed && !span.was_entered, "{span:?}");
    }
}

#[test]
fn the_span_of_a_guard_has_its_end() {
    spans::install();
    let redis = Redis::new();
    let locks = redis.manager();
    let outcome = || spans::of("ends").pop().expect("a span").fields["outcome"].clone();

    let guard = locks.lock("ends").expect("it is free");
    redis.lose("ends");
    drop(guard);
    assert_eq!(outcome(), "removed");
    let claim = locks.lock("ends").expect("it is free").detach();
    assert_eq!(outcome(), "detached");
    drop(locks.adopt(&claim).expect("it is there"));
    assert_eq!(outcome(), "released");
    let guard = locks.mutex("ends").max_hold(Some(secs(5))).lock();
    let guard = guard.expect("it is free");
    redis.pass(secs(6));
    drop(guard);
    assert_eq!(outcome(), "max_hold");
    let guard = locks.lock("ends").expect("it is free");
    redis.cut();
    drop(guard);
    assert_eq!(outcome(), "release_failed");
}

#[test]
fn a_recorder_that_panics_harms_no_lock() {
    let redis = Redis::new();
    let builder = redis.builder().quantum(secs(3_600));
    let locks = metrics::with_local_recorder(&Panics, || builder.build());
    let locks = locks.expect("it answers");
    let guard = locks.mutex("n").lease(secs(10)).lock();
    let guard = guard.expect("it is free");
    redis.pass(secs(60));
    assert_eq!(guard.state(), LeaseState::Held);
    assert!(locks.stats().renewed > 3, "{:?}", locks.stats());
    thread::scope(|scope| {
        let waiting = [(); 2].map(|()| scope.spawn(|| locks.lock("n").map(drop)));
        while locks.stats().waiting < 2 {
            thread::yield_now();
        }
        guard.release().expect("it was held");
        for waiter in waiting {
            let ended = waiter.join().expect("no panic");
            ended.expect("it becomes free");
        }
    });
    let guard = locks.mutex("n").lease(secs(10)).lock();
    let guard = guard.expect("it is free");
    redis.cut();
    redis.pass(secs(20));
    assert_eq!(guard.state(), LeaseState::Lost);
}

#[test]
fn a_subscriber_that_panics_harms_no_lock() {
    spans::install();
    let redis = Redis::new();
    let locks = redis.manager();
    for step in ["new", "record", "close"] {
        let name = format!("panics in {step}");
        let guard = locks.lock(&name).expect("it is free");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| locks.lock(&name).map(drop));
            while locks.stats().waiting == 0 {
                thread::yield_now();
            }
            drop(guard);
            let ended = waiting.join().expect("no panic");
            ended.expect("it becomes free");
        });
    }
}
