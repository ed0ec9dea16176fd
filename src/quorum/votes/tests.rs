use proptest::prelude::*;

use super::*;

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

fn verdict_of(votes: &[Option<Vote>]) -> Verdict {
    verdict(votes.iter().map(Option::as_ref))
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
        assert_eq!(verdict_of(&said.map(vote)), expected, "{said:?}");
    }
    assert_eq!(verdict_of(&["ra1", "rb2", "+"].map(vote)), held_by("rb", 1));
    let unknown = Some(Vote::Held(NodeHolder {
        owner: "a".into(),
        ttl: None,
        is_reader: false,
    }));
    let expected = Verdict::Held {
        holder: "a".into(),
        ttl: None,
    };
    assert_eq!(verdict_of(&[unknown.clone(), unknown, None]), expected);
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
        match verdict_of(&votes) {
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

const fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn votes(until: &[Option<u64>]) -> AtNodes {
    let vote = |until: &Option<u64>| {
        let mut node = AtNode::new(Trace::Has);
        node.vote = until.map_or(NodeVote::None, |until| NodeVote::Until(at(until)));
        node
    };
    until.iter().map(vote).collect()
}

/// Applies a renewal. The votes that it confirms last until `until`: for 100 ms from the time at which it was sent.
fn renewed(table: &Owners, confirmations: &[Confirmation], until: u64, needed: usize) -> Renewed {
    let sent = at(until - 100);
    let round = Round {
        confirmations,
        is_contended: false,
        sent,
        until: at(until),
        needed,
        may_join: Some(&[]),
    };
    table.renewed("o", round, sent)
}

#[test]
fn a_vote_that_is_gone_ends_the_lease_earlier() {
    use Confirmation::{Confirmed, Gone as NotHeld, Silent};
    let (table, owner): (Owners, Arc<str>) = (Owners::new(Duration::ZERO), "o".into());
    let granted = votes(&[Some(100), Some(100), Some(100), None, None]);
    table.insert(&owner, Duration::ZERO, granted, None, at(0));
    let gone = NotHeld(Gone::Removed, 0);
    let lasts = |version, until, is_confirmed| Renewed::Voted {
        contended: false,
        until: at(until),
        version,
        is_confirmed,
        lacks_votes: false,
        has_new_misses: version == 2,
    };
    // A node without a vote that confirms gets none. The slowest of the three decides.
    let two = [Confirmed, Confirmed, Silent, Confirmed, Silent];
    assert_eq!(renewed(&table, &two, 200, 3), lasts(1, 100, false));
    let three = [Confirmed, Confirmed, Confirmed, Silent, Silent];
    assert_eq!(renewed(&table, &three, 300, 3), lasts(2, 300, true));
    // A shorter renewal shortens nothing.
    assert_eq!(renewed(&table, &three, 250, 3), lasts(3, 300, true));
    let one_gone = [gone, Confirmed, Confirmed, Silent, Silent];
    let lost = Renewed::Gone(Gone::Removed);
    assert_eq!(renewed(&table, &one_gone, 400, 3), lost);
    assert_eq!(renewed(&table, &three, 500, 3), lost);
}

#[test]
fn with_all_nodes_a_lease_survives_the_loss_of_a_minority() {
    use Confirmation::{Confirmed, Gone as NotHeld, Silent};
    let (table, owner): (Owners, Arc<str>) = (Owners::new(Duration::ZERO), "o".into());
    let granted = votes(&[Some(100); 5]);
    table.insert(&owner, Duration::ZERO, granted, None, at(0));
    let taken = NotHeld(Gone::Taken, 0);
    let answers = [taken, taken, Confirmed, Confirmed, Confirmed];
    assert_eq!(
        lasts(renewed(&table, &answers, 200, 3)),
        Some((at(200), true))
    );
    let answers = [Silent, Silent, Confirmed, Confirmed, taken];
    assert_eq!(
        renewed(&table, &answers, 300, 3),
        Renewed::Gone(Gone::Taken)
    );
}

const LEASE: Duration = Duration::from_millis(100);
const ID: Option<ConnectionId> = Some(ConnectionId(7));

/// Makes a table in which two of three nodes vote for an owner until 100 ms.
fn two_of_three() -> Owners {
    let table = Owners::new(Duration::ZERO);
    let granted = votes(&[Some(100), Some(100), None]);
    let ends = Some(Ends::from_slice(&[7]));
    table.insert(&"o".into(), LEASE, granted, ends, at(0));
    table
}

/// Begins joins at `now`. Returns the nodes to ask.
fn begin(table: &Owners, now: u64) -> Vec<usize> {
    let joins = table.begin_renewal("o", (LEASE, 2), Some(&[Some(1); 3]), at(now));
    joins.map_or_else(Vec::new, |joins| {
        assert_eq!(joins.ends.as_slice(), [7]);
        joins.nodes.to_vec()
    })
}

fn lasts(status: Renewed) -> Option<(Time, bool)> {
    match status {
        Renewed::Voted {
            until,
            is_confirmed,
            ..
        } => Some((until, is_confirmed)),
        _ => None,
    }
}

#[test]
fn a_node_that_joins_votes_after_the_next_renewal_of_a_majority() {
    use Confirmation::{Confirmed, Silent};
    let table = two_of_three();
    assert_eq!(begin(&table, 50), [2]);
    assert_eq!(begin(&table, 50), [0; 0], "it is asked already");
    table.note("o", 2, |vote| {
        vote.end_join((Joined::Until(at(150)), 1), ID, at(60));
    });
    // A renewal that was sent before the answer came, although the node has executed it after the join.
    renewed(&table, &[Confirmed; 3], 155, 2);
    let misses = |table: &Owners| table.has_misses("o", |_| true);
    assert!(misses(&table));
    // One voter and the candidate are no majority of voters.
    let status = renewed(&table, &[Confirmed, Silent, Confirmed], 170, 2);
    assert_eq!(lasts(status), Some((at(155), false)));
    assert!(misses(&table) && begin(&table, 70).is_empty());
    let status = renewed(&table, &[Confirmed; 3], 180, 2);
    assert_eq!(lasts(status), Some((at(180), true)));
    assert!(!misses(&table));
    // Now another node may fail.
    let status = renewed(&table, &[Confirmed, Silent, Confirmed], 190, 2);
    assert_eq!(lasts(status), Some((at(190), true)));
}

#[test]
fn a_lease_whose_deadline_has_passed_gains_no_votes() {
    use Confirmation::Confirmed;
    let table = two_of_three();
    begin(&table, 50);
    table.note("o", 2, |vote| {
        vote.end_join((Joined::Until(at(150)), 1), ID, at(60));
    });
    renewed(&table, &[Confirmed; 3], 200, 2);
    assert!(table.has_misses("o", |_| true));
    let table = two_of_three();
    assert!(begin(&table, 100).is_empty());
}

#[test]
fn a_node_from_which_the_lock_was_taken_never_joins_again() {
    use Confirmation::{Confirmed, Gone as NotHeld, Silent};
    // The process that says it, the time at which the renewal was sent, and whether the node may join then.
    for (process, sent, joins_again) in [(0, 50, false), (1, 50, true), (0, 100, true)] {
        let table = Owners::new(Duration::ZERO);
        let granted = votes(&[Some(190), Some(190), Some(100)]);
        let ends = Some(Ends::from_slice(&[7]));
        table.insert(&"o".into(), LEASE, granted, ends, at(0));
        let gone = NotHeld(Gone::Removed, process);
        renewed(&table, &[Silent, Silent, gone], sent + 100, 2);
        let case = (process, sent);
        assert_eq!(begin(&table, sent) == [2], joins_again, "{case:?}");
    }
    // The same for a candidate.
    let table = two_of_three();
    begin(&table, 10);
    table.note("o", 2, |vote| {
        vote.end_join((Joined::Until(at(110)), 1), ID, at(20));
    });
    let gone = NotHeld(Gone::Taken, 1);
    renewed(&table, &[Confirmed, Confirmed, gone], 130, 2);
    assert!(begin(&table, 40).is_empty() && !table.has_misses("o", |_| true));
}

#[test]
fn an_answer_of_another_connection_voids_a_join_under_way() {
    use Confirmation::{Confirmed, Gone as NotHeld};
    for joins in [true, false] {
        let table = two_of_three();
        begin(&table, 10);
        let confirmations = [Confirmed, Confirmed, NotHeld(Gone::Removed, 0)];
        let round = Round {
            confirmations: &confirmations,
            is_contended: false,
            sent: at(10),
            until: at(110),
            needed: 2,
            may_join: joins.then_some(&[][..]),
        };
        table.renewed("o", round, at(10));
        table.note("o", 2, |vote| {
            vote.end_join((Joined::Until(at(110)), 1), ID, at(20));
        });
        renewed(&table, &[Confirmed; 3], 130, 2);
        assert_eq!(table.has_misses("o", |_| true), !joins);
    }
}

#[test]
fn a_node_may_have_the_owner_from_the_beginning_of_a_join_on() {
    let table = two_of_three();
    table.note("o", 2, |vote| vote.confirm_end(true, at(0), at(0)));
    let trace = |table: &Owners| table.table.lock().owners["o"].nodes[2].trace;
    for (how, then) in [
        (Joined::Refused, Trace::Nothing),
        (Joined::Until(at(110)), Trace::Has),
        (Joined::Unknown, Trace::Until(at(110))),
    ] {
        let table = two_of_three();
        table.note("o", 2, |vote| vote.confirm_end(true, at(0), at(0)));
        begin(&table, 10);
        assert_eq!(trace(&table), Trace::Until(at(110)));
        table.note("o", 2, |vote| vote.end_join((how, 1), ID, at(20)));
        assert_eq!(trace(&table), then, "{how:?}");
    }
    // The release comes between the join and its answer.
    begin(&table, 10);
    assert_eq!(asked(&table, 15), [true; 3]);
    for node in 0..3 {
        table.note("o", node, |vote| vote.confirm_end(false, at(16), at(16)));
    }
    table.note("o", 2, |vote| {
        vote.end_join((Joined::Until(at(110)), 1), ID, at(20));
    });
    assert_eq!(asked(&table, 25), [false, false, true]);
    assert!(begin(&table, 30).is_empty(), "the owner has ended");
    // The confirmation of an end that was sent before comes later. The node may have executed the join after it.
    table.note("o", 2, |vote| vote.confirm_end(false, at(16), at(31)));
    assert_eq!(asked(&table, 32), [false, false, true]);
    table.note("o", 2, |vote| vote.confirm_end(false, at(33), at(34)));
    assert_eq!(asked(&table, 35), [false; 3]);
}

#[test]
fn a_late_vote_says_what_the_node_has() {
    let id = ConnectionId(7);
    for (has_owner, then) in [(true, Trace::Has), (false, Trace::Nothing)] {
        let table = Owners::new(Duration::ZERO);
        let mut granted = traces([Trace::Has, Trace::Has, Trace::Until(at(100))]);
        granted[2].asked_on = Some(id);
        table.insert(&"o".into(), LEASE, granted, None, at(0));
        for _ in 0..2 {
            table.note("o", 2, |vote| vote.late_answer(id, has_owner, at(21)));
            assert_eq!(table.table.lock().owners["o"].nodes[2].trace, then);
        }
    }
}

/// The release came on another connection, and the node executed it before the request for the lock.
#[test]
fn a_late_grant_is_released_again_if_a_confirmation_may_be_older() {
    let table = Owners::new(Duration::ZERO);
    let mut granted = traces([Trace::Has, Trace::Has, Trace::Until(at(100))]);
    granted[2].asked_on = ID;
    table.insert(&"o".into(), LEASE, granted, None, at(0));
    asked(&table, 10);
    table.note("o", 2, |vote| {
        vote.late_answer(ConnectionId(7), true, at(21));
    });
    table.note("o", 2, |vote| vote.confirm_end(false, at(10), at(22)));
    assert_eq!(asked(&table, 23), [true; 3]);
    table.note("o", 2, |vote| vote.confirm_end(false, at(23), at(24)));
    assert_eq!(asked(&table, 25), [true, true, false]);
}

#[test]
fn a_node_joins_only_if_no_earlier_request_is_on_its_way() {
    // A request for the lock has no answer, and then a join.
    for is_join in [false, true] {
        let table = two_of_three();
        if is_join {
            begin(&table, 10);
            table.note("o", 2, |vote| {
                vote.end_join((Joined::Unknown, 1), ID, at(20));
            });
        } else {
            let mut granted = votes(&[Some(100), Some(100), None]);
            granted[2].trace = Trace::Until(at(110));
            granted[2].asked_on = ID;
            let ends = Some(Ends::from_slice(&[7]));
            table.forget("o");
            table.insert(&"o".into(), LEASE, granted, ends, at(0));
        }
        assert!(table.has_misses("o", |_| true), "the answer may come");
        assert!(begin(&table, 30).is_empty());
        table.note("o", 2, |vote| {
            vote.late_answer(ConnectionId(8), true, at(21));
        });
        assert!(begin(&table, 30).is_empty(), "another connection");
        table.note("o", 2, |vote| {
            vote.late_answer(ConnectionId(7), true, at(21));
        });
        assert_eq!(begin(&table, 30), [2]);
        // After a restart nothing is on its way.
        table.note("o", 2, |vote| {
            vote.end_join((Joined::Unknown, 1), ID, at(40));
        });
        let joins = table.begin_renewal("o", (LEASE, 2), Some(&[Some(2); 3]), at(50));
        assert_eq!(joins.expect("it has restarted").nodes.to_vec(), [2]);
        table.note("o", 2, |vote| {
            vote.end_join((Joined::Refused, 2), ID, at(60));
        });
        assert_eq!(begin(&table, 70), [2], "it has refused");
    }
}

#[test]
fn a_waiter_that_is_granted_the_lock_hears_a_late_vote_too() {
    let table = Owners::new(Duration::ZERO);
    table.insert(&"o".into(), LEASE, traces([Trace::Has; 3]), None, at(0));
    let mut granted = votes(&[Some(100), Some(100), None]);
    (granted[2].trace, granted[2].asked_on) = (Trace::Until(at(110)), ID);
    let ends = Some(Ends::from_slice(&[7]));
    table.insert(&"o".into(), LEASE, granted, ends, at(10));
    assert!(begin(&table, 20).is_empty());
    table.note("o", 2, |vote| {
        vote.late_answer(ConnectionId(7), true, at(21));
    });
    assert_eq!(begin(&table, 20), [2]);
    // If the connection is closed, no answer comes.
    table.note("o", 2, |vote| {
        vote.end_join((Joined::Unknown, 1), ID, at(30));
    });
    assert!(table.has_misses("o", |_| true));
    table.note("o", 2, |vote| vote.no_late_answer(ConnectionId(7)));
    assert!(!table.has_misses("o", |_| true) && begin(&table, 40).is_empty());
}

#[test]
fn each_further_node_without_a_vote_is_told_once() {
    use Confirmation::{Confirmed, Gone as NotHeld, Silent};
    let table = two_of_three();
    let tells = |answers: [Confirmation; 3], until| {
        let status = renewed(&table, &answers, until, 2);
        matches!(
            status,
            Renewed::Voted {
                has_new_misses: true,
                ..
            }
        )
    };
    assert!(tells([Confirmed, Confirmed, Silent], 110));
    assert!(!tells([Confirmed, Confirmed, Silent], 110));
    begin(&table, 10);
    table.note("o", 2, |vote| {
        vote.end_join((Joined::Until(at(110)), 1), ID, at(20));
    });
    assert!(!tells([Confirmed; 3], 150));
    // The node has restarted.
    let gone = NotHeld(Gone::Removed, 1);
    assert!(tells([gone, Confirmed, Confirmed], 160));
    assert!(!tells([gone, Confirmed, Confirmed], 200));
    // An unconfirmed renewal is repeated.
    begin(&table, 110);
    table.note("o", 0, |vote| {
        vote.end_join((Joined::Until(at(210)), 1), ID, at(110));
    });
    assert!(!tells([Confirmed; 3], 220));
    assert!(!tells([Confirmed, Silent, Silent], 301));
    // A vote that has run out is missing too.
    assert!(tells([Confirmed, Confirmed, Silent], 330));
}

#[test]
fn a_node_that_refuses_four_joins_is_not_asked_early_any_more() {
    let table = two_of_three();
    for failed in [Joined::Refused, Joined::Failed].repeat(2) {
        assert!(table.has_misses("o", |_| true));
        assert_eq!(begin(&table, 10), [2]);
        table.note("o", 2, |vote| vote.end_join((failed, 1), ID, at(10)));
    }
    assert!(!table.has_misses("o", |_| true));
    assert_eq!(begin(&table, 20), [2], "a renewal asks it all the same");
    table.note("o", 2, |vote| {
        vote.end_join((Joined::Until(at(120)), 1), ID, at(20));
    });
    assert!(table.has_misses("o", |_| true), "it is a candidate");
}

/// Returns what three nodes without votes have.
fn traces(traces: [Trace; 3]) -> AtNodes {
    traces.into_iter().map(AtNode::new).collect()
}

/// Returns which nodes have something of an owner that ends.
fn asked(table: &Owners, now: u64) -> Vec<bool> {
    let votes = table.end(&"o".into(), 3, at(now));
    votes.iter().map(AtNode::may_have_owner).collect()
}

#[test]
fn an_owner_is_left_until_each_node_that_may_have_it_has_confirmed_its_end() {
    let (table, lease) = (Owners::new(Duration::ZERO), Duration::from_secs(60));
    // The third node was down when the lock was asked for.
    let asked_for = traces([Trace::Has, Trace::Has, Trace::Nothing]);
    table.insert(&"o".into(), lease, asked_for, None, at(0));
    assert_eq!(table.left_until("o", at(0)), None, "it has not ended");
    assert_eq!(asked(&table, 10), [true, true, false]);
    table.note("o", 0, |vote| vote.confirm_end(false, at(20), at(20)));
    let until = table.left_until("o", at(20)).expect("the second node");
    assert!(table.has_unconfirmed(at(20)), "the second node");
    assert!(until >= at(10) + lease);
    // A repeat asks the second node only, and extends nothing.
    assert_eq!(asked(&table, 1000), [false, true, false]);
    assert_eq!(table.left_until("o", at(1000)), Some(until));
    table.note("o", 1, |vote| vote.confirm_end(false, at(1000), at(1000)));
    assert_eq!(table.left_until("o", at(1000)), None);
    assert!(table.table.lock().owners.is_empty(), "it is not forgotten");
    // A node that never confirms has dropped the key by then, or the engine gives up.
    asked(&table, 0);
    table.forget("o");
    assert_eq!(table.left_until("o", at(0)), None);
    table.insert(&"o".into(), lease, traces([Trace::Has; 3]), None, at(0));
    asked(&table, 0);
    assert_eq!(table.left_until("o", at(200_000)), None);
    assert!(table.table.lock().owners.is_empty(), "it is not forgotten");
}

#[test]
fn a_request_without_an_answer_may_come_after_a_confirmation_on_another_connection() {
    let (table, lease) = (Owners::new(Duration::ZERO), Duration::from_secs(10));
    let silent = traces([
        Trace::Until(at(10_000)),
        Trace::Until(at(10_000)),
        Trace::Nothing,
    ]);
    table.insert(&"o".into(), lease, silent, None, at(0));
    asked(&table, 0);
    for node in [0, 1] {
        table.note("o", node, |vote| {
            vote.confirm_end(node == 0, at(9_999), at(9_999));
        });
    }
    assert_eq!(asked(&table, 9_999), [false, true, false]);
    let until = table.left_until("o", at(9_999)).expect("it may come");
    assert!(until >= at(20_000), "it takes the lock for a lease");
    assert!(
        !table.has_unconfirmed(at(9_999)),
        "each node has confirmed it"
    );
    table.note("o", 1, |vote| {
        vote.confirm_end(false, at(10_000), at(10_000));
    });
    assert_eq!(table.left_until("o", at(10_000)), None);
}

#[test]
fn what_earlier_requests_have_left_is_asked_too() {
    let table = Owners::new(Duration::ZERO);
    for left_behind in [
        [Trace::Has, Trace::Nothing, Trace::Nothing],
        [Trace::Nothing, Trace::Has, Trace::Nothing],
    ] {
        table.insert(
            &"o".into(),
            Duration::ZERO,
            traces(left_behind),
            None,
            at(0),
        );
    }
    assert_eq!(asked(&table, 0), [true, true, false]);
    // Nothing is known of another owner, so each node may have it.
    let votes = table.end(&"other".into(), 3, at(0));
    assert!(votes.iter().all(|vote| vote.trace == Trace::Has));
}

#[test]
fn owners_that_were_never_released_are_forgotten() {
    let table = Owners::new(Duration::ZERO);
    for number in 0..5 * FIRST_SWEEP as u64 {
        let owner: Arc<str> = number.to_string().into();
        let granted = votes(&[Some(number)]);
        table.insert(&owner, Duration::ZERO, granted, None, at(number));
    }
    let left = table.table.lock().owners.len();
    assert!(left <= 2 * FIRST_SWEEP, "{left}");
}
