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
//! `min-replicas-to-write` limits it: a master that is cut off takes no writes.
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

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError, bounded};
use redis::Value;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Chain, Failure};
use crate::logging;
use crate::panics::survived;
use crate::script::Command;
use crate::store::errors::RequestError;
use crate::store::login::log_in;
use crate::store::refusal::refusal;
use crate::store::route::{Budget, Route, route};
use crate::store::sentinel::client::Sentinel;
use crate::store::sentinel::opinion::{Opinion, Verdict, choose};
use crate::store::sentinel::{Discovery, unavailable};
use crate::store::socket::Socket;
use crate::store::waker::take_wakes;
use crate::sync::{Arc, thread};

/// How often the master is checked without a reason.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// The pause after a check that has found no master. Each further pause is twice as long, up to the longest.
const RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_millis(400);
/// The longest time for one step.
const STEP: Duration = Duration::from_secs(1);

pub(super) struct Watcher {
    discovery: Arc<Discovery>,
    woken: UnixStream,
    sentinels: Vec<Sentinel>,
    /// How many checks have begun.
    checks: u64,
    check: Option<Check>,
    /// When the next check begins, if there is no reason before.
    due: Instant,
    /// When the last check began.
    begun: Option<Instant>,
    /// The last published master: its number, and where it is.
    last: Option<(u64, Opinion)>,
    /// Whether a sentinel has sent `+switch-master` since the last check began.
    has_switched: bool,
    /// How many checks in a row have found no master.
    failed: u32,
    /// A connection to the server that was asked for its role last, and was a master.
    asked: Option<(Opinion, Socket)>,
}

/// A check that is under way.
struct Check {
    number: u64,
    /// How often the master had been suspected when it began.
    suspicions: u64,
    /// When the sentinels must have answered. In step 3, when the check may be given up.
    until: Instant,
    /// The thread that asks the server for its role.
    role: Option<Receiver<Result<Found, Failure>>>,
    /// Whether that server is the last master.
    asks_last: bool,
}

/// A server that is a master.
struct Found {
    opinion: Opinion,
    route: Route,
    socket: Socket,
}

impl Watcher {
    pub(super) fn new(discovery: Arc<Discovery>, woken: UnixStream) -> Self {
        Self {
            sentinels: unconnected(&discovery),
            discovery,
            woken,
            checks: 0,
            check: None,
            due: Instant::now(),
            begun: None,
            last: None,
            has_switched: false,
            failed: 0,
            asked: None,
        }
    }

    /// Runs until nobody uses the master any more.
    pub(super) fn run(mut self) {
        while !self.discovery.is_over() {
            if survived(|| self.go_on()).is_none() {
                logging::error!("the thread that asks the sentinels panicked, and begins anew");
                // A connection may have an answer outstanding.
                self.sentinels = unconnected(&self.discovery);
                (self.check, self.asked) = (None, None);
                // Repeated panics must not use a whole core.
                thread::sleep(RETRY);
            }
        }
    }

    fn go_on(&mut self) {
        // 1. Begin a check, if one is due.
        if self.check.is_none() && Instant::now() >= self.due() {
            self.checks += 1;
            self.has_switched = false;
            self.begun = Some(Instant::now());
            self.check = Some(Check {
                number: self.checks,
                suspicions: self.discovery.begin_check(),
                until: Instant::now() + self.step(),
                role: None,
                asks_last: false,
            });
            for sentinel in &mut self.sentinels {
                sentinel.opinion = None;
            }
        }
        // 2. Connect and ask the sentinels that are not connected, or not asked in this check.
        let step = self.step();
        for sentinel in &mut self.sentinels {
            sentinel.connect(&self.discovery);
            if let Some(check) = &self.check {
                sentinel.ask(&self.discovery.set.master, check.number, step);
            }
        }
        // 3. Wait, and read the answers.
        self.wait();
        // 4. End the check, if its result is certain or its time is over.
        if let Some(check) = self.check.take() {
            self.check = self.conclude(check);
        }
    }

    /// Returns when the next check begins.
    fn due(&self) -> Instant {
        match self.begun {
            // A sentinel that sends the message all the time causes no more checks than this.
            Some(begun) if self.has_switched => self.due.min(begun + RETRY),
            _ => self.due,
        }
    }

    /// Returns the time limit of a step.
    fn step(&self) -> Duration {
        self.discovery.settings.io_timeout.min(STEP)
    }

    /// Waits until a sentinel sends something, a caller suspects the master, or the time for the next step has come.
    /// Reads what has come.
    fn wait(&mut self) {
        let now = Instant::now();
        let mut until = match &self.check {
            None => self.due(),
            // The thread that asks for the role wakes this one.
            Some(check) if check.role.is_some() => match check.until {
                until if self.has_switched && check.asks_last && until > now => until,
                _ => now + STEP,
            },
            Some(check) => check.until,
        };
        for due in self.sentinels.iter().filter_map(Sentinel::opens_at) {
            until = until.min(due);
        }
        let readable = self.readable(until.saturating_duration_since(now));
        if readable.is_woken {
            take_wakes(&self.woken);
            if self.discovery.is_suspected_anew() {
                self.due = Instant::now();
            }
        }
        let step = self.step();
        for number in readable.answers {
            let current = self.check.as_ref().map(|check| check.number);
            self.sentinels[number].read_answers(current, step);
        }
        for number in readable.messages {
            // The answers of the check may be older than the message, so another one follows.
            self.has_switched |=
                self.sentinels[number].read_messages(&self.discovery.set.master, step);
        }
    }

