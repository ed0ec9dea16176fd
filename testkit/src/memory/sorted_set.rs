//! A sorted set: members in the order of their scores.

use std::collections::{BTreeMap, BTreeSet};

/// A score, by which members are ordered. It is never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Score(f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // 0 and -0 are one score.
        self.0
            .partial_cmp(&other.0)
            .unwrap_or(std::cmp::Ordering::Equal)
    }
}

/// The members of a sorted set, in the order of their scores. Members of one score are in the order of their bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct SortedSet {
    scores: BTreeMap<Vec<u8>, f64>,
    ordered: BTreeSet<(Score, Vec<u8>)>,
}

impl SortedSet {
    pub(super) fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    pub(super) fn insert(&mut self, member: &[u8], score: f64) {
        self.remove(member);
        self.scores.insert(member.to_vec(), score);
        self.ordered.insert((Score(score), member.to_vec()));
    }

    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else {
            return false;
        };
        self.ordered.remove(&(Score(score), member.to_vec()));
        true
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Vec<u8>, f64)> {
        self.ordered.iter().map(|(score, member)| (member, score.0))
    }

    pub(super) fn len(&self) -> usize {
        self.scores.len()
    }

    pub(super) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    /// Takes out the first member.
    pub(super) fn pop_first(&mut self) -> Option<(Vec<u8>, f64)> {
        let (score, member) = self.ordered.pop_first()?;
        self.scores.remove(&member);
        Some((member, score.0))
    }

    /// Takes out the last member.
    pub(super) fn pop_last(&mut self) -> Option<(Vec<u8>, f64)> {
        let (score, member) = self.ordered.pop_last()?;
        self.scores.remove(&member);
        Some((member, score.0))
    }
}
