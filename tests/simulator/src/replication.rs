//! What goes between masters and replicas.
//!
//! A replica has a link to the master that it follows. The link delivers its items in their order, each after a delay:
//! first all data, then each change. After each item the replica confirms what it has.
//!
//! | event | in the model |
//! | --- | --- |
//! | a replica follows a master | it attaches after a while, and again and again until the master is up and is a master |
//! | a replica lags | its link delivers nothing until then |
//! | a server restarts | its links end. The replicas attach again |
//! | a replica becomes the master | its link ends. What the link has not delivered is lost |

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use leasehold_testing::memory::{Change, DataCopy};

use crate::network::{SimulatedServer, host};
use crate::random::Random;
use crate::world::{Event, WorldState};

/// The ranges of the delays of links. A schedule has one of them. If replicas must confirm grants, it is none of seconds, with
/// which there would be few grants.
const DELAYS: [Range<Duration>; 3] = [
    Duration::from_micros(30)..Duration::from_millis(3),
    Duration::from_millis(1)..Duration::from_millis(200),
    Duration::from_millis(5)..Duration::from_secs(2),
];
/// After which time a replica tries to attach.
const ATTACHES_AFTER: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(1);
/// How long a replica loads the data of its master.
const LOADS_FOR: Range<Duration> = Duration::from_micros(100)..Duration::from_millis(500);
/// How late a server notices the end of a `WAIT`.
const WAITS_LATE: Range<Duration> = Duration::from_micros(1)..Duration::from_millis(100);

/// The port of all servers.
pub(crate) const PORT: u16 = 6379;

/// The links, by their replicas.
pub(crate) struct Links {
    by_replica: BTreeMap<usize, Link>,
    next: u64,
    delay: Range<Duration>,
    /// Until when a replica lags.
    lag_until: BTreeMap<usize, Duration>,
}

struct Link {
    /// Tells this link from others of the replica.
    number: u64,
    master: usize,
    items: VecDeque<(Duration, Item)>,
    last: Duration,
    /// Whether the replica has the data with which the link began.
    has_loaded: bool,
    /// How many items the replica still needs until it has the last key that moved to the master with its slot.
    until_moved_key: usize,
}

enum Item {
    Data(DataCopy),
    Change(Arc<Change>),
}

/// An event of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LinkEvent {
    /// The replica tries to attach to the master that it follows.
    Attach { replica: usize },
    /// The next item arrives at the replica.
    Arrival { replica: usize, link: u64 },
    /// The master learns that the replica has the changes up to this number.
    Confirmation {
        replica: usize,
        link: u64,
        change: i64,
    },
    /// A server looks for each `WAIT` whose time is over.
    WaitOver { server: usize },
}

impl Links {
    /// Returns the delay of the links of a schedule.
    pub(crate) fn pick_delay(random: &mut Random, is_waited_for: bool) -> Range<Duration> {
        let delays = if is_waited_for {
            &DELAYS[..2]
        } else {
            &DELAYS[..]
        };
        random.pick(delays).clone()
    }

    pub(crate) fn new(delay: Range<Duration>) -> Self {
        Self {
            by_replica: BTreeMap::new(),
            next: 0,
            delay,
            lag_until: BTreeMap::new(),
        }
    }

    /// Returns whether a replica has the data of this master, perhaps without the last changes.
    pub(crate) fn has_loaded(&self, replica: usize, master: usize) -> bool {
        let link = self.by_replica.get(&replica);
        link.is_some_and(|link| link.master == master && link.has_loaded)
    }

    /// Notes that the last change of a master is a key that has moved to it with its slot.
    pub(crate) fn note_moved_key(&mut self, master: usize) {
        let links = self.by_replica.values_mut();
        for link in links.filter(|link| link.master == master) {
            link.until_moved_key = link.items.len();
        }
    }

    /// Returns whether a replica lacks a key that has moved to its master with its slot. The move itself waits for no replica.
    pub(crate) fn lacks_moved_key(&self, replica: usize) -> bool {
        let link = self.by_replica.get(&replica);
        link.is_some_and(|link| link.until_moved_key > 0)
    }
}

impl WorldState {
    fn plan_link(&mut self, after: Duration, event: LinkEvent) {
        self.plan(after, Event::OfLink(event));
    }

