//! The thread that keeps the slot map.
//!
//! | step of a check | the thread |
//! | --- | --- |
//! | 1 | asks a node for its view, another one in each check. If it fails, or has not answered for [`PATIENCE`], asks the next one too |
//! | 2 | takes in the first view that comes, by the rules of the map ([`super::map`]) |
//! | 3 | if that view is foreign, or there is no map yet: asks all other nodes at once, waits for their answers, but only for [`STEP`] or [`PATIENCE`], and lets them vote ([`super::vote`]) |
//!
//! A check begins
//!
//! * when a request has failed or was redirected, but at least [`BETWEEN`] after the last one;
//! * every [`RETRY`], as long as a master is suspected or no map was found. So a failover costs no more than the cluster's
//!   own time and this one;
//! * every [`CHECK_EVERY`] otherwise.
//!
//! Each node is asked on a short-lived thread, because it may hang. The nodes are all that the last view has named, and
//! those that the user has named.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use redis::{ConnectionAddr, Value};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::map::{Address, SlotMap, View};
use super::vote::{Choice, FOREIGN_COUNT_AFTER, choose};
use super::{Shared, unavailable};
use crate::error::{Chain, Failure};
use crate::logging;
use crate::panics::survived;
use crate::script::Command;
use crate::store::login::log_in;
use crate::store::refusal::refusal;
use crate::store::route::{Budget, Route};
use crate::store::waker::take_wakes;
use crate::sync::{Arc, Ordering, thread};

/// How often the map is read without a reason.
const CHECK_EVERY: Duration = Duration::from_secs(3);
/// The pause between checks while a master is suspected.
const RETRY: Duration = Duration::from_millis(200);
/// The shortest pause between two checks.
const BETWEEN: Duration = Duration::from_millis(50);
/// How long the thread waits for one node before it asks the next one too.
const PATIENCE: Duration = Duration::from_millis(200);
/// The longest time for one node.
const STEP: Duration = Duration::from_secs(1);

/// The answer of a node.
type Answered = (u64, Result<View, Failure>);

pub(super) struct Watcher {
    shared: Arc<Shared>,
    woken: UnixStream,
    answers: Receiver<Answered>,
    answered: Sender<Answered>,
    /// How many checks have begun.
    checks: u64,
    /// How many nodes were asked, so that each check begins with another one.
    asked: usize,
    /// Since when no other views than foreign ones have come. `None` if the last views were not foreign.
    foreign_since: Option<Instant>,
}

impl Watcher {
    pub(super) fn new(shared: Arc<Shared>, woken: UnixStream) -> Self {
        let (answered, answers) = unbounded();
        Self {
            shared,
            woken,
            answers,
            answered,
            checks: 0,
            asked: 0,
            foreign_since: None,
        }
    }

    /// Runs until nobody uses the cluster any more.
    pub(super) fn run(mut self) {
        while !self.shared.is_over() {
            let checked = survived(|| self.check());
            match checked.unwrap_or_else(|| Err(unavailable("the check of the cluster panicked"))) {
                Ok(view) => {
                    if let Some(masters) = self.shared.publish(&view) {
                        logging::info!("the slots of the cluster are with {masters} masters");
                    }
                }
                Err(failure) => self.shared.not_found(failure),
            }
            let ended = Instant::now();
            let pause = if self.is_suspicious() {
                RETRY
            } else {
                CHECK_EVERY
            };
            self.pause(ended + BETWEEN, false);
            self.pause(ended + pause, true);
        }
    }

    /// Waits until then, or until the map must be read anew if `is_ended_early`.
    fn pause(&self, until: Instant, is_ended_early: bool) {
        let is_outdated = || self.shared.is_outdated.load(Ordering::Acquire);
        while !self.shared.is_over() && Instant::now() < until && !(is_ended_early && is_outdated())
        {
            self.wait(until);
        }
    }

    /// Returns whether no map was found, or a master is suspected.
    fn is_suspicious(&self) -> bool {
        let state = self.shared.state.lock();
        let Some(map) = state.map.as_ref().filter(|_| state.failure.is_none()) else {
            return true;
        };
        let masters = map.masters();
        masters
            .iter()
            .any(|master| master.is_suspected.load(Ordering::Relaxed))
    }

    /// Asks the nodes until one has answered, or the answers of several must be compared.
    fn check(&mut self) -> Result<View, Failure> {
        self.checks += 1;
        self.shared.is_outdated.store(false, Ordering::Release);
        let map = self.shared.state.lock().map.clone();
        let mut unasked = self.nodes(map.as_deref());
        let mut nodes = unasked.len();
        let mut asked = 0;
        let (mut failures, mut views) = (Vec::new(), Vec::<View>::new());
        let mut next_at = Instant::now();
        // The end of the vote. There is one after the first view that is foreign, or comes without a map.
        let mut vote_until = None;
        while !self.shared.is_over() {
            let now = Instant::now();
            let answered = failures.len() + views.len();
            if answered == nodes || vote_until.is_some_and(|until| now >= until) {
                break;
            }
            if now >= next_at || answered == asked || vote_until.is_some() {
                match unasked.pop_front() {
                    Some((address, route)) => {
                        self.ask(address, route);
                        asked += 1;
                        self.asked += 1;
                        next_at = now + PATIENCE;
                        if vote_until.is_some() {
                            continue;
                        }
                    }
                    None if now >= next_at => break,
                    None => {}
                }
                if unasked.is_empty() {
                    // The last one has its whole time.
                    next_at = now + 2 * STEP;
                }
            }
            self.wait(vote_until.unwrap_or(next_at));
            while let Ok((check, answer)) = self.answers.try_recv() {
                match answer {
                    // An answer to an earlier check may be old.
                    _ if check != self.checks => {}
                    // A node that is known by two addresses has one vote.
                    Ok(view) if views.iter().any(|other| other.is_of_the_node_of(&view)) => {
                        (nodes, asked) = (nodes - 1, asked - 1);
                    }
                    Ok(view) => {
                        let counts = map.as_ref().is_some_and(|map| !map.is_foreign(&view));
                        if counts && views.is_empty() {
                            self.foreign_since = None;
                            return Ok(view);
                        }
                        views.push(view);
                        let limit = if map.is_some() { STEP } else { PATIENCE };
                        vote_until.get_or_insert_with(|| Instant::now() + limit);
                    }
                    Err(failure) => failures.push(failure),
                }
            }
        }
        if views.is_empty() {
            self.foreign_since = None;
            return Err(of_all(&failures));
        }
        self.vote(map.as_deref(), views, nodes)
    }

