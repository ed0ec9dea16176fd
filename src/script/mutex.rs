//! The commands of the mutex, whose key is a plain string with the owner: acquire, take over, release, hand over, adopt and
//! keep. A mutex without a fence is first asked for by `SET NX`, without a script.

use redis::Value;

use super::command::Command;
use super::reply;
use super::script_settings::ScriptSettings;
use super::text::{
    KEEP, MUTEX_ACQUIRE, MUTEX_ADOPT, MUTEX_HAND_OVER, MUTEX_RELEASE, MUTEX_RELEASE_MANY,
    MUTEX_TAKE_OVER, ask, give_back, keep,
};
use crate::message::{AcquireMode, Adopt, Ask, GiveBack, NotReleased, PlainRelease, Reply, Verb};
use crate::name::{Companion, LockKey};
use crate::sys::time::ms_rounded_up;

pub(super) fn command(key: &LockKey, verb: &Verb, script_settings: &ScriptSettings) -> Command {
    let keys = std::slice::from_ref(key);
    let hand_over = |owner: &str, block: Option<GiveBack>, queued: bool| {
        let mut command = MUTEX_HAND_OVER.with_companions(keys);
        command.arg(owner);
        give_back(&mut command, block);
        script_settings.of_waiters(&mut command);
        command.arg(u8::from(queued));
        // A withdrawal ends no lease, so it begins no gap.
        script_settings.gap(&mut command, !queued);
        command.arg(ms_rounded_up(script_settings.fence_memory));
        command
    };
    match verb {
        Verb::Acquire { ask: what, mode } => {
            let mut command = MUTEX_ACQUIRE.with_companions(keys);
            // A free mutex may be in a gap. This process must not take it then, because the gap is for clients that
            // poll.
            let how = match mode {
                AcquireMode::TakeFree if script_settings.poller_gap.is_zero() => "take",
                AcquireMode::TakeFree | AcquireMode::QueueFirst => "poll",
            };
            ask(&mut command, what, how, script_settings);
            command
        }
        Verb::TakeOver {
            ask: what,
            from,
            give_back: block,
        } => {
            let mut command = MUTEX_TAKE_OVER.with_companions(keys);
            ask(&mut command, what, "poll", script_settings);
            command.arg(&**from);
            give_back(&mut command, *block);
            script_settings.gap(&mut command, true);
            command
        }
        Verb::Release { owner, .. } => {
            let mut command = MUTEX_RELEASE.command(1);
            command.arg(key.key()).arg(&**owner);
            command
        }
        Verb::HandOver {
            owner, give_back, ..
        } => hand_over(owner, *give_back, false),
        Verb::Keep(what) => keep(&KEEP, keys, 0, what, script_settings),
        Verb::Withdraw { owner, .. } => hand_over(owner, None, true),
    }
}

/// Returns the command that takes a free mutex without a fence. Returns `None` if the mutex may be in a gap, which only
/// the script can see.
pub(super) fn plain(key: &LockKey, ask: &Ask, script_settings: &ScriptSettings) -> Option<Command> {
    script_settings.poller_gap.is_zero().then(|| {
        let mut command = Command::new("SET");
        command.arg(key.key()).arg(&*ask.owner);
        command.arg("NX").arg("PX").arg(ms_rounded_up(ask.lease));
        command
    })
}

pub(super) fn release_many(batch: &[PlainRelease<'_>]) -> Command {
    let mut command = MUTEX_RELEASE_MANY.command(batch.len());
    for release in batch {
        command.arg(release.target.first().key());
    }
    for release in batch {
        command.arg(release.owner);
    }
    command
}

/// Reads the answer to the release of this number of mutexes.
pub(super) fn replies(mutexes: usize, value: &Value) -> Option<Reply> {
    match value {
        Value::Array(values) if values.len() == mutexes => values
            .iter()
            .map(|value| match value {
                Value::Int(-2) => Some(Err(NotReleased::Refused)),
                value => reply::release(value).map(Ok),
            })
            .collect::<Option<_>>()
            .map(Reply::Each),
        _ => None,
    }
}

pub(super) fn adopt(key: &LockKey, adopt: &Adopt, script_settings: &ScriptSettings) -> Command {
    let mut command = MUTEX_ADOPT.command(2);
    command
        .arg(key.key())
        .arg(key.companion(Companion::Fence))
        .arg(&*adopt.owner)
        .arg(ms_rounded_up(adopt.lease))
        .arg(ms_rounded_up(script_settings.fence_memory))
        .arg(&*adopt.from)
        .arg(adopt.last)
        .arg(u8::from(adopt.fencing))
        .arg(u8::from(adopt.shortens));
    command
}
