//! The decisions of a quorum: a lock over a majority of independent nodes (Redlock).
//!
//! The rules, and the reasons why they are safe, stand at the top of `fences.rs` and `votes.rs` in
//! `tests/quorum_model/src/`. A search of all states checks them there.
//!
//! | question | function |
//! | --- | --- |
//! | how many nodes are a majority? | [`majority`] |
//! | the nodes have answered: is the lock granted, held, or are the votes split? | [`verdict`] |
//! | which fence does a grant have, and which nodes must raise their record to it? | [`choose`] |
//! | until when does a lease last that some nodes have confirmed? | [`deadline`] |
//!
//! Redlock is described at <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>. It has no fences.

use std::time::Duration;

use smallvec::SmallVec;

use crate::sys::{Arc, Time};
use crate::wire::quorum::{NodeHolder, ReservedByName, Vote};

/// Returns how many of `nodes` are a majority.
pub(crate) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The result of a round of votes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A majority granted it.
    Granted,
    /// It is held, or it is the turn of a waiter. This owner may have a majority, or get one. Enough of the leases and turns
    /// that were named end after `ttl`; `None` if that is not known.
    Held {
        holder: Arc<str>,
        ttl: Option<Duration>,
    },
    /// A majority voted, but nobody that is known to hold it can have one.
    Split,
    /// Less than a majority voted.
    TooFew,
}

/// Returns the result of the votes. `None` is a node that did not vote: it may hold the lock for anybody, or be free.
///
/// If nodes name different readers, each of the readers counts at all of those nodes: readers share the lock and the turn.
pub(crate) fn verdict(votes: &[Option<Vote>]) -> Verdict {
    let (nodes, needed) = (votes.len(), majority(votes.len()));
    let mut holders: SmallVec<[&NodeHolder; 8]> = SmallVec::new();
    let mut granted = 0;
    for vote in votes.iter().flatten() {
        match vote {
            Vote::Granted { .. } => granted += 1,
            Vote::Held(holder) => holders.push(holder),
        }
    }
    if granted >= needed {
        return Verdict::Granted;
    }
    let silent = nodes - granted - holders.len();
    // How many nodes must let go before a majority can be free.
    let in_the_way = (holders.len() + needed).saturating_sub(nodes);
    if granted + holders.len() < needed {
        return Verdict::TooFew;
    }
    // The nodes that did not vote could have been enough.
    if in_the_way == 0 {
        return Verdict::Split;
    }
    let may_hold = |one: &NodeHolder, node: &NodeHolder| {
        one.owner == node.owner || one.is_reader && node.is_reader
    };
    let nodes_of = |one| holders.iter().filter(|node| may_hold(one, node)).count();
    let leading = holders
        .iter()
        .map(|one| (nodes_of(one), &one.owner))
        .max_by_key(|(count, _)| *count);
    match leading {
        Some((count, holder)) if count + silent >= needed => {
            let mut ends: SmallVec<[Duration; 8]> = holders
                .iter()
                .map(|holder| holder.ttl.unwrap_or(Duration::MAX))
                .collect();
            ends.sort_unstable();
            Verdict::Held {
                holder: Arc::clone(holder),
                ttl: Some(ends[in_the_way - 1]).filter(|end| *end < Duration::MAX),
            }
        }
        _ => Verdict::Split,
    }
}

/// The fences of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// The nodes whose fences count, a majority of all nodes.
    pub(crate) nodes: SmallVec<[usize; 8]>,
    /// For each name, the fence of the first guard.
    pub(crate) fences: SmallVec<[u64; 1]>,
    /// Those of `nodes` whose record is too low, and must be raised before the grant stands.
    pub(crate) low: SmallVec<[usize; 8]>,
}

/// Chooses the nodes whose fences count: equal answers if `needed` nodes gave them, otherwise the smallest. The fence of
/// a name is the largest of the chosen answers. Returns `None` if fewer than `needed` nodes granted the lock.
pub(crate) fn choose(granted: &[(usize, ReservedByName)], needed: usize) -> Option<Chosen> {
    let mut sorted: SmallVec<[&(usize, ReservedByName); 8]> = granted.iter().collect();
    let firsts = |fences: &ReservedByName| -> SmallVec<[u64; 1]> {
        fences.iter().map(|reserved| reserved.first).collect()
    };
    sorted.sort_by_cached_key(|(_, fences)| firsts(fences));
    let is_equal = |some: &&[&(usize, ReservedByName)]| {
        let (first, last) = (some.first(), some.last());
        first
            .zip(last)
            .is_some_and(|(first, last)| firsts(&first.1) == firsts(&last.1))
    };
    let mut choices = sorted.windows(needed);
    let smallest = choices.next()?;
    let chosen = if is_equal(&smallest) {
        smallest
    } else {
        choices.find(is_equal).unwrap_or(smallest)
    };
    let mut fences = firsts(&chosen[0].1);
    for (_, reserved) in chosen {
        for (fence, reserved) in fences.iter_mut().zip(reserved) {
            *fence = reserved.first.max(*fence);
        }
    }
    let is_low = |reserved: &ReservedByName| {
        let mut pairs = reserved.iter().zip(&fences);
        pairs.any(|(reserved, fence)| reserved.last < *fence)
    };
    Some(Chosen {
        nodes: chosen.iter().map(|(node, _)| *node).collect(),
        low: chosen
            .iter()
            .filter(|(_, reserved)| is_low(reserved))
            .map(|(node, _)| *node)
            .collect(),
        fences,
    })
}

