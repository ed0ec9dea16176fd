//! This process, and whether it is a forked child of the one that made a value.
//!
//! Every acquire and every release makes this check, so it must be fast. `getpid(2)` is a system call: it took longer
//! than all other steps of a guard that is handed to the next thread in memory. So the C library counts forks
//! (`pthread_atfork(3)`). It counts `fork(2)`, but neither `_Fork(3)` nor a bare `clone(2)` system call.

use forkguard::atfork::Guard;

#[cfg(feature = "seam")]
use super::test_machine::TestScheduler;

/// The process in which a value was made.
#[derive(Debug)]
pub(crate) enum ForkGuard {
    /// A process with this count of forks.
    Counted(Guard),
    /// A process with this number, if forks cannot be counted.
    Pid(u32),
}

/// Returns the number of this process.
pub(crate) fn id() -> u32 {
    std::process::id()
}

/// Returns the name of the host.
pub(crate) fn host_name() -> String {
    let host = rustix::system::uname();
    host.nodename().to_string_lossy().into_owned()
}

impl ForkGuard {
    /// Returns the calling process.
    pub(crate) fn here() -> Self {
        match Guard::try_new() {
            Ok(guard) => Self::Counted(guard),
            Err(_) => Self::Pid(id()),
        }
    }

    /// Returns whether the calling process is a forked child of that process.
    pub(crate) fn is_in_child(&self) -> bool {
        #[cfg(feature = "seam")]
        if super::machine::Machine::here()
            .scheduler()
            .is_some_and(TestScheduler::is_in_child)
        {
            return true;
        }
        match self {
            // Asks a copy, because a guard reports each fork only once.
            Self::Counted(guard) => guard.clone().detected_fork(),
            Self::Pid(pid) => id() != *pid,
        }
    }
}
