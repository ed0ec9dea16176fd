//! The clock of a server, to be set by a test.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::name;

/// How far a server's clock is ahead. It is a file that the server has mapped into its memory, see `clock.c`.
pub(crate) struct Clock {
    dir: PathBuf,
    ahead: File,
}

impl Clock {
    /// Compiles what the server loads; a linker is there, since Rust needs one.
    #[track_caller]
    pub(super) fn new() -> Self {
        let dir = std::env::temp_dir().join(name("leasehold-clock").replace(':', "-"));
        fs::create_dir(&dir).expect("a directory");
        let clock = Self {
            ahead: File::create(dir.join("ahead")).expect("a file"),
            dir,
        };
        clock.set_ahead(0);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/clock.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(clock.dir.join("clock.so"))
            .arg(source)
            .output()
            .expect("a C compiler");
        assert!(compiled.status.success(), "{compiled:?}");
        clock
    }

    /// Sets the server's clock by so many seconds ahead of the true one.
    pub(super) fn set_ahead(&self, seconds: i64) {
        let micros = seconds * 1_000_000;
        // By one write of as much as is read at once.
        let written = self.ahead.write_at(&micros.to_ne_bytes(), 0);
        assert_eq!(written.expect("it can be written"), 8);
    }

    /// What the server's environment has to be.
    pub(super) fn variables(&self) -> Vec<String> {
        let variable = |name, file| format!("{name}={}", self.dir.join(file).display());
        vec![
            variable("LD_PRELOAD", "clock.so"),
            variable("LEASEHOLD_IT_CLOCK", "ahead"),
        ]
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}
