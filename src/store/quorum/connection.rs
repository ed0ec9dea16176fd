//! One connection to one node. Several requests may be on their way, so a caller need not wait for an answer that it
//! does not need.
//!
//! The server answers in the order of the requests. The connection notes for each of them whether somebody still waits
//! for the answer. A late answer is read at the next use of the connection, and dropped. So a release that follows an
//! acquire on the same connection is executed after it, whether or not the acquire was answered.
//!
//! A new connection asks the server which process it is, for how long it has been up, and whether it is a master
//! ([`super::node`]). In the same write it has the server load the scripts.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use redis::Value;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock::{Clock, SystemClock, Time};
use crate::error::{Failure, FailureKind, Outcome};
use crate::script::{self, Command};
use crate::store::cuts::CLOSED;
use crate::store::login;
use crate::store::quorum::Shared;
use crate::store::quorum::node::{Orphan, QuorumNode};
use crate::store::refusal::refusal;
use crate::store::route::Budget;
use crate::store::socket::{Socket, TransportError};
use crate::sync::Arc;

/// The largest number of answers that may be missing on a connection before it is left out.
const MOST_MISSING: usize = 32;
/// The shortest time limit of a connect or a read.
const SHORTEST: Duration = Duration::from_millis(1);
/// After this pause a connection looks whether the server has closed it, before it is used.
const LOOKS_AFTER: Duration = Duration::from_millis(10);

pub(super) struct NodeConnection {
    shared: Arc<Shared>,
    number: usize,
    socket: Option<Socket>,
    /// The requests without an answer, in the order in which they were sent.
    unanswered: VecDeque<Unanswered>,
    /// How many of them the caller waits for: the last ones.
    wanted: usize,
    /// The last request for whose answers the caller waits.
    request: Vec<Command>,
    /// The time from the last request whose answer the caller waited for until it took that answer.
    took: Duration,
    used: Instant,
}

struct Unanswered {
    sent: Time,
    /// The owner that may be left at the node if this request is not executed.
    orphan: Option<Box<Orphan>>,
}

impl NodeConnection {
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Self {
            shared,
            number,
            socket: None,
            unanswered: VecDeque::new(),
            wanted: 0,
            request: Vec::new(),
            took: Duration::ZERO,
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

    /// Returns the time from the last request whose answer the caller waited for until it took that answer.
    pub(super) fn took(&self) -> Duration {
        self.took
    }

    pub(super) fn close_if_idle(&mut self, idle: Duration) {
        if self.used.elapsed() >= idle {
            self.read_and_close();
        }
    }

    /// Looks at the connection before a request: reads late answers, and closes the connection if its end has come.
    ///
    /// # Errors
    ///
    /// Returns the reason why the node is not asked.
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        self.node().check_up()?;
        let has_news = |this: &mut Self| {
            this.used.elapsed() >= LOOKS_AFTER && this.is_readable(Duration::ZERO)
        };
        let oldest = self.unanswered.front().map(|oldest| oldest.sent);
        let is_overdue = oldest.is_some_and(|sent| self.is_overdue(sent));
        if is_overdue
            || self.unanswered.len() >= MOST_MISSING
            || (oldest.is_some() && has_news(self))
        {
            let read = self.read_missing();
            if self.socket.is_some() {
                read?;
            }
        }
        if self.unanswered.is_empty() && has_news(self) {
            // No answer is missing, so this is the end of the connection.
            self.close();
        }
        // The end of the connection may have shown that the node is down.
        self.node().check_up()
    }

    /// Connects for a call that ends at `until`, unless the connection is open.
    ///
    /// # Errors
    ///
    /// Returns the reason why the node is not asked.
    pub(super) fn connect(&mut self, until: Instant) -> Result<(), Failure> {
        if self.socket.is_some() {
            return Ok(());
        }
        let node_timeout = self.shared.node_timeout;
        let left = until.saturating_duration_since(Instant::now());
        // Half of the time is for the request itself.
        let limit = (left / 2).clamp(SHORTEST, node_timeout);
        self.open(limit).inspect_err(|failure| {
            // A node that had less than its time may be well.
            if limit == node_timeout || !failure.timed_out {
                self.shared.node_is_down(self.number, failure);
            }
        })
    }

