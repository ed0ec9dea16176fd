//! The exit statuses, and the failures that have them. The man page lists them.

use leasehold::Error;

/// The lock was held by others for the whole wait, and nothing ran. `flock` has no such status; this is `EX_TEMPFAIL`.
pub const BUSY: u8 = 75;
/// The servers did not answer, and nothing ran.
pub const UNREACHABLE: u8 = 69;
/// The lock was lost while the command ran, or this program failed.
pub const LOST: u8 = 70;
/// The command succeeded, and processes that it left behind were ended.
pub const LEFT: u8 = 73;
/// The time of `--max` was over while the command ran.
pub const MAX: u8 = 78;
/// The command line, a name or a setting is wrong.
pub const USAGE: u8 = 64;
/// The server refused the login, or a right is missing.
pub const DENIED: u8 = 77;
/// The key of the lock has another kind of value.
pub const WRONG_TYPE: u8 = 65;
/// The server gave an answer that leasehold does not understand.
pub const PROTOCOL: u8 = 76;
/// The system refused something that the command line needs.
pub const SYSTEM: u8 = 71;
/// The command was found, and could not be started.
pub const CANNOT_RUN: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;

/// The table of the man page, and of docs/cli.md.
pub const TABLE: [(&str, &str); 15] = [
    (
        "the command's own",
        "`run`, `elect`: the status with which the command ended. 128 + N if signal N killed it. If `leasehold` itself got INT or QUIT, and the command died of it, `leasehold` dies of it too.",
    ),
    (
        "0",
        "The other subcommands: all went well. `run` with `--once-every` or `--fire`: also if that time was done before, and nothing ran.",
    ),
    (
        "1",
        "`doctor`: warnings. `status --check`: a lock is free. `release`, `request`: nothing was done, because that holder does not hold the lock, or nobody does. `leader`: nobody leads.",
    ),
    ("2", "`doctor`: locks are not safe here, or do not work."),
    (
        "64",
        "The command line, a name or a setting is wrong, there is no terminal to ask on, or `bench` may not write. Nothing ran.",
    ),
    (
        "65",
        "The key of the lock has another kind of value. Nothing ran.",
    ),
    ("69", "The servers did not answer. Nothing ran."),
    (
        "70",
        "`run`, `elect`: the lock was lost, or `leasehold` itself failed, while the command ran; or, for `elect`, before it ran. `run`: also if the command succeeded, and that it did could not be recorded, or may not have been (`--once-every`, `--fire`). The others: `leasehold` itself failed.",
    ),
    (
        "71, 76",
        "The system, or the server, did something unexpected. Nothing ran.",
    ),
    (
        "73",
        "`run`, `elect`: the command succeeded, but processes that it left behind were ended. `--let-live` spares them.",
    ),
    (
        "75",
        "`run`, `elect`: others held the lock for the whole wait. Nothing ran. `--busy-status` changes it.",
    ),
    (
        "77",
        "The server refused the login, or a right is missing. Nothing ran.",
    ),
    (
        "78",
        "`run`, `elect`: the command was ended because the time of `--max` was over.",
    ),
    (
        "126, 127",
        "`run`, `elect`: the command could not be started, or was not found, as in a shell.",
    ),
    (
        "128 + N",
        "Signal N ended `watch` or `leader --watch`, or `run` or `elect` while it waited for the lock. Nothing ran.",
    ),
];

/// Why a subcommand ends early: its status, and the text for standard error.
#[derive(Debug)]
pub struct Failure {
    pub status: u8,
    pub text: String,
}

impl Failure {
    pub fn new(status: u8, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    /// Returns the failure of a system call, with what it was for.
    pub fn system(what: &str, error: impl std::fmt::Display) -> Self {
        Self::new(SYSTEM, format!("{what}: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Config { .. } | Error::InvalidName { .. } | Error::Unsupported { .. } => USAGE,
            Error::Denied { .. } => DENIED,
            Error::WrongType { .. } => WRONG_TYPE,
            Error::Protocol { .. } => PROTOCOL,
            Error::Lost(_) => LOST,
            Error::Timeout { .. } => BUSY,
            _ => UNREACHABLE,
        };
        // With its causes.
        Self::new(status, format!("{error:#}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_one_meaning_and_a_row() {
        let statuses = [
            USAGE,
            WRONG_TYPE,
            UNREACHABLE,
            LOST,
            SYSTEM,
            PROTOCOL,
            BUSY,
            DENIED,
            LEFT,
            MAX,
            CANNOT_RUN,
            NOT_FOUND,
        ];
        let numbers = TABLE.iter().flat_map(|(numbers, _)| numbers.split(", "));
        let in_table: Vec<u8> = numbers
            .filter_map(|number| number.parse().ok())
            .filter(|number| *number > 2)
            .collect();
        let mut expected = statuses.to_vec();
        expected.sort_unstable();
        assert!(expected.windows(2).all(|pair| pair[0] != pair[1]));
        let mut found = in_table;
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}
