//! The table of the settings that have a name: how a URL writes each, and what its bounds are. [`Builder`] documents them.
//!
//! The URL's parameters ([`super::url`]), the list of them in its errors, and [`check`] are read off this table. What a handle may
//! set has its bounds in [`Options::check`](crate::config::Options::check), because each call checks them.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::builder::Builder;
use crate::config::{LONGEST_QUANTUM, MAX_LEASE, Settings};
use crate::error::{Error, Result};
use crate::owner::{self, MARK, MAX_LABEL, is_label};

pub(super) struct Setting {
    /// The name of the builder's method, of the URL's parameter, and in errors.
    pub(super) name: &'static str,
    pub(super) value: Value,
    /// Returns what is wrong with the value, if its bounds are not those of a handle's option.
    wrong: fn(&Settings) -> Option<String>,
}

/// How a URL writes a value, and the method that takes it.
pub(super) enum Value {
    Bool(fn(Builder, bool) -> Builder),
    Number(fn(Builder, u32) -> Builder),
    /// The number of a database.
    Index(fn(Builder, i64) -> Builder),
    Text(fn(Builder, String) -> Builder),
    Time(fn(Builder, Duration) -> Builder),
    /// A time that may also be none, which a URL says by leaving it out.
    Limit(fn(Builder, Option<Duration>) -> Builder),
}

macro_rules! settings {
    ($($name:ident: $value:ident $(, $wrong:expr)?;)*) => {
        /// In the order in which an error lists them.
        pub(super) const SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            value: Value::$value(Builder::$name),
            wrong: settings!(@$($wrong)?),
        }),*];
    };
    (@) => { |_| None };
    (@$wrong:expr) => { $wrong };
}

settings! {
    background_release: Bool;
    connect_timeout: Time, |of| outside(SHORT, of.connect_timeout);
    database: Index, |of| of.database.filter(|number| *number < 0).map(|_| "negative".into());
    fence_memory: Time, |of| outside((SECOND..=YEAR, "between 1 s and 366 days"), of.fence_memory);
    fencing: Bool;
    io_timeout: Time, |of| outside(SHORT, of.io_timeout);
    label: Text, |of| wrong_label(&of.label);
    note: Text, |of| owner::wrong_note(&of.note).map(Into::into);
    lease: Time;
    max_hold: Limit;
    min_hold: Time;
    node_timeout: Time, |of| outside(SHORT, of.node_timeout);
    outage_limit: Time, |of| outside((MS..=Duration::MAX, "at least 1 ms"), of.outage_limit);
    password: Text;
    password_file: Text, |of| of.logins.as_ref()?.wrong();
    poller_gap: Time, wrong_gap;
    pool_size: Number, |of| (!(1..=1024).contains(&of.pool_size)).then(|| "not between 1 and 1,024".into());
    prefix: Text, |of| (of.prefix.len() > MAX_PREFIX).then(|| "longer than 1,024 bytes".into());
    quantum: Time, |of| outside(SHORT, of.quantum?);
    renew: Bool;
    replicas: Number, |of| (of.replicas > MAX_REPLICAS).then(|| "more than 1,000".into());
    restart_delay: Time, |of| outside((Duration::ZERO..=MAX_LEASE, "at most 24 h"), of.restart_delay);
    username: Text;
    wait_through_outages: Bool;
    warn_after: Limit, |of| zero(of.warn_after);
    warn_wait_after: Limit, |of| zero(of.warn_wait_after);
}

type Bounds = (RangeInclusive<Duration>, &'static str);

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// The bounds of a time in which a thread waits for a server or for other threads.
const SHORT: Bounds = (MS..=Duration::from_secs(60 * 60), "between 1 ms and 1 h");
/// The longest time that a mutex is left free for clients that poll. `gap.lua` has the same number.
const LONGEST_GAP: Duration = Duration::from_millis(500);
/// The largest number of replicas. Nobody has as many, so a larger number is a mistake.
const MAX_REPLICAS: u32 = 1000;
/// The longest prefix, in bytes.
const MAX_PREFIX: usize = 1024;

/// Checks the bounds of all settings, and whether the password's file can be read.
///
/// # Errors
///
/// [`Error::Config`] with the name of the first setting that cannot be used.
pub(super) fn check(settings: &Settings) -> Result<()> {
    settings.options.check()?;
    let wrong = |it: &Setting| (it.wrong)(settings).map(|why| Error::config(it.name, why));
    SETTINGS.iter().find_map(wrong).map_or(Ok(()), Err)
}

fn outside((bounds, said): Bounds, value: Duration) -> Option<String> {
    (!bounds.contains(&value)).then(|| format!("{value:?} is not {said}"))
}

fn zero(limit: Option<Duration>) -> Option<String> {
    limit.filter(Duration::is_zero).map(|_| "zero".into())
}

fn wrong_gap(of: &Settings) -> Option<String> {
    let longest = LONGEST_GAP.min(of.quantum.unwrap_or(LONGEST_QUANTUM));
    let said = "between 0 and 500 ms, and no longer than the quantum";
    outside((Duration::ZERO..=longest, said), of.poller_gap?)
}

fn wrong_label(label: &str) -> Option<String> {
    if label.len() > MAX_LABEL {
        return Some("longer than 128 bytes".into());
    }
    let is_wrong = !label.chars().all(is_label);
    is_wrong.then(|| format!("only visible ASCII characters other than {MARK:?} are allowed"))
}

impl Value {
    /// Sets the value of a URL. Returns `None` if it cannot be read.
    pub(super) fn set(&self, builder: Builder, text: &str) -> Option<Builder> {
        Some(match self {
            Self::Bool(set) => set(builder, text.parse().ok()?),
            Self::Number(set) => set(builder, text.parse().ok()?),
            Self::Index(set) => set(builder, text.parse::<u32>().ok()?.into()),
            Self::Text(set) => set(builder, text.to_owned()),
            Self::Time(set) => set(builder, time(text)?),
            Self::Limit(set) => set(builder, Some(time(text)?)),
        })
    }

    /// Returns what a value is, in words.
    pub(super) const fn what(&self) -> &'static str {
        match self {
            Self::Bool(_) => "true or false",
            Self::Number(_) | Self::Index(_) => "a number",
            Self::Text(_) => "a text",
            Self::Time(_) | Self::Limit(_) => A_TIME,
        }
    }
}

