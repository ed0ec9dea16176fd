//! Hashes.

use std::collections::BTreeMap;

use super::arguments::{Arguments, CommandError};
use super::keyspace::{Keyspace, Stored};
use super::resp::Resp;
use super::strings::add_to;

type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

fn as_hash(stored: &mut Stored) -> Option<&mut Fields> {
    match stored {
        Stored::Hash(fields) => Some(fields),
        _ => None,
    }
}

/// `HSET key field value [field value ...]` returns how many fields are new, and `HMSET` does not.
pub(super) fn set(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let pairs = arguments.from(2).chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(CommandError::wrong_number(&arguments.name()));
    }
    let new = || Stored::Hash(Fields::new());
    let fields = keys.get_or_insert(arguments.get(1), new, as_hash)?;
    let new_ones = pairs.filter(|pair| {
        let before = fields.insert(pair[0].clone(), pair[1].clone());
        before.is_none()
    });
    let new_ones = Resp::count(new_ones.count());
    Ok(match arguments.name().as_str() {
        "hmset" => Resp::ok(),
        _ => new_ones,
    })
}

/// `HSETNX key field value`.
pub(super) fn set_nx(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let fields = keys.get_as(arguments.get(1), as_hash)?;
    if fields.is_some_and(|fields| fields.contains_key(arguments.get(2))) {
        return Ok(Resp::Int(0));
    }
    set(keys, arguments)
}

/// `HINCRBY key field number`.
pub(super) fn incr_by(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let number = arguments.int(3)?;
    let new = || Stored::Hash(Fields::new());
    let fields = keys.get_or_insert(arguments.get(1), new, as_hash)?;
    let value = fields.entry(arguments.get(2).to_vec());
    let value = value.or_insert_with(|| b"0".to_vec());
    let no_integer = || CommandError::new("ERR hash value is not an integer");
    add_to(value, number, no_integer)
}

/// `HGET key field`.
pub(super) fn get(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let fields = keys.get_as(arguments.get(1), as_hash)?;
    let value = fields.and_then(|fields| fields.get(arguments.get(2)));
    Ok(Resp::or_nil(value.cloned()))
}

/// `HDEL key field [field ...]`.
pub(super) fn del(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let key = arguments.get(1);
    let Some(fields) = keys.get_as(key, as_hash)? else {
        return Ok(Resp::Int(0));
    };
    let asked = arguments.from(2).iter();
    let removed = asked.filter(|field| fields.remove(*field).is_some());
    let removed = removed.count();
    keys.remove_if_empty(key);
    Ok(Resp::count(removed))
}

/// `HLEN key`.
pub(super) fn len(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let fields = keys.get_as(arguments.get(1), as_hash)?;
    Ok(Resp::count(fields.map_or(0, |fields| fields.len())))
}

/// `HGETALL key`, in the order of the fields.
pub(super) fn get_all(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let fields = keys.get_as(arguments.get(1), as_hash)?;
    let pairs = fields.into_iter().flatten();
    let parts = pairs.flat_map(|(field, value)| [field.clone(), value.clone()]);
    Ok(Resp::Array(parts.map(Resp::Bulk).collect()))
}
