//! One connection to one node. Several requests may be on their way, so a caller need not wait for an answer that it
//! does not need.
//!
//! The server answers in the order of the requests. The line notes for each of them whether somebody still waits for
//! the answer. A late answer is read at the next use of the line, and dropped. So a release that follows an acquire on
//! the same line is executed after it, whether or not the acquire was answered.
//!
//! A new line asks the server which process it is, for how long it has been up, and whether it is a master
//! ([`super::node`]). In the same write it has the server load the scripts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use redis::Value;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock::{Clock, SystemClock, Time};
use crate::error::{Failure, FailureKind, Outcome};
use crate::script;
use crate::store::login::connect;
use crate::store::quorum::Shared;
use crate::store::quorum::node::{Leftover, QuorumNode};
use crate::store::refusal::refusal;
use crate::store::route::Budget;
use crate::store::socket::{Socket, TransportError};
use crate::sync::Arc;

/// The largest number of late answers on one line. Far below what the buffers of a connection hold, so that no write
/// blocks.
const MOST_LATE: usize = 32;

pub(super) struct Line {
    shared: Arc<Shared>,
    number: usize,
    socket: Option<Socket>,
    /// The requests without an answer, in the order in which they were sent.
    unanswered: VecDeque<Unanswered>,
    /// How many of them the caller waits for: the last ones.
    wanted: usize,
    used: Instant,
}

struct Unanswered {
    sent: Time,
    /// The owner that may be left at the node if the connection breaks before this answer.
    leftover: Option<Box<Leftover>>,
}

