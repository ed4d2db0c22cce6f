//! Marks of routes whose weights an operator has set, and of engines about which one has given an
//! order. Pure.

use std::collections::BTreeMap;

use crate::control::leadership::publisher::is_marked;
use crate::model::{ClassId, ClusterId};
use crate::publish::snapshot::{EngineOrder, Route, Snapshot};

/// Marks the routes whose weights an operator has set.
pub(super) fn label(routes: &mut [Route], by_hand: &[(ClusterId, ClassId)]) {
    routes.iter_mut().for_each(|route| route.pinned = by_hand.contains(&(route.cluster, route.class)));
}

/// The snapshot with present marks of routes, to be published with the present marks of engines;
/// `None` if its marks are right already, or while it is on trial.
pub(super) fn relabelled(
    current: &Snapshot,
    by_hand: &[(ClusterId, ClassId)],
    orders: &BTreeMap<String, EngineOrder>,
) -> Option<Snapshot> {
    let mut routes = current.routes.clone();
    label(&mut routes, by_hand);
    if !current.target_clusters.is_empty() || routes == current.routes && is_marked(current, orders) {
        return None;
    }
    if routes == current.routes {
        let reason = "the weights stay; operators' orders about engines have changed or expired".to_owned();
        return Some(Snapshot { reason, ..current.clone() });
    }
    let changed = current.routes.iter().zip(&routes).filter(|(before, after)| before.pinned != after.pinned);
    let name = |(_, route): (&Route, &Route)| {
        let (cluster, class) = (&current.clusters[route.cluster.index()].name, &current.classes[route.class.index()].name);
        format!("{class} of {cluster} {}", if route.pinned { "are set by hand" } else { "are no longer set by hand" })
    };
    let reason = format!("the weights stay; those of {}", changed.map(name).collect::<Vec<_>>().join(", those of "));
    Some(Snapshot { reason, routes, ..current.clone() })
}
