//! The renewal of many leases of any kind, by one script.

use redis::Value;

use super::command::Command;
use super::text::RENEW;
use crate::message::{Gone, Renewal, Renewed, Reply};
use crate::sys::time::ms_rounded_up;

pub(super) fn command(batch: &[Renewal<'_>]) -> Command {
    let mut command = RENEW.command(batch.len());
    for renewal in batch {
        command.arg(renewal.key.key());
    }
    for renewal in batch {
        let shares = renewal.kind.units_in_key(renewal.units);
        let owner = renewal.owner.as_str();
        command
            .arg(owner)
            .arg(ms_rounded_up(renewal.lease))
            .arg(shares);
    }
    command
}

/// Reads the answer to the renewal of this number of leases.
pub(super) fn reply(leases: usize, value: &Value) -> Option<Reply> {
    match value {
        Value::Array(values) if values.len() == leases => values
            .iter()
            .map(result)
            .collect::<Option<_>>()
            .map(Reply::Renewed),
        _ => None,
    }
}

fn result(value: &Value) -> Option<Renewed> {
    match value {
        Value::Int(1) => Some(Renewed::Done { contended: false }),
        Value::Int(2) => Some(Renewed::Done { contended: true }),
        Value::Int(0) => Some(Renewed::Gone(Gone::Removed)),
        Value::Int(-1) => Some(Renewed::Gone(Gone::Taken)),
        Value::Int(-2) => Some(Renewed::Refused),
        _ => None,
    }
}
