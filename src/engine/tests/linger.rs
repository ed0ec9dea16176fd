//! Leases that linger, over a store whose messages the test sends. The clock moves only if the test moves it.

use super::*;
use crate::core::lease::LeaseStatus;
use crate::engine::process_lease::ProcessLease;
use crate::name::RECALL;
use crate::sys::AtomicBool;

/// How long the leases linger, which is shorter than they last.
const LINGER: Duration = Duration::from_mins(1);

/// A [`Fake`] with a subscription.
struct Listening {
    fake: Fake,
    messages: crossbeam_channel::Receiver<String>,
}

impl Store for Listening {
    fn call(&self, request: &Request<'_>, deadline: Deadline<'_>) -> Result<Answer, Failure> {
        Store::call(&self.fake, request, deadline)
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        self.fake.dedicated_connection()
    }

    fn last_data_loss_sign(&self) -> Time {
        self.fake.last_data_loss_sign()
    }

    fn listen(
        &self,
        channels: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        hear(PubSubEvent::Subscribed);
        for message in &self.messages {
            let (channel, payload) = (channels[0], message.as_bytes());
            if !hear(PubSubEvent::Message { channel, payload }) {
                return Ok(());
            }
        }
        Err(unavailable())
    }
}

/// An engine whose mutexes linger, and the sender of its messages.
struct Lingering {
    engine: Arc<Engine>,
    clock: Arc<ManualClock>,
    messages: crossbeam_channel::Sender<String>,
}

impl Lingering {
    fn over(fake: Fake, linger: Duration) -> Self {
        let clock = still();
        Self::by_clock(
            fake,
            linger,
            Arc::clone(&clock) as Arc<dyn TestMachine>,
            clock,
        )
    }

    /// Makes an engine that reads `read`, which shows the time of `clock`.
    fn by_clock(
        fake: Fake,
        linger: Duration,
        read: Arc<dyn TestMachine>,
        clock: Arc<ManualClock>,
    ) -> Self {
        let (sender, messages) = crossbeam_channel::unbounded();
        let mut settings = Settings::default();
        settings.options.lease = LONG;
        settings.options.linger = linger;
        let store = Arc::new(Listening { fake, messages });
        let engine = Engine::on(read, settings, store);
        Self {
            engine,
            clock,
            messages: sender,
        }
    }

    fn count(&self) -> u64 {
        self.engine.stats().lingering
    }

    /// Locks until the mutex lingers, which needs the subscription.
    fn linger(&self) {
        wait_for(|| {
            drop(lock(&self.engine));
            self.count() == 1
        });
    }
}

/// Redis has granted the lock, and another process has recalled it, before this process reads the reply.
#[test]
fn a_recall_that_overtakes_its_grant_is_remembered() {
    let (verbs, sent) = mpsc::channel();
    let (go_on, gate) = mpsc::channel::<()>();
    // The messages, for the next request.
    let recalls: Arc<Mutex<Option<crossbeam_channel::Sender<String>>>> = Arc::default();
    let (recall, mut granted) = (Arc::clone(&recalls), recording(verbs));
    let pool = move |request: &Request<'_>| {
        if let (Request::Lock { verb, .. }, Some(messages)) = (request, recall.lock().take()) {
            let message = format!("{RECALL}{} name", verb.owner());
            messages.send(message).expect("the thread listens");
            gate.recv_timeout(PATIENCE).expect("the recall is read");
        }
        granted(request)
    };
    let lingering = Lingering::over(Fake::new(pool, generous()), LINGER);
    let engine = &lingering.engine;
    lingering.linger();
    engine.leases.end_all_lingers();
    wait_for(|| engine.leases.names.all().is_empty());
    *recalls.lock() = Some(lingering.messages.clone());
    let locking = {
        let engine = Arc::clone(engine);
        thread::spawn(move || lock(&engine))
    };
    wait_for(|| engine.leases.lingers.early_recalls() == 1);
    go_on.send(()).expect("the request waits");
    let guard = locking.join().expect("no panic");
    let owner = guard.owner().to_owned();
    sent.try_iter().for_each(drop);
    guard.release().expect("it is handed over");
    assert_eq!(lingering.count(), 0);
    match sent.try_recv() {
        Ok(Verb::HandOver { owner: ended, .. }) => assert_eq!(*ended, *owner),
        other => panic!("{other:?}"),
    }
}

