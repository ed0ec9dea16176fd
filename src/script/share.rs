//! The commands of the kinds of which several owners have leases at the same time: readers and writers, and permits.

use super::command::Command;
use super::script_settings::ScriptSettings;
use super::text::{KEEP, SHARE_ACQUIRE, SHARE_RELEASE, ask, give_back, keep};
use crate::message::{Ask, GiveBack, LockKind, Verb};
use crate::name::LockKey;

pub(super) fn command(
    kind: LockKind,
    key: &LockKey,
    verb: &Verb,
    script_settings: &ScriptSettings,
) -> Command {
    let keys = std::slice::from_ref(key);
    let how = match kind {
        LockKind::Read => "read",
        LockKind::Write => "write",
        _ => "permits",
    };
    let acquire = |what: &Ask, from: &str, block: Option<GiveBack>| {
        let mut command = SHARE_ACQUIRE.with_companions(keys);
        ask(&mut command, what, how, script_settings);
        command.arg(what.units).arg(kind.total_units()).arg(from);
        give_back(&mut command, block);
        command.arg(what.shareable_owner.as_deref().unwrap_or_default());
        command
    };
    let release = |owner: &str, units: u32, block: Option<GiveBack>, queued: bool| {
        let mut command = SHARE_RELEASE.with_companions(keys);
        command.arg(owner);
        give_back(&mut command, block);
        script_settings.of_waiters(&mut command);
        command.arg(u8::from(queued)).arg(units);
        command
    };
    match verb {
        // The script lets the queue go first, even if the lock is free: a waiting writer stops new readers.
        Verb::Acquire { ask, .. } => acquire(ask, "", None),
        Verb::TakeOver {
            ask,
            from,
            give_back,
        } => acquire(ask, from, *give_back),
        Verb::Release { owner, units } => release(owner, *units, None, false),
        Verb::HandOver {
            owner,
            units,
            give_back,
        } => release(owner, *units, *give_back, false),
        Verb::Keep(what) => keep(&KEEP, keys, what.units, what, script_settings),
        Verb::Withdraw { owner, units } => release(owner, *units, None, true),
    }
}
