//! The file that the lock protects.
//!
//! Each name has one entry, and each guard of the name replaces it by one that counts one more. Reads and
//! writes are plain positioned ones that know nothing of each other: the lock alone keeps updates from
//! being lost.
//!
//! What a process has done must be known even if it is killed, or its updates would pass for errors. So an
//! entry also says which process wrote it, and how many updates of the name that process has made. One
//! write carries it all: a kill falls before it or after it, never between an update and its count. Whoever
//! writes after another process first copies the other's count to a place of the other's own, its *tally*,
//! since the new entry will overwrite it; killed between the two, it leaves the same count in both places.
//! So the updates that a process made of a name are those in the entry, if it wrote the entry, and else
//! those in its tally: exact, wherever the kill struck.
//!
//! Of processes that live to the end the ledger is not asked. They count in memory, or a broken lock could
//! lose an update together with its count, and the sums would agree. For a killed process that remains
//! possible of the very last update it made of a name; any later one brings the count up to date.

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

/// One name's entry. A new file is all zeros: no update, no fence, no writer.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The updates that all processes have made.
    pub updates: u64,
    /// The fence of the guard that made the last.
    pub fence: u64,
    /// The process of that guard, counted from one.
    writer: u64,
    /// The updates that this process has made.
    by_writer: u64,
}

/// The directory of a new ledger, removed when this is dropped. Whoever has the ledger open can go on using it,
/// so nothing is left behind even if every process is killed.
pub struct Home<'a> {
    run: &'a str,
}

impl Ledger {
    /// Makes the ledger of a run.
    pub fn create(run: &str, processes: u32, names: u32) -> io::Result<(Self, Home<'_>)> {
        DirBuilder::new().mode(0o700).create(directory(run))?;
        let home = Home { run };
        File::create_new(path(run))?;
        let ledger = Self::open(run, names)?;
        ledger.file.set_len(ledger.tally_at(processes, 0))?;
        Ok((ledger, home))
    }

    /// Opens the ledger that another process of the run has made.
    pub fn open(run: &str, names: u32) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path(run))?;
        Ok(Self { file, names })
    }

    pub fn read(&self, name: u32) -> io::Result<Entry> {
        let mut bytes = [0; ENTRY];
        self.file.read_exact_at(&mut bytes, entry_at(name))?;
        Ok(Entry::from_bytes(&bytes))
    }

    /// Counts one update more than the entry that was `read`.
    ///
    /// `own` is the number of updates of this name by this process, the new one included.
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

    /// The updates of all names.
    pub fn updates(&self) -> io::Result<u64> {
        Ok(self.entries()?.iter().map(|entry| entry.updates).sum())
    }

    /// The updates of all names by one process.
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

    /// The tallies follow the entries, process by process.
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
    // Another process may have done so already, and what cannot be removed is for whoever cleans such places.
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
