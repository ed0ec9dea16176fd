//! The requests of a process after a failover.

use super::*;
use crate::message::Gone;

/// The lease is long, so its next renewal would be far away. The time of the test stands still.
#[test]
fn a_lease_that_a_failover_has_lost_ends_at_once() {
    let (sender, sent) = mpsc::channel();
    let dedicated_connection = move |request: &Request<'_>| {
        sender.send(format!("{request:?}")).ok();
        match request {
            Request::Renew(batch) => {
                let gone = Renewed::Gone(Gone::Taken);
                Ok(Reply::Renewed(vec![gone; batch.len()]))
            }
            _ => Err(unavailable()),
        }
    };
    let fake = Fake::new(generous(), dedicated_connection);
    let failover = Arc::clone(&fake.failover);
    let engine = fake.engine(LONG, still());
    let lock = |name| mutex(Arc::clone(&engine), name).lock().expect("granted");
    lock("released").release().expect("it was held");
    let held = lock("held");
    (failover.lock().as_ref().expect("the engine listens"))();
    let loss = held.on_lost().recv_timeout(PATIENCE).expect("it is lost");
    assert_eq!(loss.cause, LostCause::Taken);
    // The release has an answer, so it is not sent again.
    let requests: Vec<_> = sent.try_iter().collect();
    assert!(
        matches!(&*requests, [only] if only.starts_with("Renew")),
        "{requests:?}"
    );
}
