//! Which view counts, of those that the nodes have answered in one check.
//!
//! A view is *foreign* to the map, or to another view, if the two give a slot to different masters, and the view does not
//! know the other's master. The view of a node of another cluster is foreign, and so are all views if the cluster was
//! built anew. A foreign view must not change the map: locks would be granted that the masters have granted already.
//!
//! | the views of a check | the one that counts |
//! | --- | --- |
//! | some are foreign to the map, are not foreign to each other, and come from more than half of all nodes | one of these |
//! | others | one that is not foreign to the map |
//! | only foreign ones, and so they have been for [`FOREIGN_COUNT_AFTER`] | one of the most that are not foreign to each other |
//! | only foreign ones | none |
//! | any, and there is no map yet | one of the most that are not foreign to each other. Of as many, the first |

use std::time::Duration;

use super::map::{SlotMap, View};

/// How long only foreign views must have come, before they count although they come from half of the nodes or fewer.
pub(super) const FOREIGN_COUNT_AFTER: Duration = Duration::from_secs(60);

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The view at this place counts.
    View(usize),
    /// The view at this place counts, although it is foreign to the map.
    Foreign(usize),
    /// All views are foreign, and none counts yet.
    NoneYet,
}

/// Chooses among the views of a check, in the order in which they came, of which there is at least one. `nodes` is how
/// many nodes could be asked. `foreign_for` is how long no other views than foreign ones have come.
pub(super) fn choose(
    map: Option<&SlotMap>,
    views: &[View],
    nodes: usize,
    foreign_for: Duration,
) -> Choice {
    let is_foreign = |view: &View| map.is_some_and(|map| map.is_foreign(view));
    let agree = |one: &View, other: &View| !one.is_foreign(other) && !other.is_foreign(one);
    let mut largest = (0, 0);
    for (place, view) in views.iter().enumerate() {
        let is_meant = |other: &&View| agree(view, other) && is_foreign(other) == is_foreign(view);
        let count = views.iter().filter(is_meant).count();
        let may_count = map.is_none() || is_foreign(view);
        if may_count && count > largest.1 {
            largest = (place, count);
        }
    }
    let (place, count) = largest;
    if map.is_none() {
        return Choice::View(place);
    }
    if count > nodes / 2 {
        return Choice::Foreign(place);
    }
    match views.iter().position(|view| !is_foreign(view)) {
        Some(place) => Choice::View(place),
        None if foreign_for >= FOREIGN_COUNT_AFTER => Choice::Foreign(place),
        None => Choice::NoneYet,
    }
}

#[cfg(test)]
mod tests {
    use super::super::map::tests::{after, view};
    use super::*;

    /// The views of nodes of one cluster, and of another one.
    fn ours() -> View {
        view(&[("a", 1, 1, (0, 99)), ("b", 2, 2, (100, 199))], &[])
    }

    fn theirs() -> View {
        view(&[("x", 8, 9, (0, 199))], &[])
    }

    fn chosen(map: Option<&View>, views: &[View], nodes: usize, secs: u64) -> Choice {
        let map = map.map(|view| after(None, view));
        choose(map.as_ref(), views, nodes, Duration::from_secs(secs))
    }

    #[test]
    fn foreign_views_count_if_most_nodes_have_them() {
        let map = ours();
        let views = [theirs(), theirs(), ours()];
        assert_eq!(chosen(Some(&map), &views, 3, 0), Choice::Foreign(0));
        // Here it is a map of the other cluster that most nodes do not know.
        let views = [theirs(), ours(), ours()];
        assert_eq!(chosen(Some(&theirs()), &views, 3, 0), Choice::Foreign(1));
        // Half of the nodes is not enough.
        let views = [theirs(), theirs(), ours()];
        assert_eq!(chosen(Some(&map), &views, 4, 0), Choice::View(2));
        // Foreign views of two clusters do not count together.
        let another = view(&[("y", 7, 9, (0, 199))], &[]);
        let views = [theirs(), another, ours()];
        assert_eq!(chosen(Some(&map), &views, 3, 0), Choice::View(2));
    }

    #[test]
    fn a_few_foreign_views_count_only_after_a_time_without_others() {
        let map = ours();
        for (secs, choice) in [
            (0, Choice::NoneYet),
            (59, Choice::NoneYet),
            (60, Choice::Foreign(0)),
        ] {
            assert_eq!(chosen(Some(&map), &[theirs()], 6, secs), choice);
        }
        let views = [theirs(), ours()];
        assert_eq!(chosen(Some(&map), &views, 6, 600), Choice::View(1));
    }

    #[test]
    fn without_a_map_most_nodes_are_right() {
        let views = [theirs(), ours(), ours()];
        assert_eq!(chosen(None, &views, 3, 0), Choice::View(1));
        assert_eq!(chosen(None, &[theirs(), ours()], 2, 0), Choice::View(0));
    }

    /// A failover and a moved slot change the owner, and every node knows the last one.
    #[test]
    fn a_view_that_knows_the_last_owner_is_not_foreign() {
        let moved = view(&[("b", 2, 3, (0, 199))], &[("a", 1)]);
        assert_eq!(chosen(Some(&ours()), &[moved], 3, 0), Choice::View(0));
    }
}
