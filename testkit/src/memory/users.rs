//! Users, and what they may do: the rules of [`ACL SETUSER`] about passwords, single commands, keys and channels.
//!
//! [`ACL SETUSER`]: https://redis.io/docs/latest/commands/acl-setuser/

use std::collections::{BTreeMap, BTreeSet};

use super::arguments::{Arguments, CommandError};
use super::glob;

/// The user of a connection that has not logged in.
pub(super) const DEFAULT: &str = "default";
/// The user of [`MemoryServer::execute`](super::MemoryServer::execute), whom no rule binds. No `ACL SETUSER` can name it.
pub(super) const OPERATOR: &str = "";

#[derive(Clone, Debug, Default)]
struct User {
    is_on: bool,
    /// With it, each password is right.
    needs_no_password: bool,
    passwords: BTreeSet<Vec<u8>>,
    has_all_commands: bool,
    /// The commands for which the opposite of `has_all_commands` is true.
    exceptions: BTreeSet<String>,
    /// Patterns of the keys and channels that the user may use.
    keys: Vec<Vec<u8>>,
    channels: Vec<Vec<u8>>,
}

/// The users of a server.
pub(super) struct Users(BTreeMap<String, User>);

impl Users {
    /// Returns the users of a new server: one that may do everything.
    pub(super) fn new() -> Self {
        let all = User {
            is_on: true,
            needs_no_password: true,
            has_all_commands: true,
            keys: vec![b"*".to_vec()],
            channels: vec![b"*".to_vec()],
            ..User::default()
        };
        Self(BTreeMap::from([(DEFAULT.to_owned(), all)]))
    }

    /// Returns the user of a new connection, if it needs no login.
    pub(super) fn at_first(&self) -> Option<String> {
        let user = self.0.get(DEFAULT)?;
        (user.is_on && user.needs_no_password).then(|| DEFAULT.to_owned())
    }

    /// Returns why a user may not execute a command with these words.
    pub(super) fn check(
        &self,
        user: Option<&str>,
        arguments: &Arguments<'_>,
        keys: &[Vec<u8>],
        channels: &[Vec<u8>],
    ) -> Result<(), CommandError> {
        let command = arguments.name();
        if command == "auth" || user == Some(OPERATOR) {
            return Ok(());
        }
        // A user that was deleted has no connection any more.
        let Some(user) = user.and_then(|user| self.0.get(user)) else {
            return Err(CommandError::new("NOAUTH Authentication required."));
        };
        let refused = |what: &str| Err(CommandError(format!("NOPERM {what}")));
        if user.has_all_commands == user.exceptions.contains(&command) {
            let what = format!("this user has no permissions to run the '{command}' command");
            return refused(&what);
        }
        let is_allowed = |patterns: &[Vec<u8>], text: &[u8]| {
            let mut patterns = patterns.iter();
            patterns.any(|pattern| glob::matches(pattern, text))
        };
        if !keys.iter().all(|key| is_allowed(&user.keys, key)) {
            return refused("No permissions to access a key");
        }
        if !channels
            .iter()
            .all(|channel| is_allowed(&user.channels, channel))
        {
            return refused("No permissions to access a channel");
        }
        Ok(())
    }
}

impl Users {
    /// Changes a user by these rules, or makes one that may do nothing else.
    pub(super) fn set(&mut self, name: &str, rules: &[Vec<u8>]) -> Result<(), CommandError> {
        let mut user = self.0.get(name).cloned().unwrap_or_default();
        rules.iter().try_for_each(|rule| user.apply(rule))?;
        self.0.insert(name.to_owned(), user);
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> bool {
        name != DEFAULT && self.0.remove(name).is_some()
    }

    /// Returns whether a user needs a password.
    pub(super) fn needs_password(&self, name: &str) -> bool {
        let user = self.0.get(name);
        user.is_none_or(|user| !user.needs_no_password)
    }

    pub(super) fn may_log_in(&self, name: &str, password: &[u8]) -> bool {
        self.0.get(name).is_some_and(|user| {
            user.is_on && (user.needs_no_password || user.passwords.contains(password))
        })
    }
}

impl User {
    /// Applies a rule such as `+get`, `~app:*` or `>password`.
    fn apply(&mut self, rule: &[u8]) -> Result<(), CommandError> {
        let word = String::from_utf8_lossy(rule).to_lowercase();
        match (word.as_str(), rule) {
            ("on", _) => self.is_on = true,
            ("off", _) => self.is_on = false,
            ("nopass", _) => {
                self.needs_no_password = true;
                self.passwords.clear();
            }
            ("resetpass", _) => {
                self.needs_no_password = false;
                self.passwords.clear();
            }
            ("reset", _) => *self = Self::default(),
            ("+@all" | "allcommands", _) => {
                self.has_all_commands = true;
                self.exceptions.clear();
            }
            ("-@all" | "nocommands", _) => {
                self.has_all_commands = false;
                self.exceptions.clear();
            }
            ("allkeys", _) => self.keys = vec![b"*".to_vec()],
            ("allchannels", _) => self.channels = vec![b"*".to_vec()],
            ("resetkeys", _) => self.keys.clear(),
            ("resetchannels", _) => self.channels.clear(),
            (_, [b'>', password @ ..]) => {
                self.needs_no_password = false;
                self.passwords.insert(password.to_vec());
            }
            (_, [b'~', pattern @ ..]) => self.keys.push(pattern.to_vec()),
            (_, [b'&', pattern @ ..]) => self.channels.push(pattern.to_vec()),
            (word, [sign @ (b'+' | b'-'), name @ ..])
                if name.iter().all(u8::is_ascii_alphabetic) =>
            {
                let is_allowed = *sign == b'+';
                if is_allowed == self.has_all_commands {
                    self.exceptions.remove(&word[1..]);
                } else {
                    self.exceptions.insert(word[1..].to_owned());
                }
            }
            _ => {
                let text = format!("ERR Error in ACL SETUSER modifier '{word}': Syntax error");
                return Err(CommandError(text));
            }
        }
        Ok(())
    }
}