impl Line {
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Self {
            shared,
            number,
            socket: None,
            unanswered: VecDeque::new(),
            wanted: 0,
            used: Instant::now(),
        }
    }

    pub(super) fn node(&self) -> &QuorumNode {
        &self.shared.nodes[self.number]
    }

    pub(super) fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }

    /// Returns whether the caller waits for an answer.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted > 0
    }

    pub(super) fn close_if_idle(&mut self, idle: Duration) {
        if self.used.elapsed() >= idle && self.unanswered.is_empty() {
            self.socket = None;
        }
    }

    /// Sends packed commands, after it has connected if needed. Their answers come from [`Self::answer`].
    ///
    /// # Errors
    ///
    /// Returns the reason why the node was not asked, or why the line broke.
    pub(super) fn send(&mut self, packed: &[u8], commands: usize) -> Result<(), Failure> {
        self.check_late()?;
        self.used = Instant::now();
        let limit = self.shared.node_timeout;
        if self.socket.is_none() {
            let opened = self.open(limit);
            opened.inspect_err(|failure| self.shared.node_is_down(self.number, failure))?;
        }
        self.write(packed, commands, None)?;
        self.wanted += commands;
        Ok(())
    }

    /// Sends a command for whose answer nobody waits. If the line breaks before the answer, `leftover` is released in the
    /// background. Does the same at once if the line is not open.
    pub(super) fn send_and_forget(&mut self, packed: &[u8], leftover: Leftover) {
        if self.socket.is_none() {
            self.shared.keep_leftover(self.number, leftover);
            return;
        }
        // A failure keeps the leftover.
        self.write(packed, 1, Some(Box::new(leftover))).ok();
    }

    fn write(
        &mut self,
        packed: &[u8],
        commands: usize,
        leftover: Option<Box<Leftover>>,
    ) -> Result<(), Failure> {
        let sent = SystemClock.now();
        for _ in 1..commands {
            self.unanswered.push_back(Unanswered {
                sent,
                leftover: None,
            });
        }
        self.unanswered.push_back(Unanswered { sent, leftover });
        let limit = self.shared.node_timeout;
        match &mut self.socket {
            Some(socket) => socket
                .write(packed, limit)
                .map_err(|error| self.broken(TransportError::Io(error))),
            None => Ok(()),
        }
    }

    /// Returns the next answer that the caller waits for, if it was read.
    pub(super) fn answer(&mut self) -> Result<Option<Value>, Failure> {
        while self.is_wanted() {
            let Some(socket) = &mut self.socket else {
                break;
            };
            match socket.take() {
                Ok(None) => return Ok(None),
                Ok(Some(value)) => {
                    let is_late = self.unanswered.len() > self.wanted;
                    self.unanswered.pop_front();
                    self.node().heard();
                    if is_no_script(&value) {
                        // The scripts were flushed. A new line loads them.
                        return Err(self.flushed());
                    }
                    if !is_late {
                        self.wanted -= 1;
                        return Ok(Some(value));
                    }
                }
                Err(fault) => return Err(self.broken(fault)),
            }
        }
        Ok(None)
    }

    /// Reads what has come. The caller knows that something has.
    pub(super) fn read(&mut self) -> Result<(), Failure> {
        let limit = self.shared.node_timeout;
        match self.socket.as_mut().map(|socket| socket.read(limit)) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(fault)) => Err(self.broken(fault)),
        }
    }

    pub(super) fn has_hidden_bytes(&mut self) -> bool {
        self.socket.as_mut().is_some_and(Socket::has_hidden_bytes)
    }

    /// Returns whether there is something to read.
    fn is_readable(&mut self) -> bool {
        if self.has_hidden_bytes() {
            return true;
        }
        let Some(socket) = &self.socket else {
            return false;
        };
        let mut polled = [PollFd::new(socket, PollFlags::IN)];
        let none = Timespec::try_from(Duration::ZERO).ok();
        poll(&mut polled, none.as_ref()).is_ok_and(|ready| ready > 0)
    }

    /// Stops waiting. Later answers are dropped.
    pub(super) fn give_up(&mut self) {
        self.wanted = 0;
    }

    /// Stops waiting after `waited`, because the time is over. Ends the line if that was the whole `node_timeout`.
    pub(super) fn timed_out(&mut self, waited: Duration) -> Failure {
        let late = TransportError::Io(std::io::ErrorKind::TimedOut.into());
        if waited >= self.shared.node_timeout {
            return self.broken(late);
        }
        self.give_up();
        self.node().route.broken(late)
    }

    /// Ends the line if an answer is overdue, or if too many are missing.
    fn check_late(&mut self) -> Result<(), Failure> {
        let Some(oldest) = self.unanswered.front().map(|oldest| oldest.sent) else {
            return Ok(());
        };
        let is_overdue = |now: Time| now.since(oldest) >= self.shared.node_timeout;
        if !is_overdue(SystemClock.now()) && self.unanswered.len() < MOST_LATE {
            return Ok(());
        }
        // The answers may have come long ago.
        while let Some(socket) = &mut self.socket {
            let taken = socket.take();
            match taken {
                Ok(Some(_)) => {
                    self.unanswered.pop_front();
                    self.node().heard();
                }
                Ok(None) if !self.unanswered.is_empty() && self.is_readable() => {
                    self.read()?;
                }
                Ok(None) => break,
                Err(fault) => return Err(self.broken(fault)),
            }
        }
        match self.unanswered.front().map(|oldest| oldest.sent) {
            Some(oldest) if SystemClock.now().since(oldest) >= self.shared.node_timeout => {
                Err(self.timed_out(self.shared.node_timeout))
            }
            _ if self.unanswered.len() >= MOST_LATE => {
                let words = format!("{}: too many answers are missing", self.address());
                Err(Failure::plain(
                    FailureKind::Unavailable,
                    Outcome::NotExecuted,
                    words,
                ))
            }
            _ => Ok(()),
        }
    }

    /// Ends the line. Notes the node as down, unless it has answered on another line since the oldest request here.
    fn broken(&mut self, fault: TransportError) -> Failure {
        let failure = self.node().route.broken(fault);
        let oldest = self.unanswered.front().map(|oldest| oldest.sent);
        self.close();
        if !oldest.is_some_and(|sent| self.node().was_heard_since(sent)) {
            self.shared.node_is_down(self.number, &failure);
        }
        failure
    }

    /// Ends the line because the server does not have the scripts any more.
    fn flushed(&mut self) -> Failure {
        self.close();
        let words = format!("{}: the scripts were flushed", self.address());
        Failure::plain(FailureKind::Unavailable, Outcome::Unknown, words)
    }

    fn close(&mut self) {
        self.socket = None;
        self.wanted = 0;
        for unanswered in self.unanswered.drain(..) {
            if let Some(leftover) = unanswered.leftover {
                self.shared.keep_leftover(self.number, *leftover);
            }
        }
    }

    fn address(&self) -> &str {
        &self.node().route.server.address
    }

    /// Connects within `limit`, and asks the server what it is.
    pub(super) fn open(&mut self, limit: Duration) -> Result<(), Failure> {
        let (shared, number) = (Arc::clone(&self.shared), self.number);
        let route = &shared.nodes[number].route;
        let budget = Budget::new(limit);
        let mut socket = connect(route, &budget)?;
        let mut commands = vec![
            redis::cmd("INFO").arg("server").to_owned(),
            redis::cmd("INFO").arg("replication").to_owned(),
        ];
        commands.extend(script::quorum::load());
        let mut report = String::new();
        let heard = |_, answer| match answer {
            Value::ServerError(error) => {
                route.cuts.note_answer(&error);
                Err(refusal(&route.server, error))
            }
            Value::BulkString(bytes) => {
                report.push_str(&String::from_utf8_lossy(&bytes));
                Ok(())
            }
            _ => Ok(()),
        };
        let asked = socket.requests(&commands, budget.left(limit), heard);
        let answered = asked.map_err(|fault| route.broken(fault));
        answered
            .and_then(|answered| answered)
            .map_err(not_executed)?;
        shared.identify(number, &report)?;
        self.node().heard();
        self.socket = Some(socket);
        self.unanswered.clear();
        self.wanted = 0;
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.close();
    }
}

fn is_no_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Returns the failure of a request that was not sent, because this came before.
fn not_executed(failure: Failure) -> Failure {
    Failure {
        outcome: Outcome::NotExecuted,
        ..failure
    }
}
