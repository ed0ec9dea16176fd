//! The requests to a server that is no node of a quorum.
//!
//! * The mutex, whose key is a plain string with the owner. A mutex without a fence is first asked for by `SET NX`, without a
//!   script.
//! * The kinds of which several owners have leases at the same time, in one sorted set: readers and writers, and permits.
//! * The multi-lock. A request has the keys and companions of all its names, and their values are those of mutexes.
//! * The renewal of many leases of any kind, by one script.
//! * The rate limiter, which is no lock.

use std::time::Duration;

use redis::Value;

use super::answers;
use crate::name::{Companion, LockKey};
use crate::sys::time::ms_rounded_up;
use crate::wire::command::Command;
use crate::wire::text::{
    KEEP, KEEP_RECORD, MULTI_ACQUIRE, MULTI_RELEASE, MUTEX_ACQUIRE, MUTEX_ADOPT, MUTEX_HAND_OVER,
    MUTEX_RELEASE, MUTEX_RELEASE_MANY, RATE_LIMITER, RENEW, SHARE_ACQUIRE, SHARE_RELEASE,
    ScriptSettings, ask, give_back, keep,
};
use crate::wire::{
    AcquireMode, Adopt, Ask, GiveBack, Gone, LockKind, NotReleased, PlainRelease, RateRequest,
    Renewal, Renewed, Reply, Verb,
};

