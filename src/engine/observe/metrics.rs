//! The counters and events of locks. Only this module and that of the calls change the counters that the tables name.
//!
//! | on the way in ([`crate::engine::acquire`]) | counters | event |
//! | --- | --- | --- |
//! | a call begins to wait for the lock | `contended` | contended |
//! | a call gets a guard from Redis | a histogram of waits | acquired |
//! | a call gets a guard from another thread | a histogram of waits | passed on |
//! | a call ends without a guard | `tries_held`, a histogram of waits that timed out, or `failed` | |
//! | a call that has waited ends | `waits_over` | |
//!
//! | on the way out | counters | event |
//! | --- | --- | --- |
//! | a guard ends with a live lease | a histogram of holds | released |
//! | a guard ends after a loss | a histogram of holds | |
//! | a guard has been held for longer than `warn_after` | `held_long` | held long |
//! | a lease is lost, or a guard reaches its `max_hold` | `lost` by cause | lost |
//! | Redis confirms a renewal | `renewed` | renewed |
//! | Redis hands the lock over to another process | `handed_over` | handed over |
//!
//! A rate limiter has no guards: its calls have metrics alone.

use std::borrow::Cow;
use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::lease::process_lease::{Hold, ProcessLease};
use crate::engine::lease::rules::LeaseStatus;
use crate::error::{Lost, LostCause};
use crate::event::Event;
use crate::sys::Time;
use crate::wire::{LockKind, Reply, Request, Verb};

impl Client {
    /// Counts a guard. The caller must call this before any thread can use the guard. Otherwise events of its end, or
    /// of a later guard, could come first.
    pub(crate) fn count_guard(&self, hold: &Hold, waited: Duration, from_redis: bool) {
        let waits = if from_redis {
            &self.stats.waits_asked
        } else {
            &self.stats.waits_passed_on
        };
        waits.record(waited);
        #[cfg(feature = "metrics")]
        {
            let entry = &hold.process_lease.entry;
            let outcome = if from_redis { "acquired" } else { "passed_on" };
            let series = self.exported.of(entry.target.name());
            series.call(entry.kind, outcome, waited);
            self.exported.held.increment(1);
        }
        self.events.step(|| {
            let (name, owner) = self.name_and_owner(&hold.process_lease);
            let fence = hold.fence;
            if from_redis {
                Event::Acquired {
                    name,
                    owner,
                    fence,
                    waited,
                }
            } else {
                Event::PassedOn {
                    name,
                    owner,
                    fence,
                    waited,
                }
            }
        });
    }

    /// Counts the end of a guard that was held for `held`. The caller must call this before the next thread gets the
    /// lock.
    pub(crate) fn count_end(
        &self,
        process_lease: &ProcessLease,
        fence: u64,
        now: Time,
        held: Duration,
    ) {
        #[cfg(feature = "metrics")]
        self.export_end(process_lease, held);
        if let LeaseStatus::Live(_) = process_lease.validity.status(now) {
            self.stats.holds_released.record(held);
            self.events.step(|| {
                let (name, owner) = self.name_and_owner(process_lease);
                Event::Released {
                    name,
                    owner,
                    fence,
                    held,
                }
            });
        } else {
            self.stats.holds_lost.record(held);
        }
    }

    /// Counts the end of a guard at its `max_hold`.
    pub(crate) fn count_end_at_max_hold(
        &self,
        process_lease: &ProcessLease,
        fence: u64,
        held: Duration,
    ) {
        #[cfg(feature = "metrics")]
        self.export_end(process_lease, held);
        self.stats.holds_lost.record(held);
        self.count_loss(process_lease, fence, LostCause::MaxHold);
    }

    #[cfg(feature = "metrics")]
    fn export_end(&self, process_lease: &ProcessLease, held: Duration) {
        let series = self.exported.of(process_lease.entry.target.name());
        series.holds.record(held);
        self.exported.held.decrement(1);
    }

    /// Counts a guard that has been held for longer than `warn_after`.
    pub(crate) fn count_held_long(&self, process_lease: &ProcessLease, fence: u64, held: Duration) {
        self.stats.held_long.add(1);
        self.events.warn(|| {
            let (name, owner) = self.name_and_owner(process_lease);
            Event::HeldLong {
                name,
                owner,
                fence,
                held,
            }
        });
    }