/// `close` finds no lease to stop, because the grant is on its way.
#[test]
fn a_lease_that_is_granted_during_a_close_does_not_linger() {
    let (asked, was_asked) = mpsc::channel();
    let (go_on, gate) = mpsc::channel::<()>();
    let (is_slow, mut granted) = (Arc::new(AtomicBool::new(false)), generous());
    let slow = Arc::clone(&is_slow);
    let pool = move |request: &Request<'_>| {
        if slow.swap(false, Ordering::SeqCst) {
            asked.send(()).expect("the test waits");
            gate.recv_timeout(PATIENCE).expect("the manager is closed");
        }
        granted(request)
    };
    let lingering = Lingering::over(Fake::new(pool, generous()), LINGER);
    let engine = &lingering.engine;
    lingering.linger();
    engine.leases.end_all_lingers();
    wait_for(|| engine.leases.names.all().is_empty());
    is_slow.store(true, Ordering::SeqCst);
    let locking = {
        let engine = Arc::clone(engine);
        thread::spawn(move || lock(&engine))
    };
    was_asked.recv_timeout(PATIENCE).expect("it asks");
    engine.close(Duration::ZERO);
    go_on.send(()).expect("the request waits");
    drop(locking.join().expect("no panic"));
    assert_eq!(lingering.count(), 0);
    wait_for(|| engine.leases.names.all().is_empty());
}

/// A thread releases the idle lease because it wants other terms. `close` must not report that all is released.
#[test]
fn close_waits_for_the_release_of_an_idle_lease_that_does_not_fit() {
    let (asked, was_asked) = mpsc::channel();
    let (go_on, gate) = mpsc::channel::<()>();
    let (is_slow, mut granted) = (Arc::new(AtomicBool::new(false)), generous());
    let slow = Arc::clone(&is_slow);
    let pool = move |request: &Request<'_>| {
        if slow.swap(false, Ordering::SeqCst) {
            asked.send(()).expect("the test waits");
            gate.recv_timeout(PATIENCE).expect("the manager is closed");
        }
        granted(request)
    };
    let lingering = Lingering::over(Fake::new(pool, generous()), LINGER);
    let engine = &lingering.engine;
    lingering.linger();
    is_slow.store(true, Ordering::SeqCst);
    let locking = {
        let engine = Arc::clone(engine);
        thread::spawn(move || mutex(engine, "name").fencing(false).try_lock().map(drop))
    };
    was_asked.recv_timeout(PATIENCE).expect("it releases");
    assert!(!engine.close(Duration::ZERO), "Redis has not replied");
    go_on.send(()).expect("the request waits");
    assert!(engine.close(PATIENCE));
    locking.join().expect("no panic").ok();
}

/// The clock of a test, on which the wakeup thread stops while there is a gate.
struct GatedClock {
    clock: Arc<ManualClock>,
    gate: Mutex<Option<crossbeam_channel::Receiver<()>>>,
}

impl TestMachine for GatedClock {
    fn now(&self) -> Time {
        if thread::current().name() == Some("leasehold-wakeup-0") {
            let gate = self.gate.lock().clone();
            gate.map(|gate| gate.recv_timeout(PATIENCE));
        }
        self.clock.now()
    }
}

/// The wakeup thread has taken the idle lease out of its queue, and has not added its release yet.
#[test]
fn close_waits_for_a_recall_under_way() {
    let read = Arc::new(GatedClock {
        clock: still(),
        gate: Mutex::default(),
    });
    let fake = Fake::new(generous(), generous());
    let (clock, reader) = (
        Arc::clone(&read.clock),
        Arc::clone(&read) as Arc<dyn TestMachine>,
    );
    let lingering = Lingering::by_clock(fake, LINGER, reader, clock);
    let engine = &lingering.engine;
    lingering.linger();
    let owner = lock(engine).owner().to_owned();
    assert_eq!(lingering.count(), 1);
    let (go_on, gate) = crossbeam_channel::bounded(0);
    *read.gate.lock() = Some(gate);
    let message = format!("{RECALL}{owner} name");
    lingering
        .messages
        .send(message)
        .expect("the thread listens");
    wait_for(|| lingering.count() == 0);
    assert!(!engine.close(Duration::ZERO), "nothing is released yet");
    *read.gate.lock() = None;
    drop(go_on);
    assert!(engine.close(PATIENCE));
    wait_for(|| engine.leases.names.all().is_empty());
}

