//! The quantum follows the hand-overs that the delegates measure.

use std::sync::OnceLock;

use super::*;
use crate::engine::wakeup::Wakeup;
use crate::sys::test_machine::manual::ManualClock;

/// The time from the message to the grant. All of it passes during the request.
const PICKUP: Duration = Duration::from_micros(400);

/// A store that grants each third acquire, which takes [`PICKUP`]. While it replies to the second one, a message may
/// come.
struct HandingOver {
    clock: Arc<ManualClock>,
    wakeup: OnceLock<Arc<Wakeup>>,
    has_subscription: bool,
    sends_message: bool,
    is_resent: bool,
    /// The numbers of fences that the acquires ask for.
    fences: Mutex<Vec<u64>>,
}

impl Store for Arc<HandingOver> {
    fn call(&self, request: &Request<'_>, _: Deadline<'_>) -> Result<Answer, Failure> {
        let Request::Lock {
            verb: Verb::Acquire { ask, .. },
            ..
        } = request
        else {
            return answer(generous()(request));
        };
        let number = {
            let mut fences = self.fences.lock();
            fences.push(ask.fences);
            fences.len() % 3
        };
        if number == 2 && self.sends_message {
            let wakeup = self.wakeup.get().expect("it is set");
            wakeup.message("leasehold:its own", ask.owner.as_bytes());
        }
        if number != 0 {
            let (ttl, holder) = (Some(SHORT), "another".into());
            return answer(Ok(Reply::Held {
                ttl,
                holder,
                handed_over: false,
            }));
        }
        self.clock.advance(PICKUP);
        Ok(Answer {
            resent: self.is_resent,
            reply: generous()(request)?,
        })
    }

    fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
        Box::new(Fake::new(generous(), generous()))
    }

    fn listen(
        &self,
        _: &[&str],
        hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
    ) -> Result<(), Failure> {
        if self.has_subscription {
            hear(PubSubEvent::Subscribed);
            while hear(PubSubEvent::Silence) {
                thread::park_timeout(Duration::from_millis(1));
            }
        }
        Err(unavailable())
    }
}

#[test]
fn the_quantum_follows_the_hand_overs_that_messages_announce() {
    let ms = Duration::from_millis;
    let (first, set, longest) = (ms(10), ms(7), ms(50));
    // The pickup, and as much for the way of the request and the message before.
    let measured = PICKUP * 2 * 20;
    for (quantum, has_subscription, sends_message, is_resent, expected) in [
        (None, true, true, false, measured),
        (None, true, true, true, first),
        (None, true, false, false, first),
        (None, false, true, false, longest),
        (Some(set), true, true, false, set),
    ] {
        let clock = still();
        let store = Arc::new(HandingOver {
            clock: Arc::clone(&clock),
            wakeup: OnceLock::new(),
            has_subscription,
            sends_message,
            is_resent,
            fences: Mutex::default(),
        });
        let settings = Settings {
            quantum,
            ..Settings::default()
        };
        let engine = Engine::on(clock, settings, Arc::new(Arc::clone(&store)));
        store.wakeup.set(Arc::clone(&engine.leases.wakeup)).ok();
        assert_eq!(engine.stats().quantum, quantum.unwrap_or(first));
        lock(&engine).release().expect("it is held");
        // The thread that listens may find later that it cannot subscribe.
        wait_for(|| engine.stats().quantum == expected);
        lock(&engine).release().expect("it is held");
        assert_eq!(engine.stats().quantum, expected);
        // The first request of a call expects no other waiters. The others reserve the fences of a quantum.
        let fences = store.fences.lock();
        let reserved = [fences[4], fences[5]].map(u128::from);
        assert_eq!(reserved, [expected.as_micros(); 2]);
    }
}
