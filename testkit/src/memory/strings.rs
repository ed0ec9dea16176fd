//! Strings.

use super::arguments::{Arguments, CommandError, int};
use super::keyspace::{Keyspace, Stored, invalid_expire};
use super::resp::Resp;

fn as_string(stored: &mut Stored) -> Option<&mut Vec<u8>> {
    match stored {
        Stored::String(bytes) => Some(bytes),
        _ => None,
    }
}

pub(super) fn get(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let found = keys.get_as(arguments.get(1), as_string)?;
    Ok(Resp::or_nil(found.cloned()))
}

/// `MGET key [key ...]`. A key of another type is as none.
pub(super) fn get_many(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let value = |key: &Vec<u8>| Resp::or_nil(keys.get(key).and_then(as_string).cloned());
    let values = arguments.from(1).iter().map(value);
    Ok(Resp::Array(values.collect()))
}

/// `GETDEL key`.
pub(super) fn get_del(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let value = get(keys, arguments)?;
    keys.remove(arguments.get(1));
    Ok(value)
}

/// `GETEX key [EX seconds | PX ms | EXAT seconds | PXAT ms | PERSIST]`.
pub(super) fn get_ex(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let unit = match (arguments.len(), arguments.option(2)) {
        (2, _) => return get(keys, arguments),
        (3, word) if word == "PERSIST" => None,
        (4, unit) if UNITS.contains(&&*unit) => Some(unit),
        _ => return Err(CommandError::syntax()),
    };
    let value = get(keys, arguments)?;
    if value != Resp::Nil {
        let expires_at = unit.map(|unit| expires_at(keys, arguments, &unit, 3));
        keys.expire_at(arguments.get(1), expires_at.transpose()?);
    }
    Ok(value)
}

/// The units of a time to live, or of its end.
const UNITS: [&str; 4] = ["EX", "PX", "EXAT", "PXAT"];

/// Returns when a key expires, in ms since 1970.
fn expires_at(
    keys: &Keyspace,
    arguments: &Arguments<'_>,
    unit: &str,
    number: usize,
) -> Result<i64, CommandError> {
    let given = arguments.int(number)?;
    let factor = if unit.starts_with('E') { 1_000 } else { 1 };
    let from = if unit.ends_with("AT") { 0 } else { keys.now };
    let ms = Some(given).filter(|given| *given > 0);
    let at = ms.and_then(|ms| ms.checked_mul(factor)?.checked_add(from));
    at.ok_or_else(|| invalid_expire(&arguments.name()))
}

/// The options of `SET`.
#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one word of the command"
)]
struct SetOptions {
    if_absent: bool,
    if_present: bool,
    returns_old: bool,
    keeps_ttl: bool,
    /// When the key expires, in ms since 1970.
    expires_at: Option<i64>,
}

impl SetOptions {
    fn read(keys: &Keyspace, arguments: &Arguments<'_>) -> Result<Self, CommandError> {
        let mut options = Self::default();
        let mut time = None;
        let mut number = 3;
        while number < arguments.len() {
            let option = arguments.option(number);
            match option.as_str() {
                "NX" => options.if_absent = true,
                "XX" => options.if_present = true,
                "GET" => options.returns_old = true,
                "KEEPTTL" => options.keeps_ttl = true,
                unit if UNITS.contains(&unit) && time.is_none() && number + 1 < arguments.len() => {
                    number += 1;
                    time = Some((option, number));
                }
                _ => return Err(CommandError::syntax()),
            }
            number += 1;
        }
        if options.if_absent && options.if_present || options.keeps_ttl && time.is_some() {
            return Err(CommandError::syntax());
        }
        if let Some((unit, number)) = time {
            options.expires_at = Some(expires_at(keys, arguments, &unit, number)?);
        }
        Ok(options)
    }
}

/// `SET key value [NX | XX] [GET] [EX seconds | PX ms | EXAT seconds | PXAT ms | KEEPTTL]`.
pub(super) fn set(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let options = SetOptions::read(keys, arguments)?;
    let (key, value) = (arguments.get(1), arguments.get(2));
    let old = if options.returns_old {
        Resp::or_nil(keys.get_as(key, as_string)?.cloned())
    } else {
        Resp::Nil
    };
    let exists = keys.get(key).is_some();
    if options.if_absent && exists || options.if_present && !exists {
        return Ok(old);
    }
    let expires_at = if options.keeps_ttl {
        keys.expires_at(key)
    } else {
        options.expires_at
    };
    keys.set(key, Stored::String(value.to_vec()), expires_at);
    Ok(if options.returns_old { old } else { Resp::ok() })
}

