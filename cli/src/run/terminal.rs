//! The terminal of the session, and its foreground process group.

use std::fs::File;

use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;

/// The terminal that controls this process.
pub struct Terminal(File);

impl Terminal {
    /// Returns `None` if this process has no terminal.
    pub fn open() -> Option<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        Some(Self(file))
    }

    /// Returns whether the group of this process is in the foreground.
    pub fn is_ours(&self) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|group| group == getpgrp())
    }
}
