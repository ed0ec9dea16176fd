//! The programs of a schedule, as data: what each thread does, and when.

use std::time::Duration;

use crate::random::Random;
use crate::workload::SETTLES_WITHIN;

/// The names of exclusive locks. Each may be a mutex, a reentrant mutex, or one of the names of a multi-lock.
pub(crate) const EXCLUSIVE: [&str; 3] = ["a", "b", "c"];
/// The name of the election, which others use as a mutex.
pub(crate) const LED: &str = EXCLUSIVE[0];
/// The mutex for which all threads of a crowd wait.
const CROWDED: &str = EXCLUSIVE[1];
const RWLOCK: &str = "rw";
const SEMAPHORE: &str = "s";
/// A mutex whose guards have no fences.
pub(crate) const UNFENCED: &str = "u";
/// A job that runs once for each fire.
const JOB: &str = "job";
const LIMITED: &str = "limit";
/// The names of all locks, and of the rate limiter.
pub(crate) const NAMES: [&str; 8] = ["a", "b", "c", RWLOCK, SEMAPHORE, UNFENCED, JOB, LIMITED];
/// A shorter lease may be over when its grant comes, because it counts from before the connection is opened.
const SHORTEST_LEASE: Duration = Duration::from_millis(50);
/// The names whose keys have times by the server's clock: sorted sets of leases, and the places of the rate limiter.
pub(crate) const TIMED: [&str; 3] = [RWLOCK, SEMAPHORE, LIMITED];
/// How many operations a thread has at least until the last fault.
const LEAST_OPERATIONS: usize = 6;
/// How many operations a thread has after the last fault has ended, and within which time they begin.
const CALM_OPERATIONS: usize = 4;
pub(crate) const CALM: Duration = Duration::from_secs(5);
/// The time between two operations that are added until the last fault.
const ADDED_EACH: Duration = Duration::from_millis(250);
/// The longest wait of a call with a limit.
const LONGEST_LIMIT: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    Mutex,
    Reentrant,
    Multi,
    Writer,
    Reader,
    Permit,
    /// Runs a closure under a mutex.
    Closure,
    /// Mutexes, each as far as it is free, which one thread holds for some leases. They are renewed together.
    Several,
    /// A mutex without fences.
    Unfenced,
    /// A job that runs once for each fire.
    Once,
    /// Asks a rate limiter.
    Limited,
    /// Looks at locks as an operator does, and asks holders to go, or takes a lock away.
    Operator,
    /// Campaigns, and leads for a while.
    Campaign,
    /// Looks who leads, once or for a while.
    Observe,
    /// Adopts a claim that another thread has left.
    Adoption,
    /// Closes the manager of the process, and makes another one.
    Close,
}

impl What {
    /// Returns whether it asks for locks that one guard has at a time, with fences.
    pub(crate) fn is_exclusive(self) -> bool {
        match self {
            Self::Mutex
            | Self::Reentrant
            | Self::Multi
            | Self::Writer
            | Self::Closure
            | Self::Once
            | Self::Campaign
            | Self::Adoption => true,
            Self::Reader
            | Self::Permit
            | Self::Unfenced
            | Self::Limited
            | Self::Several
            | Self::Operator
            | Self::Observe
            | Self::Close => false,
        }
    }
}

/// An option that a handle has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Its leases are not renewed.
    Unrenewed,
    Lease(Duration),
    MinHold(Duration),
    MaxHold(Duration),
}

/// How a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Drop,
    Release,
    /// A mutex is left as a claim, and a writer becomes a reader.
    PassOn,
}

/// An operation of a thread.
#[derive(Clone, Debug)]
pub struct Operation {
    /// It does not begin earlier.
    pub at: Duration,
    pub what: What,
    pub names: Vec<&'static str>,
    /// For how long it waits for the lock. `None` is without end.
    pub wait: Option<Duration>,
    /// When another thread cancels the call.
    pub cancelled_after: Option<Duration>,
    pub choice: Option<Choice>,
    /// Of the methods that do the same, which one is called.
    pub way: u64,
    /// How often the holder reads the registers, works, and writes them.
    pub rounds: u64,
    /// Whether a forked child of the process tries to use the guard.
    pub forks: bool,
    pub end: End,
    /// How long the thread pauses afterwards.
    pub pause: Duration,
    /// Decides the smaller lengths.
    pub seed: u64,
}

