//! What listeners are told, and not told.

use super::*;
use crate::event::{Event, SharedListener};

/// An engine whose events come out of the receiver, one after the other.
fn told(store: Fake, clock: &Arc<ManualClock>) -> (Arc<Engine>, mpsc::Receiver<String>) {
    let (sender, events) = mpsc::channel();
    let listener = move |event: &Event<'_>| drop(sender.send(format!("{event:?}")));
    let mut settings = Settings::default();
    settings.options.lease = LONG;
    settings.warn_after = Some(SHORT);
    settings.listener = Some(SharedListener(Arc::new(listener)));
    let (clock, rng) = (Arc::clone(clock), Arc::new(SystemRng::new()));
    let engine = Engine::new(settings, Arc::new(store), clock, rng);
    (engine, events)
}

/// All that was told up to the first of this kind.
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
        || Err(Failure::plain(FailureKind::Denied, false, "NOPERM")),
    ];
    for refusal in refusals {
        let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
        let (asked, renewals) = mpsc::channel();
        let dedicated_connection = move |call: &Call<'_>| match call {
            Call::Renew(_) => {
                asked.send(()).ok();
                refusal()
            }
            call => generous()(call),
        };
        let (engine, events) = told(Fake::new(generous(), dedicated_connection), &clock);
        let guard = lock(&engine);
        clock.advance(LONG * 3 / 5);
        let mut patience = 20;
        for _ in 0..3 {
            // It is due a moment after the last answer was taken in, which may be after the clock was moved.
            while renewals.recv_timeout(Duration::from_secs(1)).is_err() {
                clock.advance(Duration::from_secs(2));
                patience -= 1;
                assert!(patience > 0, "it is not asked for again");
            }
        }
        guard.release().expect("it is held still");
        let told = up_to(&events, "Released");
        assert!(told.iter().any(|event| event.starts_with("AtRisk")));
        assert!(!told.iter().any(|event| event.starts_with("Unreachable")));
    }
}

#[test]
fn nobody_is_warned_of_a_guard_that_its_limit_has_ended() {
    let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
    let (engine, events) = told(Fake::new(generous(), generous()), &clock);
    let limited = mutex(Arc::clone(&engine), "limited").max_hold(Some(SHORT / 2));
    let ended = limited.lock().expect("granted");
    clock.advance(SHORT * 2);
    up_to(&events, "Lost");
    let kept = mutex(Arc::clone(&engine), "kept").lock().expect("granted");
    clock.advance(SHORT * 2);
    // Of the two that were due this is the later.
    let warning = up_to(&events, "HeldLong").pop().unwrap_or_default();
    assert!(warning.contains("kept"), "{warning}");
    assert_eq!(engine.stats().held_long, 1);
    assert_eq!(ended.state(), LeaseState::Lost);
    drop(kept);
}
