//! A thread's holding in a tenure: what a guard stands on.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use crate::clock::Time;
use crate::config::MAX_LEASE;
use crate::core::lease::{Standing, drift};
use crate::core::queue::Turn;
use crate::engine::Engine;
use crate::engine::events::{Guard, Notice};
use crate::engine::tenure::{LossListener, Tenure};
use crate::error::{Error, Failure, FailureKind, Lost, LostCause, Result};
use crate::logging;
use crate::script::{Call, Gone, Renewed};
use crate::sync::{Arc, AtomicBool, AtomicU8, AtomicU64, Ordering};

/// A guard's turn in a tenure, while it lasts. Dropping it ends it.
pub(crate) struct Holding {
    pub(super) engine: Arc<Engine>,
    pub(super) tenure: Arc<Tenure>,
    /// Tells it from the tenure's other holdings.
    number: u32,
    /// Which of the tenure's names it speaks of.
    of: Of,
    fence: u64,
    /// From when on the lock was the guard's.
    since: Time,
    /// Where there is a limit to how long it may be held.
    limits: Option<Box<HoldLimits>>,
    /// Whether anybody was given a receiver.
    is_listened_to: AtomicBool,
    finished: bool,
}

/// Which of a tenure's names a holding speaks of.
#[derive(Clone, Copy)]
enum Of {
    All,
    One(u32),
}

#[derive(Default)]
struct HoldLimits {
    /// Where it is then ended.
    max_hold: Option<Arc<HoldLimit>>,
    /// Where it is then warned of.
    warn_after: Option<Arc<HoldLimit>>,
}

/// What the guard and the watch thread settle between them where there is a `max_hold`, or a `warn_after`.
pub(crate) struct HoldLimit {
    pub(crate) tenure: Arc<Tenure>,
    holding: u32,
    fence: u64,
    since: Time,
    /// Whether it is a warning only, and with what limit beside it.
    warns: bool,
    beside: Option<Arc<HoldLimit>>,
    length: Duration,
    pub(crate) due: Time,
    /// Its place in the watch thread's timetable.
    pub(crate) place: AtomicU64,
    state: AtomicU8,
}

const OPEN: u8 = 0;
const FINISHED: u8 = 1;
const EXCEEDED: u8 = 2;

