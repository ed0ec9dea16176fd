//! What a child does that does not end well: guards forgotten, processes that end without a word, loggers that panic.

use std::collections::HashMap;
use std::mem;
use std::process;
use std::thread;

use leasehold::LockManager;

use super::{File, Guard, PATIENCE, Raw, ms, patient};

/// How a child ends that is told to exit: as no failing test would.
pub(crate) const EXITED: i32 = 7;

/// Carries out a command about the ends of guards, managers and the process; none where it is another command.
pub(crate) fn answer(
    raw: &Raw,
    manager: &mut Option<LockManager>,
    guards: &mut HashMap<String, Guard>,
    command: &[&str],
) -> Option<String> {
    let number = |word: &str| word.parse().expect("a number");
    let locks = || manager.as_ref().expect("it was not dropped");
    Some(match *command {
        // Nothing is unwound and nothing dropped, as where `main` returns with threads about.
        ["exit"] => process::exit(EXITED),
        ["let-go"] => {
            drop(manager.take());
            "let go".into()
        }
        ["close"] => {
            let all = locks().close(PATIENCE);
            if all { "closed" } else { "not all went out" }.into()
        }
        // Takes a lock and forgets its guard, with the most it may be held in ms, or without.
        ["forget", name, ref max_hold_ms @ ..] => {
            let limit = max_hold_ms.first().map(|limit| ms(number(limit)));
            match locks().mutex(name).max_hold(limit).lock() {
                Ok(guard) => {
                    let fence = guard.fence();
                    mem::forget(guard);
                    format!("locked {fence}")
                }
                Err(error) => format!("{error:?}"),
            }
        }
        ["drop-guard", name] => {
            drop(guards.remove(name).expect("it is held"));
            "dropped".into()
        }
        // Has so many managers wait, each as good as a process, and whatever comes of it keep it.
        ["crowd", name, lease_ms, count] => {
            for _ in 0..number(count) {
                let builder = patient(raw.url()).lease(ms(number(lease_ms)));
                let locks = builder.build().expect("the server is there");
                let name = name.to_owned();
                thread::spawn(move || mem::forget(locks.lock(name)));
            }
            "waiting".into()
        }
        // Writes what a lock protects without a look at the lock: it looked before, as far as it knows.
        ["write", name, key, text, how] => {
            let fence = (how == "fenced").then(|| guards[name].fence());
            let accepted = File::new(raw, key).write(text, fence);
            if accepted { "written" } else { "refused" }.into()
        }
        ["failed-renewals"] => locks().stats().renewals_failed.to_string(),
        _ => return None,
    })
}
