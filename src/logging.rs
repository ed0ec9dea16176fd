//! The way to the program's logger, which is foreign code: a panic of it must cost neither a thread that others rely on
//! nor, in a guard's drop, the process.

use crate::panics::survived;

/// Logs, and survives it. Called with no mutex held.
pub(crate) fn logged(log: impl FnOnce()) {
    // Nothing of ours is half done in there.
    survived(log);
}
