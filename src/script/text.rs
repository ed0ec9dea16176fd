//! The texts of the scripts, and the arguments that several scripts share.

use std::time::Duration;

use once_cell::sync::Lazy;

use super::script_settings::{ScriptSettings, ms};
use crate::message::{Ask, GiveBack};
use crate::name::{Companion, LockKey};

/// A script: its text, and the digest that names it to a server that has loaded it.
pub(super) struct Script {
    text: &'static str,
    digest: Lazy<redis::Script>,
}

macro_rules! script {
    ($($part:literal),+) => {
        Script {
            text: concat!($(include_str!(concat!("lua/", $part))),+),
            digest: Lazy::new(|| redis::Script::new(concat!($(include_str!(concat!("lua/", $part))),+))),
        }
    };
}

pub(super) static MUTEX_ACQUIRE: Script = script!(
    "fence.lua",
    "mutex_acquire_free.lua",
    "value.lua",
    "queue.lua",
    "gap.lua",
    "mutex_acquire.lua"
);
pub(super) static MUTEX_TAKE_OVER: Script = script!(
    "fence.lua",
    "value.lua",
    "queue.lua",
    "gap.lua",
    "mutex_take_over.lua",
    "mutex_acquire.lua"
);
pub(super) static MUTEX_RELEASE: Script = script!("value.lua", "mutex_release.lua");
pub(super) static MUTEX_RELEASE_MANY: Script = script!("value.lua", "mutex_release_many.lua");
pub(super) static MUTEX_HAND_OVER: Script =
    script!("value.lua", "queue.lua", "gap.lua", "mutex_hand_over.lua");
pub(super) static MUTEX_ADOPT: Script = script!("fence.lua", "value.lua", "mutex_adopt.lua");
pub(super) static SHARE_ACQUIRE: Script = script!(
    "fence.lua",
    "value.lua",
    "queue.lua",
    "share.lua",
    "share_acquire.lua"
);
pub(super) static SHARE_RELEASE: Script =
    script!("value.lua", "queue.lua", "share.lua", "share_release.lua");
pub(super) static MULTI_ACQUIRE: Script = script!(
    "fence.lua",
    "value.lua",
    "queue.lua",
    "gap.lua",
    "multi_acquire.lua"
);
pub(super) static MULTI_RELEASE: Script =
    script!("value.lua", "queue.lua", "gap.lua", "multi_release.lua");
pub(super) static RATE_LIMITER: Script = script!("rate_limiter.lua");
pub(super) static INSPECT: Script = script!("value.lua", "inspect.lua");
pub(super) static FORCE_RELEASE: Script =
    script!("value.lua", "queue.lua", "share.lua", "force_release.lua");
pub(super) static RENEW: Script = script!("value.lua", "renew.lua");
pub(super) static KEEP: Script = script!("value.lua", "queue.lua", "keep.lua");

pub(super) static QUORUM_ACQUIRE: Script = script!(
    "fence.lua",
    "value.lua",
    "queue.lua",
    "quorum_turn.lua",
    "quorum_fence.lua",
    "quorum_acquire.lua"
);
pub(super) static QUORUM_SHARE_ACQUIRE: Script = script!(
    "fence.lua",
    "value.lua",
    "queue.lua",
    "share.lua",
    "quorum_fence.lua",
    "quorum_share_acquire.lua"
);
pub(super) static QUORUM_SHARE_RELEASE: Script = script!(
    "value.lua",
    "queue.lua",
    "share.lua",
    "quorum_share.lua",
    "quorum_share_release.lua"
);
pub(super) static QUORUM_MULTI_ACQUIRE: Script = script!(
    "fence.lua",
    "value.lua",
    "queue.lua",
    "quorum_fence.lua",
    "quorum_multi_acquire.lua"
);
pub(super) static QUORUM_MULTI_RELEASE: Script =
    script!("value.lua", "queue.lua", "quorum_multi_release.lua");
