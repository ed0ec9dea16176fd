//! The settings of a manager and of a handle, and their bounds.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::credentials::Logins;
#[cfg(feature = "tls")]
use super::tls::TlsClients;
use crate::error::{Error, Result};
use crate::event::SharedListener;
use crate::name::Fingerprint;
use crate::owner::{self, MARK, MAX_LABEL, is_label};
use crate::stats::PoolCounters;
use crate::sys::time::ms_rounded_up;
use crate::sys::{Arc, Machine, process};

/// The shortest lease. Of a shorter one, the clock drift and one request would leave nothing.
const MIN_LEASE: Duration = Duration::from_millis(10);
/// The longest lease. A crashed holder delays the others for its whole lease.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest quantum of a program that sets none. It follows the measured hand-overs then ([`crate::engine::queue::quantum`]).
pub(crate) const LONGEST_QUANTUM: Duration = Duration::from_millis(50);
/// The longest time that a mutex is left free for clients that poll. `gap.lua` has the same number.
const LONGEST_GAP: Duration = Duration::from_millis(500);
/// The largest number of replicas. Nobody has as many, so a larger number is a mistake.
const MAX_REPLICAS: u32 = 1000;
/// By how much a fence of a quorum may be ahead of a node's clock. A node follows a client's clock by at most a second, and
/// the nodes' clocks may differ by another.
pub(crate) const FENCE_LEAD: Duration = Duration::from_secs(2);
/// The longest prefix, in bytes.
const MAX_PREFIX: usize = 1024;

/// The terms of a lease. A thread hands its lease only to a thread that asked for the same terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// In 32 bits, because every lease in the process has this field. A day has 86,400,000 milliseconds.
    lease_ms: u32,
    pub(crate) renew: bool,
    /// Whether the guards have fences.
    pub(crate) fencing: bool,
    /// The fingerprint of the note. The owner of the lease shows the note, so a thread with another note needs another
    /// owner.
    note: Fingerprint,
}

impl Terms {
    /// Returns the terms of guards with fences. Rounds the lease up to whole milliseconds, which Redis counts in.
    pub(crate) const fn new(lease: Duration, renew: bool) -> Self {
        let ms = ms_rounded_up(lease);
        debug_assert!(ms <= ms_rounded_up(MAX_LEASE), "it was checked");
        Self {
            lease_ms: ms as u32,
            renew,
            fencing: true,
            note: 0,
        }
    }

    pub(crate) fn lease(self) -> Duration {
        Duration::from_millis(self.lease_ms.into())
    }
}

/// The options of a handle: the manager's defaults, or options that were set on the handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
    pub(crate) fencing: bool,
    /// The fingerprint of a note that was set on the handle; 0 if none was.
    pub(crate) note: Fingerprint,
}

impl Options {
    /// Checks the bounds of all options.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if an option is out of bounds.
    pub(crate) fn check(&self) -> Result<()> {
        if self.max_hold == Some(Duration::ZERO) {
            return Err(Error::config("max_hold", "zero"));
        }
        if self.min_hold > MAX_LEASE {
            let reason = format!("{:?} is longer than 24 h", self.min_hold);
            return Err(Error::config("min_hold", reason));
        }
        if (MIN_LEASE..=MAX_LEASE).contains(&self.lease) {
            return Ok(());
        }
        let reason = format!("{:?} is not between 10 ms and 24 h", self.lease);
        Err(Error::config("lease", reason))
    }

    pub(crate) fn terms(&self) -> Terms {
        Terms {
            fencing: self.fencing,
            note: self.note,
            ..Terms::new(self.lease, self.renew)
        }
    }
}

/// A password. `Debug` does not show it.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<password>")
    }
}

