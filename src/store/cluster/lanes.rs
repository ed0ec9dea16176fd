//! The connections of the renewal thread: a *lane* for each master, outside the pools.
//!
//! One exchange writes to all lanes that it needs before it reads an answer, and reads the answers as they come. So the
//! failure of one master delays no other's answers.
//!
//! | state of a lane | event | next state |
//! | --- | --- | --- |
//! | closed | an exchange needs it, and its pause is over | opening, on a short-lived thread |
//! | opening | it is open: logged in, and the script of renewals is loaded | open; the commands of a waiting exchange are written |
//! | opening | a failure | closed, and the master is suspected; each further pause is twice as long |
//! | open | an exchange writes commands | asked |
//! | asked | all answers have come | open |
//! | asked | the exchange ends first | late |
//! | late | all answers have come: they are dropped | open |
//! | late | another exchange needs it | late; the exchange goes on without it |
//! | late | no answer for `io_timeout` | closed |
//! | asked, and opened by an earlier exchange | the server has closed it | opening; the commands are written once more |
//! | open, asked, late | any other failure | closed |
//!
//! Nothing is written on a lane while an answer is missing. So no late answer is taken for that to another request, and
//! none counts for a lease.
//!
//! An exchange ends when all answers have come, or at its limit. It waits for a lane for at most a *grace*: twice what the
//! lane took lately, and at least [`SHORTEST_GRACE`]. It does not wait for a lane that opens after a failure. So a master
//! that hangs delays the others once, by its grace.

mod running;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError, bounded};
use redis::Value;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::master::Address;
use super::{ClusterState, Master, unavailable};
use crate::error::{Failure, FailureKind, Outcome};
use crate::message::Request;
use crate::script::{self, Command};
use crate::store::login::connect;
use crate::store::refusal::refusal;
use crate::store::route::{Budget, Route};
use crate::store::socket::{Socket, TransportError};
use crate::store::waker::{take_wakes, wake, wakers};
use crate::sync::{Arc, Ordering, thread};

use running::Running;

/// The shortest grace of a lane.
const SHORTEST_GRACE: Duration = Duration::from_millis(200);
/// The pause before a lane is opened again. It doubles up to the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest wait for the rest of a TLS record, of which a part has come.
const REST: Duration = Duration::from_millis(1);

/// A command for one master. The exchange encodes it when it writes it.
pub(super) struct Part {
    pub(super) master: Arc<Master>,
    /// Whether the slot is moving to this master.
    pub(super) is_asking: bool,
}

/// How an exchange goes.
pub(super) struct Exchange<'a> {
    /// Encodes the part of this number.
    pub(super) encode: &'a dyn Fn(usize) -> Command,
    pub(super) limit: Duration,
    /// Whether replicas must confirm the writes, if the settings name any.
    pub(super) is_gain: bool,
}

/// The answer to each part, and whether one was sent twice.
pub(super) struct Exchanged {
    pub(super) answers: Vec<Result<Value, Failure>>,
    pub(super) is_resent: bool,
}

pub(super) struct Lanes {
    by_address: HashMap<Address, Lane>,
    /// Wakes this thread when a lane was opened.
    waker: Arc<UnixStream>,
    woken: UnixStream,
}

struct Lane {
    master: Arc<Master>,
    state: LaneState,
    /// The pause after the next failure.
    pause: Duration,
    /// The time of the last answers.
    took: Duration,
    /// The numbers of the parts to write in this exchange.
    parts: Vec<usize>,
    /// Whether the lane was opened before this exchange.
    is_reused: bool,
    /// Why the lane was closed last, until it is open.
    failure: Option<Failure>,
}

enum LaneState {
    /// It may be opened at this time.
    Closed(Instant),
    Opening(Receiver<Result<(Socket, Duration), Failure>>),
    Open(Box<Open>),
}

struct Open {
    socket: Socket,
    /// The answers that have not come, in their order.
    missing: VecDeque<Missing>,
    /// When their commands were written.
    sent: Instant,
}

/// An answer that has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// That to the part of this number.
    Part(usize),
    /// That to ASKING.
    Asking,
    /// The number of replicas that have the writes.
    Replicas,
    /// That to a command of an exchange that has ended.
    Late,
}

impl Lanes {
    pub(super) fn new() -> Result<Self, Failure> {
        let failed = |error| unavailable(format!("no pair of sockets: {error}"));
        let (waker, woken) = wakers().map_err(failed)?;
        Ok(Self {
            by_address: HashMap::new(),
            waker: Arc::new(waker),
            woken,
        })
    }

