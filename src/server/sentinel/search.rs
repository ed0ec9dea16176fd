//! The thread `leasehold-sentinel`, which finds the master.
//!
//! | step of a check | the thread |
//! | --- | --- |
//! | 1 | asks every sentinel for the address of the master, and for its config epoch |
//! | 2 | chooses a server: usually that which a majority of the sentinels names ([`choose`]) |
//! | 3 | asks the server at that address for its `ROLE`, which must be `master` |
//! | 4 | publishes it |
//!
//! A check begins
//!
//! * when the master is suspected, or a sentinel sends `+switch-master`;
//! * a moment after a check that has found no master, as long as the master is suspected or unknown;
//! * [`CHECK_EVERY`] otherwise. After a manual failover the old master takes writes for about ten seconds.
//!
//! If no majority of the sentinels agrees, the last master stays the master as long as its `ROLE` is
//! `master`, and no sentinel names a later one. So an outage of the sentinels stops no lock. If this process is cut off
//! from the majority, the majority may elect another master. That is the risk of any client of Sentinel.
//! `min-replicas-to-write` limits it: a master that is cut off takes no writes, but before Redis 7 it runs scripts.
//!
//! The sentinels' epochs never fall, but `SENTINEL REMOVE` and a new `SENTINEL MONITOR` begin them anew. Then this thread
//! believes a lower epoch only for the address of the last master.
//!
//! A last master that hangs delays step 3. If a sentinel sends `+switch-master` meanwhile, the check is given up after
//! [`STEP`], and another begins.
//!
//! Nothing here blocks for long: sentinels are connected, and the server is asked for its role, on short-lived threads.
//! The answers of the sentinels are read as they come, until a majority agrees. A sentinel that hangs delays a check
//! only if the others do not agree, and by at most [`STEP`].

use std::time::Duration;

use crossbeam_channel::TryRecvError;
use redis::Value;

use crate::config::{SentinelSet, Settings};
use crate::error::{Chain, Failure};
use crate::logging;
use crate::net::deadline::Deadline;
use crate::net::login::log_in;
use crate::net::refusal::{refusal, unavailable};
use crate::net::route::{Route, route};
use crate::net::socket::Socket;
use crate::server::finder::{FinderThread, Published, Search};
use crate::server::sentinel::client::Sentinel;
use crate::server::sentinel::opinion::{Opinion, SentinelVerdict, choose};
use crate::sys::{Arc, Time};
use crate::wire::Command;

/// How often the master is checked without a reason.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// The pause after a check that has found no master. Each further pause is twice as long, up to the longest.
const RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_millis(400);
/// The longest time for one step.
const STEP: Duration = Duration::from_secs(1);

/// A server that a check has found to be the master.
#[derive(Clone)]
pub(super) struct SentinelMaster {
    pub(super) route: Route,
    pub(super) opinion: Opinion,
}

pub(super) struct SentinelSearch {
    set: SentinelSet,
    settings: Settings,
    /// Has what the ways to all masters share.
    unknown: Route,
    sentinels: Vec<Sentinel>,
    /// How many checks have begun.
    checks: u64,
    /// When the last check began.
    begun: Time,
    /// When the next check begins, if there is no reason before.
    due: Time,
    /// Whether a sentinel has sent `+switch-master` since the last check began.
    has_switched: bool,
    /// How many checks in a row have found no master.
    failed: u32,
    /// A connection to the server that was asked for its role last, and was a master.
    asked: Option<(Opinion, Socket)>,
}

impl Search<SentinelMaster> for SentinelSearch {
    fn check(&mut self, thread: &FinderThread<SentinelMaster>) -> Result<(), Failure> {
        let checked = self.check_once(thread);
        let pause = if let Ok(pause) = &checked {
            self.failed = 0;
            *pause
        } else {
            let pause = (RETRY * (1 << self.failed)).min(LONGEST_RETRY);
            self.failed = (self.failed + 1).min(10);
            pause
        };
        self.due = Time::now() + pause;
        checked.map(drop)
    }

