//! The thread that keeps the slot map.
//!
//! | step of a check | the thread |
//! | --- | --- |
//! | 1 | asks a node for its view, another one in each check. If it fails, or has not answered for [`PATIENCE`], asks the next one too |
//! | 2 | takes in the first view that comes, by the rules of the map ([`super::map`]), unless it is that of a stranger |
//!
//! A *stranger* knows nothing of the masters that the map has: a node that has left the cluster, or of another cluster. It
//! is believed only if the cluster may have been built anew: if more than half of all nodes are strangers to the map, or
//! if no other node has answered for [`FORGOTTEN_AFTER`]. Otherwise it would grant locks that the masters have granted.
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
use super::{Shared, unavailable};
use crate::error::{Chain, Failure};
use crate::logging;
use crate::panics::survived;
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

/// How long the masters of the map must be unknown to every node that answers, before a few strangers are believed.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

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
    /// When a node that was no stranger answered last.
    known_at: Instant,
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
            known_at: Instant::now(),
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

    /// Asks the nodes until one has answered.
    fn check(&mut self) -> Result<View, Failure> {
        self.checks += 1;
        self.shared.is_outdated.store(false, Ordering::Release);
        let map = self.shared.state.lock().map.clone();
        let mut unasked = self.nodes(map.as_deref());
        let nodes = unasked.len();
        let mut asked = 0;
        let (mut failures, mut strangers) = (Vec::new(), Vec::new());
        let mut next_at = Instant::now();
        while !self.shared.is_over() {
            let now = Instant::now();
            let answered = failures.len() + strangers.len();
            if now >= next_at || answered == asked {
                match unasked.pop_front() {
                    Some((address, route)) => {
                        self.ask(address, route);
                        asked += 1;
                        self.asked += 1;
                        next_at = now + PATIENCE;
                    }
                    None if answered == asked || now >= next_at => break,
                    None => {}
                }
                if unasked.is_empty() {
                    // The last one has its whole time.
                    next_at = now + 2 * STEP;
                }
            }
            self.wait(next_at);
            while let Ok((check, answer)) = self.answers.try_recv() {
                match answer {
                    // An answer to an earlier check may be old.
                    _ if check != self.checks => {}
                    Ok(view) if map.as_ref().is_none_or(|map| map.is_known_to(&view)) => {
                        self.known_at = Instant::now();
                        return Ok(view);
                    }
                    Ok(view) => strangers.push(view),
                    Err(failure) => failures.push(failure),
                }
            }
        }
        let is_built_anew =
            strangers.len() > nodes / 2 || self.known_at.elapsed() >= FORGOTTEN_AFTER;
        match strangers.pop() {
            Some(view) if is_built_anew => {
                logging::warning!(
                    "the nodes know none of the last masters: the cluster was built anew"
                );
                self.known_at = Instant::now();
                Ok(view)
            }
            Some(_) => Err(unavailable(
                "the only nodes that have answered do not know the masters of the cluster",
            )),
            None => Err(of_all(&failures)),
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
    let commands = ["SLOTS", "NODES"].map(|what| redis::cmd("CLUSTER").arg(what).to_owned());
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
