//! How a writer becomes a reader without a gap.
//!
//! 1. The writer's tenure is ended here, as at a release, before anything is sent that may let others in.
//! 2. One request ends it in Redis and begins the reader's under an owner of its own, together with those of all
//!    readers that wait.
//! 3. The reader's tenure is put among those of this process's readers; whoever wants to write here may ask.
//! 4. Where the answer is lost, either owner may be left in Redis: both are released in the background, and the
//!    caller has neither.

use std::time::Duration;

use crate::clock::Time;
use crate::core::attempt::{Grant, Leftover};
use crate::core::lease::{Standing, valid_until};
use crate::core::queue::Queue;
use crate::engine::Engine;
use crate::engine::holding::Holding;
use crate::engine::release::{Mode, Unreleased};
use crate::engine::tenure::{Entry, Tenure, Turn};
use crate::error::{Error, Failure, LostCause, Result};
use crate::message::{Ask, GiveBack, Kind, Reply, Verb};
use crate::owner;
use crate::sync::Arc;

impl Holding {
    /// Ends this writer's turn and begins a reader's.
    pub(crate) fn downgrade(mut self) -> Result<Self> {
        let (standing, unreleased) = self.end_turn(Mode::Detach)?;
        if let Standing::Lost(cause) = standing {
            if unreleased.is_some() {
                self.engine.release_over(&self.tenure.entry);
            }
            return Err(Error::Lost(self.lost(cause)));
        }
        let Some(Unreleased { give_back }) = unreleased else {
            // The lease had ended before its last guard: it was lost.
            return Err(Error::Lost(self.lost(LostCause::Expired)));
        };
        let writer = &self.tenure;
        let engine = Arc::clone(&self.engine);
        let entry = engine.names.pin(Kind::Read, &writer.entry.target);
        let reader = engine.become_reader(writer, &entry, give_back);
        engine.release_over(&writer.entry);
        engine.names.unpin(&entry);
        let (turn, now) = match reader {
            Ok(Some(reader)) => reader,
            Ok(None) => return Err(Error::Lost(self.lost(LostCause::Removed))),
            Err(failure) => return Err(failure.into_error(Some(self.name()))),
        };
        let max_hold = self.max_hold();
        // The writer's `min_hold` goes on: the reader is the same hold.
        let kept_back = self.tenure.kept_back(now);
        let min_hold = kept_back.map_or(Duration::ZERO, |until| until.since(now));
        Ok(Self::new(engine, turn, now, max_hold, min_hold))
    }
}

impl Engine {
    /// Asks for the change. Returns the reader's turn and since when it lasts, or `None` if the writer was not in Redis any
    /// more.
    fn become_reader(
        self: &Arc<Self>,
        writer: &Arc<Tenure>,
        entry: &Arc<Entry>,
        give_back: Option<GiveBack>,
    ) -> Result<Option<(Turn, Time)>, Failure> {
        let lease = writer.terms.lease();
        let reader = owner::generate(&*self.chance, &self.settings.label);
        let verb = Verb::TakeOver {
            ask: Ask {
                owner: Arc::clone(&reader),
                units: 1,
                lease,
                fences: 1,
                beside: None,
                channel: None,
            },
            from: self.owner_of(writer),
            give_back,
        };
        let sent = self.now();
        let answer = self.send(&entry.call(&verb), self.limits(None));
        let now = self.now();
        let failure = match answer {
            Ok(answer) => match answer.reply {
                Reply::Granted {
                    fence, contended, ..
                } if now < valid_until(sent, lease) => {
                    self.clean_up_doubt(writer);
                    let grant = Grant {
                        owner: reader,
                        fence,
                        fences: 1,
                        rest: Vec::new(),
                        sent,
                        deadline: valid_until(sent, lease),
                        contended,
                        doubt: answer.resent.then(|| sent + lease),
                        kept_until: None,
                    };
                    let count = |turn: &Turn, _| self.count_guard(turn, Duration::ZERO, true);
                    let begun =
                        self.begin_lease(entry, writer.terms, 1, grant, Queue::given, count);
                    return begun.map(Some);
                }
                Reply::NotOwner(_) => {
                    self.clean_up_doubt(writer);
                    return Ok(None);
                }
                Reply::Granted { .. } => Failure::too_late(),
                _ => Failure::another_question(),
            },
            Err(failure) => failure,
        };
        let doubt = failure.doubt(sent, lease);
        let mut left = self.leftover(writer, now);
        left.doubt = left.doubt.max(doubt);
        left.give_back = give_back;
        self.clean_up(&writer.entry, left, lease);
        if doubt.is_some() {
            let left = Leftover {
                owner: reader,
                units: 1,
                doubt,
                kept_until: None,
                give_back: None,
            };
            self.clean_up(entry, left, lease);
        }
        Err(failure)
    }

    /// A request of the writer's own may still be carried out.
    fn clean_up_doubt(&self, writer: &Arc<Tenure>) {
        let left = self.leftover(writer, self.now());
        if left.doubt.is_some() {
            self.clean_up(&writer.entry, left, writer.terms.lease());
        }
    }
}
