//! The rate limiter: `rate_limiter.lua`.

use std::time::Duration;

use redis::Value::{self, Array, Int};

use crate::name::LockKey;
use crate::wire::Reply;
use crate::wire::script::{Command, RATE_LIMITER};

/// The terms of a request to a rate limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateRequest {
    pub(crate) permits: u32,
    pub(crate) per: Duration,
    /// How many of them the caller takes.
    pub(crate) taken: u32,
    /// The longest wait that the caller accepts. An admission that comes later is not booked.
    pub(crate) patience: Duration,
}

pub(super) fn encode(key: &LockKey, request: &RateRequest) -> Command {
    let mut command = RATE_LIMITER.command(1);
    command
        .arg(key.key())
        .arg(request.permits)
        .arg(us(request.per))
        .arg(us(request.patience))
        .arg(request.taken);
    command
}

/// Reads the answer of the rate limiter. An admission after a longer wait than the caller accepts is no reply, because the
/// caller would have to wait that long.
pub(super) fn decode(request: &RateRequest, value: &Value) -> Option<Reply> {
    let Array(parts) = value else {
        return None;
    };
    let [Int(passed), Int(wait)] = parts.as_slice() else {
        return None;
    };
    let wait = u64::try_from(*wait).ok()?;
    let is_worth_it = wait <= us(request.patience);
    let wait = Duration::from_micros(wait);
    match passed {
        1 if is_worth_it => Some(Reply::Admitted(wait)),
        0 => Some(Reply::NotAdmitted(wait)),
        _ => None,
    }
}

/// Returns a length in whole microseconds, rounded up, so that no window is shorter than the caller asked for. The
/// number is at most one that Lua counts exactly.
fn us(length: Duration) -> u64 {
    const MOST: u64 = 1 << 52;
    u64::try_from(length.as_nanos().div_ceil(1_000)).map_or(MOST, |us| us.min(MOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_beyond_the_limit_of_the_wait_is_not_valid() {
        let request = |patience| RateRequest {
            permits: 1,
            per: Duration::from_secs(1),
            taken: 1,
            patience,
        };
        let said = |passed, us| Array(vec![Int(passed), Int(us)]);
        let ms = Duration::from_millis(1);
        assert_eq!(
            decode(&request(ms), &said(1, 1000)),
            Some(Reply::Admitted(ms))
        );
        assert_eq!(decode(&request(ms), &said(1, 1001)), None);
        assert_eq!(decode(&request(Duration::ZERO), &said(1, i64::MAX)), None);
        assert_eq!(decode(&request(ms), &said(1, -1)), None);
        let long = Duration::from_micros(i64::MAX.unsigned_abs());
        assert_eq!(
            decode(&request(ms), &said(0, i64::MAX)),
            Some(Reply::NotAdmitted(long))
        );
    }
}