    fn readable(&self, limit: Duration) -> Readable {
        let mut polled = vec![PollFd::new(&self.woken, PollFlags::IN)];
        let mut numbers = Vec::new();
        for (number, sentinel) in self.sentinels.iter().enumerate() {
            if let Some(sockets) = sentinel.sockets() {
                numbers.push(number);
                for socket in [&sockets.asks, &sockets.listens] {
                    polled.push(PollFd::new(socket, PollFlags::IN));
                }
            }
        }
        // An error means that a signal came, or that the system has no memory: look again.
        poll(&mut polled, Timespec::try_from(limit).ok().as_ref()).ok();
        let is_ready = |place: usize| !polled[place].revents().is_empty();
        let ready = |offset: usize| {
            let places = numbers.iter().enumerate();
            let ready = places.filter(|(place, _)| is_ready(1 + 2 * place + offset));
            ready.map(|(_, number)| *number).collect()
        };
        Readable {
            is_woken: is_ready(0),
            answers: ready(0),
            messages: ready(1),
        }
    }

    /// Does steps 2 to 4 of a check. Returns the check if it goes on.
    fn conclude(&mut self, mut check: Check) -> Option<Check> {
        let result = match &check.role {
            None => match self.choose(&check) {
                Some(Ok(opinion)) => {
                    let last = self.last.as_ref();
                    check.asks_last = last.is_some_and(|(_, last)| last.is_at(&opinion));
                    check.role = self.ask_role(opinion);
                    check.until = Instant::now() + STEP;
                    if check.role.is_some() {
                        return Some(check);
                    }
                    // Without a thread the check has no result.
                    self.due = Instant::now() + RETRY;
                    return None;
                }
                Some(Err(failure)) => Err(failure),
                None => return Some(check),
            },
            Some(role) => match role.try_recv() {
                Ok(result) => result,
                Err(TryRecvError::Empty) if self.gives_up(&check) => return None,
                Err(TryRecvError::Empty) => return Some(check),
                Err(TryRecvError::Disconnected) => Err(unavailable("asking for the role panicked")),
            },
        };
        match result {
            Ok(Found {
                opinion,
                route,
                socket,
            }) => {
                let address = Arc::clone(&route.server.address);
                let number = self.discovery.publish(&opinion, route, check.suspicions);
                if self.last.as_ref().map(|(number, _)| *number) != Some(number) {
                    logging::info!("the master {:?} is {address}", self.discovery.set.master);
                }
                self.asked = Some((opinion.clone(), socket));
                self.last = Some((number, opinion));
                self.failed = 0;
                self.due = Instant::now() + CHECK_EVERY;
            }
            Err(failure) => {
                self.discovery.not_found(failure);
                self.due = Instant::now() + (RETRY * (1 << self.failed)).min(LONGEST_RETRY);
                self.failed = (self.failed + 1).min(10);
            }
        }
        if self.discovery.is_suspected_anew() {
            self.due = Instant::now();
        }
        None
    }

    /// Returns whether a check asks a server that hangs, and that has probably lost its place.
    fn gives_up(&self, check: &Check) -> bool {
        self.has_switched && check.asks_last && Instant::now() >= check.until
    }

    /// Does step 2. Returns `None` if the sentinels may still agree.
    fn choose(&self, check: &Check) -> Option<Result<Opinion, Failure>> {
        let opinions: Vec<_> = self
            .sentinels
            .iter()
            .map(|one| one.opinion.clone())
            .collect();
        let is_over =
            Instant::now() >= check.until || !self.sentinels.iter().any(Sentinel::may_answer);
        let last = self.last.as_ref().map(|(_, opinion)| opinion);
        match choose(&opinions, last, is_over) {
            Verdict::Master(opinion) => Some(Ok(opinion)),
            Verdict::Outdated(epoch) => Some(Err(unavailable(format!(
                "the sentinels name another master of config epoch {epoch}, before that of the last master"
            )))),
            Verdict::Open if is_over => {
                let answered = opinions.iter().flatten().count();
                Some(Err(self.no_majority(answered)))
            }
            Verdict::Open => None,
        }
    }

    /// Does step 3: asks the server of an opinion for its role, on a short-lived thread, because the server may hang.
    /// Returns `None` if the thread cannot be started.
    fn ask_role(&mut self, opinion: Opinion) -> Option<Receiver<Result<Found, Failure>>> {
        let route = self.discovery.route_to(&opinion);
        let open = self.asked.take().filter(|(last, _)| last.is_at(&opinion));
        let open = open.map(|(_, socket)| socket);
        let discovery = Arc::clone(&self.discovery);
        let (sender, role) = bounded(1);
        let started = thread::Builder::new().spawn(move || {
            let master = role_of(&route, open).map(|socket| Found {
                opinion,
                route,
                socket,
            });
            // If nobody receives it, the check was given up.
            sender.send(master).ok();
            discovery.wake();
        });
        started.is_ok().then_some(role)
    }

