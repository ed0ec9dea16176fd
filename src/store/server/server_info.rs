//! The questions to a server about itself: its mode, and whether it may evict locks when its memory is full.
//!
//! A manager of a single server needs one master that holds all keys. A node of a Redis Cluster holds some of them, and
//! a sentinel holds none. So the first connection fails on both. A manager of a cluster needs nodes of one.
//!
//! Every key of a lock has a time to live, so each policy but `noeviction` may evict it. That costs exclusion, and no
//! process notices it in time. So the first connection writes one warning to the log.

use redis::Value;

use crate::error::ServerMode;
use crate::logging;
use crate::script::Command;

/// Asks the server about itself, with one INFO, and warns in the log if it may evict locks. Returns its mode if that is
/// not one master with all keys.
///
/// If INFO is forbidden or renamed, the mode stays unknown, and CONFIG GET reports on the memory. If that is forbidden
/// too, there is no warning.
///
/// # Errors
///
/// Returns the errors of `ask`.
pub(crate) fn ask_about_itself<E>(
    address: &str,
    ask: &mut dyn FnMut(&Command) -> Result<Value, E>,
) -> Result<Option<ServerMode>, E> {
    // INFO without a section, because a server before 7.0 accepts one section only, and this needs two.
    let report = ask(&Command::new("INFO"))?;
    let mode = mode(&report);
    if mode == Some(ServerMode::Sentinel) {
        return Ok(mode);
    }
    let mut found = read(&report);
    if found.is_none() {
        // CONFIG GET with a pattern, because a server before 7.0 accepts one parameter only.
        found = read(&ask(Command::new("CONFIG").arg("GET").arg("maxmemory*"))?);
    }
    let evicts = |memory: &Memory| memory.most != "0" && memory.policy != "noeviction";
    if let Some(Memory { most, policy }) = found.filter(evicts) {
        logging::warning!(
            "{address} may evict locks when its memory is full (maxmemory {most}, maxmemory-policy {policy}): \
             an evicted lock is lost, and free for others before its holder knows; use noeviction"
        );
    }
    Ok(mode)
}

/// Reads the mode from the answer to INFO. Returns `None` for one master, and if the answer does not name the mode.
fn mode(answer: &Value) -> Option<ServerMode> {
    let Value::BulkString(report) = answer else {
        return None;
    };
    let report = String::from_utf8_lossy(report);
    let mut fields = report.lines().filter_map(|line| line.split_once(':'));
    // Valkey may use the second name.
    let (_, mode) = fields.find(|(name, _)| ["redis_mode", "server_mode"].contains(name))?;
    match mode.trim() {
        "cluster" => Some(ServerMode::Cluster),
        "sentinel" => Some(ServerMode::Sentinel),
        _ => None,
    }
}

/// The memory limit of a server, and its policy when the memory is full.
#[derive(Debug, PartialEq, Eq)]
struct Memory {
    most: String,
    policy: String,
}

/// Reads the answer to INFO or to CONFIG GET. Returns `None` if the answer does not have both facts.
fn read(answer: &Value) -> Option<Memory> {
    let words: Vec<String> = match answer {
        Value::BulkString(report) => String::from_utf8_lossy(report)
            .lines()
            .filter_map(|line| line.split_once(':'))
            .flat_map(|(name, value)| [name.replace('_', "-"), value.to_owned()])
            .collect(),
        Value::Array(parts) => parts
            .iter()
            .map(|part| match part {
                Value::BulkString(word) => String::from_utf8_lossy(word).into_owned(),
                _ => String::new(),
            })
            .collect(),
        _ => return None,
    };
    let value = |name: &str| {
        let mut pairs = words.chunks_exact(2);
        let pair = pairs.find(|pair| pair[0] == name)?;
        Some(pair[1].trim().to_owned())
    };
    let found = value("maxmemory").zip(value("maxmemory-policy"));
    found.map(|(most, policy)| Memory { most, policy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_read_under_both_of_its_names() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let of = |line: &str| {
            mode(&bulk(&format!(
                "# Server\r\nredis_version:7\r\n{line}\r\nos:x\r\n"
            )))
        };
        assert_eq!(of("redis_mode:standalone"), None);
        assert_eq!(of("redis_mode:cluster"), Some(ServerMode::Cluster));
        assert_eq!(of("server_mode:sentinel"), Some(ServerMode::Sentinel));
        assert_eq!(of("what:cluster"), None);
        assert_eq!(mode(&Value::Nil), None);
    }

    #[test]
    fn both_answers_are_read_and_others_passed_over() {
        let memory = || Memory {
            most: "100".into(),
            policy: "allkeys-lru".into(),
        };
        let bulk = |text: &str| Value::BulkString(text.into());
        let words = [
            "maxmemory-samples",
            "5",
            "maxmemory-policy",
            "allkeys-lru",
            "maxmemory",
            "100",
        ];
        let settings = Value::Array(words.map(bulk).into());
        assert_eq!(read(&settings), Some(memory()));
        let report = bulk(
            "# Memory\r\nmaxmemory:100\r\nmaxmemory_human:100B\r\nmaxmemory_policy:allkeys-lru\r\n",
        );
        assert_eq!(read(&report), Some(memory()));
        for other in [
            Value::Okay,
            Value::Nil,
            Value::Array(Vec::new()),
            bulk(""),
            bulk("maxmemory:100"),
        ] {
            assert_eq!(read(&other), None);
        }
    }
}
