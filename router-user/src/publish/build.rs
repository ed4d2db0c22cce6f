//! From a plan to a snapshot, and back to the weights a new plan is compared with. Pure.

use crate::model::Fleet;
use crate::plan::decide::failover::Alternate as PlannedAlternate;
use crate::plan::{Plan, RouteWeights, Status as PlanStatus};
use crate::publish::snapshot::{Alternate, AlternateRoute, Route, Share, Snapshot, Status};

/// The snapshot of `plan`, published as `generation` for a `reason`; to be sealed.
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
    snapshot.routes = (plan.routes.iter().zip(plan.weights()))
        .map(|(route, weights)| Route {
            cluster: route.cluster,
            class: route.class,
            demand_rps: route.demand_rps,
            price_ms: route.price_ms,
            shed_frac: weights.shed_frac.clamp(0.0, 1.0),
            pinned: route.is_pinned,
            weights: route.weights.iter().map(|share| Share { engine: share.engine, weight: share.weight }).collect(),
            too_far: route.too_far.clone(),
        })
        .collect();
    snapshot
}

/// Alternates as a snapshot carries them.
pub fn alternates(planned: &[PlannedAlternate]) -> Vec<Alternate> {
    let route = |route: &RouteWeights| AlternateRoute {
        cluster: route.cluster,
        class: route.class,
        shed_frac: route.shed_frac.clamp(0.0, 1.0),
        weights: route.weights.iter().map(|&(engine, weight)| Share { engine, weight }).collect(),
    };
    let alternate = |a: &PlannedAlternate| Alternate { lost: a.lost.clone(), routes: a.routes.iter().map(route).collect() };
    planned.iter().map(alternate).collect()
}

/// The weights of a published snapshot in the numbering of `fleet`; `None` when it describes another fleet, whose weights mean
/// nothing here: other clusters, classes or engines, or an engine elsewhere or for other models.
pub fn held_weights(fleet: &Fleet, snapshot: &Snapshot) -> Option<Vec<RouteWeights>> {
    let described = Snapshot::describe(fleet);
    let same_engines = described.engines.len() == snapshot.engines.len()
        && (described.engines.iter().zip(&snapshot.engines)).all(|(new, old)| {
            (&new.name, &new.region, new.address, &new.models, &new.tags)
                == (&old.name, &old.region, old.address, &old.models, &old.tags)
        });
    if !same_engines || described.clusters != snapshot.clusters || described.classes != snapshot.classes {
        return None;
    }
    let weights = |route: &Route| RouteWeights {
        cluster: route.cluster,
        class: route.class,
        shed_frac: route.shed_frac,
        weights: route.weights.iter().map(|s| (s.engine, s.weight)).collect(),
    };
    Some(snapshot.routes.iter().map(weights).collect())
}
