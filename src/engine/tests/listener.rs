//! The events that the listener gets, and those that it must not get.

use super::*;
use crate::cancel::Cancel;
use crate::event::{Event, SharedListener};
use crate::message::Seen;

/// Returns an engine, and a receiver of its events in order.
fn listened_to(store: Fake, clock: &Arc<ManualClock>) -> (Arc<Engine>, mpsc::Receiver<String>) {
    let (sender, events) = mpsc::channel();
    let listener = move |event: &Event<'_>| drop(sender.send(format!("{event:?}")));
    let mut settings = Settings::default();
    settings.options.lease = LONG;
    settings.warn_after = Some(SHORT);
    settings.warn_wait_after = Some(SHORT);
    settings.listener = Some(SharedListener(Arc::new(listener)));
    let clock: Arc<dyn TestMachine> = Arc::clone(clock) as _;
    let engine = Engine::on(clock, settings, Arc::new(store));
    (engine, events)
}

/// Waits for the first event of this kind. Returns it and all events before it.
fn up_to(events: &mpsc::Receiver<String>, kind: &str) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let event = events.recv_timeout(PATIENCE);
        all.push(event.unwrap_or_else(|_| panic!("no {kind} after {all:?}")));
        if all[all.len() - 1].starts_with(kind) {
            return all;
        }
    }
}

#[test]
fn a_refused_lease_does_not_look_like_a_lost_connection() {
    let refusals: [fn() -> Result<Reply, Failure>; 2] = [
        || Ok(Reply::Renewed(vec![Renewed::Refused])),
        || {
            Err(Failure::plain(
                FailureKind::Denied,
                Outcome::NotExecuted,
                "NOPERM",
            ))
        },
    ];
    for refusal in refusals {
        let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
        let (asked, renewals) = mpsc::channel();
        let dedicated_connection = move |request: &Request<'_>| match request {
            Request::Renew(_) => {
                asked.send(()).ok();
                refusal()
            }
            request => generous()(request),
        };
        let (engine, events) = listened_to(Fake::new(generous(), dedicated_connection), &clock);
        let guard = lock(&engine);
        clock.advance(LONG * 3 / 5);
        let mut patience = 20;
        for _ in 0..3 {
            // The retry is due a moment after the last reply, which may come after the clock was moved.
            while renewals.recv_timeout(Duration::from_secs(1)).is_err() {
                clock.advance(Duration::from_secs(2));
                patience -= 1;
                assert!(patience > 0, "the renewal is not retried");
            }
        }
        guard.release().expect("it is held still");
        let events = up_to(&events, "Released");
        assert!(events.iter().any(|event| event.starts_with("AtRisk")));
        assert!(!events.iter().any(|event| event.starts_with("Unreachable")));
    }
}

#[test]
fn a_guard_that_max_hold_has_ended_causes_no_warning() {
    let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
    let (engine, events) = listened_to(Fake::new(generous(), generous()), &clock);
    let limited = mutex(Arc::clone(&engine), "limited").max_hold(Some(SHORT / 2));
    let ended = limited.lock().expect("granted");
    clock.advance(SHORT * 2);
    up_to(&events, "Lost");
    let kept = mutex(Arc::clone(&engine), "kept").lock().expect("granted");
    clock.advance(SHORT * 2);
    // The warning of the first guard would have come before this one.
    let warning = up_to(&events, "HeldLong").pop().unwrap_or_default();
    assert!(warning.contains("kept"), "{warning}");
    assert_eq!(engine.stats().held_long, 1);
    assert_eq!(ended.state(), LeaseState::Lost);
    drop(kept);
}

#[test]
fn a_long_wait_is_told_with_the_length_of_the_queue() {
    let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
    let held = |request: &Request<'_>| match request {
        Request::Lock { .. } => Ok(Reply::Held {
            ttl: Some(LONG),
            holder: "theirs".into(),
            handed_over: false,
        }),
        Request::Inspect { .. } => Ok(Reply::Inspected(vec![Some(Seen {
            waiters: 3,
            ..Seen::default()
        })])),
        request => generous()(request),
    };
    let (engine, events) = listened_to(Fake::new(held, generous()), &clock);
    let stop = Cancel::new();
    thread::scope(|scope| {
        let waiting = mutex(Arc::clone(&engine), "n").cancel_with(&stop);
        let waiting = scope.spawn(move || waiting.lock().map(drop));
        up_to(&events, "Contended");
        let warning = loop {
            clock.advance(SHORT);
            match events.recv_timeout(Duration::from_millis(10)) {
                Ok(event) if event.starts_with("WaitsLong") => break event,
                _ => {}
            }
        };
        assert!(warning.contains("queue: Some(3)"), "{warning}");
        stop.cancel();
        let ended = waiting.join().expect("it does not panic");
        assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    });
}
