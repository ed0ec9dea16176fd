//! SQLite, behind the module `sqlite3` of Python.

use std::path::PathBuf;
use std::process::{self, Command};
use std::{env, fs};

use crate::Outcome;
use crate::database::{Database, answer, pipe};

const CREATE: &str =
    "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(sys.stdin.read())";
const RUN: &str = include_str!("sqlite.py");

/// A database file, which ends with this value.
pub struct Sqlite {
    file: PathBuf,
}

impl Sqlite {
    pub fn create(tables: &str) -> Outcome<Self> {
        let file = env::temp_dir().join(format!("leasehold-fencing-{}.db", process::id()));
        let sqlite = Self { file };
        pipe(&mut sqlite.python(CREATE), tables)?;
        Ok(sqlite)
    }

    fn python(&self, program: &str) -> Command {
        let mut python = Command::new("python3");
        python.args(["-c", program]).arg(&self.file);
        python
    }
}

impl Database for Sqlite {
    fn run(&self, sql: &str, values: &[(&str, i64)]) -> Outcome<Option<String>> {
        let values = values.iter().map(|(name, value)| format!("{name}={value}"));
        answer(&pipe(self.python(RUN).args(values), sql)?)
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        fs::remove_file(&self.file).ok();
    }
}
