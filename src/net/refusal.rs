//! The failures of a connection and the error answers of a server, and what each means for the request.
//!
//! | event | the request | noted as a sign of lost data |
//! | --- | --- | --- |
//! | the server answers with an error: see [`refusal`] | was not executed, or in part; the server will do no more of it | for some codes |
//! | the other side closes the connection | unknown; sent once more if the connection was opened for an earlier call | yes |
//! | any other error of input or output, such as a timeout | unknown | no |
//! | an answer cannot be read | unknown | no |
//! | an answer is no reply to its request | unknown | yes, and all leases are confirmed again |
//! | something is unread before the request is written | was not executed; sent on another connection | the same |
//! | the server refuses the connection, before any request: [`TransportError::Greeting`] | was not executed | no |
//! | the connection has ended before the request is written | was not executed; sent on another connection | yes |

use std::io;

use redis::Value;

use crate::config::Server;
use crate::error::{Failure, FailureKind, Outcome, Redirect, Unsupported, on_a_line};
use crate::name::SLOTS;
use crate::net::route::Route;
use crate::net::socket::TransportError;
use crate::sys::Arc;

/// Returns the failure that a server's error answer means.
///
/// The server did not execute the request, because the first commands of a script are those that can fail. But a
/// script may fail half done for a reason that it does not expect, such as a command that this user may not run.
///
/// The text is the server's, after its code. A server or proxy may quote the password in it, even long after the login.
#[allow(
    clippy::needless_pass_by_value,
    reason = "an answer is used up by its meaning, as by the two below"
)]
pub(crate) fn refusal(server: &Server, error: redis::ServerError) -> Failure {
    const ELSEWHERE: [&str; 3] = ["MOVED", "ASK", "CROSSSLOT"];
    // `DENIED`: the server is in protected mode.
    const DENIED: [&str; 4] = ["NOAUTH", "WRONGPASS", "NOPERM", "DENIED"];
    // The words for a command of a script that this user may not run: of Redis up to 7.0, then of Redis 7.2 and Valkey.
    const NOT_ALLOWED: [&str; 2] = ["The user executing the script", "ACL failure in script:"];
    // While a slot is moving away, a script may use the keys that exist, but not those that it has just deleted.
    const NOT_LOCAL: &str = "attempted to access a non local key";
    // The master became a replica after the request, and before the WAIT for it.
    const WAIT_AT_A_REPLICA: &str = "WAIT cannot be used with replica";
    // A WAIT is `UNBLOCKED` if the master becomes a replica meanwhile.
    const PASSING: [&str; 10] = [
        "LOADING",
        "BUSY",
        "READONLY",
        "UNBLOCKED",
        "MISCONF",
        "OOM",
        "NOREPLICAS",
        "MASTERDOWN",
        "UNKILLABLE",
        "MAXCLIENTS",
    ];
    let text = error.details().unwrap_or_default();
    // The server rejects a command of more than 10 parts before the login, and does not read it.
    let stranger = text.starts_with("Protocol error: unauthenticated")
        || NOT_ALLOWED
            .iter()
            .any(|words| text.starts_with(words) || (is_wrapped(&error) && text.contains(words)));
    let kind = if says(&error, &DENIED) || stranger {
        FailureKind::Denied
    } else if says(&error, &ELSEWHERE) {
        let kind = match error.code() {
            "MOVED" => FailureKind::Moved,
            "ASK" => FailureKind::Ask,
            _ => return Failure::unsupported(Unsupported::CLUSTER),
        };
        return match redirect(text) {
            Some(to) => Failure::redirected(kind, to),
            None => Failure::unsupported(Unsupported::CLUSTER),
        };
    } else if error.code() == "TRYAGAIN" || text.contains(NOT_LOCAL) {
        FailureKind::TryAgain
    } else if error.code() == "CLUSTERDOWN" {
        FailureKind::ClusterDown
    } else if text == "This instance has cluster support disabled" {
        return Failure::unsupported(Unsupported::NO_CLUSTER);
    } else if says(&error, &["WRONGTYPE"]) {
        FailureKind::WrongType
    } else if says(&error, &PASSING)
        || text.starts_with("max number of clients")
        || text.starts_with(WAIT_AT_A_REPLICA)
    {
        FailureKind::Unavailable
    } else {
        FailureKind::Protocol
    };
    let raised = is_wrapped(&error) || text.contains("@user_script:");
    let code = error.code();
    // The place in a script tells a user nothing.
    let text = match text.rsplit_once(" script: ") {
        Some((said, place)) if place.contains("on @") => said,
        _ => text,
    };
    let mut words = on_a_line(&server.without_password(&format!("{code} {text}")));
    if code == "ERR" && text.starts_with("unknown command") {
        words += " (leasehold needs this command: the server may be a sentinel, or the command is renamed)";
    }
    if code == "DENIED" {
        // More sentences follow, of which the line would have a part.
        let end = words.find(". ").unwrap_or(words.len());
        words.truncate(end);
        words += " (set a password at the server, or `protected-mode no`)";
    }
    let in_part = raised
        && matches!(
            kind,
            FailureKind::Denied | FailureKind::Protocol | FailureKind::TryAgain
        );
    let outcome = if in_part {
        Outcome::PartlyExecuted
    } else {
        Outcome::NotExecuted
    };
    Failure::plain(kind, outcome, words)
}

