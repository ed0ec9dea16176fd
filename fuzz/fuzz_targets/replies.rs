//! The bytes of a server are read as the reply to each call, or are rejected.

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
        // An error reply is recognized before it is read as the reply to a call.
        if !has_error(&value) {
            reply(&value);
        }
    }
});
