//! What the observers of an election are shown.
//!
//! Each value is proclaimed once, so it tells whose it is, and when it was that.
//!
//! | rule | holds |
//! | --- | --- |
//! | A value was proclaimed, and has the fence of the leader that has proclaimed it | always |
//! | A leader is not shown when its lease has been over for [`SEEN_WITHIN`] | within the assumptions |
//! | After a leader, one of before that has ended is not shown again | always |
//! | A value is not shown again that was taken back or replaced [`STALE_FOR`] ago | if no server has lost data, and no replica has become the master |
//! | Who leads is shown within [`SEEN_WITHIN`], and not for longer | [`SETTLES_WITHIN`] after the faults. If the value was written earlier, it is there again after [`WRITTEN_WITHIN`] |
//! | The same within [`TOLD_WITHIN`], by a message | then too, for who has observed for [`HEARS_WITHIN`], if no right to subscribe was taken away |
//!
//! The observer's process must not have paused meanwhile, as its threads show what was so before.

use std::collections::BTreeMap;
use std::time::Duration;

/// How long after a change an observer is shown it, if a read is what shows it.
const SEEN_WITHIN: Duration = Duration::from_millis(1_200);
/// The same after a message.
const TOLD_WITHIN: Duration = Duration::from_millis(300);
/// Since when a process that observes hears messages.
const HEARS_WITHIN: Duration = Duration::from_millis(2_500);
/// The longest time for which a read is on its way, with what it has seen.
const STALE_FOR: Duration = Duration::from_millis(2_500);
/// How long after the last fault all requests of before have ended.
const SETTLES_WITHIN: Duration = Duration::from_secs(5);
/// How long after that a value is there again that a server has lost.
const WRITTEN_WITHIN: Duration = Duration::from_secs(12);

/// A leader as it is shown: its value and its fence.
pub(crate) type Leader = (String, u64);

#[derive(Default)]
pub(crate) struct Elections {
    terms: Vec<Term>,
    values: BTreeMap<String, Value>,
}

/// A campaign, and the leadership that it has led to.
struct Term {
    process: usize,
    fence: Option<u64>,
    /// Its lease.
    lease: Duration,
    /// When its guard was lost or has ended.
    ended_at: Option<Duration>,
}

/// What a leader has proclaimed.
struct Value {
    term: usize,
    /// When the server had it for sure. `None` if it may have another one since.
    written_at: Option<Duration>,
    /// When it was replaced or taken back for sure.
    gone_at: Option<Duration>,
}

/// What one receiver has got.
pub(crate) struct Shown {
    state: Option<Leader>,
    since: Duration,
    begun: Duration,
    looked_at: Duration,
    looked_at_before: Duration,
    /// The last term that was shown.
    last_term: Option<usize>,
}

/// What an observer may count on now.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    pub(crate) at: Duration,
    /// When the last fault had ended, if nothing disturbs its process now.
    pub(crate) calm_since: Option<Duration>,
    pub(crate) is_within_assumptions: bool,
    /// Whether no process has lost the right to subscribe. After a refusal the library asks for it again a minute later.
    pub(crate) may_hear: bool,
    /// Whether no server has lost a write.
    pub(crate) keeps_writes: bool,
    /// For how much longer than its own time a lease may last.
    pub(crate) late_by: Duration,
}

impl Shown {
    /// Returns what a new receiver has got.
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            state: None,
            since: now,
            begun: now,
            looked_at: now,
            looked_at_before: now,
            last_term: None,
        }
    }

    /// Notes a look at the receiver.
    pub(crate) fn look(&mut self, now: Duration) {
        self.looked_at_before = std::mem::replace(&mut self.looked_at, now);
    }

    /// Notes the state that the receiver had at the last look.
    pub(crate) fn got(&mut self, state: Option<Leader>) {
        if state != self.state {
            (self.state, self.since) = (state, self.looked_at);
        }
    }

    /// Returns what a read has shown, as if it were shown all the time.
    pub(crate) fn once(state: Option<Leader>) -> Self {
        Self {
            state,
            ..Self::new(Duration::ZERO)
        }
    }
}

impl Elections {
    /// Notes that a process campaigns, and returns the number of its term.
    pub(crate) fn campaigns(&mut self, process: usize, lease: Duration) -> usize {
        self.terms.push(Term {
            process,
            fence: None,
            lease,
            ended_at: None,
        });
        self.terms.len() - 1
    }

    /// Returns a value for a term, which a call is about to write.
    pub(crate) fn value_of(&mut self, term: usize) -> String {
        self.may_change(term);
        let value = format!("p{}.{term}.{}", self.terms[term].process, self.values.len());
        let new = Value {
            term,
            written_at: None,
            gone_at: None,
        };
        self.values.insert(value.clone(), new);
        value
    }

