//! Log records. All code of this crate writes them by the macros of this module.
//!
//! The program's logger is foreign code, which may panic or block. A panic of the logger is caught here. The watch
//! thread must end leases in time, so it logs no loss itself: it puts the loss into the queue of the events thread
//! ([`crate::engine::observe::events`]).

use std::fmt;

pub(crate) use log::Level;

use crate::panics::survived;

/// The log target of every record. The documentation of the crate names it.
const TARGET: &str = "leasehold";

/// Returns whether the program's logger wants records of this level.
pub(crate) fn is_wanted(level: Level) -> bool {
    level <= log::STATIC_MAX_LEVEL && level <= log::max_level()
}

/// Logs one record. The caller must hold no mutex.
#[expect(
    clippy::disallowed_macros,
    reason = "all other code logs through this function"
)]
pub(crate) fn write(level: Level, text: fmt::Arguments<'_>) {
    if is_wanted(level) {
        survived(|| log::log!(target: TARGET, level, "{text}"));
    }
}

/// Logs an error: work that this crate cannot do, or a panic that this crate survived.
macro_rules! error {
    ($($text:tt)+) => {
        $crate::logging::write(::log::Level::Error, format_args!($($text)+))
    };
}

/// Logs a warning: a loss, or a fault that has an effect until it is over.
macro_rules! warning {
    ($($text:tt)+) => {
        $crate::logging::write(::log::Level::Warn, format_args!($($text)+))
    };
}

/// Logs the end of a fault.
macro_rules! info {
    ($($text:tt)+) => {
        $crate::logging::write(::log::Level::Info, format_args!($($text)+))
    };
}

/// Logs a step in the life of a lock or a connection.
macro_rules! debug {
    ($($text:tt)+) => {
        $crate::logging::write(::log::Level::Debug, format_args!($($text)+))
    };
}

pub(crate) use {debug, error, info, warning};
