//! Sets. Redis takes members in an order of its own, and this server in the order of their bytes.

use std::collections::BTreeSet;

use super::arguments::{Arguments, CommandError};
use super::keyspace::{Keyspace, Stored};
use super::lists::positive;
use super::resp::Resp;

type Members = BTreeSet<Vec<u8>>;

fn as_set(stored: &mut Stored) -> Option<&mut Members> {
    match stored {
        Stored::Set(members) => Some(members),
        _ => None,
    }
}

/// `SADD key member [member ...]`.
pub(super) fn add(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let new = || Stored::Set(Members::new());
    let members = keys.get_or_insert(arguments.get(1), new, as_set)?;
    let added = arguments.from(2).iter();
    let added = added.filter(|member| members.insert((*member).clone()));
    Ok(Resp::count(added.count()))
}

/// `SREM key member [member ...]`.
pub(super) fn rem(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let Some(members) = keys.get_as(arguments.get(1), as_set)? else {
        return Ok(Resp::Int(0));
    };
    let asked = arguments.from(2).iter();
    let removed = asked.filter(|member| members.remove(*member)).count();
    keys.remove_if_empty(arguments.get(1));
    Ok(Resp::count(removed))
}

/// `SPOP key [count]`.
pub(super) fn pop(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let count = match arguments.len() {
        2 => None,
        3 => Some(positive(arguments, 2)?),
        _ => return Err(CommandError::syntax()),
    };
    let Some(members) = keys.get_as(arguments.get(1), as_set)? else {
        return Ok(count.map_or(Resp::Nil, |_| Resp::Array(Vec::new())));
    };
    let popped = match count {
        None => Resp::or_nil(members.pop_first()),
        Some(count) => {
            let popped = (0..count).map_while(|_| members.pop_first());
            Resp::Array(popped.map(Resp::Bulk).collect())
        }
    };
    keys.remove_if_empty(arguments.get(1));
    Ok(popped)
}

/// `SCARD key`.
pub(super) fn card(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let members = keys.get_as(arguments.get(1), as_set)?;
    Ok(Resp::count(members.map_or(0, |members| members.len())))
}

/// `SISMEMBER key member`.
pub(super) fn is_member(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let members = keys.get_as(arguments.get(1), as_set)?;
    let has = members.is_some_and(|members| members.contains(arguments.get(2)));
    Ok(Resp::flag(has))
}

/// `SMEMBERS key`.
pub(super) fn members(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let members = keys.get_as(arguments.get(1), as_set)?;
    let members = members.into_iter().flat_map(|members| members.iter());
    Ok(Resp::Array(members.cloned().map(Resp::Bulk).collect()))
}
