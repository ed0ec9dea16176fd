//! Which body runs for which kind of lock, and where. Whatever a kind lacks has a reason.

use leasehold_simulator::Topology;

use crate::subject::Kind;
use crate::world::World;

pub(crate) type Body = fn(&World, Kind);

/// What a kind has on a topology, or lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capability {
    Always,
    /// A guard writes data in the server of its lock.
    Commits,
    /// A server knows whether a waiter still listens.
    CountsListeners,
    /// A release hands the lock to the next waiter.
    HandsOver,
    /// One server decides, so its faults are those of the lock.
    OneServer,
    Excludes,
    /// Its lock is a plain string in Redis, like that of other clients.
    IsAString,
    InOrder,
    Shares,
    KeepsFences,
    OneClock,
    Numbers,
    RepeatsTheLastNumber,
    SpansNames,
}

use Capability::{
    Commits, CountsListeners, Excludes, HandsOver, InOrder, IsAString, KeepsFences, Numbers,
    OneClock, OneServer, RepeatsTheLastNumber, Shares, SpansNames,
};

/// Returns why a kind lacks a capability, or `None` if it has it.
pub(crate) fn why_not(
    capability: Capability,
    kind: Kind,
    topology: Topology,
) -> Option<&'static str> {
    let is_semaphore = kind.family() == Kind::Permit;
    if is_semaphore && topology == Topology::Quorum {
        return Some("a quorum has no semaphores");
    }
    if kind == Kind::AllPermits {
        return Some("it is the rival of a permit");
    }
    match (capability, kind, topology) {
        (Commits, _, Topology::Quorum) => Some("the data is in one server"),
        (Commits, kind, _) if kind == Kind::Reader || kind.family() == Kind::Permit => {
            Some("it is not exclusive")
        }
        (CountsListeners, _, Topology::Cluster) => Some(
            "a node counts no listeners of other nodes: dead waiters are skipped after a pickup window",
        ),
        (HandsOver | InOrder, _, Topology::Quorum) => {
            Some("a quorum hands no lock over: its waiters are woken, and ask again")
        }
        (OneServer, _, Topology::Quorum | Topology::Sentinel | Topology::Cluster) => {
            Some("the faults of a server are those of a single one")
        }
        (OneClock, _, Topology::Quorum | Topology::Sentinel | Topology::Cluster) => {
            Some("the clock of a server is that of a single one")
        }
        (Excludes | InOrder, Kind::Reader, _) => Some("readers share, and go in together"),
        (Shares, kind, _) if !matches!(kind, Kind::Reader | Kind::Permit) => {
            Some("there is one guard at a time, or none has room beside it")
        }
        (IsAString, kind, _) if kind.family() != Kind::Mutex => Some("its lock is no plain string"),
        (KeepsFences | OneClock | Numbers, Kind::Unfenced, _) => Some("it has no fences"),
        (OneClock | Numbers, Kind::Reader, _) => Some("a reader has the last writer's fence"),
        (RepeatsTheLastNumber, kind, _) if kind != Kind::Reader => {
            Some("each guard has a fence of its own")
        }
        (SpansNames, kind, _) if kind != Kind::Multi => Some("it has one name"),
        _ => None,
    }
}

/// The bodies of a chapter, by the capability that they need.
pub(crate) type Chapter = &'static [(Capability, &'static [(&'static str, Body)])];

/// Lists bodies with their names.
macro_rules! bodies {
    ($($behaviour:ident),* $(,)?) => {
        &[$((stringify!($behaviour), $behaviour as $crate::matrix::Body),)*]
    };
}
pub(crate) use bodies;

/// Bodies about one subject, which run for no particular kind, on these topologies.
pub(crate) type Subject = (
    &'static str,
    &'static [Topology],
    &'static [(&'static str, fn(&World))],
);

/// Lists bodies of a subject with their names.
macro_rules! subject_bodies {
    ($($behaviour:ident),* $(,)?) => {
        &[$((stringify!($behaviour), $behaviour as fn(&$crate::world::World)),)*]
    };
}
pub(crate) use subject_bodies;

