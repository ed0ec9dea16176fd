//! The connections of the renewal thread: a *lane* for each master, outside the pools.
//!
//! One exchange writes to all lanes that it needs before it reads an answer, and reads the answers as they come. So the
//! failure of one master delays no other's answers.
//!
//! | state of a lane | event | next state |
//! | --- | --- | --- |
//! | closed | an exchange needs it, and its pause is over | opening, on a short-lived thread |
//! | opening | it is open: logged in, and the script of renewals is loaded | open; the commands of a waiting exchange are written |
//! | opening | a failure | closed; each further pause is twice as long |
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
//! lane took lately, and at least [`SHORTEST_GRACE`]. So a master that hangs delays the others once, by its grace.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use redis::Value;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::map::Address;
use super::{Master, Shared, unavailable, wake, wakers};
use crate::error::{Failure, FailureKind, Outcome};
use crate::message::Request;
use crate::script::{self, ScriptRef};
use crate::store::errors::RequestError;
use crate::store::login::connect;
use crate::store::refusal::refusal;
use crate::store::route::{Budget, Route};
use crate::store::socket::{Socket, TransportError};
use crate::sync::{Arc, Ordering, thread};

/// The shortest grace of a lane.
const SHORTEST_GRACE: Duration = Duration::from_millis(200);
/// The pause before a lane is opened again. It doubles up to the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest wait for the rest of a TLS record, of which a part has come.
const REST: Duration = Duration::from_millis(1);
/// How much earlier than the exchange a wait for replicas ends: the server's timer runs every 100 ms.
const LATE_ANSWER: Duration = Duration::from_millis(110);

/// A command for one master. The exchange encodes it when it writes it.
pub(super) struct Part {
    pub(super) master: Arc<Master>,
    /// Whether the slot is moving to this master.
    pub(super) is_asking: bool,
}

/// How an exchange goes.
pub(super) struct Exchange<'a> {
    /// Encodes the part of this number.
    pub(super) encode: &'a dyn Fn(usize, ScriptRef) -> redis::Cmd,
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
    /// What the last answers took.
    took: Duration,
    /// The numbers of the parts to write in this exchange.
    parts: Vec<usize>,
    /// Whether the lane was opened before this exchange.
    is_reused: bool,
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

    fn lane(&mut self, master: &Arc<Master>) -> OpenableLane<'_> {
        let new = || Lane {
            master: Arc::clone(master),
            state: LaneState::Closed(Instant::now()),
            pause: FIRST_PAUSE,
            took: Duration::ZERO,
            parts: Vec::new(),
            is_reused: false,
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
        shared: &Shared,
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
            by: vec![ScriptRef::Digest; parts.len()],
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
            run.begin(lane.lane);
        }
        // 3. Read the answers as they come.
        loop {
            for lane in self.by_address.values_mut() {
                if lane.take_opened() {
                    run.begin(lane);
                }
                if run.read(lane) {
                    // The server has closed the connection of an earlier exchange.
                    OpenableLane {
                        lane,
                        waker: &self.waker,
                    }
                    .open_if_due();
                }
            }
            let waiting = self.by_address.values().filter(|lane| lane.is_waited_for());
            let grace = waiting.map(|lane| SHORTEST_GRACE.max(lane.took * 2)).max();
            let Some(grace) = grace else { break };
            let (now, until) = (Instant::now(), begun + grace.min(how.limit));
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
        for lane in self.by_address.values() {
            if let LaneState::Open(open) = &lane.state {
                if !open.missing.is_empty() {
                    polled.push(PollFd::new(&open.socket, PollFlags::IN));
                }
            }
        }
        // An error means that a signal came, or that the system has no memory: look again.
        poll(&mut polled, Timespec::try_from(limit).ok().as_ref()).ok();
        let mut piece = [0; 64];
        while (&self.woken).read(&mut piece).is_ok_and(|read| read > 0) {}
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
        let (sender, opened) = channel();
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
                self.took = self.took.max(took);
                self.state = LaneState::Open(Box::new(Open {
                    socket,
                    missing: VecDeque::new(),
                    sent: Instant::now(),
                }));
            }
            Err(_) => self.close(),
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
                LaneState::Opening(_) => true,
                LaneState::Open(open) => !open.missing.is_empty(),
            }
    }

    /// Reads and drops answers to an earlier exchange. Closes the lane if they are overdue.
    fn drop_late_answers(&mut self, shared: &Shared) {
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
            self.took = waited.min(io_timeout);
            self.master.note_answer();
        }
        if dropped.is_err() || (!is_whole && waited >= io_timeout) {
            self.close();
            shared.suspect(&self.master);
        }
    }
}

