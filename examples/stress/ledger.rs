//! The file that the lock protects.
//!
//! Each name has one entry. Each guard of the name replaces the entry by one that counts one more. The reads and
//! writes are plain, so only the lock keeps updates from being lost.
//!
//! The updates of a process must be known even if the process is killed. Otherwise they would look like errors. So an
//! entry also has the process that wrote it, and the number of updates that this process has made of the name. A
//! single write sets all of it, so a kill falls before it or after it.
//!
//! A process that writes after another one first copies the other's number to the other's *tally*, because the new
//! entry will overwrite it. If it is killed in between, both places have the same number. So the updates of a process
//! are those in the entry, if it wrote the entry, and otherwise those in its tally.
//!
//! Processes that live to the end count their updates in memory. Otherwise a broken lock could lose an update
//! together with its count, and the sums would agree. For a killed process that is still possible for the last update
//! of a name. Any later update corrects the count.

use std::env;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::PathBuf;

/// The bytes of a number in the file.
const NUMBER: usize = size_of::<u64>();
/// The bytes of an entry.
const ENTRY: usize = 4 * NUMBER;

pub struct Ledger {
    file: File,
    names: u32,
}

/// The entry of a name. A new file is all zeros: no update, no fence, no writer.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The updates of all processes.
    pub updates: u64,
    /// The fence of the guard that made the last update.
    pub fence: u64,
    /// The process of that guard, counted from one.
    writer: u64,
    /// The updates of that process.
    by_writer: u64,
}

/// The directory of a new ledger. Dropping this removes it. Processes that have the ledger open can go on using it,
/// so nothing is left behind even if every process is killed.
pub struct Home<'a> {
    run: &'a str,
}

impl Ledger {
    /// Creates the ledger of a run.
    pub fn create(run: &str, processes: u32, names: u32) -> io::Result<(Self, Home<'_>)> {
        DirBuilder::new().mode(0o700).create(directory(run))?;
        let home = Home { run };
        File::create_new(path(run))?;
        let ledger = Self::open(run, names)?;
        ledger.file.set_len(ledger.tally_at(processes, 0))?;
        Ok((ledger, home))
    }

    /// Opens the ledger that another process of the run has created.
    pub fn open(run: &str, names: u32) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path(run))?;
        Ok(Self { file, names })
    }

    pub fn read(&self, name: u32) -> io::Result<Entry> {
        let mut bytes = [0; ENTRY];
        self.file.read_exact_at(&mut bytes, entry_at(name))?;
        Ok(Entry::from_bytes(&bytes))
    }

    /// Writes an entry that counts one update more than the one that was `read`.
    ///
    /// `own` is the number of updates of this name by this process, with the new one.
    pub fn write(
        &self,
        name: u32,
        read: &Entry,
        fence: u64,
        process: u32,
        own: u64,
    ) -> io::Result<()> {
        let writer = u64::from(process) + 1;
        if let Some(other) = read.writer.checked_sub(1).filter(|_| read.writer != writer) {
            let at = self.tally_at(other as u32, name);
            self.file.write_all_at(&read.by_writer.to_le_bytes(), at)?;
        }
        let entry = Entry {
            updates: read.updates + 1,
            fence,
            writer,
            by_writer: own,
        };
        self.file.write_all_at(&entry.to_bytes(), entry_at(name))
    }

    /// Returns the updates of all names.
    pub fn updates(&self) -> io::Result<u64> {
        Ok(self.entries()?.iter().map(|entry| entry.updates).sum())
    }

    /// Returns the updates of all names by one process.
    pub fn updates_by(&self, process: u32) -> io::Result<u64> {
        let mut tallies = vec![0; self.names as usize * NUMBER];
        self.file
            .read_exact_at(&mut tallies, self.tally_at(process, 0))?;
        let (tallies, _) = tallies.as_chunks();
        let updates = |(entry, tally): (&Entry, &[u8; NUMBER])| {
            if entry.writer == u64::from(process) + 1 {
                entry.by_writer
            } else {
                u64::from_le_bytes(*tally)
            }
        };
        Ok(self.entries()?.iter().zip(tallies).map(updates).sum())
    }

    fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut bytes = vec![0; self.names as usize * ENTRY];
        self.file.read_exact_at(&mut bytes, 0)?;
        let (entries, _) = bytes.as_chunks();
        Ok(entries.iter().map(Entry::from_bytes).collect())
    }

    /// The tallies come after the entries, process by process.
    fn tally_at(&self, process: u32, name: u32) -> u64 {
        let tally = u64::from(process) * u64::from(self.names) + u64::from(name);
        entry_at(self.names) + tally * NUMBER as u64
    }
}

impl Entry {
    fn from_bytes(bytes: &[u8; ENTRY]) -> Self {
        let (numbers, _) = bytes.as_chunks();
        let number = |at: usize| u64::from_le_bytes(numbers[at]);
        Self {
            updates: number(0),
            fence: number(1),
            writer: number(2),
            by_writer: number(3),
        }
    }

    fn to_bytes(self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        let (numbers, _) = bytes.as_chunks_mut();
        numbers[0] = self.updates.to_le_bytes();
        numbers[1] = self.fence.to_le_bytes();
        numbers[2] = self.writer.to_le_bytes();
        numbers[3] = self.by_writer.to_le_bytes();
        bytes
    }
}

impl Drop for Home<'_> {
    fn drop(&mut self) {
        remove(self.run);
    }
}

/// Removes the directory of a run's ledger.
pub fn remove(run: &str) {
    // Another process may have removed the directory already. If it cannot be removed, it stays in the temporary
    // files.
    let _ = fs::remove_dir_all(directory(run));
}

fn entry_at(name: u32) -> u64 {
    u64::from(name) * ENTRY as u64
}

fn directory(run: &str) -> PathBuf {
    env::temp_dir().join(format!("leasehold-stress-{run}"))
}

fn path(run: &str) -> PathBuf {
    directory(run).join("ledger")
}