pub(crate) const SUBJECTS: &[Subject] = &[
    crate::addresses::BODIES,
    crate::along::BODIES,
    crate::along::SENTINEL_BODIES,
    crate::closes::BODIES_OF_DROPS,
    crate::background::BODIES_OF_ONE,
    crate::cancels::BODIES_OF_ONE,
    crate::claims::BODIES,
    crate::claims::BODIES_OF_ONE,
    crate::elections::BODIES,
    crate::elections::BODIES_OF_ONE,
    crate::elections::BODIES_OF_REPLICAS,
    crate::elections::BODIES_OF_A_CLUSTER,
    crate::elections::BODIES_OF_A_QUORUM,
    crate::error_table::BODIES,
    crate::events::BODIES_OF_ONE,
    crate::events::BODIES_OF_NODES,
    crate::link_phases::BODIES,
    crate::link_phases::BODIES_OF_LINKS,
    crate::logins::BODIES,
    crate::logins::BODIES_OF_ONE,
    crate::detached::BODIES,
    crate::cluster::BODIES,
    crate::cluster::FOREIGN_BODIES,
    crate::commits::BODIES_OF_REPLICAS,
    crate::commits::BODIES_OF_A_CLUSTER,
    crate::commits::BODIES_OF_A_QUORUM,
    crate::failovers::BODIES,
    crate::failovers::SENTINEL_BODIES,
    crate::failovers::CLUSTER_BODIES,
    crate::outages::BODIES_OF_ONE,
    crate::replicas::BODIES,
    crate::replicas::LONELY_BODIES,
    crate::sentinel::BODIES,
    crate::quorum::BODIES,
    crate::quorum::clients::BODIES,
    crate::quorum::endings::BODIES,
    crate::quorum::faults::BODIES,
    crate::quorum::fences::BODIES,
    crate::quorum::joins::BODIES,
    crate::quorum::partitions::BODIES,
    crate::quorum::restarts::BODIES,
    crate::quorum::turns::BODIES,
    crate::message_grants::BODIES,
    crate::multi::BODIES,
    crate::mutex::BODIES,
    crate::mutex_loss::BODIES,
    crate::once::BODIES,
    crate::once::BODIES_OF_ONE,
    crate::once::BODIES_OF_REPLICAS,
    crate::once::BODIES_OF_A_CLUSTER,
    crate::once::BODIES_OF_A_QUORUM,
    crate::operators::BODIES_OF_ONE,
    crate::operators::BODIES_OF_NODES,
    crate::poller_gaps::BODIES,
    crate::polling::BODIES,
    crate::fencing::OPTION_BODIES,
    crate::gaps::BODIES,
    crate::greetings::BODIES,
    crate::quantum::BODIES,
    crate::rate_limiter::BODIES,
    crate::reentrant::BODIES,
    crate::rwlock::BODIES,
    crate::semaphore::BODIES,
    crate::stats::BODIES_OF_ONE,
    crate::threads::BODIES,
];

pub(crate) const CHAPTERS: &[Chapter] = &[
    crate::background::BODIES,
    crate::cancels::BODIES,
    crate::clocks::BODIES,
    crate::closes::BODIES,
    crate::closures::BODIES,
    crate::commits::BODIES,
    crate::crashes::BODIES,
    crate::events::BODIES,
    crate::exclusion::BODIES,
    crate::faults::BODIES,
    crate::fencing::BODIES,
    crate::foreign::BODIES,
    crate::interface::BODIES,
    crate::links::BODIES,
    crate::loss::BODIES,
    crate::min_hold::BODIES,
    crate::operators::BODIES,
    crate::outages::BODIES,
    crate::refusals::BODIES,
    crate::rights::BODIES,
    crate::stats::BODIES,
    crate::storms::BODIES,
    crate::suspends::BODIES,
    crate::traces::BODIES,
    crate::waits::BODIES,
];
