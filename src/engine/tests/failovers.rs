//! What a process sends after a failover.

use super::*;
use crate::core::endings::RENEWED_AFTER;

/// What a new master gets on the renewal thread's connection.
#[derive(Debug, PartialEq)]
enum Sent {
    Gives(String),
    Renews,
    Ends(String),
}

/// If the release came first, another process could get the lock while a holder whose grant was lost still reads held.
#[test]
fn hand_overs_are_repeated_first_then_leases_are_renewed_then_locks_are_freed() {
    let clock = still();
    let mut granted = generous();
    let pool = move |request: &Request<'_>| match request {
        Request::Lock {
            target,
            verb: Verb::Release { .. },
            ..
        } if target.name() == "given" => Ok(Reply::HandedOver(Some("b1".into()))),
        request => granted(request),
    };
    let (sender, sent) = mpsc::channel();
    let mut granted = generous();
    let dedicated_connection = move |request: &Request<'_>| {
        let what = match request {
            Request::Lock { target, verb, .. } => match verb {
                Verb::GiveTo { .. } => Sent::Gives(target.name().to_owned()),
                _ => Sent::Ends(target.name().to_owned()),
            },
            Request::Renew(_) => Sent::Renews,
            _ => return granted(request),
        };
        sender.send(what).ok();
        granted(request)
    };
    let failover = Failover::default();
    let fake = Fake {
        failover: Some(Arc::clone(&failover)),
        ..Fake::new(pool, dedicated_connection)
    };
    let engine = fake.engine(LONG, Arc::clone(&clock) as Arc<dyn Clock>);
    let lock = |name| mutex(Arc::clone(&engine), name).lock().expect("granted");
    let _held = lock("held");
    for name in ["freed", "given"] {
        lock(name).release().expect("it was held");
    }
    (failover.lock().as_ref().expect("the engine listens"))();
    let next = || sent.recv_timeout(PATIENCE).expect("a request");
    assert_eq!(next(), Sent::Gives("given".into()));
    clock.advance(RENEWED_AFTER);
    assert_eq!(next(), Sent::Renews);
    clock.advance(Duration::from_secs(1));
    assert_eq!(next(), Sent::Ends("freed".into()));
}
