//! The commands of the multi-lock: acquire and take over, release and keep. Each has the keys and companions of all its
//! names, and their values are those of mutexes.

use super::command::Command;
use super::script_settings::ScriptSettings;
use super::text::{KEEP, MULTI_ACQUIRE, MULTI_RELEASE, ask, keep};
use crate::message::{Ask, Verb};
use crate::name::LockKey;

pub(super) fn command(keys: &[LockKey], verb: &Verb, script_settings: &ScriptSettings) -> Command {
    let acquire = |what: &Ask, from: &str| {
        let mut command = MULTI_ACQUIRE.with_companions(keys);
        ask(&mut command, what, "take", script_settings);
        command.arg(from);
        command
    };
    // A grant brings one fence for each name, so there are none to give back.
    match verb {
        Verb::Acquire { ask, .. } => acquire(ask, ""),
        Verb::TakeOver { ask, from, .. } => acquire(ask, from),
        Verb::Keep(what) => keep(&KEEP, keys, 0, what, script_settings),
        Verb::Release { owner, .. }
        | Verb::HandOver { owner, .. }
        | Verb::Withdraw { owner, .. } => {
            let mut command = MULTI_RELEASE.with_companions(keys);
            command.arg(&**owner);
            script_settings.of_waiters(&mut command);
            command
        }
    }
}
