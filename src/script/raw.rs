//! The reply to a command that the command line makes itself.

use redis::Value;

use crate::message::RawReply;

/// Reads an answer. `hide` removes from the text of an error what must not be shown.
pub(crate) fn raw_reply(answer: Value, hide: &dyn Fn(&str) -> String) -> RawReply {
    match answer {
        Value::Int(number) => RawReply::Number(number),
        Value::Okay => RawReply::Text("OK".to_owned()),
        Value::SimpleString(text) => RawReply::Text(text),
        Value::BulkString(bytes) => RawReply::Text(String::from_utf8_lossy(&bytes).into_owned()),
        Value::Array(parts) => {
            RawReply::List(parts.into_iter().map(|it| raw_reply(it, hide)).collect())
        }
        Value::ServerError(error) => {
            let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
            RawReply::Refused(hide(&text))
        }
        // No other answer is in the protocol of these connections.
        _ => RawReply::Nil,
    }
}
