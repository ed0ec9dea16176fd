//! Models of the rules of a quorum of independent masters, for a complete search by [`stateright`].
//!
//! | model | the question | left out |
//! | --- | --- | --- |
//! | [`fences`] | Does each guard have a larger fence than every guard before it? | Leases: a key can vanish at any moment. |
//! | [`joins`] | May a node without a vote become one, while keys vanish and `force_release` is called? | Fences; how the guard begins. |
//! | [`votes`] | Is at most one guard valid at a time, and does a loss end a guard in time? | Fences. |
//!
//! Each model has the right rule and some wrong ones. The tests search all states of the right rule within small
//! bounds. They find a counterexample to each wrong rule, and none to the right rule within the same bounds. If the
//! right rule has too many states there, they search random histories of it, many more than the counterexample took.
//! Each property that must always hold is broken by a wrong rule. So the tests would notice a property that nothing can
//! break.
//!
//! All models have the same faults. Requests and replies are delayed without a limit, or lost. Clients give up at any
//! moment. The bounds of a search say how often the other faults happen: a node executes a request twice; a key
//! vanishes, as by eviction, `force_release`, or a jump of a server's clock; a node crashes, and starts again without
//! its data.
//!
//! # What the searches found
//!
//! All searches are over three nodes. The tests search the rows without a time, and `main.rs` those with a time, which was
//! measured on two busy cores, and still larger ones.
//!
//! | model | bounds | states | time |
//! | --- | --- | --- | --- |
//! | fences | two attempts, a key vanishes | 1,966,337 | |
//! | fences | two attempts, a key vanishes, a request is repeated | 1,805,461 | |
//! | fences | three attempts | 4,862,627 | |
//! | fences | two attempts, one joins a node, a node crashes | 871,970 | |
//! | votes | two clients, a node crashes | 1,785,343 | |
//! | votes | two clients, a request is repeated | 2,511,946 | |
//! | votes | two clients, one renews, a key vanishes | 3,459,720 | |
//! | joins | a key vanishes, all confirmations arrive | 1,450,235 | |
//! | joins | a node crashes | 2,151,853 | |
//! | joins | `force_release`, three rounds of renewals | 1,239,319 | |
//! | joins | two joins, a key vanishes | 6,459,448 | 24 s |
//! | joins | two keys vanish | 11,507,838 | 63 s |
//! | joins | a key vanishes, a node crashes | 15,522,326 | 61 s |
//! | fences | two attempts, blocks of two, two keys vanish, a request is repeated | 30,985,954 | minutes |
//!
//! The searches find a counterexample to each of sixteen wrong rules and to three restart delays that are too short, and an
//! example of each of the three documented exceptions. Seven of the wrong rules are about joins:
//!
//! | wrong rule | the harm | steps |
//! | --- | --- | --- |
//! | A join counts at once. | A guard is valid a lease after another owner got a majority. | 11 |
//! | A join counts by renewals that were sent before its answer arrived. | the same | 13 |
//! | A join raises the record at most to the node's time. | A later guard has no larger fence. | 15 |
//! | A joined node gets unused fences back. | the same, on one node | 16 |
//! | A node that said "gone" is joined again. | A guard is valid a lease after `force_release` took its votes. | 15 |
//! | An answer counts although "gone" arrived after the join was sent. | A guard is valid although a majority said "gone". | 12 |
//! | A node is joined before it has answered an earlier request that can make the key. | A guard is valid a lease after another owner got a majority. | 11 from a guard with such a vote, 22 in all |
//!
//! The third exception: a key vanishes while `force_release` asks in its last round. The lease may then go on (13 steps).

use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model, UniformChooser};

pub mod bounds;
pub mod fences;
pub mod joins;
pub mod votes;

/// Returns how many of `nodes` nodes are a majority.
#[must_use]
pub const fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The result of a search.
#[derive(Debug)]
pub struct Search {
    /// The number of different states. A random search counts a state again in each history.
    pub states: usize,
    /// How long it took.
    pub took: Duration,
    /// The properties that must always hold and do not, each with the number of steps of a counterexample. The search
    /// ends soon after the first.
    pub broken: Vec<(&'static str, usize)>,
    /// The properties that must sometimes hold, and have an example.
    pub examples: Vec<&'static str>,
}

/// Searches a model until a property is broken, or there are no more states. The states after the fewest steps come
/// first, so a counterexample has at most a few steps more than the shortest one.
#[must_use]
pub fn search<M>(model: M) -> Search
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let begun = Instant::now();
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures);
    report(&checker.spawn_bfs().join(), begun)
}

/// Searches a model as [`search`] does, but each history to its end. This takes a fifth of the memory. A counterexample
/// has more steps.
#[must_use]
pub fn search_depth_first<M>(model: M) -> Search
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let begun = Instant::now();
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures);
    report(&checker.spawn_dfs().join(), begun)
}

/// Searches a model by random histories until a property is broken, or there were `most` states. If a counterexample
/// has many steps, this may find it sooner than [`search`].
#[must_use]
pub fn search_at_random<M>(model: M, seed: u64, most: usize) -> Search
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let begun = Instant::now();
    let checker = model
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(most);
    report(
        &checker.spawn_simulation(seed, UniformChooser).join(),
        begun,
    )
}

fn report<M>(checker: &impl Checker<M>, begun: Instant) -> Search
where
    M: Model,
    M::State: Clone + Debug + Hash + PartialEq,
    M::Action: Clone + Debug + PartialEq,
{
    let (mut broken, mut examples) = (Vec::new(), Vec::new());
    for property in checker.model().properties() {
        let Some(path) = checker.discovery(property.name) else {
            continue;
        };
        if property.expectation == Expectation::Always {
            broken.push((property.name, path.into_actions().len()));
        } else {
            examples.push(property.name);
        }
    }
    Search {
        states: checker.unique_state_count(),
        took: begun.elapsed(),
        broken,
        examples,
    }
}
