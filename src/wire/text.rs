//! The texts of the scripts, and the arguments that several scripts share, with the manager's settings among them.

use std::time::Duration;

use once_cell::race::OnceBox;

use crate::config::LONGEST_QUANTUM;
use crate::name::{Companion, LockKey};
use crate::owner;
use crate::sys::Arc;
use crate::sys::time::ms_rounded_up;
use crate::wire::command::Command;
use crate::wire::pollers::{GAP, Pollers};
use crate::wire::{Ask, GiveBack, Keep, LockKind, Reply, Request, lifetime};

/// A script: its text, and the digest that names it to a server that has loaded it.
pub(crate) struct Script {
    text: &'static str,
    /// Computed at the first call. A `Lazy` would block while another thread initialises it, and in a forked child that
    /// thread may not exist.
    digest: OnceBox<String>,
}

/// The text of a file of `lua/`, or of the files of the queue, or of all that the leases of several owners on a node need.
macro_rules! part {
    ("queue*.lua") => {
        concat!(
            part!("queue.lua"),
            part!("queue_waiter.lua"),
            part!("queue_next.lua")
        )
    };
    ("quorum_share*.lua") => {
        concat!(
            part!("value.lua"),
            part!("queue*.lua"),
            part!("share.lua"),
            part!("quorum_turn.lua"),
            part!("quorum_share.lua")
        )
    };
    ($part:literal) => {
        include_str!(concat!("lua/", $part))
    };
}

macro_rules! script {
    ($($part:tt),+) => {
        Script {
            text: concat!($(part!($part)),+),
            digest: OnceBox::new(),
        }
    };
}

pub(crate) static MUTEX_ACQUIRE: Script = script!(
    "record.lua",
    "fence.lua",
    "mutex_acquire_free.lua",
    "value.lua",
    "queue.lua",
    "mutex_acquire_held.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "gap.lua",
    "mutex_acquire.lua"
);
pub(crate) static MUTEX_TAKE_OVER: Script = script!(
    "record.lua",
    "fence.lua",
    "value.lua",
    "queue*.lua",
    "gap.lua",
    "mutex_take_over.lua",
    "mutex_acquire_held.lua",
    "mutex_acquire.lua"
);
pub(crate) static MUTEX_RELEASE: Script = script!("mutex_release.lua");
pub(crate) static MUTEX_RELEASE_MANY: Script =
    script!("value.lua", "batch.lua", "mutex_release_many.lua");
pub(crate) static MUTEX_HAND_OVER: Script = script!(
    "record.lua",
    "fence.lua",
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "mutex_hand_over_by_message.lua",
    "queue_next.lua",
    "gap.lua",
    "mutex_hand_over.lua"
);
pub(crate) static MUTEX_ADOPT: Script =
    script!("record.lua", "fence.lua", "value.lua", "mutex_adopt.lua");
pub(crate) static SHARE_ACQUIRE: Script = script!(
    "record.lua",
    "fence.lua",
    "share_acquire_free.lua",
    "value.lua",
    "queue*.lua",
    "share.lua",
    "share_acquire.lua"
);
pub(crate) static SHARE_RELEASE: Script = script!(
    "share_release_plain.lua",
    "value.lua",
    "queue*.lua",
    "share.lua",
    "share_release.lua"
);
pub(crate) static MULTI_ACQUIRE: Script = script!(
    "record.lua",
    "fence.lua",
    "multi_acquire_free.lua",
    "value.lua",
    "queue*.lua",
    "gap.lua",
    "multi_acquire.lua"
);
pub(crate) static MULTI_RELEASE: Script = script!(
    "multi_release_plain.lua",
    "value.lua",
    "queue*.lua",
    "gap.lua",
    "multi_release.lua"
);
pub(crate) static RATE_LIMITER: Script = script!("rate_limiter.lua");
pub(crate) static INSPECT: Script = script!("value.lua", "inspect.lua");
pub(crate) static FORCE_RELEASE: Script =
    script!("value.lua", "queue*.lua", "share.lua", "force_release.lua");
pub(crate) static RENEW: Script = script!("value.lua", "batch.lua", "renew.lua");
pub(crate) static KEEP_RECORD: Script = script!("batch.lua", "keep_record.lua");
pub(crate) static KEEP: Script = script!("value.lua", "queue*.lua", "keep.lua");

pub(crate) static QUORUM_ACQUIRE: Script = script!(
    "record.lua",
    "quorum_fence.lua",
    "quorum_acquire_free.lua",
    "value.lua",
    "queue*.lua",
    "quorum_turn.lua",
    "quorum_acquire.lua"
);
pub(crate) static QUORUM_SHARE_ACQUIRE: Script = script!(
    "record.lua",
    "quorum_share*.lua",
    "quorum_fence.lua",
    "quorum_share_acquire.lua"
);
pub(crate) static QUORUM_SHARE_RELEASE: Script =
    script!("quorum_share*.lua", "quorum_share_release.lua");
