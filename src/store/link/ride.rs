//! A ride on the way of a link: the steps of [`crate::store::riding`].

use redis::Value;

use super::Link;
use super::pooled::Riding;
use crate::error::Failure;
use crate::store::Answer;
use crate::store::refusal::refusal;
use crate::store::riding::{Ride, decode, may_come_from_a_replica};
use crate::sync::Ordering;

/// A ride whose answer counts only if that of its request does.
pub(super) type Ridden<'a> = (Box<dyn Ride + 'a>, Result<Answer, Failure>);

impl<'a> Link<'a> {
    /// Takes the answer to a ride. Returns false if it is no reply to the ride.
    pub(super) fn take_ride(&mut self, riding: Option<Riding<'a>>) -> bool {
        let Some(Riding { ride, boarded, .. }) = riding else {
            return true;
        };
        let answer = match boarded.answer {
            // Its drop ends it.
            None => return true,
            Some(Value::ServerError(error)) => {
                if error.code() == "NOSCRIPT" {
                    self.route.rides_by_text.store(true, Ordering::Relaxed);
                }
                self.route.cuts.note_answer(&error);
                Err(refusal(&self.route.server, error))
            }
            Some(value) => match decode(&*ride, value) {
                Ok(reply) => Ok(Answer {
                    reply,
                    resent: false,
                }),
                Err(_) => return false,
            },
        };
        if self.discovery.is_some() {
            self.ridden = Some((ride, answer));
        } else {
            ride.end(answer);
        }
        true
    }

    /// Ends the ride of a request to a master that sentinels have found. `is_masters`: the reply to the request is that
    /// of the master.
    pub(super) fn end_ride(&mut self, is_masters: bool) {
        if let Some((ride, answer)) = self.ridden.take() {
            let is_sure = |answer: &Answer| is_masters && !may_come_from_a_replica(&answer.reply);
            if answer.as_ref().map_or(true, is_sure) {
                ride.end(answer);
            }
        }
    }
}
