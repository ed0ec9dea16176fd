//! What a real Redis does to the list of a rate limiter. The contract has the rest.

use std::time::Duration;

use leasehold::{Admission, Error};

use crate::support::{Server, lacks_in_memory, manager, ms, name, task};

/// Redis refuses the first write of a script, and no later one.
#[test]
fn full_memory_refuses_a_new_place_and_takes_none() {
    if lacks_in_memory("a limit of memory") {
        return;
    }
    let server = Server::start();
    let raw = server.raw();
    let limiter = manager(&server.url()).rate_limiter("n", 2, Duration::from_mins(10));
    let log = || -> Vec<String> { raw.ask(&["LRANGE", "n", "0", "-1"]) };
    for places in 0..2 {
        let before = log();
        let () = raw.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        let full = limiter.try_acquire();
        assert!(matches!(full, Err(Error::Unavailable { .. })), "{full:?}");
        assert_eq!(log(), before, "{places}");
        let () = raw.ask(&["CONFIG", "SET", "maxmemory", "0"]);
        let answer = limiter.try_acquire().expect("Redis replies");
        assert_eq!(answer, Admission::Admitted);
    }
}

/// Redis 7.0 reads its clock twice at a `PEXPIRE`. It deletes a list whose time ends between the two readings.
#[test]
fn a_window_that_ends_during_a_call_leaves_no_log_without_an_end() {
    const CALLS: u32 = 1000;
    let server = Server::start();
    let locks = manager(&server.url());
    let threads = [(); 8].map(|()| {
        let locks = locks.clone();
        task(move || {
            let name = name("short");
            for call in 0..CALLS {
                let limiter = locks.rate_limiter(format!("{name}:{}", call / 20), 1000, ms(1));
                // A list without its head would be of the wrong type.
                let _ = limiter.try_acquire().expect("it is a rate limiter");
            }
        })
    });
    for thread in threads {
        thread.end();
    }
}