/// Returns until when a lease lasts whose votes have these deadlines: at that time fewer than `needed` of them are left.
/// Returns `None` if there are fewer than `needed` votes. A vote that was lost is `None`.
pub(crate) fn deadline(votes: &[Option<Time>], needed: usize) -> Option<Time> {
    let mut left: SmallVec<[Time; 8]> = votes.iter().copied().flatten().collect();
    left.sort_unstable_by(|one, other| other.cmp(one));
    left.get(needed.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::quorum::Reserved;
    use proptest::prelude::*;

    fn granted() -> Vote {
        Vote::Granted {
            fences: SmallVec::new(),
            contended: false,
        }
    }

    /// Returns a vote for a holder, which is a reader if its name begins with `r`.
    fn held(holder: &str, ms: u64) -> Vote {
        Vote::Held(NodeHolder {
            owner: holder.into(),
            ttl: Some(Duration::from_millis(ms)),
            is_reader: holder.starts_with('r'),
        })
    }

    fn held_by(holder: &str, ms: u64) -> Verdict {
        Verdict::Held {
            holder: holder.into(),
            ttl: Some(Duration::from_millis(ms)),
        }
    }

    #[test]
    fn more_than_half_is_a_majority() {
        assert_eq!([1, 2, 3, 4, 5, 6].map(majority), [1, 2, 2, 3, 3, 4]);
    }

    #[test]
    fn only_an_owner_that_may_have_a_majority_holds_the_lock() {
        // A node is free, does not vote, or is held by this owner for this number of ms.
        let vote = |said: &str| match said.split_at(said.len() - 1) {
            (_, "+") => Some(granted()),
            (_, "-") => None,
            (holder, ms) => Some(held(holder, ms.parse().expect("a number"))),
        };
        for (said, expected) in [
            (["+", "+", "+", "-", "-"], Verdict::Granted),
            (["+", "+", "-", "-", "-"], Verdict::TooFew),
            // Two nodes that did not vote would be enough, for either.
            (["+", "+", "a1", "-", "-"], Verdict::Split),
            (["a1", "a2", "-", "-", "-"], Verdict::TooFew),
            (["a3", "a1", "a2", "+", "+"], held_by("a", 1)),
            (["a3", "a1", "a2", "+", "-"], held_by("a", 1)),
            (["a5", "a4", "a3", "a2", "a1"], held_by("a", 3)),
            // With a node that did not vote, `a` may have three.
            (["a1", "a2", "b3", "+", "-"], held_by("a", 1)),
            (["a1", "a2", "b3", "+", "+"], Verdict::Split),
            (["a1", "b1", "c1", "+", "+"], Verdict::Split),
            (["a1", "a1", "b1", "b1", "+"], Verdict::Split),
            // Each node names one of its readers.
            (["rc1", "rb2", "rc3", "ra4", "rb5"], held_by("rb", 3)),
            (["ra1", "rb2", "rc3", "-", "-"], held_by("rc", 1)),
            (["ra1", "rb2", "-", "-", "-"], Verdict::TooFew),
            // A node was down when the readers came.
            (["ra1", "rb2", "rc3", "+", "+"], held_by("rc", 1)),
            (["ra1", "rb2", "+", "+", "-"], Verdict::Split),
            (["ra1", "rb2", "+", "+", "+"], Verdict::Granted),
            // A writer has two nodes, and holds none of the others beside a reader.
            (["ra1", "rb2", "c3", "c4", "+"], Verdict::Split),
        ] {
            assert_eq!(verdict(&said.map(vote)), expected, "{said:?}");
        }
        assert_eq!(verdict(&["ra1", "rb2", "+"].map(vote)), held_by("rb", 1));
        let unknown = Some(Vote::Held(NodeHolder {
            owner: "a".into(),
            ttl: None,
            is_reader: false,
        }));
        let expected = Verdict::Held {
            holder: "a".into(),
            ttl: None,
        };
        assert_eq!(verdict(&[unknown.clone(), unknown, None]), expected);
    }

    fn one(node: usize, first: u64, last: u64) -> (usize, ReservedByName) {
        (node, SmallVec::from_buf([Reserved { first, last }]))
    }

    fn chosen(nodes: &[usize], fence: u64, low: &[usize]) -> Chosen {
        Chosen {
            nodes: nodes.into(),
            fences: SmallVec::from_buf([fence]),
            low: low.into(),
        }
    }

    #[test]
    fn equal_answers_need_no_second_round() {
        let answers = [
            one(0, 9, 9),
            one(1, 5, 5),
            one(2, 9, 9),
            one(3, 7, 7),
            one(4, 9, 9),
        ];
        assert_eq!(choose(&answers, 3), Some(chosen(&[0, 2, 4], 9, &[])));
        assert_eq!(
            choose(&answers[..4], 3),
            Some(chosen(&[1, 3, 0], 9, &[1, 3]))
        );
        assert_eq!(choose(&answers[..2], 3), None);
    }

    #[test]
    fn a_block_that_reaches_the_fence_is_not_low() {
        let answers = [one(0, 3, 12), one(1, 5, 14), one(2, 6, 6)];
        assert_eq!(choose(&answers, 2), Some(chosen(&[0, 1], 5, &[])));
        assert_eq!(choose(&answers, 3), Some(chosen(&[0, 1, 2], 6, &[])));
    }

    #[test]
    fn all_names_of_a_lock_count_the_same_nodes() {
        let two = |node, a: u64, b: u64| {
            let of = |first| Reserved { first, last: first };
            (node, SmallVec::from_slice(&[of(a), of(b)]))
        };
        let answers = [two(0, 1, 9), two(1, 2, 3), two(2, 4, 4)];
        let chosen = choose(&answers, 2).expect("a majority");
        assert_eq!(chosen.nodes.as_slice(), [0, 1]);
        assert_eq!(chosen.fences.as_slice(), [2, 9]);
        assert_eq!(chosen.low.as_slice(), [0, 1]);
    }

    #[test]
    fn a_lease_lasts_as_long_as_a_majority_of_its_votes() {
        let at = |nanos: u64| Some(Time::from_nanos(nanos));
        let votes = [at(5), None, at(9), at(7), None];
        assert_eq!(deadline(&votes, 3), at(5));
        assert_eq!(deadline(&votes, 2), at(7));
        assert_eq!(deadline(&[at(5), None, at(9), None, None], 3), None);
    }

    proptest! {
        /// A holder that is named could have a majority. Without its nodes nobody could.
        #[test]
        fn a_verdict_follows_from_its_votes(
            kinds in proptest::collection::vec(0_u32..6, 1..8),
        ) {
            let votes: Vec<_> = kinds
                .iter()
                .map(|kind| match kind {
                    0 => None,
                    1 => Some(granted()),
                    // Two writers, and two readers.
                    2 | 3 => Some(held(&kind.to_string(), 1)),
                    _ => Some(held(&format!("r{kind}"), 1)),
                })
                .collect();
            let count = |wanted: u32| kinds.iter().filter(|kind| **kind == wanted).count();
            let (needed, silent) = (majority(kinds.len()), count(0));
            let most = count(2).max(count(3)).max(count(4) + count(5));
            match verdict(&votes) {
                Verdict::Granted => prop_assert!(count(1) >= needed),
                Verdict::TooFew => prop_assert!(kinds.len() - silent < needed),
                Verdict::Held { .. } => {
                    prop_assert!(most + silent >= needed && count(1) + silent < needed);
                }
                Verdict::Split => {
                    prop_assert!(kinds.len() - silent >= needed && count(1) < needed);
                    prop_assert!(most + silent < needed || count(1) + silent >= needed);
                }
            }
        }

        /// A majority is chosen, no fence is smaller than an answer that counts, and a node that is not low has it.
        #[test]
        fn a_choice_keeps_the_rule(
            answers in proptest::collection::vec((1_u64..6, 0_u64..3), 1..8),
            nodes in 1_usize..8,
        ) {
            let answers: Vec<_> = answers
                .iter()
                .enumerate()
                .map(|(node, (first, more))| one(node, *first, first + more))
                .collect();
            let needed = majority(nodes);
            let Some(chosen) = choose(&answers, needed) else {
                prop_assert!(answers.len() < needed);
                return Ok(());
            };
            prop_assert_eq!(chosen.nodes.len(), needed);
            for (node, reserved) in &answers {
                if chosen.nodes.contains(node) {
                    prop_assert!(reserved[0].first <= chosen.fences[0]);
                    prop_assert_eq!(chosen.low.contains(node), reserved[0].last < chosen.fences[0]);
                } else {
                    prop_assert!(!chosen.low.contains(node));
                }
            }
        }
    }
}
