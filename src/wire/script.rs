//! The scripts, and the commands that name them.

use once_cell::race::OnceBox;
use redis::{Arg, Cmd, ToRedisArgs};

use crate::name::{Companion, LockKey};

/// A command. If it names a script by the digest, it has the text too.
#[derive(Clone)]
pub(crate) struct Command {
    command: Cmd,
    text: Option<&'static str>,
}

impl Command {
    /// Makes a command of this name.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            command: redis::cmd(name),
            text: None,
        }
    }

    /// Returns whether the command names a script by its digest.
    pub(crate) fn is_by_digest(&self) -> bool {
        self.text.is_some()
    }

    /// Returns the first key of a script, or the first argument of another command.
    pub(crate) fn first_key(&self) -> Option<Arg<&[u8]>> {
        let place = if self.is_by_digest() { 3 } else { 1 };
        self.command.args_iter().nth(place)
    }

    /// Returns the same command, with the text of its script in place of the digest. The server then keeps the script.
    pub(crate) fn by_text(&self) -> Self {
        let Some(text) = self.text else {
            return self.clone();
        };
        let mut command = Self::new("EVAL");
        command.arg(text);
        for arg in self.command.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }

    /// Adds an argument, or those of a slice.
    pub(crate) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.command.arg(arg);
        self
    }

    /// Appends the command to `bytes`, in the form in which it is sent.
    pub(crate) fn pack(&self, bytes: &mut Vec<u8>) {
        self.command.write_packed_command(bytes);
    }

    /// Returns the command in the form in which it is sent.
    #[cfg(test)]
    pub(crate) fn packed(&self) -> Vec<u8> {
        self.command.get_packed_command()
    }
}

/// A script: a file of `lua/`, with the files that it includes.
pub(crate) struct Script {
    /// The name of its file, without the extension. The form of a script for a node of a quorum has `quorum_` before that.
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
    ($name:literal = $file:literal) => {
        lua!($file)
    };
}

/// The files that others include.
const INCLUDED: [(&str, &str); 10] = [
    ("batch", lua!("batch")),
    ("fence", lua!("fence")),
    ("gap", lua!("gap")),
    ("queue", lua!("queue")),
    ("queue_next", lua!("queue_next")),
    ("quorum_fence", lua!("quorum_fence")),
    ("quorum_share", lua!("quorum_share")),
    ("quorum_turn", lua!("quorum_turn")),
    ("share", lua!("share")),
    ("value", lua!("value")),
];

macro_rules! scripts {
    ($($script:ident $name:literal $(= $file:literal)?)+) => {
        $(pub(crate) static $script: Script = Script {
            name: $name,
            file: lua!($name $(= $file)?),
            whole: OnceBox::new(),
        };)+

        /// All scripts.
        #[cfg(any(test, feature = "seam"))]
        pub(crate) static SCRIPTS: &[&Script] = &[$(&$script),+];
    };
}

scripts! {
    COMMIT "commit"
    FORCE_RELEASE "force_release"
    INSPECT "inspect"
    KEEP "keep"
    KEEP_RECORD "keep_record"
    LEADER "leader"
    MULTI_ACQUIRE "multi_acquire"
    MULTI_RELEASE "multi_release"
    MUTEX_ACQUIRE "mutex_acquire"
    MUTEX_ADOPT "mutex_adopt"
    MUTEX_HAND_OVER "mutex_hand_over"
    MUTEX_RELEASE "mutex_release"
    MUTEX_RELEASE_MANY "mutex_release_many"
    ONCE "once"
    QUORUM_ACQUIRE "quorum_acquire"
    QUORUM_ADOPT "quorum_adopt"
    QUORUM_FORCE_RELEASE "quorum_force_release" = "force_release"
    QUORUM_JOIN "quorum_join"
    QUORUM_KEEP "quorum_keep" = "keep"
    QUORUM_RAISE "quorum_raise"
    QUORUM_RELEASE "quorum_release" = "multi_release"
    QUORUM_RESTART_DELAY "quorum_restart_delay"
    QUORUM_SHARE_ACQUIRE "quorum_share_acquire"
    QUORUM_SHARE_RELEASE "quorum_share_release" = "share_release"
    RATE_LIMITER "rate_limiter"
    RENEW "renew"
    SHARE_ACQUIRE "share_acquire"
    SHARE_RELEASE "share_release"
}

/// The scripts about locks that a node of a quorum executes.
pub(crate) static OF_A_QUORUM: [&Script; 8] = [
    &QUORUM_ACQUIRE,
    &QUORUM_RAISE,
    &QUORUM_RELEASE,
    &QUORUM_SHARE_ACQUIRE,
    &QUORUM_SHARE_RELEASE,
    &RENEW,
    &QUORUM_KEEP,
    &QUORUM_JOIN,
];

/// Appends the text of a file. Each line `-- include NAME.lua` stands for that file, unless the text has it already; each line
/// `-- include NAME.lua on a quorum` too, in the form of a script for a node of a quorum.
fn append(text: &mut String, included: &mut Vec<&'static str>, file: &str, on_a_quorum: bool) {
    for line in file.lines() {
        let Some(name) = line.strip_prefix("-- include ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let name = match name.strip_suffix(" on a quorum") {
            Some(_) if !on_a_quorum => continue,
            marked => marked.unwrap_or(name),
        };
        let is_it = |(it, _): &&(&str, &str)| name.strip_suffix(".lua") == Some(it);
        if let Some((name, file)) = INCLUDED
            .iter()
            .find(is_it)
            .filter(|it| !included.contains(&it.0))
        {
            included.push(name);
            append(text, included, file, on_a_quorum);
        }
    }
}

impl Script {
    fn whole(&'static self) -> &'static Whole {
        self.whole.get_or_init(|| {
            let mut text = String::new();
            let on_a_quorum = self.name.starts_with("quorum_");
            append(&mut text, &mut Vec::new(), self.file, on_a_quorum);
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

    /// Returns a command that executes the script, which it names by the digest, on this number of keys. The caller adds
    /// the keys and the arguments. A server that has not loaded the script answers `NOSCRIPT`.
    pub(crate) fn command(&'static self, keys: usize) -> Command {
        let Whole { text, digest } = self.whole();
        // Room for the longest call about a mutex with an ordinary name.
        let mut command = Cmd::with_capacity(24, 512);
        command.arg("EVALSHA").arg(digest).arg(keys);
        Command {
            command,
            text: Some(text),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::lifetime;

    #[test]
    fn every_include_is_a_known_file_and_comes_once() {
        let files = SCRIPTS.iter().map(|script| script.file);
        for file in files.chain(INCLUDED.map(|(_, file)| file)) {
            for line in file.lines().filter(|line| line.contains("include ")) {
                let name = line.strip_prefix("-- include ").expect("it is the line");
                let name = name.strip_suffix(" on a quorum").unwrap_or(name);
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

    #[test]
    fn a_digest_becomes_the_text_of_its_script() {
        let mut command = Command {
            command: redis::cmd("EVALSHA"),
            text: Some("return 1"),
        };
        // An argument is no script, whatever it says.
        command.arg("d16e57").arg(0).arg("EVALSHA").arg("d16e57");
        let mut by_text = redis::cmd("EVAL");
        by_text.arg("return 1").arg(0).arg("EVALSHA").arg("d16e57");
        assert_eq!(command.by_text().packed(), by_text.get_packed_command());
        assert_eq!(
            command.by_text().by_text().packed(),
            command.by_text().packed()
        );
    }
}
