//! Leaders, and who observes them, while a test moves the clock.

use leasehold::{Leader, Receiver, TryRecvError};

use super::{HOUR, on_both, secs};

fn next(seen: &Receiver<Option<Leader>>) -> Option<String> {
    let state = seen.recv().expect("the manager lives");
    state.map(|leader| leader.value)
}

#[test]
fn an_observer_is_told_of_each_leader() {
    on_both(|redis| {
        let (one, other) = (redis.manager(), redis.manager());
        let seen = other.election("n").observe().expect("it answers");
        assert_eq!(next(&seen), None);
        let mut leadership = one.election("n").campaign("one").expect("it is free");
        redis.pass(secs(2));
        assert_eq!(next(&seen).as_deref(), Some("one"));
        leadership.proclaim("uno").expect("it leads");
        redis.pass(secs(2));
        assert_eq!(next(&seen).as_deref(), Some("uno"));
        redis.kill(&one);
        redis.pass(secs(31));
        assert_eq!(next(&seen), None);
        let leadership = other.election("n").campaign("two").expect("it is free");
        redis.pass(HOUR);
        assert_eq!(next(&seen).as_deref(), Some("two"));
        leadership.resign().expect("it leads");
    });
}

/// A receiver does not keep the manager alive, and ends with it.
#[test]
fn a_receiver_ends_with_the_last_handle() {
    on_both(|redis| {
        let locks = redis.manager();
        let seen = locks.election("n").observe().expect("it answers");
        assert_eq!(next(&seen), None);
        assert_eq!(seen.try_recv(), Err(TryRecvError::Empty));
        drop(locks);
        assert!(seen.recv().is_err());
    });
}
