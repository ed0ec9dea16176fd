//! A message for one who waits.

use std::sync::OnceLock;

use super::*;
use crate::engine::Wakeup;
use crate::sync::Weak;

/// A store that says of each request for a lock whether it came in haste, and has the message come while it answers the
/// second of four.
#[derive(Default)]
struct Calling {
    hastes: Mutex<Vec<bool>>,
    wakeup: OnceLock<Arc<Wakeup>>,
}

impl Store for Arc<Calling> {
    fn call(&self, call: &Call<'_>, limits: Limits<'_>) -> Result<Answer, Failure> {
        if let Call::Lock {
            verb: Verb::Acquire { ask, .. },
            ..
        } = call
        {
            let mut hastes = self.hastes.lock();
            hastes.push(limits.has_priority);
            if hastes.len() == 2 {
                let wakeup = self.wakeup.get().expect("it is set");
                wakeup.message("leasehold:its own", ask.owner.as_bytes(), &Weak::new());
            }
            if hastes.len() < 4 {
                let (ttl, holder) = (Some(SHORT), "another".into());
                return answer(Ok(Reply::Held { ttl, holder }));
            }
        }
        answer(generous()(call))
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

#[test]
fn who_is_told_to_come_asks_in_haste_and_once() {
    let store = Arc::new(Calling::default());
    let engine = engine(Arc::clone(&store), LONG, Arc::new(SystemClock));
    store.wakeup.set(Arc::clone(&engine.wakeup)).ok();
    lock(&engine).release().expect("it is held");
    assert_eq!(*store.hastes.lock(), [false, false, true, false]);
}