    /// Notes that a call is about to take back or replace the value of a term.
    pub(crate) fn may_change(&mut self, term: usize) {
        for value in self.values.values_mut().filter(|value| value.term == term) {
            value.written_at = None;
        }
    }

    /// Notes that a value was written, in place of the one before.
    pub(crate) fn written(&mut self, value: &str, fence: u64, now: Duration) {
        let term = self.values[value].term;
        self.terms[term].fence = Some(fence);
        self.are_gone(term, now);
        if let Some(its) = self.values.get_mut(value) {
            (its.written_at, its.gone_at) = (Some(now), None);
        }
    }

    /// Notes that the guard of a term has ended. If the leader `has_resigned`, nothing is left of it.
    pub(crate) fn ended(&mut self, term: usize, has_resigned: bool, now: Duration) {
        self.terms[term].ended_at.get_or_insert(now);
        if has_resigned {
            self.are_gone(term, now);
        }
    }

    /// Notes that the guard with this fence was lost.
    pub(crate) fn lost(&mut self, process: usize, fence: u64, now: Duration) {
        let is_its = |term: &&mut Term| term.process == process && term.fence == Some(fence);
        for term in self.terms.iter_mut().filter(is_its) {
            term.ended_at.get_or_insert(now);
        }
    }

    fn are_gone(&mut self, term: usize, now: Duration) {
        for value in self.values.values_mut().filter(|value| value.term == term) {
            value.gone_at.get_or_insert(now);
        }
    }

    /// Checks what a receiver shows now.
    pub(crate) fn check(
        &mut self,
        shown: &mut Shown,
        now: Now,
        is_alive: &[bool],
    ) -> Result<(), String> {
        let before = shown.looked_at_before;
        let is_new = shown.since > before;
        if let Some(leader) = &shown.state {
            let number = self.check_owner(leader)?;
            let (term, value) = (&self.terms[number], &leader.0);
            let is_over = |at: &Duration| {
                // See `LIVES_LONGER_BY` of the checks.
                let life = term.lease + term.lease / 20 + now.late_by;
                now.is_within_assumptions && now.at > *at + life + SEEN_WITHIN
            };
            if let Some(at) = term.ended_at.filter(is_over) {
                return Err(format!("{value} is shown, which has ended at {at:?}"));
            }
            let is_of_before = |at: &Duration| is_new && *at + STALE_FOR < before;
            let last = shown.last_term.replace(number);
            let is_older = last.is_some_and(|last| self.terms[last].fence > term.fence);
            if let Some(at) = term.ended_at.filter(|at| is_older && is_of_before(at)) {
                return Err(format!(
                    "the older {value} is shown, which has ended at {at:?}"
                ));
            }
            let gone_at = self.values[value].gone_at;
            if let Some(at) = gone_at.filter(|at| now.keeps_writes && is_of_before(at)) {
                return Err(format!("{value} is shown again, which was gone at {at:?}"));
            }
        }
        self.check_changes(shown, now, is_alive)
    }

    /// Checks whose value it is. Returns the number of the term.
    fn check_owner(&mut self, (value, shown): &Leader) -> Result<usize, String> {
        let Some(its) = self.values.get(value) else {
            return Err(format!("{value} is shown, which nobody has proclaimed"));
        };
        let fence = &mut self.terms[its.term].fence;
        if *fence.get_or_insert(*shown) == *shown {
            return Ok(its.term);
        }
        Err(format!("{value} of {fence:?} is shown with {shown}"))
    }

