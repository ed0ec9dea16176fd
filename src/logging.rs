//! The one way to the program's logger.
//!
//! A logger is foreign code, which may panic or block. So a panic of it is caught: it must end neither a thread that
//! others rely on nor, in a guard's drop, the process. And the watch thread, which ends leases in time, never logs: it
//! puts what there is to log into the queue of the events thread ([`crate::engine::events`]).

use std::fmt;

pub(crate) use log::Level;

use crate::panics::survived;

/// The target of every record. The front page documents it.
const TARGET: &str = "leasehold";

/// Returns whether the program wants records of this level.
pub(crate) fn is_wanted(level: Level) -> bool {
    level <= log::STATIC_MAX_LEVEL && level <= log::max_level()
}

/// Logs one record. Must be called with no mutex held.
#[expect(
    clippy::disallowed_macros,
    reason = "all other code logs through this function"
)]
pub(crate) fn write(level: Level, text: fmt::Arguments<'_>) {
    if is_wanted(level) {
        survived(|| log::log!(target: TARGET, level, "{text}"));
    }
}

/// Logs an error: work that this crate cannot do, or a panic that it survived.
macro_rules! error {
    ($($text:tt)+) => {
        $crate::logging::write(::log::Level::Error, format_args!($($text)+))
    };
}

/// Logs a warning: a loss, or a fault that costs something until it is over.
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
