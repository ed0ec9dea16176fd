//! Whether a server that runs out of memory may throw locks away.
//!
//! Every key of a lock has a time to live, so each policy but `noeviction` may choose it. That costs exclusion, and
//! nobody would notice before it does; so it is said once, when the first connection is made.

use redis::Value;

use crate::logging;

/// Asks the server, and warns in the log.
///
/// The question may be forbidden, or have another name: it is then asked in another way, and if that is forbidden too,
/// nothing is known and nothing said.
///
/// # Errors
///
/// Those of `ask`.
pub(super) fn warn_of_eviction<E>(
    address: &str,
    ask: &mut dyn FnMut(&redis::Cmd) -> Result<Value, E>,
) -> Result<(), E> {
    // By a pattern: servers before 7.0 take one parameter only.
    let mut found = read(&ask(redis::cmd("CONFIG").arg("GET").arg("maxmemory*"))?);
    if found.is_none() {
        found = read(&ask(redis::cmd("INFO").arg("memory"))?);
    }
    if let Some(Memory { most, policy }) = found
        && most != "0"
        && policy != "noeviction"
    {
        logging::warning!(
            "{address} may evict locks when its memory is full (maxmemory {most}, maxmemory-policy {policy}): \
             an evicted lock is lost, and free for others before its holder knows; use noeviction"
        );
    }
    Ok(())
}

/// How much memory a server may use, and what it does when that is full.
#[derive(Debug, PartialEq, Eq)]
struct Memory {
    most: String,
    policy: String,
}

/// Reads either answer; none where it is not in it.
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
