//! The thread that keeps the slot map.
//!
//! | a check | the thread |
//! | --- | --- |
//! | without a map: the first discovery | asks all nodes at once that the user has named, and waits for their views, but only for [`PATIENCE`] after the first. It makes the map of these views, by the rules of the map ([`super::map`]). If two views share no node, the nodes are of several clusters, and there is no map |
//! | with a map | asks a node for its view, another one in each check. If it fails, or has not answered for [`PATIENCE`], asks the next one too. Takes in the first view that comes |
//! | with a map, and the view is foreign | refuses it, with a warning once for each node, and asks the next node. So a cluster that was built anew needs a new manager |
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

use std::collections::{HashSet, VecDeque};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use redis::{ConnectionAddr, Value};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::map::{Address, SlotMap, View};
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

/// The answer of a node to the check of this number, and the address of the node.
type NodeAnswer = (u64, Arc<str>, Result<View, Failure>);

/// A view, and the address of the node that has answered it.
pub(super) type ViewOf = (Arc<str>, View);

pub(super) struct Watcher {
    shared: Arc<Shared>,
    woken: UnixStream,
    answers: Receiver<NodeAnswer>,
    answered: Sender<NodeAnswer>,
    /// How many checks have begun.
    checks: u64,
    /// How many nodes were asked, so that each check begins with another one.
    asked: usize,
    /// The nodes whose views were refused.
    strangers: HashSet<Arc<str>>,
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
            strangers: HashSet::new(),
        }
    }

    /// Runs until nobody uses the cluster any more.
    pub(super) fn run(mut self) {
        while !self.shared.is_over() {
            let checked = survived(|| {
                let views = self.check()?;
                self.shared.publish(&views)
            });
            match checked.unwrap_or_else(|| Err(unavailable("the check of the cluster panicked"))) {
                Ok(Some(masters)) => {
                    logging::info!("the slots of the cluster are with {masters} masters");
                }
                Ok(None) => {}
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

    /// Does one check. Returns the views that make the next map. There is at least one.
    fn check(&mut self) -> Result<Vec<ViewOf>, Failure> {
        self.checks += 1;
        self.shared.is_outdated.store(false, Ordering::Release);
        let map = self.shared.state.lock().map.clone();
        let mut unasked = self.nodes(map.as_deref());
        let nodes = unasked.len();
        let (mut failures, mut views) = (Vec::new(), Vec::new());
        // When the next node is asked. After the last one: when the check ends.
        let mut next_at = Instant::now();
        while !self.shared.is_over() && failures.len() + views.len() < nodes {
            let (now, asked) = (Instant::now(), nodes - unasked.len());
            let is_late = now >= next_at;
            if is_late || failures.len() == asked || map.is_none() {
                match unasked.pop_front() {
                    Some((address, route)) => {
                        self.ask(address, route);
                        self.asked += 1;
                        // The last one has its whole time.
                        let is_last = unasked.is_empty();
                        next_at = now + if is_last { 2 * STEP } else { PATIENCE };
                        if map.is_none() {
                            continue;
                        }
                    }
                    None if is_late => break,
                    None => {}
                }
            }
            self.wait(next_at);
            while let Ok((check, node, answer)) = self.answers.try_recv() {
                match (answer, &map) {
                    // An answer to an earlier check may be old.
                    _ if check != self.checks => {}
                    (Err(failure), _) => failures.push(failure),
                    (Ok(view), Some(map)) if map.is_foreign(&view) => {
                        failures.push(self.refuse(node));
                    }
                    (Ok(view), Some(_)) => return Ok(vec![(node, view)]),
                    (Ok(view), None) => {
                        views.push((node, view));
                        next_at = next_at.min(Instant::now() + PATIENCE);
                    }
                }
            }
        }
        if views.is_empty() {
            return Err(of_all(&failures));
        }
        Ok(views)
    }

    /// Returns the failure of a node whose view is foreign. Logs it once.
    fn refuse(&mut self, node: Arc<str>) -> Failure {
        let words = format!("{node} is a node of another cluster");
        if self.strangers.insert(node) {
            logging::warning!(
                "{words}: its slots are not used. A cluster that was built anew needs a new manager"
            );
        }
        unavailable(words)
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
        let (node, shared) = (Arc::clone(&route.server.address), Arc::clone(&self.shared));
        let answer = move |view| {
            // If nobody receives it, the manager was dropped.
            answered.send((check, node, view)).ok();
            shared.wake();
        };
        let cannot_start = answer.clone();
        let started = thread::Builder::new().spawn(move || answer(view_of(&address, &route)));
        if let Err(error) = started {
            let words = format!("no thread could be started to ask a node: {error}");
            cannot_start(Err(unavailable(words)));
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
