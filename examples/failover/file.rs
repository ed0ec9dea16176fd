//! The data that the locks protect: a file of numbers, which checks fencing tokens.

use std::fs::{self, File};
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{env, process, thread};

/// The time between a read and a write.
const WORK: Duration = Duration::from_millis(1);

/// The bytes of a record: its number, and the largest fencing token that it has seen.
const RECORD: u64 = 16;

/// A file that refuses a fencing token if its record has seen a larger one. A read counts too. Otherwise an old guard
/// could write between the read and the write of a newer guard.
pub struct FencedFile(Mutex<File>);

impl FencedFile {
    /// Creates a file of zeros. It has no name, so nothing is left of it.
    pub fn create(records: u64) -> Result<Self> {
        let path = env::temp_dir().join(format!("leasehold-failover-{}", process::id()));
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        fs::remove_file(path)?;
        file.set_len(records * RECORD)?;
        Ok(Self(Mutex::new(file)))
    }

    /// Adds one to a number by a read and a write. Returns `false` if the file refused one of them.
    pub fn add_one(&self, record: u64, fence: u64) -> Result<bool> {
        let Some(number) = self.read(record, fence)? else {
            return Ok(false);
        };
        thread::sleep(WORK);
        self.write(record, fence, number + 1)
    }

    /// Returns `None` if the token is too old.
    pub fn read(&self, record: u64, fence: u64) -> Result<Option<u64>> {
        self.with(record, fence, number)
    }

    /// Returns `false` if the token is too old.
    pub fn write(&self, record: u64, fence: u64, number: u64) -> Result<bool> {
        let written = self.with(record, fence, |file, at| {
            file.write_all_at(&number.to_le_bytes(), at)
        })?;
        Ok(written.is_some())
    }

    /// Checks and keeps the token. Calls `f` with the place of the record, unless the token is too old.
    fn with<T>(
        &self,
        record: u64,
        fence: u64,
        f: impl FnOnce(&File, u64) -> Result<T>,
    ) -> Result<Option<T>> {
        let file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = record * RECORD;
        if fence < number(&file, at + 8)? {
            return Ok(None);
        }
        file.write_all_at(&fence.to_le_bytes(), at + 8)?;
        f(&file, at).map(Some)
    }
}

fn number(file: &File, at: u64) -> Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at)?;
    Ok(u64::from_le_bytes(bytes))
}
