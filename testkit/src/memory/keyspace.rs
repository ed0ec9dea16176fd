//! The keys of one database, with their values and their expiry.
//!
//! A key expires in the millisecond after its last one. An expired key is deleted when a command comes upon it. Until then
//! no command sees it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::arguments::{Arguments, CommandError, int};
use super::glob;
use super::resp::Resp;
use super::sorted_set::SortedSet;

/// The value of a key.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    String(Vec<u8>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    List(VecDeque<Vec<u8>>),
    Set(BTreeSet<Vec<u8>>),
    SortedSet(SortedSet),
}

impl StoredKey {
    pub(super) fn into_value(self) -> Stored {
        self.value
    }
}

impl Stored {
    /// Returns whether it is a collection without any element: such a key is deleted.
    fn is_empty(&self) -> bool {
        match self {
            Self::String(_) => false,
            Self::Hash(fields) => fields.is_empty(),
            Self::List(elements) => elements.is_empty(),
            Self::Set(members) => members.is_empty(),
            Self::SortedSet(members) => members.is_empty(),
        }
    }

    fn type_name(&self) -> &'static str {
        match self {
            Self::String(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Set(_) => "set",
            Self::SortedSet(_) => "zset",
        }
    }
}

/// A key's value, and its expiry.
#[derive(Clone, Debug)]
pub(super) struct StoredKey {
    value: Stored,
    /// When it expires, in ms since 1970.
    expires_at: Option<i64>,
}

/// The keys of one database.
#[derive(Clone, Debug, Default)]
pub(super) struct Keyspace {
    keys: BTreeMap<Vec<u8>, StoredKey>,
    /// The keys that were written since the last call of [`take_written`](Self::take_written).
    written: BTreeSet<Vec<u8>>,
    /// The server's time, in ms since 1970.
    pub(super) now: i64,
    /// The last keys of the pages that scans have had, by the cursor of the next page.
    pages: BTreeMap<u64, Vec<u8>>,
    next_cursor: u64,
}

/// How many scans may be under way. The page of an older one begins anew.
const MOST_PAGES: usize = 1_000;

impl Keyspace {
    /// Returns what a key holds.
    pub(super) fn get(&mut self, key: &[u8]) -> Option<&mut Stored> {
        self.drop_if_expired(key);
        self.keys.get_mut(key).map(|stored| &mut stored.value)
    }

    fn drop_if_expired(&mut self, key: &[u8]) {
        let expires_at = self.keys.get(key).and_then(|stored| stored.expires_at);
        if expires_at.is_some_and(|at| at < self.now) {
            self.keys.remove(key);
        }
    }

    /// Returns the value of one type that a key holds.
    ///
    /// # Errors
    ///
    /// The key holds another type.
    pub(super) fn get_as<'k, T>(
        &'k mut self,
        key: &[u8],
        of_type: impl FnOnce(&'k mut Stored) -> Option<T>,
    ) -> Result<Option<T>, CommandError> {
        let Some(stored) = self.get(key) else {
            return Ok(None);
        };
        of_type(stored)
            .map(Some)
            .ok_or_else(CommandError::wrong_type)
    }

    /// Returns the value of one type that a key holds. Without a key, makes one that holds `new`.
    pub(super) fn get_or_insert<'k, T>(
        &'k mut self,
        key: &[u8],
        new: impl FnOnce() -> Stored,
        of_type: impl FnOnce(&'k mut Stored) -> Option<T>,
    ) -> Result<T, CommandError> {
        self.drop_if_expired(key);
        self.note_write(key);
        let stored = self.keys.entry(key.to_vec()).or_insert_with(|| StoredKey {
            value: new(),
            expires_at: None,
        });
        of_type(&mut stored.value).ok_or_else(CommandError::wrong_type)
    }

    /// Sets what a key holds, and when it expires.
    pub(super) fn set(&mut self, key: &[u8], value: Stored, expires_at: Option<i64>) {
        self.note_write(key);
        self.keys
            .insert(key.to_vec(), StoredKey { value, expires_at });
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        self.drop_if_expired(key);
        let was_there = self.keys.remove(key).is_some();
        if was_there {
            self.note_write(key);
        }
        was_there
    }

