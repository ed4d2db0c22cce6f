//! Staleness decay of a snapshot: what its weights become when no controller renews them. Pure.

use crate::model::{EngineId, Fleet};
use crate::policy::decay::{Candidate, decayed};
use crate::publish::snapshot::{Share, Snapshot};

/// The snapshot with the weights of `cluster` after decay; `plan_share`, 0 to 1, of the plan still
/// counts.
///
/// It keeps its generation, since only this data plane uses it. Pinned routes do not decay.
pub(super) fn decayed_snapshot(published: &Snapshot, cluster: &str, fleet: &Fleet, plan_share: f64) -> Snapshot {
    let mut snapshot = published.clone();
    let (Some(own), Some(configured)) = (published.cluster(cluster), fleet.cluster(cluster)) else { return snapshot };
    // An engine whose distance this configuration does not know is outside every ring.
    let rtt_ms = |engine: EngineId| {
        let known = fleet.engine(&published.engines[engine.index()].name);
        known.map_or(f64::INFINITY, |known| fleet.rtt_ms[configured.index()][known.index()])
    };
    for route in snapshot.routes.iter_mut().filter(|route| route.cluster == own && !route.pinned) {
        let class = route.class;
        let engines = (0..published.engines.len()).map(EngineId::of);
        let eligible: Vec<EngineId> =
            engines.filter(|&e| published.ineligible(class, e).is_none() && !route.is_too_far(e)).collect();
        let candidate = |&engine: &EngineId| Candidate {
            weight: route.weights.iter().find(|share| share.engine == engine).map_or(0.0, |share| share.weight),
            capacity_rps: published.engines[engine.index()].capacity_rps,
            rtt_ms: rtt_ms(engine),
        };
        let candidates: Vec<Candidate> = eligible.iter().map(candidate).collect();
        let weights = eligible.into_iter().zip(decayed(&candidates, plan_share));
        route.weights = weights.filter(|&(_, weight)| weight > 0.0).map(|(engine, weight)| Share { engine, weight }).collect();
    }
    snapshot
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Inputs, plan};
    use crate::publish::build;

    #[test]
    fn stale_weights_are_legal_and_only_those_of_this_cluster_decay() {
        let fleet = crate::config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal").fleet;
        let plan = plan(&fleet, &Inputs::from_fleet(&fleet), None).expect("planned");
        let published = build::snapshot(&fleet, &plan, 7, 0, "test");
        for plan_share in [0.75, 0.5, 0.0] {
            let stale = decayed_snapshot(&published, "b", &fleet, plan_share);
            stale.validate().expect("legal");
            assert_eq!((&stale.routes[0], &stale.routes[2]), (&published.routes[0], &published.routes[2]));
            assert_ne!(stale.routes[1].weights, published.routes[1].weights);
        }
    }
}