#[test]
fn the_timer_ends_the_linger_before_the_lease_is_over() {
    let (verbs, sent) = mpsc::channel();
    let lingering = Lingering::over(Fake::new(generous(), recording(verbs)), LINGER);
    lingering.linger();
    lingering.clock.advance(LINGER / 2);
    drop(lock(&lingering.engine));
    lingering.clock.advance(LINGER / 2);
    wait_for(|| lingering.count() == 0);
    let verb = sent.recv_timeout(PATIENCE).expect("it is released");
    assert!(matches!(verb, Verb::HandOver { .. }), "{verb:?}");
    wait_for(|| lingering.engine.leases.names.all().is_empty());
    assert_eq!(lingering.engine.stats().lost(), 0);
}

#[test]
fn a_contended_renewal_is_a_recall() {
    let (verbs, sent) = mpsc::channel();
    let mut granted = recording(verbs);
    let dedicated_connection = move |request: &Request<'_>| match request {
        Request::Renew(batch) => {
            let contended = Renewed::Done { contended: true };
            Ok(Reply::Renewed(vec![contended; batch.len()]))
        }
        request => granted(request),
    };
    let lingering = Lingering::over(Fake::new(generous(), dedicated_connection), LONG);
    lingering.linger();
    lingering.clock.advance(LONG / 3);
    wait_for(|| lingering.count() == 0);
    let verb = sent.recv_timeout(PATIENCE).expect("it is handed over");
    assert!(matches!(verb, Verb::HandOver { .. }), "{verb:?}");
}

#[test]
fn an_idle_lease_whose_deadline_passes_is_lost_once() {
    let (keep, dedicated_connection) = stuck();
    let fake = Fake::new(generous(), dedicated_connection);
    let lingering = Lingering::over(fake, LONG * 2);
    lingering.linger();
    lingering.clock.advance(LONG);
    let stats = || lingering.engine.stats();
    wait_for(|| lingering.count() == 0 && stats().lost_expired == 1);
    drop(keep);
    drop(lock(&lingering.engine));
    assert_eq!(stats().lost(), 1);
}

#[test]
fn a_thread_that_finds_the_idle_lease_lost_asks_redis() {
    let lingering = Lingering::over(Fake::new(generous(), generous()), LINGER);
    lingering.linger();
    let engine = &lingering.engine;
    let entry = engine.leases.names.all().remove(0);
    let idle = entry.lock().queue.process_leases().next().cloned();
    let idle = idle.expect("it lingers");
    idle.validity.lose(LostCause::Taken);
    let guard = mutex(Arc::clone(engine), "name").try_lock();
    let guard = guard.expect("asked").expect("granted");
    assert_ne!(guard.owner(), &*engine.client.owner_of(&idle));
    assert_eq!((engine.stats().lost_taken, lingering.count()), (1, 0));
}

#[test]
fn an_idle_lease_is_not_used_again_after_a_sign_of_lost_data() {
    let fake = Fake::new(generous(), generous());
    let cut = Arc::clone(&fake.cut);
    let lingering = Lingering::over(fake, LINGER);
    lingering.linger();
    let owner = || lock(&lingering.engine).owner().to_owned();
    let first = owner();
    assert_eq!(owner(), first);
    lingering.clock.advance(Duration::from_secs(1));
    let now = lingering.engine.client.now().as_nanos();
    cut.store(now, Ordering::SeqCst);
    assert_ne!(owner(), first);
}

/// The timer holds the engine, and goes with the lease.
#[test]
fn the_engine_ends_when_nothing_lingers_any_more() {
    let lingering = Lingering::over(Fake::new(generous(), generous()), LINGER);
    lingering.linger();
    let Lingering { engine, clock, .. } = lingering;
    let weak = Arc::downgrade(&engine.leases);
    drop(engine);
    assert!(weak.upgrade().is_some(), "the lease must be released");
    clock.advance(LINGER);
    wait_for(|| weak.strong_count() == 0);
    let other = Lingering::over(Fake::new(generous(), generous()), LINGER);
    other.linger();
    let weak = Arc::downgrade(&other.engine.leases);
    assert!(other.engine.close(PATIENCE));
    drop(other);
    wait_for(|| weak.strong_count() == 0);
}