    /// Sends commands on an open connection. Their answers come from [`Self::answer`].
    pub(super) fn send(&mut self, commands: &[Command]) -> Result<(), Failure> {
        self.used = Instant::now();
        self.request.clear();
        self.request.extend_from_slice(commands);
        self.write(commands, None)?;
        self.wanted = commands.len();
        Ok(())
    }

    /// Sends a command for whose answer nobody waits. If the node may not execute it, `orphan` is released in the
    /// background.
    pub(super) fn send_and_forget(&mut self, command: &Command, orphan: Option<Orphan>) {
        if self.socket.is_some() {
            // A failure keeps the orphan.
            let commands = std::slice::from_ref(command);
            self.write(commands, orphan.map(Box::new)).ok();
        } else if let Some(orphan) = orphan {
            self.shared.keep_orphan(self.number, orphan);
        }
    }

    /// Has `orphan` released in the background, unless the node executes a command that has no answer yet: the
    /// `from_last`th before the last.
    pub(super) fn release_later(&mut self, from_last: usize, orphan: Orphan) {
        match self.unanswered.iter_mut().nth_back(from_last) {
            Some(command) => command.orphan = Some(Box::new(orphan)),
            None => self.shared.keep_orphan(self.number, orphan),
        }
    }

    fn write(&mut self, commands: &[Command], orphan: Option<Box<Orphan>>) -> Result<(), Failure> {
        let mut packed = Vec::new();
        for command in commands {
            command.pack(&mut packed);
        }
        let sent = SystemClock.now();
        for _ in 1..commands.len() {
            self.unanswered.push_back(Unanswered { sent, orphan: None });
        }
        self.unanswered.push_back(Unanswered { sent, orphan });
        let limit = self.shared.node_timeout;
        match &mut self.socket {
            Some(socket) => socket
                .write(&packed, limit)
                .map_err(|error| self.broken(TransportError::Io(error))),
            None => Ok(()),
        }
    }

    /// Returns the next answer that the caller waits for, if it was read.
    pub(super) fn answer(&mut self) -> Result<Option<Value>, Failure> {
        while self.is_wanted() {
            match self.take()? {
                None => return Ok(None),
                Some((value, is_late)) if !is_late => return Ok(Some(value)),
                Some(_) => {}
            }
        }
        Ok(None)
    }

    /// Returns the next answer, if it was read, and whether nobody waits for it.
    fn take(&mut self) -> Result<Option<(Value, bool)>, Failure> {
        let Some(socket) = &mut self.socket else {
            return Ok(None);
        };
        let value = match socket.take() {
            Ok(Some(value)) => value,
            Ok(None) => return Ok(None),
            Err(fault) => return Err(self.broken(fault)),
        };
        let is_late = self.unanswered.len() > self.wanted;
        let Some(answered) = self.unanswered.pop_front() else {
            let words = "more answers than requests".to_owned();
            return Err(self.broken(TransportError::Malformed(words)));
        };
        let now = SystemClock.now();
        self.node().heard(now, is_late);
        if !is_late {
            self.took = now.since(answered.sent);
        }
        if let (Value::ServerError(_), Some(orphan)) = (&value, answered.orphan) {
            self.shared.keep_orphan(self.number, *orphan);
        }
        if is_late {
            return Ok(Some((value, true)));
        }
        if is_no_script(&value) {
            // The scripts were flushed. Send this command and those after it again, with the texts of the scripts. The
            // answers to the first copies are late answers from now on. A text gets no such answer, so this happens
            // once.
            let answered = self.request.len() - self.wanted;
            let texts = self.request.iter().skip(answered).map(Command::by_text);
            self.write(&texts.collect::<Vec<_>>(), None)?;
            return Ok(Some((value, true)));
        }
        self.wanted -= 1;
        Ok(Some((value, false)))
    }

