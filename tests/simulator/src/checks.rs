//! The rules that a schedule must keep, and its counts.
//!
//! | rule | looked at |
//! | --- | --- |
//! | The guards of a name that are not lost have no more units than the name | whenever the baton may pass on; of a reentrant guard or a closure, which only its thread can look at, before and after its work |
//! | A mutex that is not lost has its key in Redis, at a majority of the nodes of a quorum, and counts on no longer life than these keys have | whenever its thread acts, and sometimes when the baton may pass on |
//! | No owner has a lock in Redis for longer than its process may ask for, so a crash delays others by no more | sometimes when the baton may pass on |
//! | A fence is larger than that of each exclusive guard whose grant was known before the call | at each grant |
//! | A fenced register loses no update | at each write |
//! | A register in Redis that holders write by `commit`, without a fence, loses no update and no confirmed write: see `committed` (no quorum) | at each commit |
//! | A lost guard stays lost, and its channel tells | when its thread sees the loss |
//! | A guard whose key the server has evicted is lost after a lease, by its holder's clock | whenever the baton may pass on |
//! | A fire of a job is done once, if no server loses data | at each `done` |
//! | A rate limiter admits no more than its number in any time | at each admission |
//! | Observers of an election are shown who leads: see `elections` | whenever one looks |
//! | One manager at most adopts a claim, with a larger fence | at each adoption |
//! | Processes that wait for a name get it in their order, or are bypassed a few times: see `fairness` | at each grant |
//! | A key has a time to live | after each operation, and at the end |
//! | A call that begins 2 s after the faults or later does not fail: see `Worker::is_calm` | at each answer |
//! | A process that has closed has left no lock | when it closes, and when all its threads have ended |
//!
//! The first three rules hold while exclusion is promised: from a fault beyond the assumptions until the longest lease is over,
//! it is not (`beyond_ended_at`), for the names that the fault met. The last rule is left out at the end if faults may have delayed a request by a whole lease, and
//! after a failover, which may lose a release. `failover` has the exceptions of these rules after a failover. Two more rules have exceptions. All are counted:
//!
//! | exception | why |
//! | --- | --- |
//! | [`FENCE_OF_BEFORE_A_LOSS`] (not on a quorum) | The server has lost its data, or a key, or its clock jumped ahead and ended keys early, and a process does not know that yet. It hands a lease that it got before the loss to its next thread. Meanwhile the server grants larger fences. This ends with that lease. |
//! | [`FENCE_BY_ANOTHER_CLOCK`] | A server loses its data after its clock was set back, or a node of a quorum evicts a fence and the clocks of the nodes differ. |
//! | a queue without a time to live | A server refused `PEXPIRE` or `PTTL` in the script that made it. The next waiter gives it one. Not counted. |
//! | [`LOCK_AFTER_A_CLOSE`] | An earlier request for the lock had no answer. Redis executes it after the release, which the process repeats. |
//! | [`LATE_LOCK_AFTER_A_CLOSE`] | The same, a lease after the request was sent. Then the process releases nothing any more. |
//! | [`VOTE_AFTER_A_CLOSE`] (quorum) | The same, at a minority of the nodes. |
//! | [`ADOPTION_AFTER_A_LATE_REQUEST`] | An acquire that arrives about a lease after it was sent takes the lock for the owner of a claim that was adopted before. |
//! | [`RELEASE_LOST_BY_A_FAILOVER`], [`ADOPTION_LOST_BY_A_FAILOVER`] | A replica that lacks the release, or the adoption of a claim, becomes the master. |
//! | [`COMMIT_LOST_BY_A_SERVER`] | Since the read, or since the confirmed commit, a server has lost data or a replica has become the master; or a failover may have taken the lock, so that the old master still confirms its writes. |
//! | [`OVERLAP_AFTER_A_FAILOVER`], [`FENCE_AFTER_A_FAILOVER`], [`KEY_AFTER_A_FAILOVER`] | See `failover`. |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use leasehold::{
    Claim, Lease, LeaseState, LockGuard, Lost, LostCause, MultiGuard, OnceGuard, Permit, ReadGuard,
    Receiver, WriteGuard,
};

use crate::clock::ASSUMED_DRIFT;
use crate::elections::{Elections, Now, Shown};
use crate::fairness::{Asker, Fairness, SETTLED, SETTLED_WITH_REPLICAS, Still, Thread};
use crate::faults::{Bug, FaultKind};
use crate::history::{Answer, Call, History, Number, Object};
use crate::network::SimulatedServer;
use crate::programs::{LED, NAMES, Operation, What};
use crate::registers::{Read, Registers};
use crate::scenario::Scenario;
use crate::schedule::{Plan, Topology};
use crate::workload::{LONGEST_EXTENSION, SETTLES_WITHIN, Settings};
use crate::world::{World, WorldState, locked};

/// See the table of exceptions.
pub const FENCE_AFTER_A_FAILOVER: &str = "fence after a failover";
/// See the table of exceptions.
pub const OVERLAP_AFTER_A_FAILOVER: &str = "guards that overlapped after a failover";
/// See the table of exceptions.
pub const KEY_AFTER_A_FAILOVER: &str = "key that a failover took";
/// See the table of exceptions.
pub const FENCE_OF_BEFORE_A_LOSS: &str = "fence of before a loss of data";
/// See the table of exceptions.
pub const FENCE_BY_ANOTHER_CLOCK: &str = "fence by another clock";
/// See the table of exceptions.
pub const LOCK_AFTER_A_CLOSE: &str = "lock after a close";
/// See the table of exceptions.
pub const LATE_LOCK_AFTER_A_CLOSE: &str = "lock after a close by a late request";
/// See the table of exceptions.
pub const VOTE_AFTER_A_CLOSE: &str = "vote of a minority after a close";
/// See the table of exceptions.
pub const ADOPTION_LOST_BY_A_FAILOVER: &str = "adoption that a failover lost";
/// See the table of exceptions.
pub const ADOPTION_AFTER_A_LATE_REQUEST: &str = "second adoption after a late request";
/// See the table of exceptions.
pub const RELEASE_LOST_BY_A_FAILOVER: &str = "release that a failover lost";
/// See the table of exceptions.
pub const COMMIT_LOST_BY_A_SERVER: &str = "commit that a server lost";

