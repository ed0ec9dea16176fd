//! An exchange that is under way: it writes the parts of each lane, and reads their answers.

use std::time::{Duration, Instant};

use redis::Value;

use super::{Exchange, Lane, LaneState, Missing, Open, Part, SHORTEST_GRACE};
use crate::error::{Failure, FailureKind, Outcome};
use crate::script::Command;
use crate::store::cluster::{ClusterState, unavailable};
use crate::store::errors::RequestError;
use crate::store::socket::TransportError;

/// How much earlier than the exchange a wait for replicas ends: the server's timer runs every 100 ms.
const LATE_ANSWER: Duration = Duration::from_millis(110);

/// The parts of an exchange, and their answers so far.
pub(super) struct Running<'a> {
    pub(super) how: &'a Exchange<'a>,
    pub(super) parts: &'a [Part],
    pub(super) shared: &'a ClusterState,
    /// Whether each part is sent with the text of its script.
    pub(super) by_text: Vec<bool>,
    pub(super) answers: Vec<Option<Result<Value, Failure>>>,
    pub(super) is_resent: bool,
}

impl Running<'_> {
    /// Writes the parts of a lane, if it is open and misses no answer. If it cannot take them, they have failed. Returns
    /// whether the lane must be opened again.
    pub(super) fn begin(&mut self, lane: &mut Lane) -> bool {
        if lane.parts.is_empty() {
            return false;
        }
        let words = match &mut lane.state {
            LaneState::Opening(_) if lane.failure.is_none() => return false,
            LaneState::Opening(_) => "the connection is being opened after a failure",
            LaneState::Open(open) if open.missing.is_empty() => {
                if let Some(fault) = unexpected(open) {
                    return self.broken(lane, fault);
                }
                return self.write(lane);
            }
            LaneState::Open(_) => "the node has not answered an earlier request",
            LaneState::Closed(_) => "the connection to the node could not be opened",
        };
        let address = &lane.master.route.server.address;
        let failure = match &lane.failure {
            Some(failure) => Failure {
                outcome: Outcome::NotExecuted,
                ..failure.clone()
            },
            None => unavailable(format!("{address}: {words}")),
        };
        if lane.failure.is_some() {
            self.shared.suspect(&lane.master);
        }
        self.fail(lane, &failure);
        false
    }

    /// Writes the parts that have no answer. Returns whether the lane must be opened again.
    fn write(&mut self, lane: &mut Lane) -> bool {
        let LaneState::Open(open) = &mut lane.state else {
            return false;
        };
        let route = &lane.master.route;
        let mut packed = Vec::new();
        for number in lane.parts.iter().copied() {
            if self.answers[number].is_some() {
                continue;
            }
            if self.parts[number].is_asking {
                Command::new("ASKING").pack(&mut packed);
                open.missing.push_back(Missing::Asking);
            }
            let mut command = (self.how.encode)(number);
            if self.by_text[number] {
                command = command.by_text();
            }
            command.pack(&mut packed);
            open.missing.push_back(Missing::Part(number));
        }
        if self.how.is_gain && route.replicas > 0 {
            let limit = self.how.limit;
            let patience = limit.saturating_sub(LATE_ANSWER).max(limit / 2);
            let patience = patience.as_millis().max(1) as u64;
            Command::new("WAIT")
                .arg(route.replicas)
                .arg(patience)
                .pack(&mut packed);
            open.missing.push_back(Missing::Replicas);
        }
        open.sent = Instant::now();
        match open.socket.write(&packed, SHORTEST_GRACE) {
            Ok(()) => false,
            Err(error) => self.broken(lane, TransportError::Io(error)),
        }
    }

    /// Reads the answers that have come on a lane. Returns whether the lane must be opened again.
    pub(super) fn read(&mut self, lane: &mut Lane) -> bool {
        let LaneState::Open(open) = &mut lane.state else {
            return false;
        };
        if lane.parts.is_empty() || open.missing.is_empty() {
            return false;
        }
        let read = open.read();
        let (mut is_unknown_script, mut is_served) = (false, false);
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
                            && !self.by_text[number];
                        if is_unknown {
                            self.by_text[number] = true;
                            is_unknown_script = true;
                        } else {
                            is_served |= !matches!(value, Value::ServerError(_));
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
            if is_served {
                lane.master.note_answer();
            }
            if is_unknown_script {
                return self.write(lane);
            }
        }
        false
    }

    /// Ends the exchange for a lane. Writes whose replicas have not been counted are not confirmed.
    pub(super) fn end(&mut self, lane: &mut Lane) {
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
        if let TransportError::Malformed(_) = &fault {
            // Any of the answers may belong to another request.
            for number in &lane.parts {
                self.answers[*number] = None;
            }
        }
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
        lane.failure = Some(again.clone());
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

/// Returns the fault of a connection on which no answer is missing, if it was closed or has something to read.
fn unexpected(open: &mut Open) -> Option<TransportError> {
    let read = open.read().and_then(|()| open.socket.take());
    match read {
        Ok(None) => None,
        Ok(Some(_)) => Some(TransportError::Malformed(
            "an answer without a request".to_owned(),
        )),
        Err(fault) => Some(fault),
    }
}
