//! A command in the form in which it is sent: an array of texts ([RESP]).
//!
//! A `redis::Cmd` keeps its arguments, and packs them when it is sent. Both together were a fifth of the instructions that
//! the client runs for a lock and its release. A [`Command`] is packed as it is built, which takes two fifths less. The
//! redis crate still decides how a value becomes an argument.
//!
//! [RESP]: https://redis.io/docs/latest/develop/reference/protocol-spec/

use std::io;

use redis::{RedisWrite, ToRedisArgs};

/// A command, packed except for the number of its parts.
#[derive(Clone, Default)]
pub(crate) struct Command {
    parts: Vec<u8>,
    count: usize,
    /// The script that the command names by its digest.
    script: Option<NamedScript>,
}

/// A script that a command names by its digest.
#[derive(Clone)]
struct NamedScript {
    text: &'static str,
    /// How many bytes of the parts name it: EVALSHA and the digest.
    length: usize,
}

impl Command {
    /// Makes a command of this name.
    pub(crate) fn new(name: &str) -> Self {
        let mut command = Self::default();
        command.arg(name);
        command
    }

    /// Makes a command that executes a script, which it names by the digest. A server that has not loaded the script
    /// answers `NOSCRIPT`.
    pub(super) fn of_script(digest: &str, text: &'static str) -> Self {
        // Room for the longest call about a mutex with an ordinary name, so that the command need not grow.
        let mut command = Self {
            parts: Vec::with_capacity(640),
            ..Self::default()
        };
        command.arg("EVALSHA").arg(digest);
        let length = command.parts.len();
        command.script = Some(NamedScript { text, length });
        command
    }

    /// Returns whether the command names a script by its digest.
    pub(crate) fn is_by_digest(&self) -> bool {
        self.script.is_some()
    }

    /// Returns the same command, with the text of its script in place of the digest. The server then keeps the script.
    pub(crate) fn by_text(&self) -> Self {
        let Some(NamedScript { text, length }) = self.script else {
            return self.clone();
        };
        let mut command = Self::new("EVAL");
        command.arg(text);
        command.parts.extend_from_slice(&self.parts[length..]);
        command.count = self.count;
        command
    }

    /// Adds an argument, or those of a slice.
    pub(crate) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        arg.write_redis_args(self);
        self
    }

    /// Adds the argument that these parts make up together.
    pub(super) fn arg_of_parts(&mut self, parts: &[&str]) -> &mut Self {
        let mut length = 0;
        for part in parts {
            length += part.len();
        }
        write_line(&mut self.parts, b'$', length);
        for part in parts {
            self.parts.extend_from_slice(part.as_bytes());
        }
        self.parts.extend_from_slice(b"\r\n");
        self.count += 1;
        self
    }

    /// Appends the packed command to `bytes`.
    pub(crate) fn pack(&self, bytes: &mut Vec<u8>) {
        write_line(bytes, b'*', self.count);
        bytes.extend_from_slice(&self.parts);
    }

    /// Returns the packed command.
    #[cfg(test)]
    pub(crate) fn packed(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.pack(&mut bytes);
        bytes
    }
}

impl RedisWrite for Command {
    fn write_arg(&mut self, arg: &[u8]) {
        write_line(&mut self.parts, b'$', arg.len());
        self.parts.extend_from_slice(arg);
        self.parts.extend_from_slice(b"\r\n");
        self.count += 1;
    }

    fn writer_for_next_arg(&mut self) -> impl io::Write + '_ {
        NextArg {
            command: self,
            bytes: Vec::new(),
        }
    }
}

/// An argument that is written piece by piece. Its drop adds it to the command.
struct NextArg<'a> {
    command: &'a mut Command,
    bytes: Vec<u8>,
}

impl io::Write for NextArg<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for NextArg<'_> {
    fn drop(&mut self) {
        self.command.write_arg(&self.bytes);
    }
}

/// Appends a header: a type byte and a number.
fn write_line(bytes: &mut Vec<u8>, sign: u8, number: usize) {
    let digit = |number: usize| b'0' + (number % 10) as u8;
    match number {
        0..10 => bytes.extend_from_slice(&[sign, digit(number), b'\r', b'\n']),
        10..100 => {
            let line = [sign, digit(number / 10), digit(number), b'\r', b'\n'];
            bytes.extend_from_slice(&line);
        }
        _ => {
            bytes.push(sign);
            bytes.extend_from_slice(number.to_string().as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The redis crate packs the same command.
        #[test]
        fn a_command_is_packed_as_by_the_redis_crate(
            texts in prop::collection::vec(".*", 0..12),
            long in prop::option::of(0..20_000usize),
            number: i64,
        ) {
            let (mut ours, mut theirs) = (Command::new("NAME"), redis::cmd("NAME"));
            let long = long.map(|length| "x".repeat(length));
            for text in texts.iter().chain(&long) {
                ours.arg(text);
                theirs.arg(text);
            }
            ours.arg_of_parts(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            theirs.arg(texts.concat());
            ours.arg(&texts[..]).arg(number).arg(long.as_deref().map(str::as_bytes));
            theirs.arg(&texts[..]).arg(number).arg(long.as_deref().map(str::as_bytes));
            prop_assert_eq!(ours.packed(), theirs.get_packed_command());
        }
    }

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

    #[test]
    fn an_argument_may_be_written_piece_by_piece() {
        let mut command = Command::new("ECHO");
        write!(command.writer_for_next_arg(), "{}-{}", 1, 23).expect("it is memory");
        assert_eq!(command.packed(), b"*2\r\n$4\r\nECHO\r\n$4\r\n1-23\r\n");
    }
}
