//! The gap in which a contended mutex is left free, for clients that poll.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Error, LockManager};

use crate::support::{
    PATIENCE, Raw, Task, build, companions_of, locking, manager, ms, name, patient, shared, task,
    wait_until,
};

const GAP: Duration = ms(20);

fn with_gap(raw: &Raw) -> LockManager {
    build(patient(raw.url()).poller_gap(GAP))
}

/// Processes whose threads want one name without a pause, and the last fence that was given.
struct Busy {
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    inside: Arc<AtomicBool>,
    threads: Vec<Task<()>>,
}

impl Busy {
    fn start(managers: &[LockManager], threads: usize, name: &str) -> Self {
        let mut busy = Self {
            stop: Arc::default(),
            turns: Arc::default(),
            inside: Arc::default(),
            threads: Vec::new(),
        };
        let last = Arc::new(Mutex::new(0));
        for locks in managers {
            for _ in 0..threads {
                let (lock, last) = (locks.mutex(name), Arc::clone(&last));
                let (stop, turns) = (Arc::clone(&busy.stop), Arc::clone(&busy.turns));
                let inside = Arc::clone(&busy.inside);
                busy.threads.push(task(move || {
                    while !stop.load(Ordering::SeqCst) {
                        let guard = lock.lock().expect("it becomes free");
                        assert!(
                            !inside.swap(true, Ordering::SeqCst),
                            "two threads are inside"
                        );
                        {
                            let mut last = last.lock().expect("no panic");
                            assert!(guard.fence() > *last, "{} after {last}", guard.fence());
                            *last = guard.fence();
                        }
                        thread::sleep(ms(1));
                        assert!(
                            inside.swap(false, Ordering::SeqCst),
                            "two threads are inside"
                        );
                        turns.fetch_add(1, Ordering::SeqCst);
                        guard.release().expect("it was held until now");
                    }
                }));
            }
        }
        busy
    }

    /// Takes the name by polling, for a moment. Returns false after a while without it.
    fn poll(&self, raw: &Raw, name: &str, patience: Duration) -> bool {
        let lease = PATIENCE.as_millis().to_string();
        let begun = Instant::now();
        loop {
            let set: Option<String> = raw.ask(&["SET", name, "theirs", "NX", "PX", &lease]);
            if set.is_some() {
                break;
            }
            if begun.elapsed() > patience {
                return false;
            }
            thread::sleep(ms(5));
        }
        assert!(
            !self.inside.swap(true, Ordering::SeqCst),
            "two threads are inside"
        );
        thread::yield_now();
        assert!(
            self.inside.swap(false, Ordering::SeqCst),
            "two threads are inside"
        );
        let deleted: u32 = raw.ask(&["DEL", name]);
        assert_eq!(deleted, 1);
        true
    }

    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.threads.into_iter().for_each(Task::end);
    }
}

#[test]
fn a_polling_client_gets_its_turns_beside_busy_processes() {
    let raw = shared();
    for (processes, threads) in [(2, 2), (2, 1), (1, 2)] {
        let name = name("polled");
        let managers: Vec<_> = (0..processes).map(|_| with_gap(raw)).collect();
        let busy = Busy::start(&managers, threads, &name);
        for _ in 0..5 {
            let before = busy.turns.load(Ordering::SeqCst);
            assert!(busy.poll(raw, &name, PATIENCE), "{processes}, {threads}");
            // The busy processes go on after it.
            wait_until("another guard", || {
                busy.turns.load(Ordering::SeqCst) > before
            });
        }
        busy.end();
        wait_until("nothing is left", || {
            !raw.exists(&name) && raw.queue(&name).is_empty()
        });
    }
}

#[test]
fn after_an_unused_gap_the_first_waiter_gets_its_turn() {
    let raw = shared();
    let [one, other] = [with_gap(raw), with_gap(raw)];
    let name = name("unused");
    let [_, _, waiters] = companions_of(&name);
    let turns = [(&one, &other), (&other, &one), (&one, &other)];
    for (turn, (locks, rival)) in turns.into_iter().enumerate() {
        let guard = locks.lock(&name).expect("it is free");
        let waits = locking(&rival.mutex(&name));
        raw.wait_until_queued(&name, 1);
        let (fence, owner) = (guard.fence(), guard.owner().to_owned());
        guard.release().expect("it is held");
        // Later guards may end within the same quantum, and then there is no gap.
        if turn == 0 {
            let gap: Option<String> = raw.ask(&["HGET", &waiters, "=gap"]);
            assert!(gap.is_some_and(|gap| gap.ends_with(&owner)), "no gap");
        }
        let next = waits.end().expect("it becomes free");
        assert!(next.fence() > fence);
        next.release().expect("it is held");
    }
    assert!(one.close(PATIENCE) && other.close(PATIENCE));
    wait_until("nothing is left", || {
        !raw.exists(&name) && raw.queue(&name).is_empty()
    });
}

#[test]
fn without_a_gap_the_lock_is_handed_over_as_usual() {
    let raw = shared();
    let locks = manager(raw.url());
    let name = name("none");
    let guard = locks.lock(&name).expect("it is free");
    let waits = locking(&with_gap(raw).mutex(&name));
    raw.wait_until_queued(&name, 1);
    guard.release().expect("it is held");
    assert!(raw.exists(&name), "there was a gap");
    waits
        .end()
        .expect("it is handed over")
        .release()
        .expect("it is held");
}

#[test]
fn a_gap_that_is_too_long_is_refused() {
    let build = |gap, quantum| {
        let builder = LockManager::single("redis://127.0.0.1:1/");
        builder.poller_gap(gap).quantum(quantum).build_unchecked()
    };
    for (gap, quantum) in [(51, 50), (501, 1000)] {
        let error = build(ms(gap), ms(quantum)).expect_err("it is too long");
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains("poller_gap"), "{error}");
    }
    for (gap, quantum) in [(0, 1), (50, 50), (500, 500)] {
        build(ms(gap), ms(quantum)).expect("it is short enough");
    }
}
