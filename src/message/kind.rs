//! The kinds of lock.

/// A kind of lock. Each kind has its rules in Redis and among the threads of a process.
///
/// A reader-writer lock is two kinds over one key. So the readers of a process and its writers have a queue and a
/// delegate each, and Redis decides between readers and writers as it does between processes. The number of permits is
/// part of a semaphore's kind: threads that disagree on it do not share a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LockKind {
    Mutex,
    Read,
    Write,
    Semaphore {
        total_units: u32,
    },
    /// Several mutexes, all or none.
    Multi,
}

/// The way in which the threads of a process share leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// Whether any number of threads hold one lease at the same time. If not, one thread holds it.
    pub(crate) together: bool,
    /// Whether a process may have several leases of one lock at the same time.
    pub(crate) several: bool,
}

/// All units of a reader-writer lock. A writer takes them all, a reader takes one.
pub(crate) const ALL: u32 = u32::MAX;

impl Sharing {
    /// Returns how many threads can hold one lease at the same time.
    pub(crate) const fn most_holds(self) -> u32 {
        if self.together { u32::MAX } else { 1 }
    }
}

impl LockKind {
    /// Returns how the threads of a process share leases of this kind.
    pub(crate) fn sharing(self) -> Sharing {
        match self {
            Self::Mutex | Self::Write | Self::Multi => Sharing {
                together: false,
                several: false,
            },
            Self::Read => Sharing {
                together: true,
                several: true,
            },
            Self::Semaphore { .. } => Sharing {
                together: false,
                several: true,
            },
        }
    }

    /// Returns the units of an owner as the key has them: 0 if the owner has the whole key.
    pub(crate) fn units_in_key(self, units: u32) -> u32 {
        match self {
            Self::Mutex | Self::Multi => 0,
            Self::Read | Self::Write | Self::Semaphore { .. } => units,
        }
    }

    /// Returns how many units a lock of this kind has.
    pub(crate) fn total_units(self) -> u32 {
        match self {
            Self::Mutex | Self::Multi => 1,
            Self::Read | Self::Write => ALL,
            Self::Semaphore { total_units } => total_units,
        }
    }
}
