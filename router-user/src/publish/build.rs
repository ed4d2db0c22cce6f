//! From a plan to a snapshot, and from a snapshot to the current weights of the next plan. Pure.

use crate::model::Fleet;
use crate::plan::decide::failover::Failover as PlannedFailover;
use crate::plan::{Plan, RouteWeights, Status as PlanStatus};
use crate::publish::snapshot::{EngineEntry, Failover, FailoverRoute, Route, Share, Snapshot, Status};

/// The snapshot of `plan`, published as `generation` for a `reason`; to be sealed. It carries the
/// weights that the plan has a proof of legality for.
pub fn snapshot(fleet: &Fleet, plan: &Plan, generation: u64, published_unix_ms: u64, reason: &str) -> Snapshot {
    let mut snapshot = Snapshot::describe(fleet);
    snapshot.generation = generation;
    snapshot.published_unix_ms = published_unix_ms;
    snapshot.reason = reason.to_owned();
    snapshot.status = match plan.status {
        PlanStatus::Optimal => Status::Optimal,
        PlanStatus::Degraded => Status::Degraded,
    };
    snapshot.objective_ms = plan.latency_ms;
    for load in &plan.engines {
        let entry = &mut snapshot.engines[load.engine.index()];
        entry.capacity_rps = load.capacity_rps;
        entry.load_rps = load.load_rps;
        entry.latency_ms = load.latency_ms;
        entry.price_ms = load.price_ms;
    }
    snapshot.routes = (plan.routes.iter().zip(plan.legal().routes()))
        .map(|(route, weights)| Route {
            cluster: route.cluster,
            class: route.class,
            demand_rps: route.demand_rps,
            price_ms: route.price_ms,
            shed_frac: weights.shed_frac.clamp(0.0, 1.0),
            pinned: route.is_pinned,
            weights: weights.weights.iter().map(|&(engine, weight)| Share { engine, weight }).collect(),
            too_far: route.too_far.clone(),
        })
        .collect();
    snapshot
}

/// Failover weights in the form of the snapshot.
pub fn failovers(planned: &[PlannedFailover]) -> Vec<Failover> {
    let route = |route: &RouteWeights| FailoverRoute {
        cluster: route.cluster,
        class: route.class,
        shed_frac: route.shed_frac.clamp(0.0, 1.0),
        weights: route.weights.iter().map(|&(engine, weight)| Share { engine, weight }).collect(),
    };
    let failover = |a: &PlannedFailover| Failover { lost: a.lost.clone(), routes: a.routes.iter().map(route).collect() };
    planned.iter().map(failover).collect()
}

/// The weights of a published snapshot in the numbering of `fleet`, matched by the names of
/// clusters, classes and engines. `None` if none of them is left.
///
/// If an engine has left the fleet or may not serve the class any more, the other engines of the
/// route get its share. A route without another engine is left out, as are clusters and classes
/// that the snapshot does not know: see [`changes`].
pub fn current_weights(fleet: &Fleet, snapshot: &Snapshot) -> Option<Vec<RouteWeights>> {
    let clusters: Vec<_> = snapshot.clusters.iter().map(|cluster| fleet.cluster(&cluster.name)).collect();
    let classes: Vec<_> = snapshot.classes.iter().map(|class| fleet.class(&class.name)).collect();
    let engines: Vec<_> = snapshot.engines.iter().map(|engine| fleet.engine(&engine.name)).collect();
    let known = |route: &Route| {
        let (cluster, class) = (clusters[route.cluster.index()]?, classes[route.class.index()]?);
        let known = |share: &Share| {
            let engine = engines[share.engine.index()].filter(|&engine| fleet.ineligible(class, engine).is_none())?;
            Some((engine, share.weight))
        };
        let mut weights: Vec<_> = route.weights.iter().filter_map(known).collect();
        if weights.len() < route.weights.len() {
            let sum: f64 = weights.iter().map(|&(_, weight)| weight).sum();
            if sum <= 0.0 {
                return None;
            }
            weights.iter_mut().for_each(|(_, weight)| *weight /= sum);
        }
        weights.sort_by_key(|&(engine, _)| engine);
        Some(RouteWeights { cluster, class, shed_frac: route.shed_frac, weights })
    };
    let mut current: Vec<RouteWeights> = snapshot.routes.iter().filter_map(known).collect();
    current.sort_by_key(|route| (route.cluster, route.class));
    (!current.is_empty()).then_some(current)
}

/// Largest number of names of one kind in a text about changes.
const NAMES_MOST: usize = 3;