/// The lease before drew the owner of the first lease, which never lingers. The threads hand it on in memory all the same.
#[test]
fn threads_hand_on_a_lease_after_one_that_does_not_linger() {
    let (verbs, sent) = mpsc::channel();
    let lingering = Lingering::over(Fake::new(recording(verbs), generous()), LINGER);
    let engine = &lingering.engine;
    let plain = mutex(Arc::clone(engine), "name").linger(Duration::ZERO);
    let guard = plain.lock().expect("granted");
    let threads: Vec<_> = (0..3)
        .map(|number| {
            let engine = Arc::clone(engine);
            let thread = thread::spawn(move || drop(lock(&engine)));
            wait_for(|| engine_waits(&lingering.engine) == number + 1);
            thread
        })
        .collect();
    drop(guard);
    for thread in threads {
        thread.join().expect("no panic");
    }
    let verbs: Vec<_> = sent.try_iter().collect();
    let asked = verbs.iter().filter(|verb| verb.asks()).count();
    assert_eq!(asked, 2, "{verbs:?}");
}

/// Returns how many threads wait for a lock.
fn engine_waits(engine: &Engine) -> u64 {
    engine.stats().waiting
}

/// Returns the owners that a request may end in Redis.
fn given_away(request: &Request<'_>) -> Vec<Arc<str>> {
    match request {
        Request::Lock { verb, .. } => match verb {
            Verb::Acquire { .. } => Vec::new(),
            Verb::TakeOver { from, .. } => vec![Arc::clone(from)],
            verb => vec![Arc::clone(verb.owner())],
        },
        Request::Release(batch) => batch.iter().map(|one| Arc::from(one.owner)).collect(),
        _ => Vec::new(),
    }
}

/// After such a request, another process may hold the lock. So the lease has ended here when the store gets the request,
/// whatever ends it.
#[test]
fn a_lease_ends_here_before_a_request_may_give_it_away() {
    type End = fn(&Lingering, &str);
    type Known = (Arc<str>, Arc<ProcessLease>);
    let ends: [(&str, Duration, End); 4] = [
        ("its guard is dropped", Duration::ZERO, |_, _| {}),
        ("a recall", LINGER, |lingering, owner| {
            let message = format!("{RECALL}{owner} name");
            lingering
                .messages
                .send(message)
                .expect("the thread listens");
        }),
        ("the linger is over", LINGER, |lingering, _| {
            lingering.clock.advance(LINGER);
        }),
        ("a thread wants other terms", LINGER, |lingering, _| {
            let other = mutex(Arc::clone(&lingering.engine), "name").fencing(false);
            drop(other.try_lock().expect("granted"));
        }),
    ];
    for (what, linger, end) in ends {
        let known: Arc<Mutex<Option<Known>>> = Arc::default();
        let (sent, was_sent) = mpsc::channel();
        let clock = still();
        let script = || {
            let (known, sent, clock) = (Arc::clone(&known), sent.clone(), Arc::clone(&clock));
            let mut granted = generous();
            move |request: &Request<'_>| {
                let known = known.lock();
                for owner in given_away(request) {
                    if let Some((_, lease)) = known.as_ref().filter(|known| known.0 == owner) {
                        sent.send(lease.validity.status(clock.now())).ok();
                    }
                }
                granted(request)
            }
        };
        let fake = Fake::new(script(), script());
        let read = Arc::clone(&clock) as Arc<dyn TestMachine>;
        let lingering = Lingering::by_clock(fake, linger, read, Arc::clone(&clock));
        if !linger.is_zero() {
            lingering.linger();
        }
        let guard = lock(&lingering.engine);
        let owner: Arc<str> = guard.owner().into();
        let entry = lingering.engine.leases.names.all().remove(0);
        let lease = entry.lock().queue.process_lease().cloned();
        *known.lock() = Some((Arc::clone(&owner), lease.expect("it is held")));
        drop(guard);
        end(&lingering, &owner);
        let status = was_sent.recv_timeout(PATIENCE).expect(what);
        assert_eq!(status, LeaseStatus::Ended, "{what}");
    }
}
