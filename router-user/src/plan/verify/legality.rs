//! Are weights legal? Plain arithmetic that shares no code with the solver.

use crate::model::{ClassId, ClusterId, EngineId, Fleet};
use crate::plan::verify::violation::Violation;
use crate::plan::{Evaluation, Inputs, NEGLIGIBLE_RPS, RouteWeights, evaluate};

/// Demand that may be unaccounted for, in requests/s, and the same as a share of an amount.
pub(crate) const AMOUNT_TOLERANCE: f64 = 1e-6;

/// Error of a sum of weights.
const WEIGHT_TOLERANCE: f64 = 1e-9;

/// Weights that break no rule of a fleet under the inputs they were checked for, with the expected
/// latency that the check computes.
///
/// Only [`legal`] makes it. The publish gate, rollout steps and the snapshot builder take it, so
/// nothing unchecked is published and nothing is evaluated twice.
#[derive(Clone, Debug, PartialEq)]
pub struct LegalWeights {
    routes: Vec<RouteWeights>,
    evaluation: Evaluation,
}

impl LegalWeights {
    /// The weights, one entry for each (cluster, class).
    pub fn routes(&self) -> &[RouteWeights] {
        &self.routes
    }

    /// Load and expected latency under these weights, on the true curves.
    pub fn evaluation(&self) -> &Evaluation {
        &self.evaluation
    }
}

/// Checks `weights` against every rule of `fleet` for `inputs`: one route for each (cluster,
/// class), weights that sum to 1, only eligible and ready engines, pins as they were set, and no
/// engine above its capacity or memory but by its pins.
///
/// Errors: the first [`Violation`] found.
pub fn legal(fleet: &Fleet, inputs: &Inputs, weights: &[RouteWeights]) -> Result<LegalWeights, Violation> {
    let mut seen = vec![0_usize; fleet.clusters.len() * fleet.classes.len()];
    let at = |cluster: ClusterId, class: ClassId| cluster.index() * fleet.classes.len() + class.index();
    for route in weights {
        seen[at(route.cluster, route.class)] += 1;
        route_is_legal(fleet, inputs, route)?;
    }
    for cluster in fleet.cluster_ids() {
        for class in fleet.class_ids() {
            let found = seen[at(cluster, class)];
            if found != 1 {
                let (cluster, class) = names(fleet, cluster, class);
                return Err(Violation::Routes { cluster, class, found });
            }
        }
    }
    let evaluation = evaluate(fleet, inputs, weights);
    let mut pinned_rps = vec![(0.0, 0.0); fleet.engines.len()];
    for pin in &inputs.pins {
        for (engine, share) in pin.shares() {
            let (rps, class) = (share * inputs.demand(pin.cluster, pin.class), &fleet.classes[pin.class.index()]);
            let (load, memory) = &mut pinned_rps[engine.index()];
            *load += rps * class.work;
            *memory += rps * fleet.profile_of(engine).memory(class).unwrap_or(0.0);
        }
    }
    // Each route may add an amount that is within rounding.
    let memory = fleet.profiles.iter().flat_map(|profile| fleet.classes.iter().filter_map(|class| profile.memory(class)));
    let heaviest = fleet.classes.iter().map(|class| class.work).chain(memory).fold(1.0, f64::max);
    let negligible = NEGLIGIBLE_RPS * heaviest * seen.len() as f64;
    for (engine, (pinned, pinned_memory)) in fleet.engine_ids().zip(pinned_rps) {
        let load = &evaluation.engines[engine.index()];
        let allowed = load.capacity_rps.max(pinned);
        if load.load_rps > allowed * (1.0 + AMOUNT_TOLERANCE) + negligible {
            return Err(Violation::Capacity { engine: engine_name(fleet, engine), found: load.load_rps, allowed });
        }
        let allowed = load.capacity_rps.max(pinned_memory);
        if load.memory_rps > allowed * (1.0 + AMOUNT_TOLERANCE) + negligible {
            return Err(Violation::Memory { engine: engine_name(fleet, engine), found: load.memory_rps, allowed });
        }
    }
    Ok(LegalWeights { routes: weights.to_vec(), evaluation })
}

fn route_is_legal(fleet: &Fleet, inputs: &Inputs, route: &RouteWeights) -> Result<(), Violation> {
    let (cluster, class) = names(fleet, route.cluster, route.class);
    if !(0.0..=1.0).contains(&route.shed_frac) {
        return Err(Violation::Shed { cluster, class, found: route.shed_frac });
    }
    let pin = inputs.pin(route.cluster, route.class);
    for &(engine, found) in &route.weights {
        let name = engine_name(fleet, engine);
        if !(found.is_finite() && found >= 0.0) {
            return Err(Violation::Weight { cluster, class, engine: name, found });
        }
        if let Some(why) = inputs.ineligible(fleet, route.cluster, route.class, engine) {
            return Err(Violation::Ineligible { cluster, class, engine: name, why: why.to_string() });
        }
        if inputs.ready[engine.index()] == 0 && found > 0.0 && pin.is_none() {
            return Err(Violation::NotReady { cluster, class, engine: name });
        }
    }
    for (engine, pinned) in pin.into_iter().flat_map(|pin| pin.shares()) {
        let found = route.weight(engine);
        if (found - pinned).abs() > AMOUNT_TOLERANCE {
            return Err(Violation::Pin { cluster, class, engine: engine_name(fleet, engine), found, pinned });
        }
    }
    let served = inputs.demand(route.cluster, route.class) * (1.0 - route.shed_frac);
    if route.weights.is_empty() {
        if served > NEGLIGIBLE_RPS {
            return Err(Violation::Unrouted { cluster, class, found: served });
        }
        return Ok(());
    }
    let found: f64 = route.weights.iter().map(|&(_, weight)| weight).sum();
    if (found - 1.0).abs() > WEIGHT_TOLERANCE * (1.0 + route.weights.len() as f64) {
        return Err(Violation::Sum { cluster, class, found });
    }
    Ok(())
}

fn names(fleet: &Fleet, cluster: ClusterId, class: ClassId) -> (String, String) {
    (fleet.clusters[cluster.index()].name.clone(), fleet.classes[class.index()].name.clone())
}

fn engine_name(fleet: &Fleet, engine: EngineId) -> String {
    fleet.engines[engine.index()].name.clone()
}
