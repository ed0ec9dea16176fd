//! A command of the redis crate, and the script that it names.

use redis::{Arg, Cmd, ToRedisArgs};

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

    /// Makes a command that executes a script, which it names by the digest. A server that has not loaded the script
    /// answers `NOSCRIPT`.
    pub(crate) fn of_script(digest: &str, text: &'static str) -> Self {
        // Room for the longest call about a mutex with an ordinary name.
        let mut command = Cmd::with_capacity(24, 512);
        command.arg("EVALSHA").arg(digest);
        Self {
            command,
            text: Some(text),
        }
    }

    /// Returns whether the command names a script by its digest.
    pub(crate) fn is_by_digest(&self) -> bool {
        self.text.is_some()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_becomes_the_text_of_its_script() {
        let mut command = Command::of_script("d16e57", "return 1");
        // An argument is no script, whatever it says.
        command.arg(0).arg("EVALSHA").arg("d16e57");
        let mut by_text = redis::cmd("EVAL");
        by_text.arg("return 1").arg(0).arg("EVALSHA").arg("d16e57");
        assert_eq!(command.by_text().packed(), by_text.get_packed_command());
        assert_eq!(
            command.by_text().by_text().packed(),
            command.by_text().packed()
        );
    }
}
