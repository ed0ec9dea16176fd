//! What a holder writes that was stopped past its lease and knows nothing of it: no lock can keep that out, a fence can.

use crate::support::{Child, File, PATIENCE, manager, name, shared};

/// Three add one to a number that they read and then write. The first is stopped between the two, until its lease is
/// over and the others are done. Returns the number in the end.
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
    // It has read, and seen that it holds the lock, and is about to write.
    let read = file.read();
    assert_eq!(read, "0");
    stopped.pause();
    for _ in 0..2 {
        let guard = locks.try_lock_for(&name, PATIENCE).expect("it is asked");
        let guard = guard.expect("it comes free");
        let sum: u32 = file.read().parse().expect("a number");
        let accepted = file.write(&(sum + 1).to_string(), fenced.then_some(guard.fence()));
        assert!(accepted, "its fence is the newest");
        guard.release().expect("it was held all the while");
    }
    stopped.say(format_args!("write {name} {key} 1 {how}"));
    stopped.resume();
    let answer = stopped.hear();
    // It learns of it, and too late.
    assert_eq!(stopped.ask(format_args!("state {name}")), "Lost");
    file.leave();
    (answer, file.read())
}

#[test]
fn a_file_that_checks_fences_accepts_no_stale_write() {
    let (answer, text) = a_stopped_writer_goes_on("fenced");
    assert_eq!((&*answer, &*text), ("refused", "2"));
}

/// The same without fences: so it is they that keep the other file whole.
#[test]
fn a_file_that_does_not_check_fences_is_corrupted() {
    let (answer, text) = a_stopped_writer_goes_on("unfenced");
    assert_eq!((&*answer, &*text), ("written", "1"));
}