    /// Notes that a command has written a key.
    pub(super) fn note_write(&mut self, key: &[u8]) {
        self.written.insert(key.to_vec());
    }

    /// Returns whether this request has written a key by now.
    pub(super) fn is_written(&self) -> bool {
        !self.written.is_empty()
    }

    /// Returns the keys that were written since the last call.
    pub(super) fn take_written(&mut self) -> BTreeSet<Vec<u8>> {
        std::mem::take(&mut self.written)
    }

    /// Returns a key's value with its expiry.
    pub(super) fn stored(&self, key: &[u8]) -> Option<&StoredKey> {
        self.keys.get(key)
    }

    /// Returns whether a key is there at this time, in ms since 1970.
    pub(super) fn has(&self, key: &[u8], now: i64) -> bool {
        let stored = self.keys.get(key);
        stored.is_some_and(|stored| stored.expires_at.is_none_or(|at| at >= now))
    }

    /// Copies a key of another server. `None` deletes it.
    pub(super) fn copy(&mut self, key: &[u8], stored: Option<StoredKey>) {
        match stored {
            Some(stored) => drop(self.keys.insert(key.to_vec(), stored)),
            None => drop(self.keys.remove(key)),
        }
    }

    /// Deletes all keys.
    pub(super) fn clear(&mut self) {
        let keys = std::mem::take(&mut self.keys);
        self.written.extend(keys.into_keys());
    }

    /// Deletes a collection that has no element left, after some were removed.
    pub(super) fn remove_if_empty(&mut self, key: &[u8]) {
        self.note_write(key);
        if self
            .keys
            .get(key)
            .is_some_and(|stored| stored.value.is_empty())
        {
            self.keys.remove(key);
        }
    }

    pub(super) fn expires_at(&mut self, key: &[u8]) -> Option<i64> {
        self.drop_if_expired(key);
        self.keys.get(key)?.expires_at
    }

    /// Sets when a key that is there expires. Deletes it if that is past.
    pub(super) fn expire_at(&mut self, key: &[u8], at: Option<i64>) {
        self.note_write(key);
        if at.is_some_and(|at| at <= self.now) {
            self.keys.remove(key);
        } else if let Some(stored) = self.keys.get_mut(key) {
            stored.expires_at = at;
        }
    }

    /// Returns the keys that have not expired.
    pub(super) fn live_keys(&self) -> impl Iterator<Item = &Vec<u8>> {
        let now = self.now;
        self.keys
            .iter()
            .filter(move |(_, stored)| stored.expires_at.is_none_or(|at| at >= now))
            .map(|(key, _)| key)
    }
}

pub(super) fn del(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let removed = arguments.from(1).iter().filter(|key| keys.remove(key));
    Ok(Resp::count(removed.count()))
}

pub(super) fn exists(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let found = arguments.from(1).iter();
    let found = found.filter(|key| keys.get(key).is_some());
    Ok(Resp::count(found.count()))
}

pub(super) fn type_of(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let stored = keys.get(arguments.get(1));
    let name = stored.map_or("none", |stored| stored.type_name());
    Ok(Resp::Status(name.into()))
}

/// `PTTL key`, and `TTL key` in seconds.
pub(super) fn pttl(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let key = arguments.get(1);
    if keys.get(key).is_none() {
        return Ok(Resp::Int(-2));
    }
    let now = keys.now;
    let left = keys.expires_at(key).map(|at| at - now);
    let left = left.map(|ms| match arguments.name().as_str() {
        "ttl" => (ms + 500) / 1_000,
        _ => ms,
    });
    Ok(Resp::Int(left.unwrap_or(-1)))
}

/// `PERSIST key`.
pub(super) fn persist(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let key = arguments.get(1);
    let is_to_expire = keys.expires_at(key).is_some();
    if is_to_expire {
        keys.expire_at(key, None);
    }
    Ok(Resp::flag(is_to_expire))
}

