//! The kinds of lock that Redis is asked for.

/// What a lock is to Redis, and to the threads of a process.
///
/// A reader-writer lock is two kinds over one key, so that the readers of a process and its writers each have a
/// queue and a delegate of their own, and Redis judges between them as between processes. The permits of a
/// semaphore are part of its kind, so that threads which disagree on them do not share an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Mutex,
    Read,
    Write,
    Semaphore {
        of: u32,
    },
    /// Mutexes, all or none.
    Multi,
}

/// How a tenure is shared by the threads of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// Whether it has any number of turns at one time, or one.
    pub(crate) together: bool,
    /// Whether a process may have several tenures beside each other.
    pub(crate) several: bool,
}

/// All that there is of a reader-writer lock: what a writer takes up. A reader takes up one.
pub(crate) const ALL: u32 = u32::MAX;

impl Sharing {
    /// How many turns a tenure has at one time.
    pub(crate) const fn seats(self) -> u32 {
        if self.together { u32::MAX } else { 1 }
    }
}

impl Kind {
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

    /// Into how many units its lock is divided.
    pub(crate) fn of(self) -> u32 {
        match self {
            Self::Mutex | Self::Multi => 1,
            Self::Read | Self::Write => ALL,
            Self::Semaphore { of } => of,
        }
    }
}