/// Their keys are looked at once in this number of looks at the guards, because that takes long.
const KEYS_EVERY: u64 = 16;
/// By which part of it, and by what else, a lease in Redis may outlast what the program asked for: an extension allows for two
/// clocks that differ, and each renewal of a key that lives long enough adds a millisecond.
const LIVES_LONGER_BY: (u32, Duration) = (20, Duration::from_millis(20));
/// How long after a pause a thread acts on what was so before.
const PAUSE_SEEN_WITHIN: Duration = Duration::from_millis(1_500);
/// For how long a lock waits at least for the process to which it was handed: promise 4 of `lib.rs`.
pub(crate) const SHORTEST_WINDOW: Duration = Duration::from_millis(250);

/// A guard that any thread may look at.
pub(crate) enum Guard {
    Lock(LockGuard),
    Write(WriteGuard),
    Read(ReadGuard),
    Permit(Permit),
    Multi(MultiGuard),
    Once(OnceGuard),
}

pub(crate) struct Checks {
    pub(crate) world: Arc<World>,
    topology: Topology,
    pub(crate) is_quorum: bool,
    /// The longest lease.
    lease: Duration,
    /// The lease of each process.
    leases: Vec<Duration>,
    /// Whether no rule is looked at, so that a judge of the histories is alone.
    pub(crate) are_off: bool,
    history: Mutex<History>,
    registers: Mutex<Registers>,
    state: Mutex<ChecksState>,
}

#[derive(Default)]
struct ChecksState {
    names: BTreeMap<&'static str, NameChecks>,
    holds: Vec<Hold>,
    next_hold: u64,
    /// How often the guards were looked at.
    looks: u64,
    /// The tails of the owners of processes that have closed.
    closed: Vec<String>,
    /// The owners of all leases that were seen.
    owners: BTreeSet<String>,
    fairness: Fairness,
    elections: Elections,
    /// The fires of the job that were done, or may have been, and how often data was lost before.
    done: BTreeMap<SystemTime, u64>,
    /// The calls that a rate limiter has admitted: when they began, when they were due, and their places.
    admitted: Vec<(Duration, Duration, u32)>,
    /// The claims that a thread has left for others.
    claims: Vec<(&'static str, Claim)>,
    /// The adopted claims, and the labels of the managers that adopted them.
    adopted: BTreeMap<String, String>,
    /// The owners of all claims. Redis keeps such a lock for its lease.
    detached: BTreeSet<String>,
    /// The names at which an adoption has failed. Redis may have executed it.
    may_be_adopted: BTreeSet<&'static str>,
    counts: Counts,
}

/// The state of a name.
#[derive(Default)]
struct NameChecks {
    /// The largest fence of an exclusive guard.
    last_fence: u64,
    last_process: Option<usize>,
    /// The exclusive guards that were not lost when their holders got them, while exclusion was promised.
    exclusive_grants: u64,
    /// When a guard was last extended, or a lock adopted.
    extended_at: Option<Duration>,
    committed: Committed,
}

/// What holders know of the register of a name in Redis.
#[derive(Clone, Copy, Default)]
pub(crate) struct Committed {
    pub(crate) value: i64,
    /// How often servers had lost data by then.
    data_losses: u64,
}

/// The hold of a thread.
struct Hold {
    number: u64,
    began_at: Duration,
    process: usize,
    names: Vec<&'static str>,
    units: u32,
    total: u32,
    /// The fence, if the lock is exclusive.
    fence: Option<u64>,
    guard: Weak<Guard>,
    /// Whether it was counted that another guard has the same lock.
    is_counted: bool,
    /// Whether it was seen lost.
    was_lost: bool,
}

/// What a holder had when it asked for a lock.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// The largest fence.
    pub(crate) known: u64,
    pub(crate) begun: Duration,
    call: Option<Number>,
}

/// The counts of a schedule.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Guards of all kinds.
    pub grants: u64,
    /// Those of them that were granted while exclusion was not promised.
    pub unpromised_grants: u64,
    /// The same by what asked for them.
    pub kinds: BTreeMap<What, u64>,
    /// Exclusive grants of a name to another process than before.
    pub hand_overs: u64,
    /// Answers that the lock was held.
    pub refusals: u64,
    /// Calls that returned an error, by its kind.
    pub errors: BTreeMap<String, u64>,
    /// Calls after the last fault that must not fail, because nothing disturbed them.
    pub calm_calls: u64,
    /// Guards whose loss their holder saw.
    pub losses: u64,
    /// Writes that a fenced register rejected.
    pub rejected_writes: u64,
    /// Confirmed commits.
    pub commits: u64,
    /// Writes to an unfenced register that overwrote another holder's.
    pub unfenced_corruptions: u64,
    /// The names of these registers.
    pub overwritten: BTreeSet<&'static str>,
    /// The longest part of a call that lay behind the last fault.
    pub longest_wait: Duration,
    /// The events of which listeners were told.
    pub events: BTreeMap<&'static str, u64>,
    /// Events that the library does not rule out: see the table of exceptions.
    pub exceptions: BTreeMap<&'static str, u64>,
    /// How often a process got a name for which another one waited, which had not asked much earlier.
    pub fair_turns: u64,
    /// How often a waiter without a strict place was bypassed at most.
    pub most_bypassed: u32,
}