/// What the programs of a schedule have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// What the operations do. One that is there twice is twice as likely.
    pub(crate) kinds: &'static [What],
    /// The shortest lease of a process.
    pub(crate) lease: Duration,
    /// Of eight calls, how many wait for the lock.
    pub(crate) waiting: u64,
    /// Operations go on until then.
    pub(crate) last_fault_at: Duration,
    /// When the last fault has ended.
    pub(crate) healed_at: Duration,
    /// Hours in which no operation begins, from then on.
    pub(crate) idle: Option<(Duration, Duration)>,
}

/// Makes most operations of a program those of an election.
pub(crate) fn elect(program: &mut [Operation], random: &mut Random) {
    for operation in program {
        let (what, names) = match random.within(0..8) {
            0..3 => (What::Campaign, vec![LED]),
            3..6 => (What::Observe, Vec::new()),
            _ => continue,
        };
        (operation.what, operation.names) = (what, names);
    }
}

/// Makes all operations after the last fault wait for one mutex, when its traces are gone.
pub(crate) fn crowd(program: &mut [Operation], healed_at: Duration) {
    for operation in program.iter_mut().filter(|it| it.at >= healed_at) {
        *operation = Operation {
            at: operation.at + SETTLES_WITHIN,
            what: What::Mutex,
            names: vec![CROWDED],
            wait: None,
            cancelled_after: None,
            choice: None,
            forks: false,
            end: End::Release,
            ..operation.clone()
        };
    }
}

impl Style {
    /// Returns the program of a thread.
    pub(crate) fn program(&self, random: &mut Random) -> Vec<Operation> {
        let added = self.last_fault_at.as_millis() / ADDED_EACH.as_millis();
        let count = LEAST_OPERATIONS + added as usize;
        let mut program: Vec<_> = (0..count).map(|_| self.operation(random)).collect();
        for operation in &mut program {
            if let Some((begin, length)) = self.idle {
                operation.at += if operation.at >= begin {
                    length
                } else {
                    Duration::ZERO
                };
            }
        }
        for _ in 0..CALM_OPERATIONS {
            let mut operation = self.operation(random);
            operation.at = self.healed_at + CALM * random.within(0..1_000) as u32 / 1_000;
            program.push(operation);
        }
        program.sort_by_key(|operation| operation.at);
        program
    }

    fn choice(&self, random: &mut Random) -> Choice {
        let part = self.lease * random.within(100..1_000) as u32 / 1_000;
        match random.within(0..4) {
            0 => Choice::Unrenewed,
            1 => Choice::Lease(part.max(SHORTEST_LEASE)),
            2 => Choice::MinHold(part),
            _ => Choice::MaxHold(part),
        }
    }

    fn operation(&self, random: &mut Random) -> Operation {
        let what = match *random.pick(self.kinds) {
            What::Close if !random.one_in(4) => What::Mutex,
            what => what,
        };
        let first = random.index(EXCLUSIVE.len());
        let mut names = match what {
            What::Mutex | What::Reentrant | What::Closure => vec![EXCLUSIVE[first]],
            What::Multi => vec![EXCLUSIVE[first], EXCLUSIVE[(first + 1) % EXCLUSIVE.len()]],
            What::Writer | What::Reader => vec![RWLOCK],
            What::Permit => vec![SEMAPHORE],
            What::Unfenced => vec![UNFENCED],
            What::Once => vec![JOB],
            What::Limited => vec![LIMITED],
            What::Campaign => vec![LED],
            What::Observe | What::Adoption | What::Close | What::Operator | What::Several => {
                Vec::new()
            }
        };
        // The leases of a multi-lock have this order.
        names.sort_unstable();
        let waits = random.within(0..8) < self.waiting;
        let limit = random.length(Duration::from_millis(1)..LONGEST_LIMIT);
        let wait = match (waits, random.one_in(2)) {
            (false, _) => Some(Duration::ZERO),
            (true, false) => None,
            (true, true) => Some(limit),
        };
        let cancelled_after = random.length(Duration::from_micros(10)..Duration::from_secs(1));
        Operation {
            at: self.last_fault_at * random.within(0..1_000) as u32 / 1_000,
            what,
            names,
            wait,
            cancelled_after: (waits && random.one_in(8)).then_some(cancelled_after),
            rounds: random.within(1..4),
            forks: random.one_in(16),
            end: match random.within(0..8) {
                0..4 => End::Drop,
                4..7 => End::Release,
                _ => End::PassOn,
            },
            pause: LONGEST_PAUSE * random.within(0..1_000) as u32 / 1_000,
            seed: random.bits(),
            choice: random.one_in(6).then(|| self.choice(random)),
            way: random.within(0..12),
        }
    }
}
