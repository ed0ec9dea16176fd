//! The renewal thread's connection, without which no lease is granted by message.

use super::*;

/// A store whose renewal thread cannot connect while `is_refused`. Each try sends a message.
#[derive(Clone)]
struct Refusing {
    is_refused: Arc<AtomicBool>,
    tried: mpsc::Sender<()>,
}

impl Store for Refusing {
    fn call(&self, request: &Request<'_>, _: Deadline<'_>) -> Result<Answer, Failure> {
        answer(generous()(request))
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        Box::new(self.clone())
    }

    fn listen(
        &self,
        _: &[&str],
        _: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        Err(unavailable())
    }
}

impl DedicatedConnection for Refusing {
    fn open(&mut self) -> Result<(), Failure> {
        self.tried.send(()).ok();
        if self.is_refused.load(Ordering::SeqCst) {
            return Err(unavailable());
        }
        Ok(())
    }

    fn call(&mut self, request: &Request<'_>, _: Duration) -> Result<Answer, Failure> {
        answer(generous()(request))
    }
}

#[test]
fn the_renewal_thread_is_not_ready_until_it_has_connected() {
    let (tried, attempts) = mpsc::channel();
    let is_refused = Arc::new(AtomicBool::new(true));
    let store = Refusing {
        is_refused: Arc::clone(&is_refused),
        tried,
    };
    // Its clock stands still, so that a slow round does not count as stuck.
    let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(1 << 40)));
    let engine = engine(store, LONG, clock);
    engine.leases.renewal.prepare(&engine.client);
    attempts
        .recv_timeout(PATIENCE)
        .expect("it tries to connect");
    assert!(!engine.leases.renewal.is_ready(engine.client.now()));
    is_refused.store(false, Ordering::SeqCst);
    // While the first try goes on, the thread begins no other.
    let begun = std::time::Instant::now();
    while !engine.leases.renewal.is_ready(engine.client.now()) {
        assert!(begun.elapsed() < PATIENCE, "it does not connect again");
        engine.leases.renewal.prepare(&engine.client);
        thread::yield_now();
    }
}