    /// Checks after the faults that who leads is shown, and nobody else.
    fn check_changes(&self, shown: &Shown, now: Now, is_alive: &[bool]) -> Result<(), String> {
        let Some(calm_since) = now.calm_since.map(|since| since + SETTLES_WITHIN) else {
            return Ok(());
        };
        let name = shown.state.as_ref().map(|(value, _)| value);
        let hears_since = shown.begun.max(calm_since) + HEARS_WITHIN;
        for (value, its) in &self.values {
            let term = &self.terms[its.term];
            let leads = term.ended_at.is_none() && is_alive[term.process];
            let changed_at = match (its.written_at, its.gone_at) {
                (_, Some(gone_at)) if name == Some(value) => Some(gone_at),
                (Some(at), None) if name != Some(value) && leads => Some(at),
                _ => None,
            };
            let is_late = |at: &Duration| {
                let (at, within) = if *at > hears_since && now.may_hear {
                    (*at, TOLD_WITHIN)
                } else if *at > calm_since {
                    (*at, SEEN_WITHIN)
                } else {
                    (calm_since, WRITTEN_WITHIN)
                };
                now.at > at.max(shown.since) + within
            };
            if let Some(at) = changed_at.filter(is_late) {
                let shown = name.map_or("nobody", |name| name);
                return Err(format!(
                    "{shown} is shown, and {value} has changed at {at:?}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);
    /// All faults are long over.
    const BEGUN: Duration = Duration::from_secs(1_000);

    /// An election of two processes, and what one receiver has got.
    struct Observed {
        elections: Elections,
        shown: Shown,
        is_calm: bool,
    }

    fn at(ms: u64) -> Duration {
        BEGUN + Duration::from_millis(ms)
    }

    impl Observed {
        fn new(is_calm: bool) -> Self {
            Self {
                elections: Elections::default(),
                shown: Shown::new(BEGUN),
                is_calm,
            }
        }

        /// A process leads with a value from then on.
        fn leads(&mut self, process: usize, fence: u64, ms: u64) -> (usize, Leader) {
            let term = self.elections.campaigns(process, LEASE);
            let value = self.elections.value_of(term);
            self.elections.written(&value, fence, at(ms));
            (term, (value, fence))
        }

        /// The receiver gets this state, and is looked at.
        fn gets(&mut self, state: Option<&Leader>, ms: u64) -> Result<(), String> {
            self.shown.look(at(ms));
            self.shown.got(state.cloned());
            let now = Now {
                at: at(ms),
                calm_since: self.is_calm.then_some(Duration::ZERO),
                is_within_assumptions: true,
                may_hear: true,
                keeps_writes: !self.is_calm,
                late_by: Duration::ZERO,
            };
            (self.elections).check(&mut self.shown, now, &[true; 2])
        }
    }

    #[test]
    fn a_value_is_that_of_the_leader_that_has_proclaimed_it() {
        let mut observed = Observed::new(false);
        let (_, (value, _)) = observed.leads(0, 5, 0);
        assert_eq!(observed.gets(Some(&(value.clone(), 5)), 1), Ok(()));
        assert!(observed.gets(Some(&(value, 6)), 2).is_err());
        assert!(observed.gets(Some(&("x".to_owned(), 5)), 3).is_err());
    }

    #[test]
    fn a_leader_is_shown_for_a_lease_after_its_end() {
        let mut observed = Observed::new(false);
        let (term, leader) = observed.leads(0, 5, 0);
        assert_eq!(observed.gets(Some(&leader), 10), Ok(()));
        observed.elections.ended(term, false, at(100));
        assert_eq!(observed.gets(Some(&leader), 10_100), Ok(()));
        assert!(observed.gets(Some(&leader), 12_000).is_err());
    }

    #[test]
    fn an_older_leader_that_has_ended_is_not_shown_again() {
        let mut observed = Observed::new(false);
        let (term, older) = observed.leads(0, 5, 0);
        assert_eq!(observed.gets(Some(&older), 10), Ok(()));
        observed.elections.ended(term, false, at(20));
        let (_, leader) = observed.leads(1, 6, 30);
        assert_eq!(observed.gets(Some(&leader), 4_000), Ok(()));
        assert!(observed.gets(Some(&older), 4_010).is_err());
    }

    #[test]
    fn a_value_that_was_replaced_is_not_shown_again() {
        let mut observed = Observed::new(false);
        let (term, first) = observed.leads(0, 5, 0);
        let second = (observed.elections.value_of(term), 5);
        observed.elections.written(&second.0, 5, at(10));
        assert_eq!(observed.gets(Some(&second), 4_000), Ok(()));
        assert!(observed.gets(Some(&first), 4_010).is_err());
    }

    #[test]
    fn each_change_is_seen_in_time_after_the_faults() {
        let changed = |told: u64, is_shown: bool| {
            let mut observed = Observed::new(true);
            let mut result = observed.gets(None, 1);
            let (term, leader) = observed.leads(0, 5, told);
            let changed_at = told + u64::from(is_shown);
            if is_shown {
                assert_eq!(observed.gets(Some(&leader), changed_at), Ok(()));
                observed.elections.ended(term, true, at(changed_at));
            }
            let left = is_shown.then_some(&leader);
            let mut seen_within = 0;
            while result.is_ok() && seen_within < 5_000 {
                seen_within += 100;
                result = observed.gets(left, changed_at + seen_within);
            }
            seen_within
        };
        // Before it hears messages, and then.
        for is_shown in [false, true] {
            assert_eq!(changed(100, is_shown), 1_300);
            assert_eq!(changed(4_000, is_shown), 400);
        }
    }
}
