//! Whether processes get a lock in the order in which they asked, and without a long delay.
//!
//! | a call | counts |
//! | --- | --- |
//! | waits for one name and no other, and began [`SETTLES_WITHIN`] after the faults or later, on living connections | must not be bypassed |
//! | gets the name from another process, and asked surely later than it: see [`SETTLED`] | has bypassed it |
//! | gets the name, which its own process had last | is in its process's turn, which ends within [`LONGEST_TURN`] if another process has waited since before it, or after a pause in it |
//! | is of a reader, a writer or a permit | may be bypassed [`MOST_BYPASSES`] times, because readers go in together; on a quorum each call may be [`MOST_BYPASSES_BY_LUCK`] times, because its votes have no order |
//! | is behind another thread of its process | takes its process's place after that one has ended, or has lost its lease |
//! | is of a multi-lock, an adoption or a job | has no place in this order; the next thread of its process may get one of its names in memory, as in a cluster or after an adoption |
//! | is the first to get a name since a thread detached it, became a reader of it, had it with a `min_hold`, or ended its hold on a dead connection | is judged by no rule: nobody handed the lock over |
//! | gets a mutex that may have expired since the last hold, and surely asked no earlier: see [`Fairness::expired_at`] | may come before others: a newcomer takes a free lock without a look at the queue |
//! | is of a process that stood still meanwhile | may be bypassed until it goes on. It keeps its place, because it stood still for less than its pickup window, unless its first request may not have arrived before: then its place is of when it goes on |
//! | of a multi-lock in a cluster waits, in a living process | may have any of its names, so no idle time counts for them |
//! | gets a mutex that nobody had | has waited for at most [`MOST_IDLE`] since then, or [`MOST_IDLE_BY_LUCK`]; and [`LONGER_IDLE`] more, if a process stood still within the last [`FELT_FOR`] |
//!
//! A process that crashes may leave the mutex taken for its longest extension, if no other one has had it since. A request
//! that a fault has delayed may leave it taken for a lease after the faults, if nobody has had it since. A lease that is lost
//! may leave it taken for one lease more. A process with a dead connection stands still here, because nobody can hand it anything.
//! "After the faults" is after `healed_at`, which does not wait for the late crash or pause.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold::LostCause;

use crate::Topology;
use crate::checks::SHORTEST_WINDOW;
use crate::programs::{Choice, Operation, TIMED, What};
use crate::workload::SETTLES_WITHIN;

/// The time after which the first request of a waiter has surely arrived. With replicas its connection may still wait until they
/// confirm an earlier request.
pub(crate) const SETTLED: Duration = Duration::from_millis(100);
pub(crate) const SETTLED_WITH_REPLICAS: Duration = Duration::from_secs(1);
/// Until when a thread may get a name from another one of its process, from the begin of the process's turn, or from the end of
/// its last pause. It is longer than a quantum, because a thread may stand still for a moment.
const LONGEST_TURN: Duration = Duration::from_millis(500);
/// How often a waiter may be bypassed that has no strict place.
const MOST_BYPASSES: u32 = 6;
/// The same on a quorum, where the most that was seen in 4,000 schedules is 7.
const MOST_BYPASSES_BY_LUCK: u32 = 12;
/// For how long nobody has a mutex, at most, while a process waits for it. It is shorter than a poll in a window of 2 s, so that a
/// message that is not sent shows.
const MOST_IDLE: Duration = Duration::from_millis(700);
/// The same on a quorum, whose votes may be split a few times.
const MOST_IDLE_BY_LUCK: Duration = Duration::from_secs(3);
/// By how much longer if a process stood still: for a pickup window.
const LONGER_IDLE: Duration = Duration::from_secs(2);
/// How long after its end a pause may still delay others: a silent waiter stays in the queue for 3 s, and a hand-over to it costs
/// a window of 2 s.
const FELT_FOR: Duration = Duration::from_secs(5);

/// How often a waiter may be bypassed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Never: nobody gets the name who asked later.
    Strict,
    /// A few times.
    Bounded,
    /// Several times, because luck decides whose request comes first at most of the nodes.
    ByLuck,
    /// It has no place.
    None,
}

