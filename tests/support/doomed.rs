//! The commands of a child that ends badly: waits that nobody ends, and exits without drops.

use std::mem;
use std::process;
use std::thread;

use super::{Raw, ms, patient};

/// The exit status of a child that a test makes exit. No failing test has this status.
pub const EXITED: i32 = 7;

/// Executes a command about the end of waits and of the process. Returns `None` for any other command.
pub fn answer(raw: &Raw, command: &[&str]) -> Option<String> {
    let number = |word: &str| word.parse().expect("a number");
    Some(match *command {
        // No stack is unwound and no value dropped, as if `main` returned while other threads run.
        ["exit"] => process::exit(EXITED),
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
        _ => return None,
    })
}