    /// Returns the failure of a check in which no majority agreed.
    fn no_majority(&self, answered: usize) -> Failure {
        let all = self.sentinels.len();
        let failures: Vec<_> = self
            .sentinels
            .iter()
            .filter_map(|one| one.failure.as_ref())
            .collect();
        let mut permanent = failures.iter().filter(|failure| !failure.is_transient());
        // If these leave no majority, another check would find the same.
        if let Some(failure) = permanent.nth(all - (all / 2 + 1)) {
            return Failure::clone(failure);
        }
        let causes: Vec<_> = failures
            .iter()
            .map(|failure| Chain(&*failure.cause).to_string())
            .collect();
        unavailable(format!(
            "{answered} of {all} sentinels name the master {:?}, and no majority the same: {}",
            self.discovery.set.master,
            causes.join("; ")
        ))
    }
}

/// Returns the sentinels, without connections.
fn unconnected(discovery: &Discovery) -> Vec<Sentinel> {
    let servers = discovery.set.sentinels.iter();
    servers
        .map(|server| Sentinel::new(route(server.clone(), &discovery.settings)))
        .collect()
}

/// Asks a server for its role, on an open connection if there is one. Returns the connection if it is a master.
fn role_of(route: &Route, open: Option<Socket>) -> Result<Socket, Failure> {
    let role = Command::new("ROLE");
    let reused = open.is_some();
    let mut socket = match open {
        Some(socket) => socket,
        None => log_in(route, &Budget::unlimited())?,
    };
    let mut answer = socket
        .request(&role, route.io_timeout)
        .map_err(RequestError::of);
    if let (true, Err(RequestError::Closed(_))) = (reused, &answer) {
        socket = log_in(route, &Budget::unlimited())?;
        answer = socket
            .request(&role, route.io_timeout)
            .map_err(RequestError::of);
    }
    let answer = answer.map_err(|trouble| trouble.into_failure(route))?;
    check_role(route, answer)?;
    Ok(socket)
}

/// The connections that have something to read.
struct Readable {
    is_woken: bool,
    answers: Vec<usize>,
    messages: Vec<usize>,
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
            route.cuts.note();
            Err(unavailable(format!(
                "{} is not a master",
                route.server.address
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::Sender;

    use super::*;
    use crate::config::{SentinelSet, Settings};
    use crate::store::waker::wakers;

    /// Returns a watcher whose only sentinel cannot be reached, and what wakes it.
    fn watcher() -> (Watcher, UnixStream) {
        let settings = Settings::default();
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let set = SentinelSet::new(&urls, "mine", &settings).expect("a URL");
        let (waker, woken) = wakers().expect("a pair");
        let discovery = Arc::new(Discovery::new(set, &settings));
        (Watcher::new(discovery, woken), waker)
    }

    /// A sentinel may send the message all the time.
    #[test]
    fn a_message_ends_no_check_and_causes_few_more() {
        let (mut watcher, _waker) = watcher();
        watcher.go_on();
        let begun = watcher.begun.expect("the first check is due at once");
        watcher.due = begun + CHECK_EVERY;
        assert_eq!(watcher.due(), begun + CHECK_EVERY);
        watcher.has_switched = true;
        assert_eq!(watcher.due(), begun + RETRY, "not at once");
        let checks = watcher.checks;
        let (check, _open) = asking(false);
        watcher.check = Some(Check {
            until: Instant::now() + STEP * 60,
            ..check
        });
        watcher.go_on();
        assert_eq!(watcher.checks, checks, "a check that runs goes on");
        assert!(watcher.check.is_some(), "it is not over");
    }

    /// Returns a check whose server does not answer, and what keeps that question open.
    fn asking(asks_last: bool) -> (Check, Sender<Result<Found, Failure>>) {
        let (sender, role) = bounded(1);
        let check = Check {
            number: 1,
            suspicions: 0,
            until: Instant::now(),
            role: Some(role),
            asks_last,
        };
        (check, sender)
    }

    /// It has left its place to another, so its answer is not needed.
    #[test]
    fn a_last_master_that_hangs_holds_up_no_check_after_a_message() {
        let goes_on = |has_switched, asks_last, left| {
            let (mut watcher, _waker) = watcher();
            let (mut check, _open) = asking(asks_last);
            watcher.has_switched = has_switched;
            check.until += left;
            watcher.conclude(check).is_some()
        };
        let hour = STEP * 3600;
        assert!(goes_on(true, true, hour), "it has time to answer");
        assert!(!goes_on(true, true, Duration::ZERO));
        assert!(
            goes_on(true, false, Duration::ZERO),
            "it may be the new master"
        );
        assert!(
            goes_on(false, true, Duration::ZERO),
            "nothing says that there is another"
        );
    }
}