/// Returns the failure that an error answer to AUTH means. It quotes the answer only if the whole text is a known one.
/// A server that does not know AUTH quotes the command with the password. Any other program at that port may do so too,
/// after any code.
pub(crate) fn refused_login(server: &Server, error: redis::ServerError) -> Failure {
    /// The answers to a wrong password, and to a password where none is set, that have no code of their own.
    const DENIED: [&str; 3] = [
        "invalid password",
        "AUTH <password> called without any password configured for the default user. Are you sure your configuration \
         is correct?",
        "Client sent AUTH, but no password is set",
    ];
    const KNOWN: [(&str, &str); 5] = [
        (
            "WRONGPASS",
            "invalid username-password pair or user is disabled.",
        ),
        ("ERR", "wrong number of arguments for 'auth' command"),
        ("ERR", "max number of clients reached"),
        ("LOADING", "Redis is loading the dataset in memory"),
        ("LOADING", "Valkey is loading the dataset in memory"),
    ];
    let text = error.details().unwrap_or_default();
    let is_denied = error.code() == "ERR" && DENIED.contains(&text);
    let is_known = is_denied || KNOWN.contains(&(error.code(), text));
    let is_no_command = text.starts_with("unknown command");
    let mut failure = refusal(server, error);
    if is_denied {
        failure.kind = FailureKind::Denied;
    }
    if is_known || matches!(failure.kind, FailureKind::Unsupported(_)) {
        return failure;
    }
    let (kind, words) = match failure.kind {
        FailureKind::Unavailable => (failure.kind, "the server accepts no login now"),
        FailureKind::Protocol if is_no_command => {
            (failure.kind, "the server does not understand AUTH")
        }
        // A proxy may do so in words of its own.
        _ => (FailureKind::Denied, "the server rejects the login"),
    };
    Failure::plain(kind, Outcome::NotExecuted, words)
}

/// Returns the failure that an error answer to SELECT means.
pub(crate) fn refused_database(server: &Server, error: redis::ServerError) -> Failure {
    let text = error.details().unwrap_or_default();
    let is_too_large = text.contains("DB index") || text.contains("out of range");
    if error.code() == "ERR" && is_too_large {
        let number = server.info.redis_settings().db();
        let (kind, outcome) = (FailureKind::Config("database"), Outcome::NotExecuted);
        return Failure::plain(
            kind,
            outcome,
            format!("the server has no database {number}"),
        );
    }
    if text.contains("not allowed in cluster mode") {
        return Failure::unsupported(Unsupported::CLUSTER);
    }
    refusal(server, error)
}

