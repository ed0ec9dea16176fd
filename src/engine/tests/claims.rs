//! Adoptions whose replies are lost or late, and several adoptions at a time.

use super::*;
use crate::claim::Claim;
use crate::engine::guard_inner::GuardInner;

const DETACHED: &str = "lh1:00000000-0000-4000-8000-000000000000:x";

/// Returns a script that gives these replies to adoptions, and a receiver of their owners.
fn adopting(
    answers: impl IntoIterator<Item = Result<Reply, Failure>>,
) -> (
    mpsc::Receiver<Arc<str>>,
    impl FnMut(&Request<'_>) -> Result<Reply, Failure> + Send,
) {
    let (asks, asked) = mpsc::channel();
    let mut answers: VecDeque<_> = answers.into_iter().collect();
    let pool = move |request: &Request<'_>| match request {
        Request::Adopt { adopt, .. } => {
            assert_eq!((&*adopt.from, adopt.last), (DETACHED, 7));
            asks.send(Arc::clone(&adopt.owner)).ok();
            answers.pop_front().expect("an answer")
        }
        request => generous()(request),
    };
    (asked, pool)
}

fn claim() -> Claim {
    Claim::new("name".into(), DETACHED.into(), 7)
}

fn adopt(engine: &Engine) -> crate::error::Result<GuardInner> {
    let options = &engine.client.settings.options;
    engine.claims.adopt(&claim(), options, None)
}

fn granted() -> Reply {
    Reply::Granted {
        fence: 8,
        count: None,
        rest: Vec::new(),
        contended: false,
    }
}

fn taken() -> Reply {
    Reply::NotOwner(crate::message::Gone::Taken)
}

#[test]
fn the_next_call_repeats_an_adoption_without_a_reply_and_no_later_call_does() {
    let (asked, pool) = adopting([
        Err(unavailable()),
        Err(unavailable()),
        Ok(granted()),
        Ok(taken()),
        Ok(taken()),
    ]);
    let engine = Fake::new(pool, generous()).engine(LONG, Arc::new(RealMachine));
    for _ in 0..2 {
        let error = adopt(&engine).map(drop);
        assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
    }
    let guard = LockGuard::new(adopt(&engine).expect("granted"));
    assert!(matches!(
        mutex(Arc::clone(&engine), "name").try_lock(),
        Ok(None)
    ));
    let owners: Vec<_> = asked.try_iter().collect();
    assert!(owners.iter().all(|owner| **owner == *guard.owner()));
    assert_eq!(owners.len(), 3);
    // The owner is not used again, neither while the guard lives nor after it.
    let mut others = vec![guard.owner().to_owned()];
    let mut guard = Some(guard);
    for _ in 0..2 {
        let error = adopt(&engine).map(drop);
        assert!(
            matches!(&error, Err(Error::Lost(lost)) if lost.cause == LostCause::Taken && lost.fence == 7),
            "{error:?}"
        );
        let owner = asked.try_recv().expect("Redis was asked");
        assert!(!others.contains(&owner.to_string()), "used again");
        others.push(owner.to_string());
        drop(guard.take());
    }
}

#[test]
fn the_owner_of_a_refused_adoption_is_not_used_again() {
    let refused = Failure::plain(FailureKind::Denied, Outcome::NotExecuted, "no");
    let (asked, pool) = adopting([Err(refused), Ok(granted())]);
    let engine = Fake::new(pool, generous()).engine(LONG, Arc::new(RealMachine));
    let error = adopt(&engine).map(drop);
    assert!(matches!(error, Err(Error::Denied { .. })), "{error:?}");
    drop(adopt(&engine).expect("granted"));
    let owners: Vec<_> = asked.try_iter().collect();
    assert_ne!(owners[0], owners[1]);
}

#[test]
fn an_adoption_that_is_granted_too_late_is_repeated() {
    let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
    let (asked, mut pool) = adopting([Ok(granted()), Ok(granted())]);
    let late = Arc::clone(&clock);
    let mut is_first = true;
    let pool = move |request: &Request<'_>| {
        if std::mem::take(&mut is_first) {
            late.advance(SHORT);
        }
        pool(request)
    };
    let engine = Fake::new(pool, generous()).engine(SHORT, clock);
    let error = adopt(&engine).map(drop);
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
    drop(adopt(&engine).expect("granted"));
    let owners: Vec<_> = asked.try_iter().collect();
    assert_eq!(owners[0], owners[1]);
}

/// Redis may have executed either of two calls without a reply.
#[test]
fn the_next_call_repeats_each_adoption_without_a_reply() {
    let (asks, asked) = mpsc::channel();
    let (answers, next) = mpsc::channel();
    let next = Arc::new(Mutex::new(next));
    let store = Concurrent(move |owner: &Arc<str>| {
        asks.send(Arc::clone(owner)).ok();
        let next = next.lock();
        next.recv_timeout(PATIENCE).expect("an answer")
    });
    let engine = engine(store, LONG, Arc::new(RealMachine));
    let ask = || {
        let engine = Arc::clone(&engine);
        thread::spawn(move || adopt(&engine).map(LockGuard::new))
    };
    let both = [ask(), ask()];
    let owners = [(); 2].map(|()| asked.recv_timeout(PATIENCE).expect("asked"));
    assert_ne!(owners[0], owners[1]);
    for thread in both {
        answers.send(Err(unavailable())).expect("it waits");
        drop(thread);
    }
    // Wait until the engine keeps both owners.
    let started = Time::now();
    while engine.claims.tried.count(DETACHED) < 2 {
        assert!(Time::now().since(started) < PATIENCE, "not kept");
        thread::yield_now();
    }
    answers.send(Ok(taken())).expect("it waits");
    answers.send(Ok(granted())).expect("it waits");
    let guard = ask().join().expect("no panic").expect("granted");
    let again = [(); 2].map(|()| asked.recv_timeout(PATIENCE).expect("asked"));
    assert!(again.iter().all(|owner| owners.contains(owner)) && again[0] != again[1]);
    assert_eq!(*again[1], *guard.owner());
    assert_eq!(engine.claims.tried.count(DETACHED), 0);
}