impl HoldLimit {
    /// True for the first to settle it.
    fn settle(&self, how: u8) -> bool {
        self.state
            .compare_exchange(OPEN, how, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    fn is_exceeded(&self) -> bool {
        self.state.load(Ordering::Acquire) == EXCEEDED
    }

    /// The time is over. Called by the watch thread, once.
    pub(crate) fn exceed(&self, engine: &Arc<Engine>, now: Time) {
        if !self.settle(EXCEEDED) {
            return;
        }
        let held = now.since(self.since);
        if self.warns {
            // Of a guard that is none any more there is nothing to say.
            let is_over = self
                .beside
                .as_ref()
                .is_some_and(|limit| limit.is_exceeded());
            let is_live = matches!(self.tenure.cell.standing(now), Standing::Live(_));
            if is_over || !is_live {
                return;
            }
            engine.stats.held_long.add(1);
            let guard = || Guard::of(engine, &self.tenure, self.fence);
            engine.events.warn(|| Notice::HeldLong(guard(), held));
        } else {
            engine.stats.holds_lost.record(held);
            self.end(engine, now);
        }
    }

    /// The guard reads lost from here on, and its turn is ended for it.
    fn end(&self, engine: &Arc<Engine>, now: Time) {
        engine.count_loss(&self.tenure, self.fence, LostCause::MaxHold);
        for listener in self.tenure.withdraw(self.holding) {
            listener.tell(LostCause::MaxHold);
        }
        if let Some(ending) = engine.finish(&self.tenure, now).1 {
            engine.leave_release(&self.tenure.entry, ending);
        }
    }
}

impl Holding {
    pub(crate) fn new(
        engine: Arc<Engine>,
        turn: Turn<Arc<Tenure>>,
        since: Time,
        max_hold: Option<Duration>,
        min_hold: Duration,
    ) -> Self {
        let Turn { tenure, fence, .. } = turn;
        if !min_hold.is_zero() {
            tenure.keep_back(since + min_hold);
        }
        let number = tenure.holdings.fetch_add(1, Ordering::Relaxed);
        let watch = |length: Duration, warns, beside| {
            let limit = Arc::new(HoldLimit {
                tenure: Arc::clone(&tenure),
                holding: number,
                fence,
                since,
                warns,
                beside,
                length,
                // Its thread may have been woken late, and has all of it.
                due: engine.now() + length,
                place: AtomicU64::new(0),
                state: AtomicU8::new(OPEN),
            });
            engine.watch.register_hold(&limit);
            limit
        };
        let warn_after = engine.settings.warn_after;
        let limits = (max_hold.is_some() || warn_after.is_some()).then(|| {
            let max_hold = max_hold.map(|length| watch(length, false, None));
            Box::new(HoldLimits {
                warn_after: warn_after.map(|length| watch(length, true, max_hold.clone())),
                max_hold,
            })
        });
        Self {
            engine,
            tenure,
            number,
            of: Of::All,
            fence,
            since,
            limits,
            is_listened_to: AtomicBool::new(false),
            finished: false,
        }
    }

    /// For each of its names a holding that speaks of that alone, and ends nothing.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = Holding> {
        // They listen in its name, so its end is to look for them.
        self.is_listened_to.store(true, Ordering::Relaxed);
        let fences = std::iter::once(self.fence).chain(self.tenure.further_fences());
        (0..).zip(fences).map(|(index, fence)| Holding {
            engine: Arc::clone(&self.engine),
            tenure: Arc::clone(&self.tenure),
            number: self.number,
            of: Of::One(index),
            fence,
            since: self.since,
            limits: self.limit().map(|limit| {
                Box::new(HoldLimits {
                    max_hold: Some(Arc::clone(limit)),
                    warn_after: None,
                })
            }),
            is_listened_to: AtomicBool::new(false),
            finished: true,
        })
    }

    pub(crate) fn name(&self) -> &str {
        match self.of {
            Of::One(index) => self.tenure.keys()[index as usize].name(),
            Of::All => self.tenure.entry.target.name(),
        }
    }

    pub(super) fn max_hold(&self) -> Option<Duration> {
        self.limit().map(|limit| limit.length)
    }

    fn limit(&self) -> Option<&Arc<HoldLimit>> {
        self.limits.as_ref()?.max_hold.as_ref()
    }

    pub(crate) fn units(&self) -> u32 {
        self.tenure.units
    }

    pub(crate) fn owner(&self) -> &str {
        self.tenure.owner.shown(&self.engine.settings.label)
    }

    pub(crate) fn fence(&self) -> u64 {
        self.fence
    }

    /// How long the lease may be believed, and whether its renewal is overdue.
    pub(crate) fn standing(&self) -> Result<(Duration, bool), Lost> {
        // A child of a fork has a copy of the guard and none of the lock.
        if self.engine.is_forked() {
            return Err(self.lost(LostCause::Taken));
        }
        if self.limit().is_some_and(|limit| limit.is_exceeded()) {
            return Err(self.lost(LostCause::MaxHold));
        }
        match self.tenure.cell.standing(self.engine.now()) {
            Standing::Live(left) => Ok((left, self.tenure.is_late(left))),
            Standing::Lost(cause) => Err(self.lost(cause)),
            // A tenure ends with its last guard, so a guard that can still ask was outlived by a loss.
            Standing::Ended => Err(self.lost(LostCause::Expired)),
        }
    }

    pub(crate) fn lost(&self, cause: LostCause) -> Lost {
        Lost {
            name: self.name().into(),
            fence: self.fence,
            cause,
        }
    }

    pub(crate) fn on_lost(&self) -> Receiver<Lost> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.tell_of_loss(&sender);
        receiver
    }

    /// Has one message sent there at the loss; at a healthy end the sender is dropped.
    pub(crate) fn tell_of_loss(&self, sender: &Sender<Lost>) {
        // The causes stand in for each other here; whoever announces the loss puts the true one in.
        let lost = self.lost(LostCause::Expired);
        if self.engine.is_forked() {
            sender.try_send(lost).ok();
            return;
        }
        self.is_listened_to.store(true, Ordering::Relaxed);
        self.tenure.enlist(LossListener {
            holding: self.number,
            sender: sender.clone(),
            lost,
        });
        // A loss that was announced before we stood in the list is told here; told twice, the second finds the
        // channel full.
        if let Err(lost) = self.standing() {
            sender.try_send(lost).ok();
        }
    }

    pub(crate) fn extend(&self, at_least: Duration) -> Result<()> {
        let (left, _) = self.standing().map_err(Error::Lost)?;
        if at_least > MAX_LEASE {
            return Err(Error::config("at_least", "it is longer than 24 h"));
        }
        if left >= at_least {
            return Ok(());
        }
        // What drift takes off at this end is put on at the other.
        let lease = at_least + drift(at_least) * 2;
        self.tenure.note_extension(self.engine.now() + lease);
        self.renew(lease, left)
    }