    /// Has a server follow a master, which it tries to attach to after a while.
    pub(crate) fn follow(&mut self, replica: usize, master: usize) {
        self.end_link(replica);
        // Its own replicas lose it, because it loads other data.
        self.end_links_of(replica);
        let server = &mut self.network.servers[replica];
        server.follows = Some(master);
        let time = server.clock.read(self.now);
        server.server.state().follow((host(master), PORT), time);
        self.attach_soon(replica);
    }

    fn attach_soon(&mut self, replica: usize) {
        let after = self.random.length(ATTACHES_AFTER);
        self.plan_link(after, LinkEvent::Attach { replica });
    }

    /// Attaches a replica without delay, at the begin of a schedule.
    pub(crate) fn attach_at_once(&mut self, replica: usize, master: usize) {
        let number = self.network.links.next;
        self.network.links.next += 1;
        let its = &mut self.network.servers[master];
        let data = its.server.state().attach(replica, (host(replica), PORT));
        let its = &mut self.network.servers[replica];
        its.follows = Some(master);
        let time = its.clock.read(self.now);
        its.server.state().follow((host(master), PORT), time);
        let change = its.server.state().load(&data, Duration::ZERO);
        let link = Link {
            number,
            master,
            items: VecDeque::new(),
            last: Duration::ZERO,
            has_loaded: true,
            until_moved_key: 0,
        };
        self.network.links.by_replica.insert(replica, link);
        let its = &mut self.network.servers[master];
        let time = its.clock.read(self.now);
        its.server.state().confirm(replica, change, time);
    }

    /// Ends the link of a replica, with all that it has not delivered.
    pub(crate) fn end_link(&mut self, replica: usize) {
        if let Some(link) = self.network.links.by_replica.remove(&replica) {
            self.network.servers[link.master]
                .server
                .state()
                .detach(replica);
        }
    }

    /// Ends the links from and to a server. They begin anew.
    pub(crate) fn end_links_of(&mut self, server: usize) {
        let links = self.network.links.by_replica.iter();
        let links = links.filter(|(replica, link)| **replica == server || link.master == server);
        let replicas: Vec<_> = links.map(|(replica, _)| *replica).collect();
        for replica in replicas {
            self.end_link(replica);
            self.attach_soon(replica);
        }
    }

    pub(crate) fn lag(&mut self, replica: usize, until: Duration) {
        let lag = self.network.links.lag_until.entry(replica).or_default();
        *lag = until.max(*lag);
    }

    pub(crate) fn end_lag(&mut self, replica: usize) {
        self.network.links.lag_until.remove(&replica);
        self.go_on_with_links_of(replica);
    }

    /// Makes the next item of each link from or to a server arrive, which was due while the server did nothing.
    pub(crate) fn go_on_with_links_of(&mut self, server: usize) {
        let links = self.network.links.by_replica.iter();
        let links = links.filter(|(replica, link)| **replica == server || link.master == server);
        let waiting: Vec<_> = links
            .filter_map(|(replica, link)| Some((*replica, link.number, link.items.front()?.0)))
            .collect();
        for (replica, link, at) in waiting {
            let after = at.saturating_sub(self.now);
            self.plan_link(after, LinkEvent::Arrival { replica, link });
        }
    }

    /// Sends what a server has for its replicas and its clients.
    pub(crate) fn server_has_run(&mut self, server: usize) {
        self.note_lacking(server);
        let changes = self.network.servers[server].server.state().take_changes();
        let links = self.network.links.by_replica.iter();
        let links = links.filter(|(_, link)| link.master == server);
        let replicas: Vec<_> = links.map(|(replica, _)| *replica).collect();
        for change in changes {
            for replica in &replicas {
                self.send_item(*replica, Item::Change(Arc::clone(&change)));
            }
        }
        let its = &mut self.network.servers[server];
        if let Some(until) = its.server.state().first_wait_ends_at() {
            let left = until.saturating_sub(its.clock.read(self.now));
            let left = its.clock.true_length(left);
            let is_planned = its
                .looks_at
                .is_some_and(|at| at <= self.now + left + WAITS_LATE.end);
            if !is_planned {
                let left = left + self.random.length(WAITS_LATE);
                its.looks_at = Some(self.now + left);
                self.plan_link(left, LinkEvent::WaitOver { server });
            }
        }
        self.spread_messages(server);
        self.send_output_of(server);
    }

