//! What else could decide, on the same measurements: the ways that fleets are run without an
//! optimiser.

use clap::ValueEnum;
use router_user::model::{ClassId, ClusterId, EngineId, Fleet};
use router_user::plan::{Inputs, RouteWeights};
use serde::Serialize;

/// Share of an engine's capacity up to which the spill-over policy fills what is near before it
/// goes farther.
const SPILL_FRAC: f64 = 0.95;
/// Engines whose distances differ by less, in ms, are equally near.
const SAME_MS: f64 = 1.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The production planner.
    Optimiser,
    /// To the nearest engines that are ready, by capacity, however full.
    Nearest,
    /// To every engine that is ready, by capacity, however far.
    Proportional,
    /// To the nearest engines up to a threshold, then to the next nearest with room.
    Spill,
}

impl Policy {
    pub const ALL: [Self; 4] = [Self::Optimiser, Self::Nearest, Self::Proportional, Self::Spill];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Optimiser => "optimiser",
            Self::Nearest => "nearest",
            Self::Proportional => "proportional",
            Self::Spill => "spill",
        }
    }

    /// The weights of a policy that optimises nothing.
    pub(super) fn weights(self, fleet: &Fleet, inputs: &Inputs) -> Vec<RouteWeights> {
        let mut room: Vec<f64> = fleet.engine_ids().map(|engine| SPILL_FRAC * inputs.capacity_rps(fleet, engine)).collect();
        let routes: Vec<(ClusterId, ClassId)> =
            fleet.cluster_ids().flat_map(|cluster| fleet.class_ids().map(move |class| (cluster, class))).collect();
        let mut amounts: Vec<Vec<(EngineId, f64)>> = vec![Vec::new(); routes.len()];
        match self {
            Self::Nearest | Self::Proportional => {
                for (&(cluster, class), amounts) in routes.iter().zip(&mut amounts) {
                    let mut rings = rings(fleet, inputs, cluster, class);
                    if self == Self::Nearest {
                        rings.truncate(1);
                    }
                    let capacity = |&engine: &EngineId| (engine, inputs.capacity_rps(fleet, engine));
                    amounts.extend(rings.iter().flatten().map(capacity));
                }
            }
            Self::Optimiser | Self::Spill => {
                // Everybody near first, so that nobody's neighbours are filled from afar before.
                let mut left: Vec<f64> = routes
                    .iter()
                    .map(|&(cluster, class)| inputs.demand(cluster, class) * fleet.classes[class.index()].work)
                    .collect();
                for is_near in [true, false] {
                    for (at, &(cluster, class)) in routes.iter().enumerate() {
                        for (nth, ring) in rings(fleet, inputs, cluster, class).iter().enumerate() {
                            if is_near && nth > 0 {
                                break;
                            }
                            let there: f64 = ring.iter().map(|engine| room[engine.index()]).sum();
                            let taken = left[at].min(there);
                            if taken > 0.0 {
                                left[at] -= taken;
                                for &engine in ring {
                                    let share = taken * room[engine.index()] / there;
                                    amounts[at].push((engine, share));
                                }
                                ring.iter().for_each(|engine| room[engine.index()] *= 1.0 - taken / there);
                            }
                        }
                        // No demand, or no room anywhere: whatever is near.
                        if amounts[at].is_empty() && !is_near {
                            let rings = rings(fleet, inputs, cluster, class);
                            amounts[at].extend(rings.iter().take(1).flatten().map(|&engine| (engine, 1.0)));
                        }
                    }
                }
            }
        }
        routes.into_iter().zip(amounts).map(|((cluster, class), amounts)| route(cluster, class, &amounts)).collect()
    }
}

/// Weights in proportion to amounts.
fn route(cluster: ClusterId, class: ClassId, amounts: &[(EngineId, f64)]) -> RouteWeights {
    let sum: f64 = amounts.iter().map(|&(_, amount)| amount).sum();
    let mut weights: Vec<(EngineId, f64)> = Vec::new();
    for &(engine, amount) in amounts.iter().filter(|&&(_, amount)| amount > 0.0) {
        match weights.iter_mut().find(|(other, _)| *other == engine) {
            Some((_, weight)) => *weight += amount / sum,
            None => weights.push((engine, amount / sum)),
        }
    }
    RouteWeights { cluster, class, shed_frac: 0.0, weights }
}

/// The ready engines that may serve a class, the equally near together, the nearest first.
fn rings(fleet: &Fleet, inputs: &Inputs, cluster: ClusterId, class: ClassId) -> Vec<Vec<EngineId>> {
    let rtt = |engine: EngineId| inputs.rtt_ms[cluster.index()][engine.index()];
    let may = |&engine: &EngineId| inputs.ready[engine.index()] > 0 && inputs.ineligible(fleet, cluster, class, engine).is_none();
    let mut engines: Vec<EngineId> = fleet.engine_ids().filter(may).collect();
    engines.sort_by(|&a, &b| rtt(a).total_cmp(&rtt(b)).then(a.cmp(&b)));
    let mut rings: Vec<Vec<EngineId>> = Vec::new();
    for engine in engines {
        match rings.last_mut() {
            Some(ring) if rtt(engine) - rtt(ring[0]) < SAME_MS => ring.push(engine),
            _ => rings.push(vec![engine]),
        }
    }
    rings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_do_what_they_are_called() {
        let fleet = router_user::config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal").fleet;
        let mut inputs = Inputs::from_fleet(&fleet);
        let of_b = |policy: Policy, inputs: &Inputs| -> Vec<f64> {
            let routes = policy.weights(&fleet, inputs);
            fleet.engine_ids().map(|engine| routes[1].weight(engine)).collect()
        };
        assert_eq!(of_b(Policy::Nearest, &inputs), [0.0, 1.0, 0.0]);
        let shares = [100.0 / 280.0, 100.0 / 280.0, 80.0 / 280.0];
        assert!(of_b(Policy::Proportional, &inputs).iter().zip(shares).all(|(a, b)| (a - b).abs() < 1e-12));
        // b has 120: 95 fit its own, e1 has 5 left beside a's 90, the rest goes to e3.
        let wanted = [5.0 / 120.0, 95.0 / 120.0, 20.0 / 120.0];
        assert!(of_b(Policy::Spill, &inputs).iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9));
        inputs.ready[1] = 0;
        assert_eq!(of_b(Policy::Nearest, &inputs), [1.0, 0.0, 0.0]);
    }
}
