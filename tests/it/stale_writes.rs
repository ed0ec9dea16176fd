//! A holder that is stopped for longer than its lease writes without knowing of its loss. No lock can prevent that,
//! but a fence can.

use crate::support::{Child, File, PATIENCE, Topology, manager, name, on, shared};

/// Three processes each add one to a number, which they read and then write. The first is stopped between the two,
/// until its lease is over and the others are done. Returns the number at the end.
fn a_stopped_writer_goes_on(how: &str) -> (String, String) {
    let redis = shared();
    let (name, key) = (name("stale"), name("stale-file"));
    let file = File::new(redis, &key);
    let fenced = how == "fenced";
    let locks = manager(redis.url());
    file.write("0", fenced.then_some(0));
    let mut stopped = Child::start(redis.url(), "lease_ms=3000");
    stopped.lock(&name);
    assert_eq!(stopped.ask(format_args!("state {name}")), "Held");
    // The holder has read the number and checked its lock. It writes next.
    let read = file.read();
    assert_eq!(read, "0");
    stopped.pause();
    for _ in 0..2 {
        let guard = locks.try_lock_for(&name, PATIENCE).expect("Redis replies");
        let guard = guard.expect("it becomes free");
        let sum: u32 = file.read().parse().expect("a number");
        let accepted = file.write(&(sum + 1).to_string(), fenced.then_some(guard.fence()));
        assert!(accepted, "its fence is the newest");
        guard.release().expect("it was held until now");
    }
    stopped.say(format_args!("write {name} {key} 1 {how}"));
    stopped.resume();
    let answer = stopped.hear();
    // The holder learns of the loss when it is too late.
    assert_eq!(stopped.ask(format_args!("state {name}")), "Lost");
    file.leave();
    (answer, file.read())
}

#[test]
fn a_file_that_checks_fences_accepts_no_stale_write() {
    let (answer, text) = a_stopped_writer_goes_on("fenced");
    assert_eq!((&*answer, &*text), ("refused", "2"));
}

/// The same without fences. It shows that the fences protect the other file.
#[test]
fn a_file_that_does_not_check_fences_is_corrupted() {
    let (answer, text) = a_stopped_writer_goes_on("unfenced");
    assert_eq!((&*answer, &*text), ("written", "1"));
}

#[test]
fn a_file_that_checks_the_fences_of_a_quorum_accepts_no_stale_write() {
    on(Topology::Quorum, || {
        let (answer, text) = a_stopped_writer_goes_on("fenced");
        assert_eq!((&*answer, &*text), ("refused", "2"));
    });
}
