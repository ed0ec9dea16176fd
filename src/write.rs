//! The writes of a commit, what is allowed there, and their replies.

use std::collections::BTreeSet;
use std::fmt;

use crate::error::{Error, Result};
use crate::name::{LockKey, slot_of};

/// The commands that a commit may have. Each writes one key, its first argument, and reads no other.
const COMMANDS: &str = "\
    DEL UNLINK PERSIST EXPIRE PEXPIRE EXPIREAT PEXPIREAT \
    SET SETNX SETEX PSETEX GETSET GETDEL GETEX APPEND SETRANGE SETBIT BITFIELD INCR INCRBY INCRBYFLOAT DECR DECRBY \
    HSET HSETNX HMSET HDEL HINCRBY HINCRBYFLOAT HEXPIRE HPEXPIRE HEXPIREAT HPEXPIREAT HPERSIST \
    LPUSH RPUSH LPUSHX RPUSHX LPOP RPOP LINSERT LSET LTRIM LREM \
    SADD SREM SPOP \
    ZADD ZINCRBY ZREM ZPOPMIN ZPOPMAX ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREMRANGEBYLEX \
    XADD XTRIM XDEL XACK";
/// Those among them whose further arguments would be keys.
const OF_KEYS_ALONE: [&str; 2] = ["DEL", "UNLINK"];
/// The most writes of a commit. The server serves nobody else meanwhile.
const MOST_WRITES: usize = 1_000;
/// The most arguments of all writes together.
const MOST_ARGS_OF_ALL: usize = 100_000;
/// The most arguments of one write. Lua passes at most about 8,000 values to a function.
const MOST_ARGS: usize = 4_000;
/// The most bytes of all writes together.
const MOST_BYTES: usize = 1 << 20;

/// One command of [`LockGuard::commit`](crate::LockGuard::commit): it writes one key.
///
/// These commands are allowed, in upper or lower case:
///
/// | of | commands |
/// | --- | --- |
/// | strings | `SET`, `SETNX`, `SETEX`, `PSETEX`, `GETSET`, `GETDEL`, `GETEX`, `APPEND`, `SETRANGE`, `SETBIT`, `BITFIELD`, `INCR`, `INCRBY`, `INCRBYFLOAT`, `DECR`, `DECRBY` |
/// | hashes | `HSET`, `HSETNX`, `HMSET`, `HDEL`, `HINCRBY`, `HINCRBYFLOAT`, `HEXPIRE`, `HPEXPIRE`, `HEXPIREAT`, `HPEXPIREAT`, `HPERSIST` |
/// | lists | `LPUSH`, `RPUSH`, `LPUSHX`, `RPUSHX`, `LPOP`, `RPOP`, `LINSERT`, `LSET`, `LTRIM`, `LREM` |
/// | sets | `SADD`, `SREM`, `SPOP` |
/// | sorted sets | `ZADD`, `ZINCRBY`, `ZREM`, `ZPOPMIN`, `ZPOPMAX`, `ZREMRANGEBYRANK`, `ZREMRANGEBYSCORE`, `ZREMRANGEBYLEX` |
/// | streams | `XADD`, `XTRIM`, `XDEL`, `XACK` |
/// | any key | `DEL` and `UNLINK` of one key, `EXPIRE`, `PEXPIRE`, `EXPIREAT`, `PEXPIREAT`, `PERSIST` |
///
/// # Example
///
/// ```
/// use leasehold::Write;
///
/// let writes = [
///     Write::new("HSET", "stock:42").arg("left").arg(17).arg("checked by").arg("web-1"),
///     Write::new("DEL", "stock:42:reserved"),
/// ];
/// # let _ = writes;
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Write {
    pub(crate) command: String,
    pub(crate) key: Vec<u8>,
    pub(crate) args: Vec<Vec<u8>>,
}

/// An argument of a [`Write`]: text, bytes, or an integer.
#[derive(Clone, PartialEq, Eq)]
pub struct WriteArg(Vec<u8>);

/// The reply to a [`Write`], as Redis gives it.
///
/// # Example
///
/// ```no_run
/// # fn example(guard: &leasehold::LockGuard) -> leasehold::Result<()> {
/// use leasehold::{Reply, Write};
///
/// let replies = guard.commit(&[Write::new("DECRBY", "stock:42").arg(3)])?;
/// if let [Reply::Integer(left)] = replies[..] {
///     println!("{left} are left");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// There is no value.
    Nil,
    /// The write was executed, and has nothing else to tell.
    Ok,
    /// A number, such as that of the fields that are new. One beyond 2^53 is not exact, because it passes through Lua. What
    /// Redis has stored is exact.
    Integer(i64),
    /// A value, or a number with a fraction as text.
    Bytes(Vec<u8>),
    /// Several replies.
    Array(Vec<Reply>),
}