/// The settings of a manager.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) prefix: String,
    pub(crate) label: String,
    pub(crate) note: String,
    pub(crate) options: Options,
    /// `None` if the program set none.
    pub(crate) quantum: Option<Duration>,
    /// `None` if the program set none.
    pub(crate) poller_gap: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    pub(crate) io_timeout: Duration,
    pub(crate) outage_limit: Duration,
    /// Whether a wait begins with the call. If not, it begins with the first answer.
    pub(crate) wait_through_outages: bool,
    pub(crate) fence_memory: Duration,
    pub(crate) node_timeout: Duration,
    pub(crate) restart_delay: Duration,
    /// The longest lease that a quorum can ask its nodes for. `None` means that there is no limit but that of all leases.
    pub(crate) longest_vote: Option<Duration>,
    pub(crate) pool_size: u32,
    pub(crate) background_release: bool,
    pub(crate) replicas: u32,
    pub(crate) database: Option<i64>,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
    /// The user, if not `default`, and the password of the servers behind sentinels.
    pub(crate) node_credentials: Option<(Option<String>, Secret)>,
    /// The login of all but the sentinels, if it may change.
    pub(crate) logins: Option<Arc<Logins>>,
    /// The certificates, if the program has given some.
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Arc<TlsClients>>,
    pub(crate) warn_after: Option<Duration>,
    pub(crate) warn_wait_after: Option<Duration>,
    pub(crate) listener: Option<SharedListener>,
    /// The machine that the manager runs on.
    pub(crate) machine: Machine,
    /// The counters of the manager's pools.
    pub(crate) pools: Arc<PoolCounters>,
    #[cfg(feature = "metrics")]
    pub(crate) metric_names: std::collections::BTreeSet<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: String::new(),
            label: default_label(),
            note: String::new(),
            options: Options {
                lease: Duration::from_secs(30),
                renew: true,
                max_hold: None,
                min_hold: Duration::ZERO,
                fencing: true,
                note: 0,
            },
            quantum: None,
            poller_gap: None,
            connect_timeout: Duration::from_secs(2),
            io_timeout: Duration::from_secs(1),
            outage_limit: Duration::from_secs(60),
            wait_through_outages: false,
            fence_memory: Duration::from_secs(10 * 60),
            node_timeout: Duration::from_millis(200),
            restart_delay: Duration::from_secs(60),
            longest_vote: None,
            pool_size: 32,
            background_release: false,
            replicas: 0,
            database: None,
            username: None,
            password: None,
            node_credentials: None,
            logins: None,
            #[cfg(feature = "tls")]
            tls: None,
            warn_after: None,
            warn_wait_after: Some(Duration::from_secs(60)),
            listener: None,
            machine: Machine::default(),
            pools: Arc::default(),
            #[cfg(feature = "metrics")]
            metric_names: std::collections::BTreeSet::new(),
        }
    }
}

impl Settings {
    /// Checks what a quorum needs, and limits the leases.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] with the name of a setting that a quorum cannot have.
    pub(crate) fn check_quorum(&mut self) -> Result<()> {
        if self.replicas > 0 {
            let reason = "a quorum needs no replicas, and does not wait for them";
            return Err(Error::config("replicas", reason));
        }
        if self.has_poller_gap() {
            let reason = "a quorum hands no lock over, so clients that poll need no gap";
            return Err(Error::config("poller_gap", reason));
        }
        if self.fence_memory <= FENCE_LEAD {
            let reason = format!("a quorum needs more than {FENCE_LEAD:?}");
            return Err(Error::config("fence_memory", reason));
        }
        if !self.restart_delay.is_zero() {
            self.longest_vote = Some(self.restart_delay);
        }
        self.check_lease("lease", self.options.lease)?;
        self.check_lease("min_hold", self.options.min_hold)
    }