/// Reads the text of a redirection: `<slot> <host>:<port>`. The host may be empty, and an IPv6 address has colons.
fn redirect(text: &str) -> Option<Redirect> {
    let (slot, address) = text.split_once(' ')?;
    let (host, port) = address.rsplit_once(':')?;
    Some(Redirect {
        slot: slot.parse().ok().filter(|slot| *slot < SLOTS)?,
        host: host.to_owned(),
        port: port.parse().ok().filter(|port| *port > 0)?,
    })
}

/// Returns whether an error has one of these codes.
///
/// Servers before 7.0 wrap the errors of a script's commands: `ERR Error running script (call to f_…):
/// @user_script:1: -OOM command …`. If the script itself returns the error: `@user_script: 1: -OOM command …`.
pub(crate) fn says(error: &redis::ServerError, codes: &[&str]) -> bool {
    let (code, text) = (error.code(), error.details().unwrap_or_default());
    let mut words = text
        .split([' ', ':'])
        .map(|word| word.trim_start_matches('-'));
    codes.contains(&code) || (is_wrapped(error) && words.any(|word| codes.contains(&word)))
}

/// Returns whether it is a script's error in the form of servers before 7.0.
fn is_wrapped(error: &redis::ServerError) -> bool {
    let text = error.details().unwrap_or_default();
    error.code().starts_with("@user_script") || text.starts_with("Error running script")
}

impl Route {
    /// Returns the failure that a fault means for a request. Notes the fault if the server may have lost its data.
    pub(crate) fn broken(&self, fault: TransportError) -> Failure {
        let address = &self.server.address;
        let mend = fault.mend_of_certificates();
        match fault {
            TransportError::Io(error) => {
                self.data_loss_signs.note_error(&error);
                let failure = Failure {
                    kind: FailureKind::Unavailable,
                    outcome: Outcome::Unknown,
                    timed_out: error.kind() == io::ErrorKind::TimedOut,
                    of_connecting: false,
                    cause: Arc::new(error),
                };
                let failure = failure.about(format!("the connection to {address} failed"));
                match mend {
                    None => failure,
                    Some(mend) => Failure {
                        kind: FailureKind::CertificateRefused,
                        ..failure.about(mend)
                    },
                }
            }
            TransportError::NotSent => {
                self.data_loss_signs.note();
                let words = format!("{address}: the connection ended before the request was sent");
                Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words)
            }
            TransportError::Surplus => {
                self.data_loss_signs.note_surplus();
                let words = format!("{address}: an answer came before the request was sent");
                Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words)
            }
            TransportError::Greeting(meaning, said) => {
                let said = said.map(|error| refusal(&self.server, error));
                let (kind, said) = match said {
                    Some(said) if said.is_transient() => (said.kind, format!(": {}", said.cause)),
                    Some(said) => (FailureKind::Denied, format!(": {}", said.cause)),
                    None => (FailureKind::Denied, String::new()),
                };
                let words = format!("{meaning}{said}");
                let failure = Failure::plain(kind, Outcome::NotExecuted, words).at(address);
                self.connecting.note(&failure);
                failure.of_connecting()
            }
            // No Redis server sends such an answer, so a retry would not help.
            TransportError::Malformed(what) => {
                let words = format!(
                    "{address}: {}",
                    on_a_line(&self.server.without_password(&what))
                );
                Failure::plain(FailureKind::Protocol, Outcome::Unknown, words)
            }
        }
    }

    /// Returns the failure that an error answer means for a request. Notes the answer if the server may have lost its
    /// data, or wants a login.
    pub(crate) fn refused(&self, error: redis::ServerError) -> Failure {
        self.data_loss_signs.note_answer(&error);
        // Without a login, a server answers so only to the first request.
        let wants_a_login = error.code() == "NOAUTH";
        let failure = refusal(&self.server, error);
        if !wants_a_login {
            return failure;
        }
        let failure = failure.at(&self.server.address);
        self.connecting.note(&failure);
        failure.of_connecting()
    }

    /// Returns an answer that is no error.
    pub(crate) fn accepted(&self, answer: Value) -> Result<Value, Failure> {
        match answer {
            Value::ServerError(error) => Err(self.refused(error)),
            answer => Ok(answer),
        }
    }
}

