//! Masters that change, and what remains of a promise meanwhile.
//!
//! | time | what happens at a failover |
//! | --- | --- |
//! | 0 | a replica becomes the master, with what it has. The old master goes down in every second failover, otherwise it goes on |
//! | up to 3 s | one sentinel after the other learns of it, and tells its clients. The first one tells the new epoch earlier |
//! | up to 5 s | the other replica follows the new master |
//! | the length of the fault | the old master becomes a replica. If it was down, it was up as a master for half of that time |
//!
//! So a failover has a time with two masters. The library promises this about it (`LockManager::sentinel`):
//!
//! | promise | exception |
//! | --- | --- |
//! | exclusion | a lock of the group of which the new master lacks the last grant or renewal, or that the old one has granted or renewed since (`lacking`). Its holder has lost it one lease after the end of the old master |
//! | fences rise | the clocks of the masters differ, or a process hands on in memory a lease of before the end of the old master |
//! | exclusion without exception | only if all replicas must confirm a grant, and the clocks of the servers agree. And a key must not have moved to the old master with its slot, and be missing at the new one (`Builder::replicas`) |

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use leasehold_testing::memory::WatchedMaster;

use crate::cluster::Cluster;
use crate::network::{Network, host};
use crate::programs::NAMES;
use crate::replication::PORT;
use crate::world::{Event, WorldState};

/// The name of the master behind the sentinels.
pub(crate) const MASTER: &str = "mine";
/// When a sentinel learns of a failover.
const LEARNS_AFTER: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(3);
/// When another replica follows the new master.
const FOLLOWS_AFTER: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(5);
/// When a server that was down learns its role.
const TOLD_AFTER: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(1);

/// The servers of which one is the master of the others.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) members: Vec<usize>,
    /// The member that became the master last.
    pub(crate) master: usize,
    pub(crate) sentinels: Vec<usize>,
    epoch: u64,
    failovers: Vec<Failover>,
}

#[derive(Debug)]
struct Failover {
    old: usize,
    /// When the old master became a replica. `None` as long as it is a master.
    ended_at: Option<Duration>,
    /// Whether the new master lacks a key that moved to the old one with its slot.
    lacks_moved_key: bool,
    /// The names of the group.
    names: BTreeSet<&'static str>,
    /// Those of them of which the old master has a grant or a renewal that the new one lacks.
    lacking: BTreeSet<&'static str>,
}

/// An event of a failover.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FailoverEvent {
    /// A server learns that it must follow the master.
    Follows { group: usize, server: usize },
    /// A sentinel learns of the master of an epoch.
    Learns {
        sentinel: usize,
        master: usize,
        epoch: u64,
    },
}

impl Group {
    pub(crate) fn new(members: Vec<usize>, sentinels: Vec<usize>) -> Self {
        Self {
            master: members[0],
            members,
            sentinels,
            epoch: 1,
            failovers: Vec::new(),
        }
    }
}

impl Network {
    pub(crate) fn has_replicas(&self) -> bool {
        !self.groups.is_empty()
    }

    pub(crate) fn has_failed_over(&self) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|group| !group.failovers.is_empty())
    }

    /// Returns whether a master of a name has a successor, and does not know it: it may still execute what the other one lacks.
    pub(crate) fn has_two_masters(&self, name: &str) -> bool {
        self.failovers()
            .any(|it| it.ended_at.is_none() && it.names.contains(name))
    }

    /// Returns whether a failover may have taken a lock away from a guard that is not lost. A guard of a lock that is not
    /// exclusive has no fence.
    pub(crate) fn may_be_taken(
        &self,
        name: &str,
        fence: Option<u64>,
        life: Duration,
        now: Duration,
    ) -> bool {
        self.failovers().any(|failover| {
            let is_recent = failover.ended_at.is_none_or(|at| now <= at + life);
            (!self.is_kept_by_replicas || failover.lacks_moved_key)
                && failover.lacking.contains(name)
                && is_recent
                && fence.is_none_or(|fence| self.is_from_before(failover, fence, now))
        })
    }

    /// Returns whether the fence of a guard may be smaller than an earlier one. `is_new` means that no earlier guard had its
    /// lease.
    pub(crate) fn may_fence_fall(
        &self,
        name: &str,
        (fence, known): (u64, u64),
        is_new: bool,
        now: Duration,
    ) -> bool {
        let is_small =
            Duration::from_micros(known.saturating_sub(fence)) < self.clocks_differ_by(now);
        let mut failovers = self.failovers();
        failovers.any(|failover| {
            failover.names.contains(name)
                && self.is_from_before(failover, fence, now)
                && (is_small || !is_new)
        })
    }

    /// Returns the largest difference of the clocks of two servers.
    pub(crate) fn clocks_differ_by(&self, now: Duration) -> Duration {
        let clocks = self.servers.iter().map(|server| server.clock.read(now));
        let least = clocks.clone().min().unwrap_or_default();
        clocks.max().unwrap_or_default().saturating_sub(least)
    }

    fn failovers(&self) -> impl Iterator<Item = &Failover> {
        self.groups.iter().flat_map(|group| &group.failovers)
    }

    /// Returns whether a fence may be of before the end of the old master.
    fn is_from_before(&self, failover: &Failover, fence: u64, now: Duration) -> bool {
        let end = failover.ended_at.unwrap_or(now);
        let granted_at = Duration::from_micros(fence);
        (self.servers.iter()).any(|server| granted_at <= server.clock.read(end))
    }
}