impl Open {
    /// Reads what has come, also the part of a TLS record that no poll shows. Does not block for long.
    fn read(&mut self) -> Result<(), TransportError> {
        loop {
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            let now = Timespec::default();
            let is_ready = poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0);
            if !is_ready && !self.socket.has_hidden_bytes() {
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

/// An exchange that is under way.
struct Running<'a> {
    how: &'a Exchange<'a>,
    parts: &'a [Part],
    shared: &'a Shared,
    /// How each part names its script.
    by: Vec<ScriptRef>,
    answers: Vec<Option<Result<Value, Failure>>>,
    is_resent: bool,
}

impl Running<'_> {
    /// Writes the parts of a lane, if it is open and misses no answer. If it cannot take them, they have failed.
    fn begin(&mut self, lane: &mut Lane) {
        let words = match &lane.state {
            LaneState::Opening(_) => return,
            LaneState::Open(open) if open.missing.is_empty() => {
                self.write(lane);
                return;
            }
            LaneState::Open(_) => "the node has not answered an earlier request",
            LaneState::Closed(_) => "the connection to the node could not be opened",
        };
        let address = &lane.master.route.server.address;
        let failure = unavailable(format!("{address}: {words}"));
        self.fail(lane, &failure);
    }

    fn write(&mut self, lane: &mut Lane) {
        let LaneState::Open(open) = &mut lane.state else {
            return;
        };
        let route = &lane.master.route;
        let mut packed = Vec::new();
        for number in lane.parts.iter().copied() {
            if self.answers[number].is_some() {
                continue;
            }
            if self.parts[number].is_asking {
                redis::cmd("ASKING").write_packed_command(&mut packed);
                open.missing.push_back(Missing::Asking);
            }
            (self.how.encode)(number, self.by[number]).write_packed_command(&mut packed);
            open.missing.push_back(Missing::Part(number));
        }
        if self.how.is_gain && route.replicas > 0 {
            let limit = self.how.limit;
            let patience = limit.saturating_sub(LATE_ANSWER).max(limit / 2);
            let patience = patience.as_millis().max(1) as u64;
            redis::cmd("WAIT")
                .arg(route.replicas)
                .arg(patience)
                .write_packed_command(&mut packed);
            open.missing.push_back(Missing::Replicas);
        }
        open.sent = Instant::now();
        if let Err(error) = open.socket.write(&packed, SHORTEST_GRACE) {
            self.broken(lane, TransportError::Io(error));
        }
    }

    /// Reads the answers that have come on a lane. Returns whether the lane must be opened again.
    fn read(&mut self, lane: &mut Lane) -> bool {
        let LaneState::Open(open) = &mut lane.state else {
            return false;
        };
        if lane.parts.is_empty() || open.missing.is_empty() {
            return false;
        }
        let read = open.read();
        let mut is_unknown_script = false;
        let fault = loop {
            match open.socket.take() {
                Err(fault) => break Some(fault),
                Ok(None) => break read.err(),
                Ok(Some(value)) => match open.missing.pop_front() {
                    None => {
                        let words = "more answers than requests".to_owned();
                        break Some(TransportError::Malformed(words));
                    }
                    Some(Missing::Asking | Missing::Late) => {}
                    Some(Missing::Part(number)) => {
                        let is_unknown = matches!(&value, Value::ServerError(error)
                            if error.code() == "NOSCRIPT")
                            && self.by[number] == ScriptRef::Digest;
                        if is_unknown {
                            self.by[number] = ScriptRef::Text;
                            is_unknown_script = true;
                        } else {
                            self.answers[number] = Some(Ok(value));
                        }
                    }
                    Some(Missing::Replicas) => {
                        let confirmed = match value {
                            Value::Int(count) => u32::try_from(count).unwrap_or(0),
                            _ => 0,
                        };
                        self.confirmed(&lane.parts, lane.master.route.replicas, confirmed);
                    }
                },
            }
        };
        if let Some(fault) = fault {
            return self.broken(lane, fault);
        }
        if open.missing.is_empty() {
            let took = open.sent.elapsed();
            lane.took = if took >= lane.took {
                took
            } else {
                // One fast answer does not make a fast link.
                (lane.took * 3 + took) / 4
            };
            lane.master.note_answer();
            if is_unknown_script {
                self.write(lane);
            }
        }
        false
    }

    /// Ends the exchange for a lane. Writes whose replicas have not been counted are not confirmed.
    fn end(&mut self, lane: &mut Lane) {
        let is_uncounted = match &lane.state {
            LaneState::Open(open) => open.missing.contains(&Missing::Replicas),
            LaneState::Closed(_) | LaneState::Opening(_) => true,
        };
        let wanted = lane.master.route.replicas;
        if is_uncounted && self.how.is_gain {
            self.confirmed(&lane.parts, wanted, 0);
        }
        lane.end_exchange();
    }

    /// Takes in how many replicas have the writes of these parts.
    fn confirmed(&mut self, parts: &[usize], wanted: u32, confirmed: u32) {
        if confirmed >= wanted {
            return;
        }
        let kind = FailureKind::NotReplicated { wanted, confirmed };
        let words = format!("{confirmed} of {wanted} replicas confirmed it in time");
        let failure = Failure::plain(kind, Outcome::PartlyExecuted, words);
        for number in parts {
            if matches!(&self.answers[*number], Some(Ok(Value::Array(_)))) {
                self.answers[*number] = Some(Err(failure.clone()));
            }
        }
    }

    /// Closes a lane. Returns whether it must be opened again, for the same parts.
    fn broken(&mut self, lane: &mut Lane, fault: TransportError) -> bool {
        let again = match RequestError::of(fault) {
            RequestError::Closed(error) if lane.is_reused => {
                lane.master.route.cuts.note_error(&error);
                self.is_resent = true;
                lane.is_reused = false;
                lane.state = LaneState::Closed(Instant::now());
                if self.how.is_gain && lane.master.route.replicas > 0 {
                    // Replicas are counted on the connection of the writes, so all are written once more.
                    for number in &lane.parts {
                        self.answers[*number] = None;
                    }
                }
                return true;
            }
            trouble => trouble.into_failure(&lane.master.route),
        };
        self.shared.suspect(&lane.master);
        lane.close();
        self.fail(lane, &again);
        false
    }

    /// Gives this failure to the parts of a lane that have no answer. The exchange goes on without the lane.
    fn fail(&mut self, lane: &mut Lane, failure: &Failure) {
        for number in &lane.parts {
            let resent = self.is_resent;
            self.answers[*number].get_or_insert_with(|| {
                let outcome = if resent {
                    Outcome::Unknown
                } else {
                    failure.outcome
                };
                Err(Failure {
                    outcome,
                    ..failure.clone()
                })
            });
        }
        self.end(lane);
    }
}

/// Connects, logs in, and has the server load the script of renewals. Each step has its own time limit. Returns what the
/// last step took.
fn open(route: &Route) -> Result<(Socket, Duration), Failure> {
    let mut socket = connect(route, &Budget::unlimited())?;
    // An empty renewal by digest, and then by text, which loads the script.
    let renewal = Request::Renew(&[]);
    let commands = [ScriptRef::Digest, ScriptRef::Text]
        .map(|by| script::encode(&renewal, by, &route.script_settings));
    let heard = |number, value| match value {
        Value::ServerError(error) if number > 0 => Err(refusal(&route.server, error)),
        _ => Ok(()),
    };
    let begun = Instant::now();
    let asked = socket.requests(&commands, route.io_timeout, heard);
    asked.map_err(|fault| route.broken(fault))??;
    Ok((socket, begun.elapsed()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::super::Cluster;
    use super::*;
    use crate::config::{ClusterNodes, Settings};
    use crate::store::frame::Frame;
    use crate::sync::AtomicBool;

    /// A server that answers each command with its last word, unless it is held.
    struct Echo {
        address: Address,
        is_held: Arc<AtomicBool>,
    }

    impl Echo {
        fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = Address {
                host: "127.0.0.1".into(),
                port: listener.local_addr().expect("it is bound").port(),
            };
            let is_held = Arc::new(AtomicBool::new(false));
            let held = Arc::clone(&is_held);
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let (stream, held) = (stream.expect("a connection"), Arc::clone(&held));
                    thread::spawn(move || answer(stream, &held));
                }
            });
            Self { address, is_held }
        }
    }

    fn answer(mut stream: TcpStream, is_held: &AtomicBool) {
        let (mut received, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = stream.read(&mut piece) {
            received.extend_from_slice(&piece[..read]);
            while let Ok(Some(end)) = Frame::default().end(&received, 1 << 20) {
                let command = redis::parse_redis_value(&received[..end]);
                received.drain(..end);
                let Ok(Value::Array(words)) = command else {
                    return;
                };
                let Some(Value::BulkString(word)) = words.last() else {
                    return;
                };
                while is_held.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                let head = format!("${}\r\n", word.len());
                let line = [head.as_bytes(), word, b"\r\n"].concat();
                if stream.write_all(&line).is_err() {
                    return;
                }
            }
        }
    }

    /// Sends a word that was never sent before to each master. Returns whether each has answered with that word.
    fn ask(lanes: &mut Lanes, shared: &Shared, masters: &[Arc<Master>], word: &str) -> Vec<bool> {
        let parts: Vec<_> = masters
            .iter()
            .map(|master| Part {
                master: Arc::clone(master),
                is_asking: false,
            })
            .collect();
        let words = |number: usize| format!("{word} {number}");
        let how = Exchange {
            encode: &|number, _| redis::cmd("ECHO").arg(words(number)).to_owned(),
            limit: Duration::from_secs(20),
            is_gain: false,
        };
        let answers = lanes.exchange(shared, &parts, &how).answers;
        let answers = answers.into_iter().enumerate();
        answers
            .map(|(number, answer)| match answer {
                Ok(answer) => {
                    assert_eq!(answer, Value::BulkString(words(number).into_bytes()));
                    true
                }
                Err(failure) => {
                    assert_eq!(failure.kind, FailureKind::Unavailable);
                    false
                }
            })
            .collect()
    }

    #[test]
    fn a_lane_that_hangs_is_left_out_until_it_answers() {
        let settings = Settings::default();
        let nodes = ClusterNodes::new(&["redis://127.0.0.1:1/".to_owned()], &settings);
        let cluster = Cluster::new(nodes.expect("a URL"), &settings);
        let shared = &cluster.shared;
        let servers = [Echo::start(), Echo::start()];
        let masters = servers
            .each_ref()
            .map(|server| shared.new_master(&server.address));
        let mut lanes = Lanes::new().expect("a pair of sockets");
        let mut words = (0..).map(|number: u32| number.to_string());
        let mut ask_both = |lanes: &mut Lanes| {
            let word = words.next().expect("there is no end");
            ask(lanes, shared, &masters, &word)
        };
        let wait = |lanes: &mut Lanes, ask: &mut dyn FnMut(&mut Lanes) -> Vec<bool>| {
            let begun = Instant::now();
            while ask(lanes) != [true, true] {
                assert!(
                    begun.elapsed() < Duration::from_secs(20),
                    "they never answer"
                );
            }
        };
        lanes.open(&masters, Duration::from_secs(20));
        wait(&mut lanes, &mut ask_both);
        for _ in 0..3 {
            servers[1].is_held.store(true, Ordering::SeqCst);
            // On a busy machine the other may be late too.
            let begun = Instant::now();
            while ask_both(&mut lanes) != [true, false] {
                assert!(
                    begun.elapsed() < Duration::from_secs(20),
                    "it never answers"
                );
            }
            assert!(masters[1].is_suspected.load(Ordering::SeqCst));
            servers[1].is_held.store(false, Ordering::SeqCst);
            wait(&mut lanes, &mut ask_both);
            assert!(!masters[1].is_suspected.load(Ordering::SeqCst));
        }
    }

    /// The connection of an earlier exchange is used once more before its end is noticed.
    #[test]
    fn a_lane_whose_connection_was_closed_is_opened_again() {
        let settings = Settings::default();
        let nodes = ClusterNodes::new(&["redis://127.0.0.1:1/".to_owned()], &settings);
        let cluster = Cluster::new(nodes.expect("a URL"), &settings);
        let shared = &cluster.shared;
        let server = Echo::start();
        let masters = [shared.new_master(&server.address)];
        let mut lanes = Lanes::new().expect("a pair of sockets");
        let begun = Instant::now();
        let is_answered = |lanes: &mut Lanes, word: &str| {
            while ask(lanes, shared, &masters, word) != [true] {
                assert!(
                    begun.elapsed() < Duration::from_secs(20),
                    "it never answers"
                );
            }
        };
        is_answered(&mut lanes, "first");
        let lane = lanes.by_address.values_mut().next().expect("it was used");
        let LaneState::Open(open) = &mut lane.state else {
            panic!("it has just answered");
        };
        // The server ends a connection on which it gets nonsense.
        open.socket
            .write(b"+nonsense\r\n", Duration::from_secs(1))
            .expect("it is open");
        is_answered(&mut lanes, "second");
    }
}
