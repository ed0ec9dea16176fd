//! Answers, read from bytes as they come.
//!
//! What Redis says in the protocol's second version (RESP2), and no more: whoever answers in another has not been asked
//! to. An answer may come in any pieces, and each byte is looked at about once. Its length and its depth have limits,
//! which no answer to this crate comes near: so that no server, nor what was taken for one, makes this process run out of
//! memory or of stack. The redis crate's own parser has no limit to the one, and one to the other that is too much for
//! small stacks.

use redis::Value;

/// The longest answer, in bytes. A page of 200 locks is some 50,000. What is read of an answer takes up to some twenty
/// times as much memory, where it is made of the smallest pieces.
const LONGEST: usize = 8 << 20;
/// The longest line: the largest pieces have their lengths before them.
const LONGEST_LINE: usize = 64 << 10;
/// The deepest answer. That to an inspection has four levels.
const DEEPEST: usize = 8;
/// The room to begin with, and to go back to after a long answer.
const ROOM: usize = 4 << 10;

/// What is no answer, in words.
pub(crate) type Malformed = &'static str;

/// An answer under way.
pub(crate) struct Reader {
    buffer: Vec<u8>,
    /// So many bytes of the buffer have come.
    filled: usize,
    /// So many of them are read.
    at: usize,
    /// The arrays that are not complete, the outermost first.
    open: Vec<Open>,
}

struct Open {
    /// How many parts are to come; at least one.
    left: usize,
    parts: Vec<Value>,
}

enum Piece {
    Whole(Value),
    /// An array of so many parts, which is not empty.
    Array(usize),
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![0; ROOM],
            filled: 0,
            at: 0,
            open: Vec::new(),
        }
    }

    /// Whether nothing has come of another answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.filled && self.open.is_empty()
    }

    /// Where the next bytes are to be put; never empty.
    ///
    /// # Errors
    ///
    /// The answer is longer than answers are.
    pub(crate) fn room(&mut self) -> Result<&mut [u8], Malformed> {
        if self.filled == self.buffer.len() {
            if self.filled >= LONGEST {
                return Err("an answer of more than 8 MiB");
            }
            self.buffer.resize(self.filled * 2, 0);
        }
        Ok(&mut self.buffer[self.filled..])
    }

    /// So many bytes have been put there.
    pub(crate) fn came(&mut self, count: usize) {
        self.filled += count;
    }

    /// The next answer; none where it is not all there.
    ///
    /// # Errors
    ///
    /// It is none. Nothing that comes after it can be made sense of.
    pub(crate) fn next(&mut self) -> Result<Option<Value>, Malformed> {
        loop {
            let mut value = match self.piece()? {
                None => return Ok(None),
                Some(Piece::Whole(value)) => value,
                Some(Piece::Array(_)) if self.open.len() == DEEPEST => {
                    return Err("an answer of more than 8 levels");
                }
                Some(Piece::Array(left)) => {
                    // No room is made for them in advance: there is nothing of them yet but a number.
                    let parts = Vec::new();
                    self.open.push(Open { left, parts });
                    continue;
                }
            };
            // The last part of an array completes it, which may be the last part of another.
            loop {
                let Some(mut open) = self.open.pop() else {
                    self.forget();
                    return Ok(Some(value));
                };
                open.parts.push(value);
                open.left -= 1;
                if open.left > 0 {
                    self.open.push(open);
                    break;
                }
                value = Value::Array(open.parts);
            }
        }
    }

    /// Forgets what was read.
    fn forget(&mut self) {
        self.buffer.copy_within(self.at..self.filled, 0);
        self.filled -= self.at;
        self.at = 0;
        if self.buffer.len() > ROOM && self.filled <= ROOM {
            self.buffer.truncate(ROOM);
            self.buffer.shrink_to_fit();
        }
    }

    fn piece(&mut self) -> Result<Option<Piece>, Malformed> {
        let came = &self.buffer[self.at..self.filled];
        let Some(&kind) = came.first() else {
            return Ok(None);
        };
        if !b"+-:$*".contains(&kind) {
            return Err("an answer that is no RESP2");
        }
        let Some(length) = came.windows(2).position(|two| two == b"\r\n") else {
            if came.len() > LONGEST_LINE {
                return Err("a line of more than 64 KiB");
            }
            return Ok(None);
        };
        let (line, end) = (&came[1..length], length + 2);
        let (piece, end) = match kind {
            b'+' if line == b"OK" => (Piece::Whole(Value::Okay), end),
            b'+' => {
                let text = String::from_utf8_lossy(line).into_owned();
                (Piece::Whole(Value::SimpleString(text)), end)
            }
            b'-' => (Piece::Whole(refusal(line)?), end),
            b':' => (Piece::Whole(Value::Int(number(line)?)), end),
            b'$' => match usize::try_from(number(line)?) {
                // The largest is far beyond any length, and still no overflow.
                Ok(length) if length > LONGEST => return Err("an answer of more than 8 MiB"),
                Ok(length) => match came.get(end..end + length + 2) {
                    None => return Ok(None),
                    Some([text @ .., b'\r', b'\n']) => {
                        let text = Value::BulkString(text.to_vec());
                        (Piece::Whole(text), end + length + 2)
                    }
                    Some(_) => return Err("a text that is not as long as it says"),
                },
                Err(_) => (Piece::Whole(Value::Nil), end),
            },
            _ => match usize::try_from(number(line)?) {
                Ok(0) => (Piece::Whole(Value::Array(Vec::new())), end),
                Ok(parts) => (Piece::Array(parts), end),
                Err(_) => (Piece::Whole(Value::Nil), end),
            },
        };
        self.at += end;
        Ok(Some(piece))
    }
}

