//! Hashes.

use std::collections::BTreeMap;

use super::arguments::{Arguments, CommandError};
use super::keyspace::{Keyspace, Stored};
use super::resp::Resp;

type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

fn as_hash(stored: &mut Stored) -> Option<&mut Fields> {
    match stored {
        Stored::Hash(fields) => Some(fields),
        _ => None,
    }
}

/// `HSET key field value [field value ...]`. Returns how many fields are new.
pub(super) fn set(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let pairs = arguments.from(2).chunks_exact(2);
    if !pairs.remainder().is_empty() {
        let text = "ERR wrong number of arguments for 'hset' command";
        return Err(CommandError::new(text));
    }
    let new = || Stored::Hash(Fields::new());
    let fields = keys.get_or_insert(arguments.get(1), new, as_hash)?;
    let new_ones = pairs.filter(|pair| {
        let before = fields.insert(pair[0].clone(), pair[1].clone());
        before.is_none()
    });
    Ok(Resp::count(new_ones.count()))
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