/// `EXPIRE`, `PEXPIRE`, `EXPIREAT` and `PEXPIREAT`: `key time [NX | XX | GT | LT]`.
pub(super) fn expire(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for number in 3..arguments.len() {
        match arguments.option(number).as_str() {
            "NX" => nx = true,
            "XX" => xx = true,
            "GT" => gt = true,
            "LT" => lt = true,
            other => {
                let text = format!("ERR Unsupported option {other}");
                return Err(CommandError(text));
            }
        }
    }
    if nx && (xx || gt || lt) {
        let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
        return Err(CommandError::new(text));
    }
    if gt && lt {
        let text = "ERR GT and LT options at the same time are not compatible";
        return Err(CommandError::new(text));
    }
    let (name, given) = (arguments.name(), arguments.int(2)?);
    let factor = if name.starts_with('p') { 1 } else { 1_000 };
    let from = if name.ends_with("at") { 0 } else { keys.now };
    let at = given.checked_mul(factor);
    let at = at.and_then(|ms| ms.checked_add(from));
    let at = at.ok_or_else(|| invalid_expire(&name))?;
    let key = arguments.get(1);
    if keys.get(key).is_none() {
        return Ok(Resp::Int(0));
    }
    let is_refused = match keys.expires_at(key) {
        // A key without a time to live lives for longer than any other.
        None => xx || gt,
        Some(before) => nx || gt && at <= before || lt && at >= before,
    };
    if is_refused {
        return Ok(Resp::Int(0));
    }
    keys.expire_at(key, Some(at));
    Ok(Resp::Int(1))
}

pub(super) fn invalid_expire(command: &str) -> CommandError {
    CommandError(format!("ERR invalid expire time in '{command}' command"))
}

pub(super) fn keys_of(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let pattern = arguments.get(1);
    let found = keys.live_keys().filter(|key| glob::matches(pattern, key));
    Ok(Resp::Array(
        found.map(|key| Resp::bulk(key.clone())).collect(),
    ))
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`. The pages are in the order of the keys.
pub(super) fn scan(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let cursor = int(arguments.get(1)).and_then(|cursor| u64::try_from(cursor).ok());
    let cursor = cursor.ok_or_else(|| CommandError::new("ERR invalid cursor"))?;
    let (mut pattern, mut count, mut of_type) = (b"*".as_slice(), 10, None);
    let mut number = 2;
    while number < arguments.len() {
        let option = arguments.option(number);
        if number + 1 == arguments.len() {
            return Err(CommandError::syntax());
        }
        match option.as_str() {
            "MATCH" => pattern = arguments.get(number + 1),
            "COUNT" => count = arguments.int(number + 1)?,
            "TYPE" => of_type = Some(arguments.option(number + 1).to_lowercase()),
            _ => return Err(CommandError::syntax()),
        }
        number += 2;
    }
    let count = usize::try_from(count).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(CommandError::syntax)?;
    let after = keys.pages.remove(&cursor);
    let is_later = |key: &&Vec<u8>| after.as_ref().is_none_or(|after| *key > after);
    let page: Vec<_> = keys
        .live_keys()
        .filter(is_later)
        .take(count)
        .cloned()
        .collect();
    let next = match page.last() {
        Some(last) if page.len() == count => {
            keys.next_cursor += 1;
            keys.pages.insert(keys.next_cursor, last.clone());
            if keys.pages.len() > MOST_PAGES {
                keys.pages.pop_first();
            }
            keys.next_cursor
        }
        _ => 0,
    };
    let is_asked_for = |key: &&Vec<u8>| {
        let has_type = of_type.as_ref().is_none_or(|of_type| {
            let stored = &keys.keys[*key];
            stored.value.type_name() == of_type
        });
        has_type && glob::matches(pattern, key)
    };
    let found = page.iter().filter(is_asked_for);
    let found = found.map(|key| Resp::bulk(key.clone())).collect();
    Ok(Resp::Array(vec![
        Resp::bulk(next.to_string()),
        Resp::Array(found),
    ]))
}