    fn send_item(&mut self, replica: usize, item: Item) {
        let now = self.now;
        let delay = if now < self.healed_at {
            self.network.links.delay.clone()
        } else {
            DELAYS[0].clone()
        };
        let delay = self.random.length(delay);
        let Some(link) = self.network.links.by_replica.get_mut(&replica) else {
            return;
        };
        link.last = link.last.max(now + delay);
        let (at, number) = (link.last, link.number);
        link.items.push_back((at, item));
        if link.items.len() == 1 {
            let after = at.saturating_sub(now);
            self.plan_link(
                after,
                LinkEvent::Arrival {
                    replica,
                    link: number,
                },
            );
        }
    }

    pub(crate) fn link_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Attach { replica } => self.attach(replica),
            LinkEvent::Arrival { replica, link } => self.item_arrives(replica, link),
            LinkEvent::Confirmation {
                replica,
                link,
                change,
            } => self.confirmed(replica, link, change),
            LinkEvent::WaitOver { server } => {
                let its = &mut self.network.servers[server];
                let time = its.clock.read(self.now);
                its.looks_at = None;
                its.server.state().pass_time(time);
                self.server_has_run(server);
            }
        }
    }

    fn attach(&mut self, replica: usize) {
        let now = self.now;
        let servers = &mut self.network.servers;
        let is_attached = self.network.links.by_replica.contains_key(&replica);
        let Some(master) = servers[replica].follows.filter(|_| !is_attached) else {
            return;
        };
        let is_up = |server: &SimulatedServer| server.down_until <= now && !server.stalls(now);
        let is_possible =
            is_up(&servers[replica]) && is_up(&servers[master]) && servers[master].leads();
        if !is_possible {
            return self.attach_soon(replica);
        }
        let data = servers[master]
            .server
            .state()
            .attach(replica, (host(replica), PORT));
        let number = self.network.links.next;
        self.network.links.next += 1;
        let link = Link {
            number,
            master,
            items: VecDeque::new(),
            last: now,
            has_loaded: false,
            until_moved_key: 0,
        };
        self.network.links.by_replica.insert(replica, link);
        self.trace
            .note(now, format_args!("{replica} attaches to {master}"));
        self.send_item(replica, Item::Data(data));
    }

    fn item_arrives(&mut self, replica: usize, number: u64) {
        let now = self.now;
        let links = &mut self.network.links;
        let lag = links.lag_until.get(&replica).copied().unwrap_or_default();
        let its = &mut self.network.servers[replica];
        let Some(link) = links.by_replica.get_mut(&replica) else {
            return;
        };
        if link.number != number {
            return;
        }
        let until = lag.max(its.stalled_until);
        if until > now {
            return self.plan_link(
                until.saturating_sub(now),
                LinkEvent::Arrival {
                    replica,
                    link: number,
                },
            );
        }
        let Some((_, item)) = link.items.pop_front() else {
            return;
        };
        link.until_moved_key = link.until_moved_key.saturating_sub(1);
        let change = match item {
            Item::Data(data) => {
                link.has_loaded = true;
                let until = its.clock.read(now + self.random.length(LOADS_FOR));
                its.server.state().load(&data, until)
            }
            Item::Change(change) => its.server.state().apply(&change),
        };
        self.trace
            .note(now, format_args!("{replica} has change {change}"));
        let next = link.items.front().map(|(at, _)| at.saturating_sub(now));
        let delay = self.random.length(DELAYS[0].clone());
        self.plan_link(
            delay,
            LinkEvent::Confirmation {
                replica,
                link: number,
                change,
            },
        );
        if let Some(after) = next {
            self.plan_link(
                after,
                LinkEvent::Arrival {
                    replica,
                    link: number,
                },
            );
        }
    }

    fn confirmed(&mut self, replica: usize, number: u64, change: i64) {
        let Some(link) = self.network.links.by_replica.get(&replica) else {
            return;
        };
        if link.number != number {
            return;
        }
        let master = link.master;
        let its = &mut self.network.servers[master];
        if its.stalls(self.now) {
            let left = its.stalled_until.saturating_sub(self.now);
            return self.plan_link(
                left,
                LinkEvent::Confirmation {
                    replica,
                    link: number,
                    change,
                },
            );
        }
        let time = its.clock.read(self.now);
        its.server.state().confirm(replica, change, time);
        self.server_has_run(master);
    }
}
