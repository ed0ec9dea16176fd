//! Owners that a majority of a quorum has released, and that are left at some nodes.

use std::collections::{HashMap, HashSet};

use super::*;
use crate::engine::renewal::{BATCH, MOST_REPEATED};

/// For how long the node may keep an owner: longer than the tests move the clock.
const KEPT: Duration = Duration::from_hours(1000);

/// A quorum with one node that is down, or hangs.
struct Quorum {
    clock: Arc<ManualClock>,
    engine: Arc<Engine>,
    /// Whether the node is up again.
    is_up: Arc<AtomicBool>,
    /// The owners of each request of the renewal thread.
    repeats: mpsc::Receiver<Vec<String>>,
    /// The owners that the renewal thread has dropped.
    forgotten: Arc<Mutex<Vec<String>>>,
}

impl Quorum {
    /// `kept_for` returns for how long the node may keep the owner of the request of this number.
    fn new(kept_for: fn(u64) -> Duration) -> Self {
        let (clock, is_up) = (still(), Arc::new(AtomicBool::new(false)));
        let (sent, repeats) = mpsc::channel();
        // The releases that a majority has executed, in their order.
        let ended: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
        let (mut granted, released) = (generous(), Arc::clone(&ended));
        let pool = move |request: &Request<'_>| {
            if let Request::Lock { verb, .. } = request {
                if !matches!(verb, Verb::Acquire { .. } | Verb::TakeOver { .. }) {
                    let mut released = released.lock();
                    let number = released.len() as u64;
                    released.insert((**verb.owner()).into(), number);
                }
            }
            granted(request)
        };
        let mut answer = generous();
        let dedicated_connection = move |request: &Request<'_>| {
            let owners = match request {
                Request::Release(batch) => batch.iter().map(|one| one.owner.into()).collect(),
                Request::Lock { verb, .. } => vec![(**verb.owner()).into()],
                _ => return answer(request),
            };
            sent.send(owners).ok();
            answer(request)
        };
        let (begun, is_up_now) = (clock.now(), Arc::clone(&is_up));
        let store = Fake::new(pool, dedicated_connection);
        *store.left_until.lock() = Box::new(move |owner| {
            let number = *ended.lock().get(owner)?;
            let is_up = is_up_now.load(Ordering::SeqCst);
            (!is_up).then(|| begun + kept_for(number))
        });
        let forgotten = Arc::clone(&store.forgotten);
        let engine = store.engine(LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
        Self {
            clock,
            engine,
            is_up,
            repeats,
            forgotten,
        }
    }

    /// Locks and releases these names, all of them at the same time.
    fn release(&self, names: usize) -> Vec<String> {
        let lock = |name: usize| mutex(Arc::clone(&self.engine), &name.to_string()).lock();
        let guards: Vec<_> = (0..names)
            .map(|name| lock(name).expect("granted"))
            .collect();
        let owners = guards.iter().map(|guard| guard.owner().to_owned());
        let owners = owners.collect();
        for guard in guards {
            guard.release().expect("a majority has released it");
        }
        owners
    }

    /// Drops the engine, and moves the clock until nothing keeps it. Returns the number of requests until then.
    fn end(self) -> usize {
        let gone = Arc::downgrade(&self.engine.client);
        drop(self.engine);
        wait_for(|| {
            self.clock.advance(Duration::from_millis(100));
            gone.upgrade().is_none()
        });
        self.repeats.try_iter().count()
    }

    /// Moves the clock until each of these owners was repeated. Returns the requests since the last call, by their owners.
    #[track_caller]
    fn repeats_of(&self, owners: &[String]) -> Vec<Vec<String>> {
        let mut missing: HashSet<&str> = owners.iter().map(String::as_str).collect();
        let (mut requests, begun) = (Vec::new(), Time::now());
        while !missing.is_empty() {
            assert!(Time::now().since(begun) < PATIENCE, "{missing:?}");
            let Ok(owners) = self.repeats.recv_timeout(Duration::from_millis(10)) else {
                self.clock.advance(Duration::from_secs(1));
                continue;
            };
            for owner in &owners {
                missing.remove(owner.as_str());
            }
            requests.push(owners);
        }
        requests
    }
}

#[test]
fn an_owner_is_released_again_until_no_node_has_it() {
    let quorum = Quorum::new(|_| KEPT);
    let owners = quorum.release(1);
    // A majority has confirmed the release, so nothing keeps the program from its end.
    assert!(quorum.engine.close(Duration::ZERO));
    for _ in 0..3 {
        quorum.repeats_of(&owners);
    }
    // The node confirms the release that is on its way, or the next one. Then nothing keeps the engine.
    quorum.is_up.store(true, Ordering::SeqCst);
    assert!(quorum.end() <= 1, "it goes on");
}

#[test]
fn a_thousand_left_owners_share_requests() {
    let quorum = Quorum::new(|_| KEPT);
    let owners = quorum.release(1000);
    for _ in 0..3 {
        let requests = quorum.repeats_of(&owners);
        // The first of them may be due again before the last.
        assert!(
            requests.len() <= 3 * owners.len() / BATCH,
            "{}",
            requests.len()
        );
    }
}

#[test]
fn of_too_many_left_owners_those_go_first_whose_keys_end_first() {
    const EXCESS: usize = 100;
    let quorum = Quorum::new(|number| KEPT + Duration::from_millis(number));
    let owners = quorum.release(MOST_REPEATED + EXCESS);
    let (dropped, kept) = owners.split_at(EXCESS);
    quorum.repeats_of(kept);
    assert_eq!(*quorum.forgotten.lock(), dropped);
    let requests = quorum.repeats_of(kept);
    let repeated: HashSet<&str> = requests.iter().flatten().map(String::as_str).collect();
    assert!(
        dropped
            .iter()
            .all(|owner| !repeated.contains(owner.as_str()))
    );
}

#[test]
fn an_owner_whose_end_is_confirmed_in_time_gets_no_further_request() {
    let quorum = Quorum::new(|_| KEPT);
    quorum.release(1);
    // The clock stands still, so the repeat is not due yet.
    quorum.is_up.store(true, Ordering::SeqCst);
    assert_eq!(quorum.end(), 0);
}
