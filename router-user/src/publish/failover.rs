//! Chooses the failover weights that match the engines that are down, and applies them to a
//! snapshot. Pure.

use crate::model::{ClusterId, EngineId};
use crate::publish::snapshot::{Failover, Snapshot};

/// The failover weights of `snapshot` for the engines that `cluster` finds down; `None` where there
/// are none, or no engine that the cluster uses is down.
///
/// A cluster knows only of the engines that it sends to. So failover weights match if all of their
/// lost engines that the cluster uses are down. Of several matches, the one that replaces the most
/// load is used, and among equals the one that gives up the fewest engines.
pub fn matching(snapshot: &Snapshot, cluster: ClusterId, is_down: impl Fn(&str) -> bool) -> Option<&Failover> {
    let mut used = vec![0.0; snapshot.engines.len()];
    for route in snapshot.routes.iter().filter(|route| route.cluster == cluster) {
        route.weights.iter().for_each(|share| used[share.engine.index()] += share.weight * route.demand_rps);
    }
    let is_used = |engine: &&EngineId| {
        let sends =
            |route: &crate::publish::snapshot::Route| route.weights.iter().any(|s| s.engine == **engine && s.weight > 0.0);
        snapshot.routes.iter().any(|route| route.cluster == cluster && sends(route))
    };
    let fits = |failover: &&Failover| {
        let mut lost = failover.lost.iter().filter(is_used).peekable();
        lost.peek().is_some()
            && lost.all(|engine| is_down(&snapshot.engines[engine.index()].name))
            && failover.routes.iter().any(|route| route.cluster == cluster)
    };
    let load = |failover: &Failover| failover.lost.iter().map(|engine| used[engine.index()]).sum::<f64>();
    (snapshot.failovers.iter().filter(fits))
        .max_by(|a, b| load(a).total_cmp(&load(b)).then_with(|| b.lost.len().cmp(&a.lost.len())))
}

/// The snapshot after `failover`: the routes of `cluster` have its weights, and the lost engines
/// have no capacity and no load. The generation stays the same, because nobody else sees the
/// result.
pub fn applied(snapshot: &Snapshot, cluster: ClusterId, failover: &Failover) -> Snapshot {
    let mut applied = snapshot.clone();
    for new in failover.routes.iter().filter(|route| route.cluster == cluster) {
        for route in applied.routes.iter_mut().filter(|r| (r.cluster, r.class) == (new.cluster, new.class)) {
            route.shed_frac = new.shed_frac;
            route.weights.clone_from(&new.weights);
        }
    }
    for engine in &failover.lost {
        let entry = &mut applied.engines[engine.index()];
        (entry.capacity_rps, entry.load_rps) = (0.0, 0.0);
    }
    applied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ClassId;
    use crate::publish::snapshot::{FailoverRoute, Route, Share};

    fn share(engine: u16, weight: f64) -> Share {
        Share { engine: EngineId(engine), weight }
    }

    /// Cluster a uses e1 and e2, cluster b only e3; there are failover weights for e1, for e2, and
    /// for e2 and e3 together.
    fn snapshot() -> Snapshot {
        let fleet = crate::config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal").fleet;
        let route = |cluster, weights| Route {
            cluster: ClusterId(cluster),
            class: ClassId(0),
            demand_rps: 100.0,
            price_ms: 0.0,
            shed_frac: 0.0,
            pinned: false,
            weights,
            too_far: Vec::new(),
        };
        let failover = |lost: &[u16], cluster, to| Failover {
            lost: lost.iter().copied().map(EngineId).collect(),
            routes: vec![FailoverRoute {
                cluster: ClusterId(cluster),
                class: ClassId(0),
                shed_frac: 0.25,
                weights: vec![share(to, 1.0)],
            }],
        };
        let snapshot = Snapshot {
            routes: vec![route(0, vec![share(0, 0.7), share(1, 0.3)]), route(1, vec![share(2, 1.0)])],
            failovers: vec![failover(&[0], 0, 1), failover(&[1], 0, 0), failover(&[1, 2], 0, 0), failover(&[2], 1, 1)],
            ..Snapshot::describe(&fleet)
        };
        snapshot.validate().expect("legal");
        snapshot
    }

    fn lost(cluster: u16, gone: &[&str]) -> Option<Vec<u16>> {
        let snapshot = snapshot();
        let found = matching(&snapshot, ClusterId(cluster), |name| gone.contains(&name));
        found.map(|failover| failover.lost.iter().map(|engine| engine.0).collect())
    }

    #[test]
    fn the_failover_that_fits_what_is_down() {
        assert_eq!(lost(0, &[]), None);
        assert_eq!(lost(0, &["e1"]), Some(vec![0]));
        assert_eq!(lost(0, &["e2"]), Some(vec![1]), "not the region: one engine explains it");
        assert_eq!(lost(0, &["e1", "e2"]), Some(vec![0]), "the one with more load; the ranks bear the other");
        assert_eq!(lost(0, &["e3"]), None, "it sends nothing there");
        assert_eq!(lost(1, &["e1"]), None);
        assert_eq!(lost(1, &["e3"]), Some(vec![2]));
        assert_eq!(lost(2, &["e1", "e2", "e3"]), None, "a cluster without routes");
    }

    #[test]
    fn what_is_applied_is_legal_and_changes_no_other_route() {
        let snapshot = snapshot();
        let applied = applied(&snapshot, ClusterId(0), &snapshot.failovers[0]);
        applied.validate().expect("legal");
        assert_eq!(applied.routes[1], snapshot.routes[1]);
        assert_eq!((applied.routes[0].shed_frac, &applied.routes[0].weights[..]), (0.25, &[share(1, 1.0)][..]));
        assert_eq!((applied.engines[0].capacity_rps, applied.generation), (0.0, snapshot.generation));
    }
}
