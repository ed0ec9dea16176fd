//! The end of an answer, found while its bytes come, and the value of a whole answer.
//!
//! The redis crate's parser gets only error lines. If it read from the socket, it would keep the bytes after an answer
//! for the next one, and go a hundred levels deep on the caller's stack. It also took a fifth of the client's time for a
//! pair of acquire and release.
//!
//! The protocol is [RESP2](https://redis.io/docs/latest/develop/reference/protocol-spec/). This crate asks for no
//! other.
//!
//! | a line begins with | continues with | and is followed by |
//! | --- | --- | --- |
//! | `+` `-` `:` | a text, an error, a number | |
//! | `$` | a length, or -1 for no value | that number of bytes and a line end |
//! | `*` | a count, or -1 for no value | that number of values |

use redis::Value;

/// How deep arrays may be nested. The answers to this crate's requests have four levels.
const DEEPEST: usize = 8;
/// The longest line, in bytes. Errors quote parts of a request, and names are short.
const LONGEST_LINE: usize = 64 << 10;

/// The progress in measuring the answer that is coming.
#[derive(Default)]
pub(crate) struct Frame {
    /// How many of its bytes are whole values, or the beginnings of arrays.
    measured: usize,
    /// How many values are still missing in each array that has begun.
    missing: Vec<usize>,
}

impl Frame {
    /// Returns the length of the answer at the beginning of `received`. Returns `None` if a part of it has not come
    /// yet. The caller then calls again with more bytes of the same answer, and the measuring goes on from there.
    ///
    /// # Errors
    ///
    /// Returns the reason why the bytes are no answer, or why the answer has more than `longest` bytes.
    pub(crate) fn end(&mut self, received: &[u8], longest: usize) -> Result<Option<usize>, String> {
        loop {
            let Some(line) = first_line(&received[self.measured..])? else {
                return Ok(None);
            };
            let (bytes, values) = match line {
                [b'+' | b'-' | b':', ..] => (0, 0),
                [b'$', length @ ..] => {
                    let bytes = parse_length(length)?;
                    (bytes.map_or(0, |bytes| bytes.saturating_add(2)), 0)
                }
                [b'*', length @ ..] => (0, parse_length(length)?.unwrap_or(0)),
                _ => return Err("the answer is not RESP2".to_owned()),
            };
            let end = (self.measured + line.len() + 2).saturating_add(bytes);
            // A value takes at least three bytes.
            if end > longest || values > longest / 3 {
                return Err(format!("an answer of more than {} MiB", longest >> 20));
            }
            if end > received.len() {
                return Ok(None);
            }
            self.measured = end;
            if values == 0 {
                self.value_ended();
            } else if self.missing.len() < DEEPEST {
                self.missing.push(values);
            } else {
                return Err(format!("an answer of more than {DEEPEST} levels"));
            }
            if self.missing.is_empty() {
                return Ok(Some(end));
            }
        }
    }

    /// Counts a whole value, and each array that ends with it.
    fn value_ended(&mut self) {
        while let Some(missing) = self.missing.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return;
            }
            self.missing.pop();
        }
    }
}

/// Reads the value of a whole answer, whose length [`Frame::end`] has found.
///
/// # Errors
///
/// Returns the reason why the bytes are no answer.
pub(crate) fn parse(answer: &[u8]) -> Result<Value, String> {
    let mut rest = answer;
    let value = take_value(&mut rest)?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err("more than one answer".to_owned())
    }
}

/// Takes a value off the beginning of the bytes. It goes as deep as the levels that [`Frame::end`] allows.
fn take_value(rest: &mut &[u8]) -> Result<Value, String> {
    let line = first_line(rest)?.ok_or("the answer is not whole")?;
    let after = &rest[line.len() + 2..];
    let value = match line {
        b"+OK" => Value::Okay,
        [b'+', text @ ..] => {
            let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
            Value::SimpleString(text.to_owned())
        }
        [b':', digits @ ..] => Value::Int(parse_number(digits)?),
        [b'-', ..] => {
            let line = &rest[..line.len() + 2];
            redis::parse_redis_value(line).map_err(|error| error.to_string())?
        }
        [b'$', length @ ..] => match parse_length(length)? {
            Some(length) => {
                let bytes = after.get(..length).ok_or("the answer is not whole")?;
                *rest = after.get(length + 2..).ok_or("the answer is not whole")?;
                return Ok(Value::BulkString(bytes.to_vec()));
            }
            None => Value::Nil,
        },
        [b'*', count @ ..] => match parse_length(count)? {
            Some(count) => {
                *rest = after;
                let values = (0..count).map(|_| take_value(rest));
                return values.collect::<Result<_, _>>().map(Value::Array);
            }
            None => Value::Nil,
        },
        _ => return Err("the answer is not RESP2".to_owned()),
    };
    *rest = after;
    Ok(value)
}

/// Returns the first line without its end. Returns `None` if the end has not come yet.
fn first_line(bytes: &[u8]) -> Result<Option<&[u8]>, String> {
    let looked_at = &bytes[..bytes.len().min(LONGEST_LINE)];
    match looked_at.windows(2).position(|pair| pair == b"\r\n") {
        Some(length) => Ok(Some(&bytes[..length])),
        None if bytes.len() < LONGEST_LINE => Ok(None),
        None => Err(format!("a line of more than {} KiB", LONGEST_LINE >> 10)),
    }
}

