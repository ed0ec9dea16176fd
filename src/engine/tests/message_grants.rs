//! The renewal thread's connection, without which no lease is granted by message.

use super::*;

/// A store whose renewal thread cannot connect while `is_refused`. Each try sends whether its connection is silent.
#[derive(Clone)]
struct Refusing {
    is_refused: Arc<AtomicBool>,
    tried: mpsc::Sender<bool>,
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
    fn open(&mut self, is_silent: bool) -> Result<(), Failure> {
        self.tried.send(is_silent).ok();
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
    let engine = engine(store, LONG, still());
    let is_ready = || engine.leases.renewal.is_ready(engine.client.now());
    engine.leases.renewal.prepare(&engine.client);
    attempts
        .recv_timeout(PATIENCE)
        .expect("it tries to connect");
    assert!(!is_ready());
    is_refused.store(false, Ordering::SeqCst);
    // While the first try goes on, the thread begins no other.
    wait_for(|| {
        engine.leases.renewal.prepare(&engine.client);
        is_ready()
    });
}

/// A router may have forgotten the connection.
#[test]
fn a_silent_connection_is_checked_before_the_renewal_thread_is_ready() {
    let (tried, attempts) = mpsc::channel();
    let is_refused = Arc::new(AtomicBool::new(false));
    let store = Refusing {
        is_refused: Arc::clone(&is_refused),
        tried,
    };
    let clock = still();
    let engine = engine(store, LONG, Arc::clone(&clock) as Arc<dyn TestMachine>);
    let prepare = || engine.leases.renewal.prepare(&engine.client);
    let is_ready = || engine.leases.renewal.is_ready(engine.client.now());
    prepare();
    wait_for(is_ready);
    assert_eq!(attempts.try_recv(), Ok(false), "it connects");
    clock.advance(Duration::from_secs(4));
    prepare();
    wait_for(is_ready);
    assert!(attempts.try_recv().is_err(), "it has just connected");
    clock.advance(Duration::from_secs(1));
    is_refused.store(true, Ordering::SeqCst);
    prepare();
    assert!(!is_ready());
    assert_eq!(attempts.recv_timeout(PATIENCE), Ok(true));
    is_refused.store(false, Ordering::SeqCst);
    wait_for(|| {
        prepare();
        is_ready()
    });
}