const A_TIME: &str = "a time such as 250ms, 10s, 5m or 1h30m";

/// Reads a time as the parameters of a URL have it, and the options of the command line: a whole number and `ms`, `s`, `m`,
/// `h` or `d`, such as `250ms` or `1d`. Several of them add up: `1h30m`.
///
/// # Errors
///
/// [`Error::Config`] with the option `time`.
///
/// # Example
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(leasehold::parse_time("1m30s")?, Duration::from_secs(90));
/// assert!(leasehold::parse_time("90").is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn parse_time(text: &str) -> Result<Duration> {
    time(text).ok_or_else(|| Error::config("time", format!("not {A_TIME}")))
}

fn time(text: &str) -> Option<Duration> {
    let (mut ms, mut rest) = (0_u64, text);
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, behind) = rest.split_at(digits);
        let letters = behind.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, behind) = behind.split_at(letters);
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        ms = ms.checked_add(number.parse::<u64>().ok()?.checked_mul(unit_ms)?)?;
        if behind.is_empty() {
            return Some(Duration::from_millis(ms));
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_bounds() {
        check(&Settings::default()).expect("the defaults");
    }

    #[test]
    fn what_is_out_of_bounds_is_named() {
        let settings = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            check(&settings).expect_err("out of bounds").to_string()
        };
        for (text, named) in [
            (settings(|s| s.options.lease = Duration::ZERO), "lease"),
            (
                settings(|s| s.options.lease = Duration::from_millis(9)),
                "lease",
            ),
            (settings(|s| s.options.lease = Duration::MAX), "lease"),
            (
                settings(|s| s.options.max_hold = Some(Duration::ZERO)),
                "max_hold",
            ),
            (
                settings(|s| s.options.min_hold = MAX_LEASE + Duration::from_nanos(1)),
                "min_hold",
            ),
            (settings(|s| s.quantum = Some(Duration::ZERO)), "quantum"),
            (
                settings(|s| s.poller_gap = Some(LONGEST_QUANTUM * 2)),
                "poller_gap",
            ),
            (settings(|s| s.io_timeout = Duration::ZERO), "io_timeout"),
            (
                settings(|s| s.connect_timeout = Duration::MAX),
                "connect_timeout",
            ),
            (
                settings(|s| s.outage_limit = Duration::ZERO),
                "outage_limit",
            ),
            (
                settings(|s| s.fence_memory = Duration::ZERO),
                "fence_memory",
            ),
            (
                settings(|s| s.warn_after = Some(Duration::ZERO)),
                "warn_after",
            ),
            (
                settings(|s| s.warn_wait_after = Some(Duration::ZERO)),
                "warn_wait_after",
            ),
            (settings(|s| s.pool_size = 0), "pool_size"),
            (settings(|s| s.replicas = 1001), "replicas"),
            (settings(|s| s.database = Some(-1)), "database"),
            (settings(|s| s.label = "a b".into()), "label"),
            (settings(|s| s.label = "a!".into()), "label"),
            (settings(|s| s.label = "é".into()), "label"),
            (settings(|s| s.prefix = "p".repeat(2000)), "prefix"),
        ] {
            assert!(text.starts_with(&format!("invalid `{named}`: ")), "{text}");
        }
    }

    #[test]
    fn a_time_is_whole_numbers_and_their_units() {
        for (text, expected) in [
            ("0ms", Some(Duration::ZERO)),
            ("250ms", Some(Duration::from_millis(250))),
            ("10s", Some(Duration::from_secs(10))),
            ("5m", Some(Duration::from_secs(300))),
            ("1h", Some(Duration::from_secs(3_600))),
            ("2d", Some(Duration::from_secs(172_800))),
            ("1h30m", Some(Duration::from_secs(5_400))),
            ("1s1s", Some(Duration::from_secs(2))),
            ("1h30", None),
            ("1h m", None),
            ("1us", None),
            ("213503982334d23d", None),
            ("", None),
            ("10", None),
            ("s", None),
            ("-1s", None),
            ("+1s", None),
            ("1.5s", None),
            ("1 s", None),
            ("1S", None),
            ("18446744073709551615h", None),
            ("99999999999999999999ms", None),
        ] {
            assert_eq!(time(text), expected, "{text:?}");
        }
    }
}