pub(crate) static QUORUM_MULTI_ACQUIRE: Script = script!(
    "record.lua",
    "value.lua",
    "queue*.lua",
    "quorum_turn.lua",
    "quorum_fence.lua",
    "quorum_multi_acquire.lua"
);
pub(crate) static QUORUM_MULTI_RELEASE: Script = script!(
    "value.lua",
    "queue*.lua",
    "quorum_turn.lua",
    "quorum_multi_release.lua"
);
pub(crate) static QUORUM_KEEP: Script = script!("quorum_share*.lua", "quorum_keep.lua", "keep.lua");
pub(crate) static QUORUM_ADOPT: Script = script!(
    "record.lua",
    "value.lua",
    "quorum_fence.lua",
    "quorum_adopt.lua"
);
pub(crate) static QUORUM_FORCE_RELEASE: Script = script!(
    "quorum_share*.lua",
    "quorum_force_release.lua",
    "force_release.lua"
);
pub(crate) static QUORUM_RAISE: Script = script!(
    "record.lua",
    "value.lua",
    "quorum_fence.lua",
    "quorum_raise.lua"
);
pub(crate) static QUORUM_JOIN: Script = script!(
    "record.lua",
    "value.lua",
    "queue*.lua",
    "share.lua",
    "quorum_turn.lua",
    "quorum_fence.lua",
    "quorum_join.lua"
);
pub(crate) static QUORUM_RELEASE: Script = script!(
    "quorum_release_plain.lua",
    "value.lua",
    "queue*.lua",
    "quorum_turn.lua",
    "quorum_release.lua"
);

pub(crate) static QUORUM_RESTART_DELAY: Script = script!("quorum_restart_delay.lua");

/// The scripts about locks that a node of a quorum executes.
pub(crate) static OF_A_QUORUM: [&Script; 10] = [
    &QUORUM_ACQUIRE,
    &QUORUM_RAISE,
    &QUORUM_RELEASE,
    &QUORUM_SHARE_ACQUIRE,
    &QUORUM_SHARE_RELEASE,
    &QUORUM_MULTI_ACQUIRE,
    &QUORUM_MULTI_RELEASE,
    &RENEW,
    &QUORUM_KEEP,
    &QUORUM_JOIN,
];

impl Script {
    fn digest(&self) -> &str {
        let hash = || Box::new(redis::Script::new(self.text).get_hash().to_owned());
        self.digest.get_or_init(hash)
    }

    /// Returns the command that loads the script.
    pub(crate) fn load(&self) -> Command {
        Command::new("SCRIPT").arg("LOAD").arg(self.text).to_owned()
    }

    /// Returns a command that names the script and the number of its keys. The caller adds the keys and the arguments.
    pub(crate) fn command(&self, keys: usize) -> Command {
        let mut command = Command::of_script(self.digest(), self.text);
        command.arg(keys);
        command
    }

    /// Returns a command with the keys of these locks: for each its own key and its companions.
    pub(crate) fn with_companions<'k>(
        &self,
        locks: impl IntoIterator<Item = &'k LockKey, IntoIter: ExactSizeIterator>,
    ) -> Command {
        let locks = locks.into_iter();
        let mut command = self.command(4 * locks.len());
        for key in locks {
            command.arg(key.key());
            for which in [Companion::Fence, Companion::Queue, Companion::Waiters] {
                command.arg(key.companion(which));
            }
        }
        command
    }
}

/// Returns the command that keeps locks for a while after the end of their lease. `units` is 0 for whole locks. Fences
/// can be given back for a single lock only.
pub(crate) fn keep(
    script: &Script,
    keys: &[LockKey],
    units: u32,
    keep: &Keep,
    script_settings: &ScriptSettings,
) -> Command {
    let mut command = if keep.wakes {
        script.with_companions(keys)
    } else {
        let mut command = script.command(keys.len());
        for key in keys {
            command.arg(key.key());
        }
        command
    };
    let life = ms_rounded_up(keep.life);
    command.arg(&*keep.owner).arg(life).arg(units);
    if keep.wakes {
        give_back(&mut command, keep.give_back);
        script_settings.of_waiters(&mut command);
    }
    command
}