    /// Returns the view that counts among those of a check.
    fn vote(
        &mut self,
        map: Option<&SlotMap>,
        mut views: Vec<View>,
        nodes: usize,
    ) -> Result<View, Failure> {
        let since = self.foreign_since;
        let foreign_for = since.map_or(Duration::ZERO, |since| since.elapsed());
        let choice = choose(map, &views, nodes, foreign_for);
        self.foreign_since = match choice {
            Choice::NoneYet => since.or_else(|| Some(Instant::now())),
            Choice::View(_) | Choice::Foreign(_) => None,
        };
        match choice {
            Choice::View(place) => Ok(views.swap_remove(place)),
            Choice::Foreign(place) => {
                logging::warning!(
                    "the nodes of the cluster do not know its last masters any more: its slots are \
                     those of the new ones"
                );
                Ok(views.swap_remove(place))
            }
            Choice::NoneYet => {
                let words = "only nodes have answered that do not know the masters of the cluster";
                if since.is_none() {
                    logging::warning!(
                        "{words}: their slots are used if no others answer for {} s",
                        FOREIGN_COUNT_AFTER.as_secs()
                    );
                }
                Err(unavailable(words))
            }
        }
    }

    /// Returns the nodes that can be asked, another one first in each check.
    fn nodes(&self, map: Option<&SlotMap>) -> VecDeque<(Address, Route)> {
        let shared = &self.shared;
        let known = map.iter().flat_map(|map| map.nodes());
        let known = known.map(|address| (address.clone(), shared.route_to_address(address)));
        let seeds = shared.nodes.seeds.iter().filter_map(|seed| {
            let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) =
                seed.info.addr()
            else {
                return None;
            };
            let address = Address {
                host: host.clone(),
                port: *port,
            };
            Some((address, shared.route_to(seed.clone())))
        });
        let mut all = VecDeque::<(Address, Route)>::new();
        for (address, route) in known.chain(seeds) {
            if !all.iter().any(|(other, _)| *other == address) {
                all.push_back((address, route));
            }
        }
        let first = self.asked % all.len().max(1);
        all.rotate_left(first);
        all
    }

    /// Asks a node on a short-lived thread.
    fn ask(&self, address: Address, route: Route) {
        let (check, answered) = (self.checks, self.answered.clone());
        let cannot_start = answered.clone();
        let shared = Arc::clone(&self.shared);
        let started = thread::Builder::new().spawn(move || {
            // If nobody receives it, the manager was dropped.
            answered.send((check, view_of(&address, &route))).ok();
            shared.wake();
        });
        if let Err(error) = started {
            let words = format!("no thread could be started to ask a node: {error}");
            cannot_start.send((check, Err(unavailable(words)))).ok();
            self.shared.wake();
        }
    }

    /// Waits until this thread is woken, or until then.
    fn wait(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(&self.woken, PollFlags::IN)];
        // An error means that a signal came, or that the system has no memory: look again.
        poll(&mut polled, Timespec::try_from(left).ok().as_ref()).ok();
        take_wakes(&self.woken);
    }
}

/// Asks a node for its view.
fn view_of(address: &Address, route: &Route) -> Result<View, Failure> {
    let limit = route.io_timeout.min(STEP);
    let mut socket = log_in(route, &Budget::new(STEP.max(route.connect_timeout)))?;
    let commands = ["SLOTS", "NODES"].map(|what| Command::new("CLUSTER").arg(what).to_owned());
    let mut answers = Vec::new();
    let heard = |_, answer| match answer {
        Value::ServerError(error) => {
            route.cuts.note_answer(&error);
            Err(refusal(&route.server, error))
        }
        answer => {
            answers.push(answer);
            Ok(())
        }
    };
    let asked = socket.requests(&commands, limit, heard);
    asked.map_err(|fault| route.broken(fault))??;
    let view = match &answers[..] {
        [slots, nodes] => View::read(address, slots, nodes),
        _ => None,
    };
    let words = || format!("{} knows no master of any slot", route.server.address);
    view.ok_or_else(|| unavailable(words()))
}

/// Returns the failure of a check in which no node had a view. If a node has given a reason that stays, it is that one.
fn of_all(failures: &[Failure]) -> Failure {
    if let Some(failure) = failures.iter().find(|failure| !failure.is_transient()) {
        return failure.clone();
    }
    let causes: Vec<_> = failures
        .iter()
        .map(|failure| Chain(&*failure.cause).to_string())
        .collect();
    unavailable(match &causes[..] {
        [] => "no node of the cluster has answered in time".to_owned(),
        causes => format!(
            "no node of the cluster knows its slots: {}",
            causes.join("; ")
        ),
    })
}