impl Guard {
    pub(crate) fn state(&self) -> LeaseState {
        match self {
            Self::Multi(guard) => guard.state(),
            _ => self.leases()[0].state(),
        }
    }

    /// Returns a channel on which the first loss of one of its leases is received.
    pub(crate) fn on_lost(&self) -> Receiver<Lost> {
        match self {
            Self::Multi(guard) => guard.on_lost(),
            _ => self.leases()[0].on_lost(),
        }
    }

    pub(crate) fn leases(&self) -> Vec<&Lease> {
        match self {
            Self::Lock(guard) => vec![guard],
            Self::Write(guard) => vec![guard],
            Self::Read(guard) => vec![guard],
            Self::Permit(guard) => vec![guard],
            Self::Multi(guard) => guard.leases().iter().collect(),
            Self::Once(guard) => vec![guard],
        }
    }
}

impl Checks {
    pub(crate) fn new(world: &Arc<World>, scenario: &Scenario) -> Arc<Self> {
        let Plan { topology, bug, .. } = scenario.plan;
        let processes = scenario.process_clocks.len();
        let leases = (0..processes).map(|process| scenario.settings.lease_of(process));
        let leases: Vec<_> = leases.collect();
        let lease = leases.iter().copied().max().unwrap_or_default();
        let healed_at = scenario.settings.healed_at;
        let state = ChecksState {
            fairness: Fairness::new(healed_at, lease, longest_life(lease)),
            ..ChecksState::default()
        };
        let checks = Arc::new(Self {
            world: Arc::clone(world),
            topology,
            is_quorum: topology == Topology::Quorum,
            lease,
            leases,
            are_off: scenario.is_unchecked,
            history: Mutex::new(History::new(processes, scenario.threads_each)),
            registers: Mutex::new(Registers::new(bug == Some(Bug::StaleWrites))),
            state: Mutex::new(state),
        });
        if checks.are_off {
            return checks;
        }
        let weak = Arc::downgrade(&checks);
        let look = move || weak.upgrade().map_or(Ok(()), |checks| checks.look());
        world.check_by(Box::new(look));
        checks
    }

    /// Returns whether exclusion of a name is promised: no guard is left that a fault beyond the assumptions may have met.
    fn is_within_assumptions(&self, name: &str) -> bool {
        let state = self.world.state();
        !state.was_beyond_the_assumptions(name, self.longest_life())
    }

    /// Returns how long a guard may hold its lock without a request.
    fn longest_life(&self) -> Duration {
        longest_life(self.lease)
    }

    /// Returns whether the next fence of a name, of which a server has lost data, may come from another clock.
    fn may_fall_by_clocks(&self, name: &str, world: &WorldState) -> bool {
        let has_lost_a_key = world.has_lost_a_key(name);
        let has_lost_data = has_lost_a_key || world.network.data_losses_of(name) > 0;
        let was_set_back = world.faults.contains_key(&FaultKind::ServerClockBack);
        self.is_quorum && has_lost_a_key || has_lost_data && was_set_back
    }

    /// Returns whether a failover may have taken the lock of a guard.
    fn may_be_taken(&self, name: &str, fence: Option<u64>) -> bool {
        let state = self.world.state();
        (state.network).may_be_taken(name, fence, self.longest_life(), state.now)
    }

    /// Returns whether exclusion is promised to a guard of a name.
    pub(crate) fn is_promised(&self, name: &str, fence: Option<u64>) -> bool {
        self.is_within_assumptions(name) && !self.may_be_taken(name, fence)
    }

    /// Checks that the guards whose key the only server has lost are lost in time. After a failover it may have the key again.
    fn look_at_evictions(&self, holds: &[Hold]) -> Result<(), String> {
        let (now, evictions) = {
            let state = self.world.state();
            if self.is_quorum || state.evictions.is_empty() || state.network.has_failed_over() {
                return Ok(());
            }
            (state.now, state.evictions.clone())
        };
        for (at, key) in evictions {
            let is_due = |hold: &&Hold| {
                let clock = &self.world.state().processes[hold.process].clock;
                let is_its = hold.names.iter().any(|name| *name == key);
                is_its
                    && hold.began_at < at
                    && now > at + clock.true_length(self.lease * LONGEST_EXTENSION)
            };
            for hold in holds.iter().filter(is_due) {
                let guard = hold.guard.upgrade();
                if guard.is_some_and(|guard| guard.state() != LeaseState::Lost) {
                    return Err(format!("a guard does not know that {key} was evicted"));
                }
            }
        }
        Ok(())
    }

    /// Looks at the keys of the guards that are not lost, and counts their units.
    fn look(&self) -> Result<(), String> {
        let mut state = locked(&self.state);
        self.look_at_evictions(&state.holds)?;
        // A loss is final in any case.
        for hold in &mut state.holds {
            let Some(guard) = hold.guard.upgrade() else {
                continue;
            };
            let is_lost = guard.state() == LeaseState::Lost;
            if hold.was_lost && !is_lost {
                return Err("a lost guard holds its lock again".into());
            }
            hold.was_lost = is_lost;
        }
        state.looks += 1;
        if state.looks % KEYS_EVERY == 0 {
            self.check_lives(&state)?;
        }
        if state.holds.is_empty() {
            return Ok(());
        }
        if state.looks % KEYS_EVERY == 0 {
            let guards = state.holds.iter();
            let guards = guards.filter_map(|hold| Some((hold.process, hold.guard.upgrade()?)));
            let guards: Vec<_> = guards.collect();
            drop(state);
            for (process, guard) in guards {
                self.check_keys_of(&guard, process)?;
            }
            state = locked(&self.state);
        }
        let ChecksState { holds, counts, .. } = &mut *state;
        let has_failed_over = self.world.state().network.has_failed_over();
        // The units that guards have, of how many, and those that no failover may have taken.
        let mut taken = BTreeMap::<&'static str, (u32, u32, u32)>::new();
        for hold in holds.iter() {
            let Some(guard) = hold.guard.upgrade() else {
                continue;
            };
            if guard.state() == LeaseState::Lost {
                continue;
            }
            for name in &hold.names {
                let is_kept = !has_failed_over || !self.may_be_taken(name, hold.fence);
                let (units, total, kept) = taken.entry(*name).or_default();
                *units += hold.units;
                *total = hold.total.max(*total);
                *kept += if is_kept { hold.units } else { 0 };
            }
        }
        for (name, (units, total, kept)) in taken {
            if units <= total || !self.is_within_assumptions(name) {
                continue;
            }
            if kept > total {
                return Err(format!("guards have {kept} of the {total} units of {name}"));
            }
            let has_it = |hold: &&mut Hold| hold.names.contains(&name) && !hold.is_counted;
            for hold in holds.iter_mut().filter(has_it) {
                hold.is_counted = true;
                counts.note(OVERLAP_AFTER_A_FAILOVER);
            }
        }
        Ok(())
    }