    fn pause(&mut self, thread: &FinderThread<SentinelMaster>) {
        while !thread.is_over() && !thread.finder.is_check_due() && Time::now() < self.due() {
            self.go_on(thread, None, self.due());
        }
    }

    fn begin_anew(&mut self) {
        // A connection may have an answer outstanding.
        self.sentinels = unconnected(&self.set, &self.settings);
        self.asked = None;
    }
}

impl SentinelSearch {
    pub(super) fn new(set: SentinelSet, settings: Settings, unknown: Route) -> Self {
        Self {
            sentinels: unconnected(&set, &settings),
            set,
            settings,
            unknown,
            checks: 0,
            begun: Time::now(),
            due: Time::now(),
            has_switched: false,
            failed: 0,
            asked: None,
        }
    }

    /// Does one check. Returns the pause before the next.
    fn check_once(&mut self, thread: &FinderThread<SentinelMaster>) -> Result<Duration, Failure> {
        self.checks += 1;
        self.has_switched = false;
        self.begun = Time::now();
        for sentinel in &mut self.sentinels {
            sentinel.opinion = None;
        }
        let last = thread.finder.found();
        // 1. Ask the sentinels, and read their answers. 2. Choose a server.
        let until = self.begun + self.step();
        let chosen = loop {
            self.go_on(thread, Some(self.checks), until);
            if thread.is_over() {
                return Ok(Duration::ZERO);
            }
            if let Some(chosen) = self.choose(last.as_ref(), until) {
                break chosen?;
            }
        };
        // 3. Ask the server for its role on a short-lived thread, because the server may hang.
        let of_last = last.filter(|last| last.opinion.is_at(&chosen));
        let until = Time::now() + STEP;
        let route = self.route_to(&chosen, of_last.as_ref());
        let open = self.asked.take().filter(|(last, _)| last.is_at(&chosen));
        let way = route.clone();
        let named = self.named(&chosen);
        let waits = format!("{named}, which has not answered yet");
        thread.finder.learnt(waits);
        let role = thread.aside(move || role_of(&way, open.map(|(_, socket)| socket)))?;
        let socket = loop {
            let now = Time::now();
            let until_next = if now < until { until } else { now + STEP };
            self.go_on(thread, Some(self.checks), until_next);
            match role.try_recv() {
                Ok(socket) => break socket.map_err(|failure| failure.about(named))?,
                Err(TryRecvError::Disconnected) => {
                    return Err(unavailable("asking for the role panicked"));
                }
                Err(TryRecvError::Empty) => {}
            }
            if thread.is_over() || self.gives_up(of_last.is_some(), until) {
                return Ok(Duration::ZERO);
            }
        };
        // 4. Publish it.
        self.asked = Some((chosen.clone(), socket));
        self.publish(thread, route, chosen)?;
        Ok(CHECK_EVERY)
    }

    /// Connects to the sentinels. Asks each of them once in a check of this number. Reads what they send, until
    /// something has come, or it is this time.
    fn go_on(
        &mut self,
        thread: &FinderThread<SentinelMaster>,
        check: Option<u64>,
        mut until: Time,
    ) {
        let step = self.step();
        let (mut sockets, mut numbers) = (Vec::new(), Vec::new());
        for sentinel in &mut self.sentinels {
            sentinel.connect(thread);
            if let Some(check) = check {
                sentinel.ask(&self.set.master, check, step);
            }
        }
        for (number, sentinel) in self.sentinels.iter().enumerate() {
            until = until.min(sentinel.opens_at().unwrap_or(until));
            if let Some(open) = sentinel.sockets() {
                sockets.extend([&open.asks, &open.listens]);
                numbers.push(number);
            }
        }
        for place in thread.wait(&sockets, until) {
            let sentinel = &mut self.sentinels[numbers[place / 2]];
            if place % 2 == 0 {
                sentinel.read_answers(check, step);
            } else {
                // The answers of the check may be older than the message, so another one follows.
                self.has_switched |= sentinel.read_messages(&self.set.master, step);
            }
        }
    }