/// The differences between `fleet` and the fleet of a snapshot, in words. `None` if data planes
/// need no new snapshot for the same weights.
pub fn changes(fleet: &Fleet, snapshot: &Snapshot) -> Option<String> {
    let described = Snapshot::describe(fleet);
    let place = |e: &EngineEntry| (e.name.clone(), format!("{:?}", (&e.region, e.address, &e.models, &e.tags)));
    let engines = |of: &Snapshot| of.engines.iter().map(place).collect::<Vec<_>>();
    let clusters = |of: &Snapshot| of.clusters.iter().map(|c| (c.name.clone(), format!("{c:?}"))).collect::<Vec<_>>();
    let classes = |of: &Snapshot| of.classes.iter().map(|c| (c.name.clone(), format!("{c:?}"))).collect::<Vec<_>>();
    let mut found = differences("engine", &engines(&described), &engines(snapshot));
    found.extend(differences("cluster", &clusters(&described), &clusters(snapshot)));
    found.extend(differences("class", &classes(&described), &classes(snapshot)));
    (!found.is_empty()).then(|| found.join("; "))
}

/// The differences of two lists of one kind; an entry is a name and all its other properties.
fn differences(kind: &str, now: &[(String, String)], before: &[(String, String)]) -> Vec<String> {
    let then = |name: &str| before.iter().find(|(other, _)| other == name).map(|(_, what)| what);
    let is_gone = |name: &str| !now.iter().any(|(other, _)| other == name);
    let name = |(name, _): &(String, String)| name.clone();
    let told = [
        ("is new", now.iter().filter(|(name, _)| then(name).is_none()).map(name).collect::<Vec<_>>()),
        ("is gone", before.iter().filter(|(name, _)| is_gone(name)).map(name).collect()),
        ("has changed", now.iter().filter(|(name, what)| then(name).is_some_and(|then| then != what)).map(name).collect()),
    ];
    let mut found = Vec::new();
    for (what, names) in told.into_iter().filter(|(_, names)| !names.is_empty()) {
        let more = names.len().saturating_sub(NAMES_MOST);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let names = names[..names.len().min(NAMES_MOST)].join(", ");
        found.push(format!("{kind} {names}{more} {what}"));
    }
    if found.is_empty() && now != before {
        found.push(format!("another order of every {kind}"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClassId, ClusterId, EngineId};
    use crate::plan::{Inputs, plan};

    const EXAMPLE: &str = include_str!("../../../examples/three-regions.toml");

    fn fleet(source: &str) -> Fleet {
        crate::config::parse(source).expect("legal").fleet
    }

    #[test]
    fn weights_are_held_by_name_when_the_fleet_changes() {
        let old = fleet(EXAMPLE);
        let planned = plan(&old, &Inputs::from_fleet(&old), None).expect("a plan");
        let snapshot = snapshot(&old, &planned, 7, 0, "test");
        assert_eq!((changes(&old, &snapshot), current_weights(&old, &snapshot)), (None, Some(planned.weights())));

        // One engine more, in front of the others, so that every number changes.
        let first = EXAMPLE.find("[[engine]]").expect("engines");
        let second = first + 1 + EXAMPLE[first + 1..].find("[[").expect("another");
        let twin = EXAMPLE[first..second].replace("\"e1\"", "\"e0\"").replace(":18001", ":18009");
        let larger = fleet(&format!("{}{twin}{}", &EXAMPLE[..first], &EXAMPLE[first..]));
        assert_eq!(changes(&larger, &snapshot).as_deref(), Some("engine e0 is new"));
        let current = current_weights(&larger, &snapshot).expect("all of it");
        for (current, planned) in current.iter().zip(planned.weights()) {
            let moved: Vec<_> = planned.weights.iter().map(|&(engine, weight)| (EngineId(engine.0 + 1), weight)).collect();
            assert_eq!(current.weights, moved);
        }
    }

    #[test]
    fn the_share_of_an_engine_that_is_gone_goes_to_the_others_of_its_route() {
        let old = fleet(EXAMPLE);
        let planned = plan(&old, &Inputs::from_fleet(&old), None).expect("a plan");
        let mut snapshot = snapshot(&old, &planned, 7, 0, "test");
        let share = |(engine, weight)| Share { engine: EngineId(engine), weight };
        snapshot.routes[0].weights = [(0, 0.5), (1, 0.3), (2, 0.2)].map(share).to_vec();
        snapshot.routes[1].weights = vec![share((0, 1.0))];
        let less = fleet(&EXAMPLE.replace("\"e1\"", "\"renamed\""));
        let current = current_weights(&less, &snapshot).expect("some");
        let route = |cluster| current.iter().find(|route| (route.cluster, route.class) == (ClusterId(cluster), ClassId(0)));
        let weights = &route(0).expect("held").weights;
        assert_eq!(weights.iter().map(|&(engine, _)| engine.0).collect::<Vec<_>>(), [1, 2]);
        assert!((weights[0].1 - 0.6).abs() < 1e-12 && (weights[1].1 - 0.4).abs() < 1e-12, "{weights:?}");
        assert_eq!(route(1), None, "nothing of it is left");
        assert_eq!(changes(&less, &snapshot).as_deref(), Some("engine renamed is new; engine e1 is gone"));
    }
}
