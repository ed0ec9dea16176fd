//! Managers that are closed while a thread asks.

use super::*;

#[test]
fn a_request_without_a_reply_at_close_is_cancelled_until_a_lease_has_passed() {
    let (ManualPool { answers, asked }, pool) = manual_pool();
    let (withdrawals, dedicated_connection) = finding_nothing();
    let engine = Fake::new(pool, dedicated_connection).engine(SHORT, Arc::new(SystemClock));
    drop(lock(&engine));
    let handle = mutex(Arc::clone(&engine), "name");
    let started = SystemClock.now();
    let asking = thread::spawn(move || handle.lock().map(drop));
    asked.recv_timeout(PATIENCE).expect("it asks");
    assert!(!engine.close(Duration::ZERO), "a request is in flight");
    answers.send(Err(unavailable())).expect("it waits for it");
    let ended = asking.join().expect("no panic");
    assert!(
        matches!(ended, Err(Error::Closed | Error::Unavailable { .. })),
        "{ended:?}"
    );
    let (mut last, owner) = withdrawals.recv_timeout(PATIENCE).expect("withdrawn");
    while last < started + SHORT {
        let (at, again) = withdrawals.recv_timeout(PATIENCE).expect("withdrawn again");
        assert_eq!(again, owner);
        last = at;
    }
    assert!(engine.close(PATIENCE));
}