    /// Notes that a thread begins to ask for an exclusive lock.
    pub(crate) fn asks_for(&self, thread: usize, name: &'static str) -> Asked {
        let begun = self.world.state().now;
        Asked {
            known: (locked(&self.state).names.entry(name).or_default()).last_fence,
            begun,
            call: self.begin(Some(thread), (name, Object::Lock), Call::Acquire),
        }
    }

    /// Notes that a call for an exclusive lock has ended without a guard.
    pub(crate) fn is_refused(&self, asked: Asked, is_error: bool) {
        let answer = if is_error {
            Answer::Unknown
        } else {
            Answer::Failed
        };
        self.end(asked.call, answer);
    }

    /// Notes a hold, and returns its number.
    pub(crate) fn hold(
        &self,
        names: &[&'static str],
        (units, total): (u32, u32),
        (process, guard): (usize, &Arc<Guard>),
    ) -> u64 {
        let began_at = self.world.state().now;
        let mut state = locked(&self.state);
        let number = state.next_hold;
        state.next_hold += 1;
        let fences = guard.leases().into_iter().map(Lease::fence);
        state.holds.push(Hold {
            number,
            began_at,
            process,
            names: names.to_vec(),
            units,
            total,
            fence: fences.min().filter(|fence| units == total && *fence > 0),
            guard: Arc::downgrade(guard),
            is_counted: false,
            was_lost: false,
        });
        number
    }

    pub(crate) fn end_hold(&self, number: u64) {
        let mut state = locked(&self.state);
        state.holds.retain(|hold| hold.number != number);
    }

    /// Notes an exclusive grant.
    pub(crate) fn granted(
        &self,
        name: &'static str,
        process: usize,
        lease: &Lease,
        Asked { known, begun, call }: Asked,
    ) -> Result<(), String> {
        let fence = lease.fence();
        let is_lost = lease.state() == LeaseState::Lost;
        // From here on no other thread runs.
        let is_promised = self.is_promised(name, Some(fence));
        let is_held = is_promised && !is_lost;
        let mut state = locked(&self.state);
        let is_new = state.owners.insert(lease.owner().to_owned());
        let exception = {
            let world = self.world.state();
            let network = &world.network;
            if !self.is_quorum && network.is_of_before_a_loss(fence, begun, self.lease) {
                Some(FENCE_OF_BEFORE_A_LOSS)
            } else if self.may_fall_by_clocks(name, &world) {
                Some(FENCE_BY_ANOTHER_CLOCK)
            } else if network.may_fence_fall(name, (fence, known), is_new, world.now) {
                Some(FENCE_AFTER_A_FAILOVER)
            } else {
                None
            }
        };
        let checks = state.names.entry(name).or_default();
        checks.last_fence = fence.max(checks.last_fence);
        checks.exclusive_grants += u64::from(is_held);
        let before = checks.last_process.replace(process);
        state.counts.hand_overs += u64::from(before.is_some_and(|before| before != process));
        if let Some(exception) = exception.filter(|_| fence <= known) {
            state.counts.note(exception);
            drop(state);
            self.end(call, Answer::Unknown);
            return Ok(());
        }
        drop(state);
        self.end(call, Answer::Granted { fence, is_promised });
        self.look_at_guards_of(name);
        if fence <= known {
            return Err(format!(
                "the fence {fence} of {name} is not larger than {known}"
            ));
        }
        Ok(())
    }

    /// Returns a count for [`check_alone`](Self::check_alone).
    pub(crate) fn exclusive_grants(&self, name: &'static str) -> u64 {
        let mut state = locked(&self.state);
        state.names.entry(name).or_default().exclusive_grants
    }

    /// Checks that a lease which other threads may not look at is the only one of its name, unless it is lost. A lease that is
    /// not lost now was not lost earlier. So nobody may have got the name since there were `grants`.
    pub(crate) fn check_alone(
        &self,
        name: &'static str,
        lease: &Lease,
        grants: u64,
    ) -> Result<(), String> {
        World::while_all_stand_still(|| {
            if lease.state() == LeaseState::Lost || !self.is_promised(name, Some(lease.fence())) {
                return Ok(());
            }
            let state = locked(&self.state);
            let mut others = state.holds.iter().filter(|hold| hold.names.contains(&name));
            let is_held = |hold: &Hold| {
                let guard = hold.guard.upgrade();
                guard.is_some_and(|guard| guard.state() != LeaseState::Lost)
                    && self.is_promised(name, hold.fence)
            };
            let granted = state.names[name].exclusive_grants;
            if granted > grants || others.any(is_held) {
                let owner = lease.owner();
                return Err(format!("{owner} is not lost, and another guard has {name}"));
            }
            Ok(())
        })
    }

    pub(crate) fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut locked(&self.state).counts);
    }

    pub(crate) fn counts(&self) -> Counts {
        locked(&self.state).counts.clone()
    }

    /// Notes that a thread, or the harness, begins a call. Returns `None` if the call is left out of the history.
    pub(crate) fn begin(
        &self,
        thread: Option<usize>,
        of: (&'static str, Object),
        call: Call,
    ) -> Option<Number> {
        if of.1 == Object::Committed && self.data_losses_of(of.0) > 0 {
            return None;
        }
        let now = self.world.state().now;
        locked(&self.history).begin(now, thread, of, call)
    }

    /// Notes how such a call ends. The register in a Redis that has lost data is left out from then on.
    pub(crate) fn end(&self, number: Option<Number>, answer: Answer) {
        let Some(number) = number else {
            return;
        };
        let (name, object) = number.of;
        if object != Object::Committed || self.data_losses_of(name) == 0 {
            let now = self.world.state().now;
            locked(&self.history).end(now, number, answer);
        }
    }

    /// Notes that a thread, or the harness, sees this state of a guard with these fences. The guard may read `Held` anyhow while
    /// exclusion is not promised.
    pub(crate) fn sees(
        &self,
        thread: Option<usize>,
        fences: &[(&'static str, u64)],
        state: LeaseState,
    ) {
        let is_lost = state == LeaseState::Lost;
        for (name, fence) in fences {
            if is_lost || self.is_promised(name, Some(*fence)) {
                let call = self.begin(thread, (name, Object::Lock), Call::Look(*fence));
                self.end(call, if is_lost { Answer::Lost } else { Answer::Held });
            }
        }
    }

    /// Has the harness look at all guards of a name.
    fn look_at_guards_of(&self, name: &'static str) {
        let guards: Vec<_> = {
            let state = locked(&self.state);
            let its = state.holds.iter().filter(|it| it.names.contains(&name));
            its.filter_map(|hold| hold.guard.upgrade()).collect()
        };
        for guard in guards {
            let mut leases = guard.leases().into_iter();
            if let Some(lease) = leases.find(|lease| lease.name() == name) {
                let state = World::while_all_stand_still(|| guard.state());
                self.sees(None, &[(name, lease.fence())], state);
            }
        }
    }

    pub(crate) fn history(&self) -> History {
        locked(&self.history).clone()
    }

    /// Reads the registers of a name.
    pub(crate) fn read(&self, name: &'static str, fence: u64) -> Read {
        locked(&self.registers).read(name, fence)
    }

    /// Writes one more than was read to the registers of a name. Returns whether the fenced one takes it.
    pub(crate) fn write(&self, name: &'static str, fence: u64, read: Read) -> Result<bool, String> {
        let (before, is_taken) = {
            let mut registers = locked(&self.registers);
            let before = registers.values(name);
            (before, registers.write(name, fence, read))
        };
        self.count(|counts| {
            if before.plain != read.plain {
                counts.unfenced_corruptions += 1;
                counts.overwritten.insert(name);
            }
            counts.rejected_writes += u64::from(!is_taken);
        });
        if is_taken && read.fenced != before.fenced {
            return Err(format!("the fenced register of {name} has lost an update"));
        }
        Ok(is_taken)
    }

    /// Returns the value of the last confirmed commit, as far as no server has lost data since.
    pub(crate) fn last_committed(&self, name: &'static str) -> Committed {
        let data_losses = self.world.state().network.data_losses_of(name);
        let mut state = locked(&self.state);
        let last = state.names.entry(name).or_default().committed;
        if last.data_losses == data_losses {
            last
        } else {
            let value = 0;
            Committed { value, data_losses }
        }
    }

    /// Checks a value that a holder has read. Before, it knew the `last` one.
    pub(crate) fn has_read(
        &self,
        name: &'static str,
        fence: u64,
        last: Committed,
        value: i64,
    ) -> Result<Committed, String> {
        if value < last.value {
            let committed = last.value;
            let what = format!("{name} has {value}, and {committed} was committed");
            self.must_be_undone(name, (fence, last), what)?;
        }
        Ok(Committed { value, ..last })
    }

    /// Checks the value that a holder has overwritten by one more than it had `read`.
    pub(crate) fn has_committed(
        &self,
        name: &'static str,
        fence: u64,
        read: Committed,
        before: Option<i64>,
    ) -> Result<(), String> {
        let value = read.value;
        if before != Some(value) {
            let what = format!("{name} had {before:?}, and its holder had read {value}");
            self.must_be_undone(name, (fence, read), what)?;
        }
        let is_kept = !self.may_be_undone(name, fence, read);
        let mut state = locked(&self.state);
        state.counts.commits += 1;
        if is_kept {
            let value = value + 1;
            state.names.entry(name).or_default().committed = Committed { value, ..read };
        }
        Ok(())
    }

    /// Counts an update or a confirmed commit that was lost, if a server may have undone it.
    fn must_be_undone(
        &self,
        name: &str,
        (fence, known): (u64, Committed),
        what: String,
    ) -> Result<(), String> {
        if !self.may_be_undone(name, fence, known) {
            return Err(what);
        }
        self.count(|counts| counts.note(COMMIT_LOST_BY_A_SERVER));
        Ok(())
    }

    /// Returns whether a server may have undone what a holder knows: see the table of exceptions.
    fn may_be_undone(&self, name: &str, fence: u64, known: Committed) -> bool {
        self.is_lossy_since(name, known.data_losses) || self.may_be_taken(name, Some(fence))
    }

    /// Returns whether a server may have forgotten what it has executed for a name since data was lost so often.
    fn is_lossy_since(&self, name: &str, losses: u64) -> bool {
        let network = &self.world.state().network;
        network.data_losses_of(name) != losses || network.has_two_masters(name)
    }

    /// Notes that a call begins to ask for a lock, and returns its ticket.
    pub(crate) fn asks(
        &self,
        operation: &Operation,
        thread: Thread,
        now: Duration,
        settings: &Settings,
    ) -> u64 {
        let is_calm = {
            let state = self.world.state();
            // A waiter whose connection is dead hears of no turn, and may be passed over. None dies after `healed_at`.
            let is_connected = !state.has_dead_connections(thread.0);
            now > settings.healed_at + SETTLES_WITHIN && is_connected
        };
        let asker = Asker {
            thread,
            is_calm,
            topology: self.topology,
            has_min_hold: settings.tuning.min_hold.is_some(),
            settles_within: if settings.replicas > 0 {
                SETTLED_WITH_REPLICAS
            } else {
                SETTLED
            },
        };
        (locked(&self.state).fairness).asks(operation, asker, now)
    }

    fn now_and_whether_connected(&self, process: usize) -> (Duration, bool) {
        let state = self.world.state();
        (state.now, !state.has_dead_connections(process))
    }

    /// Notes that a thread has ended its hold of these names.
    pub(crate) fn ended(&self, thread: Thread, names: &[&'static str]) {
        let (now, is_connected) = self.now_and_whether_connected(thread.0);
        let fairness = &mut locked(&self.state).fairness;
        fairness.ended(thread, names, is_connected, now);
    }

    /// Notes that a process has lost a lease, of several names for a multi-lock. From then on the next one of its threads
    /// asks, while the guard still lives.
    pub(crate) fn lost(&self, process: usize, names: &str, cause: LostCause, fence: u64) {
        let (now, is_connected) = self.now_and_whether_connected(process);
        let mut state = locked(&self.state);
        for name in names.split(" + ") {
            for name in NAMES.iter().filter(|it| **it == name) {
                (state.fairness).lost(process, name, cause, is_connected, now);
            }
        }
        state.elections.lost(process, fence, now);
    }

    /// Calls `act` with the elections, and with the time.
    pub(crate) fn elections<T>(&self, act: impl FnOnce(&mut Elections, Duration) -> T) -> T {
        let now = self.world.state().now;
        act(&mut locked(&self.state).elections, now)
    }

    /// Checks what a thread of a process is shown of the election at this time: see `elections`.
    pub(crate) fn check_shown(
        &self,
        process: usize,
        shown: &mut Shown,
        at: Duration,
    ) -> Result<(), String> {
        let is_within_assumptions = self.is_within_assumptions(LED);
        let (now, is_alive) = {
            let state = self.world.state();
            let network = &state.network;
            let is_calm = at > state.healed_at && !state.has_dead_connections(process);
            if at < state.paused_until + PAUSE_SEEN_WITHIN || state.processes[process].is_revived {
                return Ok(());
            }
            let was_within = !state.was_beyond_the_assumptions(LED, Duration::MAX / 2);
            let now = Now {
                at,
                calm_since: is_calm.then_some(state.healed_at),
                is_within_assumptions,
                may_hear: !state.refused.contains("subscribe"),
                keeps_writes: was_within
                    && network.data_losses_of(LED) == 0
                    && !network.has_failed_over(),
                late_by: network.longest_way() + network.clocks_differ_by(state.now),
            };
            (now, alive(&state))
        };
        (locked(&self.state).elections).check(shown, now, &is_alive)
    }

    /// Notes the answer to a call.
    pub(crate) fn answered(
        &self,
        ticket: u64,
        process: usize,
        is_granted: bool,
    ) -> Result<(), String> {
        let (now, still) = {
            let state = self.world.state();
            let still = state.processes.iter().zip(alive(&state)).enumerate();
            let still = still.map(|(number, (process, is_alive))| {
                if is_alive && state.has_dead_connections(number) {
                    let (since, until) = (Duration::ZERO, state.now);
                    return Still {
                        since,
                        until,
                        is_alive,
                    };
                }
                Still {
                    since: process.paused_at,
                    until: process.paused_until,
                    is_alive,
                }
            });
            (state.now, still.collect::<Vec<_>>())
        };
        let mut state = locked(&self.state);
        let ChecksState {
            fairness, counts, ..
        } = &mut *state;
        let (in_order, bypassed) = fairness.answered((ticket, process), now, is_granted, &still)?;
        counts.fair_turns += in_order;
        counts.most_bypassed = bypassed.max(counts.most_bypassed);
        Ok(())
    }

    /// Checks the keys of mutexes.
    fn check_keys_of(&self, guard: &Guard, process: usize) -> Result<(), String> {
        let is_of_mutexes = matches!(guard, Guard::Lock(_) | Guard::Multi(_) | Guard::Once(_));
        if !is_of_mutexes || guard.state() == LeaseState::Lost {
            return Ok(());
        }
        let mut leases = guard.leases().into_iter();
        leases.try_for_each(|lease| self.check_key(lease, process))
    }

    /// Notes that a guard of a name is extended, or a lock is adopted.
    pub(crate) fn extends(&self, name: &'static str) {
        let now = self.world.state().now;
        (locked(&self.state).names.entry(name).or_default()).extended_at = Some(now);
    }

    /// Checks that no owner has a lock for longer than its process may have asked for.
    fn check_lives(&self, checks: &ChecksState) -> Result<(), String> {
        let mut state = self.world.state();
        let now = state.now;
        let (servers, _) = state.network.deciding();
        let late_by = state.network.longest_way();
        // After a failover, another clock counts.
        let clocks_differ_by = if state.network.has_replicas() {
            state.network.clocks_differ_by(now)
        } else {
            Duration::ZERO
        };
        for name in NAMES {
            if state.was_beyond_the_assumptions(name, self.longest_life()) {
                continue;
            }
            let extended_at = checks.names.get(name).and_then(|its| its.extended_at);
            let is_extended =
                extended_at.is_some_and(|at| now <= at + late_by + self.longest_life());
            for server in &servers {
                let leases = state.network.servers[*server].leases(name, now);
                for (owner, life) in leases {
                    let Some(lease) = process_of(&owner).and_then(|it| self.leases.get(it)) else {
                        continue;
                    };
                    let most = if is_extended {
                        self.lease * LONGEST_EXTENSION
                    } else {
                        SHORTEST_WINDOW.max(*lease)
                    };
                    let (part, more) = LIVES_LONGER_BY;
                    if life > most + most / part + more + clocks_differ_by {
                        return Err(format!(
                            "{owner} has {name} for {life:?}, and may have {most:?}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes that the fire of a job was done, and checks that nobody had done it. `losses` is how often data was lost before.
    pub(crate) fn has_done(
        &self,
        name: &'static str,
        fire: SystemTime,
        losses: u64,
    ) -> Result<(), String> {
        let is_kept = !self.is_lossy_since(name, losses) && !self.may_be_taken(name, None);
        match locked(&self.state).done.insert(fire, losses) {
            Some(before) if is_kept && before == losses => {
                Err(format!("the fire {fire:?} of {name} was done twice"))
            }
            _ => Ok(()),
        }
    }

    /// Returns how often data of a name was lost.
    pub(crate) fn data_losses_of(&self, name: &str) -> u64 {
        self.world.state().network.data_losses_of(name)
    }

    /// Notes that a rate limiter has admitted a call, and checks that it keeps to its number.
    pub(crate) fn admitted(
        &self,
        process: usize,
        name: &str,
        begun: Duration,
        places: u32,
        (most, per): (u32, Duration),
    ) -> Result<(), String> {
        let world = self.world.state();
        let is_exact = world.network.data_losses_of(name) == 0
            && !world.was_beyond_the_assumptions(name, Duration::MAX / 2);
        // A process that waits for its place returns earlier by each jump of its clock.
        let jumps = world.clock_jumps.iter();
        let jumps = jumps.filter(|(whose, at, _)| *whose == process && *at >= begun);
        let due = world.now + jumps.map(|(_, _, by)| *by).sum::<Duration>();
        drop(world);
        let mut state = locked(&self.state);
        state.admitted.push((begun, due, places));
        for (since, ..) in state.admitted.iter().filter(|_| is_exact) {
            let within = || state.admitted.iter().filter(|(begun, ..)| begun >= since);
            let count: u32 = within().map(|(.., places)| places).sum();
            let last = within().map(|(_, due, _)| *due).max().unwrap_or(due);
            // By a clock that is faster by as much as is assumed.
            let length = last
                .saturating_sub(*since)
                .mul_f64(1.0 + f64::from(ASSUMED_DRIFT) / 1e6);
            let windows = length.as_nanos() / per.as_nanos() + 1;
            if u128::from(count) > windows * u128::from(most) {
                return Err(format!("{name} has admitted {count} since {since:?}"));
            }
        }
        Ok(())
    }

    /// Leaves a claim for other threads: at most `times` of them find it.
    pub(crate) fn leave(&self, name: &'static str, claim: &Claim, times: u64) {
        let mut state = locked(&self.state);
        state.detached.insert(claim.owner().to_owned());
        state.fairness.detached(name);
        for _ in 0..times {
            state.claims.push((name, claim.clone()));
        }
    }

    /// Notes that the writer of a name becomes a reader.
    pub(crate) fn downgrades(&self, name: &'static str) {
        locked(&self.state).fairness.detached(name);
    }

    pub(crate) fn take_claim(&self) -> Option<(&'static str, Claim)> {
        locked(&self.state).claims.pop()
    }

    /// Notes that an adoption of a lock of this name has failed.
    pub(crate) fn has_not_adopted(&self, name: &'static str) {
        locked(&self.state).may_be_adopted.insert(name);
    }

    /// Notes that a manager has adopted a claim.
    pub(crate) fn adopted(&self, claim: &Claim, label: &str, fence: u64) -> Result<(), String> {
        if fence <= claim.fence() {
            return Err(format!("an adopter of {claim} has the fence {fence}"));
        }
        let (has_failed_over, was_late) = {
            let network = &self.world.state().network;
            (network.has_failed_over(), network.was_late(self.lease))
        };
        let mut state = locked(&self.state);
        let first = state.adopted.insert(claim.to_string(), label.to_owned());
        match first.filter(|first| first != label) {
            Some(_) if has_failed_over => {
                state.counts.note(ADOPTION_LOST_BY_A_FAILOVER);
                Ok(())
            }
            Some(_) if was_late => {
                state.counts.note(ADOPTION_AFTER_A_LATE_REQUEST);
                Ok(())
            }
            Some(first) => Err(format!("{first} and {label} have adopted {claim}")),
            None => Ok(()),
        }
    }

    /// Checks the keys of a mutex, unless the lease is lost: they have the owner of the lease, and live as long as the lease
    /// counts on. On a quorum, a majority of the nodes must have it. A node that has lost its data does not vote until the
    /// lease is over. All times are true ones, so nothing is allowed to the library here.
    pub(crate) fn check_key(&self, lease: &Lease, process: usize) -> Result<(), String> {
        let (name, owner) = (lease.name(), lease.owner().to_owned());
        // From here to the end of the block no other thread runs.
        let counted_on = lease.remaining();
        if counted_on.is_zero() {
            return Ok(());
        }
        let (counted_on, mut lives) = {
            let mut state = self.world.state();
            let now = state.now;
            let counted_on = state.processes[process].clock.true_length(counted_on);
            let servers = if self.is_quorum {
                state.network.deciding().0
            } else {
                state.network.masters_of(name)
            };
            let life_at = |server: &mut SimulatedServer| {
                if self.is_quorum && server.may_not_vote(now) {
                    return Duration::MAX;
                }
                let mut leases = server.leases(name, now).into_iter();
                let its = leases.find(|(holder, _)| *holder == owner);
                its.map_or(Duration::ZERO, |(_, life)| life)
            };
            let life_at = |server: usize| life_at(&mut state.network.servers[server]);
            let lives: Vec<_> = servers.into_iter().map(life_at).collect();
            (counted_on, lives)
        };
        lives.sort_unstable();
        let life = lives[lives.len() - self.needed()];
        if counted_on <= life || !self.is_within_assumptions(name) {
            return Ok(());
        }
        if self.may_be_taken(name, Some(lease.fence())) {
            self.count(|counts| counts.note(KEY_AFTER_A_FAILOVER));
            return Ok(());
        }
        Err(format!(
            "{owner} is not lost and counts on {counted_on:?}, and {name} lives for {life:?}"
        ))
    }

    /// Notes that a manager with this label has closed.
    pub(crate) fn note_closed(&self, label: &str) {
        locked(&self.state).closed.push(format!(":{label}"));
    }

    /// Checks that a manager with this label, which has closed and has no guards, has left no lock. If `repeats`, it has
    /// ended an owner more than once. It repeats nothing for a request that is older than a lease.
    pub(crate) fn check_closed(
        &self,
        label: &str,
        repeats: bool,
        lease: Duration,
    ) -> Result<(), String> {
        let tail = format!(":{label}");
        let mut left = self.owners();
        left.retain(|(_, owner), _| owner.ends_with(&tail));
        let needed = self.needed();
        let (was_late, has_failed_over) = {
            let network = &self.world.state().network;
            (network.was_late(lease), network.has_failed_over())
        };
        let mut state = locked(&self.state);
        let most = left.into_iter().max_by_key(|(_, count)| *count);
        let Some(((key, owner), count)) = most else {
            return Ok(());
        };
        let exception = if count < needed {
            VOTE_AFTER_A_CLOSE
        } else if repeats {
            LOCK_AFTER_A_CLOSE
        } else if was_late {
            LATE_LOCK_AFTER_A_CLOSE
        } else if has_failed_over {
            RELEASE_LOST_BY_A_FAILOVER
        } else {
            return Err(format!("{key} has {owner}, whose process has just closed"));
        };
        state.counts.note(exception);
        Ok(())
    }

    /// Returns how many servers must have a lock.
    fn needed(&self) -> usize {
        self.world.state().network.deciding().1
    }

    /// Checks that each key of each server has a time to live.
    pub(crate) fn check_keys(&self) -> Result<(), String> {
        let mut state = self.world.state();
        let now = state.now;
        for server in 0..state.network.servers.len() {
            let server = &mut state.network.servers[server];
            let mut keys = server.execute(&["KEYS", "*"], now);
            keys.retain(|key| !is_register(key) && server.execute(&["PTTL", key], now) == [":-1"]);
            if let Some(key) = keys.into_iter().find(|key| !state.may_live_for_ever(key)) {
                return Err(format!("{key} has no time to live"));
            }
        }
        Ok(())
    }

    /// Checks that no lock has an owner of a process that has closed, at a majority of the servers. A waiter may be left in a
    /// queue: scripts pass it over after its pickup window, and the queue lives for at most 6 s after its last waiter was
    /// seen. On a quorum, a minority may keep a lock for its lease: see `votes` in the library.
    pub(crate) fn check_owners(&self) -> Result<(), String> {
        let closed = locked(&self.state).closed.clone();
        let needed = self.needed();
        let is_left = |((_, owner), count): &((String, String), usize)| {
            *count >= needed && closed.iter().any(|tail| owner.ends_with(tail))
        };
        match self.owners().into_iter().find(is_left) {
            None => Ok(()),
            Some(((key, owner), _)) => Err(format!("{key} has {owner}, whose process has closed")),
        }
    }

    /// Returns the keys of locks with their owners, and how many servers have them. Leaves out claims, which Redis keeps.
    fn owners(&self) -> BTreeMap<(String, String), usize> {
        let checks = locked(&self.state);
        let mut state = self.world.state();
        let now = state.now;
        let mut owners = BTreeMap::new();
        for server in state.network.deciding().0 {
            let server = &mut state.network.servers[server];
            let mut keys = server.execute(&["KEYS", "*"], now);
            keys.retain(|key| !key.contains(":lh:") && !is_register(key));
            for key in keys {
                for (owner, _) in server.leases(&key, now) {
                    *owners.entry((key.clone(), owner)).or_default() += 1;
                }
            }
        }
        owners.retain(|(key, owner), _| {
            !checks.detached.contains(owner) && !checks.may_be_adopted.contains(key.as_str())
        });
        owners
    }
}

/// Returns how long a guard may hold its lock without a request, if this is the longest lease.
fn longest_life(lease: Duration) -> Duration {
    lease * LONGEST_EXTENSION + lease * LONGEST_EXTENSION * ASSUMED_DRIFT / 1_000_000
}

/// Returns which processes have not crashed.
fn alive(state: &WorldState) -> Vec<bool> {
    let processes = state.processes.iter();
    processes
        .map(|it| !it.is_crashed && !it.is_revived)
        .collect()
}

/// Returns the process of an owner, whose label has its number.
fn process_of(owner: &str) -> Option<usize> {
    let label = owner.rsplit(':').next()?;
    label.strip_prefix('p')?.split('.').next()?.parse().ok()
}

/// Returns the key of the register of a name in Redis, which is in the slot of the lock.
pub(crate) fn register_of(name: &str) -> String {
    format!("{{{name}}}:register")
}

pub(crate) fn is_register(key: &str) -> bool {
    key.ends_with(":register")
}

impl Counts {
    fn note(&mut self, exception: &'static str) {
        *self.exceptions.entry(exception).or_default() += 1;
    }
}
