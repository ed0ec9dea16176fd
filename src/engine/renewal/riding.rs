//! Background releases that go out in the same write as a request of this process ([`crate::store::riding`]).
//!
//! The renewal thread owns such a release all the time: it stays in the timer queue. This table adds to that in
//! [`super::release_tasks`]:
//!
//! | state | event | next state, or result |
//! | --- | --- | --- |
//! | queued, a plain release | a request about another lock is about to be written; no release has ridden for [`RIDES_EVERY`], or [`FULL`] wait | riding: due again after [`RIDES_FOR`]; all that wait ride in one command |
//! | riding | the reply that others wait | the renewal thread hands the lock over, at once |
//! | riding | any other reply about it | the place is removed; if the task is not done, the renewal thread repeats it |
//! | riding | the ride fails: the server refuses it, its connection fails, or its caller leaves or panics | queued, due at once: the renewal thread sends it |
//! | riding | [`RIDES_FOR`] has passed | sent: the renewal thread sends it too, and the first reply counts |
//! | riding | a thread asks for one of its keys | that thread waits until the place is removed |
//!
//! A command costs Redis more than a key in it. So a release waits for others, for at most the time that the renewal
//! thread lets it wait. The first one after a pause goes at once.

use std::time::Duration;

use super::release_tasks::{GATHERED_FOR, SentTask, of_each, plain_releases};
use super::{RenewalThread, State};
use crate::clock::Time;
use crate::core::timer_queue::Place;
use crate::engine::Engine;
use crate::error::{Failure, Outcome};
use crate::message::Request;
use crate::name::LockKey;
use crate::store::Answer;
use crate::store::riding::{Ride, Rides, unanswered};

/// The shortest time between two rides, unless [`FULL`] releases wait.
const RIDES_EVERY: Duration = Duration::from_micros(750);
/// The number of releases that do not wait for more.
const FULL: usize = 16;
/// The largest number of releases in a ride, so that the server's time for them does not delay the request much.
const MOST: usize = 32;
/// The largest number of tasks among which a request looks for releases. If more are due, the renewal connection is probably
/// blocked. Releases behind these tasks then wait for it.
const LOOKED_AT: usize = 2 * MOST;
/// The time after which the renewal thread sends a release itself, if its ride has not ended.
const RIDES_FOR: Duration = Duration::from_millis(100);

impl Rides for Engine {
    fn board(&self, request: &Request<'_>) -> Option<Box<dyn Ride + '_>> {
        let keys = match request {
            Request::Lock { target, .. } => target.keys(),
            Request::RateLimit { key, .. } | Request::Adopt { key, .. } => {
                std::slice::from_ref(*key)
            }
            _ => return None,
        };
        let releases = self.renewal.state.lock().board(self.now(), keys);
        if releases.is_empty() {
            return None;
        }
        self.stats.requests.add(1);
        Some(Box::new(Riding {
            engine: self,
            releases,
        }))
    }
}

/// Releases that ride.
struct Riding<'a> {
    engine: &'a Engine,
    /// Empty once the ride has ended.
    releases: Vec<SentTask>,
}

impl Ride for Riding<'_> {
    fn with_request(&self, act: &mut dyn FnMut(&Request<'_>)) {
        act(&Request::Release(&plain_releases(&self.releases)));
    }

    fn end(mut self: Box<Self>, answer: Result<Answer, Failure>) {
        let releases = std::mem::take(&mut self.releases);
        self.engine
            .renewal
            .ride_ended(self.engine, releases, answer);
    }
}

impl Drop for Riding<'_> {
    fn drop(&mut self) {
        let releases = std::mem::take(&mut self.releases);
        if !releases.is_empty() {
            let failed = Err(unanswered());
            self.engine
                .renewal
                .ride_ended(self.engine, releases, failed);
        }
    }
}

impl RenewalThread {
    #[cfg(test)]
    pub(crate) fn has_no_overtaken_ride(&self) -> bool {
        self.state.lock().overtaken_rides.is_empty()
    }

    /// Applies the answer to a ride.
    fn ride_ended(
        &self,
        engine: &Engine,
        releases: Vec<SentTask>,
        answer: Result<Answer, Failure>,
    ) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return self.ride_failed(engine, releases, failure.outcome),
        };
        let answers = of_each(answer, releases.len());
        for (mut release, answer) in releases.into_iter().zip(answers) {
            let ridden = release.place;
            release.place = self.state.lock().place_after_ride(ridden);
            // The task has the failure too, and is repeated.
            self.answered(engine, &release, answer).ok();
            // The renewal thread may have sent the release between the two.
            self.state.lock().overtaken_rides.remove(&ridden);
        }
    }

    /// Has the renewal thread send the releases of a ride that failed. Their places stay, so a thread that asks for one
    /// of their keys still waits.
    fn ride_failed(&self, engine: &Engine, releases: Vec<SentTask>, outcome: Outcome) {
        let now = engine.now();
        let mut state = self.state.lock();
        for release in releases {
            // The renewal thread has sent some of them, if the ride took long.
            state.overtaken_rides.remove(&release.place);
            if let Some(mut job) = state.release_tasks.remove(release.place) {
                job.rides = false;
                if outcome != Outcome::NotExecuted {
                    job.note_unanswered();
                }
                engine.stats.endings_repeated.add(1);
                state.queue(job, now);
            }
        }
        self.wake_for(&mut state, now);
    }
}

impl State {
    /// Returns the releases that go with a request about these keys. Leaves their jobs in the timer queue.
    fn board(&mut self, now: Time, keys: &[LockKey]) -> Vec<SentTask> {
        if self.background_places.is_empty() {
            return Vec::new();
        }
        let queued = self.release_tasks.due_between(FIRST, now + GATHERED_FOR);
        let queued = queued.take(LOOKED_AT);
        let riding: Vec<Place> = queued
            .filter(|(place, job)| {
                job.is_unsent_plain(*place) && !keys.contains(job.entry.target.first())
            })
            .map(|(place, _)| place)
            .take(MOST)
            .collect();
        let waits = self.rode_at.is_some_and(|at| now < at + RIDES_EVERY);
        if waits && riding.len() < FULL {
            return Vec::new();
        }
        if !riding.is_empty() {
            self.rode_at = Some(now);
        }
        let releases = riding.into_iter().filter_map(|place| {
            let mut job = self.release_tasks.remove(place)?;
            let (entry, verb) = (job.entry.clone(), job.verb().clone());
            job.rides = true;
            let place = self.queue(job, now + RIDES_FOR);
            Some(SentTask { place, entry, verb })
        });
        releases.collect()
    }

    /// Returns the place of a job whose ride has ended. `place` was its place while it rode.
    fn place_after_ride(&mut self, place: Place) -> Place {
        self.overtaken_rides.remove(&place).unwrap_or(place)
    }
}

/// A place before all others.
const FIRST: Place = (Time::from_nanos(0), 0);
