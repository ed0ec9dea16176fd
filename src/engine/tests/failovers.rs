//! The requests of a process after a failover.

use super::*;
use crate::core::endings::{AGAIN_AFTER, FREED_AFTER, RENEWED_AFTER};
use crate::message::Gone;
use crate::name::Target;

/// A request that a new master gets on the renewal thread's connection.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sent {
    Gives(String),
    Renews,
    Ends(String),
}

/// The reply to the renewals of this number of leases, which other owners have.
fn gone(leases: usize) -> Reply {
    Reply::Renewed(vec![Renewed::Gone(Gone::Taken); leases])
}

/// A server on which another owner has each lock that is handed over. Sends the owner that ends.
fn taken(ended: mpsc::Sender<String>) -> impl FnMut(&Request<'_>) -> Result<Reply, Failure> + Send {
    let mut granted = generous();
    move |request| match request {
        Request::Lock {
            verb: Verb::HandOver { owner, .. },
            ..
        } => {
            ended.send(owner.to_string()).ok();
            Ok(Reply::NotOwner(Gone::Taken))
        }
        request => granted(request),
    }
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
        } => match target.name() {
            "given" => Ok(Reply::HandedOver(Some("b1".into()))),
            "unanswered" => Err(unavailable()),
            _ => granted(request),
        },
        request => granted(request),
    };
    let (sender, sent) = mpsc::channel();
    let (is_up, tries) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut granted = generous();
    let dedicated_connection = {
        let (is_up, tries) = (Arc::clone(&is_up), Arc::clone(&tries));
        move |request: &Request<'_>| {
            if !is_up.load(Ordering::SeqCst) {
                tries.fetch_add(1, Ordering::SeqCst);
                return Err(unavailable());
            }
            let ends = |target: &Target| Sent::Ends(target.name().to_owned());
            let what = match request {
                Request::Lock { target, verb, .. } => match verb {
                    Verb::GiveTo { .. } => vec![Sent::Gives(target.name().to_owned())],
                    _ => vec![ends(target)],
                },
                Request::Release(batch) => batch.iter().map(|one| ends(one.target)).collect(),
                Request::Renew(_) => vec![Sent::Renews],
                _ => vec![],
            };
            for one in what {
                sender.send(one).ok();
            }
            granted(request)
        }
    };
    let failover = Failover::default();
    let fake = Fake {
        failover: Some(Arc::clone(&failover)),
        ..Fake::new(pool, dedicated_connection)
    };
    let engine = fake.engine(LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let lock = |name| mutex(Arc::clone(&engine), name).lock().expect("granted");
    let _held = lock("held");
    let [freed, given] = ["freed", "given"].map(|name| {
        let guard = lock(name);
        let owner = guard.owner().to_owned();
        guard.release().expect("it was held");
        owner
    });
    lock("unanswered")
        .release()
        .expect_err("there is no answer");
    wait_for(|| tries.load(Ordering::SeqCst) > 0);
    is_up.store(true, Ordering::SeqCst);
    (failover.lock().as_ref().expect("the engine listens"))();
    let repeat = Sent::Gives("given".into());
    assert_eq!(sent.recv_timeout(PATIENCE), Ok(Sent::Gives("given".into())));
    // The release without an answer would be due, and messages have the ends of both owners repeated.
    clock.advance(RENEWED_AFTER / 4);
    engine.hear("", freed.as_bytes());
    wait_for(|| {
        // The answer to the last repeat may not be noted yet.
        engine.hear("", given.as_bytes());
        sent.try_recv().is_ok_and(|next| {
            assert_eq!(next, repeat);
            true
        })
    });
    let next = || {
        let next = || sent.recv_timeout(PATIENCE).expect("a request");
        std::iter::repeat_with(next)
            .find(|next| *next != repeat)
            .expect("it never ends")
    };
    clock.advance(RENEWED_AFTER);
    assert_eq!(next(), Sent::Renews);
    clock.advance(Duration::from_secs(1));
    let mut rest = [next(), next()];
    rest.sort();
    assert_eq!(
        rest,
        ["freed", "unanswered"].map(|name| Sent::Ends(name.into()))
    );
}

/// The process that has handed the lock over hears of the failover later, and gives the lock to the owner that was lost.
#[test]
fn an_owner_that_is_lost_soon_after_a_failover_is_ended_again() {
    let clock = still();
    let (sender, ended) = mpsc::channel();
    let mut taken = taken(sender);
    let dedicated_connection = move |request: &Request<'_>| match request {
        Request::Renew(batch) => Ok(gone(batch.len())),
        request => taken(request),
    };
    let failover = Failover::default();
    let fake = Fake {
        failover: Some(Arc::clone(&failover)),
        ..Fake::new(generous(), dedicated_connection)
    };
    let engine = fake.engine(LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let guard = mutex(engine, "n").lock().expect("granted");
    (failover.lock().as_ref().expect("the engine listens"))();
    clock.advance(RENEWED_AFTER);
    let loss = guard.on_lost().recv_timeout(PATIENCE).expect("it is lost");
    assert_eq!(loss.cause, LostCause::Taken);
    for after in [FREED_AFTER, AGAIN_AFTER] {
        assert!(ended.try_recv().is_err());
        clock.advance(after);
        let owner = ended.recv_timeout(PATIENCE);
        assert_eq!(owner.as_deref(), Ok(guard.owner()));
    }
}

/// The thread of the guard learns of the loss first, and ends the guard before the watch thread acts.
#[test]
fn a_lost_owner_is_ended_again_although_its_guard_ended_first() {
    let clock = still();
    let (sender, ended) = mpsc::channel();
    let mut granted = generous();
    let pool = move |request: &Request<'_>| match request {
        Request::Renew(batch) => Ok(gone(batch.len())),
        request => granted(request),
    };
    let failover = Failover::default();
    let fake = Fake {
        failover: Some(Arc::clone(&failover)),
        ..Fake::new(pool, taken(sender))
    };
    let engine = fake.engine(LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let mut lost: Vec<_> = (0..50)
        .map(|number| {
            let guard = mutex(Arc::clone(&engine), &format!("n{number}")).lock();
            let guard = guard.expect("granted");
            guard.extend(LONG).expect_err("it is gone");
            guard.owner().to_owned()
        })
        .collect();
    (failover.lock().as_ref().expect("the engine listens"))();
    clock.advance(FREED_AFTER);
    let next = |_: &String| ended.recv_timeout(PATIENCE).expect("it is ended again");
    let mut ended_again: Vec<_> = lost.iter().map(next).collect();
    lost.sort();
    ended_again.sort();
    assert_eq!(ended_again, lost);
}