impl Order {
    fn of(what: What, topology: Topology) -> Self {
        match what {
            What::Mutex
            | What::Reentrant
            | What::Closure
            | What::Unfenced
            | What::Campaign
            | What::Writer
            | What::Reader
            | What::Permit
                if topology == Topology::Quorum =>
            {
                Self::ByLuck
            }
            What::Mutex | What::Reentrant | What::Closure | What::Unfenced | What::Campaign => {
                Self::Strict
            }
            What::Writer | What::Reader | What::Permit => Self::Bounded,
            _ => Self::None,
        }
    }

    fn most_bypasses(self) -> u32 {
        match self {
            Self::Strict | Self::None => 0,
            Self::Bounded => MOST_BYPASSES,
            Self::ByLuck => MOST_BYPASSES_BY_LUCK,
        }
    }

    fn most_idle(self) -> Duration {
        if self == Self::ByLuck {
            MOST_IDLE_BY_LUCK
        } else {
            MOST_IDLE
        }
    }
}

#[derive(Default)]
pub(crate) struct Fairness {
    /// When the last fault has ended, but for the late one.
    healed_at: Duration,
    /// The longest lease, and the longest life of one.
    lease: Duration,
    longest_life: Duration,
    asking: Vec<Asking>,
    next: u64,
    /// The process that got a name last, and whether that was by a multi-lock or a job.
    last_processes: BTreeMap<&'static str, (usize, bool)>,
    /// When the turn of that process began.
    turns_began: BTreeMap<&'static str, Duration>,
    /// Since when a process has had a place in the queue of a name: a thread takes over that of one that gives up.
    queued_since: BTreeMap<(usize, &'static str), Duration>,
    /// When a call or a lease of a process for a name last ended. Then the next one of its threads asks.
    ended_at: BTreeMap<(usize, &'static str), Duration>,
    /// When somebody got a name last, ended its hold of it, or told that it is lost.
    held_until: BTreeMap<&'static str, Duration>,
    /// The names whose lock was detached since somebody got it, or is kept until its `min_hold` is over, or was released on a dead
    /// connection.
    left: BTreeSet<&'static str>,
    /// The names whose lease has expired since somebody got them.
    expired: BTreeSet<&'static str>,
    /// The threads that have got a name, and have not ended their hold.
    holders: BTreeSet<(Thread, &'static str)>,
}

/// A process and the number of one of its threads.
pub(crate) type Thread = (usize, usize);

/// The last time at which a process stood still.
#[derive(Clone, Copy)]
pub(crate) struct Still {
    pub(crate) since: Duration,
    /// The end of its last pause, which may lie ahead, or when it crashed.
    pub(crate) until: Duration,
    /// Whether it goes on afterwards.
    pub(crate) is_alive: bool,
}

/// The thread that asks, and the facts that decide on its place.
#[derive(Clone, Copy)]
pub(crate) struct Asker {
    pub(crate) thread: Thread,
    /// Whether nothing has disturbed it since the last fault.
    pub(crate) is_calm: bool,
    pub(crate) topology: Topology,
    pub(crate) has_min_hold: bool,
    /// The time after which its first request has surely arrived.
    pub(crate) settles_within: Duration,
}

/// A call that has no answer yet.
struct Asking {
    ticket: u64,
    thread: Thread,
    name: &'static str,
    since: Duration,
    order: Order,
    /// Whether it may have the name while it waits for others.
    may_have_it: bool,
    /// Whether its hold has a `min_hold`.
    keeps: bool,
    /// Whether the order counts for it, because it waits, and nothing disturbs it.
    is_observed: bool,
    settles_within: Duration,
    bypassed: u32,
}

impl Fairness {
    pub(crate) fn new(healed_at: Duration, lease: Duration, longest_life: Duration) -> Self {
        Self {
            healed_at,
            lease,
            longest_life,
            ..Self::default()
        }
    }

    /// Notes that a call begins. Returns its ticket.
    pub(crate) fn asks(&mut self, operation: &Operation, asker: Asker, since: Duration) -> u64 {
        let (process, _) = asker.thread;
        let ticket = self.next;
        self.next += 1;
        let order = Order::of(operation.what, asker.topology);
        let waits = operation.wait != Some(Duration::ZERO);
        let keeps = asker.has_min_hold || matches!(operation.choice, Some(Choice::MinHold(_)));
        for name in &operation.names {
            let is_its = |asking: &Asking| asking.thread.0 == process && asking.name == *name;
            if !self.asking.iter().any(is_its) {
                self.queued_since.insert((process, name), since);
            }
            self.asking.push(Asking {
                ticket,
                thread: asker.thread,
                name,
                since,
                order,
                may_have_it: asker.topology == Topology::Cluster && operation.what == What::Multi,
                keeps,
                is_observed: asker.is_calm && waits,
                settles_within: asker.settles_within,
                bypassed: 0,
            });
        }
        ticket
    }

    /// Notes that a thread has ended its hold of these names, if it had one, and whether its connections are alive.
    pub(crate) fn ended(
        &mut self,
        thread: Thread,
        names: &[&'static str],
        is_connected: bool,
        now: Duration,
    ) {
        for name in names {
            self.ended_at.insert((thread.0, name), now);
            if self.holders.remove(&(thread, *name)) {
                self.held_until.insert(name, now);
                if !is_connected {
                    self.left.insert(name);
                }
            }
        }
    }

    /// Notes that a process has lost its lease of a name, and whether its connections are alive.
    pub(crate) fn lost(
        &mut self,
        process: usize,
        name: &'static str,
        cause: LostCause,
        is_connected: bool,
        now: Duration,
    ) {
        self.ended_at.insert((process, name), now);
        let is_its = |holder: &(Thread, &str)| holder.0.0 == process && holder.1 == name;
        if self.holders.iter().any(is_its) {
            self.holders.retain(|holder| !is_its(holder));
            self.held_until.insert(name, now);
            if !is_connected {
                self.left.insert(name);
            }
            // At its `max_hold`, its process hands it over, and a release by force does so too.
            if cause == LostCause::Expired {
                self.expired.insert(name);
                // The next thread of this process asks for it anew.
                self.last_processes.remove(name);
            }
        }
    }

    /// Notes that a lock was detached.
    pub(crate) fn detached(&mut self, name: &'static str) {
        self.left.insert(name);
    }

    /// Notes the answer to a call. Returns how many waiters of other processes saw it come and go before them, if they were in
    /// an order with it, and how often one of them has been bypassed at most. `still` says when each process stood
    /// still.
    pub(crate) fn answered(
        &mut self,
        (ticket, process): (u64, usize),
        now: Duration,
        is_granted: bool,
        still: &[Still],
    ) -> Result<(u64, u32), String> {
        let (answered, left): (Vec<_>, Vec<_>) =
            (self.asking.drain(..)).partition(|asking| asking.ticket == ticket);
        self.asking = left;
        let is_felt = (still.iter()).any(|it| !it.until.is_zero() && now < it.until + FELT_FOR);
        let longer = if is_felt { LONGER_IDLE } else { Duration::ZERO };
        let free: Vec<_> = (answered.iter())
            .map(|it| {
                let ended_at = self.ended_at.get(&(process, it.name)).copied();
                let asked_at = it.since.max(ended_at.unwrap_or_default());
                let expired_at = self.expired_at(it.name, now, still);
                let arrived_by = asked_at + it.settles_within;
                let is_newcomer = expired_at.is_some_and(|expired_at| arrived_by >= expired_at);
                (self.free_since(it.name, still), is_newcomer)
            })
            .collect();
        for Asking { name, .. } in &answered {
            self.ended_at.insert((process, name), now);
        }
        let (mut in_order, mut most_bypassed) = (0, 0);
        for (answered, (free_since, is_newcomer)) in answered.into_iter().zip(free) {
            let name = answered.name;
            if !is_granted {
                continue;
            }
            let is_mutex = !TIMED.contains(&name);
            if is_mutex {
                // A process that is dead, or has lost its lease, has nothing any more.
                self.holders.retain(|(_, held)| *held != name);
            }
            self.holders.insert((answered.thread, name));
            self.held_until.insert(name, now);
            self.expired.remove(name);
            let has_no_place = answered.order == Order::None;
            let before = (self.last_processes).insert(name, (process, has_no_place));
            let is_new_turn = has_no_place || before != Some((process, false));
            let last_turn_began = self.turns_began.get(name).copied().unwrap_or_default();
            if is_new_turn {
                self.turns_began.insert(name, now);
            }
            let turn_began = self.turns_began[name];
            let may_be_handed_on =
                before == Some((process, true)) && now <= last_turn_began + LONGEST_TURN;
            let queued_since = self.queued_since.insert((process, name), now);
            let asked_at = answered.since.min(queued_since.unwrap_or_default());
            let was_left = self.left.remove(name);
            if answered.keeps {
                self.left.insert(name);
            }
            if has_no_place || was_left {
                continue;
            }
            let idle_since = free_since.map(|since| since.max(answered.since));
            let idle_since = idle_since.filter(|_| is_mutex && answered.is_observed && is_new_turn);
            let longest_idle = answered.order.most_idle() + longer;
            if let Some(since) = idle_since.filter(|since| now > *since + longest_idle) {
                return Err(format!(
                    "p{process} gets {name}, which nobody has had since {since:?}"
                ));
            }
            if may_be_handed_on || is_mutex && is_newcomer {
                continue;
            }
            let others = self.asking.iter_mut().filter(|asking| {
                asking.name == name
                    && asking.is_observed
                    && asking.order != Order::None
                    && asking.thread.0 != process
                    && asking.counts(now, still[asking.thread.0])
            });
            for asking in others {
                let ended_at = self.ended_at.get(&(asking.thread.0, name));
                let since = asking.since.max(ended_at.copied().unwrap_or_default());
                let stood = still[asking.thread.0];
                let since = if stood.since <= since + asking.settles_within {
                    since.max(stood.until)
                } else {
                    since
                };
                let (is_before, what) = if is_new_turn {
                    (
                        since + asking.settles_within < asked_at,
                        format!("asked at {asked_at:?} and has got"),
                    )
                } else {
                    let is_over = now > turn_began.max(still[process].until) + LONGEST_TURN;
                    let what = format!("has had since {turn_began:?} and gets again");
                    (since + asking.settles_within < turn_began && is_over, what)
                };
                asking.bypassed += u32::from(is_before);
                most_bypassed = asking.bypassed.max(most_bypassed);
                if asking.bypassed > asking.order.most_bypasses() {
                    return Err(format!(
                        "p{process} {what} {name}, before p{}, which has waited since {since:?}",
                        asking.thread.0
                    ));
                }
                in_order += u64::from(is_new_turn && !is_before);
            }
        }
        Ok((in_order, most_bypassed))
    }

    /// Returns since when nobody has had a name, or was refused it. Returns `None` if a living process has it, or may have it.
    fn free_since(&self, name: &str, still: &[Still]) -> Option<Duration> {
        let has_it = |asking: &Asking| {
            asking.name == name && asking.may_have_it && still[asking.thread.0].is_alive
        };
        if self.asking.iter().any(has_it) {
            return None;
        }
        let mut holders = self.holders.iter().filter(|(_, held)| *held == name);
        if holders.any(|((process, _), _)| still[*process].is_alive) {
            return None;
        }
        let ends = self.ended_at.iter().filter(|((_, of), _)| *of == name);
        let ended = ends.map(|(_, at)| *at).max()?;
        let held_until = self.held_until.get(name).copied().unwrap_or_default();
        let dead = self.users(name, still).filter(|it| !it.is_alive);
        let dead = dead.filter(|it| it.until >= held_until);
        let left = dead.map(|it| it.until + self.longest_life).max();
        let is_known = held_until > self.healed_at + SETTLES_WITHIN;
        let late = (!is_known).then_some(self.healed_at + self.lease);
        // A renewal may have been executed whose answer came too late.
        let expired = (self.expired.contains(name)).then_some(held_until + self.lease);
        [Some(ended), left, late, expired]
            .into_iter()
            .flatten()
            .max()
    }

    /// Returns when a mutex has expired at the earliest, if it may have expired since somebody had it last:
    ///
    /// | a process | the mutex expires |
    /// | --- | --- |
    /// | has told that its lease is lost | when it told that |
    /// | that uses the name stands still, or has within [`FELT_FOR`]: it may have had the mutex, or been handed it | after that, and at the earliest [`SHORTEST_WINDOW`] after somebody had it |
    /// | that uses the name has crashed, and nobody has had it since | the same, within its longest life |
    fn expired_at(&self, name: &str, now: Duration, still: &[Still]) -> Option<Duration> {
        let held_until = self.held_until.get(name).copied().unwrap_or_default();
        let told = self.expired.contains(name).then_some(held_until);
        let stood = self.users(name, still).filter(|it| {
            let may_live = !it.is_alive && held_until <= it.until;
            let life = if may_live {
                self.longest_life
            } else {
                Duration::ZERO
            };
            !it.until.is_zero() && now <= it.until + life + FELT_FOR
        });
        let earliest = held_until + SHORTEST_WINDOW;
        let expired_at = stood.map(|it| it.since.max(earliest));
        told.into_iter().chain(expired_at).min()
    }

    /// Returns when the processes last stood still that may have had a name then, been handed it, or not yet released it.
    fn users(&self, name: &str, still: &[Still]) -> impl Iterator<Item = Still> {
        let holders = self.holders.iter().filter(move |(_, held)| *held == name);
        let holders = holders.map(|((process, _), _)| *process);
        let asking = self.asking.iter().filter(move |asking| asking.name == name);
        let asking = asking.map(|asking| asking.thread.0);
        let ended = (self.ended_at.iter()).filter(move |((process, of), ended_at)| {
            *of == name && still[*process].since <= **ended_at + FELT_FOR
        });
        let ended = ended.map(|((process, _), _)| *process);
        (ended.chain(asking).chain(holders)).map(move |process| still[process])
    }
}

impl Asking {
    /// Returns whether nobody may bypass it, if its process stood still then.
    fn counts(&self, now: Duration, still: Still) -> bool {
        still.is_alive && now > still.until + self.settles_within
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::programs::End;

    const ALIVE: [Still; 3] = [Still {
        since: Duration::ZERO,
        until: Duration::ZERO,
        is_alive: true,
    }; 3];

    /// A process on one server, which nothing disturbs.
    fn calm(process: usize) -> Asker {
        Asker {
            thread: (process, 0),
            is_calm: true,
            topology: Topology::Single,
            has_min_hold: false,
            settles_within: SETTLED,
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn waits_for(what: What, names: &[&'static str]) -> Operation {
        Operation {
            at: Duration::ZERO,
            what,
            names: names.to_vec(),
            wait: None,
            cancelled_after: None,
            choice: None,
            way: 0,
            rounds: 1,
            forks: false,
            end: End::Release,
            pause: Duration::ZERO,
            seed: 0,
        }
    }

    fn p0_gets_it(fairness: &mut Fairness, p0: Asker, time: Duration) {
        let holder = fairness.asks(&waits_for(What::Mutex, &["a"]), p0, time);
        let granted = fairness.answered((holder, 0), time, true, &ALIVE);
        assert_eq!(granted, Ok((0, 0)));
    }

    /// A thread of p1 gets `a` after a multi-lock of p1 that began `length` before, and p2 has waited since `since`.
    fn after_a_multi_lock(length: Duration, since: Duration) -> Result<(u64, u32), String> {
        let (multi, mutex) = (
            waits_for(What::Multi, &["a", "c"]),
            waits_for(What::Mutex, &["a"]),
        );
        let mut fairness = Fairness::default();
        let first = fairness.asks(&multi, calm(1), at(0));
        let second = fairness.asks(&mutex, calm(1), at(2));
        fairness.asks(&mutex, calm(2), since);
        assert_eq!(
            fairness.answered((first, 1), at(10), true, &ALIVE),
            Ok((0, 0))
        );
        fairness.ended((1, 0), &["a", "c"], true, at(10) + length);
        fairness.answered((second, 1), at(10) + length, true, &ALIVE)
    }

    #[test]
    fn a_mutex_after_a_multi_lock_of_its_process_has_the_place_of_its_own_request() {
        assert_eq!(after_a_multi_lock(at(1), at(4)), Ok((1, 0)));
        assert!(after_a_multi_lock(at(1), at(0)).is_err());
        assert!(after_a_multi_lock(LONGEST_TURN, at(0)).is_ok());
    }

    #[test]
    fn a_waiter_behind_a_lost_lease_has_the_place_of_a_request_after_the_loss() {
        let mutex = waits_for(What::Mutex, &["a"]);
        let comes_between = |is_lost| {
            let mut fairness = Fairness::default();
            p0_gets_it(&mut fairness, calm(0), at(0));
            fairness.asks(&mutex, calm(0), at(1));
            let other = fairness.asks(&mutex, calm(2), at(5));
            if is_lost {
                fairness.ended((0, 0), &["a"], true, at(6));
            }
            fairness.answered((other, 2), at(6) + MOST_IDLE, true, &ALIVE)
        };
        assert_eq!(comes_between(true), Ok((1, 0)));
        assert!(comes_between(false).is_err());
    }

    /// Its key expires, and whoever asks first has it.
    #[test]
    fn nobody_hands_over_a_lock_that_a_min_hold_keeps() {
        let mutex = waits_for(What::Mutex, &["a"]);
        let comes_between = |has_min_hold| {
            let keeps = Asker {
                has_min_hold,
                ..calm(0)
            };
            let mut fairness = Fairness::default();
            p0_gets_it(&mut fairness, keeps, at(0));
            fairness.asks(&mutex, calm(1), at(1));
            let other = fairness.asks(&mutex, calm(2), at(5));
            fairness.answered((other, 2), at(7), true, &ALIVE)
        };
        assert_eq!(comes_between(true), Ok((0, 0)));
        assert!(comes_between(false).is_err());
    }

    #[test]
    fn a_writer_may_be_bypassed_a_few_times() {
        let (writer, reader) = (
            waits_for(What::Writer, &["rw"]),
            waits_for(What::Reader, &["rw"]),
        );
        let mut fairness = Fairness::default();
        fairness.asks(&writer, calm(0), at(0));
        for time in 1..=u64::from(MOST_BYPASSES) + 1 {
            let process = 1 + time as usize % 2;
            let ticket = fairness.asks(&reader, calm(process), at(10 * time));
            let answered = fairness.answered((ticket, process), at(10 * time + 1), true, &ALIVE);
            assert_eq!(answered.is_err(), time > u64::from(MOST_BYPASSES));
        }
    }

    /// p0 has the mutex, and p1 waits, and p2 since then. p1 gets it this long after p0 has ended.
    fn after(idle: Duration, still: [Still; 3], since: Duration) -> Result<(u64, u32), String> {
        let mutex = waits_for(What::Mutex, &["a"]);
        let mut fairness = Fairness::new(at(0), at(0), at(20));
        p0_gets_it(&mut fairness, calm(0), at(0));
        let waiter = fairness.asks(&mutex, calm(1), at(2));
        fairness.asks(&mutex, calm(2), since);
        fairness.ended((0, 0), &["a"], true, at(5));
        fairness.answered((waiter, 1), at(5) + idle, true, &still)
    }

    fn stood_still(process: usize, times: Range<u64>) -> [Still; 3] {
        let mut still = ALIVE;
        still[process] = Still {
            since: at(times.start),
            until: at(times.end),
            is_alive: true,
        };
        still
    }

    fn crashed(process: usize, time: u64) -> [Still; 3] {
        let mut still = stood_still(process, time..time);
        still[process].is_alive = false;
        still
    }

    #[test]
    fn a_free_mutex_goes_to_a_waiter_soon() {
        let more = Duration::from_millis(1);
        for (longest, still) in [(MOST_IDLE, ALIVE), (MOST_IDLE + LONGER_IDLE, crashed(2, 3))] {
            assert!(after(longest, still, at(3)).is_ok());
            assert!(after(longest + more, still, at(3)).is_err());
        }
        // That is over.
        assert!(after(FELT_FOR, crashed(2, 4), at(3)).is_err());
    }

    #[test]
    fn a_multi_lock_that_waits_in_a_cluster_may_have_a_name() {
        let (multi, mutex) = (
            waits_for(What::Multi, &["a", "c"]),
            waits_for(What::Mutex, &["a"]),
        );
        let granted_late = |topology, still: &[Still]| {
            let asker = |process| Asker {
                topology,
                ..calm(process)
            };
            let mut fairness = Fairness::default();
            p0_gets_it(&mut fairness, asker(0), at(4));
            fairness.ended((0, 0), &["a"], true, at(5));
            fairness.asks(&multi, asker(1), at(5));
            let waiter = fairness.asks(&mutex, asker(2), at(5));
            fairness.answered((waiter, 2), at(8), true, still)
        };
        assert!(granted_late(Topology::Cluster, &ALIVE).is_ok());
        assert!(granted_late(Topology::Cluster, &crashed(1, 5)).is_err());
        assert!(granted_late(Topology::Single, &ALIVE).is_err());
    }

    #[test]
    fn a_mutex_of_a_process_that_crashes_is_free_after_its_longest_life() {
        let mutex = waits_for(What::Mutex, &["a"]);
        let granted_at = |time| {
            let mut fairness = Fairness::new(at(0), at(0), at(20));
            p0_gets_it(&mut fairness, calm(0), at(0));
            let waiter = fairness.asks(&mutex, calm(1), at(2));
            fairness.answered((waiter, 1), time, true, &crashed(0, 10))
        };
        assert!(granted_at(at(30) + MOST_IDLE).is_ok());
        assert!(granted_at(at(31)).is_err());
    }

    /// p0 has the mutex, and p1 waits. p2 asks at this time, and gets the mutex before p1.
    fn expires(still: &[Still], asked_at: Duration) -> Result<(u64, u32), String> {
        let mutex = waits_for(What::Mutex, &["a"]);
        let mut fairness = Fairness::new(at(0), at(0), at(20));
        p0_gets_it(&mut fairness, calm(0), at(0));
        fairness.asks(&mutex, calm(1), at(1));
        let newcomer = fairness.asks(&mutex, calm(2), asked_at);
        let soon = asked_at.max(at(11)) + Duration::from_millis(1);
        fairness.answered((newcomer, 2), soon, true, still)
    }

    #[test]
    fn a_mutex_that_expires_goes_to_a_newcomer_and_to_no_waiter_before_its_turn() {
        for still in [crashed(0, 10), stood_still(0, 10..11)] {
            assert!(expires(&still, at(12)).is_ok());
            assert!(expires(&still, at(9)).is_err());
        }
        assert!(expires(&ALIVE, at(12)).is_err());
        // It has expired long ago.
        assert!(expires(&stood_still(0, 2..3), at(12)).is_err());
    }

    #[test]
    fn a_mutex_is_handed_over_when_a_hold_reaches_its_limit() {
        let mutex = waits_for(What::Mutex, &["a"]);
        let idle_after = |cause| {
            let mut fairness = Fairness::new(at(0), at(3), at(20));
            p0_gets_it(&mut fairness, calm(0), at(4));
            let waiter = fairness.asks(&mutex, calm(1), at(5));
            fairness.lost(0, "a", cause, true, at(6));
            fairness.answered((waiter, 1), at(7), true, &ALIVE)
        };
        assert!(idle_after(LostCause::MaxHold).is_err());
        assert!(idle_after(LostCause::Expired).is_ok());
    }

    #[test]
    fn a_process_that_stands_still_is_passed_over_and_keeps_its_place() {
        let soon = Duration::from_millis(1);
        assert!(after(soon, stood_still(2, 3..6), at(1)).is_ok());
        assert!(after(soon, stood_still(2, 3..4), at(1)).is_err());
        // Its request may not have arrived before.
        assert!(after(soon, stood_still(2, 1..4), at(1)).is_ok());
    }

    #[test]
    fn a_turn_of_a_process_ends_while_another_waits() {
        let mutex = waits_for(What::Mutex, &["a"]);
        let turn_of = |length, still: &[Still]| {
            let mut fairness = Fairness::default();
            let first = fairness.asks(&mutex, calm(1), at(0));
            let second = fairness.asks(&mutex, calm(1), at(0));
            fairness.asks(&mutex, calm(2), at(1));
            assert_eq!(
                fairness.answered((first, 1), at(10), true, &ALIVE),
                Ok((1, 0))
            );
            fairness.answered((second, 1), at(10) + length, true, still)
        };
        let more = Duration::from_millis(1);
        assert_eq!(turn_of(LONGEST_TURN, &ALIVE), Ok((0, 0)));
        assert!(turn_of(LONGEST_TURN + more, &ALIVE).is_err());
        let paused = stood_still(1, 10..11);
        assert!(turn_of(at(1) + LONGEST_TURN, &paused).is_ok());
        assert!(turn_of(at(1) + LONGEST_TURN + more, &paused).is_err());
    }
}
