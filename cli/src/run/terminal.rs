//! The terminal of the session, and its foreground process group.

use std::fs::File;
use std::io;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

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

    /// Returns whether a group is in the foreground.
    pub fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|foreground| foreground == group)
    }

    /// Puts a group into the foreground.
    pub fn hand_to(&self, group: Pid) -> io::Result<()> {
        // The kernel stops a background process that does this, unless it blocks this signal.
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTTOU);
        let before = blocked.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
        let given = tcsetpgrp(&self.0, group);
        before.thread_set_mask()?;
        Ok(given?)
    }

    /// Takes the foreground back for the group of this process.
    pub fn take_from(&self, group: Pid) {
        if self.is_of(group) {
            // The terminal may have hung up.
            let _ = self.hand_to(getpgrp());
        }
    }
}