/// Returns the command of a request for a mutex.
pub(crate) fn mutex(key: &LockKey, verb: &Verb, script_settings: &ScriptSettings) -> Command {
    let keys = std::slice::from_ref(key);
    let gap = script_settings.gap_at(key);
    let hand_over = |owner: &str, block: Option<GiveBack>, queued: bool| {
        let mut command = MUTEX_HAND_OVER.with_companions(keys);
        command.arg(owner);
        give_back(&mut command, block);
        script_settings.of_waiters(&mut command);
        command.arg(u8::from(queued));
        // A withdrawal ends no lease, so it begins no gap.
        let gap = if queued { Duration::ZERO } else { gap };
        script_settings.gap(&mut command, gap);
        command.arg(ms_rounded_up(script_settings.fence_memory));
        command
    };
    match verb {
        Verb::Acquire { ask: what, mode } => {
            let mut command = MUTEX_ACQUIRE.with_companions(keys);
            // A free mutex may be in a gap. This process must not take it then, because the gap is for clients that
            // poll.
            let how = match mode {
                AcquireMode::TakeFree if gap.is_zero() => "take",
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
            let mut command = MUTEX_ACQUIRE.with_companions(keys);
            ask(&mut command, what, "poll", script_settings);
            command.arg(&**from);
            give_back(&mut command, *block);
            script_settings.gap(&mut command, gap);
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
pub(crate) fn plain(key: &LockKey, ask: &Ask, script_settings: &ScriptSettings) -> Option<Command> {
    script_settings.gap_at(key).is_zero().then(|| {
        let mut command = Command::new("SET");
        command.arg(key.key()).arg(&*ask.owner);
        command.arg("NX").arg("PX").arg(ms_rounded_up(ask.lease));
        command
    })
}

pub(crate) fn release_many(batch: &[PlainRelease<'_>]) -> Command {
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
pub(crate) fn released_many(mutexes: usize, value: &Value) -> Option<Reply> {
    match value {
        Value::Array(values) if values.len() == mutexes => values
            .iter()
            .map(|value| match value {
                Value::Int(-2) => Some(Err(NotReleased::Refused)),
                value => answers::release(value).map(Ok),
            })
            .collect::<Option<_>>()
            .map(Reply::Each),
        _ => None,
    }
}

pub(crate) fn adopt(key: &LockKey, adopt: &Adopt, script_settings: &ScriptSettings) -> Command {
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

/// Returns the command of a request for a lock of which several owners have leases at the same time.
pub(crate) fn share(
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

/// Returns the command of a request for a multi-lock.
pub(crate) fn multi(keys: &[LockKey], verb: &Verb, script_settings: &ScriptSettings) -> Command {
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

pub(crate) fn renew(batch: &[Renewal<'_>]) -> Command {
    let mut command = RENEW.command(batch.len());
    for renewal in batch {
        command.arg(renewal.key.key());
    }
    for renewal in batch {
        let shares = renewal.kind.units_in_key(renewal.units);
        let owner = renewal.owner.as_str();
        command
            .arg(owner)
            .arg(ms_rounded_up(renewal.lease))
            .arg(shares);
    }
    command
}

pub(crate) fn keep_records(batch: &[Renewal<'_>], script_settings: &ScriptSettings) -> Command {
    let mut command = KEEP_RECORD.command(batch.len());
    for renewal in batch {
        command.arg(renewal.key.companion(Companion::Fence));
    }
    command.arg(ms_rounded_up(script_settings.fence_memory));
    command
}

/// Reads the answer to the renewal of this number of leases.
pub(crate) fn renewed(leases: usize, value: &Value) -> Option<Reply> {
    match value {
        Value::Array(values) if values.len() == leases => values
            .iter()
            .map(renewed_one)
            .collect::<Option<_>>()
            .map(Reply::Renewed),
        _ => None,
    }
}

fn renewed_one(value: &Value) -> Option<Renewed> {
    match value {
        Value::Int(1) => Some(Renewed::Done { contended: false }),
        Value::Int(2) => Some(Renewed::Done { contended: true }),
        Value::Int(0) => Some(Renewed::Gone(Gone::Removed)),
        Value::Int(-1) => Some(Renewed::Gone(Gone::Taken)),
        Value::Int(-2) => Some(Renewed::Refused),
        _ => None,
    }
}

pub(crate) fn rate_limit(key: &LockKey, request: &RateRequest) -> Command {
    let mut command = RATE_LIMITER.command(1);
    command
        .arg(key.key())
        .arg(request.permits)
        .arg(us(request.per))
        .arg(us(request.patience));
    command
}

/// Reads the answer of the rate limiter. An admission after a longer wait than the caller accepts is no reply, because the caller would
/// have to wait that long.
pub(crate) fn admission(request: &RateRequest, value: &Value) -> Option<Reply> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [Value::Int(passed), Value::Int(wait)] = parts.as_slice() else {
        return None;
    };
    let wait = u64::try_from(*wait).ok()?;
    let is_worth_it = wait <= us(request.patience);
    let wait = Duration::from_micros(wait);
    match passed {
        1 if is_worth_it => Some(Reply::Admitted(wait)),
        0 => Some(Reply::NotAdmitted(wait)),
        _ => None,
    }
}

/// Returns a length in whole microseconds, rounded up, so that no window is shorter than the caller asked for. The
/// number is at most one that Lua counts exactly.
fn us(length: Duration) -> u64 {
    const MOST: u64 = 1 << 52;
    u64::try_from(length.as_nanos().div_ceil(1_000)).map_or(MOST, |us| us.min(MOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_beyond_the_limit_of_the_wait_is_not_valid() {
        let request = |patience| RateRequest {
            permits: 1,
            per: Duration::from_secs(1),
            patience,
        };
        let said = |passed, us| Value::Array(vec![Value::Int(passed), Value::Int(us)]);
        let ms = Duration::from_millis(1);
        assert_eq!(
            admission(&request(ms), &said(1, 1000)),
            Some(Reply::Admitted(ms))
        );
        assert_eq!(admission(&request(ms), &said(1, 1001)), None);
        assert_eq!(
            admission(&request(Duration::ZERO), &said(1, i64::MAX)),
            None
        );
        assert_eq!(admission(&request(ms), &said(1, -1)), None);
        let long = Duration::from_micros(i64::MAX.unsigned_abs());
        assert_eq!(
            admission(&request(ms), &said(0, i64::MAX)),
            Some(Reply::NotAdmitted(long))
        );
    }
}
