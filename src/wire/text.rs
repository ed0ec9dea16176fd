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

/// A script: a file of `lua/`, with the files that it includes.
pub(crate) struct Script {
    /// The name of its file, without the extension.
    pub(crate) name: &'static str,
    file: &'static str,
    /// Made at the first call. A `Lazy` would block while another thread initialises it, and in a forked child that thread
    /// may not exist.
    whole: OnceBox<Whole>,
}

/// The text of a script, and the digest that names it to a server that has loaded it.
struct Whole {
    text: String,
    digest: String,
}

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("lua/", $name, ".lua"))
    };
}

/// The files that others include.
const INCLUDED: [(&str, &str); 12] = [
    ("batch", lua!("batch")),
    ("fence", lua!("fence")),
    ("force_release", lua!("force_release")),
    ("gap", lua!("gap")),
    ("keep", lua!("keep")),
    ("queue", lua!("queue")),
    ("queue_next", lua!("queue_next")),
    ("quorum_fence", lua!("quorum_fence")),
    ("quorum_share", lua!("quorum_share")),
    ("quorum_turn", lua!("quorum_turn")),
    ("share", lua!("share")),
    ("value", lua!("value")),
];

macro_rules! scripts {
    ($($script:ident $name:literal)+) => {
        $(pub(crate) static $script: Script = Script {
            name: $name,
            file: lua!($name),
            whole: OnceBox::new(),
        };)+

        /// All scripts.
        #[cfg(any(test, feature = "seam"))]
        pub(crate) static SCRIPTS: &[&Script] = &[$(&$script),+];
    };
}

scripts! {
    FORCE_RELEASE "force_release"
    INSPECT "inspect"
    KEEP "keep"
    KEEP_RECORD "keep_record"
    MULTI_ACQUIRE "multi_acquire"
    MULTI_RELEASE "multi_release"
    MUTEX_ACQUIRE "mutex_acquire"
    MUTEX_ADOPT "mutex_adopt"
    MUTEX_HAND_OVER "mutex_hand_over"
    MUTEX_RELEASE "mutex_release"
    MUTEX_RELEASE_MANY "mutex_release_many"
    QUORUM_ACQUIRE "quorum_acquire"
    QUORUM_ADOPT "quorum_adopt"
    QUORUM_FORCE_RELEASE "quorum_force_release"
    QUORUM_JOIN "quorum_join"
    QUORUM_KEEP "quorum_keep"
    QUORUM_MULTI_ACQUIRE "quorum_multi_acquire"
    QUORUM_MULTI_RELEASE "quorum_multi_release"
    QUORUM_RAISE "quorum_raise"
    QUORUM_RELEASE "quorum_release"
    QUORUM_RESTART_DELAY "quorum_restart_delay"
    QUORUM_SHARE_ACQUIRE "quorum_share_acquire"
    QUORUM_SHARE_RELEASE "quorum_share_release"
    RATE_LIMITER "rate_limiter"
    RENEW "renew"
    SHARE_ACQUIRE "share_acquire"
    SHARE_RELEASE "share_release"
}

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

/// Appends the text of a file: each line `-- include NAME.lua` stands for that file, unless the text has it already.
fn append(text: &mut String, included: &mut Vec<&'static str>, file: &str) {
    for line in file.lines() {
        let Some(name) = line.strip_prefix("-- include ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let is_it = |(it, _): &&(&str, &str)| name.strip_suffix(".lua") == Some(it);
        if let Some((name, file)) = INCLUDED
            .iter()
            .find(is_it)
            .filter(|it| !included.contains(&it.0))
        {
            included.push(name);
            append(text, included, file);
        }
    }
}

impl Script {
    fn whole(&'static self) -> &'static Whole {
        self.whole.get_or_init(|| {
            let mut text = String::new();
            append(&mut text, &mut Vec::new(), self.file);
            let digest = redis::Script::new(&text).get_hash().to_owned();
            Box::new(Whole { text, digest })
        })
    }

    pub(crate) fn text(&'static self) -> &'static str {
        &self.whole().text
    }

    /// Returns the command that loads the script.
    pub(crate) fn load(&'static self) -> Command {
        Command::new("SCRIPT")
            .arg("LOAD")
            .arg(self.text())
            .to_owned()
    }

    /// Returns a command that names the script and the number of its keys. The caller adds the keys and the arguments.
    pub(crate) fn command(&'static self, keys: usize) -> Command {
        let Whole { text, digest } = self.whole();
        let mut command = Command::of_script(digest, text);
        command.arg(keys);
        command
    }

    /// Returns a command with the keys of these locks: for each its own key and its companions.
    pub(crate) fn with_companions<'k>(
        &'static self,
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
    script: &'static Script,
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
    fn every_include_is_a_known_file_and_comes_once() {
        let files = SCRIPTS.iter().map(|script| script.file);
        for file in files.chain(INCLUDED.map(|(_, file)| file)) {
            for line in file.lines().filter(|line| line.contains("include ")) {
                let name = line.strip_prefix("-- include ").expect("it is the line");
                let is_it = |(it, _): &(&str, &str)| name == format!("{it}.lua");
                assert!(INCLUDED.iter().any(is_it), "{name}");
            }
        }
        for script in SCRIPTS {
            let marks = script.text().matches("local MARK = ").count();
            assert!(
                marks <= 1 && !script.text().contains("-- include"),
                "{}",
                script.name
            );
        }
    }

    #[test]
    fn the_scripts_of_a_quorum_know_the_first_turn() {
        let ms = lifetime::FIRST_TURN.as_millis();
        let line = format!("local FIRST_TURN = {ms}\n");
        assert!(QUORUM_ACQUIRE.text().contains(&line), "{line}");
    }
}