impl WorldState {
    fn plan_failover(&mut self, after: Duration, event: FailoverEvent) {
        self.plan(after, Event::OfFailover(event));
    }

    /// Begins with a master and its replicas, of which the sentinels know.
    pub(crate) fn begin_group(&mut self, group: usize) {
        let Group {
            members, sentinels, ..
        } = &self.network.groups[group];
        let (members, sentinels) = (members.clone(), sentinels.clone());
        for replica in &members[1..] {
            self.attach_at_once(*replica, members[0]);
        }
        for sentinel in sentinels {
            self.watch(sentinel, members[0], members[0], 1);
        }
    }

    pub(crate) fn watch(&mut self, sentinel: usize, master: usize, reported: usize, epoch: u64) {
        let its = &mut self.network.servers[sentinel];
        its.knows_epoch = epoch;
        its.server.state().watch(WatchedMaster {
            name: MASTER.to_owned(),
            address: (host(master), PORT),
            reported: (host(reported), PORT),
            config_epoch: epoch,
        });
    }

    /// Makes a replica the master. Returns false if no replica can be.
    pub(crate) fn fail_over(&mut self, group: usize, length: Duration) -> bool {
        let now = self.now;
        let Group {
            members, master, ..
        } = &self.network.groups[group];
        let (others, old) = (members.clone(), *master);
        let can_lead = |server: &&usize| {
            let is_up = self.network.servers[**server].down_until <= now;
            is_up && self.network.links.has_loaded(**server, old)
        };
        let fit: Vec<_> = others.iter().filter(can_lead).copied().collect();
        let moves = |cluster: &Cluster| cluster.is_moving(group);
        if fit.is_empty() || self.network.cluster.as_ref().is_some_and(moves) {
            return false;
        }
        let new = *self.random.pick(&fit);
        self.replace_master(group, new);
        if self.random.one_in(2) {
            self.restart(old, now + length / 2, true);
        }
        self.plan_failover(length, FailoverEvent::Follows { group, server: old });
        self.tell_of_failover(group, old);
        true
    }

    /// Makes this replica the master of its group, with what it has. The old master learns of it after `length`. If it is
    /// down or hangs, [`tell_role`](Self::tell_role) has to tell it.
    pub(crate) fn promote(&mut self, new: usize, length: Duration) {
        let now = self.now;
        let mut groups = self.network.groups.iter();
        let group = groups.position(|group| group.members.contains(&new));
        let group = group.expect("it is of a group");
        let old = self.network.groups[group].master;
        self.replace_master(group, new);
        let its = &self.network.servers[old];
        if its.down_until <= now && !its.stalls(now) {
            self.plan_failover(length, FailoverEvent::Follows { group, server: old });
        }
        self.tell_of_failover(group, old);
    }

    /// Tells a server that is up again whom to follow, soon.
    pub(crate) fn tell_role(&mut self, server: usize) {
        let mut groups = self.network.groups.iter();
        let is_former = |group: &Group| group.master != server && group.members.contains(&server);
        if let Some(group) = groups.position(is_former) {
            let after = self.random.length(TOLD_AFTER);
            self.plan_failover(after, FailoverEvent::Follows { group, server });
        }
    }

    fn replace_master(&mut self, group: usize, new: usize) {
        let now = self.now;
        let old = self.network.groups[group].master;
        let names = |name: &&str| self.network.groups_of(name).contains(&group);
        let names: BTreeSet<_> = NAMES.into_iter().filter(names).collect();
        self.network.loses_data_of(names.iter().copied());
        let lacks_moved_key = self.network.links.lacks_moved_key(new);
        self.end_link(new);
        let its = &mut self.network.servers[new];
        its.follows = None;
        its.server.state().lead();
        let group_state = &mut self.network.groups[group];
        group_state.master = new;
        group_state.epoch += 1;
        group_state.failovers.push(Failover {
            old,
            ended_at: None,
            lacks_moved_key,
            names,
            lacking: BTreeSet::new(),
        });
        let epoch = group_state.epoch;
        self.note_lacking(old);
        self.trace
            .note(now, format_args!("{new} replaces {old}, epoch {epoch}"));
        self.cluster_fails_over(group, old, new);
    }

