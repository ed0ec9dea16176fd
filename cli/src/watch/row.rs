//! A lock as the screen needs it: with points in time in place of time spans, so that each picture can count on.
//!
//! Texts that are drawn went through [`safe`]. The name and the owner are also kept as Redis has them, for requests.

use std::time::{Duration, Instant};

use leasehold::{Holder, Kind, LockInfo, Mode};

use crate::output::{age, safe};
use crate::show;

/// The units of a writer that waits: see [`leasehold::Waiting::units`].
const ALL: u32 = u32::MAX;

/// A lock, as it was when it was read.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name, as Redis has it.
    pub name: String,
    pub kind: Kind,
    pub read_at: Instant,
    /// The holders, in the order in which `status` numbers them.
    pub holders: Vec<Held>,
    pub waiters: u64,
    pub waiting: Vec<Waits>,
}

/// One holder of a lock.
#[derive(Clone, Debug)]
pub struct Held {
    /// The owner, as Redis has it.
    pub owner: String,
    /// `None` for a client of another library.
    pub label: Option<String>,
    pub note: Option<String>,
    pub fence: Option<u64>,
    pub since: Option<Instant>,
    /// When Redis drops the lock, if the holder does not renew it. `None`: never.
    pub ends_at: Option<Instant>,
    /// The longest time to live that was seen of this holder: the length of its lease, as soon as a renewal was seen.
    pub lease: Duration,
    /// The holder has released the lock, and its `min_hold` keeps the lock.
    pub is_kept: bool,
    pub mode: Mode,
    /// The number of nodes of a quorum that name the holder. 0 for a single server.
    pub nodes: usize,
}

/// One place in the queue of a lock.
#[derive(Clone, Debug)]
pub struct Waits {
    pub label: Option<String>,
    pub since: Instant,
    pub units: u32,
}

impl Row {
    pub fn new(mut lock: LockInfo, now: Instant) -> Self {
        let waits = |it: &leasehold::Waiting| Waits {
            label: it.label.as_deref().map(safe),
            since: before(now, age(it.since)),
            units: it.units,
        };
        show::number(&mut lock.holders);
        Self {
            name: lock.name,
            kind: lock.kind,
            read_at: now,
            holders: lock.holders.into_iter().map(|it| held(it, now)).collect(),
            waiters: lock.waiters,
            waiting: lock.waiting.iter().map(waits).collect(),
        }
    }

    /// Returns the same lock without holders and waiters.
    pub fn as_free(&self, now: Instant) -> Self {
        Self {
            name: self.name.clone(),
            kind: self.kind,
            read_at: now,
            holders: Vec::new(),
            waiters: 0,
            waiting: Vec::new(),
        }
    }

    /// Takes the lengths of the leases from an earlier reading of the same lock.
    pub fn learn_from(&mut self, earlier: &Self) {
        for holder in &mut self.holders {
            let same = earlier.holders.iter().find(|it| it.owner == holder.owner);
            holder.lease = holder.lease.max(same.map_or(Duration::ZERO, |it| it.lease));
        }
    }

    /// Returns the time of the earliest grant, if a holder has the time of its grant.
    pub fn since(&self) -> Option<Instant> {
        self.holders.iter().filter_map(|it| it.since).min()
    }

    /// Returns the holder whose lease ends first.
    pub fn next_to_end(&self) -> Option<&Held> {
        let ends = |it: &&Held| (it.ends_at.is_none(), it.ends_at);
        self.holders.iter().min_by_key(ends)
    }

    /// Returns whether the name, or a label or a note of a holder, contains this text of lower case.
    pub fn matches(&self, filter: &str) -> bool {
        let has = |text: &str| text.to_lowercase().contains(filter);
        let texts = |it: &Held| {
            [&it.label, &it.note]
                .into_iter()
                .flatten()
                .any(|it| has(it))
        };
        has(&self.name) || self.holders.iter().any(texts)
    }

    /// Returns what is held, such as `writer` or `3 readers`.
    pub fn kind_text(&self) -> String {
        let held = self.holders.iter().map(|it| match it.mode {
            Mode::Permits(permits) => permits,
            _ => 0,
        });
        let held: u32 = held.fold(0, u32::saturating_add);
        match (self.kind, self.holders.first()) {
            (Kind::Mutex, _) => "mutex".to_owned(),
            (Kind::RwLock, None) => "rwlock".to_owned(),
            (
                Kind::RwLock,
                Some(Held {
                    mode: Mode::Read, ..
                }),
            ) => counted(self.holders.len() as u64, "reader"),
            (Kind::RwLock, Some(_)) => "writer".to_owned(),
            (Kind::Semaphore { permits }, _) => format!("{held}/{permits} permits"),
            (Kind::RateLimiter { .. }, _) => "limiter".to_owned(),
            _ => "other".to_owned(),
        }
    }
}

impl Held {
    /// Returns how the screen names the holder.
    pub fn who(&self) -> &str {
        self.label.as_deref().unwrap_or("another client")
    }

    /// Returns the time until Redis drops the lock. `None`: it never does.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        Some(self.ends_at?.saturating_duration_since(now))
    }

    /// Returns the part of the lease that is left, from 0 to 1.
    pub fn part_left(&self, now: Instant) -> f64 {
        match self.left(now) {
            None => 1.0,
            Some(_) if self.lease.is_zero() => 0.0,
            Some(left) => (left.as_secs_f64() / self.lease.as_secs_f64()).min(1.0),
        }
    }
}

impl Waits {
    pub fn who(&self) -> &str {
        self.label.as_deref().unwrap_or("another client")
    }

    /// Returns what the process waits for, as [`part`] names it for a holder.
    pub fn wants(&self, kind: Kind) -> String {
        match kind {
            Kind::Semaphore { .. } => counted(self.units.into(), "permit"),
            Kind::RwLock if self.units < ALL => "read".to_owned(),
            Kind::RwLock => "write".to_owned(),
            _ => "all".to_owned(),
        }
    }
}

/// Returns what a holder has of the lock.
pub fn part(holder: &Held, kind: Kind) -> String {
    match holder.mode {
        Mode::Read => "read".to_owned(),
        Mode::Permits(permits) => counted(permits.into(), "permit"),
        _ if kind == Kind::RwLock => "write".to_owned(),
        _ => "all".to_owned(),
    }
}

/// Returns a number of things: `1 lock`, `2 locks`.
pub fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

fn held(holder: Holder, now: Instant) -> Held {
    Held {
        label: holder.label.as_deref().map(safe),
        note: holder.note.as_deref().map(safe),
        fence: holder.fence,
        since: holder.since.map(|since| before(now, age(since))),
        ends_at: holder.ttl.and_then(|ttl| now.checked_add(ttl)),
        lease: holder.ttl.unwrap_or_default(),
        is_kept: holder.kept,
        mode: holder.mode,
        nodes: holder.nodes.len(),
        owner: holder.owner,
    }
}

/// Returns a time in the past, or `now` if the clock has no such time.
pub fn before(now: Instant, age: Duration) -> Instant {
    now.checked_sub(age).unwrap_or(now)
}
