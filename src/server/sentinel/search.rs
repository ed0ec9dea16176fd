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
//! * [`CHECK_EVERY`] otherwise.
//!
//! After a manual failover the old master takes writes for about ten seconds, so no connection to it fails. The message shows it
//! at once, and the check in place of a message that was lost. A thread for each sentinel hears the messages.
//!
//! If no majority of the sentinels agrees, the last master stays the master as long as its `ROLE` is
//! `master`, and no sentinel names a later one. So an outage of the sentinels stops no lock. If this process is cut off
//! from the majority, the majority may elect another master. That is the risk of any client of Sentinel.
//! `min-replicas-to-write` limits it: a master that is cut off takes no writes, but before Redis 7 it runs scripts.
//!
//! The sentinels' epochs never fall, but `SENTINEL REMOVE` and a new `SENTINEL MONITOR` begin them anew. Then this thread
//! believes a lower epoch only for the address of the last master.
//!
//! Each sentinel, and in step 3 the server, is asked on a short-lived thread, because it may hang. That thread connects if it
//! must, and brings the connection back with the answer. A sentinel that hangs delays a check only if the others do not
//! agree, and by at most [`STEP`]. A server that has not said its role by then is not given up: the sentinels are asked again,
//! and while they name the same server, the checks go on waiting for it.

use std::mem;
use std::time::Duration;

use crossbeam_channel::Receiver;
use redis::Value;

use crate::config::{SentinelSet, Server, Settings};
use crate::error::{Chain, Failure, FailureKind, Outcome};
use crate::logging;
use crate::net::deadline::Deadline;
use crate::net::login::log_in;
use crate::net::pubsub::PushMessage;
use crate::net::refusal::{refusal, unavailable};
use crate::net::route::{Route, route};
use crate::net::socket::Socket;
use crate::server::finder::{Finder, Search};
use crate::server::sentinel::opinion::{Choice, Opinion, choose};
use crate::sys::{Arc, AtomicBool, LONGEST_SLEEP, Ordering, Time, thread};
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
pub(in crate::server) struct Master {
    pub(super) route: Route,
    pub(super) opinion: Opinion,
}

/// The search for the master.
pub(super) struct Sentinels {
    set: SentinelSet,
    settings: Settings,
    /// Has what the ways to all masters share.
    unknown: Route,
    all: Vec<Sentinel>,
    /// How many checks in a row have found no master.
    failed: u32,
    /// The server that was chosen last, how often a master had been suspected when it was asked for its role, and what the
    /// thread brings that asks it.
    asked: Option<(Opinion, u64, Receiver<Role>)>,
    /// A connection to the server that has said last that it is a master.
    open: Option<(Opinion, Socket)>,
}

struct Sentinel {
    route: Route,
    /// An open connection, unless a thread has it.
    socket: Option<Socket>,
    /// Brings the answer, and the connection, from the thread that asks it.
    asked: Option<Receiver<Result<(Opinion, Socket), Failure>>>,
    /// Whether it must be asked in the current check.
    is_due: bool,
    /// Its answer in the current check.
    said: Option<Result<Opinion, Failure>>,
    /// Whether a thread listens to it.
    is_heard: Arc<AtomicBool>,
}

/// The connection to a server that says that it is a master.
type Role = Result<Socket, Failure>;

impl Search<Master> for Sentinels {
    fn check(&mut self, finder: &Arc<Finder<Master>>) -> Result<(), Failure> {
        self.failed = (self.failed + 1).min(10);
        if self.check_once(finder)? {
            self.failed = 0;
        }
        Ok(())
    }

    fn pause(&self, finder: &Finder<Master>) -> Duration {
        match self.failed {
            _ if finder.is_check_due() => Duration::ZERO,
            0 => CHECK_EVERY,
            failed => (RETRY * (1 << (failed - 1))).min(LONGEST_RETRY),
        }
    }
}

impl Sentinels {
    pub(super) fn new(set: SentinelSet, settings: Settings, unknown: Route) -> Self {
        let sentinel = |server: &Server| Sentinel {
            route: route(server.clone(), &settings),
            socket: None,
            asked: None,
            is_due: false,
            said: None,
            is_heard: Arc::default(),
        };
        Self {
            all: set.sentinels.iter().map(sentinel).collect(),
            set,
            settings,
            unknown,
            failed: 0,
            asked: None,
            open: None,
        }
    }