    /// Notes what a master that has a successor and does not know it has granted or renewed, and the present master lacks.
    pub(crate) fn note_lacking(&mut self, old: usize) {
        let (now, network) = (self.now, &mut self.network);
        for group in &mut network.groups {
            let master = group.master;
            let is_open = |it: &&mut Failover| it.old == old && it.ended_at.is_none();
            for failover in group.failovers.iter_mut().filter(is_open) {
                for name in &failover.names {
                    let [old, new] = [old, master].map(|it| network.servers[it].leases(name, now));
                    let is_there = |(owner, left): &(String, Duration)| {
                        new.iter().any(|(other, its)| other == owner && its >= left)
                    };
                    if !old.iter().all(is_there) {
                        failover.lacking.insert(*name);
                    }
                }
            }
        }
    }

    /// Tells the other replicas and the sentinels of a new master, one after the other.
    fn tell_of_failover(&mut self, group: usize, old: usize) {
        let state = &self.network.groups[group];
        let (new, epoch) = (state.master, state.epoch);
        let (members, sentinels) = (state.members.clone(), state.sentinels.clone());
        for server in members {
            if self.network.servers[server].follows == Some(old) {
                let after = self.random.length(FOLLOWS_AFTER);
                self.plan_failover(after, FailoverEvent::Follows { group, server });
            }
        }
        if !sentinels.is_empty() {
            let leader = *self.random.pick(&sentinels);
            if !self.network.cut_off.contains(&leader) {
                self.watch(leader, new, old, epoch);
            }
        }
        for sentinel in sentinels {
            let after = self.random.length(LEARNS_AFTER);
            let master = new;
            self.plan_failover(
                after,
                FailoverEvent::Learns {
                    sentinel,
                    master,
                    epoch,
                },
            );
        }
    }

    pub(crate) fn failover_event(&mut self, event: FailoverEvent) {
        match event {
            FailoverEvent::Follows { group, server } => self.learns_role(group, server),
            FailoverEvent::Learns {
                sentinel,
                master,
                epoch,
            } => self.sentinel_learns(sentinel, master, epoch),
        }
    }

    /// Has a server follow the master, unless it has become the master.
    fn learns_role(&mut self, group: usize, server: usize) {
        let now = self.now;
        let its = &self.network.servers[server];
        if its.down_until > now || self.network.cut_off.contains(&server) {
            let after = its.down_until.saturating_sub(now) + self.random.length(TOLD_AFTER);
            return self.plan_failover(after, FailoverEvent::Follows { group, server });
        }
        self.becomes_aware(server);
        let group = &mut self.network.groups[group];
        let (master, has_sentinels) = (group.master, !group.sentinels.is_empty());
        let mut forgotten = BTreeSet::new();
        for failover in &mut group.failovers {
            if failover.old == server && failover.ended_at.is_none() {
                failover.ended_at = Some(now);
                forgotten.extend(&failover.names);
            }
        }
        // What the earlier master has executed since then is lost as well.
        self.network.loses_data_of(forgotten);
        if master == server || self.network.servers[server].follows == Some(master) {
            return;
        }
        self.trace
            .note(now, format_args!("{server} follows {master}"));
        self.follow(server, master);
        if has_sentinels && self.random.one_in(2) {
            self.network.servers[server].server.state().close_clients();
        }
        self.server_has_run(server);
    }

    /// Has a sentinel name the new master, and tell its clients.
    fn sentinel_learns(&mut self, sentinel: usize, master: usize, epoch: u64) {
        let now = self.now;
        let its = &self.network.servers[sentinel];
        if its.knows_epoch > epoch {
            return;
        }
        if its.down_until > now || self.network.cut_off.contains(&sentinel) {
            let after = its.down_until.saturating_sub(now) + self.random.length(TOLD_AFTER);
            return self.plan_failover(
                after,
                FailoverEvent::Learns {
                    sentinel,
                    master,
                    epoch,
                },
            );
        }
        self.watch(sentinel, master, master, epoch);
        let message = format!("{MASTER} {0} {PORT} {0} {PORT}", host(master));
        let its = &mut self.network.servers[sentinel];
        its.execute(&["PUBLISH", "+switch-master", &message], now);
        self.trace.note(
            now,
            format_args!("sentinel {sentinel} names {master}, epoch {epoch}"),
        );
        self.send_output_of(sentinel);
    }
}