/// Reads a length or a count. Returns `None` for -1, which means no value.
fn parse_length(digits: &[u8]) -> Result<Option<usize>, String> {
    match parse_number(digits)? {
        -1 => Ok(None),
        length => usize::try_from(length)
            .map(Some)
            .map_err(|_| "a length is negative".to_owned()),
    }
}

fn parse_number(digits: &[u8]) -> Result<i64, String> {
    // A number of at most 18 digits fits an `i64`.
    const SHORT: usize = 18;
    if digits.len() <= SHORT && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
        let add = |number, digit: &u8| number * 10 + i64::from(digit - b'0');
        return Ok(digits.iter().fold(0, add));
    }
    let number = std::str::from_utf8(digits).ok();
    let number = number.and_then(|number| number.parse().ok());
    number.ok_or_else(|| "a line should be a number, and is none".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONGEST: usize = 8 << 20;

    /// Generates the bytes of any answer.
    fn answer() -> impl Strategy<Value = Vec<u8>> {
        let line = (
            prop::sample::select(vec!['+', '-', ':']),
            "[0-9]{1,9}".prop_map(|digits| digits),
        )
            .prop_map(|(kind, text)| format!("{kind}{text}\r\n").into_bytes());
        let none = prop::sample::select(vec!["$-1\r\n", "*-1\r\n", "*0\r\n", "$0\r\n\r\n"])
            .prop_map(|none| none.as_bytes().to_vec());
        let bytes = prop::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| {
            let head = format!("${}\r\n", bytes.len()).into_bytes();
            [head, bytes, b"\r\n".to_vec()].concat()
        });
        let leaf = prop_oneof![line, none, bytes];
        leaf.prop_recursive(8, 64, 5, |value| {
            prop::collection::vec(value, 1..5).prop_map(|values| {
                let head = format!("*{}\r\n", values.len()).into_bytes();
                [vec![head], values].concat().concat()
            })
        })
    }

    proptest! {
        /// The bytes may come in any pieces, and other bytes may follow. The answer is whole with its last byte, and
        /// not before.
        #[test]
        fn an_answer_is_whole_with_its_last_byte(
            answer in answer(),
            more in prop::collection::vec(any::<u8>(), 0..20),
            pieces in prop::collection::vec(1..9usize, 0..400),
        ) {
            let mut frame = Frame::default();
            let mut there = 0;
            for piece in pieces {
                there += piece;
                if there >= answer.len() {
                    break;
                }
                prop_assert_eq!(frame.end(&answer[..there], LONGEST), Ok(None));
            }
            let all = [answer.clone(), more].concat();
            prop_assert_eq!(frame.end(&all, LONGEST), Ok(Some(answer.len())));
            // Where both can read the answer, they read the same.
            let expected = redis::parse_redis_value(&answer).expect("it is an answer");
            prop_assert_eq!(parse(&answer), Ok(expected));
            prop_assert!(parse(&all).is_err() || all.len() == answer.len());
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut frame = Frame::default();
            for there in 0..=bytes.len() {
                match frame.end(&bytes[..there], LONGEST) {
                    Ok(None) => {}
                    Ok(Some(end)) => {
                        prop_assert_eq!(end, there);
                        let value = parse(&bytes[..end]).ok();
                        let expected = redis::parse_redis_value(&bytes[..end]).ok();
                        prop_assert!(value.is_none() || value == expected);
                        break;
                    }
                    Err(_) => break,
                }
            }
        }
    }

    fn end(bytes: &str, longest: usize) -> Result<Option<usize>, String> {
        Frame::default().end(bytes.as_bytes(), longest)
    }

    #[test]
    fn a_malformed_or_too_long_reply_is_an_error_at_once() {
        for none in [
            "\r\n",
            "OK\r\n",
            "$\r\n",
            "$-2\r\n",
            "*x\r\n",
            "%1\r\n",
            "_\r\n",
            "$99999999999999999999\r\n",
        ] {
            assert!(end(none, LONGEST).is_err(), "{none:?}");
        }
        let most = i64::MAX;
        for long in [
            format!("${most}\r\n"),
            format!("*{most}\r\n"),
            "*400\r\n".into(),
        ] {
            assert!(end(&long, 1000).is_err(), "{long:?}");
        }
        assert_eq!(
            end(&format!("+{}", "x".repeat(LONGEST_LINE - 3)), LONGEST),
            Ok(None)
        );
        assert!(end(&format!("+{}", "x".repeat(LONGEST_LINE)), LONGEST).is_err());
        // Many small values count like one large value.
        assert!(end(&format!("*300\r\n{}", ":12\r\n".repeat(300)), 1000).is_err());
    }

    #[test]
    fn levels_are_counted() {
        let levels = |n| format!("{}:1\r\n", "*1\r\n".repeat(n));
        let deepest = levels(DEEPEST);
        assert_eq!(end(&deepest, LONGEST), Ok(Some(deepest.len())));
        assert!(matches!(
            redis::parse_redis_value(deepest.as_bytes()),
            Ok(Value::Array(_))
        ));
        assert!(end(&levels(DEEPEST + 1), LONGEST).is_err());
    }
}