/// Returns the transient failure of a request that was not sent.
pub(crate) fn unavailable(words: impl Into<String>) -> Failure {
    Failure::plain(FailureKind::Unavailable, Outcome::NotExecuted, words)
}

/// Returns whether a request failed because the connection broke, or could not be opened, while time was left.
pub(crate) fn was_cut(failure: &Failure) -> bool {
    !failure.timed_out && failure.is_of_io()
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn error(line: &str) -> redis::ServerError {
        let line = format!("-{line}\r\n");
        match redis::parse_redis_value(line.as_bytes()).expect("an error line") {
            Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    fn server() -> Server {
        Server::parse("redis://:s3cret@h/16").expect("a URL")
    }

    fn kind(code: &str, text: &str) -> FailureKind {
        refusal(&server(), error(&format!("{code} {text}"))).kind
    }

    #[test]
    fn an_answer_is_quoted_with_its_code_and_without_the_password() {
        for (line, words) in [
            ("NOPERM not this", "NOPERM not this"),
            (
                "WRONGTYPE not this script: d827f2, on @user_script:163.",
                "WRONGTYPE not this",
            ),
            (
                "ERR ACL failure in script: no script: on @user_script:1.",
                "ERR ACL failure in script: no",
            ),
            ("LOADING as s3cret said", "LOADING as <password> said"),
            ("s3cret", "<password>"),
            (
                "ERR @user_script:1: s3cret",
                "ERR @user_script:1: <password>",
            ),
        ] {
            assert_eq!(refusal(&server(), error(line)).cause.to_string(), words);
        }
        let long = format!("ERR {}s3cret", "x".repeat(493));
        let cut = refusal(&server(), error(&long)).cause.to_string();
        assert!(!cut.contains("s3"), "no part of it either: {cut}");
    }

    #[test]
    fn a_missing_database_is_told_apart_from_other_errors() {
        let kind = |line: &str| refused_database(&server(), error(line)).kind;
        let range = kind("ERR DB index is out of range");
        assert_eq!(range, FailureKind::Config("database"));
        assert_eq!(kind("ERR invalid DB index"), range);
        let cluster = kind("ERR SELECT is not allowed in cluster mode");
        assert_eq!(cluster, FailureKind::Unsupported(Unsupported::CLUSTER));
        assert_eq!(kind("NOPERM this user"), FailureKind::Denied);
    }

    #[test]
    fn an_answer_to_auth_is_quoted_only_where_it_is_known() {
        const WRONG: &str = "invalid username-password pair or user is disabled.";
        let said = |line: &str| refused_login(&server(), error(line)).cause.to_string();
        assert!(said(&format!("WRONGPASS {WRONG}")).contains(WRONG));
        // Servers before 6.0 have no code for a wrong password, and no server has one for a password where none is set.
        for text in [
            "invalid password",
            "Client sent AUTH, but no password is set",
            "AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        ] {
            let failure = refused_login(&server(), error(&format!("ERR {text}")));
            assert_eq!(failure.kind, FailureKind::Denied);
            assert!(failure.cause.to_string().contains(text), "{failure:?}");
        }
        for code in [
            "ERR",
            "WRONGPASS",
            "NOPERM",
            "NOAUTH",
            "LOADING",
            "OOM",
            "WRONGTYPE",
            "WHAT",
        ] {
            for text in ["", WRONG, "wrong number of arguments for 'auth' command"] {
                let said = said(&format!("{code} {text} AUTH s3cret"));
                assert!(!said.contains("s3cret"), "{said}");
            }
        }
        assert!(!said(&format!("s3cret {WRONG}")).contains("s3cret"));
    }

    #[test]
    fn a_redirection_is_read_with_a_name_an_ipv6_address_or_no_host() {
        let to = |line: &str| {
            let failure = refusal(&server(), error(line));
            failure
                .redirect()
                .map(|to| (to.slot, to.host.clone(), to.port))
        };
        for (line, expected) in [
            ("MOVED 1 h.example:7000", Some((1, "h.example", 7000))),
            ("ASK 16383 ::1:7000", Some((16_383, "::1", 7000))),
            ("MOVED 1 :7000", Some((1, "", 7000))),
            ("MOVED 16384 h:1", None),
            ("MOVED 1 h:0", None),
            ("MOVED 1 h", None),
            ("MOVED", None),
        ] {
            let expected = expected.map(|(slot, host, port)| (slot, host.to_owned(), port));
            assert_eq!(to(line), expected, "{line}");
        }
    }

    const WAIT_IS_REFUSED: &str = "WAIT cannot be used with replica instances.";

    #[test]
    fn every_answer_of_the_table_has_its_kind() {
        use FailureKind::{
            Ask, ClusterDown, Denied, Moved, Protocol, TryAgain, Unavailable, WrongType,
        };
        let unsupported = FailureKind::Unsupported;
        for (code, text, expected) in [
            ("NOAUTH", "Authentication required.", Denied),
            ("WRONGPASS", "invalid username-password pair", Denied),
            ("NOPERM", "this user has no permissions", Denied),
            (
                "ERR",
                "The user executing the script can't access at least one of the keys",
                Denied,
            ),
            (
                "ERR",
                "Error running script (call to f_1): @user_script:12: The user executing the script can't run this command",
                Denied,
            ),
            (
                "@user_script:",
                "12: The user executing the script can't run this command or subcommand",
                Denied,
            ),
            (
                "ERR",
                "ACL failure in script: User user has no permissions to run the 'set' command script: 82e7, on @user_script:1.",
                Denied,
            ),
            (
                "ERR",
                "ACL failure in script: No permissions to access a key",
                Denied,
            ),
            (
                "ERR",
                "Protocol error: unauthenticated multibulk length",
                Denied,
            ),
            ("WRONGTYPE", "Operation against a key", WrongType),
            (
                "ERR",
                "Error running script (call to f_1): @user_script:1: WRONGTYPE Operation",
                WrongType,
            ),
            (
                "ERR",
                "Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not allowed",
                Unavailable,
            ),
            ("@user_script:", "3: -READONLY You can't write", Unavailable),
            (
                "ERR",
                "unknown command 'x', with args beginning with: 'OOM'",
                Protocol,
            ),
            (
                "ERR",
                "unknown command 'x', with args beginning with: 'The user executing the script'",
                Protocol,
            ),
            (
                "ERR",
                "unknown command 'x', with args beginning with: 'ACL failure in script:'",
                Protocol,
            ),
            ("LOADING", "Redis is loading", Unavailable),
            ("BUSY", "Redis is busy", Unavailable),
            ("READONLY", "You can't write", Unavailable),
            ("UNBLOCKED", "instance state changed", Unavailable),
            ("ERR", WAIT_IS_REFUSED, Unavailable),
            ("MISCONF", "Errors writing", Unavailable),
            ("OOM", "command not allowed", Unavailable),
            ("NOREPLICAS", "Not enough good replicas", Unavailable),
            ("CLUSTERDOWN", "The cluster is down", ClusterDown),
            ("TRYAGAIN", "Multiple keys request", TryAgain),
            (
                "ERR",
                "Script attempted to access a non local key in a cluster node script: 82e7, on @user_script:1.",
                TryAgain,
            ),
            (
                "ERR",
                "This instance has cluster support disabled",
                unsupported(Unsupported::NO_CLUSTER),
            ),
            ("ERR", "max number of clients reached", Unavailable),
            ("MOVED", "1234 127.0.0.1:7001", Moved),
            ("ASK", "1234 127.0.0.1:7001", Ask),
            ("MOVED", "99999 h:1", unsupported(Unsupported::CLUSTER)),
            (
                "CROSSSLOT",
                "Keys in request",
                unsupported(Unsupported::CLUSTER),
            ),
            ("ERR", "unknown command", Protocol),
        ] {
            assert_eq!(kind(code, text), expected, "{code} {text}");
        }
    }
}