/// A store that handles several adoptions at a time.
struct Concurrent<F>(F);

impl<F> Store for Concurrent<F>
where
    F: Fn(&Arc<str>) -> Result<Reply, Failure> + Send + Sync,
{
    fn call(&self, request: &Request<'_>, _: Deadline<'_>) -> Result<Answer, Failure> {
        answer(match request {
            Request::Adopt { adopt, .. } => (self.0)(&adopt.owner),
            request => generous()(request),
        })
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        Box::new(Fake::new(generous(), generous()))
    }

    fn listen(
        &self,
        _: &[&str],
        _: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        Err(unavailable())
    }
}

/// Redis may execute a late request of the guard's owner when the adopter has released the lock, and then give the lock to
/// that owner again.
#[test]
fn a_claim_has_a_new_owner_if_a_request_of_the_old_one_may_come_late() {
    let unconfirmed = FailureKind::NotReplicated {
        wanted: 2,
        confirmed: 1,
    };
    let unconfirmed = Failure::plain(unconfirmed, Outcome::PartlyExecuted, "1 of 2");
    let refused = Failure::plain(FailureKind::Denied, Outcome::NotExecuted, "no");
    for (adoption, is_new) in [
        (Ok(granted()), true),
        (Err(unconfirmed), true),
        (Ok(taken()), false),
        (Err(refused), false),
        (Err(unavailable()), false),
    ] {
        let held = Reply::Held {
            ttl: Some(Duration::from_millis(1)),
            holder: DETACHED.into(),
            handed_over: false,
        };
        let mut first = VecDeque::from([Ok(held), Err(unavailable())]);
        let mut later = generous();
        let (adopts, adopted) = mpsc::channel();
        let pool = move |request: &Request<'_>| match request {
            Request::Adopt { adopt, .. } => {
                adopts.send((*adopt).clone()).ok();
                adoption.clone()
            }
            Request::Lock {
                verb: Verb::Acquire { .. },
                ..
            } => first.pop_front().unwrap_or_else(|| later(request)),
            request => later(request),
        };
        let (withdrawals, dedicated_connection) = finding_nothing();
        let engine = Fake::new(pool, dedicated_connection).engine(LONG, Arc::new(RealMachine));
        let guard = lock(&engine);
        let (owner, fence) = (guard.owner().to_owned(), guard.fence());
        let claim = guard.detach();
        let adopt = adopted.try_recv().expect("it adopts");
        assert_eq!((&*adopt.from, adopt.last), (&*owner, claim.fence()));
        assert_eq!(claim.fence(), fence);
        if is_new {
            assert_eq!(claim.owner(), &*adopt.owner);
            let (_, withdrawn) = withdrawals.recv_timeout(PATIENCE).expect("withdrawn");
            assert_eq!(*withdrawn, *owner);
        } else {
            assert_eq!(claim.owner(), owner);
        }
    }
}

/// Redis may have executed the first adoption, whose reply is lost.
#[test]
fn an_adoption_of_a_detaching_thread_is_repeated_until_its_outcome_is_known() {
    let mut acquires = VecDeque::from([Err(unavailable()), Ok(granted())]);
    let mut adoptions = VecDeque::from([Err(unavailable()), Ok(granted())]);
    let mut later = generous();
    let (adopts, adopted) = mpsc::channel();
    let pool = move |request: &Request<'_>| match request {
        Request::Adopt { adopt, .. } => {
            adopts.send((*adopt).clone()).ok();
            adoptions.pop_front().expect("it is asked twice")
        }
        Request::Lock {
            verb: Verb::Acquire { .. },
            ..
        } => acquires.pop_front().expect("it is asked twice"),
        request => later(request),
    };
    let settings = Settings {
        wait_through_outages: true,
        ..Settings::default()
    };
    let fake = Fake::new(pool, generous());
    let engine = Engine::on(Arc::new(RealMachine), settings, Arc::new(fake));
    let claim = lock(&engine).detach();
    let adopts: Vec<_> = adopted.try_iter().collect();
    assert_eq!((adopts.len(), &adopts[0]), (2, &adopts[1]));
    assert_eq!(claim.owner(), &*adopts[0].owner);
    assert!(!adopts[0].shortens);
}

#[test]
fn a_claim_has_the_owner_of_its_guard() {
    let (asked, pool) = adopting([]);
    let engine = Fake::new(pool, generous()).engine(LONG, Arc::new(RealMachine));
    let guard = lock(&engine);
    let owner = guard.owner().to_owned();
    assert_eq!(guard.detach().owner(), owner);
    assert!(asked.try_recv().is_err(), "it adopts");
}