    /// Opens a lane to each of these masters. Waits for at most `limit`, and once one is open, only for a grace.
    pub(super) fn open(&mut self, masters: &[Arc<Master>], limit: Duration) {
        let mut until = Instant::now() + limit;
        for master in masters {
            self.lane(master).open_if_due();
        }
        loop {
            let (mut is_opening, mut is_open) = (false, false);
            for lane in self.by_address.values_mut() {
                lane.take_opened();
                is_opening |= matches!(lane.state, LaneState::Opening(_));
                is_open |= matches!(lane.state, LaneState::Open(_));
            }
            let now = Instant::now();
            if is_open {
                until = until.min(now + SHORTEST_GRACE);
            }
            if !is_opening || now >= until {
                return;
            }
            self.wait(until - now);
        }
    }

    /// Closes the lane to a master, because its last answer made no sense.
    pub(super) fn close(&mut self, master: &Master) {
        self.by_address.remove(&master.address);
    }

    fn lane(&mut self, master: &Arc<Master>) -> OpenableLane<'_> {
        let new = || Lane {
            master: Arc::clone(master),
            state: LaneState::Closed(Instant::now()),
            pause: FIRST_PAUSE,
            took: Duration::ZERO,
            parts: Vec::new(),
            is_reused: false,
            failure: None,
        };
        let lane = self
            .by_address
            .entry(master.address.clone())
            .or_insert_with(new);
        OpenableLane {
            lane,
            waker: &self.waker,
        }
    }

    /// Writes each part to its master, and reads the answers. Suspects the masters that have not answered.
    pub(super) fn exchange(
        &mut self,
        shared: &ClusterState,
        parts: &[Part],
        how: &Exchange<'_>,
    ) -> Exchanged {
        let begun = Instant::now();
        self.by_address
            .retain(|_, lane| !lane.master.is_retired.load(Ordering::Acquire));
        let mut run = Running {
            how,
            parts,
            shared,
            by_text: vec![false; parts.len()],
            answers: vec![None; parts.len()],
            is_resent: false,
        };
        // 1. Give each part to its lane.
        for (number, part) in parts.iter().enumerate() {
            self.lane(&part.master).lane.parts.push(number);
        }
        // 2. Write on each lane that is open and misses no answer. Open those that are closed.
        for lane in self
            .by_address
            .values_mut()
            .filter(|lane| !lane.parts.is_empty())
        {
            lane.drop_late_answers(shared);
            let mut lane = OpenableLane {
                lane,
                waker: &self.waker,
            };
            lane.lane.is_reused = matches!(lane.lane.state, LaneState::Open(_));
            lane.open_if_due();
            if run.begin(lane.lane) {
                lane.open_if_due();
            }
        }
        // 3. Read the answers as they come.
        loop {
            for lane in self.by_address.values_mut() {
                let was_opened = lane.take_opened();
                if (was_opened && run.begin(lane)) || run.read(lane) {
                    // The server has closed the connection of an earlier exchange.
                    OpenableLane {
                        lane,
                        waker: &self.waker,
                    }
                    .open_if_due();
                }
            }
            let waiting = self.by_address.values().filter(|lane| lane.is_waited_for());
            // A link that takes longer than the limit has two round trips.
            let grace = waiting.map(|lane| (lane.took * 2).max(SHORTEST_GRACE.min(how.limit)));
            let Some(grace) = grace.max() else { break };
            let (now, until) = (
                Instant::now(),
                begun + grace.min(shared.routes.settings.io_timeout),
            );
            if now >= until {
                break;
            }
            self.wait(until - now);
        }
        // 4. A lane that has not answered by now is late.
        for lane in self.by_address.values_mut() {
            if lane.is_waited_for() {
                shared.suspect(&lane.master);
            }
            run.end(lane);
        }
        let words = "the node has not answered in time";
        let late = |answer: Option<Result<Value, Failure>>| {
            answer.unwrap_or_else(|| {
                Err(Failure {
                    timed_out: true,
                    ..Failure::plain(FailureKind::Unavailable, Outcome::Unknown, words)
                })
            })
        };
        let is_resent = run.is_resent;
        Exchanged {
            answers: run.answers.into_iter().map(late).collect(),
            is_resent,
        }
    }

    /// Waits until a lane has something to read or was opened, for at most `limit`.
    fn wait(&mut self, limit: Duration) {
        let mut polled = vec![PollFd::new(&self.woken, PollFlags::IN)];
        for lane in self.by_address.values().filter(|lane| lane.is_waited_for()) {
            if let LaneState::Open(open) = &lane.state {
                polled.push(PollFd::new(&open.socket, PollFlags::IN));
            }
        }
        // An error means that a signal came, or that the system has no memory: look again.
        poll(&mut polled, Timespec::try_from(limit).ok().as_ref()).ok();
        take_wakes(&self.woken);
    }
}

/// A lane, and what its opening wakes.
struct OpenableLane<'a> {
    lane: &'a mut Lane,
    waker: &'a Arc<UnixStream>,
}