pub(super) static QUORUM_ADOPT: Script = script!(
    "fence.lua",
    "value.lua",
    "quorum_fence.lua",
    "quorum_adopt.lua"
);
pub(super) static QUORUM_FORCE_RELEASE: Script = script!(
    "value.lua",
    "queue.lua",
    "share.lua",
    "quorum_share.lua",
    "quorum_force_release.lua"
);
pub(super) static QUORUM_RAISE: Script = script!(
    "fence.lua",
    "value.lua",
    "quorum_fence.lua",
    "quorum_raise.lua"
);
pub(super) static QUORUM_RELEASE: Script = script!(
    "value.lua",
    "queue.lua",
    "quorum_turn.lua",
    "quorum_release.lua"
);

/// The way in which a command names its script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptRef {
    /// The digest. A server that has not loaded the script answers `NOSCRIPT`.
    Digest,
    /// The text. The server then keeps the script.
    Text,
}

impl Script {
    /// Returns the command that loads the script.
    pub(super) fn load(&self) -> redis::Cmd {
        redis::cmd("SCRIPT").arg("LOAD").arg(self.text).to_owned()
    }

    /// Returns a command that names the script and the number of its keys. The caller adds the keys and the arguments.
    pub(super) fn command(&self, by: ScriptRef, keys: usize) -> redis::Cmd {
        // Room for the longest call about a mutex with an ordinary name, so that the command need not grow.
        let mut command = redis::Cmd::with_capacity(20, 640);
        match by {
            ScriptRef::Digest => command.arg("EVALSHA").arg(self.digest.get_hash()),
            ScriptRef::Text => command.arg("EVAL").arg(self.text),
        };
        command.arg(keys);
        command
    }

    /// Returns a command with the keys of these locks: for each its own key and its companions.
    pub(super) fn with_companions(&self, by: ScriptRef, locks: &[LockKey]) -> redis::Cmd {
        let mut command = self.command(by, 4 * locks.len());
        for key in locks {
            command.arg(key.key());
            for which in [Companion::Fence, Companion::Queue, Companion::Waiters] {
                command.arg(key.companion(which));
            }
        }
        command
    }
}

/// Returns the command that keeps locks for `life` after the end of their lease. `units` is 0 for whole locks. Fences
/// can be given back for a single lock only.
pub(super) fn keep(
    keys: &[LockKey],
    owner: &str,
    units: u32,
    life: Duration,
    block: Option<GiveBack>,
    by: ScriptRef,
) -> redis::Cmd {
    let fence = block.and(keys.first());
    let mut command = KEEP.command(by, keys.len() + usize::from(fence.is_some()));
    for key in keys {
        command.arg(key.key());
    }
    if let Some(key) = fence {
        command.arg(key.companion(Companion::Fence));
    }
    command.arg(owner).arg(ms(life)).arg(units);
    give_back(&mut command, block);
    command
}

/// Adds the arguments of `queue.lua`. Each script that queues or wakes a waiter has them.
pub(super) fn of_waiters(command: &mut redis::Cmd) {
    command.arg(ms(WAITER_LIFE)).arg(COUNTS_SUBSCRIBERS);
}

/// Adds the arguments with which each acquiring script begins. `how` is the script's fifth argument.
pub(super) fn ask(
    command: &mut redis::Cmd,
    ask: &Ask,
    how: &str,
    script_settings: &ScriptSettings,
) {
    command
        .arg(&*ask.owner)
        .arg(ms(ask.lease))
        .arg(ask.fences)
        .arg(ms(script_settings.fence_memory))
        .arg(how)
        .arg(ask.channel.as_deref().unwrap_or("-"))
        .arg(ms(script_settings.pickup_window(ask.lease)));
    of_waiters(command);
}

/// Adds the last fence used and the last of its block, or two empty texts.
pub(super) fn give_back(command: &mut redis::Cmd, block: Option<GiveBack>) {
    match block {
        Some(GiveBack { used, last }) => command.arg(used).arg(last),
        None => command.arg("").arg(""),
    };
}

/// How long a process in a queue counts as alive after it was last seen: three polls.
const WAITER_LIFE: Duration = Duration::from_secs(3);

/// Says that a PUBLISH counts all subscribers. On a single server it does.
const COUNTS_SUBSCRIBERS: &str = "1";