    /// Asks for so long a lease at once, within what is `left` of the present one.
    pub(super) fn renew(&self, lease: Duration, left: Duration) -> Result<()> {
        let renewals: Vec<_> = self.engine.renewals(&self.tenure, lease).collect();
        let sent = self.engine.now();
        let limits = self.engine.limits(Some(sent + left));
        let name = Some(self.name());
        let said = self
            .engine
            .send(&Call::Renew(&renewals), limits)
            .and_then(|answer| answer.reply.renewed())
            .map_err(|failure| failure.into_error(name))?;
        let now = self.engine.now();
        match self.tenure.renewed(sent, now, lease, &said) {
            Standing::Lost(_) => self.engine.watch.hurry(&self.tenure),
            _ if said.contains(&Renewed::Refused) => {
                let words = "the server does not let this user renew this lock";
                return Err(Failure::plain(FailureKind::Denied, false, words).into_error(name));
            }
            Standing::Live(left) => self.engine.count_renewal(&self.tenure, left),
            Standing::Ended => {}
        }
        self.standing().map(drop).map_err(Error::Lost)
    }

    /// Ends the turn, and says whether the lease lasted until then.
    pub(crate) fn release(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        if self.finished {
            return Ok(());
        }
        let (standing, ending) = self.conclude(Engine::finish)?;
        let entry = &self.tenure.entry;
        let ended = match ending {
            Some(ending) if self.engine.settings.background_release => {
                self.engine.leave_release(entry, ending);
                Ok(None)
            }
            Some(ending) => self.engine.run_ending(entry, ending),
            None => Ok(None),
        };
        match (standing, ended) {
            (Standing::Lost(cause), _) => Err(Error::Lost(self.lost(cause))),
            (_, Ok(Some(gone))) => {
                let cause = match gone {
                    Gone::Removed => LostCause::Removed,
                    Gone::Taken => LostCause::Taken,
                };
                self.engine.count_loss(&self.tenure, self.fence, cause);
                Err(Error::Lost(self.lost(cause)))
            }
            (_, Ok(None)) => Ok(()),
            (_, Err(failure)) => Err(failure.into_error(Some(entry.target.name()))),
        }
    }

    /// Ends it as a guard: settles with the watch thread who does, ends the turn by `end`, and tells whoever
    /// listens.
    pub(super) fn conclude<T>(
        &mut self,
        end: impl FnOnce(&Arc<Engine>, &Arc<Tenure>, Time) -> (Standing, T),
    ) -> Result<(Standing, T)> {
        self.finished = true;
        if self.engine.is_forked() {
            // Counted up for good, so that this copy of the engine is never dropped.
            std::mem::forget(Arc::clone(&self.engine));
            return Err(Error::Closed);
        }
        if let Some(limits) = &self.limits {
            if let Some(warning) = &limits.warn_after {
                self.engine.watch.deregister_hold(warning);
                warning.settle(FINISHED);
            }
            if let Some(limit) = &limits.max_hold {
                self.engine.watch.deregister_hold(limit);
                if !limit.settle(FINISHED) {
                    return Err(Error::Lost(self.lost(LostCause::MaxHold)));
                }
            }
        }
        // Taken out before the turn passes on: what becomes of the tenure then is not this guard's loss.
        let listeners = if self.is_listened_to.load(Ordering::Relaxed) {
            self.tenure.withdraw(self.number)
        } else {
            Vec::new()
        };
        let now = self.engine.now();
        self.count_end(now);
        let (standing, ended) = end(&self.engine, &self.tenure, now);
        for listener in listeners {
            match standing {
                Standing::Lost(cause) => listener.tell(cause),
                // Dropped, it disconnects: a healthy end.
                Standing::Live(_) | Standing::Ended => drop(listener),
            }
        }
        Ok((standing, ended))
    }

    /// Counts and tells the guard's end, before its turn passes on, and so before whoever comes next.
    fn count_end(&self, now: Time) {
        let (engine, held) = (&self.engine, now.since(self.since));
        if let Standing::Live(_) = self.tenure.cell.standing(now) {
            engine.stats.holds_released.record(held);
            engine
                .events
                .step(|| Notice::Released(Guard::of(engine, &self.tenure, self.fence), held));
        } else {
            engine.stats.holds_lost.record(held);
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        match self.finish() {
            // The loss was logged when it was found.
            Ok(()) | Err(Error::Closed | Error::Lost(_)) => {}
            Err(error) => {
                logging::warning!(
                    "a release failed and is repeated until the lease ends: {error:#}"
                );
            }
        }
    }
}
