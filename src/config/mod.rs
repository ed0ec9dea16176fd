//! The settings of a manager and of a handle, with their defaults, and the servers that URLs name: `builder/url.rs` splits the
//! URL of a deployment, and here the URL of each host is read. The builder checks the settings of a manager, so that no other
//! module sees a number that is out of bounds.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::event::SharedListener;
use crate::name::Fingerprint;
use crate::owner::is_label;
use crate::stats::PoolCounters;
use crate::sys::time::ms_rounded_up;
use crate::sys::{Arc, Machine, process};

pub use credentials::Credentials;
pub(crate) use credentials::Logins;
pub(crate) use server::{ClusterNodes, SentinelSet, Server};
#[cfg(feature = "tls")]
pub use tls::Tls;
#[cfg(feature = "tls")]
pub(crate) use tls::{TlsClients, provide_crypto};

mod credentials;
mod server;
#[cfg(feature = "tls")]
mod tls;

/// The shortest lease. The clock drift and one request would leave nothing of a shorter one.
const MIN_LEASE: Duration = Duration::from_millis(10);
/// The longest lease. A crashed holder delays the others for its whole lease.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest quantum of a program that sets none. It follows the measured hand-overs then (`engine/queue/quantum.rs`).
pub(crate) const LONGEST_QUANTUM: Duration = Duration::from_millis(50);
/// By how much a fence of a quorum may be ahead of a node's clock. A node follows a client's clock by at most a second, and
/// the nodes' clocks may differ by another.
pub(crate) const FENCE_LEAD: Duration = Duration::from_secs(2);

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

/// A password. `Debug` does not show it.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<password>")
    }
}

/// Defines a struct with the defaults of its fields.
macro_rules! with_defaults {
    (
        $(#[$of:meta])*
        struct $name:ident {
            $($(#[$meta:meta])* $field:ident: $type:ty = $default:expr,)*
        }
    ) => {
        $(#[$of])*
        pub(crate) struct $name {$(
            $(#[$meta])*
            pub(crate) $field: $type,
        )*}

        impl Default for $name {
            #[allow(unused_doc_comments, reason = "the attributes are those of the fields")]
            fn default() -> Self {
                Self {$(
                    $(#[$meta])*
                    $field: $default,
                )*}
            }
        }
    };
}

with_defaults! {
    /// The settings of a manager.
    #[derive(Clone, Debug)]
    struct Settings {
        prefix: String = String::new(),
        label: String = default_label(),
        note: String = String::new(),
        options: Options = Options {
            lease: Duration::from_secs(30),
            renew: true,
            max_hold: None,
            min_hold: Duration::ZERO,
            fencing: true,
            note: 0,
        },
        /// `None` if the program set none.
        quantum: Option<Duration> = None,
        /// `None` if the program set none.
        poller_gap: Option<Duration> = None,
        connect_timeout: Duration = Duration::from_secs(2),
        io_timeout: Duration = Duration::from_secs(1),
        outage_limit: Duration = Duration::from_secs(60),
        /// Whether a wait begins with the call. If not, it begins with the first answer.
        wait_through_outages: bool = false,
        fence_memory: Duration = Duration::from_secs(10 * 60),
        node_timeout: Duration = Duration::from_millis(200),
        restart_delay: Duration = Duration::from_secs(60),
        /// The longest lease that a quorum can ask its nodes for. `None` means that there is no limit but that of all leases.
        longest_vote: Option<Duration> = None,
        pool_size: u32 = 32,
        background_release: bool = false,
        replicas: u32 = 0,
        database: Option<i64> = None,
        username: Option<String> = None,
        password: Option<Secret> = None,
        /// The user, if not `default`, and the password of the servers behind sentinels.
        node_credentials: Option<(Option<String>, Secret)> = None,
        /// The login of all but the sentinels, if it may change.
        logins: Option<Arc<Logins>> = None,
        /// The certificates, if the program has given some.
        #[cfg(feature = "tls")]
        tls: Option<Arc<TlsClients>> = None,
        warn_after: Option<Duration> = None,
        warn_wait_after: Option<Duration> = Some(Duration::from_secs(60)),
        listener: Option<SharedListener> = None,
        /// The machine that the manager runs on.
        machine: Machine = Machine::default(),
        /// The counters of the manager's pools.
        pools: Arc<PoolCounters> = Arc::default(),
        /// The names that are labels of metrics.
        metric_names: BTreeSet<String> = BTreeSet::new(),
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
        self.checked_terms(&self.options).map(drop)
    }

    /// Checks the options of a handle. Returns the terms of its leases.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if an option is out of bounds.
    pub(crate) fn checked_terms(&self, options: &Options) -> Result<Terms> {
        let (lease, min_hold) = (options.lease, options.min_hold);
        if options.max_hold == Some(Duration::ZERO) {
            return Err(Error::config("max_hold", "zero"));
        }
        if min_hold > MAX_LEASE {
            let reason = format!("{min_hold:?} is longer than 24 h");
            return Err(Error::config("min_hold", reason));
        }
        if !(MIN_LEASE..=MAX_LEASE).contains(&lease) {
            let reason = format!("{lease:?} is not between 10 ms and 24 h");
            return Err(Error::config("lease", reason));
        }
        self.check_lease("lease", lease)?;
        self.check_lease("min_hold", min_hold)?;
        Ok(Terms {
            fencing: options.fencing,
            note: options.note,
            ..Terms::new(lease, options.renew)
        })
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
            assert_eq!(settings.fixed_quantum(), fixed);
        }
    }
}