    /// Checks the length of a lease or an extension against the longest one of this manager.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] with the name of the `option`.
    pub(crate) fn check_lease(&self, option: &'static str, lease: Duration) -> Result<()> {
        if lease > MAX_LEASE {
            return Err(Error::config(option, "it is longer than 24 h"));
        }
        match self.longest_vote {
            Some(longest) if lease > longest => {
                let reason = format!(
                    "{lease:?} is longer than the `restart_delay` of the quorum, {longest:?}"
                );
                Err(Error::config(option, reason))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the program has set a gap for all names.
    fn has_poller_gap(&self) -> bool {
        self.poller_gap.is_some_and(|gap| !gap.is_zero())
    }

    /// Returns the quantum, if it does not follow the measured hand-overs. With a `poller_gap` it does not, because the
    /// gap is a part of each quantum.
    pub(crate) fn fixed_quantum(&self) -> Option<Duration> {
        let beside_gap = self.has_poller_gap().then_some(LONGEST_QUANTUM);
        self.quantum.or(beside_gap)
    }

    /// Checks the bounds of all settings, and whether the password's file can be read.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] with the name of the first setting that cannot be used.
    pub(crate) fn check(&self) -> Result<()> {
        self.options.check()?;
        let check = |option, value: Duration, bounds: RangeInclusive<Duration>, said: &str| {
            if bounds.contains(&value) {
                return Ok(());
            }
            Err(Error::config(option, format!("{value:?} is not {said}")))
        };
        let (ms, hour) = (Duration::from_millis(1), Duration::from_secs(60 * 60));
        let (short, said) = (ms..=hour, "between 1 ms and 1 h");
        let quantum = self.quantum.unwrap_or(LONGEST_QUANTUM);
        check("quantum", quantum, short.clone(), said)?;
        check(
            "poller_gap",
            self.poller_gap.unwrap_or_default(),
            Duration::ZERO..=LONGEST_GAP.min(quantum),
            "between 0 and 500 ms, and no longer than the quantum",
        )?;
        check("connect_timeout", self.connect_timeout, short.clone(), said)?;
        check("io_timeout", self.io_timeout, short.clone(), said)?;
        check("node_timeout", self.node_timeout, short, said)?;
        check(
            "restart_delay",
            self.restart_delay,
            Duration::ZERO..=MAX_LEASE,
            "at most 24 h",
        )?;
        let any = ms..=Duration::MAX;
        check("outage_limit", self.outage_limit, any, "at least 1 ms")?;
        let year = Duration::from_secs(1)..=hour * 24 * 366;
        check(
            "fence_memory",
            self.fence_memory,
            year,
            "between 1 s and 366 days",
        )?;
        if !(1..=1024).contains(&self.pool_size) {
            return Err(Error::config("pool_size", "not between 1 and 1,024"));
        }
        if self.replicas > MAX_REPLICAS {
            return Err(Error::config("replicas", "more than 1,000"));
        }
        if self.database.is_some_and(|number| number < 0) {
            return Err(Error::config("database", "negative"));
        }
        if self.warn_after == Some(Duration::ZERO) {
            return Err(Error::config("warn_after", "zero"));
        }
        if self.warn_wait_after == Some(Duration::ZERO) {
            return Err(Error::config("warn_wait_after", "zero"));
        }
        if self.prefix.len() > MAX_PREFIX {
            return Err(Error::config("prefix", "longer than 1,024 bytes"));
        }
        if self.label.len() > MAX_LABEL {
            return Err(Error::config("label", "longer than 128 bytes"));
        }
        if !self.label.chars().all(is_label) {
            let reason = format!("only visible ASCII characters other than {MARK:?} are allowed");
            return Err(Error::config("label", reason));
        }
        if let Some(logins) = &self.logins {
            logins.check()?;
        }
        owner::check_note(&self.note)
    }
}

/// Returns `host:pid`, so that an operator who looks into Redis finds the process.
fn default_label() -> String {
    let host: String = process::host_name()
        .chars()
        .take(64)
        .map(|c| if is_label(c) { c } else { '-' })
        .collect();
    format!("{host}:{}", process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_bounds() {
        Settings::default().check().expect("the defaults");
    }

    #[test]
    fn a_gap_fixes_the_quantum_of_a_program_that_sets_none() {
        let ms = Duration::from_millis;
        for (poller_gap, quantum, fixed) in [
            (None, None, None),
            (None, Some(ms(7)), Some(ms(7))),
            (Some(ms(0)), None, None),
            (Some(ms(20)), None, Some(ms(50))),
            (Some(ms(20)), Some(ms(20)), Some(ms(20))),
        ] {
            let settings = Settings {
                quantum,
                poller_gap,
                ..Settings::default()
            };
            settings.check().expect("in bounds");
            assert_eq!(settings.fixed_quantum(), fixed);
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_named() {
        let settings = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check().expect_err("out of bounds").to_string()
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
}