impl OpenableLane<'_> {
    /// Begins to open a closed lane whose pause is over.
    fn open_if_due(&mut self) {
        let LaneState::Closed(due) = self.lane.state else {
            return;
        };
        if Instant::now() < due {
            return;
        }
        let (sender, opened) = bounded(1);
        let (route, waker) = (self.lane.master.route.clone(), Arc::clone(self.waker));
        let started = thread::Builder::new().spawn(move || {
            // If nobody receives it, the connection is not needed any more.
            sender.send(open(&route)).ok();
            wake(&waker);
        });
        self.lane.state = match started {
            Ok(_) => LaneState::Opening(opened),
            Err(_) => LaneState::Closed(Instant::now() + LONGEST_PAUSE),
        };
    }
}

impl Lane {
    /// Takes the connection if it was opened. Returns whether the lane has just been opened, or has failed to open.
    fn take_opened(&mut self) -> bool {
        let LaneState::Opening(opened) = &self.state else {
            return false;
        };
        let opened = match opened.try_recv() {
            Err(TryRecvError::Empty) => return false,
            Ok(opened) => opened,
            Err(TryRecvError::Disconnected) => Err(unavailable("connecting panicked")),
        };
        match opened {
            Ok((socket, took)) => {
                self.pause = FIRST_PAUSE;
                self.failure = None;
                self.took = self.took.max(took);
                self.state = LaneState::Open(Box::new(Open {
                    socket,
                    missing: VecDeque::new(),
                    sent: Instant::now(),
                }));
            }
            Err(failure) => {
                self.close();
                self.failure = Some(failure);
            }
        }
        true
    }

    fn close(&mut self) {
        self.state = LaneState::Closed(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Forgets the parts. No answer that comes from now on is one to them.
    fn end_exchange(&mut self) {
        self.parts.clear();
        if let LaneState::Open(open) = &mut self.state {
            for missing in &mut open.missing {
                *missing = Missing::Late;
            }
        }
    }

    /// Returns whether the exchange waits for this lane: it is being opened, or answers are missing.
    fn is_waited_for(&self) -> bool {
        !self.parts.is_empty()
            && match &self.state {
                LaneState::Closed(_) => false,
                // A master that has failed may hang.
                LaneState::Opening(_) => self.failure.is_none(),
                LaneState::Open(open) => !open.missing.is_empty(),
            }
    }

    /// Reads and drops answers to an earlier exchange. Closes the lane if they are overdue.
    fn drop_late_answers(&mut self, shared: &ClusterState) {
        let LaneState::Open(open) = &mut self.state else {
            return;
        };
        if open.missing.is_empty() {
            return;
        }
        let waited = open.sent.elapsed();
        let dropped = open.read().and_then(|()| {
            while !open.missing.is_empty() {
                if open.socket.take()?.is_none() {
                    break;
                }
                open.missing.pop_front();
            }
            Ok(())
        });
        let (is_whole, io_timeout) = (open.missing.is_empty(), self.master.route.io_timeout);
        if is_whole {
            // It may have come at any time until now.
            self.took = self.took.max(waited.min(SHORTEST_GRACE * 2));
            self.master.note_answer();
        }
        if dropped.is_err() || (!is_whole && waited >= io_timeout) {
            self.close();
            self.failure = Some(unavailable("the node has not answered an earlier request"));
            shared.suspect(&self.master);
        }
    }
}

impl Open {
    /// Reads what has come. Does not block for long.
    fn read(&mut self) -> Result<(), TransportError> {
        loop {
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            let now = Timespec::default();
            let is_ready = poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0);
            if !is_ready {
                return Ok(());
            }
            match self.socket.read(REST) {
                Err(TransportError::Io(error)) if error.kind() == ErrorKind::TimedOut => {
                    return Ok(());
                }
                read => read?,
            }
        }
    }
}

/// Connects, logs in, and has the server load the script of renewals. Each step has its own time limit. Returns what the
/// last step took.
fn open(route: &Route) -> Result<(Socket, Duration), Failure> {
    let mut socket = connect(route, &Budget::unlimited())?;
    // An empty renewal by digest, and then by text, which loads the script.
    let renewal = Request::Renew(&[]);
    let by_digest = script::encode(&renewal, &route.script_settings);
    let by_text = by_digest.by_text();
    let heard = |number, value| match value {
        Value::ServerError(error) if number > 0 => Err(refusal(&route.server, error)),
        _ => Ok(()),
    };
    let begun = Instant::now();
    let asked = socket.requests(&[by_digest, by_text], route.io_timeout, heard);
    asked.map_err(|fault| route.broken(fault))??;
    Ok((socket, begun.elapsed()))
}