/// Adds the arguments with which each acquiring script begins. `how` is the script's fifth argument.
pub(crate) fn ask(command: &mut Command, ask: &Ask, how: &str, script_settings: &ScriptSettings) {
    command
        .arg(&*ask.owner)
        .arg(ms_rounded_up(ask.lease))
        .arg(ask.fences)
        .arg(ms_rounded_up(script_settings.fence_memory))
        .arg(how);
    let channel = ask.channel.as_deref().unwrap_or("-");
    match ask.nonce {
        // A grant by message has one fence, or none.
        Some(nonce) => command.arg(format!("{channel} {} {nonce}", ask.fences.min(1))),
        None => command.arg(channel),
    };
    command.arg(ms_rounded_up(script_settings.pickup_window(ask.lease)));
    script_settings.of_waiters(command);
}

/// Adds the last fence used and the last of its block, or two empty texts.
pub(crate) fn give_back(command: &mut Command, block: Option<GiveBack>) {
    match block {
        Some(GiveBack { used, last }) => command.arg(used).arg(last),
        None => command.arg("").arg(""),
    };
}

/// The settings that travel with the calls.
#[derive(Clone, Debug)]
pub(crate) struct ScriptSettings {
    pub(crate) fence_memory: Duration,
    /// The longest pickup window of a waiter.
    longest_window: Duration,
    /// How long a contended mutex is left free once in `quantum`, for clients that poll. `None`: for [`GAP`], if such a
    /// client is about.
    poller_gap: Option<Duration>,
    pollers: Arc<Pollers>,
    quantum: Duration,
    /// Whether a PUBLISH counts all subscribers. In a cluster it counts those of one node.
    counts_subscribers: bool,
}

/// How long a process stays in a queue after it was last seen: three polls.
const WAITER_LIFE: Duration = Duration::from_secs(3);

impl ScriptSettings {
    pub(crate) fn new(fence_memory: Duration, io_timeout: Duration) -> Self {
        Self {
            fence_memory,
            longest_window: lifetime::longest_pickup_window(io_timeout),
            poller_gap: Some(Duration::ZERO),
            pollers: Arc::default(),
            quantum: LONGEST_QUANTUM,
            counts_subscribers: true,
        }
    }

    /// Returns the settings for the nodes of a cluster.
    pub(crate) fn of_a_cluster(self) -> Self {
        Self {
            counts_subscribers: false,
            ..self
        }
    }

    /// Sets the gap that the program wants, if it has set one, and how often it comes.
    pub(crate) fn with_gap(self, poller_gap: Option<Duration>, quantum: Option<Duration>) -> Self {
        Self {
            poller_gap,
            quantum: quantum.unwrap_or(self.quantum),
            ..self
        }
    }

    /// Notes that a client of another library holds the mutex of a request, if the reply says so.
    pub(crate) fn note_holder(&self, request: &Request<'_>, reply: &Reply) {
        let (
            Request::Lock {
                kind: LockKind::Mutex,
                target,
                ..
            },
            Reply::Held { holder, .. },
        ) = (request, reply)
        else {
            return;
        };
        if self.poller_gap.is_none() && !owner::is_ours(holder) {
            self.pollers.note(target.first());
        }
    }

    /// Returns how long a mutex is left free once in a quantum.
    pub(crate) fn gap_at(&self, key: &LockKey) -> Duration {
        // A gap that a program sets is no longer than the quantum either.
        let by_itself = || self.pollers.are_at(key).then(|| GAP.min(self.quantum));
        self.poller_gap.or_else(by_itself).unwrap_or_default()
    }

    /// Returns the pickup window of a waiter with this lease.
    pub(crate) fn pickup_window(&self, lease: Duration) -> Duration {
        lifetime::pickup_window(lease, self.longest_window)
    }

    /// Adds the arguments of `queue.lua`. Each script that queues or wakes a waiter has them.
    pub(crate) fn of_waiters(&self, command: &mut Command) {
        of_waiters(command, self.counts_subscribers);
    }

    /// Adds the arguments of `gap.lua`.
    pub(crate) fn gap(&self, command: &mut Command, gap: Duration) {
        command
            .arg(ms_rounded_up(gap))
            .arg(ms_rounded_up(self.quantum));
    }
}

/// Adds the arguments of `queue.lua`. `counts_subscribers`: a PUBLISH counts all subscribers, and not those of one node.
pub(crate) fn of_waiters(command: &mut Command, counts_subscribers: bool) {
    command
        .arg(ms_rounded_up(WAITER_LIFE))
        .arg(u8::from(counts_subscribers));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_of_a_quorum_know_the_first_turn() {
        let ms = lifetime::FIRST_TURN.as_millis();
        let line = format!("local FIRST_TURN = {ms}\n");
        assert!(QUORUM_ACQUIRE.text.contains(&line), "{line}");
    }
}