    /// Does one check. Returns false if the server has not said its role yet, or the thread must end.
    fn check_once(&mut self, finder: &Arc<Finder<Master>>) -> Result<bool, Failure> {
        let last = finder.found();
        // 1. Ask the sentinels, and read their answers. 2. Choose a server.
        for sentinel in &mut self.all {
            (sentinel.is_due, sentinel.said) = (true, None);
        }
        let until = Time::now() + self.settings.io_timeout.min(STEP);
        let chosen = loop {
            for sentinel in &mut self.all {
                sentinel.hear(finder, &self.set.master);
            }
            if finder.is_over() {
                return Ok(false);
            }
            if let Some(chosen) = self.choose(last.as_ref(), until) {
                break chosen?;
            }
            finder.sleep(until);
        };
        // 3. Ask the server for its role.
        let named = self.named(&chosen);
        let waits = format!("{named}, which has not answered yet");
        finder.learnt(waits);
        let of_last = last.filter(|last| last.opinion.is_at(&chosen));
        let route = self.route_to(&chosen, of_last.as_ref());
        let suspicions = finder.suspicions();
        // A server that is suspected since it was asked is asked anew.
        let asked = self.asked.take();
        let asked = asked.filter(|(asked, then, _)| asked.is_at(&chosen) && *then == suspicions);
        let role = if let Some((.., role)) = asked {
            role
        } else {
            let open = self.open.take().filter(|(last, _)| last.is_at(&chosen));
            let way = route.clone();
            finder.aside(move || role_of(&way, open.map(|(_, socket)| socket)))
        };
        let until = Time::now() + STEP;
        let socket = loop {
            if let Ok(socket) = role.try_recv() {
                break socket.map_err(|failure| failure.about(named))?;
            }
            if finder.is_over() || Time::now() >= until {
                self.asked = Some((chosen, suspicions, role));
                return Ok(false);
            }
            finder.sleep(until);
        };
        // 4. Publish it.
        self.open = Some((chosen.clone(), socket));
        self.publish(finder, route, chosen)?;
        Ok(true)
    }

    /// Chooses among the answers that have come. Returns `None` if the sentinels may still agree until this time.
    fn choose(&self, last: Option<&Master>, until: Time) -> Option<Result<Opinion, Failure>> {
        let opinions = self.all.iter().map(|one| one.opinion().cloned());
        let opinions: Vec<_> = opinions.collect();
        let is_over = Time::now() >= until || self.all.iter().all(|one| one.asked.is_none());
        match choose(&opinions, last.map(|last| &last.opinion), is_over) {
            Choice::Master(opinion) => Some(Ok(opinion)),
            Choice::Outdated(opinion) => Some(Err(unavailable(format!(
                "{} with the config epoch {}, which is before that of the last master",
                self.named(&opinion),
                opinion.epoch
            )))),
            Choice::Open if is_over => Some(Err(self.no_majority())),
            Choice::Open => None,
        }
    }

    /// Returns the words for which sentinels have this opinion.
    fn named(&self, opinion: &Opinion) -> String {
        let has_it = |one: &&Sentinel| one.opinion() == Some(opinion);
        let named_by = self
            .all
            .iter()
            .filter(has_it)
            .map(|one| &*one.route.server.address);
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
    fn route_to(&self, opinion: &Opinion, last: Option<&Master>) -> Route {
        if let Some(last) = last {
            return last.route.clone();
        }
        let server = self
            .set
            .server_at(&opinion.host, opinion.port, &self.settings);
        // They share the resolver too: a lookup that was too slow for one check serves the next.
        self.unknown.to(server)
    }

    /// Publishes the master. Another address, or another epoch, makes it another master.
    fn publish(
        &self,
        finder: &Arc<Finder<Master>>,
        route: Route,
        opinion: Opinion,
    ) -> Result<(), Failure> {
        let address = Arc::clone(&route.server.address);
        let mut is_another = false;
        finder.publish(|last| {
            is_another = last.is_none_or(|last| last.opinion != opinion);
            if is_another && last.is_some() {
                // The new master may lack what the last one had.
                self.unknown.data_loss_signs.note();
            }
            Ok((Master { route, opinion }, is_another))
        })?;
        if is_another {
            logging::info!("the master {:?} is {address}", self.set.master);
        }
        Ok(())
    }

    /// Returns the failure of a check in which no majority agreed.
    fn no_majority(&self) -> Failure {
        let all = self.all.len();
        let failures = self
            .all
            .iter()
            .filter_map(|one| one.said.as_ref()?.as_ref().err());
        let mut permanent = failures.filter(|failure| !failure.is_transient());
        // If these leave no majority, another check would find the same.
        if let Some(failure) = permanent.nth(all - (all / 2 + 1)) {
            return failure.clone();
        }
        let said = self.all.iter().map(|one| {
            let address = &one.route.server.address;
            match &one.said {
                Some(Ok(opinion)) => format!("{address} names {opinion}"),
                Some(Err(failure)) => Chain(&*failure.cause).to_string(),
                None => format!("{address} has not answered"),
            }
        });
        unavailable(format!(
            "no majority of the sentinels names the same master {:?}: {}",
            self.set.master,
            said.collect::<Vec<_>>().join("; ")
        ))
    }
}

impl Sentinel {
    /// Takes what it has said. Asks it once in each check, but not before it has answered an earlier one, whose answer does
    /// not count any more.
    fn hear(&mut self, finder: &Arc<Finder<Master>>, master: &str) {
        if let Some(asked) = &self.asked {
            let Ok(said) = asked.try_recv() else {
                return;
            };
            self.asked = None;
            let said = said.map(|(opinion, socket)| {
                self.socket = Some(socket);
                opinion
            });
            self.said = Some(said).filter(|_| !self.is_due);
        }
        if mem::take(&mut self.is_due) {
            self.ask(finder, master);
        }
    }

