//! Lists.

use std::collections::VecDeque;

use super::arguments::{Arguments, CommandError};
use super::keyspace::{Keyspace, Stored};
use super::resp::Resp;

type Elements = VecDeque<Vec<u8>>;

fn as_list(stored: &mut Stored) -> Option<&mut Elements> {
    match stored {
        Stored::List(elements) => Some(elements),
        _ => None,
    }
}

/// Returns the place of an element. A negative one counts from the end.
fn place(elements: &Elements, at: i64) -> Option<usize> {
    let length = i64::try_from(elements.len()).unwrap_or(i64::MAX);
    let at = if at < 0 { length.checked_add(at)? } else { at };
    usize::try_from(at).ok().filter(|at| *at < elements.len())
}

/// `RPUSH key element [element ...]`.
pub(super) fn push(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let new = || Stored::List(Elements::new());
    let elements = keys.get_or_insert(arguments.get(1), new, as_list)?;
    elements.extend(arguments.from(2).iter().cloned());
    Ok(Resp::count(elements.len()))
}

/// `LPOP key [count]`.
pub(super) fn pop(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let count = match arguments.len() {
        2 => None,
        3 => Some(positive(arguments, 2)?),
        _ => {
            let text = "ERR wrong number of arguments for 'lpop' command";
            return Err(CommandError::new(text));
        }
    };
    let key = arguments.get(1);
    let Some(elements) = keys.get_as(key, as_list)? else {
        return Ok(count.map_or(Resp::Nil, |_| Resp::NilArray));
    };
    let taken = match count {
        None => Resp::or_nil(elements.pop_front()),
        Some(count) => {
            let taken = elements.drain(..count.min(elements.len()));
            Resp::Array(taken.map(Resp::Bulk).collect())
        }
    };
    keys.remove_if_empty(key);
    Ok(taken)
}

/// Reads a count that is not negative.
pub(super) fn positive(arguments: &Arguments<'_>, number: usize) -> Result<usize, CommandError> {
    let count = arguments.int(number).ok();
    let count = count.and_then(|count| usize::try_from(count).ok());
    count.ok_or_else(|| CommandError::new("ERR value is out of range, must be positive"))
}

/// `LLEN key`.
pub(super) fn len(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let elements = keys.get_as(arguments.get(1), as_list)?;
    Ok(Resp::count(elements.map_or(0, |elements| elements.len())))
}

/// `LINDEX key place`.
pub(super) fn index(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let Some(elements) = keys.get_as(arguments.get(1), as_list)? else {
        return Ok(Resp::Nil);
    };
    let at = place(elements, arguments.int(2)?);
    Ok(Resp::or_nil(at.map(|at| elements[at].clone())))
}

/// `LSET key place element`.
pub(super) fn set(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let Some(elements) = keys.get_as(arguments.get(1), as_list)? else {
        return Err(CommandError::new("ERR no such key"));
    };
    let at = place(elements, arguments.int(2)?);
    let at = at.ok_or_else(|| CommandError::new("ERR index out of range"))?;
    elements[at] = arguments.get(3).to_vec();
    keys.note_write(arguments.get(1));
    Ok(Resp::ok())
}

/// `LRANGE key start end`. Both are inclusive, and a negative one counts from the end.
pub(super) fn range(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let (start, end) = (arguments.int(2)?, arguments.int(3)?);
    let Some(elements) = keys.get_as(arguments.get(1), as_list)? else {
        return Ok(Resp::Array(Vec::new()));
    };
    let found = elements.range(places(elements.len(), start, end));
    Ok(Resp::Array(found.cloned().map(Resp::Bulk).collect()))
}

/// Returns the places from `start` to `end`. Both are inclusive, and a negative one counts from the end.
pub(super) fn places(length: usize, start: i64, end: i64) -> std::ops::Range<usize> {
    let whole = i64::try_from(length).unwrap_or(i64::MAX);
    let place = |at: i64| if at < 0 { whole.saturating_add(at) } else { at };
    let start = place(start).max(0);
    let end = place(end).min(whole - 1);
    if start > end {
        return 0..0;
    }
    // Both are places in the list.
    let [start, end] = [start, end].map(|at| usize::try_from(at).unwrap_or(0));
    start..end + 1
}
