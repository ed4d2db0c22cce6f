//! Marks of routes whose weights an operator has set. Pure.

use crate::model::{ClassId, ClusterId};
use crate::publish::snapshot::{Route, Snapshot};

/// Marks the routes whose weights an operator has set.
pub(super) fn label(routes: &mut [Route], by_hand: &[(ClusterId, ClassId)]) {
    routes.iter_mut().for_each(|route| route.pinned = by_hand.contains(&(route.cluster, route.class)));
}

/// The snapshot with present marks; `None` if its marks are right already, or while it is on trial.
pub(super) fn relabelled(current: &Snapshot, by_hand: &[(ClusterId, ClassId)]) -> Option<Snapshot> {
    let mut routes = current.routes.clone();
    label(&mut routes, by_hand);
    if !current.target_clusters.is_empty() || routes == current.routes {
        return None;
    }
    let changed = current.routes.iter().zip(&routes).filter(|(before, after)| before.pinned != after.pinned);
    let name = |(_, route): (&Route, &Route)| {
        let (cluster, class) = (&current.clusters[route.cluster.index()].name, &current.classes[route.class.index()].name);
        format!("{class} of {cluster} {}", if route.pinned { "are set by hand" } else { "are no longer set by hand" })
    };
    let reason = format!("the weights stay; those of {}", changed.map(name).collect::<Vec<_>>().join(", those of "));
    Some(Snapshot { reason, routes, ..current.clone() })
}
