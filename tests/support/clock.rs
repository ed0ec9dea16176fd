//! A server's clock that a test can set.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use super::name;

/// The offset of a server's clock. The server maps the file into its memory, see `clock.c`.
pub struct Clock {
    dir: PathBuf,
    ahead: File,
}

/// The compiled library that the servers load. Rust needs a linker, so there is a C compiler.
static LIBRARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let compiled = std::env::temp_dir().join(name("leasehold-clock-c").replace(':', "-"));
    let source = compiled.with_extension("c");
    fs::write(&source, include_str!("clock.c")).expect("a file");
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&compiled, &source])
        .output()
        .expect("a C compiler");
    assert!(done.status.success(), "{done:?}");
    let library = fs::read(&compiled).expect("it was compiled");
    for file in [source, compiled] {
        fs::remove_file(file).expect("it is there");
    }
    library
});

impl Clock {
    #[track_caller]
    pub(crate) fn new() -> Self {
        let dir = std::env::temp_dir().join(name("leasehold-clock").replace(':', "-"));
        fs::create_dir(&dir).expect("a directory");
        let clock = Self {
            ahead: File::create(dir.join("ahead")).expect("a file"),
            dir,
        };
        clock.set_ahead(0);
        fs::write(clock.dir.join("clock.so"), &*LIBRARY).expect("a file");
        clock
    }

    /// Sets the server's clock to `seconds` ahead of the true time.
    pub(crate) fn set_ahead(&self, seconds: i64) {
        let micros = seconds * 1_000_000;
        // One write of the eight bytes that the server reads at once.
        let written = self.ahead.write_at(&micros.to_ne_bytes(), 0);
        assert_eq!(written.expect("it can be written"), 8);
    }

    /// Returns the environment variables for the server.
    pub(crate) fn variables(&self) -> Vec<String> {
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
