//! The commands of a child that end badly: forgotten guards, exits without drops, loggers that panic.

use std::collections::HashMap;
use std::mem;
use std::process;
use std::thread;

use leasehold::LockManager;

use super::{File, Guard, PATIENCE, Raw, ms, patient};

/// The exit status of a child that a test makes exit. No failing test has this status.
pub const EXITED: i32 = 7;

/// Executes a command about the end of guards, managers and the process. Returns `None` for any other command.
pub fn answer(
    raw: &Raw,
    manager: &mut Option<LockManager>,
    guards: &mut HashMap<String, Guard>,
    command: &[&str],
) -> Option<String> {
    let number = |word: &str| word.parse().expect("a number");
    let locks = || manager.as_ref().expect("it was not dropped");
    Some(match *command {
        // No stack is unwound and no value dropped, as if `main` returned while other threads run.
        ["exit"] => process::exit(EXITED),
        ["let-go"] => {
            drop(manager.take());
            "let go".into()
        }
        ["close"] => {
            let all = locks().close(PATIENCE);
            if all { "closed" } else { "not all went out" }.into()
        }
        // Takes a lock and forgets its guard, with or without a `max_hold` in ms.
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
        // Makes `count` managers wait for a lock. Each is like a process, and keeps its guard or error.
        ["crowd", name, lease_ms, count] => {
            for _ in 0..number(count) {
                let builder = patient(raw.url()).lease(ms(number(lease_ms)));
                let locks = builder.build().expect("the server is there");
                let name = name.to_owned();
                thread::spawn(move || mem::forget(locks.lock(name)));
            }
            "waiting".into()
        }
        // Writes the data that a lock protects, and does not check the lock again.
        ["write", name, key, text, how] => {
            let fence = (how == "fenced").then(|| guards[name].fence());
            let accepted = File::new(raw, key).write(text, fence);
            if accepted { "written" } else { "refused" }.into()
        }
        ["failed-renewals"] => locks().stats().renewals_failed.to_string(),
        _ => return None,
    })
}
