//! Whatever a server answers is read as the reply to every kind of call, or refused.

#![no_main]

use leasehold::fuzzing::{answers, reply};
use libfuzzer_sys::fuzz_target;
use redis::Value;

fn has_error(value: &Value) -> bool {
    match value {
        Value::ServerError(_) => true,
        Value::Array(parts) => parts.iter().any(has_error),
        _ => false,
    }
}

fuzz_target!(|bytes: &[u8]| {
    for value in answers(bytes) {
        // What the server refuses is told apart before it is a reply.
        if !has_error(&value) {
            reply(&value);
        }
    }
});