    /// Returns when the next check begins.
    fn due(&self) -> Time {
        // A sentinel that sends the message all the time causes no more checks than this.
        if self.has_switched {
            self.due.min(self.begun + RETRY)
        } else {
            self.due
        }
    }

    /// Returns the time limit of a step.
    fn step(&self) -> Duration {
        self.settings.io_timeout.min(STEP)
    }

    /// Returns whether a check gives up a server that has not said its role until this time. It gives up only the last
    /// master, after a message that another one has its place.
    fn gives_up(&self, is_last: bool, until: Time) -> bool {
        is_last && self.has_switched && Time::now() >= until
    }

    /// Chooses among the answers that have come. Returns `None` if the sentinels may still agree until this time.
    fn choose(
        &self,
        last: Option<&SentinelMaster>,
        until: Time,
    ) -> Option<Result<Opinion, Failure>> {
        let opinions = self.sentinels.iter().map(|one| one.opinion.clone());
        let opinions: Vec<_> = opinions.collect();
        let is_over = Time::now() >= until || !self.sentinels.iter().any(Sentinel::may_answer);
        match choose(&opinions, last.map(|last| &last.opinion), is_over) {
            SentinelVerdict::Master(opinion) => Some(Ok(opinion)),
            SentinelVerdict::Outdated(opinion) => Some(Err(unavailable(format!(
                "{} with the config epoch {}, which is before that of the last master",
                self.named(&opinion),
                opinion.epoch
            )))),
            SentinelVerdict::Open if is_over => Some(Err(self.no_majority())),
            SentinelVerdict::Open => None,
        }
    }

    /// Returns the words for which sentinels have this opinion.
    fn named(&self, opinion: &Opinion) -> String {
        let has_it = |one: &&Sentinel| one.opinion.as_ref() == Some(opinion);
        let named_by = self.sentinels.iter().filter(has_it).map(Sentinel::address);
        let named_by: Vec<_> = named_by.collect();
        let who = match &named_by[..] {
            // No majority agrees.
            [] => "that agreed before".to_owned(),
            all => all.join(", "),
        };
        let s = if named_by.len() == 1 { "" } else { "s" };
        format!(
            "sentinel{s} {who} named {opinion} as the master {:?}",
            self.set.master
        )
    }

    /// Returns the way to the server of an opinion. `last` is the last master, if the server is at its address.
    fn route_to(&self, opinion: &Opinion, last: Option<&SentinelMaster>) -> Route {
        if let Some(last) = last {
            return last.route.clone();
        }
        let server = self
            .set
            .server_at(&opinion.host, opinion.port, &self.settings);
        Route {
            data_loss_signs: Arc::clone(&self.unknown.data_loss_signs),
            // A lookup that was too slow for one check serves the next.
            resolver: Arc::clone(&self.unknown.resolver),
            ..route(server, &self.settings)
        }
    }

    /// Publishes the master. Another address, or another epoch, makes it another master.
    fn publish(
        &self,
        thread: &FinderThread<SentinelMaster>,
        route: Route,
        opinion: Opinion,
    ) -> Result<(), Failure> {
        let address = Arc::clone(&route.server.address);
        let mut is_another = false;
        thread.finder.publish(|last| {
            is_another = last.is_none_or(|last| last.opinion != opinion);
            let is_failover = is_another && last.is_some();
            if is_failover {
                // The new master may lack what the last one had.
                self.unknown.data_loss_signs.note();
            }
            Ok(Published {
                found: SentinelMaster { route, opinion },
                is_another,
                is_failover,
            })
        })?;
        if is_another {
            logging::info!("the master {:?} is {address}", self.set.master);
        }
        Ok(())
    }