impl Write {
    /// Makes a write of a key by a command. The key is the raw key in Redis: it does not get the
    /// [`prefix`](crate::Builder::prefix) of the locks.
    #[must_use]
    pub fn new(command: &str, key: impl Into<Vec<u8>>) -> Self {
        Self {
            command: command.to_owned(),
            key: key.into(),
            args: Vec::new(),
        }
    }

    /// Adds an argument behind the key.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<WriteArg>) -> Self {
        self.args.push(arg.into().0);
        self
    }

    fn bytes(&self) -> usize {
        let args: usize = self.args.iter().map(Vec::len).sum();
        self.command.len() + self.key.len() + args
    }

    /// Returns why a commit cannot have this write.
    fn refused(
        &self,
        own: &BTreeSet<String>,
        locks: &[LockKey],
        has_slots: bool,
    ) -> Option<String> {
        let command = self.command.to_ascii_uppercase();
        if !COMMANDS.split(' ').any(|allowed| allowed == command) {
            return Some(format!(
                "{command:?} is no write of one key: see leasehold::Write"
            ));
        }
        if OF_KEYS_ALONE.contains(&&*command) && !self.args.is_empty() {
            return Some(format!("{command} has one key here"));
        }
        if self.args.len() > MOST_ARGS {
            return Some(format!("{command} has more than 4,000 arguments"));
        }
        let key = String::from_utf8_lossy(&self.key);
        if own.contains(&*key) {
            return Some(format!("the key {key:?} is the lock's"));
        }
        let (slot, lock) = (slot_of(&self.key), &locks[0]);
        (has_slots && slot != lock.slot()).then(|| {
            let (name, of_lock) = (lock.name(), lock.slot());
            format!(
                "the key {key:?} is in slot {slot}, and the lock {name:?} in slot {of_lock}; a text in braces, such as \
                 {{42}}, in both puts them into one"
            )
        })
    }
}

/// Checks the writes of a commit under these locks.
///
/// # Errors
///
/// [`Error::Config`] with the reason.
pub(crate) fn check(writes: &[Write], locks: &[LockKey], has_slots: bool) -> Result<()> {
    let all = || {
        if writes.is_empty() {
            return Some("none is given".to_owned());
        }
        if writes.len() > MOST_WRITES {
            return Some(format!(
                "{} are given, and a commit has at most 1,000",
                writes.len()
            ));
        }
        if writes.iter().map(|write| write.args.len()).sum::<usize>() > MOST_ARGS_OF_ALL {
            return Some("they have more than 100,000 arguments".to_owned());
        }
        if writes.iter().map(Write::bytes).sum::<usize>() > MOST_BYTES {
            return Some("they have more than 1 MiB".to_owned());
        }
        let own: BTreeSet<_> = locks.iter().flat_map(LockKey::all).collect();
        writes
            .iter()
            .find_map(|write| write.refused(&own, locks, has_slots))
    };
    all().map_or(Ok(()), |reason| Err(Error::config("writes", reason)))
}

impl fmt::Debug for Write {
    /// Leaves out the arguments, because they may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = String::from_utf8_lossy(&self.key);
        write!(
            f,
            "Write({} {key:?}, {} arguments)",
            self.command,
            self.args.len()
        )
    }
}

impl fmt::Debug for WriteArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteArg({} bytes)", self.0.len())
    }
}

macro_rules! from_bytes {
    ($($bytes:ty),*) => {$(
        impl From<$bytes> for WriteArg {
            fn from(bytes: $bytes) -> Self {
                Self(bytes.into())
            }
        }
    )*};
}

macro_rules! from_integers {
    ($($integer:ty),*) => {$(
        impl From<$integer> for WriteArg {
            fn from(integer: $integer) -> Self {
                Self(integer.to_string().into())
            }
        }
    )*};
}

from_bytes!(&str, String, &[u8], Vec<u8>);
from_integers!(i8, i16, i32, i64, isize, u8, u16, u32, u64, usize);

impl From<&String> for WriteArg {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl<const N: usize> From<&[u8; N]> for WriteArg {
    fn from(bytes: &[u8; N]) -> Self {
        bytes.as_slice().into()
    }
}
