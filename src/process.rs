//! Which process this is: the one that made something, or a forked child of it.
//!
//! Every lock and every release asks, so it must cost next to nothing; `getpid(2)` is a system call, and took longer
//! than all the rest of a turn that is passed in memory. So the C library counts forks for us (`pthread_atfork(3)`).
//! It does so for `fork(2)` as programs call it, and not for `_Fork(3)` or a bare `clone(2)` system call past it.

use forkguard::atfork::Guard;

/// The process that something was made in.
#[derive(Debug)]
pub(crate) enum ForkGuard {
    /// So many forks after the first.
    Counted(Guard),
    /// This one, where forks cannot be counted.
    Pid(u32),
}

impl ForkGuard {
    /// This process.
    pub(crate) fn here() -> Self {
        match Guard::try_new() {
            Ok(guard) => Self::Counted(guard),
            Err(_) => Self::Pid(std::process::id()),
        }
    }

    /// Whether this is a forked child of that process.
    pub(crate) fn is_left(&self) -> bool {
        match self {
            // On a copy, because it tells of each fork once.
            Self::Counted(guard) => guard.clone().detected_fork(),
            Self::Pid(pid) => std::process::id() != *pid,
        }
    }
}
