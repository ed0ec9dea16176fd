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

/// `LPUSH`, `RPUSH`, and `LPUSHX` and `RPUSHX`, which make no list: `key element [element ...]`.
pub(super) fn push(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let (key, name) = (arguments.get(1), arguments.name());
    if name.ends_with('x') && keys.get_as(key, as_list)?.is_none() {
        return Ok(Resp::Int(0));
    }
    let new = || Stored::List(Elements::new());
    let elements = keys.get_or_insert(key, new, as_list)?;
    for element in arguments.from(2) {
        let at = if name.starts_with('l') {
            0
        } else {
            elements.len()
        };
        elements.insert(at, element.clone());
    }
    Ok(Resp::count(elements.len()))
}

/// `LPOP key [count]` and `RPOP key [count]`.
pub(super) fn pop(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let count = match arguments.len() {
        2 => None,
        3 => Some(positive(arguments, 2)?),
        _ => return Err(CommandError::wrong_number(&arguments.name())),
    };
    let key = arguments.get(1);
    let Some(elements) = keys.get_as(key, as_list)? else {
        return Ok(count.map_or(Resp::Nil, |_| Resp::NilArray));
    };
    let pop = match arguments.name().as_str() {
        "lpop" => Elements::pop_front,
        _ => Elements::pop_back,
    };
    let taken = match count {
        None => Resp::or_nil(pop(elements)),
        Some(count) => {
            let taken = (0..count).map_while(|_| pop(elements));
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

/// `LINSERT key BEFORE | AFTER pivot element`.
pub(super) fn insert(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let behind = match arguments.option(2).as_str() {
        "BEFORE" => 0,
        "AFTER" => 1,
        _ => return Err(CommandError::syntax()),
    };
    let Some(elements) = keys.get_as(arguments.get(1), as_list)? else {
        return Ok(Resp::Int(0));
    };
    let pivot = elements.iter().position(|it| it == arguments.get(3));
    let Some(pivot) = pivot else {
        return Ok(Resp::Int(-1));
    };
    elements.insert(pivot + behind, arguments.get(4).to_vec());
    let length = Resp::count(elements.len());
    keys.note_write(arguments.get(1));
    Ok(length)
}

/// `LTRIM key start end`. Both are inclusive, and a negative one counts from the end.
pub(super) fn trim(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let (start, end) = (arguments.int(2)?, arguments.int(3)?);
    if let Some(elements) = keys.get_as(arguments.get(1), as_list)? {
        let kept = places(elements.len(), start, end);
        elements.truncate(kept.end);
        elements.drain(..kept.start);
        keys.remove_if_empty(arguments.get(1));
    }
    Ok(Resp::ok())
}

/// `LREM key count element`. A negative count counts from the end, and 0 stands for all.
pub(super) fn remove(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let (key, count) = (arguments.get(1), arguments.int(2)?);
    let Some(elements) = keys.get_as(key, as_list)? else {
        return Ok(Resp::Int(0));
    };
    let before = elements.len();
    let mut left = match count {
        0 => before,
        count => usize::try_from(count.unsigned_abs()).unwrap_or(before),
    };
    if count < 0 {
        elements.make_contiguous().reverse();
    }
    elements.retain(|element| {
        let goes = left > 0 && element == arguments.get(3);
        left -= usize::from(goes);
        !goes
    });
    if count < 0 {
        elements.make_contiguous().reverse();
    }
    let removed = before - elements.len();
    keys.remove_if_empty(key);
    Ok(Resp::count(removed))
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