    /// Counts a renewal that is sent `lag` too late.
    #[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
    pub(crate) fn count_lag(&self, process_lease: &ProcessLease, lag: Duration) {
        self.stats.renewal_lags.record(lag);
        #[cfg(feature = "metrics")]
        let series = self.exported.of(process_lease.entry.target.name());
        #[cfg(feature = "metrics")]
        series.renewal_lags.record(lag);
    }

    /// Counts a renewal that Redis has confirmed. `left` is the time that is left of the lease.
    pub(crate) fn count_renewal(&self, process_lease: &ProcessLease, left: Duration) {
        self.stats.renewed.add(1);
        #[cfg(feature = "metrics")]
        process_lease.export_risk(self.now(), &self.exported.at_risk);
        self.events.tell(|| {
            let (name, owner) = self.name_and_owner(process_lease);
            Event::Renewed {
                name,
                owner,
                remaining: left,
            }
        });
    }

    /// Tells the listener which nodes of a quorum have no vote for a lease.
    pub(crate) fn tell_of_misses(&self, process_lease: &ProcessLease) {
        let missing = self.missing_nodes(process_lease);
        self.events.tell(|| {
            let (name, owner) = self.name_and_owner(process_lease);
            let nodes = missing.iter().map(|node| String::from(&**node).into());
            let nodes = nodes.collect();
            Event::LacksVotes { name, owner, nodes }
        });
    }

    /// Counts the loss of a lease, or of one guard at its `max_hold`.
    pub(crate) fn count_loss(&self, process_lease: &ProcessLease, fence: u64, cause: LostCause) {
        self.stats.lost(cause).add(1);
        #[cfg(feature = "metrics")]
        let series = self.exported.of(process_lease.entry.target.name());
        #[cfg(feature = "metrics")]
        series.lost(cause);
        self.events.warn(|| {
            let name = process_lease.entry.target.name().into();
            let owner = self.owner_of(process_lease).to_string().into();
            Event::Lost {
                lost: Lost { name, fence, cause },
                owner,
            }
        });
    }

    /// Counts a call of a rate limiter that has ended without an error.
    #[cfg_attr(not(feature = "metrics"), allow(unused_variables, clippy::unused_self))]
    pub(crate) fn count_rate(&self, name: &str, waited: Duration, is_admitted: bool) {
        #[cfg(feature = "metrics")]
        let series = self.exported.of(name);
        #[cfg(feature = "metrics")]
        series.rate(waited, is_admitted);
    }

    /// Counts a request of a thread of the program.
    #[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
    pub(crate) fn count_request(&self, request: &Request<'_>, took: Duration) {
        self.stats.request_times.record(took);
        #[cfg(feature = "metrics")]
        {
            // A request that is not about one lock has no name.
            let name = match request {
                Request::Lock { target, .. } => target.name(),
                _ => "",
            };
            self.exported.of(name).requests.record(took);
        }
    }

    /// Counts a hand-over to another process, if the reply to this request reports one.
    pub(crate) fn count_hand_over(&self, request: &Request<'_>, reply: &Reply) {
        let Request::Lock { kind, target, verb } = request else {
            return;
        };
        let reply = match reply {
            Reply::Differs { reply, .. } => reply,
            reply => reply,
        };
        let is_mutex = *kind == LockKind::Mutex;
        let owner = match (verb, reply) {
            // The script of a mutex says whether it has given the lock to that holder.
            (Verb::TakeOver { from, .. }, Reply::Held { handed_over, .. })
                if *handed_over || !is_mutex =>
            {
                from
            }
            (verb, Reply::HandedOver) => verb.owner(),
            _ => return,
        };
        self.stats.handed_over.add(1);
        #[cfg(feature = "metrics")]
        self.exported.of(target.name()).hand_overs.increment(1);
        self.events.step(|| Event::HandedOver {
            name: target.name().to_owned().into(),
            owner: owner.to_string().into(),
        });
    }

    /// Returns the name of a lease's lock and its owner, for an event that may outlive the lease.
    pub(crate) fn name_and_owner(
        &self,
        process_lease: &ProcessLease,
    ) -> (Cow<'static, str>, Cow<'static, str>) {
        let name = process_lease.entry.target.name().to_owned();
        let owner = self.owner_of(process_lease).to_string();
        (name.into(), owner.into())
    }
}
