//! Multi-locks over several slots.

use super::*;
use crate::lock::multi::MultiLock;
use crate::name::LockKey;

/// A store in which all names of one request must be in the same slot.
struct Slotted(Fake);

impl Store for Slotted {
    fn call(&self, request: &Request<'_>, deadline: Deadline<'_>) -> Result<Answer, Failure> {
        self.0.call(request, deadline)
    }

    fn has_slots(&self) -> bool {
        true
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        self.0.dedicated_connection()
    }

    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        self.0.listen(channels, hear)
    }
}

/// The system's clock, which the test sets ahead.
#[derive(Default)]
struct Ahead(AtomicU64);

impl TestMachine for Ahead {
    fn now(&self) -> Time {
        crate::sys::real::now() + Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// Returns a script that grants each request for names, with a fence for each.
fn generous_to_sets() -> impl FnMut(&Request<'_>) -> Result<Reply, Failure> + Send {
    let mut all = generous();
    move |request| match (all(request)?, request) {
        (Reply::Granted { fence, .. }, Request::Lock { target, .. }) => Ok(Reply::Granted {
            fence,
            count: None,
            rest: vec![fence; target.keys().len() - 1],
            contended: false,
        }),
        (reply, _) => Ok(reply),
    }
}

fn slots(request: &Request<'_>) -> Option<(Vec<u16>, bool)> {
    match request {
        Request::Lock { target, verb, .. } => {
            let slots = target.keys().iter().map(LockKey::slot).collect();
            Some((slots, matches!(verb, Verb::Acquire { .. })))
        }
        _ => None,
    }
}

fn held() -> Reply {
    Reply::Held {
        ttl: Some(Duration::from_millis(1)),
        holder: "lh1:other:l".into(),
        handed_over: false,
    }
}

#[test]
fn a_multi_lock_over_several_slots_acquires_slot_by_slot_and_only_a_try_undoes_it() {
    let names = ["{y}1", "{x}1", "{x}2"];
    let slot = |name| LockKey::new("", name).expect("a name").slot();
    let last_slot = names.map(slot).into_iter().max().expect("there are some");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, mut all) = (Arc::clone(&seen), generous_to_sets());
    let mut busy = true;
    let pool = move |request: &Request<'_>| {
        if let Some((slots, asks)) = slots(request) {
            log.lock().push((slots.clone(), asks));
            if slots[0] == last_slot && std::mem::take(&mut busy) {
                return Ok(held());
            }
        }
        all(request)
    };
    let engine = engine(
        Slotted(Fake::new(pool, generous())),
        LONG,
        Arc::new(RealMachine),
    );
    let set = MultiLock::new(Arc::clone(&engine), names);
    // The names of the second slot are held, so the try releases those of the first.
    assert!(set.try_lock().expect("asked").is_none());
    let guard = set.lock().expect("granted");
    let leases: Vec<_> = guard.leases().iter().map(Lease::name).collect();
    assert_eq!(leases, ["{x}1", "{x}2", "{y}1"]);
    guard.release().expect("held");

    let mut slots = names.map(slot).to_vec();
    slots.sort_unstable();
    let (first, second): (Vec<_>, Vec<_>) = slots.iter().partition(|slot| **slot != last_slot);
    let asked = |slots: &Vec<u16>| (slots.clone(), true);
    let released = |slots: &Vec<u16>| (slots.clone(), false);
    assert_eq!(
        *seen.lock(),
        [
            asked(&first),
            asked(&second),
            released(&first),
            asked(&first),
            asked(&second),
            released(&first),
            released(&second),
        ]
    );
}

/// The wait for the second slot outlasts the lease of the first.
#[test]
fn a_multi_lock_that_loses_an_earlier_slot_releases_all_and_begins_again() {
    let names = ["{y}1", "{x}1"];
    let slot = |name| LockKey::new("", name).expect("a name").slot();
    let mut expected = names.map(slot);
    expected.sort_unstable();
    let [first, second] = expected;
    let clock = Arc::new(Ahead::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, jump, mut all) = (Arc::clone(&seen), Arc::clone(&clock), generous_to_sets());
    let pool = move |request: &Request<'_>| {
        let Some((slots, asks)) = slots(request) else {
            return all(request);
        };
        log.lock().push((slots[0], asks));
        if slots[0] == second && jump.0.load(Ordering::SeqCst) == 0 {
            let longer = (LONG * 2).as_nanos().try_into().expect("it is small");
            jump.0.store(longer, Ordering::SeqCst);
            return Ok(held());
        }
        all(request)
    };
    let engine = engine(Slotted(Fake::new(pool, generous())), LONG, clock);
    let guard = MultiLock::new(engine, names).renew(false).lock();
    let guard = guard.expect("it begins again");
    guard.check().expect("both are held");
    let asked: Vec<_> = seen
        .lock()
        .iter()
        .filter(|(_, asks)| *asks)
        .copied()
        .collect();
    let asked: Vec<_> = asked.iter().map(|(slot, _)| *slot).collect();
    assert_eq!(asked, [first, second, second, first, second]);
    // The second slot was released in between, so that others could have it.
    assert!(seen.lock().contains(&(second, false)));
    guard.release().expect("both are held");
}
