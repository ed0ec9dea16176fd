//! A message to a delegate: its next request has priority for a connection.

use std::sync::OnceLock;

use super::*;
use crate::engine::wakeup::Wakeup;

/// A store that notes whether each acquire has priority. While it replies to the second of four, a message comes.
#[derive(Default)]
struct Calling {
    priorities: Mutex<Vec<bool>>,
    wakeup: OnceLock<Arc<Wakeup>>,
}

impl Store for Arc<Calling> {
    fn call(&self, request: &Request<'_>, deadline: Deadline<'_>) -> Result<Answer, Failure> {
        if let Request::Lock {
            verb: Verb::Acquire { ask, .. },
            ..
        } = request
        {
            let mut priorities = self.priorities.lock();
            priorities.push(deadline.has_priority);
            if priorities.len() == 2 {
                let wakeup = self.wakeup.get().expect("it is set");
                wakeup.message("leasehold:its own", ask.owner.as_bytes());
            }
            if priorities.len() < 4 {
                let (ttl, holder) = (Some(SHORT), "another".into());
                return answer(Ok(Reply::Held {
                    ttl,
                    holder,
                    handed_over: false,
                }));
            }
        }
        answer(generous()(request))
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
fn a_message_gives_priority_to_one_request() {
    let store = Arc::new(Calling::default());
    let engine = engine(Arc::clone(&store), LONG, Arc::new(RealMachine));
    store.wakeup.set(Arc::clone(&engine.leases.wakeup)).ok();
    lock(&engine).release().expect("it is held");
    assert_eq!(*store.priorities.lock(), [false, false, true, false]);
}
