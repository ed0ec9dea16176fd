//! The bytes between a client and the server: requests, and values of [RESP2].
//!
//! [RESP2]: https://redis.io/docs/latest/develop/reference/protocol-spec/

/// A value that the server sends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Resp {
    Status(String),
    /// A code, and a text behind it.
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    NilArray,
    Array(Vec<Resp>),
}

impl Resp {
    pub(super) fn ok() -> Self {
        Self::Status("OK".into())
    }

    pub(super) fn bulk(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(bytes.into())
    }

    /// Returns the number of things, such as the members that were removed.
    pub(super) fn count(count: usize) -> Self {
        Self::Int(i64::try_from(count).unwrap_or(i64::MAX))
    }

    pub(super) fn flag(is_set: bool) -> Self {
        Self::Int(is_set.into())
    }

    pub(super) fn or_nil(bytes: Option<impl Into<Vec<u8>>>) -> Self {
        bytes.map_or(Self::Nil, Self::bulk)
    }

    /// Appends the bytes of this value.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut line = |begin: u8, text: &str| {
            out.push(begin);
            // No line has a line break in it.
            out.extend(text.bytes().map(|byte| match byte {
                b'\r' | b'\n' => b' ',
                byte => byte,
            }));
            out.extend(b"\r\n");
        };
        match self {
            Self::Status(text) => line(b'+', text),
            Self::Error(text) => line(b'-', text),
            Self::Int(int) => line(b':', &int.to_string()),
            Self::Nil => line(b'$', "-1"),
            Self::NilArray => line(b'*', "-1"),
            Self::Bulk(bytes) => {
                line(b'$', &bytes.len().to_string());
                out.extend(bytes);
                out.extend(b"\r\n");
            }
            Self::Array(parts) => {
                line(b'*', &parts.len().to_string());
                for part in parts {
                    part.write(out);
                }
            }
        }
    }
}

/// Returns the bytes of a request with these words.
pub(crate) fn request(words: &[impl AsRef<str>]) -> Vec<u8> {
    let words = words.iter().map(|word| Resp::bulk(word.as_ref()));
    let mut bytes = Vec::new();
    Resp::Array(words.collect()).write(&mut bytes);
    bytes
}

/// The words of a request.
type Words = Vec<Vec<u8>>;

/// Returns the first request of `bytes`, and how many bytes it has. Returns `None` if it is not whole yet.
///
/// # Errors
///
/// The bytes are no request. Requests of one line, as a person types them, count as such.
pub(super) fn first_request(bytes: &[u8]) -> Result<Option<(Words, usize)>, &'static str> {
    let mut reader = RequestReader { bytes, read: 0 };
    match reader.request() {
        Ok(request) => Ok(Some((request, reader.read))),
        Err(Unread::NotYet) => Ok(None),
        Err(Unread::Malformed(what)) => Err(what),
    }
}

/// Why there is no request.
enum Unread {
    NotYet,
    Malformed(&'static str),
}

struct RequestReader<'a> {
    bytes: &'a [u8],
    read: usize,
}

impl RequestReader<'_> {
    fn request(&mut self) -> Result<Words, Unread> {
        let parts = self.length(b'*', "invalid multibulk length")?;
        (0..parts).map(|_| self.bulk()).collect()
    }

    fn bulk(&mut self) -> Result<Vec<u8>, Unread> {
        let length = self.length(b'$', "invalid bulk length")?;
        let end = self.read + length;
        let bulk = self.bytes.get(self.read..end).ok_or(Unread::NotYet)?;
        let line_break = self.bytes.get(end..end + 2).ok_or(Unread::NotYet)?;
        if line_break != b"\r\n" {
            return Err(Unread::Malformed("invalid bulk length"));
        }
        self.read = end + 2;
        Ok(bulk.to_vec())
    }

    /// Reads a line such as `*3`.
    fn length(&mut self, begin: u8, wrong: &'static str) -> Result<usize, Unread> {
        let rest = &self.bytes[self.read..];
        if rest.first().is_some_and(|first| *first != begin) {
            return Err(Unread::Malformed("expected another type of value"));
        }
        let end = rest.windows(2).position(|two| two == b"\r\n");
        let line = &rest[..end.ok_or(Unread::NotYet)?];
        let digits = std::str::from_utf8(&line[1..]).ok();
        let length = digits.and_then(|digits| digits.parse().ok());
        self.read += line.len() + 2;
        length.ok_or(Unread::Malformed(wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_taken_as_they_become_whole() {
        let whole = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n*1\r\n$4\r\nPING\r\n";
        let mut bytes = Vec::new();
        let mut taken = Vec::new();
        for byte in whole {
            bytes.push(*byte);
            if let Some((request, read)) = first_request(&bytes).expect("it is well formed") {
                taken.push(request);
                bytes.drain(..read);
            }
        }
        assert_eq!(
            taken,
            [
                vec![b"GET".to_vec(), b"a\r\nb".to_vec()],
                vec![b"PING".to_vec()]
            ]
        );
        assert!(bytes.is_empty());
        for malformed in ["PING\r\n", "*x\r\n", "*1\r\n:1\r\n", "*1\r\n$1\r\nabc"] {
            assert!(first_request(malformed.as_bytes()).is_err(), "{malformed}");
        }
    }

    #[test]
    fn a_value_is_written_as_its_type_and_its_bytes() {
        let value = Resp::Array(vec![
            Resp::ok(),
            Resp::Error("ERR two\r\nlines".into()),
            Resp::Int(-7),
            Resp::bulk("a\r\nb"),
            Resp::Nil,
            Resp::NilArray,
        ]);
        let mut out = Vec::new();
        value.write(&mut out);
        assert_eq!(
            String::from_utf8_lossy(&out),
            "*6\r\n+OK\r\n-ERR two  lines\r\n:-7\r\n$4\r\na\r\nb\r\n$-1\r\n*-1\r\n"
        );
    }
}