fn number(line: &[u8]) -> Result<i64, Malformed> {
    let text = std::str::from_utf8(line).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or("a number that is none")
}

/// Only the redis crate can make its own error. Its parser is given one line, which is not long.
fn refusal(line: &[u8]) -> Result<Value, Malformed> {
    let whole = format!("-{}\r\n", String::from_utf8_lossy(line));
    redis::parse_redis_value(whole.as_bytes()).map_err(|_| "an error that is none")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What is read of bytes that come in pieces of some length.
    fn read(bytes: &[u8], piece: usize) -> Result<Vec<Value>, Malformed> {
        let (mut reader, mut values) = (Reader::new(), Vec::new());
        for mut piece in bytes.chunks(piece) {
            while !piece.is_empty() {
                let room = reader.room()?;
                let count = room.len().min(piece.len());
                room[..count].copy_from_slice(&piece[..count]);
                piece = &piece[count..];
                reader.came(count);
                while let Some(value) = reader.next()? {
                    values.push(value);
                }
            }
        }
        Ok(values)
    }

    fn written(value: &Value) -> Vec<u8> {
        match value {
            Value::Nil => b"$-1\r\n".to_vec(),
            Value::Int(number) => format!(":{number}\r\n").into(),
            Value::BulkString(text) => {
                [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
            }
            Value::Array(parts) => {
                let inside: Vec<u8> = parts.iter().flat_map(written).collect();
                [format!("*{}\r\n", parts.len()).as_bytes(), &inside].concat()
            }
            Value::Okay => b"+OK\r\n".to_vec(),
            Value::SimpleString(text) => format!("+{text}\r\n").into(),
            other => unreachable!("none is made: {other:?}"),
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            Just(Value::Okay),
            any::<i64>().prop_map(Value::Int),
            "[a-z ]{0,9}".prop_map(Value::SimpleString),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
        ];
        leaf.prop_recursive(7, 60, 6, |part| {
            proptest::collection::vec(part, 0..6).prop_map(Value::Array)
        })
    }

    proptest! {
        #[test]
        fn answers_are_read_in_whatever_pieces_they_come(
            values in proptest::collection::vec(value(), 1..4),
            piece in 1..50_usize,
        ) {
            let bytes: Vec<u8> = values.iter().flat_map(written).collect();
            prop_assert_eq!(read(&bytes, piece), Ok(values));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(
            prop_oneof![any::<u8>(), proptest::sample::select(&b"+-:$*\r\n0129"[..])], 0..80,
        )) {
            let at_once = read(&bytes, bytes.len().max(1));
            prop_assert_eq!(read(&bytes, 1), at_once);
        }
    }

    #[test]
    fn what_is_no_answer_is_said_in_words() {
        let nested = |levels| b"*1\r\n".repeat(levels);
        for (bytes, words) in [
            (&b"HTTP/1.1 400\r\n"[..], "RESP2"),
            (b">1\r\n+x\r\n", "RESP2"),
            (b"\0", "RESP2"),
            (b":\r\n", "number"),
            (b":9223372036854775808\r\n", "number"),
            (b"$1 \r\n", "number"),
            (b"$1\r\nab\r\n", "as long"),
            (b"$9223372036854775807\r\n", "8 MiB"),
            (b"$8388609\r\n", "8 MiB"),
            (&nested(9), "levels"),
            (&[b'+'; (64 << 10) + 2], "64 KiB"),
        ] {
            let said = read(bytes, bytes.len()).expect_err(words);
            assert!(said.contains(words), "{said}");
        }
        assert!(read(&[nested(8), b":1\r\n".to_vec()].concat(), 1).is_ok());
        let endless = [b"*99999999\r\n".to_vec(), b":1\r\n".repeat(3 << 20)].concat();
        assert!(read(&endless, 1 << 16).is_err_and(|words| words.contains("8 MiB")));
        // Not by all of them together.
        assert!(read(&b":1\r\n".repeat(3 << 20), 1 << 16).is_ok());
    }

    #[test]
    fn an_error_is_the_servers() {
        let read = read(b"-NOPERM no right\r\n", 3).expect("an answer");
        let [Value::ServerError(error)] = &read[..] else {
            panic!("{read:?}");
        };
        assert_eq!(
            (error.code(), error.details()),
            ("NOPERM", Some("no right"))
        );
    }
}