/// `SETNX key value`, `GETSET key value`, `SETEX key seconds value` and `PSETEX key ms value`: each is a `SET` with an option.
pub(super) fn set_by_name(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let name = arguments.name();
    let option: &[&[u8]] = match name.as_str() {
        "setnx" => &[b"NX"],
        "getset" => &[b"GET"],
        "setex" => &[b"EX", arguments.get(2)],
        _ => &[b"PX", arguments.get(2)],
    };
    let value = arguments.get(arguments.len() - 1);
    let words = [arguments.get(0), arguments.get(1), value];
    let words = words.iter().chain(option).map(|word| word.to_vec());
    let reply = set(keys, &Arguments(&words.collect::<Vec<_>>()))?;
    Ok(match name.as_str() {
        "setnx" => Resp::flag(reply != Resp::Nil),
        _ => reply,
    })
}

/// `SETRANGE key offset value`. Zeros fill a gap.
pub(super) fn set_range(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let (key, value) = (arguments.get(1), arguments.get(3));
    let start = usize::try_from(arguments.int(2)?);
    let start = start.map_err(|_| CommandError::new("ERR offset is out of range"))?;
    if value.is_empty() {
        return str_len(keys, arguments);
    }
    let end = start.saturating_add(value.len());
    if end > LONGEST_STRING {
        let text = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
        return Err(CommandError::new(text));
    }
    let new = || Stored::String(Vec::new());
    let bytes = keys.get_or_insert(key, new, as_string)?;
    bytes.resize(bytes.len().max(end), 0);
    bytes[start..end].copy_from_slice(value);
    Ok(Resp::count(bytes.len()))
}

/// The most bytes of a string.
const LONGEST_STRING: usize = 512 << 20;

/// `APPEND key value`.
pub(super) fn append(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let new = || Stored::String(Vec::new());
    let bytes = keys.get_or_insert(arguments.get(1), new, as_string)?;
    bytes.extend(arguments.get(2));
    Ok(Resp::count(bytes.len()))
}

/// `STRLEN key`.
pub(super) fn str_len(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let found = keys.get_as(arguments.get(1), as_string)?;
    Ok(Resp::count(found.map_or(0, |bytes| bytes.len())))
}

/// `GETRANGE key start end`. Both are inclusive, and a negative one counts from the end.
pub(super) fn get_range(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let (start, end) = (arguments.int(2)?, arguments.int(3)?);
    let bytes = keys.get_as(arguments.get(1), as_string)?;
    let bytes: &[u8] = bytes.map_or(&[], |bytes| bytes);
    let length = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
    let place = |at: i64| {
        if at < 0 {
            (length.saturating_add(at)).max(0)
        } else {
            at
        }
    };
    if start < 0 && end < 0 && start > end {
        return Ok(Resp::bulk(""));
    }
    let (start, end) = (place(start), place(end).min(length - 1));
    if start > end {
        return Ok(Resp::bulk(""));
    }
    // Both are places in the string.
    let [start, end] = [start, end].map(|at| usize::try_from(at).unwrap_or(0));
    Ok(Resp::bulk(&bytes[start..=end]))
}

/// `INCR key`.
pub(super) fn incr(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    add(keys, arguments.get(1), 1)
}

/// `DECR key`.
pub(super) fn decr(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    add(keys, arguments.get(1), -1)
}

/// `INCRBY key number`.
pub(super) fn incr_by(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    add(keys, arguments.get(1), arguments.int(2)?)
}

/// `DECRBY key number`.
pub(super) fn decr_by(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let less = arguments.int(2)?.checked_neg();
    let less = less.ok_or_else(|| CommandError::new("ERR decrement would overflow"))?;
    add(keys, arguments.get(1), less)
}

fn add(keys: &mut Keyspace, key: &[u8], number: i64) -> Result<Resp, CommandError> {
    let new = || Stored::String(b"0".to_vec());
    let bytes = keys.get_or_insert(key, new, as_string)?;
    add_to(bytes, number, CommandError::not_an_integer)
}

/// Adds to a number that stands as text.
pub(super) fn add_to(
    bytes: &mut Vec<u8>,
    number: i64,
    not_an_integer: impl FnOnce() -> CommandError,
) -> Result<Resp, CommandError> {
    let before = int(bytes).ok_or_else(not_an_integer)?;
    let after = before.checked_add(number);
    let after =
        after.ok_or_else(|| CommandError::new("ERR increment or decrement would overflow"))?;
    *bytes = after.to_string().into_bytes();
    Ok(Resp::Int(after))
}