    /// Reads what has come. The caller knows that something has. But that may be a part of a TLS record, which cannot be
    /// read before the rest comes. So this blocks for at most `limit`.
    pub(super) fn read(&mut self, limit: Duration) -> Result<(), Failure> {
        let limit = limit.max(SHORTEST);
        match self.socket.as_mut().map(|socket| socket.read(limit)) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(fault)) if fault.is_timeout() => Ok(()),
            Some(Err(fault)) => Err(self.broken(fault)),
        }
    }

    /// Waits for at most `limit` until there is something to read. Returns whether there is.
    pub(super) fn is_readable(&mut self, limit: Duration) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        let mut polled = [PollFd::new(socket, PollFlags::IN)];
        let limit = Timespec::try_from(limit).ok();
        poll(&mut polled, limit.as_ref()).is_ok_and(|ready| ready > 0)
    }

    /// Stops waiting. Later answers are dropped.
    pub(super) fn give_up(&mut self) {
        self.wanted = 0;
    }

    /// Stops waiting after `waited`, because the time is over. If that was `node_timeout`, and the node has answered
    /// nobody since, the node is down. The connection stays open, because the node executes the next request on it
    /// after this one.
    pub(super) fn timed_out(&mut self, waited: Duration) -> Failure {
        self.give_up();
        let failure = self.node().route.broken(timeout());
        let oldest = self.unanswered.front().map(|oldest| oldest.sent);
        if waited >= self.shared.node_timeout
            && oldest.is_some_and(|sent| !self.node().was_heard_since(sent))
        {
            self.shared.node_is_down(self.number, &failure);
        }
        failure
    }

    /// Reads answers that are overdue, or of which too many are missing. Ends the connection if they have not come.
    fn read_missing(&mut self) -> Result<(), Failure> {
        loop {
            while self.take()?.is_some() {}
            if self.unanswered.is_empty() || !self.is_readable(Duration::ZERO) {
                break;
            }
            self.read(SHORTEST)?;
        }
        match self.unanswered.front() {
            Some(oldest) if self.is_overdue(oldest.sent) => Err(self.broken(timeout())),
            _ if self.unanswered.len() >= MOST_MISSING => {
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

    fn is_overdue(&self, sent: Time) -> bool {
        SystemClock.now().since(sent) >= self.shared.node_timeout
    }

    /// Ends the connection. If the server has not just closed the connection, and has answered nobody since the oldest
    /// request here, the node is down.
    fn broken(&mut self, fault: TransportError) -> Failure {
        let is_closed =
            matches!(&fault, TransportError::Io(error) if CLOSED.contains(&error.kind()));
        let failure = self.node().route.broken(fault);
        let oldest = self.unanswered.front().map(|oldest| oldest.sent);
        self.close();
        // If the server is gone, the next connection is refused, and then the node is down.
        if !is_closed && !oldest.is_some_and(|sent| self.node().was_heard_since(sent)) {
            self.shared.node_is_down(self.number, &failure);
        }
        failure
    }

    /// Closes the connection, after the answers that have come were read. So nothing that the node has done is done
    /// again.
    fn read_and_close(&mut self) {
        if !self.unanswered.is_empty() {
            // A failure closes the connection, or says that answers are missing.
            self.read_missing().ok();
        }
        self.close();
    }

    fn close(&mut self) {
        self.socket = None;
        self.wanted = 0;
        for unanswered in self.unanswered.drain(..) {
            if let Some(orphan) = unanswered.orphan {
                self.shared.keep_orphan(self.number, *orphan);
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
        let mut socket = login::connect(route, &budget)?;
        let mut commands = vec![
            Command::new("INFO").arg("server").to_owned(),
            Command::new("INFO").arg("replication").to_owned(),
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
        self.node().heard(SystemClock.now(), true);
        self.socket = Some(socket);
        self.unanswered.clear();
        self.wanted = 0;
        Ok(())
    }
}

impl Drop for NodeConnection {
    fn drop(&mut self) {
        self.read_and_close();
    }
}

fn timeout() -> TransportError {
    TransportError::Io(ErrorKind::TimedOut.into())
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