    fn ask(&mut self, finder: &Arc<Finder<Master>>, master: &str) {
        let (route, master) = (self.route.clone(), master.to_owned());
        let (told, is_heard) = (Arc::clone(finder), Arc::clone(&self.is_heard));
        let open = self.socket.take();
        self.asked = Some(finder.aside(move || {
            let heard = if is_heard.load(Ordering::Relaxed) {
                Ok(())
            } else {
                subscribe(&route, &master, &told, &is_heard)
            };
            let said = heard.and_then(|()| opinion(&route, &master, open));
            said.map_err(|failure| failure.at(&route.server.address))
        }));
    }

    /// Returns where it believes the master to be, by its answer in the current check.
    fn opinion(&self) -> Option<&Opinion> {
        self.said.as_ref()?.as_ref().ok()
    }
}

/// Starts a thread that has the master checked after each message that it has changed, until the connection ends.
fn subscribe(
    route: &Route,
    master: &str,
    finder: &Arc<Finder<Master>>,
    is_heard: &Arc<AtomicBool>,
) -> Result<(), Failure> {
    let subscribe = Command::new("SUBSCRIBE").arg("+switch-master").to_owned();
    let (mut socket, mut confirmed) = ask(route, None, &[subscribe])?;
    PushMessage::of(&route.server, confirmed.pop().unwrap_or(Value::Nil))?;
    let (finder, flag) = (Arc::clone(finder), Arc::clone(is_heard));
    let (server, master) = (Arc::clone(&route.server), master.to_owned());
    let hear = move || {
        while !finder.is_over() {
            let said = match socket.next(Deadline::after(LONGEST_SLEEP)) {
                Ok(None) => continue,
                Ok(Some(said)) => PushMessage::of(&server, said),
                Err(_) => break,
            };
            let Ok(PushMessage::Message { payload, .. }) = said else {
                break;
            };
            // `<name> <old host> <old port> <new host> <new port>`, perhaps of another master.
            if payload.split(|byte| *byte == b' ').next() == Some(master.as_bytes()) {
                finder.check_again();
                // A sentinel that sends the message all the time causes no more checks than this.
                thread::sleep(RETRY);
            }
        }
        flag.store(false, Ordering::Relaxed);
    };
    is_heard.store(true, Ordering::Relaxed);
    thread::spawn("leasehold-sentinel", hear).map_err(|error| {
        is_heard.store(false, Ordering::Relaxed);
        unavailable(format!("no thread could be started: {error}"))
    })
}

/// Asks a sentinel where the master is. Returns the connection too. Connects first if it has to, and once more if the
/// connection was closed.
fn opinion(
    route: &Route,
    master: &str,
    open: Option<Socket>,
) -> Result<(Opinion, Socket), Failure> {
    let questions = ["GET-MASTER-ADDR-BY-NAME", "MASTER"]
        .map(|what| Command::new("SENTINEL").arg(what).arg(master).to_owned());
    let (socket, answers) = ask(route, open, &questions)?;
    let [address, facts] = <[_; 2]>::try_from(answers).map_err(|_| Failure::another_question())?;
    let opinion = Opinion::of(&address, &facts);
    let ((Value::ServerError(error), _) | (_, Value::ServerError(error))) = (address, facts) else {
        let words = || format!("{} does not answer as a sentinel", route.server.address);
        let said = opinion.map(|opinion| (opinion, socket));
        return said.ok_or_else(|| unavailable(words()));
    };
    let text = error.details().unwrap_or_default();
    let (option, words) = if text.starts_with("No such master") {
        let words = "the sentinels do not watch a master of this name";
        ("master", words.to_owned())
    } else if text.starts_with("unknown command") {
        let words = format!("{} is not a sentinel", route.server.address);
        ("sentinels", words)
    } else {
        return Err(refusal(&route.server, error));
    };
    let kind = FailureKind::Config(option);
    Err(Failure::plain(kind, Outcome::NotExecuted, words))
}

/// Asks a server for its role, on an open connection if there is one. Returns the connection if it is a master.
fn role_of(route: &Route, open: Option<Socket>) -> Result<Socket, Failure> {
    let (socket, mut answers) = ask(route, open, &[Command::new("ROLE")])?;
    check_role(route, answers.pop().unwrap_or(Value::Nil))?;
    Ok(socket)
}

/// Sends commands on an open connection, and on a new one if there is none, or it was closed. Returns the connection and the
/// answers.
fn ask(
    route: &Route,
    open: Option<Socket>,
    commands: &[Command],
) -> Result<(Socket, Vec<Value>), Failure> {
    let time = || Deadline::after(route.io_timeout);
    if let Some(mut socket) = open {
        match socket.requests(commands, time()) {
            Ok(answers) => return Ok((socket, answers)),
            Err(fault) if fault.is_closed() || fault.is_before_the_request() => {}
            Err(fault) => return Err(route.broken(fault)),
        }
    }
    let mut socket = log_in(route, &mut Deadline::default())?;
    let answers = socket.requests(commands, time());
    let answers = answers.map_err(|fault| route.broken(fault))?;
    Ok((socket, answers))
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