    /// Returns the failure of a check in which no majority agreed.
    fn no_majority(&self) -> Failure {
        let all = self.sentinels.len();
        let failures = self.sentinels.iter().filter_map(|one| one.failure.as_ref());
        let mut permanent = failures.filter(|failure| !failure.is_transient());
        // If these leave no majority, another check would find the same.
        if let Some(failure) = permanent.nth(all - (all / 2 + 1)) {
            return failure.clone();
        }
        let said = self
            .sentinels
            .iter()
            .map(|one| match (&one.opinion, &one.failure) {
                (Some(opinion), _) => format!("{} names {opinion}", one.address()),
                (None, Some(failure)) => Chain(&*failure.cause).to_string(),
                (None, None) => format!("{} has not answered", one.address()),
            });
        unavailable(format!(
            "no majority of the sentinels names the same master {:?}: {}",
            self.set.master,
            said.collect::<Vec<_>>().join("; ")
        ))
    }
}

/// Returns the sentinels, without connections.
fn unconnected(set: &SentinelSet, settings: &Settings) -> Vec<Sentinel> {
    let servers = set.sentinels.iter();
    servers
        .map(|server| Sentinel::new(route(server.clone(), settings)))
        .collect()
}

/// Asks a server for its role, on an open connection if there is one. Returns the connection if it is a master.
fn role_of(route: &Route, open: Option<Socket>) -> Result<Socket, Failure> {
    let role = Command::new("ROLE");
    let reused = open.is_some();
    let mut socket = match open {
        Some(socket) => socket,
        None => log_in(route, &mut Deadline::default())?,
    };
    let mut answer = socket.request(&role, Deadline::after(route.io_timeout));
    if reused && matches!(&answer, Err(fault) if fault.is_closed()) {
        socket = log_in(route, &mut Deadline::default())?;
        answer = socket.request(&role, Deadline::after(route.io_timeout));
    }
    let answer = answer.map_err(|fault| route.broken(fault))?;
    check_role(route, answer)?;
    Ok(socket)
}

/// Checks that an answer to `ROLE` is that of a master. A replica may have lost its data.
pub(crate) fn check_role(route: &Route, answer: Value) -> Result<(), Failure> {
    let role = match answer {
        Value::ServerError(error) => return Err(refusal(&route.server, error)),
        Value::Array(parts) => parts.into_iter().next(),
        _ => None,
    };
    match role {
        Some(Value::BulkString(role)) if role == b"master" => Ok(()),
        _ => {
            route.data_loss_signs.note();
            Err(unavailable(format!(
                "{} is not a master",
                route.server.address
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a search whose only sentinel cannot be reached.
    fn search() -> SentinelSearch {
        let settings = Settings::default();
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let set = SentinelSet::new(&urls, "mine", &settings).expect("a URL");
        let unknown = route(set.unknown_master(), &settings);
        SentinelSearch::new(set, settings, unknown)
    }

    /// A sentinel may send the message all the time.
    #[test]
    fn a_message_causes_few_more_checks() {
        let mut search = search();
        search.due = search.begun + CHECK_EVERY;
        assert_eq!(search.due(), search.begun + CHECK_EVERY);
        search.has_switched = true;
        assert_eq!(search.due(), search.begun + RETRY, "not at once");
    }

    /// It has left its place to another, so its answer is not needed.
    #[test]
    fn a_last_master_that_hangs_holds_up_no_check_after_a_message() {
        let gives_up = |has_switched, is_last, left| {
            let mut search = search();
            search.has_switched = has_switched;
            search.gives_up(is_last, Time::now() + left)
        };
        let hour = STEP * 3600;
        assert!(!gives_up(true, true, hour), "it has time to answer");
        assert!(gives_up(true, true, Duration::ZERO));
        assert!(
            !gives_up(true, false, Duration::ZERO),
            "it may be the new master"
        );
        assert!(
            !gives_up(false, true, Duration::ZERO),
            "nothing says that there is another"
        );
    }
}
