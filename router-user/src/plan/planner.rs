//! Publish or keep: is a new plan worth moving traffic for? Pure.
//!
//! Moved traffic loses its caches, so held weights stay unless a plan beats them by more than measurement noise, or they are no longer
//! legal. The answer carries its reason.

use std::fmt;

use crate::model::{EngineId, Fleet};

use super::check::{self, Violation};
use super::{Evaluation, Inputs, Plan, RouteWeights, evaluate};

/// Share of the mean latency by which a plan must be better than the held weights.
pub const EPSILON_FRAC: f64 = 1e-3;

/// Share of all demand by which shed must differ before it counts: the resolution of a measured demand.
const SHED_FRAC: f64 = 1e-3;

/// What to do with a new plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    Publish(Reason),
    /// The held weights stay: the plan's mean latency is better by only `gain_frac` of theirs.
    Keep {
        gain_frac: f64,
    },
}

/// Why a plan is published.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Nothing is held yet.
    First,
    /// The held weights break a rule under the present inputs.
    Illegal(Violation),
    /// The plan refuses another amount of demand, in requests/s, than the held weights would.
    Shed { held_rps: f64, plan_rps: f64 },
    /// The plan's mean latency is better by this share.
    Better { held_ms: f64, plan_ms: f64, gain_frac: f64 },
}

/// Decides between the `held` weights and `plan`, both under the `inputs` that the plan was made for.
///
/// Held weights that break a rule which the plan cannot keep either (a pin beyond an engine's capacity) are judged by their cost.
pub fn decide(fleet: &Fleet, inputs: &Inputs, held: Option<&[RouteWeights]>, plan: &Plan) -> Decision {
    let Some(held) = held else {
        return Decision::Publish(Reason::First);
    };
    let before = match check::legal(fleet, inputs, held) {
        Ok(evaluation) => evaluation,
        Err(violation) => return Decision::Publish(Reason::Illegal(violation)),
    };
    let after = evaluate(fleet, inputs, &plan.weights());
    if let Some(reason) = shed_differs(fleet, inputs, held, plan, &before, &after) {
        return Decision::Publish(reason);
    }
    let gain_frac = if before.cost_ms > 0.0 { 1.0 - after.cost_ms / before.cost_ms } else { 0.0 };
    // A plan in a hurry replaces what cannot stay, and nothing else.
    if gain_frac > EPSILON_FRAC && !plan.is_greedy {
        return Decision::Publish(Reason::Better { held_ms: before.cost_ms, plan_ms: after.cost_ms, gain_frac });
    }
    Decision::Keep { gain_frac }
}

/// Whether the plan sheds a noticeably different amount, in all or of any one priority.
fn shed_differs(
    fleet: &Fleet,
    inputs: &Inputs,
    held: &[RouteWeights],
    plan: &Plan,
    before: &Evaluation,
    after: &Evaluation,
) -> Option<Reason> {
    let threshold = SHED_FRAC * (before.served_rps + before.shed_rps);
    let by_priority = |weights: &[RouteWeights]| {
        let mut shed = vec![0.0; usize::from(u8::MAX) + 1];
        for route in weights {
            let priority = fleet.classes[route.class.index()].priority;
            shed[usize::from(priority)] += route.shed_frac * inputs.demand(route.cluster, route.class);
        }
        shed
    };
    let (held_shed, plan_shed) = (by_priority(held), by_priority(&plan.weights()));
    let differs = held_shed.iter().zip(&plan_shed).any(|(held, plan)| (held - plan).abs() > threshold);
    (differs && threshold > 0.0).then_some(Reason::Shed { held_rps: before.shed_rps, plan_rps: after.shed_rps })
}

/// Share of the demand that goes elsewhere when `after` replaces `before`: half the sum of all differences, shed included.
pub fn moved_frac(inputs: &Inputs, before: &[RouteWeights], after: &[RouteWeights]) -> f64 {
    let rps = |route: &RouteWeights, engine: EngineId| {
        let weight = route.weights.iter().find(|&&(other, _)| other == engine).map_or(0.0, |&(_, weight)| weight);
        weight * (1.0 - route.shed_frac)
    };
    let mut moved = 0.0;
    for new in after {
        let demand = inputs.demand(new.cluster, new.class);
        let Some(old) = before.iter().find(|old| (old.cluster, old.class) == (new.cluster, new.class)) else {
            moved += 2.0 * demand;
            continue;
        };
        let mut engines: Vec<EngineId> = new.weights.iter().chain(&old.weights).map(|&(engine, _)| engine).collect();
        engines.sort_unstable();
        engines.dedup();
        let differences: f64 = engines.into_iter().map(|engine| (rps(new, engine) - rps(old, engine)).abs()).sum();
        moved += demand * (differences + (new.shed_frac - old.shed_frac).abs());
    }
    let total: f64 = inputs.demand_rps.iter().flatten().sum();
    if total > 0.0 { moved / 2.0 / total } else { 0.0 }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publish(reason) => write!(f, "publish: {reason}"),
            Self::Keep { gain_frac } => {
                let limit = EPSILON_FRAC * 100.0;
                write!(f, "keep: the new plan is better by {:.3} %, moving traffic wants {limit} %", gain_frac * 100.0)
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => write!(f, "nothing was held before"),
            Self::Illegal(violation) => write!(f, "the held weights are no longer legal: {violation}"),
            Self::Shed { held_rps, plan_rps } => {
                write!(f, "the held weights refuse {held_rps:.1} requests/s, the plan {plan_rps:.1}")
            }
            Self::Better { held_ms, plan_ms, gain_frac } => {
                write!(f, "mean latency falls by {:.2} %, from {held_ms:.1} to {plan_ms:.1} ms", gain_frac * 100.0)
            }
        }
    }
}
